/* test_cpu_ops.c: a whole model on the cpu backend. Against ref within the rounding of the
 * activations; and bit for bit the same whatever the number of threads, the cut of the prompt into
 * chunks and the sequences beside. */
#include "mm_test.h"

#include "cpu_model.h"

static const char *const tiers[] = {"scalar", "avx2", "avx512", "avx512_bf16"};

/* n_top_block 3 of up to 24 blocks: choices matter, and dense rows span two segments of pages. */
static model_sizes sizes(mm_dtype act, mm_weight_format linear, mm_weight_format expert,
                         mm_cache_format cache)
{
    return (model_sizes){.act = act,
                         .linear = linear,
                         .expert = expert,
                         .kv = cache,
                         .index = cache,
                         .n_layer = 2,
                         .d_model = 96,
                         .n_head = 4,
                         .n_kv_head = 2,
                         .head_dim = 16,
                         .n_expert = 5,
                         .n_expert_used = 2,
                         .d_expert = 64,
                         .d_shared = 32,
                         .d_dense = 64,
                         .n_vocab = 70,
                         .n_top_block = 3,
                         .max_model_len = 3072,
                         .max_rows = 2700,
                         .max_seqs = 3};
}

/* Prompt of `length` tokens in chunks, then `n_decode` single rows; the logits of every step go to
 * out. */
static mm_status generate(session *s, int32_t slot, int32_t length, int32_t chunk, int32_t n_decode,
                          float *out)
{
    const size_t n = (size_t)s->m->z.n_vocab;
    for (int32_t p = 0; p < length; p += chunk) {
        const int32_t rows = length - p < chunk ? length - p : chunk;
        MM_TRY(run_step(s, slot, 1, &p, &rows));
    }
    memcpy(out, s->logits, n * sizeof(float));
    for (int32_t i = 0; i < n_decode; i++) {
        const int32_t p = length + i, one = 1;
        MM_TRY(run_step(s, slot, 1, &p, &one));
        memcpy(out + (size_t)(i + 1) * n, s->logits, n * sizeof(float));
    }
    return MM_OK;
}

enum { DECODE = 3, VOCAB = 70, LENGTH = 2200 };

static bool run_case(const model *m, const char *tier, int n_thread, int32_t length, int32_t chunk,
                     float *out)
{
    session s;
    bool ok = open_session(&s, m, tier, n_thread) == MM_OK &&
              generate(&s, 0, length, chunk, DECODE, out) == MM_OK;
    if (!ok)
        printf("  %s: %s\n", tier != NULL ? tier : "ref", mm_error_message());
    close_session(&s);
    return ok;
}

static void check_model(const model_sizes *z, int32_t length, double limit)
{
    model m;
    float want[(DECODE + 1) * VOCAB], base[(DECODE + 1) * VOCAB], got[(DECODE + 1) * VOCAB];
    open_model(&m, z);
    const bool has_ref = run_case(&m, NULL, 1, length, 512, want);
    for (int t = 0; t < (int)MM_ARRAY_LEN(tiers) && has_ref; t++) {
        if (!has_tier(tiers[t]))
            continue;
        const bool is_done = run_case(&m, tiers[t], 1, length, length, base);
        const double err =
            is_done ? relative_error(base, want, (DECODE + 1) * VOCAB) : (double)INFINITY;
        if (!(err < limit)) {
            printf("  %s, formats %d %d %d: error %g\n", tiers[t], z->linear, z->expert, z->kv,
                   err);
            mm_is_failed = 1;
        }
        static const int32_t way[][2] = {{2, 640}, {3, 129}}; /* threads, chunk */
        for (int w = 0; w < (int)MM_ARRAY_LEN(way); w++) {
            if (!run_case(&m, tiers[t], way[w][0], length, way[w][1], got) ||
                memcmp(base, got, sizeof got) != 0) {
                printf("  %s, formats %d %d %d: other bits with %d threads, chunks of %d\n",
                       tiers[t], z->linear, z->expert, z->kv, way[w][0], way[w][1]);
                mm_is_failed = 1;
            }
        }
    }
    close_model(&m);
    MM_CHECK(has_ref);
}

