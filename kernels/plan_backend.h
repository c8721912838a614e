/* plan_backend.h: a device that is not there. It has a size, and the two numbers of the CUDA
 * library that decide how memory is spent: the bytes of packed weights and of scratch. An engine's
 * plan can be made with it on any machine; nothing can be allocated or run. */
#ifndef MM_PLAN_BACKEND_H
#define MM_PLAN_BACKEND_H
#include "kernels/backend.h"

/* memory_total and memory_free: bytes of the imagined device. */
mm_status mm_plan_backend(mm_backend **out, int64_t memory_total, int64_t memory_free);
#endif
