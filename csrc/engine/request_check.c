/* request_check.c: what a request may ask for. Each message names the parameter as users know it,
 * the value found, the range, and what to do. Nothing here changes state. */
#include <math.h>

#include "csrc/engine/request.h"

#define BAD(param, index, ...) return MM_FAIL_PARAM(MM_E_INVALID, param, index, __VA_ARGS__)

static mm_status check_ids(const char *param, const int32_t *id, int64_t n, int64_t max_n,
                           int32_t n_vocab)
{
    if (n < 0 || n > max_n)
        BAD(param, -1, "%s has %lld entries; at most %lld are possible", param, (long long)n,
            (long long)max_n);
    if (n > 0 && id == NULL)
        BAD(param, -1, "%s has %lld entries but no array", param, (long long)n);
    for (int64_t i = 0; i < n; i++)
        if (id[i] < 0 || id[i] >= n_vocab)
            BAD(param, i, "%s[%lld] is %d; token ids of this model are 0 to %d", param,
                (long long)i, id[i], n_vocab - 1);
    return MM_OK;
}

static mm_status check_float(const char *param, float v, float lo, bool lo_open, float hi)
{
    if (!isfinite(v) || v < lo || (lo_open && v == lo) || v > hi)
        BAD(param, -1, "%s is %g; it must be a finite number in %c%g, %g]", param, (double)v,
            lo_open ? '(' : '[', (double)lo, (double)hi);
    return MM_OK;
}

static mm_status check_length(const mm_request_params *p, const mm_request_limits *lim)
{
    if (p->n_prompt < 1 || p->prompt == NULL)
        BAD("prompt", -1, "the prompt is empty; at least one token is needed");
    if (p->max_tokens < 0)
        BAD("max_tokens", -1, "max_tokens is %d; it must be >= 0 (0: only the prompt is computed)",
            p->max_tokens);
    if (p->min_tokens < 0 || p->min_tokens > p->max_tokens)
        BAD("min_tokens", -1, "min_tokens is %d; it must be 0 to max_tokens (%d)", p->min_tokens,
            p->max_tokens);
    const int64_t need = (int64_t)p->n_prompt + (p->max_tokens > 0 ? 1 : 0);
    if (need > lim->max_model_len)
        return MM_FAIL_PARAM(MM_E_TOO_LONG, "prompt", -1,
                             "the prompt has %d tokens%s and the model length of this engine is "
                             "%d: shorten the prompt or "
                             "raise max_model_len",
                             p->n_prompt,
                             p->max_tokens > 0 ? ", at least one more is to be generated," : "",
                             lim->max_model_len);
    if (need > lim->max_len)
        return MM_FAIL_PARAM(MM_E_TOO_LONG, "prompt", -1,
                             "the prompt has %d tokens and the KV pool of this engine holds %lld: "
                             "shorten the prompt or give "
                             "the pool more memory (kv_cache_memory_bytes)",
                             p->n_prompt, (long long)lim->pool_tokens);
    return check_ids("prompt", p->prompt, p->n_prompt, INT32_MAX, lim->config->n_vocab);
}

static mm_status check_sampling(const mm_request_params *p, const mm_request_limits *lim)
{
    const int32_t n_vocab = lim->config->n_vocab;
    if (!isfinite(p->temperature) || p->temperature < 0)
        BAD("temperature", -1, "temperature is %g; it must be a finite number >= 0",
            (double)p->temperature);
    if (p->top_k < -1)
        BAD("top_k", -1, "top_k is %d; it must be >= 1, or 0 or -1 for off", p->top_k);
    MM_TRY(check_float("top_p", p->top_p, 0, true, 1));
    MM_TRY(check_float("min_p", p->min_p, 0, false, 1));
    MM_TRY(check_float("frequency_penalty", p->frequency_penalty, -2, false, 2));
    MM_TRY(check_float("presence_penalty", p->presence_penalty, -2, false, 2));
    if (!isfinite(p->repetition_penalty) || p->repetition_penalty <= 0)
        BAD("repetition_penalty", -1, "repetition_penalty is %g; it must be a finite number > 0",
            (double)p->repetition_penalty);
    MM_TRY(check_ids("logit_bias", p->bias_token, p->n_bias, MM_MAX_LIST, n_vocab));
    if (p->n_bias > 0 && p->bias_value == NULL)
        BAD("logit_bias", -1, "logit_bias has %d ids but no values", p->n_bias);
    for (int32_t i = 0; i < p->n_bias; i++)
        if (isnan(p->bias_value[i]) || p->bias_value[i] == INFINITY)
            BAD("logit_bias", i, "logit_bias of token %d is %g; it must be finite or -inf",
                p->bias_token[i], (double)p->bias_value[i]);
    MM_TRY(check_ids("allowed_token_ids", p->allowed_token, p->n_allowed, INT32_MAX, n_vocab));
    MM_TRY(check_ids("trace_decode_token_ids", p->forced_token, p->n_forced, INT32_MAX, n_vocab));
    if (p->n_forced > p->max_tokens)
        BAD("trace_decode_token_ids", -1,
            "trace_decode_token_ids has %d ids but max_tokens is %d: raise max_tokens", p->n_forced,
            p->max_tokens);
    return MM_OK;
}

