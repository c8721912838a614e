/* test_no_alloc.c: the threads of an engine take no memory between the steps of a decode that is
 * under way. malloc and its kin are counted; sanitizers have their own, so that there the run alone
 * is tested. */
#include <errno.h>
#include <stdatomic.h>

#include "tests/c/engine_fixture.h"

static atomic_bool is_counting;
static atomic_int n_alloc;
static _Thread_local bool is_reader; /* this test's own thread reads outputs: no step does */

#if !MM_ASAN && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)
enum { COUNTS = 1 };

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

static void note(void)
{
    if (atomic_load(&is_counting) && !is_reader)
        atomic_fetch_add(&n_alloc, 1);
}

void *malloc(size_t n)
{
    note();
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    note();
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    note();
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    note();
    return __libc_memalign(align, n);
}

int posix_memalign(void **out, size_t align, size_t n)
{
    note();
    *out = __libc_memalign(align, n);
    return *out != NULL ? 0 : ENOMEM;
}
#else
enum { COUNTS = 0 };
#endif

/* Reads until the request has n tokens; false when it ended before, or after a minute. */
static bool wait_for(mm_engine *e, mm_waiter *w, uint64_t id, int32_t n)
{
    mm_output out;
    uint64_t got[4];
    int32_t n_got;
    for (int i = 0; i < 60000; i++) {
        if (mm_request_read(e, id, &out) != MM_OK || out.finish != MM_FINISH_NONE)
            return false;
        if (out.n_token >= n)
            return true;
        if (mm_waiter_wait(w, 0.001, got, 4, &n_got) != MM_OK)
            return false;
    }
    return false;
}

static void decode(const char *backend, int32_t run_ahead)
{
    mm_engine_options o = fx_options(backend);
    mm_engine *e = NULL;
    mm_waiter *w = NULL;
    mm_output out;
    uint64_t id[2];
    int32_t prompt[2][120];
    o.run_ahead = run_ahead;
    atomic_store(&n_alloc, 0);
    atomic_store(&is_counting, true);
    MM_CHECK(mm_engine_open(&e, &o) == MM_OK && mm_waiter_open(&w, e) == MM_OK, "%s",
             mm_error_message());
    atomic_store(&is_counting, false);
    MM_CHECK(!COUNTS || atomic_load(&n_alloc) > 50, "opening took memory %d times",
             atomic_load(&n_alloc));
    for (int32_t i = 0; i < 2; i++) {
        fx_prompt(prompt[i], 120, (uint64_t)i + 1);
        mm_request_params p = fx_params(prompt[i], 120, 600);
        p.temperature = 0.8f; /* not every stage of the sampler is left out */
        p.n_logprob = 3;
        MM_CHECK(mm_engine_submit(e, w, &p, &id[i]) == MM_OK, "%s", mm_error_message());
    }
    MM_CHECK(wait_for(e, w, id[0], 2) && wait_for(e, w, id[1], 2), "%s", mm_error_message());
    atomic_store(&n_alloc, 0);
    is_reader = true;
    atomic_store(&is_counting, true);
    MM_CHECK(wait_for(e, w, id[0], 400), "%s", mm_error_message()); /* pages 1 to 4 begin */
    atomic_store(&is_counting, false);
    is_reader = false;
    MM_CHECK(atomic_load(&n_alloc) == 0, "%s, run_ahead %d: memory was taken %d times", backend,
             run_ahead, atomic_load(&n_alloc));
    MM_CHECK(fx_join(e, w, id[0], &out) && fx_join(e, w, id[1], &out), "%s", mm_error_message());
    mm_waiter_close(w);
    mm_engine_close(e);
}

MM_TEST(test_steps_of_a_decode_take_no_memory)
{
    for (int32_t ahead = 0; ahead < 2; ahead++) {
        decode("ref", ahead);
        decode("cpu", ahead);
    }
}
