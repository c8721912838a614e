/* cpu_norm.c: rows, independent of each other: the embedding with layer 0's norm, and the end of a
 * residual branch. */
#include "kernels/cpu/cpu.h"

static void *row_at(mm_dtype act, const void *base, int64_t row, int64_t width)
{
    return (uint8_t *)(uintptr_t)base + row * width * mm_cpu_act_size(act);
}

/* ---------------------------------------------------------------- embed */

typedef struct embed_run {
    const mm_cpu_run *r;
    const mm_seq_view *seq;
    const mm_embed_args *a;
    float *row; /* [n_thread, D] */
} embed_run;

static int32_t row_token(const mm_seq_view *seq, int64_t t)
{
    const mm_slots *s = seq->slots;
    const int32_t token = seq->token[t];
    if (token >= 0)
        return token;
    const int32_t slot = seq->slot[seq->row_seq[t]];
    return token == -1 ? s->last_token[slot]
                       : s->draft_token[(int64_t)slot * (MM_MAX_DECODE_ROWS - 1) - 2 - token];
}

static void embed_rows(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    const embed_run *e = ctx;
    const mm_cpu_math_kernels *m = e->r->isa->math;
    const mm_op_shape *s = e->r->s;
    const mm_weight *w = e->a->embed;
    const int64_t d = s->d_model;
    float *row = e->row + i_thread * d;
    for (int64_t t = begin; t < end; t++) {
        void *x = row_at(s->act, e->a->x, t, d);
        const int32_t media = e->a->row_media != NULL ? e->a->row_media[t] : -1;
        if (media >= 0) {
            memcpy(x, row_at(s->act, e->a->media, media, d), (size_t)(d * mm_cpu_act_size(s->act)));
        } else {
            const int32_t token = row_token(e->seq, t);
            MM_ASSERT(token >= 0 && token < w->n_out);
            m->to_f32(w->format == MM_WEIGHT_F32 ? MM_DTYPE_F32 : MM_DTYPE_BF16,
                      (const uint8_t *)w->data + token * w->data_stride, d, row);
            m->from_f32(s->act, row, d, x);
        }
        m->to_f32(s->act, x, d, row);
        m->norm(row, e->a->norm_w, d, s->eps, row);
        m->from_f32(s->act, row, d, row_at(s->act, e->a->h, t, d));
    }
}

mm_status mm_cpu_embed(const mm_op_context *c, const mm_seq_view *seq, const mm_embed_args *a)
{
    const mm_cpu_run r = mm_cpu_start(c);
    embed_run e = {&r, seq, a, NULL};
    if (a->embed->format != MM_WEIGHT_F32 && a->embed->format != MM_WEIGHT_BF16)
        return MM_FAIL(MM_E_UNSUPPORTED, "cpu: the embedding must be F32 or BF16");
    MM_TRY(mm_cpu_floats(&r, (int64_t)r.n_thread * r.s->d_model, &e.row));
    mm_pool_run(mm_cpu_pool(&r, (int64_t)seq->n_row * r.s->d_model * 8), seq->n_row, 1, embed_rows,
                &e);
    return MM_OK;
}

/* ---------------------------------------------------------------- end of a branch */

typedef struct branch_run {
    const mm_cpu_run *r;
    float *y;         /* [n, D] */
    const void *part; /* [n, D] act: the reduced R, or NULL: r(y) is taken here */
    void *x, *h;
    const float *norm_w;
} branch_run;

static void branch_rows(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    (void)i_thread;
    const branch_run *b = ctx;
    const mm_cpu_math_kernels *m = b->r->isa->math;
    const mm_op_shape *s = b->r->s;
    const int64_t d = s->d_model;
    for (int64_t t = begin; t < end; t++) {
        float *y = b->y + t * d;
        void *x = row_at(s->act, b->x, t, d), *h = row_at(s->act, b->h, t, d);
        if (b->part != NULL)
            m->to_f32(s->act, row_at(s->act, b->part, t, d), d, y);
        else
            m->round(s->act, y, d);
        m->add(s->act, x, y, d, y);
        m->from_f32(s->act, y, d, x);
        m->norm(y, b->norm_w, d, s->eps, y);
        m->from_f32(s->act, y, d, h);
    }
}

static void round_rows(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    (void)i_thread;
    const branch_run *b = ctx;
    const mm_op_shape *s = b->r->s;
    for (int64_t t = begin; t < end; t++)
        b->r->isa->math->from_f32(s->act, b->y + t * s->d_model, s->d_model,
                                  row_at(s->act, b->part, t, s->d_model));
}

mm_status mm_cpu_branch_end(const mm_cpu_run *r, int64_t n, float *y, void *x, const float *norm_w,
                            void *h)
{
    mm_comm *comm = r->c->comm;
    const mm_dtype act = r->s->act;
    const int64_t count = n * r->s->d_model;
    branch_run b = {r, y, NULL, x, h, norm_w};
    if (comm != NULL && comm->world > 1 && act == MM_DTYPE_F32) {
        MM_TRY(comm->all_reduce(comm, r->c->stream, y, act, count));
    } else if (comm != NULL && comm->world > 1) {
        void *part;
        MM_TRY(mm_cpu_scratch(r, (size_t)(count * mm_cpu_act_size(act)), &part));
        b.part = part;
        mm_pool_run(mm_cpu_pool(r, count), n, 1, round_rows, &b);
        MM_TRY(comm->all_reduce(comm, r->c->stream, part, act, count));
    }
    mm_pool_run(mm_cpu_pool(r, count * 8), n, 1, branch_rows, &b);
    return MM_OK;
}

size_t mm_cpu_branch_end_scratch(const mm_op_shape *s, int64_t n)
{
    return mm_arena_size((size_t)(n * s->d_model * mm_cpu_act_size(s->act)));
}
