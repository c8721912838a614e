/* model.c: opening the model of one rank: sizes, memory, weights, cache planes, rope table.
 * Everything that a step needs is allocated here; the order is cheap checks first, so that a wrong
 * argument costs no loading. */
#include <math.h>
#include <stdio.h>

#include "csrc/base/log.h"
#include "csrc/model/check.h"
#include "csrc/model/config.h"
#include "csrc/model/probe.h"
#include "csrc/model/shape.h"
#include "csrc/model/weights.h"

static mm_status alloc(mm_model *m, void **out, int64_t n_bytes)
{
    void **grown = realloc(m->block, ((size_t)m->n_block + 1) * sizeof *grown);
    if (grown == NULL)
        return MM_FAIL(MM_E_NOMEM, "no memory for the list of buffers");
    m->block = grown;
    MM_TRY(m->backend->alloc(m->backend, out, (size_t)mm_max_i64(n_bytes, 1)));
    m->block[m->n_block++] = *out;
    return MM_OK;
}

static void note_memory(mm_model *m, const char *what, const char *kind, int64_t n_bytes)
{
    if (n_bytes > 0 && m->n_memory < (int32_t)MM_ARRAY_LEN(m->memory))
        m->memory[m->n_memory++] = (mm_memory_line){.what = what, .kind = kind, .n_bytes = n_bytes};
}

static const char *backend_kind(const mm_model *m)
{
    return m->backend->props.is_host ? "host" : "device";
}

static mm_status check_options(const mm_engine_options *o, const mm_model_options *opt)
{
    if (o->dtype != MM_DTYPE_F32 && o->dtype != MM_DTYPE_BF16)
        return MM_FAIL_PARAM(MM_E_CONFIG, "dtype", -1, "dtype %s: activations are BF16 or F32",
                             mm_dtype_name(o->dtype));
    if (o->max_model_len < 1 || o->max_model_len > o->config->max_position)
        return MM_FAIL_PARAM(MM_E_CONFIG, "max_model_len", -1,
                             "max_model_len is %d, expected 1 to max_position_embeddings %d",
                             o->max_model_len, o->config->max_position);
    if (o->max_num_seqs < 1 || o->max_batched_tokens < 1 || opt->n_page < 1 ||
        opt->max_logit_rows < 1)
        return MM_FAIL(MM_E_CONFIG,
                       "limits of a step: %d sequences, %d rows, %d logit rows, %lld pages: each "
                       "must be at least 1",
                       o->max_num_seqs, o->max_batched_tokens, opt->max_logit_rows,
                       (long long)opt->n_page);
    return MM_OK;
}

static void set_limits(mm_op_shape *s, const mm_engine_options *o, const mm_model_options *opt)
{
    s->act = o->dtype;
    s->max_rows = o->max_batched_tokens > o->max_num_seqs ? o->max_batched_tokens : o->max_num_seqs;
    s->max_seqs = o->max_num_seqs;
    s->max_model_len = o->max_model_len;
    s->max_logit_rows = opt->max_logit_rows;
    s->kv_format = o->kv_format;
    s->index_format = o->index_format;
}

/* ---------------------------------------------------------------- memory */

static mm_status open_plane(mm_model *m, mm_plane *p, mm_cache_format format, int32_t n_head,
                            int32_t dim, int64_t *total)
{
    const int64_t n_row = m->n_page * n_head * MM_PAGE;
    const int64_t n_data = n_row * mm_cache_row_bytes(format, dim),
                  n_scale = n_row * mm_cache_row_scale_bytes(format, dim);
    *p = (mm_plane){.format = format, .n_head = n_head, .dim = dim, .n_page = m->n_page};
    MM_TRY(alloc(m, (void **)&p->data, n_data));
    if (n_scale > 0)
        MM_TRY(alloc(m, (void **)&p->scale, n_scale));
    *total += n_data + n_scale;
    return MM_OK;
}

