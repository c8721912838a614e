/* router.cu: logits of the experts in f32 quality, and the choice.
 *
 * The gate is f32 and h is bf16, so the gate is split into three bf16 parts (24 bits: exact) on its
 * way into the matrix unit: three products a step, sums in f32 in an order that does not depend on
 * the number of rows: pieces of 32 columns, three of them, four such groups a slice of 384, slices.
 * A slice is a block's, so that 128 x 6144 fill the device; slices are added where the choice is
 * made: for one or two rows by the last block to arrive, else by a kernel of one block a row. One
 * or two rows need not even be finished: every block sums and norms them itself (branch_row.h),
 * from L2. Logits of more than 64 rows are router_sm90a.cu's where there is wgmma; where it leaves
 * them finished, the choice is a warp's for each row. */
#include "kernels/cuda/branch.h"
#include "kernels/cuda/branch_row.h"
#include "kernels/cuda/router.h"

#define ROUTER_TILES 4   /* of eight rows, at once */
#define ROUTER_FUSED 2   /* rows up to which the last block chooses */
#define ROUTER_PIECE 512 /* rows whose slices are in scratch at once */
#define ROUTER_MAX_EXPERT MM_CUDA_MAX_EXPERTS
#define ROUTER_MAX_USED 32
#define ROUTER_END_WARPS (ROUTER_GROUPS * ROUTER_PIECES) /* a piece each */

/* What the choice for one row needs in shared memory. key: order of the scores, larger first. */
template <int MAX_EXPERT> struct mm_router_row_of {
    float p[MAX_EXPERT];
    uint32_t key[MAX_EXPERT];
    int32_t id[ROUTER_MAX_USED];
};
typedef mm_router_row_of<ROUTER_MAX_EXPERT> mm_router_row;

#define ROUTER_KEY_NAN 0xFFFFFFFFu /* a NaN logit; 0: no expert, 1: a NaN bias */

MM_DEV_FN uint32_t router_key(float score)
{
    const uint32_t u = __float_as_uint(score);
    return isnan(score) ? 1u : (u >> 31) != 0 ? ~u : u | 0x80000000u;
}

/* Probability and key of expert e. */
template <typename Row> MM_DEV_FN void router_rate(int e, float logit, float bias, Row *row)
{
    const float p = 1.0f / (1.0f + expf(-logit));
    row->p[e] = p;
    row->key[e] = isnan(logit) ? ROUTER_KEY_NAN : router_key(p + bias);
}

/* Probabilities and keys of row t from the sums of its slices, by all threads of the block. */
MM_DEV_FN void router_score(const mm_router_args &a, int64_t t, mm_router_row *row)
{
    for (int e = (int)threadIdx.x; e < a.n_expert; e += (int)blockDim.x) {
        const float *part = a.part + t * a.n_slice * a.n_expert + e;
        const float bias = a.bias != NULL ? a.bias[e] : 0.0f;
        float sum = 0.0f;
        for (int s0 = 0; s0 < a.n_slice; s0 += 16) {
            float v[16];
#pragma unroll
            for (int s = 0; s < 16; s++)
                v[s] = s0 + s < a.n_slice ? __ldcg(part + (int64_t)(s0 + s) * a.n_expert) : 0.0f;
#pragma unroll
            for (int s = 0; s < 16; s++)
                sum += v[s]; /* absent slices add +0: the same for every row */
        }
        router_rate(e, sum, bias, row);
    }
}

/* The choice for row t by one warp. Lane l has the experts PER l .. PER l + PER - 1, so the lowest
 * lane with the best key has the lowest id. */
