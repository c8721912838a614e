/* ref.h: the pieces that the reference ops are composed of. Plain C, one thread, f32 sums in a
 * fixed order; rows are taken in tiles so that a weight row or a page is decoded once per tile.
 * Memory comes from the stream's scratch only.
 *
 * Every op starts with mm_ref_start and is listed in mm_ref_ops (ref_ops.c). A function that takes
 * `act` reads or writes arrays of activations; everything between is f32. */
#ifndef MM_REF_H
#define MM_REF_H
#include <math.h>

#include "csrc/base/half.h"
#include "kernels/host.h"
#include "kernels/host_begin.h"

#define MM_REF_TILE 64 /* rows that share one decoding of a weight row or a page */

/* ---------------------------------------------------------------- scratch, activations */

void mm_ref_start(const mm_op_context *c); /* forgets the scratch of the op before */
mm_status mm_ref_scratch(const mm_op_context *c, int64_t n_bytes, void **out);
mm_status mm_ref_floats(const mm_op_context *c, int64_t n, float **out);

static inline float mm_ref_round(mm_dtype act, float x)
{
    return act == MM_DTYPE_BF16 ? mm_f32_round_bf16(x) : x;
}
/* n elements from element `first` of an array of activations. */
void mm_ref_act_read(mm_dtype act, const void *src, int64_t first, int64_t n, float *dst);
void mm_ref_act_write(mm_dtype act, void *dst, int64_t first, int64_t n, const float *src);

/* ---------------------------------------------------------------- linear, norm, rotation */

/* Sixteen partial sums, added as a tree: the order depends on n only. */
float mm_ref_dot(const float *a, const float *b, int64_t n);
mm_status mm_ref_check_weight(const mm_weight *w, const char *name);
/* Row i of w as f32 [n_in]; NVFP4 without the division by the global scale. */
void mm_ref_weight_row(const mm_weight *w, int64_t i, float *out);
/* y[r * y_stride + i] = dot(x[r], w_i) for all n_row rows and all rows i of w; x [n_row, n_in];
 * row: scratch [n_in]. */
void mm_ref_linear(const mm_weight *w, const float *x, int64_t n_row, float *y, int64_t y_stride,
                   float *row);

/* out_j = v_j * rsqrt(mean(v^2) + eps) * (1 + w_j); out may be v. */
void mm_ref_norm(const float *v, const float *w, int64_t n, float eps, float *out);
/* Rotates pairs (j, j + n_rotary / 2) of v by the row of the table of this position. */
void mm_ref_rotate(float *v, const float *rope, int32_t n_rotary);
/* End of a residual branch (attn_out in ops.h): y [n_row, D] f32 is overwritten. */
mm_status mm_ref_branch_end(const mm_op_context *c, int64_t n_row, float *y, void *x,
                            const float *norm_w, void *h);
int64_t mm_ref_branch_end_scratch(const mm_op_shape *s);

/* ---------------------------------------------------------------- caches, attention */

/* One row of `dim` values in a cache format, and back. read gives what attention multiplies with
 * (NVFP4: rounded to e4m3); the other formats are read exactly. scale is NULL but for NVFP4. */
void mm_ref_cache_write(mm_cache_format format, int32_t dim, const float *x, uint8_t *data,
                        uint8_t *scale);
void mm_ref_cache_read(mm_cache_format format, int32_t dim, const uint8_t *data,
                       const uint8_t *scale, float *out);
void mm_ref_plane_write(const mm_plane *p, int64_t page, int32_t head, int32_t offset,
                        const float *x);
void mm_ref_plane_read(const mm_plane *p, int64_t page, int32_t head, int32_t n_key,
                       float *out); /* [n_key, dim] */
int64_t mm_ref_page(const mm_seq_view *seq, int32_t i_seq, int64_t block);
/* The query as an operand beside keys of this format; iq as one beside index keys. In place. */
void mm_ref_round_query(mm_cache_format format, float *q, int64_t n);
void mm_ref_round_index_query(mm_cache_format format, float *iq, int64_t n);

/* One head vector that attends: running maximum, denominator and accumulator over the partials
 * merged so far. */
typedef struct mm_ref_attn_state {
    float max, den;
    float *acc; /* [dim] */
} mm_ref_attn_state;
/* Adds the partial of keys [0, n_key), n_key <= MM_PAGE. q, k, v are operands; page_acc: scratch
 * [dim]. */
void mm_ref_attn_partial(mm_cache_format format, int32_t dim, const float *q, const float *k,
                         const float *v, int32_t n_key, mm_ref_attn_state *s, float *page_acc);
void mm_ref_attn_finish(mm_cache_format format, int32_t dim, mm_ref_attn_state *s); /* acc becomes
                                                                                       the output */

