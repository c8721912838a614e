/* attn_decode.cu: attention of few rows. One block computes the partial of one page (sparse) or of
 * a few consecutive pages (dense) of one row and KV head, and the block that arrives last merges a
 * row's partials in ascending order. Which pages make a partial depends on the row's position and
 * the shape only.
 *
 * Sparse: grid (n_top_block, KV heads, rows); every block chooses the row's blocks itself, from
 * scores of index_decode.cu, and takes the one at its place. Dense: a persistent grid over (row, KV
 * head, pieces). */
#include "kernels/cuda/attn_decode.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/decode_work.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/topk.h"

#define MAX_PIECES 256                    /* of a row and KV head in the dense kernel */
#define SCRATCH_BYTES ((int64_t)64 << 20) /* what scores, and partials, of one launch may take */

/* The step, and the rows [first, first + n_row) of one launch. */
typedef struct decode_view {
    const int32_t *page_table, *row_start, *row_seq, *slot, *pos;
    int32_t page_stride, first, n_row, n_all_row;
    int32_t n_head, n_kv_head, group;
    bool is_single; /* row t is sequence t */
    const uint16_t *q;
    uint16_t *o;
    float *acc;
    float2 *stat;
    uint32_t *counter;
} decode_view;

MM_DEV_FN int view_seq(const decode_view &v, int t)
{
    return v.is_single ? t : v.row_seq[t];
}

/* ---------------------------------------------------------------- sparse */

typedef struct sparse_params {
    decode_view v;
    mm_plane k, vp;
    const float *score; /* [n_row, I, stride]; NULL where no row needs one */
    int32_t stride, n_top_block, n_init_block;
    int16_t *blocks;
    int64_t *n_read;
    bool force;
} sparse_params;

/* Shared memory: V and the general choice share the front; scratch of the page; scores and pages of
 * a row with few blocks. */
template <int W> static constexpr __host__ __device__ int few_bytes()
{
    return 32 * W * 12 + 128;
}
static size_t sparse_smem(int tile_bytes, int NT, int W, const mm_op_shape *s, int32_t max_block)
{
    const size_t choose = mm_choose_bytes(s->n_top_block, max_block, 32 * W);
    const size_t front = choose > (size_t)tile_bytes ? choose : (size_t)tile_bytes;
    return (front + 15) / 16 * 16 + (size_t)mm_page_scratch(NT) + MM_CACHE_LUT_BYTES +
           (size_t)((W == 4 ? few_bytes<4>() : few_bytes<8>()) + mm_query_bytes(NT)) + 256;
}

/* The chosen blocks of row t and head g into chosen [MM_TOPK_MAX]; their number, -1: a NaN score.
 */
template <int W>
MM_DEV_FN int choose(const sparse_params &p, int r, int g, int local, uint8_t *smem,
                     int16_t *chosen, int thread)
{
    if (!p.force) {
        const float *score =
            p.score == nullptr ? nullptr : p.score + ((int64_t)r * p.v.n_kv_head + g) * p.stride;
        return mm_choose_blocks<32 * W>(score, local, p.n_top_block, p.n_init_block, smem, chosen,
                                        thread);
    }
    const int64_t at = ((int64_t)g * p.v.n_all_row + p.v.first + r) * p.n_top_block;
    if (thread < p.n_top_block)
        chosen[thread] = p.blocks[at + thread];
    __syncthreads();
    int n = 0;
    while (n < p.n_top_block && chosen[n] >= 0 && chosen[n] <= local)
        n++;
    return n;
}

/* A NaN score of any head spoils the row. */
MM_DEV_FN bool other_heads_nan(const sparse_params &p, int r, int g, int local, int thread,
                               int n_thread)
{
    if (p.force || p.v.n_kv_head == 1 || local < p.n_top_block)
        return false;
    bool is_nan = false;
    for (int h = 0; h < p.v.n_kv_head; h++) {
        const float *score = p.score + ((int64_t)r * p.v.n_kv_head + h) * p.stride;
        for (int b = thread; b < local && h != g; b += n_thread)
            is_nan |= score[b] != score[b];
    }
    return __syncthreads_or(is_nan);
}

/* Blocks of the kernel that an SM should hold, which bounds registers. */
static constexpr int sparse_resident(int F, int NT, int W)
{
    return W == 8 ? 2 : F == MM_CACHE_BF16 ? 3 : NT == 1 ? 8 : 5;
}

