/* commit.c: mm_scheduler_commit: what a step's results mean for its sequences. Tokens are appended,
 * the ends of a sequence looked for in a fixed order (end token, stop token, stop string,
 * repetition, max_tokens, length), pages that are full of committed tokens published. What a batch
 * in flight computed for a sequence that has ended is dropped. */
#include <stddef.h>

#include "csrc/engine/scheduler.h"
#include "kernels/ops.h"

static bool is_in(const int32_t *list, int32_t n, int32_t token)
{
    for (int32_t i = 0; i < n; i++)
        if (list[i] == token)
            return true;
    return false;
}

static void fail_row(mm_scheduler *s, mm_request *r, uint8_t flag)
{
    mm_error why = {.index = -1};
    const mm_status st = flag == MM_SAMPLE_NAN
                             ? MM_FAIL(MM_E_INVALID,
                                       "the logits after token %d of this request are NaN: the "
                                       "model's weights or a kernel "
                                       "are broken; other requests go on",
                                       r->n_done - 1)
                             : MM_FAIL(MM_E_INVALID,
                                       "no token is allowed at output position %d: masks, "
                                       "allowed_token_ids, bad_words and "
                                       "min_tokens together leave nothing",
                                       r->n_token);
    mm_error_take(&why, st);
    for (int32_t i = 0; i < r->n_page; i++) /* do not let others meet these values */
        mm_kv_pool_forget(&s->pool, r->page[i]);
    mm_scheduler_fail(s, r, &why);
}

/* ---------------------------------------------------------------- prompt rows */

/* False: the request ended. */
static bool commit_scores(mm_scheduler *s, const mm_plan_item *item, const mm_step_result *res)
{
    mm_request *r = item->r;
    for (int32_t i = 0; i < item->n_score; i++) {
        if (res->flag[item->out_first + i] != MM_SAMPLE_OK) {
            fail_row(s, r, res->flag[item->out_first + i]);
            return false;
        }
    }
    const size_t n = (size_t)item->n_score * (size_t)r->prompt_width;
    const int64_t to = (int64_t)r->out.n_prompt_row * r->prompt_width;
    if (n > 0) {
        memcpy(r->prompt_id + to, res->entry_id + item->entry_first, n * sizeof *r->prompt_id);
        memcpy(r->prompt_logprob + to, res->entry_value + item->entry_first,
               n * sizeof *r->prompt_logprob);
        memcpy(r->prompt_rank + to, res->entry_rank + item->entry_first,
               n * sizeof *r->prompt_rank);
        r->out.n_prompt_row += item->n_score;
        mm_scheduler_touch(s, r, false);
    }
    return true;
}

static bool commit_trace(mm_scheduler *s, const mm_plan_item *item, const mm_step_result *res)
{
    const mm_trace *trace = mm_request_trace(item->r);
    if (trace == NULL || trace->logits == NULL)
        return true;
    for (int32_t i = 0; i < item->n_row; i++) {
        if (res->flag[item->out_first + i] != MM_SAMPLE_OK) {
            fail_row(s, item->r, res->flag[item->out_first + i]);
            return false;
        }
    }
    return true;
}

/* ---------------------------------------------------------------- drawn tokens */

static void append_entries(mm_request *r, const mm_plan_item *item, const mm_step_result *res,
                           int32_t t)
{
    const int64_t from = item->entry_first + (int64_t)item->n_score * r->prompt_width,
                  to = (int64_t)t * r->width;
    const size_t n = (size_t)r->width;
    if (n > 0) {
        memcpy(r->out_id + to, res->entry_id + from, n * sizeof *r->out_id);
        memcpy(r->out_logprob + to, res->entry_value + from, n * sizeof *r->out_logprob);
        memcpy(r->out_rank + to, res->entry_rank + from, n * sizeof *r->out_rank);
    }
    if (r->out_sampling != NULL)
        r->out_sampling[t] = res->sampling_logprob[item->out_first + item->n_score];
}

static void append(mm_request *r, const mm_plan_item *item, const mm_step_result *res, double now)
{
    const int32_t t = r->n_token++;
    r->token[r->n_prompt + t] = res->token[item->out_first + item->n_score];
    if ((r->asks & MM_ASKS_ENTRIES) != 0)
        append_entries(r, item, res, t);
    r->t_last = now;
    if (t == 0) {
        r->out.t_first = now;
        r->is_stale = true;
    }
}

typedef struct ending {
    mm_finish finish;
    mm_stop stop;
    int32_t index;
} ending;

/* Every token is shown to all that follow the reply, whatever ends it. True: it completes a stop
 * string. */
