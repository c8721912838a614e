/* shape.h: one rank's share of the model. Query, KV and index heads, MLP widths and vocabulary rows
 * are cut evenly by rank; with more ranks than KV heads a head lives on world / n_kv_head
 * neighbours. */
#ifndef MM_MODEL_SHAPE_H
#define MM_MODEL_SHAPE_H
#include "csrc/base/base.h"
#include "kernels/ops.h"

/* MM_E_CONFIG naming every count that `world` ranks cannot share. */
mm_status mm_shard_check(const mm_config *c, int32_t rank, int32_t world);
/* Fills the sizes of the model and of this rank's slice; limits, formats and act are the caller's.
 * Checked arguments. */
void mm_shape_fill(mm_op_shape *s, const mm_config *c, int32_t rank, int32_t world);
#endif
