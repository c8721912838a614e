/* attn_decode_dense.cu: dense attention of few rows, or of a window. A persistent grid over (row,
 * KV head, pieces of a row): a piece is a few consecutive pages, and the block that arrives last
 * merges a row's pieces in ascending order. Which pages make a piece depends on the row's position
 * and the shape only. */
#include "kernels/cuda/attn_decode_host.h"

typedef struct dense_params {
    mm_decode_view v;
    mm_plane k, vp;
    int32_t window, n_piece, n_stage; /* n_piece: most pieces of a row */
    const uint16_t *extra_k, *extra_v;
    const int32_t *n_ctx;
} dense_params;

/* What a row sees: pages first .. first + n_page - 1, then pieces of 128 extra rows. */
typedef struct dense_row {
    int32_t low, held;             /* positions of the pages that are visible: [low, held) */
    int32_t first, n_page, n_tile; /* n_tile: pages and extra pieces */
    int32_t extra, n_extra;        /* first extra row of the step, their number */
    int32_t share;                 /* tiles of a piece */
} dense_row;

MM_DEV_FN dense_row row_plan(const dense_params &p, int r)
{
    const int t = p.v.first + r, pos = p.v.pos[t];
    dense_row d;
    d.low = p.window > 0 ? max(0, pos - p.window + 1) : 0;
    d.held = pos + 1;
    d.extra = d.n_extra = 0;
    if (p.extra_k != nullptr) {
        const int i = mm_view_seq(p.v, t);
        d.held = p.n_ctx[i];
        d.extra = p.v.row_start[i];
        d.n_extra = p.v.row_start[i + 1] - d.extra;
    }
    d.first = d.low / MM_PAGE;
    d.n_page = max(0, (d.held + MM_PAGE - 1) / MM_PAGE - d.first);
    d.n_tile = d.n_page + (d.n_extra + MM_PAGE - 1) / MM_PAGE;
    d.share = (d.n_tile + p.n_piece - 1) / p.n_piece;
    return d;
}
MM_DEV_FN int row_pieces(const dense_row &d)
{
    return (d.n_tile + d.share - 1) / d.share;
}

/* Keys [*start, *stop) of tile j of a row are visible; *held: keys that the tile holds. */
MM_DEV_FN void tile_range(const dense_params &p, const dense_row &d, int r, int j, int *start,
                          int *stop)
{
    if (j < d.n_page) {
        const int base = (d.first + j) * MM_PAGE;
        *start = max(0, d.low - base);
        *stop = min(MM_PAGE, d.held - base);
    } else {
        const int e = (j - d.n_page) * MM_PAGE;
        const int pos = p.v.pos[p.v.first + r], base = p.v.pos[d.extra + e];
        *start = p.window > 0 ? max(0, pos - p.window + 1 - base) : 0;
        *stop = min(MM_PAGE, d.n_extra - e);
    }
}

/* Begins to bring tile j: two groups of copies, K and V. */
template <int F>
MM_DEV_FN void tile_begin(const dense_params &p, const dense_row &d, int r, int g, int slot, int j,
                          uint8_t *k_tile, uint8_t *v_tile, int thread)
{
    int start, stop;
    tile_range(p, d, r, j, &start, &stop);
    if (j < d.n_page) {
        const int page = p.v.page_table[(int64_t)slot * p.v.page_stride + d.first + j];
        mm_tile_load<F, false>(k_tile, p.k, mm_cache_row(p.k, page, g, 0), stop, thread);
        mm_cp_async_commit();
        mm_tile_load<F, true>(v_tile, p.vp, mm_cache_row(p.vp, page, g, 0), stop, thread);
        mm_cp_async_commit();
        return;
    }
    const int e = d.extra + (j - d.n_page) * MM_PAGE, lane = thread % 32;
    for (int row = thread / 32; row < MM_PAGE; row += MM_PAGE_THREADS / 32) {
        float k[4] = {0.0f, 0.0f, 0.0f, 0.0f}, x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (row < stop) {
            const int64_t at = ((int64_t)(e + row) * p.v.n_kv_head + g) * MM_CACHE_DIM + 4 * lane;
            const uint2 a = *(const uint2 *)(p.extra_k + at), b = *(const uint2 *)(p.extra_v + at);
            k[0] = mm_bf16_lo(a.x), k[1] = mm_bf16_hi(a.x), k[2] = mm_bf16_lo(a.y);
            k[3] = mm_bf16_hi(a.y), x[0] = mm_bf16_lo(b.x), x[1] = mm_bf16_hi(b.x);
            x[2] = mm_bf16_lo(b.y), x[3] = mm_bf16_hi(b.y);
        }
        mm_tile_store<F, false>(k_tile, row, lane, k);
        mm_tile_store<F, true>(v_tile, row, lane, x);
    }
    mm_cp_async_commit();
    mm_cp_async_commit();
}