static mm_status check_bad_words(const mm_request_params *p, const mm_request_limits *lim)
{
    if (p->n_bad < 0 || p->n_bad > MM_MAX_LIST)
        BAD("bad_words", -1, "bad_words has %d words; at most %d are possible", p->n_bad,
            MM_MAX_LIST);
    if (p->n_bad == 0)
        return MM_OK;
    if (p->bad_offset == NULL || p->bad_token == NULL || p->bad_offset[0] != 0)
        BAD("bad_words", -1, "bad_words has no arrays or its first offset is not 0");
    for (int32_t i = 0; i < p->n_bad; i++) {
        const int64_t n = (int64_t)p->bad_offset[i + 1] - p->bad_offset[i];
        if (n < 1 || n > MM_MAX_BAD_LEN)
            BAD("bad_words", i, "bad_words[%d] has %lld tokens; 1 to %d are possible", i,
                (long long)n, MM_MAX_BAD_LEN);
    }
    return check_ids("bad_words", p->bad_token, p->bad_offset[p->n_bad], MM_MAX_BAD_TOKENS,
                     lim->config->n_vocab);
}

static mm_status check_stops(const mm_request_params *p, const mm_request_limits *lim)
{
    const int32_t n_eos = p->ignore_eos ? 0 : lim->n_eos;
    MM_TRY(check_ids("stop_token_ids", p->stop_token, p->n_stop_token, MM_MAX_LIST - n_eos,
                     lim->config->n_vocab));
    if (p->n_stop < 0 || p->n_stop > MM_MAX_LIST)
        BAD("stop", -1, "stop has %d strings; at most %d are possible", p->n_stop, MM_MAX_LIST);
    if (p->n_stop == 0)
        return MM_OK;
    if (lim->bytes->n_token == 0)
        BAD("stop", -1,
            "stop strings need a tokenizer and this engine has none: use stop_token_ids");
    if (p->stop_bytes == NULL || p->stop_offset == NULL || p->stop_offset[0] != 0)
        BAD("stop", -1, "stop has no arrays or its first offset is not 0");
    for (int32_t i = 0; i < p->n_stop; i++)
        if (p->stop_offset[i + 1] <= p->stop_offset[i])
            BAD("stop", i, "stop[%d] is empty: remove it", i);
    return MM_OK;
}

static mm_status check_logprobs(const mm_request_params *p, const mm_request_limits *lim)
{
    const int32_t n_vocab = lim->config->n_vocab;
    const int32_t most = lim->max_logprobs;
    if (p->n_logprob < -1 || p->n_logprob > most)
        BAD("logprobs", -1, "logprobs is %d; this engine gives 0 to %d: raise max_logprobs",
            p->n_logprob, most);
    if (p->n_prompt_logprob < -1 || p->n_prompt_logprob > most)
        BAD("prompt_logprobs", -1,
            "prompt_logprobs is %d; this engine gives 0 to %d: raise max_logprobs",
            p->n_prompt_logprob, most);
    if ((int32_t)p->logprob_mode < 0 || p->logprob_mode > MM_LOGIT_PROCESSED)
        BAD("logprobs_mode", -1, "logprobs_mode %d does not exist", (int)p->logprob_mode);
    if (p->prompt_logprob_mode != MM_LOGPROB_RAW && p->prompt_logprob_mode != MM_LOGPROB_TEMPERED)
        BAD("prompt_logprob_mode", -1, "prompts are scored raw or tempered, not in mode %d",
            (int)p->prompt_logprob_mode);
    MM_TRY(
        check_ids("logprob_token_ids", p->logprob_token, p->n_logprob_token, MM_MAX_LIST, n_vocab));
    MM_TRY(check_ids("prompt_logprob_token_ids", p->prompt_logprob_token, p->n_prompt_logprob_token,
                     MM_MAX_LIST, n_vocab));
    if (p->n_logprob_token > 0 && p->n_logprob < 0)
        BAD("logprob_token_ids", -1,
            "logprob_token_ids are scored beside log-probabilities: give logprobs >= 0 as well");
    if (p->n_prompt_logprob_token > 0 && p->n_prompt_logprob < 0)
        BAD("prompt_logprob_token_ids", -1,
            "prompt_logprob_token_ids need prompt_logprobs >= 0 as well");
    if (p->n_prompt_logprob >= 0 &&
        (p->prompt_logprob_start < 1 || p->prompt_logprob_start > p->n_prompt))
        BAD("prompt_logprob_start", -1,
            "prompt_logprob_start is %d; it must be 1 to %d, the prompt's length (token 0 has no "
            "predecessor)",
            p->prompt_logprob_start, p->n_prompt);
    return MM_OK;
}

