/* attn_prefill_full.h: attention over every visible page. A block holds 128 (token, head) rows of
 * one sequence and KV head, 16 per warp, and walks the pages that they see in ascending order, two
 * pages in shared memory; every page's partial is formed against its own maximum and merged into
 * the running sums in registers, as the definition says. Rows that are not in the pages (drafts)
 * come last. */
#ifndef MM_CUDA_ATTN_PREFILL_FULL_H
#define MM_CUDA_ATTN_PREFILL_FULL_H
#include "kernels/cuda/attn_prefill_tile.h"

#define MM_FULL_ROWS 128

struct mm_attn_full_args {
    mm_prefill_rows rows;
    mm_plane k, v;
    const uint16_t *q, *extra_k, *extra_v; /* [T, n_head, 128], [T, n_group, 128] */
    const int32_t *n_ctx;
    int n_head, n_group, group, pad, window;
    int n_stage; /* pages in shared memory, set by the launch */
    float least_den;
    uint16_t *o;
};

struct mm_attn_full_smem {
    uint8_t q[8][MM_TILE_ROWS_BYTES]; /* per warp */
    uint2 lut[MM_CACHE_LUT_BYTES / sizeof(uint2)];
    struct {
        uint8_t k[MM_TILE_PAGE_BYTES], v[MM_TILE_PAGE_BYTES];
    } page[1]; /* or 2 */
};

/* Two rows of a lane: what they see and their running sums. */
struct mm_attn_full_state {
    int pos[2]; /* -1: no such row */
    float max[2], den[2];
    float acc[4][4][4]; /* [quarter of the dims][8 dims][two of a row, two of the other] */
};

/* Merges the keys [lo, hi) of the page in k, v. */
template <int F, bool HOPPER>
MM_DEV_FN void mm_attn_full_page(mm_attn_full_state &st, const uint8_t *q, const uint8_t *k,
                                 const uint8_t *v, const int lo[2], const int hi[2], int lane)
{
    mm_tile_page page;
    float keep[2], add[2];
    /* A warp whose rows see nothing of the page leaves it; the warps of a warpgroup stay together.
     */
    if (!HOPPER && !__any_sync(0xFFFFFFFFu, hi[0] > lo[0] || hi[1] > lo[1]))
        return;
    {
        float s[16][4];
        mm_tile_scores<F, HOPPER>(s, q, k, lane);
        mm_tile_softmax<F>(s, lo, hi, lane, page);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        keep[r] = 1.0f, add[r] = 0.0f;
        if (hi[r] > lo[r]) {
            const float top = page.max[r] > st.max[r] ? page.max[r] : st.max[r];
            keep[r] = expf(st.max[r] - top);
            add[r] = expf(page.max[r] - top);
            st.max[r] = top;
            st.den[r] = st.den[r] * keep[r] + page.den[r] * add[r];
        }
    }
    mm_tile_values<HOPPER, 4>(page, v, lane, [&](int quarter, const float(*acc)[4]) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                st.acc[quarter][j][i] =
                    st.acc[quarter][j][i] * keep[i >> 1] + acc[j][i] * add[i >> 1];
        }
    });
}

/* Rows [e, e + n) of an array [T, n_group, 128] as if they had been stored in a page; the rest
 * zeros. */
template <int F>
MM_DEV_FN void mm_attn_full_extra(uint8_t *smem, const uint2 *lut, const uint16_t *src, int n_group,
                                  int head, int e, int n, int thread)
{
    const int warp = thread >> 5, lane = thread & 31;
    for (int row = warp; row < MM_PAGE; row += MM_TILE_THREADS / 32) {
        uint2 out = {0, 0}; /* values 4 lane .. 4 lane + 3 */
        if (row < n) {
            out =
                ((const uint2 *)(src + ((int64_t)(e + row) * n_group + head) * MM_CACHE_DIM))[lane];
            if constexpr (F != MM_CACHE_BF16) {
                const float x[4] = {mm_bf16_lo(out.x), mm_bf16_hi(out.x), mm_bf16_lo(out.y),
                                    mm_bf16_hi(out.y)};
                uint32_t scale, code = mm_cache_encode4<F>(x, &scale).x;
                if (F == MM_CACHE_NVFP4)
                    code = mm_e2m1x4_e4m3x4(code, lut[scale]);
                out.x = mm_f32x2_bf16x2(mm_e4m3_f32(code & 0xFFu), mm_e4m3_f32(code >> 8 & 0xFFu));
                out.y = mm_f32x2_bf16x2(mm_e4m3_f32(code >> 16 & 0xFFu), mm_e4m3_f32(code >> 24));
            }
        }
        *(uint2 *)(smem + mm_tile_at<MM_PAGE>(row, lane >> 1) + 8 * (lane & 1)) = out;
    }
}

