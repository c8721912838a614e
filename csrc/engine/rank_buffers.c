/* rank_buffers.c: sizes and allocates everything a step touches, at open. The same walk runs twice:
 * with no memory it counts bytes, then it hands out the pieces. */
#include "csrc/engine/rank_buffers.h"
#include "csrc/engine/graph.h"
#include "csrc/engine/rank.h"

_Static_assert(MM_MAX_IN_FLIGHT <= MM_MAX_RING, "every step in flight has a place in the ring");

typedef struct layout {
    uint8_t *base; /* NULL: only counting */
    int64_t used;
} layout;

static void *take(layout *l, int64_t n, size_t each)
{
    void *p = l->base != NULL ? l->base + l->used : NULL;
    l->used += mm_round_up(n * (int64_t)each, 256);
    return p;
}

static void lay_slots(layout *l, mm_slots *s, const mm_op_shape *shape, const mm_ranks_options *opt)
{
    const int64_t n = opt->limits.max_seqs + 1; /* the last is for padding rows */
    const int64_t M = mm_ceil_div(shape->n_vocab, 32);
    *s = (mm_slots){.n_slot = (int32_t)n,
                    .page_stride = (int32_t)mm_ceil_div(opt->engine->max_model_len, MM_PAGE),
                    .mask_words = (int32_t)M,
                    .mask_lanes = 1};
    s->page_table = take(l, n * s->page_stride, sizeof(int32_t));
    s->n_ctx = take(l, n, sizeof(int32_t));
    s->n_emitted = take(l, n, sizeof(int32_t));
    s->last_token = take(l, n, sizeof(int32_t));
    s->recent = take(l, n * MM_MAX_BAD_LEN, sizeof(int32_t));
    s->params = take(l, n, sizeof(mm_slot_params));
    s->bias_token = take(l, n * MM_MAX_LIST, sizeof(int32_t));
    s->bias_value = take(l, n * MM_MAX_LIST, sizeof(float));
    s->ban_token = take(l, n * MM_MAX_LIST, sizeof(int32_t));
    s->bad_offset = take(l, n * (MM_MAX_LIST + 1), sizeof(int32_t));
    s->bad_token = take(l, n * MM_MAX_BAD_TOKENS, sizeof(int32_t));
    s->logprob_token = take(l, n * MM_MAX_LIST, sizeof(int32_t));
    s->mask = take(l, n * M, sizeof(uint32_t));
    s->in_prompt = take(l, n * M, sizeof(uint32_t));
    s->n_out = take(l, n * shape->n_vocab, sizeof(uint16_t));
}

static void lay_views(layout *l, mm_rank_buffers *b, const mm_scheduler_limits *lim)
{
    const int64_t T = lim->max_rows, S = lim->max_seqs;
    b->seq = (mm_seq_view){.row_start = take(l, S + 1, sizeof(int32_t)),
                           .slot = take(l, S, sizeof(int32_t)),
                           .row_seq = take(l, T, sizeof(int32_t)),
                           .pos = take(l, T, sizeof(int32_t)),
                           .token = take(l, T, sizeof(int32_t)),
                           .slots = &b->slots};
    b->out = (mm_out_view){.row = take(l, T, sizeof(int32_t)),
                           .row_slot = take(l, T, sizeof(int32_t)),
                           .lane = take(l, T, sizeof(int32_t)),
                           .kind = take(l, T, sizeof(int32_t)),
                           .token = take(l, T, sizeof(int32_t)),
                           .row_token = take(l, T, sizeof(int32_t)),
                           .mode = take(l, T, sizeof(int32_t)),
                           .n_top = take(l, T, sizeof(int32_t)),
                           .n_list = take(l, T, sizeof(int32_t)),
                           .entry = take(l, T, sizeof(int64_t)),
                           .list = take(l, T, sizeof(int64_t))};
}

int64_t mm_rank_result_lay(mm_step_result *r, uint8_t *base, int64_t n_out, int64_t n_entry,
                           bool chosen)
{
    const struct {
        void **at;
        int64_t n_bytes;
    } part[] = {
        {(void **)&r->token, n_out * (int64_t)sizeof *r->token},
        {(void **)&r->flag, n_out},
        {(void **)&r->sampling_logprob, chosen ? n_out * (int64_t)sizeof(float) : 0},
        {(void **)&r->entry_id, n_entry * (int64_t)sizeof(int32_t)},
        {(void **)&r->entry_rank, n_entry * (int64_t)sizeof(int32_t)},
        {(void **)&r->entry_value, n_entry * (int64_t)sizeof(float)},
    };
    int64_t used = 2 * (int64_t)sizeof(int64_t);
    for (size_t i = 0; i < MM_ARRAY_LEN(part); i++) {
        *part[i].at = part[i].n_bytes > 0 && base != NULL ? base + used : NULL;
        used += mm_round_up(part[i].n_bytes, 16);
    }
    return used;
}