template <int PER, typename Row>
MM_DEV_FN void router_choose(const mm_router_args &a, int64_t t, Row *row)
{
    const int lane = (int)threadIdx.x % 32, e0 = lane * PER;
    uint32_t key[PER], most = 0;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        key[i] = e0 + i < a.n_expert ? row->key[e0 + i] : 0;
        most = key[i] > most ? key[i] : most;
    }
    const bool is_nan = __reduce_max_sync(0xFFFFFFFFu, most) == ROUTER_KEY_NAN;
    if (a.force) {
        if (lane < a.n_used)
            row->id[lane] = a.experts[t * a.n_used + lane];
    } else {
        uint32_t taken = 0; /* bit i: expert e0 + i */
        if (is_nan) {
#pragma unroll
            for (int i = 0; i < PER; i++)
                taken |= (uint32_t)(e0 + i < a.n_used) << i;
        }
        for (int k = 0; k < a.n_used && !is_nan; k++) {
            uint32_t best = 0, at = 0;
#pragma unroll
            for (int i = 0; i < PER; i++) {
                if (key[i] > best)
                    best = key[i], at = 1u << i;
            }
            const uint32_t top = __reduce_max_sync(0xFFFFFFFFu, best);
            const uint32_t with = __ballot_sync(0xFFFFFFFFu, best == top);
            if (lane == __ffs((int)with) - 1) {
                taken |= at;
#pragma unroll
                for (int i = 0; i < PER; i++)
                    key[i] = at == 1u << i ? 0 : key[i];
            }
        }
        int place = 0; /* ascending ids */
#pragma unroll
        for (int i = 0; i < PER; i++)
            place += __popc(__ballot_sync(0xFFFFFFFFu, (taken >> i & 1) != 0) & ((1u << lane) - 1));
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if ((taken >> i & 1) != 0)
                row->id[place++] = e0 + i;
        }
    }
    __syncwarp();
    if (lane >= a.n_used)
        return;
    const int32_t mine = row->id[lane];
    float sum = 0.0f;
#pragma unroll 4
    for (int k = 0; k < a.n_used; k++)
        sum += row->p[row->id[k]];
    if (!a.force)
        a.experts[t * a.n_used + lane] = mine;
    a.weights[t * a.n_used + lane] = is_nan ? mm_f32_bits(0x7FC00000u) : row->p[mine] / sum;
}

MM_DEV_FN void router_choose_any(const mm_router_args &a, int64_t t, mm_router_row *row)
{
    if (a.n_expert <= 128)
        router_choose<4>(a, t, row);
    else
        router_choose<32>(a, t, row);
}

/* One or two rows: true in the block that is the last whose first warp has written its part of the
 * logits, and which makes the choice. All threads. */
MM_DEV_FN bool router_is_last(const mm_router_args &a)
{
    __shared__ uint32_t is_last;
    if (threadIdx.x < 32) {
        __syncwarp();
        if (threadIdx.x == 0) {
            is_last = mm_atomic_add_acq_rel(a.counter, 1u) == gridDim.x * gridDim.y - 1;
            if (is_last != 0)
                *a.counter = 0;
        }
    }
    __syncthreads();
    return is_last != 0;
}

MM_DEV_FN void router_finish(const mm_router_args &a, mm_router_row *row)
{
    for (int r = 0; r < a.n_row; r++)
        router_score(a, r, row + r);
    __syncthreads();
    const int warp = (int)threadIdx.x / 32;
    if (warp < a.n_row)
        router_choose_any(a, warp, row + warp);
}

/* Rows g and g + 8 of a tile of 16 experts, one piece: operand A of its steps, in three parts. */
typedef struct mm_router_gate {
    uint32_t part[ROUTER_STEPS][3][4];
} mm_router_gate;

typedef struct mm_router_raw {
    float2 w[ROUTER_STEPS][4];
} mm_router_raw;

MM_DEV_FN void router_load(const mm_router_args &a, int e0, int step0, mm_router_raw *raw)
{
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int s = 0; s < ROUTER_STEPS; s++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int e = e0 + g + 8 * (i & 1), col = (step0 + s) * 16 + 2 * t + 8 * (i >> 1);
            raw->w[s][i] = make_float2(0.0f, 0.0f);
            if (e < a.n_expert && col < a.d)
                raw->w[s][i] = *(const float2 *)(const void *)(a.gate + (int64_t)e * a.d + col);
        }
    }
}

MM_DEV_FN void router_split_gate(const mm_router_raw &raw, mm_router_gate *gate)
{
#pragma unroll
    for (int s = 0; s < ROUTER_STEPS; s++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t part[3];
            router_split(raw.w[s][i], part);
#pragma unroll
            for (int k = 0; k < 3; k++)
                gate->part[s][k][i] = part[k];
        }
    }
}

