/* sample_filter.cu: top_k and top_p, exactly. `count` adds ids and masses up in bins of equal width
 * below the maximum, which shows the bin of the k-th largest value and the few bins where top_p can
 * cut (the mass that top_k leaves is known up to one bin). `collect` gathers the ids of those bins,
 * a few hundred as a rule, and selects among them by radix: first the k-th value, then, with the
 * exact mass, the last id that top_p keeps. When they do not fit the list (thousands of near-equal
 * values) the same selection reads the row again instead. */
#include "kernels/cuda/sample_row.h"

/* ---------------------------------------------------------------- which bins */

/* Block: bins hold the whole row. */
MM_DEV_FN void choose_bins(const mm_sample_run &x, const mm_slot_params &p, const mm_bins *bins,
                           mm_sample_state t, mm_sample_state *to, mm_row_shared *s)
{
    const mm_bin_scan scan = mm_bins_scan(bins, s);
    const uint32_t k = (uint32_t)p.top_k;
    unsigned long long mass = scan.m_all, mass_upto = scan.m_all; /* after top_k: from, to */
    t.mass_all = scan.m_all;
    t.has_top_k = t.has_top_k && scan.n_all > k; /* with k ids or fewer the k-th is the last */
    t.bin_k = -1;
    if (t.has_top_k) {
        const mm_bin_cut cut = mm_bins_find<false>(bins, scan, 0, 0, k, 0.0, s);
        t.bin_k = cut.bin;
        t.count_k = cut.count;
        t.mass_k = mass = cut.mass;
        mass_upto = cut.mass + cut.m;
    }
    t.bin_low = 0;
    t.bin_high = -1;
    if (t.has_top_p) { /* at least the best id: 1 of its MM_MASS_ONE */
        const double least = fmax((double)p.top_p * (double)mass, 1.0);
        const double most = fmax((double)p.top_p * (double)mass_upto, 1.0);
        const mm_bin_cut low = mm_bins_find<true>(bins, scan, 0, 0, 0, least, s);
        const mm_bin_cut high = mm_bins_find<true>(bins, scan, 0, 0, 0, most, s);
        t.bin_low = low.bin;
        t.mass_low = low.mass;
        t.bin_high = high.bin;
    }
    t.selects = t.has_top_k || t.has_top_p;
    t.n_list = 0;
    if (threadIdx.x == 0)
        *to = t;
}

static __global__ void __launch_bounds__(MM_ROW_THREADS, 2) sample_count(mm_sample_run x)
{
    __shared__ mm_bins bins;
    __shared__ mm_row_shared s;
    const int32_t r = (int32_t)blockIdx.y, tid = (int32_t)threadIdx.x;
    mm_pdl_wait();
    mm_pdl_trigger();
    if (!x.state[r].is_live || !x.state[r].selects)
        return;
    const mm_sample_state t = x.state[r];
    const int32_t forced = x.out.token[x.first + r];
    mm_bins_clear(&bins);
    __syncthreads();
    for (int32_t part = (int32_t)blockIdx.x; part < x.n_part; part += (int32_t)gridDim.x) {
        float w[MM_ROW_EACH];
        mm_load_work(x, t, r, forced, part * MM_ROW_SLICE, w);
#pragma unroll
        for (int j = 0; j < MM_ROW_EACH; j++) {
            const bool valid = mm_is_alive(t, w[j]);
            mm_bins_add_warp(&bins, valid, valid ? mm_bin_of(w[j], t.max, t.scale) : 0,
                             valid ? mm_mass_of(t, w[j]) : 0);
        }
    }
    __syncthreads();
    uint32_t *count = x.bin_count + (int64_t)r * MM_ROW_BINS;
    unsigned long long *mass = x.bin_mass + (int64_t)r * MM_ROW_BINS;
    for (int32_t b = tid; b < MM_ROW_BINS; b += MM_ROW_THREADS) {
        if (bins.count[b] > 0) {
            atomicAdd(&count[b], bins.count[b]);
            atomicAdd(&mass[b], (unsigned long long)mm_bins_mass(&bins, b));
        }
    }
    if (!mm_row_last(&x.counter[r], gridDim.x, &s))
        return;
    for (int32_t b = tid; b < MM_ROW_BINS; b += MM_ROW_THREADS) {
        const unsigned long long m = __ldcg(&mass[b]);
        bins.count[b] = __ldcg(&count[b]);
        bins.low[b] = (uint32_t)m;
        bins.high[b] = (uint32_t)(m >> 32);
    }
    __syncthreads();
    choose_bins(x, x.s.params[x.out.row_slot[x.first + r]], &bins, t, &x.state[r], &s);
}

/* ---------------------------------------------------------------- where exactly */

MM_DEV_FN bool is_wanted(const mm_sample_state &t, float w)
{
    if (!mm_is_alive(t, w))
        return false;
    const int32_t bin = mm_bin_of(w, t.max, t.scale);
    return bin == t.bin_k || (bin >= t.bin_low && bin <= t.bin_high);
}

