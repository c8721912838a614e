/* host_begin.h: the `begin` op of every host backend; its contract is in ops.h. */
#ifndef MM_HOST_BEGIN_H
#define MM_HOST_BEGIN_H
#include "kernels/host.h"

mm_status mm_host_begin(const mm_op_context *c, const mm_begin_args *a);
#endif
