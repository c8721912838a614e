/* sample.cu: from logits to a token (ops.h, sample), a few rows or hundreds, in one launch where
 * every row is greedy, two where nothing selects, else four. A block takes every so many slices of
 * MM_ROW_SLICE ids of a row; the last block of a row finishes what the kernel found out about it.
 *
 *   prepare  (here)             masks, bias, penalties, temperature -> work; maximum, NaN. Greedy
 *                               rows, broken ones and empty ones end here.
 *   count    (sample_filter.cu) histogram of values and masses: in which bins top_k and top_p cut
 *   collect  (sample_filter.cu) the ids of those bins: where exactly
 *   draw     (sample_draw.cu)   drops what is filtered, sums weights, draws
 *
 * A kernel leaves at once where a row has nothing left to do in it. Most rows are plain: nothing
 * changes their logits but temperature and the ids that are never generated. Where nobody reads
 * `work` afterwards it is not written for them: the kernels that follow divide again. */
#include "kernels/cuda/sample_row.h"

/* ---------------------------------------------------------------- one part of a row */

/* What a row is sampled under. */
struct sample_row {
    const mm_slot_params *p;   /* a copy in shared memory */
    const int32_t *lane_token; /* lane_token[-k], k < lane: tokens after the slot's own */
    int32_t slot, lane, n_emitted, forced;
    int32_t first, n; /* ids of this part */
};

/* Generated token `back` places ago (1: the newest), the lanes before this row counted; -1: none.
 */
MM_DEV_FN int32_t generated(const mm_sample_run &x, const sample_row &r, int32_t back)
{
    if (back <= r.lane)
        return r.lane_token[1 - back];
    const int32_t i = r.n_emitted - (back - r.lane);
    return i < 0 ? -1 : x.s.recent[(int64_t)r.slot * MM_MAX_BAD_LEN + i % MM_MAX_BAD_LEN];
}

MM_DEV_FN void mask_one(float *work, const sample_row &r, int32_t id)
{
    if (id >= r.first && id < r.first + r.n)
        work[id - r.first] = -INFINITY;
}

/* Everything masked by lists, all idempotent: threads may meet at an id. */
MM_DEV_FN void mask_lists(const mm_sample_run &x, const sample_row &r, float *work)
{
    for (int i = threadIdx.x; i < 16; i += MM_ROW_THREADS)
        mask_one(work, r, x.never_token[i]);
    const int32_t *offset = x.s.bad_offset + (int64_t)r.slot * (MM_MAX_LIST + 1);
    const int32_t *token = x.s.bad_token + (int64_t)r.slot * MM_MAX_BAD_TOKENS;
    for (int32_t w = threadIdx.x; w < r.p->n_bad; w += MM_ROW_THREADS) {
        const int32_t first = offset[w], last = offset[w + 1] - 1;
        bool match = last >= first && token[last] >= r.first && token[last] < r.first + r.n;
        for (int32_t i = first; i < last && match; i++)
            match = generated(x, r, last - i) == token[i];
        if (match)
            mask_one(work, r, token[last]);
    }
    const bool is_banned = r.n_emitted + r.lane < r.p->min_tokens;
    for (int32_t i = threadIdx.x; is_banned && i < r.p->n_ban; i += MM_ROW_THREADS)
        mask_one(work, r, x.s.ban_token[(int64_t)r.slot * MM_MAX_LIST + i]);
}

/* work[id] += value in list order: the first entry of an id adds for all entries of it. */
MM_DEV_FN void add_bias(const mm_sample_run &x, const sample_row &r, float *work)
{
    const int32_t *token = x.s.bias_token + (int64_t)r.slot * MM_MAX_LIST;
    const float *value = x.s.bias_value + (int64_t)r.slot * MM_MAX_LIST;
    const int32_t n = r.p->n_bias;
    for (int32_t i = threadIdx.x; i < n; i += MM_ROW_THREADS) {
        const int32_t id = token[i];
        if (id < r.first || id >= r.first + r.n)
            continue;
        bool is_first = true;
        for (int32_t k = 0; k < i && is_first; k++)
            is_first = token[k] != id;
        for (int32_t k = i; k < n && is_first; k++) {
            /* -inf is a mask: a forced id ignores it */
            if (token[k] == id && (id != r.forced || value[k] != -INFINITY))
                work[id - r.first] = __fadd_rn(work[id - r.first], value[k]);
        }
    }
}

