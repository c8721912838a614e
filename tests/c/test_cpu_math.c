/* test_cpu_math.c: the vector arithmetic of every tier against the scalar definitions: exp,
 * roundings, cache rows, SwiGLU. */
#include "mm_test.h"

#include "cpu_fixture.h"

static const char *const tiers[] = {"scalar", "avx2", "avx512"};

static const mm_cpu_math_kernels *math_of(const char *tier)
{
    const mm_cpu_isa *isa = NULL;
    return has_tier(tier) && mm_cpu_isa_find(tier, &isa) == MM_OK ? isa->math : NULL;
}

/* sum_exp over one value is exp itself. */
MM_TEST(test_exp_error_is_below_its_documentation)
{
    for (int t = 0; t < (int)MM_ARRAY_LEN(tiers); t++) {
        const mm_cpu_math_kernels *m = math_of(tiers[t]);
        double worst = 0.0;
        for (double x = -87.3; x < 88.7 && m != NULL; x += 0.000731) {
            float v[16];
            for (int i = 0; i < 16; i++)
                v[i] = -INFINITY; /* exp: 0 */
            v[5] = (float)x;
            const double got = m->sum_exp(v, 16, 0.0f, 1.0f), want = exp((double)v[5]);
            worst = fabs(got / want - 1.0) > worst ? fabs(got / want - 1.0) : worst;
        }
        MM_CHECK(worst < 2e-7, "%s: relative error %g", tiers[t], worst);
        for (int i = 0; i < 5 && m != NULL; i++) {
            static const float x[5] = {-INFINITY, -88.0f, 89.0f, INFINITY, 0.0f};
            static const double want[5] = {0.0, 0.0, (double)INFINITY, (double)INFINITY, 16.0};
            float v[16];
            for (int j = 0; j < 16; j++)
                v[j] = x[i];
            MM_CHECK(m->sum_exp(v, 16, 0.0f, 1.0f) == want[i], "%s: exp(%g) = %g / 16", tiers[t],
                     (double)x[i], m->sum_exp(v, 16, 0.0f, 1.0f));
            v[3] = NAN;
            MM_CHECK(isnan(m->sum_exp(v, 16, 0.0f, 1.0f)), "%s", tiers[t]);
        }
    }
}

/* Values around every rounding border of bf16 and e4m3, both signs, and what is no number. */
static int64_t hard_values(float *v, int64_t cap)
{
    static const uint32_t step[] = {0,       1,       0x7FFF,  0x8000, 0x8001,
                                    0x7FFFF, 0x80000, 0x80001, 0xFFFFF};
    int64_t n = 0;
    for (uint32_t e = 0; e < 2048 && n + 18 < cap; e++) { /* sign, exponent and three bits of
                                                             mantissa */
        for (size_t i = 0; i < MM_ARRAY_LEN(step); i++) {
            v[n++] = mm_f32_from_bits((e << 20) + step[i]);
            v[n++] = mm_f32_from_bits(((e << 20) + step[i]) | 0x80000000u);
        }
    }
    v[n++] = NAN;
    v[n++] = -NAN;
    return n / 16 * 16;
}

static float round_e4m3(float x)
{
    return mm_f32_from_e4m3(mm_e4m3_from_f32(x));
}

static bool is_same(float a, float b)
{
    return isnan(a) ? isnan(b) != 0 : mm_bits_from_f32(a) == mm_bits_from_f32(b);
}

MM_TEST(test_roundings_are_exact)
{
    enum { CAP = 40000 };
    float *v = malloc(CAP * sizeof(float)), *got = malloc(CAP * sizeof(float));
    uint16_t *half = malloc(CAP * sizeof(uint16_t));
    const int64_t n = hard_values(v, CAP);
    int64_t bad = 0;
    for (int t = 0; t < (int)MM_ARRAY_LEN(tiers); t++) {
        const mm_cpu_math_kernels *m = math_of(tiers[t]);
        if (m == NULL)
            continue;
        m->from_f32(MM_DTYPE_BF16, v, n, half);
        m->to_f32(MM_DTYPE_BF16, half, n, got);
        for (int64_t i = 0; i < n; i++)
            bad += half[i] != mm_bf16_from_f32(v[i]) || !is_same(got[i], mm_f32_round_bf16(v[i]));
        memcpy(got, v, (size_t)n * sizeof(float));
        m->round(MM_DTYPE_BF16, got, n);
        for (int64_t i = 0; i < n; i++)
            bad += !is_same(got[i], mm_f32_round_bf16(v[i]));
        memcpy(got, v, (size_t)n * sizeof(float));
        m->round_query(MM_CACHE_FP8, true, got, n); /* e4m3(bf16(x)) */
        for (int64_t i = 0; i < n; i++)
            bad += !is_same(got[i], round_e4m3(mm_f32_round_bf16(v[i])));
        if (bad != 0)
            printf("  %s: %d values\n", tiers[t], (int)bad);
    }
    free(v);
    free(got);
    free(half);
    MM_CHECK(bad == 0);
}

