/* cpu_order.c: selection without a full sort: the k-th largest value by radix selection, and the
 * best ids of a row by sorting only those that can be among them. Order: value descending, id
 * ascending, -0 equal to +0; no NaN. */
#include "kernels/cpu/cpu_order.h"

#include "kernels/ref/ref.h"

/* Ascending in the key = descending in the value. */
static uint32_t key_of(float x)
{
    const uint32_t u = x == 0.0f ? 0 : mm_bits_from_f32(x);
    return (u & 0x80000000u) != 0 ? u : ~(u | 0x80000000u);
}

static float value_of_key(uint32_t key)
{
    return mm_f32_from_bits((key & 0x80000000u) != 0 ? key : ~(key | 0x80000000u));
}

/* The digit (shift, 11 bits or less) that holds the k-th smallest of n keys; k becomes the rank
 * inside it. */
static uint32_t digit_of_kth(const uint32_t *key, int32_t n, int shift, int32_t *k)
{
    int32_t count[2048] = {0};
    for (int32_t i = 0; i < n; i++)
        count[key[i] >> shift & 2047]++;
    uint32_t d = 0;
    while (*k > count[d])
        *k -= count[d++];
    return d;
}

float mm_cpu_kth_largest(const float *v, int32_t n, int32_t k, uint32_t *tmp)
{
    MM_ASSERT(k >= 1 && k <= n);
    for (int32_t i = 0; i < n; i++)
        tmp[i] = key_of(v[i]);
    for (int shift = 21; shift >= 0 && n > 1; shift = shift == 21 ? 10 : shift == 10 ? 0 : -1) {
        const uint32_t mask = shift == 0 ? 1023 : 2047;
        const uint32_t d = digit_of_kth(tmp, n, shift, &k) & mask;
        int32_t m = 0;
        for (int32_t i = 0; i < n; i++) {
            if ((tmp[i] >> shift & mask) == d)
                tmp[m++] = tmp[i];
        }
        n = m;
    }
    return value_of_key(tmp[0]);
}

int32_t mm_cpu_best_ids(const float *v, int32_t n, float low, const mm_cpu_order_scratch *x)
{
    int32_t m = 0;
    for (int32_t i = 0; i < n; i++) {
        if (v[i] >= low) {
            x->value[m] = v[i];
            x->id[m++] = (uint32_t)i;
        }
    }
    /* Stable, and ids ascend: ties stay in id order. */
    mm_ref_sort_descending(x->value, m, x->order, x->tmp);
    for (int32_t i = 0; i < m; i++)
        x->tmp[i] = x->id[x->order[i]];
    memcpy(x->order, x->tmp, (size_t)m * sizeof(uint32_t));
    return m;
}

size_t mm_cpu_order_scratch_bytes(int32_t n)
{
    return 4 * mm_arena_size(sizeof(uint32_t) * (size_t)n);
}

mm_cpu_order_scratch mm_cpu_order_scratch_at(void *base, int32_t n)
{
    const size_t size = mm_arena_size(sizeof(uint32_t) * (size_t)n);
    uint8_t *p = base;
    return (mm_cpu_order_scratch){.value = (float *)(void *)p,
                                  .id = (uint32_t *)(void *)(p + size),
                                  .order = (uint32_t *)(void *)(p + 2 * size),
                                  .tmp = (uint32_t *)(void *)(p + 3 * size)};
}
