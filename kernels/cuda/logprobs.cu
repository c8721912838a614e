/* logprobs.cu: log-probabilities and ranks of chosen, best and listed ids (ops.h, logprobs), in
 * three launches whose grids depend on V and the number of rows only; a block takes MM_ROW_SLICE
 * ids of a row, the last one finishes what its kernel found out.
 *
 *   survey   maximum and sum of exp in parts merged in one order, NaN; writes entries but for ranks
 *   count    ranks of the chosen and the listed ids; histogram: in which bins the best ids are
 *   collect  gathers those bins, sorts, writes the best ids
 *
 * All modes order ids as their logits do, so ranks are exact whatever a log-softmax rounds. */
#include "kernels/cuda/sample_row.h"

enum {
    GROUP = MM_SAMPLE_GROUP,
    LIST = 2048 /* keys sorted at once in shared memory: a power of two */
};

/* What a row is scored on: value(v) = at[v] / temperature - shift, or at[v] itself. */
struct score_state {
    int32_t has_entries, uses_work, is_logit;
    float temperature; /* 1: none */
    double shift;
    int32_t n_top, n_list, id_first; /* id_first: the token of the first entry */
    int64_t entry;
    float max, scale; /* of mm_bin_of */
    int32_t bin_last; /* the best ids lie in bins up to it */
    int32_t n_masked; /* -inf ids below this count among the best; 0 when enough are finite */
    uint32_t n_found;
};

/* Of a part of a row: maximum, smallest finite value, sum of exp(value - max); w: of `work`. */
struct score_part {
    float max, min, sum, w_max, w_sum;
    int32_t has_nan;
};

struct score_run {
    mm_slots s;
    mm_out_view out;
    const float *logits, *work;
    const int32_t *token;
    uint8_t *flag;
    int32_t *id, *rank;
    float *value, *chosen;
    int32_t first, n_vocab, n_part;
    uint32_t *counter;
    score_state *state;
    score_part *part;    /* [n_part] */
    uint32_t *bin_count; /* [MM_ROW_BINS] */
    uint64_t *list;      /* [LIST] keys */
};

MM_DEV_FN float tempered(float x, float temperature)
{
    return temperature == 1.0f ? x : __fdiv_rn(x, temperature);
}
MM_DEV_FN float value_of(const score_state &t, float x)
{
    return t.is_logit ? x : (float)((double)tempered(x, t.temperature) - t.shift);
}
MM_DEV_FN const float *row_of(const score_run &x, int32_t r, bool uses_work)
{
    return (uses_work ? x.work : x.logits) + (int64_t)r * x.n_vocab;
}

/* The row's mode, before anything of it is known. */
MM_DEV_FN score_state open_score(const score_run &x, int32_t i)
{
    score_state t = {};
    const float temperature = x.s.params[x.out.row_slot[i]].temperature;
    const int32_t mode = x.out.mode[i];
    t.has_entries = x.out.n_top[i] >= 0;
    t.uses_work = mode == MM_LOGPROB_PROCESSED || mode == MM_LOGIT_PROCESSED;
    t.is_logit = mode == MM_LOGIT_RAW || mode == MM_LOGIT_PROCESSED;
    t.temperature = mode == MM_LOGPROB_TEMPERED && !(temperature < 1e-5f) ? temperature : 1.0f;
    t.n_top = min(x.out.n_top[i], x.n_vocab);
    t.n_list = x.out.n_list[i];
    t.entry = x.out.entry[i];
    return t;
}

MM_DEV_FN bool wants_chosen(const score_run &x, int32_t i)
{
    return x.chosen != NULL && x.work != NULL && x.out.kind[i] == MM_OUT_SAMPLE;
}

/* ---------------------------------------------------------------- survey */

/* Block: maximum, minimum of the finite, and sum of exp of a part. */
MM_DEV_FN void survey_part(const float *at, int32_t n, float temperature, float *max_out,
                           float *min_out, float *sum_out, mm_row_shared *s)
{
    float v[MM_ROW_EACH], high = -INFINITY, low = INFINITY, sum = 0.0f;
    mm_load_part(v, at, n, -INFINITY);
#pragma unroll
    for (int j = 0; j < MM_ROW_EACH; j++) {
        high = fmaxf(high, v[j]);
        low = v[j] > -INFINITY ? fminf(low, v[j]) : low;
    }
    high = mm_block_max(high, s);
    const float top = tempered(high, temperature);
#pragma unroll
    for (int j = 0; j < MM_ROW_EACH; j++)
        sum += v[j] > -INFINITY ? expf(tempered(v[j], temperature) - top) : 0.0f;
    *max_out = high;
    *min_out = -mm_block_max(-low, s);
    *sum_out = mm_block_sum(sum, s);
}

