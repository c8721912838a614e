/* gemv.h: up to 8 rows of x times packed weights (frag.h): the inner part of linear_small.cu and
 * moe_small.cu.
 *
 * Eight warps share a row tile (16 rows of W) or several: n_in is cut into 1..8 slices, a number
 * that follows from format and width alone, so that a row's bits never depend on how many rows
 * there are; warp = slice + n_slice * (row tile of the block). A warp streams its slice of one row
 * tile after the other through a ring in shared memory of its own (cp.async, about 2 KB a stage),
 * so it waits for nobody but at the sums over slices, every MM_GEMV_HELD row tiles, and the loads
 * of the next row tiles never stop. Its slice of x lies in shared memory too, also its own. Loads
 * of weights may begin before mm_pdl_wait. */
#ifndef MM_CUDA_GEMV_H
#define MM_CUDA_GEMV_H
#include "kernels/cuda/frag_decode.h"
#include "kernels/cuda/kernels.h"

#define MM_GEMV_WARPS 8
#define MM_GEMV_ROWS 8 /* rows of x at once: the n of an mma */

/* A stage: some fragments of a row tile and their scales. */
template <int FORMAT> struct mm_gemv_stage;
template <> struct mm_gemv_stage<MM_WEIGHT_BF16> {
    enum { FRAGS = 4, COLS = 64, SCALE = 0, BYTES = 2048 };
};
template <> struct mm_gemv_stage<MM_WEIGHT_MXFP8> {
    enum { FRAGS = 4, COLS = 128, SCALE = 16, BYTES = 2048 + 64 };
};
template <> struct mm_gemv_stage<MM_WEIGHT_NVFP4> {
    enum { FRAGS = 3, COLS = 192, SCALE = 64, BYTES = 1536 + 192 }; /* 384, 768, 6144 divide */
};
template <> struct mm_gemv_stage<MM_WEIGHT_F32> {
    enum { FRAGS = 6, COLS = 32, SCALE = 0, BYTES = 3072 };
};

/* A packed matrix as kernels see it. */
typedef struct mm_gemv_matrix {
    const uint8_t *frag, *scale;
    int64_t tile_bytes, tile_scales; /* of a row tile */
    int32_t format, n_tile, n_frag, n_in;
    int32_t n_stage, n_slice; /* of a row tile; slice s: stages [s n_stage / n_slice, (s + 1) ...)
                               */
} mm_gemv_matrix;

static inline int32_t mm_gemv_cols(mm_weight_format f)
{
    return f == MM_WEIGHT_NVFP4 ? 192 : f == MM_WEIGHT_MXFP8 ? 128 : f == MM_WEIGHT_BF16 ? 64 : 32;
}
static inline int32_t mm_gemv_stage_bytes(mm_weight_format f)
{
    return f == MM_WEIGHT_NVFP4   ? (int32_t)mm_gemv_stage<MM_WEIGHT_NVFP4>::BYTES
           : f == MM_WEIGHT_MXFP8 ? (int32_t)mm_gemv_stage<MM_WEIGHT_MXFP8>::BYTES
           : f == MM_WEIGHT_BF16  ? (int32_t)mm_gemv_stage<MM_WEIGHT_BF16>::BYTES
                                  : (int32_t)mm_gemv_stage<MM_WEIGHT_F32>::BYTES;
}
/* n_tile: row tiles of the matrix, or of one expert. */
static inline mm_gemv_matrix mm_gemv_matrix_of(const mm_weight *w, int32_t n_tile)
{
    mm_gemv_matrix m = {};
    m.frag = (const uint8_t *)w->data;
    m.scale = w->scale;
    m.tile_bytes = w->data_stride;
    m.tile_scales = w->scale_stride;
    m.format = (int32_t)w->format;
    m.n_tile = n_tile;
    m.n_frag = (int32_t)(w->data_stride / MM_FRAG_BYTES);
    m.n_in = (int32_t)w->n_in;
    const int32_t cols = mm_gemv_cols(w->format);
    m.n_stage = (m.n_in + cols - 1) / cols;
    m.n_slice = 8;
    while (m.n_slice > 1 && m.n_stage < 2 * m.n_slice)
        m.n_slice /= 2;
    return m;
}
/* Elements of a row of x in a warp's shared memory, padded so that ldmatrix meets every bank once.
 */
