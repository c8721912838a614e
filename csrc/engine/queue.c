/* queue.c: the table by id and the lists. Every function here runs under the lock and does no more
 * than relink. */
#include <time.h>

#include "csrc/engine/queue.h"

mm_status mm_cond_open(pthread_cond_t *c)
{
    pthread_condattr_t attr;
    int err = pthread_condattr_init(&attr);
    if (err == 0) {
        (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        err = pthread_cond_init(c, &attr);
        (void)pthread_condattr_destroy(&attr);
    }
    return err == 0 ? MM_OK : MM_FAIL(MM_E_NOMEM, "no condition variable: %s", strerror(err));
}

void mm_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, double when)
{
    const double far = mm_now() + 1e8; /* seconds; also what an infinite timeout means */
    const double t = when < far ? when : far;
    const struct timespec ts = {.tv_sec = (time_t)t,
                                .tv_nsec = (long)((t - (double)(time_t)t) * 1e9)};
    (void)pthread_cond_timedwait(c, lock, &ts);
}

mm_status mm_queue_open(mm_queue *q)
{
    *q = (mm_queue){.n_bucket = 1024};
    mm_engine_stats_init(&q->stats);
    q->bucket = calloc(q->n_bucket, sizeof(mm_request *));
    if (q->bucket == NULL || pthread_mutex_init(&q->lock, NULL) != 0) {
        free(q->bucket);
        q->bucket = NULL;
        return MM_FAIL(MM_E_NOMEM, "no host memory for the request table");
    }
    mm_status st = mm_cond_open(&q->work);
    if (st == MM_OK) {
        st = mm_cond_open(&q->reply);
        if (st != MM_OK)
            (void)pthread_cond_destroy(&q->work);
    }
    if (st != MM_OK) {
        (void)pthread_mutex_destroy(&q->lock);
        free(q->bucket);
        q->bucket = NULL;
    }
    return st;
}

void mm_queue_close(mm_queue *q)
{
    if (q->bucket == NULL)
        return;
    for (uint64_t i = 0; i < q->n_bucket; i++) {
        for (mm_request *r = q->bucket[i], *next; r != NULL; r = next) {
            next = r->hash_next;
            mm_request_close(r);
        }
    }
    free(q->bucket);
    q->bucket = NULL;
    (void)pthread_cond_destroy(&q->work);
    (void)pthread_cond_destroy(&q->reply);
    (void)pthread_mutex_destroy(&q->lock);
}

/* ---------------------------------------------------------------- table */

mm_request *mm_queue_find(const mm_queue *q, uint64_t id)
{
    mm_request *r = q->bucket[id & (q->n_bucket - 1)];
    while (r != NULL && r->id != id)
        r = r->hash_next;
    return r;
}

static mm_status grow(mm_queue *q)
{
    const uint64_t n = q->n_bucket * 2;
    mm_request **bucket = calloc(n, sizeof(mm_request *));
    if (bucket == NULL)
        return MM_FAIL(MM_E_NOMEM, "no host memory for a table of %llu requests",
                       (unsigned long long)n);
    for (uint64_t i = 0; i < q->n_bucket; i++) {
        for (mm_request *r = q->bucket[i], *next; r != NULL; r = next) {
            next = r->hash_next;
            r->hash_next = bucket[r->id & (n - 1)];
            bucket[r->id & (n - 1)] = r;
        }
    }
    free(q->bucket);
    q->bucket = bucket;
    q->n_bucket = n;
    return MM_OK;
}

static void forget(mm_queue *q, mm_request *r)
{
    mm_request **link = &q->bucket[r->id & (q->n_bucket - 1)];
    while (*link != r)
        link = &(*link)->hash_next;
    *link = r->hash_next;
    r->hash_next = NULL;
    q->n_request--;
}

/* ---------------------------------------------------------------- in */

mm_status mm_queue_add(mm_queue *q, mm_waiter *w, mm_request *r)
{
    if (q->n_request >= (int64_t)q->n_bucket)
        MM_TRY(grow(q));
    r->id = ++q->last_id;
    r->is_held = true;
    r->waiter = w;
    r->own_next = w->owned;
    if (w->owned != NULL)
        w->owned->own_prev = r;
    w->owned = r;
    r->hash_next = q->bucket[r->id & (q->n_bucket - 1)];
    q->bucket[r->id & (q->n_bucket - 1)] = r;
    q->n_request++;
    if (q->inbox_last != NULL)
        q->inbox_last->inbox_next = r;
    else
        q->inbox_first = r;
    q->inbox_last = r;
    q->n_inbox++;
    (void)pthread_cond_signal(&q->work);
    return MM_OK;
}

