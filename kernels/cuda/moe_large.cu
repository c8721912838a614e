/* moe_large.cu: experts for many rows. The (row, slot) pairs of a piece of rows are sorted by
 * expert (stable, so every run has the same order); each expert's rows are cut in tiles, tiles and
 * experts become one launch of gemm_large.h for w1 and w3 with the SwiGLU, one for w2; then every
 * row adds its experts' outputs in ascending expert order, and the shared expert's, in f32. */
#include "kernels/cuda/large.h"

enum { SORT_THREADS = 256, MAX_EXPERT = 1024, PIECE_ROWS = 8192 };

typedef struct moe_sort {
    const int32_t *experts; /* [n_pair] */
    int32_t n_pair, n_used, first, last, tokens, max_tile;
    int32_t *gather; /* [n_pair] row of sorted place i */
    int32_t *place;  /* [n_pair] sorted place of a pair; -1: its expert is not in [first, last) */
    int32_t *tile_group, *tile_first, *tile_end; /* [max_tile] */
} moe_sort;

/* One block per expert: counts every expert's pairs (shared memory), then places its own in order.
 */
static __global__ void __launch_bounds__(SORT_THREADS) mm_moe_sort(const moe_sort p)
{
    __shared__ int32_t count[MAX_EXPERT];
    __shared__ int32_t warp_sum[SORT_THREADS / 32];
    const int32_t e = p.first + (int32_t)blockIdx.x, n_expert = p.last - p.first;
    const int tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32;
    mm_pdl_wait();
    mm_pdl_trigger();
    for (int i = tid; i < n_expert; i += SORT_THREADS)
        count[i] = 0;
    __syncthreads();
    for (int i = tid; i < p.n_pair; i += SORT_THREADS) {
        const int32_t x = p.experts[i] - p.first;
        if (x >= 0 && x < n_expert)
            atomicAdd(&count[x], 1);
        else if (blockIdx.x == 0)
            p.place[i] = -1;
    }
    __syncthreads();
    int32_t base = 0, tile = 0, total = 0;
    for (int i = 0; i < n_expert; i++) {
        const int32_t n_tile = (count[i] + p.tokens - 1) / p.tokens;
        base += i < (int)blockIdx.x ? count[i] : 0;
        tile += i < (int)blockIdx.x ? n_tile : 0;
        total += n_tile;
    }
    const int32_t mine = count[blockIdx.x];
    for (int i = tid; i * p.tokens < mine; i += SORT_THREADS) {
        p.tile_group[tile + i] = e;
        p.tile_first[tile + i] = base + i * p.tokens;
        p.tile_end[tile + i] = base + mine;
    }
    for (int i = total + tid; blockIdx.x == 0 && i < p.max_tile; i += SORT_THREADS)
        p.tile_group[i] = -1;
    for (int32_t i0 = 0; i0 < p.n_pair; i0 += SORT_THREADS) {
        const int32_t i = i0 + tid;
        const bool is_mine = i < p.n_pair && p.experts[i] == e;
        const uint32_t same = __ballot_sync(0xFFFFFFFFu, is_mine);
        if (lane == 0)
            warp_sum[warp] = __popc(same);
        __syncthreads();
        int32_t before = base;
        for (int w = 0; w < SORT_THREADS / 32; w++) {
            before += w < warp ? warp_sum[w] : 0;
            base += warp_sum[w];
        }
        if (is_mine) {
            const int32_t at = before + __popc(same & ((1u << lane) - 1));
            p.gather[at] = i / p.n_used;
            p.place[i] = at;
        }
        __syncthreads();
    }
}

typedef struct moe_sum {
    const float *y;      /* [n_pair, D] in sorted order */
    const float *shared; /* [n_row, D] or NULL */
    const int32_t *place;
    const float *weights; /* [n_row, n_used] */
    float *acc;           /* [n_row, D] */
    int32_t d_model, n_used;
    float routed_scale;
    bool accumulate;
} moe_sum;

/* grid (n_row, ceil(D / 1024)): four columns a thread. */
static __global__ void __launch_bounds__(256) mm_moe_sum(const moe_sum p)
{
    const int64_t t = blockIdx.x;
    const int32_t j = ((int32_t)blockIdx.y * 256 + (int32_t)threadIdx.x) * 4;
    mm_pdl_wait();
    mm_pdl_trigger();
    if (j >= p.d_model)
        return;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    float *acc = p.acc + t * p.d_model + j;
    if (p.accumulate)
        sum = *(const float4 *)(const void *)acc;
    for (int32_t k = 0; k < p.n_used; k++) {
        const int32_t at = p.place[t * p.n_used + k];
        if (at < 0)
            continue;
        const float gain = p.routed_scale * p.weights[t * p.n_used + k];
        const float4 y = *(const float4 *)(const void *)(p.y + (int64_t)at * p.d_model + j);
        sum.x += gain * y.x;
        sum.y += gain * y.y;
        sum.z += gain * y.z;
        sum.w += gain * y.w;
    }
    if (p.shared != NULL) {
        const float4 y = *(const float4 *)(const void *)(p.shared + t * p.d_model + j);
        sum.x += y.x;
        sum.y += y.y;
        sum.z += y.z;
        sum.w += y.w;
    }
    *(float4 *)(void *)acc = sum;
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
    float *y, *y_shared;
} moe_piece;

static mm_status take_piece(const mm_op_context *c, int32_t rows, moe_piece *m)
{
    const mm_op_shape *s = c->shape;
    const size_t pair = (size_t)rows * (size_t)s->n_expert_used;
    const size_t tile = (size_t)tile_bound((int32_t)pair, s->n_expert, 32) * 4;
    MM_TRY(mm_cuda_take(c, pair * 4, (void **)&m->sort.gather));
    MM_TRY(mm_cuda_take(c, pair * 4, (void **)&m->sort.place));
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
    /* few rows an expert: small tiles, or most of a tile would be padding */
    sort->tokens = sort->n_pair / s->n_expert <= 48 ? 32 : 128;
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
    if (s->n_expert > MAX_EXPERT || s->d_model % 8 != 0)
        return MM_CUDA_FAIL(mm_cuda_of(c), MM_E_UNSUPPORTED,
                            "cuda: %d experts of width %d; at most %d, and a width that is a "
                            "multiple of 8",
                            s->n_expert, s->d_model, MAX_EXPERT);
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
        moe_sum sum = {};
        sum.y = m.y;
        sum.shared = a->with_shared ? m.y_shared : NULL;
        sum.place = m.sort.place;
        sum.weights = a->weights + (int64_t)t * k;
        sum.acc = a->acc + (int64_t)t * s->d_model;
        sum.d_model = s->d_model;
        sum.n_used = k;
        sum.routed_scale = s->routed_scale;
        sum.accumulate = a->accumulate;
        MM_TRY(mm_launch(c, "moe_sum", mm_moe_sum,
                         dim3((unsigned)rows, (unsigned)((s->d_model + 1023) / 1024)), dim3(256), 0,
                         sum));
    }
    return MM_OK;
}
