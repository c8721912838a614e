/* plan.c: mm_scheduler_plan. Chunks of a prompt end at page borders where that costs little;
 * nothing depends on it, because attention reads every key through the cache, its own chunk's
 * included. */
#include "csrc/engine/batch_build.h"
#include "csrc/engine/scheduler.h"

/* Rows that can still be planned in this step. */
static int32_t rows_left(const mm_scheduler *s, const mm_plan *plan)
{
    return s->step_rows - plan->n_row;
}

/* A step cannot be interrupted, so a host's are kept short: an aborted prompt holds nobody up for
 * long. Below this many rows a step is not much faster, because it reads most weights anyhow. */
#define LEAST_STEP_ROWS 512

int32_t mm_first_step_rows(const mm_scheduler_limits *lim)
{
    const int64_t least = mm_max_i64(LEAST_STEP_ROWS, lim->max_seqs);
    return (int32_t)(lim->step_s > 0 ? mm_min_i64(lim->max_rows, least) : lim->max_rows);
}

void mm_scheduler_fit_steps(mm_scheduler *s, int32_t n_row, double seconds)
{
    if (s->lim.step_s <= 0)
        return;
    const int32_t least = mm_first_step_rows(&s->lim);
    int64_t rows = s->step_rows;
    if (seconds > s->lim.step_s && n_row > least)
        rows = (int64_t)((double)n_row * s->lim.step_s / seconds);
    else if (seconds < s->lim.step_s / 3 && n_row * 2 > rows)
        rows *= 2;
    s->step_rows = (int32_t)mm_max_i64(least, mm_min_i64(rows, s->lim.max_rows));
}

/* A spent budget forces the closing mark, and only a commit tells how much is spent: from this
 * close to the end on (and while a span may still open) a request is not planned ahead. */
static bool is_near_budget(const mm_request *r)
{
    if (r->p.think_budget < 0 || r->think.phase == MM_PHASE_DONE ||
        r->think.phase == MM_PHASE_AFTER)
        return false;
    return r->p.think_budget - mm_think_n_token(&r->think) <= MM_MAX_DECODE_ROWS;
}

static bool may_draw(const mm_request *r)
{
    if (r->n_out_planned >= r->out_cap)
        return false; /* its last token is in flight */
    if ((r->asks & (MM_ASKS_MASKS | MM_ASKS_FORCED)) == 0)
        return true;
    const bool all_known = r->n_out_planned == r->n_token;
    if (r->p.want_mask)
        return all_known && r->i_mask == r->n_token;
    return all_known || !is_near_budget(r);
}

static int32_t forced_token(const mm_request *r)
{
    if ((r->asks & MM_ASKS_FORCED) == 0)
        return -1;
    if (r->n_out_planned < r->p.n_forced)
        return r->p.forced_token[r->n_out_planned];
    if (r->p.think_budget >= 0 && mm_think_is_inside(&r->think) &&
        mm_think_n_token(&r->think) >= r->p.think_budget)
        return r->p.think_close_token;
    return -1;
}

/* ---------------------------------------------------------------- items */

/* Adds plan->item[n_item], whose rows and scores the caller has filled in. False: no room. */
static bool add_item(mm_scheduler *s, mm_plan *plan)
{
    mm_plan_item *item = &plan->item[plan->n_item];
    mm_request *r = item->r;
    item->slot = r->slot;
    item->begins = r->begins;
    item->sends_mask = item->draws && (r->asks & MM_ASKS_MASKS) != 0;
    item->forced = item->draws ? forced_token(r) : -1;
    item->page_first = r->n_page_sent;
    item->page_end = (item->pos + item->n_row + MM_PAGE - 1) / MM_PAGE;
    const int64_t dynamic = mm_batch_dynamic_bytes(item);
    const int32_t n_page = item->page_end - item->page_first;
    if (plan->n_dynamic + dynamic > s->lim.max_dynamic || plan->n_page + n_page > s->lim.max_pages)
        return false;
    item->out_first = plan->n_out;
    item->entry_first = plan->n_entry;
    plan->n_item++;
    plan->n_row += item->n_row;
    plan->n_dynamic += dynamic;
    plan->n_page += n_page;
    plan->n_slot += item->begins;
    plan->n_mask += item->sends_mask;
    const mm_trace *trace = mm_request_trace(r);
    if (trace != NULL) {
        plan->trace = trace;
        plan->n_out += trace->logits != NULL ? item->n_row : 0;
    } else {
        plan->n_out += item->n_score + item->draws;
        plan->n_entry += item->draws ? r->width : 0;
        if (item->n_score > 0)
            plan->n_entry += (int64_t)item->n_score * r->prompt_width;
    }
    if (r->begins && r->out.t_scheduled == 0)
        r->out.t_scheduled = mm_now();

    r->begins = false;
    r->n_page_sent = (int32_t)mm_max_i64(r->n_page_sent, item->page_end);
    r->n_planned = item->pos + item->n_row;
    r->n_out_planned += item->draws;
    if (item->n_score > 0)
        r->n_score_planned += item->n_score;
    r->n_in_flight++;
    return true;
}

