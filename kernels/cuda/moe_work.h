/* moe_work.h: the list of work of moe_mid.cu, found by every block for itself from the router's
 * choices: passes (an expert and up to 8 of its rows), by expert, and which row tiles of them the
 * block does. */
#ifndef MM_CUDA_MOE_WORK_H
#define MM_CUDA_MOE_WORK_H
#include "kernels/cuda/moe.h"

#define MID_WARPS 16
#define MID_THREADS (32 * MID_WARPS)
#define MID_ROWS 8 /* of a pass: the n of an mma */
#define MID_MAX_PAIR (MM_CUDA_SMALL_ROWS * 8)

/* Of a block: its part of the list of work. A pass: expert << 16 | place of the first row in pair
 * << 4 | rows - 1. */
typedef struct mm_moe_work {
    uint32_t pass[MID_MAX_PAIR];
    int16_t pair[MID_MAX_PAIR]; /* by expert, ascending; shared expert: 0, 1, ... */
    int32_t warp_sum[MID_WARPS];
} mm_moe_work;

/* Row tiles [lo, hi) of a list; its first pass is lo / n_tile. */
typedef struct mm_moe_range {
    int lo, hi;
} mm_moe_range;

MM_DEV_FN int mid_expert(uint32_t pass)
{
    return (int)(pass >> 16);
}
MM_DEV_FN int mid_at(uint32_t pass)
{
    return (int)(pass >> 4 & 0xFFF);
}
MM_DEV_FN int mid_rows(uint32_t pass)
{
    return (int)(pass & 15) + 1;
}
MM_DEV_FN uint32_t mid_pass(int expert, int at, int n)
{
    return (uint32_t)(expert << 16 | at << 4 | (n - 1));
}
/* Share i of n of the row tiles. */
MM_DEV_FN mm_moe_range mid_cut(int64_t n_unit, uint32_t i, uint32_t n)
{
    mm_moe_range r;
    r.lo = (int)(i * n_unit / n);
    r.hi = (int)((i + 1) * n_unit / n);
    return r;
}

/* Fills w with the passes of a share of the row tiles, n_tile a pass of at most `most` rows.
 * mask: [last - first, (n_row * k + 31) / 32] words of shared memory. The block leaves through a
 * barrier. */
MM_DEV_FN mm_moe_range mid_find_work(const mm_moe_choices &a, int n_tile, int most, uint32_t share,
                                     uint32_t n_share, uint32_t *mask, mm_moe_work &w)
{
    const uint32_t all = 0xFFFFFFFFu;
    const int tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int n_pair = a.n_row * a.k, n_word = (n_pair + 31) / 32, n_expert = a.last - a.first;
    int e = tid < n_pair ? __ldcg(a.experts + tid) - a.first : -1;
    for (int i = tid; i < n_expert * n_word; i += MID_THREADS)
        mask[i] = 0;
    __syncthreads();
    if (warp < n_word) {
        if (e < 0 || e >= n_expert)
            e = -1;
        const uint32_t same = __match_any_sync(all, e);
        if (e >= 0 && __ffs((int)same) - 1 == lane)
            mask[e * n_word + warp] = same;
    }
    __syncthreads();
    const int per = (n_expert + MID_THREADS - 1) / MID_THREADS; /* experts of a thread */
    int mine = 0;                                               /* passes << 16 | pairs */
    for (int i = 0; i < per; i++) {
        const int x = tid * per + i;
        int n = 0;
        for (int j = 0; j < n_word && x < n_expert; j++)
            n += __popc(mask[x * n_word + j]);
        mine += (n + most - 1) / most << 16 | n;
    }
    int upto = mine;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
        const int v = __shfl_up_sync(all, upto, i);
        if (lane >= i)
            upto += v;
    }
    if (lane == 31)
        w.warp_sum[warp] = upto;
    __syncthreads();
    int before = upto - mine, total = 0;
#pragma unroll
    for (int i = 0; i < MID_WARPS; i++) {
        const int v = w.warp_sum[i];
        before += i < warp ? v : 0;
        total += v;
    }
    const mm_moe_range r = mid_cut((int64_t)(total >> 16) * n_tile, share, n_share);
    const int first = r.lo / n_tile, last = (r.hi + n_tile - 1) / n_tile;
    int at = before & 0xFFFF, pass = before >> 16;
    for (int i = 0; i < per && mine != 0; i++) {
        const int x = tid * per + i, begin = at;
        for (int j = 0; j < n_word && x < n_expert; j++) {
            for (uint32_t bits = mask[x * n_word + j]; bits != 0; bits &= bits - 1)
                w.pair[at++] = (int16_t)(j * 32 + __ffs((int)bits) - 1);
        }
        for (int k = begin; k < at; k += most, pass++) {
            if (pass >= first && pass < last)
                w.pass[pass - first] = mid_pass(x + a.first, k, at - k < most ? at - k : most);
        }
    }
    __syncthreads();
    return r;
}

/* The same for the shared expert: all rows, in order, each its own pair. */
MM_DEV_FN mm_moe_range mid_find_shared(int n_row, int n_tile, int most, uint32_t share,
                                       uint32_t n_share, mm_moe_work &w)
{
    const int tid = (int)threadIdx.x, n_pass = (n_row + most - 1) / most;
    const mm_moe_range r = mid_cut((int64_t)n_pass * n_tile, share, n_share);
    const int at = (r.lo / n_tile + tid) * most;
    if (tid < n_row)
        w.pair[tid] = (int16_t)tid;
    if (at < n_row)
        w.pass[tid] = mid_pass(0, at, n_row - at < most ? n_row - at : most);
    __syncthreads();
    return r;
}
#endif
