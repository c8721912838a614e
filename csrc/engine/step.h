/* step.h: one batch on one rank: upload, forward pass, then output rows in groups: logits, draw,
 * log-probabilities. */
#ifndef MM_STEP_H
#define MM_STEP_H
#include "csrc/engine/rank_buffers.h"

typedef struct mm_step_context {
    mm_backend *backend;
    mm_model *model;
    mm_rank_buffers *buf;
    bool is_first; /* rank 0 writes traces */
} mm_step_context;

/* Puts all work of the batch on the stream, downloads included. i: which of buf->step. */
mm_status mm_step_start(mm_step_context *k, const mm_batch *batch, int32_t i);
/* Waits until the results of step i are in host memory. */
mm_status mm_step_finish(mm_step_context *k, int32_t i);
#endif
