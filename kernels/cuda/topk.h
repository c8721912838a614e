/* topk.h: the exact choice of blocks of one row and index head (ops.h, attn_sparse), by one thread
 * block.
 *
 * A score becomes a key of 64 bits, unique and ordered as (score descending, block ascending): the
 * high half the f32 in order-preserving form (-0 as +0, forced blocks above everything), the low
 * half the block turned round. Many blocks: each group of threads finds its largest key; these are
 * ranked by counting; the key of rank n_free - 1 is a bound that at least n_free keys reach, so
 * what does not reach it can be forgotten. The few that do are ranked by counting too. No pass
 * depends on how the scores are distributed for its result, only for its time. */
#ifndef MM_CUDA_TOPK_H
#define MM_CUDA_TOPK_H
#include "kernels/cuda/ptx.h"
#include "kernels/ops.h"

#define MM_TOPK_MAX 64 /* largest n_top_block */

/* Threads of a group: more groups than blocks are wanted. */
static constexpr __host__ __device__ int mm_choose_group(int n_top_block, int n_thread)
{
    return 8 * n_top_block <= n_thread ? 4 : 1;
}
/* Bytes of shared memory that mm_choose_blocks needs for up to max_block blocks: those of
 * n_top_block - 1 groups may reach the bound. */
static inline size_t mm_choose_bytes(int n_top_block, int max_block, int n_thread)
{
    const int share = ((max_block + 3) / 4 + n_thread - 1) / n_thread * 4; /* of a thread */
    return 160 + 8 * (size_t)n_thread +
           2 * (size_t)n_top_block * (size_t)(share * mm_choose_group(n_top_block, n_thread));
}

/* The score's place among f32: larger is better; never 0. */
MM_DEV_FN uint32_t mm_block_order(float score, int block, int n_init_block)
{
    const uint32_t u = __float_as_uint(score + 0.0f); /* -0 + 0 is +0 */
    return block < n_init_block ? 0xFFFFFFFFu : u & 0x80000000u ? ~u : u | 0x80000000u;
}
MM_DEV_FN uint64_t mm_block_key(float score, int block, int n_init_block)
{
    return (uint64_t)mm_block_order(score, block, n_init_block) << 32 |
           (0xFFFFFFFFu - (uint32_t)block);
}
MM_DEV_FN int mm_key_block(uint64_t key)
{
    return (int)(0xFFFFFFFFu - (uint32_t)key);
}

/* The blocks that a row in block `local` reads, ascending, out [n_top_block] (any memory that the
 * whole block sees); n_top_block, or -1 when a score is NaN: out is then local, -1, -1, ...
 * score: [local] f32, 16-byte aligned, readable up to a multiple of 4. local >= N_THREAD >=
 * MM_TOPK_MAX. smem: mm_choose_bytes, 16-byte aligned. All threads call it; begins and ends with a
 * barrier. */
template <int N_THREAD>
MM_DEV_FN int mm_choose_blocks(const float *score, int local, int n_top_block, int n_init_block,
                               uint8_t *smem, int16_t *out, int thread)
{
    int *count = (int *)smem;
    int16_t *chosen = (int16_t *)(smem + 32);
    uint64_t *bound = (uint64_t *)(smem + 16), *top = (uint64_t *)(smem + 160);
    uint16_t *candidate = (uint16_t *)(top + N_THREAD);
    const int n_free = n_top_block - 1, n_lane = mm_choose_group(n_top_block, N_THREAD);

    /* fn(score, block) of every block of this thread, ascending */
    const bool is_wide = local >= 8 * N_THREAD; /* else single ones keep all threads busy */
    const auto each = [&](auto fn) {
        if (is_wide) {
#pragma unroll 4
            for (int b = 4 * thread; b < local; b += 4 * N_THREAD) {
                const float4 v = *(const float4 *)(score + b);
                const float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if (b + i < local)
                        fn(x[i], b + i);
                }
            }
        } else {
#pragma unroll 4
            for (int b = thread; b < local; b += N_THREAD)
                fn(score[b], b);
        }
    };
    const int first = is_wide ? 4 * thread : thread;
    float most = -INFINITY;
    int at = first; /* the lowest of its blocks that have the most */
    bool is_nan = false;
    each([&](float x, int b) {
        is_nan |= x != x;
        if (x > most) {
            most = x;
            at = b;
        }
    });
    if (first < n_init_block)
        at = first; /* the first of all, forced */
    const uint64_t own = at < local ? mm_block_key(most, at, n_init_block) : 0;
    uint64_t best = own; /* of the group */
    for (int d = 1; d < n_lane; d *= 2) {
        const uint64_t x = __shfl_xor_sync(0xFFFFFFFFu, (unsigned long long)best, d);
        best = x > best ? x : best;
    }
    __syncthreads();
    if (thread == 0) {
        *count = 0;
        *bound = 0;
    }
    const int group = thread / n_lane, n_group = N_THREAD / n_lane, part = thread % n_lane;
    if (part == 0)
        top[group] = best;
    if (__syncthreads_or(is_nan)) {
        if (thread < n_top_block)
            out[thread] = (int16_t)(thread == 0 ? local : -1);
        __syncthreads();
        return -1;
    }
    int rank = 0;
    const int n_each = n_group / n_lane;
