/* test_check.c: MM_CHECK=1 is silent on a right backend and names the op, layer and element of a
 * wrong one. The wrong ones are ref with one op spoiled; the model is made of dummy weights. */
#include <math.h>
#include <stddef.h>

#include "csrc/base/half.h"
#include "csrc/base/log.h"
#include "csrc/model/model.h"
#include "tests/c/mm_test.h"

enum { D = 64, H = 4, G = 2, HD = 32, V = 48, E = 4, F = 64, N_ROW = 300, N_PAGE = 4 };

__attribute__((constructor)) static void ask_for_checks(void)
{
    setenv("MM_CHECK", "1", 1); /* before the variables are read, once */
    setenv("MM_LOG", "info", 1);
}

static mm_ops spoiled;
static mm_dtype act = MM_DTYPE_F32;
static mm_cache_format format = MM_CACHE_F32;
static bool is_tied; /* the router's rows of experts 0 and 1 are equal; every index query is 0 */
static int32_t n_tied;

static mm_status spoil_pos(const mm_op_context *c, const mm_expand_args *a)
{
    MM_TRY(mm_ref_ops.expand(c, a));
    ((int32_t *)(uintptr_t)a->seq->pos)[17] = 18;
    return MM_OK;
}

static mm_status spoil_page(const mm_op_context *c, const mm_expand_args *a)
{
    MM_TRY(mm_ref_ops.expand(c, a));
    a->slots->page_table[2] = 1;
    return MM_OK;
}

static mm_status spoil_entry(const mm_op_context *c, const mm_expand_args *a)
{
    MM_TRY(mm_ref_ops.expand(c, a));
    ((int64_t *)(uintptr_t)a->out->entry)[3] += (int64_t)1 << 32;
    return MM_OK;
}

static mm_status spoil_moe(const mm_op_context *c, const mm_seq_view *seq, const mm_moe_args *a)
{
    MM_TRY(mm_ref_ops.moe(c, seq, a));
    ((float *)a->x)[7 * D + 5] += 0.5f;
    return MM_OK;
}

/* One row a little wrong: far below what all rows together may differ by. */
static mm_status spoil_row(const mm_op_context *c, const mm_seq_view *seq, const mm_moe_args *a)
{
    MM_TRY(mm_ref_ops.moe(c, seq, a));
    for (int32_t i = 0; i < D; i++)
        ((float *)a->x)[7 * D + i] *= 1.0001f;
    return MM_OK;
}

static mm_status spoil_attn_in(const mm_op_context *c, const mm_seq_view *seq,
                               const mm_attn_in_args *a)
{
    MM_TRY(mm_ref_ops.attn_in(c, seq, a));
    /* position 3 of head 1 in the first page used, element 2 */
    const int64_t page = seq->slots->page_table[0];
    ((float *)(void *)a->cache->v.data)[((page * G + 1) * MM_PAGE + 3) * HD + 2] += 0.5f;
    return MM_OK;
}

static mm_status spoil_sparse(const mm_op_context *c, const mm_seq_view *seq,
                              const mm_attn_sparse_args *a)
{
    MM_TRY(mm_ref_ops.attn_sparse(c, seq, a));
    a->blocks[(N_ROW - 1) * 2] = 1;
    return MM_OK;
}

/* Where every block ties, the other ones are chosen and read. */
static mm_status spoil_tied_blocks(const mm_op_context *c, const mm_seq_view *seq,
                                   const mm_attn_sparse_args *a)
{
    mm_attn_sparse_args b = *a;
    MM_TRY(mm_ref_ops.attn_sparse(c, seq, a));
    a->blocks[(N_ROW - 1) * 2] ^= 1; /* of blocks 0, 1 and the local 2 two are read */
    b.force = true;
    return mm_ref_ops.attn_sparse(c, seq, &b);
}

