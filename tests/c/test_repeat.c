#include "mm_random.h"
#include "mm_test.h"

#include "csrc/text/repeat.h"

static bool search(const int32_t *token, int32_t n, int32_t lo, int32_t hi, int32_t count)
{
    for (int32_t size = lo; size <= hi; size++) {
        if (size * count > n)
            continue;
        bool same = true;
        for (int32_t i = n - size * (count - 1); i < n; i++)
            same = same && token[i] == token[i - size];
        if (same)
            return true;
    }
    return false;
}

MM_TEST(test_repeat_matches_search_on_random_tokens)
{
    uint64_t seed = 3;
    for (int round = 0; round < 5000; round++) {
        const int32_t lo = 1 + (int32_t)random_below(&seed, 4),
                      hi = lo + (int32_t)random_below(&seed, 4);
        const int32_t count = 2 + (int32_t)random_below(&seed, 3);
        mm_repeat r;
        MM_CHECK(mm_repeat_open(&r, lo, hi, count) == MM_OK);
        int32_t token[40], n_bad = 0;
        for (int32_t n = 1; n <= 40; n++) {
            token[n - 1] = (int32_t)random_below(&seed, 2);
            n_bad += mm_repeat_push(&r, token, n) != search(token, n, lo, hi, count);
        }
        mm_repeat_close(&r);
        MM_CHECK(n_bad == 0, "round %d: sizes %d to %d, count %d", round, lo, hi, count);
    }
}

MM_TEST(test_repeat_checks_its_arguments)
{
    mm_repeat r;
    MM_CHECK(mm_repeat_open(&r, 0, 0, 0) == MM_OK);
    const int32_t token[] = {1, 1, 1};
    MM_CHECK(!mm_repeat_push(&r, token, 3), "off");
    MM_CHECK(mm_repeat_open(&r, 0, 4, 2) == MM_E_INVALID);
    MM_CHECK(mm_repeat_open(&r, 4, 3, 2) == MM_E_INVALID);
    MM_CHECK(mm_repeat_open(&r, 1, 4097, 2) == MM_E_INVALID);
    MM_CHECK(mm_repeat_open(&r, 1, 4, 1) == MM_E_INVALID);
    MM_CHECK(strcmp(mm_error_param(), "repetition_detection") == 0);
    mm_repeat_close(&r);
    mm_repeat_close(NULL);
}
