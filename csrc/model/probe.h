/* probe.h: looking at named intermediates while the model runs. MM_PROBE=name[,layer] logs
 * statistics, MM_DUMP=dir writes .npy files; both are checked when a model opens. Off, a probe is
 * one branch. Names: in probe.c. */
#ifndef MM_MODEL_PROBE_H
#define MM_MODEL_PROBE_H
#include "csrc/model/model.h"

mm_status mm_probe_open(mm_model *m); /* m->probe stays NULL when no variable asks for it */
void mm_probe_close(mm_model *m);
mm_status mm_probe_look(mm_model *m, const char *name, int32_t layer, const void *data,
                        mm_dtype dtype, int64_t n_row, int64_t n_col);

/* data: backend memory [n_row, n_col], F32 or BF16; layer -1 outside the layers. */
static inline mm_status mm_probe(mm_model *m, const char *name, int32_t layer, const void *data,
                                 mm_dtype dtype, int64_t n_row, int64_t n_col)
{
    return m->probe == NULL ? MM_OK : mm_probe_look(m, name, layer, data, dtype, n_row, n_col);
}
#endif