template <int F, bool HOPPER>
__global__ void __launch_bounds__(MM_TILE_THREADS, 1) mm_attn_full_kernel(mm_attn_full_args a)
{
    __shared__ int found[3];
    mm_attn_full_smem *sm = (mm_attn_full_smem *)mm_smem();
    const int thread = (int)threadIdx.x, warp = thread >> 5, lane = thread & 31;
    const int head = (int)blockIdx.y, n_token = MM_FULL_ROWS / a.pad;
    mm_row_tile tile;
    mm_pdl_wait();
    mm_pdl_trigger();
    /* The last tiles of a sequence see the most keys: they go first. */
    if (!mm_row_tile_find(a.rows, 0, a.rows.n_row, n_token, (int)(gridDim.x - 1 - blockIdx.x),
                          found, tile))
        return;
    if (F == MM_CACHE_NVFP4)
        mm_cache_lut_fill(sm->lut, thread, MM_TILE_THREADS);
#pragma unroll
    for (int i = 0; i < 8; i++) { /* a warp's own queries */
        const int row = 2 * i + (lane >> 4), chunk = lane & 15, r = 16 * warp + row;
        const int t = r / a.pad, h = r % a.pad;
        const bool valid = t < tile.n && h < a.group;
        const int64_t at = valid ? ((int64_t)(tile.first + t) * a.n_head + head * a.group + h) : 0;
        mm_cp_async16(sm->q[warp] + mm_tile_at<16>(row, chunk), a.q + at * MM_CACHE_DIM + chunk * 8,
                      valid);
    }
    mm_attn_full_state st = {};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = 16 * warp + (lane >> 2) + 8 * r, t = row / a.pad;
        st.pos[r] = t < tile.n && row % a.pad < a.group ? a.rows.pos[tile.first + t] : -1;
        st.max[r] = -INFINITY;
    }
    const int low = a.window > 0 ? max(0, a.rows.pos[tile.first] - a.window + 1) : 0;
    const int n_ctx = a.n_ctx != nullptr ? a.n_ctx[tile.seq] : -1;
    const int held = n_ctx >= 0 ? n_ctx : a.rows.pos[tile.first + tile.n - 1] + 1;
    const int b0 = low / MM_PAGE, n_block = (held + MM_PAGE - 1) / MM_PAGE - b0;
    mm_page_piece<F> k, v;
    __syncthreads(); /* the table is filled */
    for (int i = -1; i < n_block; i++) {
        auto &next = sm->page[a.n_stage == 2 ? (i + 1) & 1 : 0];
        const auto fetch = [&]() {
            if (i + 1 < n_block) {
                const int block = b0 + i + 1, n_valid = min(MM_PAGE, held - block * MM_PAGE);
                const int64_t row0 =
                    mm_cache_row(a.k, mm_prefill_page(a.rows, tile.seq, block), head, 0);
                mm_page_fetch<F>(k, next.k, a.k, row0, n_valid, thread);
                mm_page_fetch<F>(v, next.v, a.v, row0, n_valid, thread);
            }
            mm_cp_async_commit();
        };
        if (a.n_stage == 2) /* the page after this one is read while this one is used */
            fetch();
        if (i >= 0) {
            const auto &page = sm->page[a.n_stage == 2 ? i & 1 : 0];
            const int base = (b0 + i) * MM_PAGE;
            int lo[2], hi[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int end = n_ctx >= 0 ? n_ctx : st.pos[r] + 1;
                hi[r] = st.pos[r] < 0 ? 0 : min(MM_PAGE, end - base);
                lo[r] = a.window > 0 ? max(0, st.pos[r] - a.window + 1 - base) : 0;
            }
            mm_attn_full_page<F, HOPPER>(st, sm->q[warp], page.k, page.v, lo, hi, lane);
        }
        if (a.n_stage == 1) {
            __syncthreads();
            fetch();
        }
        if (i + 1 < n_block) {
            mm_page_store<F>(k, next.k, sm->lut, thread);
            mm_page_store<F>(v, next.v, sm->lut, thread);
        }
        mm_cp_async_wait<0>();
        mm_tile_publish<HOPPER>();
    }
    if (a.extra_k != nullptr) {
        const int begin = a.rows.row_start[tile.seq], end = a.rows.row_start[tile.seq + 1];
        for (int e = begin; e < end; e += MM_PAGE) {
            const int n = min(MM_PAGE, end - e), base = a.rows.pos[e];
            mm_attn_full_extra<F>(sm->page[0].k, sm->lut, a.extra_k, a.n_group, head, e, n, thread);
            mm_attn_full_extra<F>(sm->page[0].v, sm->lut, a.extra_v, a.n_group, head, e, n, thread);
            mm_tile_publish<HOPPER>();
            int lo[2], hi[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                hi[r] = st.pos[r] < 0 ? 0 : n;
                lo[r] = a.window > 0 ? max(0, st.pos[r] - a.window + 1 - base) : 0;
            }
            mm_attn_full_page<F, HOPPER>(st, sm->q[warp], sm->page[0].k, sm->page[0].v, lo, hi,
                                         lane);
            __syncthreads();
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = 16 * warp + (lane >> 2) + 8 * r;
        if (st.pos[r] < 0)
            continue;
        const float den = st.den[r] == 0.0f || st.den[r] < a.least_den ? 1.0f : st.den[r];
        const int64_t at =
            (int64_t)(tile.first + row / a.pad) * a.n_head + head * a.group + row % a.pad;
        uint32_t *out = (uint32_t *)(a.o + at * MM_CACHE_DIM) + (lane & 3);
#pragma unroll
        for (int j = 0; j < 16; j++)
            out[4 * j] = mm_f32x2_bf16x2(st.acc[j >> 2][j & 3][2 * r] / den,
                                         st.acc[j >> 2][j & 3][2 * r + 1] / den);
    }
}

/* With room for one page only (99 KB of shared memory) copies and products take turns. */
template <int F, bool HOPPER>
static mm_status mm_attn_full_launch(const mm_op_context *c, mm_attn_full_args a)
{
    const int n_tile = mm_row_tile_bound(a.rows.n_row, a.rows.n_seq, MM_FULL_ROWS / a.pad);
    const size_t one = sizeof(mm_attn_full_smem), two = one + 2 * MM_TILE_PAGE_BYTES;
    a.n_stage = two + 1024 <= (size_t)mm_cuda_of(c)->smem_max ? 2 : 1;
    return mm_launch(c, "attn_full", mm_attn_full_kernel<F, HOPPER>,
                     dim3((unsigned)n_tile, (unsigned)a.n_group), dim3(MM_TILE_THREADS),
                     a.n_stage == 2 ? two : one, a);
}

#endif
