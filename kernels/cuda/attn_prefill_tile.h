/* attn_prefill_tile.h: the work of one warp on one page, shared by the prefill kernels: 16 rows (a
 * row is one query head of one token) against the 128 keys of a page. HOPPER false: mma.sync, a
 * warp for itself. HOPPER true: wgmma, the four warps of a warpgroup together with 16 rows each
 * (sm_90a).
 *
 * In shared memory a page of keys or values, and a tile of queries, are rows of 128 bf16 in two
 * halves of 64: 16-byte chunk c of row r lies at (c / 8) * n_row * 128 + r * 128 + ((c % 8) ^ (r %
 * 8)) * 16, so neither ldmatrix nor the copies that fill it meet a bank twice (and it is wgmma's
 * 128-byte swizzle). Codes are decoded once, when a page comes in; everything after that is bf16
 * and exact.
 *
 * Rounding points (ops.h, attn_sparse): the page's maximum m is of its own visible keys, P = exp(s
 * - m) is rounded to the operand type, den sums P before that rounding. */
#ifndef MM_CUDA_ATTN_PREFILL_TILE_H
#define MM_CUDA_ATTN_PREFILL_TILE_H
#include "kernels/cuda/cache.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/wgmma.h"

#define MM_TILE_THREADS 256
#define MM_TILE_PAGE_BYTES (MM_PAGE * 2 * MM_CACHE_DIM) /* one decoded page: 32 KB */
#define MM_TILE_ROWS_BYTES (16 * 2 * MM_CACHE_DIM)      /* 16 query rows: 4 KB */

/* Byte offset of a chunk in a tile of N rows. */
template <int N> MM_DEV_FN int mm_tile_at(int row, int chunk)
{
    return (chunk >> 3) * (N * 128) + row * 128 + (((chunk ^ row) & 7) << 4);
}

/* ---------------------------------------------------------------- pages into shared memory */

/* Codes of one page that a thread of a block of 256 carries: four pieces of 16 values. */
template <int F> struct mm_page_piece {
    uint32_t code[4][F == MM_CACHE_BF16 ? 1 : mm_cache_words16<F>()];
    uint32_t scale; /* byte i: of piece i */
};

/* Begins to read rows [0, n_valid) of a page (first: its row 0 in the plane). bf16 goes straight to
 * `smem` by cp.async, which the caller commits and waits for; codes go to registers. */
template <int F>
MM_DEV_FN void mm_page_fetch(mm_page_piece<F> &r, uint8_t *smem, const mm_plane &p, int64_t first,
                             int n_valid, int thread)
{
    const uint8_t *data = mm_cache_data<F>(p, first);
    if constexpr (F == MM_CACHE_BF16) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int at = thread + i * MM_TILE_THREADS, row = at >> 4, chunk = at & 15;
            mm_cp_async16(smem + mm_tile_at<MM_PAGE>(row, chunk), data + at * 16, row < n_valid);
        }
    } else {
        r.scale = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = thread + i * MM_TILE_THREADS, row = at >> 3;
            if constexpr (F == MM_CACHE_FP8) {
                uint4 v = {0, 0, 0, 0};
                if (row < n_valid)
                    v = mm_ld_stream(data + at * 16);
                r.code[i][0] = v.x, r.code[i][1] = v.y, r.code[i][2] = v.z, r.code[i][3] = v.w;
            } else {
                uint2 v = {0, 0};
                if (row < n_valid) {
                    v = ((const uint2 *)data)[at];
                    r.scale |= (uint32_t)mm_cache_scale<F>(p, first)[at] << 8 * i;
                }
                r.code[i][0] = v.x, r.code[i][1] = v.y;
            }
        }
    }
}

/* Decodes what fetch carries into `smem`; nothing to do for bf16. Rows behind n_valid are zeros. */
template <int F>
MM_DEV_FN void mm_page_store(const mm_page_piece<F> &r, uint8_t *smem, const uint2 *lut, int thread)
{
    if constexpr (F != MM_CACHE_BF16) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = thread + i * MM_TILE_THREADS, row = at >> 3, piece = at & 7;
            uint32_t v[8];
            mm_cache_decode16<F>(r.code[i], r.scale >> 8 * i & 0xFFu, lut, v);
            const uint4 lo = {v[0], v[1], v[2], v[3]}, hi = {v[4], v[5], v[6], v[7]};
            const int odd = (piece >> 1) & 1; /* lanes of a row then cover all banks at once */
            *(uint4 *)(smem + mm_tile_at<MM_PAGE>(row, 2 * piece + odd)) = odd ? hi : lo;
            *(uint4 *)(smem + mm_tile_at<MM_PAGE>(row, 2 * piece + 1 - odd)) = odd ? lo : hi;
        }
    }
}

/* ---------------------------------------------------------------- products of a warp */

/* Rows of shared memory that cp.async or stores wrote are about to be read by other threads' wgmma.
 */
template <bool HOPPER> MM_DEV_FN void mm_tile_publish()
{
    if (HOPPER)
        mm_proxy_fence();
    __syncthreads();
}

