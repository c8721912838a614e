/* cpu_index.c: block scores from index queries and index keys, and the choice of blocks. Up to ROWS
 * rows of a sequence take one pass over its index keys: blocks are the parallel loop, a page is
 * decoded once for all of them. */
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

enum { ROWS = 32 };

typedef struct index_run {
    const mm_cpu_run *r;
    const mm_seq_view *seq;
    const mm_plane *ik;
    int32_t i_seq, t, n;        /* rows t .. t + n - 1 of sequence i_seq */
    int32_t n_block;            /* complete blocks before the last row's own */
    float *iq;                  /* [n, I, di] operands */
    float *score;               /* [n, I, n_block] */
    float *kt, *tmp, *p, *best; /* per thread: [di, PAGE], [16, di], [ROWS * I, PAGE], [ROWS * I] */
    int16_t *blocks;            /* [I, T, n_top_block] of the step */
    uint8_t *is_bad;            /* [T] */
} index_run;

static void score_blocks(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    const index_run *x = ctx;
    const mm_op_shape *s = x->r->s;
    const mm_cpu_math_kernels *m = x->r->isa->math;
    const int32_t n_head = s->n_index_head, dim = s->index_dim;
    float *kt = x->kt + (int64_t)i_thread * dim * MM_PAGE,
          *tmp = x->tmp + (int64_t)i_thread * 16 * dim;
    float *p = x->p + (int64_t)i_thread * ROWS * n_head * MM_PAGE,
          *best = x->best + (int64_t)i_thread * ROWS * n_head;
    for (int64_t b = begin; b < end; b++) {
        int32_t first = 0; /* rows whose own block lies behind b, and who must choose at all */
        while (first < x->n && (x->seq->pos[x->t + first] / MM_PAGE <= b ||
                                x->seq->pos[x->t + first] / MM_PAGE + 1 <= s->n_top_block))
            first++;
        const int32_t n_query = (x->n - first) * n_head;
        if (n_query == 0)
            continue;
        m->cache_columns(x->ik, mm_ref_page(x->seq, x->i_seq, b), 0, MM_PAGE, kt, tmp);
        m->index_score(dim, n_query, x->iq + (int64_t)first * n_head * dim, kt, MM_PAGE, best, p);
        for (int32_t i = 0; i < n_query; i++)
            x->score[((int64_t)first * n_head + i) * x->n_block + b] = best[i];
    }
}

static void choose_rows(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    (void)i_thread;
    const index_run *x = ctx;
    const mm_op_shape *s = x->r->s;
    for (int64_t i = begin; i < end; i++) {
        const int32_t t = x->t + (int32_t)i;
        x->is_bad[t] = 0;
        for (int32_t g = 0; g < s->n_index_head; g++) {
            const float *score = x->score + (i * s->n_index_head + g) * x->n_block;
            int16_t *out = x->blocks + ((int64_t)g * x->seq->n_row + t) * s->n_top_block;
            if (!mm_ref_choose_blocks(s, score, x->seq->pos[t] / MM_PAGE, out))
                x->is_bad[t] = 1;
        }
    }
}

static int64_t max_blocks(const mm_op_shape *s)
{
    return mm_ceil_div(s->max_model_len, MM_PAGE);
}

static mm_status open_run(const mm_cpu_run *r, index_run *x)
{
    const mm_op_shape *s = r->s;
    const int64_t n_query = (int64_t)ROWS * s->n_index_head, n = r->n_thread;
    MM_TRY(mm_cpu_floats(r, n_query * s->index_dim, &x->iq));
    MM_TRY(mm_cpu_floats(r, n_query * max_blocks(s), &x->score));
    MM_TRY(mm_cpu_floats(r, n * s->index_dim * MM_PAGE, &x->kt));
    MM_TRY(mm_cpu_floats(r, n * 16 * s->index_dim, &x->tmp));
    MM_TRY(mm_cpu_floats(r, n * n_query * MM_PAGE, &x->p));
    return mm_cpu_floats(r, n * n_query, &x->best);
}

size_t mm_cpu_index_scratch(const mm_op_shape *s, int32_t n_thread)
{
    const size_t f = sizeof(float), n_query = ROWS * (size_t)s->n_index_head, n = (size_t)n_thread,
                 d = (size_t)s->index_dim;
    return mm_arena_size(f * n_query * d) + mm_arena_size(f * n_query * (size_t)max_blocks(s)) +
           mm_arena_size(f * n * d * MM_PAGE) + mm_arena_size(f * n * 16 * d) +
           mm_arena_size(f * n * n_query * MM_PAGE) + mm_arena_size(f * n * n_query);
}

mm_status mm_cpu_choose_blocks(const mm_cpu_run *r, const mm_seq_view *seq, const mm_plane *ik,
                               const void *iq, int16_t *blocks, uint8_t *is_bad)
{
    const mm_op_shape *s = r->s;
    const int64_t width = (int64_t)s->n_index_head * s->index_dim;
    const size_t used = r->c->stream->scratch.used;
    index_run x = {.r = r, .seq = seq, .ik = ik, .blocks = blocks, .is_bad = is_bad};
    MM_TRY(open_run(r, &x));
    for (x.i_seq = 0; x.i_seq < seq->n_seq; x.i_seq++) {
        const int32_t end = seq->row_start[x.i_seq + 1];
        for (x.t = seq->row_start[x.i_seq]; x.t < end; x.t += x.n) {
            x.n = (int32_t)mm_min_i64(ROWS, end - x.t);
            x.n_block = seq->pos[x.t + x.n - 1] / MM_PAGE;
            if (x.n_block + 1 > s->n_top_block) {
                r->isa->math->to_f32(s->act,
                                     (const uint8_t *)iq + x.t * width * mm_cpu_act_size(s->act),
                                     x.n * width, x.iq);
                r->isa->math->round_query(ik->format, true, x.iq, x.n * width);
                mm_pool_run(mm_cpu_pool(r, (int64_t)x.n_block * MM_PAGE * width * x.n), x.n_block,
                            1, score_blocks, &x);
            }
            mm_pool_run(mm_cpu_pool(r, (int64_t)x.n * x.n_block * s->n_index_head * 8), x.n, 1,
                        choose_rows, &x);
        }
    }
    r->c->stream->scratch.used = used;
    return MM_OK;
}
