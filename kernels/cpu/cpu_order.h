/* cpu_order.h: partial orders of a vocabulary row (cpu_order.c). */
#ifndef MM_CPU_ORDER_H
#define MM_CPU_ORDER_H
#include "kernels/cpu/cpu.h"

typedef struct mm_cpu_order_scratch {
    float *value; /* [n] each */
    uint32_t *id, *order, *tmp;
} mm_cpu_order_scratch;
size_t mm_cpu_order_scratch_bytes(int32_t n);
mm_cpu_order_scratch mm_cpu_order_scratch_at(void *base, int32_t n);

/* The k-th largest of v, 1 <= k <= n; tmp: scratch [n]. */
float mm_cpu_kth_largest(const mm_cpu_math_kernels *m, const float *v, int32_t n, int32_t k,
                         uint32_t *tmp);
/* x->order = the ids with v >= low, best first; returns how many. */
int32_t mm_cpu_best_ids(const mm_cpu_math_kernels *m, const float *v, int32_t n, float low,
                        const mm_cpu_order_scratch *x);
#endif
