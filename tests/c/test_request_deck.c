/* test_request_deck.c: requests lie side by side, are zeroed, and no two share a place. */
#include <pthread.h>

#include "csrc/engine/request_deck.h"
#include "tests/c/mm_random.h"
#include "tests/c/mm_test.h"

static bool is_zero(const mm_request *r)
{
    const uint8_t *at = (const uint8_t *)r;
    for (size_t i = 0; i < sizeof *r; i++)
        if (at[i] != 0 && (i < offsetof(mm_request, deck) || i >= offsetof(mm_request, block)))
            return false;
    return true;
}

typedef struct player {
    uint64_t seed;
    const char *wrong;
} player;

/* Takes and gives in random order; every request keeps the id that its holder wrote. */
static void *play(void *arg)
{
    enum { N = 200, TURNS = 20000 };
    player *p = arg;
    uint64_t rnd = p->seed, id[N];
    mm_request *held[N] = {0};
    for (uint64_t turn = 1; turn <= TURNS && p->wrong == NULL; turn++) {
        const int64_t i = random_below(&rnd, N);
        if (held[i] != NULL) {
            if (held[i]->id != id[i])
                p->wrong = "two hold one place";
            mm_request_give(held[i]);
            held[i] = NULL;
            continue;
        }
        held[i] = mm_request_take();
        if (held[i] == NULL || !is_zero(held[i])) {
            p->wrong = "a request is missing or not zeroed";
            continue;
        }
        memset(held[i], 0x5A, offsetof(mm_request, deck));
        held[i]->id = id[i] = p->seed << 32 | turn;
    }
    for (int i = 0; i < N; i++)
        if (held[i] != NULL)
            mm_request_give(held[i]);
    return NULL;
}

MM_TEST(test_request_deck_gives_every_place_to_one_holder)
{
    player p = {.seed = 5};
    (void)play(&p);
    MM_CHECK(p.wrong == NULL, "%s", p.wrong);
}

MM_TEST(test_request_deck_is_safe_from_any_thread)
{
    pthread_t thread[4];
    player p[4];
    for (int i = 0; i < 4; i++) {
        p[i] = (player){.seed = (uint64_t)i + 1};
        if (pthread_create(&thread[i], NULL, play, &p[i]) != 0)
            abort();
    }
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < 4; i++)
        MM_CHECK(p[i].wrong == NULL, "%s", p[i].wrong);
}

#if !MM_ASAN /* there each has an allocation of its own */
MM_TEST(test_request_deck_places_requests_side_by_side)
{
    enum { N = 64 };
    mm_request *r[N];
    int n_beside = 0;
    for (int i = 0; i < N; i++)
        r[i] = mm_request_take();
    for (int i = 1; i < N; i++)
        n_beside += r[i - 1] != NULL && r[i] == r[i - 1] + 1;
    MM_CHECK(n_beside >= N - 4, "%d of %d lie behind the one before", n_beside, N);
    mm_request *first = r[0];
    mm_request_give(r[0]);
    r[0] = mm_request_take();
    MM_CHECK(r[0] == first, "a place that is free is not taken again");
    for (int i = 0; i < N; i++)
        mm_request_give(r[i]);
}
#endif