/* all += x, both maxima brought to the larger one. */
template <int NT> MM_DEV_FN void partial_add(mm_partial<NT> *all, const mm_partial<NT> &x)
{
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const float max = fmaxf(all->max[n][c], x.max[n][c]);
            const float keep = mm_exp2(all->max[n][c] - max), add = mm_exp2(x.max[n][c] - max);
            all->max[n][c] = max;
            all->den[n][c] = all->den[n][c] * keep + x.den[n][c] * add;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                all->acc[n][i][c] = all->acc[n][i][c] * keep + x.acc[n][i][c] * add;
                all->acc[n][i][c + 2] = all->acc[n][i][c + 2] * keep + x.acc[n][i][c + 2] * add;
            }
        }
    }
}

static size_t dense_smem(int tile_bytes, int NT, int n_stage, int32_t n_row)
{
    return 2 * (size_t)tile_bytes * (size_t)n_stage + (size_t)mm_page_scratch(NT) +
           MM_CACHE_LUT_BYTES + 16 + mm_work_bytes(n_row);
}

template <int F, int NT>
static __global__ void __launch_bounds__(MM_PAGE_THREADS, NT == 1 ? 4 : 3)
    attn_dense_decode_kernel(const dense_params p)
{
    constexpr int tile_bytes = mm_tile_bytes<F>();
    const mm_decode_view &v = p.v;
    const int thread = (int)threadIdx.x;
    uint8_t *tile = mm_smem(), *scratch = tile + 2 * tile_bytes * p.n_stage;
    uint2 *lut = (uint2 *)(scratch + mm_page_scratch(NT));
    int *flag = (int *)(lut + MM_CACHE_LUT_BYTES / 8), *prefix = flag + 4;

    if (F == MM_CACHE_NVFP4)
        mm_cache_lut_fill(lut, thread, MM_PAGE_THREADS);
    mm_work_scan(prefix, v.n_row, thread,
                 [&p](int r) { return row_pieces(row_plan(p, r)) * p.v.n_kv_head; });
    mm_pdl_wait(); /* what came before it was written by the step's expand */
    mm_pdl_trigger();
    const int n_unit = prefix[v.n_row];
    const int end = mm_work_first(n_unit, (int)blockIdx.x + 1, (int)gridDim.x);

    for (int u = mm_work_first(n_unit, (int)blockIdx.x, (int)gridDim.x); u < end; u++) {
        const int r = mm_work_find(prefix, v.n_row, u), t = v.first + r;
        const dense_row d = row_plan(p, r);
        const int n_piece = row_pieces(d), piece = (u - prefix[r]) % n_piece,
                  g = (u - prefix[r]) / n_piece;
        const int slot = v.slot[mm_view_seq(v, t)], j0 = piece * d.share,
                  j1 = min(d.n_tile, j0 + d.share);
        const int64_t head = (int64_t)t * v.n_head + g * v.group;
        mm_query<NT> q;
        mm_query_load<F, NT>(&q, v.q + head * MM_CACHE_DIM, v.group, thread % 32);
        mm_partial<NT> all;
#pragma unroll
        for (int i = 0; i < NT; i++) {
            all.max[i][0] = all.max[i][1] = -INFINITY;
            all.den[i][0] = all.den[i][1] = 0.0f;
#pragma unroll
            for (int j = 0; j < 8; j++)
                all.acc[i][j / 4][j % 4] = 0.0f;
        }
        __syncthreads(); /* the unit before has left the tiles */
        if (p.n_stage == 2)
            tile_begin<F>(p, d, r, g, slot, j0, tile, tile + tile_bytes, thread);
        for (int j = j0; j < j1; j++) {
            const int next = j + p.n_stage - 1;
            uint8_t *mine = tile + 2 * tile_bytes * ((j - j0) % p.n_stage);
            __syncthreads();
            if (next < j1) {
                uint8_t *at = tile + 2 * tile_bytes * ((next - j0) % p.n_stage);
                tile_begin<F>(p, d, r, g, slot, next, at, at + tile_bytes, thread);
            } else {
                mm_cp_async_commit();
                mm_cp_async_commit();
            }
            if (p.n_stage == 2)
                mm_cp_async_wait<3>();
            else
                mm_cp_async_wait<1>();
            __syncthreads();
            int start, stop;
            tile_range(p, d, r, j, &start, &stop);
            if (start >= stop)
                continue;
            const bool is_two = p.n_stage == 2;
            mm_partial<NT> x;
            const auto row = [mine, thread](int m, int half) {
                const int key = 32 * (thread / 32) + 16 * m + 8 * half + thread % 32 / 4;
                return mm_row_of_tile<F>(mine, key, thread % 4);
            };
            mm_page_partial<F, NT, 4>(row, mine + tile_bytes, lut, q, start, stop, scratch, thread,
                                      &x, [is_two] {
                                          if (is_two)
                                              mm_cp_async_wait<2>();
                                          else
                                              mm_cp_async_wait<0>();
                                      });
            partial_add<NT>(&all, x);
        }
        mm_cp_async_wait<0>();
        const int64_t base = ((int64_t)r * v.n_kv_head + g) * p.n_piece * v.group;
        float *acc = v.acc + base * MM_CACHE_DIM;
        float2 *stat = v.stat + base;
        mm_partial_store<NT, 4>(all, v.group, acc + (int64_t)piece * v.group * MM_CACHE_DIM,
                                stat + piece * v.group, thread);
        if (mm_arrive_last(v.counter + r * v.n_kv_head + g, n_piece, flag, thread))
            mm_partial_merge<4, 16>(acc, stat, n_piece, v.group, F == MM_CACHE_NVFP4,
                                    v.o + head * MM_CACHE_DIM, tile, thread);
    }
}

