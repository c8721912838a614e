/* prefix_key.h: the name of a page's contents in the prefix cache. A page of 128 tokens is named by
 * a 128-bit keyed hash of its parent's name, its tokens and everything else its keys and values
 * depend on, so a whole prefix is named by the last page of the chain. The key is random per
 * engine: names cannot be forged, nor compared across engines.
 *
 * The hash is SipHash-2-4 with 128-bit output (Aumasson and Bernstein, 2012; 128-bit variant of the
 * authors' code). */
#ifndef MM_PREFIX_KEY_H
#define MM_PREFIX_KEY_H
#include "csrc/base/base.h"

typedef struct mm_prefix_key {
    uint64_t lo, hi;
} mm_prefix_key;

/* What the first page of a chain starts from. Equal roots may share pages. */
typedef struct mm_prefix_root {
    uint64_t weight_version;
    uint64_t salt;  /* the caller's, or the group's when is_private */
    uint64_t owner; /* private: serial of the waiter the group belongs to; else 0 */
    uint64_t is_private;
} mm_prefix_root;

/* 16 random bytes of the system. MM_E_IO when it has none. */
mm_status mm_prefix_secret(mm_prefix_key *out);
mm_prefix_key mm_siphash128(mm_prefix_key secret, const void *data, size_t n_bytes);
mm_prefix_key mm_prefix_begin(mm_prefix_key secret, const mm_prefix_root *root);
/* Name of the page of MM_PAGE tokens that follows `parent`. digest: of the media rows in the page,
 * or NULL. */
mm_prefix_key mm_prefix_next(mm_prefix_key secret, mm_prefix_key parent, const int32_t *token,
                             const uint8_t *digest);

static inline bool mm_prefix_equal(mm_prefix_key a, mm_prefix_key b)
{
    return a.lo == b.lo && a.hi == b.hi;
}
#endif