MM_DEV_FN float penalised(const mm_sample_run &x, const sample_row &r, int32_t id, float l)
{
    const mm_slot_params *p = r.p;
    int32_t count = x.s.n_out[(int64_t)r.slot * x.n_vocab + id];
    for (int32_t k = 0; k < r.lane; k++)
        count += r.lane_token[-k] == id;
    const uint32_t *in_prompt = x.s.in_prompt + (int64_t)r.slot * x.s.mask_words;
    if (p->repetition_penalty != 1.0f && (count > 0 || (in_prompt[id / 32] >> (id % 32) & 1) != 0))
        l = l > 0.0f ? __fdiv_rn(l, p->repetition_penalty) : __fmul_rn(l, p->repetition_penalty);
    if (count > 0) {
        l = __fsub_rn(l, __fmul_rn(p->frequency_penalty, (float)count));
        l = __fsub_rn(l, p->presence_penalty);
    }
    return l;
}

/* ---------------------------------------------------------------- the row */

MM_DEV_FN bool has_selection(const mm_sample_run &x, const mm_slot_params &p)
{
    return (p.top_k > 0 && p.top_k < x.n_vocab) || p.top_p < 1.0f;
}

/* What prepare keeps in shared memory of the row's settings. */
struct prepare_shared {
    mm_slot_params params;
    mm_sample_commit commit;
    mm_row_shared row;
    float work[MM_ROW_SLICE]; /* of rows that are not plain */
};

/* One thread: the row's maximum is known. */
MM_DEV_FN void conclude(const mm_sample_run &x, int32_t r, const sample_row &row, bool is_plain,
                        const mm_sample_commit &commit, float max, int32_t best, float min,
                        bool has_nan)
{
    const int32_t i = x.first + r;
    const mm_slot_params &p = *row.p;
    const bool is_greedy = p.temperature < 1e-5f, is_empty = !(max > -INFINITY);
    mm_sample_state t = {};
    t.is_live = !has_nan && !is_empty && !is_greedy;
    if (t.is_live) {
        t.max = max;
        t.scale = mm_bin_scale(max, __fdiv_rn(min, p.temperature));
        t.has_min_p = p.min_p > 0.0f;
        t.low = t.has_min_p ? (float)log((double)p.min_p) : 0.0f;
        t.has_top_k = p.top_k > 0 && p.top_k < x.n_vocab;
        t.has_top_p = p.top_p < 1.0f;
        t.selects = has_selection(x, p);
        t.cut = -INFINITY;
        t.cut_id = -1;
        t.is_plain = is_plain && x.work_ends;
        t.temperature = p.temperature;
    }
    x.state[r] = t;
    if (t.is_live)
        return;
    if (has_nan || is_empty) {
        mm_sample_finish(x, i, commit, -1, has_nan ? MM_SAMPLE_NAN : MM_SAMPLE_EMPTY);
        return;
    }
    if (!x.work_ends)
        x.work[(int64_t)r * x.n_vocab + best] = 0.0f;
    mm_sample_finish(x, i, commit, row.forced >= 0 ? row.forced : best, MM_SAMPLE_OK);
}

/* Block: what the blocks of a row found, merged. */
MM_DEV_FN void conclude_row(const mm_sample_run &x, int32_t r, const sample_row &row, bool is_plain,
                            prepare_shared *s)
{
    unsigned long long best = ~0ull;
    float min = INFINITY;
    bool has_nan = false;
    for (int32_t k = threadIdx.x; k < (int32_t)gridDim.x; k += MM_ROW_THREADS) {
        const mm_sample_part *part = &x.part[(int64_t)r * x.n_part + k];
        const unsigned long long b = __ldcg(&part->best);
        best = b < best ? b : best;
        min = fminf(min, __ldcg(&part->min));
        has_nan = has_nan || __ldcg(&part->has_nan) != 0;
    }
    best = mm_block_min(best, &s->row);
    min = -mm_block_max(-min, &s->row);
    has_nan = __syncthreads_or(has_nan) != 0;
    if (threadIdx.x == 0)
        conclude(x, r, row, is_plain, s->commit, mm_row_key_value(best), mm_row_key_id(best), min,
                 has_nan);
}

