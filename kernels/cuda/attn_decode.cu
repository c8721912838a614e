/* attn_decode.cu: sparse attention of few rows. One block computes the partials of one or two pages
 * of one row and KV head, and the block that arrives last merges a row's partials in ascending
 * order. Partials are one page each, always.
 *
 * Grid (rows, KV heads, places): every block chooses the row's blocks itself, from scores of
 * index_decode.cu, and takes those at its place. Rows come first: the blocks that start last, which
 * mostly are those that arrive last and merge, then lie on as many SMs as there are rows, not on
 * the few that a period of n_top_block would give. */
#include "kernels/cuda/attn_decode_host.h"

typedef struct sparse_params {
    mm_decode_view v;
    mm_plane k, vp;
    const float *score; /* [n_row, I, stride]; NULL where no row needs one */
    int32_t stride, n_top_block, n_init_block;
    int16_t *blocks;
    int64_t *n_read;
    bool force;
} sparse_params;

/* Shared memory: tiles of V and the general choice share the front; scratch of the page; scores and
 * pages of a row with few blocks. */
template <int W> static constexpr __host__ __device__ int few_bytes()
{
    return 32 * W * 4 + mm_few_bytes(32 * W);
}
static size_t sparse_smem(int tile_bytes, int NT, int W, int P, const mm_op_shape *s,
                          int32_t max_block)
{
    const size_t choose = mm_choose_bytes(s->n_top_block, max_block, 32 * W);
    const size_t tiles = (size_t)(P * tile_bytes), front = choose > tiles ? choose : tiles;
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
    return W == 8 ? 2 : F == MM_CACHE_BF16 || NT == 2 ? 3 : 4;
}

/* While scores are made memory idles: where all pages that can be chosen are few, they come to the
 * L2 cache meanwhile. */
#define PREFETCH_PAGES 96
template <int F>
MM_DEV_FN void prefetch_pages(const sparse_params &p, int g, const int32_t *table, int place,
                              int local, int thread, int n_thread)
{
    constexpr int n_line = MM_PAGE * mm_cache_codes<F>() / 128;
#pragma unroll 1
    for (int b = place; b <= local; b += p.n_top_block) {
        const int page = table[b];
        const uint8_t *k = mm_cache_data<F>(p.k, mm_cache_row(p.k, page, g, 0));
        const uint8_t *x = mm_cache_data<F>(p.vp, mm_cache_row(p.vp, page, g, 0));
        for (int i = thread; i < 2 * n_line; i += n_thread)
            mm_prefetch_l2(i < n_line ? k + 128 * i : x + 128 * (i - n_line));
    }
}

/* P pages a block, all on their way at once, W warps. W = 8 where the grid leaves SMs empty, W = 4
 * where blocks share one, P = 2 where they are many: half the choices. The bits are the same. */
