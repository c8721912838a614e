/* router_sm90a.cu: logits of more than 64 rows with wgmma. A block has 128 experts, a warp 16 of
 * them, and 64 rows of h: the gate passes as f32 through a ring in shared memory beside h and is
 * split into its three bf16 parts (router.h) by the lane that multiplies, so it is read once for 64
 * rows, and h once. A block walks over all columns, or, where rows are few, over one slice. Sums
 * are those of router.cu in the same order: a chain of six products, then additions in f32. */
#include "kernels/cuda/router.h"
#include "kernels/cuda/wgmma.h"

#define MANY_ROWS 64
#define MANY_EXPERTS 128
#define MANY_THREADS 256
#define MANY_COLS 64 /* of a stage: two pieces; three stages are two groups */
#define MANY_STAGES 5
#define MANY_GATE (MANY_EXPERTS * MANY_COLS * 4) /* bytes */
#define MANY_H (MANY_ROWS * MANY_COLS * 2)
#define MANY_BYTES (MANY_GATE + MANY_H)
#define MANY_PER_SLICE (ROUTER_COLS / MANY_COLS)

/* What a thread copies of a stage: 16-byte pieces of some experts and rows. */
typedef struct mm_many_source {
    const float *gate; /* its first piece of stage 0 */
    const uint16_t *h;
    uint32_t has_gate, has_h; /* bit j: the expert or row of its piece j exists */
} mm_many_source;

enum {
    MANY_GATE_STEP = MANY_THREADS / 16, /* experts between pieces of a thread */
    MANY_H_STEP = MANY_THREADS / 8,
    MANY_GATE_PIECES = MANY_EXPERTS / MANY_GATE_STEP,
    MANY_H_PIECES = MANY_ROWS / MANY_H_STEP
};

MM_DEV_FN mm_many_source many_source(const mm_router_args &a, int e0, int row0)
{
    const int e = e0 + (int)threadIdx.x / 16, row = row0 + (int)threadIdx.x / 8;
    mm_many_source s;
    s.gate = a.gate + (int64_t)e * a.d + (int)threadIdx.x % 16 * 4;
    s.h = a.h + (int64_t)row * a.d + (int)threadIdx.x % 8 * 8;
    s.has_gate = s.has_h = 0;
#pragma unroll
    for (int j = 0; j < MANY_GATE_PIECES; j++)
        s.has_gate |= (uint32_t)(e + j * MANY_GATE_STEP < a.n_expert) << j;
#pragma unroll
    for (int j = 0; j < MANY_H_PIECES; j++)
        s.has_h |= (uint32_t)(row + j * MANY_H_STEP < a.n_row) << j;
    return s;
}

/* Stage `at` of the gate: rows of 256 bytes in units of 32, unit u of expert e at u ^ (e % 8). */
MM_DEV_FN void many_load_gate(const mm_router_args &a, const mm_many_source &s, uint8_t *stage,
                              int at)
{
    const int e = (int)threadIdx.x / 16, c = (int)threadIdx.x % 16, col = at * MANY_COLS;
    const uint32_t has = col + c * 4 < a.d ? s.has_gate : 0;
    uint8_t *to = stage + e * 256 + ((c / 2) ^ (e % 8)) * 32 + c % 2 * 16;
#pragma unroll
    for (int j = 0; j < MANY_GATE_PIECES; j++) {
        const bool valid = (has >> j & 1) != 0;
        mm_cp_async16(to + j * MANY_GATE_STEP * 256,
                      valid ? s.gate + (col + j * MANY_GATE_STEP * a.d) : a.gate, valid);
    }
}
/* Of h: rows of 128 bytes as wgmma wants them. */
MM_DEV_FN void many_load_h(const mm_router_args &a, const mm_many_source &s, uint8_t *stage, int at)
{
    const int r = (int)threadIdx.x / 8, c = (int)threadIdx.x % 8, col = at * MANY_COLS;
    const uint32_t has = col + c * 8 < a.d ? s.has_h : 0;
    uint8_t *to = stage + MANY_GATE + r * 128 + (c ^ (r % 8)) * 16;
#pragma unroll
    for (int j = 0; j < MANY_H_PIECES; j++) {
        const bool valid = (has >> j & 1) != 0;
        mm_cp_async16(to + j * MANY_H_STEP * 128, valid ? s.h + (col + j * MANY_H_STEP * a.d) : a.h,
                      valid);
    }
}

