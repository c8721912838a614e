/* test_engine_life.c: engines, waiters and requests over their lives: abort, release, groups,
 * salts, priorities, cache resets, traces, closing in any order, forks, and an engine whose device
 * fails. */
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/c/engine_fixture.h"

static int32_t long_prompt[1024];

static bool open_engine(mm_engine **e, mm_waiter **w, const mm_engine_options *o)
{
    *e = NULL;
    *w = NULL;
    fx_prompt(long_prompt, 1024, 5);
    if (mm_engine_open(e, o) == MM_OK && mm_waiter_open(w, *e) == MM_OK)
        return true;
    printf("  %s\n", mm_error_message());
    return false;
}

/* Free or cached again, once nothing is left in flight; tried for a while, because a step may still
 * be running. */
static bool pages_are_back(mm_engine *e)
{
    mm_engine_stats s;
    mm_engine_stats_init(&s);
    for (int i = 0; i < 500; i++) {
        if (mm_engine_get_stats(e, &s) == MM_OK && s.n_running == 0 && s.n_waiting == 0 &&
            s.n_page_free + s.n_page_cached == s.n_page)
            return true;
        usleep(10000);
    }
    printf("  %lld running, %lld waiting, %lld free, %lld cached of %lld\n", (long long)s.n_running,
           (long long)s.n_waiting, (long long)s.n_page_free, (long long)s.n_page_cached,
           (long long)s.n_page);
    return false;
}

MM_TEST(test_abort_returns_what_there_is)
{
    for (int32_t ahead = 0; ahead < 2; ahead++) {
        mm_engine *e;
        mm_waiter *w;
        mm_output o;
        uint64_t id[12], got[4];
        int32_t n;
        mm_engine_options opt = fx_options("ref");
        opt.run_ahead = ahead;
        opt.max_num_seqs = 4;
        MM_CHECK(open_engine(&e, &w, &opt), "open");
        for (int i = 0; i < 12; i++) {
            mm_request_params p = fx_params(long_prompt, 100 + i, 1500);
            p.notify_tokens = i == 0 ? 3 : 0;
            MM_CHECK(mm_engine_submit(e, w, &p, &id[i]) == MM_OK, "%s", mm_error_message());
        }
        MM_CHECK(mm_waiter_wait(w, 30, got, 4, &n) == MM_OK && n == 1 && got[0] == id[0],
                 "no news of the first tokens");
        MM_CHECK(mm_engine_abort(e, id, 2, &n) == MM_OK && n == 2, "%d were alive", n);
        MM_CHECK(fx_join(e, w, id[0], &o) && o.finish == MM_FINISH_ABORT && o.n_token >= 3 &&
                     o.n_token < 1500,
                 "%d tokens", o.n_token);
        mm_request_release(e, id[2]);  /* running; ends by itself */
        mm_request_release(e, id[11]); /* waiting */
        MM_CHECK(mm_request_read(e, id[2], &o) == MM_E_INVALID, "a released request can be read");
        MM_CHECK(mm_engine_abort(e, NULL, 0, &n) == MM_OK && n == 8, "%d were alive", n);
        for (int i = 3; i < 11; i++)
            MM_CHECK(fx_join(e, w, id[i], &o) && o.finish == MM_FINISH_ABORT, "request %d", i);
        MM_CHECK(mm_engine_abort(e, id, 12, &n) == MM_OK && n == 0, "%d were alive", n);
        MM_CHECK(pages_are_back(e), "pages");
        mm_waiter_close(w);
        mm_engine_close(e);
    }
}

static int32_t n_token(mm_engine *e, uint64_t id)
{
    mm_output o;
    return mm_request_read(e, id, &o) == MM_OK ? o.n_token : -1;
}

/* Lets a frozen engine run until a request has more tokens than it had. */
static bool run_a_little(mm_engine *e, uint64_t id)
{
    int32_t is_settled = 0;
    const int32_t before = n_token(e, id);
    bool ok = mm_engine_pause(e, MM_PAUSE_NONE, 0, &is_settled) == MM_OK;
    for (int i = 0; ok && i < 30000 && n_token(e, id) <= before; i++)
        usleep(1000);
    return ok && mm_engine_pause(e, MM_PAUSE_FREEZE, 10, &is_settled) == MM_OK && is_settled &&
           n_token(e, id) > before;
}

