/* engine_open.c: mm_engine_open and mm_engine_close. Order of opening: checks and copies, ranks
 * (the model and all device memory), scheduler, coordinator thread. The struct itself outlives
 * close while waiters refer to it. */
#include <stdio.h>
#include <unistd.h>

#include "csrc/base/env.h"
#include "csrc/base/log.h"
#include "csrc/engine/batch_build.h"
#include "csrc/engine/engine.h"
#include "csrc/engine/graph.h"
#include "csrc/model/shape.h"
#include "kernels/plan_backend.h"

void mm_engine_options_init(mm_engine_options *o)
{
    *o = (mm_engine_options){
        .size = sizeof *o,
        .backend = "auto",
        .load = MM_LOAD_FILES,
        .dtype = MM_DTYPE_BF16,
        .kv_format = MM_CACHE_BF16,
        .index_format = MM_CACHE_BF16,
        .n_rank = 1,
        .shard_world = 1,
        .max_model_len = 4096,
        .max_num_seqs = 256,
        .max_batched_tokens = 8192,
        .memory_fraction = 0.9,
        .max_logprobs = 20,
        .enable_prefix_cache = 1,
        .graph_rows = 1,
        .run_ahead = -1,
    };
}

mm_status mm_engine_check_process(const mm_engine *e)
{
    if (e->pid == getpid())
        return MM_OK;
    return MM_FAIL(
        MM_E_FORKED,
        "the engine was opened in process %d, this is %d: open an engine of your own after a fork",
        (int)e->pid, (int)getpid());
}

/* ---------------------------------------------------------------- checks */

enum { MOST_WORLD = 64 };

#define BAD(param, ...) return MM_FAIL_PARAM(MM_E_CONFIG, param, -1, __VA_ARGS__)

/* A list that asks for graphs, none of which could ever be used, or for more than can be kept. */
static mm_status check_graph_sizes(const mm_engine_options *o)
{
    int32_t kept[MM_MAX_GRAPH_SIZES], n_small = 0;
    for (int32_t i = 0; i < o->n_graph_size; i++) {
        if (o->graph_size[i] < 1)
            BAD("cuda_graph_batch_sizes",
                "cuda_graph_batch_sizes: a batch size of %d cannot be captured, it must be 1 or "
                "more",
                o->graph_size[i]);
        n_small += o->graph_size[i] <= o->max_num_seqs;
    }
    if (o->n_graph_size > 0 && n_small == 0)
        BAD("cuda_graph_batch_sizes",
            "cuda_graph_batch_sizes: all of them are above max_num_seqs=%d: add smaller ones, "
            "leave them to \"auto\", or set enforce_eager=True to capture nothing",
            o->max_num_seqs);
    const int32_t n =
        mm_graph_sizes(kept, o->graph_size, o->n_graph_size, o->max_num_seqs, o->max_num_seqs);
    for (int32_t i = 0; i < o->n_graph_size && n == MM_MAX_GRAPH_SIZES; i++)
        if (o->graph_size[i] <= o->max_num_seqs && o->graph_size[i] > kept[n - 1])
            BAD("cuda_graph_batch_sizes",
                "cuda_graph_batch_sizes: %d of its entries lie within max_num_seqs=%d, at most %d "
                "sizes can be captured: leave some out, or use \"auto\"",
                n_small, o->max_num_seqs, MM_MAX_GRAPH_SIZES);
    return MM_OK;
}

/* How the model is cut, if it is: a refusal names the worlds that work. */
static mm_status check_world(const mm_engine_options *o)
{
    const bool is_shard = o->shard_world > 1;
    const int32_t world = is_shard ? o->shard_world : o->n_rank;
    const mm_status st = mm_shard_check(o->config, is_shard ? o->shard_rank : 0, world);
    if (st == MM_OK)
        return MM_OK;
    mm_error why;
    char works[160] = "1"; /* "1, 2, 4" */
    mm_error_take(&why, st);
    for (int32_t n = 2, used = 1; n <= MOST_WORLD && used < (int32_t)sizeof works - 8; n++)
        if (mm_shard_check(o->config, 0, n) == MM_OK)
            used += snprintf(works + used, sizeof works - (size_t)used, ", %d", n);
    mm_error_clear();
    const char *name = is_shard ? "shard" : "tensor_parallel_size";
    if (is_shard)
        BAD(name, "shard=(%d, %d): a world of %s works: %s", o->shard_rank, world, works, why.text);
    BAD(name, "tensor_parallel_size=%d: %s ranks work: %s", world, works, why.text);
}

