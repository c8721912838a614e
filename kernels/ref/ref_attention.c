/* ref_attention.c: attn_sparse and attn_dense. Rows of one sequence are taken in tiles; a page is
 * decoded once per tile and head, and each row that reads it merges the page's partial, pages in
 * ascending order. */
#include "kernels/ref/ref.h"

/* ---------------------------------------------------------------- partials */

void mm_ref_attn_partial(mm_cache_format format, int32_t dim, const float *q, const float *k,
                         const float *v, int32_t n_key, mm_ref_attn_state *s, float *page_acc)
{
    const float scale = 1.0f / sqrtf((float)dim);
    float p[MM_PAGE], max = -INFINITY, den = 0.0f;
    if (n_key <= 0)
        return;
    MM_ASSERT(n_key <= MM_PAGE);
    for (int32_t i = 0; i < n_key; i++) {
        p[i] = mm_ref_dot(q, k + (int64_t)i * dim, dim) * scale;
        if (p[i] > max)
            max = p[i];
    }
    memset(page_acc, 0, (size_t)dim * sizeof(float));
    for (int32_t i = 0; i < n_key; i++) {
        float e = expf(p[i] - max), operand = e; /* a NaN score makes e, den and acc NaN */
        if (format == MM_CACHE_NVFP4) {
            e = 448.0f * e;
            operand = mm_f32_from_e4m3(mm_e4m3_from_f32(e));
        } else if (format != MM_CACHE_F32) {
            operand = mm_f32_round_bf16(e);
        }
        den += e;
        const float *row = v + (int64_t)i * dim;
        for (int32_t j = 0; j < dim; j++)
            page_acc[j] += operand * row[j];
    }
    const float new_max = max > s->max ? max : s->max;
    const float keep = expf(s->max - new_max), add = expf(max - new_max);
    s->max = new_max;
    s->den = s->den * keep + den * add;
    for (int32_t j = 0; j < dim; j++)
        s->acc[j] = s->acc[j] * keep + page_acc[j] * add;
}

void mm_ref_attn_finish(mm_cache_format format, int32_t dim, mm_ref_attn_state *s)
{
    float den = s->den;
    if (format == MM_CACHE_NVFP4 ? den < 1.0f : den == 0.0f) /* no key at all: acc and the output
                                                                are 0 */
        den = 1.0f;
    for (int32_t j = 0; j < dim; j++)
        s->acc[j] = s->acc[j] / den;
}

/* ---------------------------------------------------------------- tiles */

typedef struct work {
    const mm_op_context *c;
    const mm_seq_view *seq;
    const mm_layer_cache *cache;
    int32_t i_seq, t, n;      /* rows t .. t + n - 1 of sequence i_seq */
    float *q;                 /* [TILE, H, d] operands */
    float *k, *v;             /* [PAGE, d] */
    float *page_acc;          /* [d] */
    mm_ref_attn_state *state; /* [TILE, H] */
    float *acc;               /* [TILE, H, d] */
} work;

static int64_t max_blocks(const mm_op_shape *s)
{
    return mm_ceil_div(s->max_model_len, MM_PAGE);
}

int64_t mm_ref_attention_scratch(const mm_op_shape *s)
{
    const size_t head = (size_t)s->n_head * (size_t)s->head_dim, f = sizeof(float);
    const size_t n_index = (size_t)s->n_index_head;
    size_t n = 2 * mm_arena_size(f * MM_REF_TILE * head) +
               2 * mm_arena_size(f * MM_PAGE * (size_t)s->head_dim);
    n += mm_arena_size(f * (size_t)s->head_dim);
    n += mm_arena_size(sizeof(mm_ref_attn_state) * MM_REF_TILE * (size_t)s->n_head);
    n += mm_arena_size(f * MM_REF_TILE * n_index * (size_t)s->index_dim) +
         mm_arena_size(f * MM_PAGE * (size_t)s->index_dim);
    n += mm_arena_size(f * MM_REF_TILE * n_index * (size_t)max_blocks(s));
    n += mm_arena_size(sizeof(int16_t) * MM_REF_TILE * n_index * (size_t)s->n_top_block);
    return (int64_t)n;
}

