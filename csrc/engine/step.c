/* step.c: see step.h. On host backends ops run as they are called and results need no copy. On a
 * device nothing here waits: results come down in one piece, and an event says when. A captured
 * step finds its batch where it was built, in pinned memory, and is one call; whatever else reads a
 * batch reads a copy, which goes up on a stream of its own while the step before runs. */
#include "csrc/engine/step.h"
#include "csrc/engine/graph.h"
#include "csrc/model/forward.h"
#include "csrc/model/profile.h"

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
    return mm_model_download_f32(k->model, to, k->buf->logits, MM_DTYPE_F32, n * V);
}

static mm_sample_args draw_args(mm_step_context *k, const mm_out_view *out, int32_t first,
                                int32_t n, mm_step_result *r)
{
    return (mm_sample_args){.logits = k->buf->logits,
                            .work = k->buf->work,
                            .slots = &k->buf->slots,
                            .out = out,
                            .first = first,
                            .n = n,
                            .commit = true,
                            .token = r->token,
                            .flag = r->flag};
}

mm_status mm_step_draw(mm_step_context *k, const mm_out_view *out, int32_t n_out, int32_t draw,
                       mm_step_result *r)
{
    const int32_t most = k->model->shape.max_logit_rows;
    for (int32_t first = 0; first < n_out; first += most) {
        const int32_t n = (int32_t)mm_min_i64(most, n_out - first);
        mm_sample_args a = draw_args(k, out, first, n, r);
        a.draw = draw;
        a.work_ends = true;
        MM_TRY(mm_model_logits(k->model, out->row + first, n, k->buf->logits));
        MM_TRY(k->model->ops->sample(&k->model->ctx, &a));
    }
    return MM_OK;
}

static mm_status run_outputs(mm_step_context *k, const mm_batch *b, mm_step_result *r)
{
    const mm_batch_out *out = mm_batch_at(b, b->out);
    const mm_rank_buffers *buf = k->buf;
    const int32_t most = k->model->shape.max_logit_rows;
    for (int32_t first = 0; first < b->n_out; first += most) {
        const int32_t n = (int32_t)mm_min_i64(most, b->n_out - first);
        const group_needs need = look_at(out + first, n);
        MM_TRY(mm_model_logits(k->model, buf->out.row + first, n, buf->logits));
        MM_TRY(pull_trace(k, b, out + first, n));
        if (need.draws) {
            mm_sample_args a = draw_args(k, &buf->out, first, n, r);
            a.draw = b->draw;
            a.work_ends = !need.work;
            MM_TRY(k->model->ops->sample(&k->model->ctx, &a));
        }
        if (need.scores || need.entries || need.work) {
            const mm_logprob_args a = {.logits = buf->logits,
                                       .work = need.draws ? buf->work : NULL,
                                       .slots = &buf->slots,
                                       .out = &buf->out,
                                       .first = first,
                                       .n = n,
                                       .token = r->token,
                                       .flag = r->flag,
                                       .out_id = r->entry_id,
                                       .out_rank = r->entry_rank,
                                       .out_value = r->entry_value,
                                       .chosen = need.work ? r->sampling_logprob : NULL};
            MM_TRY(k->model->ops->logprobs(&k->model->ctx, &a));
        }
    }
    return MM_OK;
}

static bool has_changes(const mm_batch *b)
{
    return b->n_slot > 0 || b->n_mask > 0;
}

/* *blob: the batch in backend memory. */
static mm_status send(mm_step_context *k, const mm_batch *batch, int32_t i, const void **blob)
{
    mm_backend *be = k->backend;
    mm_rank_step *s = &k->buf->step[i];
    *blob = batch;
    if (be->props.is_host)
        return MM_OK;
    /* last read by the step before last, which the coordinator has collected */
    MM_TRY(be->upload(be, k->copies, s->blob, batch, (size_t)batch->n_bytes));
    MM_TRY(be->event_record(be, s->sent, k->copies));
    MM_TRY(be->stream_wait(be, k->model->ctx.stream, s->sent));
    *blob = s->blob;
    return MM_OK;
}

