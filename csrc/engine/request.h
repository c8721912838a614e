/* request.h: one growing sequence. WAITING -> RUNNING -> DONE; preemption goes back to WAITING.
 *
 * Three kinds of fields, by who may touch them: those set at submit never change again; those
 * marked "queue" are guarded by the queue's lock; the rest belongs to the coordinator thread (to
 * the submitting thread before the request is queued). Everything a request will ever need is
 * allocated at submit; large arrays are committed when written. */
#ifndef MM_REQUEST_H
#define MM_REQUEST_H
#include "csrc/engine/prefix_key.h"
#include "csrc/text/repeat.h"
#include "csrc/text/stop.h"
#include "csrc/text/think.h"

typedef struct mm_group mm_group;

/* What an engine can take; the checks of a request read nothing else. */
typedef struct mm_request_limits {
    const mm_config *config;
    const mm_token_bytes *bytes; /* n_token 0: no tokenizer */
    const int32_t *eos;          /* [n_eos] */
    int32_t n_eos;
    int32_t max_len; /* tokens of a sequence: model length or what the pool holds */
    int32_t max_model_len;
    int64_t pool_tokens;
    int32_t max_logprobs;
    int64_t max_entries;
    bool has_priority, has_prefix_cache;
    bool fakes_context; /* dummy_context: of a prompt only the last token is computed */
    mm_prefix_key secret;
    uint64_t weight_version;
} mm_request_limits;

typedef enum mm_request_state {
    MM_REQUEST_WAITING = 0,
    MM_REQUEST_RUNNING,
    MM_REQUEST_DONE
} mm_request_state;

/* Commands for a request that is already queued. */
enum { MM_PENDING_ABORT = 1, MM_PENDING_MASK = 2 };

typedef struct mm_request {
    /* set at submit */
    uint64_t id;
    uint64_t owner;            /* serial of its waiter */
    mm_request_params p;       /* pointers lead to copies of ours, but for trace */
    int32_t n_prompt, out_cap; /* out_cap: most tokens it can emit */
    int32_t page_cap;
    int32_t mask_words;
    int32_t width;                 /* log-probability entries per token; 0 none */
    int32_t prompt_width, n_score; /* entries per prompt row; rows to score */
    int32_t n_ban;
    int32_t *ban;      /* [n_ban] ids masked until min_tokens: end and stop ids */
    uint32_t *allowed; /* [mask_words] or NULL: allowed_token as bits */
    mm_prefix_root root;
    bool reads_prefix, publishes;
    int32_t n_prompt_key;
    mm_prefix_key *prompt_key; /* [n_prompt / MM_PAGE] names of the prompt's full pages */
    void *block;               /* the one allocation behind all arrays */
    size_t block_bytes;

    /* queue */
    mm_output pub;            /* what readers see */
    struct mm_waiter *waiter; /* NULL once the waiter is closed */
    uint32_t pending;
    bool is_ready, is_released, is_held; /* in the waiter's list; by its owner; still used by the
                                            engine */
    uint32_t *mask_in;                   /* [mask_words] last mask put */
    int32_t i_mask_in;
    struct mm_request *hash_next, *inbox_next, *pending_next;
    struct mm_request *ready_prev, *ready_next, *own_prev, *own_next;

    /* coordinator */
    mm_request_state state;
    mm_output out;  /* becomes pub when published */
    int32_t *token; /* [n_prompt + out_cap]: prompt, then what was emitted */
    int32_t *out_id, *out_rank, *prompt_id, *prompt_rank; /* arrays behind out, writable */
    float *out_logprob, *out_sampling, *prompt_logprob;
    mm_error error;
    int32_t slot;         /* -1: none */
    int32_t *page;        /* [page_cap] */
    int32_t n_page;       /* pages held */
    int32_t n_page_sent;  /* entries of the slot's page table the ranks know */
    int32_t n_page_named; /* pages whose key is known: `last_key` names page n_page_named - 1 */
    mm_prefix_key last_key;
    bool begins; /* the slot must be set up in its next batch */
    /* positions to compute before the next draw: all tokens known at admission */
    int32_t n_prefill;
    int32_t n_planned;     /* positions in batches so far, those in flight included */
    int32_t n_done;        /* positions whose step was committed */
    int32_t n_out_planned; /* tokens drawn or being drawn */
    int32_t n_score_planned;
    int32_t n_in_flight; /* batches in flight that hold it */
    bool is_leaving;     /* preempted, waits for its batches in flight */
    bool was_admitted;
    int32_t heap_index;      /* -1: not in the waiting heap */
    int32_t run_index;       /* -1: not running */
    uint64_t last_step;      /* step it was last planned in */
    uint32_t *mask;          /* [mask_words] mask of token i_mask, `allowed` already in it */
    int32_t i_mask;          /* -1: none */
    int32_t n_noticed;       /* tokens at the last notice to the waiter */
    bool is_dirty, has_news; /* to be published; and its waiter told */
    struct mm_request *dirty_next;
    mm_group *group;
    struct mm_request *blocked_prev, *blocked_next;
    bool is_blocked;       /* waits for its group's leader */
    mm_stop_matcher *stop; /* NULL: no stop strings */
    mm_think think;
    mm_repeat repeat;
} mm_request;

/* Every field of p against lim: MM_E_INVALID, MM_E_TOO_LONG or MM_E_UNSUPPORTED with the public
 * parameter's name. */
mm_status mm_request_check(const mm_request_params *p, const mm_request_limits *lim);
/* Checks and copies. `owner` is the waiter's serial. */
mm_status mm_request_open(mm_request **out, const mm_request_params *p,
                          const mm_request_limits *lim, uint64_t owner);
void mm_request_close(mm_request *r); /* NULL is fine */

static inline int32_t mm_request_known(const mm_request *r)
{
    return r->n_prompt + r->out.n_token;
}
#endif
