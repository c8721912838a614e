/* model.c: opening the model of one rank: sizes, memory, weights, cache planes, rope table.
 * Everything that a step needs is allocated here; the order is cheap checks first, so that a wrong
 * argument costs no loading. */
#include <math.h>
#include <stdio.h>

#include "csrc/base/log.h"
#include "csrc/model/check.h"
#include "csrc/model/config.h"
#include "csrc/model/probe.h"
#include "csrc/model/profile.h"
#include "csrc/model/shape.h"
#include "csrc/model/weights.h"

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
    if (o->max_num_seqs < 1 || o->max_batched_tokens < 1 ||
        (opt->plan == NULL && opt->n_page < 1) || opt->max_logit_rows < 1)
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
    s->invariant = o->batch_invariant != 0;
    s->kv_format = o->kv_format;
    s->index_format = o->index_format;
}

/* ---------------------------------------------------------------- memory */

/* One allocation per purpose; its parts are laid out twice: to know the size, then to place them.
 */
enum { ACTIVATIONS, ROPE, PAGES };

typedef struct layout {
    uint8_t *base; /* NULL: only counting */
    int64_t n_bytes;
} layout;

static void *part(layout *l, int64_t n_bytes)
{
    void *p = l->base != NULL && n_bytes > 0 ? l->base + l->n_bytes : NULL;
    l->n_bytes += mm_round_up(n_bytes, 256);
    return p;
}

static mm_status open_block(mm_model *m, int which, layout *l)
{
    void *p;
    MM_TRY(m->backend->alloc(m->backend, &p, (size_t)mm_max_i64(l->n_bytes, 1)));
    m->block[which] = p;
    *l = (layout){.base = p};
    return MM_OK;
}

static void lay_plane(layout *l, mm_plane *p, int64_t n_page, mm_cache_format format,
                      int32_t n_head, int32_t dim)
{
    const int64_t n_row = n_page * n_head * MM_PAGE;
    *p = (mm_plane){.format = format, .n_head = n_head, .dim = dim, .n_page = n_page};
    p->data = part(l, n_row * mm_cache_row_bytes(format, dim));
    p->scale = part(l, n_row * mm_cache_row_scale_bytes(format, dim));
}

/* All planes; the bytes of the index keys are returned apart. */
static int64_t lay_cache(mm_model *m, layout *l)
{
    const mm_op_shape *s = &m->shape;
    int64_t index = 0;
    for (int32_t i = 0; i < m->config.n_layer; i++) {
        lay_plane(l, &m->cache[i].k, m->n_page, s->kv_format, s->n_kv_head, s->head_dim);
        lay_plane(l, &m->cache[i].v, m->n_page, s->kv_format, s->n_kv_head, s->head_dim);
        const int64_t before = l->n_bytes;
        if (m->layer[i].is_sparse)
            lay_plane(l, &m->cache[i].ik, m->n_page, s->index_format, 1, s->index_dim);
        index += l->n_bytes - before;
    }
    return index;
}

static mm_status open_cache(mm_model *m)
{
    layout l = {0};
    m->cache = calloc((size_t)m->config.n_layer, sizeof *m->cache);
    if (m->cache == NULL)
        return MM_FAIL(MM_E_NOMEM, "no memory for the planes of %d layers", m->config.n_layer);
    const int64_t index = lay_cache(m, &l), kv = l.n_bytes - index;
    MM_TRY(open_block(m, PAGES, &l));
    (void)lay_cache(m, &l);
    note_memory(m, "KV pages", backend_kind(m), kv);
    note_memory(m, "index key pages", backend_kind(m), index);
    return MM_OK;
}

/* ---------------------------------------------------------------- dummy context */

/* Noise that every format decodes to finite values near 1: bytes of f32 or bf16 normals, of e4m3
 * codes, of pairs of e2m1 codes; scales of 1. */
static void fill_noise(uint8_t *out, int64_t n, mm_cache_format format, bool is_scale)
{
    uint64_t state = 88172645463325252u;
    for (int64_t i = 0; i < n; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        const uint32_t r = (uint32_t)(state >> 32);
        const uint32_t sign = r & 0x80;
        const int64_t at = format == MM_CACHE_F32 ? i % 4 : i % 2;
        const bool is_top = at == (format == MM_CACHE_F32 ? 3 : 1);
        if (is_scale)
            out[i] = 0x38; /* 1.0 */
        else if (format == MM_CACHE_FP8)
            out[i] = (uint8_t)(sign | (0x28 + r % 24)); /* 0.25 .. 1.875 */
        else if (format == MM_CACHE_NVFP4 || !is_top)
            out[i] = (uint8_t)r; /* two codes, or mantissa bits */
        else
            out[i] = (uint8_t)(sign | 0x3F); /* exponent: 0.5 .. 2 */
    }
}

