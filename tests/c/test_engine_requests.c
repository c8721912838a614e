/* test_engine_requests.c: what a request may ask for and how it ends. Text is made with forced
 * tokens, so that every ending can be written down beforehand; each case runs with and without a
 * step planned ahead. */
#include <math.h>

#include "tests/c/engine_fixture.h"

static const int32_t some_prompt[3] = {72, 105, 33};

typedef struct fx {
    mm_engine *e;
    mm_waiter *w;
} fx;

static bool fx_open(fx *f, int32_t run_ahead)
{
    mm_engine_options o = fx_options("ref");
    o.run_ahead = run_ahead;
    *f = (fx){0};
    if (mm_engine_open(&f->e, &o) == MM_OK && mm_waiter_open(&f->w, f->e) == MM_OK)
        return true;
    printf("  %s\n", mm_error_message());
    return false;
}

static void fx_close(fx *f)
{
    mm_waiter_close(f->w);
    mm_engine_close(f->e);
}

static bool fx_run(fx *f, const mm_request_params *p, mm_output *out)
{
    uint64_t id;
    if (mm_engine_submit(f->e, f->w, p, &id) == MM_OK && fx_join(f->e, f->w, id, out))
        return true;
    printf("  %s\n", mm_error_message());
    return false;
}

/* A request that emits exactly these tokens, then goes on by itself. */
static mm_request_params saying(const int32_t *token, int32_t n, int32_t max_tokens)
{
    mm_request_params p = fx_params(some_prompt, 3, max_tokens);
    p.forced_token = token;
    p.n_forced = n;
    return p;
}

static void set_stop(mm_request_params *p, const char *text, const int32_t *offset, int32_t n)
{
    p->stop_bytes = (const uint8_t *)text;
    p->stop_offset = offset;
    p->n_stop = n;
}

static void set_think(mm_request_params *p, mm_think_state start, int32_t budget)
{
    p->think_start = start;
    p->think_open = (const uint8_t *)fx_special[0];
    p->think_close = (const uint8_t *)fx_special[1];
    p->n_think_open = (int32_t)strlen(fx_special[0]);
    p->n_think_close = (int32_t)strlen(fx_special[1]);
    p->think_close_token = FX_CLOSE;
    p->think_budget = budget;
}

MM_TEST(test_request_ends_at_end_and_stop_tokens)
{
    static const int32_t text[4] = {65, FX_EOS, 66, 67}, stop[2] = {67, 9};
    for (int32_t ahead = 0; ahead < 2; ahead++) {
        fx f;
        mm_output o;
        MM_CHECK(fx_open(&f, ahead), "open");
        mm_request_params p = saying(text, 4, 8);
        p.ignore_eos = 0;
        MM_CHECK(fx_run(&f, &p, &o), "run");
        MM_CHECK(o.finish == MM_FINISH_STOP && o.stop == MM_STOP_EOS && o.stop_index == FX_EOS &&
                     o.n_token == 2,
                 "%d tokens", o.n_token);
        p.min_tokens = 2; /* a forced end within min_tokens does not end */
        p.stop_token = stop;
        p.n_stop_token = 2;
        MM_CHECK(fx_run(&f, &p, &o), "run");
        MM_CHECK(o.stop == MM_STOP_TOKEN && o.stop_index == 67 && o.n_token == 4 &&
                     o.token[1] == FX_EOS,
                 "%d tokens", o.n_token);
        p.n_stop_token = 0;
        p.ignore_eos = 1;
        p.min_tokens = 0;
        MM_CHECK(fx_run(&f, &p, &o), "run");
        MM_CHECK(o.finish == MM_FINISH_LENGTH && o.stop == MM_STOP_MAX_TOKENS && o.n_token == 8,
                 "%d tokens", o.n_token);
        fx_close(&f);
    }
}

MM_TEST(test_request_ends_at_stop_strings_across_tokens)
{
    static const int32_t text[5] = {'x', 'a', FX_WORD, 'b', 'c'}; /* x a hello b c */
    static const int32_t offset[3] = {0, 3, 5};
    for (int32_t ahead = 0; ahead < 2; ahead++) {
        fx f;
        mm_output o;
        MM_CHECK(fx_open(&f, ahead), "open");
        mm_request_params p = saying(text, 5, 10);
        set_stop(&p, "zzzob", offset, 2); /* "zzz", "ob" */
        MM_CHECK(fx_run(&f, &p, &o), "run");
        MM_CHECK(o.stop == MM_STOP_STRING && o.stop_index == 1 && o.n_token == 4 &&
                     o.stop_begin == 6 && o.stop_end == 8,
                 "%d tokens, range %lld to %lld", o.n_token, (long long)o.stop_begin,
                 (long long)o.stop_end);
        p.min_tokens = 4; /* completed at token 4: ignored for good */
        MM_CHECK(fx_run(&f, &p, &o), "run");
        MM_CHECK(o.n_token > 4, "%d tokens", o.n_token);
        fx_close(&f);
    }
}

