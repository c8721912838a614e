/* cpu_model.h: a whole random model driven op by op, for the tests of the cpu backend and its
 * benchmark: layer 0 has dense attention and a dense MLP, the others sparse attention and experts.
 * Caches belong to a host, weights to the model. */
#ifndef MM_CPU_MODEL_H
#define MM_CPU_MODEL_H
#include "cpu_fixture.h"

typedef struct model_sizes {
    mm_dtype act;
    mm_weight_format linear, expert; /* of projections and dense MLPs; of routed experts */
    mm_cache_format kv, index;
    int32_t n_layer, d_model, n_head, n_kv_head, head_dim, n_expert, n_expert_used, d_expert,
        d_shared, d_dense, n_vocab;
    int32_t n_top_block, max_model_len, max_rows, max_seqs;
} model_sizes;

typedef struct model {
    model_sizes z;
    mm_op_shape shape;
    mm_layer *layer;
    float *ones, *rope; /* norm weights (of every layer), table */
    mm_weight embed, head;
} model;

static inline float *random_floats(uint64_t *seed, int64_t n, float scale)
{
    float *p = malloc((size_t)n * sizeof(float));
    random_fill(seed, MM_DTYPE_F32, scale, p, n);
    return p;
}

static inline void open_layer(model *m, uint64_t *seed, mm_layer *l, bool is_first)
{
    const model_sizes *z = &m->z;
    const int32_t q = z->n_head * z->head_dim, kv = z->n_kv_head * z->head_dim;
    *l = (mm_layer){
        .is_sparse = !is_first, .is_moe = !is_first, .input_norm = m->ones, .post_norm = m->ones};
    l->attn.q = random_weight(seed, z->linear, q, z->d_model, 0);
    l->attn.k = random_weight(seed, z->linear, kv, z->d_model, 0);
    l->attn.v = random_weight(seed, z->linear, kv, z->d_model, 0);
    l->attn.o = random_weight(seed, z->linear, z->d_model, q, 0);
    l->attn.q_norm = l->attn.k_norm = l->attn.iq_norm = l->attn.ik_norm = m->ones;
    if (is_first) {
        l->mlp_gate = random_weight(seed, z->linear, z->d_dense, z->d_model, 0);
        l->mlp_up = random_weight(seed, z->linear, z->d_dense, z->d_model, 0);
        l->mlp_down = random_weight(seed, z->linear, z->d_model, z->d_dense, 0);
        return;
    }
    l->attn.iq = random_weight(seed, z->linear, kv, z->d_model, 0);
    l->attn.ik = random_weight(seed, z->linear, z->head_dim, z->d_model, 0);
    l->gate = random_floats(seed, (int64_t)z->n_expert * z->d_model, 0.02f);
    l->bias = random_floats(seed, z->n_expert, 0.01f);
    mm_weight *w[3];
    for (int k = 0; k < 3; k++) {
        w[k] = malloc(sizeof(mm_weight) * (size_t)z->n_expert);
        for (int32_t e = 0; e < z->n_expert; e++)
            w[k][e] = k < 2 ? random_weight(seed, z->expert, z->d_expert, z->d_model, 0)
                            : random_weight(seed, z->expert, z->d_model, z->d_expert, 0);
    }
    l->expert = (mm_expert_weights){.w1 = w[0], .w3 = w[1], .w2 = w[2]};
    l->expert.shared_gate = random_weight(seed, z->linear, z->d_shared, z->d_model, 0);
    l->expert.shared_up = random_weight(seed, z->linear, z->d_shared, z->d_model, 0);
    l->expert.shared_down = random_weight(seed, z->linear, z->d_model, z->d_shared, 0);
}

