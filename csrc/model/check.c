/* check.c: ref beside every op (start of a step: check_expand.c, its end: check_sample.c). The
 * model's ops are reached through m->ops; here that table is replaced by one whose functions copy
 * the op's inputs to host memory, run ref on them, then the real op, copy its results and compare.
 * Inputs are always the real ones, so one difference does not drag later ones along. Weights are
 * read where the host has them in checkpoint order. */
#include <stddef.h>
#include <stdio.h>

#include "csrc/base/env.h"
#include "csrc/base/log.h"
#include "csrc/model/check_compare.h"

/* The context of every op of a model is the one inside it. */
mm_model *mm_check_model(const mm_op_context *c)
{
    return (mm_model *)((uintptr_t)c - offsetof(mm_model, ctx));
}

mm_status mm_check_alloc(struct mm_check_state *k, void **out, int64_t n_bytes)
{
    MM_ASSERT(k->n_block < (int)MM_ARRAY_LEN(k->block));
    MM_TRY(k->ref->alloc(k->ref, out, (size_t)mm_max_i64(n_bytes, 1)));
    k->block[k->n_block++] = *out;
    return MM_OK;
}

/* ---------------------------------------------------------------- copies to the host */

mm_status mm_check_pull(mm_model *m, void *dst, const void *src, int64_t n_bytes)
{
    for (int64_t i = 0; i < n_bytes; i += (int64_t)MM_MODEL_STAGE) {
        const size_t n = (size_t)mm_min_i64((int64_t)MM_MODEL_STAGE, n_bytes - i);
        MM_TRY(
            m->backend->download(m->backend, m->ctx.stream, m->stage, (const uint8_t *)src + i, n));
        MM_TRY(m->backend->sync(m->backend, m->ctx.stream));
        memcpy((uint8_t *)dst + i, m->stage, n);
    }
    return MM_OK;
}

static mm_status pull_ints(mm_model *m, const int32_t *dst, const int32_t *src, int64_t n)
{
    return mm_check_pull(m, (void *)(uintptr_t)dst, src, n * (int64_t)sizeof *src);
}

static int64_t stream_bytes(const mm_model *m)
{
    return (int64_t)m->check->seq.n_row * m->config.d_model * (int64_t)mm_dtype_size(m->shape.act);
}

static int64_t head_bytes(const mm_model *m)
{
    const mm_op_shape *s = &m->shape;
    return (int64_t)m->check->seq.n_row * s->n_head * s->head_dim * (int64_t)mm_dtype_size(s->act);
}

static int64_t index_bytes(const mm_model *m)
{
    const mm_op_shape *s = &m->shape;
    return (int64_t)m->check->seq.n_row * s->n_index_head * s->index_dim *
           (int64_t)mm_dtype_size(s->act);
}

/* The step's rows and the page tables of its slots; embed, the first op of a step, asks for it. */
static mm_status pull_step(mm_model *m, const mm_seq_view *seq)
{
    struct mm_check_state *k = m->check;
    const mm_slots *s = seq->slots;
    mm_seq_view v = k->seq;
    v.n_seq = seq->n_seq;
    v.n_row = seq->n_row;
    v.max_pos = seq->max_pos;
    v.is_decode = seq->is_decode;
    k->seq = v;
    MM_TRY(pull_ints(m, v.row_start, seq->row_start, seq->n_seq + 1));
    MM_TRY(pull_ints(m, v.slot, seq->slot, seq->n_seq));
    MM_TRY(pull_ints(m, v.row_seq, seq->row_seq, seq->n_row));
    MM_TRY(pull_ints(m, v.pos, seq->pos, seq->n_row));
    MM_TRY(pull_ints(m, v.token, seq->token, seq->n_row));
    MM_TRY(pull_ints(m, k->slots.last_token, s->last_token, s->n_slot));
    k->slots.n_slot = s->n_slot;
    k->slots.page_stride = s->page_stride;
    for (int32_t i = 0; i < seq->n_seq; i++) {
        const int64_t at = (int64_t)v.slot[i] * s->page_stride;
        MM_TRY(pull_ints(m, k->slots.page_table + at, s->page_table + at, s->page_stride));
    }
    return MM_OK;
}

