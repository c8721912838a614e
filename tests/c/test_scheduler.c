/* test_scheduler.c: random workloads on a machine that is not a model but remembers like one. Its
 * "keys and values" are the tokens themselves, written to pages through the slots' page tables; the
 * next token is a hash of everything the row can read there, the seed and the count of emitted
 * tokens. So a wrong page, a page shared too early, a lost row, a slot set up wrongly or a random
 * stream that went astray changes the output, which is compared with what each request gives when
 * nothing else exists. */
#include "csrc/engine/batch_build.h"
#include "csrc/engine/scheduler.h"
#include "kernels/ops.h"
#include "tests/c/mm_random.h"
#include "tests/c/mm_test.h"

enum {
    V = 97,
    EOS = 5,
    STRIDE = 16,
    MAX_SEQS = 6,
    ROWS = 256,
    MAX_PAGES = 64,
    N = 60,
    MAX_LEN = 1500
};

/* ---------------------------------------------------------------- the machine */

typedef struct slot_state {
    int32_t page[STRIDE], n_emitted, last, min_tokens, n_ban, ban[8];
    uint64_t seed;
    uint32_t mask[(V + 31) / 32];
    bool has_mask;
} slot_state;

typedef struct machine {
    int32_t kv[MAX_PAGES][MM_PAGE];
    slot_state slot[MAX_SEQS];
    int32_t token[2][ROWS], entry_id[2][8192], entry_rank[2][8192];
    uint8_t flag[2][ROWS];
    float sampling[2][ROWS], entry_value[2][8192];
    const char *wrong; /* first thing that no correct plan does */
} machine;

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ (h >> 29);
}

/* The token drawn from hash h under the slot's masks; -1 when nothing is allowed. */
static int32_t draw(uint64_t h, int32_t n_emitted, int32_t min_tokens, const int32_t *ban,
                    int32_t n_ban, const uint32_t *mask)
{
    for (int32_t k = 0; k < V; k++) {
        const int32_t t = (int32_t)((h + (uint64_t)k) % V);
        bool ok = mask == NULL || (mask[t / 32] >> (t % 32) & 1) != 0;
        for (int32_t i = 0; i < n_ban && n_emitted < min_tokens; i++)
            ok = ok && ban[i] != t;
        if (ok)
            return t;
    }
    return -1;
}

/* One request in sixteen meets a NaN at its fourth token: only that one may end. */
static bool breaks(uint64_t seed, int32_t n_emitted)
{
    return seed % 16 == 7 && n_emitted == 3;
}

static float score_of(uint64_t h, int32_t token)
{
    return (float)(mix(h, (uint64_t)token) % 100000) / 7.0f;
}