/* The next rows of a prompt (or of everything known, after preemption). False: no room
 * for one row. */
static bool plan_chunk(mm_scheduler *s, mm_plan *plan, mm_request *r)
{
    const int32_t pos = r->n_planned;
    int32_t n = (int32_t)mm_min_i64(rows_left(s, plan), r->n_prefill - pos);
    const bool draws_at_end = r->out_cap > 0;
    if (draws_at_end && !may_draw(r) && pos + n == r->n_prefill)
        n--; /* all but the row that draws: its mask has not come */
    if (n <= 0)
        return rows_left(s, plan) > 0; /* nothing to do is not lack of room */

    /* Rows that score: position p scores token p + 1, for p from prompt_logprob_start - 1 to
     * n_prompt - 2. */
    const int32_t score_pos = r->p.prompt_logprob_start - 1 + r->n_score_planned;
    const int64_t entries = s->lim.max_entries - plan->n_entry;
    bool draws = draws_at_end && pos + n == r->n_prefill;
    if (r->n_score_planned < r->n_score && score_pos < pos + n) {
        const int64_t fit = (entries - (draws ? r->width : 0)) / r->prompt_width;
        const int64_t want = mm_min_i64(pos + n, r->n_prompt - 1) - score_pos;
        if (fit < want) {
            n = (int32_t)(score_pos + mm_max_i64(0, fit) - pos);
            draws = false;
        }
    } else if (draws && r->width > entries) {
        n--;
        draws = false;
    }
    if (n <= 0)
        return false;
    if (pos + n < r->n_prefill) {
        const int32_t aligned = (pos + n) / MM_PAGE * MM_PAGE;
        if (aligned - pos >= n / 2 && aligned > pos) {
            n = aligned - pos;
            draws = false;
        }
    }
    mm_plan_item *item = &plan->item[plan->n_item];
    *item = (mm_plan_item){.r = r, .pos = pos, .n_row = n, .draws = draws};
    if (r->n_score_planned < r->n_score && score_pos < pos + n) {
        item->score_first = score_pos;
        item->n_score = (int32_t)mm_min_i64(pos + n, r->n_prompt - 1) - score_pos;
    }
    return add_item(s, plan);
}

/* ---------------------------------------------------------------- pages */

/* Sends the least urgent sequence away. True: pages may have become free at once. */
static bool make_room(mm_scheduler *s, mm_request *for_whom)
{
    if (s->n_leaving > 0)
        return false; /* pages are on their way already */
    mm_request *worst = for_whom;
    for (int32_t i = 0; i < s->n_running; i++)
        if (mm_request_before(s, worst, s->running[i]))
            worst = s->running[i];
    mm_scheduler_preempt(s, worst);
    return worst != for_whom && s->n_leaving == 0;
}

static bool hold_pages(mm_scheduler *s, mm_request *r, int32_t n_pos)
{
    while (r->n_page * (int64_t)MM_PAGE < n_pos) {
        MM_ASSERT(r->n_page < r->page_cap);
        if (mm_kv_pool_alloc(&s->pool, &r->page[r->n_page]) == MM_OK)
            r->n_page++;
        else if (!make_room(s, r))
            return false;
    }
    return true;
}

/* Takes up the published pages of what r knows: whole pages, leaving at least one position to
 * compute and every position whose row is to be scored. */
static void share_prefix(mm_scheduler *s, mm_request *r)
{
    const mm_prefix_key secret = s->req->secret;
    int32_t most = r->n_prefill - 1;
    if (r->out.n_prompt_row < r->n_score)
        most = (int32_t)mm_min_i64(most, r->p.prompt_logprob_start - 1 + r->out.n_prompt_row);
    mm_prefix_key key = mm_prefix_begin(secret, &r->root);
    for (int32_t i = 0; r->reads_prefix && i < most / MM_PAGE; i++) {
        const mm_prefix_key next =
            i < r->n_prompt_key
                ? r->prompt_key[i]
                : mm_prefix_next(secret, key, r->token + (int64_t)i * MM_PAGE, NULL);
        const int32_t page = mm_kv_pool_share(&s->pool, next);
        if (page < 0)
            break;
        key = next;
        r->page[r->n_page++] = page;
    }
    r->n_page_named = r->n_page;
    r->last_key = key;
}

/* Gives r a slot and the pages of all it knows; false (and nothing taken) when the pool has too
 * few. */
