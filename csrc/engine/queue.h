/* queue.h: where callers' threads and the coordinator meet, and the only locks of the engine.
 *
 * One mutex guards: the table of requests by id, submissions and commands on their way in, the
 * published results, and each waiter's list of ids with news. All lists are threaded through the
 * requests, so nothing here can fill up: a list is bounded by the number of requests, and the
 * coordinator never waits for a reader. */
#ifndef MM_QUEUE_H
#define MM_QUEUE_H
#include <pthread.h>

#include "csrc/engine/request.h"
#include "csrc/engine/step_times.h"

typedef struct mm_queue {
    pthread_mutex_t lock;
    pthread_cond_t work;  /* for the coordinator: something came in */
    pthread_cond_t reply; /* for callers: a command was carried out */
    mm_request **bucket;  /* [n_bucket] table by id, chained by hash_next */
    uint64_t n_bucket;    /* a power of two */
    int64_t n_request;
    uint64_t last_id, last_waiter;
    mm_request *inbox_first, *inbox_last; /* submitted, oldest first */
    int64_t n_inbox;
    mm_request *pending; /* requests with commands */
    uint64_t n_reset_wanted, n_reset_done;
    mm_pause pause;
    uint64_t pause_id; /* requests submitted after this one are held back by the pause */
    bool is_settled;   /* what the pause waits for has come */
    mm_waiter *waiter; /* all open ones */
    bool is_stopping, is_closed, is_dead;
    bool is_over;          /* dead, and every request has been told */
    mm_error cause;        /* is_dead: the first failure */
    mm_engine_stats stats; /* as of the last commit */
    mm_step_times times;
} mm_queue;

struct mm_waiter {
    mm_engine *engine;
    uint64_t serial;
    pthread_cond_t news;
    mm_request *ready_first, *ready_last;
    mm_request *owned; /* unreleased requests */
    int32_t n_inside;  /* threads inside mm_waiter_wait */
    bool is_closing;
    mm_waiter *prev, *next;
};

mm_status mm_queue_open(mm_queue *q);
/* Frees what is left in the table too. */
void mm_queue_close(mm_queue *q);
/* A condition variable that understands mm_now(). */
mm_status mm_cond_open(pthread_cond_t *c);
/* Waits until signalled or mm_now() >= when. */
void mm_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, double when);

/* All below: the lock is held. */
mm_status mm_queue_add(mm_queue *q, mm_waiter *w, mm_request *r); /* gives the id */
mm_request *mm_queue_find(const mm_queue *q, uint64_t id);
/* Something in the inbox may be taken. A pause holds later requests back, unless there will be no
 * other time for them. */
bool mm_queue_has_inbox(const mm_queue *q);
/* What may be taken, and what is to be aborted: linked by inbox_next, oldest first. */
mm_request *mm_queue_take_inbox(mm_queue *q);
void mm_queue_command(mm_queue *q, mm_request *r, uint32_t pending);
/* The owner wants it no more. Returns the request when the caller must close it (after unlocking),
 * else NULL. */
mm_request *mm_queue_release(mm_queue *q, mm_request *r);
/* The engine uses it no more; same return. */
mm_request *mm_queue_retire(mm_queue *q, mm_request *r);
/* True: it is news now that was none, and its waiter is to be signalled. */
bool mm_queue_push_ready(mm_request *r);
mm_request *mm_queue_pop_ready(mm_waiter *w);
/* False, with this thread's error set: the engine takes no calls any more. */
mm_status mm_queue_check_alive(const mm_queue *q);
#endif
