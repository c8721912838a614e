/* publish.c: see publish.h. Of a request that only grew, which is what a step of decoding makes of
 * all of them, two numbers are copied; all of its output only when something else changed. */
#include "csrc/engine/publish.h"

/* Who reads an output does so on another core: it must come back before it can be written. */
static void ask_for(const mm_request *r)
{
    if (r == NULL || !(r->is_stale || r->has_news))
        return;
    const size_t from = offsetof(mm_request, waiter),
                 to = r->is_stale ? offsetof(mm_request, owner) : from + 64;
    for (size_t at = from; at < to; at += 64)
        __builtin_prefetch((const uint8_t *)r + at, 1);
    for (size_t at = 0; r->is_stale && at < sizeof r->out; at += 64)
        __builtin_prefetch((const uint8_t *)&r->out + at);
}

/* Rows of a trace are still being written while a step holds it: its owner must not be told
 * yet. */
static bool is_early(const mm_request *r)
{
    return r->state == MM_REQUEST_DONE && r->n_in_flight > 0 && mm_request_trace(r) != NULL;
}

/* Wakes a waiter once for all its news that follow one another, and after them: woken by the first,
 * it would wait for the lock. */
static void ring(mm_waiter **last, mm_waiter *w)
{
    if (*last != NULL && *last != w)
        (void)pthread_cond_signal(&(*last)->news);
    *last = w;
}

/* True: nobody uses it any more. */
static bool publish_one(mm_queue *q, mm_request *r, mm_waiter **last)
{
    r->is_dirty = false;
    if (is_early(r))
        return false;
    r->read_n_token = r->n_token;
    r->read_t_last = r->t_last;
    if ((r->asks & MM_ASKS_THINKING) != 0)
        r->read_n_think_token = r->n_think_token;
    if (r->is_stale)
        r->pub = r->out;
    if (r->has_news && mm_queue_push_ready(r))
        ring(last, r->waiter);
    r->is_stale = r->has_news = false;
    return mm_scheduler_is_retired(r) && mm_queue_retire(q, r) != NULL;
}

static void publish_stats(mm_queue *q, const mm_scheduler *s, uint64_t weight_version)
{
    if (s->stats.n_step > q->stats.n_step)
        mm_step_times_add(&q->times, s->stats.t_step_last);
    q->stats = s->stats;
    q->stats.n_waiting = s->n_heap + s->n_blocked;
    q->stats.n_running = s->n_running + s->n_leaving;
    q->stats.n_page = s->pool.n_page - 1;
    q->stats.n_page_free = s->pool.n_free;
    q->stats.n_page_cached = s->pool.n_cached;
    q->stats.weight_version = weight_version;
}

void mm_publish(mm_queue *q, mm_scheduler *s, uint64_t weight_version)
{
    mm_request *closing = NULL;
    mm_waiter *last = NULL;
    mm_request *r = mm_scheduler_take_dirty(s), *ahead = r;
    for (int i = 0; i < 4 && ahead != NULL; i++, ahead = ahead->dirty_next)
        ask_for(ahead);
    pthread_mutex_lock(&q->lock);
    while (r != NULL) {
        mm_request *next = r->dirty_next;
        if (ahead != NULL) {
            ask_for(ahead);
            ahead = ahead->dirty_next;
        }
        if (publish_one(q, r, &last)) {
            r->dirty_next = closing;
            closing = r;
        }
        r = next;
    }
    publish_stats(q, s, weight_version);
    ring(&last, NULL);
    pthread_mutex_unlock(&q->lock);
    while (closing != NULL) {
        mm_request *next = closing->dirty_next;
        mm_request_close(closing);
        closing = next;
    }
}