/* Operand A of a piece: two steps of three parts. */
MM_DEV_FN void many_operand(const uint8_t *stage, int piece, uint32_t out[ROUTER_STEPS][3][4])
{
    const int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    const uint8_t *row = stage + (warp * 16 + g) * 256 + 8 * t;
#pragma unroll
    for (int s = 0; s < ROUTER_STEPS; s++) {
#pragma unroll
        for (int i = 0; i < 4; i++) { /* row g + 8 (i & 1), columns 2 t + 8 (i >> 1) */
            const int unit = 2 * (ROUTER_STEPS * piece + s) + (i >> 1);
            uint32_t part[3];
            router_split(
                *(const float2 *)(const void *)(row + (i & 1) * (8 * 256) + (unit ^ g) * 32), part);
#pragma unroll
            for (int k = 0; k < 3; k++)
                out[s][k][i] = part[k];
        }
    }
}

/* Starts the six products of a piece. */
MM_DEV_FN void many_multiply(const uint32_t a[ROUTER_STEPS][3][4], const uint8_t *h, int piece,
                             float *d)
{
#pragma unroll
    for (int k = 0; k < MANY_ROWS / 2; k++)
        d[k] = 0.0f;
    mm_wgmma_hold<MANY_ROWS / 2>(d);
    mm_wgmma_fence();
#pragma unroll
    for (int s = 0; s < ROUTER_STEPS; s++) {
#pragma unroll
        for (int k = 0; k < 3; k++)
            mm_wgmma_n64(d, a[s][k], h, ROUTER_STEPS * piece + s);
    }
    mm_wgmma_commit();
}

/* sum = v for the first of several, else sum + v. */
MM_DEV_FN void many_add(float *sum, const float *v, bool is_first)
{
#pragma unroll
    for (int k = 0; k < MANY_ROWS / 2; k++)
        sum[k] = is_first ? v[k] : sum[k] + v[k];
}

/* The lane's sums: experts e0 + 16 warp + g, + 8, rows 8 j + 2 t, + 1. stride: of a row of part. */
MM_DEV_FN void many_store(const mm_router_args &a, const float *sum, float *part, int64_t stride,
                          int e0, int row0)
{
    const int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    const int e = e0 + warp * 16 + g;
#pragma unroll
    for (int k = 0; k < MANY_ROWS / 4; k++) {
        const int r = row0 + k / 2 * 8 + 2 * t + k % 2;
        float *to = part + r * stride + e;
        if (r >= a.n_row)
            continue;
        if (e < a.n_expert)
            to[0] = sum[k / 2 * 4 + k % 2];
        if (e + 8 < a.n_expert)
            to[8] = sum[k / 2 * 4 + 2 + k % 2];
    }
}

