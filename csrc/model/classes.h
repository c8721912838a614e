/* classes.h: how many bytes of a rank's weights each kind of matrix takes where it will lie: on a
 * device in the backend's own order, on a host as views and f32 copies. Known as soon as the model
 * is bound; nothing has to be loaded. */
#ifndef MM_MODEL_CLASSES_H
#define MM_MODEL_CLASSES_H
#include "csrc/model/model.h"

/* out[c] of the mm_weight_class c. Their sum on a device is what the weights' block takes. */
void mm_model_classes(const mm_model *m, int64_t out[MM_N_WEIGHT_CLASS]);
#endif
