/* attn_prefill_merge.h: a row's partials (attn_prefill_pages.h) merged in ascending order of its
 * pages. */
#ifndef MM_CUDA_ATTN_PREFILL_MERGE_H
#define MM_CUDA_ATTN_PREFILL_MERGE_H
#include "kernels/cuda/attn_prefill_tile.h"

struct mm_attn_merge_args {
    const int16_t *list;   /* [G, T, K] */
    const uint8_t *is_nan; /* [G, T] or NULL */
    const int32_t *pos;
    const float *acc;
    const float2 *sum;
    int n_head, group, n_group, n_top, n_row, begin, end; /* rows of the step; none: begin = end */
    float least_den; /* denominators below it, and 0, are replaced */
    uint16_t *o;     /* [T, n_head, 128] */
};

/* Block `block` of n_block (8 warps each) takes its share of the (row, head) pairs, a warp each;
 * lane l holds dims 4 l .. 4 l + 3. */
MM_DEV_FN void mm_attn_merge(const mm_attn_merge_args &a, int block, int n_block)
{
    const int lane = (int)(threadIdx.x & 31), warp = (int)(threadIdx.x >> 5);
    const int n = (a.end - a.begin) * a.n_head;
    for (int i = block * 8 + warp; i < n; i += n_block * 8) {
        const int row = i / a.n_head, t = a.begin + row, h = i % a.n_head;
        const int g = h / a.group, local = a.pos[t] / MM_PAGE;
        const int16_t *list = a.list + ((int64_t)g * a.n_row + t) * a.n_top;
        int64_t place = (((int64_t)row * a.n_group + g) * a.n_top) * a.group + h % a.group;
        float max = -INFINITY, den = 0.0f, acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        bool bad = false;
#pragma unroll 4
        for (int j = 0; j < a.n_top; j++, place += a.group) {
            const int block_id = list[j];
            if (block_id < 0 || block_id > local)
                continue;
            const float2 s = a.sum[place];
            const float4 x = *(const float4 *)(a.acc + place * MM_CACHE_DIM + 4 * lane);
            const float top = s.x > max ? s.x : max;
            const float keep = expf(max - top), add = expf(s.x - top);
            max = top;
            den = den * keep + s.y * add;
            acc[0] = acc[0] * keep + x.x * add;
            acc[1] = acc[1] * keep + x.y * add;
            acc[2] = acc[2] * keep + x.z * add;
            acc[3] = acc[3] * keep + x.w * add;
        }
        for (int k = 0; a.is_nan != nullptr && k < a.n_group; k++)
            bad = bad || a.is_nan[(int64_t)k * a.n_row + t] != 0;
        if (den == 0.0f || den < a.least_den)
            den = 1.0f;
        float y[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            y[j] = bad ? NAN : acc[j] / den;
        const uint2 out = {mm_f32x2_bf16x2(y[0], y[1]), mm_f32x2_bf16x2(y[2], y[3])};
        ((uint2 *)(a.o + ((int64_t)t * a.n_head + h) * MM_CACHE_DIM))[lane] = out;
    }
}

#endif