static bool follow_text(const mm_token_bytes *bytes, mm_request *r, int32_t token,
                        mm_stop_match *match)
{
    const uint8_t *text = NULL;
    int64_t n_text = 0;
    if (token < bytes->n_token) {
        text = bytes->blob + bytes->offset[token];
        n_text = bytes->offset[token + 1] - bytes->offset[token];
    }
    if ((r->asks & MM_ASKS_THINKING) != 0) {
        mm_think_push(&r->think, text, n_text);
        r->n_think_token = (int32_t)mm_think_n_token(&r->think);
    }
    return (r->asks & MM_ASKS_STRINGS) != 0 &&
           mm_stop_matcher_push(r->stop, text, n_text, r->n_token > r->p.min_tokens,
                                r->p.stop_in_thinking ? NULL : &r->think, match);
}

static ending find_ending(const mm_scheduler *s, mm_request *r)
{
    const mm_request_limits *lim = s->req;
    const int32_t n = r->n_token, token = r->token[r->n_prompt + n - 1];
    mm_stop_match match = {.index = -1};
    bool hit = false, loops = false;
    if ((r->asks & (MM_ASKS_THINKING | MM_ASKS_STRINGS)) != 0)
        hit = follow_text(lim->bytes, r, token, &match);
    if ((r->asks & MM_ASKS_ENDS) != 0)
        loops = mm_repeat_push(&r->repeat, r->token + r->n_prompt, n);

    if (n >= r->eos_from && is_in(lim->eos, lim->n_eos, token))
        return (ending){MM_FINISH_STOP, MM_STOP_EOS, token};
    if ((r->asks & MM_ASKS_ENDS) != 0 && n > r->p.min_tokens &&
        is_in(r->p.stop_token, r->p.n_stop_token, token))
        return (ending){MM_FINISH_STOP, MM_STOP_TOKEN, token};
    if (hit) {
        r->out.stop_begin = match.begin;
        r->out.stop_end = match.end;
        return (ending){MM_FINISH_STOP, MM_STOP_STRING, match.index};
    }
    if (loops && n > r->p.min_tokens)
        return (ending){MM_FINISH_STOP, MM_STOP_REPETITION, -1};
    if (n < r->out_cap)
        return (ending){MM_FINISH_NONE, MM_STOP_NONE, -1};
    return (ending){MM_FINISH_LENGTH, n >= r->p.max_tokens ? MM_STOP_MAX_TOKENS : MM_STOP_MODEL_LEN,
                    -1};
}

/* Publishes pages whose 128 positions are all committed. */
static void publish_pages(mm_scheduler *s, mm_request *r)
{
    while (r->publishes && r->n_page_named < r->n_done / MM_PAGE) {
        const int32_t i = r->n_page_named++;
        r->last_key = i < r->n_prompt_key ? r->prompt_key[i]
                                          : mm_prefix_next(s->req->secret, r->last_key,
                                                           r->token + (int64_t)i * MM_PAGE, NULL);
        mm_kv_pool_publish(&s->pool, r->page[i], r->last_key);
    }
}

static void commit_draw(mm_scheduler *s, const mm_plan_item *item, const mm_step_result *res,
                        double now)
{
    mm_request *r = item->r;
    const uint8_t flag = res->flag[item->out_first + item->n_score];
    if (flag != MM_SAMPLE_OK) {
        fail_row(s, r, flag);
        return;
    }
    append(r, item, res, now);
    s->stats.n_output_token++;
    const ending end = find_ending(s, r);
    if (end.finish != MM_FINISH_NONE) {
        mm_scheduler_end(s, r, end.finish, end.stop, end.index);
        return;
    }
    bool news = r->n_token >= r->news_at;
    if (news)
        mm_request_notify_every(r, r->notify_tokens);
    if ((r->asks & MM_ASKS_MASKS) != 0) {
        r->out.want_mask_token = r->n_token;
        r->is_stale = news = true;
    }
    mm_scheduler_advance(s, r, news);
}

static void commit_item(mm_scheduler *s, const mm_plan_item *item, const mm_step_result *res,
                        double now)
{
    mm_request *r = item->r;
    r->n_done = item->pos + item->n_row;
    if ((item->n_score > 0 && !commit_scores(s, item, res)) || !commit_trace(s, item, res))
        return;
    publish_pages(s, r);
    /* a sequence that decodes has had its prompt committed before */
    if (!item->is_decode && r->group != NULL && r->group->leader == r && !r->group->is_computed &&
        r->n_done >= r->n_prompt)
        mm_group_computed(s, r->group);
    if (item->draws)
        commit_draw(s, item, res, now);
    else if (r->out_cap == 0 && r->n_done == r->n_prompt)
        mm_scheduler_end(s, r, MM_FINISH_LENGTH, MM_STOP_MAX_TOKENS, -1);
}

