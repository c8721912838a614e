/* The pool: every item once, no item twice, the same cut every time. Meant to run
 * under TSan too. */
#include <stdatomic.h>
#include <time.h>

#include "mm_random.h"
#include "mm_test.h"

#include "csrc/base/thread.h"

#define MAX_ITEM 5000

typedef struct record {
    int32_t times[MAX_ITEM]; /* plain: two threads on one item are a race that TSan sees */
    int32_t thread[MAX_ITEM];
    atomic_int n_call;
    int64_t grain;
    atomic_int n_bad;
} record;

static void note(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    record *r = ctx;
    atomic_fetch_add(&r->n_call, 1);
    atomic_fetch_add(&r->n_bad, begin >= end || begin % r->grain != 0);
    for (int64_t i = begin; i < end; i++) {
        r->times[i]++;
        r->thread[i] = i_thread;
    }
}

static void check_once(record *r, int64_t n)
{
    MM_CHECK(atomic_load(&r->n_bad) == 0);
    for (int64_t i = 0; i < MAX_ITEM; i++)
        MM_CHECK(r->times[i] == (i < n), "item %lld of %lld ran %d times", (long long)i,
                 (long long)n, r->times[i]);
}

MM_TEST(test_pool_run_covers_every_item_once)
{
    static record r, again;
    uint64_t seed = 4;
    for (int n_thread = 1; n_thread <= 5; n_thread++) {
        mm_pool *p;
        MM_CHECK(mm_pool_open(&p, n_thread) == MM_OK);
        MM_CHECK(mm_pool_n_thread(p) == n_thread);
        for (int round = 0; round < 200 && !mm_is_failed; round++) {
            const int64_t n = random_below(&seed, MAX_ITEM + 1),
                          grain = 1 + random_below(&seed, 70);
            memset(&r, 0, sizeof r);
            memset(&again, 0, sizeof again);
            r.grain = again.grain = grain;
            mm_pool_run(p, n, grain, note, &r);
            check_once(&r, n);
            mm_pool_run(p, n, grain, note, &again);
            MM_CHECK(memcmp(r.thread, again.thread, sizeof r.thread) == 0,
                     "the cut depends on timing");
            MM_CHECK(atomic_load(&r.n_call) <= n_thread);
            memset(&r, 0, sizeof r);
            r.grain = grain;
            mm_pool_run_dynamic(p, n, grain, note, &r);
            check_once(&r, n);
        }
        mm_pool_close(p);
    }
}

MM_TEST(test_pool_null_runs_in_the_caller)
{
    static record r;
    memset(&r, 0, sizeof r);
    r.grain = 1;
    mm_pool_run(NULL, 100, 1, note, &r);
    check_once(&r, 100);
    MM_CHECK(atomic_load(&r.n_call) == 1 && mm_pool_n_thread(NULL) == 1);
    mm_pool_close(NULL);
}

/* Long gaps let the workers fall asleep, so both ways of waking are used. */
MM_TEST(test_pool_wakes_sleeping_workers)
{
    static record r;
    mm_pool *p;
    MM_CHECK(mm_pool_open(&p, 3) == MM_OK);
    for (int round = 0; round < 30; round++) {
        memset(&r, 0, sizeof r);
        r.grain = 1;
        nanosleep(&(struct timespec){.tv_nsec = round % 3 * 2000000}, NULL);
        mm_pool_run(p, 3, 1, note, &r);
        check_once(&r, 3);
    }
    mm_pool_close(p);
}

static void slow_worker(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    if (i_thread != 0)
        nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    note(ctx, begin, end, i_thread);
}

/* The caller is done first and has to sleep until the last worker calls it. */
MM_TEST(test_pool_caller_waits_for_slow_workers)
{
    static record r;
    mm_pool *p;
    MM_CHECK(mm_pool_open(&p, 3) == MM_OK);
    for (int round = 0; round < 20; round++) {
        memset(&r, 0, sizeof r);
        r.grain = 1;
        mm_pool_run(p, 3, 1, slow_worker, &r);
        check_once(&r, 3);
    }
    mm_pool_close(p);
}

MM_TEST(test_pool_results_are_visible_to_the_next_job)
{
    static record r;
    mm_pool *p;
    MM_CHECK(mm_pool_open(&p, 4) == MM_OK);
    memset(&r, 0, sizeof r);
    r.grain = 1;
    for (int round = 0; round < 2000; round++)
        mm_pool_run(p, 64 + round % 7, 1, note, &r);
    mm_pool_close(p);
    for (int i = 0; i < 64; i++)
        MM_CHECK(r.times[i] == 2000, "item %d: %d", i, r.times[i]);
}

MM_TEST(test_pool_open_refuses_no_threads)
{
    mm_pool *p = (mm_pool *)&p;
    MM_CHECK(mm_pool_open(&p, 0) == MM_E_CONFIG && p == NULL);
    MM_CHECK(strcmp(mm_error_param(), "threads") == 0);
    MM_CHECK(mm_physical_cores() >= 1);
}