static bool spells(const mm_token_bytes *bytes, int32_t token, const uint8_t *text, int32_t n)
{
    return token < bytes->n_token && bytes->offset[token + 1] - bytes->offset[token] == n &&
           n > 0 && text != NULL &&
           memcmp(bytes->blob + bytes->offset[token], text, (size_t)n) == 0;
}

static mm_status check_text(const mm_request_params *p, const mm_request_limits *lim)
{
    if ((int32_t)p->think_start < 0 || p->think_start > MM_THINK_DISABLED)
        BAD("thinking", -1, "thinking state %d does not exist", (int)p->think_start);
    if (p->think_start != MM_THINK_OFF && lim->bytes->n_token == 0)
        BAD("thinking", -1,
            "the thinking span is found in text, which needs a tokenizer; this engine has none");
    if (p->think_close_token < -1 || p->think_close_token >= lim->config->n_vocab)
        BAD("thinking_token_budget", -1, "the closing mark's token id %d is not one of this model",
            p->think_close_token);
    if (p->think_budget < -1)
        BAD("thinking_token_budget", -1,
            "thinking_token_budget is %d; it must be >= 0, or -1 for no limit", p->think_budget);
    if (p->think_budget >= 0 && (p->think_start == MM_THINK_OFF || p->think_close_token < 0))
        BAD("thinking_token_budget", -1,
            "thinking_token_budget needs a model whose closing thinking mark is one token, and a "
            "request that follows the span");
    if (p->think_budget >= 0 &&
        !spells(lim->bytes, p->think_close_token, p->think_close, p->n_think_close))
        BAD("thinking_token_budget", -1,
            "token %d, which would end the thinking span, does not spell the closing mark",
            p->think_close_token);
    const bool rep_off = p->rep_min_size == 0 && p->rep_max_size == 0 && p->rep_min_count == 0;
    if (!rep_off && (p->rep_min_size < 1 || p->rep_max_size < p->rep_min_size ||
                     p->rep_max_size > 4096 || p->rep_min_count < 2))
        BAD("repetition_detection", -1,
            "repetition_detection has sizes %d to %d and count %d; sizes must be 1 <= min <= max "
            "<= 4096 and the count >= 2",
            p->rep_min_size, p->rep_max_size, p->rep_min_count);
    return MM_OK;
}

/* ---------------------------------------------------------------- traces */

/* Forced blocks of one row: ascending ids of visible blocks, then -1. */
static bool are_blocks(const int16_t *b, int32_t width, int32_t pos)
{
    int32_t n = 0;
    while (n < width && b[n] >= 0)
        n++;
    for (int32_t i = n; i < width; i++)
        if (b[i] != -1)
            return false;
    for (int32_t i = 1; i < n; i++)
        if (b[i] <= b[i - 1])
            return false;
    return n > 0 && b[n - 1] <= pos / MM_PAGE;
}

static bool are_experts(const int16_t *e, int32_t k, int32_t n_expert)
{
    for (int32_t i = 0; i < k; i++)
        if (e[i] < 0 || e[i] >= n_expert || (i > 0 && e[i] <= e[i - 1]))
            return false;
    return true;
}

