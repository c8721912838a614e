/* rank.c: the ranks' threads: opening (each on its own thread, while the caller's thread polls),
 * then a loop that starts posted batches and finishes started ones, oldest first.
 *
 * A device must have its next step before it ends the one that runs. So a rank waits for a step
 * only when the coordinator does: until then the coordinator may still post another one, which a
 * rank that slept in a device's event could not start. */
#include <pthread.h>
#include <stdio.h>

#include "csrc/base/env.h"
#include "csrc/engine/batch_build.h"
#include "csrc/engine/graph.h"
#include "csrc/engine/memory.h"
#include "csrc/engine/queue.h"
#include "csrc/engine/rank.h"
#include "csrc/engine/warm.h"
#include "csrc/model/classes.h"

typedef struct mm_rank {
    mm_ranks *all;
    int32_t index;
    pthread_t thread;
    mm_backend *backend;
    mm_comm *comm;
    mm_model *model;
    mm_rank_buffers buf;
    mm_stream *copies; /* device: batches travel on it */
    mm_graphs graphs;
    int32_t graph_size[MM_MAX_GRAPH_SIZES], n_graph_size;
    int64_t n_page;
    mm_forecast *plan; /* of mm_ranks_plan only */
    bool is_planned;
    mm_engine_options engine; /* with our poll */
    /* lock */
    bool is_open, has_failed;
    int64_t n_done; /* batches finished */
    int64_t bytes_done, bytes_total;
    mm_error error;
} mm_rank;

struct mm_ranks {
    mm_ranks_options opt;
    mm_engine_options engine;
    int32_t n_rank, n_thread, run_ahead;
    bool runs_here; /* one rank: another thread would only cost time */
    int64_t n_page;
    mm_rank *rank; /* [n_rank] */
    void *blob[MM_MAX_IN_FLIGHT];
    int64_t n_collected; /* coordinator's */
    pthread_mutex_t lock;
    pthread_cond_t work, news;
    /* lock */
    const mm_batch *posted[MM_MAX_IN_FLIGHT];
    int64_t n_posted;
    int64_t n_wanted; /* batches the coordinator waits for, or has */
    bool is_stopping, is_cancelled;
    int32_t n_idle; /* ranks that serve no more */
    uint8_t comm_id[128];
    bool has_comm_id, has_ring;
};

/* ---------------------------------------------------------------- opening */

/* In the rank's thread: leaves the numbers for the opening thread, takes back its wish to stop. */
static int leave_progress(void *ctx, int64_t bytes_done, int64_t bytes_total)
{
    mm_rank *k = ctx;
    pthread_mutex_lock(&k->all->lock);
    k->bytes_done = bytes_done;
    k->bytes_total = bytes_total;
    const bool stop = k->all->is_cancelled;
    pthread_mutex_unlock(&k->all->lock);
    return stop;
}

static mm_status open_comm(mm_rank *k)
{
    mm_ranks *r = k->all;
    if (r->n_rank == 1)
        return mm_comm_open_self(&k->comm);
    if (k->backend->comm_open == NULL)
        return MM_FAIL_PARAM(
            MM_E_UNSUPPORTED, "tensor_parallel_size", -1,
            "backend \"%s\" runs one rank, %d were asked: use tensor_parallel_size=1",
            k->backend->props.name, r->n_rank);
    uint8_t id[sizeof r->comm_id];
    const mm_status made = k->index == 0 ? k->backend->comm_id(k->backend, id) : MM_OK;
    pthread_mutex_lock(&r->lock);
    if (k->index == 0 && made == MM_OK) {
        memcpy(r->comm_id, id, sizeof id);
        r->has_comm_id = true;
        pthread_cond_broadcast(&r->work);
    }
    while (made == MM_OK && !r->has_comm_id && !r->is_cancelled)
        pthread_cond_wait(&r->work, &r->lock);
    memcpy(id, r->comm_id, sizeof id);
    const bool is_ready = r->has_comm_id;
    pthread_mutex_unlock(&r->lock);
    MM_TRY(made);
    if (!is_ready)
        return MM_FAIL(MM_E_CANCELLED, "another rank failed to open");
    return k->backend->comm_open(k->backend, &k->comm, id, k->index, r->n_rank);
}

