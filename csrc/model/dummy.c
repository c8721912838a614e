/* dummy.c: counter-based weights. One 64-bit hash of (seed, name, row, word) gives 4 elements (12
 * random bits each) in BF16, 8 (a byte each) in MXFP8 and NVFP4; tables of normal quantiles turn
 * them into codes. No state, so any slice can be made alone, and about a gigabyte a second comes
 * out of one core. */
#include <math.h>
#include <pthread.h>

#include "csrc/base/half.h"
#include "csrc/model/dummy.h"

/* splitmix64's finaliser: enough for noise. */
static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static uint64_t name_key(uint64_t seed, const char *name)
{
    uint64_t h = mix(seed + 0x9E3779B97F4A7C15u);
    for (const char *c = name; *c != '\0'; c++)
        h = mix(h ^ (uint64_t)(unsigned char)*c);
    return h;
}

#define GOLDEN 0x9E3779B97F4A7C15u

static uint64_t row_key(uint64_t key, int64_t row)
{
    return mix(key + (uint64_t)row * GOLDEN);
}

/* Word i of a row: splitmix64 started at the row's key. */
static uint64_t word_at(uint64_t row, int64_t i)
{
    return mix(row + (uint64_t)i * GOLDEN);
}

/* Quantile of the standard normal (Acklam's rational approximation, 1e-9). */
static double normal_quantile(double p)
{
    static const double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,
                               -2.759285104469687e+02, 1.383577518672690e+02,
                               -3.066479806614716e+01, 2.506628277459239e+00};
    static const double b[] = {-5.447609879822406e+01, 1.615858368580409e+02,
                               -1.556989798598866e+02, 6.680131188771972e+01,
                               -1.328068155288572e+01};
    static const double c[] = {-7.784894002430293e-03, -3.223964580411365e-01,
                               -2.400758277161838e+00, -2.549732539343734e+00,
                               4.374664141464968e+00,  2.938163982698783e+00};
    static const double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                               3.754408661907416e+00};
    if (p > 0.5)
        return -normal_quantile(1.0 - p);
    if (p < 0.02425) {
        const double q = sqrt(-2.0 * log(p));
        return (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
               ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1.0);
    }
    const double q = p - 0.5, r = q * q;
    return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
           (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1.0);
}

static double quantile_at(uint32_t i, int bits)
{
    return normal_quantile(((double)i + 0.5) / (double)(1u << bits));
}

static bool contains(const char *name, const char *part)
{
    return strstr(name, part) != NULL;
}

mm_weight_format mm_dummy_format(const char *name, int32_t quantized)
{
    if (quantized == 0 || contains(name, "embed_tokens") || contains(name, "lm_head"))
        return MM_WEIGHT_BF16;
    return contains(name, ".experts.") && quantized != 2 ? MM_WEIGHT_NVFP4 : MM_WEIGHT_MXFP8;
}

/* ---------------------------------------------------------------- rows of a matrix */

enum { BF16_BITS = 12 };

/* One matrix being filled: rows are independent, so threads share them. */
typedef struct fill {
    uint64_t key;
    mm_slice s;
    const mm_weight *m;
    uint16_t bf16[1 << BF16_BITS]; /* table of BF16 values */
    uint8_t e4m3[256];             /* table of MXFP8 codes */
    int exponent;                  /* of the larger MXFP8 scale */
} fill;

/* Four elements of a word, the last word of a row cut short. Slices begin at a multiple of 4. */
static void fill_bf16(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    const fill *f = ctx;
    (void)i_thread;
    for (int64_t r = begin; r < end; r++) {
        uint16_t *row = (uint16_t *)((uintptr_t)f->m->data + (uintptr_t)(r * f->m->data_stride));
        const uint64_t row_at = row_key(f->key, f->s.row + r);
        for (int64_t c = 0; c < f->s.n_col; c += 4) {
            const uint64_t word = word_at(row_at, (f->s.col + c) / 4);
            const int n = (int)mm_min_i64(4, f->s.n_col - c);
            for (int j = 0; j < n; j++)
                row[c + j] = f->bf16[(word >> (16 * j)) & ((1 << BF16_BITS) - 1)];
        }
    }
}

/* Codes are e4m3 of a normal times a unit; a block's exponent is one of two, by a hash bit. */
static void fill_mxfp8(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    const fill *f = ctx;
    const mm_weight *m = f->m;
    (void)i_thread;
    for (int64_t r = begin; r < end; r++) {
        uint8_t *row = (uint8_t *)(uintptr_t)m->data + r * m->data_stride;
        uint8_t *scale = (uint8_t *)(uintptr_t)m->scale + r * m->scale_stride;
        const uint64_t row_at = row_key(f->key, f->s.row + r),
                       scale_at = row_key(~f->key, f->s.row + r);
        for (int64_t c = 0; c < f->s.n_col; c += 8) { /* slices are multiples of 32 */
            const uint64_t word = word_at(row_at, (f->s.col + c) / 8);
            for (int j = 0; j < 8; j++)
                row[c + j] = f->e4m3[(word >> (8 * j)) & 255];
        }
        for (int64_t b = 0; b < f->s.n_col / 32; b++)
            scale[b] =
                (uint8_t)(127 + f->exponent - (int)(word_at(scale_at, f->s.col / 32 + b) & 1));
    }
}