static mm_status pull_page(mm_model *m, const mm_plane *to, const mm_plane *from, int64_t page)
{
    const int64_t n_row = (int64_t)from->n_head * MM_PAGE;
    const int64_t data = n_row * mm_cache_row_bytes(from->format, from->dim),
                  scale = n_row * mm_cache_row_scale_bytes(from->format, from->dim);
    if (from->data == NULL)
        return MM_OK;
    MM_TRY(mm_check_pull(m, to->data + page * data, from->data + page * data, data));
    return scale > 0 ? mm_check_pull(m, to->scale + page * scale, from->scale + page * scale, scale)
                     : MM_OK;
}

/* Pages that the step's sequences see; `whole` false: only those its rows lie in. */
static mm_status pull_cache(mm_model *m, const mm_layer_cache *from, bool whole)
{
    const struct mm_check_state *k = m->check;
    const mm_seq_view *v = &k->seq;
    for (int32_t i = 0; i < v->n_seq; i++) {
        const int32_t *pages = k->slots.page_table + (int64_t)v->slot[i] * k->slots.page_stride;
        if (v->row_start[i + 1] == v->row_start[i])
            continue;
        const int32_t first = v->pos[v->row_start[i]] / MM_PAGE,
                      last = v->pos[v->row_start[i + 1] - 1] / MM_PAGE;
        for (int32_t b = whole ? 0 : first; b <= last; b++) {
            MM_TRY(pull_page(m, &k->have_cache.k, &from->k, pages[b]));
            MM_TRY(pull_page(m, &k->have_cache.v, &from->v, pages[b]));
            MM_TRY(pull_page(m, &k->have_cache.ik, &from->ik, pages[b]));
        }
    }
    return MM_OK;
}

/* One layer of the cache as ref sees it: without index keys where the layer has none. */
static mm_layer_cache cache_like(const mm_layer_cache *c, const mm_layer_cache *real)
{
    mm_layer_cache out = *c;
    if (real->ik.data == NULL)
        out.ik = real->ik;
    return out;
}

/* ---------------------------------------------------------------- ops */

static int32_t layer_of(const mm_model *m, const void *part)
{
    return (int32_t)(((uintptr_t)part - (uintptr_t)m->layer) / sizeof *m->layer);
}

/* The layer's weights in host memory and checkpoint order. */
static const mm_layer *host_layer(const mm_model *m, int32_t i)
{
    return m->host.layer != NULL ? &m->host.layer[i] : &m->layer[i];
}

/* norm_w of an op that ends layer i's second branch. */
static const float *host_norm_after(const mm_model *m, int32_t i)
{
    if (i + 1 < m->config.n_layer)
        return host_layer(m, i + 1)->input_norm;
    return m->host.layer != NULL ? m->host.final_norm : m->final_norm;
}

static mm_status compare_stream(mm_model *m, const char *what_x, const char *what_h, int32_t layer,
                                const void *x, const void *h)
{
    struct mm_check_state *k = m->check;
    const int64_t n = k->seq.n_row, d = m->config.d_model;
    MM_TRY(mm_check_pull(m, k->have.x, x, stream_bytes(m)));
    MM_TRY(mm_check_pull(m, k->have.h, h, stream_bytes(m)));
    mm_check_values(m, what_x, layer, k->have.x, k->want.x, m->shape.act, mm_check_act(m), n, d);
    mm_check_values(m, what_h, layer, k->have.h, k->want.h, m->shape.act, mm_check_act(m), n, d);
    return MM_OK;
}

static mm_status check_embed(const mm_op_context *c, const mm_seq_view *seq, const mm_embed_args *a)
{
    mm_model *m = mm_check_model(c);
    struct mm_check_state *k = m->check;
    mm_embed_args b = *a;
    MM_TRY(pull_step(m, seq));
    b.embed = m->host.layer != NULL ? &m->host.embed : &m->embed;
    b.norm_w = host_layer(m, 0)->input_norm;
    b.x = k->want.x;
    b.h = k->want.h;
    MM_TRY(k->ref->ops->embed(&k->ctx, &k->seq, &b));
    MM_TRY(k->real->embed(c, seq, a));
    return compare_stream(m, "embed x", "embed h", -1, a->x, a->h);
}

