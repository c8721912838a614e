/* base.h: what every file of the core uses: status macros, small helpers, the error setter.
 * Invariants of our own are MM_ASSERT (abort; on with MM_DEV); user input, files and devices never
 * reach it. */
#ifndef MM_BASE_H
#define MM_BASE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "csrc/mm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MM_TRY(expr)                                                                               \
    do {                                                                                           \
        const mm_status mm_try_ = (expr);                                                          \
        if (mm_try_ != MM_OK)                                                                      \
            return mm_try_;                                                                        \
    } while (0)

/* Built with AddressSanitizer: it watches single allocations. */
#if defined(__SANITIZE_ADDRESS__)
#define MM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MM_ASAN 1
#endif
#endif
#ifndef MM_ASAN
#define MM_ASAN 0
#endif

#define MM_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#if defined(MM_DEV) && MM_DEV
#define MM_ASSERT(cond)                                                                            \
    do {                                                                                           \
        if (!(cond))                                                                               \
            mm_assert_failed(#cond, __FILE__, __LINE__);                                           \
    } while (0)
#else
#define MM_ASSERT(cond) ((void)sizeof(cond))
#endif

__attribute__((noreturn)) void mm_assert_failed(const char *what, const char *file, int line);

/* Sets this thread's message (at most 1 KB, cut at a character border) and returns st, so that
 * `return MM_FAIL(MM_E_CONFIG, "...", ...)` is the way to fail. Never allocates. */
#define MM_FAIL(st, ...) MM_FAIL_PARAM(st, "", -1, __VA_ARGS__)
/* As MM_FAIL, naming the argument (and the item's index, or -1) that is wrong. The value is `st`
 * itself, so that compilers see that it is a failure. */
#define MM_FAIL_PARAM(st, param, index, ...)                                                       \
    ((void)mm_error_set((st), (param), (index), __VA_ARGS__), (st))
mm_status mm_error_set(mm_status st, const char *param, int64_t index, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* A failure moved between threads: text dies with its thread, so the worker takes it into a reply
 * slot and the waiting thread sets it again, with a prefix such as "rank 3: " (may be ""). */
typedef struct mm_error {
    mm_status status;
    int64_t index;
    char param[64];
    char text[1024];
} mm_error;
void mm_error_take(mm_error *out, mm_status st);
mm_status mm_error_raise(const mm_error *err, const char *prefix);
void mm_error_clear(void);

static inline int64_t mm_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
static inline int64_t mm_round_up(int64_t a, int64_t b)
{
    return mm_ceil_div(a, b) * b;
}
static inline int64_t mm_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t mm_max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* CLOCK_MONOTONIC in seconds. */
double mm_now(void);

#ifdef __cplusplus
}
#endif
#endif
