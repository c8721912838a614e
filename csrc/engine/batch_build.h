/* batch_build.h: from a plan to the flat blob that ranks read. */
#ifndef MM_BATCH_BUILD_H
#define MM_BATCH_BUILD_H
#include "csrc/engine/scheduler.h"

/* Appends arrays to a blob, each at a multiple of 16 bytes. */
typedef struct mm_blob {
    uint8_t *base;
    int64_t used, cap;
} mm_blob;
/* Byte offset of n_bytes of room, filled from src unless NULL; -1 when n_bytes is 0. Running out is
 * a bug of the plan. */
int64_t mm_blob_put(mm_blob *b, const void *src, int64_t n_bytes);

/* Largest blob of a step under these limits. */
int64_t mm_batch_max_bytes(const mm_scheduler_limits *lim);
/* The least max_dynamic with which any one request can begin. */
int64_t mm_batch_max_dynamic(int32_t max_len, int32_t n_vocab);
/* What an item needs beside the fixed arrays: lists and history of a slot that begins, its mask,
 * ids to score. */
int64_t mm_batch_dynamic_bytes(const mm_plan_item *item);
/* The blob begins with the mm_batch. Reads requests as mm_scheduler_plan left them: build before
 * anything changes. */
const mm_batch *mm_batch_build(const mm_plan *plan, void *blob, int64_t cap);
#endif
