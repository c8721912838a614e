/* sample_order.h: order over a vocabulary row, for the sampler and for log-probabilities: keys,
 * sums over a block, histograms and exact selection.
 *
 * A row of V values is cut into parts of MM_ROW_SLICE ids, one block each; the last block of a row
 * to arrive finishes it. The cut depends on V alone. Ids are ordered by (value descending, id
 * ascending), -0 equal to +0: as one ascending 54-bit key, the value's 32 bits over 22 bits of id.
 * Masses are integers (MM_MASS_ONE = 1.0), so their sums have no order.
 *
 * All functions with `block` in their comment are called by all MM_ROW_THREADS threads. */
#ifndef MM_CUDA_SAMPLE_ORDER_H
#define MM_CUDA_SAMPLE_ORDER_H
#include <math.h>

#include "kernels/cuda/ptx.h"

enum {
    MM_ROW_THREADS = 512,
    MM_ROW_WARPS = MM_ROW_THREADS / 32,
    MM_ROW_SLICE = 4096,
    MM_ROW_EACH = MM_ROW_SLICE / MM_ROW_THREADS, /* ids of a thread: t, t + 512, ... */
    MM_ROW_BINS = 2048,
    MM_ROW_BINS_EACH = MM_ROW_BINS / MM_ROW_THREADS
};
#define MM_MASS_ONE 0x1p44f
#define MM_ALL_LANES 0xFFFFFFFFu

static __host__ __device__ inline int32_t mm_row_parts(int32_t n_vocab)
{
    return (n_vocab + MM_ROW_SLICE - 1) / MM_ROW_SLICE;
}

/* ---------------------------------------------------------------- keys */

/* Ascending in the key = descending in the value. */
MM_DEV_FN uint32_t mm_value_key(float x)
{
    const uint32_t u = x == 0.0f ? 0 : __float_as_uint(x);
    return (u & 0x80000000u) != 0 ? u : ~(u | 0x80000000u);
}
MM_DEV_FN float mm_key_value(uint32_t key)
{
    return __uint_as_float((key & 0x80000000u) != 0 ? key : ~key & 0x7FFFFFFFu);
}
MM_DEV_FN uint64_t mm_row_key(float x, int32_t id)
{
    return (uint64_t)mm_value_key(x) << 22 | (uint32_t)id;
}
MM_DEV_FN int32_t mm_row_key_id(uint64_t key)
{
    return (int32_t)(key & 0x3FFFFFu);
}
MM_DEV_FN float mm_row_key_value(uint64_t key)
{
    return mm_key_value((uint32_t)(key >> 22));
}

/* Bins of equal width from the largest value down; scale = bins per unit. Never decreases as the
 * value falls, whatever is rounded; width is a matter of speed only. */
MM_DEV_FN float mm_bin_scale(float max, float min)
{
    return max > min ? (float)(MM_ROW_BINS - 1) / (max - min) : 0.0f;
}
MM_DEV_FN int32_t mm_bin_of(float x, float max, float scale)
{
    return x == max ? 0 : (int32_t)fminf(__fmul_rn(__fsub_rn(max, x), scale), MM_ROW_BINS - 1);
}

/* This thread's ids t, t + 512, ... of a part of n, all loads on their way together; `pad` after
 * the end. */
MM_DEV_FN void mm_load_part(float v[MM_ROW_EACH], const float *part, int32_t n, float pad)
{
#pragma unroll
    for (int j = 0; j < MM_ROW_EACH; j++) {
        const int32_t k = j * MM_ROW_THREADS + (int32_t)threadIdx.x;
        v[j] = pad;
        if (k < n)
            v[j] = part[k];
    }
}

/* ---------------------------------------------------------------- sums over a block */

struct mm_row_shared {
    float f[MM_ROW_WARPS];
    uint32_t u[MM_ROW_WARPS];
    unsigned long long w[MM_ROW_WARPS];
    uint32_t cut_bin, cut_count, cut_n;
    unsigned long long cut_mass, cut_m;
    int32_t flag;
};

