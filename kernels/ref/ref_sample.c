/* ref_sample.c: from logits to a token, in the normative order: masks, bias, penalties,
 * temperature, min_p, top_k, top_p, draw. Each stage is a function over one row, so that tests and
 * verification reach it. A filtered id is -inf. */
#include "kernels/ref/ref.h"

int64_t mm_ref_sample_scratch(const mm_op_shape *s)
{
    return (int64_t)(4 * mm_arena_size(sizeof(uint32_t) * (size_t)s->n_vocab));
}

/* ---------------------------------------------------------------- masks */

/* Generated token `back` places ago (1: the newest), the lanes before this row counted; -1: not
 * generated. */
static int32_t generated(const mm_ref_row *r, int32_t back)
{
    if (back <= r->lane)
        return r->lane_token[1 - back];
    const int32_t i = r->slots->n_emitted[r->slot] - (back - r->lane);
    return i < 0 ? -1 : r->slots->recent[(int64_t)r->slot * MM_MAX_BAD_LEN + i % MM_MAX_BAD_LEN];
}

static void mask_bad_words(const mm_ref_row *r, float *work)
{
    const int32_t *offset = r->slots->bad_offset + (int64_t)r->slot * (MM_MAX_LIST + 1);
    const int32_t *token = r->slots->bad_token + (int64_t)r->slot * MM_MAX_BAD_TOKENS;
    for (int32_t w = 0; w < r->p->n_bad; w++) {
        const int32_t first = offset[w], last = offset[w + 1] - 1;
        bool match = last >= first;
        for (int32_t i = first; i < last && match; i++)
            match = generated(r, last - i) == token[i];
        if (match)
            work[token[last]] = -INFINITY;
    }
}

void mm_ref_mask(const mm_ref_row *r, const int32_t never_token[16], const float *logits,
                 float *work)
{
    const mm_slots *s = r->slots;
    memcpy(work, logits, (size_t)r->n_vocab * sizeof(float));
    if (r->p->has_mask) {
        const int64_t lane = s->mask_lanes > 1 ? r->lane : 0;
        const uint32_t *mask = s->mask + ((int64_t)r->slot * s->mask_lanes + lane) * s->mask_words;
        for (int32_t v = 0; v < r->n_vocab; v++) {
            if ((mask[v / 32] >> (v % 32) & 1) == 0)
                work[v] = -INFINITY;
        }
    }
    for (int i = 0; i < 16; i++) {
        if (never_token[i] >= 0 && never_token[i] < r->n_vocab)
            work[never_token[i]] = -INFINITY;
    }
    mask_bad_words(r, work);
    if (s->n_emitted[r->slot] + r->lane < r->p->min_tokens) {
        for (int32_t i = 0; i < r->p->n_ban; i++)
            work[s->ban_token[(int64_t)r->slot * MM_MAX_LIST + i]] = -INFINITY;
    }
    if (r->forced >= 0)
        work[r->forced] = logits[r->forced];
}

/* ---------------------------------------------------------------- bias, penalties */

static bool has_penalty(const mm_slot_params *p)
{
    return p->repetition_penalty != 1.0f || p->frequency_penalty != 0.0f ||
           p->presence_penalty != 0.0f;
}

static float penalised(const mm_slot_params *p, float l, bool is_in_prompt, int32_t count)
{
    if (p->repetition_penalty != 1.0f && (is_in_prompt || count > 0))
        l = l > 0.0f ? l / p->repetition_penalty : l * p->repetition_penalty;
    if (count > 0) {
        l = l - p->frequency_penalty * (float)count;
        l = l - p->presence_penalty;
    }
    return l;
}

void mm_ref_penalise(const mm_ref_row *r, float *work)
{
    const mm_slots *s = r->slots;
    for (int32_t i = 0; i < r->p->n_bias; i++) {
        const int64_t k = (int64_t)r->slot * MM_MAX_LIST + i;
        /* -inf is a mask: a forced id ignores it */
        if (s->bias_token[k] != r->forced || s->bias_value[k] != -INFINITY)
            work[s->bias_token[k]] += s->bias_value[k];
    }
    if (!has_penalty(r->p))
        return;
    const uint32_t *in_prompt = s->in_prompt + (int64_t)r->slot * s->mask_words;
    const uint16_t *n_out = s->n_out + (int64_t)r->slot * r->n_vocab;
    for (int32_t v = 0; v < r->n_vocab; v++) {
        int32_t count = n_out[v];
        for (int32_t k = 0; k < r->lane; k++)
            count += r->lane_token[-k] == v;
        const bool is_in_prompt =
            r->p->repetition_penalty != 1.0f && (in_prompt[v / 32] >> (v % 32) & 1) != 0;
        work[v] = penalised(r->p, work[v], is_in_prompt, count);
    }
}

