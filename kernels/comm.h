/* comm.h: collectives among the ranks of one engine. "self" (world 1) only copies all_gather's
 * input to its output; a shard run alone uses it too.
 * One communicator per rank, used by that rank's thread only (abort: any thread). Sums have the
 * same order in every run: f32 accumulation, rounded once to the dtype. */
#ifndef MM_COMM_H
#define MM_COMM_H
#include "csrc/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif
typedef struct mm_stream mm_stream;
typedef struct mm_comm mm_comm;
struct mm_comm {
    int32_t rank, world;
    /* in place, sum */
    mm_status (*all_reduce)(mm_comm *c, mm_stream *s, void *buf, mm_dtype dtype, int64_t n);
    /* out [world, n_bytes] */
    mm_status (*all_gather)(mm_comm *c, mm_stream *s, const void *in, void *out, int64_t n_bytes);
    mm_status (*broadcast)(mm_comm *c, mm_stream *s, void *buf, int64_t n_bytes, int32_t root);
    mm_status (*barrier)(mm_comm *c);
    void (*abort)(mm_comm *c); /* any thread: frees ranks that wait for a failed peer */
    void (*close)(mm_comm *c);
};
mm_status mm_comm_open_self(mm_comm **out);
void mm_comm_close(mm_comm *c); /* NULL is fine */
#ifdef __cplusplus
}
#endif
#endif
