/* kv_pool.h: who owns which page. A page here is a number: 128 positions of every layer, whose
 * bytes lie on the ranks. Page 0 is never given out (padding rows write there).
 *
 * A page is in exactly one of three states: free; held (refs > 0); cached (refs 0, but published
 * under a prefix key, so that a later prompt can take it up again). Cached pages are given out
 * last, the least recently used first. Used by one thread; nothing here allocates after open. */
#ifndef MM_KV_POOL_H
#define MM_KV_POOL_H
#include "csrc/engine/prefix_key.h"

typedef struct mm_kv_page {
    mm_prefix_key key;
    int32_t refs;
    int32_t hash_next;          /* next page of the bucket, -1 ends */
    int32_t lru_prev, lru_next; /* cached pages only */
    bool is_published;
} mm_kv_page;

typedef struct mm_kv_pool {
    int32_t n_page;      /* page 0 included */
    mm_kv_page *page;    /* [n_page] */
    int32_t *free_stack; /* [n_page] */
    int32_t n_free, n_cached;
    int32_t *bucket;   /* [n_bucket] first page, -1 empty */
    uint32_t n_bucket; /* a power of two */
    int32_t lru_oldest, lru_newest;
} mm_kv_pool;

/* n_page >= 2, page 0 included. */
mm_status mm_kv_pool_open(mm_kv_pool *out, int64_t n_page);
void mm_kv_pool_close(mm_kv_pool *p);

/* Pages that alloc can give: free and cached ones. */
static inline int32_t mm_kv_pool_available(const mm_kv_pool *p)
{
    return p->n_free + p->n_cached;
}
static inline int32_t mm_kv_pool_held(const mm_kv_pool *p)
{
    return p->n_page - 1 - p->n_free - p->n_cached;
}

/* A page with one reference, evicting the oldest cached one if need be; MM_FULL (no message) when
 * there is none. */
mm_status mm_kv_pool_alloc(mm_kv_pool *p, int32_t *out);
/* The page published under key, with one more reference; -1 when there is none. */
int32_t mm_kv_pool_share(mm_kv_pool *p, mm_prefix_key key);
/* One reference less. With the last one a published page becomes cached (the newest), another one
 * free. Give back a sequence's pages from its last to its first: then parents outlive their
 * children in the cache. */
void mm_kv_pool_release(mm_kv_pool *p, int32_t page);
/* Publishes a held page; no effect when another page already has that key. */
void mm_kv_pool_publish(mm_kv_pool *p, int32_t page, mm_prefix_key key);
/* The page can no longer be found; a cached one becomes free. */
void mm_kv_pool_forget(mm_kv_pool *p, int32_t page);
/* Forgets every cached page. */
void mm_kv_pool_reset_cache(mm_kv_pool *p);

/* Integrity of all of the above: MM_E_INVALID says which page is in which wrong state. For tests
 * and MM_DEV. */
mm_status mm_kv_pool_check(const mm_kv_pool *p);
#endif
