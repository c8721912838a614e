/* cpu_simd_scalar.h: the 16-lane vector of the kernel templates in plain C, for any processor. A multiply-add is two
 * roundings here, because fmaf without hardware is a library call per lane. */
#ifndef MM_CPU_SIMD_SCALAR_H
#define MM_CPU_SIMD_SCALAR_H
#include "csrc/base/half.h"

#define SIMD_TARGET
#define SIMD static inline __attribute__((always_inline))
#define SIMD_TILE_M 1
#define SIMD_TILE_N 1

typedef struct vf {
    float f[16];
} vf;
typedef struct vi {
    uint32_t u[16];
} vi;

#define SIMD_EACH for (int l_ = 0; l_ < 16; l_++)
#define SIMD_MAP(type, field, expr)                                                                                    \
    type out_;                                                                                                         \
    SIMD_EACH out_.field[l_] = (expr);                                                                                 \
    return out_

SIMD vf vf_load(const float *p) { SIMD_MAP(vf, f, p[l_]); }
SIMD void vf_store(float *p, vf v) { memcpy(p, v.f, sizeof v.f); }
SIMD vf vf_set1(float x) { SIMD_MAP(vf, f, x); }
SIMD vf vf_zero(void) { return vf_set1(0.0f); }
SIMD vf vf_add(vf a, vf b) { SIMD_MAP(vf, f, a.f[l_] + b.f[l_]); }
SIMD vf vf_sub(vf a, vf b) { SIMD_MAP(vf, f, a.f[l_] - b.f[l_]); }
SIMD vf vf_mul(vf a, vf b) { SIMD_MAP(vf, f, a.f[l_] * b.f[l_]); }
SIMD vf vf_div(vf a, vf b) { SIMD_MAP(vf, f, a.f[l_] / b.f[l_]); }
SIMD vf vf_fma(vf a, vf b, vf c) { SIMD_MAP(vf, f, a.f[l_] * b.f[l_] + c.f[l_]); }
/* b where either is NaN */
SIMD vf vf_max(vf a, vf b) { SIMD_MAP(vf, f, a.f[l_] > b.f[l_] ? a.f[l_] : b.f[l_]); }
SIMD vf vf_min(vf a, vf b) { SIMD_MAP(vf, f, a.f[l_] < b.f[l_] ? a.f[l_] : b.f[l_]); }
SIMD vf vf_round(vf a) { SIMD_MAP(vf, f, nearbyintf(a.f[l_])); }
SIMD vf vf_select_lt(vf a, vf b, vf x, vf y) { SIMD_MAP(vf, f, a.f[l_] < b.f[l_] ? x.f[l_] : y.f[l_]); }
/* v is NaN ? x : y */
SIMD vf vf_select_nan(vf v, vf x, vf y) { SIMD_MAP(vf, f, isnan(v.f[l_]) ? x.f[l_] : y.f[l_]); }
SIMD bool vf_any_nan(vf a)
{
    bool any = false;
    SIMD_EACH any |= isnan(a.f[l_]) != 0;
    return any;
}

SIMD vi vi_load(const void *p)
{
    vi v;
    memcpy(v.u, p, sizeof v.u);
    return v;
}
SIMD vi vi_load_bytes(const void *p, int n) /* n <= 64, the rest 0 */
{
    vi v = {{0}};
    memcpy(v.u, p, (size_t)n);
    return v;
}
SIMD vi vi_set1(int32_t x) { SIMD_MAP(vi, u, (uint32_t)x); }
SIMD vi vi_and(vi a, vi b) { SIMD_MAP(vi, u, a.u[l_] & b.u[l_]); }
SIMD vi vi_or(vi a, vi b) { SIMD_MAP(vi, u, a.u[l_] | b.u[l_]); }
SIMD vi vi_xor(vi a, vi b) { SIMD_MAP(vi, u, a.u[l_] ^ b.u[l_]); }
SIMD vi vi_add(vi a, vi b) { SIMD_MAP(vi, u, a.u[l_] + b.u[l_]); }
SIMD vi vi_sll(vi a, int n) { SIMD_MAP(vi, u, a.u[l_] << n); }
SIMD vi vi_srl(vi a, int n) { SIMD_MAP(vi, u, a.u[l_] >> n); }
SIMD vf vf_cast(vi a)
{
    vf v;
    memcpy(v.f, a.u, sizeof v.f);
    return v;
}
SIMD vi vi_cast(vf a)
{
    vi v;
    memcpy(v.u, a.f, sizeof v.u);
    return v;
}
SIMD vf vf_from_vi(vi a) { SIMD_MAP(vf, f, (float)(int32_t)a.u[l_]); }
/* |a| < 2^31 and integral: the callers clamp and round */
SIMD vi vi_from_vf(vf a) { SIMD_MAP(vi, u, isnan(a.f[l_]) ? 0x80000000u : (uint32_t)(int32_t)a.f[l_]); }
SIMD vi vi_from_u8(const uint8_t *p) { SIMD_MAP(vi, u, p[l_]); }
SIMD vi vi_from_u16(const uint16_t *p) { SIMD_MAP(vi, u, p[l_]); }
SIMD void vi_store_u16(uint16_t *p, vi a) { SIMD_EACH p[l_] = (uint16_t)a.u[l_]; }
SIMD vi vi_from_u4(const uint8_t *p) { SIMD_MAP(vi, u, (uint32_t)p[l_ >> 1] >> ((l_ & 1) * 4)); }
SIMD vf vf_e2m1(vi code) { SIMD_MAP(vf, f, mm_f32_from_e2m1((uint8_t)code.u[l_])); }
SIMD vf vf_e4m3(vi code) { SIMD_MAP(vf, f, mm_f32_from_e4m3((uint8_t)code.u[l_])); }
SIMD vf vf_pairs_low(vf v) { SIMD_MAP(vf, f, v.f[l_ / 2]); }
SIMD vf vf_pairs_high(vf v) { SIMD_MAP(vf, f, v.f[8 + l_ / 2]); }
SIMD vf vf_halves(float a, float b) { SIMD_MAP(vf, f, l_ < 8 ? a : b); }
SIMD float vf_sum(vf v)
{
    for (int n = 8; n > 0; n /= 2) {
        for (int i = 0; i < n; i++)
            v.f[i] += v.f[i + n];
    }
    return v.f[0];
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
    float m = v.f[0];
    SIMD_EACH m = v.f[l_] > m ? v.f[l_] : m;
    return m;
}
SIMD void vf_transpose16(const float *src, int64_t src_stride, float *dst, int64_t dst_stride)
{
    for (int i = 0; i < 16; i++) {
        for (int j = 0; j < 16; j++)
            dst[j * dst_stride + i] = src[i * src_stride + j];
    }
}
#endif
