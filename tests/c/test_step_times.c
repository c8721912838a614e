/* test_step_times.c: quantiles of step times. */
#include "csrc/engine/step_times.h"
#include "tests/c/mm_test.h"

MM_TEST(test_step_times_quantiles)
{
    mm_step_times t = {0};
    MM_CHECK(mm_step_times_quantile(&t, 0.5) == 0, "no step, yet a time");
    for (int i = 1; i <= 1000; i++)
        mm_step_times_add(&t, 1e-4 * i); /* 0.1 ms .. 100 ms */
    const double p50 = mm_step_times_quantile(&t, 0.50), p99 = mm_step_times_quantile(&t, 0.99);
    MM_CHECK(p50 > 0.05 * 0.95 && p50 < 0.05 * 1.05, "p50 %g", p50);
    MM_CHECK(p99 > 0.099 * 0.95 && p99 < 0.099 * 1.05, "p99 %g", p99);
}

MM_TEST(test_step_times_ends)
{
    mm_step_times t = {0};
    mm_step_times_add(&t, 0);
    MM_CHECK(mm_step_times_quantile(&t, 1) < 2e-6, "nothing took long");
    mm_step_times_add(&t, -1);
    mm_step_times_add(&t, 1e9);
    const double most = mm_step_times_quantile(&t, 1);
    MM_CHECK(t.total == 3 && most > 60 && most < 80, "%g s", most);
}
