/* moe_small.cu: the experts of up to 64 rows (more in pieces): two products, gate-up and down, then
 * the sum with the end of the branch (branch.cu). From 5 rows both products are moe_mid.cu's, where
 * a device has the shared memory for them; else two launches of one kernel:
 *
 *     a[t, slot] = swiglu(w13[e] h[t])   block = (i-th expert that any row chose, some row tiles)
 *     y[t, slot] = w2[e] a[t, slot]      the same blocks over w2
 *     x, h = end of branch of sum over slots of gain * y + shared row
 *
 * Every block finds its expert and its rows from the router's choices (at most 64 * 8 ids), so
 * there is no list to build; blocks beyond the number of chosen experts leave at once. An expert's
 * rows, 1 to 4 at a time, are the n of an mma through gemv.h; rows beyond that stream the weights
 * again (from L2). The second kernel may look at the choices and load weights before the first has
 * ended, since the first starts it only when the router is done. For up to 8 rows the shared expert
 * is part of both launches. */
#include "kernels/cuda/branch.h"
#include "kernels/cuda/moe.h"

#define MOE_STAGES 3
#define MOE_MID_ROWS 5 /* from which moe_mid.cu takes over, where it can */
#define MOE_ROWS 4     /* rows of an expert at once: two blocks a multiprocessor */
#define MOE_MAX_PAIR (MM_CUDA_SMALL_ROWS * MM_CUDA_MAX_USED)
#define MOE_MAX_EXPERT MM_CUDA_MAX_EXPERTS
#define MOE_STATIC 2048 /* bytes of shared memory that the kernel declares, at most */

/* One product of the experts, or of the shared expert. */
typedef struct mm_moe_part {
    mm_gemv_matrix m; /* of one expert */
    mm_gemv_out out;
    const uint16_t *x;
    const float *global; /* routed NVFP4: decode scales; GATE_UP two an expert */
    float factor[2];
    int32_t n_group, n_iter; /* blocks of an expert; row tiles of a warp */
    int32_t n_x, pitch, x_bytes, sum_bytes;
} mm_moe_part;

typedef struct mm_moe_kernel {
    mm_moe_part routed, shared;
    const int32_t *experts; /* [n_row, k] */
    int32_t n_row, k, first, last;
    int32_t x_div;    /* row of routed x = pair / x_div */
    bool is_pair;     /* gate and up have decode scales of their own */
    bool looks_early; /* choices may be read before mm_pdl_wait */
    bool has_shared;
} mm_moe_kernel;

/* Of at most 32 pairs, by one warp: a lane holds a pair's expert. Sets found[0], found[1] and list
 * as moe_pick says. */
MM_DEV_FN void moe_pick_few(const mm_moe_kernel &p, int index, int n_pair, int16_t *list,
                            int *found)
{
    const int lane = (int)threadIdx.x;
    const uint32_t all = 0xFFFFFFFFu;
    int e = lane < n_pair ? __ldcg(p.experts + lane) : -1;
    if (e < p.first || e >= p.last)
        e = -1;
    const uint32_t same = __match_any_sync(all, e);
    const uint32_t first = __ballot_sync(all, e >= 0 && __ffs((int)same) - 1 == lane);
    int rank = 0; /* distinct experts before this one */
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const int other = __shfl_sync(all, e, i);
        rank += (first >> i & 1) != 0 && other < e;
    }
    const bool is = e >= 0 && rank == index;
    const uint32_t who = __ballot_sync(all, is);
    if (is)
        list[__popc(who & ((1u << lane) - 1))] = (int16_t)lane;
    const int id = __reduce_max_sync(all, is ? e : -1);
    if (lane == 0) {
        found[0] = id;
        found[1] = __popc(who);
    }
}

/* The index-th (ascending) chosen expert in [first, last), or -1; its pairs (row * k + slot),
 * ascending, in list, their number in *n. All threads of the block. */
