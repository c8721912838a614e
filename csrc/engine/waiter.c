/* waiter.c: the mailbox of one caller. A waiter keeps the engine's struct alive, so it is safe to
 * wait on one whose engine was closed: it hands out what is left, then says so. */
#include <unistd.h>

#include "csrc/engine/engine.h"

mm_status mm_waiter_open(mm_waiter **out, mm_engine *e)
{
    *out = NULL;
    MM_TRY(mm_engine_check_process(e));
    mm_waiter *w = calloc(1, sizeof *w);
    if (w == NULL)
        return MM_FAIL(MM_E_NOMEM, "no host memory for a waiter");
    mm_status st = mm_cond_open(&w->news);
    if (st != MM_OK) {
        free(w);
        return st;
    }
    mm_queue *q = &e->queue;
    pthread_mutex_lock(&q->lock);
    if (q->is_stopping || q->is_closed) {
        st = mm_queue_check_alive(q);
    } else {
        w->engine = e;
        w->serial = ++q->last_waiter;
        w->next = q->waiter;
        if (q->waiter != NULL)
            q->waiter->prev = w;
        q->waiter = w;
        e->n_ref++;
    }
    pthread_mutex_unlock(&q->lock);
    if (st != MM_OK) {
        (void)pthread_cond_destroy(&w->news);
        free(w);
        return st;
    }
    *out = w;
    return MM_OK;
}

mm_status mm_waiter_wait(mm_waiter *w, double timeout_s, uint64_t *id, int32_t cap, int32_t *out_n)
{
    mm_engine *e = w->engine;
    MM_TRY(mm_engine_check_process(e));
    if (cap < 1 || id == NULL || !(timeout_s >= 0))
        return MM_FAIL(MM_E_INVALID,
                       "mm_waiter_wait: room for %d ids, timeout %g s: at least 1 and a number >= "
                       "0 are needed",
                       cap, timeout_s);
    const double until = mm_now() + timeout_s;
    mm_queue *q = &e->queue;
    mm_status st = MM_OK;
    int32_t n = 0;
    pthread_mutex_lock(&q->lock);
    w->n_inside++;
    while (w->ready_first == NULL && !w->is_closing && !q->is_closed && !q->is_over &&
           mm_now() < until)
        mm_cond_wait_until(&w->news, &q->lock, until);
    while (n < cap && w->ready_first != NULL)
        id[n++] = mm_queue_pop_ready(w)->id;
    if (n == 0 && w->is_closing)
        st = MM_FAIL(MM_E_CLOSED, "the waiter was closed");
    else if (n == 0)
        st = q->is_closed || q->is_over ? mm_queue_check_alive(q) : MM_OK;
    w->n_inside--;
    if (w->is_closing)
        pthread_cond_broadcast(&w->news);
    pthread_mutex_unlock(&q->lock);
    *out_n = n;
    return st;
}

void mm_waiter_close(mm_waiter *w)
{
    if (w == NULL || w->engine->pid != getpid())
        return;
    mm_engine *e = w->engine;
    mm_queue *q = &e->queue;
    mm_request *closing = NULL;
    pthread_mutex_lock(&q->lock);
    w->is_closing = true;
    pthread_cond_broadcast(&w->news);
    while (w->n_inside > 0)
        pthread_cond_wait(&w->news, &q->lock);
    while (w->owned != NULL) {
        mm_request *r = mm_queue_release(q, w->owned);
        if (r != NULL) {
            r->own_next = closing;
            closing = r;
        }
    }
    *(w->prev != NULL ? &w->prev->next : &q->waiter) = w->next;
    if (w->next != NULL)
        w->next->prev = w->prev;
    mm_engine_unref_locked(e);
    while (closing != NULL) {
        mm_request *next = closing->own_next;
        mm_request_close(closing);
        closing = next;
    }
    (void)pthread_cond_destroy(&w->news);
    free(w);
}
