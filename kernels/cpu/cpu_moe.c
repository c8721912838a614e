/* cpu_moe.c: the clamped SwiGLU MLP, alone and as experts. The rows of a chunk are grouped by
 * expert through pointers, so neither rows nor weights are copied: gate and up of every active
 * expert are one parallel loop, SwiGLU a second, down a third; then each row adds its experts in
 * ascending id, whatever the other rows chose. */
#include "kernels/cpu/cpu.h"

/* One MLP and the rows that pass through it: pairs [first, first + n) of the chunk's list. */
typedef struct mlp_group {
    const mm_weight *gate, *up, *down;
    int64_t first, n;
} mlp_group;

typedef struct moe_run {
    const mm_cpu_run *r;
    mlp_group *group; /* [n_group] */
    int32_t n_group;
    int64_t n_pair, width; /* of the widest MLP of this op */
    int32_t *row;          /* [n_pair] row of the chunk, grouped */
    const void **x;        /* [n_pair] prepared h of the pair */
    float *g, *u, *y;      /* [n_pair, width] x 2, [n_pair, D] */
    uint8_t *a;            /* [n_pair] prepared rows of a */
    const void **at;       /* [n_pair] */
    uint8_t *tmp;          /* [n_thread, width] act */
    int32_t *group_of;     /* [n_pair] */
    mm_cpu_job *job;       /* [2 * n_group] */

    /* adding up */
    float *acc;            /* rows of the chunk */
    const int32_t *pair;   /* [chunk, n_expert_used]: pair of each (row, choice), -1: not in this
                              piece */
    const int32_t *shared; /* [chunk]: pair of the shared expert, or NULL */
    const int32_t *order;  /* [chunk, n_expert_used]: choices by ascending expert */
    const float *weights;  /* [chunk, n_expert_used] */
    bool accumulate;
} moe_run;

/* ---------------------------------------------------------------- gate, up, SwiGLU, down */

static void activate_pairs(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    const moe_run *m = ctx;
    const mm_op_shape *s = m->r->s;
    uint8_t *tmp = m->tmp + i_thread * m->width * mm_cpu_act_size(s->act);
    for (int64_t i = begin; i < end; i++) {
        const mm_weight *down = m->group[m->group_of[i]].down;
        m->r->isa->math->swiglu(s, m->g + i * m->width, m->u + i * m->width, down->n_in, tmp);
        m->r->isa->linear->prepare(mm_cpu_kind_of(m->r->isa, down->format, s->act), s->act, tmp,
                                   down->n_in, (void *)(uintptr_t)m->at[i]);
    }
}

/* m->row and the groups are set: prepares the rows of h, runs all MLPs, leaves m->y. */
static mm_status run_mlps(moe_run *m, const void *h, int64_t first_row, int64_t n_row)
{
    const mm_cpu_run *r = m->r;
    const mm_op_shape *s = r->s;
    mm_cpu_rows rows = {.x = h, .first = first_row, .n = n_row, .k = s->d_model};
    int32_t n_job = 0;
    for (int32_t i = 0; i < m->n_group; i++) {
        const mlp_group *g = &m->group[i];
        const mm_weight *const w[2] = {g->gate, g->up};
        float *const y[2] = {m->g, m->u};
        for (int64_t j = g->first; j < g->first + g->n; j++)
            m->group_of[j] = i;
        for (int k = 0; k < 2; k++) {
            const mm_cpu_kind kind = mm_cpu_kind_of(r->isa, w[k]->format, s->act);
            MM_TRY(mm_cpu_prepare(r, &rows, kind));
            const void **x = m->x + k * m->n_pair;
            for (int64_t j = g->first; j < g->first + g->n; j++)
                x[j] = rows.at[kind][m->row[j]];
            m->job[n_job++] = (mm_cpu_job){
                w[k], kind, x + g->first, g->n, y[k] + g->first * m->width, m->width, 0};
        }
    }
    MM_TRY(mm_cpu_linear(r, m->job, n_job));
    const size_t n_byte = mm_cpu_prepared_bytes(MM_CPU_F32, m->width);
    for (int64_t i = 0; i < m->n_pair; i++)
        m->at[i] = m->a + (size_t)i * n_byte;
    mm_pool_run(mm_cpu_pool(r, m->n_pair * m->width * 16), m->n_pair, 1, activate_pairs, m);
    for (int32_t i = 0; i < m->n_group; i++) {
        const mlp_group *g = &m->group[i];
        m->job[i] = (mm_cpu_job){g->down,
                                 mm_cpu_kind_of(r->isa, g->down->format, s->act),
                                 m->at + g->first,
                                 g->n,
                                 m->y + g->first * s->d_model,
                                 s->d_model,
                                 0};
    }
    return mm_cpu_linear(r, m->job, m->n_group);
}