static mm_status check_options(const mm_engine_options *o)
{
    const char *name, *wrong;
    if (o == NULL || o->size != sizeof *o)
        return MM_FAIL(MM_E_CONFIG,
                       "mm_engine_options has size %u, this library's is %zu: call "
                       "mm_engine_options_init first",
                       o == NULL ? 0u : o->size, sizeof *o);
    wrong = mm_env_bad_value(&name);
    if (wrong != NULL)
        BAD(name, "%s", wrong);
    if (o->config == NULL)
        BAD("config", "no model configuration was given");
    MM_TRY(mm_config_check(o->config));
    if (o->load != MM_LOAD_FILES && o->load != MM_LOAD_DUMMY)
        BAD("load_format", "load_format %d does not exist", (int)o->load);
    if (o->load == MM_LOAD_FILES && o->weights == NULL)
        BAD("load_format", "loading from files needs a table of tensors");
    if (o->n_rank < 1 || o->n_rank > MOST_WORLD)
        BAD("tensor_parallel_size", "tensor_parallel_size is %d; it must be 1 to %d", o->n_rank,
            MOST_WORLD);
    if (o->shard_world < 1 || o->shard_rank < 0 || o->shard_rank >= o->shard_world)
        BAD("shard", "shard %d of %d does not exist", o->shard_rank, o->shard_world);
    if (o->shard_world > 1 && o->n_rank > 1)
        BAD("shard", "shard runs one rank alone; tensor_parallel_size is %d: leave one of them out",
            o->n_rank);
    MM_TRY(check_world(o));
    if (o->max_model_len < 1 || o->max_model_len > o->config->max_position)
        BAD("max_model_len", "max_model_len is %d; this model takes 1 to %d", o->max_model_len,
            o->config->max_position);
    if (o->max_num_seqs < 1 || o->max_num_seqs > 65536)
        BAD("max_num_seqs", "max_num_seqs is %d; it must be 1 to 65536", o->max_num_seqs);
    if (o->max_batched_tokens < MM_PAGE || o->max_batched_tokens % MM_PAGE != 0)
        BAD("max_num_batched_tokens",
            "max_num_batched_tokens is %d; it must be a positive multiple of %d",
            o->max_batched_tokens, MM_PAGE);
    if (o->kv_bytes < 0)
        BAD("kv_cache_memory_bytes",
            "kv_cache_memory_bytes is %lld; it must be positive, or 0 for automatic",
            (long long)o->kv_bytes);
    if (!(o->memory_fraction > 0 && o->memory_fraction <= 1))
        BAD("gpu_memory_utilization", "gpu_memory_utilization is %g; it must be in (0, 1]",
            o->memory_fraction);
    if (o->max_logprobs < 0 || o->max_logprobs > o->config->n_vocab)
        BAD("max_logprobs", "max_logprobs is %d; it must be 0 to the vocabulary's size %d",
            o->max_logprobs, o->config->n_vocab);
    if (o->dummy_context != 0 && o->load != MM_LOAD_DUMMY)
        BAD("dummy_context", "dummy_context leaves prompts uncomputed: only with dummy weights");
    MM_TRY(check_graph_sizes(o));
    if (o->graph_rows < 1 || o->graph_rows > MM_MAX_DECODE_ROWS)
        BAD("graph_rows",
            "graph_rows is %d; graphs can be captured for 1 to %d rows of each sequence: give 1 "
            "for plain decoding alone, more for steps that verify drafts",
            o->graph_rows, MM_MAX_DECODE_ROWS);
    if (o->run_ahead < -1 || o->run_ahead > 1)
        BAD("run_ahead", "run_ahead is %d; it must be 0, 1 or -1", o->run_ahead);
    if (o->n_thread < 0)
        BAD("threads", "threads is %d; it must be >= 0 (0: one per core)", o->n_thread);
    if (o->n_eos < 0 || o->n_eos > MM_MAX_LIST / 2 || (o->n_eos > 0 && o->eos_token == NULL))
        BAD("eos_token_id", "%d end tokens; 0 to %d are possible", o->n_eos, MM_MAX_LIST / 2);
    for (int32_t i = 0; i < o->n_eos; i++)
        if (o->eos_token[i] < 0 || o->eos_token[i] >= o->config->n_vocab)
            BAD("eos_token_id", "end token %d is outside the vocabulary of %d", o->eos_token[i],
                o->config->n_vocab);
    if (o->token_bytes.n_token < 0 || (o->token_bytes.n_token > 0 && o->token_bytes.offset == NULL))
        BAD("tokenizer", "the table of token bytes has %d tokens and no offsets",
            o->token_bytes.n_token);
    return MM_OK;
}

