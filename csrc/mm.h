/* mm.h: the public contract of the C core.
 *
 * An *engine* is a loaded model with its KV pool and its own coordinator thread. A *request* is one
 * growing sequence of tokens inside it. A *waiter* is the mailbox of one caller: requests are
 * submitted to a waiter, and whoever waits on it is told which of them have news. Callers hand over
 * whole prompts; the engine decides what is already cached, what runs together and when.
 *
 * Rules. Every fallible function returns mm_status; the message is thread-local (mm_error_*). What
 * comes through a pointer-to-pointer is owned by the caller and closed with the type's own _close;
 * what is returned is borrowed. Structs with a `size` field are filled by their _init function
 * first. All functions are safe from any thread unless they say otherwise. Nothing prints, nothing
 * exits, nothing here includes more than stdint and stddef. */
#ifndef MM_H
#define MM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MM_ABI 6 /* raised whenever a struct or a signature of a seam changes */
/* Tokens of a KV page = of an attention block: structure of the model, not a setting. */
#define MM_PAGE 128
/* Entries of logit_bias, stop_token_ids, logprob_token_ids; words of bad_words. */
#define MM_MAX_LIST 1024
#define MM_MAX_BAD_TOKENS 4096 /* tokens of all bad words of a request together */
#define MM_MAX_BAD_LEN 64      /* tokens of one bad word */

/* ---------------------------------------------------------------- errors */

typedef enum
#if defined(__cplusplus) || __STDC_VERSION__ > 201710L
    [[nodiscard]]
#endif
    mm_status {
        MM_OK = 0,
        MM_FULL,       /* expected and internal: no room now; never crosses this header */
        MM_AGAIN,      /* expected and internal: come back later; never crosses this header */
        MM_E_INVALID,  /* the caller's mistake: a value */
        MM_E_SHAPE,    /* the caller's mistake: a shape or dtype */
        MM_E_TOO_LONG, /* prompt (or prompt + max_tokens) exceeds the model length or the pool */
        MM_E_GRAMMAR,
        MM_E_CONFIG, /* engine argument */
        MM_E_FORMAT, /* a file is not what we accept */
        MM_E_CLOSED,
        MM_E_FORKED,
        MM_E_SLEEPING,
        MM_E_NO_WEIGHTS,
        MM_E_DEAD,
        MM_E_NOMEM,       /* host or device memory */
        MM_E_IO,          /* system call; the message has path and strerror */
        MM_E_UNSUPPORTED, /* valid but not built, or not possible on this machine */
        MM_E_DEVICE,
        MM_E_COMM,
        MM_E_CANCELLED, /* the poll callback asked to stop */
    } mm_status;

/* Message of the last failure in this thread; "" after none. Borrowed, valid until this thread's
 * next failure. */
const char *mm_error_message(void);
/* Name of the argument the last failure is about ("" if none) and the index of its item (-1 if
 * none). */
const char *mm_error_param(void);
int64_t mm_error_index(void);
const char *mm_status_name(mm_status st);

/* ---------------------------------------------------------------- model and checkpoint */

typedef enum mm_dtype {
    MM_DTYPE_F32 = 0,
    MM_DTYPE_BF16,
    MM_DTYPE_F8_E4M3,
    MM_DTYPE_U8,
    MM_DTYPE_I16,
    MM_DTYPE_I32,
    MM_DTYPE_I64,
    MM_DTYPE_F16,
    MM_DTYPE_COUNT
} mm_dtype;

typedef enum mm_cache_format {
    MM_CACHE_F32 = 0,
    MM_CACHE_BF16,
    MM_CACHE_FP8,
    MM_CACHE_NVFP4
} mm_cache_format;

/* Numbers of config.json, read and named by Python, checked by mm_config_check. Widths
 * in elements. */
