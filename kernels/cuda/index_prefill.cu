/* index_prefill.cu: which blocks the rows of a prefill read. One kernel scores (row, index head)
 * against every complete earlier page: largest dot product over its 128 keys, by mma; a second
 * takes the best per row, exactly. Scores go through scratch in pieces of rows, so that their
 * memory is bounded. */
#include "kernels/cuda/attn_prefill_host.h"

#define SCORE_BYTES ((size_t)256 << 20)
#define FULL 0xFFFFFFFFu

/* ---------------------------------------------------------------- the best blocks */

struct choose_args {
    mm_prefill_rows rows;
    const float *score;
    int n_head, n_top, n_init, begin, end, stride;
    int16_t *list;
    uint8_t *is_nan;
};

/* Order of f32 as unsigned numbers; -0 is +0. */
MM_DEV_FN uint32_t order_of(float x)
{
    const uint32_t u = __float_as_uint(x + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* A warp keeps the best n_free blocks in entries e = lane and lane + 32. A block replaces the worst
 * entry (lowest score, of equals the highest block) only when its score is strictly higher: blocks
 * come ascending, so of equal scores the lower block stays. */
struct best_blocks {
    uint32_t score[2];
    int block[2];
    int n, n_free;
    uint32_t worst; /* score of the worst, when full */
    int worst_at;   /* entry * 32 + lane */
};
MM_DEV_FN void find_worst(best_blocks &b, int lane)
{
    const uint32_t s0 = lane < b.n ? b.score[0] : FULL, s1 = lane + 32 < b.n ? b.score[1] : FULL;
    b.worst = __reduce_min_sync(FULL, min(s0, s1));
    const int b0 = lane < b.n && s0 == b.worst ? b.block[0] : -1;
    const int b1 = lane + 32 < b.n && s1 == b.worst ? b.block[1] : -1;
    const int block = __reduce_max_sync(FULL, max(b0, b1));
    const int at = block == b0 ? lane : block == b1 ? 32 + lane : 64;
    b.worst_at = __reduce_min_sync(FULL, at);
}
MM_DEV_FN void put_block(best_blocks &b, int at, uint32_t score, int block, int lane)
{
    if (at == lane)
        b.score[0] = score, b.block[0] = block;
    else if (at == lane + 32)
        b.score[1] = score, b.block[1] = block;
}

__global__ void __launch_bounds__(256) index_choose_kernel(choose_args a)
{
    const int lane = (int)(threadIdx.x & 31);
    const int64_t i = (int64_t)blockIdx.x * 8 + (threadIdx.x >> 5); /* (row, head) of the piece */
    mm_pdl_wait();
    mm_pdl_trigger();
    if (i >= (int64_t)(a.end - a.begin) * a.n_head)
        return;
    const int t = a.begin + (int)(i / a.n_head), head = (int)(i % a.n_head);
    const int local = a.rows.pos[t] / MM_PAGE;
    int16_t *list = a.list + ((int64_t)head * a.rows.n_row + t) * a.n_top;
    uint8_t *is_nan = a.is_nan + (int64_t)head * a.rows.n_row + t;
    if (local + 1 <= a.n_top) {
        for (int j = lane; j < a.n_top; j += 32)
            list[j] = (int16_t)(j <= local ? j : -1);
        if (lane == 0)
            *is_nan = 0;
        return;
    }
    const float *score = a.score + i * a.stride;
    const int n_init = min(a.n_init, a.n_top - 1);
    best_blocks b = {{0, 0}, {0, 0}, 0, a.n_top - 1 - n_init, 0, 0};
    bool nan = false;
    for (int base = 0; base < local; base += 128) {
        float x[4]; /* in flight together */
#pragma unroll
        for (int u = 0; u < 4; u++) {
            const int block = base + 32 * u + lane;
            x[u] = block < local ? score[block] : -INFINITY;
        }
#pragma unroll 1
        for (int u = 0; u < 4; u++) {
            const int first = base + 32 * u, block = first + lane;
            const float y = u == 0 ? x[0] : u == 1 ? x[1] : u == 2 ? x[2] : x[3];
            const uint32_t key = order_of(y);
            nan = nan || y != y;
            uint32_t who = __ballot_sync(FULL, block < local && block >= n_init && b.n_free > 0 &&
                                                   (b.n < b.n_free || key > b.worst));
            while (who != 0) {
                const int from = __ffs((int)who) - 1;
                const uint32_t k = __shfl_sync(FULL, key, from);
                who &= who - 1;
                if (b.n < b.n_free) {
                    put_block(b, b.n++, k, first + from, lane);
                    if (b.n == b.n_free)
                        find_worst(b, lane);
                } else if (k > b.worst) {
                    put_block(b, b.worst_at, k, first + from, lane);
                    find_worst(b, lane);
                }
            }
        }
    }
    nan = __any_sync(FULL, nan) != 0;
    if (lane == 0)
        *is_nan = nan ? 1 : 0;
    if (nan) { /* the row's output will be NaN; its list is the local block */
        for (int j = lane; j < a.n_top; j += 32)
            list[j] = (int16_t)(j == 0 ? local : -1);
        return;
    }
    /* local + 1 > n_top: there were enough candidates, the list is full. Ascending: an entry stands
     * behind the forced blocks and the entries below it. */
    int place[2] = {n_init, n_init};
    for (int j = 0; j < b.n; j++) {
        const int other = __shfl_sync(FULL, j < 32 ? b.block[0] : b.block[1], j & 31);
        place[0] += other < b.block[0];
        place[1] += other < b.block[1];
    }
    for (int j = lane; j < n_init; j += 32)
        list[j] = (int16_t)j;
    if (lane < b.n)
        list[place[0]] = (int16_t)b.block[0];
    if (lane + 32 < b.n)
        list[place[1]] = (int16_t)b.block[1];
    if (lane == 0)
        list[a.n_top - 1] = (int16_t)local;
}

/* ---------------------------------------------------------------- host */

static int64_t score_stride(int64_t n_position)
{
    return mm_ceil_div(mm_ceil_div(n_position, MM_PAGE), 8) * 8;
}
/* Rows whose scores are held at once. */
static int64_t score_rows(int64_t n_row, int64_t n_head, int64_t stride)
{
    const int64_t n = (int64_t)(SCORE_BYTES / (size_t)(n_head * stride * 4));
    return mm_max_i64(1, mm_min_i64(n, n_row));
}
size_t mm_cuda_index_prefill_scratch(const mm_op_shape *s)
{
    const size_t per_row = (size_t)s->n_index_head * (size_t)score_stride(s->max_model_len) * 4;
    const size_t all = per_row * (size_t)s->max_rows; /* a step never takes more than these two */
    return mm_cuda_size(all < SCORE_BYTES ? all : per_row > SCORE_BYTES ? per_row : SCORE_BYTES);
}

static mm_status launch_score(const mm_op_context *c, const mm_score_args &a)
{
    if (mm_cuda_of(c)->tier == MM_CUDA_HOPPER)
        return mm_score_sm90a(c, a);
    MM_CACHE_DISPATCH(mm_cuda_of(c), a.ik.format, mm_score_launch<F, false>(c, a));
    return MM_OK;
}

mm_status mm_cuda_index_prefill(const mm_op_context *c, const mm_seq_view *seq,
                                const mm_attn_sparse_args *a, int16_t *list, uint8_t *is_nan)
{
    const mm_op_shape *s = c->shape;
    const int64_t stride = score_stride(seq->max_pos);
    const int64_t n_local = (seq->max_pos - 1) / MM_PAGE; /* complete pages of the farthest row */
    const bool need_score = n_local + 1 > s->n_top_block;
    const int64_t step = need_score ? score_rows(seq->n_row, s->n_index_head, stride) : seq->n_row;
    void *score = NULL;
    if (need_score)
        MM_TRY(mm_cuda_take(c, (size_t)(step * s->n_index_head * stride * 4), &score));
    for (int64_t begin = 0; begin < seq->n_row; begin += step) {
        const int end = (int)mm_min_i64(begin + step, seq->n_row);
        const mm_prefill_rows rows = mm_prefill_rows_of(seq);
        if (need_score) {
            /* few pages: spread them over more blocks */
            const int n_page = n_local > 256 ? MM_SCORE_PAGES : n_local > 32 ? 8 : 4;
            const mm_score_args sa = {rows,
                                      a->cache->ik,
                                      (const uint16_t *)a->iq,
                                      s->n_index_head,
                                      s->n_top_block,
                                      (int)begin,
                                      end,
                                      n_page,
                                      (int)n_local,
                                      (int)stride,
                                      (float *)score};
            MM_TRY(launch_score(c, sa));
        }
        const choose_args ca = {rows,
                                (const float *)score,
                                s->n_index_head,
                                s->n_top_block,
                                s->n_init_block,
                                (int)begin,
                                end,
                                (int)stride,
                                list,
                                is_nan};
        const int64_t n = (end - begin) * s->n_index_head;
        MM_TRY(mm_launch(c, "index_choose", index_choose_kernel, dim3((unsigned)mm_ceil_div(n, 8)),
                         dim3(256), 0, ca));
    }
    return MM_OK;
}
