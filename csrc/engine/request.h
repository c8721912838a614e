/* request.h: one growing sequence. WAITING -> RUNNING -> DONE; preemption goes back to WAITING.
 *
 * Three kinds of fields, by who may touch them: those set at submit never change again; those
 * marked "queue" are guarded by the queue's lock; the rest belongs to the coordinator thread (to
 * the submitting thread before the request is queued). Everything a request will ever need is
 * allocated at submit; large arrays are committed when written. */
#ifndef MM_REQUEST_H
#define MM_REQUEST_H
#include <stdalign.h>
#include <stddef.h>

#include "csrc/engine/prefix_key.h"
#include "csrc/text/repeat.h"
#include "csrc/text/stop.h"
#include "csrc/text/think.h"

typedef struct mm_group mm_group;
typedef struct mm_request_deck mm_request_deck;

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

/* What a request wants beside tokens, an end token and max_tokens, each a thing to look after at
 * every step; 0 is plain decoding. */
enum mm_asks {
    MM_ASKS_TRACE = 1,
    MM_ASKS_MASKS = 2,
    MM_ASKS_FORCED = 4,   /* forced tokens, or a budget that may force one */
    MM_ASKS_THINKING = 8, /* its thinking span is followed */
    MM_ASKS_STRINGS = 16, /* stop strings */
    MM_ASKS_ENDS = 32,    /* stop tokens, repetition */
    MM_ASKS_ENTRIES = 64  /* log-probabilities of its tokens */
};

/* Commands for a request that is already queued. */
enum { MM_PENDING_ABORT = 1, MM_PENDING_MASK = 2, MM_PENDING_NOTIFY = 4 };

typedef struct mm_request {
    /* Two lines of memory: all that a step of plain decoding touches of a request, and so all that
     * is to be fetched for it: milliseconds after the step before, no cache has it any more.
     * Coordinator, but for those set at submit (S) and the two marked "queue". */
    alignas(128) int32_t n_prefill; /* positions to compute before the next draw: all known at
                                       admission */
    int32_t n_planned;              /* positions in batches so far, those in flight included */
    int32_t n_done;                 /* positions whose step was committed */
    int32_t out_cap;                /* S: most tokens it can emit */
    int32_t n_out_planned;          /* tokens drawn or being drawn */
    int32_t n_token;                /* tokens emitted */
    int32_t n_page;                 /* pages held */
    int32_t n_page_sent;            /* entries of the slot's page table the ranks know */
    int32_t n_page_named; /* pages whose key is known: `last_key` names page n_page_named - 1 */
    int32_t slot;         /* -1: none */
    int32_t run_index;    /* -1: not running */
    int32_t n_in_flight;  /* batches in flight that hold it */
    mm_request_state state;
    uint8_t asks;            /* S: enum mm_asks */
    bool begins;             /* the slot must be set up in its next batch */
    bool is_leaving;         /* preempted, waits for its batches in flight */
    bool publishes;          /* S: its full pages are offered for reuse */
    bool is_dirty, has_news; /* to be published; and its waiter told */
    bool is_stale;           /* `out` changed since it was published */
    uint8_t draw;            /* S: enum mm_draw of its rows */
    int32_t width;           /* S: log-probability entries per token; 0 none */
    int32_t *token;          /* S: [n_prompt + out_cap]: prompt, then what was emitted */
    int32_t n_prompt;        /* S */
    int32_t eos_from;        /* S: tokens with which an end token ends it; INT32_MAX: none does */
    int32_t news_at;         /* tokens that are news to the waiter; INT32_MAX: only the end is */
    int32_t read_n_token;    /* queue: n_token, */
    double read_t_last;      /* and t_last as readers see them */
    double t_last;           /* of its newest token; 0: none */
    int32_t *page;           /* S: [page_cap] */
    struct mm_request *dirty_next;
    uint64_t id; /* S */

    /* queue; the first line of it is all that news touch */
    struct mm_waiter *waiter; /* NULL once the waiter is closed */
    struct mm_request *ready_prev, *ready_next;
    bool is_ready, is_released, is_held; /* in the waiter's list; by its owner; still used by the
                                            engine */
    uint32_t pending;
    int32_t read_n_think_token; /* n_think_token as readers see it */
    struct mm_request *hash_next, *inbox_next, *pending_next, *own_prev, *own_next;
    uint32_t *mask_in; /* [mask_words] last mask put */
    int32_t i_mask_in;
    int32_t notify_in; /* last notify_tokens asked for */
    mm_output pub;     /* what readers see, but for what changes at every step: read_* */

    /* set at submit */
    uint64_t owner;      /* serial of its waiter */
    mm_request_params p; /* pointers lead to copies of ours, but for trace */
    int32_t page_cap;
    int32_t mask_words;
    int32_t prompt_width, n_score; /* entries per prompt row; rows to score */
    int32_t n_ban;
    int32_t *ban;      /* [n_ban] ids masked until min_tokens: end and stop ids */
    uint32_t *allowed; /* [mask_words] or NULL: allowed_token as bits */
    mm_prefix_root root;
    bool reads_prefix;
    int32_t n_prompt_key;
    mm_prefix_key last_key;    /* coordinator: see n_page_named */
    mm_prefix_key *prompt_key; /* [n_prompt / MM_PAGE] names of the prompt's full pages */
    mm_request_deck *deck;     /* where it lies */
    void *block;               /* the one allocation behind all arrays */
    size_t block_bytes;

    /* coordinator */
    mm_output out; /* becomes pub when published; n_token, t_last and n_think_token are not in it */
    int32_t *out_id, *out_rank, *prompt_id, *prompt_rank; /* arrays behind out, writable */
    float *out_logprob, *out_sampling, *prompt_logprob;
    int32_t notify_tokens; /* news every that many tokens; 0: only at the end */
    int32_t n_score_planned;
    int32_t heap_index;    /* -1: not in the waiting heap */
    int32_t i_mask;        /* -1: none */
    uint32_t *mask;        /* [mask_words] mask of token i_mask, `allowed` already in it */
    mm_stop_matcher *stop; /* NULL: no stop strings */
    mm_repeat repeat;
    int32_t n_think_token;
    mm_think think;
    bool was_admitted;
    bool is_blocked; /* waits for its group's leader */
    mm_group *group;
    struct mm_request *blocked_prev, *blocked_next;
    mm_error *error; /* behind out.error_message */
} mm_request;