MM_TEST(test_news_as_often_as_asked_for)
{
    mm_engine *e;
    mm_waiter *w;
    mm_output o;
    uint64_t id, got;
    int32_t n, is_settled = 0;
    mm_engine_options opt = fx_options("ref");
    MM_CHECK(open_engine(&e, &w, &opt), "open");
    mm_request_params p = fx_params(long_prompt, 40, 1500);
    MM_CHECK(mm_engine_submit(e, w, &p, &id) == MM_OK, "%s", mm_error_message());
    MM_CHECK(run_a_little(e, id), "%s", mm_error_message());
    MM_CHECK(mm_waiter_wait(w, 0, &got, 1, &n) == MM_OK && n == 0, "news nobody asked for");

    MM_CHECK(mm_request_notify(e, id, 20) == MM_OK, "%s", mm_error_message());
    MM_CHECK(mm_waiter_wait(w, 10, &got, 1, &n) == MM_OK && n == 1 && got == id,
             "what is there already is no news");
    const int32_t seen = n_token(e, id);
    MM_CHECK(mm_engine_pause(e, MM_PAUSE_NONE, 0, &is_settled) == MM_OK, "go on");
    MM_CHECK(mm_waiter_wait(w, 30, &got, 1, &n) == MM_OK && n == 1 && got == id, "no news");
    MM_CHECK(n_token(e, id) >= seen + 20, "%d tokens after %d", n_token(e, id), seen);

    MM_CHECK(mm_engine_pause(e, MM_PAUSE_FREEZE, 10, &is_settled) == MM_OK && is_settled, "freeze");
    while (mm_waiter_wait(w, 0, &got, 1, &n) == MM_OK && n > 0) { /* what came meanwhile */
    }
    MM_CHECK(mm_request_notify(e, id, 0) == MM_OK, "%s", mm_error_message());
    MM_CHECK(mm_waiter_wait(w, 10, &got, 1, &n) == MM_OK && n == 1, "no news");
    MM_CHECK(run_a_little(e, id) && run_a_little(e, id), "%s", mm_error_message());
    MM_CHECK(mm_request_read(e, id, &o) == MM_OK && o.finish == MM_FINISH_NONE, "it has ended");
    MM_CHECK(mm_waiter_wait(w, 0, &got, 1, &n) == MM_OK && n == 0,
             "news nobody asked for any more");

    MM_CHECK(mm_request_notify(e, id, -1) == MM_E_INVALID, "every -1 tokens");
    MM_CHECK(mm_request_notify(e, id + 1, 1) == MM_E_INVALID, "a request that does not exist");
    MM_CHECK(mm_engine_abort(e, &id, 1, &n) == MM_OK && fx_join(e, w, id, &o), "abort");
    MM_CHECK(mm_request_notify(e, id, 1) == MM_OK, "one that has ended: %s", mm_error_message());
    MM_CHECK(mm_waiter_wait(w, 0.05, &got, 1, &n) == MM_OK && n <= 1, "news of its end");
    MM_CHECK(mm_waiter_wait(w, 0.05, &got, 1, &n) == MM_OK && n == 0, "news of its end twice");
    mm_waiter_close(w);
    mm_engine_close(e);
}

