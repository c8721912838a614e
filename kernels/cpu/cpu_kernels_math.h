/* cpu_kernels_math.h: row-wise arithmetic (conversion, norm, SwiGLU, exp) over the vector of a
 * tier. Sums over a row run in 16 lanes and end in the tree of vf_sum. */
#ifndef MM_CPU_KERNELS_MATH_H
#define MM_CPU_KERNELS_MATH_H
#include "kernels/cpu/cpu.h"

/* ---------------------------------------------------------------- vectors */

/* The first n < 16 of p, the rest 0. */
SIMD vf load_part(const float *p, int64_t n)
{
    float whole[16] = {0};
    memcpy(whole, p, (size_t)n * sizeof(float));
    return vf_load(whole);
}

SIMD void store_part(float *p, int64_t n, vf v)
{
    float whole[16];
    vf_store(whole, v);
    memcpy(p, whole, (size_t)n * sizeof(float));
}

SIMD vf vf_abs(vf v)
{
    return vf_cast(vi_and(vi_cast(v), vi_set1(0x7FFFFFFF)));
}

/* exp(x): 2^n times a polynomial of degree 6 on |r| <= ln2 / 2 (coefficients of the Cephes
 * library's expf). Relative error below 2e-7 (measured: tests/c/test_cpu_math.c); 0 below -87.33,
 * where the result would be subnormal; inf above 88.72; NaN stays. */
SIMD vf vf_exp(vf x)
{
    const vf low = vf_set1(-87.336544f), high = vf_set1(88.722839f);
    const vf y = vf_max(low, vf_min(high, x));
    const vf n = vf_round(vf_mul(y, vf_set1(1.44269504088896341f)));
    vf r = vf_fma(n, vf_set1(-0.693359375f), y);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_fma(vf_set1(1.9875691500e-4f), r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_add(vf_fma(p, vf_mul(r, r), r), vf_set1(1.0f));
    /* 2^n in two factors, since n may be 128 */
    const vi i = vi_from_vf(n);
    const vi half = vi_add(vi_srl(vi_add(i, vi_set1(256)), 1), vi_set1(-128)); /* floor(n / 2) */
    const vi rest = vi_add(i, vi_add(vi_xor(half, vi_set1(-1)), vi_set1(1)));
    p = vf_mul(p, vf_cast(vi_sll(vi_add(half, vi_set1(127)), 23)));
    p = vf_mul(p, vf_cast(vi_sll(vi_add(rest, vi_set1(127)), 23)));
    p = vf_select_lt(x, low, vf_zero(), p);
    return vf_select_lt(high, x, vf_set1(INFINITY), p);
}

/* The bits of bf16(v) in the upper half of each lane. */
SIMD vi bf16_bits(vf v)
{
    const vi u = vi_cast(v);
    const vi r = vi_add(vi_add(u, vi_set1(0x7FFF)), vi_and(vi_srl(u, 16), vi_set1(1)));
    return vi_cast(vf_select_nan(v, vf_cast(vi_set1(0x7FFF0000)),
                                 vf_cast(vi_and(r, vi_set1((int32_t)0xFFFF0000)))));
}

SIMD vf round_bf16(vf v)
{
    return vf_cast(bf16_bits(v));
}

/* e4m3(v) as f32, saturating (mm_e4m3_from_f32). */
SIMD vf round_e4m3(vf v)
{
    const vf a = vf_abs(v), magic = vf_set1(16384.0f);
    const vi u = vi_cast(a);
    const vi r = vi_add(vi_add(u, vi_set1(0x7FFFF)), vi_and(vi_srl(u, 20), vi_set1(1)));
    vf w = vf_cast(vi_and(r, vi_set1((int32_t)0xFFF00000)));
    w = vf_select_lt(a, vf_set1(0x1p-6f), vf_sub(vf_add(a, magic), magic), w);
    w = vf_select_lt(a, vf_set1(448.0f), w, vf_set1(448.0f));
    w = vf_cast(vi_or(vi_cast(w), vi_and(vi_cast(v), vi_set1((int32_t)0x80000000))));
    return vf_select_nan(v, v, w);
}

/* ---------------------------------------------------------------- rows */

SIMD_TARGET static void math_to_f32(mm_dtype act, const void *src, int64_t n, float *dst)
{
    if (act == MM_DTYPE_F32) {
        memcpy(dst, src, (size_t)n * sizeof(float));
        return;
    }
    const uint16_t *s = src;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        vf_store(dst + i, vf_cast(vi_sll(vi_from_u16(s + i), 16)));
    for (; i < n; i++)
        dst[i] = mm_f32_from_bf16(s[i]);
}

SIMD_TARGET static void math_from_f32(mm_dtype act, const float *src, int64_t n, void *dst)
{
    if (act == MM_DTYPE_F32) {
        memcpy(dst, src, (size_t)n * sizeof(float));
        return;
    }
    uint16_t *d = dst;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        vi_store_u16(d + i, vi_srl(bf16_bits(vf_load(src + i)), 16));
    for (; i < n; i++)
        d[i] = mm_bf16_from_f32(src[i]);
}

SIMD_TARGET static void math_round(mm_dtype act, float *v, int64_t n)
{
    if (act == MM_DTYPE_F32)
        return;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        vf_store(v + i, round_bf16(vf_load(v + i)));
    for (; i < n; i++)
        v[i] = mm_f32_round_bf16(v[i]);
}

SIMD_TARGET static void math_norm(const float *v, const float *w, int64_t n, float eps, float *out)
{
    const int64_t whole = n / 16 * 16;
    vf sum = vf_zero();
    for (int64_t i = 0; i < whole; i += 16)
        sum = vf_fma(vf_load(v + i), vf_load(v + i), sum);
    if (whole < n) {
        const vf part = load_part(v + whole, n - whole);
        sum = vf_fma(part, part, sum);
    }
    const float r = 1.0f / sqrtf(vf_sum(sum) / (float)n + eps);
    for (int64_t i = 0; i < whole; i += 16)
        vf_store(out + i,
                 vf_mul(vf_mul(vf_load(v + i), vf_set1(r)), vf_add(vf_set1(1.0f), vf_load(w + i))));
    for (int64_t i = whole; i < n; i++)
        out[i] = v[i] * r * (1.0f + w[i]);
}

SIMD_TARGET static void math_add(mm_dtype act, const void *x, const float *y, int64_t n, float *out)
{
    int64_t i = 0;
    if (act == MM_DTYPE_F32) {
        const float *p = x;
        for (; i + 16 <= n; i += 16)
            vf_store(out + i, vf_add(vf_load(p + i), vf_load(y + i)));
        for (; i < n; i++)
            out[i] = p[i] + y[i];
        return;
    }
    const uint16_t *p = x;
    for (; i + 16 <= n; i += 16)
        vf_store(out + i, vf_add(vf_cast(vi_sll(vi_from_u16(p + i), 16)), vf_load(y + i)));
    for (; i < n; i++)
        out[i] = mm_f32_from_bf16(p[i]) + y[i];
}

SIMD vf swiglu(vf g, vf u, const mm_op_shape *s)
{
    const vf limit = vf_set1(s->swiglu_limit);
    g = vf_min(limit, g);
    u = vf_max(vf_set1(-s->swiglu_limit), vf_min(limit, u));
    const vf e = vf_exp(vf_mul(vf_set1(-s->swiglu_alpha), g));
    const vf sigmoid = vf_div(vf_set1(1.0f), vf_add(vf_set1(1.0f), e));
    return vf_mul(vf_mul(vf_add(u, vf_set1(s->swiglu_beta)), g), sigmoid);
}

SIMD_TARGET static void math_swiglu(const mm_op_shape *s, const float *g, const float *u, int64_t n,
                                    void *out)
{
    const int64_t whole = n / 16 * 16, size = mm_cpu_act_size(s->act);
    for (int64_t i = 0; i < n; i += 16) {
        float a[16];
        const int64_t left = i < whole ? 16 : n - i;
        const vf gv = left == 16 ? vf_load(g + i) : load_part(g + i, left);
        const vf uv = left == 16 ? vf_load(u + i) : load_part(u + i, left);
        vf_store(a, swiglu(gv, uv, s));
        math_from_f32(s->act, a, left, (uint8_t *)out + size * i);
    }
}

SIMD_TARGET static void math_axpy(float a, const float *x, int64_t n, float *y)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        vf_store(y + i, vf_add(vf_load(y + i), vf_mul(vf_set1(a), vf_load(x + i))));
    for (; i < n; i++)
        y[i] += a * x[i];
}

