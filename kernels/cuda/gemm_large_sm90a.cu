/* gemm_large_sm90a.cu: the products of gemm_large.h on Hopper: wgmma with the decoded weights in
 * registers.
 *
 * A block makes 256 weight rows x 128 rows of x, one block a multiprocessor, tile after tile: what
 * a multiprocessor can draw from L2 is what limits these products, and a tile of this shape needs a
 * third less of it than two of half the size. One warpgroup fills the stages (cp.async: rows of x
 * may be gathered, and what does not exist becomes zero) and runs ahead into the next tile while
 * the other two finish one; these own 128 weight rows each, decode a step of 16 columns of two row
 * tiles a warp while the products of the step before run. Sums are f32 over ascending columns, the
 * same whatever the shape of the tile; a tile of up to 64 or 32 rows of x multiplies no more than
 * these. */
#include "kernels/cuda/gemm_large.h"
#include "kernels/cuda/wgmma.h"

enum {
    WIDE_TILES = 16, /* row tiles of a block */
    WIDE_TOKENS = 128,
    WIDE_LOADERS = 128, /* threads of the warpgroup that fills stages */
    WIDE_THREADS = 3 * 128,
    WIDE_WARPS = 8, /* that multiply */
    /* registers a thread: 168 at launch, moved from the loaders to those that hold sums */
    LOADER_REGISTERS = 88,
    SUM_REGISTERS = 208,
    OUT_TOKENS = 32, /* bf16 results pass through shared memory, so many rows of x at a time */
    OUT_STRIDE = 2 * MM_FRAG_ROWS + 8,
    OUT_BYTES = WIDE_WARPS * OUT_TOKENS * OUT_STRIDE * 2
};

/* A stage: 64 columns of the packed weights, of their scales, of x. */
template <int FORMAT> struct wide_stage {
    enum {
        FRAGS = mm_large_format<FORMAT>::FRAGS,
        SCALE = mm_large_format<FORMAT>::SCALE,
        A = WIDE_TILES * FRAGS * MM_FRAG_BYTES,
        S = SCALE == 0 ? 0 : 1024,
        X = WIDE_TOKENS * 128,
        BYTES = A + S + X,
        STAGES = FORMAT == MM_WEIGHT_NVFP4   ? 8
                 : FORMAT == MM_WEIGHT_MXFP8 ? 6
                                             : 4,
        /* loads a thread has on their way */
        DEEP = STAGES - 2 < 4 ? STAGES - 2 : 4,
        SMEM = STAGES * BYTES + OUT_BYTES + 2 * STAGES * 8
    };
    static_assert(WIDE_TILES * FRAGS * SCALE <= 1024 && BYTES % 1024 == 0, "a stage's parts");
};

template <int FORMAT> struct wide_smem {
    uint8_t *stage;
    uint16_t *out;
    uint64_t *full, *empty; /* [STAGES] */
};

template <int FORMAT> MM_DEV_FN wide_smem<FORMAT> wide_parts(uint8_t *base)
{
    typedef wide_stage<FORMAT> S;
    wide_smem<FORMAT> m;
    m.stage = base;
    m.out = (uint16_t *)(void *)(base + S::STAGES * S::BYTES);
    m.full = (uint64_t *)(void *)(base + S::STAGES * S::BYTES + OUT_BYTES);
    m.empty = m.full + S::STAGES;
    return m;
}

/* Tile i: row tiles first, so that blocks side by side share rows of x. n_token <= 0: neither this
 * tile exists nor any after it. */
struct wide_tile {
    int32_t group, tile0, first, n_token;
};

struct wide_tiles {
    int32_t n_all, n_row_tile;
};

MM_DEV_FN wide_tile wide_find(const mm_large_args &p, const wide_tiles &w, int32_t i)
{
    const int32_t y = i / w.n_row_tile;
    wide_tile t = {0, (i - y * w.n_row_tile) * WIDE_TILES, y * WIDE_TOKENS, 0};
    int32_t end = p.n_row;
    if (i >= w.n_all)
        return t;
    if (p.tile_group != NULL) { /* three loads at once; those of no group say nothing */
        t.group = p.tile_group[y];
        t.first = p.tile_first[y];
        end = p.tile_end[y];
    }
    const int32_t n = t.group < 0 ? 0 : end - t.first;
    t.n_token = n < WIDE_TOKENS ? n : (int32_t)WIDE_TOKENS;
    return t;
}