MM_DEV_FN int moe_pick(const mm_moe_kernel &p, int index, int16_t *list, int *n)
{
    __shared__ uint32_t chosen[MOE_MAX_EXPERT / 32];
    __shared__ int found[2];
    const int tid = (int)threadIdx.x, lane = tid % 32, n_pair = p.n_row * p.k;
    if (n_pair <= 32) {
        if (tid < 32)
            moe_pick_few(p, index, n_pair, list, found);
        __syncthreads();
        *n = found[1];
        return found[0];
    }
    for (int i = tid; i < MOE_MAX_EXPERT / 32; i += (int)blockDim.x)
        chosen[i] = 0;
    __syncthreads();
    for (int i = tid; i < n_pair; i += (int)blockDim.x) {
        const int e = __ldcg(p.experts + i);
        if (e >= p.first && e < p.last)
            atomicOr(&chosen[e / 32], 1u << (e % 32));
    }
    __syncthreads();
    if (tid < 32) {
        uint32_t bits = chosen[lane];
        const int here = __popc(bits);
        int before = here; /* inclusive, then exclusive */
#pragma unroll
        for (int i = 1; i < 32; i *= 2) {
            const int v = __shfl_up_sync(0xFFFFFFFFu, before, i);
            if (lane >= i)
                before += v;
        }
        before -= here;
        int e = -1;
        if (index >= before && index < before + here) {
            for (int i = before; i < index; i++)
                bits &= bits - 1;
            e = lane * 32 + __ffs((int)bits) - 1;
        }
        e = __reduce_max_sync(0xFFFFFFFFu, e);
        int count = 0;
        for (int i = 0; i < n_pair && e >= 0; i += 32) {
            const bool is = i + lane < n_pair && __ldcg(p.experts + i + lane) == e;
            const uint32_t who = __ballot_sync(0xFFFFFFFFu, is);
            if (is)
                list[count + __popc(who & ((1u << lane) - 1))] = (int16_t)(i + lane);
            count += __popc(who);
        }
        if (lane == 0) {
            found[0] = e;
            found[1] = count;
        }
    }
    __syncthreads();
    *n = found[1];
    return found[0];
}

/* One block's row tiles of one expert for n rows: row i of x and of y is list[i] (NULL: i). Where
 * the caller has not waited yet, the first loads of weights come before mm_pdl_wait. */
template <int FORMAT, int CHAINS>
MM_DEV_FN void moe_block(const mm_moe_part &p, int group, int n, const int16_t *list, int x_div,
                         float lo, float hi, bool has_waited)
{
    typedef mm_gemv_stage<FORMAT> S;
    uint8_t *smem = mm_smem();
    const int warp = (int)threadIdx.x / 32, per = MM_GEMV_WARPS / p.m.n_slice;
    float *sum = (float *)(void *)smem;
    uint8_t *ring = smem + p.sum_bytes + warp * MOE_STAGES * S::BYTES;
    uint8_t *x = smem + p.sum_bytes + MM_GEMV_WARPS * MOE_STAGES * S::BYTES + warp * p.x_bytes;
    for (int done = 0; done < n; done += p.n_x) {
        const int n_x = n - done < p.n_x ? n - done : p.n_x;
        mm_gemv_warp w = mm_gemv_begin<FORMAT>(p.m, ring, x, group * p.n_iter * per, per, p.n_iter);
#pragma unroll
        for (int i = 0; i < MOE_STAGES; i++)
            mm_gemv_load<FORMAT, MOE_STAGES>(p.m, w);
        if (!has_waited) {
            mm_pdl_wait();
            mm_pdl_trigger();
            has_waited = true;
        }
        mm_gemv_load_x(p.m, w, S::COLS, p.pitch, n_x, [&](int r) {
            const int64_t at = list != NULL ? list[done + r] / x_div : done + r;
            return p.x + at * p.m.n_in;
        });
        mm_gemv_run<FORMAT, MOE_STAGES, CHAINS>(
            p.m, w, p.pitch, n_x, sum, [&](int tile, const float d[4]) {
                mm_gemv_store(
                    p.out, tile, d, n_x,
                    [&](int r) { return (int64_t)(list != NULL ? list[done + r] : done + r); }, lo,
                    hi);
            });
        __syncthreads(); /* the sums' places are used again */
    }
}