MM_TEST(test_pause_holds_back_and_goes_on)
{
    for (int32_t ahead = 0; ahead < 2; ahead++) {
        mm_engine *e;
        mm_waiter *w;
        mm_output o;
        uint64_t early[3], late[3];
        int32_t n, is_settled = 0;
        mm_engine_options opt = fx_options("ref");
        opt.run_ahead = ahead;
        opt.max_num_seqs = 2;
        MM_CHECK(open_engine(&e, &w, &opt), "open");
        MM_CHECK(mm_engine_pause(e, MM_PAUSE_FREEZE, 10, &is_settled) == MM_OK && is_settled,
                 "an idle engine does not freeze");
        mm_request_params p = fx_params(long_prompt, 40, 300);
        for (int i = 0; i < 3; i++)
            MM_CHECK(mm_engine_submit(e, w, &p, &early[i]) == MM_OK, "%s", mm_error_message());
        usleep(50000);
        MM_CHECK(n_token(e, early[0]) == 0, "a request began while the engine was paused");
        MM_CHECK(mm_engine_abort(e, &early[2], 1, &n) == MM_OK && n == 1, "%d were alive", n);
        MM_CHECK(fx_join(e, w, early[2], &o) && o.finish == MM_FINISH_ABORT,
                 "one that is held back cannot be aborted");
        MM_CHECK(mm_engine_pause(e, MM_PAUSE_NONE, 0, &is_settled) == MM_OK && is_settled, "go on");
        while (n_token(e, early[0]) < 5)
            usleep(1000);

        /* frozen in the middle */
        MM_CHECK(mm_engine_pause(e, MM_PAUSE_FREEZE, 10, &is_settled) == MM_OK && is_settled,
                 "no step ends");
        const int32_t at = n_token(e, early[0]);
        usleep(50000);
        MM_CHECK(n_token(e, early[0]) == at && at < 300, "%d tokens, then more", at);
        MM_CHECK(mm_engine_submit(e, w, &p, &late[0]) == MM_OK, "%s", mm_error_message());

        /* the early ones run to their end, the late ones wait */
        MM_CHECK(mm_engine_pause(e, MM_PAUSE_DRAIN, 60, &is_settled) == MM_OK && is_settled,
                 "the engine is never empty");
        for (int i = 0; i < 2; i++)
            MM_CHECK(mm_request_read(e, early[i], &o) == MM_OK && o.finish == MM_FINISH_LENGTH &&
                         o.n_token == 300,
                     "request %d has %d tokens", i, o.n_token);
        MM_CHECK(n_token(e, late[0]) == 0, "a late request ran");
        for (int i = 1; i < 3; i++)
            MM_CHECK(mm_engine_submit(e, w, &p, &late[i]) == MM_OK, "%s", mm_error_message());
        mm_request_release(e, late[1]); /* held back, and nobody wants it any more */
        MM_CHECK(mm_engine_pause(e, MM_PAUSE_NONE, 0, &is_settled) == MM_OK && is_settled, "go on");
        MM_CHECK(fx_join(e, w, late[0], &o) && o.n_token == 300, "the late request");
        MM_CHECK(mm_engine_pause(e, (mm_pause)7, 0, &is_settled) == MM_E_INVALID, "pause 7");
        if (ahead == 0) { /* closed while it is paused and something waits */
            (void)mm_engine_pause(e, MM_PAUSE_FREEZE, 10, &is_settled);
            MM_CHECK(mm_engine_submit(e, w, &p, &early[0]) == MM_OK, "%s", mm_error_message());
        } else {
            MM_CHECK(fx_join(e, w, late[2], &o) && pages_are_back(e), "pages");
        }
        mm_engine_close(e);
        mm_waiter_close(w);
    }
}

MM_TEST(test_groups_share_their_prefill)
{
    static int32_t alone[4][24], together[4][24];
    for (int32_t mode = 0; mode < 4; mode++) { /* with the cache, without, cache not to be read; one
                                                  step ahead */
        mm_engine *e;
        mm_waiter *w;
        mm_output o;
        uint64_t id[4];
        mm_engine_options opt = fx_options("ref");
        opt.enable_prefix_cache = mode != 1;
        opt.run_ahead = mode == 3;
        MM_CHECK(open_engine(&e, &w, &opt), "open");
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < 4; i++) {
                mm_request_params p = fx_params(long_prompt, 400, 24);
                p.temperature = 1;
                p.seed = 100 + (uint64_t)i;
                p.group = round == 1 ? 42 : 0;
                p.salt = (uint64_t)(round == 0 ? 10 + i : 20); /* alone: nothing to share */
                p.skip_prefix_read = mode == 2;
                MM_CHECK(mm_engine_submit(e, w, &p, &id[i]) == MM_OK, "%s", mm_error_message());
            }
            for (int i = 0; i < 4; i++) {
                MM_CHECK(fx_join(e, w, id[i], &o) && o.n_token == 24, "member %d", i);
                memcpy(round == 0 ? alone[i] : together[i], o.token, sizeof alone[i]);
                MM_CHECK(o.n_cached == (round == 1 && i > 0 ? 384 : 0),
                         "mode %d round %d member %d: %d cached", mode, round, i, o.n_cached);
                mm_request_release(e, id[i]);
            }
        }
        MM_CHECK(memcmp(alone, together, sizeof alone) == 0,
                 "mode %d: members differ from requests alone", mode);
        MM_CHECK(memcmp(alone[0], alone[1], sizeof alone[0]) != 0, "seeds make no difference");
        MM_CHECK(pages_are_back(e), "pages");
        mm_engine_stats s;
        mm_engine_stats_init(&s);
        MM_CHECK(mm_engine_get_stats(e, &s) == MM_OK && (mode != 1 || s.n_page_cached == 0),
                 "%lld pages are cached without a cache", (long long)s.n_page_cached);
        /* The leader goes before its prompt is computed: another leads. */
        for (int i = 0; i < 4; i++) {
            mm_request_params p = fx_params(long_prompt + 100, 900, 4);
            p.group = 43;
            MM_CHECK(mm_engine_submit(e, w, &p, &id[i]) == MM_OK, "%s", mm_error_message());
        }
        mm_request_release(e, id[0]);
        for (int i = 1; i < 4; i++)
            MM_CHECK(fx_join(e, w, id[i], &o) && o.n_token == 4, "member %d after its leader went",
                     i);
        mm_engine_close(e);
        mm_waiter_close(w);
    }
}