/* The logits of 8 rows over one piece, TILES times: chains that do not wait for each other. */
template <int TILES>
MM_DEV_FN void router_multiply(const mm_router_gate &gate, const uint32_t b[TILES][ROUTER_STEPS][2],
                               float d[TILES][4])
{
#pragma unroll
    for (int n = 0; n < TILES; n++)
        d[n][0] = d[n][1] = d[n][2] = d[n][3] = 0.0f;
#pragma unroll
    for (int s = 0; s < ROUTER_STEPS; s++) {
#pragma unroll
        for (int k = 0; k < 3; k++) {
#pragma unroll
            for (int n = 0; n < TILES; n++)
                mm_mma_bf16(d[n], gate.part[s][k], b[n][s]);
        }
    }
}

MM_DEV_FN float4 router_add(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* Stores a slice's part of 8 rows from row. */
MM_DEV_FN void router_store(const mm_router_args &a, float4 sum, int e0, int slice, int row)
{
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float d[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int e = e0 + g + 8 * (i >> 1);
        const int64_t r = row + 2 * t + (i & 1);
        if (e < a.n_expert && r < a.n_row)
            a.part[(r * a.n_slice + slice) * a.n_expert + e] = d[i];
    }
}

/* Operand B of 8 rows from row: the steps of a piece of h. */
MM_DEV_FN void router_rows(const mm_router_args &a, int step0, int row, uint32_t b[ROUTER_STEPS][2])
{
    const int lane = (int)threadIdx.x % 32, t = lane % 4;
    row += lane / 4;
#pragma unroll
    for (int s = 0; s < ROUTER_STEPS; s++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int col = (step0 + s) * 16 + 2 * t + 8 * i;
            b[s][i] = row < a.n_row && col < a.d
                          ? *(const uint32_t *)(const void *)(a.h + (int64_t)row * a.d + col)
                          : 0;
        }
    }
}

/* grid (tiles of 16 experts, slices, pieces of a.rows rows), block 128: a warp a group. The gate is
 * split before the kernel waits; the rows go by in fours of tiles, all loads of four at once. */
static __global__ void __launch_bounds__(128) mm_router_logits(const mm_router_args a)
{
    __shared__ float4 sum[2][ROUTER_TILES][ROUTER_GROUPS * 32];
    __shared__ mm_router_row choice[ROUTER_FUSED];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int e0 = (int)blockIdx.x * 16, slice = (int)blockIdx.y;
    const int step0 = (slice * ROUTER_GROUPS + warp) * ROUTER_PIECES * ROUTER_STEPS;
    mm_pdl_trigger();
    mm_router_gate gate[ROUTER_PIECES];
    {
        mm_router_raw raw[ROUTER_PIECES];
#pragma unroll
        for (int i = 0; i < ROUTER_PIECES; i++)
            router_load(a, e0, step0 + i * ROUTER_STEPS, &raw[i]);
#pragma unroll
        for (int i = 0; i < ROUTER_PIECES; i++)
            router_split_gate(raw[i], &gate[i]);
    }
    mm_pdl_wait();
    const int first = (int)blockIdx.z * a.rows;
    const int end = a.n_row - first < a.rows ? a.n_row : first + a.rows;
    for (int row = first, turn = 0; row < end; row += ROUTER_TILES * 8, turn ^= 1) {
        uint32_t b[ROUTER_PIECES][ROUTER_TILES][ROUTER_STEPS][2];
#pragma unroll
        for (int i = 0; i < ROUTER_PIECES; i++) {
#pragma unroll
            for (int n = 0; n < ROUTER_TILES; n++)
                router_rows(a, step0 + i * ROUTER_STEPS, row + n * 8, b[i][n]);
        }
        float d[ROUTER_TILES][4];
        float4 total[ROUTER_TILES];
#pragma unroll
        for (int i = 0; i < ROUTER_PIECES; i++) {
            router_multiply<ROUTER_TILES>(gate[i], b[i], d);
#pragma unroll
            for (int n = 0; n < ROUTER_TILES; n++) {
                const float4 v = make_float4(d[n][0], d[n][1], d[n][2], d[n][3]);
                total[n] = i == 0 ? v : router_add(total[n], v);
            }
        }
#pragma unroll
        for (int n = 0; n < ROUTER_TILES; n++)
            sum[turn][n][warp * 32 + lane] = total[n];
        __syncthreads();
        float4 all = sum[turn][warp][lane]; /* warp w: the tile of rows w */
#pragma unroll
        for (int k = 1; k < ROUTER_GROUPS; k++)
            all = router_add(all, sum[turn][warp][k * 32 + lane]);
        router_store(a, all, e0, slice, row + warp * 8);
    }
    if (a.is_fused && router_is_last(a))
        router_finish(a, choice);
}

