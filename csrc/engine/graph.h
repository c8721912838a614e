/* graph.h: captured decode steps. A graph holds all of a step of n_seq sequences of n_row rows
 * each: `expand` of the batch that is next in the ring (ops.h), the forward pass and, in its usual
 * forms, the logits and draws of one output per sequence, and their way to the host: one form for
 * steps that are greedy altogether, one for all others. A smaller step is filled up with sequences
 * of the reserved slot. All graphs are captured when the engine opens: no step allocates. */
#ifndef MM_GRAPH_H
#define MM_GRAPH_H
#include "csrc/engine/step.h"

#define MM_MAX_GRAPH_SIZES 64

typedef struct mm_step_graph {
    int32_t n_seq, n_row; /* sequences; rows of each */
    bool draws;           /* logits and draws are in it */
    int32_t draw;         /* enum mm_draw of these */
    mm_graph *graph;
} mm_step_graph;

typedef struct mm_graphs {
    mm_step_graph *item; /* [n], ascending n_row, then n_seq; every form of each size */
    int32_t n, cap;
} mm_graphs;

/* What is captured: steps of each of these batch sizes, with 1 to most_rows rows a sequence (plain
 * decoding has one; drafts to verify make more), as far as a step can have that many rows. */
typedef struct mm_graph_range {
    const int32_t *size; /* [n_size] ascending */
    int32_t n_size, most_rows, max_rows;
} mm_graph_range;

/* Batch sizes to capture for: those wanted (0: a standard row) that fit max_seqs and max_rows,
 * ascending; writes at most MM_MAX_GRAPH_SIZES and returns how many. */
int32_t mm_graph_sizes(int32_t *out, const int32_t *wanted, int32_t n_wanted, int32_t max_seqs,
                       int32_t max_rows);
/* Device memory that the driver may take for them. */
int64_t mm_graphs_bytes(const mm_graph_range *range, int32_t n_layer);
/* Bytes of mm_rank_buffers.plain: a batch of max_seqs plain decodes. */
int64_t mm_plain_bytes(int32_t max_seqs);
/* Runs each size once (kernels are loaded on first use, which no capture may do), then captures it.
 */
mm_status mm_graphs_open(mm_graphs *g, mm_step_context *k, const mm_graph_range *range);
void mm_graphs_close(mm_graphs *g, mm_backend *b);
/* The smallest graph that takes this step; NULL: none (g may be NULL). */
const mm_step_graph *mm_graphs_find(const mm_graphs *g, const mm_batch *batch);
#endif
