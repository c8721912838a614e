/* linear_thin_sm90a.cu: y = x W^T for 9 to 64 rows of thin MXFP8 matrices: all of W that a warp
 * multiplies with, its slice of one row tile, is on its way to the warp's registers before the
 * kernel waits, so shared memory is left to x, which comes as a whole, once. wgmma, A decoded a few
 * steps ahead.
 *
 * The slices of n_in (gemv.h) are warp groups of a block, or blocks of a cluster: their sums meet
 * in shared memory, where each warp takes some of them from all slices, adds them in order and
 * stores them. So nothing passes through memory, and nobody waits for a last block. */
#include "kernels/cuda/linear_mid.h"

/* NT: n8 tiles of rows. GROUPS: of four row tiles, a warp each. SLICES: of the block; STAGES of
 * each. */
template <int NT, int GROUPS, int SLICES, int STAGES> struct mm_thin {
    enum {
        TILES = 4 * GROUPS,
        SIDE = 32 * TILES, /* threads of a slice */
        THREADS = SIDE * SLICES,
        HALVES = 2 * STAGES, /* of 64 columns */
        HALF = NT * 8 * 128, /* bytes of x */
        X = HALVES * HALF,   /* of a slice, then its sums [TILES, NT, 32] float4 */
        STEP = SIDE / 8,     /* rows of x at once, 16 bytes a thread */
        N_ROW = NT * 8 / STEP,
        PER = STAGES > 3 ? 2 : 1,        /* halves that are waited for together */
        AHEAD = HALVES < 4 ? HALVES : 4, /* halves that are decoded */
        FRAGS = 4 * STAGES
    };
};

typedef mm_gemv_stage<MM_WEIGHT_MXFP8> thin_stage;

template <int STAGES> struct mm_thin_codes {
    uint4 frag[4 * STAGES];
    uint32_t scale[(STAGES + 1) / 2]; /* bytes of a slice's scales in the order of the lanes */
};

/* The warp's slice of a row tile. Ordinary loads: ptxas moves .nc ones behind the kernel's wait. */
template <int STAGES>
MM_DEV_FN void thin_load(const mm_gemv_matrix &m, int tile, int slice, mm_thin_codes<STAGES> &c)
{
    const int lane = (int)threadIdx.x % 32;
    const int64_t row = tile < m.n_tile ? tile : 0;
    const uint8_t *src =
        m.frag + row * m.tile_bytes + slice * (STAGES * 4 * MM_FRAG_BYTES) + lane * 16;
    const uint8_t *scale =
        m.scale + row * m.tile_scales + slice * (STAGES * 4 * thin_stage::SCALE) + lane * 4;
#pragma unroll
    for (int i = 0; i < (STAGES + 1) / 2; i++) {
        c.scale[i] = 0;
        if (i * 128 + lane * 4 < STAGES * 4 * thin_stage::SCALE)
            c.scale[i] = *(const uint32_t *)(const void *)(scale + i * 128);
    }
#pragma unroll
    for (int f = 0; f < 4 * STAGES; f++)
        c.frag[f] = *(const uint4 *)(const void *)(src + f * MM_FRAG_BYTES);
}

/* Operand A of half h: four steps. Scale r of fragment f is byte 16 f + r of the slice's. */
template <int STAGES>
MM_DEV_FN void thin_decode(const mm_thin_codes<STAGES> &c, int h, uint32_t a[4][4])
{
    const int g = (int)threadIdx.x % 32 / 4;
    const uint32_t byte = 0x4440u | (uint32_t)(g % 4);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int f = 2 * h + i, from = f % 8 * 4 + g / 4;
        const uint32_t lo = __shfl_sync(0xFFFFFFFFu, c.scale[f / 8], from);
        const uint32_t hi = __shfl_sync(0xFFFFFFFFu, c.scale[f / 8], from + 2);
        const uint32_t scale = mm_prmt(lo, 0, byte), scale_8 = mm_prmt(hi, 0, byte);
        const uint4 v = c.frag[f];
        mm_frag_mxfp8(make_uint2(v.x, v.y), scale, scale_8, a[2 * i]);
        mm_frag_mxfp8(make_uint2(v.z, v.w), scale, scale_8, a[2 * i + 1]);
    }
}

