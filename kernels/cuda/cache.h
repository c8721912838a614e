/* cache.h: rows of the caches on the device: written by a warp, read as the operands that attention
 * and scoring multiply with. Bit-exact with csrc/base/half.h and kernels/ref/ref_quant.c.
 *
 * A row is one head vector of 128 values (MM_CACHE_DIM) of one position:
 *
 *     format  codes                      scales            operand (always exact in bf16)
 *     BF16    256 B                      -                 the value
 *     FP8     128 B e4m3                 -                 the value
 *     NVFP4    64 B e2m1, even low       8 B e4m3, one per 16   e4m3(e2m1 * scale)
 *
 * F32 caches are not taken here (check_shape refuses them). Row r of a plane lies at
 * data + r * mm_cache_codes<F>() and scale + r * mm_cache_scales<F>(); r = mm_cache_row(...). A
 * page and head are 128 rows one after the other, so a whole page of a head is one contiguous piece
 * of 128 * mm_cache_codes<F>() bytes (and 1024 bytes of scales): 16-byte copies take it raw.
 *
 * Reading is by 16 values: mm_cache_decode16<F>(codes in registers, scale, lut, out) gives 8 bf16
 * pairs in the order of the dims; NaN stays NaN (a NaN scale makes its 16 values NaN). What lies in
 * a page behind the last written position is anything, NaN included: the caller masks it (scores to
 * -inf, rows of V to zero). lut is only looked at for NVFP4: 128 entries (1 KB) of shared memory,
 * filled by mm_cache_lut_fill before a __syncthreads(). */
#ifndef MM_CUDA_CACHE_H
#define MM_CUDA_CACHE_H
#include "kernels/cuda/ptx.h"
#include "kernels/cuda_limits.h"

#define MM_CACHE_DIM MM_CUDA_HEAD_DIM
#define MM_CACHE_LUT_BYTES 1024

template <int F> static constexpr __host__ __device__ int mm_cache_codes() /* bytes of a row */
{
    return F == MM_CACHE_BF16 ? 256 : F == MM_CACHE_FP8 ? 128 : 64;
}
template <int F> static constexpr __host__ __device__ int mm_cache_scales()
{
    return F == MM_CACHE_NVFP4 ? 8 : 0;
}
/* 32-bit words of the codes of 16 values. */
template <int F> static constexpr __host__ __device__ int mm_cache_words16()
{
    return F == MM_CACHE_BF16 ? 8 : F == MM_CACHE_FP8 ? 4 : 2;
}
/* Runs `call` with F the constant of `format`; returns MM_E_UNSUPPORTED from the function
 * otherwise. b: the mm_cuda. */
#define MM_CACHE_DISPATCH(b, format, ...)                                                          \
    do {                                                                                           \
        if ((format) == MM_CACHE_BF16) {                                                           \
            constexpr int F = MM_CACHE_BF16;                                                       \
            MM_TRY((__VA_ARGS__));                                                                 \
        } else if ((format) == MM_CACHE_FP8) {                                                     \
            constexpr int F = MM_CACHE_FP8;                                                        \
            MM_TRY((__VA_ARGS__));                                                                 \
        } else if ((format) == MM_CACHE_NVFP4) {                                                   \
            constexpr int F = MM_CACHE_NVFP4;                                                      \
            MM_TRY((__VA_ARGS__));                                                                 \
        } else {                                                                                   \
            return MM_CUDA_FAIL((b), MM_E_UNSUPPORTED,                                             \
                                "cuda: a float32 cache is not supported; use bf16, fp8 or nvfp4"); \
        }                                                                                          \
    } while (0)

MM_DEV_FN int64_t mm_cache_row(const mm_plane &p, int64_t page, int head, int offset)
{
    return (page * p.n_head + head) * MM_PAGE + offset;
}
template <int F> MM_DEV_FN const uint8_t *mm_cache_data(const mm_plane &p, int64_t row)
{
    return p.data + row * mm_cache_codes<F>();
}
template <int F> MM_DEV_FN const uint8_t *mm_cache_scale(const mm_plane &p, int64_t row)
{
    return F == MM_CACHE_NVFP4 ? p.scale + row * mm_cache_scales<F>() : nullptr;
}

/* ---------------------------------------------------------------- writing */