/* s = q k^T for 16 rows and the 128 keys of a page; s[j] covers keys 8 j .. + 7 in the order of an
 * mma result. q: the warp's own 16 rows. */
template <int F, bool HOPPER>
MM_DEV_FN void mm_tile_scores(float s[16][4], const uint8_t *q, const uint8_t *k, int lane)
{
    const int qrow = (lane & 7) + ((lane >> 3) & 1) * 8, qchunk = lane >> 4;
    const int krow = (lane & 7) + ((lane >> 4) & 1) * 8, kchunk = (lane >> 3) & 1;
    uint32_t a[HOPPER ? 8 : 1][4];
#pragma unroll
    for (int j = 0; j < 16; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[j][i] = 0.0f;
    }
#pragma unroll
    for (int kk = 0; kk < 8; kk++) {
        uint32_t *of = a[HOPPER ? kk : 0];
        mm_ldmatrix_x4(of, q + mm_tile_at<16>(qrow, 2 * kk + qchunk));
#pragma unroll
        for (int i = 0; i < 4; i++)
            of[i] = mm_cache_query2<F, false>(of[i]);
        if (HOPPER)
            continue;
        const uint8_t *row = k + mm_tile_at<MM_PAGE>(krow, 2 * kk + kchunk);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            uint32_t b[4];
            mm_ldmatrix_x4(b, row + j * 16 * 128);
            mm_mma_bf16(s[2 * j], of, b);
            mm_mma_bf16(s[2 * j + 1], of, b + 2);
        }
    }
    if constexpr (HOPPER) {
        mm_wgmma_hold<64>(s[0]);
        mm_wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < 8; kk++)
            mm_wgmma_n128(s[0], a[kk], k + (kk >> 2) * (MM_PAGE * 128), kk & 3);
        mm_wgmma_commit();
        mm_wgmma_wait<0>();
        mm_wgmma_hold<64>(s[0]);
    }
}

/* What a page's keys make of 16 rows, of which a lane holds two: rows g and g + 8. */
struct mm_tile_page {
    uint32_t p[8][4]; /* P as operand a of the eight steps of 16 keys */
    float max[2], den[2];
};

/* Scores (raw dot products, destroyed) to P; row i sees the keys [lo[i], hi[i]), 0 <= lo < hi <=
 * 128, or none where hi <= lo (then P, den are 0 and max is -inf). All lanes of a row get its max
 * and den. */
template <int F>
MM_DEV_FN void mm_tile_softmax(float s[16][4], const int lo[2], const int hi[2], int lane,
                               mm_tile_page &out)
{
    const float scale = 0.08838834764831845f; /* 1 / sqrt(128) */
    const float scale2 = scale * 1.4426950408889634f;
    const int t = 2 * (lane & 3);
    const bool cut = lo[0] > 0 || lo[1] > 0 || hi[0] < MM_PAGE || hi[1] < MM_PAGE;
    if (__any_sync(0xFFFFFFFFu, cut)) {
#pragma unroll
        for (int j = 0; j < 16; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int key = 8 * j + t + (i & 1);
                if (key < lo[i >> 1] || key >= hi[i >> 1])
                    s[j][i] = -INFINITY;
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = -INFINITY, den = 0.0f;
#pragma unroll
        for (int j = 0; j < 16; j++)
            m = fmaxf(m, fmaxf(s[j][2 * r], s[j][2 * r + 1])); /* a NaN is passed over, as in exp */
        m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, 2));
        /* exp(s - m) as one fma and 2^x: the rounding of m * log2 e is the same for the whole page.
         */
        const float from = hi[r] > lo[r] ? m * scale2 : 0.0f; /* no key: 2^-inf, not 2^(-inf + inf)
                                                               */
#pragma unroll
        for (int j = 0; j < 16; j++) {
            float e[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                e[i] = mm_exp2(fmaf(s[j][2 * r + i], scale2, -from));
                if (F == MM_CACHE_NVFP4)
                    e[i] = 448.0f * e[i];
                den += e[i];
                if (F == MM_CACHE_NVFP4)
                    e[i] = mm_e4m3_f32(mm_f32_e4m3(e[i]));
            }
            out.p[j >> 1][2 * (j & 1) + r] = mm_f32x2_bf16x2(e[0], e[1]);
        }
        den += __shfl_xor_sync(0xFFFFFFFFu, den, 1);
        den += __shfl_xor_sync(0xFFFFFFFFu, den, 2);
        out.max[r] = m * scale;
        out.den[r] = den;
    }
}

/* acc = P v for the dims 32 quarter .. + 31 by mma.sync: acc[j] covers dims 32 quarter + 8 j ..
 * + 7. */
MM_DEV_FN void mm_tile_values_quarter(float acc[4][4], const mm_tile_page &page, const uint8_t *v,
                                      int quarter, int lane)
{
    const int row = (lane & 7) + ((lane >> 3) & 1) * 8, chunk = 4 * quarter + (lane >> 4);
    const uint8_t *lo = v + mm_tile_at<MM_PAGE>(row, chunk);
    const uint8_t *hi = v + mm_tile_at<MM_PAGE>(row, chunk + 2);
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc[j][i] = 0.0f;
    }
