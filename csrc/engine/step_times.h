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

/* By the bits of the number: every step comes here, and a logarithm that no cache holds costs more
 * than the rest. */
static inline int32_t mm_step_times_bucket(double seconds)
{
    static const double edge[] = {1.0905077326652577, 1.1892071150027210, 1.2968395546510096,
                                  1.4142135623730951, 1.5422108254079407, 1.6817928305074290,
                                  1.8340080864093424}; /* 2^(i/8) */
    const double us = seconds * 1e6;
    if (!(us > 1))
        return 0;
    uint64_t bits;
    memcpy(&bits, &us, sizeof bits);
    int32_t at = 8 * ((int32_t)(bits >> 52) - 1023);
    bits = (bits & ((1ull << 52) - 1)) | 1023ull << 52; /* in [1, 2) */
    double part;
    memcpy(&part, &bits, sizeof part);
    for (size_t i = 0; i < MM_ARRAY_LEN(edge); i++)
        at += part >= edge[i];
    return at < MM_STEP_BUCKETS ? at : MM_STEP_BUCKETS - 1;
}

static inline void mm_step_times_add(mm_step_times *t, double seconds)
{
    t->n[mm_step_times_bucket(seconds)]++;
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
