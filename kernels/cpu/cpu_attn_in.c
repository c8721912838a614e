/* cpu_attn_in.c: the projections of a chunk of rows as one parallel loop, then row by row the norm
 * and rotation of each head and the rows that go into the pages. */
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

enum { Q, K, V, IQ, IK, N_PROJECTION };

typedef struct projection {
    const mm_weight *w;  /* NULL: not wanted */
    const float *norm_w; /* NULL: taken as projected */
    int32_t n_head, dim;
    const mm_plane *plane; /* where the rows go, or */
    void *out;             /* [T, n_head, dim] act */
    float *y;              /* [chunk, n_head * dim] */
} projection;

typedef struct attn_in_run {
    const mm_cpu_run *r;
    const mm_seq_view *seq;
    projection *p; /* [N_PROJECTION] */
    int64_t t;     /* first row of the chunk */
} attn_in_run;

static void finish_head(const attn_in_run *a, const projection *p, int64_t t, float *v)
{
    const mm_op_shape *s = a->r->s;
    if (p->norm_w == NULL)
        return;
    a->r->isa->math->norm(v, p->norm_w, p->dim, s->eps, v);
    mm_ref_rotate(v, a->r->c->rope + (int64_t)a->seq->pos[t] * s->n_rotary, s->n_rotary);
}

static void finish_rows(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    (void)i_thread;
    const attn_in_run *a = ctx;
    const mm_cpu_math_kernels *m = a->r->isa->math;
    const mm_dtype act = a->r->s->act;
    for (int64_t i = begin; i < end; i++) {
        const int64_t t = a->t + i;
        for (int j = 0; j < N_PROJECTION; j++) {
            const projection *p = &a->p[j];
            if (p->w == NULL)
                continue;
            const int64_t width = (int64_t)p->n_head * p->dim;
            float *y = p->y + i * width;
            for (int32_t h = 0; h < p->n_head; h++) {
                float *v = y + (int64_t)h * p->dim;
                m->round(act, v, p->dim);
                finish_head(a, p, t, v);
                if (p->plane == NULL)
                    continue;
                m->round(act, v, p->dim);
                const int32_t pos = a->seq->pos[t];
                const int64_t page = mm_ref_page(a->seq, a->seq->row_seq[t], pos / MM_PAGE);
                mm_ref_plane_write(p->plane, page, h, pos % MM_PAGE, v);
            }
            if (p->out != NULL)
                m->from_f32(act, y, width, (uint8_t *)p->out + t * width * mm_cpu_act_size(act));
        }
    }
}

static mm_status check(const mm_cpu_run *r, const projection *p)
{
    static const char *const name[N_PROJECTION] = {"q_proj", "k_proj", "v_proj", "index_q_proj",
                                                   "index_k_proj"};
    for (int j = 0; j < N_PROJECTION; j++) {
        if (p[j].w == NULL)
            continue;
        MM_TRY(mm_cpu_check_weight(p[j].w, name[j]));
        if (p[j].w->n_out != (int64_t)p[j].n_head * p[j].dim || p[j].w->n_in != r->s->d_model)
            return MM_FAIL(MM_E_SHAPE, "cpu: weight %s is [%lld, %lld], not [%d * %d, %d]", name[j],
                           (long long)p[j].w->n_out, (long long)p[j].w->n_in, p[j].n_head, p[j].dim,
                           r->s->d_model);
    }
    return MM_OK;
}

mm_status mm_cpu_attn_in(const mm_op_context *c, const mm_seq_view *seq, const mm_attn_in_args *a)
{
    const mm_cpu_run r = mm_cpu_start(c);
    const mm_op_shape *s = r.s;
    const mm_attn_weights *w = a->w;
    const bool to_pages = a->k_out == NULL;
    if ((a->k_out == NULL) != (a->v_out == NULL))
        return MM_FAIL(MM_E_INVALID, "attn_in: k_out and v_out must both be given or both be NULL");
    const bool want_query = a->q != NULL, want_index = want_query && a->iq != NULL;
    projection p[N_PROJECTION] = {
        [K] = {&w->k, w->k_norm, s->n_kv_head, s->head_dim, to_pages ? &a->cache->k : NULL,
               a->k_out, NULL},
        [V] = {&w->v, NULL, s->n_kv_head, s->head_dim, to_pages ? &a->cache->v : NULL, a->v_out,
               NULL},
    };
    if (want_query)
        p[Q] = (projection){&w->q, w->q_norm, s->n_head, s->head_dim, NULL, a->q, NULL};
    if (want_index) {
        p[IQ] = (projection){&w->iq, w->iq_norm, s->n_index_head, s->index_dim, NULL, a->iq, NULL};
        p[IK] = (projection){&w->ik, w->ik_norm, 1, s->index_dim, &a->cache->ik, NULL, NULL};
    }
    MM_TRY(check(&r, p));
    const int64_t chunk = mm_min_i64(MM_CPU_CHUNK, seq->n_row);
    for (int j = 0; j < N_PROJECTION; j++) {
        if (p[j].w != NULL)
            MM_TRY(mm_cpu_floats(&r, chunk * p[j].w->n_out, &p[j].y));
    }
    const size_t used = c->stream->scratch.used;
    for (int64_t t = 0; t < seq->n_row; t += chunk) {
        const int64_t n = mm_min_i64(chunk, seq->n_row - t);
        mm_cpu_rows rows = {.x = a->h, .first = t, .n = n, .k = s->d_model};
        mm_cpu_job job[N_PROJECTION];
        int32_t n_job = 0;
        int64_t width = 0;
        for (int j = 0; j < N_PROJECTION; j++) {
            if (p[j].w == NULL)
                continue;
            const mm_cpu_kind kind = mm_cpu_kind_of(r.isa, p[j].w->format, s->act);
            MM_TRY(mm_cpu_prepare(&r, &rows, kind));
            width += p[j].w->n_out;
            job[n_job++] = (mm_cpu_job){p[j].w, kind, rows.at[kind], n, p[j].y, p[j].w->n_out, 0};
        }
        MM_TRY(mm_cpu_linear(&r, job, n_job));
        attn_in_run run = {&r, seq, p, t};
        mm_pool_run(mm_cpu_pool(&r, n * width * 16), n, 1, finish_rows, &run);
        c->stream->scratch.used = used;
    }
    return MM_OK;
}

size_t mm_cpu_attn_in_scratch(const mm_op_shape *s, int32_t n_thread)
{
    const size_t n = (size_t)mm_min_i64(MM_CPU_CHUNK, s->max_rows);
    const size_t width[N_PROJECTION] = {
        (size_t)s->n_head * (size_t)s->head_dim, (size_t)s->n_kv_head * (size_t)s->head_dim,
        (size_t)s->n_kv_head * (size_t)s->head_dim, (size_t)s->n_index_head * (size_t)s->index_dim,
        (size_t)s->index_dim};
    size_t total = mm_cpu_prepare_scratch((int64_t)n, s->d_model, 4) +
                   mm_cpu_linear_scratch(s->d_model, n_thread);
    for (int j = 0; j < N_PROJECTION; j++)
        total += mm_arena_size(sizeof(float) * n * width[j]);
    return total;
}