static mm_status check_attn_in(const mm_op_context *c, const mm_seq_view *seq,
                               const mm_attn_in_args *a)
{
    mm_model *m = mm_check_model(c);
    struct mm_check_state *k = m->check;
    const mm_op_shape *s = &m->shape;
    const int32_t layer = layer_of(m, a->w);
    const mm_layer_cache want = cache_like(&k->want_cache, a->cache);
    mm_attn_in_args b = *a;
    MM_TRY(mm_check_pull(m, k->have.h, a->h, stream_bytes(m)));
    b.w = &host_layer(m, layer)->attn;
    b.h = k->have.h;
    b.cache = &want;
    b.q = k->want.q;
    b.iq = a->iq != NULL ? k->want.iq : NULL;
    MM_TRY(k->ref->ops->attn_in(&k->ctx, &k->seq, &b));
    MM_TRY(k->real->attn_in(c, seq, a));
    MM_TRY(mm_check_pull(m, k->have.q, a->q, head_bytes(m)));
    mm_check_values(m, "attn_in q", layer, k->have.q, b.q, s->act, mm_check_act(m), seq->n_row,
                    (int64_t)s->n_head * s->head_dim);
    if (a->iq != NULL) {
        MM_TRY(mm_check_pull(m, k->have.iq, a->iq, index_bytes(m)));
        mm_check_values(m, "attn_in iq", layer, k->have.iq, b.iq, s->act, mm_check_act(m),
                        seq->n_row, (int64_t)s->n_index_head * s->index_dim);
    }
    MM_TRY(pull_cache(m, a->cache, false));
    mm_check_plane(m, "attn_in k", layer, &k->have_cache.k, &want.k, s->n_rotary);
    mm_check_plane(m, "attn_in v", layer, &k->have_cache.v, &want.v, 0);
    if (a->cache->ik.data != NULL)
        mm_check_plane(m, "attn_in ik", layer, &k->have_cache.ik, &want.ik, s->n_rotary);
    return MM_OK;
}

static mm_status check_attn_sparse(const mm_op_context *c, const mm_seq_view *seq,
                                   const mm_attn_sparse_args *a)
{
    mm_model *m = mm_check_model(c);
    struct mm_check_state *k = m->check;
    const mm_op_shape *s = &m->shape;
    const int32_t layer = (int32_t)(a->cache - m->cache);
    const int64_t n_id = (int64_t)s->n_index_head * seq->n_row * s->n_top_block;
    mm_attn_sparse_args real = *a, b = *a;
    real.blocks = m->buf.blocks; /* choices are compared even when no trace asks for them */
    MM_TRY(mm_check_pull(m, k->have.q, a->q, head_bytes(m)));
    MM_TRY(mm_check_pull(m, k->have.iq, a->iq, index_bytes(m)));
    MM_TRY(pull_cache(m, a->cache, true));
    if (a->force)
        MM_TRY(mm_check_pull(m, k->want.blocks, a->blocks, n_id * (int64_t)sizeof(int16_t)));
    b.cache = &k->have_cache;
    b.q = k->have.q;
    b.iq = k->have.iq;
    b.blocks = k->want.blocks;
    b.n_read = NULL;
    b.o = k->want.o;
    MM_TRY(k->ref->ops->attn_sparse(&k->ctx, &k->seq, &b));
    MM_TRY(k->real->attn_sparse(c, seq, &real));
    MM_TRY(mm_check_pull(m, k->have.blocks, real.blocks, n_id * (int64_t)sizeof(int16_t)));
    const mm_check_choice choice = mm_check_blocks(m, layer);
    if (choice == MM_CHECK_WRONG)
        return MM_OK; /* other blocks, other output */
    if (choice == MM_CHECK_TIES) {
        b.force = true;
        b.blocks = k->have.blocks;
        MM_TRY(k->ref->ops->attn_sparse(&k->ctx, &k->seq, &b));
    }
    MM_TRY(mm_check_pull(m, k->have.o, a->o, head_bytes(m)));
    mm_check_values(m, "attn_sparse o", layer, k->have.o, b.o, s->act, mm_check_act(m), seq->n_row,
                    (int64_t)s->n_head * s->head_dim);
    return MM_OK;
}