/* Until at most n groups are on their way, n known to the compiler. */
MM_DEV_FN void thin_wait(int n)
{
    switch (n) {
    case 0:
        return mm_cp_async_wait<0>();
    case 1:
        return mm_cp_async_wait<1>();
    case 2:
        return mm_cp_async_wait<2>();
    case 3:
        return mm_cp_async_wait<3>();
    case 4:
        return mm_cp_async_wait<4>();
    default:
        return mm_cp_async_wait<5>();
    }
}

/* grid (cluster, row groups), block THREADS. Warp w: slice w / TILES of the block's, row tile w %
 * TILES. CLUSTER: the blocks of a cluster have the slices of the same row tiles. */
template <int NT, int GROUPS, int SLICES, int STAGES, bool CLUSTER>
static __global__ void __launch_bounds__(mm_thin<NT, GROUPS, SLICES, STAGES>::THREADS, 1)
    mm_linear_thin(const mm_mid_args p)
{
    typedef mm_thin<NT, GROUPS, SLICES, STAGES> M;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int own = warp / M::TILES, rank = (int)blockIdx.x, slice = rank * SLICES + own;
    const int tile0 = (int)blockIdx.y * M::TILES;
    uint8_t *smem = mm_smem(), *x = smem + own * M::X;
    mm_pdl_trigger();
    mm_thin_codes<STAGES> codes;
    thin_load<STAGES>(p.m, tile0 + warp % M::TILES, slice, codes);
    mm_pdl_wait();
    {
        const int r0 = (int)threadIdx.x % M::SIDE / 8, piece = (int)threadIdx.x % 8;
        const uint16_t *src[M::N_ROW]; /* or NULL: such columns of the sums are never looked at */
#pragma unroll
        for (int j = 0; j < M::N_ROW; j++) {
            const int r = r0 + j * M::STEP;
            const int64_t row = r < p.n_row && p.row != NULL ? p.row[r] : r;
            src[j] = r < p.n_row
                         ? p.x + row * p.x_stride + slice * (STAGES * thin_stage::COLS) + piece * 8
                         : NULL;
        }
        uint8_t *to = x + r0 * 128 + (piece ^ (r0 % 8)) * 16;
#pragma unroll
        for (int h = 0; h < M::HALVES; h++) {
#pragma unroll
            for (int j = 0; j < M::N_ROW; j++) {
                if (src[j] != NULL)
                    mm_cp_async16(to + h * M::HALF + j * M::STEP * 128, src[j] + h * 64, true);
            }
            if (h % M::PER == M::PER - 1)
                mm_cp_async_commit();
        }
    }
    uint32_t a[M::AHEAD][4][4];
#pragma unroll
    for (int h = 0; h < M::AHEAD; h++)
        thin_decode<STAGES>(codes, h, a[h]);
    float d[NT * 4];
#pragma unroll
    for (int k = 0; k < NT * 4; k++)
        d[k] = 0.0f;
    mm_wgmma_hold<NT * 4>(d);
#pragma unroll
    for (int h = 0; h < M::HALVES; h++) {
        if (h % M::PER == 0) {
            thin_wait((M::HALVES - h) / M::PER - 1);
            mm_proxy_fence();
            mm_bar_sync(1 + own, M::SIDE);
        }
        mm_wgmma_fence();
#pragma unroll
        for (int s = 0; s < 4; s++) {
            if (NT == 8)
                mm_wgmma_n64(d, a[h % M::AHEAD][s], x + h * M::HALF, s);
            else
                mm_wgmma_n32(d, a[h % M::AHEAD][s], x + h * M::HALF, s);
        }
        mm_wgmma_commit();
        const int next = h - 1 + M::AHEAD; /* takes the place of the half before */
        if (h > 0 && next < M::HALVES) {
            mm_wgmma_wait<1>();
            thin_decode<STAGES>(codes, next, a[(h - 1) % M::AHEAD]);
        }
    }
    mm_wgmma_wait<0>();
    mm_wgmma_hold<NT * 4>(d);
    const float lo = p.global != NULL ? p.global[0] : p.factor[0];
    const float hi = p.global != NULL ? p.global[1] : p.factor[1];
    if (SLICES == 1 && !CLUSTER) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
            if (tile0 + warp < p.m.n_tile)
                mm_gemv_store(
                    p.out, tile0 + warp, d + n * 4, p.n_row - n * 8,
                    [n](int i) { return (int64_t)(n * 8 + i); }, lo, hi);
        }
        return;
    }
    mm_bar_sync(1 + own, M::SIDE); /* x is done with */
    float4 *sum = (float4 *)(void *)x + warp % M::TILES * (NT * 32) + lane;
