/* test_engine.c: the same request gives the same bits, whatever happens around it: alone, among
 * others, cut into other chunks, preempted, from a prefix hit, one step planned ahead. On a tiny
 * model with made-up weights, ref and cpu. */
#include "tests/c/engine_fixture.h"

enum { N = 9, TOKENS = 24 };

typedef struct sample {
    int32_t n_token, token[TOKENS], id[TOKENS * 8], rank[TOKENS * 8], n_cached, n_preempted,
        n_prompt_row;
    float logprob[TOKENS * 8], sampling[TOKENS], prompt_logprob[2048];
    mm_finish finish;
} sample;

static int32_t prompt[N][1024], n_prompt[N];

/* A mixture of what can be asked. All prompts begin alike, so that there are prefixes to share. */
static mm_request_params params_of(int i)
{
    static const int32_t length[N] = {1, 127, 120, 128, 250, 505, 700, 245, 380};
    static const int32_t bad_token[3] = {17, 40, 41}, bad_offset[3] = {0, 1, 3};
    static const int32_t bias_token[2] = {3, 99}, forced[3] = {65, 66, 67}, list[2] = {9, 200};
    static const float bias_value[2] = {4.0f, -50.0f};
    n_prompt[i] = length[i];
    fx_prompt(prompt[i], 256, 77);
    fx_prompt(prompt[i] + 256, 512, 100 + (uint64_t)i);
    mm_request_params p = fx_params(prompt[i], length[i], TOKENS);
    p.n_logprob = 3;
    p.logprob_mode = (mm_logprob_mode)(i % 5);
    p.want_sampling_logprob = 1;
    p.seed = (uint64_t)i * 1234567 + 1;
    p.temperature = i % 3 == 0 ? 0.0f : 0.9f;
    p.top_p = i % 2 == 0 ? 0.8f : 1.0f;
    p.top_k = i % 4 == 1 ? 20 : 0;
    p.min_p = i % 5 == 4 ? 0.05f : 0.0f;
    if (i % 3 == 2) {
        p.repetition_penalty = 1.3f;
        p.frequency_penalty = 0.2f;
        p.presence_penalty = -0.1f;
    }
    if (i % 2 == 1) {
        p.bad_token = bad_token;
        p.bad_offset = bad_offset;
        p.n_bad = 2;
        p.bias_token = bias_token;
        p.bias_value = bias_value;
        p.n_bias = 2;
    }
    if (i == 5) {
        p.forced_token = forced;
        p.n_forced = 3;
        p.logprob_token = list;
        p.n_logprob_token = 2;
        p.n_logprob = 2;
    }
    if (i == 6) {
        p.n_prompt_logprob = 1;
        p.prompt_logprob_start = 140;
    }
    if (i == 7)
        p.ignore_eos = 0, p.min_tokens = 5;
    return p;
}

static void keep(sample *s, const mm_output *o)
{
    const size_t n = (size_t)o->n_token, w = (size_t)o->logprob_width;
    *s = (sample){.n_token = o->n_token,
                  .finish = o->finish,
                  .n_cached = o->n_cached,
                  .n_preempted = o->n_preempted,
                  .n_prompt_row = o->n_prompt_row};
    memcpy(s->token, o->token, n * 4);
    memcpy(s->id, o->logprob_id, n * w * 4);
    memcpy(s->logprob, o->logprob, n * w * 4);
    memcpy(s->rank, o->logprob_rank, n * w * 4);
    memcpy(s->sampling, o->sampling_logprob, n * 4);
    if (o->n_prompt_row > 0)
        memcpy(s->prompt_logprob, o->prompt_logprob,
               (size_t)o->n_prompt_row * (size_t)o->prompt_width * 4);
}

/* Keeps the engine busy for a few steps, so that what is submitted next is taken in together. */
static bool submit_blocker(mm_engine *e, mm_waiter *w)
{
    static int32_t text[700];
    uint64_t id;
    fx_prompt(text, 700, 999);
    const mm_request_params p = fx_params(text, 700, 0);
    return mm_engine_submit(e, w, &p, &id) == MM_OK;
}

/* Runs requests [first, last) at once; false (with the reason printed) when one fails. */
static bool run_together(mm_engine *e, mm_waiter *w, int first, int last, sample *out)
{
    uint64_t id[N];
    for (int i = first; i < last; i++) {
        const mm_request_params p = params_of(i);
        if (mm_engine_submit(e, w, &p, &id[i]) != MM_OK) {
            printf("  submit %d: %s\n", i, mm_error_message());
            return false;
        }
    }
    for (int i = first; i < last; i++) {
        mm_output o;
        if (!fx_join(e, w, id[i], &o) || o.finish == MM_FINISH_ERROR) {
            printf("  request %d: %s\n", i, mm_error_message());
            return false;
        }
        keep(&out[i], &o);
        mm_request_release(e, id[i]);
    }
    return true;
}

static bool is_same(const sample *a, const sample *b)
{
    return a->n_token == b->n_token && a->finish == b->finish &&
           a->n_prompt_row == b->n_prompt_row && memcmp(a->token, b->token, sizeof a->token) == 0 &&
           memcmp(a->id, b->id, sizeof a->id) == 0 &&
           memcmp(a->logprob, b->logprob, sizeof a->logprob) == 0 &&
           memcmp(a->rank, b->rank, sizeof a->rank) == 0 &&
           memcmp(a->sampling, b->sampling, sizeof a->sampling) == 0 &&
           memcmp(a->prompt_logprob, b->prompt_logprob, sizeof a->prompt_logprob) == 0;
}

