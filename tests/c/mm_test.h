/* mm_test.h: a runner in 40 lines. Include once per test_<module>.c; MM_TEST(name) { ... }
 * registers a test, MM_CHECK fails it and leaves it. Runs everything, or the tests whose names
 * contain argv[1]; ends with `N passed, N failed`. */
#ifndef MM_TEST_H
#define MM_TEST_H
#include <stdio.h>

#include "csrc/base/base.h"

typedef struct mm_test {
    const char *name;
    void (*body)(void);
} mm_test;
static mm_test mm_tests[256];
static int mm_n_test, mm_is_failed;

#define MM_TEST(name_)                                                                             \
    static void name_(void);                                                                       \
    __attribute__((constructor)) static void register_##name_(void)                                \
    {                                                                                              \
        mm_tests[mm_n_test++] = (mm_test){#name_, name_};                                          \
    }                                                                                              \
    static void name_(void)

/* Fails the test and returns from the function it stands in. The words after the condition say what
 * was found. */
#define MM_CHECK(cond, ...)                                                                        \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            printf("  %s:%d: %s does not hold. ", __FILE__, __LINE__, #cond);                      \
            printf(" " __VA_ARGS__);                                                               \
            printf("\n");                                                                          \
            mm_is_failed = 1;                                                                      \
            return;                                                                                \
        }                                                                                          \
    } while (0)

int main(int argc, char **argv)
{
    int n_fail = 0, n_run = 0;
    for (int i = 0; i < mm_n_test; i++) {
        if (argc > 1 && strstr(mm_tests[i].name, argv[1]) == NULL)
            continue;
        mm_is_failed = 0;
        mm_tests[i].body();
        n_run++;
        n_fail += mm_is_failed;
        if (mm_is_failed)
            printf("  FAILED %s\n", mm_tests[i].name);
    }
    printf("  %d passed, %d failed\n", n_run - n_fail, n_fail);
    return n_fail != 0 || n_run == 0;
}
#endif