#pragma unroll
    for (int n = 0; n < NT; n++)
        sum[n * 32] = make_float4(d[n * 4], d[n * 4 + 1], d[n * 4 + 2], d[n * 4 + 3]);
    if (CLUSTER)
        mm_cluster_sync();
    else
        __syncthreads();
    const int n_rank = CLUSTER ? (int)gridDim.x : 1, n_slice = n_rank * SLICES;
    const int n_warp = n_rank * (M::THREADS / 32);
#pragma unroll 1
    for (int i = rank * (M::THREADS / 32) + warp; i < M::TILES * NT; i += n_warp) {
        const int tile = i % M::TILES, n = i / M::TILES;
        if (tile0 + tile >= p.m.n_tile || n * 8 >= p.n_row)
            continue;
        const uint8_t *at = smem + (tile * NT + n) * 512 + lane * 16;
        float4 v[8]; /* on their way together */
#pragma unroll
        for (int k = 0; k < 8; k++) {
            if (k < n_slice)
                v[k] = CLUSTER ? mm_cluster_ld16(at + k % SLICES * M::X, k / SLICES)
                               : *(const float4 *)(const void *)(at + k * M::X);
        }
        float total[4] = {v[0].x, v[0].y, v[0].z, v[0].w};
#pragma unroll
        for (int k = 1; k < 8; k++) {
            if (k < n_slice)
                total[0] += v[k].x, total[1] += v[k].y, total[2] += v[k].z, total[3] += v[k].w;
        }
        mm_gemv_store(
            p.out, tile0 + tile, total, p.n_row - n * 8,
            [n](int j) { return (int64_t)(n * 8 + j); }, lo, hi);
    }
    if (CLUSTER) {
        __syncwarp();
        mm_cluster_leave(); /* none ends while its sums are read */
    }
}

template <int NT, int GROUPS, int SLICES, int STAGES, bool CLUSTER>
static mm_status launch(const mm_op_context *c, const mm_thin_way *w, const mm_mid_args *p)
{
    typedef mm_thin<NT, GROUPS, SLICES, STAGES> M;
    const dim3 grid((unsigned)w->cluster, (unsigned)((p->m.n_tile + M::TILES - 1) / M::TILES));
    return mm_launch_cluster(c, "linear_thin", mm_linear_thin<NT, GROUPS, SLICES, STAGES, CLUSTER>,
                             grid, dim3(M::THREADS), (size_t)SLICES * M::X, w->cluster, *p);
}

template <int NT>
static mm_status choose(const mm_op_context *c, const mm_thin_way *w, const mm_mid_args *p)
{
    if (w->slices == 4)
        return launch<NT, 1, 4, 2, false>(c, w, p);
    if (w->cluster == 1)
        return launch<NT, 1, 1, 3, false>(c, w, p);
    if (w->stages == 3)
        return w->groups == 1 ? launch<NT, 1, 1, 3, true>(c, w, p)
                              : launch<NT, 2, 1, 3, true>(c, w, p);
    return w->groups == 1 ? launch<NT, 1, 1, 6, true>(c, w, p) : launch<NT, 2, 1, 6, true>(c, w, p);
}

mm_status mm_linear_thin_sm90a(const mm_op_context *c, int n8, const mm_thin_way *w,
                               const mm_mid_args *p)
{
    return n8 == 4 ? choose<4>(c, w, p) : choose<8>(c, w, p);
}