/* grid n_row, block 128. */
static __global__ void __launch_bounds__(128) mm_router_choice(const mm_router_args a)
{
    __shared__ mm_router_row row;
    mm_pdl_trigger();
    mm_pdl_wait();
    router_score(a, blockIdx.x, &row);
    __syncthreads();
    if (threadIdx.x < 32)
        router_choose_any(a, blockIdx.x, &row);
}

#define ROUTER_WARP_EXPERTS 128 /* of which a warp makes the choice alone */

/* Finished logits of many rows: grid of n_row / 4, block 128, a warp a row. */
static __global__ void __launch_bounds__(128) mm_router_choice_many(const mm_router_args a)
{
    __shared__ mm_router_row_of<ROUTER_WARP_EXPERTS> rows[4];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int64_t t = (int64_t)blockIdx.x * 4 + warp;
    mm_pdl_trigger();
    float bias[ROUTER_WARP_EXPERTS / 32], logit[ROUTER_WARP_EXPERTS / 32];
#pragma unroll
    for (int i = 0; i < ROUTER_WARP_EXPERTS / 32; i++)
        bias[i] = a.bias != NULL && i * 32 + lane < a.n_expert ? a.bias[i * 32 + lane] : 0.0f;
    mm_pdl_wait();
    if (t >= a.n_row)
        return;
#pragma unroll
    for (int i = 0; i < ROUTER_WARP_EXPERTS / 32; i++) {
        const int e = i * 32 + lane;
        logit[i] = e < a.n_expert ? __ldcg(a.part + t * a.n_expert + e) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < ROUTER_WARP_EXPERTS / 32; i++)
        router_rate(i * 32 + lane, logit[i], bias[i], &rows[warp]);
    __syncwarp();
    router_choose<ROUTER_WARP_EXPERTS / 32>(a, t, &rows[warp]);
}

/* ---------------------------------------------------------------- the end of the branch as well */

typedef struct mm_router_end_args {
    const float *y;
    uint16_t *x, *h;
    const float *norm_w;
    float eps;
    int32_t n_thread; /* that own columns: mm_branch_threads(d) */
} mm_router_end_args;

/* grid (tiles of 16 experts, slices), block max(12 warps, n_thread). Every block sums and norms all
 * rows; the blocks of tile 0 write their slice of h, the last block x: all have read it by then.
 * A warp has one piece of the gate: few enough registers that a block fits beside those of the
 * kernel before, and has its gate when that ends. */
