/* check.c: ref beside every op. The model's ops are reached through m->ops; here that table is
 * replaced by one whose functions run ref on copies first (ops work in place), then the real
 * op, then compare. Inputs are always the real ones, so one difference does not drag later
 * ones along. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "csrc/base/env.h"
#include "csrc/base/half.h"
#include "csrc/base/log.h"
#include "csrc/model/check.h"

struct mm_check_state {
    mm_ops ops; /* the table that m->ops points to */
    const mm_ops *real;
    mm_backend *ref;
    mm_op_context ctx;    /* ref's stream, the model's shape and rope */
    mm_layer_cache cache; /* rows that ref's attn_in stores; one layer's worth */
    mm_buffers buf;
    float *logits;
    void *block[16]; /* all of the above memory */
    int n_block;
    int64_t n_bad;
};

/* The context of every op of a model is the one inside it. */
static mm_model *model_of(const mm_op_context *c)
{
    return (mm_model *)((uintptr_t)c - offsetof(mm_model, ctx));
}

static mm_status alloc(struct mm_check_state *k, void **out, int64_t n_bytes)
{
    MM_ASSERT(k->n_block < (int)MM_ARRAY_LEN(k->block));
    MM_TRY(k->ref->alloc(k->ref, out, (size_t)mm_max_i64(n_bytes, 1)));
    k->block[k->n_block++] = *out;
    return MM_OK;
}

/* ---------------------------------------------------------------- comparing */

static void report(mm_model *m, const char *what, int32_t layer, int64_t at, double got,
                   double want)
{
    if (m->check->n_bad++ == 0)
        mm_log(MM_LOG_ERROR,
               "check: %s of layer %d differs from ref, element %lld is %.9g, expected %.9g "
               "(first difference; later ones are not reported)",
               what, layer, (long long)at, got, want);
}

static float value_at(const void *p, mm_dtype dtype, int64_t i)
{
    return dtype == MM_DTYPE_F32 ? ((const float *)p)[i]
                                 : mm_f32_from_bf16(((const uint16_t *)p)[i]);
}

/* Same NaNs; then the squared error against the squared norm, and the worst element against the
 * largest: what a different order of f32 sums, or one rounding border, can explain. */
static void compare(mm_model *m, const char *what, int32_t layer, const void *got, const void *want,
                    mm_dtype dtype, int64_t n)
{
    double error = 0.0, norm = 0.0, top = 0.0, worst = 0.0;
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        const double a = (double)value_at(got, dtype, i), b = (double)value_at(want, dtype, i);
        if (isnan(a) != isnan(b)) {
            report(m, what, layer, i, a, b);
            return;
        }
        if (isnan(a) || a == b) /* equal infinities too */
            continue;
        if (fabs(a - b) > worst) {
            worst = fabs(a - b);
            at = i;
        }
        error += (a - b) * (a - b);
    }
    for (int64_t i = 0; i < n; i++) {
        const double b = (double)value_at(want, dtype, i);
        if (isfinite(b)) {
            norm += b * b;
            top = fmax(top, fabs(b));
        }
    }
    const bool is_f32 = dtype == MM_DTYPE_F32 && m->shape.act == MM_DTYPE_F32;
    if (error > (is_f32 ? 1e-10 : 1e-4) * norm || worst > (is_f32 ? 1e-4 : 0x1p-6) * top)
        report(m, what, layer, at, (double)value_at(got, dtype, at),
               (double)value_at(want, dtype, at));
}

static void compare_ids(mm_model *m, const char *what, int32_t layer, const int32_t *got,
                        const int32_t *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (got[i] != want[i]) {
            report(m, what, layer, i, got[i], want[i]);
            return;
        }
}

static float cached(const mm_plane *p, int64_t row, int32_t j)
{
    const uint8_t *data = p->data + row * mm_cache_row_bytes(p->format, p->dim);
    switch (p->format) {
    case MM_CACHE_F32:
        return ((const float *)(const void *)data)[j];
    case MM_CACHE_BF16:
        return mm_f32_from_bf16(((const uint16_t *)(const void *)data)[j]);
    case MM_CACHE_FP8:
        return mm_f32_from_e4m3(data[j]);
    case MM_CACHE_NVFP4:
        break;
    }
    const uint8_t scale = p->scale[row * mm_cache_row_scale_bytes(p->format, p->dim) + j / 16];
    return mm_f32_from_e2m1(mm_e2m1_at(data, j)) * mm_f32_from_e4m3(scale);
}

/* Rows that this step stored. A value next to a border may take either code: one step of the
 * format. */
