/* classes.c: see classes.h. The walk is that of bind.c (place_packed, place_unpacked): the same
 * packings, each rounded up to the alignment of a piece of the device block. */
#include "csrc/model/classes.h"
#include "csrc/model/weights.h"

enum { ALIGN = 256 }; /* of a piece: upload.c */

typedef struct counter {
    const mm_model *m;
    int64_t *out;
    bool is_host, packs;
} counter;

static void add_floats(const counter *c, mm_weight_class to, int64_t n)
{
    const int64_t n_bytes = n * (int64_t)sizeof(float);
    c->out[to] += c->is_host ? n_bytes : mm_round_up(n_bytes, ALIGN);
}

/* Codes and scales are two pieces where a matrix keeps its order. */
static void add_matrix(const counter *c, mm_weight_class to, const mm_weight *w)
{
    if (w->format == MM_WEIGHT_NONE)
        return;
    const int64_t code = w->n_out * mm_weight_row_bytes(w->format, w->n_in);
    const int64_t scale = w->n_out * mm_weight_row_scale_bytes(w->format, w->n_in);
    c->out[to] += c->is_host ? code + scale : mm_round_up(code, ALIGN) + mm_round_up(scale, ALIGN);
}

static int64_t packed(const counter *c, mm_pack kind, const mm_weight *src, int32_t n)
{
    const size_t size = c->m->backend->ops->pack_bytes(&c->m->shape, kind, src, n);
    return mm_round_up((int64_t)size, ALIGN);
}

static void add_linear(const counter *c, mm_weight_class to, const mm_weight *w)
{
    if (!c->packs)
        add_matrix(c, to, w);
    else if (w->format != MM_WEIGHT_NONE)
        c->out[to] += packed(c, MM_PACK_LINEAR, w, 1);
}

static void add_gate_up(const counter *c, mm_weight_class to, const mm_weight *gate,
                        const mm_weight *up)
{
    const mm_weight pair[2] = {*gate, *up};
    if (c->packs && gate->format != MM_WEIGHT_NONE) {
        c->out[to] += packed(c, MM_PACK_GATE_UP, pair, 2);
        return;
    }
    add_matrix(c, to, gate);
    add_matrix(c, to, up);
}

static void add_attention(const counter *c, const mm_layer *layer)
{
    const mm_attn_weights *a = &layer->attn;
    const mm_config *g = &c->m->config;
    const mm_weight qkv[5] = {a->q, a->k, a->v, a->iq, a->ik};
    if (c->packs) {
        const int64_t own = packed(c, MM_PACK_QKV, qkv, 3);
        c->out[MM_CLASS_ATTENTION] += own;
        if (layer->is_sparse) /* one packing of five: what the last two add */
            c->out[MM_CLASS_INDEX] += packed(c, MM_PACK_QKV, qkv, 5) - own;
    } else {
        for (int i = 0; i < 5; i++)
            add_matrix(c, i < 3 ? MM_CLASS_ATTENTION : MM_CLASS_INDEX, &qkv[i]);
    }
    add_linear(c, MM_CLASS_ATTENTION, &a->o);
    add_floats(c, MM_CLASS_SMALL, g->head_dim);
    add_floats(c, MM_CLASS_SMALL, g->head_dim);
    if (!layer->is_sparse)
        return;
    add_floats(c, MM_CLASS_SMALL, g->index_dim);
    add_floats(c, MM_CLASS_SMALL, g->index_dim);
}

/* All experts of a layer have one format; the list of a packing is w1[0], w3[0], w1[1], ... */
static void add_experts(const counter *c, const mm_expert_weights *e, int32_t n)
{
    mm_weight *src = c->packs ? malloc(2 * (size_t)n * sizeof *src) : NULL;
    if (src == NULL) {
        for (int32_t i = 0; i < n; i++) {
            add_matrix(c, MM_CLASS_EXPERTS, &e->w1[i]);
            add_matrix(c, MM_CLASS_EXPERTS, &e->w3[i]);
            add_matrix(c, MM_CLASS_EXPERTS, &e->w2[i]);
        }
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        src[2 * i] = e->w1[i];
        src[2 * i + 1] = e->w3[i];
    }
    c->out[MM_CLASS_EXPERTS] += packed(c, MM_PACK_EXPERTS_W13, src, 2 * n);
    c->out[MM_CLASS_EXPERTS] += packed(c, MM_PACK_EXPERTS_W2, e->w2, n);
    free(src);
}

static void add_layer(const counter *c, const mm_layer *layer)
{
    const mm_config *g = &c->m->config;
    const mm_expert_weights *e = &layer->expert;
    add_floats(c, MM_CLASS_SMALL, g->d_model);
    add_floats(c, MM_CLASS_SMALL, g->d_model);
    add_attention(c, layer);
    if (!layer->is_moe) {
        add_gate_up(c, MM_CLASS_DENSE, &layer->mlp_gate, &layer->mlp_up);
        add_linear(c, MM_CLASS_DENSE, &layer->mlp_down);
        return;
    }
    add_floats(c, MM_CLASS_SMALL, (int64_t)g->n_expert * g->d_model);
    if (g->has_routing_bias)
        add_floats(c, MM_CLASS_SMALL, g->n_expert);
    add_gate_up(c, MM_CLASS_SHARED, &e->shared_gate, &e->shared_up);
    add_linear(c, MM_CLASS_SHARED, &e->shared_down);
    add_experts(c, e, g->n_expert);
}

void mm_model_classes(const mm_model *m, int64_t out[MM_N_WEIGHT_CLASS])
{
    const counter c = {.m = m,
                       .out = out,
                       .is_host = m->backend->props.is_host,
                       .packs = !m->backend->props.is_host && m->backend->ops->pack != NULL};
    for (int i = 0; i < MM_N_WEIGHT_CLASS; i++)
        out[i] = 0;
    add_matrix(&c, MM_CLASS_EMBEDDING, &m->embed);
    add_linear(&c, MM_CLASS_HEAD, &m->head);
    add_floats(&c, MM_CLASS_SMALL, m->config.d_model);
    for (int32_t i = 0; i < m->config.n_layer; i++)
        add_layer(&c, &m->layer[i]);
}