/* W = 8 warps where the grid leaves SMs empty, W = 4 where many blocks share one; the bits are the
 * same. */
template <int F, int NT, int W>
static __global__ void __launch_bounds__(32 * W, sparse_resident(F, NT, W))
    attn_sparse_decode_kernel(const sparse_params p, const int front_bytes)
{
    constexpr int n_thread = 32 * W, M = 8 / W;
    const decode_view &v = p.v;
    const int thread = (int)threadIdx.x, place = (int)blockIdx.x, g = (int)blockIdx.y;
    const int lane = thread % 32, warp = thread / 32;
    const int r = (int)blockIdx.z, t = v.first + r;
    uint8_t *v_tile = mm_smem(), *scratch = v_tile + front_bytes;
    uint2 *lut = (uint2 *)(scratch + mm_page_scratch(NT));
    int *few_page = (int *)(lut + MM_CACHE_LUT_BYTES / 8); /* [n_thread] */
    uint8_t *few = (uint8_t *)(few_page + n_thread), *query = (uint8_t *)few_page + few_bytes<W>();
    int16_t *chosen = (int16_t *)(query + mm_query_bytes(NT));
    int *flag = (int *)(chosen + MM_TOPK_MAX);

    if (F == MM_CACHE_NVFP4)
        mm_cache_lut_fill(lut, thread, n_thread);
    mm_pdl_wait();
    mm_pdl_trigger();
    /* what depends on nothing first: position, slot, this thread's score, the query */
    const int pos = v.pos[t], slot = v.slot[view_seq(v, t)];
    const bool is_here = p.score != nullptr && thread < p.stride;
    const float score =
        is_here ? p.score[((int64_t)r * v.n_kv_head + g) * p.stride + thread] : 0.0f;
    const int64_t head = (int64_t)t * v.n_head + g * v.group;
    const int32_t *table = v.page_table + (int64_t)slot * v.page_stride;
    const int local = pos / MM_PAGE;
    const bool is_few = !p.force && local < n_thread;
    if (is_few && thread <= local)
        few_page[thread] = table[thread];
    if (warp == W - 1) { /* the one with the least to do in the choice */
        mm_query<NT> q;
        mm_query_load<F, NT>(&q, v.q + head * MM_CACHE_DIM, v.group, lane);
        mm_query_store<NT>(q, query, lane);
    }

    int n = p.n_top_block, block = place, mine = thread, page = 0;
    bool is_chosen = thread <= local;
    if (!is_few) {
        n = choose<W>(p, r, g, local, v_tile, chosen, thread);
        block = n < 0 ? -1 : chosen[place];
    } else if (local < p.n_top_block) {
        n = local + 1;
        __syncthreads();
    } else {
        block = mm_choose_few<n_thread>(score, local, p.n_top_block, p.n_init_block, place, few,
                                        thread, &is_chosen, &mine);
        n = block < 0 ? -1 : n;
    }
    if (place == 0) {
        if (!p.force && p.blocks != nullptr) {
            int16_t *out = p.blocks + ((int64_t)g * v.n_all_row + t) * p.n_top_block;
            if (!is_few) {
                if (thread < p.n_top_block)
                    out[thread] = chosen[thread];
            } else if (n < 0) {
                if (thread < p.n_top_block)
                    out[thread] = (int16_t)(thread == 0 ? local : -1);
            } else {
                if (is_chosen)
                    out[mine] = (int16_t)thread;
                if (thread >= n && thread < p.n_top_block)
                    out[thread] = -1;
            }
        }
        if (p.n_read != nullptr && thread == n_thread - 1) {
            atomicAdd((unsigned long long *)p.n_read, (unsigned long long)(n < 0 ? 1 : n));
            atomicAdd((unsigned long long *)p.n_read + 1, (unsigned long long)local + 1);
        }
    }
    const bool is_nan = n < 0 || other_heads_nan(p, r, g, local, thread, n_thread);
    if (n <= 0 || is_nan) { /* a poisoned row, or no block at all (forced) */
        if (place == 0)
            mm_partial_fill(v.o + head * MM_CACHE_DIM, v.group, is_nan ? 0x7FFF7FFFu : 0u, thread,
                            n_thread);
        return;
    }
    if (place >= n)
        return;

    /* K straight to registers, V to shared memory, all on their way before anything waits */
    const int stop = min(MM_PAGE, pos + 1 - MM_PAGE * block);
    page = is_few ? few_page[block] : table[block];
    const int64_t key = mm_cache_row(p.k, page, g, 16 * M * warp + lane / 4);
    mm_raw_row<F> k[M][2];
#pragma unroll
    for (int m = 0; m < M; m++) {
        k[m][0] = mm_row_of_page<F>(p.k, key + 16 * m, lane % 4);
        k[m][1] = mm_row_of_page<F>(p.k, key + 16 * m + 8, lane % 4);
    }
    mm_tile_load<F, true, W>(v_tile, p.vp, mm_cache_row(p.vp, page, g, 0), stop, thread);
    mm_cp_async_commit();
    mm_query_shared<NT> q;
    mm_query_share<NT>(&q, query, lane);
    mm_partial<NT, W> x;
    mm_page_partial<F, NT, W>([&k](int m, int half) { return k[m][half]; }, v_tile, lut, q, 0, stop,
                              scratch, thread, &x, [] { mm_cp_async_wait<0>(); });

    const int64_t base = ((int64_t)r * v.n_kv_head + g) * p.n_top_block * v.group;
    float *acc = v.acc + base * MM_CACHE_DIM;
    float2 *stat = v.stat + base;
    mm_partial_store<NT, W>(x, v.group, acc + place * v.group * MM_CACHE_DIM,
                            stat + place * v.group, thread);
    if (mm_arrive_last(v.counter + r * v.n_kv_head + g, n, flag, thread))
        mm_partial_merge<W, W == 8 ? 16 : 8>(acc, stat, n, v.group, F == MM_CACHE_NVFP4,
                                             v.o + head * MM_CACHE_DIM, thread);
}

