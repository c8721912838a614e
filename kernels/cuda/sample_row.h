/* sample_row.h: what the kernels of the sampler share: the arguments, the state of a row between
 * them, processed logits, weights, the commit. sample.cu says how the kernels follow each other. */
#ifndef MM_CUDA_SAMPLE_ROW_H
#define MM_CUDA_SAMPLE_ROW_H
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/sample_order.h"

enum {
    MM_SAMPLE_GROUP = 128, /* rows of one series of launches: bounds the scratch */
    MM_SAMPLE_LIST = 4096, /* ids near the cuts; with more the row is scanned again */
    MM_DRAW_BLOCK = 1024   /* ids whose weights are summed in the order of a warp (ops.h) */
};

/* What is known of a row; written by the last block of each kernel, read by the next. */
struct mm_sample_state {
    int32_t is_live; /* still without a token: neither skipped, greedy, NaN nor empty */
    int32_t selects; /* top_k or top_p have to find something */
    int32_t has_top_k, has_top_p, has_min_p;
    float max, scale;          /* bin of a value: mm_bin_of */
    float low;                 /* min_p keeps w - max >= low */
    int32_t bin_k;             /* of the k-th largest; -1 without top_k */
    int32_t bin_low, bin_high; /* where top_p's cut can lie; 0, -1 without top_p */
    uint32_t count_k;          /* ids in bins before bin_k */
    unsigned long long mass_k, mass_low, mass_all; /* before bin_k, before bin_low, of all bins */
    uint32_t n_list;                               /* ids in bin_k and bin_low .. bin_high */
    float cut;                                     /* kept: w > cut, or w == cut and id <= cut_id */
    int32_t cut_id;
    int32_t is_plain; /* `work` was not written: it is logits / temperature but for never_token */
    float temperature;
};

/* Maximum (as the smallest key), smallest finite logit and NaN of a part of a row. */
struct mm_sample_part {
    unsigned long long best;
    float min;
    int32_t has_nan;
};

struct mm_sample_run {
    mm_slots s;
    mm_out_view out;
    const float *logits;
    float *work;
    int32_t *token;
    uint8_t *flag;
    int32_t first, n_vocab, n_part; /* row r of the launch is output row first + r */
    int32_t commit, work_ends;
    int32_t never_token[16];
    int32_t never_first, never_last; /* all of them lie between */
    uint32_t *counter;               /* one per row */
    /* scratch, one of each per row */
    mm_sample_state *state;
    mm_sample_part *part;         /* [n_part], used of it: one per block */
    uint32_t *bin_count;          /* [MM_ROW_BINS] */
    unsigned long long *bin_mass; /* [MM_ROW_BINS] */
    uint64_t *list;               /* [MM_SAMPLE_LIST] keys */
    float *sum;                   /* [n_part * MM_ROW_SLICE / MM_DRAW_BLOCK] */
};

MM_DEV_FN bool mm_has_penalty(const mm_slot_params &p)
{
    return p.repetition_penalty != 1.0f || p.frequency_penalty != 0.0f ||
           p.presence_penalty != 0.0f;
}

/* Not masked, and not filtered by min_p. */
MM_DEV_FN bool mm_is_alive(const mm_sample_state &t, float w)
{
    return w > -INFINITY && !(t.has_min_p && w != t.max && w - t.max < t.low);
}
MM_DEV_FN float mm_weight_of(const mm_sample_state &t, float w)
{
    return w == t.max ? 1.0f : expf(w - t.max);
}
MM_DEV_FN uint64_t mm_mass_of(const mm_sample_state &t, float w)
{
    return (uint64_t)(mm_weight_of(t, w) * MM_MASS_ONE);
}

/* Kept by min_p, top_k and top_p. */
MM_DEV_FN bool mm_is_kept(const mm_sample_state &t, float w, int32_t id)
{
    return mm_is_alive(t, w) && (!t.selects || w > t.cut || (w == t.cut && id <= t.cut_id));
}

/* ---------------------------------------------------------------- processed logits */

MM_DEV_FN bool mm_is_never(const mm_sample_run &x, int32_t id)
{
    bool found = false;
    for (int k = 0; k < 16; k++)
        found = found || x.never_token[k] == id;
    return found;
}

