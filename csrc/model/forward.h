/* forward.h: the parts of the forward pass. A step is embed, then per layer attention and an MLP
 * (dense or experts), then the head; each part ends by leaving the next part's normed input in
 * m->buf.h. */
#ifndef MM_MODEL_FORWARD_H
#define MM_MODEL_FORWARD_H
#include "csrc/model/model.h"

/* The rows of one step, and the trace they belong to (NULL: none). */
typedef struct mm_step {
    const mm_seq_view *seq;
    const mm_trace *trace;
    int32_t trace_first; /* position of row 0 in the traced prompt */
} mm_step;

mm_status mm_attention(mm_model *m, const mm_step *step, int32_t layer);
/* Dense MLP or experts of the layer; next_norm [D]: the norm after it (next layer's input norm, or
 * the final one). */
mm_status mm_mlp(mm_model *m, const mm_step *step, int32_t layer, const float *next_norm);
mm_status mm_moe(mm_model *m, const mm_step *step, int32_t layer, const float *next_norm);

/* trace.c: forced choices go up before the op that uses them, results come down after it. All
 * synchronise. */
bool mm_trace_forces_blocks(const mm_step *step, int32_t layer);
bool mm_trace_forces_experts(const mm_step *step, int32_t layer);
mm_status mm_trace_put_blocks(mm_model *m, const mm_step *step, int32_t layer);
mm_status mm_trace_put_experts(mm_model *m, const mm_step *step, int32_t layer);
mm_status mm_trace_get_blocks(mm_model *m, const mm_step *step, int32_t layer);
mm_status mm_trace_get_experts(mm_model *m, const mm_step *step, int32_t layer);
mm_status mm_trace_get_hidden(mm_model *m, const mm_step *step, int32_t layer);
/* n elements of backend memory as f32 in host memory; dtype F32 or BF16. */
mm_status mm_model_download_f32(mm_model *m, float *out, const void *src, mm_dtype dtype,
                                int64_t n);
#endif
