/* branch.h: where the f32 sum of a residual branch comes from. */
#ifndef MM_CUDA_BRANCH_H
#define MM_CUDA_BRANCH_H
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/linear.h"

/* y[t] = acc[t] (NULL: 0) + the products of routed_scale * weight with the experts' partial rows in
 * the order of the slots, those with first <= expert < last, + the shared expert's row. For a
 * branch that is finished already acc is the sum itself and n_slot 0. */
typedef struct mm_branch_sum {
    const float *acc;       /* [n_row, D], or the first of 1 + n_more whose sum in order it is */
    int32_t n_more;         /* with n_slot 0 and d_model up to 6144: at most 7 */
    int64_t more_stride;    /* elements */
    const float *part;      /* [n_row, n_slot, D] */
    const float *shared;    /* [n_row, D] or NULL */
    const int32_t *experts; /* [n_row, n_slot] */
    const float *weights;
    float routed_scale;
    int32_t n_slot, first, last;
    /* [n_row, D] or NULL: r(y) of this rank in place of all the above; the all-reduce is done in it
     */
    uint16_t *rounded;
} mm_branch_sum;

/* The end of the branch (ops.h, attn_out) of such a sum. */
mm_status mm_cuda_branch_sum_end(const mm_op_context *c, int32_t n_row, const mm_branch_sum *sum,
                                 void *x, const float *norm_w, void *h);
/* acc = the sum, where the branch goes on. */
mm_status mm_cuda_branch_sum_store(const mm_op_context *c, int32_t n_row, const mm_branch_sum *sum,
                                   float *acc);
/* Of rows t .. t + n_row - 1 of a MoE op: part [n_row, slots, D], shared [n_row, D] (read where the
 * op has the shared expert). Ends the branch or stores acc, as the op says. */
mm_status mm_cuda_branch_experts(const mm_op_context *c, const mm_moe_args *a, int32_t t,
                                 int32_t n_row, const float *part, const float *shared);
/* What the product of `wo` or `down` writes: of many rows r(y), which is all that the end of the
 * branch looks at and half the bytes. */
static inline mm_out_kind mm_branch_kind(int32_t n_row)
{
    return n_row > MM_CUDA_SMALL_ROWS ? MM_OUT_BF16 : MM_OUT_F32;
}
/* The sum of such a product: y, or its slices. */
static inline mm_branch_sum mm_branch_sum_of(void *y, mm_out_kind kind,
                                             const mm_linear_slices *slices)
{
    mm_branch_sum sum = {};
    if (kind == MM_OUT_BF16)
        sum.rounded = (uint16_t *)y;
    else
        sum.acc = (const float *)y;
    if (slices->n > 0) {
        sum.acc = slices->part;
        sum.n_more = slices->n - 1;
        sum.more_stride = slices->stride;
    }
    return sum;
}
/* The end of the branch of a product, then the router over h (router.cu): of one or two rows in one
 * launch. */
mm_status mm_cuda_branch_router(const mm_op_context *c, int32_t n_row, const mm_branch_sum *sum,
                                const mm_attn_out_args *a);
/* Columns up to which a sum may be in slices. */
static inline bool mm_branch_takes_slices(const mm_op_shape *s)
{
    return s->d_model <= 6144 && s->d_model % 4 == 0;
}
#endif