/* Block: masks, lists, bias and penalties of a slice, l: this thread's ids of it, in and out. */
MM_DEV_FN void apply_settings(const mm_sample_run &x, const sample_row &row, const float *logits,
                              float l[MM_ROW_EACH], float *work)
{
    const int32_t tid = (int32_t)threadIdx.x;
    if (row.p->has_mask) {
        const int64_t lane = x.s.mask_lanes > 1 ? row.lane : 0;
        const uint32_t *mask = x.s.mask + (row.slot * x.s.mask_lanes + lane) * x.s.mask_words;
        uint32_t word[MM_ROW_EACH];
#pragma unroll
        for (int j = 0; j < MM_ROW_EACH; j++) {
            const int32_t k = j * MM_ROW_THREADS + tid;
            word[j] = 0;
            if (k < row.n)
                word[j] = mask[(row.first + k) / 32];
        }
#pragma unroll
        for (int j = 0; j < MM_ROW_EACH; j++)
            l[j] = (word[j] >> (tid % 32) & 1) != 0 ? l[j] : -INFINITY;
    }
    __syncthreads(); /* the slice before has been read */
#pragma unroll
    for (int j = 0; j < MM_ROW_EACH; j++)
        work[j * MM_ROW_THREADS + tid] = l[j];
    __syncthreads();
    mask_lists(x, row, work);
    __syncthreads();
    if (tid == 0 && row.forced >= row.first && row.forced < row.first + row.n)
        work[row.forced - row.first] = logits[row.forced - row.first];
    if (row.p->n_bias > 0) {
        __syncthreads();
        add_bias(x, row, work);
    }
    __syncthreads();
    const bool has_penalty = mm_has_penalty(*row.p);
#pragma unroll 2
    for (int j = 0; j < MM_ROW_EACH; j++) {
        const int32_t k = j * MM_ROW_THREADS + tid;
        l[j] = work[k];
        if (has_penalty && k < row.n)
            l[j] = penalised(x, row, row.first + k, l[j]);
    }
}

/* This thread's best id of a slice, as a key: ascending ids, so of equals the first; where all are
 * -inf, or NaN, any. */
MM_DEV_FN unsigned long long best_of_slice(const sample_row &row, const float l[MM_ROW_EACH])
{
    float best = -INFINITY;
    int32_t at = 0;
#pragma unroll
    for (int j = 0; j < MM_ROW_EACH; j++) {
        if (l[j] > best) {
            best = l[j];
            at = j;
        }
    }
    return mm_row_key(best, row.first + at * MM_ROW_THREADS + (int32_t)threadIdx.x);
}

