/* branch.cu: the end of a residual branch: one block a row sums what the branch left (branch.h),
 * adds the residual, and norms the unrounded sum. With several ranks the rounded sums are reduced
 * between two kernels. The row stays in registers; all its loads are on their way at once, those of
 * the norm's weight before the kernel waits for the branch. */
#include "kernels/cuda/branch.h"
#include "kernels/cuda/branch_row.h"

/* What a kernel does with the sum: ends the branch, or the same with the sum after the all-reduce;
 * rounds it for the all-reduce; stores it. */
enum { BRANCH_END = 0, BRANCH_END_ROUNDED, BRANCH_ROUND, BRANCH_STORE };
/* of a thread */
#define BRANCH_MOST_PIECES (MM_CUDA_MAX_WIDTH / (4 * MM_BRANCH_THREADS))
#define BRANCH_ANY (-1) /* slots: as many as there are, one after the other */

typedef struct mm_branch_args {
    mm_branch_sum sum;
    const uint16_t *rounded; /* BRANCH_END_ROUNDED: [n_row, d] */
    int32_t d;
    float eps;
    uint16_t *x, *h;
    const float *norm_w;
    uint16_t *r_out; /* BRANCH_ROUND: r(y) */
    float *acc_out;  /* BRANCH_STORE */
} mm_branch_args;

/* Where row t of the sum's terms begins for this thread, and what counts of it. */
template <int SLOTS> struct mm_branch_source {
    const float *acc, *part, *shared;   /* its first column; acc, shared: or NULL */
    float gain[SLOTS < 1 ? 1 : SLOTS];  /* routed_scale * weight */
    bool counts[SLOTS < 1 ? 1 : SLOTS]; /* of the slots */
    const int32_t *experts;             /* of the row */
    const float *weights;
};

template <int SLOTS>
MM_DEV_FN mm_branch_source<SLOTS> branch_source(const mm_branch_sum &s, int64_t t, int d, int col)
{
    mm_branch_source<SLOTS> v;
    v.acc = s.acc != NULL ? s.acc + t * d + col : NULL;
    v.shared = s.shared != NULL ? s.shared + t * d + col : NULL;
    if (SLOTS != 0) {
        v.part = s.part + t * s.n_slot * d + col;
        v.experts = s.experts + t * s.n_slot;
        v.weights = s.weights + t * s.n_slot;
    }
#pragma unroll
    for (int j = 0; j < SLOTS; j++) {
        const int expert = v.experts[j];
        v.gain[j] = s.routed_scale * v.weights[j];
        v.counts[j] = expert >= s.first && expert < s.last;
    }
    return v;
}

MM_DEV_FN float4 branch_fma(float gain, float4 u, float4 y)
{
    return make_float4(fmaf(gain, u.x, y.x), fmaf(gain, u.y, y.y), fmaf(gain, u.z, y.z),
                       fmaf(gain, u.w, y.w));
}
MM_DEV_FN float4 branch_float4(const float *p)
{
    return *(const float4 *)(const void *)p;
}

/* The terms of one piece of four columns. Rows of experts that do not count are loaded too: the
 * loads then wait for nothing, and lie inside `part`. */
template <int SLOTS, int MORE> struct mm_branch_terms {
    float4 acc, part[SLOTS < 1 ? 1 : SLOTS], shared, more[MORE < 1 ? 1 : MORE];
};

template <int SLOTS, int MORE>
MM_DEV_FN void branch_load(const mm_branch_sum &sum, const mm_branch_source<SLOTS> &s, int at,
                           int d, mm_branch_terms<SLOTS, MORE> *v)
{
    v->acc = v->shared = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (s.acc != NULL)
        v->acc = branch_float4(s.acc + at);
#pragma unroll
    for (int k = 0; k < MORE; k++) {
        if (k < sum.n_more)
            v->more[k] = branch_float4(s.acc + (k + 1) * sum.more_stride + at);
    }
#pragma unroll
    for (int j = 0; j < SLOTS; j++)
        v->part[j] = branch_float4(s.part + at + j * d);
    if (SLOTS != 0 && s.shared != NULL)
        v->shared = branch_float4(s.shared + at);
}

