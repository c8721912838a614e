/* attn_prefill.cu: attn_sparse for steps with many rows: choice of blocks (index_prefill.cu), then
 * page by page the partials of all rows that chose it (attn_prefill_pages.h), piece of rows after
 * piece; the partials of a piece are merged while the pages of the next are worked on
 * (attn_prefill_merge.h). A row's result never depends on the rows beside it. */
#include "kernels/cuda/attn_prefill_host.h"

#define PARTIAL_BYTES ((size_t)96 << 20) /* partials of a piece of rows; two pieces are held */

/* The last piece; the others are merged beside the pages of the piece after them. */
static __global__ void __launch_bounds__(256) attn_merge_kernel(mm_attn_merge_args a)
{
    mm_pdl_wait();
    mm_pdl_trigger();
    mm_attn_merge(a, (int)blockIdx.x, (int)gridDim.x);
}

/* ---------------------------------------------------------------- host */

/* Rows whose partials are held at once; depends on the shape only. */
static int64_t piece_rows(const mm_op_shape *s)
{
    const size_t per_row = (size_t)s->n_top_block * (size_t)s->n_head * (MM_CACHE_DIM * 4 + 8);
    const int64_t n = (int64_t)(PARTIAL_BYTES / per_row) / 64 * 64;
    return mm_max_i64(64, mm_min_i64(n, mm_ceil_div(s->max_rows, 64) * 64));
}

size_t mm_cuda_attn_prefill_scratch(const mm_op_shape *s)
{
    if (s->n_index_head == 0) /* no sparse layer */
        return 0;
    const int64_t rows = s->max_rows, piece = piece_rows(s);
    const int64_t heads = (int64_t)piece * s->n_top_block * s->n_head;
    const size_t list = mm_cuda_size((size_t)(rows * s->n_index_head * s->n_top_block * 2)) +
                        mm_cuda_size((size_t)(rows * s->n_index_head));
    return list + mm_cuda_index_prefill_scratch(s) +
           mm_plan_scratch(rows, piece, (int64_t)s->n_kv_head * s->n_top_block) +
           2 * (mm_cuda_size((size_t)heads * MM_CACHE_DIM * 4) + mm_cuda_size((size_t)heads * 8));
}

static mm_status launch_pages(const mm_op_context *c, const mm_attn_pages_args &a)
{
    if (mm_cuda_of(c)->tier == MM_CUDA_HOPPER)
        return mm_attn_pages_sm90a(c, a);
    MM_CACHE_DISPATCH(mm_cuda_of(c), a.k.format, mm_attn_pages_launch<F, false>(c, a));
    return MM_OK;
}

mm_status mm_cuda_attn_sparse_prefill(const mm_op_context *c, const mm_seq_view *seq,
                                      const mm_attn_sparse_args *a)
{
    const mm_op_shape *s = c->shape;
    const int group = s->n_head / s->n_kv_head, pad = mm_tile_head_pad(group);
    int16_t *list = a->blocks;
    uint8_t *is_nan = NULL;
    float *acc[2] = {NULL, NULL};
    float2 *sum[2] = {NULL, NULL};
    if (a->force && a->blocks == NULL)
        return MM_CUDA_FAIL(mm_cuda_of(c), MM_E_INVALID, "attn_sparse: forced blocks are missing");
    if (list == NULL)
        MM_TRY(mm_cuda_take(c, (size_t)seq->n_row * (size_t)(s->n_kv_head * s->n_top_block) * 2,
                            (void **)&list));
    if (!a->force) {
        MM_TRY(mm_cuda_take(c, (size_t)seq->n_row * (size_t)s->n_kv_head, (void **)&is_nan));
        MM_TRY(mm_cuda_index_prefill(c, seq, a, list, is_nan));
    }
    mm_attn_pages_args p = {};
    p.plan.n_group = s->n_kv_head;
    p.plan.n_top = s->n_top_block;
    p.plan.piece_rows = (int)piece_rows(s);
    p.plan.tile_items = 8 * MM_PAGES_PASSES * 16 / pad;
    p.plan.list = list;
    MM_TRY(mm_plan_build(c, seq, a->n_read, &p.plan));
    p.rows = mm_prefill_rows_of(seq);
    p.k = a->cache->k, p.v = a->cache->v;
    p.q = (const uint16_t *)a->q;
    p.n_head = s->n_head, p.group = group, p.pad = pad;
    const size_t heads =
        (size_t)mm_min_i64(p.plan.piece_rows, seq->n_row) * (size_t)(s->n_top_block * s->n_head);
    for (int i = 0; i < 2; i++) {
        if (i < p.plan.n_piece) {
            MM_TRY(mm_cuda_take(c, heads * MM_CACHE_DIM * 4, (void **)&acc[i]));
            MM_TRY(mm_cuda_take(c, heads * 8, (void **)&sum[i]));
        }
    }
    p.merge = {list,
               is_nan,
               seq->pos,
               NULL,
               NULL,
               s->n_head,
               group,
               s->n_kv_head,
               s->n_top_block,
               seq->n_row,
               0,
               0,
               p.k.format == MM_CACHE_NVFP4 ? 1.0f : 0.0f,
               (uint16_t *)a->o};
    for (p.piece = 0; p.piece < p.plan.n_piece; p.piece++) {
        p.acc = acc[p.piece & 1], p.sum = sum[p.piece & 1];
        MM_TRY(launch_pages(c, p)); /* and merges the piece before */
        p.merge.begin = p.merge.end;
        p.merge.end = (int)mm_min_i64(p.merge.begin + p.plan.piece_rows, seq->n_row);
        p.merge.acc = p.acc, p.merge.sum = p.sum;
    }
    const int64_t n = (int64_t)(p.merge.end - p.merge.begin) * s->n_head;
    return mm_launch(c, "attn_merge", attn_merge_kernel, dim3((unsigned)mm_ceil_div(n, 8)),
                     dim3(256), 0, p.merge);
}