typedef struct mm_config {
    uint32_t size;
    int32_t n_layer, n_vocab, d_model;             /* d_model = hidden_size */
    int32_t n_head, n_kv_head, head_dim, n_rotary; /* n_rotary: leading dims of a head that rotate
                                                      (half-split pairs) */
    int32_t n_index_head, index_dim;               /* 0 when no layer is sparse */
    /* chosen blocks, the local one counted; forced first blocks */
    int32_t n_top_block, n_init_block;
    int32_t n_expert, n_expert_used;     /* 0 when no layer is MoE */
    int32_t d_expert, d_shared, d_dense; /* d_shared 0: no shared expert */
    int32_t max_position;
    int32_t has_routing_bias;
    double rope_theta, rms_eps, swiglu_alpha, swiglu_beta, swiglu_limit, routed_scale;
    const uint8_t *layer_is_sparse; /* [n_layer], copied at open */
    const uint8_t *layer_is_moe;    /* [n_layer], copied at open */
    int32_t never_token[16];        /* media placeholder ids, never generated; -1 = unused */
} mm_config;
void mm_config_init(mm_config *c);
/* MM_E_CONFIG with the field's name when the forward pass cannot run such a model. */
mm_status mm_config_check(const mm_config *c);
/* Bytes of one page (MM_PAGE tokens, all planes, all layers) on one rank of `shard_world`. */
int64_t mm_model_page_bytes(const mm_config *c, mm_cache_format kv, mm_cache_format index,
                            int32_t shard_rank, int32_t shard_world);

/* One tensor of the checkpoint. Python validated the header; C maps the file and owns the bytes. */
typedef struct mm_tensor_entry {
    const char *name; /* Hub name */
    int32_t file;     /* index into mm_tensor_table.path */
    mm_dtype dtype;
    int32_t rank; /* 0..5 */
    int64_t dim[5];
    int64_t offset; /* bytes from the start of the file */
    int64_t n_bytes;
} mm_tensor_entry;

typedef struct mm_tensor_table {
    const mm_tensor_entry *entry; /* [n_entry], sorted by name */
    int64_t n_entry;
    const char *const *path; /* [n_file] */
    int32_t n_file;
} mm_tensor_table;

/* ---------------------------------------------------------------- engine */

typedef struct mm_engine mm_engine;
typedef struct mm_waiter mm_waiter;

typedef enum mm_load { MM_LOAD_FILES = 0, MM_LOAD_DUMMY } mm_load;

/* id -> bytes of every token, for stop strings. Entry i = blob[offset[i] .. offset[i+1]). Copied at
 * open. */
typedef struct mm_token_bytes {
    const uint8_t *blob;
    const int64_t *offset; /* [n_token + 1] */
    int32_t n_token;       /* 0: no tokenizer, stop strings are refused */
} mm_token_bytes;

typedef struct mm_engine_options {
    uint32_t size;
    const char *backend; /* "ref", "cpu", "cuda"; "auto" = cuda where one is, else cpu */
    const mm_config *config;
    mm_load load;
    const mm_tensor_table *weights; /* MM_LOAD_FILES */
    uint64_t dummy_seed;            /* MM_LOAD_DUMMY */
    int32_t dummy_quantized;        /* MM_LOAD_DUMMY: 1 = the released formats (NVFP4 experts, MXFP8
                                       linears), 2 = MXFP8 experts too (M3-MXFP8), 0 = BF16 */
    int32_t dummy_context;          /* MM_LOAD_DUMMY: 1 = pages begin with random content, and of a
                                       prompt only the last token is computed: for measuring decode
                                       at any context without its prefill */
    int32_t verify; /* check every scale for NaN even above 4 GB of scales; -1: check
                       none (plans) */
    mm_dtype dtype; /* activations: BF16 or F32 */
    mm_cache_format kv_format, index_format;
    int32_t n_thread; /* CPU threads; 0 = physical cores */
    int32_t n_rank;   /* tensor-parallel ranks in this process */
    /* run one shard alone (collectives are local); world 1 = off */
    int32_t shard_rank, shard_world;
    int32_t max_model_len;      /* tokens, prompt + output */
    int32_t max_num_seqs;       /* sequences per step */
    int32_t max_batched_tokens; /* rows per step, multiple of MM_PAGE */
    int64_t kv_bytes; /* bytes of all page planes per rank; 0 = by memory_fraction on a device, else
                       * one sequence of max_model_len + max_num_seqs pages */
    double memory_fraction; /* device memory this engine may use, (0, 1] */
    const int32_t *device;  /* [n_rank] ordinals; NULL = 0 .. n_rank - 1 */
    int32_t max_logprobs; /* largest k of logprobs and prompt_logprobs, >= 0 (all = n_vocab: Python
                             converts) */
    int32_t batch_invariant; /* fixed split rules on a device; ref and cpu always are */
    int32_t enable_prefix_cache;
    int32_t priority_policy;   /* 0 first come first served, 1 lower `priority` first */
    int32_t enforce_eager;     /* 1: a device decodes without captured graphs */
    const int32_t *graph_size; /* [n_graph_size] batch sizes to capture graphs for; 0: a standard
                                  row up to max_num_seqs */
    int32_t n_graph_size;
    int32_t graph_rows; /* graphs also for steps of 2, 3, ... rows of each sequence, up to this
                           many: 1 (none but plain decoding) to 8 */
    int32_t run_ahead; /* steps planned beyond the one running: 0, 1; -1 = backend's choice (host 0,
                          cuda 1) */
    const int32_t *eos_token; /* [n_eos] model end tokens */
    int32_t n_eos;
    mm_token_bytes token_bytes;
    /* Called in the opening thread about ten times a second; non-zero cancels (MM_E_CANCELLED). May
     * be NULL. */
    int (*poll)(void *ctx, int64_t bytes_done, int64_t bytes_total);
    void *poll_ctx;
} mm_engine_options;
void mm_engine_options_init(mm_engine_options *o);

