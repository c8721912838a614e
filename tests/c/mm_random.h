/* mm_random.h: the random numbers of the C tests: SplitMix64, so that a failing case can be run
 * again from its seed. */
#ifndef MM_RANDOM_H
#define MM_RANDOM_H
#include <stdint.h>

static inline uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline int64_t random_below(uint64_t *state, int64_t n)
{
    return (int64_t)(random_next(state) % (uint64_t)n);
}
#endif
