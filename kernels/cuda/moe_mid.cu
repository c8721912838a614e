/* moe_mid.cu: a product of the routed experts, and of the shared expert, for 5 to 64 rows. The work
 * is a list of passes (an expert and up to 8 of its rows) times the row tiles of an expert. One
 * block a multiprocessor takes an equal, contiguous range of it, so all end together, and finds the
 * choices once; some blocks have the shared expert. The 16 warps of a block stream weights as in
 * gemv.h, each through a ring of its own that never drains, also not between experts: the loads of
 * the next pass's row tiles, and of its rows of x, start while this one is multiplied. x lies in
 * shared memory once for all warps, its rows in a ring of slots. Slices of n_in are warps, as in
 * gemv.h, and are added in the same order. */
#include <math.h>

#include "kernels/cuda/moe_work.h"

/* Stages of a ring, of routed experts; the shared expert has as many as fit into their place. Where
 * rows of x are short there is room for more. */
#define MID_STAGES 4
#define MID_DEEP 6
#define MID_MAX_SLOT 16
#define MID_AHEAD (96 << 10) /* bytes after those of the rings */
#define MID_MAX_EXPERT MM_CUDA_MAX_EXPERTS
#define MID_STATIC 4096 /* bytes of shared memory that the kernel declares, at most */

/* A product with its place in shared memory. */
typedef struct mm_moe_mid_part {
    mm_gemv_matrix m; /* of one expert */
    mm_gemv_out out;
    const uint16_t *x;
    const float *global; /* decode scales by expert (gate-up: two each), or NULL: factor */
    float factor[2];
    int32_t x_div;         /* row of x = pair / x_div */
    int32_t n_slot, pitch; /* rows of x that fit; elements of one */
    int32_t most;          /* rows of a pass */
} mm_moe_mid_part;

typedef struct mm_moe_mid_args {
    mm_moe_mid_part routed, shared;
    mm_moe_choices choices;
    int32_t sum_bytes, x_offset; /* of shared memory: sums, rings, rows of x */
    int32_t n_shared;            /* blocks of the shared expert: the first */
    int32_t n_stage;             /* of a ring */
    bool looks_early;
} mm_moe_mid_args;

/* Where the loads of a warp stand. */
typedef struct mm_moe_stream {
    const uint32_t *list;           /* passes */
    int stage0, slice_stages, per;  /* of its slice; row tiles side by side */
    int step, step_scale;           /* bytes from the end of the slice to its next row tile */
    const uint8_t *src, *src_scale; /* the lane's own bytes of the next stage */
    int n_stage;                    /* left of the row tile; 0: nothing is left at all */
    int n_frag;                     /* from here to the end of the row */
    int pass, tile, n_left;         /* of that row tile; row tiles from it on */
} mm_moe_stream;

/* Places of the warp's slice of row tile `tile`, counted from the first of the pass. */
template <int FORMAT> MM_DEV_FN void mid_seek(const mm_gemv_matrix &m, mm_moe_stream &s)
{
    typedef mm_gemv_stage<FORMAT> S;
    while (s.tile >= m.n_tile) {
        s.tile -= m.n_tile;
        s.pass++;
    }
    const int at = mid_expert(s.list[s.pass]) * m.n_tile + s.tile, lane = (int)threadIdx.x % 32;
    s.n_stage = s.slice_stages;
    s.n_frag = m.n_frag - s.stage0 * S::FRAGS;
    s.src = m.frag + (int64_t)at * (int32_t)m.tile_bytes + s.stage0 * (S::FRAGS * MM_FRAG_BYTES) +
            lane * 16;
    if (S::SCALE != 0)
        s.src_scale = m.scale + (int64_t)at * (int32_t)m.tile_scales +
                      s.stage0 * (S::FRAGS * S::SCALE) + lane * 16;
}

