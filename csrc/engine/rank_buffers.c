/* rank_buffers.c: sizes and allocates everything a step touches, at open. */
#include "csrc/engine/rank_buffers.h"

typedef struct allocator {
    mm_rank_buffers *b;
    mm_backend *be;
    mm_status st;   /* the first failure; later requests do nothing */
    int64_t *count; /* where bytes are added up */
} allocator;

static void *take(allocator *a, int64_t n, size_t each)
{
    void *p = NULL;
    if (a->st != MM_OK)
        return NULL;
    MM_ASSERT(a->b->n_block < (int32_t)MM_ARRAY_LEN(a->b->block));
    a->st = a->be->alloc(a->be, &p, (size_t)mm_max_i64(n, 1) * each);
    if (a->st != MM_OK)
        return NULL;
    a->b->block[a->b->n_block++] = p;
    *a->count += n * (int64_t)each;
    return p;
}

static void *take_host(allocator *a, int64_t n, size_t each)
{
    void *p = NULL;
    if (a->st != MM_OK)
        return NULL;
    MM_ASSERT(a->b->n_host_block < (int32_t)MM_ARRAY_LEN(a->b->host_block));
    a->st = a->be->alloc_host(a->be, &p, (size_t)mm_max_i64(n, 1) * each);
    if (a->st != MM_OK)
        return NULL;
    a->b->host_block[a->b->n_host_block++] = p;
    return p;
}

static void open_slots(allocator *a, const mm_op_shape *shape, const mm_ranks_options *opt)
{
    const int64_t n = opt->limits.max_seqs + 1; /* the last is for padding rows */
    const int64_t M = mm_ceil_div(shape->n_vocab, 32);
    mm_slots *s = &a->b->slots;
    a->count = &a->b->slot_bytes;
    *s = (mm_slots){.n_slot = (int32_t)n,
                    .page_stride = (int32_t)mm_ceil_div(opt->engine->max_model_len, MM_PAGE),
                    .mask_words = (int32_t)M,
                    .mask_lanes = 1};
    s->page_table = take(a, n * s->page_stride, sizeof(int32_t));
    s->n_ctx = take(a, n, sizeof(int32_t));
    s->n_emitted = take(a, n, sizeof(int32_t));
    s->last_token = take(a, n, sizeof(int32_t));
    s->recent = take(a, n * MM_MAX_BAD_LEN, sizeof(int32_t));
    s->params = take(a, n, sizeof(mm_slot_params));
    s->bias_token = take(a, n * MM_MAX_LIST, sizeof(int32_t));
    s->bias_value = take(a, n * MM_MAX_LIST, sizeof(float));
    s->ban_token = take(a, n * MM_MAX_LIST, sizeof(int32_t));
    s->bad_offset = take(a, n * (MM_MAX_LIST + 1), sizeof(int32_t));
    s->bad_token = take(a, n * MM_MAX_BAD_TOKENS, sizeof(int32_t));
    s->logprob_token = take(a, n * MM_MAX_LIST, sizeof(int32_t));
    s->mask = take(a, n * M, sizeof(uint32_t));
    s->in_prompt = take(a, n * M, sizeof(uint32_t));
    s->n_out = take(a, n * shape->n_vocab, sizeof(uint16_t));
}

static void open_views(allocator *a, const mm_scheduler_limits *lim)
{
    mm_rank_buffers *b = a->b;
    const int64_t T = lim->max_rows, S = lim->max_seqs;
    a->count = &b->step_bytes;
    b->seq = (mm_seq_view){.row_start = take(a, S + 1, sizeof(int32_t)),
                           .slot = take(a, S, sizeof(int32_t)),
                           .row_seq = take(a, T, sizeof(int32_t)),
                           .pos = take(a, T, sizeof(int32_t)),
                           .token = take(a, T, sizeof(int32_t)),
                           .slots = &b->slots};
    b->out = (mm_out_view){.row = take(a, T, sizeof(int32_t)),
                           .row_slot = take(a, T, sizeof(int32_t)),
                           .lane = take(a, T, sizeof(int32_t)),
                           .kind = take(a, T, sizeof(int32_t)),
                           .token = take(a, T, sizeof(int32_t)),
                           .row_token = take(a, T, sizeof(int32_t)),
                           .mode = take(a, T, sizeof(int32_t)),
                           .n_top = take(a, T, sizeof(int32_t)),
                           .n_list = take(a, T, sizeof(int32_t)),
                           .entry = take(a, T, sizeof(int64_t)),
                           .list = take(a, T, sizeof(int64_t))};
}

typedef void *(*take_fn)(allocator *a, int64_t n, size_t each);

static mm_step_result open_result(allocator *a, const mm_scheduler_limits *lim, take_fn get)
{
    return (mm_step_result){.token = get(a, lim->max_rows, sizeof(int32_t)),
                            .flag = get(a, lim->max_rows, 1),
                            .sampling_logprob = get(a, lim->max_rows, sizeof(float)),
                            .entry_id = get(a, lim->max_entries, sizeof(int32_t)),
                            .entry_rank = get(a, lim->max_entries, sizeof(int32_t)),
                            .entry_value = get(a, lim->max_entries, sizeof(float))};
}

static void open_step(allocator *a, mm_rank_step *s, const mm_ranks_options *opt)
{
    a->count = &a->b->step_bytes;
    s->device = open_result(a, &opt->limits, take);
    s->host = a->be->props.is_host ? s->device : open_result(a, &opt->limits, take_host);
    s->host.n_accepted = take_host(a, opt->limits.max_seqs, sizeof(int32_t));
    s->n_read = take_host(a, 2, sizeof(int64_t));
    s->blob = a->be->props.is_host ? NULL : take(a, opt->max_blob, 1);
    if (a->st == MM_OK)
        a->st = a->be->event_open(a->be, &s->done);
}

mm_status mm_rank_buffers_open(mm_rank_buffers *b, mm_backend *be, const mm_op_shape *shape,
                               const mm_ranks_options *opt, int32_t n_step)
{
    *b = (mm_rank_buffers){.n_step = n_step};
    allocator a = {.b = b, .be = be, .st = MM_OK};
    open_slots(&a, shape, opt);
    open_views(&a, &opt->limits);
    a.count = &b->logit_bytes;
    b->logits = take(&a, (int64_t)opt->max_logit_rows * shape->n_vocab, sizeof(float));
    b->work = take(&a, (int64_t)opt->max_logit_rows * shape->n_vocab, sizeof(float));
    for (int32_t i = 0; i < n_step; i++)
        open_step(&a, &b->step[i], opt);
    return a.st;
}

void mm_rank_buffers_close(mm_rank_buffers *b, mm_backend *be)
{
    for (int32_t i = 0; i < b->n_step; i++)
        if (b->step[i].done != NULL)
            be->event_close(be, b->step[i].done);
    for (int32_t i = 0; i < b->n_block; i++)
        be->free(be, b->block[i]);
    for (int32_t i = 0; i < b->n_host_block; i++)
        be->free_host(be, b->host_block[i]);
    *b = (mm_rank_buffers){0};
}
