/* ref_norm.c: the zero-centred RMS norm, and the end of a residual branch: the norm reads the
 * unrounded sum. */
#include "kernels/ref/ref.h"

void mm_ref_norm(const float *v, const float *w, int64_t n, float eps, float *out)
{
    const float r = 1.0f / sqrtf(mm_ref_dot(v, v, n) / (float)n + eps);
    for (int64_t j = 0; j < n; j++)
        out[j] = v[j] * r * (1.0f + w[j]);
}

int64_t mm_ref_branch_end_scratch(const mm_op_shape *s)
{
    return (int64_t)mm_arena_size(2 * (size_t)s->max_rows * (size_t)s->d_model) +
           (int64_t)mm_arena_size(sizeof(float) * (size_t)s->d_model);
}

/* y becomes R: rounded to act, and then summed over the ranks in act. */
static mm_status reduce(const mm_op_context *c, int64_t n, float *y)
{
    const mm_dtype act = c->shape->act;
    const bool many = c->comm != NULL && c->comm->world > 1;
    if (act == MM_DTYPE_F32)
        return many ? c->comm->all_reduce(c->comm, c->stream, y, act, n) : MM_OK;
    void *part;
    MM_TRY(mm_ref_scratch(c, 2 * n, &part));
    mm_ref_act_write(act, part, 0, n, y);
    if (many)
        MM_TRY(c->comm->all_reduce(c->comm, c->stream, part, act, n));
    mm_ref_act_read(act, part, 0, n, y);
    return MM_OK;
}

mm_status mm_ref_branch_end(const mm_op_context *c, int64_t n_row, float *y, void *x,
                            const float *norm_w, void *h)
{
    const mm_op_shape *s = c->shape;
    const int64_t d = s->d_model;
    float *row;
    MM_TRY(mm_ref_floats(c, d, &row));
    MM_TRY(reduce(c, n_row * d, y));
    for (int64_t t = 0; t < n_row; t++) {
        float *sum = y + t * d;
        mm_ref_act_read(s->act, x, t * d, d, row);
        for (int64_t j = 0; j < d; j++)
            sum[j] = row[j] + sum[j];
        mm_ref_act_write(s->act, x, t * d, d, sum);
        mm_ref_norm(sum, norm_w, d, s->eps, row);
        mm_ref_act_write(s->act, h, t * d, d, row);
    }
    return MM_OK;
}
