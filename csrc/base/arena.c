/* arena.c: one anonymous mapping and a pointer that moves up. The mapping costs address space only;
 * the kernel commits (zeroed) pages when they are first touched. */
#include <errno.h>
#include <sys/mman.h>

#include "csrc/base/arena.h"

mm_status mm_arena_open(mm_arena *out, size_t n_bytes)
{
    const size_t cap = mm_arena_size(n_bytes > 0 ? n_bytes : 1);
    *out = (mm_arena){0};
    if (cap < n_bytes)
        return MM_FAIL(MM_E_NOMEM, "arena of %zu bytes: size overflow", n_bytes);
    void *p = mmap(NULL, cap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return MM_FAIL(MM_E_NOMEM, "arena of %zu bytes of host memory: %s", cap, strerror(errno));
    *out = (mm_arena){.base = p, .cap = cap};
    return MM_OK;
}

void mm_arena_close(mm_arena *a)
{
    if (a == NULL || a->base == NULL)
        return;
    munmap(a->base, a->cap);
    *a = (mm_arena){0};
}

void mm_arena_reset(mm_arena *a)
{
    a->used = 0;
}

void *mm_arena_alloc(mm_arena *a, size_t n_bytes)
{
    const size_t size = mm_arena_size(n_bytes > 0 ? n_bytes : 1);
    if (size < n_bytes || size > a->cap - a->used)
        return NULL;
    void *p = a->base + a->used;
    a->used += size;
    if (a->used > a->high)
        a->high = a->used;
    return p;
}
