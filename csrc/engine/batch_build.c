/* batch_build.c: the layout of one step: header, fixed arrays sized by the plan, then lists and
 * masks. */
#include "csrc/engine/batch_build.h"
#include "csrc/engine/sampler.h"

int64_t mm_blob_put(mm_blob *b, const void *src, int64_t n_bytes)
{
    if (n_bytes == 0)
        return -1;
    const int64_t at = mm_round_up(b->used, 16);
    MM_ASSERT(at + n_bytes <= b->cap);
    if (src != NULL)
        memcpy(b->base + at, src, (size_t)n_bytes);
    b->used = at + n_bytes;
    return at;
}

static int64_t room(int64_t n, size_t each)
{
    return mm_round_up(n * (int64_t)each, 16);
}

int64_t mm_batch_max_bytes(const mm_scheduler_limits *lim)
{
    return room(1, sizeof(mm_batch)) + room(lim->max_seqs, sizeof(mm_batch_seq)) +
           room(lim->max_rows, sizeof(int32_t)) + room(lim->max_rows, sizeof(mm_batch_out)) +
           room(lim->max_seqs, sizeof(mm_batch_slot)) +
           room(lim->max_pages, sizeof(mm_batch_page)) +
           room(lim->max_seqs, sizeof(mm_batch_mask)) + lim->max_dynamic;
}

int64_t mm_batch_max_dynamic(int32_t max_len, int32_t n_vocab)
{
    return 5 * room(MM_MAX_LIST, 4) + room(MM_MAX_LIST + 1, 4) + room(MM_MAX_BAD_TOKENS, 4) +
           2 * room(n_vocab / 32 + 1, 4) + room(max_len, 4) + 64;
}

int64_t mm_batch_dynamic_bytes(const mm_plan_item *item)
{
    const mm_request *r = item->r;
    int64_t n = item->begins ? mm_sampler_slot_bytes(r) : 0;
    if (item->sends_mask)
        n += room(r->mask_words, sizeof(uint32_t));
    if (item->n_score > 0)
        n += room(r->p.n_prompt_logprob_token, sizeof(int32_t));
    return n;
}

static void fill_rows(const mm_plan_item *item, int32_t *token)
{
    for (int32_t i = 0; i < item->n_row; i++)
        token[i] = item->is_decode ? -1 : item->r->token[item->pos + i];
}

/* Rows of an item whose logits are needed, in row order: scores before the draw. */
static void fill_outputs(const mm_plan_item *item, int32_t i_seq, int32_t row_start,
                         mm_batch_out *out, mm_blob *blob)
{
    const mm_request *r = item->r;
    const mm_trace *trace = mm_request_trace(r);
    if (trace != NULL) {
        for (int32_t i = 0; i < item->n_row && trace->logits != NULL; i++)
            out[i] = (mm_batch_out){.row = row_start + i,
                                    .seq = i_seq,
                                    .kind = MM_OUT_TRACE,
                                    .token = -1,
                                    .n_top = -1,
                                    .list = -1};
        return;
    }
    int64_t entry = item->entry_first, list = -1;
    int32_t n_list = 0;
    if (item->n_score > 0) {
        n_list = r->p.n_prompt_logprob_token;
        list = mm_blob_put(blob, r->p.prompt_logprob_token, n_list * (int64_t)sizeof(int32_t));
    }
    for (int32_t i = 0; i < item->n_score; i++, out++) {
        const int32_t pos = item->score_first + i;
        *out = (mm_batch_out){.row = row_start + (pos - item->pos),
                              .seq = i_seq,
                              .kind = MM_OUT_SCORE,
                              .token = r->token[pos + 1],
                              .mode = r->p.prompt_logprob_mode,
                              .n_top = r->p.n_prompt_logprob,
                              .n_list = n_list,
                              .list = list,
                              .entry = entry};
        entry += r->prompt_width;
    }
    if (item->draws) {
        *out = (mm_batch_out){.row = row_start + item->n_row - 1,
                              .seq = i_seq,
                              .kind = MM_OUT_SAMPLE,
                              .token = item->forced,
                              .n_top = -1,
                              .list = -1,
                              .entry = entry};
        if ((r->asks & MM_ASKS_ENTRIES) != 0)
            mm_sampler_fill_entries(r, out);
    }
}