static void compare_plane(mm_model *m, const char *what, int32_t layer, const mm_seq_view *seq,
                          const mm_plane *got, const mm_plane *want)
{
    const double step = got->format == MM_CACHE_F32    ? 1e-4
                        : got->format == MM_CACHE_BF16 ? 0x1p-6
                        : got->format == MM_CACHE_FP8  ? 0x1p-2
                                                       : 0.5;
    for (int32_t t = 0; t < seq->n_row; t++) {
        const int32_t slot = seq->slot[seq->row_seq[t]], pos = seq->pos[t];
        const int32_t *pages = seq->slots->page_table + (int64_t)slot * seq->slots->page_stride;
        for (int32_t h = 0; h < got->n_head; h++) {
            const int64_t row =
                ((int64_t)pages[pos / MM_PAGE] * got->n_head + h) * MM_PAGE + pos % MM_PAGE;
            for (int32_t j = 0; j < got->dim; j++) {
                const double a = (double)cached(got, row, j), b = (double)cached(want, row, j);
                if (isnan(a) == isnan(b) && !(fabs(a - b) > step * fmax(fabs(b), 0.25)))
                    continue;
                report(m, what, layer, ((int64_t)t * got->n_head + h) * got->dim + j, a, b);
                return;
            }
        }
    }
}

/* ---------------------------------------------------------------- ops */

static size_t stream_bytes(const mm_model *m, const mm_seq_view *seq)
{
    return (size_t)seq->n_row * (size_t)m->config.d_model * mm_dtype_size(m->shape.act);
}

static void compare_stream(mm_model *m, const char *what_x, const char *what_h, int32_t layer,
                           const mm_seq_view *seq, const void *x, const void *h)
{
    const int64_t n = (int64_t)seq->n_row * m->config.d_model;
    compare(m, what_x, layer, x, m->check->buf.x, m->shape.act, n);
    compare(m, what_h, layer, h, m->check->buf.h, m->shape.act, n);
}

static int32_t layer_of(const mm_model *m, const void *part)
{
    return (int32_t)(((uintptr_t)part - (uintptr_t)m->layer) / sizeof *m->layer);
}

static mm_status check_embed(const mm_op_context *c, const mm_seq_view *seq, const mm_embed_args *a)
{
    mm_model *m = model_of(c);
    struct mm_check_state *k = m->check;
    mm_embed_args b = *a;
    b.x = k->buf.x;
    b.h = k->buf.h;
    MM_TRY(k->ref->ops->embed(&k->ctx, seq, &b));
    MM_TRY(k->real->embed(c, seq, a));
    compare_stream(m, "embed x", "embed h", -1, seq, a->x, a->h);
    return MM_OK;
}

static mm_status check_attn_in(const mm_op_context *c, const mm_seq_view *seq,
                               const mm_attn_in_args *a)
{
    mm_model *m = model_of(c);
    struct mm_check_state *k = m->check;
    const mm_op_shape *s = &m->shape;
    const int32_t layer = layer_of(m, a->w);
    mm_layer_cache cache = k->cache;
    if (a->cache->ik.data == NULL)
        cache.ik = a->cache->ik;
    mm_attn_in_args b = *a;
    b.cache = &cache;
    b.q = k->buf.q;
    b.iq = a->iq != NULL ? k->buf.iq : NULL;
    MM_TRY(k->ref->ops->attn_in(&k->ctx, seq, &b));
    MM_TRY(k->real->attn_in(c, seq, a));
    compare(m, "attn_in q", layer, a->q, b.q, s->act,
            (int64_t)seq->n_row * s->n_head * s->head_dim);
    if (a->iq != NULL)
        compare(m, "attn_in iq", layer, a->iq, b.iq, s->act,
                (int64_t)seq->n_row * s->n_index_head * s->index_dim);
    compare_plane(m, "attn_in k", layer, seq, &a->cache->k, &cache.k);
    compare_plane(m, "attn_in v", layer, seq, &a->cache->v, &cache.v);
    if (a->cache->ik.data != NULL)
        compare_plane(m, "attn_in ik", layer, seq, &a->cache->ik, &cache.ik);
    return MM_OK;
}