enum { MM_REQUEST_LINES = 2 }; /* of 64 bytes */
_Static_assert(offsetof(mm_request, waiter) == 64 * MM_REQUEST_LINES,
               "what plain decoding touches of a request has outgrown its lines");

/* Every field of p against lim: MM_E_INVALID, MM_E_TOO_LONG or MM_E_UNSUPPORTED with the public
 * parameter's name. */
mm_status mm_request_check(const mm_request_params *p, const mm_request_limits *lim);
/* Checks and copies. `owner` is the waiter's serial. */
mm_status mm_request_open(mm_request **out, const mm_request_params *p,
                          const mm_request_limits *lim, uint64_t owner);
void mm_request_close(mm_request *r); /* NULL is fine */

/* What its owner may know of it now. The queue is locked. */
static inline mm_output mm_request_snapshot(const mm_request *r)
{
    mm_output out = r->pub;
    out.n_token = r->read_n_token;
    out.n_think_token = r->read_n_think_token;
    out.t_last = r->read_t_last;
    return out;
}

/* NULL, for nearly all, without a look at p. */
static inline const mm_trace *mm_request_trace(const mm_request *r)
{
    return (r->asks & MM_ASKS_TRACE) != 0 ? r->p.trace : NULL;
}

/* News again n_tokens tokens from now; 0: not before its end. */
static inline void mm_request_notify_every(mm_request *r, int32_t n_tokens)
{
    r->notify_tokens = n_tokens;
    r->news_at =
        n_tokens > 0 ? (int32_t)mm_min_i64(r->n_token + (int64_t)n_tokens, INT32_MAX) : INT32_MAX;
}

static inline int32_t mm_request_known(const mm_request *r)
{
    return r->n_prompt + r->n_token;
}
#endif
