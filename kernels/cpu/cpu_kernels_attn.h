/* cpu_kernels_attn.h: attention over one page, and block scores, over the vector of a tier.
 *
 * Lanes are keys for q k^T (keys transposed to [dim, 128]) and dims for P v; every output is one
 * chain of fused adds, over dims or over keys in ascending order. The multiplication is therefore
 * one small matrix product, whose tiles do not show in the bits. */
#ifndef MM_CPU_KERNELS_ATTN_H
#define MM_CPU_KERNELS_ATTN_H
#include "kernels/cpu/cpu_kernels_math.h"

/* c[r][16 v ..] = sum over i of a[r][i] * b[i][16 v ..], r < m, v < n: m, n compile-time. */
SIMD void product_tile(int m, int n, int64_t depth, const float *a, int64_t a_stride,
                       const float *b, int64_t b_stride, float *c, int64_t c_stride)
{
    vf acc[SIMD_TILE_M * SIMD_TILE_N];
    for (int i = 0; i < m * n; i++)
        acc[i] = vf_zero();
    for (int64_t i = 0; i < depth; i++) {
        vf w[SIMD_TILE_N];
        for (int v = 0; v < n; v++)
            w[v] = vf_load(b + i * b_stride + 16 * v);
        for (int r = 0; r < m; r++) {
            const vf x = vf_set1(a[r * a_stride + i]);
            for (int v = 0; v < n; v++)
                acc[r * n + v] = vf_fma(x, w[v], acc[r * n + v]);
        }
    }
    for (int r = 0; r < m; r++) {
        for (int v = 0; v < n; v++)
            vf_store(c + r * c_stride + 16 * v, acc[r * n + v]);
    }
}

/* c [m, n] = a [m, depth] b [depth, n], n a multiple of 16. */
SIMD_TARGET static void product(int64_t m, int64_t n, int64_t depth, const float *a,
                                int64_t a_stride, const float *b, int64_t b_stride, float *c,
                                int64_t c_stride)
{
    for (int64_t v = 0; v < n;) {
        const bool is_wide = v + 16 * SIMD_TILE_N <= n;
        for (int64_t r = 0; r < m;) {
            const bool is_tall = r + SIMD_TILE_M <= m;
            const float *x = a + r * a_stride;
            float *out = c + r * c_stride + v;
            if (is_tall && is_wide)
                product_tile(SIMD_TILE_M, SIMD_TILE_N, depth, x, a_stride, b + v, b_stride, out,
                             c_stride);
            else if (is_tall)
                product_tile(SIMD_TILE_M, 1, depth, x, a_stride, b + v, b_stride, out, c_stride);
            else if (is_wide)
                product_tile(1, SIMD_TILE_N, depth, x, a_stride, b + v, b_stride, out, c_stride);
            else
                product_tile(1, 1, depth, x, a_stride, b + v, b_stride, out, c_stride);
            r += is_tall ? SIMD_TILE_M : 1;
        }
        v += is_wide ? 16 * SIMD_TILE_N : 16;
    }
}

/* ---------------------------------------------------------------- pages as operands */

SIMD void cache_row(mm_cache_format format, int32_t dim, const uint8_t *data, const uint8_t *scale,
                    float *out)
{
    for (int32_t j = 0; j < dim; j += 16) {
        vf v;
        switch (format) {
        case MM_CACHE_F32:
            v = vf_load((const float *)(const void *)data + j);
            break;
        case MM_CACHE_BF16:
            v = vf_cast(vi_sll(vi_from_u16((const uint16_t *)(const void *)data + j), 16));
            break;
        case MM_CACHE_FP8:
            v = vf_from_e4m3(data + j);
            break;
        default:
            v = round_e4m3(vf_mul(vf_e2m1(vi_from_u4(data + j / 2)),
                                  vf_set1(mm_f32_from_e4m3(scale[j / 16]))));
        }
        vf_store(out + j, v);
    }
}

