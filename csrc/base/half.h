/* half.h: the number formats of the checkpoint and the caches, one value or one block at a time.
 * These functions are the definition that tables and vector code are tested against; every rounding
 * is to nearest, ties to even.
 *
 *   bf16  s eeeeeeee mmmmmmm           NaN is written as 0x7FFF
 *   e4m3  s eeee mmm, bias 7           no infinity; 0x7F, 0xFF are NaN; largest 448; encoders
 * saturate e2m1  s ee m, bias 1               0 .5 1 1.5 2 3 4 6 and their negatives; two per byte,
 * even element low e8m0  eeeeeeee                     2^(b - 127); 0 is 2^-127, 255 is NaN
 *
 * f32 subnormals are inputs and outputs like any other, so nothing here multiplies by a trick
 * constant that a flush-to-zero mode of the calling thread could break. */
#ifndef MM_HALF_H
#define MM_HALF_H

#include <math.h>

#include "csrc/base/base.h"

static inline uint32_t mm_bits_from_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float mm_f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* ---------------------------------------------------------------- scalars */

static inline uint16_t mm_bf16_from_f32(float x)
{
    uint32_t u = mm_bits_from_f32(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return 0x7FFF;
    u += 0x7FFFu + ((u >> 16) & 1u);
    return (uint16_t)(u >> 16);
}

static inline float mm_f32_from_bf16(uint16_t h)
{
    return mm_f32_from_bits((uint32_t)h << 16);
}

static inline float mm_f32_round_bf16(float x)
{
    return mm_f32_from_bf16(mm_bf16_from_f32(x));
}

/* |x| > 448 and infinities become +-448; NaN becomes 0x7F. */
static inline uint8_t mm_e4m3_from_f32(float x)
{
    const uint32_t u = mm_bits_from_f32(x);
    const uint32_t a = u & 0x7FFFFFFFu;
    const uint8_t sign = (uint8_t)((u >> 24) & 0x80u);
    if (a > 0x7F800000u)
        return 0x7F;
    if (a >= 0x43E00000u) /* 448 */
        return sign | 0x7E;
    if (a < 0x3C800000u) { /* 2^-6: steps of 2^-9, which is the ulp of 2^14, so the addition rounds
                              for us */
        const float magic = 16384.0f;
        return sign |
               (uint8_t)(mm_bits_from_f32(mm_f32_from_bits(a) + magic) - mm_bits_from_f32(magic));
    }
    const uint32_t r = a + 0x7FFFFu + ((a >> 20) & 1u);
    return sign | (uint8_t)((r >> 20) - ((127u - 7u) << 3));
}

static inline float mm_f32_from_e4m3(uint8_t c)
{
    const uint32_t sign = (uint32_t)(c & 0x80u) << 24;
    const uint32_t a = c & 0x7Fu;
    if (a == 0x7Fu)
        return mm_f32_from_bits(sign | 0x7FC00000u);
    if (a < 8u) {
        const float x = (float)a * 0x1p-9f;
        return sign != 0 ? -x : x;
    }
    return mm_f32_from_bits(sign | ((a << 20) + ((127u - 7u) << 23)));
}

/* Saturates to +-6 and keeps the sign of zero; NaN becomes +6. */
static inline uint8_t mm_e2m1_from_f32(float x)
{
    if (isnan(x))
        return 0x7;
    const float a = fabsf(x);
    const int m = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                  (a >= 3.5f) + (a > 5.0f);
    return (uint8_t)(m | (signbit(x) ? 8 : 0));
}

static inline float mm_f32_from_e2m1(uint8_t c)
{
    static const float value[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    return value[c & 15];
}

static inline float mm_f32_from_e8m0(uint8_t c)
{
    if (c == 255)
        return mm_f32_from_bits(0x7FC00000u);
    return mm_f32_from_bits(c == 0 ? 0x00400000u : (uint32_t)c << 23);
}

/* Smallest (ceil) power of two >= x or largest (floor) <= x, clamped to 2^-127 .. 2^127; x <= 0
 * gives 0, NaN 255. */
static inline uint8_t mm_e8m0_from_f32_ceil(float x)
{
    if (isnan(x))
        return 255;
    if (x <= 0.0f)
        return 0;
    if (isinf(x))
        return 254;
    int e;
    const float m = frexpf(x, &e); /* x = m 2^e, 0.5 <= m < 1 */
    const int b = (m == 0.5f ? e - 1 : e) + 127;
    return (uint8_t)(b < 0 ? 0 : b > 254 ? 254 : b);
}

static inline uint8_t mm_e8m0_from_f32_floor(float x)
{
    if (isnan(x))
        return 255;
    if (x <= 0.0f)
        return 0;
    if (isinf(x))
        return 254;
    int e;
    (void)frexpf(x, &e);
    const int b = e - 1 + 127;
    return (uint8_t)(b < 0 ? 0 : b > 254 ? 254 : b);
}

/* Codes of a byte array of e2m1 pairs. */
static inline uint8_t mm_e2m1_at(const uint8_t *packed, int64_t i)
{
    return (uint8_t)((packed[i >> 1] >> ((i & 1) * 4)) & 15);
}

static inline void mm_e2m1_put(uint8_t *packed, int64_t i, uint8_t code)
{
    const int shift = (int)(i & 1) * 4;
    packed[i >> 1] = (uint8_t)((packed[i >> 1] & (0xF0 >> shift)) | ((code & 15) << shift));
}

/* ---------------------------------------------------------------- blocks */

static inline float mm_block_amax(const float *x, int n)
{
    float amax = 0.0f;
    for (int i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    return amax;
}

/* The KV4 writer: 16 values (already rounded to bf16) -> 8 bytes of codes and one e4m3 scale, never
 * 0 and never NaN for finite x; a zero magnitude is stored without its sign. */
static inline void mm_kv4_quantize16(const float *x, uint8_t *codes8, uint8_t *scale)
{
    const float amax = fmaxf(mm_block_amax(x, 16), 1e-12f);
    *scale = mm_e4m3_from_f32(fmaxf(amax / 6.0f, 0x1p-9f));
    const float s = mm_f32_from_e4m3(*scale);
    for (int i = 0; i < 16; i++) {
        const uint8_t c = mm_e2m1_from_f32(x[i] / s);
        mm_e2m1_put(codes8, i, (c & 7) == 0 ? 0 : c);
    }
}

/* What attention multiplies with: the product (exact in f32) rounded once to e4m3, saturating at
 * 448. */
static inline float mm_kv4_operand(uint8_t code, uint8_t scale)
{
    return mm_f32_from_e4m3(mm_e4m3_from_f32(mm_f32_from_e2m1(code) * mm_f32_from_e4m3(scale)));
}

/* Weights and activations in NVFP4: 16 values with an encode scale E = 1 / D for the whole
 * matrix. Value of a code: e2m1 * e4m3(scale) * D. A tiny block may get scale 0, and then every
 * value is 0. */
static inline void mm_nvfp4_quantize16(const float *x, float encode_scale, uint8_t *codes8,
                                       uint8_t *scale)
{
    const float amax = mm_block_amax(x, 16);
    *scale = mm_e4m3_from_f32(encode_scale * (amax * (1.0f / 6.0f)));
    const float s = mm_f32_from_e4m3(*scale);
    const float gain = s == 0.0f ? 0.0f : 1.0f / (s * (1.0f / encode_scale));
    for (int i = 0; i < 16; i++)
        mm_e2m1_put(codes8, i, mm_e2m1_from_f32(x[i] * gain));
}

typedef enum mm_mx_rule {
    MM_MX_CEIL = 0, /* 2^ceil(log2(amax / 448)): no element clips; what NVIDIA's kernels write, and
                       what we write */
    MM_MX_OCP, /* 2^(floor(log2 amax) - 8) of OCP MX 1.0: elements up to 512 units clip to 448 */
} mm_mx_rule;

/* MXFP8: 32 values -> 32 e4m3 codes and one e8m0 scale. */
static inline void mm_mxfp8_quantize32(const float *x, mm_mx_rule rule, uint8_t *codes32,
                                       uint8_t *scale)
{
    const float amax = mm_block_amax(x, 32);
    if (rule == MM_MX_CEIL) {
        *scale = mm_e8m0_from_f32_ceil(amax * (1.0f / 448.0f));
    } else {
        const int b = amax == 0.0f ? 0 : (int)mm_e8m0_from_f32_floor(amax) - 8;
        *scale = (uint8_t)(b < 0 ? 0 : b);
    }
    /* ldexpf, not a product with 2^(127 - b): that power leaves f32 at b = 254 and at b = 0 only as
     * a subnormal. */
    for (int i = 0; i < 32; i++)
        codes32[i] = amax == 0.0f ? mm_e4m3_from_f32(0.0f * x[i])
                                  : mm_e4m3_from_f32(ldexpf(x[i], 127 - *scale));
}

/* ---------------------------------------------------------------- scale layouts of tensor-core
 * backends */

/* Byte of scale (row, col) in tiles of 128 rows x 4 columns (512 bytes, tiles of a 128-row band
 * side by side); n_col columns, padded to a multiple of 4. */
static inline int64_t mm_scale_swizzle_128x4(int64_t row, int64_t col, int64_t n_col)
{
    const int64_t tile = (row / 128) * mm_ceil_div(n_col, 4) + col / 4;
    return tile * 512 + (row % 32) * 16 + ((row % 128) / 32) * 4 + col % 4;
}

/* Byte of V's block scale (token, group) where four tokens share a 4 x 4 tile; n_group groups, a
 * multiple of 4. */
static inline int64_t mm_scale_swizzle_v(int64_t token, int64_t group, int64_t n_group)
{
    const int64_t per_quad = n_group / 4;
    return ((token / 4) * 4 + group / per_quad) * n_group + (group % per_quad) * 4 + token % 4;
}
#endif