MM_TEST(test_salts_and_resets_bound_the_cache)
{
    mm_engine *e;
    mm_waiter *w;
    mm_output o;
    uint64_t id;
    mm_engine_options opt = fx_options("ref");
    MM_CHECK(open_engine(&e, &w, &opt), "open");
    static const struct {
        uint64_t salt;
        int32_t n, skip, want;
    } step[] = {{1, 300, 0, 0},   {1, 300, 0, 256}, {2, 300, 0, 0}, {2, 256, 0, 128},
                {1, 257, 0, 256}, {1, 300, 1, 0},   {1, 120, 0, 0}};
    for (size_t i = 0; i < MM_ARRAY_LEN(step); i++) {
        mm_request_params p = fx_params(long_prompt, step[i].n, 2);
        p.salt = step[i].salt;
        p.skip_prefix_read = step[i].skip;
        MM_CHECK(mm_engine_submit(e, w, &p, &id) == MM_OK && fx_join(e, w, id, &o), "%s",
                 mm_error_message());
        MM_CHECK(o.n_cached == step[i].want, "step %zu: %d cached, expected %d", i, o.n_cached,
                 step[i].want);
    }
    mm_engine_stats s;
    mm_engine_stats_init(&s);
    MM_CHECK(mm_engine_reset_prefix_cache(e) == MM_OK && pages_are_back(e), "%s",
             mm_error_message());
    mm_request_params p = fx_params(long_prompt, 300, 2);
    p.salt = 1;
    MM_CHECK(mm_engine_submit(e, w, &p, &id) == MM_OK && fx_join(e, w, id, &o) && o.n_cached == 0,
             "%d cached after a reset", o.n_cached);
    mm_engine_close(e);
    mm_waiter_close(w);
}

MM_TEST(test_replies_are_part_of_the_cached_prefix)
{
    mm_engine *e;
    mm_waiter *w;
    mm_output o;
    uint64_t id;
    mm_engine_options opt = fx_options("ref");
    MM_CHECK(open_engine(&e, &w, &opt), "open");
    static int32_t turn[600];
    mm_request_params p = fx_params(long_prompt, 100, 200);
    MM_CHECK(mm_engine_submit(e, w, &p, &id) == MM_OK && fx_join(e, w, id, &o) && o.n_token == 200,
             "%s", mm_error_message());
    memcpy(turn, long_prompt, 100 * 4);
    memcpy(turn + 100, o.token, 200 * 4);
    memcpy(turn + 300, long_prompt + 500, 50 * 4);
    p = fx_params(turn, 350, 2);
    MM_CHECK(mm_engine_submit(e, w, &p, &id) == MM_OK && fx_join(e, w, id, &o), "%s",
             mm_error_message());
    MM_CHECK(o.n_cached == 256, "%d tokens of the last turn are cached", o.n_cached);
    mm_engine_close(e);
    mm_waiter_close(w);
}

