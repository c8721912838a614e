/* moe.cu: the op: few rows through moe_small.cu, many through moe_large.cu. */
#include "kernels/cuda/kernels.h"

mm_status mm_cuda_moe(const mm_op_context *c, const mm_seq_view *seq, const mm_moe_args *a)
{
    mm_cuda_start(c);
    if (seq->n_row < 1)
        return MM_OK;
    const mm_expert_weights *w = a->w;
    const bool is_f32 =
        w->packed_w13.format == MM_WEIGHT_F32 || w->packed_w2.format == MM_WEIGHT_F32 ||
        w->shared_gate_up.format == MM_WEIGHT_F32 || w->shared_down.format == MM_WEIGHT_F32;
    if (seq->n_row <= MM_CUDA_SMALL_ROWS || c->shape->invariant || is_f32)
        return mm_cuda_moe_small(c, seq->n_row, a);
    return mm_cuda_moe_large(c, seq->n_row, a);
}
