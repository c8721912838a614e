/* thread.c: the pool. A job is published by raising `generation`; workers that see a new generation
 * run their share and count down `pending`. Both sides spin for some microseconds (the gap between
 * two ops of a step), then sleep on a condition variable.
 *
 * Who sleeps announces it first (n_asleep, caller_asleep) and looks again under the lock; who
 * publishes stores first and then looks for sleepers. With sequentially consistent atomics one of
 * the two always sees the other. */
#define _GNU_SOURCE 1 /* sched_getaffinity */
#include "csrc/base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#define SPIN_ROUNDS 4000 /* pause instructions: 20 to 100 us */

typedef struct worker {
    mm_pool *pool;
    pthread_t thread;
    int i_thread;
} worker;

struct mm_pool {
    int n_thread;
    worker *worker; /* [n_thread - 1], thread i_thread = 1 .. n_thread - 1 */
    int n_started;

    /* the job; written by the caller before `generation` is raised, read by workers after they saw
     * it */
    mm_pool_body body;
    void *ctx;
    int64_t n, grain;
    bool is_dynamic;
    atomic_int_fast64_t next; /* dynamic: first item that nobody took */

    atomic_uint generation;
    atomic_int pending; /* workers that have not finished this generation */
    atomic_bool stop;
    atomic_int n_asleep;
    atomic_bool caller_asleep;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
};

static void pause_once(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Share of thread i: whole grains, the first (grains % n_thread) threads get one more. */
static void run_share(mm_pool *p, int i_thread)
{
    if (p->is_dynamic) {
        for (;;) {
            const int64_t begin =
                atomic_fetch_add_explicit(&p->next, p->grain, memory_order_relaxed);
            if (begin >= p->n)
                return;
            p->body(p->ctx, begin, mm_min_i64(begin + p->grain, p->n), i_thread);
        }
    }
    const int64_t n_grain = mm_ceil_div(p->n, p->grain);
    const int64_t each = n_grain / p->n_thread, rest = n_grain % p->n_thread;
    const int64_t first = i_thread * each + mm_min_i64(i_thread, rest);
    const int64_t count = each + (i_thread < rest ? 1 : 0);
    if (count > 0)
        p->body(p->ctx, first * p->grain, mm_min_i64((first + count) * p->grain, p->n), i_thread);
}

static void wait_for_job(mm_pool *p, unsigned seen)
{
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(&p->generation, memory_order_acquire) != seen)
            return;
        pause_once();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->n_asleep, 1);
    while (atomic_load(&p->generation) == seen)
        pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->n_asleep, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg)
{
    const worker *w = arg;
    mm_pool *p = w->pool;
    unsigned seen = 0;
    for (;;) {
        wait_for_job(p, seen);
        seen++;
        if (atomic_load(&p->stop))
            return NULL;
        run_share(p, w->i_thread);
        if (atomic_fetch_sub(&p->pending, 1) == 1 && atomic_load(&p->caller_asleep)) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

static void publish(mm_pool *p)
{
    atomic_fetch_add(&p->generation, 1);
    if (atomic_load(&p->n_asleep) > 0) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
}

static void wait_for_workers(mm_pool *p)
{
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(&p->pending, memory_order_acquire) == 0)
            return;
        pause_once();
    }
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_asleep, true);
    while (atomic_load(&p->pending) != 0)
        pthread_cond_wait(&p->done, &p->lock);
    atomic_store(&p->caller_asleep, false);
    pthread_mutex_unlock(&p->lock);
}

static void run(mm_pool *p, int64_t n, int64_t grain, mm_pool_body body, void *ctx, bool is_dynamic)
{
    MM_ASSERT(grain > 0);
    if (n <= 0)
        return;
    if (p == NULL || p->n_thread == 1 || n <= grain) {
        body(ctx, 0, n, 0);
        return;
    }
    p->body = body;
    p->ctx = ctx;
    p->n = n;
    p->grain = grain;
    p->is_dynamic = is_dynamic;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->pending, p->n_thread - 1, memory_order_relaxed);
    publish(p);
    run_share(p, 0);
    wait_for_workers(p);
}

void mm_pool_run(mm_pool *p, int64_t n, int64_t grain, mm_pool_body body, void *ctx)
{
    run(p, n, grain, body, ctx, false);
}

void mm_pool_run_dynamic(mm_pool *p, int64_t n, int64_t grain, mm_pool_body body, void *ctx)
{
    run(p, n, grain, body, ctx, true);
}

int mm_pool_n_thread(const mm_pool *p)
{
    return p != NULL ? p->n_thread : 1;
}

/* Signals belong to the caller's threads (Python's main thread): workers block them all. */
static int start_worker(worker *w)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int err = pthread_create(&w->thread, NULL, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return err;
}

mm_status mm_pool_open(mm_pool **out, int n_thread)
{
    *out = NULL;
    if (n_thread < 1)
        return MM_FAIL_PARAM(MM_E_CONFIG, "threads", -1, "threads is %d, it must be at least 1",
                             n_thread);
    mm_pool *p = calloc(1, sizeof *p);
    worker *w = calloc((size_t)n_thread, sizeof *w);
    if (p == NULL || w == NULL) {
        free(p);
        free(w);
        return MM_FAIL(MM_E_NOMEM, "no host memory for a pool of %d threads", n_thread);
    }
    p->n_thread = n_thread;
    p->worker = w;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    for (int i = 1; i < n_thread; i++) {
        w[i - 1] = (worker){.pool = p, .i_thread = i};
        const int err = start_worker(&w[i - 1]);
        if (err != 0) {
            mm_pool_close(p);
            return MM_FAIL(MM_E_NOMEM,
                           "thread %d of %d could not be started: %s; use fewer threads", i + 1,
                           n_thread, strerror(err));
        }
        p->n_started++;
    }
    *out = p;
    return MM_OK;
}

void mm_pool_close(mm_pool *p)
{
    if (p == NULL)
        return;
    atomic_store(&p->stop, true);
    publish(p);
    for (int i = 0; i < p->n_started; i++)
        pthread_join(p->worker[i].thread, NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p->worker);
    free(p);
}

/* First hyper-thread of the core of `cpu`, or cpu itself where the kernel does not say. */
static int first_sibling(int cpu)
{
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *f = fopen(path, "r");
    if (f == NULL)
        return cpu;
    int first = cpu;
    if (fscanf(f, "%d", &first) != 1)
        first = cpu;
    fclose(f);
    return first;
}

/* A container may see every core and still be given the time of few: cgroup v2 says "quota period"
 * or "max period". */
static int cgroup_cores(void)
{
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (f == NULL)
        return INT32_MAX;
    long quota = 0, period = 0;
    const int n = fscanf(f, "%ld %ld", &quota, &period);
    fclose(f);
    if (n != 2 || quota <= 0 || period <= 0)
        return INT32_MAX;
    return (int)mm_max_i64(1, mm_ceil_div(quota, period));
}

int mm_physical_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        const long n = sysconf(_SC_NPROCESSORS_ONLN);
        return n > 0 ? (int)n : 1;
    }
    /* The allowed hyper-thread with the lowest number stands for its core. */
    bool counted[CPU_SETSIZE] = {false};
    int n_core = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &set))
            continue;
        const int core = first_sibling(cpu);
        if (core < 0 || core >= CPU_SETSIZE || counted[core])
            continue;
        counted[core] = true;
        n_core++;
    }
    const int limit = cgroup_cores();
    n_core = n_core < limit ? n_core : limit;
    return n_core > 0 ? n_core : 1;
}
