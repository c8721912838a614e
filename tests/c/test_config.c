/* test_config.c: mm_config_check names the field of config.json, several at once. */
#include "csrc/model/config.h"
#include "csrc/model/model.h"
#include "csrc/model/shape.h"
#include "tests/c/mm_test.h"

static const uint8_t sparse4[4] = {1, 1, 1, 1}, moe4[4] = {0, 0, 1, 1};

static mm_config good(void)
{
    mm_config c;
    mm_config_init(&c);
    c.n_layer = 4;
    c.n_vocab = 384;
    c.d_model = 128;
    c.n_head = 4;
    c.n_kv_head = 2;
    c.head_dim = 128;
    c.n_rotary = 64;
    c.n_index_head = 2;
    c.index_dim = 128;
    c.n_top_block = 4;
    c.n_expert = 16;
    c.n_expert_used = 4;
    c.d_expert = 64;
    c.d_shared = 64;
    c.d_dense = 256;
    c.max_position = 4096;
    c.routed_scale = 2.0;
    c.layer_is_sparse = sparse4;
    c.layer_is_moe = moe4;
    return c;
}

MM_TEST(test_config_check_accepts_a_model)
{
    const mm_config c = good();
    MM_CHECK(mm_config_check(&c) == MM_OK, "%s", mm_error_message());
}

static mm_status refuse(const mm_config *c, const char *field, const char *value)
{
    const mm_status st = mm_config_check(c);
    if (st == MM_E_CONFIG && strcmp(mm_error_param(), field) == 0 &&
        strstr(mm_error_message(), field) != NULL && strstr(mm_error_message(), value) != NULL)
        return MM_OK;
    printf("  %s: status %s, param %s, message %s\n", field, mm_status_name(st), mm_error_param(),
           mm_error_message());
    return MM_E_INVALID;
}

#define REFUSES(assign, field, value)                                                              \
    do {                                                                                           \
        mm_config c = good();                                                                      \
        c.assign;                                                                                  \
        MM_CHECK(refuse(&c, field, value) == MM_OK, "");                                           \
    } while (0)

MM_TEST(test_config_check_names_the_field)
{
    REFUSES(n_layer = 0, "num_hidden_layers", "0");
    REFUSES(n_layer = 100000, "num_hidden_layers", "100000");
    REFUSES(n_vocab = -5, "vocab_size", "-5");
    REFUSES(d_model = 0, "hidden_size", "0");
    REFUSES(d_model = 136, "hidden_size", "136");
    REFUSES(d_expert = 72, "intermediate_size", "72");
    REFUSES(d_shared = 8, "shared_intermediate_size", "8");
    REFUSES(d_dense = 100, "dense_intermediate_size", "100");
    REFUSES(n_head = 5, "num_key_value_heads", "5");
    REFUSES(n_kv_head = 0, "num_key_value_heads", "0");
    REFUSES(head_dim = 72, "head_dim", "72");
    REFUSES(n_rotary = 63, "rotary_dim", "63");
    REFUSES(n_rotary = 130, "rotary_dim", "130");
    REFUSES(n_index_head = 1, "sparse_num_index_heads", "1");
    REFUSES(index_dim = 32, "sparse_index_dim", "32");
    REFUSES(n_top_block = 0, "sparse_topk_blocks", "0");
    REFUSES(n_init_block = 4, "sparse_init_block", "4");
    REFUSES(n_expert = 0, "num_local_experts", "0");
    REFUSES(n_expert_used = 17, "num_experts_per_tok", "17");
    REFUSES(d_expert = 0, "intermediate_size", "0");
    REFUSES(d_shared = -1, "shared_intermediate_size", "-1");
    REFUSES(d_dense = 0, "dense_intermediate_size", "0");
    REFUSES(max_position = 0, "max_position_embeddings", "0");
    REFUSES(rope_theta = 0.0, "rope_theta", "0");
    REFUSES(rope_theta = 0.0 / 0.0, "rope_theta", "nan");
    REFUSES(rms_eps = -1.0, "rms_norm_eps", "-1");
    REFUSES(swiglu_limit = 0.0, "swiglu_limit", "0");
    REFUSES(swiglu_alpha = 1.0 / 0.0, "swiglu_alpha", "inf");
    REFUSES(routed_scale = 0.0 / 0.0, "routed_scaling_factor", "nan");
    REFUSES(never_token[3] = 384, "image_token_index", "384");
    REFUSES(layer_is_moe = NULL, "sparse_attention_freq", "absent");
}

