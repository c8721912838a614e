/* attn_out.cu: the output projection of attention, the end of its branch, and the router. */
#include "kernels/cuda/branch.h"

size_t mm_cuda_out_scratch(const mm_op_shape *s)
{
    const size_t rows = (size_t)s->max_rows, d = (size_t)s->d_model, n = (size_t)s->max_logit_rows;
    const size_t mlp = mm_cuda_size(2 * rows * (size_t)s->d_dense) + mm_cuda_size(4 * rows * d);
    if (s->n_vocab_local >= s->n_vocab)
        return mlp;
    /* head of two ranks or more: one slice, and all of them */
    const size_t v = (size_t)s->n_vocab, even = (v + 1) / 2, local = (size_t)s->n_vocab_local;
    const size_t width = local > even ? local : even;
    const size_t head = mm_cuda_size(4 * n * width) + mm_cuda_size(4 * n * (v + width));
    return head > mlp ? head : mlp;
}

mm_status mm_cuda_attn_out(const mm_op_context *c, const mm_seq_view *seq,
                           const mm_attn_out_args *a)
{
    const int64_t d = c->shape->d_model, width = a->wo->n_in;
    mm_linear_slices slices = {};
    void *y;
    mm_cuda_start(c);
    if (seq->n_row < 1)
        return MM_OK;
    MM_TRY(mm_cuda_take(c, (size_t)seq->n_row * (size_t)d * sizeof(float), &y));
    const mm_out_kind kind = mm_branch_kind(seq->n_row);
    if (mm_branch_takes_slices(c->shape))
        MM_TRY(mm_cuda_linear_slices(c, a->wo, a->o, width, seq->n_row, kind, y, d, &slices));
    else
        MM_TRY(mm_cuda_linear(c, a->wo, a->o, width, seq->n_row, kind, y, d));
    const mm_branch_sum sum = mm_branch_sum_of(y, kind, &slices);
    return a->gate != NULL ? mm_cuda_branch_router(c, seq->n_row, &sum, a)
                           : mm_cuda_branch_sum_end(c, seq->n_row, &sum, a->x, a->norm_w, a->h);
}
