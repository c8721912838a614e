/* moe_large.cu: experts for many rows. The (row, slot) pairs of a piece of rows are sorted by
 * expert (stable, so every run has the same order); each expert's rows are cut in tiles, tiles and
 * experts become one launch of gemm_large.h for w1 and w3 with the SwiGLU, one for w2, which writes
 * every pair's row where the sum of the branch (branch.h) looks for it. */
#include "kernels/cuda/branch.h"
#include "kernels/cuda/large.h"

enum {
    SORT_THREADS = 1024,
    SORT_EACH = 4, /* pairs of a thread, one after the other */
    SORT_PAIRS = SORT_THREADS * SORT_EACH,
    MAX_EXPERT = MM_CUDA_MAX_EXPERTS,
    PIECE_ROWS = 8192
};

typedef struct moe_sort {
    const int32_t *experts; /* [n_pair] */
    int32_t n_pair, n_used, first, last, tokens, max_tile;
    int32_t *gather, *pair;                      /* [n_pair] row and pair of sorted place i */
    int32_t *tile_group, *tile_first, *tile_end; /* [max_tile] */
} moe_sort;

MM_DEV_FN int32_t warp_scan(int32_t v) /* inclusive */
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int32_t below = __shfl_up_sync(0xFFFFFFFFu, v, d);
        v += lane >= d ? below : 0;
    }
    return v;
}

/* Exclusive sum over the threads of the block, and *all of them. */
MM_DEV_FN int32_t block_scan(int32_t v, int32_t *warp_sum, int32_t *all)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int32_t in_warp = warp_scan(v);
    if (lane == 31)
        warp_sum[warp] = in_warp;
    __syncthreads();
    const int32_t warps = warp_scan(warp_sum[lane]);
    *all = __shfl_sync(0xFFFFFFFFu, warps, 31);
    const int32_t before = __shfl_sync(0xFFFFFFFFu, warps, warp == 0 ? 0 : warp - 1);
    __syncthreads(); /* before warp_sum is written again */
    return (warp == 0 ? 0 : before) + in_warp - v;
}

/* One block per expert: counts every expert's pairs (shared memory), then places its own in order.
 */
static __global__ void __launch_bounds__(SORT_THREADS) mm_moe_sort(const moe_sort p)
{
    __shared__ int32_t count[MAX_EXPERT];
    __shared__ int32_t warp_sum[SORT_THREADS / 32];
    __shared__ int32_t own[3];
    const int32_t e = p.first + (int32_t)blockIdx.x, n_expert = p.last - p.first;
    const int tid = (int)threadIdx.x;
    mm_pdl_wait();
    mm_pdl_trigger();
    count[tid] = 0;
    __syncthreads();
    for (int i = tid; i < p.n_pair; i += SORT_THREADS) {
        const int32_t x = p.experts[i] - p.first;
        if (x >= 0 && x < n_expert)
            atomicAdd(&count[x], 1);
    }
    __syncthreads();
    /* thread i knows the pairs and tiles of the experts before the i-th, and the block's own */
    const int32_t n = count[tid], n_tile = (n + p.tokens - 1) / p.tokens;
    int32_t total, n_placed;
    const int32_t tile_before = block_scan(n_tile, warp_sum, &total);
    const int32_t before = block_scan(n, warp_sum, &n_placed);
    if (tid == (int)blockIdx.x)
        own[0] = n, own[1] = before, own[2] = tile_before;
    __syncthreads();
    const int32_t mine = own[0], first = own[1], tile = own[2];
    for (int i = tid; i * p.tokens < mine; i += SORT_THREADS) {
        p.tile_group[tile + i] = e;
        p.tile_first[tile + i] = first + i * p.tokens;
        p.tile_end[tile + i] = first + mine;
    }
    for (int i = total + tid; blockIdx.x == 0 && i < p.max_tile; i += SORT_THREADS) {
        p.tile_group[i] = -1;
        p.tile_first[i] = p.tile_end[i] = 0;
    }
    int32_t base = first;
    for (int32_t i0 = 0; i0 < p.n_pair; i0 += SORT_PAIRS) {
        const int32_t i = i0 + tid * SORT_EACH;
        bool is_mine[SORT_EACH];
        int32_t n_mine = 0, n_all;
#pragma unroll
        for (int j = 0; j < SORT_EACH; j++) {
            is_mine[j] = i + j < p.n_pair && p.experts[i + j] == e;
            n_mine += is_mine[j];
        }
        int32_t at = base + block_scan(n_mine, warp_sum, &n_all);
        base += n_all;
#pragma unroll
        for (int j = 0; j < SORT_EACH; j++) {
            if (is_mine[j]) {
                p.gather[at] = (i + j) / p.n_used;
                p.pair[at] = i + j;
                at++;
            }
        }
    }
}

static int32_t piece_rows(const mm_op_shape *s)
{
    return s->max_rows < PIECE_ROWS ? s->max_rows : PIECE_ROWS;
}

/* Tiles of `tokens` sorted rows that n_pair pairs of n_expert experts can need. */
static int32_t tile_bound(int32_t n_pair, int32_t n_expert, int32_t tokens)
{
    return n_pair / tokens + (n_expert < n_pair ? n_expert : n_pair);
}

