/* test_cpu_sample.c: sampling and log-probabilities of a full-size vocabulary on the cpu backend:
 * tokens, processed logits, ids and ranks exactly as ref gives them, in parallel as alone. */
#include "mm_test.h"

#include "cpu_fixture.h"

enum { V = 200064, ROWS = 7, TOP = 21, LIST = 3, ENTRIES = ROWS * (1 + TOP + LIST) };

typedef struct result {
    float *work;
    int32_t token[ROWS], id[ENTRIES], rank[ENTRIES];
    float value[ENTRIES], chosen[ROWS];
    uint8_t flag[ROWS];
} result;

static void settings(mm_slot_params *p, int row)
{
    *p = (mm_slot_params){.seed = 1234567u + (uint64_t)row,
                          .temperature = 0.8f,
                          .top_p = 1.0f,
                          .repetition_penalty = 1.0f,
                          .n_logprob_token = LIST};
    if (row == 1)
        p->temperature = 0.0f;
    if (row == 2)
        p->top_k = 50;
    if (row == 3)
        p->top_p = 0.9f;
    if (row == 4)
        p->min_p = 0.02f;
    if (row == 5) {
        p->top_k = 5000;
        p->top_p = 0.5f;
        p->min_p = 1e-4f;
    }
}

static mm_status run_rows(const char *tier, int n_thread, const float *logits, result *out,
                          uint64_t salt)
{
    const mm_op_shape shape = {
        .act = MM_DTYPE_F32,
        .d_model = 16,
        .n_vocab = V,
        .n_vocab_local = V,
        .max_rows = ROWS,
        .max_seqs = ROWS,
        .head_dim = 16,
        .n_head = 1,
        .n_kv_head = 1,
        .max_model_len = 128,
        .max_logit_rows = ROWS,
        .never_token = {17, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}};
    mm_slot_params params[ROWS];
    int32_t n_emitted[ROWS] = {0}, row_slot[ROWS], lane[ROWS] = {0}, kind[ROWS], forced[ROWS],
            row_token[ROWS] = {0};
    int32_t mode[ROWS], n_top[ROWS], n_list[ROWS],
        *list = calloc(ROWS * MM_MAX_LIST, sizeof(int32_t));
    int64_t entry[ROWS], list_at[ROWS];
    for (int i = 0; i < ROWS; i++) {
        settings(&params[i], i);
        params[i].seed += salt * 1000;
        row_slot[i] = i;
        kind[i] = i == 6 ? MM_OUT_SCORE : MM_OUT_SAMPLE;
        forced[i] = i == 6 ? 4711 : -1;
        mode[i] = i % 5;
        n_top[i] = TOP;
        n_list[i] = LIST;
        entry[i] = i * (1 + TOP + LIST);
        list_at[i] = -1;
        for (int k = 0; k < LIST; k++)
            list[i * MM_MAX_LIST + k] = (i * 31 + k * 90001) % V;
    }
    const mm_slots slots = {.n_slot = ROWS,
                            .mask_lanes = 1,
                            .mask_words = V / 32,
                            .n_emitted = n_emitted,
                            .params = params,
                            .logprob_token = list};
    const mm_out_view view = {.n_out = ROWS,
                              .row_slot = row_slot,
                              .lane = lane,
                              .kind = kind,
                              .token = forced,
                              .row_token = row_token,
                              .mode = mode,
                              .n_top = n_top,
                              .n_list = n_list,
                              .entry = entry,
                              .list = list_at};
    host h;
    mm_status st = open_host(&h, tier, n_thread, &shape, 0);
    if (st == MM_OK) {
        const mm_op_context c = {.stream = h.stream, .shape = &shape, .comm = h.comm};
        const mm_sample_args sample = {.logits = logits,
                                       .work = out->work,
                                       .slots = &slots,
                                       .out = &view,
                                       .n = ROWS,
                                       .token = out->token,
                                       .flag = out->flag};
        const mm_logprob_args logprob = {.logits = logits,
                                         .work = out->work,
                                         .slots = &slots,
                                         .out = &view,
                                         .n = ROWS,
                                         .token = out->token,
                                         .flag = out->flag,
                                         .out_id = out->id,
                                         .out_rank = out->rank,
                                         .out_value = out->value,
                                         .chosen = out->chosen};
        st = h.backend->ops->sample(&c, &sample);
        if (st == MM_OK)
            st = h.backend->ops->logprobs(&c, &logprob);
    }
    close_host(&h);
    free(list);
    return st;
}

static bool is_near(float a, float b)
{
    return a == b || fabsf(a - b) <= 2e-5f * (1.0f + fabsf(b));
}

MM_TEST(test_sample_large_vocabulary_equals_ref)
{
    static result want, got;
    uint64_t seed = 9;
    float *logits = malloc(sizeof(float) * ROWS * V);
    want.work = calloc(ROWS * V, sizeof(float));
    got.work = calloc(ROWS * V, sizeof(float));
    bool ok = true;
    for (uint64_t salt = 0; salt < 4 && ok; salt++) {
        random_fill(&seed, MM_DTYPE_F32, salt % 2 == 0 ? 3.0f : 0.5f, logits, (int64_t)ROWS * V);
        for (int64_t i = 0; salt == 3 && i < ROWS * V; i++)
            logits[i] = rintf(logits[i] * 4.0f) * 0.25f; /* ties */
        ok = run_rows(NULL, 1, logits, &want, salt) == MM_OK;
        for (int n_thread = 1; n_thread <= 3 && ok; n_thread += 2) {
            ok = run_rows("avx512_bf16", n_thread, logits, &got, salt) == MM_OK;
            ok = ok && memcmp(want.token, got.token, sizeof want.token) == 0 &&
                 memcmp(want.flag, got.flag, ROWS) == 0;
            ok = ok && memcmp(want.work, got.work, sizeof(float) * (ROWS - 1) * V) == 0;
            ok = ok && memcmp(want.id, got.id, sizeof want.id) == 0 &&
                 memcmp(want.rank, got.rank, sizeof want.rank) == 0;
            for (int i = 0; i < ENTRIES && ok; i++)
                ok = is_near(got.value[i], want.value[i]);
            for (int i = 0; i + 1 < ROWS && ok; i++)
                ok = is_near(got.chosen[i], want.chosen[i]);
        }
        if (!ok) {
            for (int i = 0; i < ROWS; i++)
                printf("  row %d: token %d, ref %d; flag %d, ref %d; chosen %g, ref %g\n", i,
                       got.token[i], want.token[i], got.flag[i], want.flag[i],
                       (double)got.chosen[i], (double)want.chosen[i]);
        }
    }
    free(logits);
    free(want.work);
    free(got.work);
    MM_CHECK(ok, "%s", mm_error_message());
}
