/* begin.cu: the `begin` op: what a batch changes is applied to the slots, then its plan is expanded
 * into the arrays that kernels read. Two launches at most: one block for each slot that begins
 * (histories, marks and lists spread over its threads), then one kernel whose blocks take rows,
 * sequences, outputs, pages and masks. In it nothing reads what it writes, so the order slots,
 * pages, masks, sequences, outputs needs no barrier: outputs look sequences and tokens up in the
 * blob, and a sequence that starts at its slot's n_ctx expands its positions itself, before n_ctx
 * moves on.
 *
 * The batch of a plain decode step lies in host memory, microseconds away. A small one travels with
 * the launch, as an argument of the kernel; of a larger one a thread asks for all it needs at once,
 * guessing that row, sequence and output i belong together. */
#include "kernels/cuda/kernels.h"

enum { SLOT_THREADS = 512, EXPAND_THREADS = 256 };

/* Host header, slots and views as one kernel argument; *_all: with the sequences of padding. */
struct begin_run {
    const uint8_t *blob;
    mm_slots s;
    int32_t n_vocab, n_seq, n_row, n_out, n_page, n_mask;
    int32_t n_seq_all, n_row_all, n_out_all, rows_each;
    int64_t at_slot, at_page, at_mask, at_seq, at_token, at_out;
    int32_t *row_start, *slot, *row_seq, *pos, *token;
    int32_t *out_row, *out_slot, *out_lane, *out_kind, *out_token, *out_row_token;
    int32_t *out_mode, *out_n_top, *out_n_list;
    int64_t *out_entry, *out_list;
    int64_t *n_read;
    void *host, **host_at;
};

/* ---------------------------------------------------------------- slots */

MM_DEV_FN void copy_list(void *dst, int64_t first, const uint8_t *blob, int64_t offset, int32_t n)
{
    const int32_t *src = (const int32_t *)(blob + offset);
    for (int32_t i = threadIdx.x; i < n; i += SLOT_THREADS)
        ((int32_t *)dst)[first + i] = src[i];
}

MM_DEV_FN void clear(void *dst, int64_t n_bytes) /* multiple of 2 bytes, at a multiple of 2 */
{
    uint8_t *p = (uint8_t *)dst;
    const int64_t n16 = (uintptr_t)dst % 16 == 0 ? n_bytes / 16 : 0;
    for (int64_t i = threadIdx.x; i < n16; i += SLOT_THREADS)
        ((uint4 *)p)[i] = make_uint4(0, 0, 0, 0);
    for (int64_t i = 8 * n16 + threadIdx.x; i < n_bytes / 2; i += SLOT_THREADS)
        ((uint16_t *)p)[i] = 0;
}

/* count[id] + 1, saturating; a word holds two counts, and other threads may be at either. */
MM_DEV_FN void count_one(uint16_t *count, int32_t id)
{
    uint16_t *const p = count + id;
    uint32_t *const word = (uint32_t *)((uintptr_t)p & ~(uintptr_t)3);
    const int shift = (uintptr_t)p & 2 ? 16 : 0;
    for (uint32_t old = *(volatile uint32_t *)word;;) {
        if ((old >> shift & 0xFFFFu) == 0xFFFFu)
            return;
        const uint32_t seen = atomicCAS(word, old, old + (1u << shift));
        if (seen == old)
            return;
        old = seen;
    }
}