MM_TEST(test_priorities_order_the_waiting)
{
    mm_engine *e;
    mm_waiter *w;
    mm_output o[4];
    uint64_t id[4];
    static const int32_t priority[4] = {0, 7, 3, 7};
    mm_engine_options opt = fx_options("ref");
    opt.max_num_seqs = 1;
    opt.priority_policy = 1;
    MM_CHECK(open_engine(&e, &w, &opt), "open");
    for (int i = 0; i < 4; i++) {
        mm_request_params p = fx_params(long_prompt, 200, 20);
        p.priority = priority[i];
        MM_CHECK(mm_engine_submit(e, w, &p, &id[i]) == MM_OK, "%s", mm_error_message());
    }
    for (int i = 0; i < 4; i++)
        MM_CHECK(fx_join(e, w, id[i], &o[i]), "request %d", i);
    MM_CHECK(o[2].t_scheduled < o[1].t_scheduled && o[1].t_scheduled < o[3].t_scheduled,
             "started at %g %g %g", o[1].t_scheduled, o[2].t_scheduled, o[3].t_scheduled);
    for (int i = 0; i < 4; i++)
        MM_CHECK(o[i].t_submit <= o[i].t_scheduled && o[i].t_scheduled < o[i].t_first &&
                     o[i].t_first < o[i].t_last && o[i].t_last <= o[i].t_done,
                 "times of request %d", i);
    mm_engine_close(e);
    mm_waiter_close(w);
}

MM_TEST(test_trace_equals_generation)
{
    enum { L = 300 };
    static float logits[L][FX_VOCAB], hidden[FX_LAYER][L * 64];
    static int16_t blocks[2 * L * 3];
    mm_engine *e;
    mm_waiter *w;
    mm_output o;
    uint64_t id, id_other;
    mm_engine_options opt = fx_options("ref");
    opt.max_batched_tokens = 128;
    opt.run_ahead = 1;
    MM_CHECK(open_engine(&e, &w, &opt), "open");
    float *const hidden_rows[FX_LAYER] = {hidden[0], hidden[1]};
    int16_t *const block_rows[FX_LAYER] = {NULL, blocks};
    mm_trace trace = {.logits = logits[0],
                      .hidden = hidden_rows,
                      .blocks = block_rows,
                      .blocks_width = 3,
                      .n_prompt = L};
    mm_request_params other = fx_params(long_prompt, 50, 60), p = fx_params(long_prompt, L, 0);
    p.trace = &trace;
    MM_CHECK(mm_engine_submit(e, w, &other, &id_other) == MM_OK &&
                 mm_engine_submit(e, w, &p, &id) == MM_OK,
             "%s", mm_error_message());
    MM_CHECK(fx_join(e, w, id, &o) && o.finish == MM_FINISH_LENGTH && o.n_token == 0, "%s",
             o.error_message);
    p = fx_params(long_prompt, L, 1);
    p.n_logprob = 0;
    p.logprob_mode = MM_LOGIT_RAW;
    MM_CHECK(mm_engine_submit(e, w, &p, &id) == MM_OK && fx_join(e, w, id, &o) && o.n_cached == 0,
             "%d cached: a trace filled the cache", o.n_cached);
    MM_CHECK(o.logprob[0] == logits[L - 1][o.token[0]], "logit %g, traced %g", (double)o.logprob[0],
             (double)logits[L - 1][o.token[0]]);
    for (int i = 0; i < L; i++)
        MM_CHECK(isfinite(logits[i][3]) && hidden[1][i * 64] != 0 && blocks[i * 3] == 0,
                 "row %d was not recorded", i);
    MM_CHECK(fx_join(e, w, id_other, &o) && o.n_token == 60, "the other one");

    blocks[5 * 3] = 1; /* position 5 cannot see block 1 */
    const int16_t *const forced[FX_LAYER] = {NULL, blocks};
    p = fx_params(long_prompt, L, 0);
    trace =
        (mm_trace){.logits = logits[0], .force_blocks = forced, .blocks_width = 3, .n_prompt = L};
    p.trace = &trace;
    MM_CHECK(mm_engine_submit(e, w, &p, &id) == MM_E_INVALID &&
                 strcmp(mm_error_param(), "force_blocks") == 0,
             "%s", mm_error_message());
    trace.n_prompt = 7;
    MM_CHECK(mm_engine_submit(e, w, &p, &id) == MM_E_INVALID &&
                 strcmp(mm_error_param(), "trace") == 0,
             "%s", mm_error_message());
    mm_engine_close(e);
    mm_waiter_close(w);
}

