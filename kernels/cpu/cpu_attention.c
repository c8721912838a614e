/* cpu_attention.c: attn_sparse and attn_dense. A unit of work is a tile of rows of one sequence and
 * one KV head: its pages are walked in ascending order, each decoded once for all rows of the tile
 * that read it.
 *
 * Page partials are merged in ascending page order: one after the other where pages are chosen, and
 * first within segments of SEGMENT pages where all are read. A step of few units (decode) lets
 * threads take (unit, segment) items instead, and merges the segments' states afterwards: the same
 * operations in the same order, so the same bits. */
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

#define SEGMENT 16 /* pages whose partials are merged before they join the sum of a dense row */
#define TILE_QUERIES 128 /* query heads of a tile: they share the decoding of a page */
#define TILE_ROWS 32
#define SPLIT_BYTES (32 << 20) /* of states kept apart at a time */

typedef struct tile {
    int32_t i_seq, t, n;
} tile;

typedef struct attn_run {
    const mm_cpu_run *r;
    const mm_seq_view *seq;
    const mm_layer_cache *cache;
    const void *q;
    void *o;
    const int16_t *blocks; /* [I, T, n_top_block]; NULL: every page */
    const uint8_t *is_bad; /* [T], or NULL */
    int32_t window;
    int32_t group, dim; /* query heads per KV head, head_dim */
    int32_t tile_rows;
    tile *tile; /* [n_tile] */
    int32_t n_tile;
    int32_t n_segment; /* items of a unit when split, else 0 */
    uint8_t *thread;   /* [n_thread, thread_bytes] */
    size_t thread_bytes;
    uint8_t *split; /* [n_tile * G * n_segment] states of tile_rows rows */
} attn_run;

/* Memory of one thread. */
typedef struct work {
    float *kt, *v, *tmp, *p, *part; /* [d, PAGE], [PAGE, d], [16, d], [group, PAGE], [min(group,
                                       64), d] */
    float *q;                       /* [tile_rows, group, d] operands */
    float *total, *segment;         /* states of tile_rows rows */
} work;

static int32_t rows_of_tile(const mm_op_shape *s)
{
    const int32_t group = s->n_head / s->n_kv_head;
    return (int32_t)mm_min_i64(TILE_ROWS, mm_max_i64(1, TILE_QUERIES / group));
}

/* Floats of the states of n rows. */
static int64_t state_floats(const mm_op_shape *s, int64_t n)
{
    return mm_round_up(n * (s->n_head / s->n_kv_head) * (s->head_dim + 2), 16);
}

static mm_cpu_attn_state state_of(const attn_run *a, float *base, int32_t row)
{
    float *p = base + (int64_t)row * a->group * (a->dim + 2);
    return (mm_cpu_attn_state){.max = p, .den = p + a->group, .acc = p + 2 * a->group};
}

static void clear_states(const attn_run *a, float *base, int32_t n)
{
    for (int32_t r = 0; r < n; r++) {
        const mm_cpu_attn_state s = state_of(a, base, r);
        for (int32_t h = 0; h < a->group; h++) {
            s.max[h] = -INFINITY;
            s.den[h] = 0.0f;
        }
        memset(s.acc, 0, (size_t)a->group * (size_t)a->dim * sizeof(float));
    }
}

static void merge_states(const attn_run *a, float *into, float *from, int32_t n)
{
    for (int32_t r = 0; r < n; r++) {
        const mm_cpu_attn_state x = state_of(a, into, r), y = state_of(a, from, r);
        a->r->isa->math->merge(a->dim, a->group, &x, &y);
    }
}

/* ---------------------------------------------------------------- memory of a thread */

static int64_t work_floats(const mm_op_shape *s)
{
    const int64_t d = s->head_dim, group = s->n_head / s->n_kv_head, rows = rows_of_tile(s);
    return 2 * d * MM_PAGE + 16 * d + group * MM_PAGE + mm_round_up(mm_min_i64(group, 64) * d, 16) +
           rows * group * d + 2 * state_floats(s, rows);
}

static size_t work_bytes(const mm_op_shape *s)
{
    return mm_arena_size(sizeof(float) * (size_t)work_floats(s));
}

static work work_of(const attn_run *a, int i_thread)
{
    const int64_t d = a->dim, rows = a->tile_rows;
    work w;
    w.kt = (float *)(void *)(a->thread + (size_t)i_thread * a->thread_bytes);
    w.v = w.kt + d * MM_PAGE;
    w.tmp = w.v + d * MM_PAGE;
    w.p = w.tmp + 16 * d;
    w.part = w.p + (int64_t)a->group * MM_PAGE;
    w.q = w.part + mm_round_up(mm_min_i64(a->group, 64) * d, 16);
    w.total = w.q + rows * a->group * d;
    w.segment = w.total + state_floats(a->r->s, rows);
    return w;
}