/* grid: the shared expert's groups, then n_group blocks for each possible expert. */
template <int FORMAT, int SHARED>
static __global__ void __launch_bounds__(256, 3) mm_moe_small(const mm_moe_kernel p)
{
    __shared__ int16_t list[MOE_MAX_PAIR];
    const int n_shared = p.has_shared ? p.shared.n_group : 0;
    if ((int)blockIdx.x < n_shared) {
        moe_block<SHARED, 1>(p.shared, (int)blockIdx.x, p.n_row, NULL, 1, p.shared.factor[0],
                             p.shared.factor[1], false);
        return;
    }
    const int at = (int)blockIdx.x - n_shared;
    if (!p.looks_early) {
        mm_pdl_wait();
        mm_pdl_trigger();
    }
    int n;
    const int e = moe_pick(p, at / p.routed.n_group, list, &n);
    if (e < 0) {
        if (p.looks_early)
            mm_pdl_wait(); /* every kernel waits: what follows it may rely on all before it */
        return;
    }
    mm_moe_part part = p.routed;
    part.m.frag += (int64_t)e * part.m.n_tile * part.m.tile_bytes;
    part.m.scale += (int64_t)e * part.m.n_tile * part.m.tile_scales;
    float lo = 1.0f, hi = 1.0f;
    if (part.global != NULL) {
        lo = part.global[p.is_pair ? 2 * e : e];
        hi = part.global[p.is_pair ? 2 * e + 1 : e];
    }
    moe_block<FORMAT, 2>(part, at % p.routed.n_group, n, list, p.x_div, lo, hi, !p.looks_early);
}

/* ---------------------------------------------------------------- host */

typedef struct mm_moe_scratch {
    uint16_t *a, *a_shared; /* [64, k, d_expert], [64, d_shared] */
    float *y, *y_shared;    /* [64, k, D], [64, D] */
} mm_moe_scratch;

size_t mm_cuda_moe_small_scratch(const mm_op_shape *s)
{
    const size_t n = MM_CUDA_SMALL_ROWS, k = (size_t)s->n_expert_used, d = (size_t)s->d_model;
    if (s->n_expert < 1)
        return 0;
    return mm_cuda_size(2 * n * k * (size_t)s->d_expert) +
           mm_cuda_size(2 * n * (size_t)s->d_shared) + mm_cuda_size(4 * n * k * d) +
           mm_cuda_size(4 * n * d);
}

static mm_status open_scratch(const mm_op_context *c, mm_moe_scratch *m)
{
    const mm_op_shape *s = c->shape;
    const size_t n = MM_CUDA_SMALL_ROWS, k = (size_t)s->n_expert_used, d = (size_t)s->d_model;
    void *p[4];
    MM_TRY(mm_cuda_take(c, 2 * n * k * (size_t)s->d_expert, &p[0]));
    MM_TRY(mm_cuda_take(c, 2 * n * (size_t)s->d_shared, &p[1]));
    MM_TRY(mm_cuda_take(c, 4 * n * k * d, &p[2]));
    MM_TRY(mm_cuda_take(c, 4 * n * d, &p[3]));
    m->a = (uint16_t *)p[0];
    m->a_shared = (uint16_t *)p[1];
    m->y = (float *)p[2];
    m->y_shared = (float *)p[3];
    return MM_OK;
}

/* Groups, iterations and shared memory of a part of which n_copy run side by side. Where a row of
 * x is so long that it does not fit beside the sums of several row tiles, a warp has fewer. */