static mm_status check_attn_sparse(const mm_op_context *c, const mm_seq_view *seq,
                                   const mm_attn_sparse_args *a)
{
    mm_model *m = model_of(c);
    struct mm_check_state *k = m->check;
    const mm_op_shape *s = &m->shape;
    const int32_t layer = (int32_t)(a->cache - m->cache);
    const int64_t n_id = (int64_t)s->n_index_head * seq->n_row * s->n_top_block;
    mm_attn_sparse_args real = *a, b = *a;
    real.blocks = m->buf.blocks; /* choices are compared even when no trace asks for them */
    b.blocks = a->force ? a->blocks : k->buf.blocks;
    b.n_read = NULL;
    b.o = k->buf.o;
    MM_TRY(k->ref->ops->attn_sparse(&k->ctx, seq, &b));
    MM_TRY(k->real->attn_sparse(c, seq, &real));
    for (int64_t i = 0; i < n_id && !a->force; i++)
        if (real.blocks[i] != b.blocks[i]) {
            report(m, "attn_sparse blocks", layer, i, real.blocks[i], b.blocks[i]);
            return MM_OK; /* other blocks, other output */
        }
    compare(m, "attn_sparse o", layer, a->o, b.o, s->act,
            (int64_t)seq->n_row * s->n_head * s->head_dim);
    return MM_OK;
}

static mm_status check_attn_dense(const mm_op_context *c, const mm_seq_view *seq,
                                  const mm_attn_dense_args *a)
{
    mm_model *m = model_of(c);
    struct mm_check_state *k = m->check;
    const mm_op_shape *s = &m->shape;
    mm_attn_dense_args b = *a;
    b.o = k->buf.o;
    MM_TRY(k->ref->ops->attn_dense(&k->ctx, seq, &b));
    MM_TRY(k->real->attn_dense(c, seq, a));
    compare(m, "attn_dense o", (int32_t)(a->cache - m->cache), a->o, b.o, s->act,
            (int64_t)seq->n_row * s->n_head * s->head_dim);
    return MM_OK;
}

static mm_status check_attn_out(const mm_op_context *c, const mm_seq_view *seq,
                                const mm_attn_out_args *a)
{
    mm_model *m = model_of(c);
    struct mm_check_state *k = m->check;
    const int32_t layer = layer_of(m, a->wo);
    const int64_t n_id = (int64_t)seq->n_row * m->shape.n_expert_used;
    mm_attn_out_args b = *a;
    memcpy(k->buf.x, a->x, stream_bytes(m, seq));
    b.x = k->buf.x;
    b.h = k->buf.h;
    if (a->gate != NULL) {
        b.experts = a->force ? a->experts : k->buf.experts;
        b.weights = k->buf.expert_weights;
    }
    MM_TRY(k->ref->ops->attn_out(&k->ctx, seq, &b));
    MM_TRY(k->real->attn_out(c, seq, a));
    compare_stream(m, "attn_out x", "attn_out h", layer, seq, a->x, a->h);
    if (a->gate == NULL)
        return MM_OK;
    compare_ids(m, "attn_out experts", layer, a->experts, b.experts, n_id);
    compare(m, "attn_out expert weights", layer, a->weights, b.weights, MM_DTYPE_F32, n_id);
    return MM_OK;
}

static mm_status check_mlp(const mm_op_context *c, const mm_seq_view *seq, const mm_mlp_args *a)
{
    mm_model *m = model_of(c);
    struct mm_check_state *k = m->check;
    mm_mlp_args b = *a;
    memcpy(k->buf.x, a->x, stream_bytes(m, seq));
    b.x = k->buf.x;
    b.h_out = k->buf.h;
    MM_TRY(k->ref->ops->mlp(&k->ctx, seq, &b));
    MM_TRY(k->real->mlp(c, seq, a));
    compare_stream(m, "mlp x", "mlp h", layer_of(m, a->gate), seq, a->x, a->h_out);
    return MM_OK;
}

static mm_status check_moe(const mm_op_context *c, const mm_seq_view *seq, const mm_moe_args *a)
{
    mm_model *m = model_of(c);
    struct mm_check_state *k = m->check;
    mm_moe_args b = *a;
    memcpy(k->buf.x, a->x, stream_bytes(m, seq));
    b.x = k->buf.x;
    b.h_out = k->buf.h;
    b.acc = k->buf.acc;
    if (a->accumulate)
        memcpy(b.acc, a->acc, (size_t)seq->n_row * (size_t)m->config.d_model * sizeof *b.acc);
    MM_TRY(k->ref->ops->moe(&k->ctx, seq, &b));
    MM_TRY(k->real->moe(c, seq, a));
    if (a->finish)
        compare_stream(m, "moe x", "moe h", layer_of(m, a->w), seq, a->x, a->h_out);
    return MM_OK;
}

static mm_status check_head(const mm_op_context *c, const mm_head_args *a)
{
    mm_model *m = model_of(c);
    struct mm_check_state *k = m->check;
    mm_head_args b = *a;
    b.logits = k->logits;
    MM_TRY(k->ref->ops->head(&k->ctx, &b));
    MM_TRY(k->real->head(c, a));
    compare(m, "head logits", -1, a->logits, b.logits, MM_DTYPE_F32,
            (int64_t)a->n_out * m->config.n_vocab);
    return MM_OK;
}