static void run(machine *m, const mm_batch *b, int which, mm_step_result *res)
{
    const mm_batch_slot *begin = mm_batch_at(b, b->slot);
    const mm_batch_page *page = mm_batch_at(b, b->page);
    const mm_batch_mask *mask = mm_batch_at(b, b->mask);
    const mm_batch_seq *seq = mm_batch_at(b, b->seq);
    const mm_batch_out *out = mm_batch_at(b, b->out);
    const int32_t *token = mm_batch_at(b, b->token);
    *res = (mm_step_result){.step = b->step,
                            .token = m->token[which],
                            .flag = m->flag[which],
                            .sampling_logprob = m->sampling[which],
                            .entry_id = m->entry_id[which],
                            .entry_rank = m->entry_rank[which],
                            .entry_value = m->entry_value[which]};
    if (b->n_row > ROWS || b->n_seq > MAX_SEQS || b->n_entry > 4096)
        m->wrong = "a limit of the step is exceeded";
    if (b->trace != NULL && (b->n_seq != 1 || b->n_out != b->n_row || b->trace_first != seq[0].pos))
        m->wrong = "a trace is not alone in its step";
    for (int32_t i = 0; i < b->n_slot; i++) {
        const mm_batch_slot *n = &begin[i];
        slot_state *s = &m->slot[n->slot];
        memset(s, 0xEE, sizeof *s); /* nothing of the slot's last sequence may be used */
        s->n_emitted = n->n_emitted;
        s->seed = n->seed;
        s->min_tokens = n->min_tokens;
        s->n_ban = n->n_ban;
        memcpy(s->ban, n->n_ban > 0 ? mm_batch_at(b, n->ban_token) : s->ban, (size_t)n->n_ban * 4);
        s->last =
            n->n_history > 0 ? ((const int32_t *)mm_batch_at(b, n->history))[n->n_history - 1] : 0;
        s->has_mask = n->mask >= 0;
        if (s->has_mask)
            memcpy(s->mask, mm_batch_at(b, n->mask), sizeof s->mask);
    }
    for (int32_t i = 0; i < b->n_page; i++)
        m->slot[page[i].slot].page[page[i].block] = page[i].page;
    for (int32_t i = 0; i < b->n_mask; i++) {
        m->slot[mask[i].slot].has_mask = true;
        memcpy(m->slot[mask[i].slot].mask, mm_batch_at(b, mask[i].mask), sizeof m->slot[0].mask);
    }
    for (int32_t i = 0; i < b->n_seq; i++) {
        slot_state *s = &m->slot[seq[i].slot];
        for (int32_t r = 0; r < seq[i].n_row; r++) {
            const int32_t t = token[seq[i].row_start + r], pos = seq[i].pos + r;
            const int32_t pg = s->page[pos / MM_PAGE];
            if (pg < 1 || pg >= MAX_PAGES)
                m->wrong = "a row writes to a page that was never given";
            else
                m->kv[pg][pos % MM_PAGE] = t >= 0 ? t : s->last;
        }
    }
    for (int32_t i = 0; i < b->n_out && m->wrong == NULL; i++) {
        slot_state *s = &m->slot[seq[out[i].seq].slot];
        const int32_t pos = seq[out[i].seq].pos + out[i].row - seq[out[i].seq].row_start;
        uint64_t h = 1;
        for (int32_t p = 0; p <= pos; p++)
            h = mix(h, (uint64_t)m->kv[s->page[p / MM_PAGE]][p % MM_PAGE]);
        int32_t t = out[i].token;
        m->flag[which][i] = MM_SAMPLE_OK;
        if (out[i].kind == MM_OUT_SAMPLE) {
            if (t < 0)
                t = draw(mix(mix(h, s->seed), (uint64_t)s->n_emitted), s->n_emitted, s->min_tokens,
                         s->ban, s->n_ban, s->has_mask ? s->mask : NULL);
            if (breaks(s->seed, s->n_emitted))
                t = -1;
            m->flag[which][i] = t >= 0                          ? MM_SAMPLE_OK
                                : breaks(s->seed, s->n_emitted) ? MM_SAMPLE_NAN
                                                                : MM_SAMPLE_EMPTY;
            m->token[which][i] = t;
            s->last = t < 0 ? 0 : t;
            s->n_emitted += t >= 0;
        }
        if (out[i].n_top >= 0)
            m->entry_value[which][out[i].entry] = score_of(h, t);
    }
}

/* ---------------------------------------------------------------- what to expect */

typedef struct expect {
    int32_t token[MAX_LEN], n;
    mm_finish finish;
    float score[MAX_LEN], prompt_score[MAX_LEN];
} expect;

static void mask_of(const mm_request *r, int32_t i_token, uint32_t mask[(V + 31) / 32])
{
    for (int k = 0; k < (V + 31) / 32; k++)
        mask[k] = (uint32_t)mix(mix(77, r->p.seed), (uint64_t)(i_token * 4 + k));
}

