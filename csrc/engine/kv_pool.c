/* kv_pool.c: a free stack, a list of cached pages in order of use, and a hash table from prefix key
 * to page. */
#include "csrc/engine/kv_pool.h"

mm_status mm_kv_pool_open(mm_kv_pool *out, int64_t n_page)
{
    mm_kv_pool p = {.lru_oldest = -1, .lru_newest = -1};
    if (n_page < 2 || n_page > INT32_MAX / 4)
        return MM_FAIL_PARAM(MM_E_CONFIG, "kv_bytes", -1,
                             "kv_bytes gives a pool of %lld pages, which must be 2 to %d (page 0 "
                             "is reserved): change kv_bytes",
                             (long long)n_page, INT32_MAX / 4);
    p.n_page = (int32_t)n_page;
    p.n_bucket = 16;
    while (p.n_bucket < 2u * (uint32_t)n_page)
        p.n_bucket *= 2;
    p.page = calloc((size_t)n_page, sizeof *p.page);
    p.free_stack = calloc((size_t)n_page, sizeof *p.free_stack);
    p.bucket = malloc(p.n_bucket * sizeof *p.bucket);
    if (p.page == NULL || p.free_stack == NULL || p.bucket == NULL) {
        mm_kv_pool_close(&p);
        return MM_FAIL(MM_E_NOMEM, "no host memory for the table of %lld KV pages",
                       (long long)n_page);
    }
    for (uint32_t i = 0; i < p.n_bucket; i++)
        p.bucket[i] = -1;
    for (int32_t i = p.n_page - 1; i >= 1; i--) /* low numbers are given out first */
        p.free_stack[p.n_free++] = i;
    for (int32_t i = 0; i < p.n_page; i++)
        p.page[i] = (mm_kv_page){.hash_next = -1, .lru_prev = -1, .lru_next = -1};
    *out = p;
    return MM_OK;
}

void mm_kv_pool_close(mm_kv_pool *p)
{
    if (p == NULL)
        return;
    free(p->page);
    free(p->free_stack);
    free(p->bucket);
    *p = (mm_kv_pool){0};
}

/* ---------------------------------------------------------------- the two indexes of
 * cached pages */

static int32_t *bucket_of(const mm_kv_pool *p, mm_prefix_key key)
{
    return &p->bucket[(uint32_t)key.lo & (p->n_bucket - 1)];
}

static int32_t find(const mm_kv_pool *p, mm_prefix_key key)
{
    int32_t i = *bucket_of(p, key);
    while (i >= 0 && !mm_prefix_equal(p->page[i].key, key))
        i = p->page[i].hash_next;
    return i;
}

static void unpublish(mm_kv_pool *p, int32_t page)
{
    mm_kv_page *pg = &p->page[page];
    int32_t *link = bucket_of(p, pg->key);
    while (*link != page)
        link = &p->page[*link].hash_next;
    *link = pg->hash_next;
    pg->hash_next = -1;
    pg->is_published = false;
}

static void lru_remove(mm_kv_pool *p, int32_t page)
{
    mm_kv_page *pg = &p->page[page];
    *(pg->lru_prev >= 0 ? &p->page[pg->lru_prev].lru_next : &p->lru_oldest) = pg->lru_next;
    *(pg->lru_next >= 0 ? &p->page[pg->lru_next].lru_prev : &p->lru_newest) = pg->lru_prev;
    pg->lru_prev = pg->lru_next = -1;
    p->n_cached--;
}

static void lru_append(mm_kv_pool *p, int32_t page)
{
    mm_kv_page *pg = &p->page[page];
    pg->lru_prev = p->lru_newest;
    pg->lru_next = -1;
    *(p->lru_newest >= 0 ? &p->page[p->lru_newest].lru_next : &p->lru_oldest) = page;
    p->lru_newest = page;
    p->n_cached++;
}

/* ---------------------------------------------------------------- operations */

mm_status mm_kv_pool_alloc(mm_kv_pool *p, int32_t *out)
{
    int32_t page;
    if (p->n_free > 0) {
        page = p->free_stack[--p->n_free];
    } else if (p->lru_oldest >= 0) {
        page = p->lru_oldest;
        lru_remove(p, page);
        unpublish(p, page);
    } else {
        return MM_FULL;
    }
    MM_ASSERT(p->page[page].refs == 0 && !p->page[page].is_published);
    p->page[page].refs = 1;
    *out = page;
    return MM_OK;
}