MM_TEST(test_request_stop_strings_respect_the_thinking_span)
{
    static const int32_t text[5] = {FX_OPEN, 'a', FX_CLOSE, 'a', 'b'};
    static const int32_t offset[2] = {0, 1};
    fx f;
    mm_output o;
    MM_CHECK(fx_open(&f, 1), "open");
    mm_request_params p = saying(text, 5, 10);
    set_stop(&p, "a", offset, 1);
    set_think(&p, MM_THINK_ADAPTIVE, -1);
    MM_CHECK(fx_run(&f, &p, &o), "run");
    MM_CHECK(o.stop == MM_STOP_STRING && o.n_token == 4 && o.n_think_token == 1,
             "%d tokens, %d of thinking", o.n_token, o.n_think_token);
    p.stop_in_thinking = 1;
    MM_CHECK(fx_run(&f, &p, &o), "run");
    MM_CHECK(o.stop == MM_STOP_STRING && o.n_token == 2, "%d tokens", o.n_token);
    fx_close(&f);
}

MM_TEST(test_request_thinking_budget_forces_the_closing_mark)
{
    for (int32_t ahead = 0; ahead < 2; ahead++) {
        fx f;
        mm_output o;
        MM_CHECK(fx_open(&f, ahead), "open");
        for (int32_t budget = 0; budget < 12; budget += 3) {
            mm_request_params p = fx_params(some_prompt, 3, 20);
            set_think(&p, MM_THINK_ENABLED, budget);
            p.n_logprob = 0;
            MM_CHECK(fx_run(&f, &p, &o), "run");
            MM_CHECK(o.token[budget] == FX_CLOSE && o.n_think_token == budget,
                     "budget %d: token %d, %d of thinking", budget, o.token[budget],
                     o.n_think_token);
            for (int32_t i = 0; i < o.n_token; i++)
                MM_CHECK(i == budget || o.token[i] != FX_CLOSE, "a second closing mark at %d", i);
        }
        static const int32_t opener[2] = {FX_OPEN, 'a'};
        mm_request_params p = saying(opener, 1, 6);
        set_think(&p, MM_THINK_ADAPTIVE, 0);
        MM_CHECK(fx_run(&f, &p, &o) && o.token[0] == FX_OPEN && o.token[1] == FX_CLOSE,
                 "tokens %d %d", o.token[0], o.token[1]);
        fx_close(&f);
    }
}

MM_TEST(test_request_ends_when_it_loops)
{
    static const int32_t text[9] = {1, 7, 8, 9, 7, 8, 9, 7, 8};
    fx f;
    mm_output o;
    MM_CHECK(fx_open(&f, 1), "open");
    mm_request_params p = saying(text, 9, 20);
    p.rep_min_size = 2;
    p.rep_max_size = 4;
    p.rep_min_count = 2;
    MM_CHECK(fx_run(&f, &p, &o), "run");
    MM_CHECK(o.finish == MM_FINISH_STOP && o.stop == MM_STOP_REPETITION && o.n_token == 7,
             "%d tokens", o.n_token);
    fx_close(&f);
}

MM_TEST(test_request_lengths)
{
    static int32_t prompt[2100];
    fx f;
    mm_output o;
    uint64_t id;
    MM_CHECK(fx_open(&f, 1), "open");
    fx_prompt(prompt, 2100, 3);
    mm_request_params p = fx_params(prompt, 2048, 0); /* scoring a prompt of exactly the model
                                                         length */
    p.n_prompt_logprob = 0;
    MM_CHECK(fx_run(&f, &p, &o), "run");
    MM_CHECK(o.finish == MM_FINISH_LENGTH && o.n_token == 0 && o.n_prompt_row == 2047 &&
                 o.prompt_width == 1,
             "%d rows", o.n_prompt_row);
    for (int i = 0; i < o.n_prompt_row; i++)
        MM_CHECK(o.prompt_id[i] == prompt[i + 1] && o.prompt_logprob[i] < 0 &&
                     o.prompt_rank[i] >= 1,
                 "row %d", i);
    p = fx_params(prompt, 2048, 1);
    MM_CHECK(mm_engine_submit(f.e, f.w, &p, &id) == MM_E_TOO_LONG &&
                 strcmp(mm_error_param(), "prompt") == 0,
             "%s", mm_error_message());
    p = fx_params(prompt, 2040, 100);
    MM_CHECK(fx_run(&f, &p, &o), "run");
    MM_CHECK(o.finish == MM_FINISH_LENGTH && o.stop == MM_STOP_MODEL_LEN && o.n_token == 8,
             "%d tokens", o.n_token);
    fx_close(&f);

    mm_engine_options opt = fx_options("ref");
    opt.kv_bytes = 5 * mm_model_page_bytes(opt.config, opt.kv_format, opt.index_format, 0, 1);
    MM_CHECK(mm_engine_open(&f.e, &opt) == MM_OK && mm_waiter_open(&f.w, f.e) == MM_OK, "%s",
             mm_error_message());
    p = fx_params(prompt, 513, 0);
    MM_CHECK(mm_engine_submit(f.e, f.w, &p, &id) == MM_E_TOO_LONG &&
                 strstr(mm_error_message(), "512") != NULL,
             "%s", mm_error_message());
    p = fx_params(prompt, 500, 100);
    MM_CHECK(fx_run(&f, &p, &o) && o.n_token == 12 && o.stop == MM_STOP_MODEL_LEN, "%d tokens",
             o.n_token);
    fx_close(&f);
}

