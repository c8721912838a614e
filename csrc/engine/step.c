/* step.c: see step.h. On host backends ops run as they are called and results need no copy. */
#include "csrc/engine/step.h"

/* What a group of output rows needs, from the host's copy of the plan. */
typedef struct group_needs {
    bool draws, scores, entries, work;
} group_needs;

static group_needs look_at(const mm_batch_out *out, int32_t n)
{
    group_needs g = {0};
    for (int32_t i = 0; i < n; i++) {
        g.draws = g.draws || out[i].kind == MM_OUT_SAMPLE;
        g.scores = g.scores || out[i].kind != MM_OUT_SAMPLE;
        g.entries = g.entries || out[i].n_top >= 0;
        g.work = g.work || out[i].needs_work;
    }
    return g;
}

/* Trace rows leave the step at once: row i of the group is position trace_first + row of the traced
 * prompt. */
static mm_status pull_trace(mm_step_context *k, const mm_batch *b, const mm_batch_out *out,
                            int32_t n)
{
    const int64_t V = k->model->config.n_vocab;
    if (!k->is_first || n == 0 || b->trace == NULL || b->trace->logits == NULL)
        return MM_OK;
    float *to = b->trace->logits + (int64_t)(b->trace_first + out[0].row) * V;
    MM_TRY(k->backend->download(k->backend, k->model->ctx.stream, to, k->buf->logits,
                                (size_t)(n * V) * sizeof(float)));
    return k->backend->sync(k->backend, k->model->ctx.stream);
}

static mm_status run_outputs(mm_step_context *k, const mm_batch *b, mm_step_result *res)
{
    const mm_op_context *c = &k->model->ctx;
    const mm_ops *ops = k->model->ops;
    const mm_batch_out *out = mm_batch_at(b, b->out);
    const mm_rank_buffers *buf = k->buf;
    const int32_t most = k->model->shape.max_logit_rows;
    for (int32_t first = 0; first < b->n_out; first += most) {
        const int32_t n = (int32_t)mm_min_i64(most, b->n_out - first);
        const group_needs need = look_at(out + first, n);
        MM_TRY(mm_model_logits(k->model, buf->out.row + first, n, buf->logits));
        MM_TRY(pull_trace(k, b, out + first, n));
        if (need.draws) {
            const mm_sample_args a = {.logits = buf->logits,
                                      .work = buf->work,
                                      .slots = &buf->slots,
                                      .out = &buf->out,
                                      .first = first,
                                      .n = n,
                                      .commit = true,
                                      .token = res->token,
                                      .flag = res->flag};
            MM_TRY(ops->sample(c, &a));
        }
        if (need.scores || need.entries || need.work) {
            const mm_logprob_args a = {.logits = buf->logits,
                                       .work = need.draws ? buf->work : NULL,
                                       .slots = &buf->slots,
                                       .out = &buf->out,
                                       .first = first,
                                       .n = n,
                                       .token = res->token,
                                       .flag = res->flag,
                                       .out_id = res->entry_id,
                                       .out_rank = res->entry_rank,
                                       .out_value = res->entry_value,
                                       .chosen = need.work ? res->sampling_logprob : NULL};
            MM_TRY(ops->logprobs(c, &a));
        }
    }
    return MM_OK;
}

static mm_status pull_results(mm_step_context *k, const mm_batch *b, mm_rank_step *s)
{
    mm_backend *be = k->backend;
    mm_stream *stream = k->model->ctx.stream;
    MM_TRY(be->download(be, stream, s->n_read, k->model->buf.n_read, 2 * sizeof(int64_t)));
    if (be->props.is_host || !k->is_first)
        return MM_OK;
    const size_t n = (size_t)b->n_out, m = (size_t)b->n_entry;
    const struct {
        void *to;
        const void *from;
        size_t n_bytes;
    } part[] = {
        {s->host.token, s->device.token, n * sizeof(int32_t)},
        {s->host.flag, s->device.flag, n},
        {s->host.sampling_logprob, s->device.sampling_logprob, n * sizeof(float)},
        {s->host.entry_id, s->device.entry_id, m * sizeof(int32_t)},
        {s->host.entry_rank, s->device.entry_rank, m * sizeof(int32_t)},
        {s->host.entry_value, s->device.entry_value, m * sizeof(float)},
    };
    for (size_t i = 0; i < MM_ARRAY_LEN(part); i++)
        if (part[i].n_bytes > 0)
            MM_TRY(be->download(be, stream, part[i].to, part[i].from, part[i].n_bytes));
    return MM_OK;
}

mm_status mm_step_start(mm_step_context *k, const mm_batch *batch, int32_t i)
{
    mm_backend *be = k->backend;
    mm_stream *stream = k->model->ctx.stream;
    mm_rank_step *s = &k->buf->step[i];
    s->host.step = batch->step;
    s->host.t_begin = mm_now();
    const void *blob = batch;
    if (!be->props.is_host) {
        MM_TRY(be->upload(be, stream, s->blob, batch, (size_t)batch->n_bytes));
        blob = s->blob;
    }
    const mm_begin_args begin = {.plan = batch,
                                 .blob = blob,
                                 .slots = &k->buf->slots,
                                 .seq = &k->buf->seq,
                                 .out = &k->buf->out};
    MM_TRY(k->model->ops->begin(&k->model->ctx, &begin));
    MM_TRY(be->zero(be, stream, k->model->buf.n_read, 2 * sizeof(int64_t)));
    MM_TRY(mm_model_forward(k->model, &k->buf->seq, batch->trace, batch->trace_first));
    MM_TRY(run_outputs(k, batch, &s->device));
    MM_TRY(pull_results(k, batch, s));
    return be->event_record(be, s->done, stream);
}

mm_status mm_step_finish(mm_step_context *k, int32_t i)
{
    mm_rank_step *s = &k->buf->step[i];
    MM_TRY(k->backend->event_wait(k->backend, s->done));
    s->host.t_end = mm_now();
    return MM_OK;
}