/* ---------------------------------------------------------------- dense */

typedef struct dense_params {
    decode_view v;
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
        const int i = view_seq(p.v, t);
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
            const float keep = expf(all->max[n][c] - max), add = expf(x.max[n][c] - max);
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
    const decode_view &v = p.v;
    const int thread = (int)threadIdx.x;
    uint8_t *tile = mm_smem(), *scratch = tile + 2 * tile_bytes * p.n_stage;
    uint2 *lut = (uint2 *)(scratch + mm_page_scratch(NT));
    int *flag = (int *)(lut + MM_CACHE_LUT_BYTES / 8), *prefix = flag + 4;

    if (F == MM_CACHE_NVFP4)
        mm_cache_lut_fill(lut, thread, MM_PAGE_THREADS);
    mm_pdl_wait();
    mm_pdl_trigger();
    mm_work_scan(prefix, v.n_row, thread,
                 [&p](int r) { return row_pieces(row_plan(p, r)) * p.v.n_kv_head; });
    const int n_unit = prefix[v.n_row];
    const int end = mm_work_first(n_unit, (int)blockIdx.x + 1, (int)gridDim.x);

    for (int u = mm_work_first(n_unit, (int)blockIdx.x, (int)gridDim.x); u < end; u++) {
        const int r = mm_work_find(prefix, v.n_row, u), t = v.first + r;
        const dense_row d = row_plan(p, r);
        const int n_piece = row_pieces(d), piece = (u - prefix[r]) % n_piece,
                  g = (u - prefix[r]) / n_piece;
        const int slot = v.slot[view_seq(v, t)], j0 = piece * d.share,
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
                                    v.o + head * MM_CACHE_DIM, thread);
    }
}

/* ---------------------------------------------------------------- host */

static int32_t max_blocks(const mm_op_shape *s)
{
    return (s->max_model_len + MM_PAGE - 1) / MM_PAGE;
}
static int32_t score_stride(const mm_op_shape *s)
{
    return (max_blocks(s) + 3) / 4 * 4;
}
static int32_t dense_pieces(const mm_op_shape *s) /* extra rows: at most max_rows */
{
    const int32_t n = max_blocks(s) + (s->max_rows + MM_PAGE - 1) / MM_PAGE;
    return n < MAX_PIECES ? n : MAX_PIECES;
}

