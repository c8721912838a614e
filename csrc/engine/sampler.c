/* sampler.c: request parameters -> mm_batch_slot and mm_batch_out. Lists travel once, when the slot
 * begins. The prompt goes along for the repetition penalty only; of the tokens emitted so far, all
 * when something counts them, else as many as bad words can look back on. */
#include "csrc/engine/sampler.h"

static bool keeps_counts(const mm_request_params *p)
{
    return p->repetition_penalty != 1.0f || p->frequency_penalty != 0.0f ||
           p->presence_penalty != 0.0f;
}

static int32_t history_length(const mm_request *r)
{
    const int32_t n = r->n_token;
    return keeps_counts(&r->p) || n < MM_MAX_BAD_LEN ? n : MM_MAX_BAD_LEN;
}

static int64_t room(int64_t n, size_t each)
{
    return mm_round_up(n * (int64_t)each, 16);
}

int64_t mm_sampler_slot_bytes(const mm_request *r)
{
    const mm_request_params *p = &r->p;
    int64_t n = 2 * room(p->n_bias, 4) + room(r->n_ban, 4) + room(p->n_logprob_token, 4) +
                room(history_length(r), 4);
    if (p->n_bad > 0)
        n += room(p->n_bad + 1, 4) + room(p->bad_offset[p->n_bad], 4);
    if (r->allowed != NULL)
        n += room(r->mask_words, 4);
    if (p->repetition_penalty != 1.0f)
        n += room(r->n_prompt, 4);
    return n;
}

static int64_t put_ids(mm_blob *blob, const int32_t *id, int64_t n)
{
    return mm_blob_put(blob, id, n * (int64_t)sizeof *id);
}

void mm_sampler_fill_slot(const mm_request *r, mm_batch_slot *out, mm_blob *blob)
{
    const mm_request_params *p = &r->p;
    const int32_t n_history = history_length(r),
                  n_seen = p->repetition_penalty != 1.0f ? r->n_prompt : 0;
    *out = (mm_batch_slot){
        .slot = r->slot,
        .n_emitted = r->n_token,
        .seed = p->seed,
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .repetition_penalty = p->repetition_penalty,
        .frequency_penalty = p->frequency_penalty,
        .presence_penalty = p->presence_penalty,
        .top_k = p->top_k,
        .min_tokens = p->min_tokens,
        .n_bias = p->n_bias,
        .n_ban = r->n_ban,
        .n_bad = p->n_bad,
        .n_logprob_token = p->n_logprob_token,
        .n_prompt_seen = n_seen,
        .n_history = n_history,
        .bias_token = put_ids(blob, p->bias_token, p->n_bias),
        .bias_value = mm_blob_put(blob, p->bias_value, p->n_bias * (int64_t)sizeof(float)),
        .ban_token = put_ids(blob, r->ban, r->n_ban),
        .bad_offset = put_ids(blob, p->bad_offset, p->n_bad > 0 ? p->n_bad + 1 : 0),
        .bad_token = put_ids(blob, p->bad_token, p->n_bad > 0 ? p->bad_offset[p->n_bad] : 0),
        .logprob_token = put_ids(blob, p->logprob_token, p->n_logprob_token),
        .mask = r->allowed != NULL
                    ? mm_blob_put(blob, r->allowed, r->mask_words * (int64_t)sizeof(uint32_t))
                    : -1,
        .prompt = put_ids(blob, r->token, n_seen),
        .history = put_ids(blob, r->token + r->n_prompt + (r->n_token - n_history), n_history),
        .keeps_counts = keeps_counts(p),
    };
}

void mm_sampler_fill_entries(const mm_request *r, mm_batch_out *out)
{
    const mm_request_params *p = &r->p;
    const bool has_entries = p->n_logprob >= 0;
    out->mode = (int32_t)p->logprob_mode;
    out->n_top = p->n_logprob;
    out->n_list = has_entries ? p->n_logprob_token : 0;
    out->want_sampling = p->want_sampling_logprob != 0;
    out->needs_work =
        out->want_sampling || (has_entries && (p->logprob_mode == MM_LOGPROB_PROCESSED ||
                                               p->logprob_mode == MM_LOGIT_PROCESSED));
}
