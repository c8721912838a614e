/* attention.c: one attention branch: project, rotate and store (attn_in); choose blocks and attend
 * (attn_sparse), or attend to everything (attn_dense); project back, add to the stream, norm, route
 * (attn_out). */
#include "csrc/model/forward.h"
#include "csrc/model/probe.h"

static mm_status project(mm_model *m, const mm_step *step, int32_t i)
{
    const mm_op_shape *s = &m->shape;
    const bool is_sparse = m->layer[i].is_sparse;
    const mm_attn_in_args a = {.w = &m->layer[i].attn,
                               .cache = &m->cache[i],
                               .h = m->buf.h,
                               .q = m->buf.q,
                               .iq = is_sparse ? m->buf.iq : NULL};
    MM_TRY(m->ops->attn_in(&m->ctx, step->seq, &a));
    MM_TRY(mm_probe(m, "attn_q", i, m->buf.q, s->act, step->seq->n_row,
                    (int64_t)s->n_head * s->head_dim));
    if (!is_sparse)
        return MM_OK;
    return mm_probe(m, "attn_iq", i, m->buf.iq, s->act, step->seq->n_row,
                    (int64_t)s->n_index_head * s->index_dim);
}

static mm_status attend_sparse(mm_model *m, const mm_step *step, int32_t i)
{
    const mm_trace *trace = step->trace;
    const bool is_forced = mm_trace_forces_blocks(step, i);
    const bool is_wanted = trace != NULL && trace->blocks != NULL && trace->blocks[i] != NULL;
    if (is_forced)
        MM_TRY(mm_trace_put_blocks(m, step, i));
    const mm_attn_sparse_args a = {.cache = &m->cache[i],
                                   .q = m->buf.q,
                                   .iq = m->buf.iq,
                                   .blocks = is_forced || is_wanted ? m->buf.blocks : NULL,
                                   .force = is_forced,
                                   .n_read = m->buf.n_read,
                                   .o = m->buf.o};
    MM_TRY(m->ops->attn_sparse(&m->ctx, step->seq, &a));
    return is_wanted ? mm_trace_get_blocks(m, step, i) : MM_OK;
}

static mm_status attend_dense(mm_model *m, const mm_step *step, int32_t i)
{
    const mm_attn_dense_args a = {.cache = &m->cache[i], .q = m->buf.q, .o = m->buf.o};
    return m->ops->attn_dense(&m->ctx, step->seq, &a);
}

/* The router belongs to this op: it reads the normed rows that the experts will read. */
static mm_status project_back(mm_model *m, const mm_step *step, int32_t i)
{
    const mm_layer *layer = &m->layer[i];
    const bool is_forced = layer->is_moe && mm_trace_forces_experts(step, i);
    if (is_forced)
        MM_TRY(mm_trace_put_experts(m, step, i));
    const mm_attn_out_args a = {.wo = &layer->attn.o,
                                .o = m->buf.o,
                                .x = m->buf.x,
                                .norm_w = layer->post_norm,
                                .h = m->buf.h,
                                .gate = layer->gate,
                                .bias = layer->bias,
                                .experts = m->buf.experts,
                                .weights = m->buf.expert_weights,
                                .force = is_forced};
    MM_TRY(m->ops->attn_out(&m->ctx, step->seq, &a));
    if (layer->is_moe && step->trace != NULL)
        MM_TRY(mm_trace_get_experts(m, step, i));
    if (layer->is_moe)
        MM_TRY(mm_probe(m, "expert_weights", i, m->buf.expert_weights, MM_DTYPE_F32,
                        step->seq->n_row, m->config.n_expert_used));
    return mm_probe(m, "attn_x", i, m->buf.x, m->shape.act, step->seq->n_row, m->config.d_model);
}

mm_status mm_attention(mm_model *m, const mm_step *step, int32_t i)
{
    MM_TRY(project(m, step, i));
    MM_TRY(m->layer[i].is_sparse ? attend_sparse(m, step, i) : attend_dense(m, step, i));
    MM_TRY(mm_probe(m, "attn_o", i, m->buf.o, m->shape.act, step->seq->n_row,
                    (int64_t)m->shape.n_head * m->shape.head_dim));
    return project_back(m, step, i);
}
