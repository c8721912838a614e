#include "mm_test.h"

#include "csrc/base/arena.h"

MM_TEST(test_arena_alloc_is_aligned_zeroed_and_disjoint)
{
    mm_arena a;
    MM_CHECK(mm_arena_open(&a, 10000) == MM_OK);
    uint8_t *last = NULL;
    for (size_t n = 0; n < 60; n++) {
        uint8_t *p = mm_arena_alloc(&a, n);
        if (p == NULL)
            break;
        MM_CHECK((uintptr_t)p % 256 == 0);
        MM_CHECK(last == NULL || p >= last + 256);
        for (size_t i = 0; i < n; i++)
            MM_CHECK(p[i] == 0);
        memset(p, 0xFF, n);
        last = p;
    }
    MM_CHECK(a.used == a.cap && a.high == a.cap, "%zu of %zu", a.used, a.cap);
    mm_arena_close(&a);
    MM_CHECK(a.base == NULL && a.cap == 0);
    mm_arena_close(&a);
    mm_arena_close(NULL);
}

MM_TEST(test_arena_full_gives_null_and_changes_nothing)
{
    mm_arena a;
    MM_CHECK(mm_arena_open(&a, 1024) == MM_OK);
    MM_CHECK(mm_arena_alloc(&a, 1025) == NULL);
    MM_CHECK(mm_arena_alloc(&a, SIZE_MAX) == NULL);
    MM_CHECK(mm_arena_alloc(&a, SIZE_MAX - 255) == NULL);
    MM_CHECK(a.used == 0 && a.high == 0);
    MM_CHECK(mm_arena_alloc(&a, 1024) != NULL);
    MM_CHECK(mm_arena_alloc(&a, 1) == NULL);
    mm_arena_close(&a);
}

MM_TEST(test_arena_reset_keeps_the_high_water_mark)
{
    mm_arena a;
    MM_CHECK(mm_arena_open(&a, 4096) == MM_OK);
    void *first = mm_arena_alloc(&a, 3000);
    mm_arena_reset(&a);
    MM_CHECK(a.used == 0 && a.high == mm_arena_size(3000));
    MM_CHECK(mm_arena_alloc(&a, 10) == first, "a reset arena starts again at its base");
    MM_CHECK(a.high == mm_arena_size(3000));
    mm_arena_close(&a);
}

MM_TEST(test_arena_open_reports_what_it_could_not_get)
{
    mm_arena a;
    MM_CHECK(mm_arena_open(&a, SIZE_MAX - 1000) == MM_E_NOMEM && a.base == NULL);
    MM_CHECK(mm_arena_open(&a, SIZE_MAX / 2) == MM_E_NOMEM && a.base == NULL);
    MM_CHECK(strstr(mm_error_message(), "bytes") != NULL, "%s", mm_error_message());
    MM_CHECK(mm_arena_open(&a, 0) == MM_OK && mm_arena_alloc(&a, 0) != NULL);
    mm_arena_close(&a);
}
