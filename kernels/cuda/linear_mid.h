/* linear_mid.h: the kernel of linear_mid.cu: y = x W^T for 9 to 64 rows. Here x is the larger part
 * of what a multiprocessor reads, so a block takes many row tiles (4, 8 or 12) to one share of x, a
 * warp each, and with most of a multiprocessor's shared memory for its ring (5 to 8 stages) it has,
 * where the matrix is thin, all of its weights on their way before the kernel waits. Half of the
 * warps fetch x, half the weights: groups of cp.async are counted by thread.
 *
 * A warp decodes its row tile and multiplies it with all rows of x: with mma.sync, or (sm_90a) with
 * wgmma, where four warps read x once. x lies as rows of 128 bytes, 16-byte chunks swizzled, as
 * wgmma wants it and ldmatrix does without conflicts.
 *
 * The slices of n_in, which gemv.h gives to warps of a block, are blocks (their sums meet in
 * scratch, the last block to arrive adds them in order, or they are left to the reader) or follow
 * each other in one block. Either way the additions are those of gemv.h in the same order. */
#ifndef MM_CUDA_LINEAR_MID_H
#define MM_CUDA_LINEAR_MID_H
#include "kernels/cuda/gemv.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/wgmma.h"

#define MM_MID_MOST_TILES 12 /* row tiles of a block */
#define MM_MID_ANYWHERE 6    /* the same, with a ring that any device has room for */

typedef struct mm_mid_args {
    mm_gemv_matrix m;
    mm_gemv_out out;
    const uint16_t *x;
    int64_t x_stride;
    const int32_t *row; /* or NULL */
    int32_t n_row;
    float factor[2];
    const float *global;
    int32_t n_ring;    /* stages that a block needs at once, at most those of its ring */
    bool is_split;     /* slices are blocks */
    float4 *part;      /* their sums, or NULL: they are the result, out.y [n_slice, n_row, n_out] */
    uint32_t *counter; /* [grid x] */
} mm_mid_args;

/* NT: n8 tiles of rows. TILES: row tiles of a block. */
template <int FORMAT, int NT, int TILES> struct mm_mid {
    typedef mm_gemv_stage<FORMAT> S;
    enum {
        THREADS = TILES * 32,
        HALVES = (S::COLS + 63) / 64, /* of x: tiles of [NT * 8, 64] */
        HALF = NT * 8 * 128,          /* bytes of one */
        X = HALVES * HALF,
        W = TILES * S::BYTES,
        FIT = (226 * 1024) / (X + W),
        STAGES = TILES == MM_MID_ANYWHERE ? 3
                 : FIT > 8                ? 8
                                          : FIT,
        BYTES = STAGES * (X + W),
        /* the half that fetches x: pieces of 16 bytes side by side in some rows */
        PIECES = S::COLS / 8, /* of a row */
        WIDE = PIECES < 8 ? PIECES : 8,
        STEP = THREADS / 2 / WIDE, /* rows at once */
        N_ROW = (NT * 8 + STEP - 1) / STEP
    };
};

/* Stage `at` of row tile `tile`, by one warp. */
template <int FORMAT>
MM_DEV_FN void mm_mid_load_w(const mm_mid_args &p, uint8_t *dst, int at, int tile)
{
    typedef mm_gemv_stage<FORMAT> S;
    const int lane = (int)threadIdx.x % 32;
    const int left = tile < p.m.n_tile ? p.m.n_frag - at * S::FRAGS : 0;
    const int64_t row = tile < p.m.n_tile ? tile : 0;
    const uint8_t *src =
        p.m.frag + row * p.m.tile_bytes + (int64_t)at * (S::FRAGS * MM_FRAG_BYTES) + lane * 16;
#pragma unroll
    for (int f = 0; f < S::FRAGS; f++)
        mm_cp_async16(dst + f * MM_FRAG_BYTES + lane * 16, src + f * MM_FRAG_BYTES, f < left);
    if (S::SCALE != 0 && lane < S::FRAGS * S::SCALE / 16)
        mm_cp_async16(dst + S::FRAGS * MM_FRAG_BYTES + lane * 16,
                      p.m.scale + row * p.m.tile_scales + at * S::FRAGS * S::SCALE + lane * 16,
                      lane * 16 < left * S::SCALE);
}

