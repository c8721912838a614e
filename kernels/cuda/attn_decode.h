/* attn_decode.h: partials of a row and KV head that several blocks compute, and their merge by the
 * block that arrives last; what the sparse and the dense kernel of attn_decode.cu share.
 *
 * Partial i of n of (row, KV head) with `group` query heads: acc [group, 128] f32 and stat [group]
 * (max, den). They are added in ascending order of i, so nothing depends on who arrives last. */
#ifndef MM_CUDA_ATTN_DECODE_H
#define MM_CUDA_ATTN_DECODE_H
#include "kernels/cuda/attn_page.h"

/* Stores a block's partial: acc, stat of partial i. */
template <int NT, int W>
MM_DEV_FN void mm_partial_store(const mm_partial<NT, W> &x, int group, float *acc, float2 *stat,
                                int thread)
{
    const int lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int head = 8 * n + 2 * t + c;
            if (head >= group)
                continue;
            float *at = acc + head * MM_CACHE_DIM + 4 * g;
            if (W == 4)
                *(float4 *)(at + 32 * warp) =
                    float4{x.acc[n][0][c], x.acc[n][0][c + 2], x.acc[n][8 / W - 1][c],
                           x.acc[n][8 / W - 1][c + 2]};
            else
                *(float2 *)(at + 32 * (warp / 2) + 2 * (warp % 2)) =
                    float2{x.acc[n][0][c], x.acc[n][0][c + 2]};
            if (warp == 0 && g == 0)
                stat[head] = float2{x.max[n][c], x.den[n][c]};
        }
    }
}

/* True in the block that arrives last of n; resets the counter. flag: shared. All threads call it
 * after their stores, and read those of others past the L1 cache only. One thread's fences stand
 * for all: the barriers before and after it order the rest. */
MM_DEV_FN bool mm_arrive_last(uint32_t *counter, int n, int *flag, int thread)
{
    __syncthreads();
    if (thread == 0) {
        __threadfence();
        const bool is_last = n == 1 || atomicAdd(counter, 1u) == (uint32_t)n - 1;
        if (is_last && n > 1)
            *counter = 0;
        __threadfence();
        *flag = is_last;
    }
    __syncthreads();
    return *flag != 0;
}

/* Writes the heads' outputs, o [group, 128] bf16, by W warps. NVFP4 divides by 1 at least. N_LOAD:
 * partials of a head on their way at once. */
template <int W, int N_LOAD>
MM_DEV_FN void mm_partial_merge(const float *acc, const float2 *stat, int n, int group,
                                bool is_nvfp4, uint16_t *o, int thread)
{
    const int lane = thread % 32, warp = thread / 32;
    for (int head = warp; head < group; head += W) {
        float2 mine = {-INFINITY, 0.0f}; /* of partial `lane` of the running 32 */
        if (lane < n)
            mine = __ldcg(&stat[lane * group + head]);
        float max = mine.x, den = 0.0f, weight = 0.0f, x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        bool is_first = true;
        for (int base = 0; base < n; base += N_LOAD) {
            float4 v[N_LOAD];
#pragma unroll
            for (int i = 0; i < N_LOAD; i++) {
                v[i] = float4{0.0f, 0.0f, 0.0f, 0.0f};
                if (base + i < n)
                    v[i] = __ldcg((const float4 *)(acc + ((int64_t)(base + i) * group + head) *
                                                             MM_CACHE_DIM) +
                                  lane);
            }
            if (is_first) { /* while the first ones come */
                for (int i = lane + 32; i < n; i += 32)
                    max = fmaxf(max, __ldcg(&stat[i * group + head]).x);
#pragma unroll
                for (int d = 1; d < 32; d *= 2)
                    max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFFu, max, d));
                is_first = false;
            }
            if (base % 32 == 0) {
                if (base != 0)
                    mine = base + lane < n ? __ldcg(&stat[(base + lane) * group + head])
                                           : float2{-INFINITY, 0.0f};
                weight = 0.0f;
                if (base + lane < n) { /* equal also where both are -inf */
                    weight = mine.x == max ? 1.0f : expf(mine.x - max);
                    den += mine.y * weight;
                }
            }
#pragma unroll
            for (int i = 0; i < N_LOAD; i++) {
                const float w = __shfl_sync(0xFFFFFFFFu, weight, base % 32 + i);
                x[0] += v[i].x * w;
                x[1] += v[i].y * w;
                x[2] += v[i].z * w;
                x[3] += v[i].w * w;
            }
        }
#pragma unroll
        for (int d = 1; d < 32; d *= 2)
            den += __shfl_xor_sync(0xFFFFFFFFu, den, d);
        if (is_nvfp4 ? den < 1.0f : den == 0.0f) /* no key at all: acc and the output are 0 */
            den = 1.0f;
        ((uint2 *)(o + head * MM_CACHE_DIM))[lane] =
            uint2{mm_f32x2_bf16x2(x[0] / den, x[1] / den), mm_f32x2_bf16x2(x[2] / den, x[3] / den)};
    }
}

/* All outputs of the heads become `bits` (a bf16 pair). */
MM_DEV_FN void mm_partial_fill(uint16_t *o, int group, uint32_t bits, int thread, int n_thread)
{
    for (int i = thread; i < group * MM_CACHE_DIM / 2; i += n_thread)
        ((uint32_t *)o)[i] = bits;
}

#endif
