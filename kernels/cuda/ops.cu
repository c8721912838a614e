/* ops.cu: the table of the CUDA backend, what shapes it takes and how much scratch its ops need. */
#include "kernels/cuda/kernels.h"

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

static mm_status check_shape(const mm_backend *b, const mm_op_shape *s)
{
    const mm_cuda_refusal r = mm_cuda_check_limits(s);
    if (r.param == NULL)
        return MM_OK;
    const mm_host_services *services = ((const mm_cuda *)(const void *)b)->services;
    (void)services->error_set(MM_E_UNSUPPORTED, r.param, -1, "%s", r.text);
    return MM_E_UNSUPPORTED;
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
