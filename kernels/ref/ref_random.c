/* ref_random.c: Philox4x32-10 (Salmon et al. 2011) and the uniform number that a draw takes from
 * it: a pure function of seed, tokens emitted, lane and use, so that batches, slots and ranks
 * cannot change it. */
#include "kernels/ref/ref.h"

void mm_ref_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

double mm_ref_uniform(uint64_t seed, uint64_t n_emitted, uint32_t lane, uint32_t stream)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)n_emitted, (uint32_t)(n_emitted >> 32), lane, stream};
    uint32_t out[4];
    mm_ref_philox(key, counter, out);
    return ((double)out[0] + 0.5) * 0x1p-32;
}
