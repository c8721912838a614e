/* bind.c: Hub names to slots, and how each slot is cut into ranks: q, k, v, iq by heads (rows), o
 * and down by columns, gate, up, w1, w3 by rows, lm_head by vocabulary rows; index k, norms,
 * routers and the embedding are whole everywhere. */
#include <stdio.h>

#include "csrc/model/config.h"
#include "csrc/model/weights.h"

typedef struct binder {
    mm_weights *w;
    mm_model *m;
    int32_t rank, world;
    int32_t i_layer;
} binder;

static const char *layer_name(char name[160], const binder *b, const char *part)
{
    snprintf(name, 160, "model.layers.%d.%s", b->i_layer, part);
    return name;
}

static mm_status rows(binder *b, const char *part, int64_t n_out, int64_t n_in, int64_t first,
                      int64_t n, mm_weight *out)
{
    char name[160];
    return mm_weights_matrix(b->w, layer_name(name, b, part), n_out, n_in,
                             (mm_slice){first, n, 0, n_in}, out);
}

/* Even cuts of the output or input side. */
static mm_status rows_even(binder *b, const char *part, int64_t n_out, int64_t n_in, mm_weight *out)
{
    const int64_t n = n_out / b->world;
    return rows(b, part, n_out, n_in, b->rank * n, n, out);
}

static mm_status cols_even(binder *b, const char *part, int64_t n_out, int64_t n_in, mm_weight *out)
{
    char name[160];
    const int64_t n = n_in / b->world;
    return mm_weights_matrix(b->w, layer_name(name, b, part), n_out, n_in,
                             (mm_slice){0, n_out, b->rank * n, n}, out);
}

static mm_status floats(binder *b, const char *part, int64_t n_row, int64_t n_col,
                        const float **out)
{
    char name[160];
    return mm_weights_floats(b->w, layer_name(name, b, part), n_row, n_col, out);
}

static mm_status bind_attention(binder *b, mm_layer *layer)
{
    const mm_config *c = &b->m->config;
    const mm_op_shape *s = &b->m->shape;
    mm_attn_weights *a = &layer->attn;
    const int64_t d = c->head_dim, di = c->index_dim, D = c->d_model;
    MM_TRY(rows_even(b, "self_attn.q_proj", c->n_head * d, D, &a->q));
    MM_TRY(rows(b, "self_attn.k_proj", c->n_kv_head * d, D, s->kv_head_first * d, s->n_kv_head * d,
                &a->k));
    MM_TRY(rows(b, "self_attn.v_proj", c->n_kv_head * d, D, s->kv_head_first * d, s->n_kv_head * d,
                &a->v));
    MM_TRY(cols_even(b, "self_attn.o_proj", D, c->n_head * d, &a->o));
    MM_TRY(floats(b, "self_attn.q_norm.weight", 0, d, &a->q_norm));
    MM_TRY(floats(b, "self_attn.k_norm.weight", 0, d, &a->k_norm));
    if (!layer->is_sparse)
        return MM_OK;
    MM_TRY(rows(b, "self_attn.index_q_proj", c->n_index_head * di, D, s->kv_head_first * di,
                s->n_index_head * di, &a->iq));
    MM_TRY(rows(b, "self_attn.index_k_proj", di, D, 0, di, &a->ik));
    MM_TRY(floats(b, "self_attn.index_q_norm.weight", 0, di, &a->iq_norm));
    return floats(b, "self_attn.index_k_norm.weight", 0, di, &a->ik_norm);
}

static mm_status bind_mlp(binder *b, const char *prefix, int64_t width, mm_weight *gate,
                          mm_weight *up, mm_weight *down)
{
    char part[96];
    const int64_t D = b->m->config.d_model;
    snprintf(part, sizeof part, "%sgate_proj", prefix);
    MM_TRY(rows_even(b, part, width, D, gate));
    snprintf(part, sizeof part, "%sup_proj", prefix);
    MM_TRY(rows_even(b, part, width, D, up));
    snprintf(part, sizeof part, "%sdown_proj", prefix);
    return cols_even(b, part, D, width, down);
}

