/* expand.cu: the `expand` op: pages of a batch, and its rows, sequences and outputs as the arrays
 * that kernels read. Nothing in it reads what it writes, so it needs no order among them: outputs
 * look sequences and tokens up in the batch, and a sequence that starts at its slot's n_ctx expands
 * its positions itself, before n_ctx moves on.
 *
 * In a captured step it is the first kernel, and one block: the batch lies in host memory,
 * microseconds away, and the block asks at once for as many bytes as a plain decode step of the
 * graph's size has. A smaller step has its arrays further to the front, so nothing but what is
 * unusual (a sequence with many new pages) is asked for a second time. */
#include "kernels/cuda/kernels.h"
#include "kernels/expand_check.h"

/* STAGE_BYTES: a captured batch of up to 354 sequences; no opt-in to more shared memory. */
enum { EXPAND_THREADS = 512, STAGE_BYTES = 32 << 10 };

struct expand_run {
    const uint8_t *blob; /* NULL: the batch of *turn */
    const uint8_t *batch[MM_MAX_RING];
    void *result[MM_MAX_RING], **result_at;
    int32_t *turn;
    int32_t n_ring, i_ring;
    int32_t n_stage;                        /* bytes of the batch that go to shared memory first */
    int32_t n_seq, n_row, n_out, rows_each; /* of the views; rows_each: of what is filled up */
    mm_slots s;
    int32_t *row_start, *slot, *row_seq, *pos, *token;
    int32_t *out_row, *out_slot, *out_lane, *out_kind, *out_token, *out_row_token;
    int32_t *out_mode, *out_n_top, *out_n_list;
    int64_t *out_entry, *out_list;
    int64_t *n_read;
};

/* The batch on the device: its header, and where the rest of it is. */
struct expand_batch {
    mm_batch b;
    const uint8_t *blob, *stage;
    int32_t n_stage;
};

/* Element i of the array at `offset`. */
template <typename T> MM_DEV_FN T element(const expand_batch &e, int64_t offset, int32_t i)
{
    const int64_t at = offset + (int64_t)i * (int64_t)sizeof(T);
    const uint8_t *from = at + (int64_t)sizeof(T) <= e.n_stage ? e.stage : e.blob;
    return *(const T *)(from + at);
}

/* The sequence of row t: the last one whose first row is not after it. `guess` is looked at first.
 */
MM_DEV_FN int32_t find_seq(const expand_batch &e, int32_t t, int32_t guess,
                           const mm_batch_seq &guessed)
{
    if (t >= guessed.row_start && t < guessed.row_start + guessed.n_row)
        return guess;
    int32_t low = 0, high = e.b.n_seq;
    while (high - low > 1) {
        const int32_t mid = (low + high) / 2;
        if (element<mm_batch_seq>(e, e.b.seq, mid).row_start <= t)
            low = mid;
        else
            high = mid;
    }
    return low;
}

MM_DEV_FN void expand_row(const expand_run &x, const expand_batch &e, int32_t t)
{
    const mm_batch &b = e.b;
    if (t >= b.n_row) { /* padding */
        const int32_t k = t - b.n_row;
        x.row_seq[t] = b.n_seq + k / x.rows_each;
        x.pos[t] = k % x.rows_each;
        x.token[t] = 0;
        return;
    }
    const int32_t guess = min(t / max(1, b.n_row / b.n_seq), b.n_seq - 1);
    mm_batch_seq q = element<mm_batch_seq>(e, b.seq, guess);
    const int32_t i = find_seq(e, t, guess, q);
    if (i != guess)
        q = element<mm_batch_seq>(e, b.seq, i);
    x.row_seq[t] = i;
    x.token[t] = element<int32_t>(e, b.token, t);
    if (q.pos >= 0)
        x.pos[t] = q.pos + (t - q.row_start);
}