static mm_status open_run(moe_run *m)
{
    const mm_cpu_run *r = m->r;
    const int64_t act_size = mm_cpu_act_size(r->s->act);
    const size_t n = (size_t)m->n_pair;
    void *p[6];
    MM_TRY(mm_cpu_scratch(r, n * 2 * sizeof(void *), &p[0]));
    MM_TRY(mm_cpu_floats(r, m->n_pair * m->width, &m->g));
    MM_TRY(mm_cpu_floats(r, m->n_pair * m->width, &m->u));
    MM_TRY(mm_cpu_floats(r, m->n_pair * r->s->d_model, &m->y));
    MM_TRY(mm_cpu_scratch(r, n * mm_cpu_prepared_bytes(MM_CPU_F32, m->width), &p[1]));
    MM_TRY(mm_cpu_scratch(r, n * sizeof(void *), &p[2]));
    MM_TRY(mm_cpu_scratch(r, (size_t)(r->n_thread * m->width * act_size), &p[3]));
    MM_TRY(mm_cpu_scratch(r, n * sizeof(int32_t), &p[4]));
    MM_TRY(mm_cpu_scratch(r, 2 * sizeof(mm_cpu_job) * (size_t)m->n_group, &p[5]));
    m->x = p[0];
    m->a = p[1];
    m->at = p[2];
    m->tmp = p[3];
    m->group_of = p[4];
    m->job = p[5];
    return MM_OK;
}

static size_t run_scratch(const mm_op_shape *s, int64_t n_row, int64_t n_pair, int64_t n_group,
                          int64_t width, int32_t n_thread)
{
    const size_t n = (size_t)n_pair, w = (size_t)width, f = sizeof(float);
    return mm_arena_size(n * 2 * sizeof(void *)) + 2 * mm_arena_size(f * n * w) +
           mm_arena_size(f * n * (size_t)s->d_model) +
           mm_arena_size(n * mm_cpu_prepared_bytes(MM_CPU_F32, width)) +
           mm_arena_size(n * sizeof(void *)) + mm_arena_size((size_t)n_thread * w * f) +
           mm_arena_size(n * sizeof(int32_t)) +
           mm_arena_size(2 * sizeof(mm_cpu_job) * (size_t)n_group) +
           mm_cpu_prepare_scratch(n_row, s->d_model, 4) +
           mm_cpu_linear_scratch(mm_max_i64(s->d_model, width), n_thread) +
           mm_cpu_branch_end_scratch(s, n_row);
}

static mm_status check_mlp(const mm_op_shape *s, const mm_weight *gate, const mm_weight *up,
                           const mm_weight *down)
{
    MM_TRY(mm_cpu_check_weight(gate, "gate"));
    MM_TRY(mm_cpu_check_weight(up, "up"));
    MM_TRY(mm_cpu_check_weight(down, "down"));
    if (gate->n_in != s->d_model || up->n_in != s->d_model || down->n_out != s->d_model ||
        gate->n_out != up->n_out || down->n_in != gate->n_out)
        return MM_FAIL(
            MM_E_SHAPE,
            "cpu: gate [%lld, %lld], up [%lld, %lld] and down [%lld, %lld] are no MLP of width %d",
            (long long)gate->n_out, (long long)gate->n_in, (long long)up->n_out,
            (long long)up->n_in, (long long)down->n_out, (long long)down->n_in, s->d_model);
    return MM_OK;
}

static mm_status check_width(int64_t width, int64_t most)
{
    return width <= most
               ? MM_OK
               : MM_FAIL(MM_E_SHAPE, "cpu: an MLP is %lld wide, the shape says at most %lld",
                         (long long)width, (long long)most);
}

/* ---------------------------------------------------------------- dense MLP */