/* Stage `at` of x, by the threads [0, THREADS / 2). Rows that do not exist are not written: their
 * columns of the sums are never looked at. */
template <int FORMAT, int NT, int TILES>
MM_DEV_FN void mm_mid_load_x(const mm_mid_args &p, const int32_t *row, uint8_t *dst, int at)
{
    typedef mm_mid<FORMAT, NT, TILES> M;
    const int r0 = (int)threadIdx.x / M::WIDE, piece = (int)threadIdx.x % M::WIDE;
    const int col = at * mm_gemv_stage<FORMAT>::COLS + piece * 8;
    const uint16_t *x = p.x + col;
#pragma unroll
    for (int j = 0; j < M::N_ROW; j++) {
        const int r = r0 + j * M::STEP;
        if (row[j] < 0)
            continue;
        const uint16_t *src = x + row[j] * p.x_stride;
        uint8_t *to = dst + r * 128 + (piece ^ (r % 8)) * 16;
#pragma unroll
        for (int i = 0; i < M::PIECES; i += M::WIDE) {
            const bool valid = col + i * 8 < p.m.n_in;
            mm_cp_async16(to + i / 8 * M::HALF, valid ? src + i * 8 : p.x, valid);
        }
    }
}

/* The sums of all slices of a row group, added in order, PAIR n8 tiles at a time. */
template <int NT, int THREADS>
MM_DEV_FN void mm_mid_add_up(const float4 *all, int step, int n_slice, float *total)
{
    enum { PAIR = 2 };
#pragma unroll
    for (int n0 = 0; n0 < NT; n0 += PAIR) {
        float4 v[PAIR][8]; /* on their way together; at most 8 slices */
#pragma unroll
        for (int n = 0; n < PAIR; n++) {
#pragma unroll
            for (int k = 0; k < 8; k++)
                v[n][k] = k < n_slice ? __ldcg(all + k * step + (n0 + n) * THREADS)
                                      : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll
        for (int n = 0; n < PAIR; n++) {
            float *t = total + (n0 + n) * 4;
            t[0] = v[n][0].x, t[1] = v[n][0].y, t[2] = v[n][0].z, t[3] = v[n][0].w;
#pragma unroll
            for (int k = 1; k < 8; k++) {
                if (k < n_slice)
                    t[0] += v[n][k].x, t[1] += v[n][k].y, t[2] += v[n][k].z, t[3] += v[n][k].w;
            }
        }
    }
}

/* Products of a stage with mma.sync: d += W x for all rows of x. */
template <int FORMAT, int NT, int TILES>
MM_DEV_FN void mm_mid_multiply(const mm_gemv_codes<FORMAT> &c, const uint8_t *ring_x, float *d)
{
    typedef mm_mid<FORMAT, NT, TILES> M;
    const int lane = (int)threadIdx.x % 32, r = lane % 8;
    const uint8_t *x = ring_x + r * 128;
    const int even = (lane / 8 ^ r) * 16; /* chunk of the even 32 columns; odd: 4 further */
#pragma unroll
    for (int s = 0; s < mm_gemv_stage<FORMAT>::COLS / 32; s++) {
        const uint8_t *at = x + s / 2 * M::HALF + (s % 2 == 0 ? even : even ^ 64);
        uint32_t b[NT][4]; /* products that follow each other do not wait for each other */
#pragma unroll
        for (int n = 0; n < NT; n++)
            mm_ldmatrix_x4(b[n], at + n * 8 * 128);
#pragma unroll
        for (int n = 0; n < NT; n++)
            mm_gemv_step<FORMAT>(c, 2 * s, b[n], d + n * 4);
#pragma unroll
        for (int n = 0; n < NT; n++)
            mm_gemv_step<FORMAT>(c, 2 * s + 1, b[n] + 2, d + n * 4);
    }
}

/* The same with wgmma, a half of 64 columns at a time, while the next is decoded: up to one half is
 * still being multiplied at the end. a: operands of two halves, in turns. */
template <int FORMAT>
MM_DEV_FN void mm_mid_operand(const mm_gemv_codes<FORMAT> &c, int step, uint32_t a[4])
{
    if (FORMAT == MM_WEIGHT_MXFP8) {
        const uint4 v = c.frag[step / 2];
        const uint2 scale = c.scale[step / 2];
        mm_frag_mxfp8(step % 2 == 0 ? make_uint2(v.x, v.y) : make_uint2(v.z, v.w), scale.x, scale.y,
                      a);
    } else {
        const uint4 v = c.frag[step];
        a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
    }
}
template <int FORMAT, int NT, int TILES>
MM_DEV_FN void mm_mid_multiply_async(const mm_gemv_codes<FORMAT> &c, const uint8_t *ring_x,
                                     uint32_t a[2][4][4], int turn, float *d)
{
    typedef mm_mid<FORMAT, NT, TILES> M;
#pragma unroll
    for (int h = 0; h < M::HALVES; h++) {
        uint32_t(*am)[4] = a[(turn + h) % 2];
#pragma unroll
        for (int s = 0; s < 4; s++)
            mm_mid_operand<FORMAT>(c, 4 * h + s, am[s]);
        mm_wgmma_hold<NT * 4>(d);
        mm_wgmma_fence();
#pragma unroll
        for (int s = 0; s < 4; s++) {
            if (NT == 8)
                mm_wgmma_n64(d, am[s], ring_x + h * M::HALF, s);
            else
                mm_wgmma_n32(d, am[s], ring_x + h * M::HALF, s);
        }
        mm_wgmma_commit();
        mm_wgmma_wait<1>();
        mm_wgmma_hold<NT * 4>(d);
    }
}

/* Finished sums of a row tile to y: mm_gemv_store for all rows of x, one loop a kind. */
template <int NT>
MM_DEV_FN void mm_mid_store(const mm_gemv_out &o, int tile, const float *total, int n_row, float lo,
                            float hi)
{
    const int g = (int)(threadIdx.x % 32) / 4, first = 2 * ((int)threadIdx.x % 4);
    const int r = o.kind == MM_OUT_SWIGLU ? tile * 8 + g : tile * 16 + g;
    const int n_out = o.kind == MM_OUT_SWIGLU ? o.n_out / 2 : o.n_out;
    const bool has_lo = r < n_out, has_hi = r + 8 < n_out;
    const int64_t at = first * o.y_stride + r;
    if (o.kind == MM_OUT_F32) {
        float *y = (float *)o.y + at;
#pragma unroll
        for (int k = 0; k < NT * 2; k++) {
            if (k / 2 * 8 + first + k % 2 >= n_row)
                continue;
            float *to = y + (k / 2 * 8 + k % 2) * o.y_stride;
            if (has_lo)
                to[0] = total[k / 2 * 4 + k % 2] * lo;
            if (has_hi)
                to[8] = total[k / 2 * 4 + 2 + k % 2] * hi;
        }
        return;
    }
    uint16_t *y = (uint16_t *)o.y + at;
#pragma unroll
    for (int k = 0; k < NT * 2; k++) {
        if (k / 2 * 8 + first + k % 2 >= n_row)
            continue;
        const float a = total[k / 2 * 4 + k % 2] * lo, b = total[k / 2 * 4 + 2 + k % 2] * hi;
        uint16_t *to = y + (k / 2 * 8 + k % 2) * o.y_stride;
        if (o.kind == MM_OUT_SWIGLU) {
            if (has_lo)
                to[0] = mm_f32_bf16(mm_gemv_swiglu(o, a, b));
            continue;
        }
        if (has_lo)
            to[0] = mm_f32_bf16(a);
        if (has_hi)
            to[8] = mm_f32_bf16(b);
    }
}

/* grid (row groups, slices or 1), block TILES * 32. Warp w: row tile blockIdx.x * TILES + w. */
template <int FORMAT, int NT, int TILES, bool WGMMA>
static __global__ void __launch_bounds__(mm_mid<FORMAT, NT, TILES>::THREADS, 1)
    mm_linear_mid(const mm_mid_args p)
{
    typedef mm_gemv_stage<FORMAT> S;
    typedef mm_mid<FORMAT, NT, TILES> M;
    /* LAG: stages after which a slot may be filled again, because nobody reads it then. x comes
     * from L2 and by few warps: fewer stages ahead, so that these soon begin to multiply. */
    enum { STAGES = M::STAGES, LAG = WGMMA ? 2 : 1, AHEAD_X = STAGES - LAG < 4 ? STAGES - LAG : 4 };
    uint8_t *ring_x = mm_smem(), *ring_w = ring_x + p.n_ring * M::X;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int tile0 = (int)blockIdx.x * TILES;
    const int n_stage = p.m.n_stage, n_slice = p.m.n_slice;
    const bool loads_x = warp < TILES / 2;
    int slice = (int)blockIdx.y;
    const int begin = p.is_split ? slice * n_stage / n_slice : 0;
    const int end = p.is_split ? (slice + 1) * n_stage / n_slice : n_stage;
    const int load0 = (warp - TILES / 2) * 2; /* two row tiles that the warp fetches */
    mm_pdl_trigger();
    if (!loads_x) {
#pragma unroll 1 /* code that runs once has to be fetched, too */
        for (int i = 0; i < STAGES; i++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                if (begin + i < end)
                    mm_mid_load_w<FORMAT>(p, ring_w + i * M::W + (load0 + j) * S::BYTES, begin + i,
                                          tile0 + load0 + j);
            }
            mm_cp_async_commit();
        }
    }
    mm_pdl_wait();
    int32_t row[M::N_ROW];
    if (loads_x) {
#pragma unroll
        for (int j = 0; j < M::N_ROW; j++) {
            const int r = (int)threadIdx.x / M::WIDE + j * M::STEP;
            row[j] = r >= p.n_row ? -1 : p.row != NULL ? p.row[r] : r;
        }
#pragma unroll 1
        for (int i = 0; i < AHEAD_X; i++) {
            if (begin + i < end)
                mm_mid_load_x<FORMAT, NT, TILES>(p, row, ring_x + i * M::X, begin + i);
            mm_cp_async_commit();
        }
    }
    float d[NT * 4], total[NT * 4];
#pragma unroll
    for (int k = 0; k < NT * 4; k++)
        d[k] = total[k] = 0.0f;
    int next_slice = (slice + 1) * n_stage / n_slice, slot = 0;
    uint32_t a[2][4][4]; /* of wgmma */
#pragma unroll(WGMMA &&M::HALVES % 2 != 0 ? 2 : 1)
    for (int at = begin; at < end; at++) {
        /* the ring of weights is full at first; after LAG stages its last slots are on their way */
        if (loads_x)
            mm_cp_async_wait<AHEAD_X - 1>();
        else if (at >= begin + LAG)
            mm_cp_async_wait<STAGES - 1 - LAG>();
        else if (at > begin)
            mm_cp_async_wait<STAGES - 2>();
        else
            mm_cp_async_wait<STAGES - 1>();
        if (WGMMA)
            mm_proxy_fence();
        __syncthreads(); /* the stage is there, and that LAG before it is done with */
        if (loads_x) {
            const int next = at + AHEAD_X;
            const int to = slot + AHEAD_X < STAGES ? slot + AHEAD_X : slot + AHEAD_X - STAGES;
            if (next < end)
                mm_mid_load_x<FORMAT, NT, TILES>(p, row, ring_x + to * M::X, next);
            mm_cp_async_commit();
        } else if (at >= begin + LAG) {
            const int next = at - LAG + STAGES;
            const int to = slot < LAG ? slot - LAG + STAGES : slot - LAG;
            if (next < end) {
#pragma unroll
                for (int j = 0; j < 2; j++)
                    mm_mid_load_w<FORMAT>(p, ring_w + to * M::W + (load0 + j) * S::BYTES, next,
                                          tile0 + load0 + j);
            }
            mm_cp_async_commit();
        }
        mm_gemv_codes<FORMAT> c;
        mm_gemv_take<FORMAT>(ring_w + slot * M::W + warp * S::BYTES, lane, c);
        if constexpr (WGMMA)
            mm_mid_multiply_async<FORMAT, NT, TILES>(c, ring_x + slot * M::X, a,
                                                     M::HALVES % 2 * (at - begin), d);
        else
            mm_mid_multiply<FORMAT, NT, TILES>(c, ring_x + slot * M::X, d);
        slot = slot == STAGES - 1 ? 0 : slot + 1;
        if (!p.is_split && at + 1 == next_slice) {
            if (WGMMA) {
                mm_wgmma_wait<0>();
                mm_wgmma_hold<NT * 4>(d);
            }
#pragma unroll
            for (int k = 0; k < NT * 4; k++) {
                total[k] = slice == 0 ? d[k] : total[k] + d[k];
                d[k] = 0.0f;
            }
            slice++;
            next_slice = (slice + 1) * n_stage / n_slice;
        }
    }
    if (WGMMA) {
        mm_wgmma_wait<0>();
        mm_wgmma_hold<NT * 4>(d);
    }
    mm_cp_async_wait<0>();
    mm_gemv_out out = p.out;
    if (p.is_split && p.part == NULL) {
        out.y = (float *)out.y + (int64_t)slice * p.n_row * out.y_stride;
#pragma unroll
        for (int k = 0; k < NT * 4; k++)
            total[k] = d[k];
    } else if (p.is_split) {
        __shared__ uint32_t is_last;
        const int step = NT * M::THREADS; /* of a row group and slice */
        float4 *to = p.part + ((int64_t)blockIdx.x * n_slice + blockIdx.y) * step + threadIdx.x;
#pragma unroll
        for (int n = 0; n < NT; n++)
            to[n * M::THREADS] = make_float4(d[n * 4], d[n * 4 + 1], d[n * 4 + 2], d[n * 4 + 3]);
        __syncthreads();
        if (threadIdx.x == 0) {
            is_last = mm_atomic_add_acq_rel(&p.counter[blockIdx.x], 1u) == (uint32_t)n_slice - 1;
            if (is_last != 0)
                p.counter[blockIdx.x] = 0;
        }
        __syncthreads();
        if (is_last == 0)
            return;
        mm_mid_add_up<NT, M::THREADS>(p.part + (int64_t)blockIdx.x * n_slice * step + threadIdx.x,
                                      step, n_slice, total);
    }
    if (tile0 + warp >= p.m.n_tile)
        return;
    /* the factors are weights too, but reading them here keeps them out of the loop's registers */
    const float lo = p.global != NULL ? p.global[0] : p.factor[0];
    const float hi = p.global != NULL ? p.global[1] : p.factor[1];
    mm_mid_store<NT>(out, tile0 + warp, total, p.n_row, lo, hi);
}

