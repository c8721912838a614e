/* sampler.h: a request's sampling settings as the data of a slot. */
#ifndef MM_SAMPLER_H
#define MM_SAMPLER_H
#include "csrc/engine/batch_build.h"

/* Bytes that mm_sampler_fill_slot appends for r. */
int64_t mm_sampler_slot_bytes(const mm_request *r);
/* Everything the ranks must know when r's slot begins: settings, lists, and the state that its own
 * tokens decide. */
void mm_sampler_fill_slot(const mm_request *r, mm_batch_slot *out, mm_blob *blob);
/* What is to be told of the token that this row draws. */
void mm_sampler_fill_entries(const mm_request *r, mm_batch_out *out);
#endif
