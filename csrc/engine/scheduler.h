/* scheduler.h: which rows run next. It knows requests, pages and slots; it has no tensors and no
 * threads.
 *
 * plan -> (the ranks run the batch) -> commit, in this order for each batch; up to two batches may
 * lie between. A plan needs no token of a batch in flight: a sequence that turns out to have ended
 * is trimmed at commit, and its slot and pages come back when no batch in flight holds them.
 * Nothing that a plan decides (neighbours, cuts of a prompt, hits, preemption) may reach a result:
 * rows are independent, and the random stream counts emitted tokens.
 *
 * Order of a plan: one row for every sequence that decodes, then chunks of prompts, then
 * admissions, up to the limits of a step. Pages of all known tokens are taken at admission; a
 * decode that finds no page sends the youngest (least urgent) sequence back to waiting. */
#ifndef MM_SCHEDULER_H
#define MM_SCHEDULER_H
#include "csrc/engine/kv_pool.h"
#include "csrc/engine/request.h"
#include "csrc/model/batch.h"

#define MM_MAX_IN_FLIGHT 2

typedef struct mm_scheduler_limits {
    int32_t max_seqs, max_rows; /* sequences, rows of a step */
    int32_t max_pages;          /* page-table entries sent in a step */
    int64_t max_entries;        /* log-probability entries of a step */
    int64_t max_dynamic;        /* bytes of lists and masks in a step */
    int32_t run_ahead;          /* 0, 1 */
    double step_s; /* chunks of prompts are sized for steps of about that long; 0: by max_rows */
} mm_scheduler_limits;

/* Rows [pos, pos + n_row) of one sequence in a step. */
typedef struct mm_plan_item {
    mm_request *r;
    int32_t slot;
    int32_t pos, n_row;
    bool is_decode; /* its token is the last sampled one */
    bool begins, sends_mask, draws;
    int32_t forced;               /* token to emit, or -1 */
    int32_t score_first, n_score; /* positions of rows that score their successor */
    int32_t page_first, page_end; /* page-table entries to send */
    int32_t out_first;            /* first output row of the step; scores first, then the draw */
    int64_t entry_first;
} mm_plan_item;

typedef struct mm_plan {
    uint64_t step;
    int32_t n_item, n_row, n_out, n_page, n_slot, n_mask;
    int64_t n_entry, n_dynamic;
    const mm_trace *trace;
    mm_plan_item *item; /* [max_seqs] */
} mm_plan;

/* Requests that share a prefill: the leader computes it, the others are blocked until then. */
struct mm_group {
    uint64_t owner, id;
    int32_t n_member;
    bool is_computed;
    mm_request *leader;
    mm_request *blocked_first, *blocked_last;
    mm_group *hash_next;
};

#define MM_GROUP_BUCKETS 1024

/* What a step touches comes first, in few lines of memory. */
typedef struct mm_scheduler {
    mm_scheduler_limits lim;
    const mm_request_limits *req;
    mm_plan plan[MM_MAX_IN_FLIGHT];
    int32_t n_in_flight, i_oldest;
    uint64_t step;
    mm_request **running; /* [max_seqs] in order of admission */
    mm_request **order;   /* [max_seqs] scratch of plan */
    int32_t n_running;
    int32_t n_trace;   /* of them: traces */
    int32_t n_leaving; /* ended or preempted, still held by a batch in flight */
    int32_t n_free_slot;
    int32_t *free_slot; /* [max_seqs] stack */
    int32_t step_rows;  /* rows of the next step, <= lim.max_rows */
    int32_t turn;      /* running request the last plan left out, the next begins there; -1: none */
    mm_request **heap; /* waiting, most urgent first */
    int64_t n_heap, cap_heap;
    int64_t n_blocked;
    mm_request *dirty_first, *dirty_last; /* to be published */
    mm_engine_stats stats;                /* its part of the statistics */
    mm_kv_pool pool;
    mm_group *group[MM_GROUP_BUCKETS];
} mm_scheduler;

mm_status mm_scheduler_open(mm_scheduler *s, const mm_scheduler_limits *lim,
                            const mm_request_limits *req, int64_t n_page);
void mm_scheduler_close(mm_scheduler *s);

/* Takes a request in. It may come out again at once, with an error (never fails otherwise). */
void mm_scheduler_add(mm_scheduler *s, mm_request *r);
void mm_scheduler_abort(mm_scheduler *s, mm_request *r);
/* The mask of token i_token: [mask_words]. */
void mm_scheduler_set_mask(mm_scheduler *s, mm_request *r, int32_t i_token, const uint32_t *word);
/* The next step, or NULL: nothing can run before a commit, a mask or a submission. */
const mm_plan *mm_scheduler_plan(mm_scheduler *s);
/* Results of the oldest plan in flight. */
void mm_scheduler_commit(mm_scheduler *s, const mm_step_result *result);
/* Ends everything that is alive: with an error, or aborted (NULL); batches in flight
 * are given up. */
void mm_scheduler_end_all(mm_scheduler *s, const mm_error *why);
/* The requests that changed since the last call, linked by dirty_next,
 * in order of change. */
mm_request *mm_scheduler_take_dirty(mm_scheduler *s);
static inline bool mm_scheduler_is_retired(const mm_request *r)
{
    return r->state == MM_REQUEST_DONE && r->n_in_flight == 0 && r->slot < 0;
}
/* Integrity: the pool, and that its references are what the sequences hold. For tests
 * and MM_DEV. */
mm_status mm_scheduler_check(const mm_scheduler *s);

/* Between the scheduler's files. */
/* `out` of r changed. */
void mm_scheduler_touch(mm_scheduler *s, mm_request *r, bool has_news);
/* r has more tokens; whoever changed its `out` as well has set is_stale. */
void mm_scheduler_advance(mm_scheduler *s, mm_request *r, bool has_news);
void mm_scheduler_end(mm_scheduler *s, mm_request *r, mm_finish finish, mm_stop stop,
                      int32_t stop_index);
void mm_scheduler_fail(mm_scheduler *s, mm_request *r, const mm_error *why);
void mm_scheduler_preempt(mm_scheduler *s, mm_request *r);
/* A batch in flight let go of r: frees what waits for that. */
void mm_scheduler_unhold(mm_scheduler *s, mm_request *r);
mm_request *mm_scheduler_pop_waiting(mm_scheduler *s);
void mm_scheduler_run(mm_scheduler *s, mm_request *r);
void mm_scheduler_drop_pages(mm_scheduler *s, mm_request *r);
void mm_group_computed(mm_scheduler *s, mm_group *g);
int32_t mm_first_step_rows(const mm_scheduler_limits *lim);
/* Adapts step_rows to how long a step of n_row rows took. */
void mm_scheduler_fit_steps(mm_scheduler *s, int32_t n_row, double seconds);
/* a is more urgent than b. */
bool mm_request_before(const mm_scheduler *s, const mm_request *a, const mm_request *b);
#endif
