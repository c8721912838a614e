/* graph.c: see graph.h. */
#include "csrc/engine/graph.h"

/* Plain decoding is captured without outputs, with greedy ones, and with any draws; of several rows
 * of a sequence the outputs differ from use to use, and follow the graph. */
static const mm_step_graph forms[] = {{.draws = false},
                                      {.draws = true, .draw = MM_DRAW_GREEDY},
                                      {.draws = true, .draw = MM_DRAW_ANY}};

static int32_t n_form(int32_t n_row)
{
    return n_row == 1 ? (int32_t)MM_ARRAY_LEN(forms) : 1;
}

/* Of n_seq sequences with n_row rows each a step can consist. */
static bool is_possible(int32_t n_seq, int32_t n_row, int32_t max_rows)
{
    return (int64_t)n_seq * n_row <= max_rows;
}

static int32_t count_graphs(const mm_graph_range *r)
{
    int32_t n = 0;
    for (int32_t n_row = 1; n_row <= r->most_rows; n_row++)
        for (int32_t i = 0; i < r->n_size; i++)
            n += is_possible(r->size[i], n_row, r->max_rows) ? n_form(n_row) : 0;
    return n;
}

int32_t mm_graph_sizes(int32_t *out, const int32_t *wanted, int32_t n_wanted, int32_t max_seqs,
                       int32_t max_rows)
{
    static const int32_t standard[] = {1,   2,   4,   8,   12,  16,  24,   32,   48,   64,   96,
                                       128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096};
    const int32_t *list = n_wanted > 0 ? wanted : standard;
    const int32_t n_list = n_wanted > 0 ? n_wanted : (int32_t)MM_ARRAY_LEN(standard);
    const int32_t most = max_seqs < max_rows ? max_seqs : max_rows;
    int32_t n = 0, last = 0;
    while (n < MM_MAX_GRAPH_SIZES) {
        int32_t next = n_wanted > 0 ? most + 1 : most; /* the standard row ends with the largest */
        for (int32_t i = 0; i < n_list; i++)
            if (list[i] > last && list[i] < next)
                next = list[i];
        if (next <= last || next > most)
            break;
        out[n++] = last = next;
    }
    return n;
}

int64_t mm_graphs_bytes(const mm_graph_range *range, int32_t n_layer)
{
    /* a node and its parameters: about 8 KB of device memory, a dozen nodes a layer */
    const int64_t one = ((int64_t)1 << 20) + (int64_t)n_layer * 12 * 8192;
    return count_graphs(range) * one;
}

const mm_step_graph *mm_graphs_find(const mm_graphs *g, const mm_batch *b)
{
    if (g == NULL || g->n == 0 || !b->is_decode || b->trace != NULL || b->row_media >= 0)
        return NULL;
    const mm_batch_seq *seq = mm_batch_at(b, b->seq);
    const mm_batch_out *out = mm_batch_at(b, b->out);
    for (int32_t i = 0; i < b->n_seq; i++)
        if (seq[i].n_row != seq[0].n_row || seq[i].n_ctx_after < 0)
            return NULL;
    bool draws = b->n_out == b->n_seq;
    for (int32_t i = 0; i < b->n_out && draws; i++)
        draws = out[i].kind == MM_OUT_SAMPLE && out[i].n_top < 0 && !out[i].needs_work;
    draws = draws && seq[0].n_row == 1;
    const int32_t draw = b->draw == MM_DRAW_GREEDY ? MM_DRAW_GREEDY : MM_DRAW_ANY;
    for (int32_t i = 0; i < g->n; i++) {
        const mm_step_graph *k = &g->item[i];
        if (k->n_seq >= b->n_seq && k->n_row == seq[0].n_row && k->draws == draws &&
            (!draws || k->draw == draw))
            return k;
    }
    return NULL;
}

/* ---------------------------------------------------------------- capturing */