static mm_status open_work(work *w)
{
    const mm_op_shape *s = w->c->shape;
    const int64_t head = (int64_t)s->n_head * s->head_dim;
    void *state;
    MM_TRY(mm_ref_floats(w->c, MM_REF_TILE * head, &w->q));
    MM_TRY(mm_ref_floats(w->c, MM_REF_TILE * head, &w->acc));
    MM_TRY(mm_ref_floats(w->c, (int64_t)MM_PAGE * s->head_dim, &w->k));
    MM_TRY(mm_ref_floats(w->c, (int64_t)MM_PAGE * s->head_dim, &w->v));
    MM_TRY(mm_ref_floats(w->c, s->head_dim, &w->page_acc));
    MM_TRY(
        mm_ref_scratch(w->c, (int64_t)sizeof(mm_ref_attn_state) * MM_REF_TILE * s->n_head, &state));
    w->state = state;
    return MM_OK;
}

static void begin_tile(work *w, const void *q)
{
    const mm_op_shape *s = w->c->shape;
    const int64_t head = (int64_t)s->n_head * s->head_dim;
    mm_ref_act_read(s->act, q, w->t * head, w->n * head, w->q);
    mm_ref_round_query(w->cache->k.format, w->q, w->n * head);
    memset(w->acc, 0, (size_t)(w->n * head) * sizeof(float));
    for (int64_t i = 0; i < (int64_t)w->n * s->n_head; i++)
        w->state[i] =
            (mm_ref_attn_state){.max = -INFINITY, .den = 0.0f, .acc = w->acc + i * s->head_dim};
}

static void end_tile(work *w, void *o)
{
    const mm_op_shape *s = w->c->shape;
    const int64_t head = (int64_t)s->n_head * s->head_dim;
    for (int64_t i = 0; i < (int64_t)w->n * s->n_head; i++)
        mm_ref_attn_finish(w->cache->k.format, s->head_dim, &w->state[i]);
    mm_ref_act_write(s->act, o, w->t * head, w->n * head, w->acc);
}

/* Merges keys [first, last) of the decoded page into all query heads of group g of row r. */
static void merge(work *w, int32_t r, int32_t g, int32_t first, int32_t last)
{
    const mm_op_shape *s = w->c->shape;
    const int32_t group = s->n_head / s->n_kv_head, dim = s->head_dim;
    for (int32_t a = g * group; a < (g + 1) * group; a++) {
        const int64_t i = (int64_t)r * s->n_head + a;
        mm_ref_attn_partial(w->cache->k.format, dim, w->q + i * dim, w->k + (int64_t)first * dim,
                            w->v + (int64_t)first * dim, last - first, &w->state[i], w->page_acc);
    }
}

static void read_page(work *w, int32_t g, int32_t block, int32_t n_key)
{
    const int64_t page = mm_ref_page(w->seq, w->i_seq, block);
    mm_ref_plane_read(&w->cache->k, page, g, n_key, w->k);
    mm_ref_plane_read(&w->cache->v, page, g, n_key, w->v);
}

/* ---------------------------------------------------------------- attn_sparse */

typedef struct choice {
    float *iq, *key, *score; /* [TILE, I, di], [PAGE, di], [TILE, I, blocks] */
    int16_t *blocks;         /* [TILE, I, n_top_block] */
    bool is_nan[MM_REF_TILE];
} choice;

static mm_status open_choice(const mm_op_context *c, choice *ch)
{
    const mm_op_shape *s = c->shape;
    const int64_t n = (int64_t)MM_REF_TILE * s->n_index_head;
    void *blocks;
    MM_TRY(mm_ref_floats(c, n * s->index_dim, &ch->iq));
    MM_TRY(mm_ref_floats(c, (int64_t)MM_PAGE * s->index_dim, &ch->key));
    MM_TRY(mm_ref_floats(c, n * max_blocks(s), &ch->score));
    MM_TRY(mm_ref_scratch(c, n * s->n_top_block * (int64_t)sizeof(int16_t), &blocks));
    ch->blocks = blocks;
    return MM_OK;
}

static void choose(const work *w, const mm_attn_sparse_args *a, choice *ch)
{
    const mm_op_shape *s = w->c->shape;
    const int64_t width = (int64_t)s->n_index_head * s->index_dim;
    const int32_t n_block = w->seq->pos[w->t + w->n - 1] / MM_PAGE; /* complete before the last
                                                                       row's own */
    const bool need_score = n_block + 1 > s->n_top_block;
    if (need_score) {
        mm_ref_act_read(s->act, a->iq, w->t * width, w->n * width, ch->iq);
        mm_ref_round_index_query(w->cache->ik.format, ch->iq, w->n * width);
        mm_ref_index_scores(s, w->seq, &w->cache->ik, w->i_seq, w->t, w->n, ch->iq, n_block,
                            ch->score, ch->key);
    }
    for (int32_t r = 0; r < w->n; r++) {
        ch->is_nan[r] = false;
        for (int32_t g = 0; g < s->n_index_head; g++) {
            const int64_t i = (int64_t)r * s->n_index_head + g;
            const float *score = need_score ? ch->score + i * n_block : NULL;
            if (!mm_ref_choose_blocks(s, score, w->seq->pos[w->t + r] / MM_PAGE,
                                      ch->blocks + i * s->n_top_block))
                ch->is_nan[r] = true;
        }
    }
}