SIMD_TARGET static void attn_cache_rows(const mm_plane *p, int64_t page, int32_t head, int32_t n,
                                        float *out)
{
    MM_ASSERT(page >= 0 && page < p->n_page && head < p->n_head && n <= MM_PAGE);
    const int64_t n_byte = mm_cache_row_bytes(p->format, p->dim),
                  n_scale = mm_cache_row_scale_bytes(p->format, p->dim);
    const int64_t row = (page * p->n_head + head) * MM_PAGE;
    const uint8_t *data = p->data + row * n_byte,
                  *scale = p->scale != NULL ? p->scale + row * n_scale : NULL;
    for (int32_t i = 0; i < n; i++)
        cache_row(p->format, p->dim, data + i * n_byte, scale != NULL ? scale + i * n_scale : NULL,
                  out + (int64_t)i * p->dim);
}

SIMD_TARGET static void attn_cache_columns(const mm_plane *p, int64_t page, int32_t head, int32_t n,
                                           float *out, float *tmp)
{
    MM_ASSERT(page >= 0 && page < p->n_page && head < p->n_head && n <= MM_PAGE);
    const int64_t n_byte = mm_cache_row_bytes(p->format, p->dim),
                  n_scale = mm_cache_row_scale_bytes(p->format, p->dim);
    const int64_t row = (page * p->n_head + head) * MM_PAGE;
    const uint8_t *data = p->data + row * n_byte,
                  *scale = p->scale != NULL ? p->scale + row * n_scale : NULL;
    for (int32_t first = 0; first < n; first += 16) {
        const int32_t here = n - first < 16 ? n - first : 16;
        for (int32_t i = 0; i < here; i++)
            cache_row(p->format, p->dim, data + (first + i) * n_byte,
                      scale != NULL ? scale + (first + i) * n_scale : NULL,
                      tmp + (int64_t)i * p->dim);
        if (here < 16)
            memset(tmp + (int64_t)here * p->dim, 0,
                   (size_t)(16 - here) * (size_t)p->dim * sizeof(float));
        for (int32_t j = 0; j < p->dim; j += 16)
            vf_transpose16(tmp + j, p->dim, out + (int64_t)j * MM_PAGE + first, MM_PAGE);
    }
}

SIMD_TARGET static void attn_round_query(mm_cache_format format, bool is_index, float *q, int64_t n)
{
    if (format == MM_CACHE_F32)
        return;
    const bool to_e4m3 = format == MM_CACHE_NVFP4 || (format == MM_CACHE_FP8 && is_index);
    MM_ASSERT(n % 16 == 0);
    for (int64_t i = 0; i < n; i += 16) {
        const vf v = round_bf16(vf_load(q + i));
        vf_store(q + i, to_e4m3 ? round_e4m3(v) : v);
    }
}

/* ---------------------------------------------------------------- one page */

/* Scores of one head -> operands P~ in place; the maximum and the sum of the unrounded P. Places
 * outside [first, last) of the whole vectors [low, high) become 0. */
SIMD void softmax_page(mm_cache_format format, float scale, int32_t low, int32_t first,
                       int32_t last, int32_t high, float *p, float *max, float *den)
{
    vf m = vf_set1(-INFINITY), sum = vf_zero();
    for (int32_t i = low; i < first; i++)
        p[i] = -INFINITY;
    for (int32_t i = last; i < high; i++)
        p[i] = -INFINITY;
    for (int32_t i = low; i < high; i += 16) {
        const vf s = vf_mul(vf_load(p + i), vf_set1(scale)); /* scale > 0 keeps -inf */
        vf_store(p + i, s);
        m = vf_max(s, m); /* a NaN is passed over and shows in the sum */
    }
    *max = vf_max_lane(m);
    for (int32_t i = low; i < high; i += 16) {
        vf e = vf_exp(vf_sub(vf_load(p + i), vf_set1(*max)));
        if (format == MM_CACHE_NVFP4)
            e = vf_mul(vf_set1(448.0f), e);
        sum = vf_add(sum, e);
        if (format == MM_CACHE_NVFP4)
            e = round_e4m3(e);
        else if (format != MM_CACHE_F32)
            e = round_bf16(e);
        vf_store(p + i, e);
    }
    *den = vf_sum(sum);
}