/* Launches it in one way: grid as above, n8 tiles NT, row tiles of a block TILES. */
template <int FORMAT, int NT, int TILES, bool WGMMA>
static mm_status mm_mid_launch(const mm_op_context *c, const mm_mid_args *p)
{
    typedef mm_mid<FORMAT, NT, TILES> M;
    const dim3 grid((unsigned)((p->m.n_tile + TILES - 1) / TILES),
                    p->is_split ? (unsigned)p->m.n_slice : 1u);
    return mm_launch(c, WGMMA ? "linear_mid_sm90a" : "linear_mid",
                     mm_linear_mid<FORMAT, NT, TILES, WGMMA>, grid, dim3(M::THREADS),
                     (size_t)p->n_ring * (M::X + M::W), *p);
}

/* linear_mid_sm90a.cu: with wgmma; MXFP8 and BF16, n8 4 or 8, tiles 4, 8 or 12. */
mm_status mm_linear_mid_sm90a(const mm_op_context *c, int n8, int tiles, const mm_mid_args *p);

/* linear_thin_sm90a.cu: how a product is done there. */
typedef struct mm_thin_way {
    int32_t groups;  /* of four row tiles, of a block: 1 or 2 */
    int32_t slices;  /* of a block */
    int32_t stages;  /* of a slice */
    int32_t cluster; /* blocks that have the other slices, or 1 */
} mm_thin_way;
/* n8 4 or 8; p->out is written. */
mm_status mm_linear_thin_sm90a(const mm_op_context *c, int n8, const mm_thin_way *w,
                               const mm_mid_args *p);
#endif