MM_TEST(test_config_check_reports_all_problems)
{
    mm_config c = good();
    c.d_model = 0;
    c.n_rotary = 63;
    c.n_expert = 0;
    MM_CHECK(mm_config_check(&c) == MM_E_CONFIG, "");
    const char *m = mm_error_message();
    MM_CHECK(strstr(m, "hidden_size") && strstr(m, "rotary_dim") && strstr(m, "num_local_experts"),
             "%s", m);
}

MM_TEST(test_config_check_ignores_what_no_layer_uses)
{
    static const uint8_t none[4] = {0, 0, 0, 0};
    mm_config c = good();
    c.layer_is_sparse = none;
    c.layer_is_moe = none;
    c.n_index_head = c.index_dim = c.n_top_block = c.n_expert = c.n_expert_used = c.d_expert = 0;
    MM_CHECK(mm_config_check(&c) == MM_OK, "%s", mm_error_message());
}

MM_TEST(test_config_check_wants_init)
{
    mm_config c = good();
    c.size = 4;
    MM_CHECK(mm_config_check(&c) == MM_E_INVALID, "");
    MM_CHECK(mm_config_check(NULL) == MM_E_INVALID, "");
}

MM_TEST(test_config_copy_owns_its_lists)
{
    uint8_t sparse[4] = {1, 0, 1, 1}, moe[4] = {0, 0, 1, 1};
    mm_config c = good(), copy;
    c.layer_is_sparse = sparse;
    c.layer_is_moe = moe;
    MM_CHECK(mm_config_copy(&copy, &c) == MM_OK, "");
    memset(sparse, 7, sizeof sparse);
    const bool is_same =
        copy.layer_is_sparse[1] == 0 && copy.layer_is_sparse[2] == 1 && copy.layer_is_moe[3] == 1;
    mm_config_free(&copy);
    MM_CHECK(is_same, "");
}

MM_TEST(test_shape_replicates_kv_heads)
{
    const mm_config c = good();
    mm_op_shape s = {0};
    MM_CHECK(mm_shard_check(&c, 3, 4) == MM_E_CONFIG, "experts of 64 cannot be cut in 4");
    MM_CHECK(strstr(mm_error_message(), "intermediate_size") != NULL, "%s", mm_error_message());
    mm_shape_fill(&s, &c, 3, 4);
    MM_CHECK(s.n_head == 1 && s.n_kv_head == 1 && s.kv_head_first == 1 && s.n_index_head == 1,
             "first %d", s.kv_head_first);
    mm_shape_fill(&s, &c, 1, 4);
    MM_CHECK(s.kv_head_first == 0, "first %d", s.kv_head_first);
    mm_shape_fill(&s, &c, 1, 2);
    MM_CHECK(s.n_head == 2 && s.n_kv_head == 1 && s.kv_head_first == 1 && s.vocab_first == 192, "");
}

MM_TEST(test_page_bytes_of_the_released_model)
{
    uint8_t all[60];
    memset(all, 1, sizeof all);
    mm_config c = good();
    c.n_layer = 60;
    c.n_head = 64;
    c.n_kv_head = c.n_index_head = 4;
    c.layer_is_sparse = all;
    c.layer_is_moe = all;
    MM_CHECK(mm_model_page_bytes(&c, MM_CACHE_NVFP4, MM_CACHE_NVFP4, 0, 1) == 128 * 38880, "");
    MM_CHECK(mm_model_page_bytes(&c, MM_CACHE_FP8, MM_CACHE_FP8, 0, 1) == 128 * 69120, "");
    MM_CHECK(mm_model_page_bytes(&c, MM_CACHE_BF16, MM_CACHE_BF16, 0, 1) == 128 * 138240, "");
    MM_CHECK(mm_model_page_bytes(&c, MM_CACHE_NVFP4, MM_CACHE_NVFP4, 3, 4) == 128 * 12960, "");
    MM_CHECK(mm_model_page_bytes(&c, MM_CACHE_FP8, MM_CACHE_FP8, 7, 8) == 128 * 23040, "");
}
