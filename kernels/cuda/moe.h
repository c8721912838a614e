/* moe.h: products of the experts of some rows, as moe_small.cu hands them to moe_mid.cu. */
#ifndef MM_CUDA_MOE_H
#define MM_CUDA_MOE_H
#include "kernels/cuda/gemv.h"

/* Row `pair` of out = W x[pair / x_div]. Routed: for each pair (row, slot), pair = row * k + slot,
 * W of its expert; shared: for each row, which is its own pair. */
typedef struct mm_moe_product {
    mm_gemv_matrix m; /* of one expert */
    mm_gemv_out out;  /* SWIGLU or F32 */
    const uint16_t *x;
    const float *global; /* decode scales by expert, SWIGLU two each, or NULL: factor */
    float factor[2];
    int32_t x_div;
} mm_moe_product;

/* The router's choices: pair (row, slot) = row * k + slot; those of experts [first, last) count. */
typedef struct mm_moe_choices {
    const int32_t *experts; /* [n_row, k] */
    int32_t n_row, k, first, last;
} mm_moe_choices;

/* Both in one launch. */
typedef struct mm_moe_launch {
    const mm_moe_product *routed, *shared; /* shared: or NULL */
    mm_moe_choices choices;
    bool looks_early; /* choices may be read before mm_pdl_wait */
} mm_moe_launch;

/* moe_mid.cu: up to MM_CUDA_SMALL_ROWS rows; additions are those of gemv.h in the same order. */
bool mm_cuda_moe_mid_takes(const mm_op_context *c, const mm_moe_launch *w);
mm_status mm_cuda_moe_mid(const mm_op_context *c, const mm_moe_launch *w);
#endif
