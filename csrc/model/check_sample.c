/* check_sample.c: the end of a step beside ref: draws, and log-probabilities. Sampling state of the
 * slots, output views and batch are copied to host memory, where ref works on its copy. Tokens,
 * flags, ids, ranks and what the slots keep for the next step are equal; values are within what
 * another order of sums makes. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "csrc/model/check_compare.h"

/* ---------------------------------------------------------------- copies to the host */

/* One array of mm_slots: where its pointer stands, bytes of a slot; kept: the next step needs what
 * `sample` left there. */
typedef struct state_row {
    const char *name;
    size_t at;
    int64_t n_bytes;
    bool kept;
} state_row;
enum { N_STATE = 14 };

static void state_rows(const mm_model *m, int32_t lanes, state_row *out)
{
    const int64_t v = m->config.n_vocab, words = mm_ceil_div(v, 32);
#define ROW(field, n, kept)                                                                        \
    {#field, offsetof(mm_slots, field), (n) * (int64_t)sizeof *((mm_slots *)NULL)->field, kept}
    const state_row all[N_STATE] = {
        ROW(n_ctx, 1, true),
        ROW(n_emitted, 1, true),
        ROW(last_token, 1, true),
        ROW(recent, MM_MAX_BAD_LEN, true),
        ROW(n_out, v, true),
        ROW(params, 1, false),
        ROW(bias_token, MM_MAX_LIST, false),
        ROW(bias_value, MM_MAX_LIST, false),
        ROW(ban_token, MM_MAX_LIST, false),
        ROW(bad_offset, MM_MAX_LIST + 1, false),
        ROW(bad_token, MM_MAX_BAD_TOKENS, false),
        ROW(logprob_token, MM_MAX_LIST, false),
        ROW(mask, lanes * words, false),
        ROW(in_prompt, words, false),
    };
#undef ROW
    memcpy(out, all, sizeof all);
}

static uint8_t *state_of(const mm_slots *s, const state_row *r, int32_t slot)
{
    uint8_t *p;
    memcpy(&p, (const uint8_t *)s + r->at, sizeof p);
    return p + slot * r->n_bytes;
}

/* The view's rows up to `end`, and the state of their slots. */
static mm_status pull_outputs(mm_model *m, const mm_slots *s, const mm_out_view *v, int32_t end)
{
    struct mm_check_state *k = m->check;
    mm_out_view *o = &k->out;
    state_row rows[N_STATE];
    MM_ASSERT(end <= m->shape.max_rows && s->n_slot <= m->shape.max_seqs + 1);
    const struct {
        const void *to, *from;
        size_t size;
    } all[] = {
        {o->row_slot, v->row_slot, sizeof *v->row_slot},
        {o->lane, v->lane, sizeof *v->lane},
        {o->kind, v->kind, sizeof *v->kind},
        {o->token, v->token, sizeof *v->token},
        {o->row_token, v->row_token, sizeof *v->row_token},
        {o->mode, v->mode, sizeof *v->mode},
        {o->n_top, v->n_top, sizeof *v->n_top},
        {o->n_list, v->n_list, sizeof *v->n_list},
        {o->entry, v->entry, sizeof *v->entry},
        {o->list, v->list, sizeof *v->list},
    };
    for (size_t i = 0; i < MM_ARRAY_LEN(all); i++)
        MM_TRY(mm_check_pull(m, (void *)(uintptr_t)all[i].to, all[i].from,
                             end * (int64_t)all[i].size));
    o->n_out = v->n_out;
    k->state.n_slot = s->n_slot;
    k->state.mask_words = s->mask_words;
    k->state.mask_lanes = s->mask_lanes;
    state_rows(m, s->mask_lanes, rows);
    for (int32_t i = 0; i < end; i++) {
        if (i > 0 && o->row_slot[i] == o->row_slot[i - 1])
            continue;
        for (int f = 0; f < N_STATE; f++)
            MM_TRY(mm_check_pull(m, state_of(&k->state, &rows[f], o->row_slot[i]),
                                 state_of(s, &rows[f], o->row_slot[i]), rows[f].n_bytes));
    }
    return MM_OK;
}

/* The batch that the view came from, in memory of its own; NULL without one. */
static mm_status pull_batch(mm_model *m, const mm_out_view *v, mm_batch **out)
{
    struct mm_check_state *k = m->check;
    mm_batch head;
    void *p;
    *out = NULL;
    if (v->blob == NULL)
        return MM_OK;
    MM_TRY(mm_check_pull(m, &head, v->blob, sizeof head));
    MM_TRY(k->ref->alloc(k->ref, &p, (size_t)head.n_bytes));
    *out = p;
    return mm_check_pull(m, p, v->blob, head.n_bytes);
}

/* ---------------------------------------------------------------- sample */

static mm_status compare_state(mm_model *m, const mm_slots *s, int32_t first, int32_t n)
{
    struct mm_check_state *k = m->check;
    state_row rows[N_STATE];
    state_rows(m, s->mask_lanes, rows);
    k->n_compared++;
    for (int32_t i = first; i < first + n; i++)
        for (int f = 0; f < N_STATE && k->out.kind[i] == MM_OUT_SAMPLE; f++) {
            if (!rows[f].kept)
                continue;
            const uint8_t *want = state_of(&k->state, &rows[f], k->out.row_slot[i]);
            const uint8_t *got = k->one;
            MM_TRY(mm_check_pull(m, k->one, state_of(s, &rows[f], k->out.row_slot[i]),
                                 rows[f].n_bytes));
            for (int64_t j = 0; j < rows[f].n_bytes; j++)
                if (got[j] != want[j]) {
                    char what[64];
                    snprintf(what, sizeof what, "sample %s (byte)", rows[f].name);
                    mm_check_report(m, what, -1, i * rows[f].n_bytes + j, got[j], want[j]);
                    return MM_OK;
                }
        }
    return MM_OK;
}

static mm_status compare_draws(mm_model *m, const mm_sample_args *a)
{
    struct mm_check_state *k = m->check;
    const int64_t v = m->config.n_vocab;
    MM_TRY(mm_check_pull(m, k->have_token + a->first, a->token + a->first,
                         a->n * (int64_t)sizeof *a->token));
    MM_TRY(mm_check_pull(m, k->have_flag + a->first, a->flag + a->first, a->n));
    k->n_compared++;
    for (int32_t i = a->first; i < a->first + a->n; i++) {
        if (k->out.kind[i] != MM_OUT_SAMPLE)
            continue;
        if (k->have_flag[i] != k->want_flag[i])
            mm_check_report(m, "sample flag", -1, i, k->have_flag[i], k->want_flag[i]);
        if (k->have_token[i] != k->want_token[i])
            mm_check_report(m, "sample token", -1, i, k->have_token[i], k->want_token[i]);
    }
    if (a->work_ends)
        return MM_OK;
    MM_TRY(mm_check_pull(m, k->have_logits, a->work, a->n * v * (int64_t)sizeof(float)));
    for (int32_t i = 0; i < a->n; i++) /* rows without a draw hold nothing */
        if (k->out.kind[a->first + i] != MM_OUT_SAMPLE ||
            k->want_flag[a->first + i] != MM_SAMPLE_OK)
            memcpy(k->want_logits + i * v, k->have_logits + i * v, (size_t)v * sizeof(float));
    mm_check_values(m, "sample processed logits", -1, k->have_logits, k->want_logits, MM_DTYPE_F32,
                    &mm_check_sums, a->n, v);
    return MM_OK;
}

mm_status mm_check_sample(const mm_op_context *c, const mm_sample_args *a)
{
    mm_model *m = mm_check_model(c);
    struct mm_check_state *k = m->check;
    const int64_t n_bytes = a->n * (int64_t)m->config.n_vocab * (int64_t)sizeof(float);
    mm_batch *batch = NULL;
    mm_sample_args b = *a;
    mm_status st = pull_outputs(m, a->slots, a->out, a->first + a->n);
    if (st == MM_OK)
        st = pull_batch(m, a->out, &batch);
    if (st == MM_OK)
        st = mm_check_pull(m, k->have_logits, a->logits, n_bytes);
    k->out.blob = batch;
    b.logits = k->have_logits;
    b.work = k->want_logits;
    b.slots = &k->state;
    b.out = &k->out;
    b.token = k->want_token;
    b.flag = k->want_flag;
    b.work_ends = false;
    if (st == MM_OK)
        st = k->ref->ops->sample(&k->ctx, &b);
    if (st == MM_OK)
        st = k->real->sample(c, a);
    if (st == MM_OK)
        st = compare_draws(m, a);
    if (st == MM_OK && a->commit)
        st = compare_state(m, a->slots, a->first, a->n);
    if (batch != NULL)
        k->ref->free(k->ref, batch);
    return st;
}

/* ---------------------------------------------------------------- log-probabilities */

/* Entries of a step: ids, ranks, values. */
typedef struct entries {
    int32_t *id, *rank;
    float *value;
} entries;

static mm_status open_entries(mm_model *m, entries *e, int64_t n)
{
    void *p;
    MM_TRY(m->check->ref->alloc(m->check->ref, &p, (size_t)(3 * n + 3) * sizeof *e->id));
    e->id = p;
    e->rank = e->id + n;
    e->value = (float *)(void *)(e->rank + n);
    return MM_OK;
}

/* Equal NaNs and infinities; a logarithm near 0 has the error of its sum. */
static bool is_close(double a, double b)
{
    return a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= 1e-5 * fmax(1.0, fabs(b));
}

static mm_status compare_entries(mm_model *m, const mm_logprob_args *a, const entries *want,
                                 const entries *have, int64_t n)
{
    struct mm_check_state *k = m->check;
    MM_TRY(mm_check_pull(m, have->id, a->out_id, n * (int64_t)sizeof *a->out_id));
    MM_TRY(mm_check_pull(m, have->rank, a->out_rank, n * (int64_t)sizeof *a->out_rank));
    MM_TRY(mm_check_pull(m, have->value, a->out_value, n * (int64_t)sizeof *a->out_value));
    k->n_compared++;
    for (int32_t i = a->first; i < a->first + a->n; i++) {
        const int64_t e = k->out.entry[i],
                      end = k->out.n_top[i] < 0 ? e : e + 1 + k->out.n_top[i] + k->out.n_list[i];
        for (int64_t j = e; j < end; j++) {
            if (have->id[j] != want->id[j])
                mm_check_report(m, "logprobs id", -1, j, have->id[j], want->id[j]);
            if (have->rank[j] != want->rank[j])
                mm_check_report(m, "logprobs rank", -1, j, have->rank[j], want->rank[j]);
            if (!is_close((double)have->value[j], (double)want->value[j]))
                mm_check_report(m, "logprobs value", -1, j, (double)have->value[j],
                                (double)want->value[j]);
        }
    }
    return MM_OK;
}

static mm_status compare_scores(mm_model *m, const mm_logprob_args *a)
{
    struct mm_check_state *k = m->check;
    MM_TRY(mm_check_pull(m, k->have_flag + a->first, a->flag + a->first, a->n));
    if (a->chosen != NULL)
        MM_TRY(mm_check_pull(m, k->have_chosen + a->first, a->chosen + a->first,
                             a->n * (int64_t)sizeof *a->chosen));
    k->n_compared++;
    for (int32_t i = a->first; i < a->first + a->n; i++) {
        if (k->have_flag[i] != k->want_flag[i])
            mm_check_report(m, "logprobs flag", -1, i, k->have_flag[i], k->want_flag[i]);
        if (a->chosen != NULL && a->work != NULL && k->out.kind[i] == MM_OUT_SAMPLE &&
            !is_close((double)k->have_chosen[i], (double)k->want_chosen[i]))
            mm_check_report(m, "logprobs of the drawn token", -1, i, (double)k->have_chosen[i],
                            (double)k->want_chosen[i]);
    }
    return MM_OK;
}

mm_status mm_check_logprobs(const mm_op_context *c, const mm_logprob_args *a)
{
    mm_model *m = mm_check_model(c);
    struct mm_check_state *k = m->check;
    const int64_t n_bytes = a->n * (int64_t)m->config.n_vocab * (int64_t)sizeof(float);
    mm_batch *batch = NULL;
    entries want = {0}, have = {0};
    mm_logprob_args b = *a;
    mm_status st = pull_outputs(m, a->slots, a->out, a->first + a->n);
    if (st == MM_OK)
        st = pull_batch(m, a->out, &batch);
    const int64_t n_entry = batch != NULL ? batch->n_entry : 0;
    if (st == MM_OK)
        st = open_entries(m, &want, n_entry);
    if (st == MM_OK)
        st = open_entries(m, &have, n_entry);
    if (st == MM_OK)
        st = mm_check_pull(m, k->have_logits, a->logits, n_bytes);
    if (st == MM_OK && a->work != NULL)
        st = mm_check_pull(m, k->want_logits, a->work, n_bytes);
    if (st == MM_OK)
        st = mm_check_pull(m, k->want_token + a->first, a->token + a->first,
                           a->n * (int64_t)sizeof *a->token);
    if (st == MM_OK)
        st = mm_check_pull(m, k->want_flag + a->first, a->flag + a->first, a->n);
    k->out.blob = batch;
    b.logits = k->have_logits;
    b.work = a->work != NULL ? k->want_logits : NULL;
    b.slots = &k->state;
    b.out = &k->out;
    b.token = k->want_token;
    b.flag = k->want_flag;
    b.out_id = want.id;
    b.out_rank = want.rank;
    b.out_value = want.value;
    b.chosen = a->chosen != NULL ? k->want_chosen : NULL;
    if (st == MM_OK)
        st = k->ref->ops->logprobs(&k->ctx, &b);
    if (st == MM_OK)
        st = k->real->logprobs(c, a);
    if (st == MM_OK)
        st = compare_entries(m, a, &want, &have, n_entry);
    if (st == MM_OK)
        st = compare_scores(m, a);
    for (int i = 0; i < 3; i++) {
        void *p = i == 0 ? (void *)batch : i == 1 ? (void *)want.id : (void *)have.id;
        if (p != NULL)
            k->ref->free(k->ref, p);
    }
    return st;
}

/* ---------------------------------------------------------------- memory */

mm_status mm_check_sample_open(mm_model *m)
{
    struct mm_check_state *k = m->check;
    const int64_t T = m->shape.max_rows, S = m->shape.max_seqs + 1;
    mm_out_view *o = &k->out;
    state_row rows[N_STATE];
    const struct {
        void *at;
        size_t size;
    } all[] = {
        {&o->row_slot, sizeof *o->row_slot},
        {&o->lane, sizeof *o->lane},
        {&o->kind, sizeof *o->kind},
        {&o->token, sizeof *o->token},
        {&o->row_token, sizeof *o->row_token},
        {&o->mode, sizeof *o->mode},
        {&o->n_top, sizeof *o->n_top},
        {&o->n_list, sizeof *o->n_list},
        {&o->entry, sizeof *o->entry},
        {&o->list, sizeof *o->list},
        {&k->want_token, sizeof *k->want_token},
        {&k->have_token, sizeof *k->have_token},
        {&k->want_flag, sizeof *k->want_flag},
        {&k->have_flag, sizeof *k->have_flag},
        {&k->want_chosen, sizeof *k->want_chosen},
        {&k->have_chosen, sizeof *k->have_chosen},
    };
    for (size_t i = 0; i < MM_ARRAY_LEN(all); i++)
        MM_TRY(mm_check_alloc(k, (void **)all[i].at, T * (int64_t)all[i].size));
    int64_t longest = 0;
    state_rows(m, MM_MAX_DECODE_ROWS, rows);
    for (int f = 0; f < N_STATE; f++) {
        MM_TRY(mm_check_alloc(k, (void **)(void *)((uint8_t *)&k->state + rows[f].at),
                              S * rows[f].n_bytes));
        longest = mm_max_i64(longest, rows[f].n_bytes);
    }
    return mm_check_alloc(k, (void **)&k->one, longest);
}
