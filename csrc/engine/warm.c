/* warm.c: see warm.h. */
#include "csrc/engine/warm.h"
#include "csrc/engine/batch_build.h"

/* Sampling in which nothing is left out. */
static mm_batch_slot every_filter(int32_t slot)
{
    return (mm_batch_slot){.slot = slot,
                           .seed = 1,
                           .temperature = 1,
                           .top_p = 0.9f,
                           .min_p = 0.01f,
                           .repetition_penalty = 1.1f,
                           .frequency_penalty = 0.1f,
                           .presence_penalty = 0.1f,
                           .top_k = 8,
                           .mask = -1,
                           .keeps_counts = 1};
}

/* One sequence of n_row rows at positions 0..: the last one draws, the logits of those before it
 * are computed. max_pos is the bound that captured steps have: long contexts take kernels that
 * short ones do not. */
static const mm_batch *make_batch(const mm_step_context *k, mm_blob *w, int32_t n_row)
{
    const mm_op_shape *shape = &k->model->shape;
    const int32_t slot = k->buf->slots.n_slot - 1;
    const int32_t n_out = (int32_t)mm_min_i64(n_row, shape->max_logit_rows);
    const int64_t mask_bytes = k->buf->slots.mask_words * (int64_t)sizeof(uint32_t);
    const mm_batch_seq seq = {.slot = slot, .n_row = n_row, .n_ctx_after = n_row};
    const mm_batch_slot begins = every_filter(slot);
    mm_batch *b = (mm_batch *)w->base;
    w->used = 0;
    (void)mm_blob_put(w, NULL, sizeof *b);
    *b = (mm_batch){.n_seq = 1, .n_row = n_row, .n_out = n_out, .n_slot = 1, .n_mask = 1};
    b->max_pos = shape->max_model_len;
    b->is_decode = n_row <= MM_MAX_DECODE_ROWS;
    b->draw = MM_DRAW_ANY;
    b->n_entry = 2;
    b->row_media = -1;
    b->seq = mm_blob_put(w, &seq, sizeof seq);
    b->slot = mm_blob_put(w, &begins, sizeof begins);
    b->token = mm_blob_put(w, NULL, n_row * (int64_t)sizeof(int32_t));
    b->out = mm_blob_put(w, NULL, n_out * (int64_t)sizeof(mm_batch_out));
    b->mask = mm_blob_put(w, NULL, sizeof(mm_batch_mask));
    const int64_t words = mm_blob_put(w, NULL, mask_bytes);
    memset(w->base + b->token, 0, (size_t)n_row * sizeof(int32_t));
    memset(w->base + words, 0xFF, (size_t)mask_bytes);
    *(mm_batch_mask *)(w->base + b->mask) = (mm_batch_mask){.slot = slot, .mask = words};
    mm_batch_out *out = (mm_batch_out *)(w->base + b->out);
    for (int32_t i = 0; i < n_out; i++)
        out[i] = (mm_batch_out){.row = n_row - n_out + i,
                                .kind = i + 1 < n_out ? MM_OUT_TRACE : MM_OUT_SAMPLE,
                                .token = -1,
                                .n_top = -1,
                                .list = -1};
    out[n_out - 1].n_top = 1;
    out[n_out - 1].needs_work = out[n_out - 1].want_sampling = 1;
    b->n_bytes = w->used;
    return b;
}

static mm_status run(mm_step_context *k, void *blob, int64_t n_bytes)
{
    const mm_op_shape *shape = &k->model->shape;
    const int32_t n_row[] = {shape->max_rows, 2 * MM_MAX_DECODE_ROWS, 1};
    for (size_t i = 0; i < MM_ARRAY_LEN(n_row); i++) {
        mm_blob w = {.base = blob, .cap = n_bytes};
        const int64_t n = mm_min_i64(n_row[i], mm_min_i64(shape->max_rows, shape->max_model_len));
        MM_TRY(mm_step_start(k, make_batch(k, &w, (int32_t)n), 0));
        MM_TRY(mm_step_finish(k, 0));
    }
    return MM_OK;
}

mm_status mm_warm_up(mm_step_context *k, int64_t n_bytes)
{
    mm_backend *be = k->backend;
    mm_rank_buffers own = *k->buf; /* other ranks have batches of their own in the ring's places */
    mm_step_context warm = *k;
    struct mm_profile_state *profile = k->model->profile;
    void *blob;
    MM_TRY(be->alloc_host(be, &blob, (size_t)n_bytes));
    own.ring.batch[0] = blob;
    warm.buf = &own;
    k->model->profile = NULL; /* these steps are nobody's */
    const mm_status st = run(&warm, blob, n_bytes);
    k->model->profile = profile;
    if (st == MM_OK) {
        be->free_host(be, blob);
        return MM_OK;
    }
    mm_error cause; /* the first error is the cause; what was queued may still read the blob */
    mm_error_take(&cause, st);
    if (be->sync(be, k->copies) != MM_OK)
        mm_error_clear();
    be->free_host(be, blob);
    return mm_error_raise(&cause, "");
}
