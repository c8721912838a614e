/* branch.cu: the end of a residual branch: one block a row sums what the branch left (branch.h),
 * adds the residual, and norms the unrounded sum. With several ranks the rounded sums are reduced
 * between two kernels. The row stays in registers; all its loads are on their way at once, those of
 * the norm's weight before the kernel waits for the branch. */
#include "kernels/cuda/branch.h"
#include "kernels/cuda/branch_row.h"

enum { BRANCH_END = 0, BRANCH_ROUND, BRANCH_STORE };
#define BRANCH_SLOTS 8       /* most experts of a row */
#define BRANCH_MOST_PIECES 8 /* of a thread: d_model up to 16384 */

typedef struct mm_branch_args {
    mm_branch_sum sum;
    const uint16_t *rounded; /* not NULL: R itself, after the all-reduce */
    int32_t d, mode;
    float eps;
    uint16_t *x, *h;
    const float *norm_w;
    uint16_t *r_out; /* BRANCH_ROUND: r(y) */
    float *acc_out;  /* BRANCH_STORE */
} mm_branch_args;

/* What one piece of four columns is the sum of. Rows of experts that do not count are loaded too:
 * the loads then wait for nothing, and lie inside `part`. */
template <int SLOTS> struct mm_branch_terms {
    float4 acc, part[SLOTS + 1], shared;
};

template <int SLOTS>
MM_DEV_FN void branch_load(const mm_branch_sum &s, int64_t t, int d, int col,
                           mm_branch_terms<SLOTS> *v)
{
    v->acc = v->shared = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (s.acc != NULL)
        v->acc = *(const float4 *)(const void *)(s.acc + t * d + col);
#pragma unroll
    for (int j = 0; j < SLOTS; j++) {
        if (j < s.n_slot)
            v->part[j] = *(const float4 *)(const void *)(s.part + (t * s.n_slot + j) * d + col);
    }
    if (s.shared != NULL)
        v->shared = *(const float4 *)(const void *)(s.shared + t * d + col);
}

/* gain: of each slot; use: bit j where slot j counts. */
template <int SLOTS>
MM_DEV_FN float4 branch_value(const mm_branch_sum &s, const mm_branch_terms<SLOTS> &v,
                              const float *gain, uint32_t use)
{
    float4 y = v.acc;
#pragma unroll
    for (int j = 0; j < SLOTS; j++) {
        const float4 u = v.part[j];
        if ((use >> j & 1) != 0)
            y.x += gain[j] * u.x, y.y += gain[j] * u.y, y.z += gain[j] * u.z, y.w += gain[j] * u.w;
    }
    if (s.shared != NULL)
        y.x += v.shared.x, y.y += v.shared.y, y.z += v.shared.z, y.w += v.shared.w;
    return y;
}

/* grid n_row; block mm_branch_threads(d). PIECES of four columns of a thread, GROUP of them loaded
 * together. */
template <int SLOTS, int PIECES, int GROUP>
static __global__ void __launch_bounds__(MM_BRANCH_THREADS) mm_branch_kernel(const mm_branch_args p)
{
    __shared__ float warp_sum[MM_BRANCH_THREADS / 32];
    const int64_t t = blockIdx.x, at = t * p.d;
    const int first = (int)threadIdx.x * 4, step = (int)blockDim.x * 4;
    const bool is_end = p.mode == BRANCH_END, is_early = PIECES <= MM_BRANCH_PIECES;
    float4 w[PIECES], sum[PIECES];
    if (is_end && is_early) {
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            if (first + j * step < p.d)
                w[j] = *(const float4 *)(const void *)(p.norm_w + first + j * step);
        }
    }
    mm_pdl_wait();
    mm_pdl_trigger();
    int32_t expert[SLOTS + 1];
    float gain[SLOTS + 1];
#pragma unroll
    for (int j = 0; j < SLOTS; j++) {
        expert[j] = j < p.sum.n_slot ? p.sum.experts[t * p.sum.n_slot + j] : -1;
        gain[j] = j < p.sum.n_slot ? p.sum.weights[t * p.sum.n_slot + j] : 0.0f;
    }
    float square = 0.0f;
#pragma unroll
    for (int j0 = 0; j0 < PIECES; j0 += GROUP) {
        mm_branch_terms<SLOTS> term[GROUP];
        uint2 x[GROUP];
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            const int i = first + (j0 + j) * step;
            if (i >= p.d)
                continue;
            if (is_end)
                x[j] = *(const uint2 *)(const void *)(p.x + at + i);
            if (p.rounded != NULL)
                term[j].acc = mm_bf16x4_f32(*(const uint2 *)(const void *)(p.rounded + at + i));
            else
                branch_load<SLOTS>(p.sum, t, p.d, i, &term[j]);
        }
        uint32_t use = 0;
        float scaled[SLOTS + 1];
