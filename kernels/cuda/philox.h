/* philox.h: Philox4x32-10 (Salmon et al. 2011) on the device, and the uniform number that a draw
 * takes from it: a pure function of seed, tokens emitted, lane and use (ops.h, sample), so that
 * batches, slots and ranks cannot change it. */
#ifndef MM_CUDA_PHILOX_H
#define MM_CUDA_PHILOX_H
#include "kernels/cuda/ptx.h"

MM_DEV_FN void mm_philox(uint32_t k0, uint32_t k1, uint32_t c[4])
{
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)b;
        c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* In (0, 1). */
MM_DEV_FN double mm_uniform(uint64_t seed, uint64_t n_emitted, uint32_t lane, uint32_t stream)
{
    uint32_t c[4] = {(uint32_t)n_emitted, (uint32_t)(n_emitted >> 32), lane, stream};
    mm_philox((uint32_t)seed, (uint32_t)(seed >> 32), c);
    return ((double)c[0] + 0.5) * 0x1p-32;
}
#endif
