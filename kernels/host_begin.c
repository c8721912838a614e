/* host_begin.c: the `begin` and `expand` ops of host backends: what a batch changes is applied to
 * the slots, then its rows are expanded into the arrays that ops read. Order: slots, masks; pages,
 * sequences, outputs. */
#include "kernels/host_begin.h"
#include "kernels/expand_check.h"

/* The views are const to ops; their arrays belong to the caller and are written here only. */
#define OUT(field) ((int32_t *)(uintptr_t)(field))

static void copy_list(void *dst, int32_t slot, int64_t width, const mm_batch *b, int64_t offset,
                      int32_t n)
{
    if (n > 0)
        memcpy((int32_t *)dst + slot * width, mm_batch_at(b, offset), (size_t)n * sizeof(int32_t));
}

static void set_mask(const mm_slots *s, int32_t slot, int32_t lane, const void *mask)
{
    memcpy(s->mask + ((int64_t)slot * s->mask_lanes + lane) * s->mask_words, mask,
           (size_t)s->mask_words * sizeof(uint32_t));
    s->params[slot].has_mask = 1;
}

/* What the slot has seen: prompt marks for the repetition penalty, and everything that its own
 * tokens decide. */
static void set_history(const mm_slots *s, int32_t n_vocab, const mm_batch *b,
                        const mm_batch_slot *n)
{
    const int32_t *history = n->n_history > 0 ? mm_batch_at(b, n->history) : NULL;
    int32_t *recent = s->recent + (int64_t)n->slot * MM_MAX_BAD_LEN;
    if (n->repetition_penalty != 1.0f) {
        uint32_t *mark = s->in_prompt + (int64_t)n->slot * s->mask_words;
        const int32_t *prompt = n->n_prompt_seen > 0 ? mm_batch_at(b, n->prompt) : NULL;
        memset(mark, 0, (size_t)s->mask_words * sizeof(uint32_t));
        for (int32_t i = 0; i < n->n_prompt_seen; i++)
            mark[prompt[i] / 32] |= 1u << (prompt[i] % 32);
    }
    if (n->keeps_counts) {
        uint16_t *count = s->n_out + (int64_t)n->slot * n_vocab;
        memset(count, 0, (size_t)n_vocab * sizeof(uint16_t));
        for (int32_t i = 0; i < n->n_history; i++)
            count[history[i]] =
                (uint16_t)(count[history[i]] < UINT16_MAX ? count[history[i]] + 1 : UINT16_MAX);
    }
    for (int32_t i = 0; i < n->n_history; i++)
        recent[(n->n_emitted - n->n_history + i) % MM_MAX_BAD_LEN] = history[i];
    s->last_token[n->slot] = n->n_history > 0 ? history[n->n_history - 1] : 0;
}

static void begin_slot(const mm_slots *s, int32_t n_vocab, const mm_batch *b,
                       const mm_batch_slot *n)
{
    const int32_t i = n->slot;
    s->params[i] = (mm_slot_params){
        .seed = n->seed,
        .temperature = n->temperature,
        .top_p = n->top_p,
        .min_p = n->min_p,
        .repetition_penalty = n->repetition_penalty,
        .frequency_penalty = n->frequency_penalty,
        .presence_penalty = n->presence_penalty,
        .top_k = n->top_k,
        .min_tokens = n->min_tokens,
        .n_bias = n->n_bias,
        .n_ban = n->n_ban,
        .n_bad = n->n_bad,
        .n_logprob_token = n->n_logprob_token,
    };
    s->n_emitted[i] = n->n_emitted;
    if (s->n_draft != NULL)
        s->n_draft[i] = 0;
    copy_list(s->bias_token, i, MM_MAX_LIST, b, n->bias_token, n->n_bias);
    copy_list(s->bias_value, i, MM_MAX_LIST, b, n->bias_value, n->n_bias);
    copy_list(s->ban_token, i, MM_MAX_LIST, b, n->ban_token, n->n_ban);
    copy_list(s->logprob_token, i, MM_MAX_LIST, b, n->logprob_token, n->n_logprob_token);
    if (n->n_bad > 0) {
        const int32_t *offset = mm_batch_at(b, n->bad_offset);
        copy_list(s->bad_offset, i, MM_MAX_LIST + 1, b, n->bad_offset, n->n_bad + 1);
        copy_list(s->bad_token, i, MM_MAX_BAD_TOKENS, b, n->bad_token, offset[n->n_bad]);
    }
    for (int32_t lane = 0; lane < s->mask_lanes && n->mask >= 0; lane++)
        set_mask(s, i, lane, mm_batch_at(b, n->mask));
    set_history(s, n_vocab, b, n);
}

mm_status mm_host_begin(const mm_op_context *c, const mm_begin_args *a)
{
    const mm_batch *b = a->blob; /* the arrays lie behind the blob's header, wherever the plan's
                                    copy is */
    const mm_batch_slot *slot = mm_batch_at(b, b->slot);
    const mm_batch_mask *mask = mm_batch_at(b, b->mask);
    for (int32_t i = 0; i < b->n_slot; i++)
        begin_slot(a->slots, c->shape->n_vocab, b, &slot[i]);
    for (int32_t i = 0; i < b->n_mask; i++)
        set_mask(a->slots, mask[i].slot, mask[i].lane, mm_batch_at(b, mask[i].mask));
    return MM_OK;
}

