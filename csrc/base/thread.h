/* thread.h: a pool for parallel loops with a static partition, so that results cannot depend on
 * timing. */
#ifndef MM_THREAD_H
#define MM_THREAD_H
#include "csrc/base/base.h"

typedef struct mm_pool mm_pool;
/* body(ctx, begin, end, i_thread): half-open range of [0, n); called at most once per thread. */
typedef void (*mm_pool_body)(void *ctx, int64_t begin, int64_t end, int i_thread);

/* n_thread >= 1 workers in all, the caller included: n_thread - 1 threads are created. They spin
 * shortly, then sleep. */
mm_status mm_pool_open(mm_pool **out, int n_thread);
void mm_pool_close(mm_pool *p);
int mm_pool_n_thread(const mm_pool *p);
/* Splits [0, n) into contiguous ranges that are multiples of `grain` (the last may be shorter), one
 * per thread, and returns when all are done. One caller at a time. Must not be nested. p may be
 * NULL: runs in the caller. */
void mm_pool_run(mm_pool *p, int64_t n, int64_t grain, mm_pool_body body, void *ctx);
/* As mm_pool_run, but threads take one item of `grain` after another (for items of unequal cost).
 * Each item must write only its own results. */
void mm_pool_run_dynamic(mm_pool *p, int64_t n, int64_t grain, mm_pool_body body, void *ctx);

int mm_physical_cores(void); /* cores this process may run on, hyper-threads counted once, >= 1 */
#endif
