/* profile.c: see profile.h. Ops are reached through m->ops, as in check.c; each is followed by an
 * event. A device must not wait for launches, or short ops would be measured by the host's speed:
 * copies of dead memory keep it busy while the step is being queued. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "csrc/base/env.h"
#include "csrc/base/log.h"
#include "csrc/model/profile.h"

/* RING: steps whose marks are kept: those in flight and the one before them */
enum { MAX_MARK = 4096, MAX_KIND = 24, BUSY_COPIES = 160, RING = 4 };

typedef enum part {
    PART_BEGIN,
    PART_EMBED,
    PART_ATTN_IN,
    PART_ATTN_SPARSE,
    PART_ATTN_DENSE,
    PART_ATTN_OUT,
    PART_MLP,
    PART_MOE,
    PART_HEAD,
    PART_SAMPLE,
    PART_LOGPROBS,
    PART_STEP, /* MM_PROFILE=2 */
    PART_IDLE,
    PART_HOST_PLAN, /* and the following: mm_profile_host_part */
    PART_HOST_BEGIN,
    PART_HOST_RUN,
    PART_HOST_RESULTS,
    PART_HOST_COMMIT,
    PART_HOST_PUBLISH,
    N_PART
} part;

static const char *const part_name[N_PART] = {
    "begin",      "embed",    "attn_in",      "attn_sparse", "attn_dense",  "attn_out", "mlp",
    "moe",        "head",     "sample",       "logprobs",    "gpu_step",    "gpu_idle", "host_plan",
    "host_begin", "host_run", "host_results", "host_commit", "host_publish"};

/* Steps of one shape. */
typedef struct kind {
    int32_t n_seq, n_row, context; /* context: the next power of two */
    int64_t n_step;
    int64_t n_call[N_PART];
    double seconds[N_PART];
} kind;

struct mm_profile_state {
    mm_ops ops;
    const mm_ops *real;
    bool times_ops, has_clock; /* has_clock: the device keeps time */
    mm_event *mark[MAX_MARK];  /* ops: after each op; steps: start and end of the steps in flight */
    double at[MAX_MARK];       /* the host's clock instead */
    part what[MAX_MARK];       /* op before the mark; the first of a step has none */
    int32_t n_mark, n_open;
    kind list[MAX_KIND];
    kind *current[RING];
    int32_t place[2]; /* of the steps in flight, in the ring */
    int64_t n_started;
    double plan_s;        /* of the step that starts next */
    int32_t n_kind, last; /* last: place of the step that ended before, -1 none */
};

static struct mm_profile_state *of(const mm_op_context *c)
{
    return ((mm_model *)((uintptr_t)c - offsetof(mm_model, ctx)))->profile;
}

static mm_status mark(mm_model *m, int32_t i)
{
    struct mm_profile_state *p = m->profile;
    if (!p->has_clock) {
        p->at[i] = mm_now();
        return MM_OK;
    }
    return m->backend->event_record(m->backend, p->mark[i], m->ctx.stream);
}

static mm_status after(const mm_op_context *c, mm_status st, part what)
{
    mm_model *m = (mm_model *)((uintptr_t)c - offsetof(mm_model, ctx));
    struct mm_profile_state *p = m->profile;
    MM_TRY(st);
    if (p->n_mark == 0 || p->n_mark == MAX_MARK)
        return MM_OK;
    p->what[p->n_mark] = what;
    return mark(m, p->n_mark++);
}

#define SEQ_OP(name, what, args)                                                                   \
    static mm_status time_##name(const mm_op_context *c, const mm_seq_view *seq, const args *a)    \
    {                                                                                              \
        return after(c, of(c)->real->name(c, seq, a), what);                                       \
    }
#define PLAIN_OP(name, what, args)                                                                 \
    static mm_status time_##name(const mm_op_context *c, const args *a)                            \
    {                                                                                              \
        return after(c, of(c)->real->name(c, a), what);                                            \
    }
