/* rank_buffers.h: what one rank keeps between and within steps beside the model: slots, views,
 * logits, results. Backend memory in one block; on host backends the host's copies and the rank's
 * are the same arrays.
 *
 * Results of a step lie packed in one piece of memory, laid out by how many outputs and entries the
 * step has, so that one download brings them to the host. On a device that piece is the same for
 * every step (captured graphs write to it); the host has one per step in flight. A step in flight
 * is also a place in the ring in which captured steps look for their batch. */
#ifndef MM_RANK_BUFFERS_H
#define MM_RANK_BUFFERS_H
#include "csrc/engine/scheduler.h"
#include "csrc/model/model.h"

typedef struct mm_ranks_options mm_ranks_options;

/* One batch in flight. */
typedef struct mm_rank_step {
    void *blob;    /* the batch in backend memory; host backends: unused */
    uint8_t *host; /* packed results */
    mm_step_result result;
    int64_t *n_read; /* [2] attention counters, in `host` */
    mm_event *sent, *done;
} mm_rank_step;

typedef struct mm_rank_buffers {
    mm_slots slots;
    mm_seq_view seq;
    mm_out_view out;
    float *logits, *work; /* [max_logit_rows, V] */
    uint8_t *result;      /* packed results on a device */
    mm_ring ring;         /* device: of `step`; who builds the batches sets batch and n_bytes */
    uint8_t *plain;       /* device: the batch that captured draws look at (graph.c) */
    mm_rank_step step[MM_MAX_IN_FLIGHT];
    int32_t n_step;
    void *block, *host_block;
    int64_t slot_bytes, logit_bytes, step_bytes, host_bytes;
} mm_rank_buffers;

/* Fills in the byte counts only. */
void mm_rank_buffers_measure(mm_rank_buffers *b, const mm_op_shape *shape,
                             const mm_ranks_options *opt, int32_t n_step, bool is_host);
mm_status mm_rank_buffers_open(mm_rank_buffers *b, mm_backend *be, const mm_op_shape *shape,
                               const mm_ranks_options *opt, int32_t n_step);
void mm_rank_buffers_close(mm_rank_buffers *b, mm_backend *be);

/* Arrays of n_out outputs and n_entry entries in packed results at `base`; returns their bytes.
 * n_read is at the start. without `chosen`: sampling_logprob is NULL. */
int64_t mm_rank_result_lay(mm_step_result *r, uint8_t *base, int64_t n_out, int64_t n_entry,
                           bool chosen);
#endif