/* What the slot has seen: prompt marks, and everything that its own tokens decide. */
MM_DEV_FN void set_history(const begin_run &x, const mm_batch_slot *n)
{
    const int32_t *history = (const int32_t *)(x.blob + n->history);
    const int32_t *prompt = (const int32_t *)(x.blob + n->prompt);
    uint32_t *mark = x.s.in_prompt + (int64_t)n->slot * x.s.mask_words;
    uint16_t *count = x.s.n_out + (int64_t)n->slot * x.n_vocab;
    const bool has_marks = n->repetition_penalty != 1.0f;
    if (has_marks)
        clear(mark, (int64_t)x.s.mask_words * (int64_t)sizeof(uint32_t));
    if (n->keeps_counts)
        clear(count, (int64_t)x.n_vocab * (int64_t)sizeof(uint16_t));
    __syncthreads();
    for (int32_t i = threadIdx.x; has_marks && i < n->n_prompt_seen; i += SLOT_THREADS)
        atomicOr(&mark[prompt[i] / 32], 1u << (prompt[i] % 32));
    for (int32_t i = threadIdx.x; n->keeps_counts && i < n->n_history; i += SLOT_THREADS)
        count_one(count, history[i]);
    /* the ring keeps the newest; older tokens would only be overwritten */
    const int32_t first = max(0, n->n_history - MM_MAX_BAD_LEN);
    for (int32_t i = first + (int32_t)threadIdx.x; i < n->n_history; i += SLOT_THREADS)
        x.s.recent[(int64_t)n->slot * MM_MAX_BAD_LEN +
                   (n->n_emitted - n->n_history + i) % MM_MAX_BAD_LEN] = history[i];
    if (threadIdx.x == 0)
        x.s.last_token[n->slot] = n->n_history > 0 ? history[n->n_history - 1] : 0;
}

static __global__ void __launch_bounds__(SLOT_THREADS) begin_slots(begin_run x)
{
    mm_pdl_wait();
    mm_pdl_trigger();
    const mm_batch_slot *n = (const mm_batch_slot *)(x.blob + x.at_slot) + blockIdx.x;
    const int32_t i = n->slot;
    if (threadIdx.x == 0) {
        mm_slot_params p;
        p.seed = n->seed;
        p.temperature = n->temperature;
        p.top_p = n->top_p;
        p.min_p = n->min_p;
        p.repetition_penalty = n->repetition_penalty;
        p.frequency_penalty = n->frequency_penalty;
        p.presence_penalty = n->presence_penalty;
        p.top_k = n->top_k;
        p.min_tokens = n->min_tokens;
        p.n_bias = n->n_bias;
        p.n_ban = n->n_ban;
        p.n_bad = n->n_bad;
        p.n_logprob_token = n->n_logprob_token;
        p.has_mask = n->mask >= 0;
        x.s.params[i] = p;
        x.s.n_emitted[i] = n->n_emitted;
        if (x.s.n_draft != NULL)
            x.s.n_draft[i] = 0;
    }
    const int64_t list = (int64_t)i * MM_MAX_LIST;
    copy_list(x.s.bias_token, list, x.blob, n->bias_token, n->n_bias);
    copy_list(x.s.bias_value, list, x.blob, n->bias_value, n->n_bias);
    copy_list(x.s.ban_token, list, x.blob, n->ban_token, n->n_ban);
    copy_list(x.s.logprob_token, list, x.blob, n->logprob_token, n->n_logprob_token);
    if (n->n_bad > 0) {
        const int32_t n_token = ((const int32_t *)(x.blob + n->bad_offset))[n->n_bad];
        copy_list(x.s.bad_offset, (int64_t)i * (MM_MAX_LIST + 1), x.blob, n->bad_offset,
                  n->n_bad + 1);
        copy_list(x.s.bad_token, (int64_t)i * MM_MAX_BAD_TOKENS, x.blob, n->bad_token, n_token);
    }
    for (int32_t lane = 0; lane < x.s.mask_lanes && n->mask >= 0; lane++)
        copy_list(x.s.mask, ((int64_t)i * x.s.mask_lanes + lane) * x.s.mask_words, x.blob, n->mask,
                  x.s.mask_words);
    set_history(x, n);
}

/* ---------------------------------------------------------------- views */

/* The sequence of row t: the last one whose first row is not after it. `guess` is looked at first.
 */
MM_DEV_FN int32_t find_seq(const mm_batch_seq *seq, int32_t n_seq, int32_t t, int32_t guess,
                           const mm_batch_seq &guessed)
{
    if (t >= guessed.row_start && t < guessed.row_start + guessed.n_row)
        return guess;
    int32_t low = 0, high = n_seq;
    while (high - low > 1) {
        const int32_t mid = (low + high) / 2;
        if (seq[mid].row_start <= t)
            low = mid;
        else
            high = mid;
    }
    return low;
}

