/* bench_cpu.c: times the cpu backend's kernels and ops on this machine; bench_ops.py builds and
 * runs it.
 *
 *   bench_cpu gemv|gemm|model|sample [tier] [threads]
 *
 * Prints one line per result: name|params|value|unit|floor|peer|note. floor: the ceiling (streaming
 * read in GB/s, f32 multiply-adds in GFLOP/s), measured in the same run, before and after; peer:
 * ref on the same work. Every timed result is first compared with ref. A time is the best of its
 * repetitions and a ceiling the best of its passes, so that other work on the machine lowers
 * neither. */
#if !defined(__x86_64__)
#error "the ceilings are measured with x86-64 instructions"
#endif
#include <immintrin.h>
#include <time.h>

#include "../c/cpu_model.h"

/* One thread is timed by the processor time it got, so that a busy machine takes nothing away but
 * bandwidth; several by the wall. */
static bool is_single;

static double clock_now(void)
{
    struct timespec t;
    if (!is_single)
        return mm_now();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void report(const char *name, const char *params, double value, const char *unit,
                   double floor, double peer, const char *note)
{
    printf("%s|%s|%.4g|%s|", name, params, value, unit);
    if (floor > 0.0)
        printf("%.4g", floor);
    printf("|");
    if (peer > 0.0)
        printf("%.4g", peer);
    printf("|%s%s\n", note, is_single ? "; processor time" : "; wall time");
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

/* Bytes per second that all threads together read from memory: the best of several passes, as
 * STREAM counts. */
static double read_bandwidth(mm_pool *pool)
{
    uint8_t *p = aligned_alloc(4096, (size_t)READ_BYTES);
    double best = 0.0;
    memset(p, 1, (size_t)READ_BYTES);
    read_run *r = calloc(1, sizeof *r);
    r->p = p;
    for (int i = 0; i < 9; i++) {
        const double t = clock_now();
        mm_pool_run(pool, READ_BYTES, 4096, read_range, r);
        const double rate = (double)READ_BYTES / (clock_now() - t);
        best = rate > best ? rate : best;
    }
    free(r);
    free(p);
    return best;
}

#define PEAK_ROUNDS 2000000
#define PEAK_BODY(set1, fma, sum)                                                                  \
    typeof(set1(0.0f)) a[12];                                                                      \
    const typeof(set1(0.0f)) x = set1(0.999f), y = set1(1e-3f);                                    \
    for (int i = 0; i < 12; i++)                                                                   \
        a[i] = set1((float)i);                                                                     \
    for (int64_t k = 0; k < PEAK_ROUNDS; k++) {                                                    \
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) a[i] = fma(a[i], x, y);              \
    }                                                                                              \
    float s = 0.0f;                                                                                \
    for (int i = 0; i < 12; i++)                                                                   \
        s += sum(a[i]);                                                                            \
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
        const double t = clock_now();
        mm_pool_run(pool, n, 1, peak_thread, out);
        const double rate = (double)n * PEAK_ROUNDS * 12 * 2 * lanes / (clock_now() - t);
        best = rate > best ? rate : best;
    }
    return best;
}

/* ---------------------------------------------------------------- linear */

static const mm_weight_format formats[] = {MM_WEIGHT_F32, MM_WEIGHT_BF16, MM_WEIGHT_MXFP8,
                                           MM_WEIGHT_NVFP4};
static const char *const format_name[] = {"none", "f32", "bf16", "mxfp8", "nvfp4"};

/* Best time of m rows through a matrix in seconds, or < 0 when the result is not ref's or the op
 * fails. */