/* ---------------------------------------------------------------- open, close */

static mm_status open_plane(struct mm_check_state *k, mm_plane *p, const mm_plane *like)
{
    const int64_t n_row = like->n_page * like->n_head * MM_PAGE;
    *p = *like;
    MM_TRY(alloc(k, (void **)&p->data, n_row * mm_cache_row_bytes(p->format, p->dim)));
    return p->scale == NULL
               ? MM_OK
               : alloc(k, (void **)&p->scale, n_row * mm_cache_row_scale_bytes(p->format, p->dim));
}

static mm_status open_memory(mm_model *m, struct mm_check_state *k)
{
    const mm_op_shape *s = &m->shape;
    const int64_t T = s->max_rows, act = (int64_t)mm_dtype_size(s->act);
    for (int32_t i = 0; i < m->config.n_layer; i++)
        if (m->layer[i].is_sparse && k->cache.ik.data == NULL)
            MM_TRY(open_plane(k, &k->cache.ik, &m->cache[i].ik));
    MM_TRY(open_plane(k, &k->cache.k, &m->cache[0].k));
    MM_TRY(open_plane(k, &k->cache.v, &m->cache[0].v));
    MM_TRY(alloc(k, &k->buf.x, T * s->d_model * act));
    MM_TRY(alloc(k, &k->buf.h, T * s->d_model * act));
    MM_TRY(alloc(k, &k->buf.q, T * s->n_head * s->head_dim * act));
    MM_TRY(alloc(k, &k->buf.o, T * s->n_head * s->head_dim * act));
    MM_TRY(alloc(k, &k->buf.iq, T * s->n_index_head * s->index_dim * act));
    MM_TRY(alloc(k, (void **)&k->buf.experts, T * s->n_expert_used * 4));
    MM_TRY(alloc(k, (void **)&k->buf.expert_weights, T * s->n_expert_used * 4));
    MM_TRY(alloc(k, (void **)&k->buf.acc, T * s->d_model * 4));
    MM_TRY(alloc(k, (void **)&k->buf.blocks, T * s->n_index_head * s->n_top_block * 2));
    return alloc(k, (void **)&k->logits, (int64_t)s->max_logit_rows * s->n_vocab * 4);
}

mm_status mm_check_open(mm_model *m)
{
    m->ops = m->backend->ops;
    if (!mm_env_get()->check)
        return MM_OK;
    if (!m->backend->props.is_host || m->ctx.comm->world != 1)
        return MM_FAIL_PARAM(
            MM_E_CONFIG, "MM_CHECK", -1,
            "MM_CHECK=1 runs ref on the same memory: use backend \"cpu\" and one rank");
    struct mm_check_state *k = calloc(1, sizeof *k);
    if (k == NULL)
        return MM_FAIL(MM_E_NOMEM, "no memory for MM_CHECK");
    m->check = k;
    const mm_backend_options bo = {.name = "ref", .n_thread = 1};
    MM_TRY(mm_ref_backend(&k->ref, &bo));
    k->ctx = m->ctx;
    k->ctx.stream = NULL;
    const size_t scratch = k->ref->ops->scratch_bytes(&m->shape, 1);
    MM_TRY(k->ref->stream_open(k->ref, &k->ctx.stream, scratch));
    MM_TRY(open_memory(m, k));
    k->real = m->backend->ops;
    k->ops = *k->real;
    k->ops.decode_layers = NULL;
    k->ops.embed = check_embed;
    k->ops.attn_in = check_attn_in;
    k->ops.attn_sparse = check_attn_sparse;
    k->ops.attn_dense = check_attn_dense;
    k->ops.attn_out = check_attn_out;
    k->ops.mlp = check_mlp;
    k->ops.moe = check_moe;
    k->ops.head = check_head;
    m->ops = &k->ops;
    mm_log(MM_LOG_WARNING, "MM_CHECK=1: every op of %s also runs on ref; expect a slow engine",
           m->backend->props.name);
    return MM_OK;
}

void mm_check_close(mm_model *m)
{
    struct mm_check_state *k = m->check;
    if (k == NULL)
        return;
    if (k->ref != NULL) {
        for (int i = 0; i < k->n_block; i++)
            k->ref->free(k->ref, k->block[i]);
        if (k->ctx.stream != NULL)
            k->ref->stream_close(k->ref, k->ctx.stream);
        mm_backend_close(k->ref);
    }
    free(k);
    m->check = NULL;
}