/* The coordinator builds batches in one ring; captured steps of every rank look there. */
static mm_status open_ring(mm_rank *k)
{
    mm_ranks *r = k->all;
    mm_ring *ring = &k->buf.ring;
    mm_status made = MM_OK;
    for (int32_t i = 0; i < ring->n && k->index == 0 && made == MM_OK; i++)
        made = k->backend->alloc_host(k->backend, &r->blob[i], (size_t)r->opt.max_blob);
    pthread_mutex_lock(&r->lock);
    if (k->index == 0 && made == MM_OK) {
        r->has_ring = true;
        pthread_cond_broadcast(&r->work);
    }
    while (made == MM_OK && !r->has_ring && !r->is_cancelled)
        pthread_cond_wait(&r->work, &r->lock);
    const bool is_ready = r->has_ring;
    pthread_mutex_unlock(&r->lock);
    MM_TRY(made);
    if (!is_ready)
        return MM_FAIL(MM_E_CANCELLED, "another rank failed to open");
    ring->n_bytes = r->opt.max_blob;
    for (int32_t i = 0; i < ring->n; i++)
        ring->batch[i] = r->blob[i];
    return MM_OK;
}

static int32_t run_ahead(const mm_rank *k)
{
    const int32_t asked = k->all->engine.run_ahead;
    if (mm_env_get()->profile == 1) /* ops are timed one step at a time */
        return 0;
    return asked >= 0 ? asked : k->backend->props.is_host ? 0 : 1;
}

/* Diagnostics look at every op from the host. */
static bool is_diagnosed(void)
{
    const mm_env *env = mm_env_get();
    return env->check || env->profile == 1 || (env->probe != NULL && env->probe[0] != 0) ||
           (env->dump != NULL && env->dump[0] != 0);
}

/* What a graph holds cannot be looked at. */
static bool has_graphs(const mm_rank *k)
{
    return k->backend->props.has_graph && mm_env_get()->graph && !is_diagnosed() &&
           !k->all->engine.enforce_eager;
}

/* Who diagnoses wants to see the steps of requests alone, MM_SYNC=1 whose op it was that failed. */
static bool warms_up(const mm_rank *k)
{
    return !k->backend->props.is_host && !is_diagnosed() && !mm_env_get()->sync;
}

/* A sequence has no more rows than positions. */
static mm_graph_range graph_range(const mm_rank *k)
{
    const mm_engine_options *o = &k->all->engine;
    return (mm_graph_range){.size = k->graph_size,
                            .n_size = k->n_graph_size,
                            .most_rows = (int32_t)mm_min_i64(o->graph_rows, o->max_model_len),
                            .max_rows = o->max_batched_tokens};
}

/* The rank's own lines, `n` of them so far. */
static int32_t own_memory(const mm_rank *k, mm_memory_line *line, int32_t n, int32_t cap)
{
    const char *kind = k->backend->props.is_host ? "host" : "device";
    const int64_t blobs = k->all->opt.max_blob * (run_ahead(k) + 1);
    const mm_graph_range graphs = graph_range(k);
    const mm_memory_line own[] = {
        {"sequence slots (sampling state)", kind, k->buf.slot_bytes},
        {"logits", kind, k->buf.logit_bytes},
        {"step buffers", kind, k->buf.step_bytes},
        {"captured graphs (estimate)", kind,
         mm_graphs_bytes(&graphs, k->all->engine.config->n_layer)},
        {"batches and results", "host", blobs + k->buf.host_bytes},
    };
    for (size_t i = 0; i < MM_ARRAY_LEN(own) && n < cap; i++)
        if (own[i].n_bytes > 0)
            line[n++] = own[i];
    return n;
}

enum { ROUNDING = 1 << 16 }; /* what the parts of a layout may take beyond their share */