static void expect_of(const mm_request *r, int32_t max_len, expect *e)
{
    static int32_t all[MAX_LEN];
    uint64_t h = 1;
    uint32_t mask[(V + 31) / 32];
    memcpy(all, r->token, (size_t)r->n_prompt * 4);
    e->n = 0;
    e->finish = MM_FINISH_LENGTH;
    for (int32_t p = 0; p < r->n_prompt; p++) {
        if (p > 0)
            e->prompt_score[p] = score_of(h, all[p]);
        h = mix(h, (uint64_t)all[p]);
    }
    for (int32_t i = 0; i < r->p.max_tokens && r->n_prompt + i < max_len; i++) {
        mask_of(r, i, mask);
        int32_t t = i < r->p.n_forced
                        ? r->p.forced_token[i]
                        : draw(mix(mix(h, r->p.seed), (uint64_t)i), i, r->p.min_tokens, r->ban,
                               r->n_ban, r->p.want_mask ? mask : r->allowed);
        if (t < 0 || breaks(r->p.seed, i)) {
            e->finish = MM_FINISH_ERROR;
            return;
        }
        e->score[e->n] = score_of(h, t);
        e->token[e->n++] = t;
        h = mix(h, (uint64_t)t);
        if (t == EOS && i + 1 > r->p.min_tokens) {
            e->finish = MM_FINISH_STOP;
            return;
        }
    }
}

/* ---------------------------------------------------------------- the workload */

typedef struct job {
    mm_request *r;
    bool is_closed, was_aborted;
    int64_t done_at;
} job;

typedef struct world {
    mm_scheduler s;
    mm_request_limits req;
    mm_config config;
    mm_token_bytes bytes;
    machine m;
    job job[N];
    uint64_t rnd;
    int32_t n_closed, n_aborted;
} world;

static const int32_t eos[1] = {EOS};

static mm_request *new_request(world *w, int32_t i)
{
    static int32_t prompt[MAX_LEN];
    uint64_t *rnd = &w->rnd;
    mm_request_params p;
    mm_request_params_init(&p);
    const uint64_t family = (uint64_t)random_below(rnd, 4); /* prompts of a family share their
                                                               beginning */
    uint64_t text = family + 1;
    p.n_prompt = (int32_t)random_below(rnd, 700) + 1;
    for (int32_t k = 0; k < p.n_prompt; k++) {
        if (k == 300)
            text += (uint64_t)i * 1000;
        prompt[k] = (int32_t)random_below(&text, V);
    }
    const job *before = &w->job[i > 0 ? random_below(rnd, i) : 0];
    if (before->is_closed && random_below(rnd, 3) == 0 && mm_request_known(before->r) < 1000) {
        p.n_prompt = mm_request_known(before->r) + (int32_t)random_below(rnd, 3); /* the next turn
                                                                                   */
        memcpy(prompt, before->r->token, (size_t)mm_request_known(before->r) * sizeof *prompt);
    }
    p.prompt = prompt;
    p.max_tokens = random_below(rnd, 8) == 0 ? 0 : (int32_t)random_below(rnd, 200) + 1;
    if (random_below(rnd, 3) == 0) /* its last token would fill a page, but is never computed */
        p.max_tokens = MM_PAGE - p.n_prompt % MM_PAGE;
    if (random_below(rnd, 20) == 0)
        p.max_tokens = 5000; /* ends at the model length */
    p.min_tokens = random_below(rnd, 4) == 0 && p.max_tokens > 0
                       ? (int32_t)random_below(rnd, p.max_tokens < 100 ? p.max_tokens : 100)
                       : 0;
    p.seed = random_next(rnd);
    p.salt = random_below(rnd, 5) == 0;
    p.priority = w->req.has_priority ? (int32_t)random_below(rnd, 3) : 0;
    p.skip_prefix_read = random_below(rnd, 6) == 0;
    static const int32_t forced[3] = {1, EOS + 1, 9};
    if (random_below(rnd, 6) == 0 && p.max_tokens >= 3) {
        p.forced_token = forced;
        p.n_forced = 3;
    }
    if (random_below(rnd, 4) == 0)
        p.n_logprob = 0;
    if (random_below(rnd, 4) == 0) {
        p.n_prompt_logprob = 0;
        p.prompt_logprob_start = (int32_t)random_below(rnd, p.n_prompt) + 1;
    }
    static const int32_t allowed[40] = {EOS, 2, 3, 4, 6, 7, 8, 50, 51, 52, 53, 96};
    if (random_below(rnd, 8) == 0) {
        p.allowed_token = allowed;
        p.n_allowed = 12;
    } else if (random_below(rnd, 8) == 0 && p.max_tokens > 0) {
        p.want_mask = 1;
    }
    static float nowhere;
    static mm_trace trace = {.logits = &nowhere}; /* the machine writes nothing there */
    if (random_below(rnd, 12) == 0) {
        trace.n_prompt = p.n_prompt;
        p.trace = &trace;
        p.max_tokens = p.min_tokens = p.n_forced = p.want_mask = 0;
        p.n_prompt_logprob = -1;
    }
    if (i % 5 != 0 && i > 0 && random_below(rnd, 2) == 0)
        p.group = (uint64_t)(i / 5) + 1;
    mm_request *r = NULL;
    if (mm_request_open(&r, &p, &w->req, 1) != MM_OK) {
        printf("  %s\n", mm_error_message());
        abort();
    }
    r->id = (uint64_t)i + 1;
    r->is_held = true;
    return r;
}