/* Block: the cut of a row whose keys in bin_k and bin_low .. bin_high come from each(fn). */
template <typename EACH>
MM_DEV_FN void select_cut(const mm_slot_params &p, const mm_sample_state &t, EACH each,
                          mm_sample_state *to, mm_bins *bins, mm_row_shared *s)
{
    const auto mass_of = [&](uint64_t key) { return mm_mass_of(t, mm_row_key_value(key)); };
    float cut = -INFINITY;
    int32_t cut_id = -1;
    unsigned long long mass = t.mass_all;
    if (t.has_top_k) {
        const auto in_bin_k = [&](auto fn) {
            each([&](bool valid, uint64_t key) {
                fn(valid && mm_bin_of(mm_row_key_value(key), t.max, t.scale) == t.bin_k, key);
            });
        };
        const mm_selection k = mm_select<false>(3, t.count_k, t.mass_k, (uint32_t)p.top_k, 0.0,
                                                in_bin_k, mass_of, bins, s);
        cut = mm_key_value((uint32_t)k.key);
        cut_id = INT32_MAX; /* every value >= the k-th */
        mass = k.mass + k.m;
    }
    if (t.has_top_p) {
        const auto in_range = [&](auto fn) {
            each([&](bool valid, uint64_t key) {
                const int32_t bin = valid ? mm_bin_of(mm_row_key_value(key), t.max, t.scale) : 0;
                fn(valid && bin >= t.bin_low && bin <= t.bin_high, key);
            });
        };
        const double enough = fmax((double)p.top_p * (double)mass, 1.0);
        const mm_selection last =
            mm_select<true>(5, 0, t.mass_low, 0, enough, in_range, mass_of, bins, s);
        if (last.found) {
            cut = mm_row_key_value(last.key);
            cut_id = mm_row_key_id(last.key);
        }
    }
    if (threadIdx.x == 0) {
        to->cut = cut;
        to->cut_id = cut_id;
    }
}

static __global__ void __launch_bounds__(MM_ROW_THREADS, 2) sample_collect(mm_sample_run x)
{
    __shared__ mm_bins bins;
    __shared__ mm_row_shared s;
    __shared__ uint32_t n_here, base;
    const int32_t r = (int32_t)blockIdx.y, tid = (int32_t)threadIdx.x;
    mm_pdl_wait();
    mm_pdl_trigger();
    if (!x.state[r].is_live || !x.state[r].selects)
        return;
    const mm_sample_state t = x.state[r];
    const int32_t forced = x.out.token[x.first + r];
    uint64_t *list = x.list + (int64_t)r * MM_SAMPLE_LIST;
    for (int32_t part = (int32_t)blockIdx.x; part < x.n_part; part += (int32_t)gridDim.x) {
        const int32_t first = part * MM_ROW_SLICE;
        float w[MM_ROW_EACH];
        uint32_t place[MM_ROW_EACH];
        mm_load_work(x, t, r, forced, first, w);
        if (tid == 0)
            n_here = 0;
        __syncthreads();
#pragma unroll
        for (int j = 0; j < MM_ROW_EACH; j++)
            place[j] = is_wanted(t, w[j]) ? atomicAdd(&n_here, 1u) : MM_ROW_SLICE;
        __syncthreads();
        if (tid == 0 && n_here > 0)
            base = atomicAdd(&x.state[r].n_list, n_here);
        __syncthreads();
#pragma unroll
        for (int j = 0; j < MM_ROW_EACH; j++) {
            if (place[j] < MM_ROW_SLICE && base + place[j] < MM_SAMPLE_LIST)
                list[base + place[j]] = mm_row_key(w[j], first + j * MM_ROW_THREADS + tid);
        }
    }
    if (!mm_row_last(&x.counter[r], gridDim.x, &s))
        return;
    const mm_slot_params p = x.s.params[x.out.row_slot[x.first + r]];
    const uint32_t n = __ldcg(&x.state[r].n_list);
    if (n <= MM_SAMPLE_LIST) {
        uint64_t key[MM_SAMPLE_LIST / MM_ROW_THREADS];
#pragma unroll
        for (int j = 0; j < MM_SAMPLE_LIST / MM_ROW_THREADS; j++) {
            const uint32_t k = (uint32_t)(j * MM_ROW_THREADS + tid);
            key[j] = k < n ? __ldcg((const unsigned long long *)&list[k]) : 0;
        }
        select_cut(
            p, t,
            [&](auto fn) {
#pragma unroll
                for (int j = 0; j < MM_SAMPLE_LIST / MM_ROW_THREADS; j++) {
                    if ((uint32_t)(j * MM_ROW_THREADS + tid / 32 * 32) < n)
                        fn((uint32_t)(j * MM_ROW_THREADS + tid) < n, key[j]);
                }
            },
            &x.state[r], &bins, &s);
    } else {
        select_cut(
            p, t,
            [&](auto fn) {
                for (int32_t id = tid; id < x.n_vocab + tid % 32; id += MM_ROW_THREADS) {
                    const float w = id < x.n_vocab ? mm_work_at(x, t, r, forced, id) : -INFINITY;
                    const bool valid = is_wanted(t, w);
                    fn(valid, valid ? mm_row_key(w, id) : 0);
                }
            },
            &x.state[r], &bins, &s);
    }
}

mm_status mm_cuda_sample_filter(const mm_op_context *c, const mm_sample_run *x, int32_t n_row)
{
    const dim3 grid((unsigned)mm_sample_blocks(c, x->n_part, n_row), (unsigned)n_row);
    MM_TRY(mm_launch(c, "sample_count", sample_count, grid, dim3(MM_ROW_THREADS), 0, *x));
    return mm_launch(c, "sample_collect", sample_collect, grid, dim3(MM_ROW_THREADS), 0, *x);
}