static mm_status open_cache(mm_model *m)
{
    const mm_op_shape *s = &m->shape;
    int64_t kv = 0, index = 0;
    m->cache = calloc((size_t)m->config.n_layer, sizeof *m->cache);
    if (m->cache == NULL)
        return MM_FAIL(MM_E_NOMEM, "no memory for the planes of %d layers", m->config.n_layer);
    for (int32_t i = 0; i < m->config.n_layer; i++) {
        MM_TRY(open_plane(m, &m->cache[i].k, s->kv_format, s->n_kv_head, s->head_dim, &kv));
        MM_TRY(open_plane(m, &m->cache[i].v, s->kv_format, s->n_kv_head, s->head_dim, &kv));
        if (m->layer[i].is_sparse)
            MM_TRY(open_plane(m, &m->cache[i].ik, s->index_format, 1, s->index_dim, &index));
    }
    note_memory(m, "KV pages", backend_kind(m), kv);
    note_memory(m, "index key pages", backend_kind(m), index);
    return MM_OK;
}

static mm_status open_buffers(mm_model *m)
{
    const mm_op_shape *s = &m->shape;
    const int64_t T = s->max_rows, act = (int64_t)mm_dtype_size(s->act);
    int64_t total = 0;
    const struct {
        void **out;
        int64_t n_bytes;
    } part[] = {
        {&m->buf.x, T * s->d_model * act},
        {&m->buf.h, T * s->d_model * act},
        {&m->buf.q, T * s->n_head * s->head_dim * act},
        {&m->buf.o, T * s->n_head * s->head_dim * act},
        {&m->buf.iq, T * s->n_index_head * s->index_dim * act},
        {(void **)&m->buf.experts, T * s->n_expert_used * (int64_t)sizeof(int32_t)},
        {(void **)&m->buf.expert_weights, T * s->n_expert_used * (int64_t)sizeof(float)},
        {(void **)&m->buf.acc, T * s->d_model * (int64_t)sizeof(float)},
        {(void **)&m->buf.blocks, T * s->n_index_head * s->n_top_block * (int64_t)sizeof(int16_t)},
        {(void **)&m->buf.n_read, 2 * (int64_t)sizeof(int64_t)},
    };
    for (size_t i = 0; i < MM_ARRAY_LEN(part); i++) {
        MM_TRY(alloc(m, part[i].out, part[i].n_bytes));
        total += part[i].n_bytes;
    }
    note_memory(m, "activations", backend_kind(m), total);
    return MM_OK;
}

/* Angles in float64, rounded once: at a million positions an f32 angle would be off by 0.07 rad. */
static mm_status open_rope(mm_model *m)
{
    const int64_t half = m->config.n_rotary / 2, row = 2 * half, n = m->shape.max_model_len;
    double freq[256]; /* head_dim is at most 512 */
    for (int64_t j = 0; j < half; j++)
        freq[j] = pow(m->config.rope_theta, -2.0 * (double)j / (double)(2 * half));
    void *table;
    MM_TRY(alloc(m, &table, n * row * (int64_t)sizeof(float)));
    m->ctx.rope = table;
    const int64_t piece = (int64_t)(MM_MODEL_STAGE / sizeof(float)) / row;
    float *stage = m->stage;
    for (int64_t p = 0; p < n; p += piece) {
        const int64_t k = mm_min_i64(piece, n - p);
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = 0; j < half; j++) {
                const double angle = (double)(p + i) * freq[j];
                stage[i * row + j] = (float)cos(angle);
                stage[i * row + half + j] = (float)sin(angle);
            }
        MM_TRY(m->backend->upload(m->backend, m->ctx.stream, (float *)table + p * row, stage,
                                  (size_t)(k * row) * sizeof(float)));
        MM_TRY(m->backend->sync(m->backend, m->ctx.stream));
        MM_TRY(mm_weights_poll(m->weights));
    }
    note_memory(m, "rope table", backend_kind(m), n * row * (int64_t)sizeof(float));
    return MM_OK;
}

/* ---------------------------------------------------------------- layers */

static mm_status open_layers(mm_model *m)
{
    const mm_config *c = &m->config;
    m->layer = calloc((size_t)c->n_layer, sizeof *m->layer);
    if (m->layer == NULL)
        return MM_FAIL(MM_E_NOMEM, "no memory for %d layers", c->n_layer);
    for (int32_t i = 0; i < c->n_layer; i++) {
        mm_layer *layer = &m->layer[i];
        layer->is_sparse = c->layer_is_sparse[i] != 0;
        layer->is_moe = c->layer_is_moe[i] != 0;
        if (!layer->is_moe)
            continue;
        mm_weight *w = calloc(3 * (size_t)c->n_expert, sizeof *w);
        if (w == NULL)
            return MM_FAIL(MM_E_NOMEM, "no memory for the %d experts of layer %d", c->n_expert, i);
        layer->expert.w1 = w;
        layer->expert.w3 = w + c->n_expert;
        layer->expert.w2 = w + 2 * (size_t)c->n_expert;
    }
    return MM_OK;
}

