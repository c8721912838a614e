/* ref_moe.c: the clamped SwiGLU MLP, alone (dense layers) and as experts. An expert gathers its
 * rows, so a row's sum goes over its experts in ascending id whatever the other rows chose. */
#include "kernels/ref/ref.h"

static int64_t widest(const mm_op_shape *s)
{
    return mm_max_i64(s->d_dense, mm_max_i64(s->d_expert, s->d_shared));
}

int64_t mm_ref_moe_scratch(const mm_op_shape *s)
{
    const size_t f = sizeof(float), d = (size_t)s->d_model, w = (size_t)widest(s);
    return (int64_t)(mm_arena_size(f * (size_t)s->max_rows * d) +
                     2 * mm_arena_size(f * MM_REF_TILE * d) +
                     2 * mm_arena_size(f * MM_REF_TILE * w) + mm_arena_size(f * (d > w ? d : w))) +
           mm_ref_branch_end_scratch(s);
}

/* (u + beta) * g * sigmoid(alpha * g) of clamped values; written with comparisons so that a NaN
 * stays one. */
static float swiglu(const mm_op_shape *s, float g, float u)
{
    const float limit = s->swiglu_limit;
    g = g > limit ? limit : g;
    u = u > limit ? limit : u < -limit ? -limit : u;
    return (u + s->swiglu_beta) * g * (1.0f / (1.0f + expf(-(s->swiglu_alpha * g))));
}

void mm_ref_mlp(const mm_op_shape *s, const mm_weight *gate, const mm_weight *up,
                const mm_weight *down, const float *h, int64_t n_row, float *y, float *g, float *u,
                float *row)
{
    const int64_t width = gate->n_out;
    mm_ref_linear(gate, h, n_row, g, width, row);
    mm_ref_linear(up, h, n_row, u, width, row);
    for (int64_t i = 0; i < n_row * width; i++)
        g[i] = mm_ref_round(s->act, swiglu(s, g[i], u[i]));
    mm_ref_linear(down, g, n_row, y, s->d_model, row);
}

typedef struct mlp_scratch {
    float *h, *y, *g, *u, *row;
} mlp_scratch; /* [TILE, D] x 2, [TILE, F] x 2, [max(D, F)] */

static mm_status open_scratch(const mm_op_context *c, mlp_scratch *m)
{
    const int64_t d = c->shape->d_model, w = widest(c->shape);
    MM_TRY(mm_ref_floats(c, MM_REF_TILE * d, &m->h));
    MM_TRY(mm_ref_floats(c, MM_REF_TILE * d, &m->y));
    MM_TRY(mm_ref_floats(c, MM_REF_TILE * w, &m->g));
    MM_TRY(mm_ref_floats(c, MM_REF_TILE * w, &m->u));
    return mm_ref_floats(c, mm_max_i64(d, w), &m->row);
}

static mm_status check_mlp(const mm_op_shape *s, const mm_weight *gate, const mm_weight *up,
                           const mm_weight *down)
{
    MM_TRY(mm_ref_check_weight(gate, "gate"));
    MM_TRY(mm_ref_check_weight(up, "up"));
    MM_TRY(mm_ref_check_weight(down, "down"));
    if (gate->n_out > widest(s))
        return MM_FAIL(MM_E_SHAPE, "ref: an MLP is %lld wide, the shape says at most %lld",
                       (long long)gate->n_out, (long long)widest(s));
    return MM_OK;
}

mm_status mm_ref_mlp_op(const mm_op_context *c, const mm_seq_view *seq, const mm_mlp_args *a)
{
    const mm_op_shape *s = c->shape;
    const int64_t d = s->d_model;
    mlp_scratch m;
    float *y;
    mm_ref_start(c);
    MM_TRY(check_mlp(s, a->gate, a->up, a->down));
    MM_TRY(open_scratch(c, &m));
    MM_TRY(mm_ref_floats(c, seq->n_row * d, &y));
    for (int64_t t = 0; t < seq->n_row; t += MM_REF_TILE) {
        const int64_t n = mm_min_i64(MM_REF_TILE, seq->n_row - t);
        mm_ref_act_read(s->act, a->h, t * d, n * d, m.h);
        mm_ref_mlp(s, a->gate, a->up, a->down, m.h, n, y + t * d, m.g, m.u, m.row);
    }
    return mm_ref_branch_end(c, seq->n_row, y, a->x, a->norm_w, a->h_out);
}

