/* scheduler.c: the states of requests: the waiting heap, the running set, groups, and how a request
 * leaves each. */
#include "csrc/engine/scheduler.h"

mm_status mm_scheduler_open(mm_scheduler *s, const mm_scheduler_limits *lim,
                            const mm_request_limits *req, int64_t n_page)
{
    *s = (mm_scheduler){.lim = *lim, .req = req, .step_rows = mm_first_step_rows(lim), .turn = -1};
    mm_engine_stats_init(&s->stats);
    MM_TRY(mm_kv_pool_open(&s->pool, n_page));
    const size_t n = (size_t)lim->max_seqs;
    s->running = calloc(n, sizeof(mm_request *));
    s->order = calloc(n, sizeof(mm_request *));
    s->free_slot = calloc(n, sizeof *s->free_slot);
    bool ok = s->running != NULL && s->order != NULL && s->free_slot != NULL;
    for (int i = 0; i < MM_MAX_IN_FLIGHT; i++) {
        s->plan[i].item = calloc(n, sizeof(mm_plan_item));
        ok = ok && s->plan[i].item != NULL;
    }
    if (!ok) {
        mm_scheduler_close(s);
        return MM_FAIL(MM_E_NOMEM, "no host memory for a scheduler of %d sequences", lim->max_seqs);
    }
    for (int32_t i = lim->max_seqs - 1; i >= 0; i--)
        s->free_slot[s->n_free_slot++] = i;
    return MM_OK;
}

void mm_scheduler_close(mm_scheduler *s)
{
    if (s == NULL)
        return;
    mm_kv_pool_close(&s->pool);
    free(s->heap);
    free(s->running);
    free(s->order);
    free(s->free_slot);
    for (int i = 0; i < MM_MAX_IN_FLIGHT; i++)
        free(s->plan[i].item);
    for (int i = 0; i < MM_GROUP_BUCKETS; i++) {
        for (mm_group *g = s->group[i], *next; g != NULL; g = next) {
            next = g->hash_next;
            free(g);
        }
    }
    *s = (mm_scheduler){0};
}

void mm_scheduler_touch(mm_scheduler *s, mm_request *r, bool has_news)
{
    r->is_stale = true;
    mm_scheduler_advance(s, r, has_news);
}

void mm_scheduler_advance(mm_scheduler *s, mm_request *r, bool has_news)
{
    r->has_news = r->has_news || has_news;
    if (r->is_dirty)
        return;
    r->is_dirty = true;
    r->dirty_next = NULL;
    *(s->dirty_last != NULL ? &s->dirty_last->dirty_next : &s->dirty_first) = r;
    s->dirty_last = r;
}

mm_request *mm_scheduler_take_dirty(mm_scheduler *s)
{
    mm_request *first = s->dirty_first;
    s->dirty_first = s->dirty_last = NULL;
    return first;
}

/* ---------------------------------------------------------------- the waiting heap */

bool mm_request_before(const mm_scheduler *s, const mm_request *a, const mm_request *b)
{
    if (s->req->has_priority && a->p.priority != b->p.priority)
        return a->p.priority < b->p.priority;
    return a->id < b->id;
}

static void heap_put(mm_scheduler *s, int64_t i, mm_request *r)
{
    s->heap[i] = r;
    r->heap_index = (int32_t)i;
}

static void heap_up(mm_scheduler *s, int64_t i)
{
    mm_request *r = s->heap[i];
    for (; i > 0 && mm_request_before(s, r, s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap_put(s, i, s->heap[(i - 1) / 2]);
    heap_put(s, i, r);
}

static void heap_down(mm_scheduler *s, int64_t i)
{
    mm_request *r = s->heap[i];
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child + 1 < s->n_heap && mm_request_before(s, s->heap[child + 1], s->heap[child]))
            child++;
        if (child >= s->n_heap || !mm_request_before(s, s->heap[child], r))
            break;
        heap_put(s, i, s->heap[child]);
        i = child;
    }
    heap_put(s, i, r);
}

static void heap_push(mm_scheduler *s, mm_request *r)
{
    MM_ASSERT(r->heap_index < 0 && s->n_heap < s->cap_heap);
    s->heap[s->n_heap] = r;
    heap_up(s, s->n_heap++);
}