static mm_status load_weights(mm_model *m, const mm_model_options *opt)
{
    MM_TRY(mm_weights_load(m->weights, m, opt->shard_rank, opt->shard_world));
    if (m->backend->props.is_host) {
        note_memory(m, "weights (checkpoint files)", "mapped", m->weights->n_mapped);
        note_memory(m, "weights (copies)", "host", m->weights->owned.n_bytes);
    } else {
        note_memory(m, "weights", "device", m->weights->device.n_bytes);
    }
    return MM_OK;
}

/* What a backend cannot take is, to the reader of the message, a config that cannot run. */
static mm_status check_shape(const mm_model *m)
{
    const mm_status st = m->backend->ops->check_shape(&m->shape);
    if (st != MM_E_UNSUPPORTED)
        return st;
    mm_error e;
    mm_error_take(&e, MM_E_CONFIG);
    return mm_error_raise(&e, "");
}

static mm_status open_stream(mm_model *m)
{
    const mm_ops *ops = m->backend->ops;
    MM_TRY(check_shape(m));
    const size_t scratch = ops->scratch_bytes(&m->shape, m->backend->props.n_thread);
    MM_TRY(m->backend->stream_open(m->backend, &m->ctx.stream, scratch));
    MM_TRY(m->backend->alloc_host(m->backend, &m->stage, MM_MODEL_STAGE));
    note_memory(m, "scratch of ops", backend_kind(m), (int64_t)scratch);
    note_memory(m, "staging", "host", (int64_t)MM_MODEL_STAGE);
    return MM_OK;
}

static mm_status open_model(mm_model *m, const mm_model_options *opt)
{
    const mm_engine_options *o = opt->engine;
    MM_TRY(mm_config_check(o->config));
    MM_TRY(mm_shard_check(o->config, opt->shard_rank, opt->shard_world));
    MM_TRY(check_options(o, opt));
    MM_TRY(mm_config_copy(&m->config, o->config));
    m->backend = opt->backend;
    m->n_page = opt->n_page;
    mm_shape_fill(&m->shape, &m->config, opt->shard_rank, opt->shard_world);
    set_limits(&m->shape, o, opt);
    m->ctx = (mm_op_context){.shape = &m->shape, .comm = opt->comm};
    MM_TRY(open_stream(m));
    MM_TRY(open_layers(m));
    MM_TRY(mm_weights_open(&m->weights, o, m->backend, &m->ctx));
    MM_TRY(mm_weights_bind(m->weights, m, opt->shard_rank, opt->shard_world));
    MM_TRY(open_cache(m));
    MM_TRY(open_buffers(m));
    MM_TRY(load_weights(m, opt));
    MM_TRY(open_rope(m));
    MM_TRY(mm_check_open(m));
    MM_TRY(mm_probe_open(m));
    mm_weights_seal(m->weights);
    return MM_OK;
}

mm_status mm_model_open(mm_model **out, const mm_model_options *opt)
{
    *out = NULL;
    mm_model *m = calloc(1, sizeof *m);
    if (m == NULL)
        return MM_FAIL(MM_E_NOMEM, "no memory for the model");
    const mm_status st = open_model(m, opt);
    if (st != MM_OK) {
        mm_model_close(m);
        return st;
    }
    *out = m;
    return MM_OK;
}

void mm_model_close(mm_model *m)
{
    if (m == NULL)
        return;
    mm_probe_close(m);
    mm_check_close(m);
    mm_weights_close(m->weights);
    for (int32_t i = 0; i < m->n_block; i++)
        m->backend->free(m->backend, m->block[i]);
    free(m->block);
    if (m->stage != NULL)
        m->backend->free_host(m->backend, m->stage);
    if (m->ctx.stream != NULL)
        m->backend->stream_close(m->backend, m->ctx.stream);
    for (int32_t i = 0; m->layer != NULL && i < m->config.n_layer; i++)
        free((void *)(uintptr_t)m->layer[i].expert.w1); /* w1, w3, w2 are one block */
    free(m->layer);
    free(m->cache);
    mm_config_free(&m->config);
    free(m);
}