/* The same, but the output is still that of the first choice. */
static mm_status spoil_tied_output(const mm_op_context *c, const mm_seq_view *seq,
                                   const mm_attn_sparse_args *a)
{
    MM_TRY(mm_ref_ops.attn_sparse(c, seq, a));
    a->blocks[(N_ROW - 1) * 2] ^= 1;
    return MM_OK;
}

/* No choice: the local block is left out. */
static mm_status spoil_tied_local(const mm_op_context *c, const mm_seq_view *seq,
                                  const mm_attn_sparse_args *a)
{
    MM_TRY(mm_ref_ops.attn_sparse(c, seq, a));
    a->blocks[(N_ROW - 1) * 2] = 0;
    a->blocks[(N_ROW - 1) * 2 + 1] = 1;
    return MM_OK;
}

static float nudge;      /* keys are larger by this share */
static int32_t n_nudged; /* bytes of cached keys that are others for it */

static mm_status spoil_nudged(const mm_op_context *c, const mm_seq_view *seq,
                              const mm_attn_in_args *a)
{
    static uint8_t before[N_PAGE * G * MM_PAGE * HD * 4];
    float norm[HD], index_norm[HD];
    mm_attn_weights w = *a->w;
    mm_attn_in_args b = *a;
    const mm_plane *k = &a->cache->k;
    const size_t n = (size_t)(N_PAGE * G * MM_PAGE * mm_cache_row_bytes(k->format, HD));
    MM_TRY(mm_ref_ops.attn_in(c, seq, a));
    memcpy(before, k->data, n);
    for (int32_t j = 0; j < HD; j++) {
        norm[j] = (1.0f + w.k_norm[j]) * (1.0f + nudge) - 1.0f;
        index_norm[j] = w.ik_norm != NULL ? (1.0f + w.ik_norm[j]) * (1.0f + nudge) - 1.0f : 0.0f;
    }
    w.k_norm = norm;
    if (w.ik_norm != NULL)
        w.ik_norm = index_norm;
    b.w = &w;
    MM_TRY(mm_ref_ops.attn_in(c, seq, &b));
    for (size_t i = 0; i < n; i++)
        n_nudged += before[i] != k->data[i];
    return MM_OK;
}

/* Row 3 of head 1, in the first page used: its codes in the plane of values. */
static uint8_t *cached_row(const mm_seq_view *seq, const mm_plane *p)
{
    const int64_t row = ((int64_t)seq->slots->page_table[0] * G + 1) * MM_PAGE + 3;
    return p->data + row * mm_cache_row_bytes(p->format, HD);
}

/* The code next to the right one, one step further out. */
static mm_status spoil_fp8(const mm_op_context *c, const mm_seq_view *seq, const mm_attn_in_args *a)
{
    MM_TRY(mm_ref_ops.attn_in(c, seq, a));
    cached_row(seq, &a->cache->v)[2]++;
    return MM_OK;
}

/* The largest of 16 values takes the code 4 instead of 6, the border lies at 5. */
static mm_status spoil_nvfp4(const mm_op_context *c, const mm_seq_view *seq,
                             const mm_attn_in_args *a)
{
    MM_TRY(mm_ref_ops.attn_in(c, seq, a));
    uint8_t *row = cached_row(seq, &a->cache->v);
    for (int32_t j = 0; j < 16; j++)
        if ((mm_e2m1_at(row, j) & 7) == 7) {
            mm_e2m1_put(row, j, mm_e2m1_at(row, j) - 1);
            return MM_OK;
        }
    return MM_FAIL(MM_E_INVALID, "no value takes the largest code");
}

static mm_status spoil_nvfp4_scale(const mm_op_context *c, const mm_seq_view *seq,
                                   const mm_attn_in_args *a)
{
    MM_TRY(mm_ref_ops.attn_in(c, seq, a));
    const int64_t row = ((int64_t)seq->slots->page_table[0] * G + 1) * MM_PAGE + 3;
    a->cache->v.scale[row * mm_cache_row_scale_bytes(MM_CACHE_NVFP4, HD) + 1]++;
    return MM_OK;
}

