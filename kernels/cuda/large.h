/* large.h: the host side of gemm_large.h for its two users, linears and experts. */
#ifndef MM_CUDA_LARGE_H
#define MM_CUDA_LARGE_H
#include "kernels/cuda/gemm_large.h"

/* The matrix part of the arguments: n_group matrices of equal size, packed one after the other. */
mm_large_args mm_large_matrix(const mm_op_shape *s, const mm_weight *w, int32_t n_group);
/* Rows of a tile for groups of about rows_each rows: where a tile multiplies all its rows, of few
 * rows most would be padding. */
int mm_large_tile(const mm_op_context *c, int32_t rows_each);
/* On the tier of the device; tokens: of mm_large_tile. */
mm_status mm_large_launch(const mm_op_context *c, mm_weight_format format, mm_out_kind kind,
                          int tokens, int32_t n_token_tile, const mm_large_args *p);
#endif