static mm_status check_attn_dense(const mm_op_context *c, const mm_seq_view *seq,
                                  const mm_attn_dense_args *a)
{
    mm_model *m = mm_check_model(c);
    struct mm_check_state *k = m->check;
    const mm_op_shape *s = &m->shape;
    const mm_layer_cache have = cache_like(&k->have_cache, a->cache);
    mm_attn_dense_args b = *a;
    MM_TRY(mm_check_pull(m, k->have.q, a->q, head_bytes(m)));
    MM_TRY(pull_cache(m, a->cache, true));
    b.cache = &have;
    b.q = k->have.q;
    b.o = k->want.o;
    MM_TRY(k->ref->ops->attn_dense(&k->ctx, &k->seq, &b));
    MM_TRY(k->real->attn_dense(c, seq, a));
    MM_TRY(mm_check_pull(m, k->have.o, a->o, head_bytes(m)));
    mm_check_values(m, "attn_dense o", (int32_t)(a->cache - m->cache), k->have.o, b.o, s->act,
                    mm_check_act(m), seq->n_row, (int64_t)s->n_head * s->head_dim);
    return MM_OK;
}

static mm_status check_attn_out(const mm_op_context *c, const mm_seq_view *seq,
                                const mm_attn_out_args *a)
{
    mm_model *m = mm_check_model(c);
    struct mm_check_state *k = m->check;
    const int32_t layer = layer_of(m, a->wo);
    const mm_layer *host = host_layer(m, layer);
    const int64_t n_id = (int64_t)seq->n_row * m->shape.n_expert_used;
    mm_attn_out_args b = *a;
    MM_TRY(mm_check_pull(m, k->want.x, a->x, stream_bytes(m)));
    MM_TRY(mm_check_pull(m, k->have.o, a->o, head_bytes(m)));
    b.wo = &host->attn.o;
    b.o = k->have.o;
    b.x = k->want.x;
    b.norm_w = host->post_norm;
    b.h = k->want.h;
    if (a->gate != NULL) {
        b.gate = host->gate;
        b.bias = host->bias;
        b.experts = k->want.experts;
        b.weights = k->want.expert_weights;
        if (a->force)
            MM_TRY(pull_ints(m, b.experts, a->experts, n_id));
    }
    MM_TRY(k->ref->ops->attn_out(&k->ctx, &k->seq, &b));
    MM_TRY(k->real->attn_out(c, seq, a));
    MM_TRY(compare_stream(m, "attn_out x", "attn_out h", layer, a->x, a->h));
    if (a->gate == NULL)
        return MM_OK;
    MM_TRY(pull_ints(m, k->have.experts, a->experts, n_id));
    MM_TRY(mm_check_pull(m, k->have.expert_weights, a->weights, n_id * (int64_t)sizeof(float)));
    mm_check_experts(m, host, layer);
    return MM_OK;
}

static mm_status check_mlp(const mm_op_context *c, const mm_seq_view *seq, const mm_mlp_args *a)
{
    mm_model *m = mm_check_model(c);
    struct mm_check_state *k = m->check;
    const int32_t layer = layer_of(m, a->gate);
    const mm_layer *host = host_layer(m, layer);
    mm_mlp_args b = *a;
    MM_TRY(mm_check_pull(m, k->want.x, a->x, stream_bytes(m)));
    MM_TRY(mm_check_pull(m, k->have.h, a->h, stream_bytes(m)));
    b.gate = &host->mlp_gate;
    b.up = &host->mlp_up;
    b.down = &host->mlp_down;
    b.gate_up = (mm_weight){0};
    b.h = k->have.h;
    b.x = k->want.x;
    b.norm_w = host_norm_after(m, layer);
    b.h_out = k->want.h;
    MM_TRY(k->ref->ops->mlp(&k->ctx, &k->seq, &b));
    MM_TRY(k->real->mlp(c, seq, a));
    return compare_stream(m, "mlp x", "mlp h", layer, a->x, a->h_out);
}