static const char *take_news(world *w)
{
    for (mm_request *r = mm_scheduler_take_dirty(&w->s), *next; r != NULL; r = next) {
        next = r->dirty_next;
        r->is_dirty = false;
        job *j = &w->job[r->id - 1];
        if (j->is_closed)
            return "a closed request changed";
        if (!r->is_stale && memcmp(&r->pub, &r->out, sizeof r->out) != 0)
            return "an output changed unseen by readers";
        r->pub = r->out;
        r->is_stale = false;
        if (mm_scheduler_is_retired(r)) {
            j->is_closed = true;
            w->n_closed++;
        }
    }
    return NULL;
}

static const char *compare(const job *j, int32_t max_len)
{
    static expect e;
    const mm_request *r = j->r;
    expect_of(r, max_len, &e);
    if (r->out.finish != e.finish && !j->was_aborted)
        return "finish differs";
    if (r->n_token > e.n || (!j->was_aborted && r->n_token != e.n))
        return "number of tokens differs";
    for (int32_t i = 0; i < r->n_token; i++) {
        if (r->out.token[i] != e.token[i])
            return "a token differs";
        if (r->width > 0 && r->out.logprob[i] != e.score[i])
            return "a log-probability differs";
    }
    if (!j->was_aborted && r->out.n_prompt_row != r->n_score)
        return "prompt rows are missing";
    for (int32_t i = 0; i < r->out.n_prompt_row; i++)
        if (r->out.prompt_logprob[i] != e.prompt_score[r->p.prompt_logprob_start + i])
            return "a prompt row differs";
    return NULL;
}

typedef struct shape {
    int32_t n_page, run_ahead;
    bool has_cache, has_priority, aborts;
    int64_t max_entries;
} shape;

