/* coordinator.c: the engine's own thread. Each turn: take what came in, plan the next step and post
 * it, collect the oldest step when enough are in flight, commit it, publish what changed. It sleeps
 * when nothing can run. Locks are held for relinking lists only, never while something computes. */
#include "csrc/base/log.h"
#include "csrc/engine/batch_build.h"
#include "csrc/engine/engine.h"
#include "csrc/engine/publish.h"

/* ---------------------------------------------------------------- taking in */

/* Carries out the commands of one request. Locked: mask_in and notify_in belong to its owner's
 * thread as well. */
static void obey(mm_engine *e, mm_request *r, uint32_t pending)
{
    mm_scheduler *s = &e->scheduler;
    if ((pending & MM_PENDING_MASK) != 0)
        mm_scheduler_set_mask(s, r, r->i_mask_in, r->mask_in);
    if ((pending & MM_PENDING_NOTIFY) != 0 && r->state != MM_REQUEST_DONE) {
        mm_request_notify_every(r, r->notify_in);
        mm_scheduler_advance(s, r, r->n_token > 0); /* what it has may have been missed */
    }
    if ((pending & MM_PENDING_ABORT) != 0)
        mm_scheduler_abort(s, r);
}

/* Tells whoever paused the engine that what they wait for has come. */
static void settle(mm_engine *e)
{
    mm_queue *q = &e->queue;
    const mm_scheduler *s = &e->scheduler;
    const bool is_still = s->n_in_flight == 0;
    const bool is_empty = s->n_heap + s->n_blocked + s->n_running + s->n_leaving == 0;
    if (q->pause == MM_PAUSE_NONE || q->is_settled || !is_still ||
        (q->pause == MM_PAUSE_DRAIN && !is_empty))
        return;
    q->is_settled = true;
    pthread_cond_broadcast(&q->reply);
}

/* Everything that came in, in order: submissions before commands, which may be about them. Sleeps
 * first when asked to and there is nothing. *is_frozen: what was decided under it last time (a
 * freeze that ended since then left work to go on with), and what is to be decided under now. */
static bool take_in(mm_engine *e, bool may_sleep, bool *is_frozen)
{
    mm_queue *q = &e->queue;
    mm_scheduler *s = &e->scheduler;
    pthread_mutex_lock(&q->lock);
    settle(e);
    const mm_pause before = q->pause;
    if (*is_frozen && before != MM_PAUSE_FREEZE)
        may_sleep = false;
    while (may_sleep && !q->is_stopping && q->pause == before && !mm_queue_has_inbox(q) &&
           q->pending == NULL && q->n_reset_wanted == q->n_reset_done)
        pthread_cond_wait(&q->work, &q->lock);
    mm_request *r = mm_queue_take_inbox(q);
    while (r != NULL) {
        mm_request *next = r->inbox_next;
        r->inbox_next = NULL;
        mm_scheduler_add(s, r);
        r = next;
    }
    while (q->pending != NULL) {
        mm_request *p = q->pending;
        const uint32_t what = p->pending;
        q->pending = p->pending_next;
        p->pending_next = NULL;
        p->pending = 0;
        obey(e, p, what);
    }
    if (q->n_reset_done != q->n_reset_wanted) {
        mm_kv_pool_reset_cache(&s->pool);
        q->stats.n_page_free = s->pool.n_free; /* who asked for it may look at once */
        q->stats.n_page_cached = s->pool.n_cached;
        q->n_reset_done = q->n_reset_wanted;
        pthread_cond_broadcast(&q->reply);
    }
    const bool stop = q->is_stopping;
    *is_frozen = q->pause == MM_PAUSE_FREEZE;
    pthread_mutex_unlock(&q->lock);
    return !stop;
}

/* ---------------------------------------------------------------- stepping */

static bool start_step(mm_engine *e)
{
    mm_scheduler *s = &e->scheduler;
    const double began = mm_now();
    const mm_plan *plan = mm_scheduler_plan(s);
    if (plan == NULL)
        return false;
    const mm_batch *batch =
        mm_batch_build(plan, mm_ranks_blob(e->ranks), mm_batch_max_bytes(&s->lim));
    const double spent = mm_now() - began;
    s->stats.t_host_total += spent; /* the rank adds its part */
    mm_ranks_profile(e->ranks, MM_PROFILE_PLAN, spent);
    mm_ranks_launch(e->ranks, batch);
    return true;
}

static void publish(mm_engine *e)
{
    mm_publish(&e->queue, &e->scheduler, e->limits.weight_version);
}

static mm_status finish_step(mm_engine *e)
{
    mm_scheduler *s = &e->scheduler;
    const mm_step_result *result = NULL;
    MM_TRY(mm_ranks_collect(e->ranks, &result));
    const double began = mm_now();
    mm_scheduler_commit(s, result);
    const double committed = mm_now();
    s->stats.t_host_total += committed - began;
    publish(e);
    const double published = mm_now();
    s->stats.t_host_total += published - committed; /* readers see it with the next step */
    mm_ranks_profile(e->ranks, MM_PROFILE_COMMIT, committed - began);
    mm_ranks_profile(e->ranks, MM_PROFILE_PUBLISH, published - committed);
    return MM_OK;
}

/* The engine cannot run any more: everything alive ends with the cause, and later
 * calls are told. */
static void die(mm_engine *e, mm_status st)
{
    mm_queue *q = &e->queue;
    mm_error cause;
    bool is_frozen = false;
    mm_error_take(&cause, st);
    mm_log(MM_LOG_ERROR, "the engine failed: %s", cause.text);
    pthread_mutex_lock(&q->lock);
    q->cause = cause;
    q->is_dead = true;
    pthread_mutex_unlock(&q->lock);
    (void)take_in(e, false, &is_frozen); /* what was submitted before the flag */
    mm_scheduler_end_all(&e->scheduler, &cause);
    publish(e);
    pthread_mutex_lock(&q->lock);
    q->is_over = true;
    for (mm_waiter *w = q->waiter; w != NULL; w = w->next)
        pthread_cond_broadcast(&w->news);
    pthread_mutex_unlock(&q->lock);
    while (take_in(e, true, &is_frozen)) { /* releases, resets; nothing can be submitted */
        mm_scheduler_end_all(&e->scheduler, &cause);
        publish(e);
    }
}

void *mm_coordinator_main(void *engine)
{
    mm_engine *e = engine;
    mm_scheduler *s = &e->scheduler;
    bool may_sleep = true, is_frozen = false;
    while (take_in(e, may_sleep, &is_frozen)) {
        const bool has_started = !is_frozen && start_step(e);
        may_sleep = !has_started && s->n_in_flight == 0; /* a commit makes a new plan possible */
        if (s->n_in_flight > 0 && (!has_started || s->n_in_flight > s->lim.run_ahead)) {
            const mm_status st = finish_step(e);
            if (st != MM_OK) {
                publish(e);
                die(e, st);
                return NULL;
            }
        } else {
            publish(e); /* what taking in and planning changed */
        }
    }
    while (s->n_in_flight > 0 && finish_step(e) == MM_OK) {
    }
    mm_scheduler_end_all(s, NULL);
    MM_ASSERT(mm_scheduler_check(s) == MM_OK && mm_kv_pool_held(&s->pool) == 0);
    publish(e);
    return NULL;
}