/* Starts the copy of the next stage to the lane's place in slot, if there is one. */
template <int FORMAT>
MM_DEV_FN void mid_load(const mm_gemv_matrix &m, mm_moe_stream &s, uint8_t *slot)
{
    typedef mm_gemv_stage<FORMAT> S;
    if (s.n_stage == 0)
        return;
    const int lane = (int)threadIdx.x % 32;
    const bool has_scale = S::SCALE != 0 && lane < S::FRAGS * S::SCALE / 16;
    if (s.n_frag >= S::FRAGS) {
#pragma unroll
        for (int f = 0; f < S::FRAGS; f++)
            mm_cp_async16(slot + f * MM_FRAG_BYTES, s.src + f * MM_FRAG_BYTES, true);
        if (S::SCALE != 0)
            mm_cp_async16_if(has_scale, slot + S::FRAGS * MM_FRAG_BYTES, s.src_scale);
    } else {
#pragma unroll
        for (int f = 0; f < S::FRAGS; f++)
            mm_cp_async16(slot + f * MM_FRAG_BYTES, s.src + f * MM_FRAG_BYTES, f < s.n_frag);
        if (has_scale)
            mm_cp_async16(slot + S::FRAGS * MM_FRAG_BYTES, s.src_scale,
                          lane * 16 < s.n_frag * S::SCALE);
    }
    s.src += S::FRAGS * MM_FRAG_BYTES;
    s.src_scale += S::FRAGS * S::SCALE;
    s.n_frag -= S::FRAGS;
    if (--s.n_stage != 0 || --s.n_left <= 0)
        return;
    s.tile += s.per;
    if (s.tile >= m.n_tile) {
        mid_seek<FORMAT>(m, s);
        return;
    }
    s.n_stage = s.slice_stages;
    s.n_frag += s.slice_stages * S::FRAGS;
    s.src += s.step;
    s.src_scale += s.step_scale;
}

/* Asks for the row tiles that follow the ring's to come to the L2 cache: as long as the kernel
 * before runs, memory has little to do. */
template <int FORMAT>
MM_DEV_FN void mid_prefetch(const mm_gemv_matrix &m, const uint32_t *list, mm_moe_range range,
                            int skip)
{
    int left = MID_AHEAD / (int)(m.tile_bytes + m.tile_scales), n;
    for (int u = range.lo + skip; u < range.hi && left > 0; u += n, left -= n) {
        const int pass = u / m.n_tile, tile = u - pass * m.n_tile;
        n = range.hi - u < left ? range.hi - u : left;
        n = m.n_tile - tile < n ? m.n_tile - tile : n;
        const int64_t at = (int64_t)mid_expert(list[pass - range.lo / m.n_tile]) * m.n_tile + tile;
        const uint8_t *frag = m.frag + at * m.tile_bytes, *scale = m.scale + at * m.tile_scales;
        for (int64_t i = (int64_t)threadIdx.x * 128; i < n * m.tile_bytes; i += MID_THREADS * 128)
            mm_prefetch_l2(frag + i);
        const int64_t n_scale = mm_gemv_stage<FORMAT>::SCALE == 0 ? 0 : n * m.tile_scales;
        for (int64_t i = (int64_t)threadIdx.x * 128; i < n_scale; i += MID_THREADS * 128)
            mm_prefetch_l2(scale + i);
    }
}

/* Starts the copies of a pass's rows of x to slots from `slot` on, by the whole block. */
MM_DEV_FN void mid_load_x(const mm_moe_mid_part &p, const int16_t *pair, uint16_t *x, int n_chunk,
                          uint32_t pass, int slot)
{
    for (int r = 0; r < mid_rows(pass); r++) {
        const uint16_t *src = p.x + (int64_t)(pair[mid_at(pass) + r] / p.x_div) * p.m.n_in;
        uint16_t *dst = x + (slot + r < p.n_slot ? slot + r : slot + r - p.n_slot) * p.pitch;
        for (int i = (int)threadIdx.x; i < n_chunk; i += MID_THREADS) {
            const bool valid = i * 8 < p.m.n_in;
            mm_cp_async16(dst + i * 8, valid ? src + i * 8 : src, valid);
        }
    }
}

/* Finished sums of a row tile to out: row[j], the pair of column 2 t + j, or -1. */
template <bool IS_PAIR>
MM_DEV_FN void mid_store(const mm_gemv_out &o, int tile, const float d[4], const int row[2],
                         float lo, float hi)
{
    const int g = (int)(threadIdx.x % 32) / 4, r = tile * (IS_PAIR ? 8 : 16) + g;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        if (row[j] < 0)
            continue;
        const int64_t at = row[j] * o.y_stride + r;
        const float a = d[j] * lo, b = d[2 + j] * hi;
        if (IS_PAIR) {
            if (2 * r < o.n_out)
                ((uint16_t *)o.y)[at] = mm_f32_bf16(mm_gemv_swiglu(o, a, b));
        } else {
            if (r < o.n_out)
                ((float *)o.y)[at] = a;
            if (r + 8 < o.n_out)
                ((float *)o.y)[at + 8] = b;
        }
    }
}

