/* bench_cpu.c: times the cpu backend's kernels and ops on this machine; bench_ops.py builds and runs it.
 *
 *   bench_cpu <what> [tier] [threads]     what: peak, gemv, gemm, ops, sample
 *
 * Prints one line per result: name|params|value|unit|floor|floor unit|note. The ceilings (streaming read, multiply-add rate)
 * are measured in the same run; every timed result is first compared with ref. Times are medians. */
#include <immintrin.h>

#include "bench_model.h"

static double median(double *t, int n)
{
    for (int i = 1; i < n; i++) {
        for (int j = i; j > 0 && t[j] < t[j - 1]; j--) {
            const double x = t[j];
            t[j] = t[j - 1];
            t[j - 1] = x;
        }
    }
    return t[n / 2];
}

static void report(const char *name, const char *params, double value, const char *unit, double floor, const char *note)
{
    printf("%s|%s|%.4g|%s|%.4g|%s\n", name, params, value, unit, floor, note);
    fflush(stdout);
}

static int fail(const char *what)
{
    fprintf(stderr, "bench_cpu: %s: %s\n", what, mm_error_message());
    return 1;
}

/* ---------------------------------------------------------------- ceilings */

#define READ_BYTES ((int64_t)256 << 20)

typedef struct read_run {
    const uint8_t *p;
    uint64_t sum[64][8]; /* a cache line per thread */
} read_run;

static void read_range(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    read_run *r = ctx;
    uint64_t s[8] = {0};
    for (int64_t i = begin; i < end; i += 64) {
        uint64_t v[8];
        memcpy(v, r->p + i, sizeof v);
        for (int j = 0; j < 8; j++)
            s[j] += v[j];
    }
    for (int j = 0; j < 8; j++)
        r->sum[i_thread % 64][j] += s[j];
}

/* Bytes per second that all threads together read from memory: the best of several passes, as STREAM counts. */
static double read_bandwidth(mm_pool *pool)
{
    uint8_t *p = aligned_alloc(4096, (size_t)READ_BYTES);
    double best = 0.0;
    memset(p, 1, (size_t)READ_BYTES);
    read_run *r = calloc(1, sizeof *r);
    r->p = p;
    for (int i = 0; i < 9; i++) {
        const double t = mm_now();
        mm_pool_run(pool, READ_BYTES, 4096, read_range, r);
        const double rate = (double)READ_BYTES / (mm_now() - t);
        best = rate > best ? rate : best;
    }
    free(r);
    free(p);
    return best;
}

#define PEAK_ROUNDS 2000000
#define PEAK_BODY(set1, fma, sum)                                                                                      \
    typeof(set1(0.0f)) a[12];                                                                                          \
    const typeof(set1(0.0f)) x = set1(0.999f), y = set1(1e-3f);                                                        \
    for (int i = 0; i < 12; i++)                                                                                       \
        a[i] = set1((float)i);                                                                                         \
    for (int64_t k = 0; k < PEAK_ROUNDS; k++) {                                                                        \
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) a[i] = fma(a[i], x, y);                                  \
    }                                                                                                                  \
    float s = 0.0f;                                                                                                    \
    for (int i = 0; i < 12; i++)                                                                                       \
        s += sum(a[i]);                                                                                                \
    return s

__attribute__((target("avx512f"), noinline)) static float peak512(void)
{
    PEAK_BODY(_mm512_set1_ps, _mm512_fmadd_ps, _mm512_reduce_add_ps);
}
#define FIRST(v) _mm256_cvtss_f32(v)
__attribute__((target("avx2,fma"), noinline)) static float peak256(void)
{
    PEAK_BODY(_mm256_set1_ps, _mm256_fmadd_ps, FIRST);
}

static void peak_thread(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    volatile float *out = ctx;
    for (int64_t i = begin; i < end; i++)
        out[i_thread] = __builtin_cpu_supports("avx512f") ? peak512() : peak256();
}

/* f32 multiply-adds per second of all threads, times two. */
static double fma_peak(mm_pool *pool)
{
    float out[1024];
    double best = 0.0;
    const int n = mm_pool_n_thread(pool), lanes = __builtin_cpu_supports("avx512f") ? 16 : 8;
    for (int i = 0; i < 5; i++) {
        const double t = mm_now();
        mm_pool_run(pool, n, 1, peak_thread, out);
        const double rate = (double)n * PEAK_ROUNDS * 12 * 2 * lanes / (mm_now() - t);
        best = rate > best ? rate : best;
    }
    return best;
}

/* ---------------------------------------------------------------- linear */

static const mm_weight_format formats[] = {MM_WEIGHT_F32, MM_WEIGHT_BF16, MM_WEIGHT_MXFP8, MM_WEIGHT_NVFP4};
static const char *const format_name[] = {"none", "f32", "bf16", "mxfp8", "nvfp4"};

