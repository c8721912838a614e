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
                                       r->out.n_token);
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
    if (item->r->p.trace == NULL || item->r->p.trace->logits == NULL)
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

static void append(mm_scheduler *s, const mm_plan_item *item, const mm_step_result *res, double now)
{
    mm_request *r = item->r;
    const int32_t i_out = item->out_first + item->n_score, t = r->out.n_token;
    const int64_t from = item->entry_first + (int64_t)item->n_score * r->prompt_width,
                  to = (int64_t)t * r->width;
    const size_t n = (size_t)r->width;
    r->token[r->n_prompt + t] = res->token[i_out];
    if (n > 0) {
        memcpy(r->out_id + to, res->entry_id + from, n * sizeof *r->out_id);
        memcpy(r->out_logprob + to, res->entry_value + from, n * sizeof *r->out_logprob);
        memcpy(r->out_rank + to, res->entry_rank + from, n * sizeof *r->out_rank);
    }
    if (r->out_sampling != NULL)
        r->out_sampling[t] = res->sampling_logprob[i_out];
    r->out.n_token++;
    r->out.t_last = now;
    if (t == 0)
        r->out.t_first = r->out.t_last;
    s->stats.n_output_token++;
}

typedef struct ending {
    mm_finish finish;
    mm_stop stop;
    int32_t index;
} ending;

static ending find_ending(const mm_scheduler *s, mm_request *r)
{
    const mm_request_limits *lim = s->req;
    const int32_t n = r->out.n_token, token = r->out.token[n - 1];
    const bool may_stop = n > r->p.min_tokens;

    const uint8_t *text = NULL;
    int64_t n_text = 0;
    const bool reads_text = r->p.think_start != MM_THINK_OFF || r->stop != NULL;
    if (reads_text && token < lim->bytes->n_token) {
        text = lim->bytes->blob + lim->bytes->offset[token];
        n_text = lim->bytes->offset[token + 1] - lim->bytes->offset[token];
    }
    if (r->p.think_start != MM_THINK_OFF) {
        mm_think_push(&r->think, text, n_text);
        r->out.n_think_token = (int32_t)mm_think_n_token(&r->think);
    }
    mm_stop_match match = {.index = -1};
    const bool hit =
        r->stop != NULL && mm_stop_matcher_push(r->stop, text, n_text, may_stop,
                                                r->p.stop_in_thinking ? NULL : &r->think, &match);
    const bool loops = mm_repeat_push(&r->repeat, r->out.token, n);

    if (may_stop && !r->p.ignore_eos && is_in(lim->eos, lim->n_eos, token))
        return (ending){MM_FINISH_STOP, MM_STOP_EOS, token};
    if (may_stop && is_in(r->p.stop_token, r->p.n_stop_token, token))
        return (ending){MM_FINISH_STOP, MM_STOP_TOKEN, token};
    if (hit) {
        r->out.stop_begin = match.begin;
        r->out.stop_end = match.end;
        return (ending){MM_FINISH_STOP, MM_STOP_STRING, match.index};
    }
    if (may_stop && loops)
        return (ending){MM_FINISH_STOP, MM_STOP_REPETITION, -1};
    if (n >= r->p.max_tokens)
        return (ending){MM_FINISH_LENGTH, MM_STOP_MAX_TOKENS, -1};
    if (n >= r->out_cap)
        return (ending){MM_FINISH_LENGTH, MM_STOP_MODEL_LEN, -1};
    return (ending){MM_FINISH_NONE, MM_STOP_NONE, -1};
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
    append(s, item, res, now);
    const ending end = find_ending(s, r);
    if (end.finish != MM_FINISH_NONE) {
        mm_scheduler_end(s, r, end.finish, end.stop, end.index);
        return;
    }
    bool news = r->p.notify_tokens > 0 && r->out.n_token - r->n_noticed >= r->p.notify_tokens;
    if (news)
        r->n_noticed = r->out.n_token;
    if (r->p.want_mask) {
        r->out.want_mask_token = r->out.n_token;
        news = true;
    }
    mm_scheduler_touch(s, r, news);
}

static void commit_item(mm_scheduler *s, const mm_plan_item *item, const mm_step_result *res,
                        double now)
{
    mm_request *r = item->r;
    r->n_done = item->pos + item->n_row;
    if (!commit_scores(s, item, res) || !commit_trace(s, item, res))
        return;
    publish_pages(s, r);
    if (r->group != NULL && r->group->leader == r && !r->group->is_computed &&
        r->n_done >= r->n_prompt)
        mm_group_computed(s, r->group);
    if (item->draws)
        commit_draw(s, item, res, now);
    else if (r->out_cap == 0 && r->n_done == r->n_prompt)
        mm_scheduler_end(s, r, MM_FINISH_LENGTH, MM_STOP_MAX_TOKENS, -1);
}

/* Since the step before, milliseconds ago, the caches have seen other things: a commit would wait
 * for memory twenty times a sequence. What commit and the next plan touch of a request is asked for
 * a few sequences ahead, its arrays when it has come. */
enum { AHEAD = 6, ARRAYS_AHEAD = 2 };

static void ask_for(const mm_plan *plan, int32_t i)
{
    static const struct {
        size_t from, to;
    } part[] = {{0, offsetof(mm_request, pub)},
                {offsetof(mm_request, state), offsetof(mm_request, error)},
                {offsetof(mm_request, slot), offsetof(mm_request, think) + 64},
                {offsetof(mm_request, repeat), sizeof(mm_request)}};
    if (i >= plan->n_item)
        return;
    const uint8_t *r = (const uint8_t *)plan->item[i].r;
    for (size_t k = 0; k < MM_ARRAY_LEN(part); k++)
        for (size_t at = part[k].from; at < part[k].to; at += 64)
            __builtin_prefetch(r + at, 1);
}

static void ask_for_arrays(const mm_plan *plan, int32_t i)
{
    if (i >= plan->n_item)
        return;
    const mm_request *r = plan->item[i].r;
    __builtin_prefetch(r->token + r->n_prompt + r->out.n_token, 1);
    __builtin_prefetch(r->page + r->n_page);
}

void mm_scheduler_commit(mm_scheduler *s, const mm_step_result *res)
{
    const mm_plan *plan = &s->plan[s->i_oldest];
    MM_ASSERT(s->n_in_flight > 0 && res->step == plan->step);
    const double now = mm_now();
    for (int32_t i = 0; i < plan->n_out; i += 16) /* a line of tokens; a device wrote them */
        __builtin_prefetch(res->token + i);
    for (int32_t i = 0; i < plan->n_out; i += 64)
        __builtin_prefetch(res->flag + i);
    for (int32_t i = 0; i < AHEAD; i++)
        ask_for(plan, i);
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
    s->stats.n_block_read += res->n_block_read;
    s->stats.n_block_held += res->n_block_held;
    s->stats.t_step_last = res->t_end - res->t_begin;
    s->stats.t_step_total += s->stats.t_step_last;
    mm_step_times_add(&s->times, s->stats.t_step_last);
    s->stats.t_host_total += res->t_launched - res->t_begin;
    mm_scheduler_fit_steps(s, plan->n_row, s->stats.t_step_last);
}