/* First warp: log of the sum of exp of the whole row, and its extremes. Lanes take parts
 * lane, lane + 32, ...; then a butterfly. */
MM_DEV_FN double merge_parts(const score_part *part, int32_t n_part, bool of_work,
                             float temperature, float *max_out, float *min_out)
{
    const int32_t lane = (int32_t)threadIdx.x % 32;
    float high = -INFINITY, low = INFINITY;
    for (int32_t k = lane; k < n_part; k += 32) {
        high = fmaxf(high, of_work ? __ldcg(&part[k].w_max) : __ldcg(&part[k].max));
        low = fminf(low, __ldcg(&part[k].min));
    }
    for (int m = 16; m > 0; m /= 2) {
        high = fmaxf(high, __shfl_xor_sync(MM_ALL_LANES, high, m));
        low = fminf(low, __shfl_xor_sync(MM_ALL_LANES, low, m));
    }
    const double top = (double)tempered(high, temperature);
    double sum = 0.0;
    for (int32_t k = lane; k < n_part; k += 32) {
        const float max = of_work ? __ldcg(&part[k].w_max) : __ldcg(&part[k].max);
        const float of = of_work ? __ldcg(&part[k].w_sum) : __ldcg(&part[k].sum);
        if (max > -INFINITY)
            sum += (double)of * exp((double)tempered(max, temperature) - top);
    }
    for (int m = 16; m > 0; m /= 2)
        sum += __shfl_xor_sync(MM_ALL_LANES, sum, m);
    *max_out = high;
    *min_out = low;
    return top + log(sum);
}

MM_DEV_FN const int32_t *list_of(const score_run &x, int32_t i)
{
    if (x.out.list[i] >= 0)
        return (const int32_t *)((const uint8_t *)x.out.blob + x.out.list[i]);
    return x.s.logprob_token + (int64_t)x.out.row_slot[i] * MM_MAX_LIST;
}

/* Block: flag, chosen and every entry that needs no search of row i; ranks start at 1. */
MM_DEV_FN void write_entries(const score_run &x, int32_t r, score_state t, mm_row_shared *s)
{
    __shared__ score_state shared;
    const int32_t i = x.first + r, tid = (int32_t)threadIdx.x;
    const bool is_sample = x.out.kind[i] == MM_OUT_SAMPLE;
    const score_part *part = x.part + (int64_t)r * x.n_part;
    bool has_nan = false;
    for (int32_t k = tid; k < x.n_part; k += MM_ROW_THREADS)
        has_nan = has_nan || __ldcg(&part[k].has_nan) != 0;
    has_nan = __syncthreads_or(has_nan) != 0;
    t.id_first = is_sample ? x.token[i] : x.out.token[i];
    const bool is_void =
        t.id_first < 0 || (!is_sample && has_nan) || (t.uses_work && x.work == NULL);
    if (tid == 0 && !is_sample)
        x.flag[i] = has_nan ? MM_SAMPLE_NAN : MM_SAMPLE_OK;
    if (tid < 32 && wants_chosen(x, i)) {
        float max, min;
        const double shift = merge_parts(part, x.n_part, true, 1.0f, &max, &min);
        if (tid == 0)
            x.chosen[i] = is_void ? NAN : (float)((double)row_of(x, r, true)[t.id_first] - shift);
    }
    if (tid < 32 && t.has_entries && !is_void) {
        float max, min;
        t.shift = merge_parts(part, x.n_part, false, t.temperature, &max, &min);
        t.max = max;
        t.scale = mm_bin_scale(max, min);
        if (tid == 0)
            shared = t;
    }
    const int32_t n_entry = 1 + x.out.n_top[i] + t.n_list; /* 0 or less without entries */
    if (is_void || !t.has_entries) {
        for (int32_t k = tid; t.has_entries && k < n_entry; k += MM_ROW_THREADS) {
            x.id[t.entry + k] = -1;
            x.value[t.entry + k] = NAN;
            x.rank[t.entry + k] = 0;
        }
        if (tid == 0)
            x.state[r].has_entries = 0;
        return;
    }
    __syncthreads();
    t = shared;
    const float *at = row_of(x, r, t.uses_work != 0);
    const int32_t *list = list_of(x, i);
    for (int32_t k = tid; k <= t.n_list; k += MM_ROW_THREADS) {
        const int32_t id = k == 0 ? t.id_first : list[k - 1];
        const int64_t entry = t.entry + (k == 0 ? 0 : x.out.n_top[i] + k);
        x.id[entry] = id;
        x.value[entry] = value_of(t, at[id]);
        x.rank[entry] = 1;
    }
    if (tid == 0)
        x.state[r] = t;
}