template <int ROWS>
static __global__ void __launch_bounds__(MM_BRANCH_THREADS, ROWS == 1 ? 2 : 1)
    mm_router_end(const mm_router_args a, const mm_router_end_args p)
{
    __shared__ float4 sum[ROUTER_END_WARPS * 32];
    __shared__ mm_router_row choice[ROWS];
    __shared__ float warp_sum[ROWS][MM_BRANCH_THREADS / 32];
    __shared__ uint2 slice_h[ROWS][ROUTER_COLS / 4];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int e0 = (int)blockIdx.x * 16, slice = (int)blockIdx.y, col0 = slice * ROUTER_COLS;
    const int first = (int)threadIdx.x * 4, step = p.n_thread * 4;
    const bool is_owner = (int)threadIdx.x < p.n_thread;
    mm_pdl_trigger();
    mm_router_raw raw;
    mm_router_gate gate;
    if (warp < ROUTER_END_WARPS)
        router_load(a, e0, (slice * ROUTER_END_WARPS + warp) * ROUTER_STEPS, &raw);
    float4 w[MM_BRANCH_PIECES], s[ROWS][MM_BRANCH_PIECES];
#pragma unroll
    for (int j = 0; j < MM_BRANCH_PIECES; j++) {
        const int i = first + j * step;
        if (is_owner && i >= col0 && i < col0 + ROUTER_COLS && i < a.d)
            w[j] = *(const float4 *)(const void *)(p.norm_w + i);
    }
    if (warp < ROUTER_END_WARPS)
        router_split_gate(raw, &gate);
    mm_pdl_wait();
    uint2 x[ROWS][MM_BRANCH_PIECES];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int j = 0; j < MM_BRANCH_PIECES; j++) {
            const int i = first + j * step;
            if (!is_owner || i >= a.d)
                continue;
            s[r][j] = *(const float4 *)(const void *)(p.y + (int64_t)r * a.d + i);
            x[r][j] = *(const uint2 *)(const void *)(p.x + (int64_t)r * a.d + i);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float square = 0.0f;
#pragma unroll
        for (int j = 0; j < MM_BRANCH_PIECES; j++) {
            if (is_owner && first + j * step < a.d)
                s[r][j] = mm_branch_add(x[r][j], s[r][j], &square);
        }
        const float scale = mm_branch_scale(square, a.d, p.eps, warp_sum[r]);
#pragma unroll
        for (int j = 0; j < MM_BRANCH_PIECES; j++) {
            const int i = first + j * step;
            if (!is_owner || i < col0 || i >= col0 + ROUTER_COLS || i >= a.d)
                continue;
            const uint2 v = mm_branch_norm(s[r][j], scale, w[j]);
            slice_h[r][(i - col0) / 4] = v;
            if (e0 == 0)
                *(uint2 *)(void *)(p.h + (int64_t)r * a.d + i) = v;
        }
    }
    __syncthreads();
    if (warp < ROUTER_END_WARPS) {
        const int g = lane / 4, t = lane % 4;
        uint32_t b[1][ROUTER_STEPS][2];
#pragma unroll
        for (int k = 0; k < ROUTER_STEPS; k++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int col = (warp * ROUTER_STEPS + k) * 16 + 2 * t + 8 * i;
                b[0][k][i] = g < ROWS && col0 + col < a.d
                                 ? ((const uint32_t *)(const void *)slice_h[g])[col / 2]
                                 : 0;
            }
        }
        float d[1][4];
        router_multiply<1>(gate, b, d);
        sum[warp * 32 + lane] = make_float4(d[0][0], d[0][1], d[0][2], d[0][3]);
    }
    __syncthreads();
    if (warp == 0) {
        float4 all;
#pragma unroll
        for (int k = 0; k < ROUTER_GROUPS; k++) {
            float4 v = sum[k * ROUTER_PIECES * 32 + lane];
#pragma unroll
            for (int i = 1; i < ROUTER_PIECES; i++)
                v = router_add(v, sum[(k * ROUTER_PIECES + i) * 32 + lane]);
            all = k == 0 ? v : router_add(all, v);
        }
        router_store(a, all, e0, slice, 0);
    }
    if (!router_is_last(a))
        return;
    if (is_owner) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int j = 0; j < MM_BRANCH_PIECES; j++) {
                const int i = first + j * step;
                if (i < a.d)
                    *(uint2 *)(void *)(p.x + (int64_t)r * a.d + i) = mm_f32_bf16x4(s[r][j]);
            }
        }
    }
    router_finish(a, choice);
}

static int32_t n_slice(int32_t d)
{
    return (d + ROUTER_COLS - 1) / ROUTER_COLS;
}

static size_t part_bytes(const mm_op_shape *s)
{
    const int64_t n = s->max_rows < ROUTER_PIECE ? s->max_rows : ROUTER_PIECE;
    return mm_cuda_size((size_t)n * (size_t)n_slice(s->d_model) * (size_t)s->n_expert *
                        sizeof(float));
}

size_t mm_cuda_branch_scratch(const mm_op_shape *s)
{
    return mm_cuda_size(2 * (size_t)s->max_rows * (size_t)s->d_model) +
           (s->n_expert > 0 ? part_bytes(s) : 0);
}