MM_TEST(test_request_with_nothing_allowed_ends_alone)
{
    static const int32_t allowed[2] = {FX_NEVER, FX_EOS};
    for (int32_t ahead = 0; ahead < 2; ahead++) {
        fx f;
        mm_output o, other;
        uint64_t id, id_other;
        MM_CHECK(fx_open(&f, ahead), "open");
        mm_request_params p = fx_params(some_prompt, 3, 10), q = p;
        p.allowed_token = allowed;
        p.n_allowed = 2;
        p.ignore_eos = 0;
        p.min_tokens = 3; /* the end token is masked, the placeholder always */
        MM_CHECK(mm_engine_submit(f.e, f.w, &p, &id) == MM_OK &&
                     mm_engine_submit(f.e, f.w, &q, &id_other) == MM_OK,
                 "%s", mm_error_message());
        MM_CHECK(fx_join(f.e, f.w, id, &o) && fx_join(f.e, f.w, id_other, &other), "no end");
        MM_CHECK(o.finish == MM_FINISH_ERROR && o.error == MM_E_INVALID && o.n_token == 0 &&
                     strstr(o.error_message, "allowed") != NULL,
                 "%s", o.error_message);
        MM_CHECK(other.finish == MM_FINISH_LENGTH && other.n_token == 10,
                 "the other one ended with %d tokens", other.n_token);
        fx_close(&f);
    }
}

MM_TEST(test_request_masks_are_asked_for_and_obeyed)
{
    enum { WORDS = (FX_VOCAB + 31) / 32 };
    for (int32_t ahead = 0; ahead < 2; ahead++) {
        static const int32_t allowed[3] = {40, 41, 43};
        fx f;
        mm_output o;
        uint64_t id, got[4];
        int32_t n;
        uint32_t mask[WORDS];
        MM_CHECK(fx_open(&f, ahead), "open");
        mm_request_params p = fx_params(some_prompt, 3, 6);
        p.want_mask = 1;
        p.allowed_token = allowed;
        p.n_allowed = 3;
        MM_CHECK(mm_engine_submit(f.e, f.w, &p, &id) == MM_OK, "%s", mm_error_message());
        for (int32_t i = 0; i < 6; i++) {
            do {
                MM_CHECK(mm_waiter_wait(f.w, 20, got, 4, &n) == MM_OK && n == 1 && got[0] == id,
                         "no news of mask %d", i);
                MM_CHECK(mm_request_read(f.e, id, &o) == MM_OK, "%s", mm_error_message());
            } while (o.want_mask_token < 0);
            MM_CHECK(o.want_mask_token == i && o.n_token == i, "mask %d is wanted, %d tokens",
                     o.want_mask_token, o.n_token);
            MM_CHECK(mm_engine_put_mask(f.e, id, i + 1, mask) == MM_E_INVALID,
                     "a mask of a later token was taken");
            memset(mask, 0, sizeof mask); /* 43 or 44 at odd, 40 or 42 at even places; allowed_token
                                             leaves one of each */
            mask[1] = i % 2 ? 3u << 11 : 1u << 8 | 1u << 10;
            MM_CHECK(mm_engine_put_mask(f.e, id, i, mask) == MM_OK, "%s", mm_error_message());
        }
        MM_CHECK(fx_join(f.e, f.w, id, &o) && o.n_token == 6, "%d tokens", o.n_token);
        for (int32_t i = 0; i < 6; i++)
            MM_CHECK(o.token[i] == (i % 2 ? 43 : 40), "token %d is %d", i, o.token[i]);
        fx_close(&f);
    }
}