PLAIN_OP(begin, PART_BEGIN, mm_begin_args)
PLAIN_OP(expand, PART_BEGIN, mm_expand_args)
SEQ_OP(embed, PART_EMBED, mm_embed_args)
SEQ_OP(attn_in, PART_ATTN_IN, mm_attn_in_args)
SEQ_OP(attn_sparse, PART_ATTN_SPARSE, mm_attn_sparse_args)
SEQ_OP(attn_dense, PART_ATTN_DENSE, mm_attn_dense_args)
SEQ_OP(attn_out, PART_ATTN_OUT, mm_attn_out_args)
SEQ_OP(mlp, PART_MLP, mm_mlp_args)
SEQ_OP(moe, PART_MOE, mm_moe_args)
PLAIN_OP(head, PART_HEAD, mm_head_args)
PLAIN_OP(sample, PART_SAMPLE, mm_sample_args)
PLAIN_OP(logprobs, PART_LOGPROBS, mm_logprob_args)

/* ---------------------------------------------------------------- steps */

static kind *find_kind(struct mm_profile_state *p, const mm_batch *b)
{
    int32_t context = 1;
    while (context < b->max_pos)
        context *= 2;
    for (int32_t i = 0; i < p->n_kind; i++) {
        kind *k = &p->list[i];
        if (k->n_seq == b->n_seq && k->n_row == b->n_row && k->context == context)
            return k;
    }
    if (p->n_kind == MAX_KIND)
        return NULL;
    kind *k = &p->list[p->n_kind++];
    *k = (kind){.n_seq = b->n_seq, .n_row = b->n_row, .context = context, .n_step = -1};
    return k;
}

/* About as long as it takes to queue a step. `acc` is free between steps. */
static mm_status keep_busy(mm_model *m)
{
    const int64_t half = m->shape.max_rows * (int64_t)m->config.d_model * 2;
    uint8_t *acc = (uint8_t *)m->buf.acc;
    for (int32_t i = 0; i < BUSY_COPIES && m->profile->has_clock; i++)
        MM_TRY(m->backend->copy(m->backend, m->ctx.stream, acc + half, acc, (size_t)half));
    return MM_OK;
}

static void add_host(kind *k, mm_profile_host_part which, double seconds)
{
    if (k == NULL || k->n_step < 0)
        return;
    k->seconds[PART_HOST_PLAN + (int)which] += seconds;
    k->n_call[PART_HOST_PLAN + (int)which]++;
}

mm_status mm_profile_step_start(mm_model *m, int32_t i, const mm_batch *b)
{
    struct mm_profile_state *p = m->profile;
    if (p == NULL)
        return MM_OK;
    const int32_t j = (int32_t)(p->n_started++ % RING);
    p->place[i] = j;
    p->current[j] = find_kind(p, b);
    if (!p->times_ops) {
        add_host(p->current[j], MM_PROFILE_PLAN, p->plan_s);
        return mark(m, 2 * j);
    }
    MM_TRY(keep_busy(m));
    p->n_mark = 1;
    return mark(m, 0);
}

void mm_profile_host(mm_model *m, int32_t i, mm_profile_host_part which, double seconds)
{
    struct mm_profile_state *p = m->profile;
    if (p == NULL || p->times_ops)
        return;
    if (which == MM_PROFILE_PLAN)
        p->plan_s = seconds;
    else
        add_host(p->current[p->place[i]], which, seconds);
}

mm_status mm_profile_step_end(mm_model *m, int32_t i)
{
    return m->profile == NULL || m->profile->times_ops ? MM_OK
                                                       : mark(m, 2 * m->profile->place[i] + 1);
}

static mm_status between(mm_model *m, int32_t a, int32_t b, double *out)
{
    struct mm_profile_state *p = m->profile;
    if (p->has_clock)
        return m->backend->event_elapsed(m->backend, p->mark[a], p->mark[b], out);
    *out = p->at[b] - p->at[a];
    return MM_OK;
}