template <int SLOTS, int MORE>
MM_DEV_FN float4 branch_value(const mm_branch_sum &sum, const mm_branch_source<SLOTS> &s,
                              const mm_branch_terms<SLOTS, MORE> &v, int at, int d)
{
    float4 y = v.acc;
#pragma unroll
    for (int k = 0; k < MORE; k++) {
        if (k < sum.n_more)
            y.x += v.more[k].x, y.y += v.more[k].y, y.z += v.more[k].z, y.w += v.more[k].w;
    }
#pragma unroll
    for (int j = 0; j < SLOTS; j++) {
        if (s.counts[j])
            y = branch_fma(s.gain[j], v.part[j], y);
    }
    if (SLOTS == BRANCH_ANY) {
        for (int j = 0; j < sum.n_slot; j++) {
            if (s.experts[j] >= sum.first && s.experts[j] < sum.last)
                y = branch_fma(sum.routed_scale * s.weights[j],
                               branch_float4(s.part + at + (int64_t)j * d), y);
        }
    }
    if (SLOTS != 0 && s.shared != NULL)
        y.x += v.shared.x, y.y += v.shared.y, y.z += v.shared.z, y.w += v.shared.w;
    return y;
}

/* grid n_row; block mm_branch_threads(d). PIECES of four columns of a thread. */
template <int MODE, int SLOTS, int MORE, int PIECES>
static __global__ void __launch_bounds__(MM_BRANCH_THREADS) mm_branch_kernel(const mm_branch_args p)
{
    __shared__ float warp_sum[MM_BRANCH_THREADS / 32];
    enum {
        IS_END = MODE == BRANCH_END || MODE == BRANCH_END_ROUNDED,
        IS_EARLY = IS_END && PIECES <= MM_BRANCH_PIECES /* the weight stays in registers */
    };
    const int first = (int)threadIdx.x * 4, step = (int)blockDim.x * 4;
    const int64_t t = blockIdx.x, at = t * p.d + first; /* of this thread */
    mm_pdl_trigger(); /* what comes next may fetch its weights meanwhile */
    float4 w[PIECES], sum[PIECES];
    if (IS_EARLY) {
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            if (first + j * step < p.d)
                w[j] = branch_float4(p.norm_w + first + j * step);
        }
    }
    mm_pdl_wait();
    uint2 x[PIECES], rounded[PIECES];
    mm_branch_terms<SLOTS, MORE> term[PIECES];
    const mm_branch_source<SLOTS> source = branch_source<SLOTS>(p.sum, t, p.d, first);
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        if (first + j * step >= p.d)
            continue;
        if (IS_END)
            x[j] = *(const uint2 *)(const void *)(p.x + at + j * step);
        if (MODE == BRANCH_END_ROUNDED)
            rounded[j] = *(const uint2 *)(const void *)(p.rounded + at + j * step);
        else
            branch_load<SLOTS, MORE>(p.sum, source, j * step, p.d, &term[j]);
    }
    float square = 0.0f;
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        if (first + j * step >= p.d)
            continue;
        const float4 y = MODE == BRANCH_END_ROUNDED
                             ? mm_bf16x4_f32(rounded[j])
                             : branch_value<SLOTS, MORE>(p.sum, source, term[j], j * step, p.d);
        if (MODE == BRANCH_STORE) {
            *(float4 *)(void *)(p.acc_out + at + j * step) = y;
        } else if (MODE == BRANCH_ROUND) {
            *(uint2 *)(void *)(p.r_out + at + j * step) = mm_f32_bf16x4(y);
        } else {
            sum[j] = mm_branch_add(x[j], y, &square);
            *(uint2 *)(void *)(p.x + at + j * step) = mm_f32_bf16x4(sum[j]);
        }
    }
    if (!IS_END)
        return;
    const float r = mm_branch_scale(square, p.d, p.eps, warp_sum);
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        if (first + j * step >= p.d)
            continue;
        if (!IS_EARLY)
            w[j] = branch_float4(p.norm_w + first + j * step);
        *(uint2 *)(void *)(p.h + at + j * step) = mm_branch_norm(sum[j], r, w[j]);
    }
}