#pragma unroll
        for (int j = 0; j < SLOTS; j++) {
            scaled[j] = p.sum.routed_scale * gain[j];
            use |= (uint32_t)(expert[j] >= p.sum.first && expert[j] < p.sum.last) << j;
        }
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            const int i = first + (j0 + j) * step;
            if (i >= p.d)
                continue;
            const float4 y =
                p.rounded != NULL ? term[j].acc : branch_value<SLOTS>(p.sum, term[j], scaled, use);
            if (p.mode == BRANCH_STORE) {
                *(float4 *)(void *)(p.acc_out + at + i) = y;
            } else if (p.mode == BRANCH_ROUND) {
                *(uint2 *)(void *)(p.r_out + at + i) = mm_f32_bf16x4(y);
            } else {
                sum[j0 + j] = mm_branch_add(x[j], y, &square);
                *(uint2 *)(void *)(p.x + at + i) = mm_f32_bf16x4(sum[j0 + j]);
            }
        }
    }
    if (!is_end)
        return;
    const float r = mm_branch_scale(square, p.d, p.eps, warp_sum);
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        const int i = first + j * step;
        if (i >= p.d)
            continue;
        if (!is_early)
            w[j] = *(const float4 *)(const void *)(p.norm_w + i);
        *(uint2 *)(void *)(p.h + at + i) = mm_branch_norm(sum[j], r, w[j]);
    }
}

template <int PIECES>
static mm_status launch_pieces(const mm_op_context *c, int32_t n_row, const mm_branch_args *p)
{
    const int all = PIECES <= MM_BRANCH_PIECES ? PIECES : 1;
    const dim3 grid((unsigned)n_row), block((unsigned)mm_branch_threads(p->d));
    if (p->sum.n_slot == 0)
        return mm_launch(c, "branch", mm_branch_kernel<0, PIECES, all>, grid, block, 0, *p);
    if (p->sum.n_slot <= 4)
        return mm_launch(c, "branch_experts", mm_branch_kernel<4, PIECES, all>, grid, block, 0, *p);
    return mm_launch(c, "branch_experts", mm_branch_kernel<BRANCH_SLOTS, PIECES, 1>, grid, block, 0,
                     *p);
}

static mm_status launch(const mm_op_context *c, int32_t n_row, const mm_branch_args *p)
{
    if (p->sum.n_slot > BRANCH_SLOTS)
        return MM_CUDA_FAIL(mm_cuda_of(c), MM_E_UNSUPPORTED, "cuda: %d experts a row; at most %d",
                            (int)p->sum.n_slot, BRANCH_SLOTS);
    const int32_t most = MM_BRANCH_THREADS * 4 * BRANCH_MOST_PIECES;
    if (p->d % 4 != 0 || p->d > most)
        return MM_CUDA_FAIL(mm_cuda_of(c), MM_E_UNSUPPORTED,
                            "cuda: d_model is %d; the norm takes multiples of 4 up to %d",
                            (int)p->d, (int)most);
    return p->d <= MM_BRANCH_THREADS * 4 * MM_BRANCH_PIECES
               ? launch_pieces<MM_BRANCH_PIECES>(c, n_row, p)
               : launch_pieces<BRANCH_MOST_PIECES>(c, n_row, p);
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
    if (c->comm != NULL && c->comm->world > 1) {
        const int64_t n = (int64_t)n_row * s->d_model;
        void *r;
        MM_TRY(mm_cuda_take(c, 2 * (size_t)n, &r));
        p.r_out = (uint16_t *)r;
        p.mode = BRANCH_ROUND;
        MM_TRY(launch(c, n_row, &p));
        MM_TRY(c->comm->all_reduce(c->comm, c->stream, r, MM_DTYPE_BF16, n));
        p.rounded = (const uint16_t *)r;
    }
    p.mode = BRANCH_END;
    return launch(c, n_row, &p);
}

mm_status mm_cuda_branch_sum_store(const mm_op_context *c, int32_t n_row, const mm_branch_sum *sum,
                                   float *acc)
{
    mm_branch_args p = {};
    p.sum = *sum;
    p.d = c->shape->d_model;
    p.mode = BRANCH_STORE;
    p.acc_out = acc;
    return launch(c, n_row, &p);
}

mm_status mm_cuda_branch_end(const mm_op_context *c, int32_t n_row, const float *y, void *x,
                             const float *norm_w, void *h)
{
    mm_branch_sum sum = {};
    sum.acc = y;
    return mm_cuda_branch_sum_end(c, n_row, &sum, x, norm_w, h);
}
