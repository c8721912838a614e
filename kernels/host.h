/* host.h: the stream of the two host backends: scratch memory for one op at a time, and the thread
 * pool (NULL on ref). Ops run at once; a stream's order is the caller's. */
#ifndef MM_HOST_H
#define MM_HOST_H
#include "csrc/base/arena.h"
#include "csrc/base/thread.h"
#include "kernels/ops.h"

struct mm_stream {
    mm_backend *backend;
    mm_arena scratch; /* reset at the start of every op */
    mm_pool *pool;    /* NULL: one thread */
};

/* backend functions shared by ref and cpu: fills b (its ops, name and pool are the caller's), plain
 * host memory. */
typedef struct mm_host_backend {
    mm_backend base; /* first: an mm_backend * is an mm_host_backend * */
    mm_pool *pool;
} mm_host_backend;
mm_status mm_host_backend_init(mm_host_backend *b, const char *name, const char *tier,
                               const mm_ops *ops, mm_pool *pool);
#endif