/* Bytes that steps of `rows` take of what the lines say of steps of max_batched_tokens. */
static int64_t step_bytes(const void *rank, const void *model, int32_t rows)
{
    const mm_rank *k = rank;
    const mm_model *m = model;
    mm_op_shape shape = m->shape;
    mm_ranks_options opt = k->all->opt;
    mm_rank_buffers buf;
    const int64_t most = m->shape.max_rows;
    int64_t n = rows < most ? ROUNDING : 0;
    for (int32_t i = 0; i < m->n_memory; i++)
        if (strcmp(m->memory[i].what, "activations") == 0)
            n += m->memory[i].n_bytes / most * rows + m->memory[i].n_bytes % most * rows / most;
    shape.max_rows = opt.limits.max_rows = rows;
    shape.max_logit_rows = opt.max_logit_rows = (int32_t)mm_min_i64(rows, opt.max_logit_rows);
    opt.max_blob = mm_batch_max_bytes(&opt.limits);
    mm_rank_buffers_measure(&buf, &shape, &opt, run_ahead(k) + 1, k->backend->props.is_host);
    n += (int64_t)k->backend->ops->scratch_bytes(&shape, k->backend->props.n_thread);
    return n + buf.logit_bytes + buf.step_bytes;
}

/* Lines of all that is not pages, and what decides how many pages there are. */
static mm_memory_need need_of(mm_rank *k, const mm_model *m, mm_memory_line *line, int32_t cap)
{
    const mm_engine_options *o = &k->all->engine;
    const int32_t world = o->shard_world > 1 ? o->shard_world : o->n_rank;
    const int64_t one = mm_ceil_div(o->max_model_len, MM_PAGE) + o->max_num_seqs;
    MM_ASSERT(m->n_memory <= cap);
    memcpy(line, m->memory, (size_t)m->n_memory * sizeof *line);
    mm_rank_buffers_measure(&k->buf, &m->shape, &k->all->opt, run_ahead(k) + 1,
                            k->backend->props.is_host);
    if (has_graphs(k))
        k->n_graph_size = mm_graph_sizes(k->graph_size, o->graph_size, o->n_graph_size,
                                         o->max_num_seqs, o->max_batched_tokens);
    int64_t rows = 0;
    for (int32_t i = 0; i < m->n_memory; i++)
        if (strcmp(m->memory[i].what, "activations") == 0)
            rows = m->memory[i].n_bytes / m->shape.max_rows;
    return (mm_memory_need){.line = line,
                            .n_line = own_memory(k, line, m->n_memory, cap),
                            .page_bytes = mm_model_page_bytes(o->config, o->kv_format,
                                                              o->index_format, k->index, world),
                            .most_pages = (one + 1) * 64,
                            .row_bytes = rows,
                            .step_bytes = step_bytes,
                            .rank = k,
                            .model = m};
}

/* Called by the model when its sizes are known and nothing is loaded. */
static mm_status plan_memory(void *ctx, const mm_model *m, int64_t *n_page)
{
    mm_rank *k = ctx;
    mm_memory_line line[MM_ARRAY_LEN(m->memory) + 8];
    const mm_memory_need need = need_of(k, m, line, (int32_t)MM_ARRAY_LEN(line));
    MM_TRY(mm_memory_plan(&k->all->engine, &k->backend->props, &need, n_page));
    k->n_page = *n_page;
    return MM_OK;
}

/* The same, for mm_ranks_plan: what was found is written down, and opening ends here. */
static mm_status foresee(void *ctx, const mm_model *m, int64_t *n_page)
{
    mm_rank *k = ctx;
    mm_forecast *p = k->plan;
    const mm_engine_options *o = &k->all->engine;
    const mm_memory_need need = need_of(k, m, p->line, (int32_t)MM_ARRAY_LEN(p->line));
    p->n_line = need.n_line;
    p->page_bytes = need.page_bytes;
    p->row_bytes = need.row_bytes;
    for (int32_t i = 0; i < m->config.n_layer; i++)
        if (m->layer[i].is_sparse)
            p->index_page_bytes +=
                MM_PAGE * (mm_cache_row_bytes(o->index_format, m->config.index_dim) +
                           mm_cache_row_scale_bytes(o->index_format, m->config.index_dim));
    mm_model_classes(m, p->weights);
    *n_page = 0;
    const mm_status st = mm_memory_plan(o, &k->backend->props, &need, n_page);
    if (st != MM_OK) {
        mm_error e;
        mm_error_take(&e, st);
        _Static_assert(sizeof p->param == sizeof e.param && sizeof p->problem == sizeof e.text,
                       "the same texts");
        memcpy(p->param, e.param, sizeof e.param);
        memcpy(p->problem, e.text, sizeof e.text);
    }
    p->n_page = *n_page;
    k->is_planned = true;
    return MM_FAIL(MM_E_CANCELLED, "only a plan was asked for");
}

