/* frag.h: the order of packed weights, one for every kernel and format.
 *
 * A matrix [n_out, n_in] is cut into row tiles of 16 rows; a row tile is a stream of fragments
 * along n_in, each 512 bytes: 16 bytes per lane, in lane order, exactly what a lane feeds to mma
 * m16n8k16 (or, four warps side by side, to wgmma with A in registers) as its operand A:
 *
 *     format  columns of a fragment   steps of 16 columns in the 16 bytes of a lane
 *     BF16    16                      1: a[0..3] as they are
 *     MXFP8   32                      2: step s: two words, bits as below
 *     NVFP4   64                      4: step s: 4 bytes, bits as below
 *     F32     16 (in 1536 bytes)      three BF16 fragments whose sum is the value exactly
 *
 * where of lane 4 g + t: a[0] = row g, columns 2 t, 2 t + 1; a[1] = row g + 8, the same columns;
 * a[2] = row g, columns 2 t + 8, + 9; a[3] = row g + 8, those. Rows are padded to 16, columns to
 * the fragment, both with zeros.
 *
 * MXFP8 words, the first of a[0] and a[1], the second of a[2] and a[3]: half j (bits 16 j ..) holds
 * element j of both, so that bf16 (sign at 15, exponent and mantissa at 10..4, the value times
 * 2^-120) is one mask away, or two shifts:
 *     a[0], a[2] sign 15, code 10..4                  a[1], a[3] sign 11, code 14..12, 3..0
 *
 * NVFP4 words: half j (bits 16 j ..) holds element j of a[0..3], so that few shifts, one rotation
 * and masks give bf16 (sign at 15, exponent and mantissa at 8..6, the value times 2^-126):
 *     a[0] sign 15, code 8..6                         a[1] sign 11, code 4..2
 *     a[2] sign 5, code 14..12 of the other half      a[3] sign 9, code 10, 1, 0
 *
 * Scales lie apart, fragment by fragment in the same order: MXFP8 16 bytes, row r at r, e8m0, at
 * most 134 (2^7: the product stays in bf16); NVFP4 64 bytes: of row g at 8 g + s, of row g + 8 at
 * 8 g + 4 + s for step s. So a lane reads the scales of its two rows with one load (the four lanes
 * of a g share it). An NVFP4 scale byte is e5m3 without sign: (1 + m / 8) 2^(e - 10) in the high
 * five and low three bits; byte 0 belongs to codes that are all 0. Packed NVFP4 values are 2^-8 of
 * the checkpoint's and packed global scales make up for it: global_scale and global_scales below
 * include the factor, readers need not know.
 *
 * mm_weight of a packed matrix: layout BACKEND, data = fragments, data_stride = bytes of a row
 * tile, scale, scale_stride = bytes of a row tile's scales, n_out, n_in as in the checkpoint.
 * Several matrices: MM_PACK_QKV: rows of q, k, v, iq, ik one after the other (each a multiple of 16
 * rows). MM_PACK_GATE_UP: row tile j holds rows 8 j .. 8 j + 7 of gate in its rows 0..7 and the
 * same rows of up in its rows 8..15, so that one lane holds gate (its row g) and up (its row g + 8)
 * of the same output; NVFP4: global_scales [2] (gate, up). MM_PACK_EXPERTS_W13: for each expert the
 * gate-up tiles of (w1, w3); MM_PACK_EXPERTS_W2: for each expert the plain tiles; n_out = n_expert
 * * rows of one expert (padded to 16), global_scales [2 n_expert] (w1, w3, w1, ...) or [n_expert],
 * decode scales (multiply: 1 / global_scale), f32. */
#ifndef MM_CUDA_FRAG_H
#define MM_CUDA_FRAG_H
#include "kernels/cuda/ptx.h"
#include "kernels/ops.h"

#define MM_FRAG_ROWS 16
#define MM_FRAG_BYTES 512

/* Columns of a fragment, its 512-byte parts, and bytes of its scales. */
static inline int32_t mm_frag_cols(mm_weight_format f)
{
    return f == MM_WEIGHT_MXFP8 ? 32 : f == MM_WEIGHT_NVFP4 ? 64 : 16;
}
static inline int32_t mm_frag_parts(mm_weight_format f)
{
    return f == MM_WEIGHT_F32 ? 3 : 1;
}
static inline int32_t mm_frag_scale_bytes(mm_weight_format f)
{
    return f == MM_WEIGHT_MXFP8 ? 16 : f == MM_WEIGHT_NVFP4 ? 64 : 0;
}
#endif
