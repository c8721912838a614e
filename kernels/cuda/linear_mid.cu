/* linear_mid.cu: y = x W^T for 9 to 64 rows. Here x is the larger part of what a multiprocessor
 * reads, so the eight warps of a block share chunks of it (a stage of gemv.h wide): four row tiles
 * times two halves of the rows of x. Four warps fetch x, four the weights, each through a ring of
 * its own depth: that of the weights is filled before the kernel waits. The slices of n_in, which
 * gemv.h gives to warps of a block, are blocks (their sums meet in scratch, the last block to
 * arrive adds them in order) or, where there are row tiles enough, follow each other in one block.
 * Either way the additions are those of gemv.h in the same order. */
#include "kernels/cuda/gemv.h"

#define MID_TILES 4         /* row tiles of a block */
#define MID_THREADS 256     /* two warps a row tile */
#define MID_SPLIT_BELOW 128 /* row groups from which a block does all slices */

typedef struct mm_mid_args {
    mm_gemv_matrix m;
    mm_gemv_out out;
    const uint16_t *x;
    int64_t x_stride;
    const int32_t *row; /* or NULL */
    int32_t n_row;
    float factor[2];
    const float *global;
    float4 *part;      /* NULL: a block does all slices */
    uint32_t *counter; /* [grid x] */
} mm_mid_args;

/* Shared memory: a ring of x, one of weights; three blocks of 64 rows fit a multiprocessor. */
template <int FORMAT, int NT> struct mm_mid_ring {
    enum {
        PITCH = mm_gemv_stage<FORMAT>::COLS + 8, /* elements of a row of x */
        X = NT * 8 * PITCH * 2,
        W = MID_TILES * mm_gemv_stage<FORMAT>::BYTES,
        X_STAGES = FORMAT == MM_WEIGHT_BF16 ? 3 : 2,
        W_STAGES = FORMAT == MM_WEIGHT_BF16    ? 5
                   : FORMAT == MM_WEIGHT_NVFP4 ? 3
                                               : 4,
        BYTES = X_STAGES * X + W_STAGES * W
    };
};

/* Stage `at` of a row tile, by one warp. */
template <int FORMAT>
MM_DEV_FN void mid_load_w(const mm_mid_args &p, uint8_t *dst, int at, int tile)
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

/* A thread of the 128 that fetch x: pieces of 16 bytes side by side in some rows. Rows that do not
 * exist are row 0 again; their columns of the sums are never looked at. */
template <int FORMAT, int NT> struct mm_mid_rows {
    enum {
        PIECES = mm_gemv_stage<FORMAT>::COLS / 8, /* of a row */
        WIDE = PIECES < 8 ? PIECES : 8,           /* threads of a row */
        STEP = 128 / WIDE,                        /* rows at once */
        N = (NT * 8 + STEP - 1) / STEP
    };
    int32_t row[N];
};

template <int FORMAT, int NT>
MM_DEV_FN void mid_load_x(const mm_mid_args &p, const mm_mid_rows<FORMAT, NT> &rows, uint8_t *dst,
                          int at)
{
    typedef mm_mid_rows<FORMAT, NT> R;
    typedef mm_mid_ring<FORMAT, NT> M;
    const int r0 = (int)threadIdx.x / R::WIDE % R::STEP, piece = (int)threadIdx.x % R::WIDE;
    const int col = at * mm_gemv_stage<FORMAT>::COLS + piece * 8;
    const uint16_t *x = p.x + col;
    dst += (r0 * M::PITCH + piece * 8) * 2;
#pragma unroll
    for (int j = 0; j < R::N; j++) {
        if (NT * 8 % R::STEP != 0 && r0 + j * R::STEP >= NT * 8)
            continue;
        const uint16_t *src = x + rows.row[j] * p.x_stride;
#pragma unroll
        for (int i = 0; i < R::PIECES; i += R::WIDE) {
            const bool valid = col + i * 8 < p.m.n_in;
            mm_cp_async16(dst + (j * R::STEP * M::PITCH + i * 8) * 2, valid ? src + i * 8 : p.x,
                          valid);
        }
    }
}

