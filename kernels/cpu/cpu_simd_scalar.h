/* cpu_simd_scalar.h: the 16-lane vector of the kernel templates for any processor: four vectors of
 * the compiler's own kind (16 bytes: every 64-bit processor has them). A multiply-add is two
 * roundings here, because fmaf without hardware is a library call per lane. */
#ifndef MM_CPU_SIMD_SCALAR_H
#define MM_CPU_SIMD_SCALAR_H
#include "csrc/base/half.h"

#define SIMD_TARGET
#define SIMD static inline __attribute__((always_inline))
#define SIMD_TILE_M 1
#define SIMD_TILE_N 1

typedef float v4f __attribute__((vector_size(16)));
typedef uint32_t v4u __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));
typedef struct vf {
    v4f a, b, c, d; /* lanes 0..3, 4..7, 8..11, 12..15 */
} vf;
typedef struct vi {
    v4u a, b, c, d;
} vi;

SIMD v4f v4f_set1(float x)
{
    return (v4f){x, x, x, x};
}
SIMD v4u v4u_set1(uint32_t x)
{
    return (v4u){x, x, x, x};
}
SIMD v4f v4f_select(v4u mask, v4f x, v4f y)
{
    return (v4f)((mask & (v4u)x) | (~mask & (v4u)y));
}
SIMD v4u v4u_select(v4u mask, v4u x, v4u y)
{
    return (mask & x) | (~mask & y);
}

SIMD vf vf_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
SIMD void vf_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}
SIMD vf vf_set1(float x)
{
    return (vf){v4f_set1(x), v4f_set1(x), v4f_set1(x), v4f_set1(x)};
}
SIMD vf vf_zero(void)
{
    return vf_set1(0.0f);
}
SIMD vf vf_add(vf x, vf y)
{
    return (vf){x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d};
}
SIMD vf vf_sub(vf x, vf y)
{
    return (vf){x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d};
}
SIMD vf vf_mul(vf x, vf y)
{
    return (vf){x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d};
}
SIMD vf vf_div(vf x, vf y)
{
    return (vf){x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d};
}
SIMD vf vf_fma(vf x, vf y, vf z)
{
    return vf_add(vf_mul(x, y), z);
}
/* y where either is NaN */
SIMD v4f v4f_max(v4f x, v4f y)
{
    return v4f_select((v4u)(x > y), x, y);
}
SIMD v4f v4f_min(v4f x, v4f y)
{
    return v4f_select((v4u)(x < y), x, y);
}
SIMD vf vf_max(vf x, vf y)
{
    return (vf){v4f_max(x.a, y.a), v4f_max(x.b, y.b), v4f_max(x.c, y.c), v4f_max(x.d, y.d)};
}
SIMD vf vf_min(vf x, vf y)
{
    return (vf){v4f_min(x.a, y.a), v4f_min(x.b, y.b), v4f_min(x.c, y.c), v4f_min(x.d, y.d)};
}
/* |x| < 2^22: the sum has no room for a fraction */
SIMD vf vf_round(vf x)
{
    const vf magic = vf_set1(12582912.0f);
    return vf_sub(vf_add(x, magic), magic);
}
/* p < q ? x : y; y where unordered */
SIMD vf vf_select_lt(vf p, vf q, vf x, vf y)
{
    return (vf){v4f_select((v4u)(p.a < q.a), x.a, y.a), v4f_select((v4u)(p.b < q.b), x.b, y.b),
                v4f_select((v4u)(p.c < q.c), x.c, y.c), v4f_select((v4u)(p.d < q.d), x.d, y.d)};
}
/* v is NaN ? x : y */
SIMD vf vf_select_nan(vf v, vf x, vf y)
{
    return (vf){v4f_select((v4u)(v.a == v.a), y.a, x.a), v4f_select((v4u)(v.b == v.b), y.b, x.b),
                v4f_select((v4u)(v.c == v.c), y.c, x.c), v4f_select((v4u)(v.d == v.d), y.d, x.d)};
}
SIMD bool vf_any_nan(vf v)
{
    const v4i ordered = (v.a == v.a) & (v.b == v.b) & (v.c == v.c) & (v.d == v.d);
    return (ordered[0] & ordered[1] & ordered[2] & ordered[3]) == 0;
}

SIMD vi vi_load(const void *p)
{
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}
SIMD vi vi_load_bytes(const void *p, int n) /* n <= 64, the rest 0 */
{
    uint8_t whole[64] = {0};
    memcpy(whole, p, (size_t)n);
    return vi_load(whole);
}
SIMD vi vi_set1(int32_t x)
{
    const v4u v = v4u_set1((uint32_t)x);
    return (vi){v, v, v, v};
}
SIMD vi vi_and(vi x, vi y)
{
    return (vi){x.a & y.a, x.b & y.b, x.c & y.c, x.d & y.d};
}
SIMD vi vi_or(vi x, vi y)
{
    return (vi){x.a | y.a, x.b | y.b, x.c | y.c, x.d | y.d};
}
SIMD vi vi_xor(vi x, vi y)
{
    return (vi){x.a ^ y.a, x.b ^ y.b, x.c ^ y.c, x.d ^ y.d};
}
SIMD vi vi_add(vi x, vi y)
{
    return (vi){x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d};
}
SIMD vi vi_sll(vi x, int n)
{
    return (vi){x.a << n, x.b << n, x.c << n, x.d << n};
}
SIMD vi vi_srl(vi x, int n)
{
    return (vi){x.a >> n, x.b >> n, x.c >> n, x.d >> n};
}
SIMD vf vf_cast(vi x)
{
    return (vf){(v4f)x.a, (v4f)x.b, (v4f)x.c, (v4f)x.d};
}
SIMD vi vi_cast(vf x)
{
    return (vi){(v4u)x.a, (v4u)x.b, (v4u)x.c, (v4u)x.d};
}
SIMD v4f v4f_from_v4u(v4u x)
{
    return __builtin_convertvector((v4i)x, v4f);
}
SIMD v4u v4u_from_v4f(v4f x)
{
    return (v4u) __builtin_convertvector(x, v4i);
}
SIMD vi vi_from_vf(vf x)
{
    return (vi){v4u_from_v4f(x.a), v4u_from_v4f(x.b), v4u_from_v4f(x.c), v4u_from_v4f(x.d)};
}

