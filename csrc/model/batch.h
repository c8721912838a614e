/* batch.h: the plan of one step as one flat blob: a header, then arrays at byte offsets from its
 * start. The scheduler fills it, the ranks only read it; the same bytes can be sent to another
 * node.
 *
 * A batch carries *changes*: each sequence in it has a persistent slot on the rank (page table,
 * sampling state: mm_slots), and the batch lists what is new: slots that begin (mm_batch_slot),
 * pages added (mm_batch_page), masks. Order of effect: slots, masks, pages, then the rows run.
 *
 * Every offset is in bytes from the blob's start and a multiple of 16. n_out may exceed the logit
 * rows of a step: ranks take output rows in groups. n_entry <= mm_engine_info.max_entries: the
 * scheduler cuts chunks for that.
 *
 * A request that wants masks, or whose thinking budget is within MM_MAX_DECODE_ROWS tokens of its
 * end, is not planned ahead: it waits for the commit of its step before. So results never depend on
 * run_ahead.
 *
 * Nothing else in it depends on results of the step before: a row's token may be "the last sampled
 * of its slot" (-1), and a sequence's first position may be "the slot's n_ctx" (-1). Rows per
 * sequence: 1..8 in decode (1 + drafts), any number in prefill. */
#ifndef MM_BATCH_H
#define MM_BATCH_H
#include "csrc/base/base.h"

#define MM_MAX_DECODE_ROWS 8

typedef struct mm_batch_seq {
    int32_t slot;
    int32_t row_start, n_row; /* rows of this sequence in the step; sequences are in row order */
    int32_t pos;              /* position of its first row; -1: the slot's n_ctx */
    /* committed positions when the step is done; -1: set by sample or verify */
    int32_t n_ctx_after;
} mm_batch_seq;

enum { MM_OUT_SAMPLE = 0, MM_OUT_SCORE = 1, MM_OUT_TRACE = 2 };
/* How a step's SAMPLE rows choose, from what can be any to what is simplest: anyhow; drawn with
 * neither top_k nor top_p, or greedy; greedy. */
enum mm_draw { MM_DRAW_ANY = 0, MM_DRAW_UNFILTERED = 1, MM_DRAW_GREEDY = 2 };
/* A row whose logits are needed. SAMPLE: draws the sequence's next token. SCORE: log-probabilities
 * of a known next token (prompt). TRACE: the row's logits go to the trace. */
typedef struct mm_batch_out {
    int32_t row, seq, kind;
    int32_t lane;   /* rows of this sequence before it that sample in this step */
    int32_t token;  /* SCORE: the next token of the prompt; SAMPLE: forced token or -1 */
    int32_t mode;   /* mm_logprob_mode of its entries */
    int32_t n_top;  /* -1: no entries */
    int32_t n_list; /* ids scored after the top entries */
    int64_t list;   /* byte offset of the i32 ids in the blob (SCORE); -1: the slot's logprob_token
                       list */
    int64_t entry;  /* index of its first entry in mm_step_result; it has 1 + n_top + n_list entries
                       if n_top >= 0 */
    int32_t want_sampling; /* fill mm_step_result.sampling_logprob */
    int32_t needs_work;    /* reads the processed distribution */
} mm_batch_out;

/* A slot that begins (or begins again after preemption). Offsets are in bytes from the blob's
 * start, -1 = none. */
typedef struct mm_batch_slot {
    int32_t slot;
    int32_t n_emitted; /* tokens sampled before: the random stream goes on there */
    uint64_t seed;
    float temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty;
    int32_t top_k, min_tokens;
    int32_t n_bias, n_ban, n_bad, n_logprob_token, n_prompt_seen, n_history;
    int64_t bias_token, bias_value, ban_token;
    int64_t bad_offset, bad_token; /* [n_bad + 1], [bad_offset[n_bad]] */
    int64_t logprob_token;
    int64_t mask;    /* u32 [mask_words] or -1 */
    int64_t prompt;  /* i32 [n_prompt_seen]: prompt ids to mark in in_prompt (repetition penalty
                        only) */
    int64_t history; /* i32 [n_history]: all tokens emitted so far: recent, n_out, last_token are
                        rebuilt from them */
    int32_t keeps_counts; /* a penalty is on: n_out is kept */
} mm_batch_slot;

typedef struct mm_batch_page {
    int32_t slot, block, page;
} mm_batch_page; /* page_table[slot][block] = page */
typedef struct mm_batch_mask {
    int32_t slot, lane;
    int64_t mask;
} mm_batch_mask; /* u32 [mask_words] in the blob */

typedef struct mm_batch {
    int64_t n_bytes; /* of the whole blob */
    uint64_t step;
    int32_t n_seq, n_row, n_out, n_slot, n_page, n_mask;
    int32_t max_pos; /* largest position + 1 */
    int32_t is_decode;
    int32_t draw;      /* enum mm_draw: the least simple of its SAMPLE rows */
    int64_t n_entry;   /* log-probability entries of the step */
    int64_t seq;       /* mm_batch_seq  [n_seq] */
    int64_t token;     /* i32           [n_row]; -1: last sampled of the slot; -1 - i: its draft i
                          = 1..7 */
    int64_t row_media; /* i32           [n_row]: row of the media buffer or -1; offset -1 when no
                          row has one */
    int64_t out;       /* mm_batch_out  [n_out], in row order */
    int64_t slot;      /* mm_batch_slot [n_slot] */
    int64_t page;      /* mm_batch_page [n_page] */
    int64_t mask;      /* mm_batch_mask [n_mask] */
    const mm_trace *trace; /* host only: the one request of this step is a trace; its first row is
                              row 0 */
    int32_t trace_first;   /* position of row 0 in the traced prompt */
} mm_batch;

static inline const void *mm_batch_at(const mm_batch *b, int64_t offset)
{
    return (const uint8_t *)b + offset;
}

/* What a step gives back, host memory, sized at open. */
typedef struct mm_step_result {
    uint64_t step;
    int32_t *token; /* [n_out]; SCORE and TRACE rows: -1 */
    /* [n_out] MM_SAMPLE_* ; SCORE rows: MM_SAMPLE_NAN when their logits hold a NaN */
    uint8_t *flag;
    int32_t *n_accepted; /* [n_seq] drafts accepted (0 in plain decoding); outputs of lanes beyond
                            it are void */
    float *sampling_logprob;        /* [n_out] */
    int32_t *entry_id, *entry_rank; /* [n_entry] */
    float *entry_value;
    int64_t n_block_read, n_block_held;
    bool is_graph;                     /* its rows ran as one captured graph */
    double t_begin, t_launched, t_end; /* the rank begins; all is queued; results are there */
} mm_step_result;
#endif
