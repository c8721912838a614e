/* ref_attn_out.c: the output projection of attention, the end of its branch, and the router that
 * reads the normed rows. */
#include "kernels/ref/ref.h"

int64_t mm_ref_attn_out_scratch(const mm_op_shape *s)
{
    const size_t f = sizeof(float), width = (size_t)s->n_head * (size_t)s->head_dim;
    return (int64_t)(mm_arena_size(f * (size_t)s->max_rows * (size_t)s->d_model) +
                     mm_arena_size(f * MM_REF_TILE * width) + mm_arena_size(f * width) +
                     mm_arena_size(f * (size_t)s->d_model) +
                     2 * mm_arena_size(f * (size_t)s->n_expert)) +
           mm_ref_branch_end_scratch(s);
}

/* The k best of p + bias, ties to the lower id, ids ascending. */
static void choose_experts(const float *p, const float *bias, int32_t n, int32_t k, int32_t *out)
{
    int32_t n_out = 0;
    for (int32_t e = 0; e < n; e++) {
        const float score = p[e] + (bias != NULL ? bias[e] : 0.0f);
        int32_t i = n_out;
        while (i > 0 && score > p[out[i - 1]] + (bias != NULL ? bias[out[i - 1]] : 0.0f))
            i--;
        if (i == k)
            continue;
        if (n_out < k)
            n_out++;
        for (int32_t j = n_out - 1; j > i; j--)
            out[j] = out[j - 1];
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

/* p [n_expert] are the sigmoids. */
static void route(const mm_op_shape *s, const mm_attn_out_args *a, const float *p, bool has_nan,
                  int32_t *experts, float *weights)
{
    const int32_t k = s->n_expert_used;
    if (!a->force) {
        for (int32_t i = 0; i < k && has_nan; i++)
            experts[i] = i;
        if (!has_nan)
            choose_experts(p, a->bias, s->n_expert, k, experts);
    }
    float sum = 0.0f;
    for (int32_t i = 0; i < k; i++)
        sum += p[experts[i]];
    for (int32_t i = 0; i < k; i++)
        weights[i] = has_nan ? NAN : p[experts[i]] / sum;
}

static mm_status router(const mm_op_context *c, int64_t n_row, const mm_attn_out_args *a)
{
    const mm_op_shape *s = c->shape;
    const int64_t d = s->d_model;
    float *h, *p;
    MM_TRY(mm_ref_floats(c, d, &h));
    MM_TRY(mm_ref_floats(c, s->n_expert, &p));
    for (int64_t t = 0; t < n_row; t++) {
        bool has_nan = false;
        mm_ref_act_read(s->act, a->h, t * d, d, h);
        for (int32_t e = 0; e < s->n_expert; e++) {
            const float logit = mm_ref_dot(h, a->gate + e * d, d);
            has_nan = has_nan || isnan(logit);
            p[e] = 1.0f / (1.0f + expf(-logit));
        }
        route(s, a, p, has_nan, a->experts + t * s->n_expert_used,
              a->weights + t * s->n_expert_used);
    }
    return MM_OK;
}

mm_status mm_ref_attn_out(const mm_op_context *c, const mm_seq_view *seq, const mm_attn_out_args *a)
{
    const mm_op_shape *s = c->shape;
    const int64_t width = a->wo->n_in, d = s->d_model;
    mm_ref_start(c);
    MM_TRY(mm_ref_check_weight(a->wo, "o_proj"));
    float *y, *o, *row;
    MM_TRY(mm_ref_floats(c, seq->n_row * d, &y));
    MM_TRY(mm_ref_floats(c, MM_REF_TILE * width, &o));
    MM_TRY(mm_ref_floats(c, width, &row));
    for (int64_t t = 0; t < seq->n_row; t += MM_REF_TILE) {
        const int64_t n = mm_min_i64(MM_REF_TILE, seq->n_row - t);
        mm_ref_act_read(s->act, a->o, t * width, n * width, o);
        mm_ref_linear(a->wo, o, n, y + t * d, d, row);
    }
    MM_TRY(mm_ref_branch_end(c, seq->n_row, y, a->x, a->norm_w, a->h));
    return a->gate != NULL ? router(c, seq->n_row, a) : MM_OK;
}