static mm_status bind_moe(binder *b, mm_layer *layer)
{
    const mm_config *c = &b->m->config;
    mm_expert_weights *e = &layer->expert;
    char part[96];
    MM_TRY(floats(b, "block_sparse_moe.gate.weight", c->n_expert, c->d_model, &layer->gate));
    if (c->has_routing_bias)
        MM_TRY(floats(b, "block_sparse_moe.e_score_correction_bias", 0, c->n_expert, &layer->bias));
    for (int32_t i = 0; i < c->n_expert; i++) {
        snprintf(part, sizeof part, "block_sparse_moe.experts.%d.w1", i);
        MM_TRY(rows_even(b, part, c->d_expert, c->d_model, (mm_weight *)(uintptr_t)&e->w1[i]));
        snprintf(part, sizeof part, "block_sparse_moe.experts.%d.w3", i);
        MM_TRY(rows_even(b, part, c->d_expert, c->d_model, (mm_weight *)(uintptr_t)&e->w3[i]));
        snprintf(part, sizeof part, "block_sparse_moe.experts.%d.w2", i);
        MM_TRY(cols_even(b, part, c->d_model, c->d_expert, (mm_weight *)(uintptr_t)&e->w2[i]));
    }
    if (c->d_shared == 0)
        return MM_OK;
    return bind_mlp(b, "block_sparse_moe.shared_experts.", c->d_shared, &e->shared_gate,
                    &e->shared_up, &e->shared_down);
}

static mm_status bind_layer(binder *b, int32_t i)
{
    mm_layer *layer = &b->m->layer[i];
    const int64_t D = b->m->config.d_model;
    b->i_layer = i;
    MM_TRY(floats(b, "input_layernorm.weight", 0, D, &layer->input_norm));
    MM_TRY(floats(b, "post_attention_layernorm.weight", 0, D, &layer->post_norm));
    MM_TRY(bind_attention(b, layer));
    return layer->is_moe ? bind_moe(b, layer)
                         : bind_mlp(b, "mlp.", b->m->config.d_dense, &layer->mlp_gate,
                                    &layer->mlp_up, &layer->mlp_down);
}

static mm_status bind_ends(binder *b)
{
    mm_model *m = b->m;
    const mm_op_shape *s = &m->shape;
    const int64_t V = m->config.n_vocab, D = m->config.d_model;
    MM_TRY(mm_weights_matrix(b->w, "model.embed_tokens", V, D, (mm_slice){0, V, 0, D}, &m->embed));
    if (m->embed.format != MM_WEIGHT_NONE && m->embed.format != MM_WEIGHT_F32 &&
        m->embed.format != MM_WEIGHT_BF16)
        mm_problems_add(&b->w->problems, "model.embed_tokens",
                        "model.embed_tokens is quantised, expected BF16 or F32");
    MM_TRY(mm_weights_matrix(b->w, "lm_head", V, D,
                             (mm_slice){s->vocab_first, s->n_vocab_local, 0, D}, &m->head));
    return mm_weights_floats(b->w, "model.norm.weight", 0, D, &m->final_norm);
}

/* ---------------------------------------------------------------- to a device */

/* Everything below runs twice: measuring, which must change nothing in the layer, and for good. */

static mm_status place_layer_floats(mm_weights *w, const mm_model *m, mm_layer *l)
{
    const mm_config *c = &m->config;
    const struct {
        const float **v;
        int64_t n;
    } part[] = {
        {&l->input_norm, c->d_model},
        {&l->post_norm, c->d_model},
        {&l->attn.q_norm, c->head_dim},
        {&l->attn.k_norm, c->head_dim},
        {&l->attn.iq_norm, l->is_sparse ? c->index_dim : 0},
        {&l->attn.ik_norm, l->is_sparse ? c->index_dim : 0},
        {&l->gate, l->is_moe ? (int64_t)c->n_expert * c->d_model : 0},
        {&l->bias, l->is_moe && c->has_routing_bias ? c->n_expert : 0},
    };
    for (size_t i = 0; i < MM_ARRAY_LEN(part); i++)
        if (part[i].n > 0)
            MM_TRY(mm_weights_place_floats(w, part[i].v, part[i].n));
    return MM_OK;
}

static mm_status place_unpacked(mm_weights *w, mm_layer *layer, int32_t n_expert)
{
    mm_attn_weights *a = &layer->attn;
    mm_expert_weights *e = &layer->expert;
    mm_weight *const fixed[] = {&a->q,
                                &a->k,
                                &a->v,
                                &a->iq,
                                &a->ik,
                                &a->o,
                                &layer->mlp_gate,
                                &layer->mlp_up,
                                &layer->mlp_down,
                                &e->shared_gate,
                                &e->shared_up,
                                &e->shared_down};
    enum { N_FIXED = MM_ARRAY_LEN(fixed) };
    const int32_t n = N_FIXED + (layer->is_moe ? 3 * n_expert : 0);
    mm_weight **list = malloc((size_t)n * sizeof *list);
    if (list == NULL)
        return MM_FAIL(MM_E_NOMEM, "no memory for the weights of a layer");
    memcpy(list, fixed, sizeof fixed);
    for (int32_t i = N_FIXED; i < n; i++) {
        const int32_t j = (i - N_FIXED) % n_expert, which = (i - N_FIXED) / n_expert;
        list[i] = (mm_weight *)(uintptr_t)&(which == 0 ? e->w1 : which == 1 ? e->w3 : e->w2)[j];
    }
    const mm_status st = mm_weights_place(w, list, n);
    free(list);
    return st;
}