/* Saturates to 6; NaN does not come here. */
MM_DEV_FN uint32_t mm_f32_e2m1(float x)
{
    const float a = fabsf(x);
    const uint32_t m = (uint32_t)(a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) +
                       (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return x < 0.0f && m != 0 ? m | 8u : m; /* a zero magnitude is stored without its sign */
}

/* A whole warp encodes one row; lane l holds x[0..3] = values 4 l .. 4 l + 3, already rounded to
 * bf16. Returns the lane's codes: BF16 two words, FP8 x, NVFP4 the low 16 bits of x; scale: of the
 * lane's block (NVFP4). */
template <int F> MM_DEV_FN uint2 mm_cache_encode4(const float x[4], uint32_t *scale)
{
    uint2 codes = {0, 0};
    *scale = 0;
    if (F == MM_CACHE_BF16) {
        codes.x = mm_f32x2_bf16x2(x[0], x[1]);
        codes.y = mm_f32x2_bf16x2(x[2], x[3]);
    } else if (F == MM_CACHE_FP8) {
        codes.x = mm_f32x2_e4m3x2(x[0], x[1]) | mm_f32x2_e4m3x2(x[2], x[3]) << 16;
    } else {
        float amax = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
        uint32_t bad = (uint32_t)(x[0] != x[0] || x[1] != x[1] || x[2] != x[2] || x[3] != x[3]);
        for (int i = 1; i <= 2; i *= 2) { /* the four lanes of a block of 16 */
            amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, i));
            bad |= __shfl_xor_sync(0xFFFFFFFFu, bad, i);
        }
        *scale = bad != 0 ? 0x7Fu : mm_f32_e4m3(fmaxf(fmaxf(amax, 1e-12f) / 6.0f, 0x1p-9f));
        if (bad == 0) {
            const float s = mm_e4m3_f32(*scale);
            codes.x = mm_f32_e2m1(x[0] / s) | mm_f32_e2m1(x[1] / s) << 4 |
                      mm_f32_e2m1(x[2] / s) << 8 | mm_f32_e2m1(x[3] / s) << 12;
        }
    }
    return codes;
}
/* The same, stored as row `row` of the plane. */
template <int F>
MM_DEV_FN void mm_cache_write4(const mm_plane &p, int64_t row, int lane, const float x[4])
{
    uint8_t *data = p.data + row * mm_cache_codes<F>();
    uint32_t scale;
    const uint2 codes = mm_cache_encode4<F>(x, &scale);
    if (F == MM_CACHE_BF16) {
        ((uint2 *)data)[lane] = codes;
    } else if (F == MM_CACHE_FP8) {
        ((uint32_t *)data)[lane] = codes.x;
    } else {
        ((uint16_t *)data)[lane] = (uint16_t)codes.x;
        if (lane % 4 == 0)
            p.scale[row * mm_cache_scales<F>() + lane / 4] = (uint8_t)scale;
    }
}

/* ---------------------------------------------------------------- reading */

/* Entry s: the e4m3 codes of the eight magnitudes of e2m1 times e4m3(s). Ends without a barrier. */
MM_DEV_FN void mm_cache_lut_fill(uint2 *lut, int thread, int n_thread)
{
    for (int s = thread; s < 128; s += n_thread) {
        const float x = mm_e4m3_f32((uint32_t)s);
        lut[s].x = mm_f32_e4m3(0.0f * x) | mm_f32_e4m3(0.5f * x) << 8 | mm_f32_e4m3(x) << 16 |
                   mm_f32_e4m3(1.5f * x) << 24;
        lut[s].y = mm_f32_e4m3(2.0f * x) | mm_f32_e4m3(3.0f * x) << 8 |
                   mm_f32_e4m3(4.0f * x) << 16 | mm_f32_e4m3(6.0f * x) << 24;
    }
}
/* Four e4m3 codes of four e2m1 codes (the low 16 bits of c) under a table entry. */
MM_DEV_FN uint32_t mm_e2m1x4_e4m3x4(uint32_t c, uint2 entry)
{
    uint32_t sign = c & 0x8888u;
    sign = (sign | sign << 8) & 0x00880088u;
    sign = (sign << 4 | sign << 8) & 0x80808080u;
    return mm_prmt(entry.x, entry.y, c & 0x7777u) | sign;
}
/* Bit 7 of every byte of the result that belongs to a NaN code is set (other bits: anything). */
MM_DEV_FN uint32_t mm_e4m3x4_nan(uint32_t c)
{
    return (c & 0x7F7F7F7Fu) + 0x01010101u;
}
/* 16 e4m3 codes to 8 bf16 pairs; NaN stays NaN. */
MM_DEV_FN void mm_e4m3x16_bf16(const uint32_t c[4], uint32_t out[8])
{
    for (int i = 0; i < 4; i++)
        mm_e4m3x4_bf16x4(c[i], out + 2 * i);
    const uint32_t nan =
        mm_e4m3x4_nan(c[0]) | mm_e4m3x4_nan(c[1]) | mm_e4m3x4_nan(c[2]) | mm_e4m3x4_nan(c[3]);
    if (nan & 0x80808080u) { /* rare */
        for (int i = 0; i < 4; i++) {
            for (int j = 0; j < 4; j++) {
                if ((c[i] >> 8 * j & 0x7Fu) == 0x7Fu)
                    out[2 * i + j / 2] |= j % 2 ? 0x7FFF0000u : 0x7FFFu;
            }
        }
    }
}
/* c: mm_cache_words16<F>() words of codes; scale: the block's e4m3 scale (NVFP4). */
template <int F>
MM_DEV_FN void mm_cache_decode16(const uint32_t *c, uint32_t scale, const uint2 *lut,
                                 uint32_t out[8])
{
    if (F == MM_CACHE_BF16) {
        for (int i = 0; i < 8; i++)
            out[i] = c[i];
    } else if (F == MM_CACHE_FP8) {
        mm_e4m3x16_bf16(c, out);
    } else {
        const uint2 entry = lut[scale & 0x7Fu];
        uint32_t e[4];
        for (int i = 0; i < 4; i++)
            e[i] = mm_e2m1x4_e4m3x4(c[i / 2] >> 16 * (i % 2), entry);
        mm_e4m3x16_bf16(e, out);
    }
}

/* A query element as an operand beside keys of format F: bf16 as is, or rounded to e4m3. Attention
 * queries are rounded for NVFP4 only (is_index false), index queries for FP8 and NVFP4. */
template <int F, bool is_index> MM_DEV_FN uint32_t mm_cache_query2(uint32_t q2)
{
    if (F == MM_CACHE_NVFP4 || (F == MM_CACHE_FP8 && is_index))
        return mm_f32x2_bf16x2(mm_e4m3_f32(mm_f32_e4m3(mm_bf16_lo(q2))),
                               mm_e4m3_f32(mm_f32_e4m3(mm_bf16_hi(q2))));
    return q2;
}

#endif