MM_TEST(test_close_in_any_order)
{
    for (int32_t order = 0; order < 2; order++) {
        mm_engine *e;
        mm_waiter *w, *late;
        mm_output o;
        uint64_t id, got[4];
        int32_t n;
        mm_engine_options opt = fx_options("ref");
        MM_CHECK(open_engine(&e, &w, &opt), "open");
        MM_CHECK(mm_waiter_open(&late, e) == MM_OK, "%s", mm_error_message());
        mm_request_params p = fx_params(long_prompt, 100, 1500);
        MM_CHECK(mm_engine_submit(e, w, &p, &id) == MM_OK, "%s", mm_error_message());
        if (order == 0) {
            mm_waiter_close(w);
            MM_CHECK(mm_request_read(e, id, &o) == MM_E_INVALID && pages_are_back(e),
                     "its request is still there");
            mm_engine_close(e);
        } else {
            mm_engine_close(e);
            MM_CHECK(mm_waiter_wait(w, 1, got, 4, &n) == MM_OK && n == 1 && got[0] == id, "%d ids",
                     n);
            MM_CHECK(mm_request_read(e, id, &o) == MM_OK && o.finish == MM_FINISH_ABORT, "%d",
                     o.finish);
            MM_CHECK(mm_waiter_wait(w, 1, got, 4, &n) == MM_E_CLOSED && n == 0,
                     "a wait for nothing");
            MM_CHECK(mm_engine_submit(e, w, &p, &id) == MM_E_CLOSED,
                     "a submission to a closed engine");
            mm_waiter_close(w);
        }
        MM_CHECK(mm_waiter_wait(late, 0.01, got, 4, &n) == MM_E_CLOSED, "the late waiter");
        mm_waiter_close(late);
    }
    mm_waiter_close(NULL);
    mm_engine_close(NULL);
}

MM_TEST(test_a_forked_child_is_told)
{
    mm_engine *e;
    mm_waiter *w;
    uint64_t id;
    mm_engine_options opt = fx_options("ref");
    MM_CHECK(open_engine(&e, &w, &opt), "open");
    const pid_t child = fork();
    if (child == 0) {
        const mm_request_params p = fx_params(long_prompt, 10, 1);
        int32_t n;
        bool ok = mm_engine_submit(e, w, &p, &id) == MM_E_FORKED &&
                  mm_waiter_wait(w, 1, &id, 1, &n) == MM_E_FORKED;
        ok = ok && mm_engine_abort(e, NULL, 0, &n) == MM_E_FORKED &&
             mm_engine_reset_prefix_cache(e) == MM_E_FORKED;
        mm_waiter_close(w); /* do nothing, and return */
        mm_engine_close(e);
        _exit(ok ? 0 : 1);
    }
    int status = 1;
    MM_CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0,
             "the child's calls: status %d", status);
    mm_engine_close(e);
    mm_waiter_close(w);
}

/* ---------------------------------------------------------------- a device that fails */

static int32_t n_good_steps;

static mm_status fail_embed(const mm_op_context *c, const mm_seq_view *seq, const mm_embed_args *a)
{
    if (n_good_steps-- > 0)
        return mm_ref_ops.embed(c, seq, a);
    return MM_FAIL(MM_E_DEVICE, "the device fell off the bus");
}

MM_TEST(test_a_failed_device_ends_the_engine_and_says_why)
{
    for (int32_t ahead = 0; ahead < 2; ahead++) {
        mm_engine *e;
        mm_waiter *w;
        mm_output o;
        uint64_t id[12], late;
        int32_t n;
        mm_engine_options opt = fx_options("ref");
        opt.run_ahead = ahead;
        MM_CHECK(open_engine(&e, &w, &opt), "open");
        static mm_ops ops;
        ops = mm_ref_ops;
        ops.embed = fail_embed;
        n_good_steps = 5;
        ((mm_model *)(uintptr_t)mm_ranks_model(e->ranks))->ops = &ops; /* nothing runs yet */
        for (int i = 0; i < 12; i++) {
            mm_request_params p = fx_params(long_prompt, 100, 500);
            MM_CHECK(mm_engine_submit(e, w, &p, &id[i]) == MM_OK || i > 0, "%s",
                     mm_error_message());
        }
        MM_CHECK(fx_join(e, w, id[0], &o) && o.finish == MM_FINISH_ERROR &&
                     strstr(o.error_message, "fell off") != NULL,
                 "%s", o.error_message);
        MM_CHECK(o.error == MM_E_DEVICE && o.n_token > 0, "%d tokens before", o.n_token);
        const mm_request_params p = fx_params(long_prompt, 100, 5);
        MM_CHECK(mm_engine_submit(e, w, &p, &late) == MM_E_DEAD &&
                     strstr(mm_error_message(), "fell off") != NULL,
                 "%s", mm_error_message());
        MM_CHECK(mm_engine_abort(e, NULL, 0, &n) == MM_E_DEAD &&
                     mm_engine_reset_prefix_cache(e) == MM_E_DEAD,
                 "%s", mm_error_message());
        mm_request_release(e, id[0]);
        mm_engine_close(e);
        mm_waiter_close(w);
    }
}