/* Blocks of 1024 in f32 lanes, their sums in double: 200,000 terms lose nothing that shows. */
SIMD_TARGET static double math_sum_exp(const float *v, int64_t n, float max, float scale)
{
    double total = 0.0;
    for (int64_t first = 0; first < n; first += 1024) {
        const int64_t last = mm_min_i64(first + 1024, n);
        vf sum = vf_zero();
        int64_t i = first;
        for (; i + 16 <= last; i += 16)
            sum = vf_add(sum, vf_exp(vf_mul(vf_sub(vf_load(v + i), vf_set1(max)), vf_set1(scale))));
        total += (double)vf_sum(sum);
        for (; i < last; i++)
            total += (double)expf((v[i] - max) * scale);
    }
    return total;
}

SIMD_TARGET static bool math_has_nan(const float *v, int64_t n)
{
    int64_t i = 0;
    bool any = false;
    for (; i + 16 <= n; i += 16)
        any |= vf_any_nan(vf_load(v + i));
    for (; i < n; i++)
        any |= isnan(v[i]) != 0;
    return any;
}

SIMD_TARGET static float math_max(const float *v, int64_t n)
{
    int64_t i = 0;
    vf m = vf_set1(-INFINITY);
    for (; i + 16 <= n; i += 16)
        m = vf_max(vf_load(v + i), m);
    float best = vf_max_lane(m);
    for (; i < n; i++)
        best = v[i] > best ? v[i] : best;
    return best;
}

SIMD_TARGET static int32_t math_rank(const float *v, int32_t n, int32_t id)
{
    const float x = v[id];
    int32_t rank = 1;
    for (int32_t i = 0; i < id; i++)
        rank += v[i] >= x;
    for (int32_t i = id + 1; i < n; i++)
        rank += v[i] > x;
    return rank;
}
#endif