static bool is_held_back(const mm_queue *q, const mm_request *r)
{
    return q->pause != MM_PAUSE_NONE && r->id > q->pause_id && !q->is_stopping && !q->is_dead;
}

bool mm_queue_has_inbox(const mm_queue *q)
{
    return q->inbox_first != NULL && !is_held_back(q, q->inbox_first);
}

mm_request *mm_queue_take_inbox(mm_queue *q)
{
    mm_request *taken = NULL, **to = &taken, **from = &q->inbox_first;
    q->inbox_last = NULL;
    while (*from != NULL) {
        mm_request *r = *from;
        if (is_held_back(q, r) && (r->pending & MM_PENDING_ABORT) == 0) {
            q->inbox_last = r;
            from = &r->inbox_next;
            continue;
        }
        *from = r->inbox_next;
        r->inbox_next = NULL;
        *to = r;
        to = &r->inbox_next;
        q->n_inbox--;
    }
    return taken;
}

void mm_queue_command(mm_queue *q, mm_request *r, uint32_t pending)
{
    if (!r->is_held)
        return;
    if (r->pending == 0) {
        r->pending_next = q->pending;
        q->pending = r;
    }
    r->pending |= pending;
    (void)pthread_cond_signal(&q->work);
}

/* ---------------------------------------------------------------- out */

bool mm_queue_push_ready(mm_request *r)
{
    mm_waiter *w = r->waiter;
    if (w == NULL || r->is_ready)
        return false;
    r->is_ready = true;
    r->ready_next = NULL;
    r->ready_prev = w->ready_last;
    if (w->ready_last != NULL)
        w->ready_last->ready_next = r;
    else
        w->ready_first = r;
    w->ready_last = r;
    return true;
}

static void unlink_ready(mm_request *r)
{
    mm_waiter *w = r->waiter;
    if (!r->is_ready)
        return;
    *(r->ready_prev != NULL ? &r->ready_prev->ready_next : &w->ready_first) = r->ready_next;
    *(r->ready_next != NULL ? &r->ready_next->ready_prev : &w->ready_last) = r->ready_prev;
    r->ready_prev = r->ready_next = NULL;
    r->is_ready = false;
}

mm_request *mm_queue_pop_ready(mm_waiter *w)
{
    mm_request *r = w->ready_first;
    if (r != NULL)
        unlink_ready(r);
    return r;
}

mm_request *mm_queue_release(mm_queue *q, mm_request *r)
{
    mm_waiter *w = r->waiter;
    unlink_ready(r);
    *(r->own_prev != NULL ? &r->own_prev->own_next : &w->owned) = r->own_next;
    if (r->own_next != NULL)
        r->own_next->own_prev = r->own_prev;
    r->own_prev = r->own_next = NULL;
    r->waiter = NULL;
    r->is_released = true;
    forget(q, r);
    if (!r->is_held)
        return r;
    mm_queue_command(q, r, MM_PENDING_ABORT);
    return NULL;
}

mm_request *mm_queue_retire(mm_queue *q, mm_request *r)
{
    MM_ASSERT(r->is_held);
    if (r->pending != 0) { /* a command that came while it ended */
        mm_request **link = &q->pending;
        while (*link != r)
            link = &(*link)->pending_next;
        *link = r->pending_next;
        r->pending = 0;
    }
    r->is_held = false;
    return r->is_released ? r : NULL;
}

mm_status mm_queue_check_alive(const mm_queue *q)
{
    if (q->is_stopping || q->is_closed)
        return MM_FAIL(MM_E_CLOSED, "the engine was closed");
    if (q->is_dead) {
        char text[sizeof q->cause.text];
        memcpy(text, q->cause.text, sizeof text);
        return MM_FAIL_PARAM(MM_E_DEAD, q->cause.param, q->cause.index,
                             "the engine failed earlier: %s", text);
    }
    return MM_OK;
}
