/* cpu_sample.c: the sampler of ref with rows in parallel and without full sorts. Filters, weights
 * and the draw give exactly ref's token: the same comparisons, the same expf, the same order of
 * every sum. */
#include "kernels/cpu/cpu_order.h"
#include "kernels/ref/ref.h"

enum { DRAW_BLOCK = 1024 };

typedef struct sample_run {
    const mm_cpu_run *r;
    const mm_sample_args *a;
    uint8_t *scratch; /* [n_thread, thread_bytes] */
    size_t thread_bytes;
} sample_run;

static size_t thread_bytes(const mm_op_shape *s)
{
    return mm_arena_size(sizeof(float) * (size_t)s->n_vocab) +
           mm_cpu_order_scratch_bytes(s->n_vocab);
}

size_t mm_cpu_sample_scratch(const mm_op_shape *s, int32_t n_thread)
{
    return mm_arena_size(thread_bytes(s) * (size_t)n_thread);
}

/* ---------------------------------------------------------------- filters */

/* Ids in blocks: after a filter most blocks hold nothing and are passed over. */
enum { BLOCK = 64 };

static int32_t block_end(int32_t first, int32_t n)
{
    return n - first < BLOCK ? n : first + BLOCK;
}

/* mm_ref_weights, and the sum of the weights in id order. */
static double weigh(const mm_cpu_math_kernels *m, const float *work, int32_t n, float *weight)
{
    const float max = m->max(work, n);
    double total = 0.0;
    for (int32_t b = 0; b < n; b += BLOCK) {
        const int32_t end = block_end(b, n);
        if (!(m->max(work + b, end - b) > -INFINITY)) {
            memset(weight + b, 0, (size_t)(end - b) * sizeof *weight);
            continue;
        }
        for (int32_t v = b; v < end; v++) {
            weight[v] = work[v] == max ? 1.0f : work[v] > -INFINITY ? expf(work[v] - max) : 0.0f;
            total += (double)weight[v];
        }
    }
    return total;
}

static void filter_top_k(const mm_cpu_math_kernels *m, int32_t k, int32_t n, float *work,
                         const mm_cpu_order_scratch *x)
{
    const float kth = mm_cpu_kth_largest(m, work, n, k, x->tmp);
    for (int32_t v = 0; v < n; v++)
        work[v] = work[v] < kth ? -INFINITY : work[v];
}

/* A value such that the ids above it hold a mass of at least `enough`, found over buckets of log
 * weight. */
static float top_p_floor(const mm_cpu_math_kernels *m, const float *work, const float *weight,
                         int32_t n, float max, double enough)
{
    double mass[128] = {0}, sum = 0.0;
    for (int32_t b = 0; b < n; b += BLOCK) {
        const int32_t end = block_end(b, n);
        if (!(m->max(weight + b, end - b) > 0.0f))
            continue;
        for (int32_t v = b; v < end; v++) { /* bucket i: work in (max - (i + 1) / 4, max - i / 4] */
            const float d = (max - work[v]) * 4.0f;
            mass[d < 127.0f ? (int)d : 127] += (double)weight[v];
        }
    }
    for (int i = 0; i < 127; i++) {
        sum += mass[i];
        if (sum > enough * (1.0 + 1e-9)) /* sums in another order cannot differ by more */
            return max - 0.25f * (float)(i + 1) - 1e-3f;
    }
    return -INFINITY;
}

static void filter_top_p(const mm_cpu_math_kernels *m, float top_p, int32_t n, float max,
                         float *work, float *weight, const mm_cpu_order_scratch *x)
{
    const double enough = (double)top_p * weigh(m, work, n, weight);
    float low = top_p_floor(m, work, weight, n, max, enough);
    int32_t count, kept;
    for (;;) {
        double mass = 0.0;
        count = mm_cpu_best_ids(m, work, n, low, x);
        kept = 0;
        do {
            mass += (double)weight[x->order[kept++]];
        } while (kept < count && mass < enough);
        if (mass >= enough || count == n)
            break;
        low = -INFINITY; /* the floor was rounded away: take all */
    }
    for (int32_t v = 0; v < n; v++)
        work[v] = work[v] >= low ? work[v] : -INFINITY;
    for (int32_t i = kept; i < count; i++)
        work[x->order[i]] = -INFINITY;
}

