/* attn_prefill_pages.h: sparse attention page by page. A block brings one page of K and V into
 * shared memory and attends it from all rows that chose it (attn_prefill_plan.h), 16 (token, head)
 * rows to a warp; each row leaves its partial of that page in scratch: maximum, denominator,
 * accumulator, f32. Beside that the launch merges the piece of rows before it: one half of the
 * blocks first, the other half last, so that an SM, which holds one of each, computes and moves
 * memory at the same time. */
#ifndef MM_CUDA_ATTN_PREFILL_PAGES_H
#define MM_CUDA_ATTN_PREFILL_PAGES_H
#include "kernels/cuda/attn_prefill_merge.h"
#include "kernels/cuda/attn_prefill_plan.h"

#define MM_PAGES_PASSES 4 /* times 16 rows that a warp takes from one page, at most */

struct mm_attn_pages_args {
    mm_item_plan plan;
    mm_prefill_rows rows;
    mm_plane k, v;
    const uint16_t *q; /* [T, n_head, 128] */
    int n_head, group, pad, piece;
    float *acc;               /* [items of the piece * group, 128] */
    float2 *sum;              /* the same places: maximum, denominator */
    mm_attn_merge_args merge; /* of the piece before */
};

struct mm_attn_pages_smem {
    uint8_t k[MM_TILE_PAGE_BYTES], v[MM_TILE_PAGE_BYTES];
    uint8_t q[8][MM_TILE_ROWS_BYTES]; /* per warp */
    uint2 lut[MM_CACHE_LUT_BYTES / sizeof(uint2)];
};

/* 16 rows of a tile: row r is head r % pad of item `first` + r / pad. */
MM_DEV_FN void mm_attn_pages_queries(const mm_attn_pages_args &a, const mm_item_tile &tile,
                                     const uint32_t *item, uint32_t first, uint8_t *smem, int lane)
{
    const uint32_t per_row = (uint32_t)(a.plan.n_group * a.plan.n_top);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int row = 2 * i + (lane >> 4), chunk = lane & 15;
        const uint32_t at = first + (uint32_t)(row / a.pad);
        const int head = row % a.pad;
        const bool valid = at < tile.n && head < a.group;
        const uint16_t *src = a.q;
        if (valid) {
            const int64_t t = (int64_t)a.piece * a.plan.piece_rows + item[at] / per_row;
            src += (t * a.n_head + tile.head * a.group + head) * MM_CACHE_DIM + chunk * 8;
        }
        mm_cp_async16(smem + mm_tile_at<16>(row, chunk), src, valid);
    }
}

template <int F, bool HOPPER>
MM_DEV_FN void mm_attn_pages_rows(const mm_attn_pages_args &a, mm_attn_pages_smem *sm,
                                  const mm_item_tile &tile, const uint32_t *item, uint32_t first,
                                  const uint8_t *q, int lane)
{
    const uint32_t per_row = (uint32_t)(a.plan.n_group * a.plan.n_top);
    int place[2]; /* of the partial, or -1 */
    int lo[2] = {0, 0}, hi[2] = {0, 0};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = (lane >> 2) + 8 * r, head = row % a.pad;
        const uint32_t at = first + (uint32_t)(row / a.pad);
        place[r] = -1;
        if (at < tile.n && head < a.group) {
            const uint32_t number = item[at];
            const int t = a.piece * a.plan.piece_rows + (int)(number / per_row);
            hi[r] = min(MM_PAGE, a.rows.pos[t] + 1 - tile.block * MM_PAGE);
            place[r] = (int)number * a.group + head;
        }
    }
    mm_tile_page page;
    {
        float s[16][4];
        mm_tile_scores<F, HOPPER>(s, q, sm->k, lane);
        mm_tile_softmax<F>(s, lo, hi, lane, page);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (place[r] >= 0 && (lane & 3) == 0)
            a.sum[place[r]] = make_float2(page.max[r], page.den[r]);
    }
    mm_tile_values<HOPPER, 1>(page, sm->v, lane, [&](int quarter, const float(*acc)[4]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (place[r] < 0)
                continue;
            float *out = a.acc + (int64_t)place[r] * MM_CACHE_DIM + 32 * quarter + 2 * (lane & 3);
#pragma unroll
            for (int j = 0; j < 4; j++)
                *(float2 *)(out + 8 * j) = make_float2(acc[j][2 * r], acc[j][2 * r + 1]);
        }
    });
}