/* ---------------------------------------------------------------- copies */

static void *copy(const void *src, size_t n_bytes, bool *ok)
{
    if (n_bytes == 0)
        return NULL;
    void *p = malloc(n_bytes);
    if (p != NULL)
        memcpy(p, src, n_bytes);
    *ok = *ok && p != NULL;
    return p;
}

static mm_status copy_options(mm_engine *e, const mm_engine_options *o)
{
    bool ok = true;
    const size_t L = (size_t)o->config->n_layer;
    e->config = *o->config;
    e->layer_flags = calloc(2 * L, 1);
    ok = e->layer_flags != NULL;
    if (ok) {
        memcpy(e->layer_flags, o->config->layer_is_sparse, L);
        memcpy(e->layer_flags + L, o->config->layer_is_moe, L);
    }
    e->config.layer_is_sparse = e->layer_flags;
    e->config.layer_is_moe = e->layer_flags + (ok ? L : 0);
    e->eos = copy(o->eos_token, (size_t)o->n_eos * sizeof *e->eos, &ok);
    const int32_t n = o->token_bytes.n_token;
    if (n > 0) {
        e->bytes_offset =
            copy(o->token_bytes.offset, ((size_t)n + 1) * sizeof *e->bytes_offset, &ok);
        e->bytes_blob = copy(o->token_bytes.blob, (size_t)o->token_bytes.offset[n], &ok);
    }
    e->bytes = (mm_token_bytes){.blob = e->bytes_blob, .offset = e->bytes_offset, .n_token = n};
    if (!ok)
        return MM_FAIL(MM_E_NOMEM, "no host memory for the engine's tables");
    MM_ASSERT(n <= 0 || e->bytes.offset != NULL);
    for (int32_t i = 0; i < n; i++)
        if (e->bytes.offset[i] < 0 || e->bytes.offset[i + 1] < e->bytes.offset[i])
            BAD("tokenizer", "the offsets of token %d's bytes are not ascending", i);
    return MM_OK;
}

/* ---------------------------------------------------------------- sizes */

#define HOST_STEP_S 0.4                 /* how long one may wait for an aborted prompt's step */
#define LOGIT_BYTES ((int64_t)64 << 20) /* memory for the logits of one group of output rows */