static void plan_part(const mm_cuda *b, mm_moe_part *p, int32_t n_copy, int32_t n_row)
{
    const int32_t per = MM_GEMV_WARPS / p->m.n_slice, n_part = (p->m.n_tile + per - 1) / per;
    const int64_t iter = (int64_t)n_part * n_copy / (4 * (int64_t)b->n_sm);
    const size_t ring =
        MM_GEMV_WARPS * MOE_STAGES * (size_t)mm_gemv_stage_bytes((mm_weight_format)p->m.format);
    const size_t room = (size_t)b->smem_max - MOE_STATIC - ring;
    p->n_iter = (int32_t)(iter < 1 ? 1 : iter > 8 ? 8 : iter);
    while (p->n_iter > 1 &&
           mm_gemv_sum_bytes(&p->m, p->n_iter) + MM_GEMV_WARPS * mm_gemv_x_bytes(&p->m, 1) > room)
        p->n_iter--;
    p->n_group = (n_part + p->n_iter - 1) / p->n_iter;
    p->sum_bytes = (int32_t)mm_gemv_sum_bytes(&p->m, p->n_iter);
    p->n_x = n_row < MOE_ROWS ? n_row : MOE_ROWS;
    while (p->n_x > 1 &&
           (size_t)p->sum_bytes + MM_GEMV_WARPS * mm_gemv_x_bytes(&p->m, p->n_x) > room)
        p->n_x--;
    p->pitch = mm_gemv_x_pitch(&p->m);
    p->x_bytes = (int32_t)mm_gemv_x_bytes(&p->m, p->n_x);
}

static size_t smem_of(const mm_moe_part *p)
{
    return (size_t)p->sum_bytes + MM_GEMV_WARPS * (MOE_STAGES * (size_t)mm_gemv_stage_bytes(
                                                                    (mm_weight_format)p->m.format) +
                                                   (size_t)p->x_bytes);
}

template <int FORMAT, int SHARED>
static mm_status launch(const mm_op_context *c, const mm_moe_kernel *p, int32_t n_expert)
{
    const size_t a = smem_of(&p->routed), b = p->has_shared ? smem_of(&p->shared) : 0;
    const int32_t grid = (p->has_shared ? p->shared.n_group : 0) + n_expert * p->routed.n_group;
    if (grid == 0)
        return MM_OK;
    return mm_launch(c, p->is_pair ? "moe_gate_up" : "moe_down", mm_moe_small<FORMAT, SHARED>,
                     dim3((unsigned)grid), dim3(256), a > b ? a : b, *p);
}

/* Formats that one launch takes for routed and shared experts. */
static bool can_fuse(mm_weight_format routed, mm_weight_format shared)
{
    return routed == shared || (routed == MM_WEIGHT_NVFP4 && shared == MM_WEIGHT_MXFP8);
}

static mm_status launch_any(const mm_op_context *c, const mm_moe_kernel *p, int32_t n_expert)
{
    switch (p->routed.m.format) {
    case MM_WEIGHT_NVFP4:
        return p->has_shared && p->shared.m.format == MM_WEIGHT_NVFP4
                   ? launch<MM_WEIGHT_NVFP4, MM_WEIGHT_NVFP4>(c, p, n_expert)
                   : launch<MM_WEIGHT_NVFP4, MM_WEIGHT_MXFP8>(c, p, n_expert);
    case MM_WEIGHT_MXFP8:
        return launch<MM_WEIGHT_MXFP8, MM_WEIGHT_MXFP8>(c, p, n_expert);
    case MM_WEIGHT_BF16:
        return launch<MM_WEIGHT_BF16, MM_WEIGHT_BF16>(c, p, n_expert);
    default:
        return launch<MM_WEIGHT_F32, MM_WEIGHT_F32>(c, p, n_expert);
    }
}

static mm_gemv_out output(const mm_op_shape *s, mm_out_kind kind, int64_t n_out, void *y,
                          int64_t y_stride)
{
    const mm_gemv_out o = {(int32_t)kind,  (int32_t)n_out, y, y_stride, s->swiglu_alpha,
                           s->swiglu_beta, s->swiglu_limit};
    return o;
}

