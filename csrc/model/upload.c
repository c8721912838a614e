/* upload.c: from host memory to a device, through two pinned buffers that take turns: while one is
 * on its way, the other is filled. Column slices become contiguous on the way. All weights lie in
 * one block of device memory: the same walk first measures it, then fills it. */
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

static void close_stages(mm_weights *w)
{
    for (int i = 0; i < 2; i++) {
        if (w->staged[i] != NULL)
            w->backend->event_close(w->backend, w->staged[i]);
        if (w->stage[i] != NULL)
            w->backend->free_host(w->backend, w->stage[i]);
        w->staged[i] = NULL;
        w->stage[i] = NULL;
    }
}

/* What packing kept for its duration (pinned and device memory) belongs to the stream. */
static void close_stream(mm_weights *w)
{
    if (w->ctx.stream != NULL)
        w->backend->stream_close(w->backend, w->ctx.stream);
    w->ctx.stream = NULL;
}

void mm_weights_seal(mm_weights *w)
{
    close_stages(w);
    close_stream(w);
    mm_pool_close(w->pool);
    w->pool = NULL;
    free_host_blocks(&w->vectors);
    mm_tensors_seal(&w->tensors);
    w->options = NULL;
}

void mm_weights_close(mm_weights *w)
{
    if (w == NULL)
        return;
    close_stages(w);
    close_stream(w);
    mm_pool_close(w->pool);
    if (w->device != NULL)
        w->backend->free(w->backend, w->device);
    free_host_blocks(&w->temp);
    free_host_blocks(&w->vectors);
    free_host_blocks(&w->owned);
    mm_tensors_close(&w->tensors);
    free(w);
}

static mm_status open_stages(mm_weights *w)
{
    mm_backend *b = w->backend;
    for (int i = 0; i < 2 && w->stage[i] == NULL && !w->is_measuring; i++) {
        MM_TRY(b->alloc_host(b, &w->stage[i], STAGE_BYTES));
        MM_TRY(b->event_open(b, &w->staged[i]));
        MM_TRY(b->event_record(b, w->staged[i], w->ctx.stream));
    }
    return MM_OK;
}

/* A piece of the device block, which is allocated with the first. Measuring: NULL, only counted. */
static mm_status take_device(mm_weights *w, void **out, int64_t n_bytes)
{
    mm_backend *b = w->backend;
    *out = NULL;
    const int64_t size = mm_round_up(n_bytes, ALIGN);
    if (w->is_measuring) {
        w->n_device += size;
        return MM_OK;
    }
    if (w->device == NULL && w->n_device > 0) {
        void *block;
        MM_TRY(b->alloc(b, &block, (size_t)w->n_device));
        w->device = block;
    }
    if (w->n_device_used + size > w->n_device)
        return MM_FAIL(MM_E_NOMEM, "weights: %lld bytes were measured, %lld more are needed",
                       (long long)w->n_device, (long long)(w->n_device_used + size - w->n_device));
    *out = w->device + w->n_device_used;
    w->n_device_used += size;
    return MM_OK;
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
        MM_TRY(b->upload(b, w->ctx.stream, dst, stage, (size_t)n));
        MM_TRY(b->event_record(b, w->staged[i], w->ctx.stream));
        dst += n;
        w->n_done += n;
        MM_TRY(mm_weights_poll(w));
    }
    return MM_OK;
}

static mm_status place_rows(mm_weights *w, const void **data, int64_t *stride, int64_t row_bytes,
                            int64_t n_row)
{
    void *dst;
    if (row_bytes == 0 || n_row == 0)
        return MM_OK;
    MM_TRY(take_device(w, &dst, n_row * row_bytes));
    if (w->is_measuring)
        return MM_OK;
    MM_TRY(upload_rows(w, dst, *data, *stride, row_bytes, n_row));
    *data = dst;
    *stride = row_bytes;
    return MM_OK;
}

mm_status mm_weights_place(mm_weights *w, mm_weight *const *list, int32_t n)
{
    if (w->backend->props.is_host)
        return MM_OK;
    MM_TRY(open_stages(w));
    for (int32_t i = 0; i < n; i++) {
        mm_weight *m = list[i];
        if (m->format == MM_WEIGHT_NONE)
            continue;
        const void *scale = m->scale;
        MM_TRY(place_rows(w, &m->data, &m->data_stride, mm_weight_row_bytes(m->format, m->n_in),
                          m->n_out));
        MM_TRY(place_rows(w, &scale, &m->scale_stride,
                          mm_weight_row_scale_bytes(m->format, m->n_in), m->n_out));
        m->scale = scale;
    }
    return MM_OK;
}

mm_status mm_weights_place_floats(mm_weights *w, const float **v, int64_t n)
{
    const void *data = *v;
    int64_t stride = n * (int64_t)sizeof(float);
    if (w->backend->props.is_host)
        return MM_OK;
    MM_TRY(open_stages(w));
    MM_TRY(place_rows(w, &data, &stride, stride, 1));
    *v = data;
    return MM_OK;
}

mm_status mm_weights_pack(mm_weights *w, mm_pack kind, const mm_weight *src, int32_t n,
                          mm_weight *out)
{
    const mm_ops *ops = w->backend->ops;
    void *dst;
    MM_TRY(take_device(w, &dst, (int64_t)ops->pack_bytes(w->ctx.shape, kind, src, n)));
    if (w->is_measuring)
        return MM_OK;
    MM_TRY(ops->pack(&w->ctx, kind, src, n, dst, out));
    for (int32_t i = 0; i < n; i++)
        w->n_done += mm_weight_bytes(&src[i]);
    return mm_weights_poll(w);
}

mm_status mm_weights_flush(mm_weights *w)
{
    if (w->temp.n == 0)
        return MM_OK;
    MM_TRY(w->backend->sync(w->backend, w->ctx.stream));
    free_host_blocks(&w->temp);
    return MM_OK;
}