MM_DEV_FN void expand_row(const begin_run &x, int32_t t)
{
    if (t >= x.n_row) { /* padding */
        const int32_t k = t - x.n_row;
        x.row_seq[t] = x.n_seq + k / x.rows_each;
        x.pos[t] = k % x.rows_each;
        x.token[t] = 0;
        return;
    }
    const mm_batch_seq *seq = (const mm_batch_seq *)(x.blob + x.at_seq);
    const int32_t guess = min(t / max(1, x.n_row / x.n_seq), x.n_seq - 1);
    mm_batch_seq q = seq[guess];
    const int32_t token = ((const int32_t *)(x.blob + x.at_token))[t];
    const int32_t i = find_seq(seq, x.n_seq, t, guess, q);
    if (i != guess)
        q = seq[i];
    x.row_seq[t] = i;
    x.token[t] = token;
    if (q.pos >= 0)
        x.pos[t] = q.pos + (t - q.row_start);
}

MM_DEV_FN void expand_seq(const begin_run &x, int32_t i)
{
    if (i == 0)
        x.row_start[0] = 0;
    if (i >= x.n_seq) {
        x.slot[i] = x.s.n_slot - 1;
        x.row_start[i + 1] = x.n_row + (i - x.n_seq + 1) * x.rows_each;
        return;
    }
    const mm_batch_seq q = ((const mm_batch_seq *)(x.blob + x.at_seq))[i];
    x.slot[i] = q.slot;
    x.row_start[i + 1] = q.row_start + q.n_row;
    if (q.pos < 0) {
        const int32_t first = x.s.n_ctx[q.slot];
        for (int32_t r = 0; r < q.n_row; r++)
            x.pos[q.row_start + r] = first + r;
    }
    if (q.n_ctx_after >= 0)
        x.s.n_ctx[q.slot] = q.n_ctx_after;
}

MM_DEV_FN int32_t input_token(const mm_slots &s, int32_t slot, int32_t token)
{
    if (token >= 0)
        return token;
    return token == -1 ? s.last_token[slot]
                       : s.draft_token[(int64_t)slot * (MM_MAX_DECODE_ROWS - 1) - 2 - token];
}

MM_DEV_FN void expand_out(const begin_run &x, int32_t i)
{
    mm_batch_out o;
    int32_t slot = x.s.n_slot - 1, row_token = 0;
    if (i < x.n_out) {
        const mm_batch_seq *seq = (const mm_batch_seq *)(x.blob + x.at_seq);
        const int32_t *token = (const int32_t *)(x.blob + x.at_token);
        const int32_t i_seq = min(i, x.n_seq - 1), i_row = min(i, x.n_row - 1);
        o = ((const mm_batch_out *)(x.blob + x.at_out))[i];
        slot = seq[i_seq].slot;
        row_token = token[i_row];
        if (o.seq != i_seq)
            slot = seq[o.seq].slot;
        if (o.row != i_row)
            row_token = token[o.row];
        row_token = input_token(x.s, slot, row_token);
    } else { /* the last row of a sequence of padding */
        o.row = x.n_row + (i - x.n_out + 1) * x.rows_each - 1;
        o.kind = MM_OUT_SAMPLE;
        o.lane = 0;
        o.token = -1;
        o.mode = MM_LOGPROB_RAW;
        o.n_top = -1;
        o.n_list = 0;
        o.entry = 0;
        o.list = -1;
    }
    x.out_row[i] = o.row;
    x.out_slot[i] = slot;
    x.out_lane[i] = o.lane;
    x.out_kind[i] = o.kind;
    x.out_token[i] = o.token;
    x.out_row_token[i] = row_token;
    x.out_mode[i] = o.mode;
    x.out_n_top[i] = o.n_top;
    x.out_n_list[i] = o.n_list;
    x.out_entry[i] = o.entry;
    x.out_list[i] = o.list;
}

MM_DEV_FN void set_mask(const begin_run &x, int32_t i)
{
    const mm_batch_mask m = ((const mm_batch_mask *)(x.blob + x.at_mask))[i];
    const uint32_t *src = (const uint32_t *)(x.blob + m.mask);
    uint32_t *dst = x.s.mask + ((int64_t)m.slot * x.s.mask_lanes + m.lane) * x.s.mask_words;
    for (int32_t w = threadIdx.x; w < x.s.mask_words; w += EXPAND_THREADS)
        dst[w] = src[w];
    if (threadIdx.x == 0)
        x.s.params[m.slot].has_mask = 1;
}

