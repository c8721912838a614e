/* profile.h: MM_PROFILE. 1: every op of the model is timed (device events, or the host's clock), so
 * steps run one at a time and without graphs. 2: steps run as always and are timed whole, with the
 * idle time of the device before each, and what the host did for them in parts. Closing the model
 * logs one table per kind of step (sequences, rows, context): name, calls per step, microseconds
 * per step, share. The first step of a kind warms up and is not counted. */
#ifndef MM_MODEL_PROFILE_H
#define MM_MODEL_PROFILE_H
#include "csrc/model/model.h"

mm_status mm_profile_open(mm_model *m); /* m->profile stays NULL when the variable is not set */
void mm_profile_close(mm_model *m);     /* logs the tables */

/* Around a step, from the rank's thread; all do nothing without a profile. `i` is 0 or 1: the step
 * in flight. `finish` is called when the step is over. */
mm_status mm_profile_step_start(mm_model *m, int32_t i, const mm_batch *b);
mm_status mm_profile_step_end(mm_model *m, int32_t i);
mm_status mm_profile_step_finish(mm_model *m, int32_t i);

/* MM_PROFILE=2: what the host spent on step i, from the thread that starts and finishes steps. PLAN
 * comes before its step starts, COMMIT and PUBLISH after it was finished. */
typedef enum mm_profile_host_part {
    MM_PROFILE_PLAN,    /* plan and batch */
    MM_PROFILE_BEGIN,   /* upload, begin; expand of a step without a graph */
    MM_PROFILE_RUN,     /* graph, or every op */
    MM_PROFILE_RESULTS, /* download, event */
    MM_PROFILE_COMMIT,  /* tokens appended, ends found */
    MM_PROFILE_PUBLISH  /* readers' snapshots, news */
} mm_profile_host_part;
void mm_profile_host(mm_model *m, int32_t i, mm_profile_host_part which, double seconds);
#endif