static inline int32_t mm_gemv_x_pitch(const mm_gemv_matrix *m)
{
    return (m->n_stage + m->n_slice - 1) / m->n_slice * mm_gemv_cols((mm_weight_format)m->format) +
           8;
}
/* Bytes of x of a warp: n_x rows. */
static inline size_t mm_gemv_x_bytes(const mm_gemv_matrix *m, int32_t n_x)
{
    return 2 * (size_t)n_x * (size_t)mm_gemv_x_pitch(m);
}
/* Sums of the slices of row tiles, kept for some row tiles before they are added up: a barrier for
 * every row tile would make all warps wait for the one that adds and stores. */
#define MM_GEMV_HELD 4 /* row tiles of a warp */
static inline size_t mm_gemv_sum_bytes(const mm_gemv_matrix *m, int32_t n_iter)
{
    return m->n_slice == 1
               ? 0
               : (size_t)(n_iter < MM_GEMV_HELD ? n_iter : MM_GEMV_HELD) * MM_GEMV_WARPS * 512;
}

/* ---------------------------------------------------------------- a warp's stream */

/* Where a thread's warp stands. tile(i) = tile0 + i * tile_step, i < n_iter, its own row tiles. */
typedef struct mm_gemv_warp {
    uint8_t *ring;         /* [STAGES, BYTES] */
    uint16_t *x;           /* [n_x, pitch] */
    int lane, slice, part; /* part: row tile among those of the block */
    int stage0, n_stage;   /* of the slice */
    int tile0, tile_step, n_iter;
    /* next to load: places of the lane's own bytes, and fragments of the row tile from there on */
    int load_iter, load_stage, load_slot, load_left;
    const uint8_t *src, *src_scale;
} mm_gemv_warp;

template <int FORMAT> MM_DEV_FN void mm_gemv_seek(const mm_gemv_matrix &m, mm_gemv_warp &w);

template <int FORMAT>
MM_DEV_FN mm_gemv_warp mm_gemv_begin(const mm_gemv_matrix &m, uint8_t *ring, uint8_t *x, int tile0,
                                     int tile_step, int n_iter)
{
    const int warp = (int)threadIdx.x / 32;
    mm_gemv_warp w;
    w.ring = ring;
    w.x = (uint16_t *)(void *)x;
    w.lane = (int)threadIdx.x % 32;
    w.slice = warp % m.n_slice;
    w.part = warp / m.n_slice;
    w.stage0 = w.slice * m.n_stage / m.n_slice;
    w.n_stage = (w.slice + 1) * m.n_stage / m.n_slice - w.stage0;
    w.tile0 = tile0 + w.part;
    w.tile_step = tile_step;
    w.n_iter = n_iter;
    w.load_iter = w.load_slot = 0;
    w.src_scale = NULL;
    mm_gemv_seek<FORMAT>(m, w);
    return w;
}

/* Places of the first stage of row tile load_iter; a row tile that does not exist has no fragments.
 */
template <int FORMAT> MM_DEV_FN void mm_gemv_seek(const mm_gemv_matrix &m, mm_gemv_warp &w)
{
    typedef mm_gemv_stage<FORMAT> S;
    const int tile = w.tile0 + w.load_iter * w.tile_step;
    const int64_t at = tile < m.n_tile ? tile : 0;
    w.load_stage = 0;
    w.load_left = tile < m.n_tile ? m.n_frag - w.stage0 * S::FRAGS : 0;
    w.src = m.frag + at * m.tile_bytes + w.stage0 * (S::FRAGS * MM_FRAG_BYTES) + w.lane * 16;
    if (S::SCALE != 0)
        w.src_scale = m.scale + at * m.tile_scales + w.stage0 * (S::FRAGS * S::SCALE) + w.lane * 16;
}