static inline void open_model(model *m, const model_sizes *z)
{
    uint64_t seed = 42;
    const int32_t half = z->head_dim / 4,
                  widest = z->d_model > z->head_dim ? z->d_model : z->head_dim;
    *m = (model){.z = *z};
    m->shape = (mm_op_shape){.act = z->act,
                             .d_model = z->d_model,
                             .n_head = z->n_head,
                             .n_kv_head = z->n_kv_head,
                             .head_dim = z->head_dim,
                             .n_rotary = 2 * half,
                             .n_index_head = z->n_kv_head,
                             .index_dim = z->head_dim,
                             .n_kv_head_total = z->n_kv_head,
                             .n_top_block = z->n_top_block,
                             .n_init_block = 0,
                             .n_expert = z->n_expert,
                             .n_expert_used = z->n_expert_used,
                             .d_expert = z->d_expert,
                             .d_shared = z->d_shared,
                             .d_dense = z->d_dense,
                             .n_vocab = z->n_vocab,
                             .n_vocab_local = z->n_vocab,
                             .eps = 1e-6f,
                             .swiglu_alpha = 1.702f,
                             .swiglu_beta = 1.0f,
                             .swiglu_limit = 7.0f,
                             .routed_scale = 2.0f,
                             .max_rows = z->max_rows,
                             .max_seqs = z->max_seqs,
                             .max_model_len = z->max_model_len,
                             .max_logit_rows = z->max_seqs,
                             .kv_format = z->kv,
                             .index_format = z->index};
    for (int i = 0; i < 16; i++)
        m->shape.never_token[i] = -1;
    m->ones = random_floats(&seed, widest, 0.1f);
    m->rope = malloc(sizeof(float) * (size_t)z->max_model_len * 2 * (size_t)half);
    for (int32_t p = 0; p < z->max_model_len; p++) {
        for (int32_t j = 0; j < half; j++) {
            const double angle = (double)p * pow(10000.0, -(double)j / half);
            m->rope[(int64_t)p * 2 * half + j] = (float)cos(angle);
            m->rope[(int64_t)p * 2 * half + half + j] = (float)sin(angle);
        }
    }
    m->embed = random_weight(&seed, MM_WEIGHT_BF16, z->n_vocab, z->d_model, 0);
    m->head = random_weight(&seed, MM_WEIGHT_BF16, z->n_vocab, z->d_model, 0);
    m->layer = calloc((size_t)z->n_layer, sizeof(mm_layer));
    for (int32_t i = 0; i < z->n_layer; i++)
        open_layer(m, &seed, &m->layer[i], i == 0);
}

static inline void close_layer(const model *m, mm_layer *l)
{
    mm_attn_weights *a = &l->attn;
    mm_expert_weights *x = &l->expert;
    mm_weight *const all[] = {&a->q,        &a->k,           &a->v,         &a->o,
                              &a->iq,       &a->ik,          &l->mlp_gate,  &l->mlp_up,
                              &l->mlp_down, &x->shared_gate, &x->shared_up, &x->shared_down};
    for (size_t i = 0; i < MM_ARRAY_LEN(all); i++)
        free_weight(all[i]);
    const mm_weight *const expert[] = {x->w1, x->w3, x->w2};
    for (int k = 0; k < 3; k++) {
        for (int32_t e = 0; e < m->z.n_expert && expert[k] != NULL; e++)
            free_weight((mm_weight *)(uintptr_t)&expert[k][e]);
        free((void *)(uintptr_t)expert[k]);
    }
    free((void *)(uintptr_t)l->gate);
    free((void *)(uintptr_t)l->bias);
}

static inline void close_model(model *m)
{
    for (int32_t i = 0; i < m->z.n_layer; i++)
        close_layer(m, &m->layer[i]);
    free_weight(&m->embed);
    free_weight(&m->head);
    free(m->layer);
    free(m->ones);
    free(m->rope);
}

/* A host with the caches and activations of max_seqs sequences; sequence i has slot i and its own
 * pages, in reverse order. */
typedef struct session {
    const model *m;
    host host;
    mm_layer_cache *cache;
    mm_slots slots;
    void *x, *h, *q, *iq, *o;
    int32_t *experts;
    float *expert_weights, *acc, *logits; /* logits [max_seqs, V] */
    int32_t *row_start, *slot, *row_seq, *pos, *token, *last;
} session;

