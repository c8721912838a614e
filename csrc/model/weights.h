/* weights.h: where matrices come from and where they live. A source is the mapped checkpoint or the
 * dummy generator; a slot asks for a slice of a named matrix and gets an mm_weight in checkpoint
 * order in host memory: a view of the mapping, or memory owned here. On host backends that is the
 * end of it; else `place` and `pack` move it to the device, into one block whose size `measure`
 * knew before anything was loaded.
 *
 * Problems of the checkpoint are collected while binding (the slot then stays empty) and raised
 * together by `judge`, before anything is uploaded. */
#ifndef MM_MODEL_WEIGHTS_H
#define MM_MODEL_WEIGHTS_H
#include "csrc/base/thread.h"
#include "csrc/model/model.h"
#include "csrc/model/problems.h"
#include "csrc/model/tensors.h"

typedef struct mm_slice {
    int64_t row, n_row, col, n_col;
} mm_slice;

/* Blocks of memory with one owner. */
typedef struct mm_blocks {
    void **item;
    int32_t n, cap;
    int64_t n_bytes;
} mm_blocks;

struct mm_weights {
    const mm_engine_options *options; /* borrowed while opening; NULL after seal */
    mm_op_context ctx;                /* shape; a stream of its own while loading to a device */
    mm_backend *backend;
    mm_tensors tensors;
    mm_problems problems;
    bool is_counting;  /* dummy, first pass: slots are measured, not filled */
    bool is_measuring; /* device: place and pack add up bytes and move nothing */
    bool check_scales;
    bool keeps_host;   /* device with MM_CHECK: host copies stay, ref reads them */
    mm_pool *pool;     /* while loading: makes dummy weights and tables */
    mm_blocks owned;   /* host memory that slots point to */
    mm_blocks temp;    /* host memory of what is being uploaded now */
    mm_blocks vectors; /* f32 copies read from files, until they are on the device */
    uint8_t *device;   /* backend memory of all matrices and vectors, one block */
    int64_t n_device;  /* its bytes: what measuring found */
    int64_t n_device_used;
    int64_t n_mapped;        /* bytes of slots that are views of the mapping */
    int64_t n_done, n_total; /* progress in bytes */
    double t_poll;
    void *stage[2]; /* pinned, for uploads; NULL on host backends */
    mm_event *staged[2];
    int32_t i_stage;
};

mm_status mm_weights_open(mm_weights **out, const mm_engine_options *o, mm_backend *b,
                          const mm_op_context *ctx);
void mm_weights_close(mm_weights *w);

/* Slice of the matrix `name` (Hub name without prefix and without ".weight") of [n_out, n_in]. */
mm_status mm_weights_matrix(mm_weights *w, const char *name, int64_t n_out, int64_t n_in,
                            mm_slice s, mm_weight *out);
/* F32 copy in host memory of a small BF16 or F32 tensor [n_row, n_col]; n_row 0: a vector [n_col].
 * Device backends: `place_floats` moves it. NULL while dummy weights are only counted. */
mm_status mm_weights_floats(mm_weights *w, const char *name, int64_t n_row, int64_t n_col,
                            const float **out);
/* All problems so far and leftover tensors in one MM_E_FORMAT; *n_unused = tensors of other
 * components. */
mm_status mm_weights_judge(mm_weights *w, int64_t *n_unused);

/* Device backends: moves matrices (those with a format) to backend memory / a
 * backend's own order. */
mm_status mm_weights_place(mm_weights *w, mm_weight *const *m, int32_t n);
mm_status mm_weights_place_floats(mm_weights *w, const float **v, int64_t n);
mm_status mm_weights_pack(mm_weights *w, mm_pack kind, const mm_weight *src, int32_t n,
                          mm_weight *out);
/* Uploads of this group are done: host copies made for them go. Host backends keep them. */
mm_status mm_weights_flush(mm_weights *w);
/* Calls the options' poll about ten times a second. */
mm_status mm_weights_poll(mm_weights *w);
/* Re-read point: MM_E_IO when a mapped file changed on disk. */
mm_status mm_weights_verify(const mm_weights *w);
/* Opening is over: names and options are forgotten, mappings stay. */
void mm_weights_seal(mm_weights *w);

/* bind.c: fills embed, head, final_norm and layer[] of the model. First bind: every slot finds its
 * tensor or the whole fails; then load: what has to move or be made does. */
mm_status mm_weights_bind(mm_weights *w, mm_model *m, int32_t shard_rank, int32_t shard_world);
/* After bind, device backends: w->n_device, the exact bytes that load will take. */
mm_status mm_weights_measure(mm_weights *w, mm_model *m);
mm_status mm_weights_load(mm_weights *w, mm_model *m, int32_t shard_rank, int32_t shard_world);

/* upload.c */
mm_status mm_blocks_add(mm_blocks *b, void *item, int64_t n_bytes);
int64_t mm_weight_bytes(const mm_weight *m); /* codes and scales of the slice */
#endif
