/* ref_order.c: order of values: maximum, arg-max, NaN test, and a stable sort without allocation
 * (radix, 8 bits a pass). */
#include "kernels/ref/ref.h"

float mm_ref_max(const float *v, int32_t n)
{
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        if (v[i] > max)
            max = v[i];
    }
    return max;
}

int32_t mm_ref_argmax(const float *v, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) {
        if (v[i] > v[best])
            best = i;
    }
    return best;
}

bool mm_ref_has_nan(const float *v, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (isnan(v[i]))
            return true;
    }
    return false;
}

/* Ascending in the key = descending in the value. */
static uint32_t descending_key(float x)
{
    const uint32_t u = x == 0.0f ? 0 : mm_bits_from_f32(x);
    return (u & 0x80000000u) != 0 ? u : ~(u | 0x80000000u);
}

void mm_ref_sort_descending(const float *v, int32_t n, uint32_t *order, uint32_t *tmp)
{
    for (int32_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    for (int shift = 0; shift < 32; shift += 8) {
        uint32_t start[257] = {0};
        for (int32_t i = 0; i < n; i++)
            start[1 + (descending_key(v[i]) >> shift & 255)]++;
        for (int b = 0; b < 256; b++)
            start[b + 1] += start[b];
        for (int32_t i = 0; i < n; i++)
            tmp[start[descending_key(v[order[i]]) >> shift & 255]++] = order[i];
        uint32_t *const swap = order;
        order = tmp;
        tmp = swap;
    }
    /* Four passes: the result is back in the caller's `order`. */
}
