/* tensors.h: the checkpoint as a set of named, mapped tensors. Names are looked up without the
 * optional prefix "language_model.", every tensor is marked when something binds it, and what is
 * left over is judged at the end: parts that other components use (vision tower, draft, MTP) are
 * counted, anything else is an error. */
#ifndef MM_MODEL_TENSORS_H
#define MM_MODEL_TENSORS_H
#include "csrc/model/map.h"
#include "csrc/model/problems.h"

typedef struct mm_tensor_ref {
    const char *name;             /* without prefix; borrowed from the table */
    const mm_tensor_entry *entry; /* borrowed */
    bool is_used;
} mm_tensor_ref;

typedef struct mm_tensors {
    const mm_tensor_table *table; /* borrowed: must outlive this */
    mm_map *map;                  /* [n_file] */
    int32_t n_file;
    mm_tensor_ref *ref; /* [n_ref], sorted by name */
    int64_t n_ref;
} mm_tensors;

/* Maps all files and checks every entry against them: inside its file, as long as its shape says,
 * disjoint, named once. */
mm_status mm_tensors_open(mm_tensors *out, const mm_tensor_table *table);
/* Forgets the names (the table may go); mappings stay. */
void mm_tensors_seal(mm_tensors *t);
void mm_tensors_close(mm_tensors *t);

/* NULL when there is none. Marks it used. */
mm_tensor_ref *mm_tensors_take(mm_tensors *t, const char *name);
bool mm_tensors_has(const mm_tensors *t, const char *name);
const uint8_t *mm_tensors_data(const mm_tensors *t, const mm_tensor_entry *e);
const char *mm_tensors_path(const mm_tensors *t, const mm_tensor_entry *e);
/* Adds a problem for each leftover that is no known part of a checkpoint; returns how many known
 * ones nobody bound. */
int64_t mm_tensors_leftover(const mm_tensors *t, mm_problems *p);
mm_status mm_tensors_verify(const mm_tensors *t); /* mm_map_verify of every file */

/* "[2, 3]" into text. */
const char *mm_shape_text(char text[96], int32_t rank, const int64_t *dim);
#endif