#pragma unroll
    for (int kk = 0; kk < 8; kk++) {
        uint32_t b[4];
        mm_ldmatrix_x4_trans(b, lo + kk * 16 * 128);
        mm_mma_bf16(acc[0], page.p[kk], b);
        mm_mma_bf16(acc[1], page.p[kk], b + 2);
        mm_ldmatrix_x4_trans(b, hi + kk * 16 * 128);
        mm_mma_bf16(acc[2], page.p[kk], b);
        mm_mma_bf16(acc[3], page.p[kk], b + 2);
    }
}

/* P v: take(quarter, acc) is called for the four quarters of the dims, acc as above. UNROLL 4 makes
 * `quarter` a constant, 1 saves registers (mma.sync only). */
template <bool HOPPER, int UNROLL, typename Take>
MM_DEV_FN void mm_tile_values(const mm_tile_page &page, const uint8_t *v, int lane, Take take)
{
    if constexpr (HOPPER) {
        float acc[16][4];
#pragma unroll
        for (int j = 0; j < 16; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[j][i] = 0.0f;
        }
        mm_wgmma_hold<64>(acc[0]);
        mm_wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < 8; kk++)
            mm_wgmma_n128_rows(acc[0], page.p[kk], v + kk * 16 * 128, MM_PAGE * 128);
        mm_wgmma_commit();
        mm_wgmma_wait<0>();
        mm_wgmma_hold<64>(acc[0]);
#pragma unroll
        for (int quarter = 0; quarter < 4; quarter++)
            take(quarter, acc + 4 * quarter);
    } else {
#pragma unroll UNROLL
        for (int quarter = 0; quarter < 4; quarter++) {
            float acc[4][4];
            mm_tile_values_quarter(acc, page, v, quarter, lane);
            take(quarter, acc);
        }
    }
}

/* ---------------------------------------------------------------- rows of a step */

/* The step as kernels take it: the arrays of mm_seq_view and the page table of its slots. */
struct mm_prefill_rows {
    int n_seq, n_row, page_stride;
    const int32_t *row_start, *slot, *row_seq, *pos, *page_table;
};
static inline mm_prefill_rows mm_prefill_rows_of(const mm_seq_view *seq)
{
    return {seq->n_seq,   seq->n_row, seq->slots->page_stride, seq->row_start, seq->slot,
            seq->row_seq, seq->pos,   seq->slots->page_table};
}
MM_DEV_FN int64_t mm_prefill_page(const mm_prefill_rows &rows, int seq, int block)
{
    return rows.page_table[(int64_t)rows.slot[seq] * rows.page_stride + block];
}

/* Query heads of a KV head fill the 16 rows of a warp's tile with `pad`, a power of two, per token.
 */
static inline int mm_tile_head_pad(int group)
{
    int pad = 1;
    while (pad < group)
        pad *= 2;
    return pad;
}

/* Rows [begin, end) of the step are cut into tiles of `size` rows of one sequence. The grid is a
 * bound, mm_row_tile_bound; tile i is found by walking the sequences. False when there is no tile
 * i; every thread of the block gets the same answer. `shared`: 3 ints. Barriers inside. */
struct mm_row_tile {
    int seq, first, n; /* rows first .. first + n - 1 of the step */
};
static inline int mm_row_tile_bound(int n_row, int n_seq, int size)
{
    const int whole = (n_row + size - 1) / size + n_seq; /* every sequence may have a cut tile */
    return n_row < whole ? n_row : whole;
}
MM_DEV_FN bool mm_row_tile_find(const mm_prefill_rows &rows, int begin, int end, int size, int i,
                                int *shared, mm_row_tile &out)
{
    const int thread = (int)threadIdx.x;
    if (thread < 32) {
        int before = 0;
        if (thread == 0)
            shared[0] = -1;
        __syncwarp();
        for (int base = 0; base < rows.n_seq && before <= i; base += 32) {
            const int q = base + thread;
            int first = 0, n = 0;
            if (q < rows.n_seq) {
                first = max(begin, rows.row_start[q]);
                n = max(0, min(end, rows.row_start[q + 1]) - first);
            }
            const int n_tile = (n + size - 1) / size;
            int sum = n_tile;
#pragma unroll
            for (int d = 1; d < 32; d *= 2) {
                const int up = __shfl_up_sync(0xFFFFFFFFu, sum, (unsigned)d);
                if (thread >= d)
                    sum += up;
            }
            const int j = i - (before + sum - n_tile);
            if (j >= 0 && j < n_tile) {
                shared[0] = q;
                shared[1] = first + j * size;
                shared[2] = min(size, n - j * size);
            }
            before += __shfl_sync(0xFFFFFFFFu, sum, 31);
        }
    }
    __syncthreads();
    out.seq = shared[0], out.first = shared[1], out.n = shared[2];
    return out.seq >= 0;
}

#endif