/* One tile goes up, the rest of the plane is copied from what is there. */
static mm_status noise_plane(mm_model *m, uint8_t *plane, int64_t n, mm_cache_format format,
                             bool is_scale, int *tile)
{
    mm_backend *b = m->backend;
    const int kind = 2 * (int)format + is_scale;
    int64_t done = mm_min_i64(n, (int64_t)MM_MODEL_STAGE);
    if (n == 0)
        return MM_OK;
    if (*tile != kind) /* the tile of the plane before serves as well */
        fill_noise(m->stage, (int64_t)MM_MODEL_STAGE, format, is_scale);
    *tile = kind;
    MM_TRY(b->upload(b, m->ctx.stream, plane, m->stage, (size_t)done));
    MM_TRY(b->sync(b, m->ctx.stream));
    for (int64_t k; done < n; done += k) {
        k = mm_min_i64(done, n - done);
        MM_TRY(b->copy(b, m->ctx.stream, plane + done, plane, (size_t)k));
    }
    return b->sync(b, m->ctx.stream);
}

/* Pages of a context that was never computed (dummy_context). */
static mm_status noise_cache(mm_model *m)
{
    int tile = -1;
    for (int32_t i = 0; i < m->config.n_layer; i++) {
        const mm_plane *plane[] = {&m->cache[i].k, &m->cache[i].v, &m->cache[i].ik};
        for (size_t j = 0; j < MM_ARRAY_LEN(plane); j++) {
            const mm_plane *p = plane[j];
            const int64_t n_row = p->n_page * p->n_head * MM_PAGE;
            MM_TRY(noise_plane(m, p->data, n_row * mm_cache_row_bytes(p->format, p->dim), p->format,
                               false, &tile));
            MM_TRY(noise_plane(m, p->scale, n_row * mm_cache_row_scale_bytes(p->format, p->dim),
                               p->format, true, &tile));
        }
    }
    return MM_OK;
}

static void lay_buffers(const mm_op_shape *s, mm_buffers *b, layout *l)
{
    const int64_t T = s->max_rows, act = (int64_t)mm_dtype_size(s->act);
    b->x = part(l, T * s->d_model * act);
    b->h = part(l, T * s->d_model * act);
    b->q = part(l, T * s->n_head * s->head_dim * act);
    b->o = part(l, T * s->n_head * s->head_dim * act);
    b->iq = part(l, T * s->n_index_head * s->index_dim * act);
    b->experts = part(l, T * s->n_expert_used * (int64_t)sizeof(int32_t));
    b->expert_weights = part(l, T * s->n_expert_used * (int64_t)sizeof(float));
    b->acc = part(l, T * s->d_model * (int64_t)sizeof(float));
    b->blocks = part(l, T * s->n_index_head * s->n_top_block * (int64_t)sizeof(int16_t));
    b->n_read = part(l, 2 * (int64_t)sizeof(int64_t));
}

static mm_status open_buffers(mm_model *m)
{
    layout l = {0};
    lay_buffers(&m->shape, &m->buf, &l);
    MM_TRY(open_block(m, ACTIVATIONS, &l));
    lay_buffers(&m->shape, &m->buf, &l);
    return MM_OK;
}

static int64_t rope_row_bytes(const mm_model *m)
{
    return m->config.n_rotary / 2 * 2 * (int64_t)sizeof(float);
}

/* Angles in float64, rounded once: at a million positions an f32 angle would be off by 0.07 rad. */
typedef struct rope_rows {
    const double *freq;
    float *out;
    int64_t first, half;
} rope_rows;

static void fill_rope(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    const rope_rows *r = ctx;
    (void)i_thread;
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < r->half; j++) {
            const double angle = (double)(r->first + i) * r->freq[j];
            r->out[i * 2 * r->half + j] = (float)cos(angle);
            r->out[i * 2 * r->half + r->half + j] = (float)sin(angle);
        }
}

