/* upload.c: from host memory to a device, through two pinned buffers that take turns: while one is
 * on its way, the other is filled. Column slices become contiguous on the way. */
#include "csrc/model/weights.h"

enum { STAGE_BYTES = 16 << 20, ALIGN = 256 };

mm_status mm_blocks_add(mm_blocks *b, void *item, int64_t n_bytes)
{
    if (b->n == b->cap) {
        const int32_t cap = b->cap == 0 ? 64 : 2 * b->cap;
        void **grown = realloc(b->item, (size_t)cap * sizeof *grown);
        if (grown == NULL)
            return MM_FAIL(MM_E_NOMEM, "no memory for the list of weight blocks");
        b->item = grown;
        b->cap = cap;
    }
    b->item[b->n++] = item;
    b->n_bytes += n_bytes;
    return MM_OK;
}

static void free_host_blocks(mm_blocks *b)
{
    for (int32_t i = 0; i < b->n; i++)
        free(b->item[i]);
    free(b->item);
    *b = (mm_blocks){0};
}

void mm_weights_close(mm_weights *w)
{
    if (w == NULL)
        return;
    for (int i = 0; i < 2; i++) {
        if (w->staged[i] != NULL)
            w->backend->event_close(w->backend, w->staged[i]);
        if (w->stage[i] != NULL)
            w->backend->free_host(w->backend, w->stage[i]);
    }
    for (int32_t i = 0; i < w->device.n; i++)
        w->backend->free(w->backend, w->device.item[i]);
    free(w->device.item);
    free_host_blocks(&w->temp);
    free_host_blocks(&w->owned);
    mm_tensors_close(&w->tensors);
    free(w);
}

static mm_status open_stages(mm_weights *w)
{
    mm_backend *b = w->backend;
    for (int i = 0; i < 2 && w->stage[i] == NULL; i++) {
        MM_TRY(b->alloc_host(b, &w->stage[i], STAGE_BYTES));
        MM_TRY(b->event_open(b, &w->staged[i]));
        MM_TRY(b->event_record(b, w->staged[i], w->ctx->stream));
    }
    return MM_OK;
}

static mm_status alloc_device(mm_weights *w, void **out, int64_t n_bytes)
{
    mm_backend *b = w->backend;
    MM_TRY(b->alloc(b, out, (size_t)n_bytes));
    const mm_status st = mm_blocks_add(&w->device, *out, n_bytes);
    if (st != MM_OK)
        b->free(b, *out);
    return st;
}

/* Rows of row_bytes, `stride` apart in host memory, to dst without gaps. */
static mm_status upload_rows(mm_weights *w, uint8_t *dst, const uint8_t *src, int64_t stride,
                             int64_t row_bytes, int64_t n_row)
{
    mm_backend *b = w->backend;
    int64_t row = 0, col = 0;
    while (row < n_row) {
        const int i = w->i_stage;
        w->i_stage = 1 - i;
        MM_TRY(b->event_wait(b, w->staged[i]));
        uint8_t *stage = w->stage[i];
        int64_t n = 0;
        while (row < n_row && n < STAGE_BYTES) {
            const int64_t part = mm_min_i64(row_bytes - col, STAGE_BYTES - n);
            memcpy(stage + n, src + row * stride + col, (size_t)part);
            n += part;
            col += part;
            if (col == row_bytes) {
                col = 0;
                row++;
            }
        }
        MM_TRY(b->upload(b, w->ctx->stream, dst, stage, (size_t)n));
        MM_TRY(b->event_record(b, w->staged[i], w->ctx->stream));
        dst += n;
        w->n_done += n;
        MM_TRY(mm_weights_poll(w));
    }
    return MM_OK;
}

static mm_status place_one(mm_weights *w, mm_weight *m, uint8_t **at)
{
    const int64_t row = mm_weight_row_bytes(m->format, m->n_in),
                  scale_row = mm_weight_row_scale_bytes(m->format, m->n_in);
    MM_TRY(upload_rows(w, *at, m->data, m->data_stride, row, m->n_out));
    m->data = *at;
    m->data_stride = row;
    *at += mm_round_up(m->n_out * row, ALIGN);
    if (scale_row == 0)
        return MM_OK;
    MM_TRY(upload_rows(w, *at, m->scale, m->scale_stride, scale_row, m->n_out));
    m->scale = *at;
    m->scale_stride = scale_row;
    *at += mm_round_up(m->n_out * scale_row, ALIGN);
    return MM_OK;
}

/* One allocation for the whole group: a model has tens of thousands of matrices. */
mm_status mm_weights_place(mm_weights *w, mm_weight *const *m, int32_t n)
{
    if (w->backend->props.is_host)
        return MM_OK;
    MM_TRY(open_stages(w));
    int64_t total = 0;
    for (int32_t i = 0; i < n; i++) {
        total += mm_round_up(m[i]->n_out * mm_weight_row_bytes(m[i]->format, m[i]->n_in), ALIGN);
        total +=
            mm_round_up(m[i]->n_out * mm_weight_row_scale_bytes(m[i]->format, m[i]->n_in), ALIGN);
    }
    if (total == 0)
        return MM_OK;
    void *base;
    MM_TRY(alloc_device(w, &base, total));
    uint8_t *at = base;
    for (int32_t i = 0; i < n; i++)
        if (m[i]->format != MM_WEIGHT_NONE)
            MM_TRY(place_one(w, m[i], &at));
    return MM_OK;
}

mm_status mm_weights_pack(mm_weights *w, mm_pack kind, const mm_weight *src, int32_t n,
                          mm_weight *out)
{
    const mm_ops *ops = w->backend->ops;
    void *dst;
    MM_TRY(alloc_device(w, &dst, (int64_t)ops->pack_bytes(w->ctx->shape, kind, src, n)));
    MM_TRY(ops->pack(w->ctx, kind, src, n, dst, out));
    for (int32_t i = 0; i < n; i++)
        w->n_done += mm_weight_bytes(&src[i]);
    return mm_weights_poll(w);
}

mm_status mm_weights_flush(mm_weights *w)
{
    if (w->temp.n == 0)
        return MM_OK;
    MM_TRY(w->backend->sync(w->backend, w->ctx->stream));
    free_host_blocks(&w->temp);
    return MM_OK;
}