/* A part from a packed matrix of n_out rows an expert (gate-up: both). */
static mm_moe_part part_of(const mm_op_shape *s, const mm_weight *w, int64_t n_out,
                           mm_out_kind kind, const void *x, void *y, int64_t y_stride)
{
    mm_moe_part p = {};
    const bool is_pair = kind == MM_OUT_SWIGLU;
    p.m = mm_gemv_matrix_of(w, (int32_t)(is_pair ? (n_out / 2 + 7) / 8 : (n_out + 15) / 16));
    p.out = output(s, kind, n_out, y, y_stride);
    p.x = (const uint16_t *)x;
    p.global = w->global_scales;
    p.factor[0] = p.factor[1] = w->format == MM_WEIGHT_NVFP4 ? 1.0f / w->global_scale : 1.0f;
    return p;
}

static mm_status check(const mm_op_context *c, const mm_moe_args *a)
{
    const mm_expert_weights *w = a->w;
    const mm_weight *const part[] = {&w->packed_w13, &w->packed_w2, &w->shared_gate_up,
                                     &w->shared_down};
    for (int i = 0; i < (a->with_shared ? 4 : 2); i++) {
        if (part[i]->layout != MM_LAYOUT_BACKEND || part[i]->data == NULL ||
            part[i]->format == MM_WEIGHT_NONE)
            return MM_CUDA_FAIL(
                mm_cuda_of(c), MM_E_UNSUPPORTED,
                "cuda: the %s experts are not packed; cuda reads packed weights only",
                i < 2 ? "routed" : "shared");
    }
    if (w->packed_w13.n_in % 8 != 0 || w->packed_w2.n_in % 8 != 0)
        return MM_CUDA_FAIL(mm_cuda_of(c), MM_E_UNSUPPORTED,
                            "cuda: experts [%lld, %lld]: widths must be multiples of 8",
                            (long long)w->packed_w2.n_in, (long long)w->packed_w13.n_in);
    return MM_OK;
}

/* A product as moe_mid.cu takes it. */
static mm_moe_product product_of(const mm_moe_part *p, int32_t x_div)
{
    mm_moe_product r = {};
    r.m = p->m;
    r.out = p->out;
    r.x = p->x;
    r.global = p->global;
    r.factor[0] = p->factor[0];
    r.factor[1] = p->factor[1];
    r.x_div = x_div;
    return r;
}

/* Both launches through moe_mid.cu; *is_done false: it does not take them. */
static mm_status run_mid(const mm_op_context *c, const mm_moe_kernel *up, const mm_moe_kernel *down,
                         bool *is_done)
{
    const mm_moe_kernel *const kernel[] = {up, down};
    mm_moe_product routed[2], shared[2];
    mm_moe_launch mid[2];
    for (int i = 0; i < 2; i++) {
        const mm_moe_kernel *k = kernel[i];
        routed[i] = product_of(&k->routed, k->x_div);
        shared[i] = product_of(&k->shared, 1);
        mid[i].routed = &routed[i];
        mid[i].shared = k->has_shared ? &shared[i] : NULL;
        mid[i].choices = {k->experts, k->n_row, k->k, k->first, k->last};
        mid[i].looks_early = k->looks_early;
    }
    *is_done = mm_cuda_moe_mid_takes(c, &mid[0]) && mm_cuda_moe_mid_takes(c, &mid[1]);
    if (!*is_done)
        return MM_OK;
    MM_TRY(mm_cuda_moe_mid(c, &mid[0]));
    return mm_cuda_moe_mid(c, &mid[1]);
}

/* y_shared by products of its own: before the routed ones, whose two launches stay neighbours. */
static mm_status shared_alone(const mm_op_context *c, int32_t n_row, const mm_moe_args *a,
                              const mm_moe_scratch *m)
{
    const mm_expert_weights *w = a->w;
    const int64_t d = c->shape->d_model, fs = w->shared_down.n_in;
    MM_TRY(mm_cuda_linear_small(c, &w->shared_gate_up, a->h, d, n_row, MM_OUT_SWIGLU, m->a_shared,
                                fs));
    return mm_cuda_linear_small(c, &w->shared_down, m->a_shared, fs, n_row, MM_OUT_F32, m->y_shared,
                                d);
}