static __host__ __device__ inline int32_t blocks_of(int32_t n)
{
    return (n + EXPAND_THREADS - 1) / EXPAND_THREADS;
}

MM_DEV_FN void expand(const begin_run &x) /* block */
{
    int32_t b = (int32_t)blockIdx.x;
    if (b == 0 && threadIdx.x < 2 && x.n_read != NULL)
        x.n_read[threadIdx.x] = 0;
    if (b == 0 && threadIdx.x == 0 && x.host_at != NULL)
        *x.host_at = x.host;
    if (b < x.n_mask) {
        set_mask(x, b);
        return;
    }
    b -= x.n_mask;
    const int32_t n[4] = {x.n_row_all, x.n_seq_all, x.n_out_all, x.n_page};
    int part = 0;
    for (; part < 3 && b >= blocks_of(n[part]); part++)
        b -= blocks_of(n[part]);
    const int32_t i = b * EXPAND_THREADS + (int32_t)threadIdx.x;
    if (part == 0 && i < x.n_row_all) {
        expand_row(x, i);
    } else if (part == 1 && i < x.n_seq_all) {
        expand_seq(x, i);
    } else if (part == 2 && i < x.n_out_all) {
        expand_out(x, i);
    } else if (part == 3 && i < x.n_page) {
        const mm_batch_page p = ((const mm_batch_page *)(x.blob + x.at_page))[i];
        x.s.page_table[(int64_t)p.slot * x.s.page_stride + p.block] = p.page;
    }
}

static __global__ void __launch_bounds__(EXPAND_THREADS) begin_expand(begin_run x)
{
    mm_pdl_wait();
    mm_pdl_trigger();
    expand(x);
}

/* A launch has 4 KB for its arguments on every device and driver. */
enum { FEW_BYTES = 1024, SOME_BYTES = 3584 };
template <int N> struct begin_carried {
    begin_run x; /* its blob is not used */
    uint4 blob[N / 16];
};
static_assert(sizeof(begin_carried<SOME_BYTES>) <= 4096, "more than a launch takes");

template <int N>
static __global__ void __launch_bounds__(EXPAND_THREADS)
    begin_expand_carried(const __grid_constant__ begin_carried<N> a)
{
    __shared__ uint4 blob[N / 16];
    for (int32_t i = (int32_t)threadIdx.x; i < N / 16; i += EXPAND_THREADS)
        blob[i] = a.blob[i];
    __syncthreads();
    begin_run x = a.x;
    x.blob = (const uint8_t *)blob;
    mm_pdl_wait();
    mm_pdl_trigger();
    expand(x);
}

/* ---------------------------------------------------------------- the op */

static mm_status check_padding(const mm_op_context *c, const mm_begin_args *a)
{
    const mm_batch *b = a->plan;
    const mm_cuda *cuda = mm_cuda_of(c);
    if (a->pad_seqs == 0)
        return MM_OK;
    if (a->pad_seqs < b->n_seq || a->pad_seqs > c->shape->max_seqs)
        return MM_CUDA_FAIL(cuda, MM_E_INVALID,
                            "begin: pad_seqs is %d; it must be 0 or %d (sequences of the step) to "
                            "%d (max_seqs)",
                            a->pad_seqs, b->n_seq, c->shape->max_seqs);
    if (b->n_seq < 1 || !b->is_decode || b->n_row % b->n_seq != 0)
        return MM_CUDA_FAIL(cuda, MM_E_INVALID,
                            "begin: a step of %d sequences and %d rows%s cannot be padded to %d "
                            "sequences: only decode steps of equal rows can; use pad_seqs 0",
                            b->n_seq, b->n_row, b->is_decode ? "" : " with prompt rows",
                            a->pad_seqs);
    const int64_t n_row = (int64_t)a->pad_seqs * (b->n_row / b->n_seq);
    if (n_row > c->shape->max_rows)
        return MM_CUDA_FAIL(cuda, MM_E_INVALID,
                            "begin: pad_seqs %d makes %lld rows; max_rows is %d: pad to fewer",
                            a->pad_seqs, (long long)n_row, c->shape->max_rows);
    return MM_OK;
}