MM_TEST(test_model_f32_matches_ref)
{
    const model_sizes z = sizes(MM_DTYPE_F32, MM_WEIGHT_F32, MM_WEIGHT_BF16, MM_CACHE_F32);
    check_model(&z, LENGTH, 1e-4);
}

MM_TEST(test_model_quantised_matches_ref)
{
    const model_sizes z = sizes(MM_DTYPE_BF16, MM_WEIGHT_MXFP8, MM_WEIGHT_NVFP4, MM_CACHE_BF16);
    check_model(&z, 700, 0.15); /* bf16 roundings that fall the other way, and with them a block or
                                   an expert */
}

MM_TEST(test_model_nvfp4_cache_matches_ref)
{
    const model_sizes z = sizes(MM_DTYPE_BF16, MM_WEIGHT_BF16, MM_WEIGHT_NVFP4, MM_CACHE_NVFP4);
    check_model(&z, 300, 0.15);
}

MM_TEST(test_model_fp8_cache_matches_ref)
{
    const model_sizes z = sizes(MM_DTYPE_F32, MM_WEIGHT_MXFP8, MM_WEIGHT_MXFP8, MM_CACHE_FP8);
    check_model(&z, 300, 0.15);
}

/* A row beside others: prompts of three lengths, prefilled and decoded together, against each
 * alone. */
MM_TEST(test_model_sequences_do_not_see_each_other)
{
    const model_sizes z = sizes(MM_DTYPE_BF16, MM_WEIGHT_MXFP8, MM_WEIGHT_NVFP4, MM_CACHE_BF16);
    static const int32_t length[3] = {650, 40, 385}, zero[3] = {0, 0, 0}, one[3] = {1, 1, 1};
    model m;
    open_model(&m, &z);
    for (int t = 0; t < (int)MM_ARRAY_LEN(tiers); t++) {
        if (!has_tier(tiers[t]))
            continue;
        float alone[3][2 * VOCAB], together[2][3 * VOCAB];
        session s;
        mm_status st = open_session(&s, &m, tiers[t], 2);
        for (int32_t i = 0; i < 3 && st == MM_OK; i++)
            st = generate(&s, i, length[i], 200, 1, alone[i]);
        if (st == MM_OK)
            st = run_step(&s, 0, 3, zero, length);
        memcpy(together[0], s.logits, sizeof together[0]);
        if (st == MM_OK)
            st = run_step(&s, 0, 3, length, one);
        memcpy(together[1], s.logits, sizeof together[1]);
        close_session(&s);
        MM_CHECK(st == MM_OK, "%s", mm_error_message());
        for (int i = 0; i < 3; i++) {
            for (int k = 0; k < 2; k++)
                MM_CHECK(memcmp(together[k] + i * VOCAB, alone[i] + k * VOCAB,
                                VOCAB * sizeof(float)) == 0,
                         "%s: sequence %d, step %d", tiers[t], i, k);
        }
    }
    close_model(&m);
}

MM_TEST(test_model_decode_rows_equal_single_rows)
{
    const model_sizes z = sizes(MM_DTYPE_BF16, MM_WEIGHT_MXFP8, MM_WEIGHT_NVFP4, MM_CACHE_FP8);
    model m;
    open_model(&m, &z);
    for (int t = 0; t < (int)MM_ARRAY_LEN(tiers); t++) {
        if (!has_tier(tiers[t]))
            continue;
        float single[6 * VOCAB], eight[VOCAB];
        session s;
        mm_status st = open_session(&s, &m, tiers[t], 3);
        if (st == MM_OK)
            st = generate(&s, 1, 515, 515, 5, single);
        const int32_t pos = 515, n = 5;
        if (st == MM_OK)
            st = run_step(&s, 1, 1, &pos, &n);
        memcpy(eight, s.logits, sizeof eight);
        close_session(&s);
        MM_CHECK(st == MM_OK, "%s", mm_error_message());
        MM_CHECK(memcmp(eight, single + 5 * VOCAB, sizeof eight) == 0, "%s", tiers[t]);
    }
    close_model(&m);
}
