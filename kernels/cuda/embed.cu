/* embed.cu: the input rows of a step: token embeddings or rows of the media buffer, and layer 0's
 * norm of them. A block per row: 8 elements per load, the rounded row kept in shared memory between
 * the sum of squares and the norm. */
#include "kernels/cuda/kernels.h"

enum { EMBED_THREADS = 256 };

struct embed_run {
    mm_slots s;
    const int32_t *token, *row_seq, *slot;
    const uint8_t *table; /* F32 or BF16 rows */
    int64_t stride;       /* bytes from a row to the next */
    const float *norm_w;
    const uint16_t *media;
    const int32_t *row_media;
    uint16_t *x, *h;
    int32_t d;
    float eps;
};

MM_DEV_FN int32_t embed_token(const embed_run &x, int32_t t)
{
    const int32_t token = x.token[t];
    if (token >= 0)
        return token;
    const int32_t slot = x.slot[x.row_seq[t]];
    return token == -1 ? x.s.last_token[slot]
                       : x.s.draft_token[(int64_t)slot * (MM_MAX_DECODE_ROWS - 1) - 2 - token];
}

/* Elements 8 k .. 8 k + 7 of a row, rounded to bf16. */
template <bool IS_F32> MM_DEV_FN uint4 load8(const uint8_t *row, int32_t k)
{
    if constexpr (!IS_F32) {
        return ((const uint4 *)row)[k];
    } else {
        const float4 a = ((const float4 *)row)[2 * k], b = ((const float4 *)row)[2 * k + 1];
        return make_uint4(mm_f32x2_bf16x2(a.x, a.y), mm_f32x2_bf16x2(a.z, a.w),
                          mm_f32x2_bf16x2(b.x, b.y), mm_f32x2_bf16x2(b.z, b.w));
    }
}

MM_DEV_FN float sum_squares(uint4 v)
{
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum += mm_bf16_lo(w[i]) * mm_bf16_lo(w[i]);
        sum += mm_bf16_hi(w[i]) * mm_bf16_hi(w[i]);
    }
    return sum;
}

template <bool IS_F32>
static __global__ void __launch_bounds__(EMBED_THREADS) embed_rows(embed_run x)
{
    __shared__ float part[EMBED_THREADS / 32];
    uint4 *const row = (uint4 *)mm_smem(); /* [d / 8] */
    mm_pdl_wait();
    mm_pdl_trigger();
    const int32_t t = (int32_t)blockIdx.x, n8 = x.d / 8;
    const int32_t media = x.row_media != NULL ? x.row_media[t] : -1;
    uint4 *const to = (uint4 *)(x.x + (int64_t)t * x.d);
    float sum = 0.0f;
    if (media >= 0) {
        const uint8_t *from = (const uint8_t *)(x.media + (int64_t)media * x.d);
        for (int32_t k = threadIdx.x; k < n8; k += EMBED_THREADS) {
            row[k] = to[k] = load8<false>(from, k);
            sum += sum_squares(row[k]);
        }
    } else {
        const uint8_t *from = x.table + (int64_t)embed_token(x, t) * x.stride;
        for (int32_t k = threadIdx.x; k < n8; k += EMBED_THREADS) {
            row[k] = to[k] = load8<IS_F32>(from, k);
            sum += sum_squares(row[k]);
        }
    }
    for (int m = 16; m > 0; m /= 2)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, m);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = sum;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < EMBED_THREADS / 32; w++)
        total += part[w];
    const float r = 1.0f / sqrtf(total / (float)x.d + x.eps);
    uint4 *const h = (uint4 *)(x.h + (int64_t)t * x.d);
    for (int32_t k = threadIdx.x; k < n8; k += EMBED_THREADS) { /* each thread its own elements */
        const float4 a = ((const float4 *)x.norm_w)[2 * k],
                     b = ((const float4 *)x.norm_w)[2 * k + 1];
        const float g[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        const uint32_t w[4] = {row[k].x, row[k].y, row[k].z, row[k].w};
        uint32_t o[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            o[i] = mm_f32x2_bf16x2(mm_bf16_lo(w[i]) * r * (1.0f + g[2 * i]),
                                   mm_bf16_hi(w[i]) * r * (1.0f + g[2 * i + 1]));
        h[k] = make_uint4(o[0], o[1], o[2], o[3]);
    }
}

mm_status mm_cuda_embed(const mm_op_context *c, const mm_seq_view *seq, const mm_embed_args *a)
{
    const mm_weight *w = a->embed;
    const int32_t d = c->shape->d_model;
    const mm_cuda *cuda = mm_cuda_of(c);
    mm_cuda_start(c);
    const bool is_f32 = w->format == MM_WEIGHT_F32;
    if (w->layout != MM_LAYOUT_CHECKPOINT || (!is_f32 && w->format != MM_WEIGHT_BF16))
        return MM_CUDA_FAIL(cuda, MM_E_UNSUPPORTED,
                            "embed: cuda reads tables of format F32 or BF16 in checkpoint order, "
                            "not format %d, layout %d",
                            (int)w->format, (int)w->layout);
    if (w->data_stride % 16 != 0 || (uintptr_t)w->data % 16 != 0)
        return MM_CUDA_FAIL(cuda, MM_E_UNSUPPORTED,
                            "embed: cuda reads 16 bytes at a time: rows (stride %lld) must be "
                            "16-byte aligned",
                            (long long)w->data_stride);
    if (seq->n_row == 0)
        return MM_OK;
    embed_run x = {};
    x.s = *seq->slots;
    x.token = seq->token;
    x.row_seq = seq->row_seq;
    x.slot = seq->slot;
    x.table = (const uint8_t *)w->data;
    x.stride = w->data_stride;
    x.norm_w = a->norm_w;
    x.media = (const uint16_t *)a->media;
    x.row_media = a->row_media;
    x.x = (uint16_t *)a->x;
    x.h = (uint16_t *)a->h;
    x.d = d;
    x.eps = c->shape->eps;
    return mm_launch(c, "embed", is_f32 ? embed_rows<true> : embed_rows<false>,
                     dim3((unsigned)seq->n_row), dim3(EMBED_THREADS), 2 * (size_t)d, x);
}

mm_status mm_cuda_code_arch(const mm_cuda *b, int32_t *out)
{
    cudaFuncAttributes a;
    MM_CUDA_TRY(b, cudaFuncGetAttributes(&a, embed_rows<false>));
    *out = a.ptxVersion;
    return MM_OK;
}