static void heap_remove(mm_scheduler *s, mm_request *r)
{
    const int64_t i = r->heap_index;
    r->heap_index = -1;
    mm_request *last = s->heap[--s->n_heap];
    if (last == r)
        return;
    heap_put(s, i, last);
    heap_up(s, i);
    heap_down(s, last->heap_index);
}

/* Room for every request that is alive: then a preempted one can always come back. Grows with
 * submissions only. */
static mm_status heap_reserve(mm_scheduler *s)
{
    const int64_t need = s->n_heap + s->n_blocked + s->n_running + s->n_leaving + 1;
    if (need <= s->cap_heap)
        return MM_OK;
    const int64_t cap = mm_max_i64(256, need * 2);
    mm_request **heap =
        cap < INT32_MAX ? realloc(s->heap, (size_t)cap * sizeof(mm_request *)) : NULL;
    if (heap == NULL)
        return MM_FAIL(MM_E_NOMEM, "no host memory for a queue of %lld requests", (long long)cap);
    s->heap = heap;
    s->cap_heap = cap;
    return MM_OK;
}

mm_request *mm_scheduler_pop_waiting(mm_scheduler *s)
{
    mm_request *r = s->heap[0];
    heap_remove(s, r);
    return r;
}

/* ---------------------------------------------------------------- running set */

void mm_scheduler_run(mm_scheduler *s, mm_request *r)
{
    r->state = MM_REQUEST_RUNNING;
    r->slot = s->free_slot[--s->n_free_slot];
    r->begins = true;
    r->run_index = s->n_running;
    s->running[s->n_running++] = r;
    s->n_trace += mm_request_trace(r) != NULL;
}

static void leave_running(mm_scheduler *s, mm_request *r)
{
    for (int32_t i = r->run_index; i + 1 < s->n_running; i++) {
        s->running[i] = s->running[i + 1];
        s->running[i]->run_index = i;
    }
    s->n_running--;
    s->n_trace -= mm_request_trace(r) != NULL;
    r->run_index = -1;
}

void mm_scheduler_drop_pages(mm_scheduler *s, mm_request *r)
{
    while (r->n_page > 0)
        mm_kv_pool_release(&s->pool, r->page[--r->n_page]);
    r->n_page_sent = r->n_page_named = 0;
}

static void free_place(mm_scheduler *s, mm_request *r)
{
    mm_scheduler_drop_pages(s, r);
    if (r->slot >= 0)
        s->free_slot[s->n_free_slot++] = r->slot;
    r->slot = -1;
}

/* Gives slot and pages back, now or when the last batch in flight is collected. */
static void leave_place(mm_scheduler *s, mm_request *r)
{
    if (r->slot < 0)
        return;
    if (r->run_index >= 0) {
        leave_running(s, r);
        if (r->n_in_flight > 0) {
            s->n_leaving++;
            r->is_leaving = true;
        }
    }
    if (r->n_in_flight == 0) {
        s->n_leaving -= r->is_leaving;
        r->is_leaving = false;
        free_place(s, r);
    }
}

static void wait_again(mm_scheduler *s, mm_request *r)
{
    r->state = MM_REQUEST_WAITING;
    heap_push(s, r);
}

void mm_scheduler_preempt(mm_scheduler *s, mm_request *r)
{
    r->out.n_preempted++;
    s->stats.n_preempted++;
    leave_place(s, r);
    mm_scheduler_touch(s, r, false);
    if (r->slot < 0)
        wait_again(s, r);
}

void mm_scheduler_unhold(mm_scheduler *s, mm_request *r)
{
    if (r->n_in_flight > 0 || !r->is_leaving)
        return;
    r->is_leaving = false;
    s->n_leaving--;
    free_place(s, r);
    if (r->state == MM_REQUEST_DONE)
        mm_scheduler_touch(s, r, false); /* it can be retired */
    else
        wait_again(s, r);
}

/* ---------------------------------------------------------------- groups */

static mm_group **group_link(mm_scheduler *s, uint64_t owner, uint64_t id)
{
    mm_group **link = &s->group[(id * 0x9E3779B97F4A7C15ull + owner) >> 54];
    while (*link != NULL && ((*link)->owner != owner || (*link)->id != id))
        link = &(*link)->hash_next;
    return link;
}

