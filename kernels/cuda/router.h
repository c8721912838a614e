/* router.h: what the kernels of the router share: router.cu and, for many rows, router_sm90a.cu.
 * Both add the products of an expert and a row in the same order: pieces of 32 columns, a chain of
 * six products each; three pieces a group, four groups a slice of 384 columns, slices. */
#ifndef MM_CUDA_ROUTER_H
#define MM_CUDA_ROUTER_H
#include "kernels/cuda/kernels.h"

#define ROUTER_STEPS 2  /* of 16 columns, of a piece */
#define ROUTER_PIECES 3 /* of a group: of a warp, or of three warps */
#define ROUTER_GROUPS 4 /* of a slice */
#define ROUTER_COLS (ROUTER_GROUPS * ROUTER_PIECES * ROUTER_STEPS * 16) /* of a slice */

typedef struct mm_router_args {
    const uint16_t *h;
    const float *gate, *bias;
    float *part; /* [n_row, n_slice, n_expert] */
    int32_t *experts;
    float *weights;
    uint32_t *counter;
    int32_t n_row, d, n_expert, n_used, n_slice;
    int32_t rows; /* of a block */
    bool force, is_fused;
} mm_router_args;

/* Two f32 values to a pair of their bf16 parts: their sum is the value exactly. */
MM_DEV_FN void router_split(float2 v, uint32_t out[3])
{
#pragma unroll
    for (int i = 0; i < 3; i++) {
        out[i] = mm_f32x2_bf16x2(v.x, v.y);
        v.x -= mm_bf16_lo(out[i]);
        v.y -= mm_bf16_hi(out[i]);
    }
}

/* router_sm90a.cu. Whether so many rows fill the device without slices: then part is written as
 * finished logits [n_row, n_expert]. */
bool mm_router_many_is_whole(const mm_op_context *c, int32_t n_row);
mm_status mm_router_many_sm90a(const mm_op_context *c, const mm_router_args *a, bool is_whole);
#endif