static __global__ void __launch_bounds__(MM_ROW_THREADS, 2) sample_prepare(mm_sample_run x)
{
    __shared__ prepare_shared s;
    const int32_t r = (int32_t)blockIdx.y, i = x.first + r, tid = (int32_t)threadIdx.x;
    mm_pdl_wait();
    mm_pdl_trigger();
    const float *logits = x.logits + (int64_t)r * x.n_vocab;
    sample_row row;
    row.first = (int32_t)blockIdx.x * MM_ROW_SLICE;
    float l[MM_ROW_EACH]; /* on their way before the settings, which take three loads */
    mm_load_part(l, logits + row.first, x.n_vocab - row.first, -INFINITY);
    if (x.out.kind[i] != MM_OUT_SAMPLE) {
        if (blockIdx.x == 0 && tid == 0)
            x.state[r].is_live = x.state[r].selects = 0;
        return;
    }
    row.slot = x.out.row_slot[i];
    row.p = &s.params;
    if (tid < (int32_t)(sizeof s.params / sizeof(uint32_t)))
        ((uint32_t *)&s.params)[tid] = ((const uint32_t *)&x.s.params[row.slot])[tid];
    if (tid == MM_ROW_THREADS - 1)
        s.commit = mm_sample_commit_of(x, i);
    row.lane = x.out.lane[i];
    row.lane_token = x.out.row_token + i;
    row.n_emitted = x.s.n_emitted[row.slot];
    row.forced = x.out.token[i];
    __syncthreads();
    const bool is_greedy = row.p->temperature < 1e-5f;
    const bool is_banned = row.n_emitted + row.lane < row.p->min_tokens;
    const bool is_plain = !row.p->has_mask && row.p->n_bad == 0 && row.p->n_bias == 0 &&
                          !(is_banned && row.p->n_ban > 0) && !mm_has_penalty(s.params);
    const bool writes = !x.work_ends || !(is_greedy || is_plain);
    float low = INFINITY;
    unsigned long long best = ~0ull;
    bool has_nan = false;
    for (int32_t part = (int32_t)blockIdx.x; part < x.n_part; part += (int32_t)gridDim.x) {
        row.first = part * MM_ROW_SLICE;
        row.n = min((int32_t)MM_ROW_SLICE, x.n_vocab - row.first);
        const int32_t next = row.first + (int32_t)gridDim.x * MM_ROW_SLICE;
        float l_next[MM_ROW_EACH]; /* asked for before this slice is worked on */
        mm_load_part(l_next, logits + next, x.n_vocab - next, -INFINITY);
#pragma unroll
        for (int j = 0; j < MM_ROW_EACH; j++)
            has_nan = has_nan || l[j] != l[j];
        if (!is_greedy) {
#pragma unroll
            for (int j = 0; j < MM_ROW_EACH; j++)
                low = l[j] > -INFINITY ? fminf(low, l[j]) : low;
        }
        if (is_plain)
            mm_mask_never(x, row.first, row.forced, l);
        else
            apply_settings(x, row, logits + row.first, l, s.work);
        if (!is_greedy) {
#pragma unroll
            for (int j = 0; j < MM_ROW_EACH; j++)
                l[j] = __fdiv_rn(l[j], row.p->temperature);
        }
        const unsigned long long key = best_of_slice(row, l);
        best = key < best ? key : best;
        if (writes) {
            float *to = x.work + (int64_t)r * x.n_vocab + row.first;
#pragma unroll
            for (int j = 0; j < MM_ROW_EACH; j++) {
                const int32_t k = j * MM_ROW_THREADS + tid;
                if (k < row.n)
                    to[k] = is_greedy ? -INFINITY : l[j];
            }
        }
#pragma unroll
        for (int j = 0; j < MM_ROW_EACH; j++)
            l[j] = l_next[j];
    }
    best = mm_block_min(best, &s.row);
    low = -mm_block_max(-low, &s.row);
    has_nan = __syncthreads_or(has_nan) != 0;
    if (tid == 0)
        x.part[(int64_t)r * x.n_part + blockIdx.x] = {best, low, has_nan};
    if (!is_greedy && has_selection(x, s.params)) { /* for the next kernel */
        for (int32_t b = (int32_t)blockIdx.x * MM_ROW_THREADS + tid; b < MM_ROW_BINS;
             b += (int32_t)gridDim.x * MM_ROW_THREADS) {
            x.bin_count[(int64_t)r * MM_ROW_BINS + b] = 0;
            x.bin_mass[(int64_t)r * MM_ROW_BINS + b] = 0;
        }
    }
    if (mm_row_last(&x.counter[r], gridDim.x, &s.row))
        conclude_row(x, r, row, is_plain, &s);
}

/* ---------------------------------------------------------------- the op */

static int32_t group_of(const mm_op_shape *s)
{
    return s->max_logit_rows < MM_SAMPLE_GROUP ? s->max_logit_rows : MM_SAMPLE_GROUP;
}

