/* warm.h: steps of the reserved slot that run when an engine opens on a device: a driver loads a
 * kernel when it is first launched, which takes it time and memory that no step of a request shall
 * wait for. They go the way of every step that is not captured, and leave nothing behind: keys go
 * to page 0, which is never given out, and all that the slot becomes is padding's (graph.h). */
#ifndef MM_WARM_H
#define MM_WARM_H
#include "csrc/engine/step.h"

/* A prompt's largest chunk, a short one, and a decode; with logits of as many rows as can be asked
 * for at once, a slot and a mask that begin, a filtered draw, top log-probabilities. n_bytes: of a
 * batch at most. Every rank does the same; no step may be in flight. */
mm_status mm_warm_up(mm_step_context *k, int64_t n_bytes);
#endif
