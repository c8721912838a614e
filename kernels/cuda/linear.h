/* linear.h: a product of few rows whose reader adds the slices of n_in itself, where that saves a
 * trip through memory and a wait for the last block. */
#ifndef MM_CUDA_LINEAR_H
#define MM_CUDA_LINEAR_H
#include "kernels/cuda/gemv.h"

/* f32 [n, n_row, n_out]: y is their sum in order (then rounded, if y is bf16); n at most
 * MM_LINEAR_SLICES. n 0: y was written. */
#define MM_LINEAR_SLICES 8
typedef struct mm_linear_slices {
    const float *part;
    int64_t stride; /* elements of a slice */
    int32_t n;
} mm_linear_slices;

/* Like mm_cuda_linear (kind MM_OUT_BF16 or MM_OUT_F32), or the slices of y in scratch. */
mm_status mm_cuda_linear_slices(const mm_op_context *c, const mm_weight *w, const void *x,
                                int64_t x_stride, int32_t n_row, mm_out_kind kind, void *y,
                                int64_t y_stride, mm_linear_slices *slices);
/* linear_mid.cu: the same for 9 to 64 rows of a matrix without a global scale. */
mm_status mm_cuda_linear_mid_slices(const mm_op_context *c, const mm_gemv_matrix *m,
                                    const uint16_t *x, int64_t x_stride, int32_t n_row,
                                    const mm_gemv_out *out, mm_linear_slices *slices);

/* Four values of a bf16 y from element `at`, a multiple of 4. */
MM_DEV_FN void mm_linear_read4(const mm_linear_slices &s, int64_t at, float x[4])
{
    float4 v[MM_LINEAR_SLICES]; /* on their way together */
#pragma unroll
    for (int k = 0; k < MM_LINEAR_SLICES; k++) {
        if (k < s.n)
            v[k] = *(const float4 *)(const void *)(s.part + k * s.stride + at);
    }
    x[0] = v[0].x, x[1] = v[0].y, x[2] = v[0].z, x[3] = v[0].w;
#pragma unroll
    for (int k = 1; k < MM_LINEAR_SLICES; k++) {
        if (k < s.n)
            x[0] += v[k].x, x[1] += v[k].y, x[2] += v[k].z, x[3] += v[k].w;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] = mm_round_bf16(x[i]);
}
#endif
