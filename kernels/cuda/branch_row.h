/* branch_row.h: the steps of a row at the end of a residual branch, by one block, that branch.cu
 * and router.cu share so that a row has the same bits from both: which thread owns which columns,
 * the residual sum, its norm. */
#ifndef MM_CUDA_BRANCH_ROW_H
#define MM_CUDA_BRANCH_ROW_H
#include "kernels/cuda/reduce.h"

#define MM_BRANCH_THREADS 512
#define MM_BRANCH_PIECES 3 /* pieces of four columns of a thread, for d_model up to 6144 */

/* Threads of a row: thread i owns the pieces at 4 i, 4 (i + threads), ... */
static inline int32_t mm_branch_threads(int32_t d)
{
    const int32_t n = (d / 4 + 31) / 32 * 32;
    return n < MM_BRANCH_THREADS ? n : MM_BRANCH_THREADS;
}

MM_DEV_FN float4 mm_bf16x4_f32(uint2 v)
{
    return make_float4(mm_bf16_lo(v.x), mm_bf16_hi(v.x), mm_bf16_lo(v.y), mm_bf16_hi(v.y));
}
MM_DEV_FN uint2 mm_f32_bf16x4(float4 v)
{
    return make_uint2(mm_f32x2_bf16x2(v.x, v.y), mm_f32x2_bf16x2(v.z, v.w));
}
/* x + r(y); square: the thread's sum of squares so far. */
MM_DEV_FN float4 mm_branch_add(uint2 x, float4 y, float *square)
{
    const float4 r = mm_bf16x4_f32(mm_f32_bf16x4(y));
    float4 s = mm_bf16x4_f32(x);
    s.x += r.x, s.y += r.y, s.z += r.z, s.w += r.w;
    *square = fmaf(s.w, s.w, fmaf(s.z, s.z, fmaf(s.y, s.y, fmaf(s.x, s.x, *square))));
    return s;
}
/* 1 / rms, by all threads of the block. */
MM_DEV_FN float mm_branch_scale(float square, int32_t d, float eps, float *warp_sum)
{
    return 1.0f / sqrtf(mm_block_sum(square, warp_sum) / (float)d + eps);
}
MM_DEV_FN uint2 mm_branch_norm(float4 s, float r, float4 w)
{
    return mm_f32_bf16x4(make_float4(s.x * r * (1.0f + w.x), s.y * r * (1.0f + w.y),
                                     s.z * r * (1.0f + w.z), s.w * r * (1.0f + w.w)));
}
#endif
