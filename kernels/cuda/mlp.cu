/* mlp.cu: the dense MLP and the end of its branch. */
#include "kernels/cuda/branch.h"

mm_status mm_cuda_mlp(const mm_op_context *c, const mm_seq_view *seq, const mm_mlp_args *args)
{
    const int64_t d = c->shape->d_model, f = args->gate_up.n_out / 2;
    const int32_t n_row = seq->n_row;
    mm_linear_slices slices = {};
    void *a, *y;
    mm_cuda_start(c);
    if (n_row < 1)
        return MM_OK;
    if (args->gate_up.format == MM_WEIGHT_NONE || args->down->n_in != f)
        return MM_CUDA_FAIL(
            mm_cuda_of(c), MM_E_SHAPE,
            "cuda: an MLP of packed gate and up with %lld rows and down of %lld columns",
            (long long)args->gate_up.n_out, (long long)args->down->n_in);
    MM_TRY(mm_cuda_take(c, (size_t)n_row * (size_t)f * sizeof(uint16_t), &a));
    MM_TRY(mm_cuda_take(c, (size_t)n_row * (size_t)d * sizeof(float), &y));
    const size_t used = c->stream->scratch_used;
    MM_TRY(mm_cuda_linear(c, &args->gate_up, args->h, d, n_row, MM_OUT_SWIGLU, a, f));
    c->stream->scratch_used = used;
    const mm_out_kind kind = mm_branch_kind(n_row);
    if (mm_branch_takes_slices(c->shape))
        MM_TRY(mm_cuda_linear_slices(c, args->down, a, f, n_row, kind, y, d, &slices));
    else
        MM_TRY(mm_cuda_linear(c, args->down, a, f, n_row, kind, y, d));
    const mm_branch_sum sum = mm_branch_sum_of(y, kind, &slices);
    return mm_cuda_branch_sum_end(c, n_row, &sum, args->x, args->norm_w, args->h_out);
}