typedef struct variant {
    const char *name;
    int32_t max_rows, max_seqs, run_ahead, n_page, no_cache;
    bool alone, twice, want_preempted, want_cached;
} variant;

static const variant variants[] = {
    {.name = "alone", .max_rows = 256, .max_seqs = 1, .no_cache = 1, .alone = true},
    {.name = "batched", .max_rows = 256, .max_seqs = 8, .no_cache = 1},
    {.name = "chunks of 128", .max_rows = 128, .max_seqs = 8, .no_cache = 1},
    {.name = "chunks of 1024, 3 sequences", .max_rows = 1024, .max_seqs = 3, .no_cache = 1},
    {.name = "one step ahead", .max_rows = 256, .max_seqs = 8, .run_ahead = 1, .no_cache = 1},
    {.name = "preempted",
     .max_rows = 256,
     .max_seqs = 8,
     .n_page = 10,
     .no_cache = 1,
     .want_preempted = true},
    {.name = "preempted, one step ahead",
     .max_rows = 256,
     .max_seqs = 8,
     .n_page = 10,
     .run_ahead = 1,
     .want_preempted = true},
    {.name = "prefix hits", .max_rows = 256, .max_seqs = 8, .twice = true, .want_cached = true},
    {.name = "prefix hits, one step ahead",
     .max_rows = 128,
     .max_seqs = 8,
     .run_ahead = 1,
     .twice = true,
     .want_cached = true},
};

static bool run_variant(const variant *v, mm_engine_options o, sample *out)
{
    mm_engine *e = NULL;
    mm_waiter *w = NULL;
    o.max_batched_tokens = v->max_rows;
    o.max_num_seqs = v->max_seqs;
    o.run_ahead = v->run_ahead;
    o.enable_prefix_cache = !v->no_cache;
    if (v->n_page > 0)
        o.kv_bytes = v->n_page * mm_model_page_bytes(o.config, o.kv_format, o.index_format, 0, 1);
    bool ok = mm_engine_open(&e, &o) == MM_OK && mm_waiter_open(&w, e) == MM_OK;
    if (!ok)
        printf("  open: %s\n", mm_error_message());
    for (int i = 0; i < N && v->alone && ok; i++)
        ok = run_together(e, w, i, i + 1, out);
    ok = ok && (!v->want_preempted || submit_blocker(e, w));
    for (int k = 0; k < 1 + v->twice && !v->alone && ok; k++)
        ok = run_together(e, w, 0, N, out);
    mm_engine_stats s;
    mm_engine_stats_init(&s);
    if (ok && (mm_engine_get_stats(e, &s) != MM_OK || s.n_page_free + s.n_page_cached != s.n_page ||
               (v->no_cache && s.n_page_cached != 0))) {
        printf("  %lld of %lld pages came back\n", (long long)(s.n_page_free + s.n_page_cached),
               (long long)s.n_page);
        ok = false;
    }
    mm_waiter_close(w);
    mm_engine_close(e);
    return ok;
}

static void check_invariance(const char *backend, mm_dtype dtype, mm_cache_format kv,
                             mm_cache_format index)
{
    static sample base[N], got[N];
    for (size_t k = 0; k < MM_ARRAY_LEN(variants); k++) {
        const variant *v = &variants[k];
        mm_engine_options o = fx_options(backend);
        o.dtype = dtype;
        o.kv_format = kv;
        o.index_format = index;
        MM_CHECK(run_variant(v, o, k == 0 ? base : got), "%s: %s", backend, v->name);
        int32_t n_preempted = 0, n_cached = 0;
        for (int i = 0; i < N && k > 0; i++) {
            MM_CHECK(is_same(&base[i], &got[i]), "%s, request %d: %s differs from alone", backend,
                     i, v->name);
            n_preempted += got[i].n_preempted;
            n_cached += got[i].n_cached;
        }
        MM_CHECK(!v->want_preempted || n_preempted > 0, "%s: nothing was preempted", v->name);
        MM_CHECK(!v->want_cached || n_cached > 0, "%s: nothing was cached", v->name);
    }
    for (int i = 1; i < N; i++)
        MM_CHECK(base[i].n_token > 0 &&
                     memcmp(base[i].token, base[0].token, sizeof base[0].token) != 0,
                 "requests 0 and %d gave the same tokens: the model says nothing", i);
}

MM_TEST(test_ref_is_invariant_f32)
{
    check_invariance("ref", MM_DTYPE_F32, MM_CACHE_F32, MM_CACHE_F32);
}

MM_TEST(test_ref_is_invariant_bf16_fp8_nvfp4)
{
    check_invariance("ref", MM_DTYPE_BF16, MM_CACHE_FP8, MM_CACHE_NVFP4);
}

MM_TEST(test_cpu_is_invariant_f32)
{
    check_invariance("cpu", MM_DTYPE_F32, MM_CACHE_F32, MM_CACHE_F32);
}

MM_TEST(test_cpu_is_invariant_bf16)
{
    check_invariance("cpu", MM_DTYPE_BF16, MM_CACHE_BF16, MM_CACHE_BF16);
}

MM_TEST(test_cpu_is_invariant_nvfp4_fp8)
{
    check_invariance("cpu", MM_DTYPE_BF16, MM_CACHE_NVFP4, MM_CACHE_FP8);
}