/* Rows of x that are multiplied: 32, 64 or 128. */
MM_DEV_FN int wide_width(int n_token)
{
    return n_token <= 32 ? 32 : n_token <= 64 ? 64 : 128;
}

/* ---------------------------------------------------------------- loading */

/* What a loader thread copies of a tile: 16-byte pieces PER_A of the weights, one of the scales,
 * PER_X of x, each piece of a kind a constant distance after the one before. */
template <int FORMAT> struct wide_source {
    enum {
        PER_A = wide_stage<FORMAT>::A / 16 / WIDE_LOADERS,
        TILE_STEP = 4 / wide_stage<FORMAT>::FRAGS, /* row tiles between pieces */
        PER_X = WIDE_TOKENS * 8 / WIDE_LOADERS
    };
    const uint8_t *a, *scale; /* at chunk 0 */
    int n_a;                  /* of the pieces: row tiles that exist */
    int frag, scale_frag;     /* fragment within a chunk */
    bool has_scale;
    const uint16_t *x[PER_X]; /* NULL: no such row */
};

template <int FORMAT>
MM_DEV_FN wide_source<FORMAT> wide_source_of(const mm_large_args &p, const wide_tile &t)
{
    typedef wide_stage<FORMAT> S;
    typedef wide_source<FORMAT> W;
    W s;
    const int tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int64_t tile0 = (int64_t)t.group * p.n_tile + t.tile0;
    const int tile = warp / S::FRAGS, n_left = p.n_tile - t.tile0;
    s.frag = warp % S::FRAGS;
    s.a = p.frag + (tile0 + tile) * p.tile_bytes + s.frag * MM_FRAG_BYTES + lane * 16;
    s.n_a = n_left <= tile ? 0 : (n_left - tile - 1) / W::TILE_STEP + 1;
    s.scale = p.scale;
    s.scale_frag = 0;
    s.has_scale = false;
    if (S::SCALE != 0) {
        enum { PER = S::SCALE < 16 ? 1 : S::SCALE / 16 };
        const int f = tid / PER % S::FRAGS, scale_tile = tid / (PER * S::FRAGS);
        s.scale_frag = f;
        s.has_scale = scale_tile < WIDE_TILES && scale_tile < n_left;
        if (s.has_scale)
            s.scale =
                p.scale + (tile0 + scale_tile) * p.tile_scale_bytes + f * S::SCALE + tid % PER * 16;
    }
#pragma unroll
    for (int j = 0; j < W::PER_X; j++) {
        const int n = tid / 8 + j * (WIDE_LOADERS / 8);
        s.x[j] = NULL;
        if (n < t.n_token) {
            const int64_t row = p.gather != NULL ? p.gather[t.first + n] : t.first + n;
            s.x[j] = p.x + row * p.x_stride + tid % 8 * 8;
        }
    }
    return s;
}

/* n_x: pieces of x that are multiplied. */
template <int FORMAT>
MM_DEV_FN void wide_load(const mm_large_args &p, const wide_source<FORMAT> &s, uint8_t *stage,
                         int chunk, int n_x)
{
    typedef wide_stage<FORMAT> S;
    typedef wide_source<FORMAT> W;
    const int tid = (int)threadIdx.x;
    const bool has_frag = chunk * S::FRAGS + s.frag < p.n_frag;
    const uint8_t *a = s.a + chunk * (S::FRAGS * MM_FRAG_BYTES);
#pragma unroll
    for (int j = 0; j < W::PER_A; j++) {
        const bool valid = has_frag && j < s.n_a;
        mm_cp_async16(stage + (tid + j * WIDE_LOADERS) * 16,
                      valid ? a + (int64_t)j * W::TILE_STEP * p.tile_bytes : p.frag, valid);
    }
    if (S::SCALE != 0 && tid < WIDE_TILES * S::FRAGS * S::SCALE / 16) {
        const bool valid = s.has_scale && chunk * S::FRAGS + s.scale_frag < p.n_frag;
        mm_cp_async16(stage + S::A + tid * 16,
                      valid ? s.scale + chunk * (S::FRAGS * S::SCALE) : p.scale, valid);
    }
    const int row = tid / 8, c = tid % 8;
    const bool has_col = chunk * 64 + c * 8 < p.n_in;
    uint8_t *x = stage + S::A + S::S + row * 128 + ((c ^ (row % 8)) * 16);
#pragma unroll
    for (int j = 0; j < W::PER_X; j++) {
        const bool valid = has_col && s.x[j] != NULL;
        if (j < n_x)
            mm_cp_async16(x + j * (WIDE_LOADERS / 8) * 128, valid ? s.x[j] + chunk * 64 : p.x,
                          valid);
    }
}