static mm_status check_forced_blocks(const mm_trace *t, const mm_config *c)
{
    for (int32_t l = 0; t->force_blocks != NULL && l < c->n_layer; l++) {
        const int16_t *b = t->force_blocks[l];
        if (b == NULL)
            continue;
        if (!c->layer_is_sparse[l])
            BAD("force_blocks", l, "layer %d attends to everything: leave its force_blocks out", l);
        for (int64_t i = 0; i < (int64_t)c->n_index_head * t->n_prompt; i++) {
            const int32_t pos = (int32_t)(i % t->n_prompt);
            if (!are_blocks(b + i * t->blocks_width, t->blocks_width, pos))
                BAD("force_blocks", l,
                    "force_blocks of layer %d, head %lld, position %d: expected ascending block "
                    "ids 0 to %d, then -1",
                    l, (long long)(i / t->n_prompt), pos, pos / MM_PAGE);
        }
    }
    return MM_OK;
}

static mm_status check_forced_experts(const mm_trace *t, const mm_config *c)
{
    for (int32_t l = 0; t->force_experts != NULL && l < c->n_layer; l++) {
        const int16_t *e = t->force_experts[l];
        if (e == NULL)
            continue;
        if (!c->layer_is_moe[l])
            BAD("force_experts", l, "layer %d has no experts: leave its force_experts out", l);
        for (int32_t pos = 0; pos < t->n_prompt; pos++)
            if (!are_experts(e + (int64_t)pos * c->n_expert_used, c->n_expert_used, c->n_expert))
                BAD("force_experts", l,
                    "force_experts of layer %d, position %d: expected %d ascending expert ids 0 to "
                    "%d",
                    l, pos, c->n_expert_used, c->n_expert - 1);
    }
    return MM_OK;
}

/* Everything that a step would stumble over: a failing step ends the engine, a bad argument only
 * its request. */
static mm_status check_trace(const mm_request_params *p, const mm_request_limits *lim)
{
    const mm_trace *t = p->trace;
    if (t == NULL)
        return MM_OK;
    if (p->max_tokens != 0)
        BAD("max_tokens", -1, "a trace generates nothing: max_tokens is %d, it must be 0",
            p->max_tokens);
    if (p->n_prompt_logprob >= 0)
        BAD("prompt_logprobs", -1,
            "a trace gives logits, not log-probabilities: leave prompt_logprobs off");
    if (t->n_prompt != p->n_prompt)
        BAD("trace", -1, "the trace is for %d tokens and the prompt has %d", t->n_prompt,
            p->n_prompt);
    const int32_t width =
        (int32_t)mm_min_i64(lim->config->n_top_block, mm_ceil_div(p->n_prompt, MM_PAGE));
    if ((t->blocks != NULL || t->force_blocks != NULL) && t->blocks_width != width)
        BAD("trace", -1,
            "blocks have %d entries a row; this model gives %d for a prompt of %d tokens",
            t->blocks_width, width, p->n_prompt);
    MM_TRY(check_forced_blocks(t, lim->config));
    return check_forced_experts(t, lim->config);
}

mm_status mm_request_check(const mm_request_params *p, const mm_request_limits *lim)
{
    if (p == NULL || p->size != sizeof *p)
        return MM_FAIL(MM_E_INVALID,
                       "mm_request_params has size %u, this library's is %zu: call "
                       "mm_request_params_init first",
                       p == NULL ? 0u : p->size, sizeof *p);
    MM_TRY(check_length(p, lim));
    MM_TRY(check_sampling(p, lim));
    MM_TRY(check_bad_words(p, lim));
    MM_TRY(check_stops(p, lim));
    MM_TRY(check_logprobs(p, lim));
    MM_TRY(check_text(p, lim));
    MM_TRY(check_trace(p, lim));
    if (p->priority != 0 && !lim->has_priority)
        BAD("priority", -1,
            "priority is %d but this engine serves first come, first served: open it with "
            "scheduling_policy=\"priority\"",
            p->priority);
    if (p->notify_tokens < 0)
        BAD("stream_interval", -1, "stream_interval is %d; it must be >= 0", p->notify_tokens);
    if (p->want_mask && p->max_tokens == 0)
        BAD("structured_outputs", -1, "a grammar needs max_tokens >= 1");
    if (p->n_media != 0 || p->media != NULL)
        return MM_FAIL_PARAM(MM_E_UNSUPPORTED, "multi_modal_data", -1,
                             "images and video are not built into this engine yet");
    if (p->n_draft_max < 0 || p->n_draft_max > 7)
        BAD("speculative_config", -1, "%d draft tokens per step; 0 to 7 are possible",
            p->n_draft_max);
    if (p->n_draft_max > 0)
        return MM_FAIL_PARAM(MM_E_UNSUPPORTED, "speculative_config", -1,
                             "this engine has no draft model: leave speculation off");
    return MM_OK;
}
