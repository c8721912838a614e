/* ref_attn_in.c: projections of a tile of rows, the norm and rotation of each head, and the rows
 * that go into the pages. */
#include "kernels/ref/ref.h"

static int64_t widest(const mm_op_shape *s)
{
    const int64_t w = (int64_t)mm_max_i64(s->n_head, s->n_kv_head) * s->head_dim;
    return mm_max_i64(w, mm_max_i64(1, s->n_index_head) * (int64_t)s->index_dim);
}

int64_t mm_ref_attn_in_scratch(const mm_op_shape *s)
{
    return (int64_t)(mm_arena_size(sizeof(float) * MM_REF_TILE * (size_t)s->d_model) +
                     mm_arena_size(sizeof(float) * MM_REF_TILE * (size_t)widest(s)) +
                     mm_arena_size(sizeof(float) * (size_t)s->d_model));
}

/* A tile of consecutive rows: t .. t + n - 1. */
typedef struct tile {
    const mm_op_context *c;
    const mm_seq_view *seq;
    int32_t t, n;
    const float *h; /* [n, D] */
    float *y;       /* [n, widest] */
    float *row;     /* [D] */
} tile;

/* y [n, n_head * dim] = r(h W^T); with norm_w also norm, rotation and a second rounding of every
 * head. */
static void project(const tile *b, const mm_weight *w, const float *norm_w, int32_t n_head,
                    int32_t dim)
{
    const mm_op_shape *s = b->c->shape;
    const int64_t width = (int64_t)n_head * dim;
    mm_ref_linear(w, b->h, b->n, b->y, width, b->row);
    for (int64_t i = 0; i < b->n * width; i++)
        b->y[i] = mm_ref_round(s->act, b->y[i]);
    if (norm_w == NULL)
        return;
    for (int32_t r = 0; r < b->n; r++) {
        const float *rope = b->c->rope + (int64_t)b->seq->pos[b->t + r] * s->n_rotary;
        for (int32_t a = 0; a < n_head; a++) {
            float *v = b->y + r * width + (int64_t)a * dim;
            mm_ref_norm(v, norm_w, dim, s->eps, v);
            mm_ref_rotate(v, rope, s->n_rotary);
            for (int32_t j = 0; j < dim; j++)
                v[j] = mm_ref_round(s->act, v[j]);
        }
    }
}

static void store(const tile *b, const mm_plane *plane)
{
    const int64_t width = (int64_t)plane->n_head * plane->dim;
    for (int32_t r = 0; r < b->n; r++) {
        const int32_t p = b->seq->pos[b->t + r];
        const int64_t page = mm_ref_page(b->seq, b->seq->row_seq[b->t + r], p / MM_PAGE);
        for (int32_t g = 0; g < plane->n_head; g++)
            mm_ref_plane_write(plane, page, g, p % MM_PAGE,
                               b->y + r * width + (int64_t)g * plane->dim);
    }
}

static void project_key(const tile *b, const mm_weight *w, const float *norm_w,
                        const mm_plane *plane, void *out)
{
    const mm_op_shape *s = b->c->shape;
    const int64_t width = (int64_t)s->n_kv_head * s->head_dim;
    project(b, w, norm_w, s->n_kv_head, s->head_dim);
    if (out != NULL)
        mm_ref_act_write(s->act, out, b->t * width, b->n * width, b->y);
    else
        store(b, plane);
}

static mm_status check(const mm_attn_in_args *a, bool want_query, bool want_index)
{
    if ((a->k_out == NULL) != (a->v_out == NULL))
        return MM_FAIL(MM_E_INVALID, "attn_in: k_out and v_out must both be given or both be NULL");
    MM_TRY(mm_ref_check_weight(&a->w->k, "k_proj"));
    MM_TRY(mm_ref_check_weight(&a->w->v, "v_proj"));
    if (want_query)
        MM_TRY(mm_ref_check_weight(&a->w->q, "q_proj"));
    if (want_index) {
        MM_TRY(mm_ref_check_weight(&a->w->iq, "index_q_proj"));
        MM_TRY(mm_ref_check_weight(&a->w->ik, "index_k_proj"));
    }
    return MM_OK;
}

mm_status mm_ref_attn_in(const mm_op_context *c, const mm_seq_view *seq, const mm_attn_in_args *a)
{
    const mm_op_shape *s = c->shape;
    const int64_t d = s->d_model;
    const bool want_query = a->q != NULL, want_index = want_query && a->iq != NULL;
    mm_ref_start(c);
    MM_TRY(check(a, want_query, want_index));
    float *h, *y, *row;
    MM_TRY(mm_ref_floats(c, MM_REF_TILE * d, &h));
    MM_TRY(mm_ref_floats(c, MM_REF_TILE * widest(s), &y));
    MM_TRY(mm_ref_floats(c, d, &row));
    for (int32_t t = 0; t < seq->n_row; t += MM_REF_TILE) {
        const tile b = {c, seq, t, (int32_t)mm_min_i64(MM_REF_TILE, seq->n_row - t), h, y, row};
        mm_ref_act_read(s->act, a->h, t * d, b.n * d, h);
        project_key(&b, &a->w->k, a->w->k_norm, &a->cache->k, a->k_out);
        project_key(&b, &a->w->v, NULL, &a->cache->v, a->v_out);
        if (want_query) {
            const int64_t width = (int64_t)s->n_head * s->head_dim;
            project(&b, &a->w->q, a->w->q_norm, s->n_head, s->head_dim);
            mm_ref_act_write(s->act, a->q, t * width, b.n * width, y);
        }
        if (want_index) {
            const int64_t width = (int64_t)s->n_index_head * s->index_dim;
            project(&b, &a->w->ik, a->w->ik_norm, 1, s->index_dim);
            store(&b, &a->cache->ik);
            project(&b, &a->w->iq, a->w->iq_norm, s->n_index_head, s->index_dim);
            mm_ref_act_write(s->act, a->iq, t * width, b.n * width, y);
        }
    }
    return MM_OK;
}
