/* attn_prefill_host.h: what the prefill files offer each other on the host. */
#ifndef MM_CUDA_ATTN_PREFILL_HOST_H
#define MM_CUDA_ATTN_PREFILL_HOST_H
#include "kernels/cuda/attn_prefill_full.h"
#include "kernels/cuda/attn_prefill_pages.h"
#include "kernels/cuda/attn_prefill_score.h"

/* index_prefill.cu: chooses the blocks of every row: list [I, T, n_top_block] i16 ascending, -1
 * filled; is_nan [I, T]: 1 where a score was NaN. Takes scratch for the scores; list and is_nan are
 * given. */
mm_status mm_cuda_index_prefill(const mm_op_context *c, const mm_seq_view *seq,
                                const mm_attn_sparse_args *a, int16_t *list, uint8_t *is_nan);
size_t mm_cuda_index_prefill_scratch(const mm_op_shape *s);

/* attn_prefill_sm90a.cu: the three kernels with wgmma. */
mm_status mm_score_sm90a(const mm_op_context *c, const mm_score_args &a);
mm_status mm_attn_pages_sm90a(const mm_op_context *c, const mm_attn_pages_args &a);
mm_status mm_attn_full_sm90a(const mm_op_context *c, const mm_attn_full_args &a);

#endif