static void unblock(mm_scheduler *s, mm_group *g, mm_request *r)
{
    *(r->blocked_prev != NULL ? &r->blocked_prev->blocked_next : &g->blocked_first) =
        r->blocked_next;
    *(r->blocked_next != NULL ? &r->blocked_next->blocked_prev : &g->blocked_last) =
        r->blocked_prev;
    r->blocked_prev = r->blocked_next = NULL;
    r->is_blocked = false;
    s->n_blocked--;
}

/* True: r must wait for its leader. */
static mm_status group_join(mm_scheduler *s, mm_request *r, bool *out_waits)
{
    *out_waits = false;
    if (r->p.group == 0)
        return MM_OK;
    mm_group **link = group_link(s, r->owner, r->p.group);
    if (*link == NULL) {
        *link = calloc(1, sizeof **link);
        if (*link == NULL)
            return MM_FAIL(MM_E_NOMEM, "no host memory for a group of requests");
        **link = (mm_group){.owner = r->owner, .id = r->p.group, .leader = r};
    }
    mm_group *g = *link;
    r->group = g;
    g->n_member++;
    *out_waits = !g->is_computed && g->leader != r;
    if (*out_waits) {
        r->is_blocked = true;
        r->blocked_prev = g->blocked_last;
        *(g->blocked_last != NULL ? &g->blocked_last->blocked_next : &g->blocked_first) = r;
        g->blocked_last = r;
        s->n_blocked++;
    }
    return MM_OK;
}

void mm_group_computed(mm_scheduler *s, mm_group *g)
{
    g->is_computed = true;
    while (g->blocked_first != NULL) {
        mm_request *r = g->blocked_first;
        unblock(s, g, r);
        heap_push(s, r);
    }
}

static void group_leave(mm_scheduler *s, mm_request *r)
{
    mm_group *g = r->group;
    if (g == NULL)
        return;
    r->group = NULL;
    if (r->is_blocked)
        unblock(s, g, r);
    if (g->leader == r && !g->is_computed) {
        g->leader = g->blocked_first;
        if (g->leader != NULL) {
            unblock(s, g, g->leader);
            heap_push(s, g->leader);
        }
    }
    if (--g->n_member > 0)
        return;
    if (r->root.is_private) /* nobody else can find these pages */
        for (int32_t i = 0; i < r->n_page; i++)
            mm_kv_pool_forget(&s->pool, r->page[i]);
    mm_group **link = group_link(s, g->owner, g->id);
    *link = g->hash_next;
    free(g);
}

/* ---------------------------------------------------------------- in and out */

void mm_scheduler_fail(mm_scheduler *s, mm_request *r, const mm_error *why)
{
    *r->error = *why;
    r->out.error = why->status;
    r->out.error_message = r->error->text;
    r->out.error_param = r->error->param;
    r->out.error_index = why->index;
    mm_scheduler_end(s, r, MM_FINISH_ERROR, MM_STOP_NONE, -1);
}

void mm_scheduler_end(mm_scheduler *s, mm_request *r, mm_finish finish, mm_stop stop,
                      int32_t stop_index)
{
    MM_ASSERT(r->state != MM_REQUEST_DONE);
    r->state = MM_REQUEST_DONE;
    r->out.finish = finish;
    r->out.stop = stop;
    r->out.stop_index = stop_index;
    r->out.want_mask_token = -1;
    r->out.t_done = mm_now();
    if (r->heap_index >= 0)
        heap_remove(s, r);
    group_leave(s, r);
    leave_place(s, r);
    s->stats.n_finished += finish == MM_FINISH_STOP || finish == MM_FINISH_LENGTH;
    s->stats.n_aborted += finish == MM_FINISH_ABORT;
    s->stats.n_failed += finish == MM_FINISH_ERROR;
    mm_scheduler_touch(s, r, true);
}

void mm_scheduler_add(mm_scheduler *s, mm_request *r)
{
    bool waits = false;
    mm_status st = heap_reserve(s);
    if (st == MM_OK)
        st = group_join(s, r, &waits);
    if (st != MM_OK) {
        mm_error why;
        mm_error_take(&why, st);
        mm_scheduler_fail(s, r, &why);
        return;
    }
    if (!waits)
        heap_push(s, r);
    if (r->p.want_mask) {
        r->out.want_mask_token = 0;
        mm_scheduler_touch(s, r, true);
    }
}