SIMD void merge_head(int32_t dim, float *max, float *den, float *acc, float b_max, float b_den,
                     const float *b_acc)
{
    const float new_max = b_max > *max ? b_max : *max;
    const float keep = expf(*max - new_max), add = expf(b_max - new_max);
    *max = new_max;
    *den = *den * keep + b_den * add;
    for (int32_t j = 0; j < dim; j += 16)
        vf_store(acc + j,
                 vf_fma(vf_load(b_acc + j), vf_set1(add), vf_mul(vf_load(acc + j), vf_set1(keep))));
}

SIMD_TARGET static void attn_attend(mm_cache_format format, int32_t dim, int32_t n_head,
                                    const float *q, const float *kt, const float *v, int32_t first,
                                    int32_t last, const mm_cpu_attn_state *s, float *p, float *part)
{
    if (first >= last)
        return;
    const int32_t low = first / 16 * 16, high = (int32_t)mm_round_up(last, 16);
    const float scale = 1.0f / sqrtf((float)dim);
    product(n_head, high - low, dim, q, dim, kt + low, MM_PAGE, p + low, MM_PAGE);
    float max[64], den[64];
    for (int32_t h0 = 0; h0 < n_head; h0 += 64) {
        const int32_t n = n_head - h0 < 64 ? n_head - h0 : 64;
        for (int32_t h = 0; h < n; h++)
            softmax_page(format, scale, low, first, last, high, p + (int64_t)(h0 + h) * MM_PAGE,
                         &max[h], &den[h]);
        product(n, dim, last - first, p + (int64_t)h0 * MM_PAGE + first, MM_PAGE,
                v + (int64_t)first * dim, dim, part, dim);
        for (int32_t h = 0; h < n; h++)
            merge_head(dim, &s->max[h0 + h], &s->den[h0 + h], s->acc + (int64_t)(h0 + h) * dim,
                       max[h], den[h], part + (int64_t)h * dim);
    }
}

SIMD_TARGET static void attn_merge(int32_t dim, int32_t n_head, const mm_cpu_attn_state *a,
                                   const mm_cpu_attn_state *b)
{
    for (int32_t h = 0; h < n_head; h++) {
        if (b->den[h] == 0.0f && b->max[h] == -INFINITY)
            continue; /* no key */
        merge_head(dim, &a->max[h], &a->den[h], a->acc + (int64_t)h * dim, b->max[h], b->den[h],
                   b->acc + (int64_t)h * dim);
    }
}

SIMD_TARGET static void attn_finish(mm_cache_format format, int32_t dim, int32_t n_head,
                                    const mm_cpu_attn_state *s)
{
    for (int32_t h = 0; h < n_head; h++) {
        float den = s->den[h], *acc = s->acc + (int64_t)h * dim;
        if (format == MM_CACHE_NVFP4 ? den < 1.0f : den == 0.0f) /* no key at all: acc and the
                                                                    output are 0 */
            den = 1.0f;
        for (int32_t j = 0; j < dim; j += 16)
            vf_store(acc + j, vf_div(vf_load(acc + j), vf_set1(den)));
    }
}

SIMD_TARGET static void attn_index_score(int32_t dim, int32_t n_query, const float *q,
                                         const float *kt, int32_t n, float *score, float *p)
{
    product(n_query, mm_round_up(n, 16), dim, q, dim, kt, MM_PAGE, p, MM_PAGE);
    for (int32_t i = 0; i < n_query; i++) {
        const float *s = p + (int64_t)i * MM_PAGE;
        score[i] = math_has_nan(s, n) ? NAN : math_max(s, n);
    }
}
#endif
