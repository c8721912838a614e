/* kernels.h: the host side of every kernel family: what ops.cu puts into the table, and what
 * families offer each other. Contracts of ops: kernels/ops.h. */
#ifndef MM_CUDA_KERNELS_H
#define MM_CUDA_KERNELS_H
#include "kernels/cuda/cuda.h"

/* Rows from which the large kernels take over; up to it a row's result never depends on how many
 * rows there are (fixed splits of n_in). With shape->invariant the small ones run always. */
#define MM_CUDA_SMALL_ROWS 64

/* ---- begin.cu, expand.cu, embed.cu, move.cu */
mm_status mm_cuda_begin(const mm_op_context *c, const mm_begin_args *a);
mm_status mm_cuda_expand(const mm_op_context *c, const mm_expand_args *a);
mm_status mm_cuda_embed(const mm_op_context *c, const mm_seq_view *seq, const mm_embed_args *a);
/* What __CUDA_ARCH__ / 10 was in the code of the generic kernels that the current device runs: 80
 * where the driver compiled it from PTX, whatever the device. All of them are built alike. */
mm_status mm_cuda_code_arch(const mm_cuda *b, int32_t *out);
mm_status mm_cuda_copy_pages(const mm_op_context *c, const mm_copy_pages_args *a);
mm_status mm_cuda_gather_rows(const mm_op_context *c, const mm_gather_args *a);

/* ---- pack.cu */
size_t mm_cuda_pack_bytes(const mm_op_shape *shape, mm_pack kind, const mm_weight *src, int32_t n);
mm_status mm_cuda_pack(const mm_op_context *c, mm_pack kind, const mm_weight *src, int32_t n,
                       void *dst, mm_weight *out);
void mm_cuda_pack_close(mm_stream *s); /* frees s->pack; before the stream is closed */

/* ---- linear.cu: y [n_row, n_out] = x [n_row, n_in] W^T; x bf16 rows of x_stride elements. */
typedef enum mm_out_kind {
    MM_OUT_BF16 = 0, /* rounded once */
    MM_OUT_F32 = 1,
    MM_OUT_SWIGLU = 2 /* W of GATE_UP: bf16 [n_row, n_out / 2] of the clamped SwiGLU of f32 gate, up
                       */
} mm_out_kind;
/* Chooses between the two below. Takes scratch; gives none back. */
mm_status mm_cuda_linear(const mm_op_context *c, const mm_weight *w, const void *x,
                         int64_t x_stride, int32_t n_row, mm_out_kind kind, void *y,
                         int64_t y_stride);
mm_status mm_cuda_linear_small(const mm_op_context *c, const mm_weight *w, const void *x,
                               int64_t x_stride, int32_t n_row, mm_out_kind kind, void *y,
                               int64_t y_stride); /* any n_row, in pieces of MM_CUDA_SMALL_ROWS */
mm_status mm_cuda_linear_large(const mm_op_context *c, const mm_weight *w, const void *x,
                               int64_t x_stride, int32_t n_row, mm_out_kind kind, void *y,
                               int64_t y_stride); /* linear_large.cu */
size_t mm_cuda_linear_scratch(const mm_op_shape *s);

/* ---- router.cu; ends of residual branches: branch.h */
mm_status mm_cuda_router(const mm_op_context *c, int32_t n_row, const mm_attn_out_args *a);
size_t mm_cuda_branch_scratch(const mm_op_shape *s);

/* ---- attn_out.cu, mlp.cu, head.cu */
mm_status mm_cuda_attn_out(const mm_op_context *c, const mm_seq_view *seq,
                           const mm_attn_out_args *a);
mm_status mm_cuda_mlp(const mm_op_context *c, const mm_seq_view *seq, const mm_mlp_args *a);
mm_status mm_cuda_head(const mm_op_context *c, const mm_head_args *a);
size_t mm_cuda_out_scratch(const mm_op_shape *s); /* of these three, products and branches apart */

/* ---- moe.cu: few rows to moe_small, many to moe_large. Either does all that the op does: routed
 * experts, the shared one where asked, then the end of the branch, or, without `finish`, the sums
 * into acc. */
mm_status mm_cuda_moe(const mm_op_context *c, const mm_seq_view *seq, const mm_moe_args *a);
mm_status mm_cuda_moe_small(const mm_op_context *c, int32_t n_row, const mm_moe_args *a);
mm_status mm_cuda_moe_large(const mm_op_context *c, int32_t n_row, const mm_moe_args *a);
size_t mm_cuda_moe_small_scratch(const mm_op_shape *s);
size_t mm_cuda_moe_large_scratch(const mm_op_shape *s);

/* ---- attn_in.cu */
mm_status mm_cuda_attn_in(const mm_op_context *c, const mm_seq_view *seq, const mm_attn_in_args *a);
size_t mm_cuda_attn_in_scratch(const mm_op_shape *s);

/* ---- attn_decode*.cu, index_decode.cu: steps whose sequences have at most 8 rows
 * (seq->is_decode): grids depend on n_seq, n_row and shape only, lengths are read on the device. */
mm_status mm_cuda_attn_sparse_decode(const mm_op_context *c, const mm_seq_view *seq,
                                     const mm_attn_sparse_args *a);
mm_status mm_cuda_attn_dense_decode(const mm_op_context *c, const mm_seq_view *seq,
                                    const mm_attn_dense_args *a);
size_t mm_cuda_attn_decode_scratch(const mm_op_shape *s);

/* ---- attn_prefill*.cu, index_prefill.cu: any rows. */
mm_status mm_cuda_attn_sparse_prefill(const mm_op_context *c, const mm_seq_view *seq,
                                      const mm_attn_sparse_args *a);
mm_status mm_cuda_attn_dense_prefill(const mm_op_context *c, const mm_seq_view *seq,
                                     const mm_attn_dense_args *a);
size_t mm_cuda_attn_prefill_scratch(const mm_op_shape *s);

/* ---- attn.cu: is_decode (or shape->invariant) to the first pair, else the second. */
mm_status mm_cuda_attn_sparse(const mm_op_context *c, const mm_seq_view *seq,
                              const mm_attn_sparse_args *a);
mm_status mm_cuda_attn_dense(const mm_op_context *c, const mm_seq_view *seq,
                             const mm_attn_dense_args *a);

/* ---- sample*.cu, logprobs.cu */
mm_status mm_cuda_sample(const mm_op_context *c, const mm_sample_args *a);
mm_status mm_cuda_logprobs(const mm_op_context *c, const mm_logprob_args *a);
size_t mm_cuda_sample_scratch(const mm_op_shape *s);

#endif
