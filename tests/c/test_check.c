/* test_check.c: MM_CHECK=1 is silent on a right backend and names the op, layer and element of a
 * wrong one. The wrong ones are ref with one op spoiled; the model is made of dummy weights. */
#include <math.h>

#include "csrc/base/log.h"
#include "csrc/model/model.h"
#include "tests/c/mm_test.h"

enum { D = 64, H = 4, G = 2, HD = 32, V = 48, E = 4, F = 64, N_ROW = 300, N_PAGE = 4 };

__attribute__((constructor)) static void ask_for_checks(void)
{
    setenv("MM_CHECK", "1", 1); /* before the variables are read, once */
}

static mm_ops spoiled;

static mm_status spoil_moe(const mm_op_context *c, const mm_seq_view *seq, const mm_moe_args *a)
{
    MM_TRY(mm_ref_ops.moe(c, seq, a));
    ((float *)a->x)[7 * D + 5] += 0.5f;
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

static mm_status spoil_experts(const mm_op_context *c, const mm_seq_view *seq,
                               const mm_attn_out_args *a)
{
    MM_TRY(mm_ref_ops.attn_out(c, seq, a));
    if (a->gate != NULL)
        a->experts[11] = 99 % E == a->experts[11] ? 0 : 99 % E;
    return MM_OK;
}

static mm_status spoil_head(const mm_op_context *c, const mm_head_args *a)
{
    MM_TRY(mm_ref_ops.head(c, a));
    a->logits[V + 9] = NAN;
    return MM_OK;
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
                                 .dtype = MM_DTYPE_F32,
                                 .max_model_len = 512,
                                 .max_num_seqs = 1,
                                 .max_batched_tokens = 384};
    const mm_backend_options bo = {.name = "ref", .n_thread = 1};
    mm_backend *b = NULL;
    mm_comm *comm = NULL;
    mm_model *m = NULL;
    int32_t token[N_ROW], pos[N_ROW], row_seq[N_ROW] = {0}, page[N_PAGE] = {3, 1, 2, 0},
                                      zero[2] = {0, 0};
    const int32_t row_start[2] = {0, N_ROW}, row[4] = {0, 1, 200, N_ROW - 1};
    float logits[4 * V];
    for (int32_t i = 0; i < N_ROW; i++) {
        token[i] = i * 7 % V;
        pos[i] = i;
    }
    const mm_slots slots = {
        .n_slot = 1, .page_stride = N_PAGE, .page_table = page, .n_ctx = zero, .last_token = zero};
    const mm_seq_view seq = {.n_seq = 1,
                             .n_row = N_ROW,
                             .max_pos = N_ROW,
                             .row_start = row_start,
                             .slot = zero,
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
    if (st == MM_OK)
        st = mm_model_forward(m, &seq, NULL, 0);
    if (st == MM_OK)
        st = mm_model_logits(m, row, 4, logits);
    mm_model_close(m);
    mm_comm_close(comm);
    mm_backend_close(b);
    return st;
}

/* The one line that reports a difference, "" without one. */
static const char *reported(void)
{
    static char text[512], found[512];
    int32_t level;
    int n = 0;
    found[0] = '\0';
    while (mm_log_take(&level, text, sizeof text) != 0)
        if (strstr(text, "differs from ref") != NULL && n++ == 0)
            snprintf(found, sizeof found, "%s", text);
    return n <= 1 ? found : "several lines";
}

MM_TEST(test_check_is_silent_on_ref)
{
    MM_CHECK(run(&mm_ref_ops) == MM_OK, "%s", mm_error_message());
    const char *text = reported();
    MM_CHECK(text[0] == '\0', "%s", text);
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
}