MM_TEST(test_request_bad_values_are_refused_by_name)
{
    static const int32_t bad_id[1] = {FX_VOCAB}, one[1] = {1}, two[2] = {0, 0};
    static const float inf[1] = {INFINITY};
    fx f;
    uint64_t id;
    MM_CHECK(fx_open(&f, 0), "open");
    const mm_request_params good = fx_params(some_prompt, 3, 10);
#define REFUSED(status, name, change)                                                              \
    do {                                                                                           \
        mm_request_params p = good;                                                                \
        change;                                                                                    \
        const mm_status st = mm_engine_submit(f.e, f.w, &p, &id);                                  \
        MM_CHECK(st == (status) && strcmp(mm_error_param(), name) == 0 &&                          \
                     strlen(mm_error_message()) > 10,                                              \
                 "%s: %s (%s)", name, mm_status_name(st), mm_error_message());                     \
    } while (0)
    REFUSED(MM_E_INVALID, "", p.size = 4);
    REFUSED(MM_E_INVALID, "prompt", p.n_prompt = 0);
    REFUSED(MM_E_INVALID, "prompt", p.prompt = bad_id; p.n_prompt = 1);
    REFUSED(MM_E_TOO_LONG, "prompt", p.n_prompt = 4000);
    REFUSED(MM_E_INVALID, "max_tokens", p.max_tokens = -1);
    REFUSED(MM_E_INVALID, "min_tokens", p.min_tokens = 11);
    REFUSED(MM_E_INVALID, "temperature", p.temperature = -0.1f);
    REFUSED(MM_E_INVALID, "temperature", p.temperature = NAN);
    REFUSED(MM_E_INVALID, "top_k", p.top_k = -2);
    REFUSED(MM_E_INVALID, "top_p", p.top_p = 0);
    REFUSED(MM_E_INVALID, "top_p", p.top_p = 1.5f);
    REFUSED(MM_E_INVALID, "min_p", p.min_p = -0.5f);
    REFUSED(MM_E_INVALID, "repetition_penalty", p.repetition_penalty = 0);
    REFUSED(MM_E_INVALID, "frequency_penalty", p.frequency_penalty = 3);
    REFUSED(MM_E_INVALID, "presence_penalty", p.presence_penalty = -3);
    REFUSED(MM_E_INVALID, "logit_bias", p.bias_token = bad_id; p.n_bias = 1);
    REFUSED(MM_E_INVALID, "logit_bias", p.bias_token = one; p.bias_value = inf; p.n_bias = 1);
    REFUSED(MM_E_INVALID, "allowed_token_ids", p.allowed_token = bad_id; p.n_allowed = 1);
    REFUSED(MM_E_INVALID, "bad_words", p.bad_token = one; p.bad_offset = two; p.n_bad = 1);
    REFUSED(MM_E_INVALID, "stop_token_ids", p.stop_token = bad_id; p.n_stop_token = 1);
    REFUSED(MM_E_INVALID, "stop", p.stop_bytes = (const uint8_t *)"x"; p.stop_offset = two;
            p.n_stop = 1);
    REFUSED(MM_E_INVALID, "logprobs", p.n_logprob = 21);
    REFUSED(MM_E_INVALID, "prompt_logprobs", p.n_prompt_logprob = 21);
    REFUSED(MM_E_INVALID, "prompt_logprob_start", p.n_prompt_logprob = 0;
            p.prompt_logprob_start = 4);
    REFUSED(MM_E_INVALID, "logprob_token_ids", p.logprob_token = one; p.n_logprob_token = 1);
    REFUSED(MM_E_INVALID, "trace_decode_token_ids", p.forced_token = one; p.n_forced = 1;
            p.max_tokens = 0);
    REFUSED(MM_E_INVALID, "thinking_token_budget", p.think_budget = 3);
    REFUSED(MM_E_INVALID, "thinking_token_budget", set_think(&p, MM_THINK_ENABLED, 3);
            p.think_close_token = 65);
    REFUSED(MM_E_INVALID, "repetition_detection", p.rep_min_size = 3);
    REFUSED(MM_E_INVALID, "priority", p.priority = 1);
    REFUSED(MM_E_UNSUPPORTED, "speculative_config", p.n_draft_max = 2);
    REFUSED(MM_E_UNSUPPORTED, "multi_modal_data", p.n_media = 1);
#undef REFUSED
    mm_output o;
    MM_CHECK(fx_run(&f, &good, &o) && o.n_token == 10, "a good request after bad ones");
    fx_close(&f);
}
