/* attn_decode_host.h: what attn_decode.cu and attn_decode_dense.cu share beside the partials: a
 * step as their kernels see it, and the host's checks and sizes. */
#ifndef MM_CUDA_ATTN_DECODE_HOST_H
#define MM_CUDA_ATTN_DECODE_HOST_H
#include "kernels/cuda/attn_decode.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/decode_work.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/topk.h"

#define MM_DENSE_PIECES 256 /* of a row and KV head in the dense kernel */
static_assert(mm_merge_bytes(4, MM_DENSE_PIECES) <= MM_PAGE * 64 &&
                  mm_merge_bytes(8, MM_TOPK_MAX) <= MM_PAGE * 64,
              "merges use the place of a tile, 8 KB at least");
/* What scores, and partials, of one launch may take. */
#define MM_DECODE_SCRATCH ((int64_t)64 << 20)

/* The step, and the rows [first, first + n_row) of one launch. */
typedef struct mm_decode_view {
    const int32_t *page_table, *row_start, *row_seq, *slot, *pos;
    int32_t page_stride, first, n_row, n_all_row;
    int32_t n_head, n_kv_head, group;
    bool is_single; /* row t is sequence t */
    const uint16_t *q;
    uint16_t *o;
    float *acc;
    float2 *stat;
    uint32_t *counter;
} mm_decode_view;

MM_DEV_FN int mm_view_seq(const mm_decode_view &v, int t)
{
    return v.is_single ? t : v.row_seq[t];
}

/* ---------------------------------------------------------------- host */

static inline int32_t mm_decode_blocks(const mm_op_shape *s)
{
    return (s->max_model_len + MM_PAGE - 1) / MM_PAGE;
}
static inline int32_t mm_dense_pieces(const mm_op_shape *s) /* extra rows: at most max_rows */
{
    const int32_t n = mm_decode_blocks(s) + (s->max_rows + MM_PAGE - 1) / MM_PAGE;
    return n < MM_DENSE_PIECES ? n : MM_DENSE_PIECES;
}

/* Rows of one launch: what a row takes of scratch, times them, stays near MM_DECODE_SCRATCH. */
static inline int32_t mm_decode_rows(const mm_op_shape *s, int64_t row_bytes)
{
    const int64_t n = MM_DECODE_SCRATCH / row_bytes, most = n > MM_WORK_MAX ? MM_WORK_MAX
                                                            : n < 1         ? 1
                                                                            : n;
    return (int32_t)(most < s->max_rows ? most : s->max_rows);
}
/* Of n partials of every head of a row. */
static inline int64_t mm_partial_bytes(const mm_op_shape *s, int64_t n)
{
    return n * s->n_head * (MM_CACHE_DIM + 2) * 4;
}

static_assert(MM_CUDA_MAX_BLOCKS <= MM_TOPK_MAX &&
                  MM_WORK_MAX * MM_CUDA_MAX_KV_HEADS <= MM_CUDA_COUNTERS,
              "cuda_limits.h");

static inline mm_status mm_decode_check(const mm_op_context *c, const mm_layer_cache *cache)
{
    const mm_cuda *b = mm_cuda_of(c);
    if (cache->k.format != cache->v.format)
        return MM_CUDA_FAIL(b, MM_E_INVALID,
                            "cuda: the K and V planes of a layer differ in format");
    return MM_OK;
}

/* Everything but the rows of a launch. n: partials of a row and KV head. */
static inline mm_status mm_decode_open(const mm_op_context *c, const mm_seq_view *seq,
                                       const void *q, void *o, int32_t rows, int64_t n,
                                       mm_decode_view *v)
{
    const mm_op_shape *s = c->shape;
    const size_t heads = (size_t)rows * (size_t)n * (size_t)s->n_head;
    void *partials;
    MM_TRY(mm_cuda_take(c, heads * (MM_CACHE_DIM + 2) * 4, &partials));
    *v = mm_decode_view{};
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

static inline mm_status mm_decode_too_large(const mm_cuda *b, size_t smem)
{
    return MM_CUDA_FAIL(
        b, MM_E_UNSUPPORTED,
        "cuda: attention needs %zu bytes of shared memory, this device has %d; use an fp8 "
        "cache",
        smem, b->smem_max);
}

#endif
