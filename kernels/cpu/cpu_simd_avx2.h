/* cpu_simd_avx2.h: the 16-lane vector of the kernel templates on AVX2 + FMA: two registers, a =
 * lanes 0..7. */
#ifndef MM_CPU_SIMD_AVX2_H
#define MM_CPU_SIMD_AVX2_H
#include <immintrin.h>

#include "csrc/base/half.h"

#define SIMD_TARGET __attribute__((target("avx2,fma,f16c,bmi2")))
#define SIMD static inline __attribute__((always_inline)) SIMD_TARGET
#define SIMD_TILE_M 2
#define SIMD_TILE_N 2

typedef struct vf {
    __m256 a, b;
} vf;
typedef struct vi {
    __m256i a, b;
} vi;

SIMD vf vf_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
SIMD void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}
SIMD vf vf_set1(float x)
{
    return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
SIMD vf vf_zero(void)
{
    return (vf){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
SIMD vf vf_add(vf x, vf y)
{
    return (vf){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
SIMD vf vf_sub(vf x, vf y)
{
    return (vf){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
SIMD vf vf_mul(vf x, vf y)
{
    return (vf){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
SIMD vf vf_div(vf x, vf y)
{
    return (vf){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
SIMD vf vf_fma(vf x, vf y, vf z)
{
    return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
/* y where either is NaN */
SIMD vf vf_max(vf x, vf y)
{
    return (vf){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
SIMD vf vf_min(vf x, vf y)
{
    return (vf){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
SIMD vf vf_round(vf x)
{
    return (vf){_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
SIMD vf vf_select_lt(vf p, vf q, vf x, vf y)
{
    return (vf){_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(p.a, q.a, _CMP_LT_OQ)),
                _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(p.b, q.b, _CMP_LT_OQ))};
}
/* v is NaN ? x : y */
SIMD vf vf_select_nan(vf v, vf x, vf y)
{
    return (vf){_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(v.a, v.a, _CMP_UNORD_Q)),
                _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(v.b, v.b, _CMP_UNORD_Q))};
}
SIMD bool vf_any_nan(vf x)
{
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q),
                                           _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q))) != 0;
}

SIMD vi vi_load(const void *p)
{
    const __m256i *q = p;
    return (vi){_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
SIMD vi vi_load_bytes(const void *p, int n) /* n <= 64, the rest 0 */
{
    uint8_t whole[64] = {0};
    memcpy(whole, p, (size_t)n);
    return vi_load(whole);
}
SIMD vi vi_set1(int32_t x)
{
    return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
SIMD vi vi_and(vi x, vi y)
{
    return (vi){_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
SIMD vi vi_or(vi x, vi y)
{
    return (vi){_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
}
SIMD vi vi_xor(vi x, vi y)
{
    return (vi){_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)};
}
SIMD vi vi_add(vi x, vi y)
{
    return (vi){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
SIMD vi vi_sll(vi x, int n)
{
    return (vi){_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)};
}
SIMD vi vi_srl(vi x, int n)
{
    return (vi){_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)};
}
SIMD vf vf_cast(vi x)
{
    return (vf){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
}
SIMD vi vi_cast(vf x)
{
    return (vi){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)};
}
SIMD vi vi_from_vf(vf x)
{
    return (vi){_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)};
}
SIMD vi vi_from_u8(const uint8_t *p)
{
    const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (vi){_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(v, v))};
}
SIMD vi vi_from_u16(const uint16_t *p)
{
    const __m128i *q = (const __m128i *)(const void *)p;
    return (vi){_mm256_cvtepu16_epi32(_mm_loadu_si128(q)),
                _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))};
}
SIMD void vi_store_u16(uint16_t *p, vi x)
{
    const __m256i m = _mm256_set1_epi32(0xFFFF);
    const __m256i v =
        _mm256_packus_epi32(_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)); /* a0 b0 a1 b1 */
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_permute4x64_epi64(v, 0xD8));
}
SIMD vi vi_from_u4(const uint8_t *p)
{
    int32_t q[2];
    memcpy(q, p, 8);
    const __m256i by = _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0);
    return (vi){_mm256_srlv_epi32(_mm256_set1_epi32(q[0]), by),
                _mm256_srlv_epi32(_mm256_set1_epi32(q[1]), by)};
}
/* value of the e2m1 code in the low 4 bits */
SIMD __m256 vf_e2m1_half(__m256i code)
{
    const __m256 table = _mm256_set_ps(6.0f, 4.0f, 3.0f, 2.0f, 1.5f, 1.0f, 0.5f, 0.0f);
    const __m256i sign =
        _mm256_and_si256(_mm256_slli_epi32(code, 28), _mm256_set1_epi32((int32_t)0x80000000));
    return _mm256_or_ps(_mm256_permutevar8x32_ps(table, code), _mm256_castsi256_ps(sign));
}
SIMD vf vf_e2m1(vi code)
{
    return (vf){vf_e2m1_half(code.a), vf_e2m1_half(code.b)};
}
/* 16 e4m3 codes, by way of f16: (s eeee mmm) << 7 is the f16 of value * 2^-8, and 0x7F, which would
 * be a number there, becomes a NaN */
SIMD vf vf_from_e4m3(const uint8_t *p)
{
    const __m128i code = _mm_loadu_si128((const __m128i *)(const void *)p);
    const __m256i w = _mm256_slli_epi16(_mm256_cvtepu8_epi16(code), 8);
    const __m256i top = _mm256_set1_epi16(0x7F00);
    const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(w, top), top);
    __m256i h = _mm256_and_si256(_mm256_srai_epi16(w, 1), _mm256_set1_epi16((int16_t)0xBFFF));
    h = _mm256_or_si256(h, _mm256_srli_epi16(is_nan, 1));
    const __m256 gain = _mm256_set1_ps(256.0f);
    return (vf){_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(h)), gain),
                _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)), gain)};
}
/* lane i = v[i / 2], v[8 + i / 2] */
SIMD vf vf_pairs_of(__m256 v)
{
    return (vf){_mm256_permutevar8x32_ps(v, _mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0)),
                _mm256_permutevar8x32_ps(v, _mm256_set_epi32(7, 7, 6, 6, 5, 5, 4, 4))};
}
SIMD vf vf_pairs_low(vf v)
{
    return vf_pairs_of(v.a);
}
SIMD vf vf_pairs_high(vf v)
{
    return vf_pairs_of(v.b);
}
SIMD vf vf_halves(float a, float b)
{
    return (vf){_mm256_set1_ps(a), _mm256_set1_ps(b)};
}

SIMD __m128 vf_fold4(vf v)
{
    const __m256 s = _mm256_add_ps(v.a, v.b);
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}
SIMD float vf_sum(vf v)
{
    __m128 a = vf_fold4(v);
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps(a, a, 1)));
}
SIMD void vf_sum4(vf v0, vf v1, vf v2, vf v3, float *out)
{
    out[0] = vf_sum(v0);
    out[1] = vf_sum(v1);
    out[2] = vf_sum(v2);
    out[3] = vf_sum(v3);
}
SIMD float vf_max_lane(vf v)
{
    const __m256 s = _mm256_max_ps(v.a, v.b);
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}

SIMD void vf_transpose8(const float *src, int64_t src_stride, float *dst, int64_t dst_stride)
{
    __m256 r[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        r[i] = _mm256_loadu_ps(src + i * src_stride);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xEE);
        r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xEE);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        _mm256_storeu_ps(dst + c * dst_stride, _mm256_permute2f128_ps(r[c], r[4 + c], 0x20));
        _mm256_storeu_ps(dst + (4 + c) * dst_stride, _mm256_permute2f128_ps(r[c], r[4 + c], 0x31));
    }
}
SIMD void vf_transpose16(const float *src, int64_t src_stride, float *dst, int64_t dst_stride)
{
    vf_transpose8(src, src_stride, dst, dst_stride);
    vf_transpose8(src + 8, src_stride, dst + 8 * dst_stride, dst_stride);
    vf_transpose8(src + 8 * src_stride, src_stride, dst + 8, dst_stride);
    vf_transpose8(src + 8 * src_stride + 8, src_stride, dst + 8 * dst_stride + 8, dst_stride);
}
#endif