/* Loads, sizes and warms everything: a device, whose driver loads a kernel when it is first
 * launched, runs a prompt's largest chunk, a short one and a decode of nobody. After it no step
 * allocates. On failure *out is NULL. */
mm_status mm_engine_open(mm_engine **out, const mm_engine_options *opt);
/* Aborts what runs, joins all threads, frees. NULL is fine. Waiters may be closed
 * before or after. */
void mm_engine_close(mm_engine *e);

/* ---------------------------------------------------------------- requests */

typedef enum mm_logprob_mode {
    MM_LOGPROB_RAW = 0,
    MM_LOGPROB_TEMPERED,
    MM_LOGPROB_PROCESSED,
    MM_LOGIT_RAW,
    MM_LOGIT_PROCESSED
} mm_logprob_mode;

typedef enum mm_think_state {
    MM_THINK_OFF = 0,
    MM_THINK_ADAPTIVE,
    MM_THINK_ENABLED,
    MM_THINK_DISABLED
} mm_think_state;

/* Rows of `trace`: caller-owned host memory that outlives the request; NULL parts are not recorded.
 * L = prompt length. Such a request bypasses the prefix cache and runs alone in its steps. */
typedef struct mm_trace {
    float *logits;           /* [L, n_vocab] */
    float *const *hidden;    /* [n_layer] of [L, d_model]: residual stream after the layer */
    int16_t *const *blocks;  /* [n_layer] of [n_index_head, L, k], ascending, -1 filled; k below */
    int16_t *const *experts; /* [n_layer] of [L, n_expert_used], ascending */
    float *const *expert_weights;       /* [n_layer] of [L, n_expert_used], renormalised, before
                                           routed_scale */
    const int16_t *const *force_blocks; /* as blocks: choices to take instead of the model's; NULL =
                                           model's */
    const int16_t *const *force_experts; /* as experts */
    int32_t blocks_width;                /* k = min(n_top_block, ceil(L / MM_PAGE)) */
    int32_t n_prompt; /* L: the stride of blocks; set by whoever fills this struct */
} mm_trace;

/* Rows that replace token embeddings; part of the prefix key through their digest. */
typedef struct mm_media {
    int32_t position, n_row;
    uint8_t digest[16];
    const float *row; /* [n_row, d_model], borrowed until release; NULL: made on the device by the
                         vision tower */
} mm_media;

