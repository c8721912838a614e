/* step_times.h: how long steps took, as counts in buckets of an eighth of an octave from 1 us to
 * 67 s: quantiles within 5 % from 208 counters, whatever the number of steps. */
#ifndef MM_STEP_TIMES_H
#define MM_STEP_TIMES_H
#include <math.h>

#include "csrc/base/base.h"

enum { MM_STEP_BUCKETS = 208 };

typedef struct mm_step_times {
    uint64_t n[MM_STEP_BUCKETS], total;
} mm_step_times;

static inline void mm_step_times_add(mm_step_times *t, double seconds)
{
    const double at = seconds > 1e-6 ? floor(8 * log2(seconds * 1e6)) : 0;
    t->n[(int64_t)fmin(at, MM_STEP_BUCKETS - 1)]++;
    t->total++;
}

/* The time that a share of all steps did not exceed, in seconds; 0 before the first step. */
static inline double mm_step_times_quantile(const mm_step_times *t, double share)
{
    uint64_t below = 0;
    for (int i = 0; i < MM_STEP_BUCKETS; i++) {
        below += t->n[i];
        if (t->total > 0 && (double)below >= share * (double)t->total)
            return 1e-6 * exp2((i + 0.5) / 8);
    }
    return 0;
}
#endif