/* Rows of one launch: what a row takes of scratch, times them, stays near SCRATCH_BYTES. */
static int32_t launch_rows(const mm_op_shape *s, int64_t row_bytes)
{
    const int64_t n = SCRATCH_BYTES / row_bytes, most = n > MM_WORK_MAX ? MM_WORK_MAX
                                                        : n < 1         ? 1
                                                                        : n;
    return (int32_t)(most < s->max_rows ? most : s->max_rows);
}
static int64_t partial_bytes(const mm_op_shape *s, int64_t n) /* n partials of every head of a row
                                                               */
{
    return n * s->n_head * (MM_CACHE_DIM + 2) * 4;
}
static int32_t sparse_rows(const mm_op_shape *s)
{
    const int64_t score = (int64_t)s->n_index_head * score_stride(s) * 4;
    const int64_t partial = partial_bytes(s, s->n_top_block);
    return launch_rows(s, score > partial ? score : partial);
}

size_t mm_cuda_attn_decode_scratch(const mm_op_shape *s)
{
    const int64_t dense = launch_rows(s, partial_bytes(s, dense_pieces(s)));
    const int64_t sparse = s->n_index_head > 0 ? sparse_rows(s) : 0;
    const size_t a = mm_cuda_size((size_t)(sparse * s->n_index_head * score_stride(s) * 4)) +
                     mm_cuda_size((size_t)(sparse * partial_bytes(s, s->n_top_block))) + 256;
    const size_t b = mm_cuda_size((size_t)(dense * partial_bytes(s, dense_pieces(s)))) + 256;
    return a > b ? a : b;
}

static mm_status check(const mm_op_context *c, const mm_layer_cache *cache)
{
    const mm_op_shape *s = c->shape;
    const mm_cuda *b = mm_cuda_of(c);
    const int32_t group = s->n_head / s->n_kv_head;
    if (s->head_dim != MM_CACHE_DIM)
        return MM_CUDA_FAIL(b, MM_E_UNSUPPORTED,
                            "cuda: head_dim %d, only 128 is taken; use the cpu backend",
                            s->head_dim);
    if (group > 16)
        return MM_CUDA_FAIL(
            b, MM_E_UNSUPPORTED,
            "cuda: %d query heads share a KV head, at most 16 are taken; use the cpu "
            "backend",
            group);
    if (s->n_top_block > MM_TOPK_MAX)
        return MM_CUDA_FAIL(b, MM_E_UNSUPPORTED,
                            "cuda: n_top_block %d, at most 64 are taken; use the cpu backend",
                            s->n_top_block);
    if ((int64_t)MM_WORK_MAX * s->n_kv_head > MM_CUDA_COUNTERS)
        return MM_CUDA_FAIL(b, MM_E_UNSUPPORTED,
                            "cuda: %d KV heads on one rank, at most %d are taken; use more ranks",
                            s->n_kv_head, MM_CUDA_COUNTERS / MM_WORK_MAX);
    if (cache->k.format != cache->v.format)
        return MM_CUDA_FAIL(b, MM_E_INVALID,
                            "cuda: the K and V planes of a layer differ in format");
    return MM_OK;
}

/* Everything but the rows of a launch. n: partials of a row and KV head. */
static mm_status open_view(const mm_op_context *c, const mm_seq_view *seq, const void *q, void *o,
                           int32_t rows, int64_t n, decode_view *v)
{
    const mm_op_shape *s = c->shape;
    const size_t heads = (size_t)rows * (size_t)n * (size_t)s->n_head;
    void *partials;
    MM_TRY(mm_cuda_take(c, heads * (MM_CACHE_DIM + 2) * 4, &partials));
    *v = decode_view{};
    v->page_table = seq->slots->page_table;
    v->page_stride = seq->slots->page_stride;
    v->row_start = seq->row_start;
    v->row_seq = seq->row_seq;
    v->slot = seq->slot;
    v->pos = seq->pos;
    v->n_all_row = seq->n_row;
    v->n_head = s->n_head;
    v->n_kv_head = s->n_kv_head;
    v->group = s->n_head / s->n_kv_head;
    v->is_single = seq->n_row == seq->n_seq;
    v->q = (const uint16_t *)q;
    v->o = (uint16_t *)o;
    v->acc = (float *)partials;
    v->stat = (float2 *)(v->acc + heads * MM_CACHE_DIM);
    v->counter = c->stream->counter;
    return MM_OK;
}

static mm_status too_large(const mm_cuda *b, size_t smem)
{
    return MM_CUDA_FAIL(
        b, MM_E_UNSUPPORTED,
        "cuda: attention needs %zu bytes of shared memory, this device has %d; use an fp8 "
        "cache",
        smem, b->smem_max);
}

