/* attn_prefill_sm90a.cu: the kernels of prefill attention with wgmma: sm_90a only. */
#include "kernels/cuda/attn_prefill_host.h"

mm_status mm_score_sm90a(const mm_op_context *c, const mm_score_args &a)
{
    MM_CACHE_DISPATCH(mm_cuda_of(c), a.ik.format, mm_score_launch<F, true>(c, a));
    return MM_OK;
}
mm_status mm_attn_pages_sm90a(const mm_op_context *c, const mm_attn_pages_args &a)
{
    MM_CACHE_DISPATCH(mm_cuda_of(c), a.k.format, mm_attn_pages_launch<F, true>(c, a));
    return MM_OK;
}
mm_status mm_attn_full_sm90a(const mm_op_context *c, const mm_attn_full_args &a)
{
    MM_CACHE_DISPATCH(mm_cuda_of(c), a.k.format, mm_attn_full_launch<F, true>(c, a));
    return MM_OK;
}