static mm_ranks_options size_steps(const mm_engine_options *o)
{
    const int64_t V = o->config->n_vocab, S = o->max_num_seqs;
    const int64_t page_stride = mm_ceil_div(o->max_model_len, MM_PAGE);
    const int64_t widest = 1 + (int64_t)o->max_logprobs + MM_MAX_LIST; /* one row always fits */
    const int64_t usual = mm_min_i64(S * (1 + (int64_t)o->max_logprobs), 1 << 20);
    mm_ranks_options r = {.engine = o};
    r.limits = (mm_scheduler_limits){
        .max_seqs = o->max_num_seqs,
        .max_rows = o->max_batched_tokens,
        .max_pages = (int32_t)(mm_max_i64(page_stride, 16384) + S),
        .max_entries =
            mm_max_i64(mm_max_i64(widest, usual),
                       mm_min_i64(o->max_batched_tokens * (1 + (int64_t)o->max_logprobs), 1 << 16)),
        .max_dynamic = mm_batch_max_dynamic(o->max_model_len, o->config->n_vocab) +
                       S * mm_round_up((V + 31) / 32 * 4, 16),
        .run_ahead = o->run_ahead,
    };
    r.max_blob = mm_batch_max_bytes(&r.limits);
    r.max_logit_rows =
        (int32_t)mm_min_i64(o->max_batched_tokens, mm_max_i64(8, LOGIT_BYTES / (4 * V)));
    return r;
}

static void fill_limits(mm_engine *e, const mm_engine_options *o, const mm_ranks_options *r)
{
    const int64_t pool_tokens = (mm_ranks_n_page(e->ranks) - 1) * MM_PAGE;
    e->limits.config = &e->config;
    e->limits.bytes = &e->bytes;
    e->limits.eos = e->eos;
    e->limits.n_eos = o->n_eos;
    e->limits.max_len = (int32_t)mm_min_i64(o->max_model_len, pool_tokens);
    e->limits.max_model_len = o->max_model_len;
    e->limits.pool_tokens = pool_tokens;
    e->limits.max_logprobs = o->max_logprobs;
    e->limits.max_entries = r->limits.max_entries;
    e->limits.has_priority = o->priority_policy != 0;
    e->limits.has_prefix_cache = o->enable_prefix_cache != 0;
    e->limits.fakes_context = o->dummy_context != 0;
    e->limits.weight_version = 1;
    if (e->limits.max_len < o->max_model_len)
        mm_log(MM_LOG_WARNING,
               "the KV pool holds %lld tokens, less than max_model_len %d: sequences end at %lld "
               "tokens (give more "
               "kv_cache_memory_bytes or lower max_model_len)",
               (long long)pool_tokens, o->max_model_len, (long long)pool_tokens);
}

static void fill_info(mm_engine *e, const mm_engine_options *o, const mm_ranks_options *r)
{
    const mm_backend_props *props = mm_ranks_props(e->ranks);
    const mm_model *m = mm_ranks_model(e->ranks);
    memcpy(e->backend, props->name, sizeof e->backend);
    memcpy(e->tier, props->tier, sizeof e->tier);
    const int32_t world = o->shard_world > 1 ? o->shard_world : o->n_rank;
    e->info = (mm_engine_info){
        .backend = e->backend,
        .tier = e->tier,
        .n_thread = props->n_thread,
        .n_rank = o->n_rank,
        .max_model_len = e->limits.max_len,
        .max_num_seqs = o->max_num_seqs,
        .max_batched_tokens = o->max_batched_tokens,
        .run_ahead = mm_ranks_run_ahead(e->ranks),
        .n_page = mm_ranks_n_page(e->ranks) - 1,
        .page_bytes =
            mm_model_page_bytes(o->config, o->kv_format, o->index_format, o->shard_rank, world),
        .max_entries = r->limits.max_entries,
        .n_tensor_unused = m->n_tensor_unused,
        .kv_format = o->kv_format,
        .index_format = o->index_format,
        .dtype = o->dtype,
    };
    e->n_memory = mm_ranks_memory(e->ranks, e->memory, 0, MM_MAX_MEMORY_LINES);
}

/* ---------------------------------------------------------------- open and close */