/* Streams the block's range of a product. CHAINS: sums that take turns, as in gemv.h. Where
 * has_waited is false the first loads of weights come before mm_pdl_wait. */
template <int FORMAT, int STAGES, int CHAINS, bool IS_PAIR>
MM_DEV_FN void mid_run(const mm_moe_mid_part &p, const mm_moe_work &w, mm_moe_range range,
                       uint8_t *smem_sum, uint8_t *ring, uint8_t *smem_x, bool has_waited)
{
    typedef mm_gemv_stage<FORMAT> S;
    if (range.lo == range.hi) {
        if (!has_waited)
            mm_pdl_wait(); /* every kernel waits: what follows it may rely on all before it */
        return;
    }
    const mm_gemv_matrix &m = p.m;
    const uint32_t *list = w.pass;
    const int16_t *pair = w.pair;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int lo = range.lo, hi = range.hi, n_chunk = m.n_stage * (S::COLS / 8);
    const int slice = warp % m.n_slice, part = warp / m.n_slice;
    const int first = lo / m.n_tile, n_pass = (hi + m.n_tile - 1) / m.n_tile - first;
    uint16_t *x = (uint16_t *)(void *)smem_x;
    mm_moe_stream s = {};
    s.list = list;
    s.stage0 = slice * m.n_stage / m.n_slice;
    s.slice_stages = (slice + 1) * m.n_stage / m.n_slice - s.stage0;
    s.per = MID_WARPS / m.n_slice;
    s.step = s.per * (int)m.tile_bytes - s.slice_stages * (S::FRAGS * MM_FRAG_BYTES);
    s.step_scale = s.per * (int)m.tile_scales - s.slice_stages * (S::FRAGS * S::SCALE);
    s.n_left = hi - lo > part ? (hi - lo - part + s.per - 1) / s.per : 0;
    s.tile = lo + part - first * m.n_tile;
    if (s.n_left > 0)
        mid_seek<FORMAT>(m, s);
    if (has_waited)
        mid_load_x(p, pair, x, n_chunk, list[0], 0); /* lands with the first stage */
#pragma unroll
    for (int i = 0; i < STAGES; i++) {
        mid_load<FORMAT>(m, s, ring + i * S::BYTES + lane * 16);
        mm_cp_async_commit();
    }
    if (has_waited) {
        mm_cp_async_wait<STAGES - 1>();
    } else {
        mid_prefetch<FORMAT>(m, list, range,
                             (STAGES + s.slice_stages - 1) / s.slice_stages * s.per);
        mm_pdl_wait();
        mm_pdl_trigger();
        mid_load_x(p, pair, x, n_chunk, list[0], 0);
        mm_cp_async_commit();
        mm_cp_async_wait<0>();
    }
    int at = 0;             /* slot of the pass's first row of x */
    int since = STAGES + 1; /* stages since the loads of rows of x */
    bool is_there = true;   /* the loads of this pass's rows have been started */
    int u = lo + part;      /* row tile */
    int turn = 0, flip = 0; /* the slice that adds; place of sums */
    uint8_t *slot = ring;
    float *sum = (float *)(void *)smem_sum + warp * 128 + lane * 4;
    const float *sums = (const float *)(void *)smem_sum + part * m.n_slice * 128 + lane * 4;
    for (int i = 0; i < n_pass; i++) {
        const uint32_t pass = list[i];
        const int n = mid_rows(pass), begin = (first + i) * m.n_tile;
        const int end = begin + m.n_tile < hi ? begin + m.n_tile : hi;
        if (!is_there) {
            __syncthreads(); /* nobody needs the slots any more */
            mid_load_x(p, pair, x, n_chunk, pass, at);
        }
        if (!is_there || since <= STAGES) {
            mm_cp_async_commit();
            mm_cp_async_wait<0>();
        }
        __syncthreads(); /* rows of this pass have landed; those of the one before are done with */
        int next = at + n;
        if (next >= p.n_slot)
            next -= p.n_slot;
        is_there = i + 1 < n_pass && n + mid_rows(list[i + 1]) <= p.n_slot;
        if (is_there) {
            mid_load_x(p, pair, x, n_chunk, list[i + 1], next);
            since = 0;
        }
        /* rows that do not exist: row 0 again; their columns of the sums are never looked at */
        int token = at + (lane % 8 < n ? lane % 8 : 0);
        if (token >= p.n_slot)
            token -= p.n_slot;
        const uint16_t *x0 = x + token * p.pitch + lane / 8 * 8 + s.stage0 * S::COLS;
        at = next;
        const int c0 = 2 * (lane % 4), e = mid_expert(pass);
        const int row[2] = {c0 < n ? pair[mid_at(pass) + c0] : -1,
                            c0 + 1 < n ? pair[mid_at(pass) + c0 + 1] : -1};
        float f0 = p.factor[0], f1 = p.factor[1];
        if (p.global != NULL) {
            f0 = p.global[IS_PAIR ? 2 * e : e];
            f1 = IS_PAIR ? p.global[2 * e + 1] : f0;
        }
        for (; u < end; u += s.per) {
            float d[4] = {0.0f, 0.0f, 0.0f, 0.0f}, odd[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            const uint16_t *xk = x0;
            for (int k = 0; k < s.slice_stages; k++) {
                mm_cp_async_wait<STAGES - 1>();
                __syncwarp(); /* scales come from other lanes' copies */
                mm_gemv_codes<FORMAT> c;
                mm_gemv_take<FORMAT>(slot, lane, c);
                __syncwarp(); /* all have read before the slot is filled again */
                mid_load<FORMAT>(m, s, slot + lane * 16);
                mm_cp_async_commit();
                slot += S::BYTES;
                if (slot == ring + STAGES * S::BYTES)
                    slot = ring;
#pragma unroll
                for (int q = 0; q < S::COLS / 32; q++) {
                    uint32_t b[4];
                    mm_ldmatrix_x4(b, xk + q * 32);
                    mm_gemv_step<FORMAT>(c, 2 * q, b, d);
                    mm_gemv_step<FORMAT>(c, 2 * q + 1, b + 2, CHAINS == 2 ? odd : d);
                }
                xk += S::COLS;
            }
            since += s.slice_stages;
            if (CHAINS == 2)
                d[0] += odd[0], d[1] += odd[1], d[2] += odd[2], d[3] += odd[3];
            if (m.n_slice > 1) {
                /* two places for sums in turn: a barrier a row tile is enough */
                *(float4 *)(void *)(sum + flip) = make_float4(d[0], d[1], d[2], d[3]);
                mm_bar_sync(1 + part, m.n_slice * 32);
                const bool is_mine = turn == slice;
                turn = turn + 1 == m.n_slice ? 0 : turn + 1;
                const float *v = sums + flip;
                flip ^= MID_WARPS * 128;
                if (!is_mine)
                    continue;
                for (int k = 0; k < m.n_slice; k++) {
                    const float4 add = *(const float4 *)(const void *)(v + k * 128);
                    d[0] = k == 0 ? add.x : d[0] + add.x, d[1] = k == 0 ? add.y : d[1] + add.y;
                    d[2] = k == 0 ? add.z : d[2] + add.z, d[3] = k == 0 ? add.w : d[3] + add.w;
                }
            }
            mid_store<IS_PAIR>(p.out, u - begin, d, row, f0, f1);
        }
    }
}

/* grid: one block a multiprocessor. */
template <int FORMAT, int SHARED, bool IS_PAIR, int STAGES>
static __global__ void __launch_bounds__(MID_THREADS, 1) mm_moe_mid(const mm_moe_mid_args a)
{
    enum {
        RING = STAGES * mm_gemv_stage<FORMAT>::BYTES,
        SHARED_STAGES = RING / mm_gemv_stage<SHARED>::BYTES
    };
    __shared__ mm_moe_work work;
    uint8_t *smem = mm_smem(), *ring = smem + a.sum_bytes + threadIdx.x / 32 * RING;
    uint8_t *x = smem + a.x_offset;
    if ((int)blockIdx.x < a.n_shared) {
        const mm_moe_range r = mid_find_shared(a.choices.n_row, a.shared.m.n_tile, a.shared.most,
                                               blockIdx.x, (uint32_t)a.n_shared, work);
        mid_run<SHARED, SHARED_STAGES, 1, IS_PAIR>(a.shared, work, r, smem, ring, x, false);
        return;
    }
    if (!a.looks_early) {
        mm_pdl_wait();
        mm_pdl_trigger();
    }
    const uint32_t before = (uint32_t)a.n_shared;
    const mm_moe_range r =
        mid_find_work(a.choices, a.routed.m.n_tile, a.routed.most, blockIdx.x - before,
                      gridDim.x - before, (uint32_t *)(void *)(smem + a.sum_bytes), work);
    mid_run<FORMAT, STAGES, 2, IS_PAIR>(a.routed, work, r, smem, ring, x, !a.looks_early);
}

/* ---------------------------------------------------------------- host */

static mm_moe_mid_part part_of(const mm_moe_product *p)
{
    mm_moe_mid_part r = {};
    const mm_weight_format f = (mm_weight_format)p->m.format;
    r.m = p->m;
    r.out = p->out;
    r.x = p->x;
    r.global = p->global;
    r.factor[0] = p->factor[0];
    r.factor[1] = p->factor[1];
    r.x_div = p->x_div;
    r.pitch = p->m.n_stage * mm_gemv_cols(f) + 8;
    return r;
}

/* Formats that a launch takes for routed and shared experts. */
static bool has_kernel(mm_weight_format routed, mm_weight_format shared)
{
    return (routed == shared && routed != MM_WEIGHT_F32) ||
           (routed == MM_WEIGHT_NVFP4 && shared == MM_WEIGHT_MXFP8);
}

/* Time of n_block blocks for so many row tiles: a block does as many side by side as it has warps
 * for their slices. */
static double time_of(const mm_moe_mid_part *p, int64_t n_unit, int32_t n_block, double cost)
{
    const int64_t block = (n_unit + n_block - 1) / n_block, per = MID_WARPS / p->m.n_slice;
    return (double)((block + per - 1) / per * per) * cost;
}

/* Blocks for the shared expert, so that all end together if choices are even. A row tile costs its
 * bytes or, where they come from the L2 cache again, its decoding, of MXFP8 1.6 times that of NVFP4
 * (instructions of the loop). */
static int32_t shared_blocks(const mm_op_context *c, const mm_moe_launch *w,
                             const mm_moe_mid_args *a)
{
    const mm_moe_mid_part *r = &a->routed, *s = &a->shared;
    const int32_t n_sm = mm_cuda_of(c)->n_sm, n_pass = (w->choices.n_row + s->most - 1) / s->most;
    const double chosen =
        1.0 - pow(1.0 - 1.0 / c->shape->n_expert, w->choices.n_row * w->choices.k);
    const int64_t n_routed =
        (int64_t)ceil(chosen * (w->choices.last - w->choices.first)) * r->m.n_tile;
    const double bytes =
        (double)(s->m.tile_bytes + s->m.tile_scales) / (double)(r->m.tile_bytes + r->m.tile_scales);
    const double decode = s->m.format == r->m.format ? 1.0 : 1.6;
    const double first = bytes > decode ? bytes : decode;
    const double cost = (first + decode * (n_pass - 1)) / n_pass;
    /* rows of the next pass that have no place beside these come late */
    const double gap = n_pass > 1 && 2 * s->most > s->n_slot ? 1.0 : 0.0;
    /* by cost alone, then those near it: a block does whole row tiles */
    const int64_t n_unit = (int64_t)n_pass * s->m.n_tile;
    const double share = (double)n_unit * cost / ((double)n_unit * cost + (double)n_routed);
    const int32_t even = (int32_t)(share * n_sm), last = even + 8 < n_sm ? even + 8 : n_sm - 1;
    int32_t best = 1;
    double least = HUGE_VAL;
    for (int32_t n = even > 8 ? even - 8 : 1; n <= last; n++) {
        const double x = time_of(s, n_unit, n, cost) + gap;
        const double y = time_of(r, n_routed, n_sm - n, 1.0);
        const double time = x > y ? x : y;
        if (time < least) {
            least = time;
            best = n;
        }
    }
    return best;
}

/* False where the kernel with rings of a->n_stage does not take them. */
static bool fits(const mm_op_context *c, const mm_moe_launch *w, mm_moe_mid_args *a, size_t *smem)
{
    const mm_moe_product *r = w->routed, *s = w->shared;
    const mm_weight_format f = (mm_weight_format)r->m.format;
    const int64_t n_range = w->choices.last - w->choices.first,
                  n_word = (w->choices.n_row * w->choices.k + 31) / 32;
    const size_t ring = MID_WARPS * (size_t)a->n_stage * (size_t)mm_gemv_stage_bytes(f);
    const size_t most = (size_t)mm_cuda_of(c)->smem_max - MID_STATIC;
    if (!has_kernel(f, s != NULL ? (mm_weight_format)s->m.format : f) ||
        w->choices.n_row > MM_CUDA_SMALL_ROWS || w->choices.n_row * w->choices.k > MID_MAX_PAIR ||
        mm_cuda_of(c)->n_sm < 2 || n_range > MID_MAX_EXPERT ||
        n_range * n_word * 4 > (int64_t)ring || r->m.tile_bytes > INT32_MAX / MID_WARPS ||
        (s != NULL && s->m.tile_bytes > INT32_MAX / MID_WARPS))
        return false;
    a->routed = part_of(r);
    a->shared = part_of(s != NULL ? s : r);
    a->choices = w->choices;
    a->looks_early = w->looks_early;
    a->sum_bytes = r->m.n_slice > 1 || a->shared.m.n_slice > 1 ? 2 * MID_WARPS * 512 : 0;
    a->x_offset = (int32_t)((size_t)a->sum_bytes + ring);
    size_t x_bytes = 0;
    mm_moe_mid_part *const part[] = {&a->routed, &a->shared};
    for (int i = 0; i < 2; i++) {
        const size_t row = 2 * (size_t)part[i]->pitch, used = (size_t)a->x_offset;
        const size_t fit = used < most ? (most - used) / row : 0;
        part[i]->n_slot = fit < MID_MAX_SLOT ? (int32_t)fit : MID_MAX_SLOT;
        part[i]->most = part[i]->n_slot < MID_ROWS ? part[i]->n_slot : MID_ROWS;
        if (part[i]->n_slot < 4)
            return false;
        const size_t n = (size_t)part[i]->n_slot * row;
        x_bytes = x_bytes > n ? x_bytes : n;
    }
    *smem = (size_t)a->x_offset + x_bytes;
    a->n_shared = s != NULL ? shared_blocks(c, w, a) : 0;
    return true;
}

static bool plan(const mm_op_context *c, const mm_moe_launch *w, mm_moe_mid_args *a, size_t *smem)
{
    a->n_stage = MID_DEEP;
    if (w->routed->out.kind == MM_OUT_F32 && fits(c, w, a, smem))
        return true;
    a->n_stage = MID_STAGES;
    return fits(c, w, a, smem);
}

bool mm_cuda_moe_mid_takes(const mm_op_context *c, const mm_moe_launch *w)
{
    mm_moe_mid_args a = {};
    size_t smem;
    return plan(c, w, &a, &smem);
}

template <int FORMAT, int SHARED>
static mm_status launch(const mm_op_context *c, const mm_moe_mid_args *a, bool is_pair, size_t smem)
{
    const dim3 grid((unsigned)mm_cuda_of(c)->n_sm), block(MID_THREADS);
    if (is_pair)
        return mm_launch(c, "moe_gate_up", mm_moe_mid<FORMAT, SHARED, true, MID_STAGES>, grid,
                         block, smem, *a);
    if (a->n_stage == MID_DEEP)
        return mm_launch(c, "moe_down", mm_moe_mid<FORMAT, SHARED, false, MID_DEEP>, grid, block,
                         smem, *a);
    return mm_launch(c, "moe_down", mm_moe_mid<FORMAT, SHARED, false, MID_STAGES>, grid, block,
                     smem, *a);
}

mm_status mm_cuda_moe_mid(const mm_op_context *c, const mm_moe_launch *w)
{
    mm_moe_mid_args a = {};
    size_t smem;
    if (!plan(c, w, &a, &smem))
        return MM_CUDA_FAIL(mm_cuda_of(c), MM_E_UNSUPPORTED,
                            "cuda: %d rows of %d experts do not fit into shared memory",
                            (int)w->choices.n_row, (int)(w->choices.last - w->choices.first));
    const bool is_pair = w->routed->out.kind == MM_OUT_SWIGLU;
    switch (w->routed->m.format) {
    case MM_WEIGHT_NVFP4:
        return a.shared.m.format == MM_WEIGHT_NVFP4
                   ? launch<MM_WEIGHT_NVFP4, MM_WEIGHT_NVFP4>(c, &a, is_pair, smem)
                   : launch<MM_WEIGHT_NVFP4, MM_WEIGHT_MXFP8>(c, &a, is_pair, smem);
    case MM_WEIGHT_MXFP8:
        return launch<MM_WEIGHT_MXFP8, MM_WEIGHT_MXFP8>(c, &a, is_pair, smem);
    default:
        return launch<MM_WEIGHT_BF16, MM_WEIGHT_BF16>(c, &a, is_pair, smem);
    }
}
