/* test_cpu_linear.c: y = x W^T of every tier, format and activation type against ref; and that a
 * row's bits depend on nothing but the row: not on how many rows there are, where it stands, how
 * many threads run or how W is viewed. */
#include "mm_test.h"

#include "cpu_fixture.h"

static const char *const tiers[] = {"scalar", "avx2", "avx512", "avx512_bf16"};
static const mm_weight_format formats[] = {MM_WEIGHT_F32, MM_WEIGHT_BF16, MM_WEIGHT_MXFP8,
                                           MM_WEIGHT_NVFP4};
static const char *const format_name[] = {"none", "F32", "BF16", "MXFP8", "NVFP4"};

/* y [m, n_out] of rows x [m, n_in], with a fresh backend. */
static mm_status run_linear(const char *tier, int n_thread, mm_dtype act, const mm_weight *w,
                            const void *x, int64_t m, float *y)
{
    const mm_op_shape shape = {.act = act, .d_model = (int32_t)w->n_in};
    host h;
    mm_status st = open_host(&h, tier, n_thread, NULL, (size_t)64 << 20);
    if (st == MM_OK) {
        const mm_op_context c = {.stream = h.stream, .shape = &shape, .comm = h.comm};
        const mm_cpu_run r = mm_cpu_start(&c);
        const mm_cpu_kind kind = mm_cpu_kind_of(r.isa, w->format, act);
        mm_cpu_rows rows = {.x = x, .n = m, .k = w->n_in};
        st = mm_cpu_prepare(&r, &rows, kind);
        if (st == MM_OK) {
            mm_cpu_job job = {w, kind, rows.at[kind], m, y, w->n_out, 0};
            st = mm_cpu_linear(&r, &job, 1);
        }
    }
    close_host(&h);
    return st;
}

static void ref_linear(mm_dtype act, const mm_weight *w, const void *x, int64_t m, float *y)
{
    float *f = malloc((size_t)(m * w->n_in) * sizeof(float)),
          *row = malloc((size_t)w->n_in * sizeof(float));
    mm_ref_act_read(act, x, 0, m * w->n_in, f);
    mm_ref_linear(w, f, m, y, w->n_out, row);
    free(f);
    free(row);
}

/* Compares one case; false with a line when something differs. */
static bool check_case(const char *tier, mm_weight_format format, mm_dtype act, int64_t n_out,
                       int64_t n_in, int64_t pad)
{
    enum { M = 11 };
    uint64_t seed = (uint64_t)(n_out * 1000 + n_in + 7 * format);
    mm_weight w = random_weight(&seed, format, n_out, n_in, pad);
    const size_t size = act == MM_DTYPE_BF16 ? 2 : 4, n = (size_t)(M * n_out) * sizeof(float);
    uint8_t *x = malloc((size_t)(M * n_in) * size);
    float *want = malloc(n), *many = malloc(n), *one = malloc(n);
    bool ok = true;
    random_fill(&seed, act, 1.0f, x, M * n_in);
    ref_linear(act, &w, x, M, want);
    ok = run_linear(tier, 1, act, &w, x, M, many) == MM_OK;
    const double err = ok ? relative_error(many, want, M * n_out) : (double)INFINITY;
    if (!(err < 3e-6)) {
        printf("  %s %s act %d [%d, %d]: error %g %s\n", tier, format_name[format], act, (int)n_out,
               (int)n_in, err, mm_error_message());
        ok = false;
    }
    for (int threads = 1; threads <= 3 && ok; threads++) {
        for (int64_t first = 0; first < M && ok; first += 3) { /* other rows, other places, other
                                                                  counts */
            const int64_t m = first == 0 ? 1 : mm_min_i64(first, M - first);
            memset(one, 0xFF, n);
            ok = run_linear(tier, threads, act, &w, x + (size_t)(first * n_in) * size, m, one) ==
                     MM_OK &&
                 memcmp(one, many + first * n_out, (size_t)(m * n_out) * sizeof(float)) == 0;
            if (!ok)
                printf(
                    "  %s %s act %d [%d, %d]: bits of rows %d.. depend on m = %d or %d threads\n",
                    tier, format_name[format], act, (int)n_out, (int)n_in, (int)first, (int)m,
                    threads);
        }
    }
    free(x);
    free(want);
    free(many);
    free(one);
    free_weight(&w);
    return ok;
}

MM_TEST(test_linear_matches_ref_and_is_invariant)
{
    static const int64_t size[][3] = {{1, 64, 0},   {5, 32, 0},    {16, 128, 64}, {37, 96, 0},
                                      {33, 256, 0}, {20, 352, 64}, {40, 1056, 0}}; /* n_out, n_in,
                                                                                      pad */
    for (int t = 0; t < (int)MM_ARRAY_LEN(tiers); t++) {
        if (!has_tier(tiers[t])) {
            printf("  tier %s: not on this machine\n", tiers[t]);
            continue;
        }
        for (int f = 0; f < 4; f++) {
            for (int s = 0; s < (int)MM_ARRAY_LEN(size); s++) {
                for (int act = 0; act < 2; act++)
                    MM_CHECK(check_case(tiers[t], formats[f],
                                        act == 0 ? MM_DTYPE_F32 : MM_DTYPE_BF16, size[s][0],
                                        size[s][1], size[s][2]));
            }
        }
    }
}

