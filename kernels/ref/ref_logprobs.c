/* ref_logprobs.c: log-probabilities and ranks of chosen, best and listed ids. All modes order ids
 * as their logits do, so ranks are exact whatever the rounding of a log-softmax. */
#include "kernels/ref/ref.h"

/* What a row is scored on: value(v) = at[v] * gain - shift, or at[v] itself. */
typedef struct score {
    const float *at;
    float temperature; /* 1: none */
    bool is_logit;
    double shift; /* log of the sum of exp */
} score;

static float tempered(const score *s, int32_t v)
{
    return s->temperature == 1.0f ? s->at[v] : s->at[v] / s->temperature;
}

static float value_of(const score *s, int32_t v)
{
    return s->is_logit ? s->at[v] : (float)((double)tempered(s, v) - s->shift);
}

static score open_score(const float *at, float temperature, bool is_logit, int32_t n)
{
    score s = {.at = at, .temperature = temperature, .is_logit = is_logit};
    if (is_logit)
        return s;
    const double max = (double)tempered(&s, mm_ref_argmax(at, n));
    double sum = 0.0;
    for (int32_t v = 0; v < n; v++)
        sum += exp((double)tempered(&s, v) - max);
    s.shift = max + log(sum);
    return s;
}

static score score_of_mode(const mm_logprob_args *a, int32_t i, int32_t n)
{
    const int64_t at = (int64_t)(i - a->first) * n;
    const float t = a->slots->params[a->out->row_slot[i]].temperature;
    switch ((mm_logprob_mode)a->out->mode[i]) {
    case MM_LOGPROB_RAW:
        break;
    case MM_LOGPROB_TEMPERED:
        return open_score(a->logits + at, t < 1e-5f ? 1.0f : t, false, n);
    case MM_LOGPROB_PROCESSED:
        return open_score(a->work + at, 1.0f, false, n);
    case MM_LOGIT_RAW:
        return open_score(a->logits + at, 1.0f, true, n);
    case MM_LOGIT_PROCESSED:
        return open_score(a->work + at, 1.0f, true, n);
    }
    return open_score(a->logits + at, 1.0f, false, n);
}

static int32_t rank_of(const score *s, int32_t n, int32_t id)
{
    int32_t rank = 1;
    for (int32_t v = 0; v < n; v++)
        rank += s->at[v] > s->at[id] || (s->at[v] == s->at[id] && v < id);
    return rank;
}

static void put(const mm_logprob_args *a, int64_t entry, int32_t id, float value, int32_t rank)
{
    a->out_id[entry] = id;
    a->out_value[entry] = value;
    a->out_rank[entry] = rank;
}

static const int32_t *list_of(const mm_logprob_args *a, int32_t i)
{
    if (a->out->list[i] >= 0)
        return (const int32_t *)((const uint8_t *)a->out->blob + a->out->list[i]);
    return a->slots->logprob_token + (int64_t)a->out->row_slot[i] * MM_MAX_LIST;
}

/* order: ids by rank; place: rank - 1 of every id. Both only when there are top or
 * listed entries. */
static void fill_row(const mm_logprob_args *a, int32_t i, int32_t token, int32_t n, uint32_t *order,
                     uint32_t *place)
{
    const score s = score_of_mode(a, i, n);
    const int32_t n_top = a->out->n_top[i], n_list = a->out->n_list[i];
    int64_t entry = a->out->entry[i];
    put(a, entry++, token, value_of(&s, token), rank_of(&s, n, token));
    if (n_top == 0 && n_list == 0)
        return;
    mm_ref_sort_descending(s.at, n, order, place);
    for (int32_t k = 0; k < n; k++)
        place[order[k]] = (uint32_t)k;
    for (int32_t k = 0; k < n_top; k++)
        put(a, entry++, (int32_t)order[k], value_of(&s, (int32_t)order[k]), k + 1);
    const int32_t *list = list_of(a, i);
    for (int32_t k = 0; k < n_list; k++)
        put(a, entry++, list[k], value_of(&s, list[k]), (int32_t)place[list[k]] + 1);
}

/* A row without a token (NaN, nothing allowed): its request ends, so its entries say nothing. */
static void fill_void(const mm_logprob_args *a, int32_t i)
{
    const int64_t n = 1 + (int64_t)a->out->n_top[i] + a->out->n_list[i];
    for (int64_t k = 0; k < n; k++)
        put(a, a->out->entry[i] + k, -1, NAN, 0);
}

mm_status mm_ref_logprobs(const mm_op_context *c, const mm_logprob_args *a)
{
    const int32_t n = c->shape->n_vocab;
    void *order, *place;
    mm_ref_start(c);
    MM_TRY(mm_ref_scratch(c, (int64_t)sizeof(uint32_t) * n, &order));
    MM_TRY(mm_ref_scratch(c, (int64_t)sizeof(uint32_t) * n, &place));
    for (int32_t i = a->first; i < a->first + a->n; i++) {
        const int64_t at = (int64_t)(i - a->first) * n;
        const bool is_sample = a->out->kind[i] == MM_OUT_SAMPLE;
        const int32_t token = is_sample ? a->token[i] : a->out->token[i];
        bool is_void = token < 0;
        if (!is_sample) {
            a->flag[i] = mm_ref_has_nan(a->logits + at, n) ? MM_SAMPLE_NAN : MM_SAMPLE_OK;
            is_void = is_void || a->flag[i] != MM_SAMPLE_OK;
        }
        if (a->out->n_top[i] >= 0) {
            if (is_void)
                fill_void(a, i);
            else
                fill_row(a, i, token, n, order, place);
        }
        if (a->chosen == NULL || a->work == NULL || !is_sample)
            continue;
        const score s = is_void ? (score){0} : open_score(a->work + at, 1.0f, false, n);
        a->chosen[i] = is_void ? NAN : value_of(&s, token);
    }
    return MM_OK;
}