static double time_linear(host *h, const mm_op_shape *shape, const mm_weight *w, const void *x,
                          int64_t m, int n_rep, float *y)
{
    const mm_op_context c = {.stream = h->stream, .shape = shape, .comm = h->comm};
    double best = (double)INFINITY;
    for (int i = 0; i < n_rep; i++) {
        const double begin = clock_now();
        const mm_cpu_run r = mm_cpu_start(&c);
        const mm_cpu_kind kind = mm_cpu_kind_of(r.isa, w->format, shape->act);
        mm_cpu_rows rows = {.x = x, .n = m, .k = w->n_in};
        if (mm_cpu_prepare(&r, &rows, kind) != MM_OK)
            return -1.0;
        mm_cpu_job job = {w, kind, rows.at[kind], m, y, w->n_out, 0};
        if (mm_cpu_linear(&r, &job, 1) != MM_OK)
            return -1.0;
        const double t = clock_now() - begin;
        best = t < best ? t : best;
    }
    enum { CHECKED = 48 }; /* outputs of the last row */
    float *row = malloc((size_t)w->n_in * sizeof(float)),
          *xf = malloc((size_t)w->n_in * sizeof(float)), want[CHECKED];
    const mm_weight some = mm_weight_rows(w, 0, CHECKED);
    mm_ref_act_read(shape->act, x, (m - 1) * w->n_in, w->n_in, xf);
    mm_ref_linear(&some, xf, 1, want, CHECKED, row);
    const double err = relative_error(y + (m - 1) * w->n_out, want, CHECKED);
    free(row);
    free(xf);
    return err < 1e-5 ? best : -1.0;
}

/* A large weight from one block of random rows, repeated: values do not matter for time. */
static mm_weight repeated_weight(uint64_t *seed, mm_weight_format format, int64_t n_out,
                                 int64_t n_in)
{
    const int64_t n_block = mm_min_i64(n_out, 512);
    mm_weight block = random_weight(seed, format, n_block, n_in, 0), w = block;
    uint8_t *data = malloc((size_t)(n_out * w.data_stride)),
            *scale = malloc((size_t)(n_out * w.scale_stride + 1));
    for (int64_t i = 0; i < n_out; i += n_block) {
        const int64_t n = mm_min_i64(n_block, n_out - i);
        memcpy(data + i * w.data_stride, block.data, (size_t)(n * w.data_stride));
        if (block.scale != NULL)
            memcpy(scale + i * w.scale_stride, block.scale, (size_t)(n * w.scale_stride));
    }
    w.n_out = n_out;
    w.data = data;
    w.scale = scale;
    free_weight(&block);
    return w;
}

static int bench_linear(const char *tier, int n_thread, int64_t m, int64_t n_out, int64_t n_in,
                        int n_rep)
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
    for (int f = 0; f < (int)MM_ARRAY_LEN(formats) && bad == 0; f++) {
        mm_weight w = repeated_weight(&seed, formats[f], n_out, n_in);
        double ceiling = m == 1 ? read_bandwidth(pool) : fma_peak(pool);
        const double t = time_linear(&h, &shape, &w, x, m, n_rep, y);
        const double after = m == 1 ? read_bandwidth(pool) : fma_peak(pool);
        ceiling = after > ceiling ? after : ceiling;
        char params[160], note[96];
        const double work = m == 1 ? (double)(n_out * (w.data_stride + w.scale_stride))
                                   : 2.0 * (double)(m * n_out * n_in);
        snprintf(params, sizeof params, "format=%s m=%d n=%d k=%d tier=%s threads=%d",
                 format_name[formats[f]], (int)m, (int)n_out, (int)n_in, h.backend->props.tier,
                 n_thread);
        snprintf(note, sizeof note, "%.0f %% of the %s measured in this run",
                 100.0 * work / t / ceiling, m == 1 ? "read bandwidth" : "f32 peak");
        if (t > 0.0)
            report(m == 1 ? "cpu_gemv" : "cpu_gemm", params, work / t * 1e-9,
                   m == 1 ? "GB/s" : "GFLOP/s", ceiling * 1e-9, 0.0, note);
        else
            bad = fail("linear differs from ref or failed");
        free_weight(&w);
    }
    free(x);
    free(y);
    close_host(&h);
    return bad;
}

/* ---------------------------------------------------------------- a whole model */

enum { PROMPT = 128 };

/* Seconds of a prompt and of one decode row after it (the best of n_decode); logits of the first
 * decode row to out. */
