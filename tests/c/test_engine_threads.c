/* test_engine_threads.c: eight threads submit, read, abort, release and reset at once for a few
 * seconds; run under the thread sanitizer too. Results of undisturbed requests must still be those
 * of a request alone. */
#include "tests/c/engine_fixture.h"

enum { THREADS = 8, KINDS = 6, TOKENS = 12 };
static const double seconds = 2;

static int32_t prompt[KINDS][300], want[KINDS][TOKENS];

static mm_request_params params_of(int kind)
{
    mm_request_params p = fx_params(prompt[kind], 20 + 50 * kind, TOKENS);
    p.temperature = kind % 2 ? 1.0f : 0.0f;
    p.seed = (uint64_t)kind;
    p.n_logprob = kind % 3 - 1;
    p.notify_tokens = kind % 4;
    return p;
}

typedef struct worker {
    mm_engine *e;
    pthread_t thread;
    uint64_t rnd;
    int64_t n_whole, n_aborted;
    char wrong[200];
} worker;

static void wrong(worker *t, const char *what)
{
    if (t->wrong[0] == 0)
        (void)snprintf(t->wrong, sizeof t->wrong, "%s: %s", what, mm_error_message());
}

/* One burst of requests on an own waiter. */
static void burst(worker *t)
{
    mm_waiter *w = NULL;
    uint64_t id[8], news[8];
    int kind[8];
    const int n = (int)random_below(&t->rnd, 8) + 1;
    int32_t n_news, n_alive;
    if (mm_waiter_open(&w, t->e) != MM_OK) {
        wrong(t, "waiter");
        return;
    }
    for (int i = 0; i < n; i++) {
        kind[i] = (int)random_below(&t->rnd, KINDS);
        mm_request_params p = params_of(kind[i]);
        p.group = random_below(&t->rnd, 2) ? (uint64_t)kind[i] + 1 : 0;
        if (mm_engine_submit(t->e, w, &p, &id[i]) != MM_OK)
            wrong(t, "submit");
    }
    const bool disturb = random_below(&t->rnd, 3) == 0;
    if (disturb) {
        if (mm_engine_abort(t->e, id, n / 2, &n_alive) != MM_OK)
            wrong(t, "abort");
        mm_request_release(t->e, id[n - 1]);
        if (random_below(&t->rnd, 4) == 0 && mm_engine_reset_prefix_cache(t->e) != MM_OK)
            wrong(t, "reset");
    }
    if (random_below(&t->rnd, 6) == 0) { /* leaves without waiting */
        mm_waiter_close(w);
        return;
    }
    for (int i = 0; i < n - disturb; i++) {
        mm_output o;
        for (;;) {
            if (mm_request_read(t->e, id[i], &o) != MM_OK) {
                wrong(t, "read");
                break;
            }
            if (o.finish != MM_FINISH_NONE)
                break;
            if (mm_waiter_wait(w, 30, news, 8, &n_news) != MM_OK || n_news == 0) {
                wrong(t, "wait");
                break;
            }
        }
        if (o.n_token > TOKENS ||
            (o.n_token > 0 && memcmp(o.token, want[kind[i]], (size_t)o.n_token * 4) != 0))
            wrong(t, "tokens differ from those of a request alone");
        if (o.finish == MM_FINISH_LENGTH && o.n_token == TOKENS)
            t->n_whole++;
        else if (o.finish == MM_FINISH_ABORT && disturb)
            t->n_aborted++;
        else
            wrong(t, "an unexpected end");
        if (random_below(&t->rnd, 2))
            mm_request_release(t->e, id[i]);
    }
    mm_waiter_close(w);
}

static void *work(void *arg)
{
    worker *t = arg;
    const double until = mm_now() + seconds;
    while (mm_now() < until && t->wrong[0] == 0)
        burst(t);
    return NULL;
}