static __global__ void __launch_bounds__(MM_ROW_THREADS) score_survey(score_run x)
{
    __shared__ mm_row_shared s;
    const int32_t r = (int32_t)blockIdx.y, i = x.first + r, tid = (int32_t)threadIdx.x;
    mm_pdl_wait();
    mm_pdl_trigger();
    const score_state t = open_score(x, i);
    const int32_t first = (int32_t)blockIdx.x * MM_ROW_SLICE;
    const int32_t n = min((int32_t)MM_ROW_SLICE, x.n_vocab - first);
    score_part p = {};
    if (t.has_entries && !(t.uses_work && x.work == NULL))
        survey_part(row_of(x, r, t.uses_work != 0) + first, n, t.temperature, &p.max, &p.min,
                    &p.sum, &s);
    if (wants_chosen(x, i)) {
        float min;
        survey_part(row_of(x, r, true) + first, n, 1.0f, &p.w_max, &min, &p.w_sum, &s);
    }
    bool has_nan = false;
    if (x.out.kind[i] != MM_OUT_SAMPLE) {
        float l[MM_ROW_EACH];
        mm_load_part(l, row_of(x, r, false) + first, n, 0.0f);
#pragma unroll
        for (int j = 0; j < MM_ROW_EACH; j++)
            has_nan = has_nan || l[j] != l[j];
    }
    p.has_nan = __syncthreads_or(has_nan) != 0;
    if (tid == 0)
        x.part[(int64_t)r * x.n_part + blockIdx.x] = p;
    for (int32_t b = (int32_t)blockIdx.x * MM_ROW_THREADS + tid; t.n_top > 0 && b < MM_ROW_BINS;
         b += x.n_part * MM_ROW_THREADS)
        x.bin_count[(int64_t)r * MM_ROW_BINS + b] = 0; /* for the next kernel */
    if (mm_row_last(&x.counter[r], (uint32_t)x.n_part, &s))
        write_entries(x, r, t, &s);
}

/* ---------------------------------------------------------------- ranks, bins */

/* A warp per id: how many ids of this part come before it. */
MM_DEV_FN void count_ranks(const score_run &x, int32_t r, const score_state &t, const float *part,
                           int32_t first, int32_t n)
{
    const int32_t lane = (int32_t)threadIdx.x % 32, i = x.first + r;
    const int32_t *list = list_of(x, i);
    const float *at = row_of(x, r, t.uses_work != 0);
    for (int32_t q = (int32_t)threadIdx.x / 32; q <= t.n_list; q += MM_ROW_WARPS) {
        const int32_t id = q == 0 ? t.id_first : list[q - 1];
        const float value = at[id];
        uint32_t before = 0;
        for (int32_t k = lane; k < n; k += 32)
            before += part[k] > value || (part[k] == value && first + k < id);
        before = __reduce_add_sync(MM_ALL_LANES, before);
        if (lane == 0 && before > 0)
            atomicAdd(&x.rank[t.entry + (q == 0 ? 0 : x.out.n_top[i] + q)], (int32_t)before);
    }
}

