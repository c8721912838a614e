/* topk.h: the exact choice of blocks of one row and index head (ops.h, attn_sparse), by one thread
 * block.
 *
 * A score becomes a key of 64 bits, unique and ordered as (score descending, block ascending): the
 * high half the f32 in order-preserving form (-0 as +0, forced blocks above everything), the low
 * half the block turned round. Each thread finds the largest key of its own blocks; the threads'
 * largest keys are ranked by counting; the key of rank n_free - 1 is a bound that at least n_free
 * keys reach, so what does not reach it can be forgotten. The few that do are ranked by counting
 * too. No pass depends on how the scores are distributed for its result, only for its time. */
#ifndef MM_CUDA_TOPK_H
#define MM_CUDA_TOPK_H
#include "kernels/cuda/ptx.h"
#include "kernels/ops.h"

#define MM_TOPK_MAX 64 /* largest n_top_block */

/* Blocks that one thread looks at, of n. */
static __host__ __device__ inline int mm_choose_share(int n, int n_thread)
{
    return ((n + 3) / 4 + n_thread - 1) / n_thread * 4;
}
/* Bytes of shared memory that mm_choose_blocks needs for up to max_block blocks. */
static inline size_t mm_choose_bytes(int n_top_block, int max_block, int n_thread)
{
    const size_t n_candidate = (size_t)n_top_block * (size_t)mm_choose_share(max_block, n_thread);
    return 160 + 8 * ((size_t)n_thread + n_candidate);
}

MM_DEV_FN uint64_t mm_block_key(float score, int block, int n_init_block)
{
    const uint32_t u = __float_as_uint(score + 0.0f); /* -0 + 0 is +0 */
    const uint32_t order = block < n_init_block ? 0xFFFFFFFFu
                           : u & 0x80000000u    ? ~u
                                                : u | 0x80000000u;
    return (uint64_t)order << 32 | (0xFFFFFFFFu - (uint32_t)block);
}
MM_DEV_FN int mm_key_block(uint64_t key)
{
    return (int)(0xFFFFFFFFu - (uint32_t)key);
}

/* The blocks that a row in block `local` reads, ascending, out [n_top_block] (any memory that the
 * whole block sees), -1 filled; the number of them, or -1 when a score is NaN: out is then local,
 * -1, -1, ... score: [local] f32, 16-byte aligned, readable up to a multiple of 4; not looked at
 * where local < n_top_block. All N_THREAD threads (>= MM_TOPK_MAX) call it; begins and ends with a
 * barrier. */