static mm_step_context step_context(mm_rank *k)
{
    return (mm_step_context){.backend = k->backend,
                             .model = k->model,
                             .buf = &k->buf,
                             .copies = k->copies,
                             .graphs = &k->graphs,
                             .is_first = k->index == 0};
}

static mm_status open_rank(mm_rank *k)
{
    mm_ranks *r = k->all;
    const mm_engine_options *o = &r->engine;
    const mm_backend_options bo = {.name = o->backend,
                                   .device = o->device != NULL ? o->device[k->index] : k->index,
                                   .n_thread = o->n_thread};
    MM_TRY(mm_backend_open(&k->backend, &bo));
    mm_backend *be = k->backend;
    MM_TRY(open_comm(k));
    const bool is_shard = o->shard_world > 1;
    k->engine = *o;
    k->engine.poll = leave_progress;
    k->engine.poll_ctx = k;
    const mm_model_options mo = {.engine = &k->engine,
                                 .backend = be,
                                 .comm = k->comm,
                                 .shard_rank = is_shard ? o->shard_rank : k->index,
                                 .shard_world = is_shard ? o->shard_world : r->n_rank,
                                 .max_logit_rows = r->opt.max_logit_rows,
                                 .plan = plan_memory,
                                 .plan_ctx = k};
    MM_TRY(mm_model_open(&k->model, &mo));
    MM_TRY(mm_rank_buffers_open(&k->buf, be, &k->model->shape, &r->opt, run_ahead(k) + 1));
    if (!be->props.is_host)
        MM_TRY(be->stream_open(be, &k->copies, 0));
    if (k->index == 0) {
        r->n_page = k->n_page;
        r->run_ahead = run_ahead(k);
        /* a device queues steps and returns; a host computes them, which overlaps with nothing if
         * nothing is planned ahead */
        r->runs_here = r->n_rank == 1 && (!be->props.is_host || r->run_ahead == 0);
    }
    MM_TRY(open_ring(k));
    mm_step_context ctx = step_context(k);
    ctx.graphs = NULL;
    if (warms_up(k))
        MM_TRY(mm_warm_up(&ctx, r->opt.max_blob));
    if (k->n_graph_size > 0) {
        const mm_graph_range range = graph_range(k);
        MM_TRY(mm_graphs_open(&k->graphs, &ctx, &range));
    }
    return be->sync(be, k->model->ctx.stream);
}

mm_status mm_ranks_plan(const mm_ranks_options *opt, mm_backend *be, mm_forecast *out)
{
    const mm_engine_options *o = opt->engine;
    const bool is_shard = o->shard_world > 1;
    mm_ranks all = {.opt = *opt, .engine = *o, .n_rank = o->n_rank};
    all.opt.engine = &all.engine;
    mm_rank k = {.all = &all, .backend = be, .engine = *o, .plan = out};
    mm_model *never = NULL;
    const mm_model_options mo = {.engine = &k.engine,
                                 .backend = be,
                                 .shard_rank = is_shard ? o->shard_rank : 0,
                                 .shard_world = is_shard ? o->shard_world : o->n_rank,
                                 .max_logit_rows = opt->max_logit_rows,
                                 .plan = foresee,
                                 .plan_ctx = &k};
    *out = (mm_forecast){.is_host = be->props.is_host,
                         .memory_total = be->props.memory_total,
                         .memory_free = be->props.memory_free,
                         .reserve = be->props.is_host ? 0 : MM_DEVICE_RESERVE};
    const mm_status st = mm_model_open(&never, &mo);
    MM_ASSERT(never == NULL);
    if (!k.is_planned)
        return st;
    mm_error_clear();
    return MM_OK;
}

