/* cpu_kernels_linear.h: y = x W^T in f32 lanes, written over the vector of a tier (cpu_simd_*.h,
 * included before).
 *
 * Lanes run along K, in an order that makes decoding cheap; x is put into the same order once
 * ("prepared"):
 *
 * - F32, MXFP8: 16 elements per vector as they lie; an MXFP8 value times its power of two is exact
 * - BF16: 32 elements: the even ones, then the odd ones (low and high half of each 32-bit lane)
 * - NVFP4: 128 elements: vector j = nibble j of each lane = elements 8 lane + j; a block of 16 is a
 *   pair of lanes. The group is summed first (b = w_0 x_0, then fused adds) and enters the lane's
 *   sum times its scale, so the scale costs one instruction per group
 *
 * The 16 lane sums are added by the tree of vf_sum, then divided by the global scale. A panel row
 * holds the same vectors decoded: NVFP4 per group its 8 vectors, then the 16 scales. */
#ifndef MM_CPU_KERNELS_LINEAR_H
#define MM_CPU_KERNELS_LINEAR_H
#include "kernels/cpu/cpu.h"

SIMD float e8m0_value(uint8_t s)
{
    return mm_f32_from_bits(mm_cpu_e8m0_bits[s]);
}

/* ---------------------------------------------------------------- groups of a row, decoded */

SIMD vf group_bf16(vi w, const float *x, vf acc)
{
    acc = vf_fma(vf_cast(vi_sll(w, 16)), vf_load(x), acc);
    return vf_fma(vf_cast(vi_and(w, vi_set1((int32_t)0xFFFF0000))), vf_load(x + 16), acc);
}

SIMD vf nvfp4_vector(vi w, int j)
{
    switch (j) {
    case 0:
        return vf_e2m1(w);
    case 1:
        return vf_e2m1(vi_srl(w, 4));
    case 2:
        return vf_e2m1(vi_srl(w, 8));
    case 3:
        return vf_e2m1(vi_srl(w, 12));
    case 4:
        return vf_e2m1(vi_srl(w, 16));
    case 5:
        return vf_e2m1(vi_srl(w, 20));
    case 6:
        return vf_e2m1(vi_srl(w, 24));
    default:
        return vf_e2m1(vi_srl(w, 28));
    }
}

SIMD vf group_nvfp4(vi w, vf scale, const float *x, vf acc)
{
    vf b = vf_mul(nvfp4_vector(w, 0), vf_load(x));
    b = vf_fma(nvfp4_vector(w, 1), vf_load(x + 16), b);
    b = vf_fma(nvfp4_vector(w, 2), vf_load(x + 32), b);
    b = vf_fma(nvfp4_vector(w, 3), vf_load(x + 48), b);
    b = vf_fma(nvfp4_vector(w, 4), vf_load(x + 64), b);
    b = vf_fma(nvfp4_vector(w, 5), vf_load(x + 80), b);
    b = vf_fma(nvfp4_vector(w, 6), vf_load(x + 96), b);
    b = vf_fma(nvfp4_vector(w, 7), vf_load(x + 112), b);
    return vf_fma(b, scale, acc);
}

/* Scales of the (at most two) NVFP4 groups from element k on, k a multiple of 256, as one vector
 * of 16. */
SIMD vf nvfp4_scales(const uint8_t *scale, int64_t k, int64_t n_in)
{
    const int64_t left = (n_in - k) / 16;
    if (left >= 16)
        return vf_from_e4m3(scale + k / 16);
    uint8_t whole[16] = {0};
    memcpy(whole, scale + k / 16, (size_t)left);
    return vf_from_e4m3(whole);
}

/* ---------------------------------------------------------------- one row of x */

#define ROW_DATA(w, i) ((const uint8_t *)(w)->data + (i) * (w)->data_stride)
#define ROW_SCALE(w, i) ((w)->scale + (i) * (w)->scale_stride)
/* Hardware prefetch stops at pages; a matrix is one stream over many of them. */
#define AHEAD(p) __builtin_prefetch((const char *)(p) + 512)