static int64_t result_bytes(const mm_scheduler_limits *lim)
{
    mm_step_result none;
    return mm_rank_result_lay(&none, NULL, lim->max_rows, lim->max_entries, true);
}

/* Backend memory. */
static void lay_all(layout *l, mm_rank_buffers *b, const mm_op_shape *shape,
                    const mm_ranks_options *opt, bool is_host)
{
    lay_slots(l, &b->slots, shape, opt);
    b->slot_bytes = l->used;
    b->logits = take(l, (int64_t)opt->max_logit_rows * shape->n_vocab, sizeof(float));
    b->work = take(l, (int64_t)opt->max_logit_rows * shape->n_vocab, sizeof(float));
    b->logit_bytes = l->used - b->slot_bytes;
    lay_views(l, b, &opt->limits);
    b->result = is_host ? NULL : take(l, result_bytes(&opt->limits), 1);
    b->ring.n = b->n_step;
    b->ring.turn = is_host ? NULL : take(l, 1, sizeof *b->ring.turn);
    b->ring.result_at = is_host ? NULL : take(l, 1, sizeof *b->ring.result_at);
    b->plain = is_host ? NULL : take(l, mm_plain_bytes(opt->limits.max_seqs), 1);
    for (int32_t i = 0; i < b->n_step && !is_host; i++)
        b->step[i].blob = take(l, opt->max_blob, 1);
    b->step_bytes = l->used - b->slot_bytes - b->logit_bytes;
}

/* Memory that the coordinator reads. */
static void lay_host(layout *l, mm_rank_buffers *b, const mm_scheduler_limits *lim)
{
    for (int32_t i = 0; i < b->n_step; i++) {
        b->step[i].host = b->ring.result[i] = take(l, result_bytes(lim), 1);
        b->step[i].n_read = (int64_t *)(void *)b->step[i].host;
        b->step[i].result.n_accepted = take(l, lim->max_seqs, sizeof(int32_t));
    }
    b->host_bytes = l->used;
}

void mm_rank_buffers_measure(mm_rank_buffers *b, const mm_op_shape *shape,
                             const mm_ranks_options *opt, int32_t n_step, bool is_host)
{
    layout l = {0}, host = {0};
    *b = (mm_rank_buffers){.n_step = n_step};
    lay_all(&l, b, shape, opt, is_host);
    lay_host(&host, b, &opt->limits);
}

mm_status mm_rank_buffers_open(mm_rank_buffers *b, mm_backend *be, const mm_op_shape *shape,
                               const mm_ranks_options *opt, int32_t n_step)
{
    const bool is_host = be->props.is_host;
    mm_rank_buffers_measure(b, shape, opt, n_step, is_host);
    MM_TRY(be->alloc(be, &b->block, (size_t)(b->slot_bytes + b->logit_bytes + b->step_bytes)));
    MM_TRY(be->alloc_host(be, &b->host_block, (size_t)b->host_bytes));
    layout l = {.base = b->block}, host = {.base = b->host_block};
    lay_all(&l, b, shape, opt, is_host);
    lay_host(&host, b, &opt->limits);
    for (int32_t i = 0; i < n_step; i++) {
        MM_TRY(be->event_open(be, &b->step[i].sent));
        MM_TRY(be->event_open(be, &b->step[i].done));
    }
    return MM_OK;
}

void mm_rank_buffers_close(mm_rank_buffers *b, mm_backend *be)
{
    for (int32_t i = 0; i < b->n_step; i++) {
        if (b->step[i].sent != NULL)
            be->event_close(be, b->step[i].sent);
        if (b->step[i].done != NULL)
            be->event_close(be, b->step[i].done);
    }
    if (b->block != NULL)
        be->free(be, b->block);
    if (b->host_block != NULL)
        be->free_host(be, b->host_block);
    *b = (mm_rank_buffers){0};
}
