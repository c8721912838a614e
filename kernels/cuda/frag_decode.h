/* frag_decode.h: what a lane loads of a packed fragment (frag.h) to operand A of mma m16n8k16,
 * bf16, exact. The block scale is part of the operand, so that nothing is left to do in the loop
 * but products; NVFP4 comes out at 2^-8 of its value, which the packed global scale makes up for.
 *
 * Instructions for the 8 values of a lane and step: NVFP4 9 for the codes, 4 for the two scales (2
 * where pairs of steps share them), 4 products; MXFP8 10, 2 (a fragment), 4. */
#ifndef MM_CUDA_FRAG_DECODE_H
#define MM_CUDA_FRAG_DECODE_H
#include "kernels/cuda/frag.h"

/* codes: the two words of a step; scale of row g, scale_8 of row g + 8: e8m0 bytes, at most 134.
 * The masks leave bf16 pairs of the values times 2^-120. */
MM_DEV_FN void mm_frag_mxfp8(uint2 codes, uint32_t scale, uint32_t scale_8, uint32_t a[4])
{
    /* bf16 pair of 2^(b - 127 + 120): exponent field b + 120 */
    const uint32_t lo = scale * 0x00800080u + 0x3C003C00u;
    const uint32_t hi = scale_8 * 0x00800080u + 0x3C003C00u;
    a[0] = codes.x & 0x87F087F0u;
    a[1] = ((codes.x << 4) & 0x80F080F0u) | ((codes.x >> 4) & 0x07000700u);
    a[2] = codes.y & 0x87F087F0u;
    a[3] = ((codes.y << 4) & 0x80F080F0u) | ((codes.y >> 4) & 0x07000700u);
    a[0] = mm_mul_bf16x2(a[0], lo);
    a[1] = mm_mul_bf16x2(a[1], hi);
    a[2] = mm_mul_bf16x2(a[2], lo);
    a[3] = mm_mul_bf16x2(a[3], hi);
}

/* Bits of element j of a[i] in its word, i / 2 of the step: the inverse, for packing. */
MM_DEV_FN uint32_t mm_frag_mxfp8_bits(int i, int j, uint32_t code)
{
    const uint32_t sign = code & 0x80, m = code & 0x7F;
    const uint32_t half =
        i % 2 == 0 ? sign << 8 | m << 4 : sign << 4 | (m & 0x70) << 8 | (m & 0x0F);
    return half << (16 * j);
}

/* Packed scale byte s of a word in both halves: what mm_frag_nvfp4 takes. */
MM_DEV_FN uint32_t mm_frag_scale_pair(uint32_t scales, int s)
{
    return mm_prmt(scales, 0, 0x4040u | (uint32_t)s * 0x0101u);
}

/* bf16 pair of packed scales, each in a half, times 2^118: exponent field e - 10 + 118 + 127 */
MM_DEV_FN uint32_t mm_frag_scale_bf16(uint32_t pair)
{
    return pair * 16u + 0x75807580u;
}

/* Of a word of packed scales those of steps 2 i (low half) and 2 i + 1, bf16, times 2^118. */
MM_DEV_FN uint32_t mm_frag_scale_two(uint32_t scales, int i)
{
    return mm_frag_scale_bf16(mm_prmt(scales, 0, i == 0 ? 0x4140u : 0x4342u));
}

/* codes: the word of a step, to bf16 values times 2^-126. */
MM_DEV_FN void mm_frag_nvfp4_codes(uint32_t codes, uint32_t a[4])
{
    const uint32_t mask = 0x81C081C0u;
    a[0] = codes & mask;
    a[1] = (codes << 4) & mask;
    a[2] = __funnelshift_l(codes, codes, 10) & mask;
    a[3] = ((codes << 6) & 0x80C080C0u) | ((codes >> 2) & 0x01000100u);
}

/* The same times scale of row g, scale_8 of row g + 8: pairs of packed scale bytes. */
MM_DEV_FN void mm_frag_nvfp4(uint32_t codes, uint32_t scale, uint32_t scale_8, uint32_t a[4])
{
    const uint32_t lo = mm_frag_scale_bf16(scale), hi = mm_frag_scale_bf16(scale_8);
    mm_frag_nvfp4_codes(codes, a);
    a[0] = mm_mul_bf16x2(a[0], lo);
    a[1] = mm_mul_bf16x2(a[1], hi);
    a[2] = mm_mul_bf16x2(a[2], lo);
    a[3] = mm_mul_bf16x2(a[3], hi);
}

/* The same with scales of mm_frag_scale_two: HALF = step % 2. Two instructions less. */
template <int HALF>
MM_DEV_FN void mm_frag_nvfp4_half(uint32_t codes, uint32_t two, uint32_t two_8, uint32_t a[4])
{
    mm_frag_nvfp4_codes(codes, a);
    a[0] = mm_mul_bf16x2_half<HALF>(a[0], two);
    a[1] = mm_mul_bf16x2_half<HALF>(a[1], two_8);
    a[2] = mm_mul_bf16x2_half<HALF>(a[2], two);
    a[3] = mm_mul_bf16x2_half<HALF>(a[3], two_8);
}

/* Bits of element j of a[i] in its word: the inverse, for packing. */
MM_DEV_FN uint32_t mm_frag_nvfp4_bits(int i, int j, uint32_t code)
{
    const uint32_t sign = code >> 3 & 1, m = code & 7, other = m << (16 * (1 - j));
    const uint32_t half = i == 0   ? sign << 15 | m << 6
                          : i == 1 ? sign << 11 | m << 2
                          : i == 2 ? sign << 5
                                   : sign << 9 | (m >> 2) << 10 | (m & 3);
    return half << (16 * j) | (i == 2 ? other << 12 : 0);
}
#endif
