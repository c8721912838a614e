/* ref_act.c: scratch memory of an op and arrays of activations (bf16 or f32) as f32. */
#include "kernels/ref/ref.h"

void mm_ref_start(const mm_op_context *c)
{
    mm_arena_reset(&c->stream->scratch);
}

mm_status mm_ref_scratch(const mm_op_context *c, int64_t n_bytes, void **out)
{
    *out = mm_arena_alloc(&c->stream->scratch, (size_t)n_bytes);
    if (*out == NULL)
        return MM_FAIL(MM_E_NOMEM,
                       "ref: an op needs %lld bytes more than the stream's %zu bytes of scratch",
                       (long long)n_bytes, c->stream->scratch.cap);
    return MM_OK;
}

mm_status mm_ref_floats(const mm_op_context *c, int64_t n, float **out)
{
    void *p;
    MM_TRY(mm_ref_scratch(c, n * (int64_t)sizeof(float), &p));
    *out = p;
    return MM_OK;
}

void mm_ref_act_read(mm_dtype act, const void *src, int64_t first, int64_t n, float *dst)
{
    if (act == MM_DTYPE_F32) {
        memcpy(dst, (const float *)src + first, (size_t)n * sizeof(float));
        return;
    }
    const uint16_t *s = (const uint16_t *)src + first;
    for (int64_t i = 0; i < n; i++)
        dst[i] = mm_f32_from_bf16(s[i]);
}

void mm_ref_act_write(mm_dtype act, void *dst, int64_t first, int64_t n, const float *src)
{
    if (act == MM_DTYPE_F32) {
        memcpy((float *)dst + first, src, (size_t)n * sizeof(float));
        return;
    }
    uint16_t *d = (uint16_t *)dst + first;
    for (int64_t i = 0; i < n; i++)
        d[i] = mm_bf16_from_f32(src[i]);
}