MM_TEST(test_cache_rows_are_exact)
{
    enum { DIM = 48, KEYS = 21 };
    static const mm_cache_format format[] = {MM_CACHE_F32, MM_CACHE_BF16, MM_CACHE_FP8,
                                             MM_CACHE_NVFP4};
    for (int f = 0; f < 4; f++) {
        const size_t n_byte = (size_t)mm_cache_row_bytes(format[f], DIM),
                     n_scale = (size_t)mm_cache_row_scale_bytes(format[f], DIM);
        const size_t n_row = 2 * 2 * MM_PAGE;
        mm_plane p = {.format = format[f],
                      .n_head = 2,
                      .dim = DIM,
                      .n_page = 2,
                      .data = malloc(n_row * n_byte),
                      .scale = n_scale > 0 ? malloc(n_row * n_scale) : NULL};
        uint64_t seed = 5;
        for (size_t i = 0; i < n_row * n_byte; i++)
            p.data[i] = (uint8_t)random_next(&seed); /* NaNs among them */
        for (size_t i = 0; i < n_row * n_scale; i++)
            p.scale[i] = (uint8_t)(random_next(&seed) & 0x7F);
        float want[KEYS * DIM], rows[KEYS * DIM], tmp[16 * DIM];
        float *columns = malloc(sizeof(float) * DIM * MM_PAGE);
        mm_ref_plane_read(&p, 1, 1, KEYS, want);
        int bad = 0;
        for (int t = 0; t < (int)MM_ARRAY_LEN(tiers); t++) {
            const mm_cpu_math_kernels *m = math_of(tiers[t]);
            if (m == NULL)
                continue;
            m->cache_rows(&p, 1, 1, KEYS, rows);
            m->cache_columns(&p, 1, 1, KEYS, columns, tmp);
            for (int i = 0; i < KEYS; i++) {
                for (int j = 0; j < DIM; j++)
                    bad += !is_same(rows[i * DIM + j], want[i * DIM + j]) ||
                           !is_same(columns[j * MM_PAGE + i], want[i * DIM + j]);
            }
            for (int j = 0; j < DIM; j++)
                bad += columns[j * MM_PAGE + 31] != 0.0f; /* padded to whole vectors */
        }
        free(columns);
        free(p.data);
        free(p.scale);
        MM_CHECK(bad == 0, "format %d: %d values", format[f], bad);
    }
}

MM_TEST(test_swiglu_keeps_nan_and_clamps)
{
    const mm_op_shape s = {
        .act = MM_DTYPE_F32, .swiglu_alpha = 1.702f, .swiglu_beta = 1.0f, .swiglu_limit = 7.0f};
    static const float g[7] = {-100.0f, -1.0f, 0.0f, 3.0f, 50.0f, NAN, 1.0f},
                       u[7] = {2.0f, 30.0f, 1.0f, -40.0f, 7.5f, 1.0f, NAN};
    for (int t = 0; t < (int)MM_ARRAY_LEN(tiers); t++) {
        const mm_cpu_math_kernels *m = math_of(tiers[t]);
        float out[7];
        if (m == NULL)
            continue;
        m->swiglu(&s, g, u, 7, out);
        for (int i = 0; i < 7; i++) {
            const double x = g[i] > 7.0f ? 7.0 : (double)g[i], y = u[i] > 7.0f    ? 7.0
                                                                   : u[i] < -7.0f ? -7.0
                                                                                  : (double)u[i];
            const double want = (y + 1.0) * x / (1.0 + exp(-1.702 * x));
            MM_CHECK(isnan(want) ? isnan(out[i]) != 0
                                 : fabs((double)out[i] - want) <= 1e-6 * fabs(want) + 1e-30,
                     "%s: %g, %g: %g, not %g", tiers[t], (double)g[i], (double)u[i], (double)out[i],
                     want);
        }
    }
}

MM_TEST(test_tier_limit_is_kept_and_named)
{
    const mm_cpu_isa *isa = NULL;
    MM_CHECK(mm_cpu_isa_find("scalar", &isa) == MM_OK && strcmp(isa->name, "scalar") == 0 &&
             !isa->has_dot);
    MM_CHECK(mm_cpu_isa_find("sse9", &isa) == MM_E_CONFIG);
    MM_CHECK(strstr(mm_error_message(), "MM_TIER=sse9") != NULL, "%s", mm_error_message());
}