/* Threads, model, pool: what close frees at once. */
static void stop_everything(mm_engine *e)
{
    if (e->has_thread) {
        pthread_mutex_lock(&e->queue.lock);
        e->queue.is_stopping = true;
        pthread_cond_broadcast(&e->queue.work);
        pthread_cond_broadcast(&e->queue.reply);
        pthread_mutex_unlock(&e->queue.lock);
        (void)pthread_join(e->coordinator, NULL);
        e->has_thread = false;
    }
    mm_ranks_close(e->ranks);
    e->ranks = NULL;
    if (e->has_scheduler)
        mm_scheduler_close(&e->scheduler);
    e->has_scheduler = false;
}

static void free_engine(mm_engine *e)
{
    if (e->has_queue)
        mm_queue_close(&e->queue);
    free(e->layer_flags);
    free(e->eos);
    free(e->bytes_blob);
    free(e->bytes_offset);
    free(e);
}

static mm_status open_parts(mm_engine *e, const mm_engine_options *o)
{
    MM_TRY(copy_options(e, o));
    MM_TRY(mm_prefix_secret(&e->limits.secret));
    MM_TRY(mm_queue_open(&e->queue));
    e->has_queue = true;
    mm_ranks_options r = size_steps(o);
    MM_TRY(mm_ranks_open(&e->ranks, &r));
    r.limits.run_ahead = mm_ranks_run_ahead(e->ranks);
    r.limits.step_s = mm_ranks_props(e->ranks)->is_host ? HOST_STEP_S : 0;
    fill_limits(e, o, &r);
    fill_info(e, o, &r);
    MM_TRY(mm_scheduler_open(&e->scheduler, &r.limits, &e->limits, mm_ranks_n_page(e->ranks)));
    e->has_scheduler = true;
    e->queue.stats.n_page = e->queue.stats.n_page_free = e->scheduler.pool.n_page - 1;
    e->queue.stats.weight_version = e->limits.weight_version;
    const int err = pthread_create(&e->coordinator, NULL, mm_coordinator_main, e);
    if (err != 0)
        return MM_FAIL(MM_E_NOMEM, "no thread for the engine: %s", strerror(err));
    e->has_thread = true;
    return MM_OK;
}

mm_status mm_engine_open(mm_engine **out, const mm_engine_options *opt)
{
    *out = NULL;
    MM_TRY(check_options(opt));
    mm_engine *e = calloc(1, sizeof *e);
    if (e == NULL)
        return MM_FAIL(MM_E_NOMEM, "no host memory for an engine");
    e->pid = getpid();
    e->n_ref = 1;
    const mm_status st = open_parts(e, opt);
    if (st != MM_OK) {
        mm_error keep;
        mm_error_take(&keep, st);
        stop_everything(e);
        free_engine(e);
        return mm_error_raise(&keep, "");
    }
    *out = e;
    return MM_OK;
}

mm_status mm_engine_plan(const mm_engine_options *opt, int64_t memory_total, int64_t memory_free,
                         mm_forecast *out)
{
    MM_TRY(check_options(opt));
    const mm_backend_options bo = {.name = opt->backend,
                                   .device = opt->device != NULL ? opt->device[0] : 0,
                                   .n_thread = opt->n_thread};
    mm_backend *be = NULL;
    MM_TRY(memory_total > 0 ? mm_plan_backend(&be, memory_total, memory_free)
                            : mm_backend_open(&be, &bo));
    const mm_ranks_options r = size_steps(opt);
    const mm_status st = mm_ranks_plan(&r, be, out);
    mm_backend_close(be);
    return st;
}

void mm_engine_unref_locked(mm_engine *e)
{
    const bool is_last = --e->n_ref == 0;
    pthread_mutex_unlock(&e->queue.lock);
    if (is_last)
        free_engine(e);
}

void mm_engine_close(mm_engine *e)
{
    if (e == NULL || e->pid != getpid()) /* a child owns neither the threads nor the locks' state */
        return;
    stop_everything(e);
    pthread_mutex_lock(&e->queue.lock);
    e->queue.is_closed = true;
    for (mm_waiter *w = e->queue.waiter; w != NULL; w = w->next)
        pthread_cond_broadcast(&w->news);
    mm_engine_unref_locked(e);
}
