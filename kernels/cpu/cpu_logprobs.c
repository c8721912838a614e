/* cpu_logprobs.c: log-probabilities and ranks with rows in parallel; the best ids by partial
 * selection, single ranks by counting. Ids and ranks are exactly ref's; the log of the sum uses the
 * vector exp. */
#include "kernels/cpu/cpu_order.h"
#include "kernels/ref/ref.h"

enum { MANY_RANKS = 24 }; /* listed ids from which one full order is cheaper than counting */

typedef struct logprob_run {
    const mm_cpu_run *r;
    const mm_logprob_args *a;
    uint8_t *scratch; /* [n_thread, thread_bytes] */
    size_t thread_bytes;
} logprob_run;

/* What a row is scored on: value(v) = at[v] / temperature - shift, or at[v] itself. */
typedef struct score {
    const float *at;
    float temperature; /* 1: none */
    bool is_logit;
    double shift;
} score;

static float value_of(const score *s, int32_t v)
{
    const float x = s->temperature == 1.0f ? s->at[v] : s->at[v] / s->temperature;
    return s->is_logit ? s->at[v] : (float)((double)x - s->shift);
}

static score open_score(const mm_cpu_math_kernels *m, const float *at, float temperature,
                        bool is_logit, int32_t n)
{
    score s = {.at = at, .temperature = temperature, .is_logit = is_logit};
    if (is_logit)
        return s;
    const float max = m->max(at, n);
    s.shift = (double)(temperature == 1.0f ? max : max / temperature) +
              log(m->sum_exp(at, n, max, 1.0f / temperature));
    return s;
}

static score score_of_mode(const logprob_run *x, int32_t i)
{
    const mm_logprob_args *a = x->a;
    const mm_cpu_math_kernels *m = x->r->isa->math;
    const int32_t n = x->r->s->n_vocab;
    const int64_t at = (int64_t)(i - a->first) * n;
    const float t = a->slots->params[a->out->row_slot[i]].temperature;
    switch ((mm_logprob_mode)a->out->mode[i]) {
    case MM_LOGPROB_RAW:
        break;
    case MM_LOGPROB_TEMPERED:
        return open_score(m, a->logits + at, t < 1e-5f ? 1.0f : t, false, n);
    case MM_LOGPROB_PROCESSED:
        return open_score(m, a->work + at, 1.0f, false, n);
    case MM_LOGIT_RAW:
        return open_score(m, a->logits + at, 1.0f, true, n);
    case MM_LOGIT_PROCESSED:
        return open_score(m, a->work + at, 1.0f, true, n);
    }
    return open_score(m, a->logits + at, 1.0f, false, n);
}

static void put(const mm_logprob_args *a, int64_t entry, int32_t id, float value, int32_t rank)
{
    a->out_id[entry] = id;
    a->out_value[entry] = value;
    a->out_rank[entry] = rank;
}

static void fill_row(const logprob_run *x, int32_t i, int32_t token, const mm_cpu_order_scratch *o)
{
    const mm_logprob_args *a = x->a;
    const mm_cpu_math_kernels *m = x->r->isa->math;
    const int32_t n = x->r->s->n_vocab, n_list = a->out->n_list[i];
    const int32_t n_top = a->out->n_top[i] < n ? a->out->n_top[i] : n;
    const int32_t *list =
        a->out->list[i] >= 0
            ? (const int32_t *)(const void *)((const uint8_t *)a->out->blob + a->out->list[i])
            : a->slots->logprob_token + (int64_t)a->out->row_slot[i] * MM_MAX_LIST;
    const score s = score_of_mode(x, i);
    int64_t entry = a->out->entry[i];
    put(a, entry++, token, value_of(&s, token), m->rank(s.at, n, token));
    const bool is_full = n_list >= MANY_RANKS;
    if (is_full) {
        mm_ref_sort_descending(s.at, n, o->order, o->tmp);
    } else if (n_top > 0) {
        const float low = n_top < n ? mm_cpu_kth_largest(m, s.at, n, n_top, o->tmp) : -INFINITY;
        (void)mm_cpu_best_ids(m, s.at, n, low, o);
    }
    for (int32_t k = 0; k < n_top; k++)
        put(a, entry++, (int32_t)o->order[k], value_of(&s, (int32_t)o->order[k]), k + 1);
    for (int32_t k = 0; k < n && is_full; k++)
        o->tmp[o->order[k]] = (uint32_t)k;
    for (int32_t k = 0; k < n_list; k++)
        put(a, entry++, list[k], value_of(&s, list[k]),
            is_full ? (int32_t)o->tmp[list[k]] + 1 : m->rank(s.at, n, list[k]));
}

/* A row without a token (NaN, nothing allowed): its request ends, so its entries say nothing. */
static void fill_void(const mm_logprob_args *a, int32_t i)
{
    const int64_t n = 1 + (int64_t)a->out->n_top[i] + a->out->n_list[i];
    for (int64_t k = 0; k < n; k++)
        put(a, a->out->entry[i] + k, -1, NAN, 0);
}

static void logprob_rows(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    const logprob_run *x = ctx;
    const mm_logprob_args *a = x->a;
    const mm_cpu_math_kernels *m = x->r->isa->math;
    const int32_t n = x->r->s->n_vocab;
    const mm_cpu_order_scratch o =
        mm_cpu_order_scratch_at(x->scratch + (size_t)i_thread * x->thread_bytes, n);
    for (int64_t k = begin; k < end; k++) {
        const int32_t i = a->first + (int32_t)k;
        const bool is_sample = a->out->kind[i] == MM_OUT_SAMPLE;
        const int32_t token = is_sample ? a->token[i] : a->out->token[i];
        bool is_void = token < 0;
        if (!is_sample) {
            a->flag[i] = m->has_nan(a->logits + k * n, n) ? MM_SAMPLE_NAN : MM_SAMPLE_OK;
            is_void = is_void || a->flag[i] != MM_SAMPLE_OK;
        }
        if (a->out->n_top[i] >= 0 && is_void)
            fill_void(a, i);
        else if (a->out->n_top[i] >= 0)
            fill_row(x, i, token, &o);
        if (a->chosen == NULL || a->work == NULL || !is_sample)
            continue;
        const score s = is_void ? (score){0} : open_score(m, a->work + k * n, 1.0f, false, n);
        a->chosen[i] = is_void ? NAN : value_of(&s, token);
    }
}

mm_status mm_cpu_logprobs(const mm_op_context *c, const mm_logprob_args *a)
{
    const mm_cpu_run r = mm_cpu_start(c);
    logprob_run x = {.r = &r, .a = a, .thread_bytes = mm_cpu_order_scratch_bytes(r.s->n_vocab)};
    void *p;
    MM_TRY(mm_cpu_scratch(&r, x.thread_bytes * (size_t)r.n_thread, &p));
    x.scratch = p;
    mm_pool_run_dynamic(r.pool, a->n, 1, logprob_rows, &x);
    return MM_OK;
}