static __global__ void __launch_bounds__(MM_ROW_THREADS) score_count(score_run x)
{
    __shared__ mm_bins bins;
    __shared__ float part[MM_ROW_SLICE];
    __shared__ mm_row_shared s;
    const int32_t r = (int32_t)blockIdx.y, tid = (int32_t)threadIdx.x;
    mm_pdl_wait();
    mm_pdl_trigger();
    if (!x.state[r].has_entries)
        return;
    const score_state t = x.state[r];
    const int32_t first = (int32_t)blockIdx.x * MM_ROW_SLICE;
    const int32_t n = min((int32_t)MM_ROW_SLICE, x.n_vocab - first);
    const float *at = row_of(x, r, t.uses_work != 0) + first;
    mm_bins_clear(&bins);
    float v[MM_ROW_EACH];
    mm_load_part(v, at, n, -INFINITY);
#pragma unroll
    for (int j = 0; j < MM_ROW_EACH; j++)
        part[j * MM_ROW_THREADS + tid] = v[j];
    __syncthreads();
    count_ranks(x, r, t, part, first, n);
    if (t.n_top <= 0)
        return;
#pragma unroll
    for (int j = 0; j < MM_ROW_EACH; j++) {
        const bool valid = v[j] > -INFINITY;
        mm_bins_add_warp(&bins, valid, valid ? mm_bin_of(v[j], t.max, t.scale) : 0, 0);
    }
    __syncthreads();
    uint32_t *count = x.bin_count + (int64_t)r * MM_ROW_BINS;
    for (int32_t b = tid; b < MM_ROW_BINS; b += MM_ROW_THREADS) {
        if (bins.count[b] > 0)
            atomicAdd(&count[b], bins.count[b]);
    }
    if (!mm_row_last(&x.counter[r], (uint32_t)x.n_part, &s))
        return;
    for (int32_t b = tid; b < MM_ROW_BINS; b += MM_ROW_THREADS)
        bins.count[b] = __ldcg(&count[b]);
    __syncthreads();
    const mm_bin_scan scan = mm_bins_scan(&bins, &s);
    const mm_bin_cut cut = mm_bins_find<false>(&bins, scan, 0, 0, (uint32_t)t.n_top, 0.0, &s);
    if (tid == 0) { /* too few are finite: then the lowest of the masked ids follow them */
        x.state[r].bin_last = cut.bin < 0 ? MM_ROW_BINS - 1 : cut.bin;
        x.state[r].n_masked = cut.bin < 0 ? t.n_top : 0;
    }
}

/* ---------------------------------------------------------------- the best ids */

/* Can id be one of the n_top best? Of masked ids at most the n_top lowest can. */
MM_DEV_FN bool is_candidate(const score_state &t, float v, int32_t id)
{
    return v > -INFINITY ? mm_bin_of(v, t.max, t.scale) <= t.bin_last : id < t.n_masked;
}

/* Block: sorts n keys in shared memory and writes the first of them as ranks begin + 1, ... */
MM_DEV_FN void write_best(const score_run &x, const score_state &t, uint64_t *key, int32_t n,
                          int32_t begin)
{
    mm_sort_keys(key, n);
    for (int32_t k = threadIdx.x; k < n && begin + k < t.n_top; k += MM_ROW_THREADS) {
        const int64_t entry = t.entry + 1 + begin + k;
        x.id[entry] = mm_row_key_id(key[k]);
        x.value[entry] = value_of(t, mm_row_key_value(key[k]));
        x.rank[entry] = begin + k + 1;
    }
    __syncthreads();
}

/* Block: the best ids of a row whose candidates do not fit the list, LIST at a time: the key up to
 * which the next ones lie, by selection; then those keys. */
MM_DEV_FN void write_best_of_row(const score_run &x, int32_t r, const score_state &t, uint64_t *key,
                                 mm_bins *bins, mm_row_shared *s)
{
    const float *at = row_of(x, r, t.uses_work != 0);
    const int32_t tid = (int32_t)threadIdx.x;
    uint64_t done = 0; /* keys below it are written */
    for (int32_t begin = 0; begin < t.n_top; begin += LIST) {
        const int32_t n = min((int32_t)LIST, t.n_top - begin);
        const auto each = [&](auto fn) {
            for (int32_t id = tid; id < x.n_vocab + tid % 32; id += MM_ROW_THREADS) {
                const uint64_t k = id < x.n_vocab ? mm_row_key(at[id], id) : 0;
                fn(id < x.n_vocab && k >= done, k);
            }
        };
        const mm_selection last = mm_select<false>(
            5, 0, 0, (uint32_t)n, 0.0, each, [](uint64_t) { return (uint64_t)0; }, bins, s);
        if (tid == 0)
            s->flag = 0;
        __syncthreads();
        each([&](bool valid, uint64_t k) {
            if (valid && k <= last.key)
                key[atomicAdd(&s->flag, 1)] = k;
        });
        __syncthreads();
        write_best(x, t, key, n, begin);
        done = last.key + 1;
    }
}