static begin_run describe(const mm_op_context *c, const mm_begin_args *a)
{
    const mm_batch *b = a->plan;
    const mm_seq_view *v = a->seq;
    const mm_out_view *o = a->out;
    begin_run x = {};
    x.blob = (const uint8_t *)a->blob;
    x.s = *a->slots;
    x.n_vocab = c->shape->n_vocab;
    x.n_seq = b->n_seq;
    x.n_row = b->n_row;
    x.n_out = b->n_out;
    x.n_page = b->n_page;
    x.n_mask = b->n_mask;
    x.rows_each = a->pad_seqs > 0 ? b->n_row / b->n_seq : 1;
    x.n_seq_all = a->pad_seqs > 0 ? a->pad_seqs : b->n_seq;
    x.n_row_all = a->pad_seqs > 0 ? a->pad_seqs * x.rows_each : b->n_row;
    x.n_out_all = a->pad_seqs > 0 && b->n_out == b->n_seq ? a->pad_seqs : b->n_out;
    x.at_slot = b->slot;
    x.at_page = b->page;
    x.at_mask = b->mask;
    x.at_seq = b->seq;
    x.at_token = b->token;
    x.at_out = b->out;
    /* the views are const to ops; their arrays belong to the caller and are written here only */
    x.row_start = (int32_t *)v->row_start;
    x.slot = (int32_t *)v->slot;
    x.row_seq = (int32_t *)v->row_seq;
    x.pos = (int32_t *)v->pos;
    x.token = (int32_t *)v->token;
    x.out_row = (int32_t *)o->row;
    x.out_slot = (int32_t *)o->row_slot;
    x.out_lane = (int32_t *)o->lane;
    x.out_kind = (int32_t *)o->kind;
    x.out_token = (int32_t *)o->token;
    x.out_row_token = (int32_t *)o->row_token;
    x.out_mode = (int32_t *)o->mode;
    x.out_n_top = (int32_t *)o->n_top;
    x.out_n_list = (int32_t *)o->n_list;
    x.out_entry = (int64_t *)o->entry;
    x.out_list = (int64_t *)o->list;
    x.n_read = a->n_read;
    x.host = a->host;
    x.host_at = a->host_at;
    return x;
}

template <int N>
static mm_status carry(const mm_op_context *c, const begin_run &x, const mm_batch *b, dim3 grid)
{
    begin_carried<N> a;
    a.x = x;
    memcpy(a.blob, b, (size_t)b->n_bytes);
    return mm_launch(c, "begin_expand", begin_expand_carried<N>, grid, dim3(EXPAND_THREADS), 0, a);
}

mm_status mm_cuda_begin(const mm_op_context *c, const mm_begin_args *a)
{
    const mm_batch *b = a->plan;
    mm_cuda_start(c);
    MM_TRY(check_padding(c, a));
    const begin_run x = describe(c, a);
    a->seq->n_seq = x.n_seq_all;
    a->seq->n_row = x.n_row_all;
    a->seq->max_pos = a->pad_seqs > 0 && b->max_pos < x.rows_each ? x.rows_each : b->max_pos;
    a->seq->is_decode = b->is_decode != 0;
    a->seq->slots = a->slots;
    a->out->n_out = x.n_out_all;
    a->out->blob = a->blob;
    if (b->n_slot > 0)
        MM_TRY(mm_launch(c, "begin_slots", begin_slots, dim3((unsigned)b->n_slot),
                         dim3(SLOT_THREADS), 0, x));
    const int32_t n_block = x.n_mask + blocks_of(x.n_row_all) + blocks_of(x.n_seq_all) +
                            blocks_of(x.n_out_all) + blocks_of(x.n_page);
    const dim3 grid((unsigned)(n_block > 0 ? n_block : 1));
    const bool is_here = a->blob == (const void *)b; /* the whole batch, in host memory */
    if (is_here && b->n_bytes <= FEW_BYTES)
        return carry<FEW_BYTES>(c, x, b, grid);
    if (is_here && b->n_bytes <= SOME_BYTES)
        return carry<SOME_BYTES>(c, x, b, grid);
    return mm_launch(c, "begin_expand", begin_expand, grid, dim3(EXPAND_THREADS), 0, x);
}
