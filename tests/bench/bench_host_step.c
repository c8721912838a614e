/* bench_host_step.c: what the coordinator itself does for a decode step, without a model: plan,
 * batch, commit, publish, for 1 to 256 sequences of 8K context, in microseconds (medians).
 *
 *   bench_host_step [sequences ...]      the README beside it has the line that builds it
 *
 * Warm: step after step. Cold: between a batch and its commit, where an engine waits for the
 * device, 64 MB are walked, so that neither caches nor address translations know a request any
 * more. Order and run_ahead are those of an engine on a device. */
#include <stdio.h>

#include "csrc/engine/batch_build.h"
#include "csrc/engine/publish.h"
#include "csrc/engine/queue.h"
#include "csrc/engine/scheduler.h"
#include "kernels/ops.h"

enum { V = 200064, EOS = 2, CONTEXT = 8192, MAX_TOKENS = 4096, MAX_SEQS = 256, WARM_UP = 20 };
enum { WALK = 64 << 20, N_WARM = 2000, N_COLD = 150 };
enum { PLAN, BUILD, COMMIT, PUBLISH, N_PART };

static const int32_t eos[1] = {EOS};

typedef struct bench {
    mm_config config;
    mm_token_bytes bytes;
    mm_request_limits req;
    mm_scheduler s;
    mm_queue q;
    mm_waiter waiter;
    mm_request *r[MAX_SEQS];
    mm_step_result result[MM_MAX_IN_FLIGHT];
    void *blob[MM_MAX_IN_FLIGHT];
    int64_t blob_bytes, n_launched, n_collected;
} bench;

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    printf("bench_host_step: %s: %s\n", what, mm_error_message());
    exit(1);
}

static void add_request(bench *b, int32_t i)
{
    static int32_t prompt[CONTEXT];
    mm_request_params p;
    mm_request_params_init(&p);
    p.n_prompt = CONTEXT - i % MM_PAGE; /* pages fill up at different steps */
    for (int32_t k = 0; k < p.n_prompt; k++)
        prompt[k] = (k * 31 + i * 7919) % V;
    p.prompt = prompt;
    p.max_tokens = MAX_TOKENS;
    p.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    p.top_k = 40;
    must(mm_request_open(&b->r[i], &p, &b->req, b->waiter.serial) == MM_OK, "a request");
    must(mm_queue_add(&b->q, &b->waiter, b->r[i]) == MM_OK, "the queue");
}

static void open_bench(bench *b, int32_t n)
{
    *b = (bench){.config.n_vocab = V, .waiter.serial = 1};
    const int64_t n_page = 1 + MAX_SEQS + n * (int64_t)((CONTEXT + MAX_TOKENS) / MM_PAGE + 1);
    b->req = (mm_request_limits){.config = &b->config,
                                 .bytes = &b->bytes,
                                 .eos = eos,
                                 .n_eos = 1,
                                 .max_len = 2 * CONTEXT,
                                 .max_model_len = 2 * CONTEXT,
                                 .pool_tokens = (n_page - 1) * MM_PAGE,
                                 .has_prefix_cache = true,
                                 .fakes_context = true,
                                 .secret = {1, 2}};
    const mm_scheduler_limits lim = {.max_seqs = MAX_SEQS,
                                     .max_rows = 8192,
                                     .max_pages = 32768,
                                     .max_entries = 8192,
                                     .max_dynamic = mm_batch_max_dynamic(2 * CONTEXT, V),
                                     .run_ahead = 1};
    must(mm_scheduler_open(&b->s, &lim, &b->req, n_page) == MM_OK, "the scheduler");
    must(mm_queue_open(&b->q) == MM_OK && mm_cond_open(&b->waiter.news) == MM_OK, "the queue");
    b->blob_bytes = mm_batch_max_bytes(&lim);
    for (int k = 0; k < MM_MAX_IN_FLIGHT; k++) {
        b->blob[k] = malloc((size_t)b->blob_bytes);
        int32_t *token = malloc(MAX_SEQS * sizeof *token);
        uint8_t *flag = calloc(MAX_SEQS, sizeof *flag); /* MM_SAMPLE_OK */
        must(b->blob[k] != NULL && token != NULL && flag != NULL, "memory");
        for (int32_t i = 0; i < MAX_SEQS; i++)
            token[i] = EOS + 1 + i;
        b->result[k] = (mm_step_result){.token = token, .flag = flag, .t_end = 0.012};
    }
    for (int32_t i = 0; i < n; i++)
        add_request(b, i);
    for (mm_request *r = mm_queue_take_inbox(&b->q), *next; r != NULL; r = next) {
        next = r->inbox_next;
        mm_scheduler_add(&b->s, r);
    }
}

