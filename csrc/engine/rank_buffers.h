/* rank_buffers.h: what one rank keeps between and within steps beside the model: slots, views,
 * logits, results. Backend memory; on host backends the host's copies and the rank's are the same
 * arrays. */
#ifndef MM_RANK_BUFFERS_H
#define MM_RANK_BUFFERS_H
#include "csrc/engine/rank.h"

/* Device and host side of one batch in flight. */
typedef struct mm_rank_step {
    void *blob;            /* the batch in backend memory; host backends: the coordinator's */
    mm_step_result device; /* arrays in backend memory */
    mm_step_result host;   /* arrays the coordinator reads */
    int64_t *n_read;       /* [2] host copy of the attention counters */
    mm_event *done;
} mm_rank_step;

typedef struct mm_rank_buffers {
    mm_slots slots;
    mm_seq_view seq;
    mm_out_view out;
    float *logits, *work; /* [max_logit_rows, V] */
    mm_rank_step step[MM_MAX_IN_FLIGHT];
    int32_t n_step;
    void *block[96], *host_block[48];
    int32_t n_block, n_host_block;
    int64_t slot_bytes, logit_bytes, step_bytes;
} mm_rank_buffers;

mm_status mm_rank_buffers_open(mm_rank_buffers *b, mm_backend *be, const mm_op_shape *shape,
                               const mm_ranks_options *opt, int32_t n_step);
void mm_rank_buffers_close(mm_rank_buffers *b, mm_backend *be);
#endif