MM_TEST(test_linear_takes_widths_of_sixteen)
{
    for (int t = 0; t < (int)MM_ARRAY_LEN(tiers); t++) {
        if (!has_tier(tiers[t]))
            continue;
        for (int64_t n_in = 16; n_in <= 272; n_in += 16) {
            MM_CHECK(check_case(tiers[t], MM_WEIGHT_NVFP4, MM_DTYPE_BF16, 6, n_in, 0));
            MM_CHECK(check_case(tiers[t], MM_WEIGHT_BF16, MM_DTYPE_BF16, 6, n_in, 0));
            MM_CHECK(check_case(tiers[t], MM_WEIGHT_F32, MM_DTYPE_BF16, 6, n_in, 0));
            if (n_in % 32 == 0)
                MM_CHECK(check_case(tiers[t], MM_WEIGHT_MXFP8, MM_DTYPE_BF16, 6, n_in, 0));
        }
    }
}

/* Every code of a format, every scale that a checkpoint may hold, against the scalar definition. */
static bool check_codes(const char *tier, mm_weight_format format, mm_dtype act)
{
    enum { K = 256 };
    uint8_t data[4 * K], scale[4 * K / 16];
    uint16_t x16[K];
    float x32[K], want[4], got[4], row[K];
    uint64_t seed = 11;
    for (int pass = 0; pass < 40; pass++) {
        for (int i = 0; i < (int)sizeof data; i++) {
            data[i] = (uint8_t)random_next(&seed);
            if (format == MM_WEIGHT_MXFP8 && (data[i] & 0x7F) == 0x7F)
                data[i] ^= 1; /* NaN has a test of its own */
        }
        for (int i = 0; i < (int)sizeof scale; i++)
            scale[i] = (uint8_t)(format == MM_WEIGHT_MXFP8 ? 100 + random_below(&seed, 50)
                                                           : random_below(&seed, 0x7F));
        random_fill(&seed, MM_DTYPE_BF16, 1.0f, x16, K);
        mm_ref_act_read(MM_DTYPE_BF16, x16, 0, K, x32);
        const mm_weight w = {.format = format,
                             .n_out = 4,
                             .n_in = K,
                             .data = data,
                             .data_stride = mm_weight_row_bytes(format, K),
                             .scale = scale,
                             .scale_stride = mm_weight_row_scale_bytes(format, K),
                             .global_scale = 1.0f};
        mm_ref_linear(&w, x32, 1, want, 4, row);
        if (run_linear(tier, 1, act, &w, act == MM_DTYPE_BF16 ? (const void *)x16 : x32, 1, got) !=
            MM_OK)
            return false;
        for (int i = 0; i < 4; i++) {
            double size = 0.0;
            mm_ref_weight_row(&w, i, row);
            for (int k = 0; k < K; k++)
                size += fabs((double)row[k] * (double)x32[k]);
            if (!(fabs((double)got[i] - (double)want[i]) <= 1e-6 * size)) {
                printf("  %s %s: %g, ref %g, terms %g\n", tier, format_name[format], (double)got[i],
                       (double)want[i], size);
                return false;
            }
        }
    }
    return true;
}

MM_TEST(test_linear_decodes_every_code)
{
    for (int t = 0; t < (int)MM_ARRAY_LEN(tiers); t++) {
        if (!has_tier(tiers[t]))
            continue;
        for (int act = 0; act < 2; act++) {
            MM_CHECK(
                check_codes(tiers[t], MM_WEIGHT_MXFP8, act == 0 ? MM_DTYPE_F32 : MM_DTYPE_BF16));
            MM_CHECK(
                check_codes(tiers[t], MM_WEIGHT_NVFP4, act == 0 ? MM_DTYPE_F32 : MM_DTYPE_BF16));
        }
    }
}

MM_TEST(test_linear_keeps_nan)
{
    enum { K = 128, N = 5 };
    for (int t = 0; t < (int)MM_ARRAY_LEN(tiers); t++) {
        for (int f = 0; f < 4 && has_tier(tiers[t]); f++) {
            uint64_t seed = 3;
            uint16_t x[3 * K];
            float y[3 * N];
            mm_weight w = random_weight(&seed, formats[f], N, K, 0);
            random_fill(&seed, MM_DTYPE_BF16, 1.0f, x, 3 * K);
            x[K + 77] = 0x7FC1;                                               /* row 1 */
            uint8_t *data = (uint8_t *)(uintptr_t)w.data + 2 * w.data_stride; /* and weight row 2 */
            if (formats[f] == MM_WEIGHT_F32)
                ((float *)(void *)data)[9] = NAN;
            else if (formats[f] == MM_WEIGHT_BF16)
                ((uint16_t *)(void *)data)[9] = 0x7FC0;
            else if (formats[f] == MM_WEIGHT_MXFP8)
                data[9] = 0xFF;
            else
                ((uint8_t *)(uintptr_t)w.scale)[2 * w.scale_stride + 3] = 0x7F;
            for (int64_t m = 1; m <= 3; m += 2) {
                MM_CHECK(run_linear(tiers[t], 1, MM_DTYPE_BF16, &w, x, m, y) == MM_OK, "%s",
                         mm_error_message());
                for (int64_t r = 0; r < m; r++) {
                    for (int i = 0; i < N; i++)
                        MM_CHECK((isnan(y[r * N + i]) != 0) == (r == 1 || i == 2),
                                 "%s %s row %d out %d: %g", tiers[t], format_name[formats[f]],
                                 (int)r, i, (double)y[r * N + i]);
                }
            }
            free_weight(&w);
        }
    }
}