static mm_status spoil_nvfp4_zero(const mm_op_context *c, const mm_seq_view *seq,
                                  const mm_attn_in_args *a)
{
    MM_TRY(mm_ref_ops.attn_in(c, seq, a));
    uint8_t *row = cached_row(seq, &a->cache->v);
    for (int32_t j = 0; j < 100 * HD; j++) /* and the rows behind it */
        if (mm_e2m1_at(row, j) == 0) {
            mm_e2m1_put(row, j, 8);
            return MM_OK;
        }
    return MM_FAIL(MM_E_INVALID, "no value takes the code of zero");
}

static mm_status spoil_experts(const mm_op_context *c, const mm_seq_view *seq,
                               const mm_attn_out_args *a)
{
    MM_TRY(mm_ref_ops.attn_out(c, seq, a));
    if (a->gate != NULL)
        a->experts[11] = 99 % E == a->experts[11] ? 0 : 99 % E;
    return MM_OK;
}

/* Where experts 0 and 1 tie (`run` makes them), the other one is chosen. */
static mm_status spoil_tied(const mm_op_context *c, const mm_seq_view *seq,
                            const mm_attn_out_args *a)
{
    MM_TRY(mm_ref_ops.attn_out(c, seq, a));
    for (int32_t t = 0; a->gate != NULL && t < seq->n_row; t++)
        if (a->experts[2 * t] == 0 && a->experts[2 * t + 1] != 1) {
            a->experts[2 * t] = 1;
            n_tied++;
        }
    return MM_OK;
}

static mm_status spoil_head(const mm_op_context *c, const mm_head_args *a)
{
    MM_TRY(mm_ref_ops.head(c, a));
    a->logits[V + 9] = NAN;
    return MM_OK;
}

static mm_status spoil_token(const mm_op_context *c, const mm_sample_args *a)
{
    MM_TRY(mm_ref_ops.sample(c, a));
    a->token[0] ^= 1;
    return MM_OK;
}

static mm_status spoil_count(const mm_op_context *c, const mm_sample_args *a)
{
    MM_TRY(mm_ref_ops.sample(c, a));
    a->slots->n_out[a->token[0]]--;
    return MM_OK;
}

static mm_status spoil_work(const mm_op_context *c, const mm_sample_args *a)
{
    MM_TRY(mm_ref_ops.sample(c, a));
    a->work[7] += 0.1f;
    return MM_OK;
}

static mm_status spoil_rank(const mm_op_context *c, const mm_logprob_args *a)
{
    MM_TRY(mm_ref_ops.logprobs(c, a));
    a->out_rank[5]++;
    return MM_OK;
}

static mm_status spoil_chosen(const mm_op_context *c, const mm_logprob_args *a)
{
    MM_TRY(mm_ref_ops.logprobs(c, a));
    a->chosen[0] -= 1e-3f;
    return MM_OK;
}

/* A draw with a penalty and its two best, and a score with its best and one listed id, of slot 0:
 * entries 0..2 and 3..5. */