struct sample_sizes {
    size_t state, part, bin_count, bin_mass, list, sum;
};
static sample_sizes sizes_of(const mm_op_shape *s)
{
    const size_t n = (size_t)group_of(s), n_part = (size_t)mm_row_parts(s->n_vocab);
    return {n * sizeof(mm_sample_state),
            n * n_part * sizeof(mm_sample_part),
            n * MM_ROW_BINS * sizeof(uint32_t),
            n * MM_ROW_BINS * sizeof(unsigned long long),
            n * MM_SAMPLE_LIST * sizeof(uint64_t),
            n * n_part * (MM_ROW_SLICE / MM_DRAW_BLOCK) * sizeof(float)};
}

size_t mm_cuda_sample_scratch(const mm_op_shape *s)
{
    const sample_sizes z = sizes_of(s);
    const size_t sample = mm_cuda_size(z.state) + mm_cuda_size(z.part) + mm_cuda_size(z.bin_count) +
                          mm_cuda_size(z.bin_mass) + mm_cuda_size(z.list) + mm_cuda_size(z.sum);
    const size_t logprobs = mm_cuda_logprobs_scratch(s);
    return sample > logprobs ? sample : logprobs;
}

int32_t mm_sample_blocks(const mm_op_context *c, int32_t n_part, int32_t n_row)
{
    const int32_t most = 2 * mm_cuda_of(c)->n_sm / n_row; /* two to an SM */
    if (most >= n_part)
        return n_part;
    const int32_t turns = most > 0 ? (n_part + most - 1) / most : n_part;
    return (n_part + turns - 1) / turns;
}

static mm_status check(const mm_op_context *c, const mm_sample_args *a)
{
    const mm_cuda *cuda = mm_cuda_of(c);
    if (a->commit && a->out->blob == NULL)
        return MM_CUDA_FAIL(cuda, MM_E_INVALID,
                            "sample: commit needs the batch (mm_out_view.blob)");
    return MM_OK;
}

mm_status mm_cuda_sample(const mm_op_context *c, const mm_sample_args *a)
{
    const mm_op_shape *s = c->shape;
    mm_cuda_start(c);
    MM_TRY(check(c, a));
    mm_sample_run x = {};
    x.s = *a->slots;
    x.out = *a->out;
    x.token = a->token;
    x.flag = a->flag;
    x.n_vocab = s->n_vocab;
    x.n_part = mm_row_parts(s->n_vocab);
    x.commit = a->commit;
    x.work_ends = a->work_ends;
    memcpy(x.never_token, s->never_token, sizeof x.never_token);
    x.never_first = INT32_MAX;
    x.never_last = -1;
    for (int k = 0; k < 16; k++) {
        const int32_t id = s->never_token[k];
        x.never_first = id >= 0 && id < x.never_first ? id : x.never_first;
        x.never_last = id > x.never_last ? id : x.never_last;
    }
    x.counter = c->stream->counter;
    const sample_sizes z = sizes_of(s);
    MM_TRY(mm_cuda_take(c, z.state, (void **)&x.state));
    MM_TRY(mm_cuda_take(c, z.part, (void **)&x.part));
    MM_TRY(mm_cuda_take(c, z.bin_count, (void **)&x.bin_count));
    MM_TRY(mm_cuda_take(c, z.bin_mass, (void **)&x.bin_mass));
    MM_TRY(mm_cuda_take(c, z.list, (void **)&x.list));
    MM_TRY(mm_cuda_take(c, z.sum, (void **)&x.sum));
    const int32_t group = group_of(s);
    for (int32_t at = 0; at < a->n; at += group) {
        const int32_t n = a->n - at < group ? a->n - at : group;
        x.first = a->first + at;
        x.logits = a->logits + (int64_t)at * s->n_vocab;
        x.work = a->work + (int64_t)at * s->n_vocab;
        MM_TRY(mm_launch(c, "sample_prepare", sample_prepare,
                         dim3((unsigned)mm_sample_blocks(c, x.n_part, n), (unsigned)n),
                         dim3(MM_ROW_THREADS), 0, x));
        if (a->draw < MM_DRAW_UNFILTERED)
            MM_TRY(mm_cuda_sample_filter(c, &x, n));
        if (a->draw < MM_DRAW_GREEDY)
            MM_TRY(mm_cuda_sample_draw(c, &x, n));
    }
    return MM_OK;
}