int32_t mm_kv_pool_share(mm_kv_pool *p, mm_prefix_key key)
{
    const int32_t page = find(p, key);
    if (page < 0)
        return -1;
    if (p->page[page].refs++ == 0)
        lru_remove(p, page);
    return page;
}

void mm_kv_pool_release(mm_kv_pool *p, int32_t page)
{
    mm_kv_page *pg = &p->page[page];
    MM_ASSERT(page >= 1 && page < p->n_page && pg->refs > 0);
    if (--pg->refs > 0)
        return;
    if (pg->is_published)
        lru_append(p, page);
    else
        p->free_stack[p->n_free++] = page;
}

void mm_kv_pool_publish(mm_kv_pool *p, int32_t page, mm_prefix_key key)
{
    mm_kv_page *pg = &p->page[page];
    MM_ASSERT(pg->refs > 0);
    if (pg->is_published || find(p, key) >= 0)
        return;
    int32_t *head = bucket_of(p, key);
    pg->key = key;
    pg->is_published = true;
    pg->hash_next = *head;
    *head = page;
}

void mm_kv_pool_forget(mm_kv_pool *p, int32_t page)
{
    mm_kv_page *pg = &p->page[page];
    if (!pg->is_published)
        return;
    unpublish(p, page);
    if (pg->refs == 0) {
        lru_remove(p, page);
        p->free_stack[p->n_free++] = page;
    }
}

void mm_kv_pool_reset_cache(mm_kv_pool *p)
{
    while (p->lru_oldest >= 0)
        mm_kv_pool_forget(p, p->lru_oldest);
}

/* ---------------------------------------------------------------- check */

static mm_status check_lists(const mm_kv_pool *p, uint8_t *seen)
{
    for (int32_t i = 0; i < p->n_free; i++) {
        const int32_t page = p->free_stack[i];
        if (page < 1 || page >= p->n_page || seen[page] != 0)
            return MM_FAIL(MM_E_INVALID, "page %d is twice among the free pages or out of range",
                           page);
        if (p->page[page].refs != 0 || p->page[page].is_published)
            return MM_FAIL(MM_E_INVALID, "free page %d has %d references", page,
                           p->page[page].refs);
        seen[page] = 1;
    }
    int32_t n = 0, before = -1;
    for (int32_t i = p->lru_oldest; i >= 0; before = i, i = p->page[i].lru_next, n++) {
        if (n >= p->n_page || seen[i] != 0 || p->page[i].lru_prev != before)
            return MM_FAIL(MM_E_INVALID, "the list of cached pages is broken at page %d", i);
        if (p->page[i].refs != 0 || !p->page[i].is_published)
            return MM_FAIL(MM_E_INVALID, "cached page %d has %d references", i, p->page[i].refs);
        seen[i] = 2;
    }
    if (n != p->n_cached || before != p->lru_newest)
        return MM_FAIL(MM_E_INVALID, "%d pages are cached, counted %d", n, p->n_cached);
    return MM_OK;
}

mm_status mm_kv_pool_check(const mm_kv_pool *p)
{
    mm_status st = MM_OK;
    uint8_t *seen = calloc((size_t)p->n_page, 1);
    if (seen == NULL)
        return MM_FAIL(MM_E_NOMEM, "no memory to check the pool");
    st = check_lists(p, seen);
    int32_t n_published = 0, n_found = 0;
    for (int32_t i = 1; i < p->n_page && st == MM_OK; i++) {
        if (seen[i] == 0 && p->page[i].refs <= 0)
            st = MM_FAIL(MM_E_INVALID, "page %d is lost: no list has it and nobody holds it", i);
        else if (p->page[i].is_published && find(p, p->page[i].key) != i)
            st = MM_FAIL(MM_E_INVALID, "published page %d is not found under its key", i);
        n_published += p->page[i].is_published;
    }
    for (uint32_t b = 0; b < p->n_bucket && st == MM_OK; b++)
        for (int32_t i = p->bucket[b]; i >= 0 && n_found <= n_published; i = p->page[i].hash_next)
            n_found++;
    if (st == MM_OK && n_found != n_published)
        st = MM_FAIL(MM_E_INVALID, "the key table holds %d pages, %d are published", n_found,
                     n_published);
    if (st == MM_OK && (p->page[0].refs != 0 || p->page[0].is_published))
        st = MM_FAIL(MM_E_INVALID, "page 0 was given out");
    free(seen);
    return st;
}
