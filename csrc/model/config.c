/* config.c: which models the forward pass can run. Every limit below is one of the code's own (an
 * index width, a pairing of dims) or a fact of the attention's structure; sizes are otherwise free.
 * Messages use the names of config.json, since that is where the reader will look. */
#include <math.h>
#include <stdio.h>

#include "csrc/model/config.h"
#include "csrc/model/problems.h"

enum {
    MAX_LAYER = 1024,
    MAX_WIDTH = 1 << 20,
    MAX_VOCAB = 1 << 24,
    MAX_HEAD = 1024,
    MAX_HEAD_DIM = 512,
    MAX_EXPERT = 32767,        /* expert ids are i16 in traces */
    MAX_POSITION = 128 * 32767 /* block ids are i16 */
};

void mm_config_init(mm_config *c)
{
    *c = (mm_config){
        .size = sizeof *c,
        .has_routing_bias = 1,
        .rope_theta = 5e6,
        .rms_eps = 1e-6,
        .swiglu_alpha = 1.702,
        .swiglu_beta = 1.0,
        .swiglu_limit = 7.0,
        .routed_scale = 1.0,
    };
    for (size_t i = 0; i < MM_ARRAY_LEN(c->never_token); i++)
        c->never_token[i] = -1;
}

static bool any_layer(const mm_config *c, const uint8_t *flag, uint8_t value)
{
    for (int32_t i = 0; i < c->n_layer; i++)
        if ((flag[i] != 0) == (value != 0))
            return true;
    return false;
}

bool mm_config_has_sparse(const mm_config *c)
{
    return any_layer(c, c->layer_is_sparse, 1);
}

bool mm_config_has_dense_mlp(const mm_config *c)
{
    return any_layer(c, c->layer_is_moe, 0);
}

bool mm_config_has_moe(const mm_config *c)
{
    return any_layer(c, c->layer_is_moe, 1);
}

static bool check_range(mm_problems *p, const char *field, int64_t value, int64_t low, int64_t high)
{
    if (value >= low && value <= high)
        return true;
    mm_problems_add(p, field, "%s is %lld, expected %lld to %lld", field, (long long)value,
                    (long long)low, (long long)high);
    return false;
}

static void check_real(mm_problems *p, const char *field, double value, double low, double high)
{
    if (!(isfinite(value) && value >= low && value <= high))
        mm_problems_add(p, field, "%s is %g, expected %g to %g", field, value, low, high);
}

/* Kernels take 16 columns at a time: the columns under one NVFP4 scale. */
static void check_width(mm_problems *p, const char *field, int32_t value, int32_t low)
{
    if (check_range(p, field, value, low, MAX_WIDTH) && value % 16 != 0)
        mm_problems_add(p, field, "%s is %d, expected a multiple of 16", field, value);
}

static void check_attention(mm_problems *p, const mm_config *c)
{
    const bool has_q = check_range(p, "num_attention_heads", c->n_head, 1, MAX_HEAD);
    const bool has_kv = check_range(p, "num_key_value_heads", c->n_kv_head, 1, MAX_HEAD);
    if (has_q && has_kv && c->n_head % c->n_kv_head != 0)
        mm_problems_add(p, "num_key_value_heads",
                        "num_key_value_heads is %d, which does not divide num_attention_heads %d",
                        c->n_kv_head, c->n_head);
    if (check_range(p, "head_dim", c->head_dim, 16, MAX_HEAD_DIM) && c->head_dim % 16 != 0)
        mm_problems_add(
            p, "head_dim",
            "head_dim is %d, expected a multiple of 16 (a scale of the cache covers 16)",
            c->head_dim);
    if (check_range(p, "rotary_dim", c->n_rotary, 2, MAX_HEAD_DIM)) {
        if (c->n_rotary % 2 != 0)
            mm_problems_add(p, "rotary_dim",
                            "rotary_dim is %d, expected an even number (dims rotate in pairs)",
                            c->n_rotary);
        if (c->n_rotary > c->head_dim)
            mm_problems_add(p, "rotary_dim", "rotary_dim is %d, larger than head_dim %d",
                            c->n_rotary, c->head_dim);
    }
    check_real(p, "rope_theta", c->rope_theta, 1.0, 1e15);
}

