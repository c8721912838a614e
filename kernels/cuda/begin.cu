/* begin.cu: the `begin` op: slots and masks that a batch changes. One block for each slot that
 * begins (histories, marks and lists spread over its threads), then one for each mask: a mask may
 * be of a slot that begins in the same step. */
#include "kernels/cuda/kernels.h"

enum { SLOT_THREADS = 512, MASK_THREADS = 256 };

struct begin_run {
    const uint8_t *blob;
    mm_slots s;
    int32_t n_vocab;
    int64_t at_slot, at_mask;
};

/* ---------------------------------------------------------------- slots */

MM_DEV_FN void copy_list(void *dst, int64_t first, const uint8_t *blob, int64_t offset, int32_t n)
{
    const int32_t *src = (const int32_t *)(blob + offset);
    for (int32_t i = threadIdx.x; i < n; i += SLOT_THREADS)
        ((int32_t *)dst)[first + i] = src[i];
}

MM_DEV_FN void clear(void *dst, int64_t n_bytes) /* multiple of 2 bytes, at a multiple of 2 */
{
    uint8_t *p = (uint8_t *)dst;
    const int64_t n16 = (uintptr_t)dst % 16 == 0 ? n_bytes / 16 : 0;
    for (int64_t i = threadIdx.x; i < n16; i += SLOT_THREADS)
        ((uint4 *)p)[i] = make_uint4(0, 0, 0, 0);
    for (int64_t i = 8 * n16 + threadIdx.x; i < n_bytes / 2; i += SLOT_THREADS)
        ((uint16_t *)p)[i] = 0;
}

/* count[id] + 1, saturating; a word holds two counts, and other threads may be at either. */
MM_DEV_FN void count_one(uint16_t *count, int32_t id)
{
    uint16_t *const p = count + id;
    uint32_t *const word = (uint32_t *)((uintptr_t)p & ~(uintptr_t)3);
    const int shift = (uintptr_t)p & 2 ? 16 : 0;
    for (uint32_t old = *(volatile uint32_t *)word;;) {
        if ((old >> shift & 0xFFFFu) == 0xFFFFu)
            return;
        const uint32_t seen = atomicCAS(word, old, old + (1u << shift));
        if (seen == old)
            return;
        old = seen;
    }
}

/* What the slot has seen: prompt marks, and everything that its own tokens decide. */
MM_DEV_FN void set_history(const begin_run &x, const mm_batch_slot *n)
{
    const int32_t *history = (const int32_t *)(x.blob + n->history);
    const int32_t *prompt = (const int32_t *)(x.blob + n->prompt);
    uint32_t *mark = x.s.in_prompt + (int64_t)n->slot * x.s.mask_words;
    uint16_t *count = x.s.n_out + (int64_t)n->slot * x.n_vocab;
    const bool has_marks = n->repetition_penalty != 1.0f;
    if (has_marks)
        clear(mark, (int64_t)x.s.mask_words * (int64_t)sizeof(uint32_t));
    if (n->keeps_counts)
        clear(count, (int64_t)x.n_vocab * (int64_t)sizeof(uint16_t));
    __syncthreads();
    for (int32_t i = threadIdx.x; has_marks && i < n->n_prompt_seen; i += SLOT_THREADS)
        atomicOr(&mark[prompt[i] / 32], 1u << (prompt[i] % 32));
    for (int32_t i = threadIdx.x; n->keeps_counts && i < n->n_history; i += SLOT_THREADS)
        count_one(count, history[i]);
    /* the ring keeps the newest; older tokens would only be overwritten */
    const int32_t first = max(0, n->n_history - MM_MAX_BAD_LEN);
    for (int32_t i = first + (int32_t)threadIdx.x; i < n->n_history; i += SLOT_THREADS)
        x.s.recent[(int64_t)n->slot * MM_MAX_BAD_LEN +
                   (n->n_emitted - n->n_history + i) % MM_MAX_BAD_LEN] = history[i];
    if (threadIdx.x == 0)
        x.s.last_token[n->slot] = n->n_history > 0 ? history[n->n_history - 1] : 0;
}