SIMD float row_f32(const mm_weight *w, int64_t row, const float *x)
{
    const int64_t k_in = w->n_in, whole = k_in / 16 * 16;
    const uint8_t *p = ROW_DATA(w, row);
    vf acc = vf_zero();
    for (int64_t k = 0; k < whole; k += 16, p += 64) {
        AHEAD(p);
        acc = vf_fma(vf_cast(vi_load(p)), vf_load(x + k), acc);
    }
    if (whole < k_in)
        acc = vf_fma(vf_cast(vi_load_bytes(p, (int)(4 * (k_in - whole)))), vf_load(x + whole), acc);
    return vf_sum(acc);
}

SIMD float row_bf16(const mm_weight *w, int64_t row, const float *x)
{
    const int64_t k_in = w->n_in, whole = k_in / 32 * 32;
    const uint8_t *p = ROW_DATA(w, row);
    vf acc = vf_zero();
    for (int64_t k = 0; k < whole; k += 32, p += 64) {
        AHEAD(p);
        acc = group_bf16(vi_load(p), x + k, acc);
    }
    if (whole < k_in)
        acc = group_bf16(vi_load_bytes(p, (int)(2 * (k_in - whole))), x + whole, acc);
    return vf_sum(acc);
}

SIMD float row_mxfp8(const mm_weight *w, int64_t row, const float *x)
{
    const uint8_t *p = ROW_DATA(w, row), *scale = ROW_SCALE(w, row);
    vf acc = vf_zero();
    for (int64_t k = 0; k < w->n_in; k += 32, p += 32) {
        const vf s = vf_set1(e8m0_value(scale[k / 32]));
        AHEAD(p);
        acc = vf_fma(vf_mul(vf_from_e4m3(p), s), vf_load(x + k), acc);
        acc = vf_fma(vf_mul(vf_from_e4m3(p + 16), s), vf_load(x + k + 16), acc);
    }
    return vf_sum(acc);
}

SIMD float row_nvfp4(const mm_weight *w, int64_t row, const float *x)
{
    const int64_t k_in = w->n_in, whole = k_in / 256 * 256;
    const uint8_t *p = ROW_DATA(w, row), *scale = ROW_SCALE(w, row);
    vf acc = vf_zero();
    for (int64_t k = 0; k < whole; k += 256, p += 128) {
        const vf s = vf_from_e4m3(scale + k / 16);
        AHEAD(p);
        AHEAD(p + 64);
        acc = group_nvfp4(vi_load(p), vf_pairs_low(s), x + k, acc);
        acc = group_nvfp4(vi_load(p + 64), vf_pairs_high(s), x + k + 128, acc);
    }
    if (whole < k_in) {
        const vf s = nvfp4_scales(scale, whole, k_in);
        const int n_byte = (int)(k_in - whole) / 2;
        acc = group_nvfp4(vi_load_bytes(p, n_byte < 64 ? n_byte : 64), vf_pairs_low(s), x + whole,
                          acc);
        if (n_byte > 64)
            acc = group_nvfp4(vi_load_bytes(p + 64, n_byte - 64), vf_pairs_high(s), x + whole + 128,
                              acc);
    }
    return vf_sum(acc);
}

/* One row of W after the other: memory is read as one stream, which is faster than several side by
 * side. */
SIMD_TARGET static void linear_gemv(mm_cpu_kind kind, const mm_weight *w, int64_t first, int64_t n,
                                    const void *x, float *y)
{
    switch (kind) {
    case MM_CPU_F32:
        for (int64_t i = 0; i < n; i++)
            y[i] = row_f32(w, first + i, x) / w->global_scale;
        break;
    case MM_CPU_BF16:
        for (int64_t i = 0; i < n; i++)
            y[i] = row_bf16(w, first + i, x) / w->global_scale;
        break;
    case MM_CPU_MXFP8:
        for (int64_t i = 0; i < n; i++)
            y[i] = row_mxfp8(w, first + i, x) / w->global_scale;
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            y[i] = row_nvfp4(w, first + i, x) / w->global_scale;
    }
}

/* ---------------------------------------------------------------- panels */