/* Two codes by 16 random bits: e2m1 of a normal times 2, so that 3 sigma is the largest code. */
static void make_e2m1_pairs(uint8_t pair[1 << 16])
{
    uint8_t code[256];
    for (uint32_t i = 0; i < 256; i++)
        code[i] = mm_e2m1_from_f32((float)(2.0 * quantile_at(i, 8)));
    for (uint32_t i = 0; i < 1u << 16; i++)
        pair[i] = (uint8_t)(code[i & 255] | code[i >> 8] << 4);
}

static uint8_t e2m1_pair[1 << 16];
static pthread_once_t e2m1_once = PTHREAD_ONCE_INIT;

static void make_pairs_once(void)
{
    make_e2m1_pairs(e2m1_pair);
}

/* Block scales are e4m3 near 64 and the global scale divides it out, as in released files. */
static const uint8_t nvfp4_scales[4] = {0x66, 0x68, 0x6A, 0x6C}; /* 56, 64, 80, 96 */

static void fill_nvfp4(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    const fill *f = ctx;
    const mm_weight *m = f->m;
    (void)i_thread;
    for (int64_t r = begin; r < end; r++) {
        uint8_t *row = (uint8_t *)(uintptr_t)m->data + r * m->data_stride;
        uint8_t *scale = (uint8_t *)(uintptr_t)m->scale + r * m->scale_stride;
        const uint64_t row_at = row_key(f->key, f->s.row + r),
                       scale_at = row_key(~f->key, f->s.row + r);
        for (int64_t c = 0; c < f->s.n_col; c += 8) { /* slices are multiples of 16 */
            const uint64_t word = word_at(row_at, (f->s.col + c) / 8);
            for (int j = 0; j < 4; j++)
                row[c / 2 + j] = e2m1_pair[(word >> (16 * j)) & 0xFFFF];
        }
        for (int64_t b = 0; b < f->s.n_col / 16; b++)
            scale[b] = nvfp4_scales[word_at(scale_at, f->s.col / 16 + b) & 3];
    }
}

/* The scales 2^k and 2^(k-1) have the mean square 0.625 * 4^k; the unit lies in [32, 64): |code| <
 * 448. */
static void prepare_mxfp8(fill *f, double std)
{
    const double unit = 64.0 * frexp(std / sqrt(0.625), &f->exponent);
    f->exponent -= 6;
    for (uint32_t i = 0; i < 256; i++)
        f->e4m3[i] = mm_e4m3_from_f32((float)(unit * quantile_at(i, 8)));
}

static float nvfp4_global_scale(double std)
{
    double square = 0.0;
    for (int i = 0; i < 4; i++)
        square += 0.25 * (double)mm_f32_from_e4m3(nvfp4_scales[i]) *
                  (double)mm_f32_from_e4m3(nvfp4_scales[i]);
    return (float)(2.0 * sqrt(square) / std);
}

void mm_dummy_matrix(mm_pool *pool, uint64_t seed, const char *name, int64_t n_in, mm_slice s,
                     mm_weight *out)
{
    const double std = contains(name, "embed_tokens") ? 1.0 : 1.0 / sqrt((double)n_in);
    fill f = {.key = name_key(seed, name), .s = s, .m = out};
    mm_pool_body body = fill_bf16;
    if (out->format == MM_WEIGHT_NVFP4) {
        out->global_scale = nvfp4_global_scale(std);
        pthread_once(&e2m1_once, make_pairs_once);
        body = fill_nvfp4;
    } else if (out->format == MM_WEIGHT_MXFP8) {
        prepare_mxfp8(&f, std);
        body = fill_mxfp8;
    } else {
        for (uint32_t i = 0; i < 1u << BF16_BITS; i++)
            f.bf16[i] = mm_bf16_from_f32((float)(std * quantile_at(i, BF16_BITS)));
    }
    mm_pool_run(pool, s.n_row, 1, body, &f);
}

/* ---------------------------------------------------------------- vectors */

typedef struct fill_floats {
    uint64_t key;
    double std;
    float *out;
} fill_floats;

static void fill_f32(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    const fill_floats *f = ctx;
    (void)i_thread;
    for (int64_t i = begin; i < end; i++)
        f->out[i] = (float)(f->std * quantile_at((uint32_t)(word_at(f->key, i) >> 44), 20));
}

void mm_dummy_floats(mm_pool *pool, uint64_t seed, const char *name, int64_t n_row, int64_t n_col,
                     float *out)
{
    fill_floats f = {.key = name_key(seed, name),
                     .std = n_row > 0 ? 1.0 / sqrt((double)n_col) : 0.05, /* router : norm, bias */
                     .out = out};
    mm_pool_run(pool, mm_max_i64(n_row, 1) * n_col, 4096, fill_f32, &f);
}