mm_status mm_cpu_mlp(const mm_op_context *c, const mm_seq_view *seq, const mm_mlp_args *a)
{
    const mm_cpu_run r = mm_cpu_start(c);
    const int64_t d = r.s->d_model, row_size = d * mm_cpu_act_size(r.s->act);
    MM_TRY(check_mlp(r.s, a->gate, a->up, a->down));
    MM_TRY(check_width(a->gate->n_out, r.s->d_dense));
    for (int64_t t = 0; t < seq->n_row; t += MM_CPU_CHUNK) {
        const int64_t n = mm_min_i64(MM_CPU_CHUNK, seq->n_row - t);
        mlp_group group = {a->gate, a->up, a->down, 0, n};
        moe_run m = {.r = &r, .group = &group, .n_group = 1, .n_pair = n, .width = a->gate->n_out};
        void *row;
        mm_arena_reset(&c->stream->scratch);
        MM_TRY(mm_cpu_scratch(&r, (size_t)n * sizeof(int32_t), &row));
        m.row = row;
        for (int64_t i = 0; i < n; i++)
            m.row[i] = (int32_t)i;
        MM_TRY(open_run(&m));
        MM_TRY(run_mlps(&m, a->h, t, n));
        MM_TRY(mm_cpu_branch_end(&r, n, m.y, (uint8_t *)a->x + t * row_size, a->norm_w,
                                 (uint8_t *)a->h_out + t * row_size));
    }
    return MM_OK;
}

size_t mm_cpu_mlp_scratch(const mm_op_shape *s, int32_t n_thread)
{
    const int64_t n = mm_min_i64(MM_CPU_CHUNK, s->max_rows);
    return mm_arena_size((size_t)n * sizeof(int32_t)) +
           run_scratch(s, n, n, 1, s->d_dense, n_thread);
}

/* ---------------------------------------------------------------- experts */

static void add_rows(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    (void)i_thread;
    const moe_run *m = ctx;
    const mm_cpu_math_kernels *math = m->r->isa->math;
    const mm_op_shape *s = m->r->s;
    const int64_t d = s->d_model;
    const int32_t k = s->n_expert_used;
    for (int64_t t = begin; t < end; t++) {
        float *acc = m->acc + t * d;
        if (!m->accumulate)
            memset(acc, 0, (size_t)d * sizeof(float));
        for (int32_t i = 0; i < k; i++) {
            const int32_t j = m->order[t * k + i], pair = m->pair[t * k + j];
            if (pair >= 0)
                math->axpy(s->routed_scale * m->weights[t * k + j], m->y + pair * d, d, acc);
        }
        if (m->shared != NULL)
            math->axpy(1.0f, m->y + m->shared[t] * d, d, acc);
    }
}

/* Lists the (row, choice) pairs of experts [first, last) expert by expert, then the shared expert's
 * rows. */
static int64_t group_rows(moe_run *m, const mm_moe_args *a, const int32_t *experts, int64_t n,
                          int32_t *start, int32_t *pair, int32_t *shared, int32_t *order)
{
    const int32_t k = m->r->s->n_expert_used, n_expert = a->last - a->first;
    memset(start, 0, ((size_t)n_expert + 1) * sizeof *start);
    for (int64_t i = 0; i < n * k; i++) {
        if (experts[i] >= a->first && experts[i] < a->last)
            start[experts[i] - a->first + 1]++;
    }
    m->n_group = 0;
    for (int32_t e = 0; e < n_expert; e++) {
        if (start[e + 1] > 0)
            m->group[m->n_group++] = (mlp_group){&a->w->w1[a->first + e], &a->w->w3[a->first + e],
                                                 &a->w->w2[a->first + e], start[e], start[e + 1]};
        start[e + 1] += start[e];
    }
    int64_t n_pair = start[n_expert];
    for (int64_t i = 0; i < n * k; i++) {
        pair[i] = -1;
        if (experts[i] < a->first || experts[i] >= a->last)
            continue;
        pair[i] = start[experts[i] - a->first]++;
        m->row[pair[i]] = (int32_t)(i / k);
    }
    for (int64_t t = 0; t < n; t++) {
        int32_t *o = order + t * k;
        const int32_t *e = experts + t * k;
        for (int32_t i = 0; i < k; i++) {
            int32_t j = i;
            for (; j > 0 && e[o[j - 1]] > e[i]; j--)
                o[j] = o[j - 1];
            o[j] = i;
        }
    }
    if (shared != NULL) {
        m->group[m->n_group++] =
            (mlp_group){&a->w->shared_gate, &a->w->shared_up, &a->w->shared_down, n_pair, n};
        for (int64_t t = 0; t < n; t++) {
            m->row[n_pair] = (int32_t)t;
            shared[t] = (int32_t)n_pair++;
        }
    }
    return n_pair;
}