/* Starts the copy of the next stage, if there is one; does not commit. */
template <int FORMAT, int STAGES>
MM_DEV_FN void mm_gemv_load(const mm_gemv_matrix &m, mm_gemv_warp &w)
{
    typedef mm_gemv_stage<FORMAT> S;
    if (w.load_iter < w.n_iter) {
        uint8_t *dst = w.ring + w.load_slot * S::BYTES + w.lane * 16;
#pragma unroll
        for (int f = 0; f < S::FRAGS; f++)
            mm_cp_async16(dst + f * MM_FRAG_BYTES, w.src + f * MM_FRAG_BYTES, f < w.load_left);
        if (S::SCALE != 0 && w.lane < S::FRAGS * S::SCALE / 16)
            mm_cp_async16(dst + S::FRAGS * MM_FRAG_BYTES, w.src_scale,
                          w.lane * 16 < w.load_left * S::SCALE);
        w.src += S::FRAGS * MM_FRAG_BYTES;
        w.src_scale += S::FRAGS * S::SCALE;
        w.load_left -= S::FRAGS;
        if (++w.load_stage == w.n_stage) {
            w.load_iter++;
            mm_gemv_seek<FORMAT>(m, w);
        }
    }
    if (++w.load_slot == STAGES)
        w.load_slot = 0;
}

/* The warp's slice of n_x rows of x: row(i) gives the address of row i. Commits everything that was
 * started so far as one group. */
template <typename Row>
MM_DEV_FN void mm_gemv_load_x(const mm_gemv_matrix &m, const mm_gemv_warp &w, int cols, int pitch,
                              int n_x, Row row)
{
    const int n = w.n_stage * cols / 8, first = w.stage0 * cols;
    for (int r = 0; r < n_x; r++) {
        const uint16_t *src = row(r);
        for (int i = w.lane; i < n; i += 32) {
            const bool valid = first + i * 8 < m.n_in;
            mm_cp_async16(w.x + r * pitch + i * 8, valid ? src + first + i * 8 : src, valid);
        }
    }
    mm_cp_async_commit();
}

/* What a lane takes out of a stage. */
template <int FORMAT> struct mm_gemv_codes {
    uint4 frag[mm_gemv_stage<FORMAT>::FRAGS];
    uint2 scale[mm_gemv_stage<FORMAT>::SCALE == 0 ? 1 : mm_gemv_stage<FORMAT>::FRAGS];
};

template <int FORMAT>
MM_DEV_FN void mm_gemv_take(const uint8_t *stage, int lane, mm_gemv_codes<FORMAT> &c)
{
    typedef mm_gemv_stage<FORMAT> S;
#pragma unroll
    for (int f = 0; f < S::FRAGS; f++) {
        c.frag[f] = *(const uint4 *)(const void *)(stage + f * MM_FRAG_BYTES + lane * 16);
        const uint8_t *scale = stage + S::FRAGS * MM_FRAG_BYTES + f * S::SCALE;
        if (FORMAT == MM_WEIGHT_NVFP4)
            c.scale[f] = *(const uint2 *)(const void *)(scale + lane / 4 * 8);
        else if (FORMAT == MM_WEIGHT_MXFP8)
            c.scale[f] = make_uint2(scale[lane / 4], scale[lane / 4 + 8]);
    }
}