static mm_status check_moe(const mm_op_context *c, const mm_seq_view *seq, const mm_moe_args *a)
{
    mm_model *m = mm_check_model(c);
    struct mm_check_state *k = m->check;
    const int32_t layer = layer_of(m, a->w);
    const int64_t n_id = (int64_t)seq->n_row * m->shape.n_expert_used;
    const int64_t acc_bytes = (int64_t)seq->n_row * m->config.d_model * (int64_t)sizeof(float);
    mm_moe_args b = *a;
    MM_TRY(mm_check_pull(m, k->want.x, a->x, stream_bytes(m)));
    MM_TRY(mm_check_pull(m, k->have.h, a->h, stream_bytes(m)));
    MM_TRY(pull_ints(m, k->have.experts, a->experts, n_id));
    MM_TRY(mm_check_pull(m, k->have.expert_weights, a->weights, n_id * (int64_t)sizeof(float)));
    if (a->accumulate)
        MM_TRY(mm_check_pull(m, k->want.acc, a->acc, acc_bytes));
    b.w = &host_layer(m, layer)->expert;
    b.h = k->have.h;
    b.experts = k->have.experts;
    b.weights = k->have.expert_weights;
    b.acc = k->want.acc;
    b.x = k->want.x;
    b.norm_w = host_norm_after(m, layer);
    b.h_out = k->want.h;
    MM_TRY(k->ref->ops->moe(&k->ctx, &k->seq, &b));
    MM_TRY(k->real->moe(c, seq, a));
    return a->finish ? compare_stream(m, "moe x", "moe h", layer, a->x, a->h_out) : MM_OK;
}

static mm_status check_head(const mm_op_context *c, const mm_head_args *a)
{
    mm_model *m = mm_check_model(c);
    struct mm_check_state *k = m->check;
    const int64_t n = (int64_t)a->n_out * m->config.n_vocab;
    mm_head_args b = *a;
    MM_TRY(mm_check_pull(m, k->have.h, a->h, stream_bytes(m)));
    MM_TRY(pull_ints(m, k->row, a->row, a->n_out));
    b.w = m->host.layer != NULL ? &m->host.head : &m->head;
    b.h = k->have.h;
    b.row = k->row;
    b.logits = k->want_logits;
    MM_TRY(k->ref->ops->head(&k->ctx, &b));
    MM_TRY(k->real->head(c, a));
    MM_TRY(mm_check_pull(m, k->have_logits, a->logits, n * (int64_t)sizeof(float)));
    mm_check_values(m, "head logits", -1, k->have_logits, b.logits, MM_DTYPE_F32, &mm_check_sums,
                    a->n_out, m->config.n_vocab);
    return MM_OK;
}

/* ---------------------------------------------------------------- open, close */

/* `format`: of the copy. */
static mm_status open_plane(struct mm_check_state *k, mm_plane *p, const mm_plane *like,
                            mm_cache_format format)
{
    const int64_t n_row = like->n_page * like->n_head * MM_PAGE;
    *p = *like;
    p->format = format;
    p->scale = NULL;
    MM_TRY(mm_check_alloc(k, (void **)&p->data, n_row * mm_cache_row_bytes(format, p->dim)));
    const int64_t n_scale = mm_cache_row_scale_bytes(format, p->dim);
    return n_scale == 0 ? MM_OK : mm_check_alloc(k, (void **)&p->scale, n_row * n_scale);
}

/* As the model stores it; is_exact: unrounded, in f32. */
static mm_status open_cache(mm_model *m, struct mm_check_state *k, mm_layer_cache *c, bool is_exact)
{
    const mm_op_shape *s = &m->shape;
    const mm_cache_format kv = is_exact ? MM_CACHE_F32 : s->kv_format,
                          index = is_exact ? MM_CACHE_F32 : s->index_format;
    for (int32_t i = 0; i < m->config.n_layer; i++)
        if (m->layer[i].is_sparse && c->ik.data == NULL)
            MM_TRY(open_plane(k, &c->ik, &m->cache[i].ik, index));
    MM_TRY(open_plane(k, &c->k, &m->cache[0].k, kv));
    return open_plane(k, &c->v, &m->cache[0].v, kv);
}