static void close_rank(mm_rank *k)
{
    if (k->backend == NULL)
        return;
    for (int32_t i = 0; i < MM_MAX_IN_FLIGHT && k->index == 0; i++)
        if (k->all->blob[i] != NULL)
            k->backend->free_host(k->backend, k->all->blob[i]);
    mm_graphs_close(&k->graphs, k->backend);
    mm_rank_buffers_close(&k->buf, k->backend);
    if (k->copies != NULL)
        k->backend->stream_close(k->backend, k->copies);
    mm_model_close(k->model);
    mm_comm_close(k->comm);
    mm_backend_close(k->backend);
    k->model = NULL;
    k->backend = NULL;
}

/* ---------------------------------------------------------------- running */

static void report(mm_rank *k, mm_status st)
{
    mm_ranks *r = k->all;
    pthread_mutex_lock(&r->lock);
    if (st != MM_OK && !k->has_failed) {
        k->has_failed = true;
        mm_error_take(&k->error, st);
    }
    k->n_done++;
    pthread_cond_broadcast(&r->news);
    pthread_mutex_unlock(&r->lock);
}

/* Starts what is posted, finishes the oldest started once it is wanted, until stopped. */
static void serve(mm_rank *k)
{
    mm_ranks *r = k->all;
    mm_step_context ctx = step_context(k);
    int64_t n_started = 0, n_finished = 0;
    for (;;) {
        pthread_mutex_lock(&r->lock);
        while (r->n_posted == n_started && r->n_wanted <= n_finished && !r->is_stopping)
            pthread_cond_wait(&r->work, &r->lock);
        const bool has_new = r->n_posted > n_started;
        const mm_batch *batch = has_new ? r->posted[n_started % MM_MAX_IN_FLIGHT] : NULL;
        pthread_mutex_unlock(&r->lock);
        if (!has_new && n_finished == n_started)
            return; /* stopping */
        mm_status st;
        if (has_new) {
            st = mm_step_start(&ctx, batch, (int32_t)(n_started++ % k->buf.n_step));
            if (st == MM_OK)
                continue;
        } else {
            st = mm_step_finish(&ctx, (int32_t)(n_finished++ % k->buf.n_step));
        }
        report(k, st);
        if (st != MM_OK) /* its message must not be lost to the next call */
            return;
    }
}

static void *rank_main(void *arg)
{
    mm_rank *k = arg;
    mm_ranks *r = k->all;
    const mm_status st = open_rank(k);
    pthread_mutex_lock(&r->lock);
    k->is_open = true;
    if (st != MM_OK) {
        k->has_failed = true;
        mm_error_take(&k->error, st);
        r->is_cancelled = true; /* the others need not go on */
        pthread_cond_broadcast(&r->work);
    }
    pthread_cond_broadcast(&r->news);
    pthread_mutex_unlock(&r->lock);
    if (st == MM_OK && !r->runs_here)
        serve(k);
    /* What a rank holds is freed in its thread, once no rank can be reading it any more. */
    pthread_mutex_lock(&r->lock);
    r->n_idle++;
    pthread_cond_broadcast(&r->work);
    while (!r->is_stopping || r->n_idle < r->n_thread)
        pthread_cond_wait(&r->work, &r->lock);
    pthread_mutex_unlock(&r->lock);
    close_rank(k);
    return NULL;
}

/* Calls the caller's poll ten times a second until all ranks are open. True: it asked to stop. */
static bool wait_open(mm_ranks *r, const mm_engine_options *user)
{
    bool is_refused = false;
    int64_t n_poll = 0;
    pthread_mutex_lock(&r->lock);
    for (;;) {
        int32_t n_open = 0;
        int64_t done = 0, total = 0;
        for (int32_t i = 0; i < r->n_thread; i++) {
            n_open += r->rank[i].is_open;
            done += r->rank[i].bytes_done;
            total += r->rank[i].bytes_total;
        }
        if (n_open == r->n_thread && n_poll > 0)
            break;
        /* Who said no is not asked again: a Python exception may be pending. */
        const bool may_poll = user->poll != NULL && !r->is_cancelled;
        pthread_mutex_unlock(&r->lock);
        n_poll++; /* at least once, however quick the load */
        const bool stop = may_poll && user->poll(user->poll_ctx, done, total) != 0;
        pthread_mutex_lock(&r->lock);
        if (stop) {
            is_refused = true;
            r->is_cancelled = true;
            pthread_cond_broadcast(&r->work);
        }
        bool all_open = true;
        for (int32_t i = 0; i < r->n_thread; i++)
            all_open = all_open && r->rank[i].is_open;
        if (!all_open)
            mm_cond_wait_until(&r->news, &r->lock, mm_now() + 0.1);
    }
    pthread_mutex_unlock(&r->lock);
    return is_refused;
}