static const char *play(uint64_t seed, const shape *sh, int64_t *out_preempted, int64_t *out_cached)
{
    static world w;
    static uint8_t blob[2][1 << 20];
    static mm_step_result result[2];
    memset(&w, 0, sizeof w);
    w.rnd = seed;
    w.config.n_vocab = V;
    w.req = (mm_request_limits){.config = &w.config,
                                .bytes = &w.bytes,
                                .eos = eos,
                                .n_eos = 1,
                                .max_model_len = MAX_LEN,
                                .pool_tokens = (sh->n_page - 1) * MM_PAGE,
                                .max_logprobs = 20,
                                .max_entries = sh->max_entries,
                                .has_priority = sh->has_priority,
                                .has_prefix_cache = sh->has_cache,
                                .secret = {1, 2},
                                .weight_version = 1};
    w.req.max_len = (int32_t)mm_min_i64(MAX_LEN, w.req.pool_tokens);
    const mm_scheduler_limits lim = {.max_seqs = MAX_SEQS,
                                     .max_rows = ROWS,
                                     .max_pages = 64,
                                     .max_entries = sh->max_entries,
                                     .max_dynamic = mm_batch_max_dynamic(MAX_LEN, V),
                                     .run_ahead = sh->run_ahead};
    if (mm_scheduler_open(&w.s, &lim, &w.req, sh->n_page) != MM_OK)
        return "open failed";
    int32_t n_added = 0, n_launched = 0, n_collected = 0;
    int64_t idle = 0;
    const char *bad = NULL;
    while (bad == NULL && w.n_closed < N) {
        while (n_added < N && random_below(&w.rnd, 3) == 0) {
            w.job[n_added].r = new_request(&w, n_added);
            mm_scheduler_add(&w.s, w.job[n_added++].r);
        }
        for (int32_t i = 0; i < n_added; i++) {
            mm_request *r = w.job[i].r;
            if (w.job[i].is_closed || r->state == MM_REQUEST_DONE)
                continue;
            uint32_t mask[(V + 31) / 32];
            if (r->out.want_mask_token >= 0 && random_below(&w.rnd, 3) == 0) {
                mask_of(r, r->out.want_mask_token, mask);
                mm_scheduler_set_mask(&w.s, r, r->out.want_mask_token, mask);
            }
            if (sh->aborts && random_below(&w.rnd, 400) == 0) {
                w.job[i].was_aborted = true;
                w.n_aborted++;
                mm_scheduler_abort(&w.s, r);
            }
        }
        const mm_plan *plan = mm_scheduler_plan(&w.s);
        if (plan != NULL) {
            const mm_batch *b =
                mm_batch_build(plan, blob[n_launched % 2], mm_batch_max_bytes(&lim));
            run(&w.m, b, n_launched % 2, &result[n_launched % 2]);
            n_launched++;
            bad = w.m.wrong;
        } else if (w.s.n_in_flight == 0 && mm_scheduler_plan(&w.s) != NULL)
            bad = "a plan that was refused became possible by itself"; /* the coordinator would
                                                                          sleep */
        if (w.s.n_in_flight > 0 && (plan == NULL || w.s.n_in_flight > sh->run_ahead))
            mm_scheduler_commit(&w.s, &result[n_collected++ % 2]);
        if (mm_scheduler_check(&w.s) != MM_OK)
            bad = mm_error_message();
        const char *unseen = take_news(&w);
        if (unseen != NULL)
            bad = unseen;
        idle = plan == NULL && w.s.n_in_flight == 0 ? idle + 1 : 0;
        if (idle > 2000)
            bad = "nothing happens any more";
    }
    for (int32_t i = 0; i < n_added && bad == NULL; i++)
        bad = compare(&w.job[i], w.req.max_len);
    if (bad == NULL && (mm_kv_pool_held(&w.s.pool) != 0 || w.s.n_free_slot != MAX_SEQS ||
                        w.s.n_heap != 0 || w.s.n_blocked != 0))
        bad = "not everything came back";
    for (int i = 0; i < MM_GROUP_BUCKETS && bad == NULL; i++)
        bad = w.s.group[i] != NULL ? "a group is left" : NULL;
    *out_preempted += w.s.stats.n_preempted;
    *out_cached += w.s.stats.n_cached_token;
    for (int32_t i = 0; i < n_added; i++)
        mm_request_close(w.job[i].r);
    mm_scheduler_close(&w.s);
    return bad;
}