/* A thread's pieces and loads of four experts and one kind of sum are known; others loop. */
template <int MODE>
static mm_status launch(const mm_op_context *c, int32_t n_row, const mm_branch_args *p)
{
    const int32_t n_slot = p->sum.n_slot;
    const dim3 grid((unsigned)n_row), block((unsigned)mm_branch_threads(p->d));
    const bool is_usual = p->d <= MM_BRANCH_THREADS * 4 * MM_BRANCH_PIECES;
    if constexpr (MODE != BRANCH_END_ROUNDED) {
        if (p->sum.n_more > 0)
            return mm_launch(c, "branch_slices",
                             mm_branch_kernel<MODE, 0, MM_LINEAR_SLICES - 1, MM_BRANCH_PIECES>,
                             grid, block, 0, *p);
        if (n_slot == 4 && is_usual)
            return mm_launch(c, "branch_experts", mm_branch_kernel<MODE, 4, 0, MM_BRANCH_PIECES>,
                             grid, block, 0, *p);
        if (n_slot > 0)
            return mm_launch(c, "branch_experts",
                             mm_branch_kernel<MODE, BRANCH_ANY, 0, BRANCH_MOST_PIECES>, grid, block,
                             0, *p);
    }
    return is_usual ? mm_launch(c, "branch", mm_branch_kernel<MODE, 0, 0, MM_BRANCH_PIECES>, grid,
                                block, 0, *p)
                    : mm_launch(c, "branch", mm_branch_kernel<MODE, 0, 0, BRANCH_MOST_PIECES>, grid,
                                block, 0, *p);
}

mm_status mm_cuda_branch_sum_end(const mm_op_context *c, int32_t n_row, const mm_branch_sum *sum,
                                 void *x, const float *norm_w, void *h)
{
    const mm_op_shape *s = c->shape;
    mm_branch_args p = {};
    p.sum = *sum;
    p.d = s->d_model;
    p.eps = s->eps;
    p.x = (uint16_t *)x;
    p.h = (uint16_t *)h;
    p.norm_w = norm_w;
    const bool is_reduced = c->comm != NULL && c->comm->world > 1;
    if (is_reduced || sum->rounded != NULL) {
        const int64_t n = (int64_t)n_row * s->d_model;
        void *r = sum->rounded;
        if (r == NULL) {
            MM_TRY(mm_cuda_take(c, 2 * (size_t)n, &r));
            p.r_out = (uint16_t *)r;
            MM_TRY(launch<BRANCH_ROUND>(c, n_row, &p));
        }
        if (is_reduced)
            MM_TRY(c->comm->all_reduce(c->comm, c->stream, r, MM_DTYPE_BF16, n));
        p.rounded = (const uint16_t *)r;
        return launch<BRANCH_END_ROUNDED>(c, n_row, &p);
    }
    return launch<BRANCH_END>(c, n_row, &p);
}

mm_status mm_cuda_branch_sum_store(const mm_op_context *c, int32_t n_row, const mm_branch_sum *sum,
                                   float *acc)
{
    mm_branch_args p = {};
    p.sum = *sum;
    p.d = c->shape->d_model;
    p.acc_out = acc;
    return launch<BRANCH_STORE>(c, n_row, &p);
}

mm_status mm_cuda_branch_experts(const mm_op_context *c, const mm_moe_args *a, int32_t t,
                                 int32_t n_row, const float *part, const float *shared)
{
    const mm_op_shape *s = c->shape;
    const int64_t at = (int64_t)t * s->d_model, pair = (int64_t)t * s->n_expert_used;
    mm_branch_sum sum = {};
    sum.acc = a->accumulate ? a->acc + at : NULL;
    sum.part = part;
    sum.shared = a->with_shared ? shared : NULL;
    sum.experts = a->experts + pair;
    sum.weights = a->weights + pair;
    sum.routed_scale = s->routed_scale;
    sum.n_slot = s->n_expert_used;
    sum.first = a->first;
    sum.last = a->last;
    return a->finish ? mm_cuda_branch_sum_end(c, n_row, &sum, (uint16_t *)a->x + at, a->norm_w,
                                              (uint16_t *)a->h_out + at)
                     : mm_cuda_branch_sum_store(c, n_row, &sum, a->acc + at);
}