static mm_status run_end(mm_model *m, const float *logits)
{
    enum { WORDS = (V + 31) / 32, LIST = MM_MAX_LIST };
    static int32_t ints[8], recent[MM_MAX_BAD_LEN], list[LIST + 1], bad[MM_MAX_BAD_TOKENS];
    static float values[LIST], work[2 * V], value[6], chosen[2];
    static uint32_t words[WORDS];
    static uint16_t count[V];
    static struct {
        mm_batch head;
        _Alignas(16) mm_batch_seq seq[1];
        _Alignas(16) mm_batch_out out[2];
    } b;
    static const int32_t two[2] = {0}, kind[2] = {MM_OUT_SAMPLE, MM_OUT_SCORE}, token[2] = {-1, 9},
                         mode[2] = {MM_LOGPROB_RAW, MM_LOGPROB_TEMPERED}, n_top[2] = {2, 1},
                         n_list[2] = {0, 1};
    static const int64_t entry[2] = {0, 3}, no_list[2] = {-1, -1};
    mm_slot_params p = {.seed = 5,
                        .temperature = 0.7f,
                        .top_p = 1.0f,
                        .repetition_penalty = 1.0f,
                        .presence_penalty = 0.1f,
                        .n_logprob_token = 1};
    memset(ints, 0, sizeof ints);
    memset(count, 0, sizeof count);
    list[0] = 3;
    b.head = (mm_batch){.n_bytes = sizeof b,
                        .n_seq = 1,
                        .n_out = 2,
                        .n_entry = 6,
                        .seq = offsetof(typeof(b), seq),
                        .out = offsetof(typeof(b), out)};
    b.seq[0] = (mm_batch_seq){.n_row = 1, .n_ctx_after = 1};
    const mm_slots slots = {.n_slot = 1,
                            .mask_words = WORDS,
                            .mask_lanes = 1,
                            .n_ctx = &ints[0],
                            .n_emitted = &ints[1],
                            .last_token = &ints[2],
                            .recent = recent,
                            .params = &p,
                            .bias_token = list,
                            .bias_value = values,
                            .ban_token = list,
                            .bad_offset = list,
                            .bad_token = bad,
                            .logprob_token = list,
                            .mask = words,
                            .in_prompt = words,
                            .n_out = count};
    const mm_out_view out = {.n_out = 2,
                             .row = two,
                             .row_slot = two,
                             .lane = two,
                             .kind = kind,
                             .token = token,
                             .row_token = two,
                             .mode = mode,
                             .n_top = n_top,
                             .n_list = n_list,
                             .entry = entry,
                             .list = no_list,
                             .blob = &b};
    int32_t drawn[2] = {0}, id[6], rank[6];
    uint8_t flag[2] = {0};
    const mm_sample_args draw = {.logits = logits,
                                 .work = work,
                                 .slots = &slots,
                                 .out = &out,
                                 .n = 2,
                                 .commit = true,
                                 .token = drawn,
                                 .flag = flag};
    const mm_logprob_args score = {.logits = logits,
                                   .work = work,
                                   .slots = &slots,
                                   .out = &out,
                                   .n = 2,
                                   .token = drawn,
                                   .flag = flag,
                                   .out_id = id,
                                   .out_rank = rank,
                                   .out_value = value,
                                   .chosen = chosen};
    MM_TRY(m->ops->sample(&m->ctx, &draw));
    return m->ops->logprobs(&m->ctx, &score);
}

/* The step's start: a prompt of N_ROW tokens in pages that are given out now, four outputs. */
static mm_status run_start(mm_model *m, const mm_seq_view *seq, const int32_t *page)
{
    enum { N_OUT = 4 };
    static int32_t field[9][N_OUT];
    static int64_t wide[2][N_OUT];
    static struct {
        mm_batch head;
        _Alignas(16) mm_batch_seq seq[1];
        _Alignas(16) mm_batch_out out[N_OUT];
        _Alignas(16) mm_batch_page page[N_PAGE];
        _Alignas(16) int32_t token[N_ROW];
    } b;
    b.head = (mm_batch){.n_bytes = sizeof b,
                        .n_seq = 1,
                        .n_row = N_ROW,
                        .n_out = N_OUT,
                        .n_page = N_PAGE,
                        .seq = offsetof(typeof(b), seq),
                        .token = offsetof(typeof(b), token),
                        .out = offsetof(typeof(b), out),
                        .page = offsetof(typeof(b), page)};
    b.seq[0] = (mm_batch_seq){.n_row = N_ROW, .n_ctx_after = N_ROW};
    for (int32_t i = 0; i < N_OUT; i++)
        b.out[i] = (mm_batch_out){.row = 60 * i, .token = -1, .n_top = i, .list = -1, .entry = i};
    for (int32_t i = 0; i < N_PAGE; i++)
        b.page[i] = (mm_batch_page){.block = i, .page = page[i]};
    memcpy(b.token, seq->token, sizeof b.token);
    const mm_out_view out = {.n_out = N_OUT,
                             .row = field[0],
                             .row_slot = field[1],
                             .lane = field[2],
                             .kind = field[3],
                             .token = field[4],
                             .row_token = field[5],
                             .mode = field[6],
                             .n_top = field[7],
                             .n_list = field[8],
                             .entry = wide[0],
                             .list = wide[1],
                             .blob = &b};
    const mm_expand_args a = {
        .plan = &b.head, .blob = &b, .slots = seq->slots, .seq = seq, .out = &out};
    return m->ops->expand(&m->ctx, &a);
}