/* y and y_shared of at most 64 rows. */
static mm_status experts_of(const mm_op_context *c, int32_t n_row, const mm_moe_args *a,
                            const mm_moe_scratch *m)
{
    const mm_op_shape *s = c->shape;
    const mm_expert_weights *w = a->w;
    const mm_cuda *b = mm_cuda_of(c);
    const int64_t d = s->d_model, f = s->d_expert, fs = a->with_shared ? w->shared_down.n_in : 0;
    const int32_t n_pair = n_row * s->n_expert_used, n_range = a->last - a->first;
    const int32_t n_expert = n_range < n_pair ? n_range : n_pair;
    const bool is_fused = a->with_shared &&
                          can_fuse(w->packed_w13.format, w->shared_gate_up.format) &&
                          can_fuse(w->packed_w2.format, w->shared_down.format);
    mm_moe_kernel up = {};
    up.experts = a->experts;
    up.n_row = n_row;
    up.k = s->n_expert_used;
    up.first = a->first;
    up.last = a->last;
    up.has_shared = is_fused;
    mm_moe_kernel down = up;
    up.x_div = s->n_expert_used;
    up.is_pair = true;
    down.x_div = 1;
    down.looks_early = true;
    up.routed = part_of(s, &w->packed_w13, 2 * f, MM_OUT_SWIGLU, a->h, m->a, f);
    down.routed = part_of(s, &w->packed_w2, d, MM_OUT_F32, m->a, m->y, d);
    if (is_fused) {
        up.shared = part_of(s, &w->shared_gate_up, 2 * fs, MM_OUT_SWIGLU, a->h, m->a_shared, fs);
        down.shared = part_of(s, &w->shared_down, d, MM_OUT_F32, m->a_shared, m->y_shared, d);
    } else if (a->with_shared) {
        MM_TRY(shared_alone(c, n_row, a, m));
    }
    if (n_row >= MOE_MID_ROWS) {
        bool is_done;
        MM_TRY(run_mid(c, &up, &down, &is_done));
        if (is_done)
            return MM_OK;
    }
    if (is_fused && n_row > MM_GEMV_ROWS) {
        up.has_shared = down.has_shared = false;
        MM_TRY(shared_alone(c, n_row, a, m));
    }
    plan_part(b, &up.routed, n_expert, n_row);
    plan_part(b, &down.routed, n_expert, n_row);
    if (up.has_shared) {
        plan_part(b, &up.shared, 1, n_row);
        plan_part(b, &down.shared, 1, n_row);
    }
    MM_TRY(launch_any(c, &up, n_expert));
    return launch_any(c, &down, n_expert);
}

mm_status mm_cuda_moe_small(const mm_op_context *c, int32_t n_row, const mm_moe_args *args)
{
    const mm_op_shape *s = c->shape;
    MM_TRY(check(c, args));
    mm_moe_scratch m;
    MM_TRY(open_scratch(c, &m));
    const size_t used = c->stream->scratch_used;
    for (int32_t t = 0; t < n_row; t += MM_CUDA_SMALL_ROWS) {
        const int32_t n = n_row - t < MM_CUDA_SMALL_ROWS ? n_row - t : MM_CUDA_SMALL_ROWS;
        const int64_t at = (int64_t)t * s->d_model;
        mm_moe_args a = *args;
        a.h = (const uint16_t *)args->h + at;
        a.experts = args->experts + (int64_t)t * s->n_expert_used;
        a.weights = args->weights + (int64_t)t * s->n_expert_used;
        c->stream->scratch_used = used;
        MM_TRY(experts_of(c, n, &a, &m));
        MM_TRY(mm_cuda_branch_experts(c, args, t, n, m.y, m.y_shared));
    }
    return MM_OK;
}