static mm_status time_model(const model *m, const char *tier, int n_thread, int n_rep, int n_decode,
                            double *prefill, double *decode, char *tier_name, float *out)
{
    session s;
    mm_status st = open_session(&s, m, tier, n_thread);
    *prefill = *decode = (double)INFINITY;
    for (int i = 0; i < n_rep && st == MM_OK; i++) {
        const int32_t zero = 0, n = PROMPT;
        const double begin = clock_now();
        st = run_step(&s, 0, 1, &zero, &n);
        const double t = clock_now() - begin;
        *prefill = t < *prefill ? t : *prefill;
    }
    for (int i = 0; i < n_decode && st == MM_OK; i++) {
        const int32_t pos = PROMPT + i, n = 1;
        const double begin = clock_now();
        st = run_step(&s, 0, 1, &pos, &n);
        const double t = clock_now() - begin;
        *decode = t < *decode ? t : *decode;
        if (i == 0)
            memcpy(out, s.logits, (size_t)m->z.n_vocab * sizeof(float));
    }
    if (st == MM_OK)
        snprintf(tier_name, 32, "%s", s.host.backend->props.tier);
    close_session(&s);
    return st;
}

static int bench_model(const char *tier, int n_thread)
{
    const model_sizes z = {.act = MM_DTYPE_BF16,
                           .linear = MM_WEIGHT_MXFP8,
                           .expert = MM_WEIGHT_NVFP4,
                           .kv = MM_CACHE_BF16,
                           .index = MM_CACHE_BF16,
                           .n_layer = 8,
                           .d_model = 1024,
                           .n_head = 16,
                           .n_kv_head = 4,
                           .head_dim = 64,
                           .n_expert = 32,
                           .n_expert_used = 4,
                           .d_expert = 512,
                           .d_shared = 512,
                           .d_dense = 4096,
                           .n_vocab = 32000,
                           .n_top_block = 16,
                           .max_model_len = 1024,
                           .max_rows = 256,
                           .max_seqs = 1};
    double prefill[2], decode[2];
    char name[2][32], params[192], note[64];
    model m;
    open_model(&m, &z);
    float *logits = malloc(2 * sizeof(float) * (size_t)z.n_vocab);
    mm_status st = time_model(&m, NULL, 1, 1, 3, &prefill[0], &decode[0], name[0], logits);
    if (st == MM_OK)
        st = time_model(&m, tier, n_thread, 8, 40, &prefill[1], &decode[1], name[1],
                        logits + z.n_vocab);
    const double err = st == MM_OK ? relative_error(logits + z.n_vocab, logits, z.n_vocab) : 0.0;
    const bool is_good = st == MM_OK && err < 0.3; /* bf16 roundings through 8 layers of random
                                                      weights */
    snprintf(params, sizeof params,
             "layers=8 d_model=1024 experts=32x512 used=4 vocab=32000 mxfp8+nvfp4 bf16 tier=%s "
             "threads=%d",
             name[1], n_thread);
    if (is_good) {
        snprintf(note, sizeof note, "%.0f times ref; batch 1 after %d tokens",
                 decode[0] / decode[1], PROMPT);
        report("cpu_model_decode", params, 1.0 / decode[1], "tok/s", 0.0, 1.0 / decode[0], note);
        snprintf(note, sizeof note, "%.0f times ref; a prompt of %d", prefill[0] / prefill[1],
                 PROMPT);
        report("cpu_model_prefill", params, PROMPT / prefill[1], "tok/s", 0.0, PROMPT / prefill[0],
               note);
    }
    free(logits);
    close_model(&m);
    if (st == MM_OK && !is_good)
        fprintf(stderr, "bench_cpu: logits differ from ref by %g\n", err);
    return is_good ? 0 : fail("model");
}

/* ---------------------------------------------------------------- sampling */

