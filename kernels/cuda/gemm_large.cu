/* gemm_large.cu: the products of gemm_large.h with mma.sync, for every architecture. */
#include "kernels/cuda/gemm_large.h"

mm_status mm_large_generic(const mm_op_context *c, mm_weight_format format, mm_out_kind kind,
                           int tokens, int32_t n_token_tile, const mm_large_args *p)
{
    return mm_large_format_run<false>(c, format, kind, tokens, n_token_tile, p);
}
