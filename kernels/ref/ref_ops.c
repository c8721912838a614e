/* ref_ops.c: the table of the reference backend, what shapes it takes and how much scratch its ops
 * need. */
#include "kernels/ref/ref.h"

static size_t scratch_bytes(const mm_op_shape *s, int32_t n_thread)
{
    (void)n_thread;
    int64_t n = 2 * (int64_t)mm_arena_size(sizeof(float) * (size_t)s->d_model); /* embed */
    n = mm_max_i64(n, mm_ref_attn_in_scratch(s));
    n = mm_max_i64(n, mm_ref_attention_scratch(s));
    n = mm_max_i64(n, mm_ref_attn_out_scratch(s));
    n = mm_max_i64(n, mm_ref_moe_scratch(s));
    n = mm_max_i64(n, mm_ref_head_scratch(s));
    return (size_t)mm_max_i64(n, mm_ref_sample_scratch(s));
}

static mm_status check_width(const char *name, int32_t n, int32_t step)
{
    if (n > 0 && n % step == 0)
        return MM_OK;
    return MM_FAIL_PARAM(MM_E_UNSUPPORTED, name, -1,
                         "ref: %s is %d; it must be a positive multiple of %d", name, n, step);
}

static mm_status check_shape(const mm_backend *b, const mm_op_shape *s)
{
    (void)b;
    if (s->act != MM_DTYPE_F32 && s->act != MM_DTYPE_BF16)
        return MM_FAIL_PARAM(MM_E_UNSUPPORTED, "dtype", -1,
                             "ref: activations are float32 or bfloat16, not %s",
                             mm_dtype_name(s->act));
    MM_TRY(check_width("d_model", s->d_model, 16));
    MM_TRY(check_width("head_dim", s->head_dim, 16));
    if (s->n_kv_head < 1 || s->n_head % s->n_kv_head != 0)
        return MM_FAIL_PARAM(MM_E_UNSUPPORTED, "n_head", -1,
                             "ref: %d query heads do not divide into %d KV heads", s->n_head,
                             s->n_kv_head);
    if (s->n_rotary < 0 || s->n_rotary % 2 != 0 || s->n_rotary > s->head_dim)
        return MM_FAIL_PARAM(MM_E_UNSUPPORTED, "n_rotary", -1,
                             "ref: %d rotary dims of a head of %d", s->n_rotary, s->head_dim);
    if (s->n_index_head > 0) {
        MM_TRY(check_width("index_dim", s->index_dim, 16));
        if (s->n_index_head != s->n_kv_head || s->n_rotary > s->index_dim || s->n_top_block < 1)
            return MM_FAIL_PARAM(
                MM_E_UNSUPPORTED, "n_index_head", -1,
                "ref: %d index heads of %d for %d KV heads, %d rotary dims, %d blocks",
                s->n_index_head, s->index_dim, s->n_kv_head, s->n_rotary, s->n_top_block);
    }
    if (s->n_expert > 0 && (s->n_expert_used < 1 || s->n_expert_used > s->n_expert))
        return MM_FAIL_PARAM(MM_E_UNSUPPORTED, "n_expert_used", -1, "ref: %d of %d experts",
                             s->n_expert_used, s->n_expert);
    const int32_t width[] = {s->d_expert, s->d_shared, s->d_dense};
    const char *const name[] = {"d_expert", "d_shared", "d_dense"};
    for (int i = 0; i < 3; i++) {
        if (width[i] != 0)
            MM_TRY(check_width(name[i], width[i], 16));
    }
    return MM_OK;
}

const mm_ops mm_ref_ops = {
    .scratch_bytes = scratch_bytes,
    .check_shape = check_shape,
    .begin = mm_host_begin,
    .expand = mm_host_expand,
    .embed = mm_ref_embed,
    .attn_in = mm_ref_attn_in,
    .attn_sparse = mm_ref_attn_sparse,
    .attn_dense = mm_ref_attn_dense,
    .attn_out = mm_ref_attn_out,
    .mlp = mm_ref_mlp_op,
    .moe = mm_ref_moe,
    .head = mm_ref_head,
    .sample = mm_ref_sample,
    .logprobs = mm_ref_logprobs,
    .copy_pages = mm_ref_copy_pages,
    .gather_rows = mm_ref_gather_rows,
};

mm_status mm_ref_backend(mm_backend **out, const mm_backend_options *opt)
{
    (void)opt; /* one thread, one device */
    *out = NULL;
    mm_host_backend *b = calloc(1, sizeof *b);
    if (b == NULL)
        return MM_FAIL(MM_E_NOMEM, "ref backend: out of memory");
    const mm_status st = mm_host_backend_init(b, "ref", "scalar", &mm_ref_ops, NULL);
    if (st != MM_OK) {
        free(b);
        return st;
    }
    *out = &b->base;
    return MM_OK;
}
