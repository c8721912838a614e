/* prefix_key.c: SipHash-2-4-128 and the chain of page names built on it. */
#include <endian.h>
#include <errno.h>
#include <sys/random.h>

#include "csrc/engine/prefix_key.h"

static inline uint64_t rotl(uint64_t x, int b)
{
    return (x << b) | (x >> (64 - b));
}

static inline uint64_t load64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return le64toh(v);
}

static inline void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = rotl(v[1], 13) ^ v[0];
    v[0] = rotl(v[0], 32);
    v[2] += v[3];
    v[3] = rotl(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotl(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotl(v[1], 17) ^ v[2];
    v[2] = rotl(v[2], 32);
}

static inline void sip_word(uint64_t v[4], uint64_t m)
{
    v[3] ^= m;
    sip_round(v);
    sip_round(v);
    v[0] ^= m;
}

mm_prefix_key mm_siphash128(mm_prefix_key secret, const void *data, size_t n_bytes)
{
    const uint8_t *p = data;
    uint64_t v[4] = {
        0x736f6d6570736575ull ^ secret.lo,
        0x646f72616e646f6dull ^ secret.hi ^ 0xee,
        0x6c7967656e657261ull ^ secret.lo,
        0x7465646279746573ull ^ secret.hi,
    };
    for (size_t i = 0; i < n_bytes / 8; i++)
        sip_word(v, load64(p + 8 * i));
    uint64_t last = (uint64_t)n_bytes << 56;
    for (size_t i = 0; i < n_bytes % 8; i++)
        last |= (uint64_t)p[n_bytes - n_bytes % 8 + i] << (8 * i);
    sip_word(v, last);
    mm_prefix_key out;
    v[2] ^= 0xee;
    for (int i = 0; i < 4; i++)
        sip_round(v);
    out.lo = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    for (int i = 0; i < 4; i++)
        sip_round(v);
    out.hi = v[0] ^ v[1] ^ v[2] ^ v[3];
    return out;
}

mm_status mm_prefix_secret(mm_prefix_key *out)
{
    mm_prefix_key key;
    uint8_t *p = (uint8_t *)&key;
    size_t n = 0;
    while (n < sizeof key) {
        const ssize_t got = getrandom(p + n, sizeof key - n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return MM_FAIL(MM_E_IO, "prefix cache: the system gave no random bytes: %s",
                           strerror(errno));
        n += (size_t)got;
    }
    *out = key;
    return MM_OK;
}

mm_prefix_key mm_prefix_begin(mm_prefix_key secret, const mm_prefix_root *root)
{
    return mm_siphash128(secret, root, sizeof *root);
}

mm_prefix_key mm_prefix_next(mm_prefix_key secret, mm_prefix_key parent, const int32_t *token,
                             const uint8_t *digest)
{
    struct {
        mm_prefix_key parent;
        uint8_t digest[16];
        int32_t token[MM_PAGE];
    } block = {.parent = parent};
    if (digest != NULL)
        memcpy(block.digest, digest, sizeof block.digest);
    memcpy(block.token, token, sizeof block.token);
    return mm_siphash128(secret, &block, sizeof block);
}