static void play(const char *backend, int32_t run_ahead, int32_t n_page)
{
    static worker t[THREADS];
    mm_engine *e = NULL;
    mm_waiter *w = NULL;
    mm_output o;
    uint64_t id;
    mm_engine_options opt = fx_options(backend);
    opt.run_ahead = run_ahead;
    opt.kv_bytes = n_page * mm_model_page_bytes(opt.config, opt.kv_format, opt.index_format, 0, 1);
    MM_CHECK(mm_engine_open(&e, &opt) == MM_OK && mm_waiter_open(&w, e) == MM_OK, "%s",
             mm_error_message());
    for (int k = 0; k < KINDS; k++) {
        fx_prompt(prompt[k], 300, (uint64_t)k / 2 + 1);
        const mm_request_params p = params_of(k);
        MM_CHECK(mm_engine_submit(e, w, &p, &id) == MM_OK && fx_join(e, w, id, &o) &&
                     o.n_token == TOKENS,
                 "%s", mm_error_message());
        memcpy(want[k], o.token, sizeof want[k]);
    }
    mm_waiter_close(w);
    for (int i = 0; i < THREADS; i++) {
        t[i] = (worker){.e = e, .rnd = (uint64_t)i * 99 + 1};
        MM_CHECK(pthread_create(&t[i].thread, NULL, work, &t[i]) == 0, "no thread");
    }
    int64_t n_whole = 0, n_aborted = 0;
    for (int i = 0; i < THREADS; i++) {
        (void)pthread_join(t[i].thread, NULL);
        n_whole += t[i].n_whole;
        n_aborted += t[i].n_aborted;
    }
    for (int i = 0; i < THREADS; i++)
        MM_CHECK(t[i].wrong[0] == 0, "thread %d: %s", i, t[i].wrong);
    MM_CHECK(n_whole > 10 && n_aborted > 0, "%lld whole, %lld aborted", (long long)n_whole,
             (long long)n_aborted);
    mm_engine_stats s;
    mm_engine_stats_init(&s);
    for (int i = 0; i < 1000; i++) {
        MM_CHECK(mm_engine_get_stats(e, &s) == MM_OK, "%s", mm_error_message());
        if (s.n_running + s.n_waiting == 0 && s.n_page_free + s.n_page_cached == s.n_page)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    MM_CHECK(s.n_page_free + s.n_page_cached == s.n_page && s.n_running == 0,
             "%lld of %lld pages came back", (long long)(s.n_page_free + s.n_page_cached),
             (long long)s.n_page);
    MM_CHECK(e->queue.n_request == 0, "%lld requests are left", (long long)e->queue.n_request);
    mm_engine_close(e);
}

MM_TEST(test_threads_on_a_roomy_pool)
{
    play("ref", 0, 100);
}

MM_TEST(test_threads_on_a_tiny_pool_one_step_ahead)
{
    play("ref", 1, 8);
}

MM_TEST(test_threads_on_cpu)
{
    play("cpu", 1, 20);
}

static void *close_later(void *arg)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    mm_engine_close(arg);
    return NULL;
}

MM_TEST(test_close_wakes_a_waiting_thread)
{
    mm_engine *e = NULL;
    mm_waiter *w = NULL;
    uint64_t id[2];
    int32_t n;
    pthread_t thread;
    const mm_engine_options opt = fx_options("ref");
    MM_CHECK(mm_engine_open(&e, &opt) == MM_OK && mm_waiter_open(&w, e) == MM_OK, "%s",
             mm_error_message());
    MM_CHECK(pthread_create(&thread, NULL, close_later, e) == 0, "no thread");
    const double begin = mm_now();
    MM_CHECK(mm_waiter_wait(w, 60, id, 2, &n) == MM_E_CLOSED && mm_now() - begin < 30,
             "waited %g s", mm_now() - begin);
    (void)pthread_join(thread, NULL);
    mm_waiter_close(w);
}

typedef struct sleeper {
    mm_waiter *w;
    uint64_t id;
    int32_t n;
    mm_status st;
} sleeper;

static void *sleep_until_news(void *arg)
{
    sleeper *s = arg;
    s->st = mm_waiter_wait(s->w, 60, &s->id, 1, &s->n);
    return NULL;
}

/* The news of both come with the same step. A waiter that is not signalled sees them too, after its
 * 60 seconds. */
MM_TEST(test_news_wake_every_waiting_thread)
{
    mm_engine *e = NULL;
    sleeper s[2] = {0};
    uint64_t id[2];
    int32_t is_settled = 0;
    pthread_t thread[2];
    const mm_engine_options opt = fx_options("ref");
    MM_CHECK(mm_engine_open(&e, &opt) == MM_OK, "%s", mm_error_message());
    MM_CHECK(mm_engine_pause(e, MM_PAUSE_FREEZE, 10, &is_settled) == MM_OK && is_settled, "freeze");
    for (int i = 0; i < 2; i++) {
        mm_request_params p = fx_params(prompt[i], 20, 40);
        p.notify_tokens = 1;
        MM_CHECK(mm_waiter_open(&s[i].w, e) == MM_OK, "%s", mm_error_message());
        MM_CHECK(mm_engine_submit(e, s[i].w, &p, &id[i]) == MM_OK, "%s", mm_error_message());
        MM_CHECK(pthread_create(&thread[i], NULL, sleep_until_news, &s[i]) == 0, "no thread");
    }
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); /* until both sleep */
    const double begin = mm_now();
    MM_CHECK(mm_engine_pause(e, MM_PAUSE_NONE, 0, &is_settled) == MM_OK, "go on");
    for (int i = 0; i < 2; i++) {
        (void)pthread_join(thread[i], NULL);
        MM_CHECK(s[i].st == MM_OK && s[i].n == 1 && s[i].id == id[i], "waiter %d: %s", i,
                 mm_error_message());
    }
    MM_CHECK(mm_now() - begin < 30, "woken after %g s", mm_now() - begin);
    for (int i = 0; i < 2; i++)
        mm_waiter_close(s[i].w);
    mm_engine_close(e);
}