MM_DEV_FN float mm_block_max(float x, mm_row_shared *s)
{
    for (int m = 16; m > 0; m /= 2)
        x = fmaxf(x, __shfl_xor_sync(MM_ALL_LANES, x, m));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        s->f[threadIdx.x / 32] = x;
    __syncthreads();
    for (int w = 0; w < MM_ROW_WARPS; w++)
        x = fmaxf(x, s->f[w]);
    return x;
}
/* Of non-negative terms, in one order whatever the block. */
MM_DEV_FN float mm_block_sum(float x, mm_row_shared *s)
{
    for (int m = 16; m > 0; m /= 2)
        x += __shfl_xor_sync(MM_ALL_LANES, x, m);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        s->f[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0.0f;
    for (int w = 0; w < MM_ROW_WARPS; w++)
        sum += s->f[w];
    return sum;
}
MM_DEV_FN unsigned long long mm_block_min(unsigned long long x, mm_row_shared *s)
{
    for (int m = 16; m > 0; m /= 2)
        x = min(x, __shfl_xor_sync(MM_ALL_LANES, x, m));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        s->w[threadIdx.x / 32] = x;
    __syncthreads();
    for (int w = 0; w < MM_ROW_WARPS; w++)
        x = min(x, s->w[w]);
    return x;
}

/* True in the last of n blocks to come here: everything that the others wrote before can be read
 * (with __ldcg: an L1 may be stale). The counter is zero again afterwards. */
MM_DEV_FN bool mm_row_last(uint32_t *counter, uint32_t n, mm_row_shared *s)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        s->flag = atomicAdd(counter, 1u) == n - 1;
        if (s->flag) {
            *counter = 0;
            __threadfence();
        }
    }
    __syncthreads();
    return s->flag != 0;
}

/* ---------------------------------------------------------------- histograms */

/* Counts and 64-bit masses of bins; a mass as two words because shared memory adds words natively:
 * the carry out of the low one is seen by exactly the addition that causes it. */
struct mm_bins {
    uint32_t count[MM_ROW_BINS], low[MM_ROW_BINS], high[MM_ROW_BINS];
};

MM_DEV_FN void mm_bins_clear(mm_bins *b) /* block; a barrier must follow */
{
    for (int i = threadIdx.x; i < MM_ROW_BINS; i += MM_ROW_THREADS)
        b->count[i] = b->low[i] = b->high[i] = 0;
}
MM_DEV_FN void mm_bins_add(mm_bins *b, int32_t bin, uint32_t n, uint64_t mass)
{
    atomicAdd(&b->count[bin], n);
    const uint32_t low = (uint32_t)mass;
    const uint32_t carry = low != 0 && (uint32_t)(atomicAdd(&b->low[bin], low) + low) < low;
    const uint32_t high = (uint32_t)(mass >> 32) + carry;
    if (high != 0)
        atomicAdd(&b->high[bin], high);
}
/* One id per lane, all lanes of the warp come; lanes that agree (ties, a flat row) add once. */
MM_DEV_FN void mm_bins_add_warp(mm_bins *b, bool valid, int32_t bin, uint64_t mass)
{
    const uint32_t who = __ballot_sync(MM_ALL_LANES, valid);
    if (who == 0)
        return;
    const int leader = __ffs((int)who) - 1;
    const int32_t first = __shfl_sync(MM_ALL_LANES, bin, leader);
    if (!__all_sync(MM_ALL_LANES, !valid || bin == first)) {
        if (valid)
            mm_bins_add(b, bin, 1, mass);
        return;
    }
    unsigned long long sum = valid ? mass : 0;
    for (int m = 16; m > 0; m /= 2)
        sum += __shfl_xor_sync(MM_ALL_LANES, sum, m);
    if ((int)threadIdx.x % 32 == leader)
        mm_bins_add(b, first, (uint32_t)__popc(who), sum);
}

/* What lies before a thread's own MM_ROW_BINS_EACH bins, and in all. */
struct mm_bin_scan {
    uint32_t count, n_all;
    unsigned long long mass, m_all;
};
MM_DEV_FN uint64_t mm_bins_mass(const mm_bins *b, int32_t bin)
{
    return (uint64_t)b->high[bin] << 32 | b->low[bin];
}
MM_DEV_FN mm_bin_scan mm_bins_scan(const mm_bins *b, mm_row_shared *s) /* block */
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t n = 0;
    unsigned long long m = 0;
    for (int i = 0; i < MM_ROW_BINS_EACH; i++) {
        n += b->count[MM_ROW_BINS_EACH * threadIdx.x + i];
        m += mm_bins_mass(b, MM_ROW_BINS_EACH * (int32_t)threadIdx.x + i);
    }
    uint32_t n_upto = n;
    unsigned long long m_upto = m;
    for (int d = 1; d < 32; d *= 2) {
        const uint32_t n_up = __shfl_up_sync(MM_ALL_LANES, n_upto, d);
        const unsigned long long m_up = __shfl_up_sync(MM_ALL_LANES, m_upto, d);
        n_upto += lane >= d ? n_up : 0;
        m_upto += lane >= d ? m_up : 0;
    }
    __syncthreads();
    if (lane == 31) {
        s->u[warp] = n_upto;
        s->w[warp] = m_upto;
    }
    __syncthreads();
    mm_bin_scan out = {n_upto - n, 0, m_upto - m, 0};
    for (int w = 0; w < MM_ROW_WARPS; w++) {
        out.count += w < warp ? s->u[w] : 0;
        out.mass += w < warp ? s->w[w] : 0;
        out.n_all += s->u[w];
        out.m_all += s->w[w];
    }
    return out;
}