SIMD_TARGET static void panel_row(mm_cpu_kind kind, const mm_weight *w, int64_t row, float *out)
{
    const int64_t k_in = w->n_in;
    const uint8_t *data = ROW_DATA(w, row), *scale = w->scale != NULL ? ROW_SCALE(w, row) : NULL;
    if (kind == MM_CPU_F32) {
        memcpy(out, data, (size_t)k_in * 4);
        memset(out + k_in, 0, (size_t)(mm_round_up(k_in, 16) - k_in) * 4);
    } else if (kind == MM_CPU_BF16) {
        for (int64_t k = 0; k < k_in; k += 32, out += 32) {
            const vi v = k + 32 <= k_in ? vi_load(data + 2 * k)
                                        : vi_load_bytes(data + 2 * k, (int)(2 * (k_in - k)));
            vf_store(out, vf_cast(vi_sll(v, 16)));
            vf_store(out + 16, vf_cast(vi_and(v, vi_set1((int32_t)0xFFFF0000))));
        }
    } else if (kind == MM_CPU_MXFP8) {
        for (int64_t k = 0; k < k_in; k += 32, out += 32) {
            const vf s = vf_set1(e8m0_value(scale[k / 32]));
            vf_store(out, vf_mul(vf_from_e4m3(data + k), s));
            vf_store(out + 16, vf_mul(vf_from_e4m3(data + k + 16), s));
        }
    } else {
        for (int64_t k = 0; k < k_in; k += 128, out += 9 * 16) {
            const vi v = k + 128 <= k_in ? vi_load(data + k / 2)
                                         : vi_load_bytes(data + k / 2, (int)(k_in - k) / 2);
            const vf s = nvfp4_scales(scale, k / 256 * 256, k_in);
            for (int j = 0; j < 8; j++)
                vf_store(out + 16 * j, nvfp4_vector(v, j));
            vf_store(out + 128, k % 256 == 0 ? vf_pairs_low(s) : vf_pairs_high(s));
        }
    }
}

SIMD_TARGET static void linear_panel(mm_cpu_kind kind, const mm_weight *w, int64_t first, int64_t n,
                                     void *panel)
{
    const size_t n_byte = mm_cpu_panel_bytes(kind, w->n_in);
    for (int64_t i = 0; i < n; i++)
        panel_row(kind, w, first + i, (float *)(void *)((uint8_t *)panel + (size_t)i * n_byte));
}

/* Tile of m x n outputs, m <= TILE_M, n <= TILE_N; groups of `size` vectors, size 0: plain vectors
 * without a scale. */
SIMD void tile_sums(int size, int m, int n, const float *panel, int64_t stride, int64_t n_group,
                    const float *const *x, vf *acc)
{
    for (int i = 0; i < m * n; i++)
        acc[i] = vf_zero();
    if (size == 0) {
        for (int64_t g = 0; g < n_group; g++) {
            vf v[SIMD_TILE_M];
            for (int r = 0; r < m; r++)
                v[r] = vf_load(x[r] + 16 * g);
            for (int i = 0; i < n; i++) {
                const vf w = vf_load(panel + i * stride + 16 * g);
                for (int r = 0; r < m; r++)
                    acc[r * n + i] = vf_fma(w, v[r], acc[r * n + i]);
            }
        }
        return;
    }
    for (int64_t g = 0; g < n_group; g++) {
        for (int i = 0; i < n; i++) {
            const float *w = panel + i * stride + g * 16 * (size + 1);
            vf b[SIMD_TILE_M];
            for (int r = 0; r < m; r++)
                b[r] = vf_mul(vf_load(w), vf_load(x[r] + 16 * size * g));
            for (int j = 1; j < size; j++) {
                const vf v = vf_load(w + 16 * j);
                for (int r = 0; r < m; r++)
                    b[r] = vf_fma(v, vf_load(x[r] + 16 * (size * g + j)), b[r]);
            }
            const vf s = vf_load(w + 16 * size);
            for (int r = 0; r < m; r++)
                acc[r * n + i] = vf_fma(b[r], s, acc[r * n + i]);
        }
    }
}

