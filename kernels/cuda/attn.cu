/* attn.cu: which attention runs: the decode kernels for steps of few rows per sequence, whose grids
 * do not depend on lengths, else the prefill kernels. */
#include "kernels/cuda/kernels.h"

/* Rows of one sequence share their keys in the prefill kernels, so their bits may differ from
 * decode's: the batch-invariant mode stays with decode. */
static bool is_decode(const mm_op_context *c, const mm_seq_view *seq)
{
    return seq->is_decode || c->shape->invariant != 0;
}

mm_status mm_cuda_attn_sparse(const mm_op_context *c, const mm_seq_view *seq,
                              const mm_attn_sparse_args *a)
{
    mm_cuda_start(c);
    return is_decode(c, seq) ? mm_cuda_attn_sparse_decode(c, seq, a)
                             : mm_cuda_attn_sparse_prefill(c, seq, a);
}

mm_status mm_cuda_attn_dense(const mm_op_context *c, const mm_seq_view *seq,
                             const mm_attn_dense_args *a)
{
    mm_cuda_start(c);
    return is_decode(c, seq) ? mm_cuda_attn_dense_decode(c, seq, a)
                             : mm_cuda_attn_dense_prefill(c, seq, a);
}
