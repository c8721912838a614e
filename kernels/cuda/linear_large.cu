/* linear_large.cu: linears of many rows (more than MM_CUDA_SMALL_ROWS) on gemm_large.h. */
#include "kernels/cuda/gemm_large.h"
#include "kernels/cuda/large.h"

mm_status mm_large_launch(const mm_op_context *c, mm_weight_format format, mm_out_kind kind,
                          int tokens, int32_t n_token_tile, const mm_large_args *p)
{
    const mm_cuda *b = mm_cuda_of(c);
    if (p->n_in % 8 != 0 || p->x_stride % 8 != 0)
        return MM_CUDA_FAIL(b, MM_E_UNSUPPORTED,
                            "cuda: a matrix of %d columns (rows %lld apart); a multiple of 8 is "
                            "needed",
                            p->n_in, (long long)p->x_stride);
    return b->tier == MM_CUDA_HOPPER ? mm_large_sm90a(c, format, kind, n_token_tile, p)
                                     : mm_large_generic(c, format, kind, tokens, n_token_tile, p);
}

int mm_large_tile(const mm_op_context *c, int32_t rows_each)
{
    return mm_cuda_of(c)->tier == MM_CUDA_GENERIC && rows_each <= 48 ? 32 : 128;
}

mm_large_args mm_large_matrix(const mm_op_shape *s, const mm_weight *w, int32_t n_group)
{
    const int32_t cols = mm_frag_cols(w->format);
    mm_large_args p = {};
    p.frag = (const uint8_t *)w->data;
    p.scale = w->scale;
    p.tile_bytes = (uint32_t)w->data_stride;
    p.tile_scale_bytes = (uint32_t)w->scale_stride;
    p.n_out = (int32_t)(w->n_out / n_group);
    p.n_tile = (p.n_out + MM_FRAG_ROWS - 1) / MM_FRAG_ROWS;
    p.n_in = (int32_t)w->n_in;
    p.n_frag = (p.n_in + cols - 1) / cols;
    p.alpha = s->swiglu_alpha;
    p.beta = s->swiglu_beta;
    p.limit = s->swiglu_limit;
    p.decode_one = 1.0f;
    return p;
}

mm_status mm_cuda_linear_large(const mm_op_context *c, const mm_weight *w, const void *x,
                               int64_t x_stride, int32_t n_row, mm_out_kind kind, void *y,
                               int64_t y_stride)
{
    mm_large_args p = mm_large_matrix(c->shape, w, 1);
    p.x = (const uint16_t *)x;
    p.x_stride = x_stride;
    p.n_row = n_row;
    p.decode = w->global_scales;
    p.decode_one = w->format == MM_WEIGHT_NVFP4 ? 1.0f / w->global_scale : 1.0f;
    p.y = y;
    p.y_stride = y_stride;
    return mm_large_launch(c, w->format, kind, 128, (n_row + 127) / 128, &p);
}
