/* cpu_simd_avx512.h: the 16-lane vector of the kernel templates on AVX-512 (F, BW, DQ, VL): one
 * register. Every header of this family defines the same names; cpu_kernels_*.h are written once
 * over them. */
#ifndef MM_CPU_SIMD_AVX512_H
#define MM_CPU_SIMD_AVX512_H
#include <immintrin.h>

#include "csrc/base/half.h"

#define SIMD_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2")))
#define SIMD static inline __attribute__((always_inline)) SIMD_TARGET
#define SIMD_TILE_M 4 /* rows of x and rows of W that a matrix tile keeps in registers */
#define SIMD_TILE_N 4

typedef __m512 vf;  /* 16 x f32 */
typedef __m512i vi; /* 16 x i32 */

SIMD vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
SIMD void vf_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}
SIMD vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
SIMD vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
SIMD vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
SIMD vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
SIMD vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
SIMD vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
SIMD vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* b where either is NaN */
SIMD vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
SIMD vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
SIMD vf vf_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a < b ? x : y; y where unordered */
SIMD vf vf_select_lt(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
/* v is NaN ? x : y */
SIMD vf vf_select_nan(vf v, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), y, x);
}
SIMD bool vf_any_nan(vf a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0;
}

SIMD vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
SIMD vi vi_load_bytes(const void *p, int n) /* n <= 64, the rest 0 */
{
    return _mm512_maskz_loadu_epi8(n >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << n) - 1, p);
}
SIMD vi vi_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}
SIMD vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
SIMD vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
SIMD vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}
SIMD vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
#define vi_sll(a, n) _mm512_slli_epi32(a, n)
#define vi_srl(a, n) _mm512_srli_epi32(a, n)
SIMD vf vf_cast(vi a)
{
    return _mm512_castsi512_ps(a);
}
SIMD vi vi_cast(vf a)
{
    return _mm512_castps_si512(a);
}
SIMD vi vi_from_vf(vf a)
{
    return _mm512_cvtps_epi32(a);
}
SIMD vi vi_from_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
SIMD vi vi_from_u16(const uint16_t *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
/* 16 low halves */
SIMD void vi_store_u16(uint16_t *p, vi a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(a));
}
/* 8 bytes of nibble pairs -> element j in the low 4 bits of lane j (higher bits: anything) */
SIMD vi vi_from_u4(const uint8_t *p)
{
    int64_t q;
    memcpy(&q, p, 8);
    const vi even_odd = _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    const vi halves =
        _mm512_permutexvar_epi32(_mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0),
                                 _mm512_castsi128_si512(_mm_cvtsi64_si128(q)));
    return _mm512_srlv_epi32(halves, even_odd);
}
/* value of the e2m1 code in the low 4 bits */
SIMD vf vf_e2m1(vi code)
{
    const vf table = _mm512_set_ps(-6.0f, -4.0f, -3.0f, -2.0f, -1.5f, -1.0f, -0.5f, -0.0f, 6.0f,
                                   4.0f, 3.0f, 2.0f, 1.5f, 1.0f, 0.5f, 0.0f);
    return _mm512_permutexvar_ps(code, table);
}
/* 16 e4m3 codes, by way of f16: (s eeee mmm) << 7 is the f16 of value * 2^-8, and 0x7F would be a
 * number there */
SIMD vf vf_from_e4m3(const uint8_t *p)
{
    const __m128i code = _mm_loadu_si128((const __m128i *)(const void *)p);
    const __m256i w = _mm256_slli_epi16(_mm256_cvtepu8_epi16(code), 8);
    const __m256i h = _mm256_and_si256(_mm256_srai_epi16(w, 1), _mm256_set1_epi16((int16_t)0xBFFF));
    const __m256i top = _mm256_set1_epi16(0x7F00);
    const __mmask16 is_nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(w, top), top);
    return _mm512_mask_mov_ps(_mm512_mul_ps(_mm512_cvtph_ps(h), _mm512_set1_ps(256.0f)), is_nan,
                              _mm512_set1_ps(NAN));
}
/* lane i = v[i / 2], v[8 + i / 2] */
SIMD vf vf_pairs_low(vf v)
{
    return _mm512_permutexvar_ps(_mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0),
                                 v);
}
SIMD vf vf_pairs_high(vf v)
{
    return _mm512_permutexvar_ps(
        _mm512_set_epi32(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8), v);
}
/* lanes 0..7 a, lanes 8..15 b */
SIMD vf vf_halves(float a, float b)
{
    return _mm512_mask_mov_ps(_mm512_set1_ps(a), 0xFF00, _mm512_set1_ps(b));
}

/* ((l + l+8) + (l+4 + l+12)) ...: the one tree every sum over lanes uses */
SIMD __m128 vf_fold4(vf v)
{
    const __m256 s = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
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
    const __m128 a0 = vf_fold4(v0), a1 = vf_fold4(v1), a2 = vf_fold4(v2), a3 = vf_fold4(v3);
    const __m128 p = _mm_unpacklo_ps(a0, a1), q = _mm_unpackhi_ps(a0, a1); /* a0[0] a1[0] a0[1]
                                                                              a1[1]; ..[2] ..[3] */
    const __m128 r = _mm_unpacklo_ps(a2, a3), s = _mm_unpackhi_ps(a2, a3);
    const __m128 even = _mm_add_ps(_mm_movelh_ps(p, r), _mm_movelh_ps(q, s)); /* a[0] + a[2] */
    const __m128 odd = _mm_add_ps(_mm_movehl_ps(r, p), _mm_movehl_ps(s, q));  /* a[1] + a[3] */
    _mm_storeu_ps(out, _mm_add_ps(even, odd));
}
SIMD float vf_max_lane(vf v)
{
    return _mm512_reduce_max_ps(v);
}

/* dst[j][i] = src[i][j] for a 16 x 16 block; strides in floats */
SIMD void vf_transpose16(const float *src, int64_t src_stride, float *dst, int64_t dst_stride)
{
    vf r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        r[i] = vf_load(src + i * src_stride);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* r[4 i + c]: column c of rows 4 i .. 4 i + 3, one per 128-bit
                                     lane */
        r[4 * i] = _mm512_castpd_ps(
            _mm512_unpacklo_pd(_mm512_castps_pd(t[4 * i]), _mm512_castps_pd(t[4 * i + 2])));
        r[4 * i + 1] = _mm512_castpd_ps(
            _mm512_unpackhi_pd(_mm512_castps_pd(t[4 * i]), _mm512_castps_pd(t[4 * i + 2])));
        r[4 * i + 2] = _mm512_castpd_ps(
            _mm512_unpacklo_pd(_mm512_castps_pd(t[4 * i + 1]), _mm512_castps_pd(t[4 * i + 3])));
        r[4 * i + 3] = _mm512_castpd_ps(
            _mm512_unpackhi_pd(_mm512_castps_pd(t[4 * i + 1]), _mm512_castps_pd(t[4 * i + 3])));
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) { /* r[4 i + c] lane k: column 4 k + c of rows 4 i .. */
        const vf a = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x44),
                 b = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x44);
        const vf d = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xEE),
                 e = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xEE);
        vf_store(dst + c * dst_stride, _mm512_shuffle_f32x4(a, b, 0x88));
        vf_store(dst + (4 + c) * dst_stride, _mm512_shuffle_f32x4(a, b, 0xDD));
        vf_store(dst + (8 + c) * dst_stride, _mm512_shuffle_f32x4(d, e, 0x88));
        vf_store(dst + (12 + c) * dst_stride, _mm512_shuffle_f32x4(d, e, 0xDD));
    }
}
#endif