/* ---------------------------------------------------------------- filters */

void mm_ref_weights(const float *work, int32_t n_vocab, float *weight)
{
    const float max = mm_ref_max(work, n_vocab);
    for (int32_t v = 0; v < n_vocab; v++)
        weight[v] = work[v] == max && max > -INFINITY ? 1.0f
                    : work[v] > -INFINITY             ? expf(work[v] - max)
                                                      : 0.0f;
}

/* p_i >= min_p * max(p), on logits: the same for every implementation of exp. */
static void filter_min_p(float min_p, int32_t n_vocab, float *work)
{
    const float max = mm_ref_max(work, n_vocab), low = (float)log((double)min_p);
    for (int32_t v = 0; v < n_vocab; v++) {
        if (work[v] != max && work[v] - max < low)
            work[v] = -INFINITY;
    }
}

static void filter_top_k(int32_t k, int32_t n_vocab, float *work, const uint32_t *order)
{
    const float kth = work[order[k - 1]];
    for (int32_t v = 0; v < n_vocab; v++) {
        if (work[v] < kth)
            work[v] = -INFINITY;
    }
}

/* Sums in double: the set must not depend on how a vocabulary is cut. */
static void filter_top_p(float top_p, int32_t n_vocab, float *work, float *weight,
                         const uint32_t *order)
{
    double total = 0.0, mass = 0.0;
    mm_ref_weights(work, n_vocab, weight);
    for (int32_t v = 0; v < n_vocab; v++)
        total += weight[v];
    const double enough = (double)top_p * total;
    int32_t n = 0;
    do {
        mass += weight[order[n++]];
    } while (n < n_vocab && mass < enough);
    for (; n < n_vocab; n++)
        work[order[n]] = -INFINITY;
}

void mm_ref_filter(const mm_slot_params *p, int32_t n_vocab, float *work, float *weight,
                   uint32_t *order, uint32_t *tmp)
{
    const bool has_top_k = p->top_k > 0 && p->top_k < n_vocab, has_top_p = p->top_p < 1.0f;
    if (p->min_p > 0.0f)
        filter_min_p(p->min_p, n_vocab, work);
    if (has_top_k || has_top_p)
        mm_ref_sort_descending(work, n_vocab, order, tmp); /* filtering keeps the order of what
                                                              stays */
    if (has_top_k)
        filter_top_k(p->top_k, n_vocab, work, order);
    if (has_top_p)
        filter_top_p(p->top_p, n_vocab, work, weight, order);
}

/* ---------------------------------------------------------------- draw */

enum { DRAW_BLOCK = 1024 };

/* Sum of one block in the order of a warp: 32 strided lanes, then a butterfly. */
static float block_sum(const float *weight, int32_t n)
{
    float lane[32];
    for (int32_t j = 0; j < 32; j++) {
        lane[j] = 0.0f;
        for (int32_t i = j; i < n; i += 32)
            lane[j] += weight[i];
    }
    for (int32_t m = 16; m > 0; m /= 2) {
        float next[32];
        for (int32_t j = 0; j < 32; j++)
            next[j] = lane[j] + lane[j ^ m];
        memcpy(lane, next, sizeof lane);
    }
    return lane[0];
}

static int32_t block_length(int32_t n_vocab, int32_t first)
{
    return n_vocab - first < DRAW_BLOCK ? n_vocab - first : DRAW_BLOCK;
}

/* The first id whose cumulated weight exceeds u * total. Rounding may let the ids of a block add up
 * to less than its sum: then it is the last id of the block with weight; -1 only when there is no
 * weight at all. */
