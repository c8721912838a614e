/* host_begin.h: `begin` and `expand` of every host backend; their contracts are in ops.h. */
#ifndef MM_HOST_BEGIN_H
#define MM_HOST_BEGIN_H
#include "kernels/host.h"

mm_status mm_host_begin(const mm_op_context *c, const mm_begin_args *a);
mm_status mm_host_expand(const mm_op_context *c, const mm_expand_args *a);
#endif
