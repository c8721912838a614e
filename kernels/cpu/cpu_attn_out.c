/* cpu_attn_out.c: output projection, end of the branch, and the router on the normed rows. */
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

typedef struct route_run {
    const mm_cpu_run *r;
    const mm_attn_out_args *a;
    int64_t t;
    float *logit; /* [chunk, n_expert] */
} route_run;

static bool comes_before(const float *p, const float *bias, int32_t a, int32_t b)
{
    const float x = p[a] + (bias != NULL ? bias[a] : 0.0f),
                y = p[b] + (bias != NULL ? bias[b] : 0.0f);
    return x > y || (x == y && a < b);
}

/* The k best, ids ascending. */
static void choose_experts(const float *p, const float *bias, int32_t n, int32_t k, int32_t *out)
{
    int32_t n_out = 0;
    for (int32_t e = 0; e < n; e++) { /* kept sorted by rank */
        if (n_out == k && !comes_before(p, bias, e, out[k - 1]))
            continue;
        int32_t i = n_out < k ? n_out++ : k - 1;
        for (; i > 0 && comes_before(p, bias, e, out[i - 1]); i--)
            out[i] = out[i - 1];
        out[i] = e;
    }
    for (int32_t i = 1; i < n_out; i++) {
        const int32_t e = out[i];
        int32_t j = i;
        for (; j > 0 && out[j - 1] > e; j--)
            out[j] = out[j - 1];
        out[j] = e;
    }
}

static void route_rows(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    (void)i_thread;
    const route_run *x = ctx;
    const mm_op_shape *s = x->r->s;
    const int32_t k = s->n_expert_used;
    for (int64_t i = begin; i < end; i++) {
        float *p = x->logit + i * s->n_expert, sum = 0.0f;
        int32_t *experts = x->a->experts + (x->t + i) * k;
        float *weights = x->a->weights + (x->t + i) * k;
        const bool is_nan = x->r->isa->math->has_nan(p, s->n_expert);
        for (int32_t e = 0; e < s->n_expert; e++)
            p[e] = 1.0f / (1.0f + expf(-p[e]));
        for (int32_t j = 0; j < k && is_nan && !x->a->force; j++)
            experts[j] = j;
        if (!is_nan && !x->a->force)
            choose_experts(p, x->a->bias, s->n_expert, k, experts);
        for (int32_t j = 0; j < k; j++)
            sum += p[experts[j]];
        for (int32_t j = 0; j < k; j++)
            weights[j] = is_nan ? NAN : p[experts[j]] / sum;
    }
}

static mm_status route(const mm_cpu_run *r, const mm_attn_out_args *a, int64_t t, int64_t n)
{
    const mm_op_shape *s = r->s;
    const int64_t d = s->d_model;
    const mm_weight gate = {.format = MM_WEIGHT_F32,
                            .n_out = s->n_expert,
                            .n_in = d,
                            .data = a->gate,
                            .data_stride = d * (int64_t)sizeof(float),
                            .global_scale = 1.0f};
    mm_cpu_rows rows = {.x = a->h, .first = t, .n = n, .k = d};
    route_run x = {r, a, t, NULL};
    MM_TRY(mm_cpu_prepare(r, &rows, MM_CPU_F32));
    MM_TRY(mm_cpu_floats(r, n * s->n_expert, &x.logit));
    mm_cpu_job job = {&gate, MM_CPU_F32, rows.at[MM_CPU_F32], n, x.logit, s->n_expert, 0};
    MM_TRY(mm_cpu_linear(r, &job, 1));
    mm_pool_run(mm_cpu_pool(r, n * s->n_expert * 64), n, 1, route_rows, &x);
    return MM_OK;
}

mm_status mm_cpu_attn_out(const mm_op_context *c, const mm_seq_view *seq, const mm_attn_out_args *a)
{
    const mm_cpu_run r = mm_cpu_start(c);
    const mm_op_shape *s = r.s;
    const int64_t d = s->d_model, act_size = mm_cpu_act_size(s->act);
    MM_TRY(mm_cpu_check_weight(a->wo, "o_proj"));
    if (a->wo->n_out != d || a->wo->n_in != (int64_t)s->n_head * s->head_dim)
        return MM_FAIL(MM_E_SHAPE, "cpu: weight o_proj is [%lld, %lld], not [%lld, %d * %d]",
                       (long long)a->wo->n_out, (long long)a->wo->n_in, (long long)d, s->n_head,
                       s->head_dim);
    const mm_cpu_kind kind = mm_cpu_kind_of(r.isa, a->wo->format, s->act);
    for (int64_t t = 0; t < seq->n_row; t += MM_CPU_CHUNK) {
        const int64_t n = mm_min_i64(MM_CPU_CHUNK, seq->n_row - t);
        mm_cpu_rows rows = {.x = a->o, .first = t, .n = n, .k = a->wo->n_in};
        float *y;
        mm_arena_reset(&c->stream->scratch);
        MM_TRY(mm_cpu_floats(&r, n * d, &y));
        MM_TRY(mm_cpu_prepare(&r, &rows, kind));
        mm_cpu_job job = {a->wo, kind, rows.at[kind], n, y, d, 0};
        MM_TRY(mm_cpu_linear(&r, &job, 1));
        MM_TRY(mm_cpu_branch_end(&r, n, y, (uint8_t *)a->x + t * d * act_size, a->norm_w,
                                 (uint8_t *)a->h + t * d * act_size));
        if (a->gate != NULL)
            MM_TRY(route(&r, a, t, n));
    }
    return MM_OK;
}

size_t mm_cpu_attn_out_scratch(const mm_op_shape *s, int32_t n_thread)
{
    const int64_t n = mm_min_i64(MM_CPU_CHUNK, s->max_rows), d = s->d_model,
                  width = (int64_t)s->n_head * s->head_dim;
    return mm_arena_size(sizeof(float) * (size_t)(n * d)) + mm_cpu_prepare_scratch(n, width, 1) +
           mm_cpu_prepare_scratch(n, d, 1) +
           mm_arena_size(sizeof(float) * (size_t)(n * s->n_expert)) +
           mm_cpu_branch_end_scratch(s, n) + mm_cpu_linear_scratch(mm_max_i64(width, d), n_thread);
}