template <int FORMAT>
MM_DEV_FN void wide_load_all(const mm_large_args &p, const wide_tiles &w,
                             const wide_smem<FORMAT> &m, int n_chunk)
{
    typedef wide_stage<FORMAT> S;
    int stage = 0, told = 0, n_ahead = 0;
    uint32_t parity = 1; /* of `empty`: the stages begin empty */
    int32_t i = (int32_t)blockIdx.x;
    wide_tile next = wide_find(p, w, i);
    while (next.n_token > 0) {
        const wide_tile t = next; /* the one after it is looked up while this one is loaded */
        i += (int32_t)gridDim.x;
        next = wide_find(p, w, i);
        const wide_source<FORMAT> s = wide_source_of<FORMAT>(p, t);
        const int n_x = wide_width(t.n_token) / (WIDE_LOADERS / 8);
        for (int chunk = 0; chunk < n_chunk; chunk++) {
            mm_mbar_wait(&m.empty[stage], parity);
            wide_load<FORMAT>(p, s, m.stage + stage * S::BYTES, chunk, n_x);
            mm_cp_async_commit();
            if (++stage == S::STAGES)
                stage = 0, parity ^= 1;
            if (n_ahead < S::DEEP) {
                n_ahead++;
                continue;
            }
            mm_cp_async_wait<S::DEEP>();
            mm_proxy_fence(); /* by who wrote, before who multiplies is told */
            mm_mbar_arrive(&m.full[told]);
            told = told + 1 == S::STAGES ? 0 : told + 1;
        }
    }
    mm_cp_async_wait<0>();
    mm_proxy_fence();
    for (; n_ahead > 0; n_ahead--) {
        mm_mbar_arrive(&m.full[told]);
        told = told + 1 == S::STAGES ? 0 : told + 1;
    }
}

/* ---------------------------------------------------------------- multiplying */

/* Where a warpgroup is in the ring of stages. */
struct wide_place {
    int stage;
    uint32_t parity; /* of `full` */
};

template <int N> MM_DEV_FN void wide_wgmma(float *d, const uint32_t a[4], const uint8_t *x, int s)
{
    if (N == 128)
        mm_wgmma_n128(d, a, x, s);
    else if (N == 64)
        mm_wgmma_n64(d, a, x, s);
    else
        mm_wgmma_n32(d, a, x, s);
}

/* acc [2][N / 2]: this lane's sums of the warp's two row tiles, `tile` the first of them. */
template <int FORMAT, int N>
MM_DEV_FN void wide_sum(const wide_smem<FORMAT> &m, wide_place *at, int n_chunk, int tile,
                        float acc[2][64])
{
    typedef wide_stage<FORMAT> S;
    enum { PER = 4 / S::FRAGS }; /* steps of a fragment */
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < 2; k++) {
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            acc[k][i] = 0.0f;
    }
    mm_large_piece v[2];
    uint32_t a[2][2][4];
    int before = -1; /* the stage whose last products may still run */
    for (int chunk = 0; chunk < n_chunk; chunk++) {
        const uint8_t *stage = m.stage + at->stage * S::BYTES, *x = stage + S::A + S::S;
        mm_mbar_wait(&m.full[at->stage], at->parity);
#pragma unroll
        for (int s = 0; s < 4; s++) {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                if (s % PER == 0)
                    v[k] = mm_large_fetch<FORMAT>(stage, stage + S::A,
                                                  (tile + k) * S::FRAGS + s / PER, lane);
                mm_large_operand<FORMAT>(v[k], s % PER, a[s & 1][k]);
            }
            mm_wgmma_fence();
            wide_wgmma<N>(acc[0], a[s & 1][0], x, s);
            wide_wgmma<N>(acc[1], a[s & 1][1], x, s);
            mm_wgmma_commit();
            mm_wgmma_wait<1>(); /* the step before is done with its operands */
            if (s == 0 && before >= 0)
                mm_mbar_arrive(&m.empty[before]);
        }
        before = at->stage;
        if (++at->stage == S::STAGES)
            at->stage = 0, at->parity ^= 1;
    }
    mm_wgmma_wait<0>();
    mm_wgmma_hold<N / 2>(acc[0]);
    mm_wgmma_hold<N / 2>(acc[1]);
    if (before >= 0)
        mm_mbar_arrive(&m.empty[before]);
}