static inline mm_plane open_plane(mm_cache_format format, int32_t n_head, int32_t dim,
                                  int64_t n_page)
{
    const size_t rows = (size_t)(n_page * n_head * MM_PAGE),
                 scale = (size_t)mm_cache_row_scale_bytes(format, dim);
    return (mm_plane){.format = format,
                      .n_head = n_head,
                      .dim = dim,
                      .n_page = n_page,
                      .data = calloc(rows, (size_t)mm_cache_row_bytes(format, dim)),
                      .scale = scale > 0 ? calloc(rows, scale) : NULL};
}

static inline mm_status open_session(session *s, const model *m, const char *tier, int n_thread)
{
    const model_sizes *z = &m->z;
    const size_t rows = (size_t)z->max_rows, f = 4;
    const int64_t per_seq = mm_ceil_div(z->max_model_len, MM_PAGE), n_page = per_seq * z->max_seqs;
    *s = (session){.m = m};
    MM_TRY(open_host(&s->host, tier, n_thread, &m->shape, 0));
    s->cache = calloc((size_t)z->n_layer, sizeof(mm_layer_cache));
    for (int32_t i = 0; i < z->n_layer; i++) {
        s->cache[i].k = open_plane(z->kv, z->n_kv_head, z->head_dim, n_page);
        s->cache[i].v = open_plane(z->kv, z->n_kv_head, z->head_dim, n_page);
        if (m->layer[i].is_sparse)
            s->cache[i].ik = open_plane(z->index, 1, z->head_dim, n_page);
    }
    s->slots = (mm_slots){.n_slot = z->max_seqs, .page_stride = (int32_t)per_seq};
    s->slots.page_table = malloc((size_t)n_page * sizeof(int32_t));
    for (int64_t i = 0; i < n_page; i++)
        s->slots.page_table[i] = (int32_t)(n_page - 1 - i);
    s->x = malloc(rows * f * (size_t)z->d_model);
    s->h = malloc(rows * f * (size_t)z->d_model);
    s->q = malloc(rows * f * (size_t)(z->n_head * z->head_dim));
    s->iq = malloc(rows * f * (size_t)(z->n_kv_head * z->head_dim));
    s->o = malloc(rows * f * (size_t)(z->n_head * z->head_dim));
    s->acc = malloc(rows * f * (size_t)z->d_model);
    s->experts = malloc(rows * f * (size_t)z->n_expert_used);
    s->expert_weights = malloc(rows * f * (size_t)z->n_expert_used);
    s->logits = malloc(f * (size_t)z->max_seqs * (size_t)z->n_vocab);
    s->row_start = malloc(f * (size_t)(z->max_seqs + 1));
    s->slot = malloc(f * (size_t)z->max_seqs);
    s->last = malloc(f * (size_t)z->max_seqs);
    s->row_seq = malloc(f * rows);
    s->pos = malloc(f * rows);
    s->token = malloc(f * rows);
    return MM_OK;
}

static inline void close_session(session *s)
{
    for (int32_t i = 0; s->cache != NULL && i < s->m->z.n_layer; i++) {
        mm_plane *const p[] = {&s->cache[i].k, &s->cache[i].v, &s->cache[i].ik};
        for (int j = 0; j < 3; j++) {
            free(p[j]->data);
            free(p[j]->scale);
        }
    }
    void *const all[] = {s->cache,   s->slots.page_table,
                         s->x,       s->h,
                         s->q,       s->iq,
                         s->o,       s->acc,
                         s->experts, s->expert_weights,
                         s->logits,  s->row_start,
                         s->slot,    s->last,
                         s->row_seq, s->pos,
                         s->token};
    for (size_t i = 0; i < MM_ARRAY_LEN(all); i++)
        free(all[i]);
    close_host(&s->host);
}

/* One step: sequence i adds n_row[i] tokens (made up from slot and position) from position pos[i];
 * slots first, first + 1,
 * ... The logits of the last row of each are in s->logits. */
