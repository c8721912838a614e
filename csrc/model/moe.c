/* moe.c: the second branch of a layer: a dense MLP, or the chosen experts and the shared one. All
 * experts are on this backend, so one piece runs them all; experts in two places would be two
 * pieces of the same op. */
#include "csrc/model/forward.h"

mm_status mm_mlp(mm_model *m, const mm_step *step, int32_t i, const float *next_norm)
{
    const mm_layer *layer = &m->layer[i];
    const mm_mlp_args a = {.gate = &layer->mlp_gate,
                           .up = &layer->mlp_up,
                           .down = &layer->mlp_down,
                           .gate_up = layer->mlp_gate_up,
                           .h = m->buf.h,
                           .x = m->buf.x,
                           .norm_w = next_norm,
                           .h_out = m->buf.h};
    return m->ops->mlp(&m->ctx, step->seq, &a);
}

mm_status mm_moe(mm_model *m, const mm_step *step, int32_t i, const float *next_norm)
{
    const mm_layer *layer = &m->layer[i];
    const mm_moe_args a = {.w = &layer->expert,
                           .first = 0,
                           .last = m->config.n_expert,
                           .with_shared = m->config.d_shared > 0,
                           .accumulate = false,
                           .finish = true,
                           .h = m->buf.h,
                           .experts = m->buf.experts,
                           .weights = m->buf.expert_weights,
                           .acc = m->buf.acc,
                           .x = m->buf.x,
                           .norm_w = next_norm,
                           .h_out = m->buf.h};
    return m->ops->moe(&m->ctx, step->seq, &a);
}