int32_t mm_ref_draw(const float *weight, int32_t n_vocab, double u)
{
    float total = 0.0f, below = 0.0f;
    int32_t block = -1;
    for (int32_t b = 0; b < n_vocab; b += DRAW_BLOCK)
        total += block_sum(weight + b, block_length(n_vocab, b));
    const double threshold = u * (double)total;
    for (int32_t b = 0; b < n_vocab; b += DRAW_BLOCK) {
        const float sum = block_sum(weight + b, block_length(n_vocab, b));
        if (sum > 0.0f)
            block = b;
        if ((double)(below + sum) > threshold)
            break;
        below += sum;
    }
    int32_t found = -1;
    for (int32_t v = block; block >= 0 && v < block + block_length(n_vocab, block); v++) {
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

typedef struct scratch {
    float *weight;
    uint32_t *order, *tmp;
} scratch; /* [V] each */

/* The distribution of one row in work and its token; fills flag. */
static int32_t sample_row(const mm_op_shape *s, const mm_ref_row *r, const float *logits,
                          float *work, const scratch *x, uint8_t *flag)
{
    const int32_t n = r->n_vocab;
    const mm_slot_params *p = r->p;
    if (mm_ref_has_nan(logits, n)) {
        memcpy(work, logits, (size_t)n * sizeof(float));
        *flag = MM_SAMPLE_NAN;
        return -1;
    }
    mm_ref_mask(r, s->never_token, logits, work);
    mm_ref_penalise(r, work);
    if (!(mm_ref_max(work, n) > -INFINITY)) {
        *flag = MM_SAMPLE_EMPTY;
        return -1;
    }
    *flag = MM_SAMPLE_OK;
    if (p->temperature < 1e-5f) {
        const int32_t best = mm_ref_argmax(work, n);
        for (int32_t v = 0; v < n; v++)
            work[v] = v == best ? 0.0f : -INFINITY;
        return r->forced >= 0 ? r->forced : best;
    }
    for (int32_t v = 0; v < n; v++)
        work[v] = work[v] / p->temperature;
    mm_ref_filter(p, n, work, x->weight, x->order, x->tmp);
    if (r->forced >= 0)
        return r->forced;
    mm_ref_weights(work, n, x->weight);
    const uint64_t n_emitted = (uint64_t)r->slots->n_emitted[r->slot];
    return mm_ref_draw(x->weight, n,
                       mm_ref_uniform(p->seed, n_emitted, (uint32_t)r->lane, MM_RNG_TARGET));
}

/* The slot goes on by the token of output row i of the step. */
static void commit_row(const mm_ref_row *r, const mm_batch *b, int32_t i, int32_t token)
{
    const mm_slots *s = r->slots;
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
    if (has_penalty(r->p)) {
        uint16_t *count = s->n_out + (int64_t)r->slot * r->n_vocab + token;
        *count = (uint16_t)(*count < UINT16_MAX ? *count + 1 : UINT16_MAX);
    }
}

mm_status mm_ref_sample(const mm_op_context *c, const mm_sample_args *a)
{
    const mm_op_shape *s = c->shape;
    const mm_out_view *out = a->out;
    const int32_t n_vocab = s->n_vocab;
    void *order, *tmp;
    scratch x;
    mm_ref_start(c);
    if (a->commit && out->blob == NULL)
        return MM_FAIL(MM_E_INVALID, "sample: commit needs the batch (mm_out_view.blob)");
    MM_TRY(mm_ref_floats(c, n_vocab, &x.weight));
    MM_TRY(mm_ref_scratch(c, (int64_t)sizeof(uint32_t) * n_vocab, &order));
    MM_TRY(mm_ref_scratch(c, (int64_t)sizeof(uint32_t) * n_vocab, &tmp));
    x.order = order;
    x.tmp = tmp;
    for (int32_t i = a->first; i < a->first + a->n; i++) {
        if (out->kind[i] != MM_OUT_SAMPLE)
            continue;
        const int64_t at = (int64_t)(i - a->first) * n_vocab;
        const int32_t slot = out->row_slot[i];
        const mm_ref_row r = {.p = &a->slots->params[slot],
                              .slots = a->slots,
                              .slot = slot,
                              .lane = out->lane[i],
                              .n_vocab = n_vocab,
                              .lane_token = out->row_token + i,
                              .forced = out->token[i]};
        a->token[i] = sample_row(s, &r, a->logits + at, a->work + at, &x, &a->flag[i]);
        if (a->commit)
            commit_row(&r, out->blob, i, a->token[i]);
    }
    return MM_OK;
}
