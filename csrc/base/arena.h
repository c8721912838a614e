/* arena.h: bump memory sized once. Allocations are 256-byte aligned; reset forgets all of them. Not
 * thread-safe. */
#ifndef MM_ARENA_H
#define MM_ARENA_H
#include "csrc/base/base.h"

typedef struct mm_arena {
    uint8_t *base;
    size_t cap, used, high; /* high: largest `used` ever */
} mm_arena;

mm_status mm_arena_open(mm_arena *out, size_t n_bytes); /* pages are committed when touched */
void mm_arena_close(mm_arena *a);
void mm_arena_reset(mm_arena *a);
/* NULL when it does not fit: a bug of whoever sized the arena, so callers MM_ASSERT or fail with
 * MM_E_NOMEM. */
void *mm_arena_alloc(mm_arena *a, size_t n_bytes);
static inline size_t mm_arena_size(size_t n_bytes)
{
    return (n_bytes + 255) & ~(size_t)255;
}
#endif