/* grid (tiles of 64 rows, tiles of 128 experts, 1 or slices), block 256. */
template <bool IS_WHOLE>
static __global__ void __launch_bounds__(MANY_THREADS, 1) mm_router_many(const mm_router_args a)
{
    uint8_t *smem = mm_smem();
    const int row0 = (int)blockIdx.x * MANY_ROWS, e0 = (int)blockIdx.y * MANY_EXPERTS;
    const int slice = (int)blockIdx.z, n_slice = IS_WHOLE ? a.n_slice : 1;
    const int begin = slice * MANY_PER_SLICE, end = begin + n_slice * MANY_PER_SLICE;
    mm_pdl_trigger();
    const mm_many_source source = many_source(a, e0, row0);
#pragma unroll 1
    for (int i = 0; i < MANY_STAGES - 1; i++) /* a slice has more */
        many_load_gate(a, source, smem + i * MANY_BYTES, begin + i);
    mm_pdl_wait();
#pragma unroll 1
    for (int i = 0; i < MANY_STAGES - 1; i++) {
        many_load_h(a, source, smem + i * MANY_BYTES, begin + i);
        mm_cp_async_commit();
    }
    uint32_t op[2][ROUTER_STEPS][3][4];
    float d[MANY_ROWS / 2], group[MANY_ROWS / 2], sum[MANY_ROWS / 2], logit[MANY_ROWS / 2];
#pragma unroll
    for (int k = 0; k < MANY_ROWS / 2; k++)
        logit[k] = 0.0f;
    int at = begin, slot = 0;
    mm_cp_async_wait<MANY_STAGES - 2>();
    __syncthreads();
    many_operand(smem, 0, op[0]);
#pragma unroll 1
    for (int s = 0; s < n_slice; s++) {
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int i = 0; i < 3; i++) {
                mm_cp_async_wait<MANY_STAGES - 3>();
                mm_proxy_fence();
                __syncthreads(); /* this stage and the next are there, the last is done with */
                const int next = at + MANY_STAGES - 1;
                if (next < end) {
                    uint8_t *to = smem + (slot == 0 ? MANY_STAGES - 1 : slot - 1) * MANY_BYTES;
                    many_load_gate(a, source, to, next);
                    many_load_h(a, source, to, next);
                }
                mm_cp_async_commit();
                const uint8_t *stage = smem + slot * MANY_BYTES, *h = stage + MANY_GATE;
                slot = slot == MANY_STAGES - 1 ? 0 : slot + 1;
                const uint8_t *after = at + 1 < end ? smem + slot * MANY_BYTES : stage;
#pragma unroll
                for (int p = 0; p < 2; p++) {
                    many_multiply(op[p], h, p, d);
                    many_operand(p == 0 ? stage : after, 1 - p, op[1 - p]); /* meanwhile */
                    mm_wgmma_wait<0>();
                    mm_wgmma_hold<MANY_ROWS / 2>(d);
                    many_add(group, d, (2 * i + p) % ROUTER_PIECES == 0);
                    if ((2 * i + p) % ROUTER_PIECES == ROUTER_PIECES - 1)
                        many_add(sum, group, half == 0 && i < 2);
                }
                at++;
            }
        }
        if (IS_WHOLE)
            many_add(logit, sum, false);
    }
    mm_cp_async_wait<0>();
    if (IS_WHOLE)
        many_store(a, logit, a.part, a.n_expert, e0, row0);
    else
        many_store(a, sum, a.part + (int64_t)slice * a.n_expert, (int64_t)a.n_slice * a.n_expert,
                   e0, row0);
}

static int32_t n_tile(int32_t n, int32_t tile)
{
    return (n + tile - 1) / tile;
}

bool mm_router_many_is_whole(const mm_op_context *c, int32_t n_row)
{
    const int32_t n = n_tile(n_row, MANY_ROWS) * n_tile(c->shape->n_expert, MANY_EXPERTS);
    return 2 * n > mm_cuda_of(c)->n_sm;
}

mm_status mm_router_many_sm90a(const mm_op_context *c, const mm_router_args *a, bool is_whole)
{
    const dim3 grid((unsigned)n_tile(a->n_row, MANY_ROWS),
                    (unsigned)n_tile(a->n_expert, MANY_EXPERTS),
                    is_whole ? 1u : (unsigned)a->n_slice);
    const size_t smem = MANY_STAGES * MANY_BYTES;
    return is_whole ? mm_launch(c, "router_many", mm_router_many<true>, grid, dim3(MANY_THREADS),
                                smem, *a)
                    : mm_launch(c, "router_many", mm_router_many<false>, grid, dim3(MANY_THREADS),
                                smem, *a);
}