template <int F, bool HOPPER>
__global__ void __launch_bounds__(MM_TILE_THREADS, 2) mm_attn_pages_kernel(mm_attn_pages_args a)
{
    mm_attn_pages_smem *sm = (mm_attn_pages_smem *)mm_smem();
    const int thread = (int)threadIdx.x, warp = thread >> 5, lane = thread & 31;
    const uint32_t per_warp = 16u / (uint32_t)a.pad; /* items in 16 rows */
    const uint32_t own = per_warp * (uint32_t)warp;
    /* Whoever computes together goes on together: a warp, or a warpgroup as its first warp has
     * items. */
    const uint32_t first = HOPPER ? per_warp * (uint32_t)(warp & ~3) : own;
    const int64_t first_item = (int64_t)a.piece * a.plan.piece_rows * a.plan.n_group * a.plan.n_top;
    if (F == MM_CACHE_NVFP4)
        mm_cache_lut_fill(sm->lut, thread, MM_TILE_THREADS);
    mm_pdl_wait();
    mm_pdl_trigger();
    const bool merge_first = 2 * blockIdx.x < gridDim.x;
    if (merge_first)
        mm_attn_merge(a.merge, (int)blockIdx.x, (int)gridDim.x);
    const uint32_t n_tile = a.plan.n_tile[a.piece];
    for (uint32_t i = blockIdx.x; i < n_tile; i += gridDim.x) {
        const mm_item_tile tile = a.plan.tile[first_item + i];
        const uint32_t *item = a.plan.item + first_item + tile.begin;
        const int64_t row0 =
            mm_cache_row(a.k, mm_prefill_page(a.rows, tile.seq, tile.block), tile.head, 0);
        /* What the sequence has not written may be anything: keys are masked, values must be 0. */
        const int last = a.rows.pos[a.rows.row_start[tile.seq + 1] - 1];
        const int n_valid = min(MM_PAGE, last + 1 - tile.block * MM_PAGE);
        mm_page_piece<F> k, v;
        __syncthreads(); /* the page before is used up; the table is filled */
        if (first < tile.n)
            mm_attn_pages_queries(a, tile, item, own, sm->q[warp], lane);
        mm_page_fetch<F>(k, sm->k, a.k, row0, n_valid, thread);
        mm_page_fetch<F>(v, sm->v, a.v, row0, n_valid, thread);
        mm_cp_async_commit();
        mm_page_store<F>(k, sm->k, sm->lut, thread);
        mm_page_store<F>(v, sm->v, sm->lut, thread);
        mm_cp_async_wait<0>();
        mm_tile_publish<HOPPER>();
        for (uint32_t pass = 0; first + pass < tile.n; pass += 8 * per_warp) {
            if (pass != 0) {
                __syncwarp(); /* the queries before are used up */
                mm_attn_pages_queries(a, tile, item, own + pass, sm->q[warp], lane);
                mm_cp_async_commit();
                mm_cp_async_wait<0>();
                __syncwarp();
            }
            mm_attn_pages_rows<F, HOPPER>(a, sm, tile, item, own + pass, sm->q[warp], lane);
        }
    }
    if (!merge_first)
        mm_attn_merge(a.merge, (int)blockIdx.x, (int)gridDim.x);
}

template <int F, bool HOPPER>
static mm_status mm_attn_pages_launch(const mm_op_context *c, const mm_attn_pages_args &a)
{
    /* As many blocks as run at once; each takes tile after tile. */
    const int64_t bound = (int64_t)a.plan.piece_rows * a.plan.n_group * a.plan.n_top;
    const int64_t grid = mm_min_i64(2 * (int64_t)mm_cuda_of(c)->n_sm, bound);
    return mm_launch(c, "attn_pages", mm_attn_pages_kernel<F, HOPPER>, dim3((unsigned)grid),
                     dim3(MM_TILE_THREADS), sizeof(mm_attn_pages_smem), a);
}

#endif