/* The sums of all slices of a row group, added in order, two n8 tiles at a time. */
template <int NH>
MM_DEV_FN void mid_add_up(const float4 *all, int step, int n_slice, float total[NH][4])
{
    const int pair = NH < 2 ? 1 : 2;
#pragma unroll
    for (int n0 = 0; n0 < NH; n0 += pair) {
        float4 v[pair][8]; /* on their way together; at most 8 slices */
#pragma unroll
        for (int n = 0; n < pair; n++) {
#pragma unroll
            for (int k = 0; k < 8; k++)
                v[n][k] = k < n_slice ? __ldcg(all + k * step + (n0 + n) * MID_THREADS)
                                      : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll
        for (int n = 0; n < pair; n++) {
            float *t = total[n0 + n];
            t[0] = v[n][0].x, t[1] = v[n][0].y, t[2] = v[n][0].z, t[3] = v[n][0].w;
#pragma unroll
            for (int k = 1; k < 8; k++) {
                if (k < n_slice)
                    t[0] += v[n][k].x, t[1] += v[n][k].y, t[2] += v[n][k].z, t[3] += v[n][k].w;
            }
        }
    }
}

/* grid (row groups, slices or 1), block 256. Warp w: row tile blockIdx.x * 4 + w % 4, rows of x
 * from w / 4 * NT * 4. IS_SPLIT: the block has one slice, its sums go through scratch. */
template <int FORMAT, int NT, bool IS_SPLIT>
static __global__ void __launch_bounds__(MID_THREADS, 3) mm_linear_mid(const mm_mid_args p)
{
    typedef mm_gemv_stage<FORMAT> S;
    typedef mm_mid_ring<FORMAT, NT> M;
    typedef mm_mid_rows<FORMAT, NT> R;
    enum { NH = NT / 2, AHEAD_X = M::X_STAGES - 1, AHEAD_W = M::W_STAGES - 1 };
    uint8_t *ring_x = mm_smem(), *ring_w = ring_x + M::X_STAGES * M::X;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int tile0 = (int)blockIdx.x * MID_TILES, mine = warp % MID_TILES, half = warp / MID_TILES;
    const int n_stage = p.m.n_stage, n_slice = p.m.n_slice;
    int slice = (int)blockIdx.y;
    const int begin = IS_SPLIT ? slice * n_stage / n_slice : 0;
    const int end = IS_SPLIT ? (slice + 1) * n_stage / n_slice : n_stage;
    const bool loads_x = warp < MID_TILES;
    if (!loads_x) {
#pragma unroll
        for (int i = 0; i < AHEAD_W; i++) {
            if (begin + i < end)
                mid_load_w<FORMAT>(p, ring_w + i * M::W + mine * S::BYTES, begin + i, tile0 + mine);
            mm_cp_async_commit();
        }
    }
    mm_pdl_wait();
    mm_pdl_trigger();
    R rows;
    if (loads_x) {
#pragma unroll
        for (int j = 0; j < R::N; j++) {
            const int r = (int)threadIdx.x / R::WIDE + j * R::STEP, real = r < p.n_row ? r : 0;
            rows.row[j] = p.row != NULL ? p.row[real] : real;
        }
#pragma unroll
        for (int i = 0; i < AHEAD_X; i++) {
            if (begin + i < end)
                mid_load_x<FORMAT, NT>(p, rows, ring_x + i * M::X, begin + i);
            mm_cp_async_commit();
        }
    }
    float d[NH][4], total[NH][4];
#pragma unroll
    for (int n = 0; n < NH; n++) {
#pragma unroll
        for (int k = 0; k < 4; k++)
            d[n][k] = total[n][k] = 0.0f;
    }
    int next_slice = (slice + 1) * n_stage / n_slice, slot_x = 0, slot_w = 0;
    for (int at = begin; at < end; at++) {
        if (loads_x)
            mm_cp_async_wait<AHEAD_X - 1>();
        else
            mm_cp_async_wait<AHEAD_W - 1>();
        __syncthreads(); /* the stage is there, and the one before it is done with */
        if (loads_x) {
            const int to = slot_x == 0 ? AHEAD_X : slot_x - 1;
            if (at + AHEAD_X < end)
                mid_load_x<FORMAT, NT>(p, rows, ring_x + to * M::X, at + AHEAD_X);
        } else {
            const int to = slot_w == 0 ? AHEAD_W : slot_w - 1;
            if (at + AHEAD_W < end)
                mid_load_w<FORMAT>(p, ring_w + to * M::W + mine * S::BYTES, at + AHEAD_W,
                                   tile0 + mine);
        }
        mm_cp_async_commit();
        mm_gemv_codes<FORMAT> c;
        mm_gemv_take<FORMAT>(ring_w + slot_w * M::W + mine * S::BYTES, lane, c);
        const uint16_t *x = (const uint16_t *)(const void *)(ring_x + slot_x * M::X) +
                            (half * NH * 8 + lane % 8) * M::PITCH + lane / 8 * 8;
#pragma unroll
        for (int s = 0; s < S::COLS / 32; s++) {
            uint32_t b[NH][4]; /* products that follow each other do not wait for each other */
#pragma unroll
            for (int n = 0; n < NH; n++)
                mm_ldmatrix_x4(b[n], x + n * 8 * M::PITCH + s * 32);
#pragma unroll
            for (int n = 0; n < NH; n++)
                mm_gemv_step<FORMAT>(c, 2 * s, b[n], d[n]);
#pragma unroll
            for (int n = 0; n < NH; n++)
                mm_gemv_step<FORMAT>(c, 2 * s + 1, b[n] + 2, d[n]);
        }
        slot_x = slot_x == AHEAD_X ? 0 : slot_x + 1;
        slot_w = slot_w == AHEAD_W ? 0 : slot_w + 1;
        if (!IS_SPLIT && at + 1 == next_slice) {
#pragma unroll
            for (int n = 0; n < NH; n++) {
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    total[n][k] = slice == 0 ? d[n][k] : total[n][k] + d[n][k];
                    d[n][k] = 0.0f;
                }
            }
            slice++;
            next_slice = (slice + 1) * n_stage / n_slice;
        }
    }
    mm_cp_async_wait<0>();
    if (IS_SPLIT) {
        __shared__ uint32_t is_last;
        const int step = NH * MID_THREADS; /* of a row group and slice */
        float4 *to = p.part + ((int64_t)blockIdx.x * n_slice + blockIdx.y) * step + threadIdx.x;
#pragma unroll
        for (int n = 0; n < NH; n++)
            to[n * MID_THREADS] = make_float4(d[n][0], d[n][1], d[n][2], d[n][3]);
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence(); /* of what the block has written: the barrier orders it before */
            is_last = atomicAdd(&p.counter[blockIdx.x], 1u) == (uint32_t)n_slice - 1;
            if (is_last != 0)
                p.counter[blockIdx.x] = 0;
            __threadfence();
        }
        __syncthreads();
        if (is_last == 0)
            return;
        mid_add_up<NH>(p.part + (int64_t)blockIdx.x * n_slice * step + threadIdx.x, step, n_slice,
                       total);
    }
    if (tile0 + mine >= p.m.n_tile)
        return;
    /* the factors are weights too, but reading them here keeps them out of the loop's registers */
    const float lo = p.global != NULL ? p.global[0] : p.factor[0];
    const float hi = p.global != NULL ? p.global[1] : p.factor[1];
