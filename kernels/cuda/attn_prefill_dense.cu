/* attn_prefill_dense.cu: attn_dense for steps with many rows, on the kernel of attn_prefill_full.h.
 */
#include "kernels/cuda/attn_prefill_host.h"

mm_status mm_cuda_attn_dense_prefill(const mm_op_context *c, const mm_seq_view *seq,
                                     const mm_attn_dense_args *a)
{
    const mm_op_shape *s = c->shape;
    const int group = s->n_head / s->n_kv_head, pad = mm_tile_head_pad(group);
    if (a->extra_k != NULL && (a->extra_v == NULL || a->n_ctx == NULL))
        return MM_CUDA_FAIL(mm_cuda_of(c), MM_E_INVALID,
                            "attn_dense: extra keys need extra_v and n_ctx");
    const mm_attn_full_args d = {mm_prefill_rows_of(seq),
                                 a->cache->k,
                                 a->cache->v,
                                 (const uint16_t *)a->q,
                                 (const uint16_t *)a->extra_k,
                                 (const uint16_t *)a->extra_v,
                                 a->extra_k != NULL ? a->n_ctx : NULL,
                                 s->n_head,
                                 s->n_kv_head,
                                 group,
                                 pad,
                                 a->window,
                                 0,
                                 a->cache->k.format == MM_CACHE_NVFP4 ? 1.0f : 0.0f,
                                 (uint16_t *)a->o};
    if (mm_cuda_of(c)->tier == MM_CUDA_HOPPER)
        return mm_attn_full_sm90a(c, d);
    MM_CACHE_DISPATCH(mm_cuda_of(c), d.k.format, mm_attn_full_launch<F, false>(c, d));
    return MM_OK;
}
