/* engine_api.c: the calls about requests. Each checks, takes the queue's lock for a moment, and
 * returns; none waits for a step but mm_engine_reset_prefix_cache. */
#include "csrc/engine/engine.h"

mm_status mm_engine_submit(mm_engine *e, mm_waiter *w, const mm_request_params *p, uint64_t *out_id)
{
    MM_TRY(mm_engine_check_process(e));
    if (w == NULL || w->engine != e)
        return MM_FAIL(MM_E_INVALID, "the waiter belongs to another engine");
    mm_queue *q = &e->queue;
    pthread_mutex_lock(&q->lock);
    mm_status st = mm_queue_check_alive(q);
    pthread_mutex_unlock(&q->lock);
    MM_TRY(st);
    mm_request *r = NULL;
    MM_TRY(mm_request_open(&r, p, &e->limits, w->serial)); /* copies: without the lock */
    pthread_mutex_lock(&q->lock);
    st = mm_queue_check_alive(q);
    if (st == MM_OK)
        st = mm_queue_add(q, w, r);
    if (st == MM_OK)
        *out_id = r->id;
    pthread_mutex_unlock(&q->lock);
    if (st != MM_OK)
        mm_request_close(r);
    return st;
}

static mm_status unknown(uint64_t id)
{
    return MM_FAIL(MM_E_INVALID, "there is no request %llu (never submitted, or released)",
                   (unsigned long long)id);
}

mm_status mm_request_read(mm_engine *e, uint64_t id, mm_output *out)
{
    MM_TRY(mm_engine_check_process(e));
    mm_queue *q = &e->queue;
    pthread_mutex_lock(&q->lock);
    const mm_request *r = mm_queue_find(q, id);
    if (r != NULL)
        *out = mm_request_snapshot(r);
    pthread_mutex_unlock(&q->lock);
    return r != NULL ? MM_OK : unknown(id);
}

mm_status mm_request_notify(mm_engine *e, uint64_t id, int32_t n_tokens)
{
    MM_TRY(mm_engine_check_process(e));
    if (n_tokens < 0)
        return MM_FAIL(MM_E_INVALID, "mm_request_notify: %d tokens; it must be >= 0", n_tokens);
    mm_queue *q = &e->queue;
    pthread_mutex_lock(&q->lock);
    mm_request *r = mm_queue_find(q, id);
    if (r != NULL) {
        r->notify_in = n_tokens;
        mm_queue_command(q, r, MM_PENDING_NOTIFY);
    }
    pthread_mutex_unlock(&q->lock);
    return r != NULL ? MM_OK : unknown(id);
}

void mm_request_release(mm_engine *e, uint64_t id)
{
    if (mm_engine_check_process(e) != MM_OK)
        return;
    mm_queue *q = &e->queue;
    pthread_mutex_lock(&q->lock);
    mm_request *r = mm_queue_find(q, id);
    if (r != NULL)
        r = mm_queue_release(q, r);
    pthread_mutex_unlock(&q->lock);
    mm_request_close(r);
}

static int32_t abort_one(mm_queue *q, mm_request *r)
{
    if (r == NULL || r->pub.finish != MM_FINISH_NONE || (r->pending & MM_PENDING_ABORT) != 0)
        return 0;
    mm_queue_command(q, r, MM_PENDING_ABORT);
    return 1;
}

mm_status mm_engine_abort(mm_engine *e, const uint64_t *id, int32_t n, int32_t *out_n)
{
    MM_TRY(mm_engine_check_process(e));
    mm_queue *q = &e->queue;
    int32_t n_alive = 0;
    pthread_mutex_lock(&q->lock);
    const mm_status st = mm_queue_check_alive(q);
    for (int32_t i = 0; st == MM_OK && id != NULL && i < n; i++)
        n_alive += abort_one(q, mm_queue_find(q, id[i]));
    for (mm_waiter *w = q->waiter; st == MM_OK && id == NULL && w != NULL; w = w->next)
        for (mm_request *r = w->owned; r != NULL; r = r->own_next)
            n_alive += abort_one(q, r);
    pthread_mutex_unlock(&q->lock);
    if (out_n != NULL)
        *out_n = n_alive;
    return st;
}

mm_status mm_engine_put_mask(mm_engine *e, uint64_t id, int32_t i_token, const uint32_t *word)
{
    MM_TRY(mm_engine_check_process(e));
    mm_queue *q = &e->queue;
    pthread_mutex_lock(&q->lock);
    mm_status st = mm_queue_check_alive(q);
    mm_request *r = st == MM_OK ? mm_queue_find(q, id) : NULL;
    if (st != MM_OK) {
        /* the error is set */
    } else if (r == NULL) {
        st = unknown(id);
    } else if (!r->p.want_mask) {
        st = MM_FAIL_PARAM(MM_E_INVALID, "want_mask", -1,
                           "request %llu was not submitted with want_mask", (unsigned long long)id);
    } else if (r->pub.finish == MM_FINISH_NONE) { /* one that ended meanwhile needs it no more */
        if (i_token != r->read_n_token)
            st = MM_FAIL_PARAM(MM_E_INVALID, "i_token", -1,
                               "request %llu waits for the mask of token %d, not %d",
                               (unsigned long long)id, r->read_n_token, i_token);
        else {
            memcpy(r->mask_in, word, (size_t)r->mask_words * sizeof *word);
            r->i_mask_in = i_token;
            mm_queue_command(q, r, MM_PENDING_MASK);
        }
    }
    pthread_mutex_unlock(&q->lock);
    return st;
}

mm_status mm_engine_pause(mm_engine *e, mm_pause how, double timeout_s, int32_t *out_is_settled)
{
    MM_TRY(mm_engine_check_process(e));
    const double until = mm_now() + timeout_s;
    mm_queue *q = &e->queue;
    *out_is_settled = 0;
    if ((int32_t)how < 0 || how > MM_PAUSE_FREEZE || !(timeout_s >= 0))
        return MM_FAIL(MM_E_INVALID, "mm_engine_pause: pause %d, timeout %g s do not exist",
                       (int)how, timeout_s);
    pthread_mutex_lock(&q->lock);
    mm_status st = mm_queue_check_alive(q);
    if (st == MM_OK && q->pause != how) {
        if (q->pause == MM_PAUSE_NONE)
            q->pause_id = q->last_id;
        q->pause = how;
        q->is_settled = false;
        pthread_cond_signal(&q->work);
        pthread_cond_broadcast(&q->reply);
    }
    while (st == MM_OK && q->pause == how && how != MM_PAUSE_NONE && !q->is_settled &&
           mm_now() < until) {
        mm_cond_wait_until(&q->reply, &q->lock, until);
        st = mm_queue_check_alive(q);
    }
    *out_is_settled = q->pause == MM_PAUSE_NONE || q->is_settled;
    pthread_mutex_unlock(&q->lock);
    return st;
}

mm_status mm_engine_reset_prefix_cache(mm_engine *e)
{
    MM_TRY(mm_engine_check_process(e));
    mm_queue *q = &e->queue;
    pthread_mutex_lock(&q->lock);
    mm_status st = mm_queue_check_alive(q);
    if (st == MM_OK) {
        const uint64_t mine = ++q->n_reset_wanted;
        pthread_cond_signal(&q->work);
        while (q->n_reset_done < mine && !q->is_stopping)
            pthread_cond_wait(&q->reply, &q->lock);
        if (q->n_reset_done < mine)
            st = mm_queue_check_alive(q);
    }
    pthread_mutex_unlock(&q->lock);
    return st;
}
