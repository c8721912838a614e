/* test_kv_pool.c: pages are in one state at a time, through any order of operations; keys; order of
 * eviction. */
#include "csrc/engine/kv_pool.h"
#include "tests/c/mm_random.h"
#include "tests/c/mm_test.h"

static mm_prefix_key key_of(uint64_t i)
{
    return (mm_prefix_key){.lo = i * 0x9E3779B97F4A7C15u, .hi = i};
}

MM_TEST(test_siphash_matches_published_vectors)
{
    /* Key 00..0f, message 00..n-1: SipHash-2-4-128 as OpenSSL computes it (n = 0, 1, 15). */
    static const uint8_t want[3][16] = {
        {0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02,
         0x93},
        {0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc,
         0x45},
        {0x54, 0x93, 0xe9, 0x99, 0x33, 0xb0, 0xa8, 0x11, 0x7e, 0x08, 0xec, 0x0f, 0x97, 0xcf, 0xc3,
         0xd9},
    };
    static const size_t length[3] = {0, 1, 15};
    uint8_t bytes[16];
    for (int i = 0; i < 16; i++)
        bytes[i] = (uint8_t)i;
    mm_prefix_key secret;
    memcpy(&secret, bytes, sizeof secret);
    for (int i = 0; i < 3; i++) {
        const mm_prefix_key got = mm_siphash128(secret, bytes, length[i]);
        MM_CHECK(memcmp(&got, want[i], 16) == 0, "length %zu: %016llx%016llx", length[i],
                 (unsigned long long)got.hi, (unsigned long long)got.lo);
    }
}

MM_TEST(test_prefix_key_depends_on_everything)
{
    mm_prefix_key secret = {1, 2}, other = {1, 3};
    int32_t token[MM_PAGE] = {0};
    const uint8_t digest[16] = {1};
    const mm_prefix_root root = {.weight_version = 1, .salt = 5};
    mm_prefix_root variant[4] = {root, root, root, root};
    variant[0].weight_version = 2;
    variant[1].salt = 6;
    variant[2].owner = 1;
    variant[3].is_private = 1;
    mm_prefix_key seen[12];
    int n = 0;
    const mm_prefix_key start = mm_prefix_begin(secret, &root);
    seen[n++] = mm_prefix_next(secret, start, token, NULL);
    for (int i = 0; i < 4; i++)
        seen[n++] = mm_prefix_next(secret, mm_prefix_begin(secret, &variant[i]), token, NULL);
    seen[n++] = mm_prefix_next(other, mm_prefix_begin(other, &root), token, NULL);
    seen[n++] = mm_prefix_next(secret, start, token, digest);
    seen[n++] = mm_prefix_next(secret, seen[0], token, NULL);
    token[MM_PAGE - 1] = 1;
    seen[n++] = mm_prefix_next(secret, start, token, NULL);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            MM_CHECK(!mm_prefix_equal(seen[i], seen[j]), "variants %d and %d have one name", i, j);
    token[MM_PAGE - 1] = 0;
    const mm_prefix_key again = mm_prefix_next(secret, mm_prefix_begin(secret, &root), token, NULL);
    MM_CHECK(mm_prefix_equal(again, seen[0]),
             "the name of a page is not a function of its contents");
}

MM_TEST(test_pool_gives_every_page_once_and_never_page_0)
{
    mm_kv_pool p;
    MM_CHECK(mm_kv_pool_open(&p, 10) == MM_OK, "%s", mm_error_message());
    bool seen[10] = {false};
    int32_t page;
    for (int i = 0; i < 9; i++) {
        MM_CHECK(mm_kv_pool_alloc(&p, &page) == MM_OK && page > 0 && page < 10 && !seen[page],
                 "page %d", page);
        seen[page] = true;
    }
    MM_CHECK(mm_kv_pool_alloc(&p, &page) == MM_FULL, "an eleventh page");
    MM_CHECK(mm_kv_pool_held(&p) == 9 && mm_kv_pool_check(&p) == MM_OK, "%s", mm_error_message());
    for (int32_t i = 1; i < 10; i++)
        mm_kv_pool_release(&p, i);
    MM_CHECK(p.n_free == 9 && mm_kv_pool_check(&p) == MM_OK, "%s", mm_error_message());
    mm_kv_pool_close(&p);
    MM_CHECK(mm_kv_pool_open(&p, 1) == MM_E_CONFIG, "a pool of page 0 alone");
}

