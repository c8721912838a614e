/* test_memory.c: how many pages an engine gets, what is refused with which advice, and which batch
 * sizes are captured. */
#include "csrc/engine/graph.h"
#include "csrc/engine/memory.h"
#include "tests/c/mm_test.h"

#define GB ((int64_t)1 << 30)

static const mm_memory_line lines[] = {{"weights", "device", 10 * GB},
                                       {"activations", "device", 2 * GB},
                                       {"staging", "host", 90 * GB}};

static int64_t step_bytes(const void *rank, const void *model, int32_t rows)
{
    (void)rank, (void)model;
    return rows * (GB / 4096);
}

static mm_memory_need need_of(void)
{
    return (mm_memory_need){.line = lines,
                            .n_line = (int32_t)MM_ARRAY_LEN(lines),
                            .page_bytes = GB / 1024,
                            .most_pages = 1 << 20,
                            .row_bytes = GB / 4096,
                            .step_bytes = step_bytes};
}

static mm_status plan(const mm_engine_options *o, int64_t total, int64_t is_free, int64_t *n_page)
{
    const mm_memory_need need = need_of();
    const mm_backend_props p = {
        .name = "mock", .memory_total = total * GB, .memory_free = is_free * GB};
    *n_page = -1;
    return mm_memory_plan(o, &p, &need, n_page);
}

static mm_engine_options options_of(double fraction, int64_t kv_bytes)
{
    return (mm_engine_options){.memory_fraction = fraction,
                               .kv_bytes = kv_bytes,
                               .max_batched_tokens = 8192,
                               .max_model_len = 1000,
                               .max_num_seqs = 4};
}

MM_TEST(test_pages_are_what_is_left)
{
    int64_t n;
    mm_engine_options o = options_of(0.5, 0);
    const int64_t fixed = 12 * GB + MM_DEVICE_RESERVE; /* host lines do not count */
    MM_CHECK(plan(&o, 40, 39, &n) == MM_OK && n == (20 * GB - fixed) / (GB / 1024), "%lld",
             (long long)n);
    /* never more than is free */
    MM_CHECK(plan(&o, 40, 14, &n) == MM_OK && n == (14 * GB - fixed) / (GB / 1024), "%lld",
             (long long)n);
    /* pages asked for in bytes may go beyond the share, not beyond what is free */
    o = options_of(0.1, 8 * GB + 5);
    MM_CHECK(plan(&o, 40, 39, &n) == MM_OK && n == 8 * 1024, "%lld", (long long)n);
    MM_CHECK(plan(&o, 40, 20, &n) == MM_E_NOMEM && n == -1, "");
}

static void check_refused(const mm_engine_options *o, int64_t total, int64_t is_free,
                          const char *param, const char *advice)
{
    int64_t n;
    MM_CHECK(plan(o, total, is_free, &n) == MM_E_NOMEM, "");
    MM_CHECK(strcmp(mm_error_param(), param) == 0, "%s", mm_error_param());
    MM_CHECK(strstr(mm_error_message(), advice) != NULL, "%s", mm_error_message());
    MM_CHECK(strstr(mm_error_message(), "weights 10.737, activations 2.147,") != NULL, "%s",
             mm_error_message());
}

MM_TEST(test_refusals_say_what_would_fit)
{
    int64_t n;
    mm_engine_options o = options_of(0.2, 0);
    check_refused(&o, 40, 39, "gpu_memory_utilization", "gpu_memory_utilization=0.31 fits");
    o.memory_fraction = 0.31;
    MM_CHECK(plan(&o, 40, 39, &n) == MM_OK && n >= 2, "%s", mm_error_message());
    o = options_of(0.9, 30 * GB);
    check_refused(&o, 40, 20, "kv_cache_memory_bytes", "kv_cache_memory_bytes=8321499136 fits");
    o.kv_bytes = 8321499136;
    MM_CHECK(plan(&o, 40, 20, &n) == MM_OK, "%s", mm_error_message());
    o = options_of(0.9, 0); /* the step itself is too wide: 2 GB of 8192 rows */
    check_refused(&o, 40, 11, "max_num_batched_tokens", "max_num_batched_tokens=2944 fits");
    check_refused(&o, 12, 12, "max_num_batched_tokens", "max_num_batched_tokens=2176 fits");
    o = options_of(0.5, 0); /* half of the memory is too little even for MM_PAGE rows */
    check_refused(&o, 12, 12, "max_num_batched_tokens",
                  "max_num_batched_tokens=7040 with gpu_memory_utilization=1.0 fits");
    o = options_of(0.9, 30 * GB); /* neither these pages nor these rows */
    check_refused(&o, 40, 12, "max_num_batched_tokens",
                  "max_num_batched_tokens=7040 with kv_cache_memory_bytes=2097152 fits");
    o = options_of(0.9, 0);
    check_refused(&o, 40, 9, "gpu_memory_utilization", "run from host memory (backend=\"cpu\")");
}

MM_TEST(test_hosts_count_pages_only)
{
    const mm_memory_need need = need_of();
    const mm_backend_props p = {.name = "cpu", .is_host = true, .memory_free = GB};
    mm_engine_options o = options_of(0.9, 0);
    int64_t n = 0;
    MM_CHECK(mm_memory_plan(&o, &p, &need, &n) == MM_OK && n == 8 + 4 + 1, "%lld", (long long)n);
    o.kv_bytes = GB;
    MM_CHECK(mm_memory_plan(&o, &p, &need, &n) == MM_OK && n == 1024, "%lld", (long long)n);
    o.kv_bytes = 1;
    MM_CHECK(mm_memory_plan(&o, &p, &need, &n) == MM_E_CONFIG, "");
}

static void check_sizes(const int32_t *wanted, int32_t n_wanted, int32_t max_seqs, int32_t max_rows,
                        const int32_t *expected, int32_t n_expected)
{
    int32_t size[MM_MAX_GRAPH_SIZES];
    const int32_t n = mm_graph_sizes(size, wanted, n_wanted, max_seqs, max_rows);
    MM_CHECK(n == n_expected, "%d sizes for %d sequences", n, max_seqs);
    for (int32_t i = 0; i < n && i < n_expected; i++)
        MM_CHECK(size[i] == expected[i], "size %d is %d", i, size[i]);
}

MM_TEST(test_graph_sizes_end_with_the_largest)
{
    check_sizes(NULL, 0, 1, 8192, (const int32_t[]){1}, 1);
    check_sizes(NULL, 0, 6, 8192, (const int32_t[]){1, 2, 4, 6}, 4);
    check_sizes(NULL, 0, 100, 8192, (const int32_t[]){1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 100},
                12);
    check_sizes(NULL, 0, 256, 128, (const int32_t[]){1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128},
                12);
    check_sizes((const int32_t[]){8, 1, 8, 300}, 4, 256, 8192, (const int32_t[]){1, 8}, 2);
    int32_t size[MM_MAX_GRAPH_SIZES];
    const int32_t n = mm_graph_sizes(size, NULL, 0, 65536, 1 << 20);
    MM_CHECK(n > 20 && n <= MM_MAX_GRAPH_SIZES && size[n - 1] == 65536, "%d", n);
}