#pragma unroll 4
    for (int i = 0; i < n_each; i += 2) {
        const ulonglong2 two = *(const ulonglong2 *)(top + part * n_each + i);
        rank += (int)(two.x > best) + (int)(two.y > best);
    }
    for (int d = 1; d < n_lane; d *= 2)
        rank += __shfl_xor_sync(0xFFFFFFFFu, rank, d);
    if (part == 0 && best != 0 && rank == n_free - 1)
        *bound = best;
    __syncthreads();
    const uint64_t least = *bound; /* 0: fewer groups than n_free have blocks; n_free is not 0 */
    if (n_free > 0 && own >= least && own != 0) {
        each([&](float x, int b) {
            if (mm_block_key(x, b, n_init_block) >= least)
                candidate[atomicAdd(count, 1)] = (uint16_t)b;
        });
    }
    __syncthreads();
    const int n = *count;
    if (n <= N_THREAD) {
        uint64_t key = 0;
        if (thread < n) {
            const int b = candidate[thread];
            key = mm_block_key(score[b], b, n_init_block);
            top[thread] = key;
        }
        __syncthreads();
        if (thread < n) {
            int place = 0;
            for (int j = 0; j < n; j++)
                place += top[j] > key;
            if (place < n_free)
                chosen[place] = (int16_t)mm_key_block(key);
        }
    } else { /* rare: scores that lie in few groups */
        for (int i = thread; i < n; i += N_THREAD) {
            const int b = candidate[i];
            const uint64_t key = mm_block_key(score[b], b, n_init_block);
            int place = 0;
            for (int j = 0; j < n && place < n_free; j++) {
                const int c = candidate[j];
                place += mm_block_key(score[c], c, n_init_block) > key;
            }
            if (place < n_free)
                chosen[place] = (int16_t)b;
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
    if (thread == 0)
        out[n_free] = (int16_t)local;
    __syncthreads();
    return n_top_block;
}

/* The same choice of up to N_THREAD blocks, `local` included, for a caller that wants
 * P of them: block[j] is that at place `place` + j (ascending; anything where there is none). False
 * when a score is NaN. Thread b gives the score of block b (anything where b >= local) and gets in
 * *is_chosen whether b is read, in *mine its place.
 * n_top_block <= local < N_THREAD. smem: mm_few_bytes(N_THREAD), 16-byte aligned, which may be used
 * again after the next barrier of the block; two barriers.
 *
 * Scores become 32 bits in their order, so that of equal ones the lower block is larger by its
 * place; each is compared with all, by as many threads as there are for one. */
static constexpr __host__ __device__ int mm_few_bytes(int n_thread)
{
    return 6 * n_thread;
}
template <int N_THREAD, int P>
MM_DEV_FN bool mm_choose_few(float score, int local, int n_top_block, int n_init_block, int place,
                             uint8_t *smem, int thread, int block[P], bool *is_chosen, int *mine)
{
    uint32_t *top = (uint32_t *)smem;
    uint16_t *part_rank = (uint16_t *)(top + N_THREAD); /* [parts][n_key] */
    const int lane = thread % 32, n_free = n_top_block - 1;
    int log_key = 5; /* n_key keys, those behind `local` 0: below every score */
    while (1 << log_key < local)
        log_key++;
    const int n_key = 1 << log_key;
    const bool is_block = thread < local;
    if (thread < n_key)
        top[thread] = is_block ? mm_block_order(score, thread, n_init_block) : 0;
    if (__syncthreads_or(is_block && score != score))
        return false;
    const int i = thread & (n_key - 1), part = thread >> log_key, n_part = N_THREAD >> log_key;
    const uint32_t key = top[i];
    int rank = 0, n = (n_key * n_key / N_THREAD) / 4, j = part * 4 * n;
#pragma unroll 4
    for (; n > 0; n--, j += 4) {
        const uint4 k = *(const uint4 *)(top + j);
        const uint32_t least = key - (uint32_t)(j + 3 < i); /* blocks below i win when equal */
        rank += (int)(k.x > least) + (int)(k.y > least) + (int)(k.z > least) + (int)(k.w > least);
    }
    if ((i & ~3) >= j - n_key * n_key / N_THREAD && i < j) { /* its own four */
        const uint4 k = *(const uint4 *)(top + (i & ~3));
        rank += (int)((i & 3) > 0 && k.x == key) + (int)((i & 3) > 1 && k.y == key) +
                (int)((i & 3) > 2 && k.z == key);
    }
    part_rank[thread] = (uint16_t)rank;
    __syncthreads();
    int before = 0;
#pragma unroll
    for (int j = 0; j < P; j++)
        block[j] = local; /* the last place is its */
    *is_chosen = thread == local;
    *mine = n_free;
#pragma unroll 1
    for (int w = 0; 32 * w < local; w++) { /* every warp the same */
        int r = part_rank[32 * w + lane];
#pragma unroll 1
        for (int p = 1; p < n_part; p++)
            r += part_rank[(p << log_key) + 32 * w + lane];
        const uint32_t set = __ballot_sync(0xFFFFFFFFu, 32 * w + lane < local && r < n_free);
        const int at = before + __popc(set & ((1u << lane) - 1u));
        const bool is_in = (set >> lane & 1u) != 0;
        if (32 * w + lane == thread && is_in) {
            *is_chosen = true;
            *mine = at;
        }
#pragma unroll
        for (int j = 0; j < P; j++) {
            const uint32_t hit = __ballot_sync(0xFFFFFFFFu, is_in && at == place + j);
            if (hit != 0)
                block[j] = 32 * w + __ffs((int)hit) - 1;
        }
        before += __popc(set);
    }
    return true;
}

#endif