#pragma unroll
    for (int n = 0; n < NH; n++) {
        const int row0 = (half * NH + n) * 8;
        mm_gemv_store(
            p.out, tile0 + mine, total[n], p.n_row - row0,
            [row0](int k) { return (int64_t)(row0 + k); }, lo, hi);
    }
}

/* ---------------------------------------------------------------- host */

template <int FORMAT, int NT>
static mm_status launch(const mm_op_context *c, const mm_mid_args *p, int32_t n_group)
{
    const size_t smem = (size_t)mm_mid_ring<FORMAT, NT>::BYTES;
    const dim3 split((unsigned)n_group, (unsigned)p->m.n_slice), whole((unsigned)n_group);
    return p->part != NULL ? mm_launch(c, "linear_mid", mm_linear_mid<FORMAT, NT, true>, split,
                                       dim3(MID_THREADS), smem, *p)
                           : mm_launch(c, "linear_mid", mm_linear_mid<FORMAT, NT, false>, whole,
                                       dim3(MID_THREADS), smem, *p);
}

template <int FORMAT>
static mm_status choose_rows(const mm_op_context *c, const mm_mid_args *p, int32_t n_group)
{
    return p->n_row <= 16   ? launch<FORMAT, 2>(c, p, n_group)
           : p->n_row <= 32 ? launch<FORMAT, 4>(c, p, n_group)
                            : launch<FORMAT, 8>(c, p, n_group);
}

