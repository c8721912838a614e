/* config.h: the numbers of a model. mm_config_check (mm.h) refuses what the forward pass cannot
 * run, all problems in one message, each by the field's name in config.json; a copy made here owns
 * its arrays. */
#ifndef MM_MODEL_CONFIG_H
#define MM_MODEL_CONFIG_H
#include "csrc/base/base.h"

/* Deep copy into *out, whose arrays the copy owns. *out is untouched on failure. */
mm_status mm_config_copy(mm_config *out, const mm_config *c);
void mm_config_free(mm_config *c); /* frees the arrays of a copy */

bool mm_config_has_sparse(const mm_config *c); /* any layer with block-sparse attention */
bool mm_config_has_dense_mlp(const mm_config *c);
bool mm_config_has_moe(const mm_config *c);
#endif