/* ---------------------------------------------------------------- expand */

static void expand_rows(const mm_batch *b, const mm_slots *s, const mm_seq_view *v)
{
    const mm_batch_seq *seq = mm_batch_at(b, b->seq);
    memcpy(OUT(v->token), mm_batch_at(b, b->token), (size_t)b->n_row * sizeof(int32_t));
    OUT(v->row_start)[0] = 0;
    for (int32_t i = 0; i < b->n_seq; i++) {
        const int32_t first = seq[i].pos >= 0 ? seq[i].pos : s->n_ctx[seq[i].slot];
        MM_ASSERT(seq[i].row_start == v->row_start[i]);
        OUT(v->slot)[i] = seq[i].slot;
        OUT(v->row_start)[i + 1] = seq[i].row_start + seq[i].n_row;
        for (int32_t r = 0; r < seq[i].n_row; r++) {
            OUT(v->row_seq)[seq[i].row_start + r] = i;
            OUT(v->pos)[seq[i].row_start + r] = first + r;
        }
        if (seq[i].n_ctx_after >= 0)
            s->n_ctx[seq[i].slot] = seq[i].n_ctx_after;
    }
}

static int32_t input_token(const mm_slots *s, int32_t slot, int32_t token)
{
    if (token >= 0)
        return token;
    return token == -1 ? s->last_token[slot]
                       : s->draft_token[(int64_t)slot * (MM_MAX_DECODE_ROWS - 1) - 2 - token];
}

static void put_output(const mm_out_view *o, int32_t i, const mm_batch_out *out, int32_t slot,
                       int32_t row_token)
{
    OUT(o->row)[i] = out->row;
    OUT(o->row_slot)[i] = slot;
    OUT(o->lane)[i] = out->lane;
    OUT(o->kind)[i] = out->kind;
    OUT(o->token)[i] = out->token;
    OUT(o->row_token)[i] = row_token;
    OUT(o->mode)[i] = out->mode;
    OUT(o->n_top)[i] = out->n_top;
    OUT(o->n_list)[i] = out->n_list;
    ((int64_t *)(uintptr_t)o->entry)[i] = out->entry;
    ((int64_t *)(uintptr_t)o->list)[i] = out->list;
}

static void expand_outputs(const mm_batch *b, const mm_slots *s, const mm_seq_view *v,
                           const mm_out_view *o)
{
    const mm_batch_out *out = mm_batch_at(b, b->out);
    for (int32_t i = 0; i < b->n_out; i++) {
        const int32_t slot = v->slot[out[i].seq];
        put_output(o, i, &out[i], slot, input_token(s, slot, v->token[out[i].row]));
    }
}

/* Sequences of the reserved slot up to the views' sizes. */
static void fill_up(const mm_batch *b, const mm_slots *s, const mm_seq_view *v,
                    const mm_out_view *o)
{
    const int32_t rows = v->n_row / v->n_seq, spare = s->n_slot - 1;
    MM_ASSERT(b->n_seq <= v->n_seq && b->n_row == b->n_seq * rows && b->n_out <= o->n_out);
    for (int32_t i = b->n_seq; i < v->n_seq; i++) {
        OUT(v->slot)[i] = spare;
        OUT(v->row_start)[i + 1] = (i + 1) * rows;
        for (int32_t r = 0; r < rows; r++) {
            OUT(v->row_seq)[i * rows + r] = i;
            OUT(v->pos)[i * rows + r] = r;
            OUT(v->token)[i * rows + r] = 0;
        }
        const int32_t i_out = b->n_out + (i - b->n_seq);
        if (i_out >= o->n_out)
            continue;
        const mm_batch_out pad = {
            .row = (i + 1) * rows - 1, .kind = MM_OUT_SAMPLE, .token = -1, .n_top = -1, .list = -1};
        put_output(o, i_out, &pad, spare, 0);
    }
}

mm_status mm_host_expand(const mm_op_context *c, const mm_expand_args *a)
{
    const mm_ring *ring = a->ring;
    char why[256];
    if (mm_expand_is_wrong(c->shape, a, why, sizeof why))
        return MM_FAIL(MM_E_INVALID, "%s", why);
    const int32_t i_ring = a->plan != NULL ? a->i_ring : *ring->turn;
    const mm_batch *b = a->plan != NULL ? a->blob : ring->batch[i_ring];
    const mm_batch_page *page = mm_batch_at(b, b->page);
    const mm_slots *s = a->slots;
    if (ring != NULL)
        *ring->turn = (i_ring + 1) % ring->n;
    if (a->plan == NULL)
        *ring->result_at = ring->result[i_ring];
    if (a->n_read != NULL)
        memset(a->n_read, 0, 2 * sizeof *a->n_read);
    for (int32_t i = 0; i < b->n_page; i++)
        s->page_table[(int64_t)page[i].slot * s->page_stride + page[i].block] = page[i].page;
    expand_rows(b, s, a->seq);
    expand_outputs(b, s, a->seq, a->out);
    if (a->plan == NULL)
        fill_up(b, s, a->seq, a->out);
    return MM_OK;
}
