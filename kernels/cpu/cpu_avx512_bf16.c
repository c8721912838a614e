/* cpu_avx512_bf16.c: y = x W^T for bf16 activations with VDPBF16PS (AVX-512 BF16 + VBMI): two exact
 * bf16 products per lane and instruction, summed in f32. Every code of the checkpoint's formats is
 * exact in bf16; the block scale enters the lane's sum after its group (one instruction for it).
 * VDPBF16PS treats subnormals as zero, in x, in W and in sums: below 2^-126, far under what a
 * result can show. Used for one row and for many, so that both give the same bits.
 *
 * Lanes are pairs of elements of K:
 *
 * - BF16: 32 elements per vector as they lie
 * - MXFP8: 64 elements: vector 0 = bytes 0..7 of each 128-bit lane widened, vector 1 = bytes 8..15
 * - NVFP4: 128 elements: vector j = nibble j of each 16-bit word = elements 4 word + j; a block of
 *   16 is a pair of lanes */
#include "kernels/cpu/cpu.h"

#if defined(__x86_64__)
#include "kernels/cpu/cpu_simd_avx512.h"

#undef SIMD_TARGET
#undef SIMD
#define SIMD_TARGET                                                                                \
    __attribute__((                                                                                \
        target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,avx2,fma,f16c,bmi2")))
#define SIMD static inline __attribute__((always_inline)) SIMD_TARGET

#define TILE_M 4
#define TILE_N 4

SIMD vf dot(vf acc, vi a, vi b)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}

/* ---------------------------------------------------------------- decoding: codes -> bf16 pairs */

/* high and low byte of bf16(e4m3) of the 128 codes without a sign */
#define E4M3_BITS(c)                                                                               \
    ((c) == 127 ? 0x7FC0                                                                           \
     : (c) >= 8 ? ((c) << 4) + (120 << 7)                                                          \
     : (c) >= 4 ? ((((c) - 4) * 32) + (120 << 7))                                                  \
     : (c) >= 2 ? ((((c) - 2) * 64) + (119 << 7))                                                  \
     : (c) == 1 ? (118 << 7)                                                                       \
                : 0)
#define E4M3_8(f, c)                                                                               \
    f(c), f((c) + 1), f((c) + 2), f((c) + 3), f((c) + 4), f((c) + 5), f((c) + 6), f((c) + 7)
#define E4M3_64(f, c)                                                                              \
    E4M3_8(f, c), E4M3_8(f, (c) + 8), E4M3_8(f, (c) + 16), E4M3_8(f, (c) + 24),                    \
        E4M3_8(f, (c) + 32), E4M3_8(f, (c) + 40), E4M3_8(f, (c) + 48), E4M3_8(f, (c) + 56)
#define E4M3_HIGH(c) (uint8_t)(E4M3_BITS(c) >> 8)
#define E4M3_LOW(c) (uint8_t)(E4M3_BITS(c) & 255)
static const uint8_t e4m3_high[128] = {E4M3_64(E4M3_HIGH, 0), E4M3_64(E4M3_HIGH, 64)};
static const uint8_t e4m3_low[128] = {E4M3_64(E4M3_LOW, 0), E4M3_64(E4M3_LOW, 64)};
static const uint16_t e2m1_bf16[32] = {
    0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, 0x8000, 0xBF00, 0xBF80,
    0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0, 0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040,
    0x4080, 0x40C0, 0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0,
}; /* twice: the look-up takes 5 bits, of which the upper one belongs to the next code */

SIMD void decode_mxfp8(vi code, vi *v)
{
    const vi high_abs = _mm512_permutex2var_epi8(vi_load(e4m3_high), code, vi_load(e4m3_high + 64));
    const vi low = _mm512_permutex2var_epi8(vi_load(e4m3_low), code, vi_load(e4m3_low + 64));
    const vi high =
        _mm512_ternarylogic_epi32(high_abs, code, vi_set1((int32_t)0x80808080), 0xF8); /* | sign */
    v[0] = _mm512_unpacklo_epi8(low, high);
    v[1] = _mm512_unpackhi_epi8(low, high);
}

SIMD void decode_nvfp4(vi code, vi *v)
{
    const vi table = vi_load(e2m1_bf16);
    v[0] = _mm512_permutexvar_epi16(code, table);
    v[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(code, 4), table);
    v[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(code, 8), table);
    v[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(code, 12), table);
}

SIMD vf nvfp4_scales(const uint8_t *scale, int64_t k, int64_t n_in) /* k a multiple of 256 */
{
    MM_ASSERT(scale != NULL);
    uint8_t whole[16] = {0};
    if (n_in - k >= 256)
        return vf_from_e4m3(scale + k / 16);
    memcpy(whole, scale + k / 16, (size_t)(n_in - k) / 16);
    return vf_from_e4m3(whole);
}

SIMD vf mxfp8_scale(const uint8_t *scale, int64_t k, int64_t n_in)
{
    MM_ASSERT(scale != NULL);
    const uint32_t *bits = mm_cpu_e8m0_bits;
    return vf_halves(mm_f32_from_bits(bits[scale[k / 32]]),
                     k + 32 < n_in ? mm_f32_from_bits(bits[scale[k / 32 + 1]]) : 0.0f);
}

/* ---------------------------------------------------------------- one row of x */

SIMD vf group_mxfp8(vi code, vf scale, const uint16_t *x, vf acc)
{
    vi v[2];
    decode_mxfp8(code, v);
    const vf b = dot(dot(vf_zero(), v[0], vi_load(x)), v[1], vi_load(x + 32));
    return vf_fma(b, scale, acc);
}

SIMD vf group_nvfp4(vi code, vf scale, const uint16_t *x, vf acc)
{
    vi v[4];
    decode_nvfp4(code, v);
    vf b = dot(vf_zero(), v[0], vi_load(x));
    b = dot(b, v[1], vi_load(x + 32));
    b = dot(b, v[2], vi_load(x + 64));
    b = dot(b, v[3], vi_load(x + 96));
    return vf_fma(b, scale, acc);
}

#define ROW_DATA(w, i) ((const uint8_t *)(w)->data + (i) * (w)->data_stride)
#define ROW_SCALE(w, i) ((w)->scale + (i) * (w)->scale_stride)
/* Hardware prefetch stops at pages; a matrix is one stream over many of them. */
#define AHEAD(p, n) _mm_prefetch((const char *)(p) + (n), _MM_HINT_T0)

SIMD float row_bf16(const mm_weight *w, int64_t row, const uint16_t *x)
{
    const int64_t k_in = w->n_in, whole = k_in / 32 * 32;
    const uint8_t *p = ROW_DATA(w, row);
    vf acc = vf_zero();
    for (int64_t k = 0; k < whole; k += 32, p += 64) {
        AHEAD(p, 512);
        acc = dot(acc, vi_load(p), vi_load(x + k));
    }
    if (whole < k_in)
        acc = dot(acc, vi_load_bytes(p, (int)(2 * (k_in - whole))), vi_load(x + whole));
    return vf_sum(acc);
}

SIMD float row_mxfp8(const mm_weight *w, int64_t row, const uint16_t *x)
{
    const int64_t k_in = w->n_in, whole = k_in / 64 * 64;
    const uint8_t *p = ROW_DATA(w, row), *scale = ROW_SCALE(w, row);
    vf acc = vf_zero();
    for (int64_t k = 0; k < whole; k += 64, p += 64) {
        AHEAD(p, 512);
        acc = group_mxfp8(vi_load(p), mxfp8_scale(scale, k, k_in), x + k, acc);
    }
    if (whole < k_in)
        acc = group_mxfp8(vi_load_bytes(p, (int)(k_in - whole)), mxfp8_scale(scale, whole, k_in),
                          x + whole, acc);
    return vf_sum(acc);
}

SIMD float row_nvfp4(const mm_weight *w, int64_t row, const uint16_t *x)
{
    const int64_t k_in = w->n_in, whole = k_in / 256 * 256;
    const uint8_t *p = ROW_DATA(w, row), *scale = ROW_SCALE(w, row);
    vf acc = vf_zero();
    for (int64_t k = 0; k < whole; k += 256, p += 128) {
        const vf s = vf_from_e4m3(scale + k / 16);
        AHEAD(p, 1536);
        AHEAD(p, 1600);
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
SIMD_TARGET static void bf16_gemv(mm_cpu_kind kind, const mm_weight *w, int64_t first, int64_t n,
                                  const void *x, float *y)
{
    switch (kind) {
    case MM_CPU_BF16_DOT:
        for (int64_t i = 0; i < n; i++)
            y[i] = row_bf16(w, first + i, x) / w->global_scale;
        break;
    case MM_CPU_MXFP8_DOT:
        for (int64_t i = 0; i < n; i++)
            y[i] = row_mxfp8(w, first + i, x) / w->global_scale;
        break;
    case MM_CPU_NVFP4_DOT:
        for (int64_t i = 0; i < n; i++)
            y[i] = row_nvfp4(w, first + i, x) / w->global_scale;
        break;
    default:
        mm_cpu_linear_avx512.gemv(kind, w, first, n, x, y);
    }
}

/* ---------------------------------------------------------------- panels */

/* Per group its 64-byte vectors, then its 16 scales. */

SIMD_TARGET static void panel_row(mm_cpu_kind kind, const mm_weight *w, int64_t row, uint8_t *out)
{
    const int64_t k_in = w->n_in;
    const uint8_t *data = ROW_DATA(w, row), *scale = w->scale != NULL ? ROW_SCALE(w, row) : NULL;
    if (kind == MM_CPU_BF16_DOT) {
        memcpy(out, data, (size_t)k_in * 2);
        memset(out + 2 * k_in, 0, (size_t)(mm_round_up(k_in, 32) - k_in) * 2);
    } else if (kind == MM_CPU_MXFP8_DOT) {
        for (int64_t k = 0; k < k_in; k += 64, out += 3 * 64) {
            vi v[2];
            decode_mxfp8(
                k + 64 <= k_in ? vi_load(data + k) : vi_load_bytes(data + k, (int)(k_in - k)), v);
            _mm512_storeu_si512(out, v[0]);
            _mm512_storeu_si512(out + 64, v[1]);
            vf_store((float *)(void *)(out + 128), mxfp8_scale(scale, k, k_in));
        }
    } else {
        for (int64_t k = 0; k < k_in; k += 128, out += 5 * 64) {
            vi v[4];
            decode_nvfp4(k + 128 <= k_in ? vi_load(data + k / 2)
                                         : vi_load_bytes(data + k / 2, (int)(k_in - k) / 2),
                         v);
            const vf s = nvfp4_scales(scale, k / 256 * 256, k_in);
            for (int j = 0; j < 4; j++)
                _mm512_storeu_si512(out + 64 * j, v[j]);
            vf_store((float *)(void *)(out + 256),
                     k % 256 == 0 ? vf_pairs_low(s) : vf_pairs_high(s));
        }
    }
}

SIMD_TARGET static void bf16_panel(mm_cpu_kind kind, const mm_weight *w, int64_t first, int64_t n,
                                   void *panel)
{
    if (kind < MM_CPU_BF16_DOT) {
        mm_cpu_linear_avx512.panel(kind, w, first, n, panel);
        return;
    }
    const size_t n_byte = mm_cpu_panel_bytes(kind, w->n_in);
    for (int64_t i = 0; i < n; i++)
        panel_row(kind, w, first + i, (uint8_t *)panel + (size_t)i * n_byte);
}

/* As tile_sums of cpu_kernels_linear.h; strides in bytes. */
SIMD void tile_sums(int size, int m, int n, const uint8_t *panel, int64_t stride, int64_t n_group,
                    const uint8_t *const *x, vf *acc)
{
    for (int i = 0; i < m * n; i++)
        acc[i] = vf_zero();
    if (size == 0) {
        for (int64_t g = 0; g < n_group; g++) {
            vi v[TILE_M];
            for (int r = 0; r < m; r++)
                v[r] = vi_load(x[r] + 64 * g);
            for (int i = 0; i < n; i++) {
                const vi w = vi_load(panel + i * stride + 64 * g);
                for (int r = 0; r < m; r++)
                    acc[r * n + i] = dot(acc[r * n + i], w, v[r]);
            }
        }
        return;
    }
    for (int64_t g = 0; g < n_group; g++) {
        for (int i = 0; i < n; i++) {
            const uint8_t *w = panel + i * stride + g * 64 * (size + 1);
            vf b[TILE_M];
            for (int r = 0; r < m; r++)
                b[r] = vf_zero();
            for (int j = 0; j < size; j++) {
                const vi v = vi_load(w + 64 * j);
                for (int r = 0; r < m; r++)
                    b[r] = dot(b[r], v, vi_load(x[r] + 64 * (size * g + j)));
            }
            const vf s = vf_load((const float *)(const void *)(w + 64 * size));
            for (int r = 0; r < m; r++)
                acc[r * n + i] = vf_fma(b[r], s, acc[r * n + i]);
        }
    }
}

SIMD void tile_one(int size, int m, int n, const uint8_t *panel, int64_t stride, int64_t n_group,
                   const uint8_t *const *x, float global_scale, float *y, int64_t y_stride)
{
    vf acc[TILE_M * TILE_N];
    tile_sums(size, m, n, panel, stride, n_group, x, acc);
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

SIMD void tile_all(int size, const uint8_t *panel, int64_t n, int64_t stride, int64_t n_group,
                   const void *const *x, int64_t m, float global_scale, float *y, int64_t y_stride)
{
    for (int64_t r = 0; r < m;) {
        const int64_t left = m - r;
        const uint8_t *rows[TILE_M];
        const int tall = left >= TILE_M ? TILE_M : left >= 2 ? 2 : 1;
        for (int j = 0; j < tall; j++)
            rows[j] = x[r + j];
        for (int64_t i = 0; i < n;) {
            const uint8_t *p = panel + i * stride;
            float *out = y + r * y_stride + i;
            const int wide = i + TILE_N <= n ? TILE_N : 1;
            if (tall == 4 && wide == 4)
                tile_one(size, 4, 4, p, stride, n_group, rows, global_scale, out, y_stride);
            else if (tall == 4)
                tile_one(size, 4, 1, p, stride, n_group, rows, global_scale, out, y_stride);
            else if (tall == 2 && wide == 4)
                tile_one(size, 2, 4, p, stride, n_group, rows, global_scale, out, y_stride);
            else if (tall == 2)
                tile_one(size, 2, 1, p, stride, n_group, rows, global_scale, out, y_stride);
            else if (wide == 4)
                tile_one(size, 1, 4, p, stride, n_group, rows, global_scale, out, y_stride);
            else
                tile_one(size, 1, 1, p, stride, n_group, rows, global_scale, out, y_stride);
            i += wide;
        }
        r += tall;
    }
}

SIMD_TARGET static void bf16_tile(mm_cpu_kind kind, const void *panel, int64_t stride, int64_t n,
                                  int64_t k, const void *const *x, int64_t m, float global_scale,
                                  float *y, int64_t y_stride)
{
    switch (kind) {
    case MM_CPU_BF16_DOT:
        tile_all(0, panel, n, stride, mm_ceil_div(k, 32), x, m, global_scale, y, y_stride);
        break;
    case MM_CPU_MXFP8_DOT:
        tile_all(2, panel, n, stride, mm_ceil_div(k, 64), x, m, global_scale, y, y_stride);
        break;
    case MM_CPU_NVFP4_DOT:
        tile_all(4, panel, n, stride, mm_ceil_div(k, 128), x, m, global_scale, y, y_stride);
        break;
    default:
        mm_cpu_linear_avx512.tile(kind, panel, stride, n, k, x, m, global_scale, y, y_stride);
    }
}

/* ---------------------------------------------------------------- rows of x */

/* The elements of one PAD = 128 in the kind's order. */
static void reorder128(mm_cpu_kind kind, const uint16_t *x, uint16_t *out)
{
    if (kind == MM_CPU_NVFP4_DOT) { /* vector j, word w: element 4 w + j */
        for (int w = 0; w < 32; w++) {
            for (int j = 0; j < 4; j++)
                out[32 * j + w] = x[4 * w + j];
        }
    } else if (kind == MM_CPU_MXFP8_DOT) { /* vector v holds the v-th half of every 16 elements */
        for (int g = 0; g < 128; g += 64) {
            for (int i = 0; i < 8; i++)
                memcpy(out + g + 32 * (i & 1) + 8 * (i >> 1), x + g + 8 * i, 8 * sizeof *x);
        }
    } else {
        memcpy(out, x, 128 * sizeof *x);
    }
}

static void bf16_prepare(mm_cpu_kind kind, mm_dtype act, const void *src, int64_t k, void *dst)
{
    if (kind < MM_CPU_BF16_DOT) {
        mm_cpu_linear_avx512.prepare(kind, act, src, k, dst);
        return;
    }
    MM_ASSERT(act == MM_DTYPE_BF16);
    const uint16_t *x = src;
    uint16_t *out = dst;
    int64_t i = 0;
    for (; i + MM_CPU_PAD <= k; i += MM_CPU_PAD)
        reorder128(kind, x + i, out + i);
    if (i < k) {
        uint16_t whole[MM_CPU_PAD] = {0};
        memcpy(whole, x + i, (size_t)(k - i) * sizeof *x);
        reorder128(kind, whole, out + i);
    }
}

const mm_cpu_linear_kernels mm_cpu_linear_avx512_bf16 = {
    .prepare = bf16_prepare,
    .gemv = bf16_gemv,
    .panel = bf16_panel,
    .tile = bf16_tile,
};
#else
typedef int mm_cpu_avx512_bf16_unused; /* a file is not empty */
#endif