typedef struct mm_request_params {
    uint32_t size;
    const int32_t *prompt; /* [n_prompt], copied */
    int32_t n_prompt;
    int32_t max_tokens; /* 0: nothing is sampled (scoring) */
    int32_t min_tokens;
    int32_t priority;      /* lower first; only with priority_policy */
    int32_t notify_tokens; /* wake the waiter every that many tokens; 0 = only when finished;
                            * mm_request_notify changes it */
    uint64_t salt;         /* prefix cache: pages are shared only between equal salts */
    uint64_t group; /* n > 1: requests of one group share the prefill: the first submitted leads,
                     * the others wait until its prompt is computed; if it ends before, the next
                     * member leads. 0 = none */
    int32_t skip_prefix_read;
    /* sampling; order of operations: README of this folder */
    uint64_t seed;     /* derived seed of this sample */
    float temperature; /* < 1e-5 = greedy */
    int32_t top_k;     /* <= 0 off */
    float top_p, min_p;
    float repetition_penalty, frequency_penalty, presence_penalty;
    const int32_t *bias_token;
    const float *bias_value;
    int32_t n_bias;
    const int32_t *allowed_token;
    int32_t n_allowed; /* 0 = all */
    const int32_t *bad_token;
    const int32_t *bad_offset;
    int32_t n_bad; /* word i = bad_token[bad_offset[i] .. bad_offset[i+1]) */
    const int32_t *stop_token;
    int32_t n_stop_token;
    const uint8_t *stop_bytes;
    const int32_t *stop_offset;
    int32_t n_stop; /* string i = stop_bytes[offset[i]..offset[i+1]) */
    int32_t ignore_eos;
    const int32_t *forced_token;
    int32_t n_forced; /* emitted instead of the first n_forced drawn tokens, scored as drawn
                       * ones; a forced id is unmasked before anything is filtered */
    /* log-probabilities */
    int32_t n_logprob; /* top entries beside the sampled token, <= n_vocab; -1 = none asked (no
                          entries at all) */
    mm_logprob_mode logprob_mode;
    const int32_t *logprob_token;
    int32_t n_logprob_token;             /* scored at every step, after the top entries */
    int32_t want_sampling_logprob;       /* log p under the exact distribution drawn from */
    int32_t n_prompt_logprob;            /* as n_logprob, for the prompt */
    mm_logprob_mode prompt_logprob_mode; /* raw; tempered: logits / temperature */
    int32_t prompt_logprob_start;        /* first scored position, >= 1 */
    const int32_t *prompt_logprob_token;
    int32_t n_prompt_logprob_token;
    /* thinking: tracked on bytes; the mark is also an id, which a spent budget forces */
    mm_think_state think_start;
    int32_t think_close_token; /* -1: no budget possible */
    int32_t think_budget;      /* -1 unlimited */
    const uint8_t *think_open, *think_close;
    int32_t n_think_open, n_think_close; /* mark strings */
    int32_t stop_in_thinking;            /* 0: stop strings act outside the thinking span only */
    /* loop detection: ends with MM_STOP_REPETITION when the last size*count tokens
     * repeat; 0 = off */
    int32_t rep_min_size, rep_max_size, rep_min_count;
    /* grammar masks: planned only when a mask for the coming token was put (mm_engine_put_mask);
     * waiting for one is news to the waiter (mm_output.want_mask_token). The engine ANDs it with
     * allowed_token. */
    int32_t want_mask;
    /* rows of a media buffer that replace token embeddings; NULL until vision: refused */
    const struct mm_media *media;
    int32_t n_media;       /* ascending, disjoint */
    int32_t n_draft_max;   /* speculation: most draft tokens per step; 0 none */
    const mm_trace *trace; /* not NULL: a trace request, max_tokens must be 0; pointers borrowed
                              until done */
} mm_request_params;
void mm_request_params_init(mm_request_params *p);

typedef enum mm_finish {
    MM_FINISH_NONE = 0,
    MM_FINISH_STOP,
    MM_FINISH_LENGTH,
    MM_FINISH_ABORT,
    MM_FINISH_ERROR
} mm_finish;
typedef enum mm_stop {
    MM_STOP_NONE = 0,
    MM_STOP_EOS,
    MM_STOP_TOKEN,
    MM_STOP_STRING,
    MM_STOP_REPETITION,
    MM_STOP_MAX_TOKENS,
    MM_STOP_MODEL_LEN
} mm_stop;

/* A request's results. Arrays belong to the engine, only grow, and stay where they are until
 * mm_request_release. Counts are a snapshot: entries below them are final. */