static mm_status open_rope(mm_model *m)
{
    const int64_t half = m->config.n_rotary / 2, row = 2 * half, n = m->shape.max_model_len;
    double freq[256]; /* head_dim is at most 512 */
    for (int64_t j = 0; j < half; j++)
        freq[j] = pow(m->config.rope_theta, -2.0 * (double)j / (double)(2 * half));
    layout l = {.n_bytes = n * rope_row_bytes(m)};
    MM_TRY(open_block(m, ROPE, &l));
    float *table = (float *)(void *)l.base;
    m->ctx.rope = table;
    const int64_t piece = (int64_t)(MM_MODEL_STAGE / sizeof(float)) / row;
    for (int64_t p = 0; p < n; p += piece) {
        const int64_t k = mm_min_i64(piece, n - p);
        rope_rows r = {.freq = freq, .out = m->stage, .first = p, .half = half};
        mm_pool_run(m->weights->pool, k, 64, fill_rope, &r);
        MM_TRY(m->backend->upload(m->backend, m->ctx.stream, table + p * row, m->stage,
                                  (size_t)(k * row) * sizeof(float)));
        MM_TRY(m->backend->sync(m->backend, m->ctx.stream));
        MM_TRY(mm_weights_poll(m->weights));
    }
    return MM_OK;
}

/* Everything but the pages, before any of it is allocated. */
static mm_status measure(mm_model *m)
{
    const mm_backend_props *p = &m->backend->props;
    layout activations = {0};
    mm_buffers none;
    lay_buffers(&m->shape, &none, &activations);
    m->scratch_bytes = (int64_t)m->backend->ops->scratch_bytes(&m->shape, p->n_thread);
    MM_TRY(mm_weights_measure(m->weights, m));
    note_memory(m, "weights", "device", m->weights->n_device);
    note_memory(m, "rope table", backend_kind(m), m->shape.max_model_len * rope_row_bytes(m));
    note_memory(m, "activations", backend_kind(m), activations.n_bytes);
    note_memory(m, "scratch of ops", backend_kind(m), m->scratch_bytes);
    note_memory(m, "staging", "host", (int64_t)MM_MODEL_STAGE);
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
    }
    return MM_OK;
}

/* What a backend cannot take is, to the reader of the message, a config that cannot run. */
static mm_status check_shape(const mm_model *m)
{
    const mm_status st = m->backend->ops->check_shape(m->backend, &m->shape);
    if (st != MM_E_UNSUPPORTED)
        return st;
    mm_error e;
    mm_error_take(&e, MM_E_CONFIG);
    return mm_error_raise(&e, "");
}

static mm_status open_stream(mm_model *m)
{
    MM_TRY(m->backend->stream_open(m->backend, &m->ctx.stream, (size_t)m->scratch_bytes));
    return m->backend->alloc_host(m->backend, &m->stage, MM_MODEL_STAGE);
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
    MM_TRY(check_shape(m));
    MM_TRY(open_layers(m));
    MM_TRY(mm_weights_open(&m->weights, o, m->backend, &m->ctx));
    MM_TRY(mm_weights_bind(m->weights, m, opt->shard_rank, opt->shard_world));
    MM_TRY(measure(m));
    if (opt->plan != NULL)
        MM_TRY(opt->plan(opt->plan_ctx, m, &m->n_page));
    MM_TRY(mm_probe_open(m)); /* before the long part: it may refuse */
    MM_TRY(open_stream(m));
    MM_TRY(open_cache(m));
    if (o->dummy_context)
        MM_TRY(noise_cache(m));
    MM_TRY(open_buffers(m));
    MM_TRY(load_weights(m, opt));
    MM_TRY(open_rope(m));
    MM_TRY(mm_check_open(m));
    MM_TRY(mm_profile_open(m));
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
    mm_profile_close(m);
    mm_probe_close(m);
    mm_check_close(m);
    mm_weights_close(m->weights);
    for (size_t i = 0; i < MM_ARRAY_LEN(m->block); i++)
        if (m->block[i] != NULL)
            m->backend->free(m->backend, m->block[i]);
    if (m->stage != NULL)
        m->backend->free_host(m->backend, m->stage);
    if (m->ctx.stream != NULL)
        m->backend->stream_close(m->backend, m->ctx.stream);
    for (int32_t i = 0; m->layer != NULL && i < m->config.n_layer; i++)
        free((void *)(uintptr_t)m->layer[i].expert.w1); /* w1, w3, w2 are one block */
    for (int32_t i = 0; m->host.layer != NULL && i < m->config.n_layer; i++)
        free((void *)(uintptr_t)m->host.layer[i].expert.w1);
    free(m->host.layer);
    free(m->layer);
    free(m->cache);
    mm_config_free(&m->config);
    free(m);
}