template <int N_THREAD>
MM_DEV_FN int mm_choose_blocks(const float *score, int local, int n_top_block, int n_init_block,
                               uint8_t *smem, int16_t *out, int thread)
{
    int *count = (int *)smem;
    int16_t *chosen = (int16_t *)(smem + 32);
    uint64_t *bound = (uint64_t *)(smem + 16), *top = (uint64_t *)(smem + 160);
    uint64_t *candidate = top + N_THREAD;
    const int n_free = n_top_block - 1;

    __syncthreads();
    if (local < n_top_block) {
        if (thread < n_top_block)
            out[thread] = (int16_t)(thread <= local ? thread : -1);
        __syncthreads();
        return local + 1;
    }
    uint64_t best = 0;
    bool is_nan = false;
    const bool is_few = local <= N_THREAD;
    if (is_few) {
        if (thread < local) {
            const float x = score[thread];
            is_nan = x != x;
            best = mm_block_key(x, thread, n_init_block);
        }
    } else {
#pragma unroll 4
        for (int b = 4 * thread; b < local; b += 4 * N_THREAD) {
            const float4 v = *(const float4 *)(score + b);
            const float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (b + i < local) {
                    const uint64_t key = mm_block_key(x[i], b + i, n_init_block);
                    is_nan |= x[i] != x[i];
                    best = key > best ? key : best;
                }
            }
        }
    }
    if (thread == 0) {
        *count = 0;
        *bound = 0;
    }
    top[thread] = best;
    if (__syncthreads_or(is_nan)) {
        if (thread < n_top_block)
            out[thread] = (int16_t)(thread == 0 ? local : -1);
        __syncthreads();
        return -1;
    }
    if (n_free > 0) {
        int rank = 0;
        const int n_top = is_few ? local : N_THREAD;
#pragma unroll 8
        for (int i = 0; i < n_top; i += 2) {
            const ulonglong2 two = *(const ulonglong2 *)(top + i);
            rank += (int)(two.x > best) + (int)(two.y > best);
        }
        if (is_few) {
            if (best != 0 && rank < n_free)
                chosen[rank] = (int16_t)thread;
        } else {
            if (best != 0 && rank == n_free - 1)
                *bound = best;
            __syncthreads();
            const uint64_t least = *bound;
            if (best >= least && best != 0) {
                for (int b = 4 * thread; b < local; b += 4 * N_THREAD) {
                    const float4 v = *(const float4 *)(score + b);
                    const float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const uint64_t key = mm_block_key(x[i], b + i, n_init_block);
                        if (b + i < local && key >= least)
                            candidate[atomicAdd(count, 1)] = key;
                    }
                }
            }
            __syncthreads();
            const int n = *count;
            for (int i = thread; i < n; i += N_THREAD) {
                const uint64_t key = candidate[i];
                int place = 0;
                for (int j = 0; j < n; j++)
                    place += candidate[j] > key;
                if (place < n_free)
                    chosen[place] = (int16_t)mm_key_block(key);
            }
        }
        __syncthreads();
        if (thread < n_free) { /* ascending by block */
            const int16_t b = chosen[thread];
            int place = 0;
            for (int j = 0; j < n_free; j++)
                place += chosen[j] < b;
            out[place] = b;
        }
    }
    if (thread == 0)
        out[n_free] = (int16_t)local;
    __syncthreads();
    return n_top_block;
}

/* The same choice of up to N_THREAD blocks, `local` included, for a caller that wants one of them:
 * the block at place `place` (ascending), -1 when a score is NaN. Thread b gives the score of block
 * b (anything where b >= local) and gets in *is_chosen whether b is read, in *mine its place.
 * n_top_block <= local < N_THREAD. smem: 8 N_THREAD + 4 (N_THREAD / 32) bytes, which may be used
 * again after the next barrier of the block; two barriers. */
template <int N_THREAD>
MM_DEV_FN int mm_choose_few(float score, int local, int n_top_block, int n_init_block, int place,
                            uint8_t *smem, int thread, bool *is_chosen, int *mine)
{
    uint64_t *top = (uint64_t *)smem;
    uint32_t *mask = (uint32_t *)(top + N_THREAD); /* of each warp's 32 blocks */
    const int lane = thread % 32, warp = thread / 32;
    const bool is_block = thread < local;
    const uint64_t key = is_block ? mm_block_key(score, thread, n_init_block) : 0;
    top[thread] = key;
    if (__syncthreads_or(is_block && score != score))
        return -1;
    int rank = 0;
    if (is_block) {
#pragma unroll 8
        for (int i = 0; i < local; i += 2) {
            const ulonglong2 two = *(const ulonglong2 *)(top + i);
            rank += (int)(two.x > key) + (int)(two.y > key);
        }
    }
    *is_chosen = thread == local || (is_block && rank < n_top_block - 1);
    const uint32_t own = __ballot_sync(0xFFFFFFFFu, *is_chosen);
    if (lane == 0)
        mask[warp] = own;
    __syncthreads();
    int before = 0, block = 0;
    *mine = 0;
#pragma unroll
    for (int w = 0; w < N_THREAD / 32; w++) {
        if (32 * w > local)
            break;
        const uint32_t m = mask[w], below = m & ((1u << lane) - 1u);
        const int at = before + __popc(below);
        if (w == warp)
            *mine = at;
        const uint32_t hit = __ballot_sync(0xFFFFFFFFu, (m >> lane & 1u) != 0 && at == place);
        if (hit != 0)
            block = 32 * w + __ffs((int)hit) - 1;
        before += __popc(m);
    }
    return block;
}

#endif