template <int F, int NT, int W, int P>
static __global__ void __launch_bounds__(32 * W, sparse_resident(F, NT, W))
    attn_sparse_decode_kernel(const sparse_params p, const int front_bytes)
{
    constexpr int n_thread = 32 * W, M = 8 / W;
    const mm_decode_view &v = p.v;
    const int thread = (int)threadIdx.x, place = P * (int)blockIdx.z, g = (int)blockIdx.y;
    const int lane = thread % 32, warp = thread / 32;
    const int r = (int)blockIdx.x, t = v.first + r;
    uint8_t *v_tile = mm_smem(), *scratch = v_tile + front_bytes;
    uint2 *lut = (uint2 *)(scratch + mm_page_scratch(NT));
    int *few_page = (int *)(lut + MM_CACHE_LUT_BYTES / 8); /* [n_thread] */
    uint8_t *few = (uint8_t *)(few_page + n_thread), *query = (uint8_t *)few_page + few_bytes<W>();
    int16_t *chosen = (int16_t *)(query + mm_query_bytes(NT));
    int *flag = (int *)(chosen + MM_TOPK_MAX);

    if (F == MM_CACHE_NVFP4)
        mm_cache_lut_fill(lut, thread, n_thread);
    /* With scores the kernel before this one is index_decode.cu's, which writes nothing else and
     * triggers behind its own wait, so all before it have ended: positions, page tables, queries, K
     * and V are there, only the scores have to be waited for. */
    const bool is_early = p.score != nullptr;
    if (!is_early) {
        mm_pdl_wait();
        mm_pdl_trigger();
    }
    const int pos = v.pos[t], slot = v.slot[mm_view_seq(v, t)];
    const int64_t head = (int64_t)t * v.n_head + g * v.group;
    const int32_t *table = v.page_table + (int64_t)slot * v.page_stride;
    const int local = pos / MM_PAGE;
    const bool is_few = !p.force && local < n_thread;
    if (is_few && thread <= local)
        few_page[thread] = table[thread];
    mm_query_store<F, NT, W>(v.q + head * MM_CACHE_DIM, v.group, query, thread);
    if (W == 8 && is_early && is_few && v.n_row * v.n_kv_head * (local + 1) <= PREFETCH_PAGES)
        prefetch_pages<F>(p, g, table, place, local, thread, n_thread);
    float score = 0.0f;
    if (is_early) {
        mm_pdl_wait();
        mm_pdl_trigger();
        if (is_few && local >= p.n_top_block && thread < local) /* else no score was written */
            score = p.score[((int64_t)r * v.n_kv_head + g) * p.stride + thread];
    }

    int n = p.n_top_block, mine = thread, block[P];
    bool is_chosen = thread <= local;
#pragma unroll
    for (int j = 0; j < P; j++)
        block[j] = place + j;
    if (!is_few) {
        n = choose<W>(p, r, g, local, v_tile, chosen, thread);
#pragma unroll
        for (int j = 0; j < P; j++)
            block[j] = chosen[min(place + j, p.n_top_block - 1)];
    } else if (local < p.n_top_block) {
        n = local + 1;
        __syncthreads();
    } else if (!mm_choose_few<n_thread, P>(score, local, p.n_top_block, p.n_init_block, place, few,
                                           thread, block, &is_chosen, &mine)) {
        n = -1;
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

    /* K straight to registers, V to shared memory, all on their way before anything waits, in the
     * order of use (a page that is not there: the first once more) */
    int page[P];
    mm_raw_row<F> k[P][M][2];
#pragma unroll
    for (int j = 0; j < P; j++) {
        if (j > 0 && place + j >= n)
            block[j] = block[0];
        page[j] = is_few ? few_page[block[j]] : table[block[j]];
    }
#pragma unroll
    for (int j = 0; j < P; j++) {
        const int64_t key = mm_cache_row(p.k, page[j], g, 16 * M * warp + lane / 4);
#pragma unroll
        for (int m = 0; m < M; m++) {
            k[j][m][0] = mm_row_of_page<F>(p.k, key + 16 * m, lane % 4);
            k[j][m][1] = mm_row_of_page<F>(p.k, key + 16 * m + 8, lane % 4);
        }
        __syncwarp(); /* keeps the order */
        mm_tile_load<F, true, W>(v_tile + j * mm_tile_bytes<F>(), p.vp,
                                 mm_cache_row(p.vp, page[j], g, 0), pos + 1 - MM_PAGE * block[j],
                                 thread);
        mm_cp_async_commit();
        __syncwarp();
    }
    mm_query_shared<NT> q;
    mm_query_share<NT>(&q, query, lane);
    const int64_t base = ((int64_t)r * v.n_kv_head + g) * p.n_top_block * v.group;
    float *acc = v.acc + base * MM_CACHE_DIM;
    float2 *stat = v.stat + base;
#pragma unroll 1
    for (int j = 0; j < P && place + j < n; j++) {
        mm_partial<NT, W> x;
        const bool is_last = j + 1 == P;
        mm_page_partial<F, NT, W>([&k](int m, int half) { return k[0][m][half]; },
                                  v_tile + j * mm_tile_bytes<F>(), lut, q, 0,
                                  min(MM_PAGE, pos + 1 - MM_PAGE * block[0]), scratch, thread, &x,
                                  [is_last] {
                                      if (is_last)
                                          mm_cp_async_wait<0>();
                                      else
                                          mm_cp_async_wait<1>();
                                  });
        mm_partial_store<NT, W>(x, v.group, acc + (place + j) * v.group * MM_CACHE_DIM,
                                stat + (place + j) * v.group, thread);
        block[0] = block[P - 1];
#pragma unroll
        for (int m = 0; m < M; m++) {
            k[0][m][0] = k[P - 1][m][0];
            k[0][m][1] = k[P - 1][m][1];
        }
    }
    if (mm_arrive_last(v.counter + r * v.n_kv_head + g, (n + P - 1) / P, flag, thread))
        mm_partial_merge<W, 16>(acc, stat, n, v.group, F == MM_CACHE_NVFP4,
                                v.o + head * MM_CACHE_DIM, v_tile, thread);
}

/* ---------------------------------------------------------------- host */

static int32_t score_stride(const mm_op_shape *s)
{
    return (mm_decode_blocks(s) + 3) / 4 * 4;
}
static int32_t sparse_rows(const mm_op_shape *s)
{
    const int64_t score = (int64_t)s->n_index_head * score_stride(s) * 4;
    const int64_t partial = mm_partial_bytes(s, s->n_top_block);
    return mm_decode_rows(s, score > partial ? score : partial);
}

size_t mm_cuda_attn_decode_scratch(const mm_op_shape *s)
{
    const int64_t dense = mm_decode_rows(s, mm_partial_bytes(s, mm_dense_pieces(s)));
    const int64_t sparse = s->n_index_head > 0 ? sparse_rows(s) : 0;
    const size_t a = mm_cuda_size((size_t)(sparse * s->n_index_head * score_stride(s) * 4)) +
                     mm_cuda_size((size_t)(sparse * mm_partial_bytes(s, s->n_top_block))) + 256;
    const size_t b = mm_cuda_size((size_t)(dense * mm_partial_bytes(s, mm_dense_pieces(s)))) + 256;
    return a > b ? a : b;
}

template <int F, int NT, int W, int P>
static mm_status launch_sparse(const mm_op_context *c, const sparse_params *p)
{
    const mm_cuda *b = mm_cuda_of(c);
    const size_t smem =
        sparse_smem(mm_tile_bytes<F>(), NT, W, P, c->shape, mm_decode_blocks(c->shape));
    const int front = (int)(smem - (size_t)(mm_page_scratch(NT) + MM_CACHE_LUT_BYTES +
                                            few_bytes<W>() + mm_query_bytes(NT) + 256));
    if (smem > (size_t)b->smem_max)
        return mm_decode_too_large(b, smem);
    return mm_launch(c, "attn_sparse_decode", attn_sparse_decode_kernel<F, NT, W, P>,
                     dim3((unsigned)p->v.n_row, (unsigned)p->v.n_kv_head,
                          (unsigned)((p->n_top_block + P - 1) / P)),
                     dim3(32 * W), smem, *p, front);
}
template <int F, int NT>
static mm_status launch_sparse_pages(const mm_op_context *c, const sparse_params *p)
{
    const int64_t n_page = (int64_t)p->n_top_block * p->v.n_kv_head * p->v.n_row;
    const int64_t n_sm = mm_cuda_of(c)->n_sm;
    constexpr int two = F == MM_CACHE_BF16 ? 1 : 2; /* two tiles of bf16 are too much of an SM */
    if (n_page <= 2 * n_sm)
        return launch_sparse<F, NT, 8, 1>(c, p);
    return n_page <= 4 * n_sm ? launch_sparse<F, NT, 4, 1>(c, p)
                              : launch_sparse<F, NT, 4, two>(c, p);
}
template <int F>
static mm_status launch_sparse_group(const mm_op_context *c, const sparse_params *p)
{
    return p->v.group <= 8 ? launch_sparse_pages<F, 1>(c, p) : launch_sparse_pages<F, 2>(c, p);
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
    MM_TRY(mm_decode_check(c, a->cache));
    if (a->force && a->blocks == nullptr)
        return MM_CUDA_FAIL(b, MM_E_INVALID, "attn_sparse: forced blocks are missing");
    MM_TRY(mm_decode_open(c, seq, a->q, a->o, rows, s->n_top_block, &p.v));
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