static mm_status run_chunk(const mm_cpu_run *r, const mm_moe_args *a, int64_t t, int64_t n)
{
    const mm_op_shape *s = r->s;
    const int64_t k = s->n_expert_used, d = s->d_model, n_expert = a->last - a->first;
    const int64_t row_size = d * mm_cpu_act_size(s->act), most = n * (k + 1);
    const int64_t width =
        mm_max_i64(n_expert > 0 ? s->d_expert : 0, a->with_shared ? s->d_shared : 0);
    moe_run m = {.r = r,
                 .width = width,
                 .acc = a->acc + t * d,
                 .weights = a->weights + t * k,
                 .accumulate = a->accumulate};
    void *p[6];
    mm_arena_reset(&r->c->stream->scratch);
    MM_TRY(mm_cpu_scratch(r, sizeof(mlp_group) * (size_t)(mm_min_i64(n_expert, n * k) + 1), &p[0]));
    MM_TRY(mm_cpu_scratch(r, sizeof(int32_t) * (size_t)most, &p[1]));
    MM_TRY(mm_cpu_scratch(r, sizeof(int32_t) * (size_t)(n_expert + 1), &p[2]));
    MM_TRY(mm_cpu_scratch(r, sizeof(int32_t) * (size_t)(n * k), &p[3]));
    MM_TRY(mm_cpu_scratch(r, sizeof(int32_t) * (size_t)(n * k), &p[4]));
    MM_TRY(mm_cpu_scratch(r, sizeof(int32_t) * (size_t)n, &p[5]));
    m.group = p[0];
    m.row = p[1];
    m.pair = p[3];
    m.order = p[4];
    m.shared = a->with_shared ? p[5] : NULL;
    m.n_pair =
        group_rows(&m, a, a->experts + t * k, n, p[2], p[3], a->with_shared ? p[5] : NULL, p[4]);
    if (m.n_pair > 0) {
        MM_TRY(open_run(&m));
        MM_TRY(run_mlps(&m, a->h, t, n));
    }
    mm_pool_run(mm_cpu_pool(r, n * d * (k + 1)), n, 1, add_rows, &m);
    if (!a->finish)
        return MM_OK;
    return mm_cpu_branch_end(r, n, m.acc, (uint8_t *)a->x + t * row_size, a->norm_w,
                             (uint8_t *)a->h_out + t * row_size);
}

mm_status mm_cpu_moe(const mm_op_context *c, const mm_seq_view *seq, const mm_moe_args *a)
{
    const mm_cpu_run r = mm_cpu_start(c);
    const mm_op_shape *s = r.s;
    for (int32_t e = a->first; e < a->last; e++) {
        MM_TRY(check_mlp(s, &a->w->w1[e], &a->w->w3[e], &a->w->w2[e]));
        MM_TRY(check_width(a->w->w1[e].n_out, s->d_expert));
    }
    if (a->with_shared) {
        MM_TRY(check_mlp(s, &a->w->shared_gate, &a->w->shared_up, &a->w->shared_down));
        MM_TRY(check_width(a->w->shared_gate.n_out, s->d_shared));
    }
    for (int64_t t = 0; t < seq->n_row; t += MM_CPU_CHUNK)
        MM_TRY(run_chunk(&r, a, t, mm_min_i64(MM_CPU_CHUNK, seq->n_row - t)));
    return MM_OK;
}

size_t mm_cpu_moe_scratch(const mm_op_shape *s, int32_t n_thread)
{
    if (s->n_expert == 0)
        return 0;
    const int64_t n = mm_min_i64(MM_CPU_CHUNK, s->max_rows), k = s->n_expert_used;
    const size_t i = sizeof(int32_t), pairs = (size_t)(n * k);
    return mm_arena_size(sizeof(mlp_group) * ((size_t)s->n_expert + 1)) +
           mm_arena_size(i * (pairs + (size_t)n)) + mm_arena_size(i * ((size_t)s->n_expert + 1)) +
           2 * mm_arena_size(i * pairs) + mm_arena_size(i * (size_t)n) +
           run_scratch(s, n, n * (k + 1), s->n_expert + 1, mm_max_i64(s->d_expert, s->d_shared),
                       n_thread);
}
