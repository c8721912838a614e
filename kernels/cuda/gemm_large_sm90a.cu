/* gemm_large_sm90a.cu: the products of gemm_large.h with wgmma: sm_90a only. */
#include "kernels/cuda/gemm_large.h"

mm_status mm_large_sm90a(const mm_op_context *c, mm_weight_format format, mm_out_kind kind,
                         int tokens, int32_t n_token_tile, const mm_large_args *p)
{
    return mm_large_format_run<true>(c, format, kind, tokens, n_token_tile, p);
}