static mm_status run(const mm_ops *ops)
{
    static const uint8_t is_sparse[2] = {1, 0}, is_moe[2] = {0, 1};
    mm_config c;
    mm_config_init(&c);
    c.n_layer = 2;
    c.n_vocab = V;
    c.d_model = D;
    c.n_head = H;
    c.n_kv_head = c.n_index_head = G;
    c.head_dim = c.index_dim = HD;
    c.n_rotary = 16;
    c.n_top_block = 2;
    c.n_expert = E;
    c.n_expert_used = 2;
    c.d_expert = c.d_shared = F;
    c.d_dense = 128;
    c.max_position = 1024;
    c.layer_is_sparse = is_sparse;
    c.layer_is_moe = is_moe;
    const mm_engine_options o = {.config = &c,
                                 .load = MM_LOAD_DUMMY,
                                 .dtype = act,
                                 .kv_format = format,
                                 .index_format = format,
                                 .max_model_len = 512,
                                 .max_num_seqs = 1,
                                 .max_batched_tokens = 384};
    const mm_backend_options bo = {.name = "ref", .n_thread = 1};
    mm_backend *b = NULL;
    mm_comm *comm = NULL;
    mm_model *m = NULL;
    int32_t token[N_ROW], pos[N_ROW], row_seq[N_ROW], row_start[2], slot[1],
        n_ctx[1] = {0}, last[1] = {0}, table[N_PAGE] = {0};
    const int32_t row[4] = {0, 1, 200, N_ROW - 1}, page[N_PAGE] = {3, 1, 2, 0};
    float logits[4 * V];
    for (int32_t i = 0; i < N_ROW; i++)
        token[i] = i * 7 % V;
    const mm_slots slots = {.n_slot = 1,
                            .page_stride = N_PAGE,
                            .page_table = table,
                            .n_ctx = n_ctx,
                            .last_token = last};
    const mm_seq_view seq = {.n_seq = 1,
                             .n_row = N_ROW,
                             .max_pos = N_ROW,
                             .row_start = row_start,
                             .slot = slot,
                             .row_seq = row_seq,
                             .pos = pos,
                             .token = token,
                             .slots = &slots};
    mm_status st = mm_ref_backend(&b, &bo);
    if (st == MM_OK)
        st = mm_comm_open_self(&comm);
    if (st == MM_OK) {
        b->ops = ops;
        const mm_model_options mo = {.engine = &o,
                                     .backend = b,
                                     .comm = comm,
                                     .shard_world = 1,
                                     .n_page = N_PAGE,
                                     .max_logit_rows = 4};
        st = mm_model_open(&m, &mo);
    }
    if (st == MM_OK && is_tied) {
        float *gate = (float *)(uintptr_t)m->layer[1].gate;
        memcpy(gate + D, gate, D * sizeof *gate);
        if (m->layer[1].bias != NULL)
            ((float *)(uintptr_t)m->layer[1].bias)[1] = m->layer[1].bias[0];
        for (int32_t j = 0; j < HD; j++)
            ((float *)(uintptr_t)m->layer[0].attn.iq_norm)[j] = -1.0f; /* zero-centred */
    }
    if (st == MM_OK)
        st = run_start(m, &seq, page);
    if (st == MM_OK)
        st = mm_model_forward(m, &seq, NULL, 0);
    if (st == MM_OK)
        st = mm_model_logits(m, row, 4, logits);
    if (st == MM_OK)
        st = run_end(m, logits);
    mm_model_close(m);
    mm_comm_close(comm);
    mm_backend_close(b);
    return st;
}