/* ---------------------------------------------------------------- results */

/* Rows of y of a tile's rows of x, those of 32 tokens a register, one a lane. */
struct wide_rows {
    int32_t at[WIDE_TOKENS / 32];
};

MM_DEV_FN wide_rows wide_rows_of(const mm_large_args &p, const wide_tile &t)
{
    wide_rows r;
#pragma unroll
    for (int k = 0; k < WIDE_TOKENS / 32; k++) {
        const int n = 32 * k + (int)threadIdx.x % 32;
        r.at[k] = p.scatter != NULL && n < t.n_token ? p.scatter[t.first + n] : t.first + n;
    }
    return r;
}

/* f32: rows g .. of a lane's eight neighbours are 32 bytes of y. */
template <int N>
MM_DEV_FN void wide_store_f32(const mm_large_args &p, const wide_tile &t, int row,
                              mm_large_factor f, const float acc[2][64])
{
    const int g = (int)threadIdx.x % 32 / 4, n0 = (int)threadIdx.x % 4 * 2;
    const wide_rows rows = wide_rows_of(p, t);
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int n = 8 * j + n0 + i;
            const int32_t at = __shfl_sync(0xFFFFFFFFu, rows.at[j / 4], n % 32);
            if (n >= t.n_token)
                continue;
            float *y = (float *)p.y + at * p.y_stride + row + g;
#pragma unroll
            for (int k = 0; k < 2; k++) {
                if (row + 16 * k + g < p.n_out)
                    y[16 * k] = acc[k][4 * j + i] * f.lo;
                if (row + 16 * k + g + 8 < p.n_out)
                    y[16 * k + 8] = acc[k][4 * j + 2 + i] * f.hi;
            }
        }
    }
}

/* The warp's [OUT_TOKENS, WIDTH] results of rows of x from `n0` on to y, 16 bytes a lane where the
 * rows allow it. */
template <int WIDTH>
MM_DEV_FN void wide_flush(const mm_large_args &p, const wide_tile &t, int n0, int col, int n_col,
                          const uint16_t *out)
{
    const bool wide = p.y_stride % 8 == 0 && (uintptr_t)p.y % 16 == 0;
    for (int i = (int)threadIdx.x % 32; i < OUT_TOKENS * WIDTH / 8; i += 32) {
        const int n = i / (WIDTH / 8), c = i % (WIDTH / 8) * 8;
        if (n0 + n >= t.n_token || col + c >= n_col)
            continue;
        const uint16_t *src = out + n * OUT_STRIDE + c;
        uint16_t *dst = (uint16_t *)p.y + (int64_t)(t.first + n0 + n) * p.y_stride + col + c;
        if (wide && col + c + 8 <= n_col) {
            *(uint4 *)(void *)dst = *(const uint4 *)(const void *)src;
        } else {
            for (int k = 0; k < 8 && col + c + k < n_col; k++)
                dst[k] = src[k];
        }
    }
}

template <int KIND, int N>
MM_DEV_FN void wide_store_bf16(const mm_large_args &p, const wide_tile &t, int row,
                               mm_large_factor f, const float acc[2][64], uint16_t *out)
{
    enum { IS_GLU = KIND == MM_OUT_SWIGLU, WIDTH = IS_GLU ? MM_FRAG_ROWS : 2 * MM_FRAG_ROWS };
    const int g = (int)threadIdx.x % 32 / 4, t2 = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int part = 0; part < N / OUT_TOKENS; part++) {
        if (part * OUT_TOKENS >= t.n_token)
            break;
#pragma unroll
        for (int j = 0; j < OUT_TOKENS / 8; j++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint16_t *to = out + (8 * j + t2 + i) * OUT_STRIDE + g;
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const float *d = acc[k] + 4 * (part * (OUT_TOKENS / 8) + j) + i;
                    const float lo = d[0] * f.lo, hi = d[2] * f.hi;
                    if (IS_GLU) {
                        to[8 * k] = mm_f32_bf16(mm_large_swiglu(p, lo, hi));
                    } else {
                        to[16 * k] = mm_f32_bf16(lo);
                        to[16 * k + 8] = mm_f32_bf16(hi);
                    }
                }
            }
        }
        __syncwarp();
        wide_flush<WIDTH>(p, t, part * OUT_TOKENS, IS_GLU ? row / 2 : row,
                          IS_GLU ? p.n_out / 2 : p.n_out, out);
        __syncwarp();
    }
}