/* This thread's ids of a part (as in mm_load_part): those in never_token get -inf. */
MM_DEV_FN void mm_mask_never(const mm_sample_run &x, int32_t first, int32_t forced,
                             float w[MM_ROW_EACH])
{
    if (first > x.never_last || first + MM_ROW_SLICE <= x.never_first)
        return;
#pragma unroll
    for (int j = 0; j < MM_ROW_EACH; j++) {
        const int32_t id = first + j * MM_ROW_THREADS + (int32_t)threadIdx.x;
        if (id != forced && mm_is_never(x, id))
            w[j] = -INFINITY;
    }
}

/* work[id] of row r of the launch, whether it was written or not. */
MM_DEV_FN float mm_work_at(const mm_sample_run &x, const mm_sample_state &t, int32_t r,
                           int32_t forced, int32_t id)
{
    const int64_t at = (int64_t)r * x.n_vocab + id;
    if (!t.is_plain)
        return x.work[at];
    const float l = x.logits[at];
    if (id >= x.never_first && id <= x.never_last && id != forced && mm_is_never(x, id))
        return -INFINITY;
    return __fdiv_rn(l, t.temperature);
}

/* This thread's ids of a part, as in mm_load_part. */
MM_DEV_FN void mm_load_work(const mm_sample_run &x, const mm_sample_state &t, int32_t r,
                            int32_t forced, int32_t first, float w[MM_ROW_EACH])
{
    const float *from = t.is_plain ? x.logits : x.work;
    mm_load_part(w, from + (int64_t)r * x.n_vocab + first, x.n_vocab - first, -INFINITY);
    if (!t.is_plain)
        return;
    mm_mask_never(x, first, forced, w);
#pragma unroll
    for (int j = 0; j < MM_ROW_EACH; j++)
        w[j] = __fdiv_rn(w[j], t.temperature);
}

/* ---------------------------------------------------------------- the end of a row */

/* What the slot of an output row needs to go on; one thread asks for it long before it is used,
 * because it takes four loads one after the other. */
struct mm_sample_commit {
    int32_t slot, n_emitted;
    int32_t goes_on;   /* 0: without commit, and in padding, which comes after the batch's rows */
    int32_t n_advance; /* rows that n_ctx moves on by */
    int32_t has_penalty;
};

MM_DEV_FN mm_sample_commit mm_sample_commit_of(const mm_sample_run &x, int32_t i)
{
    mm_sample_commit c = {x.out.row_slot[i], 0, 0, 0, 0};
    c.n_emitted = x.s.n_emitted[c.slot];
    if (!x.commit)
        return c;
    const uint8_t *blob = (const uint8_t *)x.out.blob;
    const mm_batch *b = (const mm_batch *)blob;
    if (i >= b->n_out)
        return c;
    const mm_batch_out *o = (const mm_batch_out *)(blob + b->out) + i;
    const mm_batch_seq *q = (const mm_batch_seq *)(blob + b->seq) + o->seq;
    c.goes_on = 1;
    c.n_advance = q->n_ctx_after < 0 ? q->n_row : 0;
    c.has_penalty = mm_has_penalty(x.s.params[c.slot]);
    return c;
}

/* The token of output row i of the step; its slot goes on. */
MM_DEV_FN void mm_sample_finish(const mm_sample_run &x, int32_t i, const mm_sample_commit &c,
                                int32_t token, uint8_t flag)
{
    x.token[i] = token;
    x.flag[i] = flag;
    if (!c.goes_on)
        return;
    if (c.n_advance > 0)
        x.s.n_ctx[c.slot] += c.n_advance;
    if (token < 0) {
        x.s.last_token[c.slot] = 0;
        return;
    }
    x.s.n_emitted[c.slot] = c.n_emitted + 1;
    x.s.last_token[c.slot] = token;
    x.s.recent[(int64_t)c.slot * MM_MAX_BAD_LEN + c.n_emitted % MM_MAX_BAD_LEN] = token;
    if (c.has_penalty) {
        uint16_t *count = x.s.n_out + (int64_t)c.slot * x.n_vocab + token;
        *count = (uint16_t)(*count < UINT16_MAX ? *count + 1 : UINT16_MAX);
    }
}

/* Blocks of a row, each with every so many parts of it: enough to fill the device once. Results do
 * not depend on it. */
int32_t mm_sample_blocks(const mm_op_context *c, int32_t n_part, int32_t n_row);
/* The kernels after the first. */
mm_status mm_cuda_sample_filter(const mm_op_context *c, const mm_sample_run *x, int32_t n_row);
mm_status mm_cuda_sample_draw(const mm_op_context *c, const mm_sample_run *x, int32_t n_row);
/* logprobs.cu */
size_t mm_cuda_logprobs_scratch(const mm_op_shape *s);
#endif