static void filter(const mm_cpu_math_kernels *m, const mm_slot_params *p, int32_t n, float *work,
                   float *weight, const mm_cpu_order_scratch *x)
{
    const float max = m->max(work, n);
    if (p->min_p > 0.0f) {
        const float low = (float)log((double)p->min_p);
        for (int32_t v = 0; v < n; v++)
            work[v] = work[v] != max && work[v] - max < low ? -INFINITY : work[v];
    }
    if (p->top_k > 0 && p->top_k < n)
        filter_top_k(m, p->top_k, n, work, x);
    if (p->top_p < 1.0f)
        filter_top_p(m, p->top_p, n, max, work, weight, x);
}

/* ---------------------------------------------------------------- draw */

/* Sum of one block in the order of a warp: 32 strided lanes, then a butterfly (lane 0 of it is a
 * plain tree). */
static float block_sum(const float *weight, int32_t n)
{
    float lane[32] = {0};
    int32_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int j = 0; j < 32; j++)
            lane[j] += weight[i + j];
    }
    for (int j = 0; i + j < n; j++)
        lane[j] += weight[i + j];
    for (int m = 16; m > 0; m /= 2) {
        for (int j = 0; j < m; j++)
            lane[j] += lane[j + m];
    }
    return lane[0];
}

static int32_t block_length(int32_t n, int32_t first)
{
    return n - first < DRAW_BLOCK ? n - first : DRAW_BLOCK;
}

/* As mm_ref_draw; sum: scratch, one per block. */
static int32_t draw(const float *weight, int32_t n, double u, float *sum)
{
    float total = 0.0f, below = 0.0f;
    int32_t block = -1, found = -1;
    for (int32_t b = 0; b < n; b += DRAW_BLOCK) {
        sum[b / DRAW_BLOCK] = block_sum(weight + b, block_length(n, b));
        total += sum[b / DRAW_BLOCK];
    }
    const double threshold = u * (double)total;
    for (int32_t b = 0; b < n; b += DRAW_BLOCK) {
        if (sum[b / DRAW_BLOCK] > 0.0f)
            block = b;
        if ((double)(below + sum[b / DRAW_BLOCK]) > threshold)
            break;
        below += sum[b / DRAW_BLOCK];
    }
    for (int32_t v = block; block >= 0 && v < block + block_length(n, block); v++) {
        if (!(weight[v] > 0.0f))
            continue;
        found = v;
        below += weight[v];
        if ((double)below > threshold)
            break;
    }
    return found;
}

/* ---------------------------------------------------------------- the op */

static int32_t sample_row(const sample_run *x, const mm_ref_row *r, const float *logits,
                          float *work, uint8_t *scratch, uint8_t *flag)
{
    const mm_op_shape *s = x->r->s;
    const mm_cpu_math_kernels *m = x->r->isa->math;
    const mm_slot_params *p = r->p;
    const int32_t n = r->n_vocab;
    float *weight = (float *)(void *)scratch;
    const mm_cpu_order_scratch order =
        mm_cpu_order_scratch_at(scratch + mm_arena_size(sizeof(float) * (size_t)n), n);
    if (m->has_nan(logits, n)) {
        memcpy(work, logits, (size_t)n * sizeof(float));
        *flag = MM_SAMPLE_NAN;
        return -1;
    }
    mm_ref_mask(r, s->never_token, logits, work);
    mm_ref_penalise(r, work);
    const float max = m->max(work, n);
    if (!(max > -INFINITY)) {
        *flag = MM_SAMPLE_EMPTY;
        return -1;
    }
    *flag = MM_SAMPLE_OK;
    if (p->temperature < 1e-5f) {
        int32_t best = 0;
        while (work[best] != max)
            best++;
        for (int32_t v = 0; v < n; v++)
            work[v] = -INFINITY;
        work[best] = 0.0f;
        return r->forced >= 0 ? r->forced : best;
    }
    for (int32_t v = 0; v < n; v++)
        work[v] = work[v] / p->temperature;
    filter(m, p, n, work, weight, &order);
    if (r->forced >= 0)
        return r->forced;
    (void)weigh(m, work, n, weight);
    const uint64_t n_emitted = (uint64_t)r->slots->n_emitted[r->slot];
    return draw(weight, n, mm_ref_uniform(p->seed, n_emitted, (uint32_t)r->lane, MM_RNG_TARGET),
                order.value);
}