/* A batch of n_seq sequences of the reserved slot with n_row rows each, positions 0.., one draw. */
static const mm_batch *make_batch(const mm_step_context *k, void *blob, int32_t n_seq,
                                  int32_t n_row)
{
    const int32_t slot = k->buf->slots.n_slot - 1, n_all = n_seq * n_row;
    mm_batch *b = blob;
    int64_t at = mm_round_up((int64_t)sizeof *b, 16);
    *b = (mm_batch){.n_seq = n_seq, .n_row = n_all, .n_out = n_seq, .row_media = -1};
    b->is_decode = 1;
    b->max_pos = n_row;
    b->seq = at;
    b->out = at += mm_round_up(n_seq * (int64_t)sizeof(mm_batch_seq), 16);
    b->token = at += mm_round_up(n_seq * (int64_t)sizeof(mm_batch_out), 16);
    b->n_bytes = at + mm_round_up(n_all * (int64_t)sizeof(int32_t), 16);
    b->slot = b->page = b->mask = at;
    mm_batch_seq *seq = (mm_batch_seq *)((uint8_t *)blob + b->seq);
    mm_batch_out *out = (mm_batch_out *)((uint8_t *)blob + b->out);
    for (int32_t i = 0; i < n_seq; i++) {
        seq[i] = (mm_batch_seq){
            .slot = slot, .row_start = i * n_row, .n_row = n_row, .n_ctx_after = n_row};
        out[i] = (mm_batch_out){
            .row = (i + 1) * n_row - 1, .seq = i, .token = -1, .n_top = -1, .list = -1};
    }
    memset((uint8_t *)blob + b->token, 0, (size_t)n_all * sizeof(int32_t));
    return b;
}

int64_t mm_plain_bytes(int32_t max_seqs)
{
    return (int64_t)sizeof(mm_batch) + 64 +
           max_seqs * (int64_t)(sizeof(mm_batch_seq) + sizeof(mm_batch_out) + sizeof(int32_t));
}

/* `sample` finds in the batch whether it must move n_ctx, and a graph's batch would be that of the
 * step it was captured in. Plain decoding never asks for that, so all graphs look at one batch that
 * says so and stays. */
static mm_status put_plain(mm_step_context *k)
{
    mm_backend *be = k->backend;
    const int32_t n = k->model->shape.max_seqs;
    void *host;
    MM_TRY(be->alloc_host(be, &host, (size_t)mm_plain_bytes(n)));
    const mm_batch *b = make_batch(k, host, n, 1);
    MM_ASSERT(b->n_bytes <= mm_plain_bytes(n));
    mm_status st = be->upload(be, k->model->ctx.stream, k->buf->plain, b, (size_t)b->n_bytes);
    if (st == MM_OK)
        st = be->sync(be, k->model->ctx.stream);
    be->free_host(be, host);
    return st;
}

/* What a graph holds, run now or recorded. The views' arrays are those of every step; their bounds
 * are the largest possible. */
static mm_status run(mm_step_context *k, const mm_step_graph *g, const mm_ring *ring)
{
    mm_seq_view seq = k->buf->seq;
    mm_out_view out = k->buf->out;
    mm_step_result r = {0};
    seq.n_seq = g->n_seq;
    seq.n_row = g->n_seq * g->n_row;
    out.n_out = g->draws ? g->n_seq : seq.n_row;
    seq.max_pos = k->model->shape.max_model_len;
    seq.is_decode = true;
    out.blob = k->buf->plain;
    const int64_t n_bytes = mm_rank_result_lay(&r, k->buf->result, g->n_seq, 0, false);
    const mm_expand_args expand = {.ring = ring,
                                   .slots = &k->buf->slots,
                                   .seq = &seq,
                                   .out = &out,
                                   .n_read = k->model->buf.n_read};
    MM_TRY(k->model->ops->expand(&k->model->ctx, &expand));
    MM_TRY(mm_step_forward(k, &seq, NULL));
    if (!g->draws)
        return MM_OK;
    MM_TRY(mm_step_draw(k, &out, g->n_seq, g->draw, &r));
    return k->backend->download_to(k->backend, k->model->ctx.stream, ring->result_at,
                                   k->buf->result, (size_t)n_bytes);
}