MM_TEST(test_pool_evicts_children_before_parents_and_oldest_first)
{
    mm_kv_pool p;
    int32_t page[4], got;
    MM_CHECK(mm_kv_pool_open(&p, 5) == MM_OK, "%s", mm_error_message());
    for (int i = 0; i < 4; i++) {
        MM_CHECK(mm_kv_pool_alloc(&p, &page[i]) == MM_OK, "alloc");
        mm_kv_pool_publish(&p, page[i], key_of((uint64_t)i + 1));
    }
    for (int i = 1; i >= 0; i--) /* sequence A: pages 0, 1 */
        mm_kv_pool_release(&p, page[i]);
    for (int i = 3; i >= 2; i--) /* then sequence B: pages 2, 3 */
        mm_kv_pool_release(&p, page[i]);
    MM_CHECK(p.n_cached == 4 && p.n_free == 0, "%d cached", p.n_cached);
    static const int order[4] = {1, 0, 3, 2};
    for (int i = 0; i < 4; i++) {
        MM_CHECK(mm_kv_pool_alloc(&p, &got) == MM_OK && got == page[order[i]],
                 "eviction %d gave page %d", i, got);
        MM_CHECK(mm_kv_pool_share(&p, key_of((uint64_t)order[i] + 1)) < 0,
                 "an evicted page is still found");
        MM_CHECK(mm_kv_pool_check(&p) == MM_OK, "%s", mm_error_message());
    }
    mm_kv_pool_close(&p);
}

MM_TEST(test_pool_second_publisher_keeps_its_page_private)
{
    mm_kv_pool p;
    int32_t a, b;
    MM_CHECK(mm_kv_pool_open(&p, 4) == MM_OK, "%s", mm_error_message());
    MM_CHECK(mm_kv_pool_alloc(&p, &a) == MM_OK && mm_kv_pool_alloc(&p, &b) == MM_OK, "alloc");
    mm_kv_pool_publish(&p, a, key_of(1));
    mm_kv_pool_publish(&p, b, key_of(1));
    MM_CHECK(mm_kv_pool_share(&p, key_of(1)) == a, "the first publisher's page is the one found");
    mm_kv_pool_release(&p, a);
    mm_kv_pool_release(&p, a);
    mm_kv_pool_release(&p, b);
    MM_CHECK(p.n_cached == 1 && p.n_free == 2 && mm_kv_pool_check(&p) == MM_OK, "%s",
             mm_error_message());
    mm_kv_pool_reset_cache(&p);
    MM_CHECK(p.n_cached == 0 && p.n_free == 3 && mm_kv_pool_share(&p, key_of(1)) < 0, "reset");
    mm_kv_pool_close(&p);
}

/* A model of the pool: what each key leads to, how often each page is held. */
MM_TEST(test_pool_random_operations_keep_integrity)
{
    enum { PAGES = 40, KEYS = 60, STEPS = 20000 };
    for (uint64_t seed = 1; seed <= 4; seed++) {
        uint64_t rnd = seed;
        mm_kv_pool p;
        int32_t refs[PAGES] = {0}, n_held = 0;
        MM_CHECK(mm_kv_pool_open(&p, PAGES) == MM_OK, "%s", mm_error_message());
        for (int step = 0; step < STEPS; step++) {
            const int32_t page = (int32_t)random_below(&rnd, PAGES - 1) + 1;
            const mm_prefix_key key = key_of((uint64_t)random_below(&rnd, KEYS) + 1);
            int32_t got = -1;
            switch (random_below(&rnd, 6)) {
            case 0:
                if (mm_kv_pool_alloc(&p, &got) == MM_OK) {
                    MM_CHECK(refs[got] == 0, "page %d was held and given out", got);
                    refs[got] = 1;
                    n_held++;
                } else {
                    MM_CHECK(n_held == PAGES - 1, "no page though %d are held", n_held);
                }
                break;
            case 1:
                got = mm_kv_pool_share(&p, key);
                if (got >= 0)
                    n_held += refs[got]++ == 0;
                break;
            case 2:
                if (refs[page] > 0)
                    mm_kv_pool_publish(&p, page, key);
                break;
            case 5:
                if (random_below(&rnd, 50) == 0)
                    mm_kv_pool_reset_cache(&p);
                else if (random_below(&rnd, 10) == 0)
                    mm_kv_pool_forget(&p, page);
                break;
            default:
                if (refs[page] > 0) {
                    mm_kv_pool_release(&p, page);
                    n_held -= --refs[page] == 0;
                }
            }
            MM_CHECK(mm_kv_pool_held(&p) == n_held, "seed %llu step %d", (unsigned long long)seed,
                     step);
            if (step % 16 == 0)
                MM_CHECK(mm_kv_pool_check(&p) == MM_OK, "seed %llu step %d: %s",
                         (unsigned long long)seed, step, mm_error_message());
        }
        mm_kv_pool_close(&p);
    }
}