static __global__ void __launch_bounds__(MM_ROW_THREADS) score_collect(score_run x)
{
    __shared__ mm_bins bins;
    __shared__ uint64_t key[LIST];
    __shared__ mm_row_shared s;
    __shared__ uint32_t n_here, base;
    const int32_t r = (int32_t)blockIdx.y, tid = (int32_t)threadIdx.x;
    mm_pdl_wait();
    mm_pdl_trigger();
    if (!x.state[r].has_entries || x.state[r].n_top <= 0)
        return;
    const score_state t = x.state[r];
    const int32_t first = (int32_t)blockIdx.x * MM_ROW_SLICE;
    const float *at = row_of(x, r, t.uses_work != 0);
    uint64_t *list = x.list + (int64_t)r * LIST;
    float v[MM_ROW_EACH];
    uint32_t place[MM_ROW_EACH];
    mm_load_part(v, at + first, x.n_vocab - first, -INFINITY);
    if (tid == 0)
        n_here = 0;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < MM_ROW_EACH; j++) {
        const int32_t id = first + j * MM_ROW_THREADS + tid;
        place[j] = MM_ROW_SLICE;
        if (id < x.n_vocab && is_candidate(t, v[j], id))
            place[j] = atomicAdd(&n_here, 1u);
    }
    __syncthreads();
    if (tid == 0 && n_here > 0)
        base = atomicAdd(&x.state[r].n_found, n_here);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < MM_ROW_EACH; j++) {
        if (place[j] < MM_ROW_SLICE && base + place[j] < LIST)
            list[base + place[j]] = mm_row_key(v[j], first + j * MM_ROW_THREADS + tid);
    }
    if (!mm_row_last(&x.counter[r], (uint32_t)x.n_part, &s))
        return;
    const uint32_t n = __ldcg(&x.state[r].n_found);
    if (n > LIST) {
        write_best_of_row(x, r, t, key, &bins, &s);
        return;
    }
    for (uint32_t k = (uint32_t)tid; k < n; k += MM_ROW_THREADS)
        key[k] = __ldcg((const unsigned long long *)&list[k]);
    __syncthreads();
    write_best(x, t, key, (int32_t)n, 0);
}

/* ---------------------------------------------------------------- the op */

struct score_sizes {
    int32_t group;
    size_t state, part, bin_count, list;
};
static score_sizes sizes_of(const mm_op_shape *s)
{
    const int32_t group = s->max_logit_rows < GROUP ? s->max_logit_rows : (int32_t)GROUP;
    const size_t n = (size_t)group;
    return {group, n * sizeof(score_state),
            n * (size_t)mm_row_parts(s->n_vocab) * sizeof(score_part),
            n * MM_ROW_BINS * sizeof(uint32_t), n * LIST * sizeof(uint64_t)};
}

size_t mm_cuda_logprobs_scratch(const mm_op_shape *s)
{
    const score_sizes z = sizes_of(s);
    return mm_cuda_size(z.state) + mm_cuda_size(z.part) + mm_cuda_size(z.bin_count) +
           mm_cuda_size(z.list);
}

mm_status mm_cuda_logprobs(const mm_op_context *c, const mm_logprob_args *a)
{
    const mm_op_shape *shape = c->shape;
    mm_cuda_start(c);
    score_run x = {};
    x.s = *a->slots;
    x.out = *a->out;
    x.token = a->token;
    x.flag = a->flag;
    x.id = a->out_id;
    x.rank = a->out_rank;
    x.value = a->out_value;
    x.chosen = a->chosen;
    x.n_vocab = shape->n_vocab;
    x.n_part = mm_row_parts(shape->n_vocab);
    x.counter = c->stream->counter;
    const score_sizes z = sizes_of(shape);
    MM_TRY(mm_cuda_take(c, z.state, (void **)&x.state));
    MM_TRY(mm_cuda_take(c, z.part, (void **)&x.part));
    MM_TRY(mm_cuda_take(c, z.bin_count, (void **)&x.bin_count));
    MM_TRY(mm_cuda_take(c, z.list, (void **)&x.list));
    for (int32_t at = 0; at < a->n; at += z.group) {
        const int32_t n = a->n - at < z.group ? a->n - at : z.group;
        const dim3 grid((unsigned)x.n_part, (unsigned)n), block(MM_ROW_THREADS);
        x.first = a->first + at;
        x.logits = a->logits + (int64_t)at * shape->n_vocab;
        x.work = a->work != NULL ? a->work + (int64_t)at * shape->n_vocab : NULL;
        MM_TRY(mm_launch(c, "score_survey", score_survey, grid, block, 0, x));
        MM_TRY(mm_launch(c, "score_count", score_count, grid, block, 0, x));
        MM_TRY(mm_launch(c, "score_collect", score_collect, grid, block, 0, x));
    }
    return MM_OK;
}
