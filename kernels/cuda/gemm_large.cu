/* gemm_large.cu: the products of gemm_large.h with mma.sync, for every architecture. */
#include "kernels/cuda/gemm_large.h"

template <int FORMAT, int KIND, int TOKENS>
static mm_status run(const mm_op_context *c, int32_t n_token_tile, const mm_large_args *p)
{
    const dim3 grid((unsigned)((p->n_tile + 7) / 8), (unsigned)n_token_tile);
    return mm_launch(c, "gemm_large", mm_gemm_large<FORMAT, KIND, TOKENS>, grid, dim3(256),
                     mm_large_smem<FORMAT, TOKENS>(), *p);
}

template <int FORMAT, int KIND>
static mm_status run_tokens(const mm_op_context *c, int tokens, int32_t n, const mm_large_args *p)
{
    return tokens == 128 ? run<FORMAT, KIND, 128>(c, n, p) : run<FORMAT, KIND, 32>(c, n, p);
}

template <int FORMAT>
static mm_status run_kind(const mm_op_context *c, mm_out_kind kind, int tokens, int32_t n,
                          const mm_large_args *p)
{
    switch (kind) {
    case MM_OUT_BF16: /* never of experts, so never of few rows a matrix */
        return run<FORMAT, MM_OUT_BF16, 128>(c, n, p);
    case MM_OUT_F32:
        return run_tokens<FORMAT, MM_OUT_F32>(c, tokens, n, p);
    case MM_OUT_SWIGLU:
        break;
    }
    return run_tokens<FORMAT, MM_OUT_SWIGLU>(c, tokens, n, p);
}

mm_status mm_large_generic(const mm_op_context *c, mm_weight_format format, mm_out_kind kind,
                           int tokens, int32_t n_token_tile, const mm_large_args *p)
{
    if (n_token_tile == 0 || p->n_tile == 0)
        return MM_OK;
    switch (format) {
    case MM_WEIGHT_BF16:
        return run_kind<MM_WEIGHT_BF16>(c, kind, tokens, n_token_tile, p);
    case MM_WEIGHT_MXFP8:
        return run_kind<MM_WEIGHT_MXFP8>(c, kind, tokens, n_token_tile, p);
    default:
        return run_kind<MM_WEIGHT_NVFP4>(c, kind, tokens, n_token_tile, p);
    }
}