typedef struct mm_output {
    mm_finish finish;
    mm_stop stop;
    int32_t stop_index; /* STRING: which stop string; TOKEN, EOS: the token id */
    /* STRING: matched range in bytes of the concatenated token bytes */
    int64_t stop_begin, stop_end;
    const int32_t *token;
    int32_t n_token;
    /* entry (t, j) at [t * width + j]: j = 0 the sampled token, then the top k by rank, then
     * logprob_token */
    const int32_t *logprob_id;
    const float *logprob;
    const int32_t *logprob_rank;
    int32_t logprob_width;
    const float *sampling_logprob; /* [n_token] or NULL */
    /* rows prompt_logprob_start .. n_prompt - 1; same entry order with the prompt's own
     * token first */
    const int32_t *prompt_id;
    const float *prompt_logprob;
    const int32_t *prompt_rank;
    int32_t prompt_width, n_prompt_row;
    int32_t n_prompt, n_cached, n_preempted;
    int32_t n_think_token;   /* tokens inside the thinking span, marks not counted */
    int32_t want_mask_token; /* index of the token whose mask is awaited; -1 none */
    int32_t n_draft, n_draft_accepted, n_verify; /* speculation; 0 without */
    /* seconds, CLOCK_MONOTONIC; 0 = not yet */
    double t_submit, t_scheduled, t_first, t_last, t_done;
    uint64_t weight_version;
    mm_status error;
    const char *error_message; /* finish == ERROR */
    const char *error_param;
    int64_t error_index;
} mm_output;

mm_status mm_waiter_open(mm_waiter **out, mm_engine *e);
/* Aborts and releases its unfinished requests. NULL is fine. */
void mm_waiter_close(mm_waiter *w);

/* Checks everything (MM_E_INVALID, MM_E_TOO_LONG with param), copies, queues and
 * returns an id > 0. */
mm_status mm_engine_submit(mm_engine *e, mm_waiter *w, const mm_request_params *p,
                           uint64_t *out_id);
/* Blocks up to timeout_s for news of this waiter's requests; writes at most cap ids. 0 ids =
 * timed out. An id appears once per piece of news, in order of arrival; one thread per
 * waiter at a time. */
mm_status mm_waiter_wait(mm_waiter *w, double timeout_s, uint64_t *id, int32_t cap, int32_t *out_n);
mm_status mm_request_read(mm_engine *e, uint64_t id, mm_output *out);
/* From now on its waiter is woken every n_tokens tokens, whatever notify_tokens was, and once for
 * what is there already; 0: only when it finishes. One that has finished is left as it is. */
mm_status mm_request_notify(mm_engine *e, uint64_t id, int32_t n_tokens);
/* Frees the request's buffers; an unfinished one is aborted first. Unknown ids are ignored. */
void mm_request_release(mm_engine *e, uint64_t id);
/* Ends these requests after the running step with what they have; ids NULL = all. Returns how many
 * were alive. */
mm_status mm_engine_abort(mm_engine *e, const uint64_t *id, int32_t n, int32_t *out_n);
/* Bit mask of allowed tokens, [ceil(n_vocab / 32)] words, for the next token of a want_mask
 * request. */
mm_status mm_engine_put_mask(mm_engine *e, uint64_t id, int32_t i_token, const uint32_t *word);
/* Drops every unreferenced cached page now. */
mm_status mm_engine_reset_prefix_cache(mm_engine *e);
/* Requests submitted while an engine is paused wait, and can be aborted. DRAIN: those submitted
 * before run to their end. FREEZE: no step begins any more; NONE lets everything go on. Waits up to
 * timeout_s until nothing is alive (DRAIN) or no step is in flight (FREEZE): *out_is_settled. */
typedef enum mm_pause { MM_PAUSE_NONE = 0, MM_PAUSE_DRAIN, MM_PAUSE_FREEZE } mm_pause;
mm_status mm_engine_pause(mm_engine *e, mm_pause how, double timeout_s, int32_t *out_is_settled);

/* ---------------------------------------------------------------- what it did, what it holds */