template <int F, int NT, int W>
static mm_status launch_sparse(const mm_op_context *c, const sparse_params *p)
{
    const mm_cuda *b = mm_cuda_of(c);
    const size_t smem = sparse_smem(mm_tile_bytes<F>(), NT, W, c->shape, max_blocks(c->shape));
    const int front = (int)(smem - (size_t)(mm_page_scratch(NT) + MM_CACHE_LUT_BYTES +
                                            few_bytes<W>() + mm_query_bytes(NT) + 256));
    if (smem > (size_t)b->smem_max)
        return too_large(b, smem);
    return mm_launch(c, "attn_sparse_decode", attn_sparse_decode_kernel<F, NT, W>,
                     dim3((unsigned)p->n_top_block, (unsigned)p->v.n_kv_head, (unsigned)p->v.n_row),
                     dim3(32 * W), smem, *p, front);
}
template <int F>
static mm_status launch_sparse_group(const mm_op_context *c, const sparse_params *p)
{
    const int64_t n_block = (int64_t)p->n_top_block * p->v.n_kv_head * p->v.n_row;
    if (n_block <= 2 * (int64_t)mm_cuda_of(c)->n_sm)
        return p->v.group <= 8 ? launch_sparse<F, 1, 8>(c, p) : launch_sparse<F, 2, 8>(c, p);
    return p->v.group <= 8 ? launch_sparse<F, 1, 4>(c, p) : launch_sparse<F, 2, 4>(c, p);
}

mm_status mm_cuda_attn_sparse_decode(const mm_op_context *c, const mm_seq_view *seq,
                                     const mm_attn_sparse_args *a)
{
    const mm_op_shape *s = c->shape;
    const mm_cuda *b = mm_cuda_of(c);
    const int32_t rows = sparse_rows(s);
    sparse_params p = {};
    void *score;
    mm_cuda_start(c);
    MM_TRY(check(c, a->cache));
    if (s->n_index_head != s->n_kv_head)
        return MM_CUDA_FAIL(
            b, MM_E_UNSUPPORTED,
            "cuda: %d index heads with %d KV heads, they must be as many; use the cpu "
            "backend",
            s->n_index_head, s->n_kv_head);
    if (a->force && a->blocks == nullptr)
        return MM_CUDA_FAIL(b, MM_E_INVALID, "attn_sparse: forced blocks are missing");
    MM_TRY(open_view(c, seq, a->q, a->o, rows, s->n_top_block, &p.v));
    MM_TRY(mm_cuda_take(c, (size_t)rows * (size_t)s->n_index_head * (size_t)score_stride(s) * 4,
                        &score));
    p.k = a->cache->k;
    p.vp = a->cache->v;
    p.stride = score_stride(s);
    p.n_top_block = s->n_top_block;
    p.n_init_block = s->n_init_block;
    p.blocks = a->blocks;
    p.n_read = a->n_read;
    p.force = a->force;
    /* some row may have more blocks than it reads */
    const bool need_score = !a->force && (seq->max_pos - 1) / MM_PAGE + 1 > s->n_top_block;
    p.score = need_score ? (const float *)score : nullptr;
    for (p.v.first = 0; p.v.first < seq->n_row; p.v.first += rows) {
        const int32_t left = seq->n_row - p.v.first;
        p.v.n_row = left < rows ? left : rows;
        if (need_score)
            MM_TRY(mm_cuda_index_decode(c, seq, &a->cache->ik, a->iq, p.v.first, p.v.n_row,
                                        (float *)score, p.stride));
        MM_CACHE_DISPATCH(b, a->cache->k.format, launch_sparse_group<F>(c, &p));
    }
    return MM_OK;
}

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
        return too_large(b, smem);
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
    const int32_t n_piece = dense_pieces(s), rows = launch_rows(s, partial_bytes(s, n_piece));
    dense_params p = {};
    mm_cuda_start(c);
    MM_TRY(check(c, a->cache));
    if (a->extra_k != nullptr && (a->extra_v == nullptr || a->n_ctx == nullptr))
        return MM_CUDA_FAIL(b, MM_E_INVALID, "attn_dense: extra keys need extra_v and n_ctx");
    MM_TRY(open_view(c, seq, a->q, a->o, rows, n_piece, &p.v));
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
