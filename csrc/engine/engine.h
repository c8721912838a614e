/* engine.h: what an engine is made of. Private to csrc/engine; callers see csrc/mm.h. */
#ifndef MM_ENGINE_H
#define MM_ENGINE_H
#include <sys/types.h>

#include "csrc/engine/queue.h"
#include "csrc/engine/rank.h"
#include "csrc/engine/scheduler.h"

#define MM_MAX_MEMORY_LINES 40

struct mm_engine {
    pid_t pid;
    /* Copies that outlive the caller's options. */
    mm_config config;
    uint8_t *layer_flags; /* both arrays of config */
    int32_t *eos;
    mm_token_bytes bytes;
    uint8_t *bytes_blob;
    int64_t *bytes_offset;
    mm_request_limits limits;
    mm_engine_info info;
    char backend[16], tier[32]; /* behind info */
    mm_memory_line memory[MM_MAX_MEMORY_LINES];
    int32_t n_memory;

    mm_queue queue;
    int32_t n_ref; /* queue.lock: the handle, and one per open waiter */
    bool has_queue, has_scheduler, has_thread;
    mm_ranks *ranks;
    mm_scheduler scheduler; /* coordinator's */
    pthread_t coordinator;
};

/* MM_E_FORKED in a child process; every public function asks first. */
mm_status mm_engine_check_process(const mm_engine *e);
void *mm_coordinator_main(void *engine);
/* One holder less; frees the engine with the last one. The queue is locked, and
 * unlocked on return. */
void mm_engine_unref_locked(mm_engine *e);
#endif
