/* shape.c: how a model is cut into ranks. Columns are cut in steps of 64, so that a slice never
 * splits the elements under one scale (16 or 32) and stays aligned for every kernel. */
#include "csrc/model/shape.h"
#include "csrc/model/config.h"
#include "csrc/model/model.h"
#include "csrc/model/problems.h"

enum { COLUMN_STEP = 64 };

static void check_even(mm_problems *p, const char *field, int32_t value, int32_t world,
                       int32_t step)
{
    if (value % world != 0 || (value / world) % step != 0)
        mm_problems_add(p, "tensor_parallel_size",
                        "%s %d cannot be cut into %d equal slices of a multiple of %d", field,
                        value, world, step);
}

mm_status mm_shard_check(const mm_config *c, int32_t rank, int32_t world)
{
    if (world < 1 || rank < 0 || rank >= world)
        return MM_FAIL_PARAM(MM_E_CONFIG, "shard", -1,
                             "shard rank %d of %d: expected 0 <= rank < world", rank, world);
    if (world == 1)
        return MM_OK;
    mm_problems p = {0};
    check_even(&p, "num_attention_heads", c->n_head, world, 1);
    if (c->n_kv_head % world != 0 && world % c->n_kv_head != 0)
        mm_problems_add(&p, "tensor_parallel_size",
                        "num_key_value_heads %d neither divides nor is a multiple of %d ranks",
                        c->n_kv_head, world);
    check_even(&p, "num_attention_heads * head_dim", c->n_head * c->head_dim, world, COLUMN_STEP);
    if (mm_config_has_moe(c)) {
        check_even(&p, "intermediate_size", c->d_expert, world, COLUMN_STEP);
        check_even(&p, "shared_intermediate_size", c->d_shared, world, COLUMN_STEP);
    }
    if (mm_config_has_dense_mlp(c))
        check_even(&p, "dense_intermediate_size", c->d_dense, world, COLUMN_STEP);
    check_even(&p, "vocab_size", c->n_vocab, world, 1);
    return mm_problems_raise(&p, MM_E_CONFIG, "the model cannot be cut evenly");
}

static int32_t kv_heads_local(const mm_config *c, int32_t world)
{
    return c->n_kv_head >= world ? c->n_kv_head / world : 1;
}

void mm_shape_fill(mm_op_shape *s, const mm_config *c, int32_t rank, int32_t world)
{
    const bool has_sparse = mm_config_has_sparse(c);
    const bool has_moe = mm_config_has_moe(c);
    s->d_model = c->d_model;
    s->n_head = c->n_head / world;
    s->n_kv_head = kv_heads_local(c, world);
    s->n_kv_head_total = c->n_kv_head;
    /* more ranks than heads: rank r reads head r / (world / n_kv_head), where its query heads
     * belong */
    s->kv_head_first = c->n_kv_head >= world ? rank * s->n_kv_head : rank / (world / c->n_kv_head);
    s->head_dim = c->head_dim;
    s->n_rotary = c->n_rotary;
    s->n_index_head = has_sparse ? s->n_kv_head : 0;
    s->index_dim = has_sparse ? c->index_dim : 0;
    s->n_top_block = has_sparse ? c->n_top_block : 0;
    s->n_init_block = has_sparse ? c->n_init_block : 0;
    s->n_expert = has_moe ? c->n_expert : 0;
    s->n_expert_used = has_moe ? c->n_expert_used : 0;
    s->d_expert = has_moe ? c->d_expert / world : 0;
    s->d_shared = has_moe ? c->d_shared / world : 0;
    s->d_dense = mm_config_has_dense_mlp(c) ? c->d_dense / world : 0;
    s->n_vocab = c->n_vocab;
    s->n_vocab_local = c->n_vocab / world;
    s->vocab_first = rank * s->n_vocab_local;
    s->eps = (float)c->rms_eps;
    s->swiglu_alpha = (float)c->swiglu_alpha;
    s->swiglu_beta = (float)c->swiglu_beta;
    s->swiglu_limit = (float)c->swiglu_limit;
    s->routed_scale = (float)c->routed_scale;
    memcpy(s->never_token, c->never_token, sizeof s->never_token);
}

int64_t mm_model_page_bytes(const mm_config *c, mm_cache_format kv, mm_cache_format index,
                            int32_t shard_rank, int32_t shard_world)
{
    (void)shard_rank; /* every rank holds as many heads */
    const int64_t n_head = kv_heads_local(c, shard_world);
    const int64_t kv_row =
        mm_cache_row_bytes(kv, c->head_dim) + mm_cache_row_scale_bytes(kv, c->head_dim);
    const int64_t index_row =
        mm_cache_row_bytes(index, c->index_dim) + mm_cache_row_scale_bytes(index, c->index_dim);
    int64_t n = 0;
    for (int32_t i = 0; i < c->n_layer; i++)
        n += MM_PAGE * (2 * n_head * kv_row + (c->layer_is_sparse[i] ? index_row : 0));
    return n;
}