static void close_bench(bench *b)
{
    mm_scheduler_end_all(&b->s, NULL);
    mm_publish(&b->q, &b->s, 0);
    mm_scheduler_close(&b->s);
    mm_queue_close(&b->q);
    (void)pthread_cond_destroy(&b->waiter.news);
    for (int k = 0; k < MM_MAX_IN_FLIGHT; k++) {
        free(b->blob[k]);
        free(b->result[k].token);
        free(b->result[k].flag);
    }
}

/* ---------------------------------------------------------------- steps */

static void walk(void)
{
    static volatile uint8_t *room;
    if (room == NULL)
        room = calloc(1, WALK);
    must(room != NULL, "memory to walk");
    for (size_t at = 0; at < WALK; at += 64)
        room[at]++;
}

/* One turn of the coordinator; us[part] of it. */
static void turn(bench *b, bool is_cold, double us[N_PART])
{
    double t[N_PART + 1];
    t[0] = mm_now();
    const mm_plan *plan = mm_scheduler_plan(&b->s);
    must(plan != NULL, "no plan");
    t[1] = mm_now();
    const int32_t k = (int32_t)(b->n_launched++ % MM_MAX_IN_FLIGHT);
    b->result[k].step = mm_batch_build(plan, b->blob[k], b->blob_bytes)->step;
    t[2] = mm_now();
    us[PLAN] = t[1] - t[0];
    us[BUILD] = t[2] - t[1];
    us[COMMIT] = us[PUBLISH] = 0;
    if (b->s.n_in_flight <= b->s.lim.run_ahead)
        return;
    if (is_cold)
        walk();
    t[2] = mm_now();
    mm_scheduler_commit(&b->s, &b->result[b->n_collected++ % MM_MAX_IN_FLIGHT]);
    t[3] = mm_now();
    mm_publish(&b->q, &b->s, 0);
    t[4] = mm_now();
    us[COMMIT] = t[3] - t[2];
    us[PUBLISH] = t[4] - t[3];
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(int32_t n, bool is_cold)
{
    static bench b;
    static double us[N_PART + 1][N_WARM];
    const int32_t n_step = is_cold ? N_COLD : N_WARM;
    open_bench(&b, n);
    for (int32_t i = -WARM_UP; i < n_step; i++) {
        double part[N_PART], sum = 0;
        turn(&b, is_cold, part);
        for (int k = 0; k < N_PART && i >= 0; sum += part[k++])
            us[k][i] = part[k];
        us[N_PART][i < 0 ? 0 : i] = sum;
    }
    must(b.s.n_running == n, "not all sequences run");
    close_bench(&b);
    printf("%9d  %-4s", n, is_cold ? "cold" : "warm");
    for (int k = 0; k <= N_PART; k++) {
        qsort(us[k], (size_t)n_step, sizeof us[k][0], compare);
        printf(" %8.2f", 1e6 * us[k][n_step / 2]);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    static const int32_t usual[] = {1, 8, 64, MAX_SEQS};
    const int n = argc > 1 ? argc - 1 : (int)MM_ARRAY_LEN(usual);
    printf("sequences            plan    batch   commit  publish      all\n");
    for (int i = 0; i < n; i++) {
        const int32_t seqs = argc > 1 ? atoi(argv[i + 1]) : usual[i];
        must(seqs >= 1 && seqs <= MAX_SEQS, "sequences: 1 to 256");
        measure(seqs, false);
        measure(seqs, true);
    }
    return 0;
}