typedef struct mm_engine_stats {
    uint32_t size;
    int64_t n_waiting, n_running, n_finished, n_aborted, n_failed, n_preempted;
    int64_t n_prompt_token, n_cached_token, n_output_token, n_step;
    int64_t n_graph_step; /* of n_step: those whose rows ran as one captured graph; 0 on a host */
    int64_t n_page, n_page_free, n_page_cached; /* cached: unreferenced but reusable */
    int64_t n_block_read, n_block_held; /* attention blocks read by / visible to sparse layers,
                                           summed over rows and heads */
    double t_step_total, t_step_last;   /* seconds inside steps */
    double t_step_p50, t_step_p99;      /* of all steps, within 5 % */
    double t_host_total; /* seconds the host worked for steps: plan, launch, commit, publish */
    uint64_t weight_version;
} mm_engine_stats;
void mm_engine_stats_init(mm_engine_stats *s);
mm_status mm_engine_get_stats(mm_engine *e, mm_engine_stats *out);

typedef struct mm_memory_line {
    const char *what;
    const char *kind;
    int64_t n_bytes;
} mm_memory_line; /* kind: "mapped", "host", "device" */
/* Borrowed table of what the engine holds, n lines; valid until close. */
const mm_memory_line *mm_engine_memory(const mm_engine *e, int32_t *out_n);

typedef struct mm_engine_info {
    const char *backend, *tier; /* e.g. "cpu", "avx512" */
    int32_t n_thread, n_rank, max_model_len, max_num_seqs, max_batched_tokens, run_ahead;
    int64_t n_page, page_bytes;
    /* log-probability entries of one step: what the scheduler cuts chunks by */
    int64_t max_entries;
    int64_t n_tensor_unused; /* tensors of the table that no slot bound (vision, draft) */
    mm_cache_format kv_format, index_format;
    mm_dtype dtype;
} mm_engine_info;
void mm_engine_get_info(const mm_engine *e, mm_engine_info *out);

/* One line per backend: name, usable or the reason why not. Returns how many lines exist. */
typedef struct mm_backend_line {
    char name[16];
    int32_t usable;
    char text[492];
} mm_backend_line;
int32_t mm_backend_list(mm_backend_line *line, int32_t cap);

/* ---------------------------------------------------------------- plans */

/* What weights are spent on. SMALL: norms, routers, routing biases, as f32. */
typedef enum mm_weight_class {
    MM_CLASS_EXPERTS = 0,
    MM_CLASS_SHARED,
    MM_CLASS_ATTENTION,
    MM_CLASS_INDEX,
    MM_CLASS_DENSE,
    MM_CLASS_EMBEDDING,
    MM_CLASS_HEAD,
    MM_CLASS_SMALL
} mm_weight_class;
#define MM_N_WEIGHT_CLASS 8

/* What mm_engine_open with these options would take on rank 0, by the code that decides it there.
 * Nothing is loaded and nothing of a device is allocated. */
typedef struct mm_forecast {
    mm_memory_line line[32]; /* all that is not pages; on a host without its weights */
    int32_t n_line, is_host;
    int64_t weights[MM_N_WEIGHT_CLASS];   /* bytes where they will lie */
    int64_t page_bytes, index_page_bytes; /* of a page over all layers; of it index keys */
    int64_t n_page; /* page 0, never given out, included; 0: it does not fit */
    int64_t memory_total, memory_free, reserve; /* of the device; reserve: left to the driver */
    int64_t row_bytes;             /* what one row of max_batched_tokens costs in activations */
    char param[64], problem[1024]; /* n_page 0: the argument to change, and the refusal */
} mm_forecast;
/* memory_total > 0: an imagined CUDA device with that much, options->backend is not looked at; 0:
 * the backend of the options, which is opened and closed again. */
mm_status mm_engine_plan(const mm_engine_options *opt, int64_t memory_total, int64_t memory_free,
                         mm_forecast *out);

/* Takes the next queued log line of the core; 0 when there is none. level as in
 * Python's logging. */
int32_t mm_log_take(int32_t *level, char *text, size_t cap);
/* The MM_* variables: entry i, 0 past the end. */
int32_t mm_env_entry(int32_t i, const char **name, const char **value, const char **help);
/* What is wrong with MM_* variables: problem i, 0 past the end. is_value: a value that cannot be
 * read, with which no engine opens; else the name is not known. */
int32_t mm_env_problem(int32_t i, const char **name, const char **text, int32_t *is_value);

#ifdef __cplusplus
}
#endif
#endif