/* Products of step STEP of a stage: d += W x. */
template <int FORMAT>
MM_DEV_FN void mm_gemv_step(const mm_gemv_codes<FORMAT> &c, int step, const uint32_t b[2],
                            float d[4])
{
    uint32_t a[4];
    if (FORMAT == MM_WEIGHT_NVFP4) {
        const uint4 v = c.frag[step / 4];
        const int s = step % 4;
        const uint2 scale = c.scale[step / 4];
        const uint32_t codes = s == 0 ? v.x : s == 1 ? v.y : s == 2 ? v.z : v.w;
        /* the two steps of a pair share these */
        const uint32_t two = mm_frag_scale_two(scale.x, s / 2);
        const uint32_t two_8 = mm_frag_scale_two(scale.y, s / 2);
        if (s % 2 == 0)
            mm_frag_nvfp4_half<0>(codes, two, two_8, a);
        else
            mm_frag_nvfp4_half<1>(codes, two, two_8, a);
        mm_mma_bf16(d, a, b);
    } else if (FORMAT == MM_WEIGHT_MXFP8) {
        const uint4 v = c.frag[step / 2];
        const uint2 scale = c.scale[step / 2];
        mm_frag_mxfp8(step % 2 == 0 ? make_uint2(v.x, v.y) : make_uint2(v.z, v.w), scale.x, scale.y,
                      a);
        mm_mma_bf16(d, a, b);
    } else {
        const int parts = FORMAT == MM_WEIGHT_F32 ? 3 : 1;
#pragma unroll
        for (int i = 0; i < parts; i++) {
            const uint4 v = c.frag[step * parts + i];
            a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
            mm_mma_bf16(d, a, b);
        }
    }
}

/* Adds the slices of the row tiles of iterations first .. first + n - 1, in order of the slices,
 * and hands them out; each warp takes some of the row tiles. */
template <typename Emit>
MM_DEV_FN void mm_gemv_add_up(const mm_gemv_matrix &m, const mm_gemv_warp &w, const float *sum,
                              int first, int n, Emit emit)
{
    const int per = MM_GEMV_WARPS / m.n_slice; /* row tiles of the block side by side */
    for (int j = (int)threadIdx.x / 32; j < n * per; j += MM_GEMV_WARPS) {
        const int i = j / per, part = j % per;
        const int tile = w.tile0 - w.part + part + (first + i) * w.tile_step;
        const float *at = sum + (i * MM_GEMV_WARPS + part * m.n_slice) * 128 + w.lane * 4;
        float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int s = 0; s < m.n_slice; s++) {
            const float4 v = *(const float4 *)(const void *)(at + s * 128);
            d[0] = s == 0 ? v.x : d[0] + v.x, d[1] = s == 0 ? v.y : d[1] + v.y;
            d[2] = s == 0 ? v.z : d[2] + v.z, d[3] = s == 0 ? v.w : d[3] + v.w;
        }
        if (tile < m.n_tile)
            emit(tile, d);
    }
}

/* CHAINS: sums that take turns, added at the end: products that do not wait for each other. After
 * STAGES loads, mm_pdl_wait and mm_gemv_load_x: streams the warp's row tiles; emit(tile, d)
 * is called by one warp for every row tile of the block with the finished sums (mma layout). sum:
 * mm_gemv_sum_bytes of the block. All warps of a block come here with the same n_iter. */