MM_TEST(test_open_refuses_bad_options_by_name)
{
    mm_engine *e = NULL;
#define REFUSED(name, change)                                                                      \
    do {                                                                                           \
        mm_engine_options o = fx_options("ref");                                                   \
        change;                                                                                    \
        MM_CHECK(mm_engine_open(&e, &o) == MM_E_CONFIG && strcmp(mm_error_param(), name) == 0 &&   \
                     e == NULL,                                                                    \
                 "%s: %s", name, mm_error_message());                                              \
    } while (0)
    REFUSED("", o.size = 1);
    REFUSED("backend", o.backend = "tpu");
    REFUSED("max_model_len", o.max_model_len = 5000);
    REFUSED("max_num_seqs", o.max_num_seqs = 0);
    REFUSED("max_num_batched_tokens", o.max_batched_tokens = 100);
    REFUSED("kv_bytes", o.kv_bytes = 100);
    REFUSED("max_logprobs", o.max_logprobs = FX_VOCAB + 1);
    REFUSED("gpu_memory_utilization", o.memory_fraction = 0);
    REFUSED("run_ahead", o.run_ahead = 2);
#undef REFUSED
}

MM_TEST(test_open_of_two_ranks_on_a_host_says_no)
{
    mm_engine *e = NULL;
    mm_engine_options o = fx_options("ref");
    fx_last_config.head_dim = 32; /* slices are multiples of 64 */
    fx_last_config.d_expert = fx_last_config.d_shared = fx_last_config.d_dense = 128;
    o.n_rank = 2;
    MM_CHECK(mm_engine_open(&e, &o) == MM_E_UNSUPPORTED && e == NULL &&
                 strcmp(mm_error_param(), "tensor_parallel_size") == 0,
             "%s", mm_error_message());
}

MM_TEST(test_a_shard_runs_alone)
{
    for (int32_t rank = 0; rank < 2; rank++) {
        mm_engine *e;
        mm_waiter *w;
        mm_output o;
        uint64_t id;
        mm_engine_options opt = fx_options("ref");
        fx_last_config.head_dim = 32; /* slices are multiples of 64 */
        fx_last_config.d_expert = fx_last_config.d_shared = fx_last_config.d_dense = 128;
        opt.shard_world = 2;
        opt.shard_rank = rank;
        MM_CHECK(open_engine(&e, &w, &opt), "open");
        const mm_request_params p = fx_params(long_prompt, 200, 5);
        MM_CHECK(mm_engine_submit(e, w, &p, &id) == MM_OK && fx_join(e, w, id, &o), "%s",
                 mm_error_message());
        MM_CHECK(o.finish == MM_FINISH_LENGTH && o.n_token == 5, "%d tokens: %s", o.n_token,
                 o.error_message);
        mm_engine_close(e);
        mm_waiter_close(w);
    }
}

static int stop_at_once(void *ctx, int64_t done, int64_t total)
{
    (void)done, (void)total;
    ++*(int *)ctx;
    return 1;
}

MM_TEST(test_open_can_be_cancelled)
{
    mm_engine *e = NULL;
    int n_poll = 0;
    mm_engine_options o = fx_options("ref");
    o.max_model_len = 4096;
    o.poll = stop_at_once;
    o.poll_ctx = &n_poll;
    const mm_status st = mm_engine_open(&e, &o);
    MM_CHECK(n_poll == 1 && st == MM_E_CANCELLED && e == NULL, "%s after %d polls",
             mm_status_name(st), n_poll);
}
