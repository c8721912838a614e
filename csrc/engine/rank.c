/* rank.c: the ranks' threads: opening (each on its own thread, while the caller's thread polls),
 * then a loop that starts posted batches and finishes started ones, oldest first. */
#include <pthread.h>
#include <stdio.h>

#include "csrc/base/env.h"
#include "csrc/engine/queue.h"
#include "csrc/engine/rank_buffers.h"
#include "csrc/engine/step.h"

typedef struct mm_rank {
    mm_ranks *all;
    int32_t index;
    pthread_t thread;
    mm_backend *backend;
    mm_comm *comm;
    mm_model *model;
    mm_rank_buffers buf;
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
    bool runs_here; /* one host rank, nothing planned ahead: a second thread would only cost time */
    int64_t n_page;
    mm_rank *rank; /* [n_rank] */
    void *blob[MM_MAX_IN_FLIGHT];
    int64_t n_collected; /* coordinator's */
    pthread_mutex_t lock;
    pthread_cond_t work, news;
    /* lock */
    const mm_batch *posted[MM_MAX_IN_FLIGHT];
    int64_t n_posted;
    bool is_stopping, is_cancelled;
    int32_t n_idle; /* ranks that serve no more */
    uint8_t comm_id[128];
    bool has_comm_id;
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

/* Pages of the pool, page 0 included. On a device without kv_bytes: what the fraction leaves after
 * the weights. */
static mm_status count_pages(const mm_rank *k, int64_t *out)
{
    const mm_engine_options *o = &k->all->engine;
    const int32_t world = o->shard_world > 1 ? o->shard_world : o->n_rank;
    const int64_t page =
        mm_model_page_bytes(o->config, o->kv_format, o->index_format, k->index, world);
    const int64_t one = mm_ceil_div(o->max_model_len, MM_PAGE) + o->max_num_seqs;
    const mm_backend_props *props = &k->backend->props;
    int64_t bytes = o->kv_bytes;
    if (bytes == 0 && !props->is_host) {
        int64_t weights = 0;
        for (int64_t i = 0; o->load == MM_LOAD_FILES && i < o->weights->n_entry; i++)
            weights += o->weights->entry[i].n_bytes;
        const double budget = o->memory_fraction * (double)props->memory_total;
        const int64_t usable = mm_min_i64((int64_t)budget, props->memory_free - ((int64_t)1 << 30));
        const int64_t step = 2 * ((int64_t)k->all->opt.max_logit_rows * o->config->n_vocab * 4) +
                             3 * k->all->opt.max_blob;
        bytes = usable - weights / world - step - ((int64_t)1 << 30);
        bytes = mm_min_i64(bytes, (one + 1) * page * 64); /* more than 64 full sequences serve
                                                             nobody */
    }
    const int64_t n = bytes > 0 ? bytes / page : one + 1;
    if (n < 2 || (o->kv_bytes == 0 && !props->is_host && bytes < 2 * page))
        return MM_FAIL_PARAM(MM_E_CONFIG, "kv_bytes", -1,
                             "%lld bytes are left for KV pages of %lld bytes; at least 2 pages are "
                             "needed: give kv_bytes or raise "
                             "memory_fraction",
                             (long long)bytes, (long long)page);
    *out = n;
    return MM_OK;
}

static mm_status open_rank(mm_rank *k)
{
    mm_ranks *r = k->all;
    const mm_engine_options *o = &r->engine;
    const mm_backend_options bo = {.name = o->backend,
                                   .device = o->device != NULL ? o->device[k->index] : k->index,
                                   .n_thread = o->n_thread};
    MM_TRY(mm_backend_open(&k->backend, &bo));
    MM_TRY(open_comm(k));
    int64_t n_page = 0;
    MM_TRY(count_pages(k, &n_page));
    const bool is_shard = o->shard_world > 1;
    k->engine = *o;
    k->engine.poll = leave_progress;
    k->engine.poll_ctx = k;
    const mm_model_options mo = {.engine = &k->engine,
                                 .backend = k->backend,
                                 .comm = k->comm,
                                 .shard_rank = is_shard ? o->shard_rank : k->index,
                                 .shard_world = is_shard ? o->shard_world : r->n_rank,
                                 .n_page = n_page,
                                 .max_logit_rows = r->opt.max_logit_rows};
    MM_TRY(mm_model_open(&k->model, &mo));
    const int32_t run_ahead = o->run_ahead >= 0 ? o->run_ahead : k->backend->props.is_host ? 0 : 1;
    MM_TRY(mm_rank_buffers_open(&k->buf, k->backend, &k->model->shape, &r->opt, run_ahead + 1));
    MM_TRY(k->backend->sync(k->backend, k->model->ctx.stream));
    if (k->index == 0) {
        r->n_page = n_page;
        r->run_ahead = run_ahead;
        r->runs_here = r->n_rank == 1 && run_ahead == 0 && k->backend->props.is_host;
        for (int32_t i = 0; i <= run_ahead; i++)
            MM_TRY(k->backend->alloc_host(k->backend, &r->blob[i], (size_t)r->opt.max_blob));
    }
    return MM_OK;
}

static void close_rank(mm_rank *k)
{
    if (k->backend == NULL)
        return;
    for (int32_t i = 0; i < MM_MAX_IN_FLIGHT && k->index == 0; i++)
        if (k->all->blob[i] != NULL)
            k->backend->free_host(k->backend, k->all->blob[i]);
    mm_rank_buffers_close(&k->buf, k->backend);
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

/* Starts what is posted, finishes the oldest started, until stopped. */
static void serve(mm_rank *k)
{
    mm_ranks *r = k->all;
    mm_step_context ctx = {
        .backend = k->backend, .model = k->model, .buf = &k->buf, .is_first = k->index == 0};
    int64_t n_started = 0, n_finished = 0;
    mm_status started[MM_MAX_IN_FLIGHT] = {MM_OK, MM_OK};
    for (;;) {
        pthread_mutex_lock(&r->lock);
        while (r->n_posted == n_started && n_finished == n_started && !r->is_stopping)
            pthread_cond_wait(&r->work, &r->lock);
        const bool has_new = r->n_posted > n_started;
        const bool stop = r->is_stopping && !has_new && n_finished == n_started;
        const mm_batch *batch = has_new ? r->posted[n_started % MM_MAX_IN_FLIGHT] : NULL;
        pthread_mutex_unlock(&r->lock);
        if (stop)
            return;
        if (batch != NULL) {
            const int i = (int)(n_started % MM_MAX_IN_FLIGHT);
            started[i] = mm_step_start(&ctx, batch, (int32_t)(n_started % k->buf.n_step));
            n_started++;
            if (started[i] != MM_OK) { /* its message must not be lost to the next call */
                report(k, started[i]);
                n_finished++;
                return;
            }
        } else {
            const mm_status st = mm_step_finish(&ctx, (int32_t)(n_finished % k->buf.n_step));
            n_finished++;
            report(k, st);
            if (st != MM_OK)
                return;
        }
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

/* The step itself, in the caller's thread. */
static void run_here(mm_rank *k, const mm_batch *batch)
{
    mm_step_context ctx = {
        .backend = k->backend, .model = k->model, .buf = &k->buf, .is_first = true};
    mm_status st = mm_step_start(&ctx, batch, 0);
    if (st == MM_OK)
        st = mm_step_finish(&ctx, 0);
    report(k, st);
}

void mm_ranks_launch(mm_ranks *r, const mm_batch *batch)
{
    if (r->runs_here) {
        r->n_posted++;
        run_here(&r->rank[0], batch);
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
    pthread_mutex_lock(&r->lock);
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
    mm_step_result *res = &r->rank[0].buf.step[i].host;
    res->n_block_read = res->n_block_held = 0;
    for (int32_t k = 0; k < r->n_rank; k++) {
        res->n_block_read += r->rank[k].buf.step[i].n_read[0];
        res->n_block_held += r->rank[k].buf.step[i].n_read[1];
    }
    *out = res;
    return MM_OK;
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
    const char *kind = k->backend->props.is_host ? "host" : "device";
    const mm_memory_line own[] = {
        {"sequence slots (sampling state)", kind, k->buf.slot_bytes},
        {"logits", kind, k->buf.logit_bytes},
        {"step buffers", kind, k->buf.step_bytes},
        {"batches", "host", r->opt.max_blob * (r->run_ahead + 1)},
    };
    for (int32_t i = 0; i < k->model->n_memory && n < cap; i++)
        line[n++] = k->model->memory[i];
    for (size_t i = 0; i < MM_ARRAY_LEN(own) && n < cap; i++)
        line[n++] = own[i];
    return n;
}