static long long n_compared;

/* The one line that reports a difference, "" without one. */
static const char *reported(void)
{
    static char text[512], found[512];
    int32_t level;
    int n = 0;
    found[0] = '\0';
    n_compared = 0;
    while (mm_log_take(&level, text, sizeof text) != 0) {
        (void)sscanf(text, "check: %lld results of ops compared", &n_compared);
        if (strstr(text, "differs from ref") != NULL && n++ == 0)
            snprintf(found, sizeof found, "%s", text);
    }
    return n <= 1 ? found : "several lines";
}

MM_TEST(test_check_is_silent_on_ref)
{
    MM_CHECK(run(&mm_ref_ops) == MM_OK, "%s", mm_error_message());
    const char *text = reported();
    MM_CHECK(text[0] == '\0', "%s", text);
    /* the start; embed x, h; a layer: q, k, v, o, x, h, x, h; index q, keys, blocks; experts,
     * weights; logits; draws, processed logits, state; entries, scores */
    MM_CHECK(n_compared == 1 + 2 + 2 * 8 + 3 + 2 + 1 + 3 + 2, "%lld", n_compared);
}

static void check_spoiled(const char *want, const char *where)
{
    MM_CHECK(run(&spoiled) == MM_OK, "%s", mm_error_message());
    const char *text = reported();
    MM_CHECK(strstr(text, want) != NULL && strstr(text, where) != NULL, "wanted %s %s: %s", want,
             where, text);
}

MM_TEST(test_check_names_the_op_and_the_element)
{
    spoiled = mm_ref_ops;
    spoiled.moe = spoil_moe;
    check_spoiled("moe x of layer 1 ", "element 453 ");
    spoiled = mm_ref_ops;
    spoiled.attn_in = spoil_attn_in;
    check_spoiled("attn_in v of layer 0 ", "element 226 "); /* (row 3 * G + head 1) * HD + 2 */
    spoiled = mm_ref_ops;
    spoiled.attn_sparse = spoil_sparse;
    check_spoiled("attn_sparse blocks of layer 0 ", "element 598 ");
    spoiled = mm_ref_ops;
    spoiled.attn_out = spoil_experts;
    check_spoiled("attn_out experts of layer 1 ", "element 11 ");
    spoiled = mm_ref_ops;
    spoiled.head = spoil_head;
    check_spoiled("head logits of layer -1 ", "is nan");
    spoiled = mm_ref_ops;
    spoiled.moe = spoil_row;
    check_spoiled("moe x of layer 1 ", "element 4"); /* 448 .. 511 */
}

MM_TEST(test_check_looks_at_what_a_batch_expands_into)
{
    spoiled = mm_ref_ops;
    spoiled.expand = spoil_pos;
    check_spoiled("expand pos ", "element 17 is 18, expected 17");
    spoiled.expand = spoil_page;
    check_spoiled("expand page_table ", "element 2 is 1, expected 2");
    spoiled.expand = spoil_entry;
    check_spoiled("expand entry ", "element 3 is 4.2949673e+09, expected 3");
}

MM_TEST(test_check_looks_at_draws_and_logprobs)
{
    static const struct {
        mm_status (*sample)(const mm_op_context *c, const mm_sample_args *a);
        mm_status (*logprobs)(const mm_op_context *c, const mm_logprob_args *a);
        const char *want, *where;
    } all[] = {
        {spoil_token, NULL, "sample token ", "element 0 "},
        {spoil_count, NULL, "sample n_out ", ""},
        {spoil_work, NULL, "sample processed logits ", "element 7 "},
        {NULL, spoil_rank, "logprobs rank ", "element 5 "},
        {NULL, spoil_chosen, "logprobs of the drawn token ", "element 0 "},
    };
    for (size_t i = 0; i < MM_ARRAY_LEN(all); i++) {
        spoiled = mm_ref_ops;
        if (all[i].sample != NULL)
            spoiled.sample = all[i].sample;
        if (all[i].logprobs != NULL)
            spoiled.logprobs = all[i].logprobs;
        check_spoiled(all[i].want, all[i].where);
    }
}