static double time_sample(host *h, const mm_op_shape *shape, const mm_slot_params *p,
                          const float *logits, float *work, int n_rep, int32_t *token)
{
    const mm_op_context c = {.stream = h->stream, .shape = shape, .comm = h->comm};
    int32_t n_emitted = 0, zero = 0, forced = -1;
    uint8_t flag;
    double best = (double)INFINITY;
    mm_slot_params params = *p;
    const mm_slots slots = {.n_slot = 1,
                            .mask_lanes = 1,
                            .mask_words = shape->n_vocab / 32,
                            .n_emitted = &n_emitted,
                            .params = &params};
    const mm_out_view view = {.n_out = 1,
                              .row_slot = &zero,
                              .lane = &zero,
                              .kind = &zero,
                              .token = &forced,
                              .row_token = &zero};
    const mm_sample_args a = {.logits = logits,
                              .work = work,
                              .slots = &slots,
                              .out = &view,
                              .n = 1,
                              .token = token,
                              .flag = &flag};
    for (int i = 0; i < n_rep; i++) {
        const double begin = clock_now();
        if (h->backend->ops->sample(&c, &a) != MM_OK || flag != MM_SAMPLE_OK)
            return -1.0;
        const double t = clock_now() - begin;
        best = t < best ? t : best;
    }
    return best;
}

static int bench_sample(const char *tier, int n_thread)
{
    enum { V = 200064 };
    static const mm_slot_params setting[] = {
        {.temperature = 0.0f, .top_p = 1.0f, .repetition_penalty = 1.0f},
        {.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f, .seed = 5},
        {.temperature = 1.0f, .top_p = 0.95f, .repetition_penalty = 1.0f, .top_k = 40, .seed = 5},
        {.temperature = 1.0f, .top_p = 0.95f, .repetition_penalty = 1.0f, .seed = 5},
    };
    static const char *const name[] = {"greedy", "temperature 1", "top_k 40, top_p 0.95",
                                       "top_p 0.95"};
    mm_op_shape shape = {.act = MM_DTYPE_BF16,
                         .d_model = 16,
                         .n_vocab = V,
                         .n_vocab_local = V,
                         .max_rows = 1,
                         .max_seqs = 1,
                         .head_dim = 16,
                         .n_head = 1,
                         .n_kv_head = 1,
                         .max_model_len = 128,
                         .max_logit_rows = 1};
    for (int i = 0; i < 16; i++)
        shape.never_token[i] = -1;
    uint64_t seed = 2;
    float *logits = malloc(V * sizeof(float)), *work = malloc(V * sizeof(float));
    host h[2];
    random_fill(&seed, MM_DTYPE_F32, 3.0f, logits, V);
    int bad = open_host(&h[0], NULL, 1, &shape, 0) != MM_OK ||
              open_host(&h[1], tier, n_thread, &shape, 0) != MM_OK;
    for (size_t i = 0; i < MM_ARRAY_LEN(setting) && bad == 0; i++) {
        int32_t token[2];
        char params[96];
        const double slow = time_sample(&h[0], &shape, &setting[i], logits, work, 5, &token[0]);
        const double fast = time_sample(&h[1], &shape, &setting[i], logits, work, 20, &token[1]);
        bad = slow < 0.0 || fast < 0.0 || token[0] != token[1];
        snprintf(params, sizeof params, "%s vocab=%d rows=1 tier=%s", name[i], V,
                 h[1].backend->props.tier);
        if (bad == 0)
            report("cpu_sample", params, fast * 1e6, "us", 0.0, slow * 1e6, "same token as ref");
    }
    close_host(&h[0]);
    close_host(&h[1]);
    free(logits);
    free(work);
    return bad != 0 ? fail("sample differs from ref or failed") : 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    const char *tier = argc > 2 ? argv[2] : "avx512_bf16";
    const int n_thread = argc > 3 ? atoi(argv[3]) : mm_physical_cores();
    if (n_thread < 1) {
        fprintf(stderr, "bench_cpu: threads must be at least 1\n");
        return 2;
    }
    is_single = n_thread == 1;
    if (strcmp(what, "gemv") == 0) /* 105 MB to 375 MB of weights: far more than any cache */
        return bench_linear(tier, n_thread, 1, 91440, 2048, 15);
    if (strcmp(what, "gemm") == 0)
        return bench_linear(tier, n_thread, 256, 4096, 2048, 5) != 0 ||
               bench_linear(tier, n_thread, 8, 8192, 2048, 5) != 0;
    if (strcmp(what, "model") == 0)
        return bench_model(tier, n_thread);
    if (strcmp(what, "sample") == 0)
        return bench_sample(tier, n_thread);
    fprintf(stderr, "bench_cpu gemv|gemm|model|sample [tier] [threads]\n");
    return 2;
}