/* ---------------------------------------------------------------- pages of a row */

static const int16_t *chosen(const attn_run *a, int32_t g, int32_t t)
{
    const int32_t k = a->r->s->n_top_block;
    return a->blocks + ((int64_t)g * a->seq->n_row + t) * k;
}

static void read_query(const attn_run *a, const tile *tl, int32_t g, float *q)
{
    const mm_op_shape *s = a->r->s;
    const int64_t n = (int64_t)a->group * a->dim, width = (int64_t)s->n_head * a->dim;
    for (int32_t r = 0; r < tl->n; r++)
        a->r->isa->math->to_f32(
            s->act, (const uint8_t *)a->q + ((tl->t + r) * width + g * n) * mm_cpu_act_size(s->act),
            n, q + r * n);
    a->r->isa->math->round_query(a->cache->k.format, false, q, tl->n * n);
}

/* Keys [0, n) of block b as operands. */
static void read_page(const attn_run *a, const work *w, const tile *tl, int32_t g, int32_t b,
                      int32_t n)
{
    const int64_t page = mm_ref_page(a->seq, tl->i_seq, b);
    a->r->isa->math->cache_columns(&a->cache->k, page, g, n, w->kt, w->tmp);
    a->r->isa->math->cache_rows(&a->cache->v, page, g, n, w->v);
}

static void attend(const attn_run *a, const work *w, int32_t row, int32_t b, int32_t p,
                   float *states)
{
    const int32_t base = b * MM_PAGE;
    const int64_t first = a->window > 0 ? mm_max_i64(0, (int64_t)p - a->window + 1 - base) : 0;
    const mm_cpu_attn_state s = state_of(a, states, row);
    a->r->isa->math->attend(a->cache->k.format, a->dim, a->group,
                            w->q + (int64_t)row * a->group * a->dim, w->kt, w->v, (int32_t)first,
                            (int32_t)mm_min_i64(MM_PAGE, p + 1 - base), &s, w->p, w->part);
}

/* Blocks [first, last) of every row of the tile that sees them. */
static void walk_dense(const attn_run *a, const work *w, const tile *tl, int32_t g, int32_t first,
                       int32_t last, float *states)
{
    const int32_t *pos = a->seq->pos + tl->t;
    const int32_t end = pos[tl->n - 1] + 1;
    const int32_t low =
        a->window > 0 ? (int32_t)mm_max_i64(0, (int64_t)pos[0] - a->window + 1) / MM_PAGE : 0;
    for (int32_t b = first > low ? first : low; b < last && b * MM_PAGE < end; b++) {
        read_page(a, w, tl, g, b, (int32_t)mm_min_i64(MM_PAGE, end - b * MM_PAGE));
        for (int32_t r = 0; r < tl->n; r++) {
            if (pos[r] >= b * MM_PAGE)
                attend(a, w, r, b, pos[r], states);
        }
    }
}

/* Every chosen block of every row: the tile takes the lowest block that any row has next. */
static void walk_sparse(const attn_run *a, const work *w, const tile *tl, int32_t g, float *states)
{
    const int32_t *pos = a->seq->pos + tl->t;
    const int32_t k = a->r->s->n_top_block;
    int32_t cursor[TILE_ROWS] = {0};
    for (;;) {
        int32_t b = INT32_MAX;
        for (int32_t r = 0; r < tl->n; r++) {
            const int16_t *blocks = chosen(a, g, tl->t + r);
            if (cursor[r] < k && blocks[cursor[r]] >= 0 && blocks[cursor[r]] <= pos[r] / MM_PAGE)
                b = blocks[cursor[r]] < b ? blocks[cursor[r]] : b;
        }
        if (b == INT32_MAX)
            return;
        read_page(a, w, tl, g, b, (int32_t)mm_min_i64(MM_PAGE, pos[tl->n - 1] + 1 - b * MM_PAGE));
        for (int32_t r = 0; r < tl->n; r++) {
            if (cursor[r] < k && chosen(a, g, tl->t + r)[cursor[r]] == b && b <= pos[r] / MM_PAGE) {
                attend(a, w, r, b, pos[r], states);
                cursor[r]++;
            }
        }
    }
}

static void write_output(const attn_run *a, const tile *tl, int32_t g, float *states)
{
    const mm_op_shape *s = a->r->s;
    const int64_t n = (int64_t)a->group * a->dim, width = (int64_t)s->n_head * a->dim;
    for (int32_t r = 0; r < tl->n; r++) {
        const mm_cpu_attn_state x = state_of(a, states, r);
        a->r->isa->math->finish(a->cache->k.format, a->dim, a->group, &x);
        for (int64_t i = 0; i < n && a->is_bad != NULL && a->is_bad[tl->t + r] != 0; i++)
            x.acc[i] = NAN;
        a->r->isa->math->from_f32(s->act, x.acc, n,
                                  (uint8_t *)a->o +
                                      ((tl->t + r) * width + g * n) * mm_cpu_act_size(s->act));
    }
}