/* Between the tile's own order [row, head, k] and the trace's [head, row, k]. */
static void move_blocks(const work *w, const mm_attn_sparse_args *a, choice *ch)
{
    const mm_op_shape *s = w->c->shape;
    const size_t n_bytes = (size_t)s->n_top_block * sizeof(int16_t);
    for (int32_t r = 0; r < w->n; r++) {
        for (int32_t g = 0; g < s->n_index_head; g++) {
            int16_t *mine = ch->blocks + ((int64_t)r * s->n_index_head + g) * s->n_top_block;
            int16_t *theirs = a->blocks + ((int64_t)g * w->seq->n_row + w->t + r) * s->n_top_block;
            if (a->force)
                memcpy(mine, theirs, n_bytes);
            else
                memcpy(theirs, mine, n_bytes);
        }
    }
    if (a->force)
        memset(ch->is_nan, 0, sizeof ch->is_nan);
}

static void attend_chosen(work *w, choice *ch, int32_t g, int64_t n_read[2])
{
    const mm_op_shape *s = w->c->shape;
    const int32_t k = s->n_top_block, last = w->seq->pos[w->t + w->n - 1];
    int32_t cursor[MM_REF_TILE] = {0};
    for (int32_t b = 0; b <= last / MM_PAGE; b++) {
        bool is_decoded = false;
        for (int32_t r = 0; r < w->n; r++) {
            const int16_t *blocks = ch->blocks + ((int64_t)r * s->n_index_head + g) * k;
            const int32_t p = w->seq->pos[w->t + r];
            if (cursor[r] == k || blocks[cursor[r]] != b || p / MM_PAGE < b)
                continue;
            cursor[r]++;
            n_read[0]++;
            if (!is_decoded)
                read_page(w, g, b, (int32_t)mm_min_i64(MM_PAGE, last + 1 - b * MM_PAGE));
            is_decoded = true;
            merge(w, r, g, 0, (int32_t)mm_min_i64(MM_PAGE, p + 1 - b * MM_PAGE));
        }
    }
    for (int32_t r = 0; r < w->n; r++)
        n_read[1] += w->seq->pos[w->t + r] / MM_PAGE + 1;
}

static void spoil(work *w, const choice *ch)
{
    const int64_t head = (int64_t)w->c->shape->n_head * w->c->shape->head_dim;
    for (int32_t r = 0; r < w->n; r++) {
        for (int64_t j = 0; ch->is_nan[r] && j < head; j++)
            w->acc[r * head + j] = NAN;
    }
}

mm_status mm_ref_attn_sparse(const mm_op_context *c, const mm_seq_view *seq,
                             const mm_attn_sparse_args *a)
{
    const mm_op_shape *s = c->shape;
    work w = {.c = c, .seq = seq, .cache = a->cache};
    choice ch = {0};
    int64_t n_read[2] = {0, 0};
    mm_ref_start(c);
    if (a->force && a->blocks == NULL)
        return MM_FAIL(MM_E_INVALID, "attn_sparse: forced blocks are missing");
    MM_TRY(open_work(&w));
    MM_TRY(open_choice(c, &ch));
    for (w.i_seq = 0; w.i_seq < seq->n_seq; w.i_seq++) {
        const int32_t end = seq->row_start[w.i_seq + 1];
        for (w.t = seq->row_start[w.i_seq]; w.t < end; w.t += w.n) {
            w.n = (int32_t)mm_min_i64(MM_REF_TILE, end - w.t);
            begin_tile(&w, a->q);
            if (!a->force)
                choose(&w, a, &ch);
            if (a->blocks != NULL)
                move_blocks(&w, a, &ch);
            for (int32_t g = 0; g < s->n_index_head; g++)
                attend_chosen(&w, &ch, g, n_read);
            spoil(&w, &ch);
            end_tile(&w, a->o);
        }
    }
    if (a->n_read != NULL) {
        a->n_read[0] += n_read[0];
        a->n_read[1] += n_read[1];
    }
    return MM_OK;
}