template <int FORMAT, int KIND, int N>
MM_DEV_FN void wide_make(const mm_large_args &p, const wide_smem<FORMAT> &m, const wide_tile &t,
                         wide_place *at, int n_chunk)
{
    const int warp = (int)threadIdx.x / 32 - WIDE_LOADERS / 32, tile = 2 * warp;
    const mm_large_factor f = mm_large_factors<KIND>(p, t.group);
    const int row = (t.tile0 + tile) * MM_FRAG_ROWS;
    float acc[2][64];
    wide_sum<FORMAT, N>(m, at, n_chunk, tile, acc);
    if (KIND == MM_OUT_F32)
        wide_store_f32<N>(p, t, row, f, acc);
    else
        wide_store_bf16<KIND, N>(p, t, row, f, acc, m.out + warp * OUT_TOKENS * OUT_STRIDE);
}

/* ---------------------------------------------------------------- the kernel */

template <int FORMAT, int KIND>
static __global__ void __launch_bounds__(WIDE_THREADS, 1)
    mm_gemm_wide(const mm_large_args p, const wide_tiles w)
{
    typedef wide_stage<FORMAT> S;
    const wide_smem<FORMAT> m = wide_parts<FORMAT>(mm_smem());
    const int n_chunk = (p.n_in + 63) / 64;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            mm_mbar_init(&m.full[i], WIDE_LOADERS);
            mm_mbar_init(&m.empty[i], 32 * WIDE_WARPS);
        }
    }
    __syncthreads();
    mm_pdl_wait();
    mm_pdl_trigger();
    if (threadIdx.x < WIDE_LOADERS) {
        mm_registers_less<LOADER_REGISTERS>();
        wide_load_all<FORMAT>(p, w, m, n_chunk);
        return;
    }
    mm_registers_more<SUM_REGISTERS>();
    wide_place at = {0, 0};
    int32_t i = (int32_t)blockIdx.x;
    wide_tile next = wide_find(p, w, i);
    while (next.n_token > 0) {
        const wide_tile t = next; /* the one after it is looked up while this one is made */
        i += (int32_t)gridDim.x;
        next = wide_find(p, w, i);
        const int width = wide_width(t.n_token);
        if (width == 128)
            wide_make<FORMAT, KIND, 128>(p, m, t, &at, n_chunk);
        else if (width == 64)
            wide_make<FORMAT, KIND, 64>(p, m, t, &at, n_chunk);
        else
            wide_make<FORMAT, KIND, 32>(p, m, t, &at, n_chunk);
    }
}

template <int FORMAT, int KIND>
static mm_status wide_run(const mm_op_context *c, int32_t n_token_tile, const mm_large_args *p)
{
    const int32_t n_row_tile = (p->n_tile + WIDE_TILES - 1) / WIDE_TILES;
    const wide_tiles w = {n_row_tile * n_token_tile, n_row_tile};
    const int32_t n_sm = mm_cuda_of(c)->n_sm;
    return mm_launch(c, "gemm_wide", mm_gemm_wide<FORMAT, KIND>,
                     dim3((unsigned)(w.n_all < n_sm ? w.n_all : n_sm)), dim3(WIDE_THREADS),
                     (size_t)wide_stage<FORMAT>::SMEM, *p, w);
}

template <int FORMAT>
static mm_status wide_kind(const mm_op_context *c, mm_out_kind kind, int32_t n,
                           const mm_large_args *p)
{
    switch (kind) {
    case MM_OUT_BF16:
        return wide_run<FORMAT, MM_OUT_BF16>(c, n, p);
    case MM_OUT_F32:
        return wide_run<FORMAT, MM_OUT_F32>(c, n, p);
    case MM_OUT_SWIGLU:
        break;
    }
    return wide_run<FORMAT, MM_OUT_SWIGLU>(c, n, p);
}

mm_status mm_large_sm90a(const mm_op_context *c, mm_weight_format format, mm_out_kind kind,
                         int32_t n_token_tile, const mm_large_args *p)
{
    if (n_token_tile == 0 || p->n_tile == 0)
        return MM_OK;
    switch (format) {
    case MM_WEIGHT_BF16:
        return wide_kind<MM_WEIGHT_BF16>(c, kind, n_token_tile, p);
    case MM_WEIGHT_MXFP8:
        return wide_kind<MM_WEIGHT_MXFP8>(c, kind, n_token_tile, p);
    default:
        return wide_kind<MM_WEIGHT_NVFP4>(c, kind, n_token_tile, p);
    }
}