MM_DEV_FN void expand_seq(const expand_run &x, const expand_batch &e, int32_t i)
{
    const mm_batch &b = e.b;
    if (i == 0)
        x.row_start[0] = 0;
    if (i >= b.n_seq) {
        x.slot[i] = x.s.n_slot - 1;
        x.row_start[i + 1] = b.n_row + (i - b.n_seq + 1) * x.rows_each;
        return;
    }
    const mm_batch_seq q = element<mm_batch_seq>(e, b.seq, i);
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

MM_DEV_FN void expand_out(const expand_run &x, const expand_batch &e, int32_t i)
{
    const mm_batch &b = e.b;
    mm_batch_out o;
    int32_t slot = x.s.n_slot - 1, row_token = 0;
    if (i < b.n_out) {
        o = element<mm_batch_out>(e, b.out, i);
        slot = element<mm_batch_seq>(e, b.seq, o.seq).slot;
        row_token = input_token(x.s, slot, element<int32_t>(e, b.token, o.row));
    } else { /* the last row of a sequence of padding */
        const int32_t k = i - b.n_out;
        if (b.n_seq + k >= x.n_seq)
            return;
        o.row = b.n_row + (k + 1) * x.rows_each - 1;
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

static __host__ __device__ inline int32_t whole_warps(int32_t n)
{
    return (n + 31) / 32 * 32;
}

/* The first n bytes of the batch, n a multiple of 16; every thread's loads are under way together.
 */
MM_DEV_FN void stage(uint4 *to, const uint4 *from, int32_t n)
{
    enum { EACH = 4 };
    for (int32_t i = (int32_t)threadIdx.x; i < n / 16; i += EACH * EXPAND_THREADS) {
        uint4 v[EACH];
#pragma unroll
        for (int32_t k = 0; k < EACH; k++)
            if (i + k * EXPAND_THREADS < n / 16)
                v[k] = from[i + k * EXPAND_THREADS];
#pragma unroll
        for (int32_t k = 0; k < EACH; k++)
            if (i + k * EXPAND_THREADS < n / 16)
                to[i + k * EXPAND_THREADS] = v[k];
    }
}

static __global__ void __launch_bounds__(EXPAND_THREADS)
    expand(const __grid_constant__ expand_run x)
{
    uint4 *const staged = (uint4 *)mm_smem();
    mm_pdl_wait();
    mm_pdl_trigger();
    const bool is_given = x.blob != NULL;
    const int32_t i_ring = is_given ? x.i_ring : *x.turn;
    expand_batch e;
    e.blob = is_given ? x.blob : x.batch[i_ring];
    stage(staged, (const uint4 *)e.blob, x.n_stage);
    __syncthreads(); /* all have read *turn as well; with more than one block the batch is given */
    e.stage = (const uint8_t *)staged;
    e.n_stage = x.n_stage;
    e.b = *(const mm_batch *)staged;
    if (blockIdx.x == 0 && threadIdx.x < 2 && x.n_read != NULL)
        x.n_read[threadIdx.x] = 0;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        if (x.turn != NULL)
            *x.turn = i_ring + 1 < x.n_ring ? i_ring + 1 : 0;
        if (!is_given)
            *x.result_at = x.result[i_ring];
    }
    const int32_t n[4] = {whole_warps(x.n_row), whole_warps(x.n_seq), whole_warps(x.n_out),
                          e.b.n_page};
    const int32_t n_all = n[0] + n[1] + n[2] + n[3];
    for (int32_t at = (int32_t)(blockIdx.x * EXPAND_THREADS + threadIdx.x); at < n_all;
         at += (int32_t)gridDim.x * EXPAND_THREADS) {
        int32_t i = at;
        if (i < n[0]) {
            if (i < x.n_row)
                expand_row(x, e, i);
            continue;
        }
        i -= n[0];
        if (i < n[1]) {
            if (i < x.n_seq)
                expand_seq(x, e, i);
            continue;
        }
        i -= n[1];
        if (i < n[2]) {
            if (i < x.n_out)
                expand_out(x, e, i);
            continue;
        }
        const mm_batch_page p = element<mm_batch_page>(e, e.b.page, i - n[2]);
        x.s.page_table[(int64_t)p.slot * x.s.page_stride + p.block] = p.page;
    }
}

/* ---------------------------------------------------------------- the op */

static int64_t room(int64_t n, size_t each)
{
    return mm_round_up(n * (int64_t)each, 16);
}

/* Bytes of the batch to ask for at once: of a given one, in device memory, the header. */
static int32_t stage_bytes(const mm_expand_args *a)
{
    const int64_t n_seq = a->seq->n_seq, header = room(1, sizeof(mm_batch));
    const int64_t whole =
        header + room(n_seq, sizeof(mm_batch_seq)) + room(a->seq->n_row, sizeof(int32_t)) +
        room(a->out->n_out, sizeof(mm_batch_out)) + room(n_seq, sizeof(mm_batch_page));
    if (a->plan != NULL || whole > STAGE_BYTES || whole > a->ring->n_bytes)
        return (int32_t)header;
    return (int32_t)whole;
}

static expand_run describe(const mm_expand_args *a)
{
    const mm_seq_view *v = a->seq;
    const mm_out_view *o = a->out;
    expand_run x = {};
    x.blob = (const uint8_t *)a->blob;
    if (a->ring != NULL) {
        for (int32_t i = 0; i < a->ring->n; i++) {
            x.batch[i] = (const uint8_t *)a->ring->batch[i];
            x.result[i] = a->ring->result[i];
        }
        x.result_at = a->ring->result_at;
        x.turn = a->ring->turn;
        x.n_ring = a->ring->n;
    }
    x.i_ring = a->i_ring;
    x.n_stage = stage_bytes(a);
    x.n_seq = v->n_seq;
    x.n_row = v->n_row;
    x.n_out = o->n_out;
    x.rows_each = a->plan == NULL ? v->n_row / v->n_seq : 1;
    x.s = *a->slots;
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
    return x;
}

mm_status mm_cuda_expand(const mm_op_context *c, const mm_expand_args *a)
{
    char why[256];
    mm_cuda_start(c);
    if (mm_expand_is_wrong(c->shape, a, why, sizeof why))
        return MM_CUDA_FAIL(mm_cuda_of(c), MM_E_INVALID, "%s", why);
    const expand_run x = describe(a);
    int32_t n_block = 1;
    if (a->plan != NULL) {
        const int32_t n =
            whole_warps(x.n_row) + whole_warps(x.n_seq) + whole_warps(x.n_out) + a->plan->n_page;
        n_block = (int32_t)mm_max_i64(1, mm_ceil_div(n, EXPAND_THREADS));
    }
    return mm_launch(c, "expand", expand, dim3((unsigned)n_block), dim3(EXPAND_THREADS),
                     (size_t)x.n_stage, x);
}
