/* sample_row.h: what the kernels of the sampler share: the arguments, the state of a row between
 * them, weights and the commit. sample.cu says how the kernels follow each other. */
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
    int32_t commit;
    int32_t never_token[16];
    uint32_t *counter; /* one per row */
    /* scratch, one of each per row */
    mm_sample_state *state;
    mm_sample_part *part;         /* [n_part] */
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

/* The slot goes on by the token of output row i of the step; rows after the batch's are padding. */
MM_DEV_FN void mm_sample_finish(const mm_sample_run &x, int32_t i, int32_t token, uint8_t flag)
{
    x.token[i] = token;
    x.flag[i] = flag;
    if (!x.commit)
        return;
    const uint8_t *blob = (const uint8_t *)x.out.blob;
    const mm_batch *b = (const mm_batch *)blob;
    if (i >= b->n_out)
        return;
    const mm_batch_out *o = (const mm_batch_out *)(blob + b->out) + i;
    const mm_batch_seq *q = (const mm_batch_seq *)(blob + b->seq) + o->seq;
    const int32_t slot = x.out.row_slot[i];
    if (q->n_ctx_after < 0)
        x.s.n_ctx[slot] += q->n_row;
    if (token < 0) {
        x.s.last_token[slot] = 0;
        return;
    }
    const int32_t n = x.s.n_emitted[slot];
    x.s.n_emitted[slot] = n + 1;
    x.s.last_token[slot] = token;
    x.s.recent[(int64_t)slot * MM_MAX_BAD_LEN + n % MM_MAX_BAD_LEN] = token;
    if (mm_has_penalty(x.s.params[slot])) {
        uint16_t *count = x.s.n_out + (int64_t)slot * x.n_vocab + token;
        *count = (uint16_t)(*count < UINT16_MAX ? *count + 1 : UINT16_MAX);
    }
}

/* The kernels after the first; grid (n_part, rows). */
mm_status mm_cuda_sample_filter(const mm_op_context *c, const mm_sample_run *x, int32_t n_row);
mm_status mm_cuda_sample_draw(const mm_op_context *c, const mm_sample_run *x, int32_t n_row);
/* logprobs.cu */
size_t mm_cuda_logprobs_scratch(const mm_op_shape *s);
#endif
