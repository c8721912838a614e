/* ref_head.c: logits of the rows that need them. With several ranks each computes its slice of the
 * vocabulary, the slices are gathered, and their columns put side by side. */
#include "kernels/ref/ref.h"

/* Columns of one rank: all ranks but the last have as many. */
static int64_t slice_width(const mm_op_shape *s, int32_t world)
{
    return world > 1 ? mm_max_i64(s->n_vocab_local, mm_ceil_div(s->n_vocab, world))
                     : s->n_vocab_local;
}

int64_t mm_ref_head_scratch(const mm_op_shape *s)
{
    const size_t f = sizeof(float), d = (size_t)s->d_model, n = (size_t)s->max_logit_rows;
    size_t size = mm_arena_size(f * MM_REF_TILE * d) + mm_arena_size(f * d);
    if (s->n_vocab_local < s->n_vocab) /* one slice, and all of them: at most one column per rank
                                          more than V */
        size += mm_arena_size(2 * f * n * (size_t)s->n_vocab) +
                mm_arena_size(2 * f * n * (size_t)s->n_vocab);
    return (int64_t)size;
}

static mm_status gather_slices(const mm_op_context *c, const mm_head_args *a, const float *part,
                               int64_t width)
{
    const int32_t world = c->comm->world;
    const int64_t v = c->shape->n_vocab, n = a->n_out;
    float *all;
    MM_TRY(mm_ref_floats(c, world * n * width, &all));
    MM_TRY(c->comm->all_gather(c->comm, c->stream, part, all, n * width * (int64_t)sizeof(float)));
    for (int32_t k = 0; k < world; k++) {
        const int64_t first = k * width, used = mm_min_i64(width, v - first);
        for (int64_t i = 0; i < n && used > 0; i++)
            memcpy(a->logits + i * v + first, all + (k * n + i) * width,
                   (size_t)used * sizeof(float));
    }
    return MM_OK;
}

mm_status mm_ref_head(const mm_op_context *c, const mm_head_args *a)
{
    const mm_op_shape *s = c->shape;
    const int64_t d = s->d_model, v = s->n_vocab;
    const int32_t world = c->comm != NULL ? c->comm->world : 1;
    const int64_t width = slice_width(s, world);
    mm_ref_start(c);
    MM_TRY(mm_ref_check_weight(a->w, "lm_head"));
    float *h, *row, *part = a->logits;
    int64_t stride = v;
    MM_TRY(mm_ref_floats(c, MM_REF_TILE * d, &h));
    MM_TRY(mm_ref_floats(c, d, &row));
    if (world > 1) {
        MM_TRY(mm_ref_floats(c, a->n_out * width, &part));
        stride = width;
    } else if (s->n_vocab_local < v) { /* one shard run alone: what other ranks would know is never
                                          chosen */
        for (int64_t i = 0; i < a->n_out * v; i++)
            a->logits[i] = -INFINITY;
        part = a->logits + s->vocab_first;
    }
    for (int64_t t = 0; t < a->n_out; t += MM_REF_TILE) {
        const int64_t n = mm_min_i64(MM_REF_TILE, a->n_out - t);
        for (int64_t r = 0; r < n; r++)
            mm_ref_act_read(s->act, a->h, a->row[t + r] * d, d, h + r * d);
        mm_ref_linear(a->w, h, n, part + t * stride, stride, row);
    }
    return world > 1 ? gather_slices(c, a, part, width) : MM_OK;
}
