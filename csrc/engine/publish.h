/* publish.h: from the coordinator's outputs to what readers see. */
#ifndef MM_PUBLISH_H
#define MM_PUBLISH_H
#include "csrc/engine/queue.h"
#include "csrc/engine/scheduler.h"

/* Readers' snapshot of every request that changed; news to their waiters; those that are over are
 * let go. To be called after every commit and whenever requests came in, ended or were taken
 * back. */
void mm_publish(mm_queue *q, mm_scheduler *s, uint64_t weight_version);
#endif
