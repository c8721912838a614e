/* dummy.h: weights from a counter, for tests, plans and measurements without a checkpoint. Element
 * (row, column) of a named matrix depends on seed, name and its place alone, so every sharding sees
 * the same model. Magnitudes are those of a trained network at initialisation: N(0, 1) / sqrt(fan
 * in). */
#ifndef MM_MODEL_DUMMY_H
#define MM_MODEL_DUMMY_H
#include "csrc/model/weights.h"

/* What a matrix of this name is stored as; quantized: mm_engine_options.dummy_quantized. */
mm_weight_format mm_dummy_format(const char *name, int32_t quantized);
/* Fills codes and scales of the slice; out describes memory of that shape already (data, scale,
 * strides). pool NULL: the caller's thread alone; the values are the same. */
void mm_dummy_matrix(mm_pool *pool, uint64_t seed, const char *name, int64_t n_in, mm_slice s,
                     mm_weight *out);
/* Values of a norm, router or bias. */
void mm_dummy_floats(mm_pool *pool, uint64_t seed, const char *name, int64_t n_row, int64_t n_col,
                     float *out);
#endif