/* Since the step before, milliseconds ago, the caches have seen other things: a commit would wait
 * for memory several times a sequence. What is touched is asked for ahead, in the order in which
 * it becomes known where it lies: the plan's items, their requests, the requests' arrays. */
enum { ITEMS_AHEAD = 24, AHEAD = 12, ARRAYS_AHEAD = 6 };

static void ask_for(const mm_plan *plan, int32_t i)
{
    if (i + ITEMS_AHEAD - AHEAD < plan->n_item)
        __builtin_prefetch(&plan->item[i + ITEMS_AHEAD - AHEAD]);
    if (i >= plan->n_item)
        return;
    const uint8_t *r = (const uint8_t *)plan->item[i].r;
    for (int k = 0; k < MM_REQUEST_LINES; k++)
        __builtin_prefetch(r + 64 * k, 1);
}

static void ask_for_range(const mm_request *r, size_t from, size_t to)
{
    for (size_t at = from; at < to; at += 64)
        __builtin_prefetch((const uint8_t *)r + at, 1);
}

#define ASK_FOR(r, first, last)                                                                    \
    ask_for_range(r, offsetof(mm_request, first), offsetof(mm_request, last) + sizeof((r)->last))

static void ask_for_rest(const mm_request *r)
{
    if ((r->asks & ~MM_ASKS_THINKING) != 0) {
        ASK_FOR(r, p, p);
        ASK_FOR(r, out_id, repeat);
    }
    if ((r->asks & MM_ASKS_MASKS) != 0)
        ASK_FOR(r, out, out);
    if ((r->asks & MM_ASKS_THINKING) != 0)
        ASK_FOR(r, n_think_token, think.close.byte[0]);
}

static void ask_for_arrays(const mm_plan *plan, int32_t i)
{
    if (i >= plan->n_item)
        return;
    const mm_request *r = plan->item[i].r;
    __builtin_prefetch(r->token + r->n_prompt + r->n_token, 1);
    if (r->n_planned == r->n_page * MM_PAGE) /* the next plan adds a page */
        __builtin_prefetch(r->page + r->n_page, 1);
    if (r->publishes && (r->n_done + 1) % MM_PAGE == 0) { /* a page is to be named */
        __builtin_prefetch(r->page + r->n_page_named);
        __builtin_prefetch(&r->n_prompt_key);
        __builtin_prefetch(&r->last_key, 1);
        for (int32_t k = 0; k < MM_PAGE; k += 16)
            __builtin_prefetch(r->token + r->n_done + 1 - MM_PAGE + k);
    }
    if (r->asks != 0)
        ask_for_rest(r);
}

void mm_scheduler_commit(mm_scheduler *s, const mm_step_result *res)
{
    const mm_plan *plan = &s->plan[s->i_oldest];
    MM_ASSERT(s->n_in_flight > 0 && res->step == plan->step);
    const double now = mm_now();
    for (int32_t i = 0; i < ITEMS_AHEAD && i < plan->n_item; i++)
        __builtin_prefetch(&plan->item[i]);
    for (int32_t i = 0; i < plan->n_out; i += 16) /* a line of tokens; a device wrote them */
        __builtin_prefetch(res->token + i);
    for (int32_t i = 0; i < plan->n_out; i += 64)
        __builtin_prefetch(res->flag + i);
    for (int32_t i = 0; i < AHEAD; i++)
        ask_for(plan, i);
    for (int32_t i = 0; i < ARRAYS_AHEAD; i++)
        ask_for_arrays(plan, i);
    for (int32_t i = 0; i < plan->n_item; i++) {
        mm_request *r = plan->item[i].r;
        ask_for(plan, i + AHEAD);
        ask_for_arrays(plan, i + ARRAYS_AHEAD);
        r->n_in_flight--;
        if (r->state != MM_REQUEST_DONE)
            commit_item(s, &plan->item[i], res, now);
        mm_scheduler_unhold(s, r);
    }
    s->i_oldest = (s->i_oldest + 1) % MM_MAX_IN_FLIGHT;
    s->n_in_flight--;
    s->stats.n_step++;
    s->stats.n_graph_step += res->is_graph;
    s->stats.n_block_read += res->n_block_read;
    s->stats.n_block_held += res->n_block_held;
    s->stats.t_step_last = res->t_end - res->t_begin;
    s->stats.t_step_total += s->stats.t_step_last;
    s->stats.t_host_total += res->t_launched - res->t_begin;
    mm_scheduler_fit_steps(s, plan->n_row, s->stats.t_step_last);
}