/* The first bin at which a sum over bins, begun at `count` or `mass`, reaches a target; what lies
 * before it (begun sums included) and in it. bin -1: not reached. */
struct mm_bin_cut {
    int32_t bin;
    uint32_t count, n;
    unsigned long long mass, m;
};
/* By count (k > count at the start), or by mass (enough > mass at the start). */
template <bool BY_MASS>
MM_DEV_FN mm_bin_cut mm_bins_find(const mm_bins *b, const mm_bin_scan &scan, uint32_t count,
                                  unsigned long long mass, uint32_t k, double enough,
                                  mm_row_shared *s) /* block */
{
    __syncthreads();
    if (threadIdx.x == 0)
        s->cut_bin = 0xFFFFFFFFu;
    __syncthreads();
    count += scan.count;
    mass += scan.mass;
    for (int i = 0; i < MM_ROW_BINS_EACH; i++) {
        const int32_t bin = MM_ROW_BINS_EACH * (int32_t)threadIdx.x + i;
        const uint32_t n = b->count[bin];
        const unsigned long long m = mm_bins_mass(b, bin);
        const bool here = BY_MASS ? (double)mass < enough && (double)(mass + m) >= enough
                                  : count < k && count + n >= k;
        if (here) { /* one bin of one thread */
            s->cut_bin = (uint32_t)bin;
            s->cut_count = count;
            s->cut_n = n;
            s->cut_mass = mass;
            s->cut_m = m;
        }
        count += n;
        mass += m;
    }
    __syncthreads();
    return {(int32_t)s->cut_bin, s->cut_count, s->cut_n, s->cut_mass, s->cut_m};
}

/* ---------------------------------------------------------------- selection */

/* Radix selection over keys, 11 bits a pass (10 for the last of the value): the key at which the
 * count or the mass of the keys up to it, begun at `count` and `mass`, reaches the target. n_pass
 * 3: the value's 32 bits only, ties together; 5: the whole key.
 * each(fn) calls fn(valid, key) for every key, all lanes of a warp together; mass_of(key). */
struct mm_selection {
    uint64_t key;               /* its upper bits with n_pass 3 */
    uint32_t count;             /* before the key */
    unsigned long long mass, m; /* before it, of it */
    bool found;
};
template <bool BY_MASS, typename EACH, typename MASS>
MM_DEV_FN mm_selection mm_select(int n_pass, uint32_t count, unsigned long long mass, uint32_t k,
                                 double enough, EACH each, MASS mass_of, mm_bins *b,
                                 mm_row_shared *s) /* block */
{
    mm_selection out = {0, count, mass, 0, true};
    int shift = 54;
    for (int pass = 0; pass < n_pass && out.found; pass++) {
        const int width = pass == 2 ? 10 : 11;
        const uint64_t above = out.key;
        shift -= width;
        __syncthreads();
        mm_bins_clear(b);
        __syncthreads();
        each([&](bool valid, uint64_t key) {
            valid = valid && key >> (shift + width) == above;
            const int32_t digit = (int32_t)(key >> shift & ((1u << width) - 1));
            mm_bins_add_warp(b, valid, digit, valid ? mass_of(key) : 0);
        });
        __syncthreads();
        const mm_bin_scan scan = mm_bins_scan(b, s);
        const mm_bin_cut cut = mm_bins_find<BY_MASS>(b, scan, out.count, out.mass, k, enough, s);
        out.found = cut.bin >= 0;
        out.key = above << width | (uint32_t)cut.bin;
        out.count = cut.count;
        out.mass = cut.mass;
        out.m = cut.m;
    }
    return out;
}

/* Sorts n keys (at most `room`, a power of two) ascending in shared memory: bitonic. */
MM_DEV_FN void mm_sort_keys(uint64_t *key, int32_t n) /* block */
{
    int32_t room = 1;
    while (room < n)
        room *= 2;
    for (int32_t i = n + (int32_t)threadIdx.x; i < room; i += MM_ROW_THREADS)
        key[i] = ~(uint64_t)0;
    for (int32_t size = 2; size <= room; size *= 2) {
        for (int32_t step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int32_t t = threadIdx.x; t < room / 2; t += MM_ROW_THREADS) {
                const int32_t i = 2 * step * (t / step) + t % step, j = i + step;
                const bool up = (i & size) == 0;
                const uint64_t a = key[i], c = key[j];
                if ((a > c) == up) {
                    key[i] = c;
                    key[j] = a;
                }
            }
        }
    }
    __syncthreads();
}
#endif