static void play_many(const char *name, const shape *sh, int32_t n, bool want_preempted,
                      bool want_cached)
{
    int64_t n_preempted = 0, n_cached = 0;
    for (int32_t i = 0; i < n; i++) {
        const char *bad = play((uint64_t)i * 31 + 5, sh, &n_preempted, &n_cached);
        MM_CHECK(bad == NULL, "%s, seed %d: %s", name, i, bad);
    }
    MM_CHECK((n_preempted > 0) == want_preempted, "%s: %lld preemptions", name,
             (long long)n_preempted);
    MM_CHECK((n_cached > 0) == want_cached, "%s: %lld cached tokens", name, (long long)n_cached);
}

MM_TEST(test_scheduler_roomy_pool_equals_alone)
{
    for (int32_t ahead = 0; ahead < 2; ahead++) {
        const shape sh = {.n_page = 64, .run_ahead = ahead, .has_cache = true, .max_entries = 4096};
        play_many("roomy", &sh, 12, false, true);
    }
}

MM_TEST(test_scheduler_tiny_pool_preempts_and_equals_alone)
{
    for (int32_t ahead = 0; ahead < 2; ahead++) {
        const shape sh = {.n_page = 13, .run_ahead = ahead, .has_cache = true, .max_entries = 4096};
        play_many("tiny", &sh, 12, true, true);
    }
}

MM_TEST(test_scheduler_without_cache_shares_within_groups_only)
{
    for (int32_t ahead = 0; ahead < 2; ahead++) {
        const shape sh = {.n_page = 64, .run_ahead = ahead, .max_entries = 4096};
        play_many("no cache", &sh, 12, false, true);
    }
}

MM_TEST(test_scheduler_priorities_and_aborts)
{
    for (int32_t ahead = 0; ahead < 2; ahead++) {
        const shape sh = {.n_page = 14,
                          .run_ahead = ahead,
                          .has_cache = true,
                          .has_priority = true,
                          .aborts = true,
                          .max_entries = 4096};
        play_many("aborts", &sh, 20, true, true);
    }
}

MM_TEST(test_scheduler_few_entries_cut_chunks_and_take_turns)
{
    for (int32_t ahead = 0; ahead < 2; ahead++) {
        const shape sh = {.n_page = 40, .run_ahead = ahead, .has_cache = true, .max_entries = 2};
        play_many("few entries", &sh, 6, false, true);
    }
}

MM_TEST(test_steps_of_a_host_are_kept_short)
{
    mm_scheduler s = {.lim = {.max_seqs = 64, .max_rows = 8192, .step_s = 0.4}};
    s.step_rows = mm_first_step_rows(&s.lim);
    MM_CHECK(s.step_rows == 512, "%d rows at first", s.step_rows);
    mm_scheduler_fit_steps(&s, 64, 0.01); /* decoding says nothing about prompts */
    MM_CHECK(s.step_rows == 512, "%d rows", s.step_rows);
    for (int i = 0; i < 10; i++) /* 100 us for a row: 0.4 s is 4000 of them */
        mm_scheduler_fit_steps(&s, s.step_rows, 1e-4 * s.step_rows);
    MM_CHECK(s.step_rows > 1000 && s.step_rows <= 4096, "%d rows", s.step_rows);
    for (int i = 0; i < 10; i++) /* contexts grow, rows take longer */
        mm_scheduler_fit_steps(&s, s.step_rows, 1e-3 * s.step_rows);
    MM_CHECK(s.step_rows == 512, "%d rows, not the least", s.step_rows);
    for (int i = 0; i < 10; i++)
        mm_scheduler_fit_steps(&s, s.step_rows, 1e-6 * s.step_rows);
    MM_CHECK(s.step_rows == 8192, "%d rows, not the most", s.step_rows);
    s.lim = (mm_scheduler_limits){.max_seqs = 64, .max_rows = 8192};
    s.step_rows = mm_first_step_rows(&s.lim);
    mm_scheduler_fit_steps(&s, 8192, 100);
    MM_CHECK(s.step_rows == 8192, "a device's steps are not cut");
}