/* The host view stays where a packing replaced it only in its sizes: nothing may read it. */
static void forget_data(const mm_weights *w, mm_weight *m)
{
    if (w->is_measuring)
        return;
    m->data = NULL;
    m->scale = NULL;
}

static mm_status pack_one(mm_weights *w, mm_weight *m)
{
    const mm_weight src = *m;
    if (src.format == MM_WEIGHT_NONE)
        return MM_OK;
    return mm_weights_pack(w, MM_PACK_LINEAR, &src, 1, m);
}

/* Experts as w1[0], w3[0], w1[1], w3[1], ... and w2[0], w2[1], ... */
static mm_status pack_experts(mm_weights *w, mm_expert_weights *e, int32_t n_expert)
{
    mm_weight *src = malloc(2 * (size_t)n_expert * sizeof *src);
    if (src == NULL)
        return MM_FAIL(MM_E_NOMEM, "no memory for the weights of a layer");
    for (int32_t i = 0; i < n_expert; i++) {
        src[2 * i] = e->w1[i];
        src[2 * i + 1] = e->w3[i];
    }
    mm_status st = mm_weights_pack(w, MM_PACK_EXPERTS_W13, src, 2 * n_expert, &e->packed_w13);
    if (st == MM_OK)
        st = mm_weights_pack(w, MM_PACK_EXPERTS_W2, e->w2, n_expert, &e->packed_w2);
    free(src);
    for (int32_t i = 0; i < n_expert && st == MM_OK; i++) {
        forget_data(w, (mm_weight *)(uintptr_t)&e->w1[i]);
        forget_data(w, (mm_weight *)(uintptr_t)&e->w3[i]);
        forget_data(w, (mm_weight *)(uintptr_t)&e->w2[i]);
    }
    return st;
}

static mm_status place_packed(mm_weights *w, mm_layer *layer, int32_t n_expert)
{
    mm_attn_weights *a = &layer->attn;
    const mm_weight qkv[5] = {a->q, a->k, a->v, a->iq, a->ik};
    MM_TRY(mm_weights_pack(w, MM_PACK_QKV, qkv, layer->is_sparse ? 5 : 3, &a->qkv));
    forget_data(w, &a->q);
    forget_data(w, &a->k);
    forget_data(w, &a->v);
    forget_data(w, &a->iq);
    forget_data(w, &a->ik);
    MM_TRY(pack_one(w, &a->o));
    if (!layer->is_moe) {
        const mm_weight gate_up[2] = {layer->mlp_gate, layer->mlp_up};
        MM_TRY(mm_weights_pack(w, MM_PACK_GATE_UP, gate_up, 2, &layer->mlp_gate_up));
        forget_data(w, &layer->mlp_gate);
        forget_data(w, &layer->mlp_up);
        return pack_one(w, &layer->mlp_down);
    }
    mm_expert_weights *e = &layer->expert;
    if (e->shared_gate.format != MM_WEIGHT_NONE) {
        const mm_weight gate_up[2] = {e->shared_gate, e->shared_up};
        MM_TRY(mm_weights_pack(w, MM_PACK_GATE_UP, gate_up, 2, &e->shared_gate_up));
        forget_data(w, &e->shared_gate);
        forget_data(w, &e->shared_up);
        MM_TRY(pack_one(w, &e->shared_down));
    }
    return pack_experts(w, e, n_expert);
}