static mm_status open_buffers(const mm_model *m, struct mm_check_state *k, mm_buffers *b)
{
    const mm_op_shape *s = &m->shape;
    const int64_t T = s->max_rows, act = (int64_t)mm_dtype_size(s->act);
    MM_TRY(mm_check_alloc(k, &b->x, T * s->d_model * act));
    MM_TRY(mm_check_alloc(k, &b->h, T * s->d_model * act));
    MM_TRY(mm_check_alloc(k, &b->q, T * s->n_head * s->head_dim * act));
    MM_TRY(mm_check_alloc(k, &b->o, T * s->n_head * s->head_dim * act));
    MM_TRY(mm_check_alloc(k, &b->iq, T * s->n_index_head * s->index_dim * act));
    MM_TRY(mm_check_alloc(k, (void **)&b->experts, T * s->n_expert_used * 4));
    MM_TRY(mm_check_alloc(k, (void **)&b->expert_weights, T * s->n_expert_used * 4));
    MM_TRY(mm_check_alloc(k, (void **)&b->acc, T * s->d_model * 4));
    return mm_check_alloc(k, (void **)&b->blocks, T * s->n_index_head * s->n_top_block * 2);
}

static mm_status open_step(const mm_model *m, struct mm_check_state *k)
{
    const mm_op_shape *s = &m->shape;
    const int64_t T = s->max_rows, S = s->max_seqs + 1;
    const int64_t n_page = mm_ceil_div(s->max_model_len, MM_PAGE);
    k->seq.slots = &k->slots;
    MM_TRY(mm_check_alloc(k, (void **)&k->seq.row_start, (S + 1) * 4));
    MM_TRY(mm_check_alloc(k, (void **)&k->seq.slot, S * 4));
    MM_TRY(mm_check_alloc(k, (void **)&k->seq.row_seq, T * 4));
    MM_TRY(mm_check_alloc(k, (void **)&k->seq.pos, T * 4));
    MM_TRY(mm_check_alloc(k, (void **)&k->seq.token, T * 4));
    MM_TRY(mm_check_alloc(k, (void **)&k->slots.page_table, S * n_page * 4));
    MM_TRY(mm_check_alloc(k, (void **)&k->slots.last_token, S * 4));
    return mm_check_alloc(k, (void **)&k->row, s->max_logit_rows * 4);
}

static mm_status open_memory(mm_model *m, struct mm_check_state *k)
{
    const mm_op_shape *s = &m->shape;
    const int64_t rope = (int64_t)s->max_model_len * s->n_rotary * 4;
    const int64_t logits = (int64_t)s->max_logit_rows * s->n_vocab * 4;
    MM_TRY(open_step(m, k));
    MM_TRY(open_cache(m, k, &k->want_cache, true));
    MM_TRY(open_cache(m, k, &k->have_cache, false));
    MM_TRY(open_buffers(m, k, &k->want));
    MM_TRY(open_buffers(m, k, &k->have));
    MM_TRY(mm_check_alloc(k, (void **)&k->want_logits, logits));
    MM_TRY(mm_check_alloc(k, (void **)&k->have_logits, logits));
    void *table;
    MM_TRY(mm_check_alloc(k, &table, rope));
    k->ctx.rope = table;
    return mm_check_pull(m, table, m->ctx.rope, rope);
}

mm_status mm_check_open(mm_model *m)
{
    m->ops = m->backend->ops;
    if (!mm_env_get()->check)
        return MM_OK;
    if (m->ctx.comm->world != 1)
        return MM_FAIL_PARAM(MM_E_CONFIG, "MM_CHECK", -1,
                             "MM_CHECK=1 runs ref beside one rank: use tensor_parallel_size=1");
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
    MM_TRY(mm_check_sample_open(m));
    MM_TRY(mm_check_expand_open(m));
    k->real = m->backend->ops;
    k->ops = *k->real;
    k->ops.decode_layers = NULL;
    k->ops.expand = mm_check_expand;
    k->ops.embed = check_embed;
    k->ops.attn_in = check_attn_in;
    k->ops.attn_sparse = check_attn_sparse;
    k->ops.attn_dense = check_attn_dense;
    k->ops.attn_out = check_attn_out;
    k->ops.mlp = check_mlp;
    k->ops.moe = check_moe;
    k->ops.head = check_head;
    k->ops.sample = mm_check_sample;
    k->ops.logprobs = mm_check_logprobs;
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
    if (k->n_compared > 0)
        mm_log(MM_LOG_INFO, "check: %lld results of ops compared with ref, %lld differ",
               (long long)k->n_compared, (long long)k->n_bad);
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
