/* reduce.h: sums over a warp and over a block, always in the same order. */
#ifndef MM_CUDA_REDUCE_H
#define MM_CUDA_REDUCE_H
#include "kernels/cuda/ptx.h"

/* Every lane gets the sum. */
MM_DEV_FN float mm_warp_sum(float v)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        v += __shfl_xor_sync(0xFFFFFFFFu, v, i);
    return v;
}

/* Every thread gets the sum; all threads of the block call it. warp_sum: shared, [warps]. */
MM_DEV_FN float mm_block_sum(float v, float *warp_sum)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int n_warp = (int)blockDim.x / 32;
    v = mm_warp_sum(v);
    if (lane == 0)
        warp_sum[warp] = v;
    __syncthreads();
    v = lane < n_warp ? warp_sum[lane] : 0.0f;
    return mm_warp_sum(v);
}
#endif
