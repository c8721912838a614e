/* request_deck.c: decks of requests, each with a bit per free place; those with room are listed. */
#include <pthread.h>

#include "csrc/engine/request_deck.h"

enum { PLACES = MM_ASAN ? 1 : 32 };

struct mm_request_deck {
    mm_request place[PLACES];
    uint32_t is_free; /* bit i: place[i] */
    mm_request_deck *prev, *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static mm_request_deck *with_room; /* the one used last first */

static const uint32_t all_free = (uint32_t)((1ull << PLACES) - 1);

static void list(mm_request_deck *d)
{
    d->prev = NULL;
    d->next = with_room;
    if (with_room != NULL)
        with_room->prev = d;
    with_room = d;
}

static void unlist(mm_request_deck *d)
{
    *(d->prev != NULL ? &d->prev->next : &with_room) = d->next;
    if (d->next != NULL)
        d->next->prev = d->prev;
}

mm_request *mm_request_take(void)
{
    pthread_mutex_lock(&lock);
    mm_request_deck *d = with_room;
    if (d == NULL) {
        d = aligned_alloc(alignof(mm_request_deck), sizeof *d);
        if (d != NULL) {
            d->is_free = all_free;
            list(d);
        }
    }
    mm_request *r = NULL;
    if (d != NULL) {
        r = &d->place[__builtin_ctz(d->is_free)];
        d->is_free &= d->is_free - 1;
        if (d->is_free == 0)
            unlist(d);
    }
    pthread_mutex_unlock(&lock);
    if (r != NULL) {
        memset(r, 0, sizeof *r);
        r->deck = d;
    }
    return r;
}

void mm_request_give(mm_request *r)
{
    mm_request_deck *d = r->deck;
    pthread_mutex_lock(&lock);
    if (d->is_free == 0)
        list(d);
    d->is_free |= 1u << (r - d->place);
    const bool is_over =
        d->is_free == all_free && (PLACES == 1 || d->prev != NULL || d->next != NULL);
    if (is_over)
        unlist(d);
    pthread_mutex_unlock(&lock);
    if (is_over)
        free(d);
}