/* Scores of blocks 0 .. n_block - 1 of n_row rows of sequence i_seq, from row t: score[(r * I + g)
 * * n_block + b]. Keys after a row's position are not read; iq [n_row, I, di] are operands; key:
 * scratch [MM_PAGE, di]. */
void mm_ref_index_scores(const mm_op_shape *s, const mm_seq_view *seq, const mm_plane *ik,
                         int32_t i_seq, int32_t t, int32_t n_row, const float *iq, int32_t n_block,
                         float *score, float *key);
/* The blocks that a row in block `local` reads, ascending, -1 filled; false when a score is NaN
 * (then only `local`). */
bool mm_ref_choose_blocks(const mm_op_shape *s, const float *score, int32_t local, int16_t *out);

/* ---------------------------------------------------------------- MLP, sampling */

/* y [n_row, D] = down(swiglu(gate, up)), f32; h [n_row, D]; g, u: scratch [n_row, F], row: scratch
 * [max(D, F)]. */
void mm_ref_mlp(const mm_op_shape *s, const mm_weight *gate, const mm_weight *up,
                const mm_weight *down, const float *h, int64_t n_row, float *y, float *g, float *u,
                float *row);

/* Ids ordered by (value descending, id ascending), -0 equal to +0, no NaN; tmp: scratch [n]. */
void mm_ref_sort_descending(const float *v, int32_t n, uint32_t *order, uint32_t *tmp);
float mm_ref_max(const float *v, int32_t n); /* -inf for none */
bool mm_ref_has_nan(const float *v, int32_t n);
void mm_ref_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);
/* Uniform number in (0, 1) of a slot's stream. */
double mm_ref_uniform(uint64_t seed, uint64_t n_emitted, uint32_t lane, uint32_t stream);

/* One row's settings and history for the stages of the sampler. */
typedef struct mm_ref_row {
    const mm_slot_params *p;
    const mm_slots *slots;
    int32_t slot, lane, n_vocab;
    const int32_t *lane_token; /* lane_token[-k], k < lane: tokens after the slot's own, newest
                                  first */
    int32_t forced;            /* -1: none */
} mm_ref_row;
void mm_ref_mask(const mm_ref_row *r, const int32_t never_token[16], const float *logits,
                 float *work);
void mm_ref_penalise(const mm_ref_row *r, float *work); /* bias, repetition, frequency, presence */
/* min_p, top_k, top_p on tempered logits; weight, order, tmp: scratch [V]. */
void mm_ref_filter(const mm_slot_params *p, int32_t n_vocab, float *work, float *weight,
                   uint32_t *order, uint32_t *tmp);
/* exp(work - max), 0 where filtered. */
void mm_ref_weights(const float *work, int32_t n_vocab, float *weight);
int32_t mm_ref_draw(const float *weight, int32_t n_vocab, double u);
int32_t mm_ref_argmax(const float *v, int32_t n);

/* ---------------------------------------------------------------- ops */

mm_status mm_ref_embed(const mm_op_context *c, const mm_seq_view *seq, const mm_embed_args *a);
mm_status mm_ref_attn_in(const mm_op_context *c, const mm_seq_view *seq, const mm_attn_in_args *a);
mm_status mm_ref_attn_sparse(const mm_op_context *c, const mm_seq_view *seq,
                             const mm_attn_sparse_args *a);
mm_status mm_ref_attn_dense(const mm_op_context *c, const mm_seq_view *seq,
                            const mm_attn_dense_args *a);
mm_status mm_ref_attn_out(const mm_op_context *c, const mm_seq_view *seq,
                          const mm_attn_out_args *a);
mm_status mm_ref_mlp_op(const mm_op_context *c, const mm_seq_view *seq, const mm_mlp_args *a);
mm_status mm_ref_moe(const mm_op_context *c, const mm_seq_view *seq, const mm_moe_args *a);
mm_status mm_ref_head(const mm_op_context *c, const mm_head_args *a);
mm_status mm_ref_sample(const mm_op_context *c, const mm_sample_args *a);
mm_status mm_ref_logprobs(const mm_op_context *c, const mm_logprob_args *a);
mm_status mm_ref_copy_pages(const mm_op_context *c, const mm_copy_pages_args *a);
mm_status mm_ref_gather_rows(const mm_op_context *c, const mm_gather_args *a);

int64_t mm_ref_attn_in_scratch(const mm_op_shape *s);
int64_t mm_ref_attention_scratch(const mm_op_shape *s);
int64_t mm_ref_attn_out_scratch(const mm_op_shape *s);
int64_t mm_ref_moe_scratch(const mm_op_shape *s);
int64_t mm_ref_head_scratch(const mm_op_shape *s);
int64_t mm_ref_sample_scratch(const mm_op_shape *s); /* sample and logprobs */
#endif
