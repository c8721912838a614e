/* profile.h: MM_PROFILE. 1: every op of the model is timed (device events, or the host's clock), so
 * steps run one at a time and without graphs. 2: steps run as always and are timed whole, with the
 * idle time of the device before each. Closing the model logs one table per kind of step
 * (sequences, rows, context): name, calls per step, microseconds per step, share. The first step of
 * a kind warms up and is not counted. */
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
#endif