template <int FORMAT, int STAGES, int CHAINS, typename Emit>
MM_DEV_FN void mm_gemv_run(const mm_gemv_matrix &m, mm_gemv_warp &w, int pitch, int n_x, float *sum,
                           Emit emit)
{
    typedef mm_gemv_stage<FORMAT> S;
    const int token = w.lane % 8, quarter = w.lane / 8;
    /* rows that do not exist: row 0 again; their columns of the sums are never looked at */
    const uint16_t *x0 = w.x + quarter * 8 + (token < n_x ? token * pitch : 0);
    mm_cp_async_wait<0>();
    __syncwarp();
    int slot = 0;
    for (int i = 0; i < w.n_iter; i++) {
        float d[4] = {0.0f, 0.0f, 0.0f, 0.0f}, odd[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        const uint16_t *x = x0;
        for (int k = 0; k < w.n_stage; k++) {
            mm_cp_async_wait<STAGES - 1>();
            __syncwarp(); /* scales come from other lanes' copies */
            mm_gemv_codes<FORMAT> c;
            mm_gemv_take<FORMAT>(w.ring + slot * S::BYTES, w.lane, c);
            __syncwarp(); /* all have read before the slot is filled again */
            mm_gemv_load<FORMAT, STAGES>(m, w);
            mm_cp_async_commit();
#pragma unroll
            for (int p = 0; p < S::COLS / 32; p++) {
                uint32_t b[4];
                mm_ldmatrix_x4(b, x + p * 32);
                mm_gemv_step<FORMAT>(c, 2 * p, b, d);
                mm_gemv_step<FORMAT>(c, 2 * p + 1, b + 2, CHAINS == 2 ? odd : d);
            }
            x += S::COLS;
            if (++slot == STAGES)
                slot = 0;
        }
        if (CHAINS == 2)
            d[0] += odd[0], d[1] += odd[1], d[2] += odd[2], d[3] += odd[3];
        if (m.n_slice == 1) {
            const int tile = w.tile0 + i * w.tile_step;
            if (tile < m.n_tile)
                emit(tile, d);
            continue;
        }
        const int held = i % MM_GEMV_HELD, warp = (int)threadIdx.x / 32;
        *(float4 *)(void *)(sum + (held * MM_GEMV_WARPS + warp) * 128 + w.lane * 4) =
            make_float4(d[0], d[1], d[2], d[3]);
        if (held == MM_GEMV_HELD - 1 || i + 1 == w.n_iter) {
            __syncthreads();
            mm_gemv_add_up(m, w, sum, i - held, held + 1, emit);
            if (i + 1 < w.n_iter)
                __syncthreads(); /* the sums' places are used again */
        }
    }
}

/* ---------------------------------------------------------------- results */

typedef struct mm_gemv_out {
    int32_t kind;  /* mm_out_kind */
    int32_t n_out; /* rows of W; GATE_UP: of gate and up */
    void *y;
    int64_t y_stride;
    float alpha, beta, limit; /* SwiGLU */
} mm_gemv_out;

MM_DEV_FN float mm_gemv_swiglu(const mm_gemv_out &o, float g, float u)
{
    g = g > o.limit ? o.limit : g; /* comparisons keep a NaN one */
    u = u > o.limit ? o.limit : u < -o.limit ? -o.limit : u;
    return (u + o.beta) * g * (1.0f / (1.0f + expf(-(o.alpha * g))));
}

/* Sums of a row tile and 8 rows of x to y; row(n): row of y of column n; lo, hi: factors of rows
 * 0..7 and 8..15. */
template <typename Row>
MM_DEV_FN void mm_gemv_store(const mm_gemv_out &o, int tile, const float d[4], int n_token, Row row,
                             float lo, float hi)
{
    const int g = (int)(threadIdx.x % 32) / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int n = 2 * t + j;
        if (n >= n_token)
            continue;
        const int64_t at = row(n) * o.y_stride;
        const float a = d[j] * lo, b = d[2 + j] * hi;
        if (o.kind == MM_OUT_SWIGLU) {
            const int r = tile * 8 + g;
            if (2 * r < o.n_out)
                ((uint16_t *)o.y)[at + r] = mm_f32_bf16(mm_gemv_swiglu(o, a, b));
            continue;
        }
        const int r = tile * 16 + g;
        if (o.kind == MM_OUT_F32) {
            if (r < o.n_out)
                ((float *)o.y)[at + r] = a;
            if (r + 8 < o.n_out)
                ((float *)o.y)[at + r + 8] = b;
        } else {
            if (r < o.n_out)
                ((uint16_t *)o.y)[at + r] = mm_f32_bf16(a);
            if (r + 8 < o.n_out)
                ((uint16_t *)o.y)[at + r + 8] = mm_f32_bf16(b);
        }
    }
}

/* What moe_small.cu and head.cu ask of linear_small.cu beyond kernels.h: rows of x by index (NULL:
 * in order). */
mm_status mm_cuda_linear_gather(const mm_op_context *c, const mm_weight *w, const void *x,
                                int64_t x_stride, const int32_t *row, int32_t n_row,
                                mm_out_kind kind, void *y, int64_t y_stride);
/* 9 .. 64 rows: linear_mid.cu */
mm_status mm_cuda_linear_mid(const mm_op_context *c, const mm_gemv_matrix *m, const float *global,
                             const float factor[2], const uint16_t *x, int64_t x_stride,
                             const int32_t *row, int32_t n_row, const mm_gemv_out *out);
size_t mm_cuda_linear_mid_scratch(int64_t n_out); /* of the widest matrix */
#endif