/* The slot goes on by the token of output row i of the step. */
static void commit_row(const mm_ref_row *r, const mm_batch *b, int32_t i, int32_t token)
{
    const mm_slots *s = r->slots;
    const mm_slot_params *p = r->p;
    const mm_batch_out *out = (const mm_batch_out *)mm_batch_at(b, b->out) + i;
    const mm_batch_seq *seq = (const mm_batch_seq *)mm_batch_at(b, b->seq) + out->seq;
    if (seq->n_ctx_after < 0)
        s->n_ctx[r->slot] += seq->n_row;
    if (token < 0) {
        s->last_token[r->slot] = 0;
        return;
    }
    const int32_t n = s->n_emitted[r->slot]++;
    s->last_token[r->slot] = token;
    s->recent[(int64_t)r->slot * MM_MAX_BAD_LEN + n % MM_MAX_BAD_LEN] = token;
    if (p->repetition_penalty != 1.0f || p->frequency_penalty != 0.0f ||
        p->presence_penalty != 0.0f) {
        uint16_t *count = s->n_out + (int64_t)r->slot * r->n_vocab + token;
        *count = (uint16_t)(*count < UINT16_MAX ? *count + 1 : UINT16_MAX);
    }
}

static void sample_rows(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    const sample_run *x = ctx;
    const mm_sample_args *a = x->a;
    const mm_out_view *out = a->out;
    const int32_t n_vocab = x->r->s->n_vocab;
    for (int64_t k = begin; k < end; k++) {
        const int32_t i = a->first + (int32_t)k;
        if (out->kind[i] != MM_OUT_SAMPLE)
            continue;
        const int32_t slot = out->row_slot[i];
        const mm_ref_row r = {.p = &a->slots->params[slot],
                              .slots = a->slots,
                              .slot = slot,
                              .lane = out->lane[i],
                              .n_vocab = n_vocab,
                              .lane_token = out->row_token + i,
                              .forced = out->token[i]};
        a->token[i] = sample_row(x, &r, a->logits + k * n_vocab, a->work + k * n_vocab,
                                 x->scratch + (size_t)i_thread * x->thread_bytes, &a->flag[i]);
        if (a->commit) /* one row a slot: rows do not touch each other's state */
            commit_row(&r, out->blob, i, a->token[i]);
    }
}

mm_status mm_cpu_sample(const mm_op_context *c, const mm_sample_args *a)
{
    const mm_cpu_run r = mm_cpu_start(c);
    sample_run x = {.r = &r, .a = a, .thread_bytes = thread_bytes(r.s)};
    void *p;
    if (a->commit && a->out->blob == NULL)
        return MM_FAIL(MM_E_INVALID, "sample: commit needs the batch (mm_out_view.blob)");
    MM_TRY(mm_cpu_scratch(&r, x.thread_bytes * (size_t)r.n_thread, &p));
    x.scratch = p;
    mm_pool_run_dynamic(r.pool, a->n, 1, sample_rows, &x);
    return MM_OK;
}