static __global__ void __launch_bounds__(SLOT_THREADS) begin_slots(begin_run x)
{
    mm_pdl_wait();
    mm_pdl_trigger();
    const mm_batch_slot *n = (const mm_batch_slot *)(x.blob + x.at_slot) + blockIdx.x;
    const int32_t i = n->slot;
    if (threadIdx.x == 0) {
        mm_slot_params p;
        p.seed = n->seed;
        p.temperature = n->temperature;
        p.top_p = n->top_p;
        p.min_p = n->min_p;
        p.repetition_penalty = n->repetition_penalty;
        p.frequency_penalty = n->frequency_penalty;
        p.presence_penalty = n->presence_penalty;
        p.top_k = n->top_k;
        p.min_tokens = n->min_tokens;
        p.n_bias = n->n_bias;
        p.n_ban = n->n_ban;
        p.n_bad = n->n_bad;
        p.n_logprob_token = n->n_logprob_token;
        p.has_mask = n->mask >= 0;
        x.s.params[i] = p;
        x.s.n_emitted[i] = n->n_emitted;
        if (x.s.n_draft != NULL)
            x.s.n_draft[i] = 0;
    }
    const int64_t list = (int64_t)i * MM_MAX_LIST;
    copy_list(x.s.bias_token, list, x.blob, n->bias_token, n->n_bias);
    copy_list(x.s.bias_value, list, x.blob, n->bias_value, n->n_bias);
    copy_list(x.s.ban_token, list, x.blob, n->ban_token, n->n_ban);
    copy_list(x.s.logprob_token, list, x.blob, n->logprob_token, n->n_logprob_token);
    if (n->n_bad > 0) {
        const int32_t n_token = ((const int32_t *)(x.blob + n->bad_offset))[n->n_bad];
        copy_list(x.s.bad_offset, (int64_t)i * (MM_MAX_LIST + 1), x.blob, n->bad_offset,
                  n->n_bad + 1);
        copy_list(x.s.bad_token, (int64_t)i * MM_MAX_BAD_TOKENS, x.blob, n->bad_token, n_token);
    }
    for (int32_t lane = 0; lane < x.s.mask_lanes && n->mask >= 0; lane++)
        copy_list(x.s.mask, ((int64_t)i * x.s.mask_lanes + lane) * x.s.mask_words, x.blob, n->mask,
                  x.s.mask_words);
    set_history(x, n);
}

/* ---------------------------------------------------------------- masks */

static __global__ void __launch_bounds__(MASK_THREADS) begin_masks(begin_run x)
{
    mm_pdl_wait();
    mm_pdl_trigger();
    const mm_batch_mask m = ((const mm_batch_mask *)(x.blob + x.at_mask))[blockIdx.x];
    const uint32_t *src = (const uint32_t *)(x.blob + m.mask);
    uint32_t *dst = x.s.mask + ((int64_t)m.slot * x.s.mask_lanes + m.lane) * x.s.mask_words;
    for (int32_t w = threadIdx.x; w < x.s.mask_words; w += MASK_THREADS)
        dst[w] = src[w];
    if (threadIdx.x == 0)
        x.s.params[m.slot].has_mask = 1;
}

/* ---------------------------------------------------------------- the op */

mm_status mm_cuda_begin(const mm_op_context *c, const mm_begin_args *a)
{
    const mm_batch *b = a->plan;
    begin_run x = {};
    mm_cuda_start(c);
    x.blob = (const uint8_t *)a->blob;
    x.s = *a->slots;
    x.n_vocab = c->shape->n_vocab;
    x.at_slot = b->slot;
    x.at_mask = b->mask;
    if (b->n_slot > 0)
        MM_TRY(mm_launch(c, "begin_slots", begin_slots, dim3((unsigned)b->n_slot),
                         dim3(SLOT_THREADS), 0, x));
    if (b->n_mask > 0)
        MM_TRY(mm_launch(c, "begin_masks", begin_masks, dim3((unsigned)b->n_mask),
                         dim3(MASK_THREADS), 0, x));
    return MM_OK;
}