static int32_t groups(int32_t n_tile)
{
    return (n_tile + MID_TILES - 1) / MID_TILES;
}

size_t mm_cuda_linear_mid_scratch(int64_t n_out)
{
    const int64_t n_tile = (n_out + 15) / 16 + MID_TILES, most = MID_SPLIT_BELOW * MID_TILES;
    return mm_cuda_size((size_t)(n_tile < most ? n_tile : most) * 16 * 64 * 8 * sizeof(float));
}

template <int FORMAT> static size_t smem_of_rows(int32_t n_row)
{
    return n_row <= 16   ? (size_t)mm_mid_ring<FORMAT, 2>::BYTES
           : n_row <= 32 ? (size_t)mm_mid_ring<FORMAT, 4>::BYTES
                         : (size_t)mm_mid_ring<FORMAT, 8>::BYTES;
}
static size_t smem_of(int32_t format, int32_t n_row)
{
    return format == MM_WEIGHT_BF16    ? smem_of_rows<MM_WEIGHT_BF16>(n_row)
           : format == MM_WEIGHT_MXFP8 ? smem_of_rows<MM_WEIGHT_MXFP8>(n_row)
           : format == MM_WEIGHT_NVFP4 ? smem_of_rows<MM_WEIGHT_NVFP4>(n_row)
                                       : smem_of_rows<MM_WEIGHT_F32>(n_row);
}

/* As many rows as shared memory allows. */
static mm_status run(const mm_op_context *c, mm_mid_args *p)
{
    const mm_gemv_matrix *m = &p->m;
    const int32_t n8 = p->n_row <= 16 ? 2 : p->n_row <= 32 ? 4 : 8;
    const int32_t n_group = groups(m->n_tile);
    p->part = NULL;
    p->counter = c->stream->counter;
    /* short rows are not worth a trip of their sums through scratch */
    if (m->n_slice > 1 && n_group < MID_SPLIT_BELOW && (m->n_stage > 8 || n_group < 64)) {
        void *part;
        MM_TRY(mm_cuda_take(c,
                            (size_t)n_group * MID_TILES * 16 * (size_t)n8 * 8 * (size_t)m->n_slice *
                                sizeof(float),
                            &part));
        p->part = (float4 *)part;
    }
    switch (m->format) {
    case MM_WEIGHT_BF16:
        return choose_rows<MM_WEIGHT_BF16>(c, p, n_group);
    case MM_WEIGHT_MXFP8:
        return choose_rows<MM_WEIGHT_MXFP8>(c, p, n_group);
    case MM_WEIGHT_NVFP4:
        return choose_rows<MM_WEIGHT_NVFP4>(c, p, n_group);
    default:
        return choose_rows<MM_WEIGHT_F32>(c, p, n_group);
    }
}

mm_status mm_cuda_linear_mid(const mm_op_context *c, const mm_gemv_matrix *m, const float *global,
                             const float factor[2], const uint16_t *x, int64_t x_stride,
                             const int32_t *row, int32_t n_row, const mm_gemv_out *out)
{
    mm_mid_args p = {};
    p.m = *m;
    p.x_stride = x_stride;
    p.factor[0] = factor[0];
    p.factor[1] = factor[1];
    p.global = global;
    int32_t most = 64;
    while (most > 16 && smem_of(m->format, most) > (size_t)mm_cuda_of(c)->smem_max - 1024)
        most /= 2;
    const size_t used = c->stream->scratch_used;
    for (int32_t t = 0; t < n_row; t += most) {
        p.n_row = n_row - t < most ? n_row - t : most;
        p.x = row != NULL ? x : x + t * x_stride;
        p.row = row != NULL ? row + t : NULL;
        p.out = *out;
        p.out.y = (uint8_t *)out->y + t * out->y_stride * (out->kind == MM_OUT_F32 ? 4 : 2);
        c->stream->scratch_used = used;
        MM_TRY(run(c, &p));
    }
    return MM_OK;
}
