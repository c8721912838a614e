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

/* The k-th smallest of n keys, which are reordered. */
static uint32_t select_key(uint32_t *key, int32_t n, int32_t k)
{
    for (int shift = 21; shift >= 0 && n > 1; shift = shift == 21 ? 10 : shift == 10 ? 0 : -1) {
        const uint32_t mask = shift == 0 ? 1023 : 2047;
        const uint32_t d = digit_of_kth(key, n, shift, &k) & mask;
        int32_t m = 0;
        for (int32_t i = 0; i < n; i++) {
            if ((key[i] >> shift & mask) == d)
                key[m++] = key[i];
        }
        n = m;
    }
    return key[0];
}

/* Ids are looked at in blocks; whole blocks whose maximum is too small are passed over. */
enum { BLOCK = 64 };

static int32_t block_end(int32_t first, int32_t n)
{
    return n - first < BLOCK ? n : first + BLOCK;
}

float mm_cpu_kth_largest(const mm_cpu_math_kernels *m, const float *v, int32_t n, int32_t k,
                         uint32_t *tmp)
{
    MM_ASSERT(k >= 1 && k <= n);
    float low = -INFINITY;
    int32_t count = 0;
    if (k <= n / BLOCK / 2) { /* k blocks have a maximum of at least low: so have k ids */
        for (int32_t b = 0; b < n; b += BLOCK)
            tmp[count++] = key_of(m->max(v + b, block_end(b, n) - b));
        low = value_of_key(select_key(tmp, count, k));
    }
    count = 0;
    for (int32_t b = 0; b < n; b += BLOCK) {
        const int32_t end = block_end(b, n);
        if (m->max(v + b, end - b) < low)
            continue;
        for (int32_t i = b; i < end; i++) {
            if (v[i] >= low)
                tmp[count++] = key_of(v[i]);
        }
    }
    return value_of_key(select_key(tmp, count, k));
}

int32_t mm_cpu_best_ids(const mm_cpu_math_kernels *m, const float *v, int32_t n, float low,
                        const mm_cpu_order_scratch *x)
{
    int32_t count = 0;
    for (int32_t b = 0; b < n; b += BLOCK) {
        const int32_t end = block_end(b, n);
        if (m->max(v + b, end - b) < low)
            continue;
        for (int32_t i = b; i < end; i++) {
            if (v[i] >= low) {
                x->value[count] = v[i];
                x->id[count++] = (uint32_t)i;
            }
        }
    }
    /* Stable, and ids ascend: ties stay in id order. */
    mm_ref_sort_descending(x->value, count, x->order, x->tmp);
    for (int32_t i = 0; i < count; i++)
        x->tmp[i] = x->id[x->order[i]];
    memcpy(x->order, x->tmp, (size_t)count * sizeof(uint32_t));
    return count;
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