static mm_status add(mm_model *m, kind *k, part what, int32_t a, int32_t b)
{
    double seconds = 0;
    MM_TRY(between(m, a, b, &seconds));
    if (k != NULL && k->n_step >= 0) {
        k->seconds[what] += seconds;
        k->n_call[what]++;
    }
    return MM_OK;
}

mm_status mm_profile_step_finish(mm_model *m, int32_t i)
{
    struct mm_profile_state *p = m->profile;
    if (p == NULL)
        return MM_OK;
    const int32_t at = p->place[i];
    kind *k = p->current[at];
    if (p->times_ops) {
        for (int32_t j = 1; j < p->n_mark; j++)
            MM_TRY(add(m, k, p->what[j], j - 1, j));
        p->n_mark = 0;
    } else {
        MM_TRY(add(m, k, PART_STEP, 2 * at, 2 * at + 1));
        if (p->last >= 0 && p->current[p->last] == k)
            MM_TRY(add(m, k, PART_IDLE, 2 * p->last + 1, 2 * at));
        p->last = at;
    }
    if (k != NULL)
        k->n_step++;
    return MM_OK;
}

/* ---------------------------------------------------------------- tables */

static void log_kind(const kind *k)
{
    double total = 0;
    for (int32_t i = 0; i < PART_IDLE; i++)
        total += k->seconds[i];
    const double n = (double)k->n_step;
    for (int32_t i = 0; i < N_PART; i++) {
        /* idle time is known between two steps of one kind only */
        const double steps = i == PART_IDLE ? fmax(1, (double)k->n_call[i]) : n;
        if (k->n_call[i] > 0)
            mm_log(MM_LOG_WARNING, /* whoever set MM_PROFILE wants to see it */
                   "profile sequences=%d rows=%d context=%d steps=%lld %s calls=%.1f us=%.2f "
                   "share=%.1f%%",
                   k->n_seq, k->n_row, k->context, (long long)k->n_step, part_name[i],
                   (double)k->n_call[i] / steps, 1e6 * k->seconds[i] / steps,
                   100 * k->seconds[i] / fmax(total, 1e-12));
    }
}

mm_status mm_profile_open(mm_model *m)
{
    const int how = mm_env_get()->profile;
    mm_backend *b = m->backend;
    if (how == 0)
        return MM_OK;
    struct mm_profile_state *p = calloc(1, sizeof *p);
    if (p == NULL)
        return MM_FAIL(MM_E_NOMEM, "no memory for MM_PROFILE");
    m->profile = p;
    p->times_ops = how == 1 && m->check == NULL;
    p->has_clock = b->event_elapsed != NULL;
    p->last = -1;
    for (; p->has_clock && p->n_open < (p->times_ops ? MAX_MARK : 2 * RING); p->n_open++)
        MM_TRY(b->event_open(b, &p->mark[p->n_open]));
    if (!p->times_ops)
        return MM_OK;
    p->real = m->ops;
    p->ops = *p->real;
    p->ops.decode_layers = NULL;
    p->ops.begin = time_begin;
    p->ops.expand = time_expand;
    p->ops.embed = time_embed;
    p->ops.attn_in = time_attn_in;
    p->ops.attn_sparse = time_attn_sparse;
    p->ops.attn_dense = time_attn_dense;
    p->ops.attn_out = time_attn_out;
    p->ops.mlp = time_mlp;
    p->ops.moe = time_moe;
    p->ops.head = time_head;
    p->ops.sample = time_sample;
    p->ops.logprobs = time_logprobs;
    m->ops = &p->ops;
    return MM_OK;
}

void mm_profile_close(mm_model *m)
{
    struct mm_profile_state *p = m->profile;
    if (p == NULL)
        return;
    for (int32_t i = 0; i < p->n_kind; i++)
        if (p->list[i].n_step > 0)
            log_kind(&p->list[i]);
    for (int32_t i = 0; i < p->n_open; i++)
        m->backend->event_close(m->backend, p->mark[i]);
    free(p);
    m->profile = NULL;
}