static mm_status capture(mm_step_context *k, mm_step_graph *g)
{
    mm_backend *be = k->backend;
    mm_stream *stream = k->model->ctx.stream;
    MM_TRY(be->graph_begin(be, stream));
    mm_status st = run(k, g, &k->buf->ring);
    if (st != MM_OK) { /* the stream must come out of capture; the first error is the cause */
        mm_error cause;
        mm_error_take(&cause, st);
        if (be->graph_end(be, stream, &g->graph) == MM_OK && g->graph != NULL)
            be->graph_close(be, g->graph);
        g->graph = NULL;
        return mm_error_raise(&cause, "");
    }
    return be->graph_end(be, stream, &g->graph);
}

/* Padding is sampled like anything else: greedily, so that it costs the least. */
static mm_status set_padding(mm_step_context *k)
{
    mm_backend *be = k->backend;
    const mm_slots *s = &k->buf->slots;
    mm_slot_params *p = k->model->stage;
    *p = (mm_slot_params){.top_p = 1, .repetition_penalty = 1};
    MM_TRY(be->upload(be, k->model->ctx.stream, &s->params[s->n_slot - 1], p, sizeof *p));
    return be->sync(be, k->model->ctx.stream);
}

/* All forms of one size. They run once first: the last one has the kernels of all of them. It finds
 * its batch in a ring of this rank alone: other ranks may be at another size. */
static mm_status open_size(mm_graphs *g, mm_step_context *k, int32_t n_seq, int32_t n_row)
{
    mm_backend *be = k->backend;
    const int32_t n = n_form(n_row);
    mm_step_graph item = forms[n - 1];
    item.n_seq = n_seq;
    item.n_row = n_row;
    mm_ring ring = k->buf->ring;
    ring.n_bytes = make_batch(k, k->model->stage, 1, n_row)->n_bytes;
    for (int32_t i = 0; i < ring.n; i++)
        ring.batch[i] = k->model->stage;
    MM_TRY(run(k, &item, &ring));
    MM_TRY(be->sync(be, k->model->ctx.stream));
    for (int32_t i = 0; i < n; i++) {
        item.draws = forms[i].draws;
        item.draw = forms[i].draw;
        MM_ASSERT(g->n < g->cap);
        g->item[g->n] = item;
        MM_TRY(capture(k, &g->item[g->n]));
        g->n++;
    }
    return MM_OK;
}

mm_status mm_graphs_open(mm_graphs *g, mm_step_context *k, const mm_graph_range *range)
{
    *g = (mm_graphs){.cap = count_graphs(range)};
    g->item = calloc((size_t)(g->cap > 0 ? g->cap : 1), sizeof *g->item);
    if (g->item == NULL)
        return MM_FAIL(MM_E_NOMEM, "no host memory for %d graphs", g->cap);
    k->model->buf.n_read = (int64_t *)(void *)k->buf->result;
    MM_TRY(set_padding(k));
    MM_TRY(put_plain(k));
    for (int32_t n_row = 1; n_row <= range->most_rows; n_row++)
        for (int32_t i = 0; i < range->n_size; i++)
            if (is_possible(range->size[i], n_row, range->max_rows))
                MM_TRY(open_size(g, k, range->size[i], n_row));
    /* the first step of all takes place 0 again */
    MM_TRY(k->backend->zero(k->backend, k->model->ctx.stream, k->buf->ring.turn,
                            sizeof *k->buf->ring.turn));
    return k->backend->sync(k->backend, k->model->ctx.stream);
}

void mm_graphs_close(mm_graphs *g, mm_backend *b)
{
    for (int32_t i = 0; i < g->n; i++)
        b->graph_close(b, g->item[i].graph);
    free(g->item);
    *g = (mm_graphs){0};
}
