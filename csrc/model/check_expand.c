/* check_expand.c: the start of a step beside ref: rows and outputs that a batch expands into, pages
 * and positions of its slots. Integers all, so they are equal. What begins a slot (`begin`) shows
 * in the draws: check_sample.c. */
#include <stdio.h>

#include "csrc/model/check_compare.h"

/* An array that `expand` writes. */
typedef struct written {
    const char *name;
    const void *want, *real;
    int64_t n, size;
} written;
enum { N_WRITTEN = 19 };

static mm_status compare(mm_model *m, const written *w)
{
    struct mm_check_state *k = m->check;
    MM_TRY(mm_check_pull(m, k->expanded, w->real, w->n * w->size));
    for (int64_t i = 0; i < w->n; i++) {
        int64_t got = 0, want = 0;
        memcpy(&got, k->expanded + i * w->size, (size_t)w->size); /* little-endian */
        memcpy(&want, (const uint8_t *)w->want + i * w->size, (size_t)w->size);
        if (got == want)
            continue;
        char what[64];
        (void)snprintf(what, sizeof what, "expand %s", w->name);
        mm_check_report(m, what, -1, i, (double)(w->size == 4 ? (int32_t)got : got),
                        (double)(w->size == 4 ? (int32_t)want : want));
        return MM_OK;
    }
    return MM_OK;
}

/* What ref reads of the slots, before the real op writes there. */
static mm_status pull_slots(mm_model *m, const mm_slots *s)
{
    struct mm_check_state *k = m->check;
    k->slots.n_slot = s->n_slot;
    k->slots.page_stride = s->page_stride;
    k->slots.n_ctx = k->state.n_ctx;
    MM_ASSERT(s->n_slot <= m->shape.max_seqs + 1);
    MM_TRY(mm_check_pull(m, k->slots.page_table, s->page_table,
                         (int64_t)s->n_slot * s->page_stride * (int64_t)sizeof *s->page_table));
    MM_TRY(mm_check_pull(m, k->slots.n_ctx, s->n_ctx, s->n_slot * (int64_t)sizeof *s->n_ctx));
    return mm_check_pull(m, k->slots.last_token, s->last_token,
                         s->n_slot * (int64_t)sizeof *s->last_token);
}

static mm_status expand_beside(const mm_op_context *c, const mm_expand_args *a, void *batch)
{
    mm_model *m = mm_check_model(c);
    struct mm_check_state *k = m->check;
    const mm_seq_view *v = a->seq;
    const mm_out_view *o = a->out;
    const mm_slots *s = a->slots;
    int64_t n_read[2] = {-1, -1};
    int32_t turn = a->ring != NULL ? (a->i_ring + 1) % a->ring->n : 0;
    mm_expand_args b = *a;
    MM_TRY(mm_check_pull(m, batch, a->blob, a->plan->n_bytes));
    MM_TRY(pull_slots(m, s));
    k->seq.n_seq = v->n_seq;
    k->seq.n_row = v->n_row;
    k->out.n_out = o->n_out;
    b.blob = batch;
    b.ring = NULL;
    b.slots = &k->slots;
    b.seq = &k->seq;
    b.out = &k->out;
    b.n_read = a->n_read != NULL ? n_read : NULL;
    MM_TRY(k->ref->ops->expand(&k->ctx, &b));
    MM_TRY(k->real->expand(c, a));
#define ARRAY(view, mine, field, count)                                                            \
    {#field, (mine).field, (view)->field, count, sizeof *(view)->field}
    const written all[N_WRITTEN] = {
        ARRAY(v, k->seq, row_start, v->n_seq + 1),
        ARRAY(v, k->seq, slot, v->n_seq),
        ARRAY(v, k->seq, row_seq, v->n_row),
        ARRAY(v, k->seq, pos, v->n_row),
        ARRAY(v, k->seq, token, v->n_row),
        ARRAY(o, k->out, row, o->n_out),
        ARRAY(o, k->out, row_slot, o->n_out),
        ARRAY(o, k->out, lane, o->n_out),
        ARRAY(o, k->out, kind, o->n_out),
        {"output token", k->out.token, o->token, o->n_out, sizeof *o->token},
        ARRAY(o, k->out, row_token, o->n_out),
        ARRAY(o, k->out, mode, o->n_out),
        ARRAY(o, k->out, n_top, o->n_out),
        ARRAY(o, k->out, n_list, o->n_out),
        ARRAY(o, k->out, entry, o->n_out),
        ARRAY(o, k->out, list, o->n_out),
        ARRAY(s, k->slots, page_table, (int64_t)s->n_slot * s->page_stride),
        ARRAY(s, k->slots, n_ctx, s->n_slot),
        {"n_read", n_read, a->n_read, a->n_read != NULL ? 2 : 0, sizeof *n_read},
    };
#undef ARRAY
    k->n_compared++;
    for (int i = 0; i < N_WRITTEN; i++)
        MM_TRY(compare(m, &all[i]));
    const written ring = {"turn", &turn, a->ring != NULL ? a->ring->turn : NULL, a->ring != NULL,
                          sizeof turn};
    return compare(m, &ring);
}

/* A captured step (no plan) cannot be stopped to look at it; MM_CHECK=1 runs without graphs. */
mm_status mm_check_expand(const mm_op_context *c, const mm_expand_args *a)
{
    struct mm_check_state *k = mm_check_model(c)->check;
    void *batch;
    if (a->plan == NULL)
        return k->real->expand(c, a);
    MM_TRY(k->ref->alloc(k->ref, &batch, (size_t)a->plan->n_bytes));
    const mm_status st = expand_beside(c, a, batch);
    k->ref->free(k->ref, batch);
    return st;
}

/* After the sampling state, whose positions and output views it uses. */
mm_status mm_check_expand_open(mm_model *m)
{
    struct mm_check_state *k = m->check;
    const mm_op_shape *s = &m->shape;
    const int64_t S = s->max_seqs + 1, T = s->max_rows,
                  n_page = mm_ceil_div(s->max_model_len, MM_PAGE),
                  longest = mm_max_i64((T + S) * (int64_t)sizeof(int64_t), S * n_page * 4);
    MM_TRY(mm_check_alloc(k, (void **)&k->out.row, T * (int64_t)sizeof *k->out.row));
    return mm_check_alloc(k, (void **)&k->expanded, longest);
}
