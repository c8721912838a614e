/* ops.cu: the table of the CUDA backend, what shapes it takes and how much scratch its ops need. */
#include "kernels/cuda/kernels.h"

extern const mm_host_services *mm_cuda_services; /* backend.cu */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Bytes that the largest op takes. Products and the ends of branches lie inside moe, mlp, attn_out
 * and head, so their needs add up. */
static size_t scratch_bytes(const mm_op_shape *s, int32_t n_thread)
{
    (void)n_thread;
    const size_t linear = mm_cuda_linear_scratch(s);
    const size_t moe = larger(mm_cuda_moe_small_scratch(s), mm_cuda_moe_large_scratch(s));
    size_t n = linear + mm_cuda_branch_scratch(s) + larger(moe, mm_cuda_out_scratch(s));
    n = larger(n, mm_cuda_attn_in_scratch(s) + linear);
    n = larger(n, mm_cuda_attn_decode_scratch(s));
    n = larger(n, mm_cuda_attn_prefill_scratch(s));
    return larger(n, mm_cuda_sample_scratch(s));
}

#define REFUSE(name, ...)                                                                          \
    ((void)mm_cuda_services->error_set(MM_E_UNSUPPORTED, (name), -1, __VA_ARGS__), MM_E_UNSUPPORTED)

static mm_status check_width(const char *name, int32_t n, int32_t step)
{
    if (n > 0 && n % step == 0)
        return MM_OK;
    return REFUSE(name,
                  "cuda: %s is %d; on this rank it must be a positive multiple of %d (fewer "
                  "tensor-parallel ranks make it larger; backend=\"cpu\" takes it)",
                  name, n, step);
}

static mm_status check_heads(const mm_op_shape *s)
{
    const int32_t group = s->n_kv_head > 0 ? s->n_head / s->n_kv_head : 0;
    if (s->head_dim != 128 || (s->n_index_head > 0 && s->index_dim != 128))
        return REFUSE(s->head_dim != 128 ? "head_dim" : "index_dim",
                      "cuda: head_dim is %d and index_dim %d; the kernels are made for 128; "
                      "backend=\"cpu\" takes other sizes",
                      s->head_dim, s->index_dim);
    if (group < 1 || group > 16 || s->n_head != group * s->n_kv_head)
        return REFUSE("n_head",
                      "cuda: %d query heads for %d KV heads; 1 to 16 for each are possible; "
                      "backend=\"cpu\" takes others",
                      s->n_head, s->n_kv_head);
    if (s->n_rotary < 0 || s->n_rotary % 2 != 0 || s->n_rotary > s->head_dim)
        return REFUSE("n_rotary", "cuda: %d rotary dims of a head of %d", s->n_rotary, s->head_dim);
    if (s->n_index_head > 0 && s->n_index_head != s->n_kv_head)
        return REFUSE("n_index_head", "cuda: %d index heads for %d KV heads; they must be equal",
                      s->n_index_head, s->n_kv_head);
    if (s->n_index_head > 0 && (s->n_top_block < 1 || s->n_top_block > 64))
        return REFUSE("n_top_block",
                      "cuda: %d blocks per query; 1 to 64 are possible; backend=\"cpu\" takes more",
                      s->n_top_block);
    return MM_OK;
}

static mm_status check_shape(const mm_op_shape *s)
{
    if (s->act != MM_DTYPE_BF16)
        return REFUSE("dtype", "cuda: activations are bfloat16 only: set dtype=\"bfloat16\", or "
                               "backend=\"cpu\" for float32");
    if (s->kv_format == MM_CACHE_F32 || (s->n_index_head > 0 && s->index_format == MM_CACHE_F32))
        return REFUSE("kv_cache_dtype",
                      "cuda: keys and values are kept as bfloat16, fp8 or nvfp4, not as float32; "
                      "backend=\"cpu\" takes float32");
    MM_TRY(check_width("d_model", s->d_model, 16));
    MM_TRY(check_heads(s));
    if (s->n_expert > 0 && (s->n_expert > 1024 || s->n_expert_used < 1 || s->n_expert_used > 8 ||
                            s->n_expert_used > s->n_expert))
        return REFUSE("n_expert",
                      "cuda: %d of %d experts per row; 1 to 8 of at most 1024 are possible; "
                      "backend=\"cpu\" takes others",
                      s->n_expert_used, s->n_expert);
    const int32_t width[] = {s->d_expert, s->d_shared, s->d_dense};
    const char *const name[] = {"d_expert", "d_shared", "d_dense"};
    for (int i = 0; i < 3; i++) {
        if (width[i] != 0)
            MM_TRY(check_width(name[i], width[i], 16));
    }
    return MM_OK;
}

static mm_ops table()
{
    mm_ops t = {};
    t.pack_bytes = mm_cuda_pack_bytes;
    t.pack = mm_cuda_pack;
    t.scratch_bytes = scratch_bytes;
    t.check_shape = check_shape;
    t.begin = mm_cuda_begin;
    t.expand = mm_cuda_expand;
    t.embed = mm_cuda_embed;
    t.attn_in = mm_cuda_attn_in;
    t.attn_sparse = mm_cuda_attn_sparse;
    t.attn_dense = mm_cuda_attn_dense;
    t.attn_out = mm_cuda_attn_out;
    t.mlp = mm_cuda_mlp;
    t.moe = mm_cuda_moe;
    t.head = mm_cuda_head;
    t.sample = mm_cuda_sample;
    t.logprobs = mm_cuda_logprobs;
    t.copy_pages = mm_cuda_copy_pages;
    t.gather_rows = mm_cuda_gather_rows;
    return t;
}
extern const mm_ops mm_cuda_ops;
const mm_ops mm_cuda_ops = table();
