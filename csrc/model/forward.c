/* forward.c: the forward pass of the model.
 *
 *     x = embed(token);                h = norm(x)
 *     per layer:  x += attention(h);   h = norm(x)
 *                 x += mlp(h);         h = norm(x)        mlp: dense, or routed + shared experts
 *     logits = head(h)
 *
 * Adding to x and the norm that follows belong to the op before them (ops.h: "end of a residual
 * branch"). */
#include "csrc/model/forward.h"
#include "csrc/model/probe.h"

static const float *norm_after(const mm_model *m, int32_t layer)
{
    return layer + 1 < m->config.n_layer ? m->layer[layer + 1].input_norm : m->final_norm;
}

static mm_status embed(mm_model *m, const mm_step *step)
{
    const mm_embed_args a = {
        .embed = &m->embed, .norm_w = m->layer[0].input_norm, .x = m->buf.x, .h = m->buf.h};
    MM_TRY(m->ops->embed(&m->ctx, step->seq, &a));
    return mm_probe(m, "embed", -1, m->buf.x, m->shape.act, step->seq->n_row, m->config.d_model);
}

static mm_status run_layer(mm_model *m, const mm_step *step, int32_t i)
{
    MM_TRY(mm_attention(m, step, i));
    MM_TRY(m->layer[i].is_moe ? mm_moe(m, step, i, norm_after(m, i))
                              : mm_mlp(m, step, i, norm_after(m, i)));
    MM_TRY(mm_probe(m, "hidden", i, m->buf.x, m->shape.act, step->seq->n_row, m->config.d_model));
    return step->trace != NULL ? mm_trace_get_hidden(m, step, i) : MM_OK;
}

mm_status mm_model_forward(mm_model *m, const mm_seq_view *seq, const mm_trace *trace,
                           int32_t trace_first)
{
    const mm_step step = {.seq = seq, .trace = trace, .trace_first = trace_first};
    const mm_ops *ops = m->ops;
    if (seq->n_row == 0)
        return MM_OK;
    MM_TRY(embed(m, &step));
    if (ops->decode_layers != NULL && seq->is_decode && trace == NULL && m->probe == NULL)
        return ops->decode_layers(&m->ctx, seq, m->layer, m->cache, &m->buf, 0, m->config.n_layer);
    for (int32_t i = 0; i < m->config.n_layer; i++)
        MM_TRY(run_layer(m, &step, i));
    return mm_probe(m, "final", -1, m->buf.h, m->shape.act, seq->n_row, m->config.d_model);
}

mm_status mm_model_logits(mm_model *m, const int32_t *row, int32_t n, float *logits)
{
    MM_ASSERT(n <= m->shape.max_logit_rows);
    if (n == 0)
        return MM_OK;
    const mm_head_args a = {.w = &m->head, .h = m->buf.h, .row = row, .n_out = n, .logits = logits};
    MM_TRY(m->ops->head(&m->ctx, &a));
    return mm_probe(m, "logits", -1, logits, MM_DTYPE_F32, n, m->config.n_vocab);
}
