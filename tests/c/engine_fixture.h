/* engine_fixture.h: a tiny model with made-up weights, and helpers to run requests on it.
 * Vocabulary: 256 bytes, then a few tokens of several bytes; two layers, one dense and one sparse
 * with experts, 4 chosen blocks. */
#ifndef ENGINE_FIXTURE_H
#define ENGINE_FIXTURE_H
#include "csrc/engine/engine.h"
#include "tests/c/mm_random.h"
#include "tests/c/mm_test.h"

enum { FX_OPEN = 256, FX_CLOSE, FX_EOS, FX_WORD, FX_NEVER, FX_VOCAB = 264, FX_LAYER = 2 };

static const char *const fx_special[FX_VOCAB - 256] = {"<mm:think>", "</mm:think>", "[e~[", "hello",
                                                       "]!img[",     "ab",          "",     "abc"};
static uint8_t fx_blob[1024];
static int64_t fx_offset[FX_VOCAB + 1];

static const uint8_t fx_sparse[FX_LAYER] = {0, 1}, fx_moe[FX_LAYER] = {0, 1};
static const int32_t fx_eos[1] = {FX_EOS};

static inline mm_config fx_config(void)
{
    mm_config c;
    mm_config_init(&c);
    c.n_layer = FX_LAYER;
    c.n_vocab = FX_VOCAB;
    c.d_model = 64;
    c.n_head = 4;
    c.n_kv_head = c.n_index_head = 2;
    c.head_dim = c.index_dim = 16;
    c.n_rotary = 8;
    c.n_top_block = 4;
    c.n_init_block = 1;
    c.n_expert = 4;
    c.n_expert_used = 2;
    c.d_expert = 32;
    c.d_shared = 32;
    c.d_dense = 64;
    c.max_position = 4096;
    c.rope_theta = 10000;
    c.layer_is_sparse = fx_sparse;
    c.layer_is_moe = fx_moe;
    c.never_token[0] = FX_NEVER;
    return c;
}

static inline mm_token_bytes fx_bytes(void)
{
    int64_t n = 0;
    for (int i = 0; i < FX_VOCAB; i++) {
        fx_offset[i] = n;
        if (i < 256) {
            fx_blob[n++] = (uint8_t)i;
        } else {
            memcpy(fx_blob + n, fx_special[i - 256], strlen(fx_special[i - 256]));
            n += (int64_t)strlen(fx_special[i - 256]);
        }
    }
    fx_offset[FX_VOCAB] = n;
    return (mm_token_bytes){.blob = fx_blob, .offset = fx_offset, .n_token = FX_VOCAB};
}

static mm_config fx_last_config;

static inline mm_engine_options fx_options(const char *backend)
{
    mm_engine_options o;
    fx_last_config = fx_config();
    mm_engine_options_init(&o);
    o.backend = backend;
    o.config = &fx_last_config;
    o.load = MM_LOAD_DUMMY;
    o.dummy_seed = 7;
    o.dtype = MM_DTYPE_F32;
    o.kv_format = o.index_format = MM_CACHE_F32;
    o.n_thread = 2;
    o.max_model_len = 2048;
    o.max_num_seqs = 8;
    o.max_batched_tokens = 256;
    o.max_logprobs = 20;
    o.eos_token = fx_eos;
    o.n_eos = 1;
    o.token_bytes = fx_bytes();
    return o;
}

/* Prompt of n tokens from a seed. */
static inline void fx_prompt(int32_t *token, int32_t n, uint64_t seed)
{
    for (int32_t i = 0; i < n; i++)
        token[i] = (int32_t)random_below(&seed, 256);
}

static inline mm_request_params fx_params(const int32_t *prompt, int32_t n, int32_t max_tokens)
{
    mm_request_params p;
    mm_request_params_init(&p);
    p.prompt = prompt;
    p.n_prompt = n;
    p.max_tokens = max_tokens;
    p.temperature = 0;
    p.ignore_eos = 1;
    p.seed = 11;
    return p;
}

/* Waits until a request has ended; false after a minute. */
static inline bool fx_join(mm_engine *e, mm_waiter *w, uint64_t id, mm_output *out)
{
    for (int i = 0; i < 600; i++) {
        uint64_t got[16];
        int32_t n;
        if (mm_request_read(e, id, out) != MM_OK)
            return false;
        if (out->finish != MM_FINISH_NONE)
            return true;
        if (mm_waiter_wait(w, 0.1, got, 16, &n) != MM_OK)
            return false;
    }
    return false;
}
#endif