/* The error of the first rank that failed by itself: one that was only told to stop comes last. */
static mm_status first_error(mm_ranks *r)
{
    const mm_rank *worst = NULL;
    for (int32_t i = 0; i < r->n_rank; i++) {
        const mm_rank *k = &r->rank[i];
        if (k->has_failed && (worst == NULL || (worst->error.status == MM_E_CANCELLED &&
                                                k->error.status != MM_E_CANCELLED)))
            worst = k;
    }
    if (worst == NULL)
        return MM_OK;
    char prefix[32] = "";
    if (r->n_rank > 1)
        (void)snprintf(prefix, sizeof prefix, "rank %d: ", worst->index);
    return mm_error_raise(&worst->error, prefix);
}

mm_status mm_ranks_open(mm_ranks **out, const mm_ranks_options *opt)
{
    *out = NULL;
    mm_status st = MM_OK;
    mm_ranks *r = calloc(1, sizeof *r);
    if (r == NULL)
        return MM_FAIL(MM_E_NOMEM, "no host memory for the ranks");
    r->opt = *opt;
    r->engine = *opt->engine;
    r->opt.engine = &r->engine;
    r->n_rank = opt->engine->n_rank;
    r->rank = calloc((size_t)r->n_rank, sizeof *r->rank);
    if (r->rank == NULL || pthread_mutex_init(&r->lock, NULL) != 0) {
        free(r->rank);
        free(r);
        return MM_FAIL(MM_E_NOMEM, "no host memory for %d ranks", opt->engine->n_rank);
    }
    st = mm_cond_open(&r->work);
    if (st == MM_OK && (st = mm_cond_open(&r->news)) != MM_OK)
        (void)pthread_cond_destroy(&r->work);
    if (st != MM_OK) {
        (void)pthread_mutex_destroy(&r->lock);
        free(r->rank);
        free(r);
        return st;
    }
    (void)mm_env_get(); /* read once, before there are threads */
    for (int32_t i = 0; i < r->n_rank && st == MM_OK; i++) {
        r->rank[i].all = r;
        r->rank[i].index = i;
        const int err = pthread_create(&r->rank[i].thread, NULL, rank_main, &r->rank[i]);
        if (err != 0)
            st = MM_FAIL(MM_E_NOMEM, "no thread for rank %d: %s", i, strerror(err));
        else
            r->n_thread++;
    }
    if (st != MM_OK) { /* ranks already started must not wait for those that never will */
        pthread_mutex_lock(&r->lock);
        r->is_cancelled = true;
        pthread_cond_broadcast(&r->work);
        pthread_mutex_unlock(&r->lock);
    }
    const bool is_refused = wait_open(r, opt->engine);
    if (st == MM_OK)
        st = first_error(r);
    if (is_refused) /* even if everything was open, or something else failed, meanwhile */
        st = MM_FAIL(MM_E_CANCELLED, "opening was cancelled");
    r->engine.poll = NULL;
    if (st != MM_OK) {
        mm_error keep;
        mm_error_take(&keep, st);
        mm_ranks_close(r);
        return mm_error_raise(&keep, "");
    }
    *out = r;
    return MM_OK;
}

void mm_ranks_close(mm_ranks *r)
{
    if (r == NULL)
        return;
    pthread_mutex_lock(&r->lock);
    r->is_stopping = true;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
    for (int32_t i = 0; i < r->n_thread; i++)
        (void)pthread_join(r->rank[i].thread, NULL);
    (void)pthread_cond_destroy(&r->work);
    (void)pthread_cond_destroy(&r->news);
    (void)pthread_mutex_destroy(&r->lock);
    free(r->rank);
    free(r);
}