/* ---------------------------------------------------------------- parallel loops */

static void run_units(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    const attn_run *a = ctx;
    const work w = work_of(a, i_thread);
    const int32_t n_group = a->r->s->n_kv_head;
    for (int64_t i = begin; i < end; i++) {
        const tile *tl = &a->tile[i / n_group];
        const int32_t g = (int32_t)(i % n_group);
        read_query(a, tl, g, w.q);
        clear_states(a, w.total, tl->n);
        if (a->blocks != NULL) {
            walk_sparse(a, &w, tl, g, w.total);
        } else {
            const int32_t n_block = a->seq->pos[tl->t + tl->n - 1] / MM_PAGE + 1;
            for (int32_t b = 0; b < n_block; b += SEGMENT) {
                clear_states(a, w.segment, tl->n);
                walk_dense(a, &w, tl, g, b, b + SEGMENT, w.segment);
                merge_states(a, w.total, w.segment, tl->n);
            }
        }
        write_output(a, tl, g, w.total);
    }
}

static float *split_states(const attn_run *a, int64_t item)
{
    return (float *)(void *)a->split + item * state_floats(a->r->s, a->tile_rows);
}

/* Item (unit, segment): the state of one segment. Sparse: of the row's i-th block. */
static void run_segments(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    const attn_run *a = ctx;
    const work w = work_of(a, i_thread);
    const int32_t n_group = a->r->s->n_kv_head;
    for (int64_t i = begin; i < end; i++) {
        const int64_t unit = i / a->n_segment;
        const int32_t seg = (int32_t)(i % a->n_segment), g = (int32_t)(unit % n_group);
        const tile *tl = &a->tile[unit / n_group];
        const int32_t *pos = a->seq->pos + tl->t;
        float *states = split_states(a, i);
        clear_states(a, states, tl->n);
        read_query(a, tl, g, w.q);
        if (a->blocks == NULL) {
            walk_dense(a, &w, tl, g, seg * SEGMENT, (seg + 1) * SEGMENT, states);
            continue;
        }
        int32_t decoded = -1;
        for (int32_t r = 0; r < tl->n; r++) {
            const int32_t b = chosen(a, g, tl->t + r)[seg];
            if (b < 0 || b > pos[r] / MM_PAGE)
                continue;
            if (b != decoded)
                read_page(a, &w, tl, g, b,
                          (int32_t)mm_min_i64(MM_PAGE, pos[tl->n - 1] + 1 - b * MM_PAGE));
            decoded = b;
            attend(a, &w, r, b, pos[r], states);
        }
    }
}

static void merge_units(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    const attn_run *a = ctx;
    const work w = work_of(a, i_thread);
    const int32_t n_group = a->r->s->n_kv_head;
    for (int64_t i = begin; i < end; i++) {
        const tile *tl = &a->tile[i / n_group];
        clear_states(a, w.total, tl->n);
        for (int32_t seg = 0; seg < a->n_segment; seg++)
            merge_states(a, w.total, split_states(a, i * a->n_segment + seg), tl->n);
        write_output(a, tl, (int32_t)(i % n_group), w.total);
    }
}

static int64_t max_tiles(const mm_op_shape *s, int64_t n_row, int64_t n_seq)
{
    return n_row / rows_of_tile(s) + n_seq;
}

