/* cpu_head.c: logits of the rows that need them, straight into place; with several ranks each
 * computes its slice of the vocabulary, the slices are gathered, and their columns put side by
 * side. */
#include "kernels/cpu/cpu.h"

/* Columns of one rank: all ranks but the last have as many. */
static int64_t slice_width(const mm_op_shape *s, int32_t world)
{
    return world > 1 ? mm_max_i64(s->n_vocab_local, mm_ceil_div(s->n_vocab, world))
                     : s->n_vocab_local;
}

static mm_status gather_slices(const mm_cpu_run *r, const mm_head_args *a, const float *part,
                               int64_t width)
{
    mm_comm *comm = r->c->comm;
    const int64_t v = r->s->n_vocab, n = a->n_out;
    float *all;
    MM_TRY(mm_cpu_floats(r, comm->world * n * width, &all));
    MM_TRY(comm->all_gather(comm, r->c->stream, part, all, n * width * (int64_t)sizeof(float)));
    for (int32_t k = 0; k < comm->world; k++) {
        const int64_t first = k * width, used = mm_min_i64(width, v - first);
        for (int64_t i = 0; i < n && used > 0; i++)
            memcpy(a->logits + i * v + first, all + (k * n + i) * width,
                   (size_t)used * sizeof(float));
    }
    return MM_OK;
}

mm_status mm_cpu_head(const mm_op_context *c, const mm_head_args *a)
{
    const mm_cpu_run r = mm_cpu_start(c);
    const mm_op_shape *s = r.s;
    const int64_t v = s->n_vocab;
    const int32_t world = c->comm != NULL ? c->comm->world : 1;
    const int64_t width = slice_width(s, world);
    float *part = a->logits;
    int64_t stride = v;
    MM_TRY(mm_cpu_check_weight(a->w, "lm_head"));
    if (a->w->n_in != s->d_model || a->w->n_out != s->n_vocab_local)
        return MM_FAIL(MM_E_SHAPE, "cpu: weight lm_head is [%lld, %lld], not [%d, %d]",
                       (long long)a->w->n_out, (long long)a->w->n_in, s->n_vocab_local, s->d_model);
    if (world > 1) {
        MM_TRY(mm_cpu_floats(&r, a->n_out * width, &part));
        stride = width;
    } else if (s->n_vocab_local < v) { /* one shard run alone: what other ranks would know is never
                                          chosen */
        for (int64_t i = 0; i < a->n_out * v; i++)
            a->logits[i] = -INFINITY;
        part = a->logits + s->vocab_first;
    }
    const mm_cpu_kind kind = mm_cpu_kind_of(r.isa, a->w->format, s->act);
    const size_t used = c->stream->scratch.used;
    for (int64_t t = 0; t < a->n_out; t += MM_CPU_CHUNK) {
        const int64_t n = mm_min_i64(MM_CPU_CHUNK, a->n_out - t);
        mm_cpu_rows rows = {.x = a->h, .row = a->row, .first = t, .n = n, .k = s->d_model};
        c->stream->scratch.used = used;
        MM_TRY(mm_cpu_prepare(&r, &rows, kind));
        mm_cpu_job job = {a->w, kind, rows.at[kind], n, part + t * stride, stride, 0};
        MM_TRY(mm_cpu_linear(&r, &job, 1));
    }
    c->stream->scratch.used = used;
    return world > 1 ? gather_slices(&r, a, part, width) : MM_OK;
}

size_t mm_cpu_head_scratch(const mm_op_shape *s, int32_t n_thread)
{
    const int64_t n = mm_min_i64(MM_CPU_CHUNK, s->max_logit_rows);
    size_t slices = 0;
    if (s->n_vocab_local < s->n_vocab) /* one slice, and all of them: at most one column per rank
                                          more than V */
        slices =
            2 * mm_arena_size(2 * sizeof(float) * (size_t)s->max_logit_rows * (size_t)s->n_vocab);
    return slices + mm_cpu_prepare_scratch(n, s->d_model, 1) +
           mm_cpu_linear_scratch(s->d_model, n_thread);
}