const mm_batch *mm_batch_build(const mm_plan *plan, void *blob, int64_t cap)
{
    mm_blob w = {.base = blob, .cap = cap};
    mm_batch *b = blob;
    (void)mm_blob_put(&w, NULL, sizeof *b);
    *b = (mm_batch){
        .step = plan->step,
        .n_seq = plan->n_item,
        .n_row = plan->n_row,
        .n_out = plan->n_out,
        .n_slot = plan->n_slot,
        .n_page = plan->n_page,
        .n_mask = plan->n_mask,
        .n_entry = plan->n_entry,
        .seq = mm_blob_put(&w, NULL, plan->n_item * (int64_t)sizeof(mm_batch_seq)),
        .token = mm_blob_put(&w, NULL, plan->n_row * (int64_t)sizeof(int32_t)),
        .row_media = -1,
        .out = mm_blob_put(&w, NULL, plan->n_out * (int64_t)sizeof(mm_batch_out)),
        .slot = mm_blob_put(&w, NULL, plan->n_slot * (int64_t)sizeof(mm_batch_slot)),
        .page = mm_blob_put(&w, NULL, plan->n_page * (int64_t)sizeof(mm_batch_page)),
        .mask = mm_blob_put(&w, NULL, plan->n_mask * (int64_t)sizeof(mm_batch_mask)),
        .trace = plan->trace,
    };
    /* An empty array still gets an offset inside the blob. */
    int64_t *const offset[] = {&b->seq, &b->token, &b->out, &b->slot, &b->page, &b->mask};
    for (size_t i = 0; i < MM_ARRAY_LEN(offset); i++)
        *offset[i] = *offset[i] < 0 ? 0 : *offset[i];
    mm_batch_seq *seq = (mm_batch_seq *)(w.base + b->seq);
    int32_t *token = (int32_t *)(w.base + b->token);
    mm_batch_out *out = (mm_batch_out *)(w.base + b->out);
    mm_batch_slot *slot = (mm_batch_slot *)(w.base + b->slot);
    mm_batch_page *page = (mm_batch_page *)(w.base + b->page);
    mm_batch_mask *mask = (mm_batch_mask *)(w.base + b->mask);
    for (int64_t at = 64; at < w.used; at += 64) /* a device has read them since */
        __builtin_prefetch(w.base + at, 1);
    int32_t row = 0, draw = MM_DRAW_GREEDY, max_pos = 0;
    bool is_decode = true;
    for (int32_t i = 0; i < plan->n_item; i++) {
        const mm_plan_item *item = &plan->item[i];
        const int32_t end = item->pos + item->n_row;
        seq[i] = (mm_batch_seq){.slot = item->slot,
                                .row_start = row,
                                .n_row = item->n_row,
                                .pos = item->pos,
                                .n_ctx_after = end};
        fill_rows(item, token + row);
        fill_outputs(item, i, row, out + item->out_first, &w);
        if (item->draws)
            draw = item->r->draw < draw ? item->r->draw : draw;
        if (item->begins)
            mm_sampler_fill_slot(item->r, slot++, &w);
        for (int32_t k = item->page_first; k < item->page_end; k++, page++)
            *page = (mm_batch_page){.slot = item->slot, .block = k, .page = item->r->page[k]};
        if (item->sends_mask) {
            const int64_t n_bytes = item->r->mask_words * (int64_t)sizeof(uint32_t);
            *mask = (mm_batch_mask){.slot = item->slot};
            mask->mask = mm_blob_put(&w, item->r->mask, n_bytes);
            mask++;
        }
        row += item->n_row;
        max_pos = end > max_pos ? end : max_pos;
        is_decode = is_decode && item->n_row <= MM_MAX_DECODE_ROWS;
    }
    b->draw = draw;
    b->max_pos = max_pos;
    b->is_decode = is_decode;
    b->trace_first = plan->trace != NULL ? plan->item[0].pos : 0;
    b->n_bytes = mm_round_up(w.used, 16);
    return b;
}