void mm_scheduler_abort(mm_scheduler *s, mm_request *r)
{
    if (r->state != MM_REQUEST_DONE)
        mm_scheduler_end(s, r, MM_FINISH_ABORT, MM_STOP_NONE, -1);
}

void mm_scheduler_set_mask(mm_scheduler *s, mm_request *r, int32_t i_token, const uint32_t *word)
{
    if (r->state == MM_REQUEST_DONE || i_token != r->n_token)
        return;
    for (int32_t i = 0; i < r->mask_words; i++)
        r->mask[i] = word[i] & (r->allowed != NULL ? r->allowed[i] : UINT32_MAX);
    r->i_mask = i_token;
    r->out.want_mask_token = -1;
    mm_scheduler_touch(s, r, false);
}

void mm_scheduler_end_all(mm_scheduler *s, const mm_error *why)
{
    for (int32_t k = 0; k < s->n_in_flight; k++) {
        const mm_plan *plan = &s->plan[(s->i_oldest + k) % MM_MAX_IN_FLIGHT];
        for (int32_t i = 0; i < plan->n_item; i++) {
            plan->item[i].r->n_in_flight--;
            mm_scheduler_unhold(s, plan->item[i].r);
        }
    }
    s->n_in_flight = 0;
    for (;;) {
        mm_request *r = s->n_running > 0 ? s->running[s->n_running - 1]
                        : s->n_heap > 0  ? s->heap[s->n_heap - 1]
                                         : NULL;
        if (r == NULL)
            break;
        if (why != NULL)
            mm_scheduler_fail(s, r, why);
        else
            mm_scheduler_end(s, r, MM_FINISH_ABORT, MM_STOP_NONE, -1);
    }
}

/* ---------------------------------------------------------------- check */

mm_status mm_scheduler_check(const mm_scheduler *s)
{
    MM_TRY(mm_kv_pool_check(&s->pool));
    mm_status st = MM_OK;
    int32_t *refs = calloc((size_t)s->pool.n_page, sizeof *refs);
    uint8_t *is_free = calloc((size_t)s->lim.max_seqs, 1);
    if (refs == NULL || is_free == NULL) {
        st = MM_FAIL(MM_E_NOMEM, "no memory to check the scheduler");
        goto done;
    }
    int32_t n_leaving = 0;
    for (int32_t i = 0; i < s->n_running; i++)
        for (int32_t k = 0; k < s->running[i]->n_page; k++)
            refs[s->running[i]->page[k]]++;
    /* those that left, each once: by its newest plan */
    for (int32_t k = 0; k < s->n_in_flight; k++) {
        const mm_plan *plan = &s->plan[(s->i_oldest + k) % MM_MAX_IN_FLIGHT];
        for (int32_t i = 0; i < plan->n_item; i++) {
            const mm_request *r = plan->item[i].r;
            if (!r->is_leaving || (r->n_in_flight == 2 && k == 0))
                continue;
            n_leaving++;
            for (int32_t j = 0; j < r->n_page; j++)
                refs[r->page[j]]++;
        }
    }
    for (int32_t i = 0; i < s->pool.n_page && st == MM_OK; i++)
        if (refs[i] != s->pool.page[i].refs)
            st = MM_FAIL(MM_E_INVALID, "page %d has %d references, sequences hold it %d times", i,
                         s->pool.page[i].refs, refs[i]);
    for (int32_t i = 0; i < s->n_free_slot && st == MM_OK; i++) {
        if (is_free[s->free_slot[i]])
            st = MM_FAIL(MM_E_INVALID, "slot %d is free twice", s->free_slot[i]);
        is_free[s->free_slot[i]] = 1;
    }
    if (st == MM_OK &&
        (n_leaving != s->n_leaving || s->n_free_slot + s->n_running + n_leaving != s->lim.max_seqs))
        st = MM_FAIL(MM_E_INVALID, "%d slots are free, %d run, %d leave (counted %d), of %d",
                     s->n_free_slot, s->n_running, n_leaving, s->n_leaving, s->lim.max_seqs);
    for (int32_t i = 0; i < s->n_running && st == MM_OK; i++)
        if (s->running[i]->run_index != i || is_free[s->running[i]->slot])
            st = MM_FAIL(MM_E_INVALID, "running request %d has a wrong place", i);
done:
    free(refs);
    free(is_free);
    return st;
}