static void check_index(mm_problems *p, const mm_config *c)
{
    if (c->n_index_head != c->n_kv_head)
        mm_problems_add(p, "sparse_num_index_heads",
                        "sparse_num_index_heads is %d, expected num_key_value_heads %d (one choice "
                        "of blocks per KV head)",
                        c->n_index_head, c->n_kv_head);
    if (check_range(p, "sparse_index_dim", c->index_dim, 16, MAX_HEAD_DIM)) {
        if (c->index_dim % 16 != 0)
            mm_problems_add(p, "sparse_index_dim",
                            "sparse_index_dim is %d, expected a multiple of 16 (a scale of the "
                            "cache covers 16)",
                            c->index_dim);
        if (c->n_rotary > c->index_dim)
            mm_problems_add(p, "sparse_index_dim",
                            "sparse_index_dim is %d, smaller than rotary_dim %d", c->index_dim,
                            c->n_rotary);
    }
    if (check_range(p, "sparse_topk_blocks", c->n_top_block, 1, 1024) &&
        check_range(p, "sparse_init_block", c->n_init_block, 0, 1023) &&
        c->n_init_block >= c->n_top_block)
        mm_problems_add(p, "sparse_init_block",
                        "sparse_init_block is %d, expected less than sparse_topk_blocks %d (the "
                        "local block is one of them)",
                        c->n_init_block, c->n_top_block);
}

static void check_moe(mm_problems *p, const mm_config *c)
{
    if (check_range(p, "num_local_experts", c->n_expert, 1, MAX_EXPERT) &&
        check_range(p, "num_experts_per_tok", c->n_expert_used, 1, 64) &&
        c->n_expert_used > c->n_expert)
        mm_problems_add(p, "num_experts_per_tok",
                        "num_experts_per_tok is %d, larger than num_local_experts %d",
                        c->n_expert_used, c->n_expert);
    check_width(p, "intermediate_size", c->d_expert, 16);
    check_width(p, "shared_intermediate_size", c->d_shared, 0);
    check_real(p, "routed_scaling_factor", c->routed_scale, -1e6, 1e6);
}

mm_status mm_config_check(const mm_config *c)
{
    if (c == NULL || c->size != sizeof *c)
        return MM_FAIL_PARAM(MM_E_INVALID, "config", -1,
                             "config was not filled by mm_config_init of this build");
    mm_problems p = {0};
    const bool has_layers = check_range(&p, "num_hidden_layers", c->n_layer, 1, MAX_LAYER);
    check_range(&p, "vocab_size", c->n_vocab, 1, MAX_VOCAB);
    check_width(&p, "hidden_size", c->d_model, 16);
    check_attention(&p, c);
    check_range(&p, "max_position_embeddings", c->max_position, 1, MAX_POSITION);
    check_real(&p, "rms_norm_eps", c->rms_eps, 0.0, 1.0);
    check_real(&p, "swiglu_alpha", c->swiglu_alpha, -1e3, 1e3);
    check_real(&p, "swiglu_beta", c->swiglu_beta, -1e3, 1e3);
    check_real(&p, "swiglu_limit", c->swiglu_limit, 1e-6, 1e30);
    if (has_layers && (c->layer_is_sparse == NULL || c->layer_is_moe == NULL)) {
        mm_problems_add(
            &p, "sparse_attention_freq",
            "the lists of layer kinds (sparse_attention_freq, moe_layer_freq) are absent");
    } else if (has_layers) {
        if (mm_config_has_sparse(c))
            check_index(&p, c);
        if (mm_config_has_moe(c))
            check_moe(&p, c);
        if (mm_config_has_dense_mlp(c))
            check_width(&p, "dense_intermediate_size", c->d_dense, 16);
    }
    for (size_t i = 0; i < MM_ARRAY_LEN(c->never_token); i++)
        if (c->never_token[i] < -1 || c->never_token[i] >= c->n_vocab)
            mm_problems_add(&p, "image_token_index",
                            "a media placeholder id (image_token_index, video_token_index) is %d, "
                            "outside vocab_size %d",
                            c->never_token[i], c->n_vocab);
    return mm_problems_raise(&p, MM_E_CONFIG, "config.json describes a model that cannot run");
}

mm_status mm_config_copy(mm_config *out, const mm_config *c)
{
    const size_t n = (size_t)c->n_layer;
    uint8_t *flag = malloc(2 * n);
    if (flag == NULL)
        return MM_FAIL(MM_E_NOMEM, "no memory for the layer lists of %zu layers", n);
    for (size_t i = 0; i < n; i++) {
        flag[i] = c->layer_is_sparse[i] != 0;
        flag[n + i] = c->layer_is_moe[i] != 0;
    }
    *out = *c;
    out->layer_is_sparse = flag;
    out->layer_is_moe = flag + n;
    return MM_OK;
}

void mm_config_free(mm_config *c)
{
    free((void *)(uintptr_t)c->layer_is_sparse); /* both lists are one block */
    c->layer_is_sparse = NULL;
    c->layer_is_moe = NULL;
}