/* ---------------------------------------------------------------- attn_dense */

/* Page keys of a tile: position <= p, or < n_ctx with extra rows; > p - window. */
static void attend_pages(work *w, int32_t g, int32_t window, int32_t n_ctx)
{
    const int32_t *pos = w->seq->pos + w->t;
    const int32_t n_held = n_ctx >= 0 ? n_ctx : pos[w->n - 1] + 1;
    const int32_t low = window > 0 ? (int32_t)mm_max_i64(0, (int64_t)pos[0] - window + 1) : 0;
    for (int32_t b = low / MM_PAGE; b * MM_PAGE < n_held; b++) {
        const int32_t base = b * MM_PAGE;
        read_page(w, g, b, (int32_t)mm_min_i64(MM_PAGE, n_held - base));
        for (int32_t r = 0; r < w->n; r++) {
            const int32_t end = n_ctx >= 0 ? n_ctx : pos[r] + 1;
            const int64_t start =
                window > 0 ? mm_max_i64(0, (int64_t)pos[r] - window + 1 - base) : 0;
            const int64_t stop = mm_min_i64(MM_PAGE, end - base);
            if (start < stop)
                merge(w, r, g, (int32_t)start, (int32_t)stop);
        }
    }
}

/* A key of this step goes through the cache's format as if it had been stored. data, scale: one row
 * of that format. */
static void through_cache(const mm_plane *plane, const void *src, mm_dtype act, int64_t first,
                          float *out)
{
    uint8_t data[4 * 16], scale[1]; /* 16 values at a time: no format looks further */
    for (int32_t j = 0; j < plane->dim; j += 16) {
        float x[16];
        mm_ref_act_read(act, src, first + j, 16, x);
        mm_ref_cache_write(plane->format, 16, x, data, scale);
        mm_ref_cache_read(plane->format, 16, data, scale, out + j);
    }
}

/* All extra rows of the sequence, every row sees every one that its window does not cut. */
static void attend_extra(work *w, const mm_attn_dense_args *a, int32_t g)
{
    const mm_op_shape *s = w->c->shape;
    const int32_t begin = w->seq->row_start[w->i_seq], end = w->seq->row_start[w->i_seq + 1];
    const int32_t *pos = w->seq->pos;
    for (int32_t e = begin; e < end; e += MM_PAGE) {
        const int32_t n_key = (int32_t)mm_min_i64(MM_PAGE, end - e);
        for (int32_t i = 0; i < n_key; i++) {
            const int64_t first = ((int64_t)(e + i) * s->n_kv_head + g) * s->head_dim;
            through_cache(&w->cache->k, a->extra_k, s->act, first, w->k + (int64_t)i * s->head_dim);
            through_cache(&w->cache->v, a->extra_v, s->act, first, w->v + (int64_t)i * s->head_dim);
        }
        for (int32_t r = 0; r < w->n; r++) {
            const int64_t start =
                a->window > 0 ? mm_max_i64(0, (int64_t)pos[w->t + r] - a->window + 1 - pos[e]) : 0;
            if (start < n_key)
                merge(w, r, g, (int32_t)start, n_key);
        }
    }
}

mm_status mm_ref_attn_dense(const mm_op_context *c, const mm_seq_view *seq,
                            const mm_attn_dense_args *a)
{
    const mm_op_shape *s = c->shape;
    const bool has_extra = a->extra_k != NULL;
    work w = {.c = c, .seq = seq, .cache = a->cache};
    mm_ref_start(c);
    if (has_extra && (a->extra_v == NULL || a->n_ctx == NULL))
        return MM_FAIL(MM_E_INVALID, "attn_dense: extra keys need extra_v and n_ctx");
    MM_TRY(open_work(&w));
    for (w.i_seq = 0; w.i_seq < seq->n_seq; w.i_seq++) {
        const int32_t end = seq->row_start[w.i_seq + 1];
        for (w.t = seq->row_start[w.i_seq]; w.t < end; w.t += w.n) {
            w.n = (int32_t)mm_min_i64(MM_REF_TILE, end - w.t);
            begin_tile(&w, a->q);
            for (int32_t g = 0; g < s->n_kv_head; g++) {
                attend_pages(&w, g, a->window, has_extra ? a->n_ctx[w.i_seq] : -1);
                if (has_extra)
                    attend_extra(&w, a, g);
            }
            end_tile(&w, a->o);
        }
    }
    return MM_OK;
}