/* All that comes before the rows run: of a captured step, what its graph has not. */
static mm_status prepare(mm_step_context *k, const mm_batch *batch, int32_t i,
                         const mm_step_graph *g)
{
    mm_rank_buffers *buf = k->buf;
    const void *blob = batch;
    if (g == NULL || !g->draws || has_changes(batch))
        MM_TRY(send(k, batch, i, &blob));
    if (has_changes(batch)) {
        const mm_begin_args a = {.plan = batch, .blob = blob, .slots = &buf->slots};
        MM_TRY(k->model->ops->begin(&k->model->ctx, &a));
    }
    buf->out.n_out = batch->n_out;
    buf->out.blob = blob;
    if (g != NULL) /* it counts places in the ring by itself */
        return MM_OK;
    buf->seq.n_seq = batch->n_seq;
    buf->seq.n_row = batch->n_row;
    buf->seq.max_pos = batch->max_pos;
    buf->seq.is_decode = batch->is_decode != 0;
    const mm_expand_args a = {.plan = batch,
                              .blob = blob,
                              .ring = k->backend->props.is_host ? NULL : &buf->ring,
                              .i_ring = i,
                              .slots = &buf->slots,
                              .seq = &buf->seq,
                              .out = &buf->out,
                              .n_read = k->model->buf.n_read};
    return k->model->ops->expand(&k->model->ctx, &a);
}

mm_status mm_step_forward(mm_step_context *k, const mm_seq_view *seq, const mm_batch *batch)
{
    return mm_model_forward(k->model, seq, batch != NULL ? batch->trace : NULL,
                            batch != NULL ? batch->trace_first : 0);
}

/* Padding rows count what they draw in the reserved slot; now and then that starts over. */
static mm_status run_eager(mm_step_context *k, const mm_batch *batch)
{
    const mm_slots *slots = &k->buf->slots;
    if (k->graphs != NULL && k->graphs->n > 0)
        MM_TRY(k->backend->zero(k->backend, k->model->ctx.stream,
                                &slots->n_emitted[slots->n_slot - 1], sizeof(int32_t)));
    return mm_step_forward(k, &k->buf->seq, batch);
}

/* The host's time since *t belongs to a part of step i. */
static void lap(mm_step_context *k, int32_t i, mm_profile_host_part part, double *t)
{
    if (k->model->profile == NULL)
        return;
    const double now = mm_now();
    mm_profile_host(k->model, i, part, now - *t);
    *t = now;
}

mm_status mm_step_start(mm_step_context *k, const mm_batch *batch, int32_t i)
{
    mm_backend *be = k->backend;
    mm_rank_step *s = &k->buf->step[i];
    const bool is_host = be->props.is_host;
    const mm_batch_out *out = mm_batch_at(batch, batch->out);
    s->result.step = batch->step;
    MM_TRY(mm_profile_step_start(k->model, i, batch));
    double t = s->result.t_begin = mm_now(); /* what a profile costs is not the step's */
    const mm_step_graph *g = mm_graphs_find(k->graphs, batch);
    s->result.is_graph = g != NULL;

    /* A graph with outputs filled up the results of all its sequences. */
    const int64_t n_out = g != NULL && g->draws ? g->n_seq : batch->n_out;
    const bool chosen = look_at(out, batch->n_out).work;
    uint8_t *base = is_host ? s->host : k->buf->result;
    mm_step_result r = {0};
    const int64_t n_bytes = mm_rank_result_lay(&r, base, n_out, batch->n_entry, chosen);
    k->model->buf.n_read = (int64_t *)(void *)base;
    MM_ASSERT(batch == k->buf->ring.batch[i]);
    MM_TRY(prepare(k, batch, i, g));
    lap(k, i, MM_PROFILE_BEGIN, &t);
    if (g != NULL)
        MM_TRY(be->graph_launch(be, g->graph, k->model->ctx.stream));
    else
        MM_TRY(run_eager(k, batch));
    if (g == NULL || !g->draws)
        MM_TRY(run_outputs(k, batch, &r));
    lap(k, i, MM_PROFILE_RUN, &t);
    (void)mm_rank_result_lay(&s->result, s->host, n_out, batch->n_entry, chosen);
    if (!is_host && (g == NULL || !g->draws)) /* a graph with draws sends them itself */
        MM_TRY(be->download(be, k->model->ctx.stream, s->host, base, (size_t)n_bytes));
    const double before = mm_now();
    MM_TRY(mm_profile_step_end(k->model, i));
    const double profiled = mm_now() - before;
    MM_TRY(be->event_record(be, s->done, k->model->ctx.stream));
    t += profiled;
    lap(k, i, MM_PROFILE_RESULTS, &t);
    s->result.t_launched = mm_now() - profiled;
    return MM_OK;
}

mm_status mm_step_finish(mm_step_context *k, int32_t i)
{
    mm_rank_step *s = &k->buf->step[i];
    MM_TRY(k->backend->event_wait(k->backend, s->done));
    s->result.t_end = mm_now();
    return mm_profile_step_finish(k->model, i);
}