static bool admit(mm_scheduler *s, mm_request *r)
{
    r->n_prefill = mm_request_known(r);
    share_prefix(s, r);
    const int32_t n_hit = r->n_page;
    const int32_t n_need = (int32_t)mm_ceil_div(r->n_prefill, MM_PAGE) - n_hit;
    /* Room to grow for those that run: else the newcomer would soon push one of them out, or be
     * pushed out. */
    const int32_t spare = s->n_running > 0 ? 1 + s->n_running / 4 : 0;
    if (mm_kv_pool_available(&s->pool) < n_need + spare) {
        mm_scheduler_drop_pages(s, r);
        return false;
    }
    for (int32_t i = 0; i < n_need; i++) {
        const mm_status st = mm_kv_pool_alloc(&s->pool, &r->page[r->n_page]);
        MM_ASSERT(st == MM_OK);
        if (st != MM_OK)
            return false;
        r->n_page++;
    }
    mm_scheduler_run(s, r);
    r->n_planned = r->n_done = n_hit * MM_PAGE;
    if (s->req->fakes_context && r->n_score == 0 && mm_request_trace(r) == NULL)
        r->n_planned = r->n_done = r->n_prefill - 1;
    r->n_out_planned = r->n_token;
    r->n_score_planned = r->out.n_prompt_row;
    if (!r->was_admitted) {
        r->was_admitted = true;
        r->out.n_cached = r->n_done;
        s->stats.n_prompt_token += r->n_prompt;
        s->stats.n_cached_token += r->n_done;
    }
    return true;
}

/* ---------------------------------------------------------------- the plan */

/* One row of a sequence that decodes. False: no room in this step. */
static bool plan_decode(mm_scheduler *s, mm_plan *plan, mm_request *r)
{
    if (!may_draw(r))
        return true;
    if (rows_left(s, plan) < 1 || plan->n_entry + r->width > s->lim.max_entries)
        return false;
    if (!hold_pages(s, r, r->n_planned + 1))
        return true; /* pages are the next plan's business */
    plan->item[plan->n_item] =
        (mm_plan_item){.r = r, .pos = r->n_planned, .n_row = 1, .is_decode = true, .draws = true};
    return add_item(s, plan);
}

/* Those that run: the decoding ones first, in order of admission. When the last plan could not take
 * everybody, this one begins with whom it left out and makes no difference between decode and
 * prompt: so everyone has a turn. */
static void plan_running(mm_scheduler *s, mm_plan *plan)
{
    const int32_t n = s->n_running;
    const bool takes_turns = s->turn >= 0;
    const int32_t first = takes_turns ? s->turn % n : 0;
    for (int32_t i = 0; i < n; i++)
        s->order[i] = s->running[first + i < n ? first + i : first + i - n];
    const mm_request *left_out = NULL;
    const int32_t n_row_before = plan->n_row;
    int32_t n_decode = 0, n_prompt = 0;
    for (int pass = takes_turns ? 2 : 0; pass < 3 - !takes_turns; pass++) {
        if (pass == 1 && n_prompt == 0)
            break;
        for (int32_t i = 0; i < n; i++) {
            mm_request *r = s->order[i];
            const bool is_decode = r->n_planned >= r->n_prefill;
            n_prompt += !is_decode;
            if (r->run_index < 0 || (pass == 0 && !is_decode) || (pass == 1 && is_decode))
                continue;
            const bool has_room = is_decode ? plan_decode(s, plan, r) : plan_chunk(s, plan, r);
            n_decode += is_decode && has_room;
            /* A prompt that waits for the prompt before it is not left out. */
            const bool prompts_advance = plan->n_row - n_row_before > n_decode;
            if (!has_room && left_out == NULL && (is_decode || !prompts_advance))
                left_out = r;
        }
    }
    s->turn = left_out != NULL ? left_out->run_index : -1;
}

static void plan_waiting(mm_scheduler *s, mm_plan *plan)
{
    while (s->n_heap > 0 && s->n_free_slot > 0 && rows_left(s, plan) > 0) {
        mm_request *r = s->heap[0];
        if (!admit(s, r))
            return;
        const mm_request *popped = mm_scheduler_pop_waiting(s);
        MM_ASSERT(popped == r);
        (void)popped;
        if (mm_request_trace(r) != NULL) { /* alone in its steps */
            if (plan->n_item == 0)
                (void)plan_chunk(s, plan, r);
            return;
        }
        if (!plan_chunk(s, plan, r))
            return;
    }
}

const mm_plan *mm_scheduler_plan(mm_scheduler *s)
{
    if (s->n_in_flight > s->lim.run_ahead)
        return NULL;
    mm_plan *plan = &s->plan[(s->i_oldest + s->n_in_flight) % MM_MAX_IN_FLIGHT];
    for (int32_t i = 0; i < s->n_running; i++)
        __builtin_prefetch(&plan->item[i], 1);
    *plan = (mm_plan){.step = s->step + 1, .item = plan->item};
    mm_request *trace = NULL;
    for (int32_t i = 0; s->n_trace > 0 && i < s->n_running && trace == NULL; i++)
        if (mm_request_trace(s->running[i]) != NULL)
            trace = s->running[i];
    if (trace != NULL) {
        if (trace->n_planned < trace->n_prefill)
            (void)plan_chunk(s, plan, trace);
    } else {
        if (s->n_running > 0)
            plan_running(s, plan);
        plan_waiting(s, plan);
    }
    if (plan->n_item == 0)
        return NULL;
    s->step++;
    s->n_in_flight++;
    return plan;
}