/* Everything but the rows. */
static mm_status prepare(const mm_op_context *c, const mm_attn_out_args *args, mm_router_args *a)
{
    const mm_op_shape *s = c->shape;
    void *part;
    MM_TRY(mm_cuda_take(c, part_bytes(s), &part));
    a->gate = args->gate;
    a->bias = args->bias;
    a->part = (float *)part;
    a->counter = c->stream->counter;
    a->d = s->d_model;
    a->n_expert = s->n_expert;
    a->n_used = s->n_expert_used;
    a->n_slice = n_slice(s->d_model);
    a->force = args->force;
    return MM_OK;
}

mm_status mm_cuda_router(const mm_op_context *c, int32_t n_row, const mm_attn_out_args *args)
{
    mm_router_args a = {};
    MM_TRY(prepare(c, args, &a));
    const bool is_many = n_row > MM_CUDA_SMALL_ROWS && mm_cuda_of(c)->tier == MM_CUDA_HOPPER;
    const bool is_whole = is_many && mm_router_many_is_whole(c, n_row);
    /* finished logits take the place of one slice */
    const int32_t most = is_whole ? ROUTER_PIECE * a.n_slice : ROUTER_PIECE;
    for (int32_t t = 0; t < n_row; t += most) {
        a.n_row = n_row - t < most ? n_row - t : most;
        a.h = (const uint16_t *)args->h + (int64_t)t * a.d;
        a.experts = args->experts + (int64_t)t * a.n_used;
        a.weights = args->weights + (int64_t)t * a.n_used;
        a.is_fused = !is_many && a.n_row <= ROUTER_FUSED;
        a.rows = a.n_row <= 64 ? 32 : 64; /* more blocks, or the gate read less often */
        if (is_many) {
            MM_TRY(mm_router_many_sm90a(c, &a, is_whole));
        } else {
            const dim3 grid((unsigned)((a.n_expert + 15) / 16), (unsigned)a.n_slice,
                            (unsigned)((a.n_row + a.rows - 1) / a.rows));
            MM_TRY(mm_launch(c, "router_logits", mm_router_logits, grid, dim3(128), 0, a));
        }
        mm_router_args choice = a;
        choice.n_slice = is_whole ? 1 : a.n_slice;
        if (is_whole && a.n_expert <= ROUTER_WARP_EXPERTS)
            MM_TRY(mm_launch(c, "router_choice_many", mm_router_choice_many,
                             dim3((unsigned)((a.n_row + 3) / 4)), dim3(128), 0, choice));
        else if (!a.is_fused)
            MM_TRY(mm_launch(c, "router_choice", mm_router_choice, dim3((unsigned)a.n_row),
                             dim3(128), 0, choice));
    }
    return MM_OK;
}

mm_status mm_cuda_branch_router(const mm_op_context *c, int32_t n_row, const mm_branch_sum *sum,
                                const mm_attn_out_args *args)
{
    const mm_op_shape *s = c->shape;
    if (n_row > ROUTER_FUSED || (c->comm != NULL && c->comm->world > 1) ||
        s->d_model > MM_BRANCH_THREADS * 4 * MM_BRANCH_PIECES) {
        MM_TRY(mm_cuda_branch_sum_end(c, n_row, sum, args->x, args->norm_w, args->h));
        return mm_cuda_router(c, n_row, args);
    }
    mm_router_args a = {};
    MM_TRY(prepare(c, args, &a));
    a.n_row = n_row;
    a.experts = args->experts;
    a.weights = args->weights;
    mm_router_end_args p = {};
    p.y = sum->acc; /* so few rows are never in slices */
    p.x = (uint16_t *)args->x;
    p.h = (uint16_t *)args->h;
    p.norm_w = args->norm_w;
    p.eps = s->eps;
    p.n_thread = mm_branch_threads(s->d_model);
    const dim3 grid((unsigned)((a.n_expert + 15) / 16), (unsigned)a.n_slice);
    const int32_t least = ROUTER_END_WARPS * 32;
    const dim3 block((unsigned)(p.n_thread < least ? least : p.n_thread));
    return n_row == 1 ? mm_launch(c, "router_end", mm_router_end<1>, grid, block, 0, a, p)
                      : mm_launch(c, "router_end", mm_router_end<2>, grid, block, 0, a, p);
}
