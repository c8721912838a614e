/* linear.cu: which of the two products a matrix takes. */
#include "kernels/cuda/gemv.h"

mm_status mm_cuda_linear(const mm_op_context *c, const mm_weight *w, const void *x,
                         int64_t x_stride, int32_t n_row, mm_out_kind kind, void *y,
                         int64_t y_stride)
{
    /* F32 matrices are for tests and small models: no large kernel knows their three parts */
    if (n_row <= MM_CUDA_SMALL_ROWS || c->shape->invariant || w->format == MM_WEIGHT_F32)
        return mm_cuda_linear_small(c, w, x, x_stride, n_row, kind, y, y_stride);
    return mm_cuda_linear_large(c, w, x, x_stride, n_row, kind, y, y_stride);
}

size_t mm_cuda_linear_scratch(const mm_op_shape *s)
{
    const int64_t heads = (int64_t)(s->n_head + 2 * s->n_kv_head) * s->head_dim +
                          (int64_t)(s->n_index_head + 1) * s->index_dim;
    int64_t n = s->d_model;
    n = heads > n ? heads : n;
    n = 2 * (int64_t)s->d_dense > n ? 2 * (int64_t)s->d_dense : n;
    n = 2 * (int64_t)s->d_shared > n ? 2 * (int64_t)s->d_shared : n;
    n = s->n_vocab_local > n ? s->n_vocab_local : n;
    return mm_cuda_linear_mid_scratch(n);
}