size_t mm_cuda_moe_large_scratch(const mm_op_shape *s)
{
    if (s->n_expert == 0)
        return 0;
    const size_t rows = (size_t)piece_rows(s), pair = rows * (size_t)s->n_expert_used;
    const size_t tile = (size_t)tile_bound((int32_t)pair, s->n_expert, 32);
    return 2 * mm_cuda_size(pair * 4) + 3 * mm_cuda_size(tile * 4) +
           mm_cuda_size(pair * (size_t)s->d_expert * 2) +
           mm_cuda_size(pair * (size_t)s->d_model * 4) +
           mm_cuda_size(rows * (size_t)s->d_shared * 2) +
           mm_cuda_size(rows * (size_t)s->d_model * 4);
}

typedef struct moe_piece {
    moe_sort sort;
    uint16_t *a, *a_shared;
    float *y, *y_shared; /* [pair, D], [row, D] */
} moe_piece;

static mm_status take_piece(const mm_op_context *c, int32_t rows, moe_piece *m)
{
    const mm_op_shape *s = c->shape;
    const size_t pair = (size_t)rows * (size_t)s->n_expert_used;
    const size_t tile = (size_t)tile_bound((int32_t)pair, s->n_expert, 32) * 4;
    MM_TRY(mm_cuda_take(c, pair * 4, (void **)&m->sort.gather));
    MM_TRY(mm_cuda_take(c, pair * 4, (void **)&m->sort.pair));
    MM_TRY(mm_cuda_take(c, tile, (void **)&m->sort.tile_group));
    MM_TRY(mm_cuda_take(c, tile, (void **)&m->sort.tile_first));
    MM_TRY(mm_cuda_take(c, tile, (void **)&m->sort.tile_end));
    MM_TRY(mm_cuda_take(c, pair * (size_t)s->d_expert * 2, (void **)&m->a));
    MM_TRY(mm_cuda_take(c, pair * (size_t)s->d_model * 4, (void **)&m->y));
    MM_TRY(mm_cuda_take(c, (size_t)rows * (size_t)s->d_shared * 2, (void **)&m->a_shared));
    return mm_cuda_take(c, (size_t)rows * (size_t)s->d_model * 4, (void **)&m->y_shared);
}

static mm_status run_shared(const mm_op_context *c, const mm_moe_args *a, const uint16_t *h,
                            int32_t rows, moe_piece *m)
{
    const mm_op_shape *s = c->shape;
    MM_TRY(mm_cuda_linear_large(c, &a->w->shared_gate_up, h, s->d_model, rows, MM_OUT_SWIGLU,
                                m->a_shared, s->d_shared));
    return mm_cuda_linear_large(c, &a->w->shared_down, m->a_shared, s->d_shared, rows, MM_OUT_F32,
                                m->y_shared, s->d_model);
}

static mm_status run_experts(const mm_op_context *c, const mm_moe_args *a, const uint16_t *h,
                             int32_t rows, moe_piece *m)
{
    const mm_op_shape *s = c->shape;
    moe_sort *sort = &m->sort;
    sort->tokens = mm_large_tile(c, sort->n_pair / s->n_expert);
    sort->max_tile = tile_bound(sort->n_pair, a->last - a->first, sort->tokens);
    MM_TRY(mm_launch(c, "moe_sort", mm_moe_sort, dim3((unsigned)(a->last - a->first)),
                     dim3(SORT_THREADS), 0, *sort));
    const mm_weight *w13 = &a->w->packed_w13, *w2 = &a->w->packed_w2;
    mm_large_args p = mm_large_matrix(s, w13, s->n_expert);
    p.x = h;
    p.x_stride = s->d_model;
    p.tile_group = sort->tile_group;
    p.tile_first = sort->tile_first;
    p.tile_end = sort->tile_end;
    p.gather = sort->gather;
    p.decode = w13->global_scales;
    p.y = m->a;
    p.y_stride = s->d_expert;
    MM_TRY(mm_large_launch(c, w13->format, MM_OUT_SWIGLU, sort->tokens, sort->max_tile, &p));
    mm_large_args q = mm_large_matrix(s, w2, s->n_expert);
    q.x = m->a;
    q.x_stride = s->d_expert;
    q.tile_group = sort->tile_group;
    q.tile_first = sort->tile_first;
    q.tile_end = sort->tile_end;
    q.scatter = sort->pair;
    q.decode = w2->global_scales;
    q.y = m->y;
    q.y_stride = s->d_model;
    return mm_large_launch(c, w2->format, MM_OUT_F32, sort->tokens, sort->max_tile, &q);
}

mm_status mm_cuda_moe_large(const mm_op_context *c, int32_t n_row, const mm_moe_args *a)
{
    const mm_op_shape *s = c->shape;
    const int32_t most = piece_rows(s), k = s->n_expert_used;
    moe_piece m = {};
    MM_TRY(take_piece(c, most < n_row ? most : n_row, &m));
    for (int32_t t = 0; t < n_row; t += most) {
        const int32_t rows = n_row - t < most ? n_row - t : most;
        const uint16_t *h = (const uint16_t *)a->h + (int64_t)t * s->d_model;
        m.sort.experts = a->experts + (int64_t)t * k;
        m.sort.n_pair = rows * k;
        m.sort.n_used = k;
        m.sort.first = a->first;
        m.sort.last = a->last;
        if (a->with_shared)
            MM_TRY(run_shared(c, a, h, rows, &m));
        MM_TRY(run_experts(c, a, h, rows, &m));
        MM_TRY(mm_cuda_branch_experts(c, a, t, rows, m.y, m.y_shared));
    }
    return MM_OK;
}