/* ---------------------------------------------------------------- host */

template <int F, int NT> static mm_status launch_dense(const mm_op_context *c, dense_params *p)
{
    const mm_cuda *b = mm_cuda_of(c);
    const size_t room = (size_t)b->smem_max;
    p->n_stage = 2;
    size_t smem = dense_smem(mm_tile_bytes<F>(), NT, p->n_stage, p->v.n_row);
    if (smem > room) {
        p->n_stage = 1;
        smem = dense_smem(mm_tile_bytes<F>(), NT, p->n_stage, p->v.n_row);
    }
    if (smem > room)
        return mm_decode_too_large(b, smem);
    const int32_t resident = (int32_t)((room + 1024) / (smem + 1024)); /* 1 KB a block is the
                                                                          system's */
    const int32_t per_sm = resident > 4 ? 4 : resident;
    return mm_launch(c, "attn_dense_decode", attn_dense_decode_kernel<F, NT>,
                     dim3((unsigned)(b->n_sm * per_sm)), dim3(MM_PAGE_THREADS), smem, *p);
}
template <int F> static mm_status launch_dense_group(const mm_op_context *c, dense_params *p)
{
    return p->v.group <= 8 ? launch_dense<F, 1>(c, p) : launch_dense<F, 2>(c, p);
}

mm_status mm_cuda_attn_dense_decode(const mm_op_context *c, const mm_seq_view *seq,
                                    const mm_attn_dense_args *a)
{
    const mm_op_shape *s = c->shape;
    const mm_cuda *b = mm_cuda_of(c);
    const int32_t n_piece = mm_dense_pieces(s),
                  rows = mm_decode_rows(s, mm_partial_bytes(s, n_piece));
    dense_params p = {};
    mm_cuda_start(c);
    MM_TRY(mm_decode_check(c, a->cache));
    if (a->extra_k != nullptr && (a->extra_v == nullptr || a->n_ctx == nullptr))
        return MM_CUDA_FAIL(b, MM_E_INVALID, "attn_dense: extra keys need extra_v and n_ctx");
    MM_TRY(mm_decode_open(c, seq, a->q, a->o, rows, n_piece, &p.v));
    p.k = a->cache->k;
    p.vp = a->cache->v;
    p.window = a->window;
    p.n_piece = n_piece;
    p.extra_k = (const uint16_t *)a->extra_k;
    p.extra_v = (const uint16_t *)a->extra_v;
    p.n_ctx = a->n_ctx;
    for (p.v.first = 0; p.v.first < seq->n_row; p.v.first += rows) {
        const int32_t left = seq->n_row - p.v.first;
        p.v.n_row = left < rows ? left : rows;
        MM_CACHE_DISPATCH(b, a->cache->k.format, launch_dense_group<F>(c, &p));
    }
    return MM_OK;
}