SIMD vi vi_from_u8(const uint8_t *p)
{
    return (vi){{p[0], p[1], p[2], p[3]},
                {p[4], p[5], p[6], p[7]},
                {p[8], p[9], p[10], p[11]},
                {p[12], p[13], p[14], p[15]}};
}
SIMD vi vi_from_u16(const uint16_t *p)
{
    return (vi){{p[0], p[1], p[2], p[3]},
                {p[4], p[5], p[6], p[7]},
                {p[8], p[9], p[10], p[11]},
                {p[12], p[13], p[14], p[15]}};
}
SIMD void vi_store_u16(uint16_t *p, vi x)
{
    uint32_t u[16];
    memcpy(u, &x, sizeof u);
    for (int i = 0; i < 16; i++)
        p[i] = (uint16_t)u[i];
}
/* 8 bytes of nibble pairs -> element j in the low 4 bits of lane j (higher bits: anything) */
SIMD vi vi_from_u4(const uint8_t *p)
{
    uint32_t q[2];
    memcpy(q, p, sizeof q);
    const v4u low = {0, 4, 8, 12}, high = {16, 20, 24, 28};
    return (vi){v4u_set1(q[0]) >> low, v4u_set1(q[0]) >> high, v4u_set1(q[1]) >> low,
                v4u_set1(q[1]) >> high};
}
/* value of the e2m1 code in the low 4 bits: 0, .5, then (1 + m / 2) 2^(e - 1) */
SIMD v4f v4f_e2m1(v4u code)
{
    const v4u m = code & 7u;
    const v4u normal = (((m >> 1) + 126u) << 23) | ((m & 1u) << 22);
    return (v4f)(v4u_select((v4u)(m < 2u), m * (126u << 23), normal) | (code << 28 & 0x80000000u));
}
SIMD vf vf_e2m1(vi x)
{
    return (vf){v4f_e2m1(x.a), v4f_e2m1(x.b), v4f_e2m1(x.c), v4f_e2m1(x.d)};
}
/* value of the e4m3 code in the low 8 bits (the others are 0) */
SIMD v4f v4f_e4m3(v4u code)
{
    const v4u a = code & 0x7Fu;
    v4u n = v4u_select((v4u)(a < 8u), (v4u)(v4f_from_v4u(a) * 0x1p-9f), (a << 20) + (120u << 23));
    n = v4u_select((v4u)(a == 0x7Fu), v4u_set1(0x7FC00000u), n);
    return (v4f)(n | (code & 0x80u) << 24);
}
SIMD vf vf_from_e4m3(const uint8_t *p)
{
    const vi x = vi_from_u8(p);
    return (vf){v4f_e4m3(x.a), v4f_e4m3(x.b), v4f_e4m3(x.c), v4f_e4m3(x.d)};
}
/* lane i = v[i / 2], v[8 + i / 2] */
SIMD vf vf_pairs_of(v4f x, v4f y)
{
    return (vf){{x[0], x[0], x[1], x[1]},
                {x[2], x[2], x[3], x[3]},
                {y[0], y[0], y[1], y[1]},
                {y[2], y[2], y[3], y[3]}};
}
SIMD vf vf_pairs_low(vf v)
{
    return vf_pairs_of(v.a, v.b);
}
SIMD vf vf_pairs_high(vf v)
{
    return vf_pairs_of(v.c, v.d);
}
SIMD vf vf_halves(float x, float y)
{
    return (vf){v4f_set1(x), v4f_set1(x), v4f_set1(y), v4f_set1(y)};
}
/* ((l + l+8) + (l+4 + l+12)) ...: the tree of every tier */
SIMD float vf_sum(vf v)
{
    const v4f s = (v.a + v.c) + (v.b + v.d);
    return (s[0] + s[2]) + (s[1] + s[3]);
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
    const v4f m = v4f_max(v4f_max(v.a, v.b), v4f_max(v.c, v.d));
    const float x = m[0] > m[1] ? m[0] : m[1], y = m[2] > m[3] ? m[2] : m[3];
    return x > y ? x : y;
}
SIMD void vf_transpose16(const float *src, int64_t src_stride, float *dst, int64_t dst_stride)
{
    for (int i = 0; i < 16; i++) {
        for (int j = 0; j < 16; j++)
            dst[j * dst_stride + i] = src[i * src_stride + j];
    }
}
#endif