/* ---------------------------------------------------------------- the coordinator's side */

void *mm_ranks_blob(mm_ranks *r)
{
    MM_ASSERT(r->n_posted - r->n_collected <= r->run_ahead);
    return r->blob[r->n_posted % (r->run_ahead + 1)];
}

/* In the coordinator's thread, where one rank runs there. */
static void start_here(mm_ranks *r, const mm_batch *batch)
{
    mm_rank *k = &r->rank[0];
    mm_step_context ctx = step_context(k);
    const int32_t i = (int32_t)(r->n_posted++ % k->buf.n_step);
    if (k->has_failed) /* a step that never began has not taken its turn either */
        return;
    const mm_status st = mm_step_start(&ctx, batch, i);
    if (st != MM_OK)
        report(k, st);
}

static void finish_here(mm_ranks *r)
{
    mm_rank *k = &r->rank[0];
    mm_step_context ctx = step_context(k);
    if (!k->has_failed)
        report(k, mm_step_finish(&ctx, (int32_t)(r->n_collected % k->buf.n_step)));
}

void mm_ranks_launch(mm_ranks *r, const mm_batch *batch)
{
    if (r->runs_here) {
        start_here(r, batch);
        return;
    }
    pthread_mutex_lock(&r->lock);
    r->posted[r->n_posted % MM_MAX_IN_FLIGHT] = batch;
    r->n_posted++;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
}

mm_status mm_ranks_collect(mm_ranks *r, const mm_step_result **out)
{
    bool has_failed = false;
    if (r->runs_here)
        finish_here(r);
    pthread_mutex_lock(&r->lock);
    r->n_wanted = r->n_collected + 1;
    if (!r->runs_here)
        pthread_cond_broadcast(&r->work);
    for (int32_t i = 0; i < r->n_rank; i++) {
        while (r->rank[i].n_done <= r->n_collected && !has_failed) {
            for (int32_t j = 0; j < r->n_rank; j++)
                has_failed = has_failed || r->rank[j].has_failed;
            if (!has_failed)
                pthread_cond_wait(&r->news, &r->lock);
        }
        has_failed = has_failed || r->rank[i].has_failed;
    }
    if (has_failed) /* peers may wait for the failed rank inside a collective */
        for (int32_t i = 0; i < r->n_rank; i++)
            if (r->rank[i].comm->abort != NULL)
                r->rank[i].comm->abort(r->rank[i].comm);
    const mm_status st = first_error(r);
    pthread_mutex_unlock(&r->lock);
    MM_TRY(st);
    const int32_t i = (int32_t)(r->n_collected++ % (r->run_ahead + 1));
    mm_step_result *res = &r->rank[0].buf.step[i].result;
    res->n_block_read = res->n_block_held = 0;
    for (int32_t k = 0; k < r->n_rank; k++) {
        res->n_block_read += r->rank[k].buf.step[i].n_read[0];
        res->n_block_held += r->rank[k].buf.step[i].n_read[1];
    }
    *out = res;
    return MM_OK;
}

void mm_ranks_profile(mm_ranks *r, mm_profile_host_part part, double seconds)
{
    const int64_t n = part == MM_PROFILE_PLAN ? r->n_posted : r->n_collected - 1;
    if (r->runs_here)
        mm_profile_host(r->rank[0].model, (int32_t)(n % r->rank[0].buf.n_step), part, seconds);
}

int32_t mm_ranks_run_ahead(const mm_ranks *r)
{
    return r->run_ahead;
}

int64_t mm_ranks_n_page(const mm_ranks *r)
{
    return r->n_page;
}

const mm_backend_props *mm_ranks_props(const mm_ranks *r)
{
    return &r->rank[0].backend->props;
}

const mm_model *mm_ranks_model(const mm_ranks *r)
{
    return r->rank[0].model;
}

int32_t mm_ranks_memory(const mm_ranks *r, mm_memory_line *line, int32_t n, int32_t cap)
{
    const mm_rank *k = &r->rank[0];
    for (int32_t i = 0; i < k->model->n_memory && n < cap; i++)
        line[n++] = k->model->memory[i];
    return own_memory(k, line, n, cap);
}
