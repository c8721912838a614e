/* attn_prefill_score.h: scores of rows against the complete pages before them: the largest dot
 * product of an index query with the page's 128 index keys. A block holds 256 (token, head) rows of
 * one sequence as operands in registers and takes one page after the other, two in shared memory.
 */
#ifndef MM_CUDA_ATTN_PREFILL_SCORE_H
#define MM_CUDA_ATTN_PREFILL_SCORE_H
#include "kernels/cuda/attn_prefill_tile.h"

#define MM_SCORE_ROWS 256
#define MM_SCORE_PAGES 16 /* most pages of a block */

struct mm_score_args {
    mm_prefill_rows rows;
    mm_plane ik;
    const uint16_t *iq;            /* [T, n_head, 128] */
    int n_head, n_top, begin, end; /* rows [begin, end) of the step */
    int n_page, n_local;           /* pages of a block; complete pages of the farthest row */
    int stride;
    float *score; /* [(end - begin) * n_head, stride] */
};

/* Shared memory: two pages, in which the queries stand first; then the results; then the table. */
struct mm_score_smem {
    uint8_t page[2][MM_TILE_PAGE_BYTES];
    float best[MM_SCORE_PAGES][2 * MM_SCORE_ROWS]; /* [page][part of the keys][row] */
    uint2 lut[MM_CACHE_LUT_BYTES / sizeof(uint2)];
};

/* 16 rows from `row` as the eight operands of a warp. */
template <int F>
MM_DEV_FN void mm_score_query(uint32_t q[8][4], const uint8_t *smem, int row, int lane)
{
    row += (lane & 7) + ((lane >> 3) & 1) * 8;
#pragma unroll
    for (int kk = 0; kk < 8; kk++) {
        mm_ldmatrix_x4(q[kk], smem + mm_tile_at<MM_SCORE_ROWS>(row, 2 * kk + (lane >> 4)));
#pragma unroll
        for (int i = 0; i < 4; i++)
            q[kk][i] = mm_cache_query2<F, true>(q[kk][i]);
    }
}
/* The four lanes of a row agree on its largest score; one writes those of rows g and g + 8. */
MM_DEV_FN void mm_score_put(float top[2], float *best, int lane)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float x = top[r];
        x = mm_max_nan(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
        x = mm_max_nan(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
        if ((lane & 3) == 0)
            best[8 * r + (lane >> 2)] = x;
    }
}
template <int F>
MM_DEV_FN void mm_score_fetch(mm_page_piece<F> &piece, uint8_t *smem, const mm_score_args &a,
                              int seq, int block, int thread)
{
    const int64_t row = mm_cache_row(a.ik, mm_prefill_page(a.rows, seq, block), 0, 0);
    mm_page_fetch<F>(piece, smem, a.ik, row, MM_PAGE, thread);
    mm_cp_async_commit();
}

/* By mma.sync: a warp holds 16 MT rows from row0 and takes the 16 N2 keys from key0 of every page;
 * `best` is its part of the first page's results. is_idle: none of its rows exist. */
template <int F, int MT, int N2>
MM_DEV_FN void mm_score_warp(const mm_score_args &a, mm_score_smem *sm, int seq, int first, int n,
                             int row0, bool is_idle, int key0, float *best)
{
    const int thread = (int)threadIdx.x, lane = thread & 31;
    const int krow = key0 + (lane & 7) + ((lane >> 4) & 1) * 8, kchunk = (lane >> 3) & 1;
    uint32_t q[MT][8][4];
#pragma unroll
    for (int m = 0; m < MT; m++)
        mm_score_query<F>(q[m], sm->page[0], row0 + 16 * m, lane);
    __syncthreads(); /* pages may now overwrite the queries */
    mm_page_piece<F> piece;
    mm_score_fetch<F>(piece, sm->page[0], a, seq, first, thread);
    mm_cp_async_wait<0>();
    mm_page_store<F>(piece, sm->page[0], sm->lut, thread);
    __syncthreads();
    for (int i = 0; i < n; i++) {
        const uint8_t *k = sm->page[i & 1];
        uint8_t *next = sm->page[(i + 1) & 1];
        if (i + 1 < n)
            mm_score_fetch<F>(piece, next, a, seq, first + i + 1, thread);
        float top[MT][2];
#pragma unroll
        for (int m = 0; m < MT; m++)
            top[m][0] = top[m][1] = -INFINITY;
#pragma unroll 1
        for (int j = 0; j < (is_idle ? 0 : N2); j++) {
            float s[MT][2][4] = {};
#pragma unroll
            for (int kk = 0; kk < 8; kk++) {
                uint32_t b[4];
                mm_ldmatrix_x4(b, k + mm_tile_at<MM_PAGE>(krow + 16 * j, 2 * kk + kchunk));
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    mm_mma_bf16(s[m][0], q[m][kk], b);
                    mm_mma_bf16(s[m][1], q[m][kk], b + 2);
                }
            }
#pragma unroll
            for (int m = 0; m < MT; m++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const float x = mm_max_nan(s[m][0][2 * r], s[m][0][2 * r + 1]);
                    const float y = mm_max_nan(s[m][1][2 * r], s[m][1][2 * r + 1]);
                    top[m][r] = mm_max_nan(top[m][r], mm_max_nan(x, y));
                }
            }
        }
#pragma unroll
        for (int m = 0; m < MT; m++)
            mm_score_put(top[m], best + i * 2 * MM_SCORE_ROWS + 16 * m, lane);
        mm_cp_async_wait<0>();
        if (i + 1 < n)
            mm_page_store<F>(piece, next, sm->lut, thread);
        __syncthreads();
    }
}

