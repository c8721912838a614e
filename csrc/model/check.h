/* check.h: MM_CHECK=1. Every op of the model runs a second time on ref, from the same inputs, and
 * the first result that lies outside the tolerance of its type is logged by op, layer and element.
 * Any backend, one rank; inputs and results are copied to the host, so it is slow. */
#ifndef MM_MODEL_CHECK_H
#define MM_MODEL_CHECK_H
#include "csrc/model/model.h"

/* m->ops becomes the checking table when the variable is set */
mm_status mm_check_open(mm_model *m);
void mm_check_close(mm_model *m);
#endif