SIMD void tile_store(int m, int n, const vf *acc, float global_scale, float *y, int64_t y_stride)
{
    for (int r = 0; r < m; r++) {
        float *out = y + r * y_stride;
        if (n == 4) {
            vf_sum4(acc[4 * r], acc[4 * r + 1], acc[4 * r + 2], acc[4 * r + 3], out);
        } else {
            for (int i = 0; i < n; i++)
                out[i] = vf_sum(acc[r * n + i]);
        }
        for (int i = 0; i < n; i++)
            out[i] /= global_scale;
    }
}

/* All outputs of n panel rows and m rows of x. */
SIMD void tile_all(int size, const float *panel, int64_t n, int64_t stride, int64_t n_group,
                   const void *const *x, int64_t m, float global_scale, float *y, int64_t y_stride)
{
    for (int64_t r = 0; r < m;) {
        const float *rows[SIMD_TILE_M];
        const bool is_tall = r + SIMD_TILE_M <= m;
        for (int j = 0; j < (is_tall ? SIMD_TILE_M : 1); j++)
            rows[j] = x[r + j];
        for (int64_t i = 0; i < n;) {
            vf acc[SIMD_TILE_M * SIMD_TILE_N];
            const float *p = panel + i * stride;
            float *out = y + r * y_stride + i;
            if (is_tall && i + SIMD_TILE_N <= n) {
                tile_sums(size, SIMD_TILE_M, SIMD_TILE_N, p, stride, n_group, rows, acc);
                tile_store(SIMD_TILE_M, SIMD_TILE_N, acc, global_scale, out, y_stride);
                i += SIMD_TILE_N;
            } else if (is_tall) {
                tile_sums(size, SIMD_TILE_M, 1, p, stride, n_group, rows, acc);
                tile_store(SIMD_TILE_M, 1, acc, global_scale, out, y_stride);
                i += 1;
            } else if (i + SIMD_TILE_N <= n) {
                tile_sums(size, 1, SIMD_TILE_N, p, stride, n_group, rows, acc);
                tile_store(1, SIMD_TILE_N, acc, global_scale, out, y_stride);
                i += SIMD_TILE_N;
            } else {
                tile_sums(size, 1, 1, p, stride, n_group, rows, acc);
                tile_store(1, 1, acc, global_scale, out, y_stride);
                i += 1;
            }
        }
        r += is_tall ? SIMD_TILE_M : 1;
    }
}

SIMD_TARGET static void linear_tile(mm_cpu_kind kind, const void *panel, int64_t n_byte, int64_t n,
                                    int64_t k, const void *const *x, int64_t m, float global_scale,
                                    float *y, int64_t y_stride)
{
    const int64_t stride = n_byte / 4;
    switch (kind) {
    case MM_CPU_F32:
    case MM_CPU_MXFP8:
        tile_all(0, panel, n, stride, mm_ceil_div(k, 16), x, m, global_scale, y, y_stride);
        break;
    case MM_CPU_BF16:
        tile_all(0, panel, n, stride, 2 * mm_ceil_div(k, 32), x, m, global_scale, y, y_stride);
        break;
    default:
        tile_all(8, panel, n, stride, mm_ceil_div(k, 128), x, m, global_scale, y, y_stride);
    }
}

/* ---------------------------------------------------------------- rows of x */

SIMD_TARGET static void linear_prepare(mm_cpu_kind kind, mm_dtype act, const void *src, int64_t k,
                                       void *dst)
{
    float *out = dst;
    const int group = kind == MM_CPU_NVFP4 ? 8 : kind == MM_CPU_BF16 ? 2 : 1;
    const int64_t n = mm_round_up(k, MM_CPU_PAD);
    for (int64_t first = 0; first < n; first += 16 * group) {
        for (int i = 0; i < 16; i++) {
            for (int j = 0; j < group; j++) {
                const int64_t e = first + group * i + j;
                float v = 0.0f;
                if (e < k)
                    v = act == MM_DTYPE_BF16 ? mm_f32_from_bf16(((const uint16_t *)src)[e])
                                             : ((const float *)src)[e];
                out[first + 16 * j + i] = v;
            }
        }
    }
}
#endif