/* What ref reads beside a device: the layer as it was bound, its experts' list of its own. */
static mm_status keep_layer(mm_model *m, int32_t i)
{
    const int32_t n_expert = m->config.n_expert;
    if (m->host.layer == NULL)
        m->host.layer = calloc((size_t)m->config.n_layer, sizeof *m->host.layer);
    if (m->host.layer == NULL)
        return MM_FAIL(MM_E_NOMEM, "no memory for the host's view of the layers");
    mm_layer *to = &m->host.layer[i];
    *to = m->layer[i];
    if (!to->is_moe)
        return MM_OK;
    mm_weight *list = malloc(3 * (size_t)n_expert * sizeof *list);
    if (list == NULL)
        return MM_FAIL(MM_E_NOMEM, "no memory for the experts of layer %d", i);
    memcpy(list, m->layer[i].expert.w1, 3 * (size_t)n_expert * sizeof *list); /* one block */
    to->expert.w1 = list;
    to->expert.w3 = list + n_expert;
    to->expert.w2 = list + 2 * (size_t)n_expert;
    return MM_OK;
}

static mm_status place_layer(mm_weights *w, mm_model *m, int32_t i)
{
    mm_layer *layer = &m->layer[i];
    const int32_t n_expert = m->config.n_expert;
    if (w->keeps_host && !w->is_measuring)
        MM_TRY(keep_layer(m, i));
    MM_TRY(place_layer_floats(w, m, layer));
    return w->backend->ops->pack != NULL ? place_packed(w, layer, n_expert)
                                         : place_unpacked(w, layer, n_expert);
}

static mm_status place_ends(mm_weights *w, mm_model *m)
{
    mm_weight *const ends[2] = {&m->embed, &m->head};
    const bool packs = w->backend->ops->pack != NULL;
    if (!w->is_measuring) {
        m->host.embed = m->embed;
        m->host.head = m->head;
        m->host.final_norm = m->final_norm;
    }
    MM_TRY(mm_weights_place_floats(w, &m->final_norm, m->config.d_model));
    MM_TRY(mm_weights_place(w, ends, packs ? 1 : 2));
    return packs ? pack_one(w, &m->head) : MM_OK;
}

static mm_status bind_all(binder *b)
{
    MM_TRY(bind_ends(b));
    for (int32_t i = 0; i < b->m->config.n_layer; i++)
        MM_TRY(bind_layer(b, i));
    return mm_weights_judge(b->w, &b->m->n_tensor_unused);
}

/* Files are cheap to look at, so all of them are judged here. Dummy weights are only measured. */
mm_status mm_weights_bind(mm_weights *w, mm_model *m, int32_t shard_rank, int32_t shard_world)
{
    binder b = {.w = w, .m = m, .rank = shard_rank, .world = shard_world};
    w->is_counting = w->options->load == MM_LOAD_DUMMY;
    const mm_status st = bind_all(&b);
    w->is_counting = false;
    return st;
}

mm_status mm_weights_measure(mm_weights *w, mm_model *m)
{
    if (w->backend->props.is_host)
        return MM_OK;
    w->is_measuring = true;
    w->n_device = 0;
    mm_status st = place_ends(w, m);
    for (int32_t i = 0; i < m->config.n_layer && st == MM_OK; i++)
        st = place_layer(w, m, i);
    w->is_measuring = false;
    return st;
}

/* All cores of the machine on a device (its kernels need none), else what the backend was given. */
static mm_status open_pool(mm_weights *w)
{
    const mm_backend_props *p = &w->backend->props;
    int n = p->is_host ? p->n_thread : w->options->n_thread;
    if (n == 0)
        n = mm_physical_cores();
    return mm_pool_open(&w->pool, n);
}

/* Dummy weights are made and placed layer by layer: a device's host holds no more than a layer of
 * them. */
mm_status mm_weights_load(mm_weights *w, mm_model *m, int32_t shard_rank, int32_t shard_world)
{
    binder b = {.w = w, .m = m, .rank = shard_rank, .world = shard_world};
    const bool is_dummy = w->options->load == MM_LOAD_DUMMY, is_host = w->backend->props.is_host;
    MM_TRY(open_pool(w));
    if (!is_host)
        MM_TRY(w->backend->stream_open(w->backend, &w->ctx.stream, 0));
    if (is_dummy)
        MM_TRY(bind_ends(&b));
    if (!is_host) {
        MM_TRY(place_ends(w, m));
        MM_TRY(mm_weights_flush(w));
    }
    for (int32_t i = 0; i < m->config.n_layer; i++) {
        if (is_dummy)
            MM_TRY(bind_layer(&b, i));
        if (is_host)
            continue;
        MM_TRY(mm_weights_verify(w));
        MM_TRY(place_layer(w, m, i));
        MM_TRY(mm_weights_flush(w));
    }
    if (!is_host) /* the last uploads read memory that is let go now */
        MM_TRY(w->backend->sync(w->backend, w->ctx.stream));
    return mm_weights_verify(w);
}
