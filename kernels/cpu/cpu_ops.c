/* cpu_ops.c: the table of the cpu backend: ref's, with what is worth it replaced; and the backend
 * itself. */
#include "csrc/base/env.h"
#include "kernels/cpu/cpu.h"
#include "kernels/host_begin.h"
#include "kernels/ref/ref.h"

mm_cpu_run mm_cpu_start(const mm_op_context *c)
{
    const mm_cpu_backend_state *b = (const mm_cpu_backend_state *)(const void *)c->stream->backend;
    mm_arena_reset(&c->stream->scratch);
    return (mm_cpu_run){.c = c,
                        .s = c->shape,
                        .isa = b->isa,
                        .pool = c->stream->pool,
                        .n_thread = mm_pool_n_thread(c->stream->pool)};
}

mm_status mm_cpu_scratch(const mm_cpu_run *r, size_t n_bytes, void **out)
{
    *out = mm_arena_alloc(&r->c->stream->scratch, n_bytes);
    if (*out == NULL)
        return MM_FAIL(MM_E_NOMEM,
                       "cpu: an op needs %zu bytes more than the stream's %zu bytes of scratch",
                       n_bytes, r->c->stream->scratch.cap);
    return MM_OK;
}

mm_status mm_cpu_floats(const mm_cpu_run *r, int64_t n, float **out)
{
    void *p;
    MM_TRY(mm_cpu_scratch(r, (size_t)n * sizeof(float), &p));
    *out = p;
    return MM_OK;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t scratch_bytes(const mm_op_shape *s, int32_t n_thread)
{
    size_t n = mm_ref_ops.scratch_bytes(s, n_thread); /* ops that stay ref's */
    /* embed */
    n = max_size(n, mm_arena_size(sizeof(float) * (size_t)s->d_model) * (size_t)n_thread);
    n = max_size(n, mm_cpu_attn_in_scratch(s, n_thread));
    n = max_size(n, mm_cpu_attention_scratch(s, n_thread));
    n = max_size(n, mm_cpu_attn_out_scratch(s, n_thread));
    n = max_size(n, mm_cpu_mlp_scratch(s, n_thread));
    n = max_size(n, mm_cpu_moe_scratch(s, n_thread));
    n = max_size(n, mm_cpu_head_scratch(s, n_thread));
    return max_size(n, mm_cpu_sample_scratch(s, n_thread));
}

static mm_status check_shape(const mm_backend *b, const mm_op_shape *s)
{
    return mm_ref_ops.check_shape(b, s);
}

const mm_ops mm_cpu_ops = {
    .scratch_bytes = scratch_bytes,
    .check_shape = check_shape,
    .begin = mm_host_begin,
    .expand = mm_host_expand,
    .embed = mm_cpu_embed,
    .attn_in = mm_cpu_attn_in,
    .attn_sparse = mm_cpu_attn_sparse,
    .attn_dense = mm_cpu_attn_dense,
    .attn_out = mm_cpu_attn_out,
    .mlp = mm_cpu_mlp,
    .moe = mm_cpu_moe,
    .head = mm_cpu_head,
    .sample = mm_cpu_sample,
    .logprobs = mm_cpu_logprobs,
    .copy_pages = mm_ref_copy_pages,
    .gather_rows = mm_ref_gather_rows,
};

mm_status mm_cpu_backend_open(mm_backend **out, const mm_backend_options *opt, const char *limit)
{
    const mm_cpu_isa *isa;
    mm_pool *pool;
    *out = NULL;
    MM_TRY(mm_cpu_isa_find(limit, &isa));
    mm_cpu_backend_state *b = calloc(1, sizeof *b);
    if (b == NULL)
        return MM_FAIL(MM_E_NOMEM, "cpu backend: out of memory");
    mm_status st = mm_pool_open(&pool, opt->n_thread > 0 ? opt->n_thread : mm_physical_cores());
    if (st == MM_OK) {
        st = mm_host_backend_init(&b->host, "cpu", isa->name, &mm_cpu_ops, pool);
        if (st != MM_OK)
            mm_pool_close(pool);
    }
    if (st != MM_OK) {
        free(b);
        return st;
    }
    b->isa = isa;
    *out = &b->host.base;
    return MM_OK;
}

mm_status mm_cpu_backend(mm_backend **out, const mm_backend_options *opt)
{
    const mm_env *env = mm_env_get();
    const bool is_cuda_only = env->tier != NULL && strcmp(env->tier, "generic") == 0;
    mm_backend_options o = *opt;
    if (o.n_thread <= 0)
        o.n_thread = env->threads;
    return mm_cpu_backend_open(out, &o, is_cuda_only ? NULL : env->tier);
}