MM_TEST(test_check_takes_the_other_of_two_experts_that_tie)
{
    spoiled = mm_ref_ops;
    spoiled.attn_out = spoil_tied;
    is_tied = true;
    act = MM_DTYPE_BF16;
    MM_CHECK(run(&spoiled) == MM_OK, "%s", mm_error_message());
    MM_CHECK(n_tied > 0, "no row chose one of the two");
    const char *text = reported();
    MM_CHECK(text[0] == '\0', "%s", text);
    spoiled.attn_out = spoil_experts; /* another expert that does not tie */
    check_spoiled("attn_out experts of layer 1 ", "element 11 ");
    act = MM_DTYPE_F32; /* with f32 activations a tie is exact, and the lower id has it */
    spoiled.attn_out = spoil_tied;
    check_spoiled("attn_out experts of layer 1 ", "");
    is_tied = false;
}

MM_TEST(test_check_takes_the_other_of_two_blocks_that_tie)
{
    spoiled = mm_ref_ops;
    spoiled.attn_sparse = spoil_tied_blocks;
    is_tied = true;
    MM_CHECK(run(&spoiled) == MM_OK, "%s", mm_error_message());
    const char *text = reported();
    MM_CHECK(text[0] == '\0', "%s", text);
    spoiled.attn_sparse = spoil_tied_output;
    check_spoiled("attn_sparse o of layer 0 ", "");
    spoiled.attn_sparse = spoil_tied_local;
    check_spoiled("attn_sparse blocks of layer 0 ", "element 599 "); /* block 1, not the local 2 */
    is_tied = false;
    spoiled.attn_sparse = spoil_tied_blocks;
    check_spoiled("attn_sparse blocks of layer 0 ", "element 598 ");
}

MM_TEST(test_check_holds_cached_codes_to_their_borders)
{
    static const mm_cache_format all[] = {MM_CACHE_BF16, MM_CACHE_FP8, MM_CACHE_NVFP4};
    act = MM_DTYPE_BF16;
    spoiled = mm_ref_ops;
    for (size_t i = 0; i < MM_ARRAY_LEN(all); i++) {
        format = all[i];
        MM_CHECK(run(&mm_ref_ops) == MM_OK, "%s", mm_error_message());
        const char *text = reported();
        MM_CHECK(text[0] == '\0', "format %d: %s", format, text);
        spoiled.attn_in = spoil_nudged;
        nudge = 0x1p-9f; /* half a step of bf16: every second rounding to it changes */
        n_nudged = 0;
        MM_CHECK(run(&spoiled) == MM_OK, "%s", mm_error_message());
        text = reported();
        MM_CHECK(text[0] == '\0', "format %d: %s", format, text);
        MM_CHECK(n_nudged > 100, "format %d: %d", format, n_nudged);
        nudge = 0x1p-5f;
        check_spoiled("attn_in k ", "of layer 0 "); /* NVFP4: its scale */
    }
    format = MM_CACHE_FP8;
    spoiled.attn_in = spoil_fp8;
    check_spoiled("attn_in v of layer 0 ", "element 226 "); /* (row 3 * G + head 1) * HD + 2 */
    format = MM_CACHE_NVFP4;
    spoiled.attn_in = spoil_nvfp4;
    check_spoiled("attn_in v of layer 0 ", "element 2"); /* 224 .. 239 */
    spoiled.attn_in = spoil_nvfp4_scale;
    check_spoiled("attn_in v scale of layer 0 ", "element 240 ");
    spoiled.attn_in = spoil_nvfp4_zero; /* a zero with a sign */
    check_spoiled("attn_in v of layer 0 ", "is -0, expected 0");
    act = MM_DTYPE_F32;
    format = MM_CACHE_F32;
}
