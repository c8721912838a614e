/* ref_rope.c: rotation of the leading n_rotary dims of a head, pairs half of them apart. */
#include "kernels/ref/ref.h"

void mm_ref_rotate(float *v, const float *rope, int32_t n_rotary)
{
    const int32_t half = n_rotary / 2;
    for (int32_t j = 0; j < half; j++) {
        const float cos_a = rope[j], sin_a = rope[half + j];
        const float a = v[j], b = v[half + j];
        v[j] = a * cos_a - b * sin_a;
        v[half + j] = b * cos_a + a * sin_a;
    }
}