/* By wgmma: a warpgroup holds 128 rows, as two times 64 of which a warp has 16, and takes all keys.
 * The next page is decoded while the products run. */
template <int F>
MM_DEV_FN void mm_score_group(const mm_score_args &a, mm_score_smem *sm, int seq, int first, int n)
{
    const int thread = (int)threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const int own = 128 * (warp >> 2) + 16 * (warp & 3);
    uint32_t q[2][8][4];
#pragma unroll
    for (int m = 0; m < 2; m++)
        mm_score_query<F>(q[m], sm->page[0], own + 64 * m, lane);
    __syncthreads();
    mm_page_piece<F> piece;
    mm_score_fetch<F>(piece, sm->page[0], a, seq, first, thread);
    mm_cp_async_wait<0>();
    mm_page_store<F>(piece, sm->page[0], sm->lut, thread);
    mm_tile_publish<true>();
    for (int i = 0; i < n; i++) {
        const uint8_t *k = sm->page[i & 1];
        uint8_t *next = sm->page[(i + 1) & 1];
        float s[2][64];
        if (i + 1 < n)
            mm_score_fetch<F>(piece, next, a, seq, first + i + 1, thread);
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int j = 0; j < 64; j++)
                s[m][j] = 0.0f;
            mm_wgmma_hold<64>(s[m]);
        }
        mm_wgmma_fence();
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int kk = 0; kk < 8; kk++)
                mm_wgmma_n128(s[m], q[m][kk], k + (kk >> 2) * (MM_PAGE * 128), kk & 3);
            mm_wgmma_commit();
        }
        if (i + 1 < n)
            mm_page_store<F>(piece, next, sm->lut, thread);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            if (m == 0)
                mm_wgmma_wait<1>();
            else
                mm_wgmma_wait<0>();
            mm_wgmma_hold<64>(s[m]);
            float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
            for (int j = 0; j < 64; j += 4) {
                top[0] = mm_max_nan(top[0], mm_max_nan(s[m][j], s[m][j + 1]));
                top[1] = mm_max_nan(top[1], mm_max_nan(s[m][j + 2], s[m][j + 3]));
            }
            mm_score_put(top, sm->best[i] + own + 64 * m, lane);
        }
        mm_cp_async_wait<0>();
        mm_tile_publish<true>();
    }
}

template <int F, bool HOPPER>
__global__ void __launch_bounds__(MM_TILE_THREADS, 1) mm_score_kernel(mm_score_args a)
{
    __shared__ int found[3];
    mm_score_smem *sm = (mm_score_smem *)mm_smem();
    const int thread = (int)threadIdx.x, warp = thread >> 5;
    mm_row_tile tile;
    mm_pdl_wait();
    mm_pdl_trigger();
    if (!mm_row_tile_find(a.rows, a.begin, a.end, MM_SCORE_ROWS / a.n_head, (int)blockIdx.x, found,
                          tile))
        return;
    /* The tile's last row sees the most complete pages. */
    const int local = a.rows.pos[tile.first + tile.n - 1] / MM_PAGE;
    const int first = (int)blockIdx.y * a.n_page, n = min(a.n_page, local - first);
    if (n <= 0 || local + 1 <= a.n_top)
        return;
    if (F == MM_CACHE_NVFP4)
        mm_cache_lut_fill(sm->lut, thread, MM_TILE_THREADS);
    const int n_row = tile.n * a.n_head;
    const uint16_t *iq = a.iq + (int64_t)tile.first * a.n_head * MM_CACHE_DIM;
    for (int at = thread; at < MM_SCORE_ROWS * 16; at += MM_TILE_THREADS)
        mm_cp_async16(sm->page[0] + mm_tile_at<MM_SCORE_ROWS>(at >> 4, at & 15),
                      at < n_row * 16 ? iq + at * 8 : iq, at < n_row * 16);
    mm_cp_async_commit();
    mm_cp_async_wait<0>();
    __syncthreads();
    int n_part, part_rows;
    if (n_row <= 16) { /* few rows: eight parts of the keys */
        n_part = 8, part_rows = 16;
        mm_score_warp<F, 1, 1>(a, sm, tile.seq, first, n, 0, false, 16 * warp,
                               sm->best[0] + 16 * warp);
    } else if constexpr (HOPPER) {
        n_part = 1, part_rows = 0;
        mm_score_group<F>(a, sm, tile.seq, first, n);
    } else { /* four groups of 64 rows, two halves of the keys */
        const int row0 = 64 * (warp >> 1);
        n_part = 2, part_rows = MM_SCORE_ROWS;
        mm_score_warp<F, 4, 4>(a, sm, tile.seq, first, n, row0, row0 >= n_row, 64 * (warp & 1),
                               sm->best[0] + (warp & 1) * MM_SCORE_ROWS + row0);
    }
    if (thread < n_row) {
        float *out =
            a.score + ((int64_t)(tile.first - a.begin) * a.n_head + thread) * a.stride + first;
        for (int i = 0; i < n; i++) {
            float x = sm->best[i][thread];
            for (int p = 1; p < n_part; p++)
                x = mm_max_nan(x, sm->best[i][p * part_rows + thread]);
            out[i] = x;
        }
    }
}

template <int F, bool HOPPER>
static mm_status mm_score_launch(const mm_op_context *c, const mm_score_args &a)
{
    const int rows = mm_row_tile_bound(a.end - a.begin, a.rows.n_seq, MM_SCORE_ROWS / a.n_head);
    const dim3 grid((unsigned)rows, (unsigned)mm_ceil_div(a.n_local, a.n_page));
    return mm_launch(c, "index_score", mm_score_kernel<F, HOPPER>, grid, dim3(MM_TILE_THREADS),
                     sizeof(mm_score_smem), a);
}

#endif
