/* rank.h: the ranks of an engine, one thread per device. Each rank owns a backend, a slice of the
 * model, the slots' state and the buffers of a step; the coordinator posts batches and collects
 * results, in order, and touches nothing else in between. Up to two batches are posted; the rank
 * starts the second while the device still runs the first. A rank that is alone runs in the
 * coordinator's thread once it is open. */
#ifndef MM_RANK_H
#define MM_RANK_H
#include "csrc/engine/scheduler.h"
#include "csrc/model/model.h"
#include "csrc/model/profile.h"

typedef struct mm_ranks mm_ranks;
typedef struct mm_ranks_options mm_ranks_options;

struct mm_ranks_options {
    const mm_engine_options *engine; /* poll is called in the opening thread */
    mm_scheduler_limits limits;      /* run_ahead -1: the backend's choice */
    int64_t max_blob;
    int32_t max_logit_rows;
};

/* Opens everything on the ranks' own threads; *out is NULL on failure. */
mm_status mm_ranks_open(mm_ranks **out, const mm_ranks_options *opt);
/* What rank 0 would take on this backend, by the same code; nothing is allocated on it. */
mm_status mm_ranks_plan(const mm_ranks_options *opt, mm_backend *be, mm_forecast *out);
/* Waits for what runs, joins the threads, frees. NULL is fine. */
void mm_ranks_close(mm_ranks *r);

/* Memory of max_blob bytes to build the next batch in: that of the step before last, which must
 * have been collected. */
void *mm_ranks_blob(mm_ranks *r);
/* The batch built in mm_ranks_blob. A single rank starts it before this returns: a host has then
 * run it, a device has it queued. */
void mm_ranks_launch(mm_ranks *r, const mm_batch *batch);
/* Waits for the oldest batch; its result is valid until the next mm_ranks_blob. An error of any
 * rank is raised. */
mm_status mm_ranks_collect(mm_ranks *r, const mm_step_result **out);

/* Seconds that the coordinator spent on the batch that it launches next (PLAN) or that it collected
 * last (COMMIT, PUBLISH). Counted where one rank runs in its thread. */
void mm_ranks_profile(mm_ranks *r, mm_profile_host_part part, double seconds);

/* What rank 0 found out, fixed after open. */
int32_t mm_ranks_run_ahead(const mm_ranks *r);
int64_t mm_ranks_n_page(const mm_ranks *r);
const mm_backend_props *mm_ranks_props(const mm_ranks *r);
const mm_model *mm_ranks_model(const mm_ranks *r);
/* Appends lines of memory held by one rank; returns the new count. */
int32_t mm_ranks_memory(const mm_ranks *r, mm_memory_line *line, int32_t n, int32_t cap);
#endif
