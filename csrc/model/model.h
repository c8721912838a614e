/* model.h: the weights and buffers of one rank and its forward pass. Plain structs, no behaviour
 * beyond open, forward, logits. The engine's ranks use this; it knows nothing of requests. */
#ifndef MM_MODEL_H
#define MM_MODEL_H
#include "csrc/base/base.h"
#include "csrc/model/batch.h"
#include "csrc/tensor.h"
#include "kernels/backend.h"
#include "kernels/ops.h"

struct mm_model;
typedef struct mm_weights mm_weights; /* weights.h: mappings, slots, owned buffers */
struct mm_probe_state;                /* probe.h */
struct mm_check_state;                /* check.h */
struct mm_profile_state;              /* profile.h */

typedef struct mm_model_options {
    const mm_engine_options *engine; /* config, load, weights, dtype, formats, limits, poll */
    mm_backend *backend;             /* borrowed */
    mm_comm *comm;                   /* borrowed; rank and world of collectives */
    int32_t shard_rank, shard_world; /* which slice of the weights */
    int64_t n_page;                  /* pages of every layer's planes */
    int32_t max_logit_rows;
    /* Called when all sizes are known (m->memory) and nothing is loaded: chooses n_page, or refuses
     * the model. NULL: n_page above. */
    mm_status (*plan)(void *ctx, const struct mm_model *m, int64_t *n_page);
    void *plan_ctx;
} mm_model_options;

typedef struct mm_model {
    mm_config config; /* owned copy, arrays included */
    mm_op_shape shape;
    mm_op_context ctx; /* stream, shape, comm, rope */
    mm_backend *backend;
    mm_weights *weights;
    mm_weight embed, head;
    const float *final_norm;
    mm_layer *layer;       /* [n_layer] */
    mm_layer_cache *cache; /* [n_layer], backend memory */
    int64_t n_page;
    mm_buffers buf;
    struct { /* device backends: weights in checkpoint order in host memory, with MM_CHECK only */
        mm_layer *layer;
        mm_weight embed, head;
        const float *final_norm;
    } host;
    mm_memory_line memory[16]; /* what it holds, by purpose */
    int32_t n_memory;
    int64_t n_tensor_unused;
    int64_t scratch_bytes; /* of the stream */
    /* what follows is model/'s own */
    const mm_ops *ops;                /* the backend's, or check.c's around them */
    struct mm_check_state *check;     /* NULL without MM_CHECK */
    struct mm_probe_state *probe;     /* NULL without MM_PROBE and MM_DUMP */
    struct mm_profile_state *profile; /* NULL without MM_PROFILE */
    void *stage; /* host memory (pinned) of MM_MODEL_STAGE bytes: traces, probes, the rope table */
    void *block[3]; /* backend memory: activations, rope table, pages */
} mm_model;
#define MM_MODEL_STAGE ((size_t)1 << 20)

mm_status mm_model_open(mm_model **out, const mm_model_options *opt);
void mm_model_close(mm_model *m);

/* Bytes of one logical page over all layers (K, V, index keys, scales) for this rank's heads. */
int64_t mm_model_page_bytes(const mm_config *c, mm_cache_format kv, mm_cache_format index,
                            int32_t shard_rank, int32_t shard_world);

/* Runs the rows through all layers; m->buf.h [n_row, D] then holds the final-normed rows. With a
 * trace (host memory) each layer's residual stream, blocks, experts are downloaded to rows
 * [trace_first, trace_first + n_row), and forced choices uploaded before. Trace and forcing
 * synchronise; without them nothing does. */
mm_status mm_model_forward(mm_model *m, const mm_seq_view *seq, const mm_trace *trace,
                           int32_t trace_first);
/* logits [n, V] f32 (backend memory) of rows of m->buf.h; row is in backend memory; n <=
 * max_logit_rows. */
mm_status mm_model_logits(mm_model *m, const int32_t *row, int32_t n, float *logits);
#endif