/* Times m rows through a matrix; seconds, or < 0 when the result is not ref's. */
static double time_linear(host *h, const mm_op_shape *shape, const mm_weight *w, const void *x, int64_t m, int n_rep, float *y)
{
    const mm_op_context c = {.stream = h->stream, .shape = shape, .comm = h->comm};
    double t[64];
    for (int i = 0; i < n_rep + 1; i++) {
        const double begin = mm_now();
        const mm_cpu_run r = mm_cpu_start(&c);
        const mm_cpu_kind kind = mm_cpu_kind_of(r.isa, w->format, shape->act);
        mm_cpu_rows rows = {.x = x, .n = m, .k = w->n_in};
        if (mm_cpu_prepare(&r, &rows, kind) != MM_OK)
            return -1.0;
        mm_cpu_job job = {w, kind, rows.at[kind], m, y, w->n_out, 0};
        if (mm_cpu_linear(&r, &job, 1) != MM_OK)
            return -1.0;
        if (i > 0)
            t[i - 1] = mm_now() - begin;
    }
    /* the first 48 outputs of the last row */
    float *row = malloc((size_t)w->n_in * sizeof(float)), *xf = malloc((size_t)w->n_in * sizeof(float)), want[48];
    const mm_weight some = mm_weight_rows(w, 0, 48);
    mm_ref_act_read(shape->act, x, (m - 1) * w->n_in, w->n_in, xf);
    mm_ref_linear(&some, xf, 1, want, 48, row);
    const double err = relative_error(y + (m - 1) * w->n_out, want, 48);
    free(row);
    free(xf);
    return err < 1e-5 ? median(t, n_rep) : -1.0;
}

static int bench_linear(const char *tier, int n_thread, int64_t m, int64_t n_out, int64_t n_in, int n_rep)
{
    const mm_op_shape shape = {.act = MM_DTYPE_BF16, .d_model = (int32_t)n_in};
    uint64_t seed = 1;
    host h;
    if (open_host(&h, tier, n_thread, NULL, (size_t)256 << 20) != MM_OK)
        return fail("open");
    mm_pool *pool = h.stream->pool;
    uint16_t *x = malloc((size_t)(m * n_in) * 2);
    float *y = malloc((size_t)(m * n_out) * sizeof(float));
    random_fill(&seed, MM_DTYPE_BF16, 1.0f, x, m * n_in);
    int bad = 0;
    for (int f = 1; f < 4 && bad == 0; f++) {
        /* a block of rows, repeated: values do not matter for time, making 100 M of them would take longer than the test */
        const int64_t n_block = mm_min_i64(n_out, 512);
        mm_weight block = random_weight(&seed, formats[f], n_block, n_in, 0), w = block;
        uint8_t *data = malloc((size_t)(n_out * w.data_stride)), *scale = malloc((size_t)(n_out * w.scale_stride + 1));
        for (int64_t i = 0; i < n_out; i += n_block) {
            const int64_t n = mm_min_i64(n_block, n_out - i);
            memcpy(data + i * w.data_stride, block.data, (size_t)(n * w.data_stride));
            if (block.scale != NULL)
                memcpy(scale + i * w.scale_stride, block.scale, (size_t)(n * w.scale_stride));
        }
        w.n_out = n_out;
        w.data = data;
        w.scale = block.scale != NULL ? scale : NULL;
        const double ceiling = m == 1 ? read_bandwidth(pool) : fma_peak(pool);
        const double t = time_linear(&h, &shape, &w, x, m, n_rep, y);
        char params[128], note[64];
        snprintf(params, sizeof params, "format=%s m=%d n=%d k=%d tier=%s threads=%d", format_name[formats[f]], (int)m,
                 (int)n_out, (int)n_in, h.backend->props.tier, n_thread);
        const double work = m == 1 ? (double)(n_out * (w.data_stride + w.scale_stride)) : 2.0 * (double)(m * n_out * n_in);
        if (t > 0.0) {
            snprintf(note, sizeof note, "%.1f %% of the ceiling", 100.0 * work / t / ceiling);
            report(m == 1 ? "gemv" : "gemm", params, work / t * 1e-9, m == 1 ? "GB/s" : "GFLOP/s", ceiling * 1e-9, note);
        } else {
            bad = fail("linear differs from ref or failed");
        }
        free(data);
        free(scale);
        free_weight(&block);
    }
    free(x);
    free(y);
    close_host(&h);
    return bad;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    const char *tier = argc > 2 ? argv[2] : "avx512_bf16";
    const int n_thread = argc > 3 ? atoi(argv[3]) : mm_physical_cores();
    if (strcmp(what, "gemv") == 0)
        return bench_linear(tier, n_thread, 1, argc > 4 ? atoi(argv[4]) : 98304, 2048, 21);
    if (strcmp(what, "gemm") == 0)
        return bench_linear(tier, n_thread, 256, 4096, 2048, 5) || bench_linear(tier, n_thread, 256, 2048, 6144, 5) || bench_linear(tier, n_thread, 8, 16384, 2048, 7);
    fprintf(stderr, "bench_cpu <what> [tier] [threads]\n");
    return 2;
}