/* Runs the n gathered rows through one expert; acc[row[r]] += gain[r] * y[r]. */
static void run_rows(const mm_op_shape *s, const mm_weight *const w[3], const mlp_scratch *m,
                     const int64_t *row, const float *gain, int64_t n, float *acc)
{
    const int64_t d = s->d_model;
    mm_ref_mlp(s, w[0], w[1], w[2], m->h, n, m->y, m->g, m->u, m->row);
    for (int64_t r = 0; r < n; r++) {
        float *sum = acc + row[r] * d;
        for (int64_t j = 0; j < d; j++)
            sum[j] += gain[r] * m->y[r * d + j];
    }
}

static void run_expert(const mm_op_shape *s, const mm_moe_args *a, int64_t n_row, int32_t e,
                       const mlp_scratch *m)
{
    const mm_weight *const w[3] = {&a->w->w1[e], &a->w->w3[e], &a->w->w2[e]};
    const int32_t k = s->n_expert_used;
    int64_t row[MM_REF_TILE], n = 0;
    float gain[MM_REF_TILE];
    for (int64_t i = 0; i < n_row * k; i++) {
        if (a->experts[i] != e)
            continue;
        row[n] = i / k;
        gain[n] = s->routed_scale * a->weights[i];
        mm_ref_act_read(s->act, a->h, row[n] * s->d_model, s->d_model, m->h + n * s->d_model);
        if (++n == MM_REF_TILE) {
            run_rows(s, w, m, row, gain, n, a->acc);
            n = 0;
        }
    }
    if (n > 0)
        run_rows(s, w, m, row, gain, n, a->acc);
}

static void run_shared(const mm_op_shape *s, const mm_moe_args *a, int64_t n_row,
                       const mlp_scratch *m)
{
    const mm_expert_weights *x = a->w;
    const mm_weight *const w[3] = {&x->shared_gate, &x->shared_up, &x->shared_down};
    int64_t row[MM_REF_TILE];
    float gain[MM_REF_TILE];
    for (int64_t t = 0; t < n_row; t += MM_REF_TILE) {
        const int64_t n = mm_min_i64(MM_REF_TILE, n_row - t);
        for (int64_t r = 0; r < n; r++) {
            row[r] = t + r;
            gain[r] = 1.0f;
        }
        mm_ref_act_read(s->act, a->h, t * s->d_model, n * s->d_model, m->h);
        run_rows(s, w, m, row, gain, n, a->acc);
    }
}

mm_status mm_ref_moe(const mm_op_context *c, const mm_seq_view *seq, const mm_moe_args *a)
{
    const mm_op_shape *s = c->shape;
    const mm_expert_weights *w = a->w;
    mlp_scratch m;
    mm_ref_start(c);
    for (int32_t e = a->first; e < a->last; e++)
        MM_TRY(check_mlp(s, &w->w1[e], &w->w3[e], &w->w2[e]));
    if (a->with_shared)
        MM_TRY(check_mlp(s, &w->shared_gate, &w->shared_up, &w->shared_down));
    MM_TRY(open_scratch(c, &m));
    if (!a->accumulate)
        memset(a->acc, 0, (size_t)seq->n_row * (size_t)s->d_model * sizeof(float));
    for (int32_t e = a->first; e < a->last; e++)
        run_expert(s, a, seq->n_row, e, &m);
    if (a->with_shared)
        run_shared(s, a, seq->n_row, &m);
    return a->finish ? mm_ref_branch_end(c, seq->n_row, a->acc, a->x, a->norm_w, a->h_out) : MM_OK;
}
