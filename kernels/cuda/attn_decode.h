/* attn_decode.h: partials of a row and KV head that several blocks compute, and their merge by the
 * block that arrives last; what attn_decode.cu and attn_decode_dense.cu share.
 *
 * Partial i of n of (row, KV head) with `group` query heads: acc [group, 128] f32 and stat [group]
 * (max times log2 e, den). They are added in ascending order of i, so nothing depends on who
 * arrives last. */
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
                __stcg((float4 *)(at + 32 * warp),
                       float4{x.acc[n][0][c], x.acc[n][0][c + 2], x.acc[n][8 / W - 1][c],
                              x.acc[n][8 / W - 1][c + 2]});
            else
                __stcg((float2 *)(at + 32 * (warp / 2) + 2 * (warp % 2)),
                       float2{x.acc[n][0][c], x.acc[n][0][c + 2]});
            if (warp == 0 && g == 0)
                stat[head] = float2{x.max[n][c], x.den[n][c]};
        }
    }
}

/* True in the block that arrives last of n; resets the counter. flag: shared. All threads call it
 * after their stores, and read those of others past the L1 cache only. One thread's addition stands
 * for all: the barriers before and after it order the rest. */
MM_DEV_FN bool mm_arrive_last(uint32_t *counter, int n, int *flag, int thread)
{
    __syncthreads();
    if (thread == 0) {
        const bool is_last = n == 1 || mm_atomic_add_acq_rel(counter, 1u) == (uint32_t)n - 1;
        if (is_last && n > 1)
            *counter = 0;
        *flag = is_last;
    }
    __syncthreads();
    return *flag != 0;
}

/* Bytes of shared memory that mm_partial_merge uses for up to n partials. */
static constexpr __host__ __device__ int mm_merge_bytes(int W, int n)
{
    return W * ((n + 31) / 32 * 32) * 4;
}
/* Writes the heads' outputs, o [group, 128] bf16, by W warps. NVFP4 divides by 1 at least. N_LOAD:
 * partials of a head on their way at once. smem: mm_merge_bytes(W, n), 16-byte aligned. */
template <int W, int N_LOAD>
MM_DEV_FN void mm_partial_merge(const float *acc, const float2 *stat, int n, int group,
                                bool is_nvfp4, uint16_t *o, uint8_t *smem, int thread)
{
    const int lane = thread % 32, warp = thread / 32;
    float *weight = (float *)smem + (n + 31) / 32 * 32 * warp; /* of the head's partials */
    const int64_t step = (int64_t)group * MM_CACHE_DIM;        /* from partial to partial */
#pragma unroll 1
    for (int head = warp; head < group; head += W) {
        const float2 mine = lane < n ? __ldcg(&stat[lane * group + head])
                                     : float2{-INFINITY, 0.0f}; /* of the first 32 */
        const float *from = acc + head * MM_CACHE_DIM + 4 * lane;
        float4 v[N_LOAD];
        const auto load = [&](int base) {
#pragma unroll
            for (int i = 0; i < N_LOAD; i++) {
                v[i] = float4{0.0f, 0.0f, 0.0f, 0.0f};
                if (base + i < n)
                    v[i] = __ldcg((const float4 *)(from + (base + i) * step));
            }
        };
        load(0);
        float max = mine.x, den = 0.0f, x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
        for (int i = lane + 32; i < n; i += 32)
            max = fmaxf(max, __ldcg(&stat[i * group + head]).x);
#pragma unroll
        for (int d = 1; d < 32; d *= 2)
            max = fmaxf(max, __shfl_xor_sync(0xFFFFFFFFu, max, d));
        __syncwarp(); /* the weights of the head before have been read */
#pragma unroll 1
        for (int base = 0; base < n; base += 32) {
            const int i = base + lane;
            float2 y = mine;
            if (base > 0)
                y = i < n ? __ldcg(&stat[i * group + head]) : float2{-INFINITY, 0.0f};
            const float w = i >= n ? 0.0f : y.x == max ? 1.0f : mm_exp2(y.x - max);
            den = fmaf(y.y, w, den); /* equal also where both are -inf */
            weight[i] = w;
        }
        __syncwarp();
#pragma unroll 1
        for (int base = 0;;) {
#pragma unroll
            for (int i = 0; i < N_LOAD; i += 4) {
                const float4 w = *(const float4 *)(weight + base + i);
                const float w4[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    x[0] = fmaf(v[i + j].x, w4[j], x[0]);
                    x[1] = fmaf(v[i + j].y, w4[j], x[1]);
                    x[2] = fmaf(v[i + j].z, w4[j], x[2]);
                    x[3] = fmaf(v[i + j].w, w4[j], x[3]);
                }
            }
            base += N_LOAD;
            if (base >= n)
                break;
            load(base);
        }
#pragma unroll
        for (int d = 1; d < 32; d *= 2)
            den += __shfl_xor_sync(0xFFFFFFFFu, den, d);
        if (is_nvfp4 ? den < 1.0f : den == 0.0f) /* no key at all: acc and the output are 0 */
            den = 1.0f;
        const float r = 1.0f / den;
        ((uint2 *)(o + head * MM_CACHE_DIM))[lane] =
            uint2{mm_f32x2_bf16x2(x[0] * r, x[1] * r), mm_f32x2_bf16x2(x[2] * r, x[3] * r)};
    }
}

/* All outputs of the heads become `bits` (a bf16 pair). */
MM_DEV_FN void mm_partial_fill(uint16_t *o, int group, uint32_t bits, int thread, int n_thread)
{
#pragma unroll 1
    for (int i = thread; i < group * MM_CACHE_DIM / 2; i += n_thread)
        ((uint32_t *)o)[i] = bits;
}

#endif
