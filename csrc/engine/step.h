/* step.h: one batch on one rank: upload, forward pass, then output rows in groups: logits, draw,
 * log-probabilities. Plain decode steps of a captured size are one graph launch. */
#ifndef MM_STEP_H
#define MM_STEP_H
#include "csrc/engine/rank_buffers.h"

struct mm_graphs;
struct mm_step_graph;

typedef struct mm_step_context {
    mm_backend *backend;
    mm_model *model;
    mm_rank_buffers *buf;
    mm_stream *copies;              /* device: batches travel here, beside the step that runs */
    const struct mm_graphs *graphs; /* NULL: none were captured */
    bool is_first;                  /* rank 0 writes traces */
} mm_step_context;

/* Puts all work of the batch on the stream, the download included. i: which of buf->step; steps
 * take them in turn. The batch lies in that place of buf->ring. */
mm_status mm_step_start(mm_step_context *k, const mm_batch *batch, int32_t i);
/* Waits until the results of step i are in host memory. */
mm_status mm_step_finish(mm_step_context *k, int32_t i);

/* The parts of mm_step_start that graphs are made of. */
/* Forward pass of the rows in seq; a NULL batch has no trace. */
mm_status mm_step_forward(mm_step_context *k, const mm_seq_view *seq, const mm_batch *batch);
/* Logits and draws of n plain SAMPLE outputs, chosen as `draw` (enum mm_draw) says; r: packed
 * results on the device. */
mm_status mm_step_draw(mm_step_context *k, const mm_out_view *out, int32_t n, int32_t draw,
                       mm_step_result *r);
#endif