static mm_status run(attn_run *a)
{
    const mm_cpu_run *r = a->r;
    const mm_op_shape *s = r->s;
    const mm_seq_view *seq = a->seq;
    void *p;
    a->group = s->n_head / s->n_kv_head;
    a->dim = s->head_dim;
    a->tile_rows = rows_of_tile(s);
    a->thread_bytes = work_bytes(s);
    MM_TRY(mm_cpu_scratch(r, sizeof(tile) * (size_t)max_tiles(s, seq->n_row, seq->n_seq), &p));
    a->tile = p;
    MM_TRY(mm_cpu_scratch(r, a->thread_bytes * (size_t)r->n_thread, &p));
    a->thread = p;
    int32_t max_pos = 0;
    for (int32_t i = 0; i < seq->n_seq; i++) {
        for (int32_t t = seq->row_start[i]; t < seq->row_start[i + 1]; t += a->tile_rows) {
            const int32_t n = (int32_t)mm_min_i64(a->tile_rows, seq->row_start[i + 1] - t);
            a->tile[a->n_tile++] = (tile){i, t, n};
            max_pos = seq->pos[t + n - 1] > max_pos ? seq->pos[t + n - 1] : max_pos;
        }
    }
    const int64_t n_unit = (int64_t)a->n_tile * s->n_kv_head, n_block = max_pos / MM_PAGE + 1;
    const int64_t n_segment =
        a->blocks != NULL ? mm_min_i64(n_block, s->n_top_block) : mm_ceil_div(n_block, SEGMENT);
    const size_t split_bytes =
        sizeof(float) * (size_t)(n_unit * n_segment * state_floats(s, a->tile_rows));
    const int64_t n_key = MM_PAGE * (a->blocks != NULL ? n_segment : n_block);
    mm_pool *pool =
        mm_cpu_pool(r, (seq->n_row * (int64_t)s->n_head + 4 * n_unit) * 2 * s->head_dim * n_key);
    if (pool != NULL && r->n_thread > 1 && n_segment > 1 && n_unit < 2 * (int64_t)r->n_thread &&
        split_bytes <= SPLIT_BYTES) {
        a->n_segment = (int32_t)n_segment;
        MM_TRY(mm_cpu_scratch(r, split_bytes, &p));
        a->split = p;
        mm_pool_run_dynamic(pool, n_unit * n_segment, 1, run_segments, a);
        mm_pool_run(pool, n_unit, 1, merge_units, a);
    } else {
        mm_pool_run_dynamic(pool, n_unit, 1, run_units, a);
    }
    return MM_OK;
}

size_t mm_cpu_attention_scratch(const mm_op_shape *s, int32_t n_thread)
{
    const size_t rows = (size_t)s->max_rows;
    const size_t own =
        mm_arena_size(sizeof(tile) * (size_t)max_tiles(s, s->max_rows, s->max_seqs)) +
        mm_arena_size(work_bytes(s) * (size_t)n_thread) + SPLIT_BYTES;
    if (s->n_index_head == 0)
        return own;
    const size_t blocks =
        mm_arena_size(sizeof(int16_t) * rows * (size_t)s->n_index_head * (size_t)s->n_top_block);
    /* given back before the rest is taken */
    const size_t index = mm_cpu_index_scratch(s, n_thread);
    return blocks + mm_arena_size(rows) + (own > index ? own : index);
}

/* ---------------------------------------------------------------- ops */

/* Blocks that rows read, and see, over all index heads. */
static void count_blocks(const attn_run *a, int64_t *n_read)
{
    const mm_op_shape *s = a->r->s;
    for (int32_t t = 0; t < a->seq->n_row; t++) {
        const int32_t local = a->seq->pos[t] / MM_PAGE;
        for (int32_t g = 0; g < s->n_index_head; g++) {
            const int16_t *blocks = chosen(a, g, t);
            for (int32_t i = 0; i < s->n_top_block && blocks[i] >= 0 && blocks[i] <= local; i++)
                n_read[0]++;
            n_read[1] += local + 1;
        }
    }
}

mm_status mm_cpu_attn_sparse(const mm_op_context *c, const mm_seq_view *seq,
                             const mm_attn_sparse_args *a)
{
    const mm_cpu_run r = mm_cpu_start(c);
    const mm_op_shape *s = r.s;
    attn_run x = {
        .r = &r, .seq = seq, .cache = a->cache, .q = a->q, .o = a->o, .blocks = a->blocks};
    if (a->force && a->blocks == NULL)
        return MM_FAIL(MM_E_INVALID, "attn_sparse: forced blocks are missing");
    if (!a->force) {
        const int64_t n = (int64_t)seq->n_row * s->n_index_head * s->n_top_block;
        void *own, *is_bad;
        MM_TRY(mm_cpu_scratch(&r, (size_t)n * sizeof(int16_t), &own));
        MM_TRY(mm_cpu_scratch(&r, (size_t)seq->n_row, &is_bad));
        int16_t *blocks = a->blocks != NULL ? a->blocks : own;
        MM_TRY(mm_cpu_choose_blocks(&r, seq, &a->cache->ik, a->iq, blocks, is_bad));
        x.blocks = blocks;
        x.is_bad = is_bad;
    }
    MM_TRY(run(&x));
    if (a->n_read != NULL)
        count_blocks(&x, a->n_read);
    return MM_OK;
}

mm_status mm_cpu_attn_dense(const mm_op_context *c, const mm_seq_view *seq,
                            const mm_attn_dense_args *a)
{
    if (a->extra_k != NULL) /* draft blocks: a handful of rows */
        return mm_ref_attn_dense(c, seq, a);
    const mm_cpu_run r = mm_cpu_start(c);
    attn_run x = {
        .r = &r, .seq = seq, .cache = a->cache, .q = a->q, .o = a->o, .window = a->window};
    return run(&x);
}