static inline mm_status run_step(session *s, int32_t first, int32_t n_seq, const int32_t *pos,
                                 const int32_t *n_row)
{
    const model *m = s->m;
    const mm_ops *ops = s->host.backend->ops;
    const mm_op_context c = {
        .stream = s->host.stream, .shape = &m->shape, .comm = s->host.comm, .rope = m->rope};
    int32_t t = 0;
    mm_seq_view seq = {.n_seq = n_seq,
                       .is_decode = true,
                       .row_start = s->row_start,
                       .slot = s->slot,
                       .row_seq = s->row_seq,
                       .pos = s->pos,
                       .token = s->token,
                       .slots = &s->slots};
    for (int32_t i = 0; i < n_seq; i++) {
        s->slot[i] = first + i;
        s->row_start[i] = t;
        for (int32_t j = 0; j < n_row[i]; j++, t++) {
            s->row_seq[t] = i;
            s->pos[t] = pos[i] + j;
            s->token[t] =
                (int32_t)(((uint32_t)(pos[i] + j) * 2654435761u + (uint32_t)(first + i) * 977u) %
                          (uint32_t)m->z.n_vocab);
        }
        s->last[i] = t - 1;
        seq.max_pos = pos[i] + n_row[i] > seq.max_pos ? pos[i] + n_row[i] : seq.max_pos;
        seq.is_decode = seq.is_decode && n_row[i] <= MM_MAX_DECODE_ROWS;
    }
    s->row_start[n_seq] = seq.n_row = t;
    const mm_embed_args embed = {.embed = &m->embed, .norm_w = m->ones, .x = s->x, .h = s->h};
    MM_TRY(ops->embed(&c, &seq, &embed));
    for (int32_t i = 0; i < m->z.n_layer; i++) {
        const mm_layer *l = &m->layer[i];
        const mm_attn_in_args in = {.w = &l->attn,
                                    .cache = &s->cache[i],
                                    .h = s->h,
                                    .q = s->q,
                                    .iq = l->is_sparse ? s->iq : NULL};
        MM_TRY(ops->attn_in(&c, &seq, &in));
        const mm_attn_sparse_args sparse = {
            .cache = &s->cache[i], .q = s->q, .iq = s->iq, .o = s->o};
        const mm_attn_dense_args dense = {.cache = &s->cache[i], .q = s->q, .o = s->o};
        MM_TRY(l->is_sparse ? ops->attn_sparse(&c, &seq, &sparse)
                            : ops->attn_dense(&c, &seq, &dense));
        const mm_attn_out_args out = {.wo = &l->attn.o,
                                      .o = s->o,
                                      .x = s->x,
                                      .norm_w = l->post_norm,
                                      .h = s->h,
                                      .gate = l->gate,
                                      .bias = l->bias,
                                      .experts = s->experts,
                                      .weights = s->expert_weights};
        MM_TRY(ops->attn_out(&c, &seq, &out));
        const mm_mlp_args mlp = {.gate = &l->mlp_gate,
                                 .up = &l->mlp_up,
                                 .down = &l->mlp_down,
                                 .h = s->h,
                                 .x = s->x,
                                 .norm_w = l->input_norm,
                                 .h_out = s->h};
        const mm_moe_args moe = {.w = &l->expert,
                                 .last = m->z.n_expert,
                                 .with_shared = true,
                                 .finish = true,
                                 .h = s->h,
                                 .experts = s->experts,
                                 .weights = s->expert_weights,
                                 .acc = s->acc,
                                 .x = s->x,
                                 .norm_w = l->input_norm,
                                 .h_out = s->h};
        MM_TRY(l->is_moe ? ops->moe(&c, &seq, &moe) : ops->mlp(&c, &seq, &mlp));
    }
    const mm_head_args head = {
        .w = &m->head, .h = s->h, .row = s->last, .n_out = n_seq, .logits = s->logits};
    return ops->head(&c, &head);
}
#endif
