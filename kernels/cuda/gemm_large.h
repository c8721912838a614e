/* gemm_large.h: products for many rows: y [rows, n_out] = x [rows, n_in] W^T, one matrix or one per
 * group of rows (experts), W packed in fragments (frag.h). This is the kernel of every architecture
 * (mma.sync), and what it shares with Hopper's (gemm_large_sm90a.cu).
 *
 * A block makes 128 weight rows x TOKENS rows of x, TOKENS 128 or 32, in chunks of 64 columns that
 * pass through STAGES buffers filled by cp.async. Weights lie in shared memory as packed bytes and
 * are decoded by the lane that multiplies with them, into the registers of operand A; x lies as
 * [TOKENS, 64] bf16, 16-byte chunks swizzled, and is operand B. Sums are f32 over ascending
 * columns.
 */
#ifndef MM_CUDA_GEMM_LARGE_H
#define MM_CUDA_GEMM_LARGE_H
#include "kernels/cuda/frag.h"
#include "kernels/cuda/frag_decode.h"
#include "kernels/cuda/kernels.h"

#define MM_LARGE_WARPS 8

typedef struct mm_large_args {
    const uint8_t *frag, *scale;
    uint32_t tile_bytes, tile_scale_bytes; /* of a row tile */
    int32_t n_tile;                        /* row tiles of one group */
    int32_t n_frag;                        /* fragments of a row tile */
    int32_t n_in, n_out;                   /* columns of x; rows of one group's matrix */
    const uint16_t *x;
    int64_t x_stride;
    int32_t n_row; /* dense: rows of x and y */
    /* Groups: token tile y is rows [tile_first, tile_end) of the sorted order, of group tile_group
     * (-1: no such tile); sorted row i reads x row gather[i] and writes y row scatter[i] (f32
     * only; NULL: i). Tiles NULL: dense. */
    const int32_t *tile_group, *tile_first, *tile_end, *gather, *scatter;
    const float *decode; /* NVFP4: factor of a group's sums; of GATE_UP two: gate, up. NULL: 1 */
    float decode_one;    /* dense NVFP4: factor of the sums of the matrix (both halves) */
    void *y;
    int64_t y_stride;
    float alpha, beta, limit; /* SwiGLU */
} mm_large_args;

/* STAGES: two blocks on a multiprocessor of sm_90 (113 KB each), one on sm_89 (99 KB). */
template <int FORMAT> struct mm_large_format;
template <> struct mm_large_format<MM_WEIGHT_BF16> {
    enum { FRAGS = 4, SCALE = 0, STAGES = 3 };
};
template <> struct mm_large_format<MM_WEIGHT_MXFP8> {
    enum { FRAGS = 2, SCALE = 16, STAGES = 3 };
};
template <> struct mm_large_format<MM_WEIGHT_NVFP4> {
    enum { FRAGS = 1, SCALE = 64, STAGES = 4 };
};

/* Bytes of a stage: packed weights, their scales, x. Each part is a multiple of 1024. */
template <int FORMAT, int TOKENS> struct mm_large_stage {
    enum {
        A = 8 * mm_large_format<FORMAT>::FRAGS * MM_FRAG_BYTES,
        S = mm_large_format<FORMAT>::SCALE == 0 ? 0 : 1024,
        X = TOKENS * 128,
        BYTES = A + S + X
    };
};

/* One chunk of 64 columns on its way into a stage. Row tiles, fragments, rows and columns that do
 * not exist become zeros. */
template <int FORMAT, int TOKENS>
MM_DEV_FN void mm_large_load(const mm_large_args &p, uint8_t *stage, int chunk, const uint8_t *frag,
                             const uint8_t *scale, int tile0, const int32_t *x_row)
{
    typedef mm_large_format<FORMAT> F;
    typedef mm_large_stage<FORMAT, TOKENS> S;
    const int tid = (int)threadIdx.x;
    for (int i = tid; i < S::A / 16; i += MM_LARGE_WARPS * 32) {
        const int lane = i % 32, f = i / 32 % F::FRAGS, tile = i / (32 * F::FRAGS);
        const int at = chunk * F::FRAGS + f;
        const bool valid = tile0 + tile < p.n_tile && at < p.n_frag;
        const uint8_t *src = frag + (uint32_t)tile * p.tile_bytes + at * MM_FRAG_BYTES + lane * 16;
        mm_cp_async16(stage + i * 16, valid ? src : frag, valid);
    }
    const int n_scale = 8 * F::FRAGS * F::SCALE / 16;
    if (F::SCALE != 0 && tid < n_scale) {
        const int per = F::SCALE == 0 ? 1 : F::SCALE / 16;
        const int f = tid / per % F::FRAGS, tile = tid / (per * F::FRAGS);
        const int at = chunk * F::FRAGS + f;
        const bool valid = tile0 + tile < p.n_tile && at < p.n_frag;
        const uint8_t *src =
            scale + (uint32_t)tile * p.tile_scale_bytes + at * F::SCALE + (tid % per) * 16;
        mm_cp_async16(stage + S::A + tid * 16, valid ? src : scale, valid);
    }
    uint8_t *x = stage + S::A + S::S;
#pragma unroll
    for (int j = 0; j < TOKENS * 8 / (MM_LARGE_WARPS * 32); j++) {
        const int i = tid + j * MM_LARGE_WARPS * 32, row = i / 8, c = i % 8;
        const int col = chunk * 64 + c * 8;
        const bool valid = x_row[j] >= 0 && col < p.n_in;
        mm_cp_async16(x + row * 128 + ((c ^ (row % 8)) * 16),
                      valid ? p.x + (int64_t)x_row[j] * p.x_stride + col : p.x, valid);
    }
}

/* A lane's 16 bytes of a fragment of a stage and the scales of its two rows, row g and row g + 8:
 * MXFP8 one byte each, NVFP4 four (one a step). */
typedef struct mm_large_piece {
    uint4 code;
    uint32_t scale, scale_8;
} mm_large_piece;

template <int FORMAT>
MM_DEV_FN mm_large_piece mm_large_fetch(const uint8_t *stage, const uint8_t *stage_scale, int at,
                                        int lane)
{
    typedef mm_large_format<FORMAT> F;
    mm_large_piece v;
    v.code = *(const uint4 *)(const void *)(stage + at * MM_FRAG_BYTES + lane * 16);
    v.scale = v.scale_8 = 0;
    const uint8_t *scale = stage_scale + at * F::SCALE;
    if (FORMAT == MM_WEIGHT_MXFP8) {
        v.scale = scale[lane / 4];
        v.scale_8 = scale[lane / 4 + 8];
    } else if (FORMAT == MM_WEIGHT_NVFP4) {
        const uint2 both = *(const uint2 *)(const void *)(scale + 8 * (lane / 4));
        v.scale = both.x;
        v.scale_8 = both.y;
    }
    return v;
}

/* Operand A of a step of the fragment. */
template <int FORMAT>
MM_DEV_FN void mm_large_operand(const mm_large_piece &v, int step, uint32_t a[4])
{
    const uint32_t word[4] = {v.code.x, v.code.y, v.code.z, v.code.w};
    if (FORMAT == MM_WEIGHT_BF16) {
        a[0] = word[0], a[1] = word[1], a[2] = word[2], a[3] = word[3];
    } else if (FORMAT == MM_WEIGHT_MXFP8) {
        const uint2 codes = {word[2 * step], word[2 * step + 1]};
        mm_frag_mxfp8(codes, v.scale, v.scale_8, a);
    } else {
        mm_frag_nvfp4(word[step], mm_frag_scale_pair(v.scale, step),
                      mm_frag_scale_pair(v.scale_8, step), a);
    }
}

MM_DEV_FN float mm_large_swiglu(const mm_large_args &p, float g, float u)
{
    g = g > p.limit ? p.limit : g; /* comparisons keep a NaN one */
    u = u > p.limit ? p.limit : u < -p.limit ? -p.limit : u;
    return (u + p.beta) * g * (1.0f / (1.0f + expf(-(p.alpha * g))));
}

/* The factors of a group's sums: of rows g and g + 8 of a row tile (gate, up with SWIGLU). */
typedef struct mm_large_factor {
    float lo, hi;
} mm_large_factor;

template <int KIND> MM_DEV_FN mm_large_factor mm_large_factors(const mm_large_args &p, int group)
{
    mm_large_factor f = {p.decode_one, p.decode_one};
    if (p.decode != NULL) {
        f.lo = p.decode[KIND == MM_OUT_SWIGLU ? 2 * group : group];
        f.hi = KIND == MM_OUT_SWIGLU ? p.decode[2 * group + 1] : f.lo;
    }
    return f;
}

/* Row n of a tile in y. */
MM_DEV_FN int64_t mm_large_row(const mm_large_args &p, int32_t first, int n)
{
    return p.scatter != NULL ? p.scatter[first + n] : first + n;
}

/* One lane's sums of an (m16, n8) piece to y: f32 straight away (32-byte pieces), bf16 by way of
 * shared memory [TOKENS, WIDTH + 8]. token is of the block, row of the block's 128 weight rows. */
template <int KIND, int TOKENS>
MM_DEV_FN void mm_large_store(const mm_large_args &p, const float *d, int row, int token, int row0,
                              int32_t first, int n_token, mm_large_factor f, uint16_t *tile)
{
    const int g = (int)(threadIdx.x % 32) / 4, t = (int)(threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int n = token + 2 * t + j;
        const float lo = d[j] * f.lo, hi = d[2 + j] * f.hi;
        if (KIND == MM_OUT_SWIGLU) {
            tile[n * (64 + 8) + row / 2 + g] = mm_f32_bf16(mm_large_swiglu(p, lo, hi));
        } else if (KIND == MM_OUT_BF16) {
            tile[n * (128 + 8) + row + g] = mm_f32_bf16(lo);
            tile[n * (128 + 8) + row + g + 8] = mm_f32_bf16(hi);
        } else if (n < n_token) {
            float *y = (float *)p.y + mm_large_row(p, first, n) * p.y_stride + row0 + row + g;
            if (row0 + row + g < p.n_out)
                y[0] = lo;
            if (row0 + row + g + 8 < p.n_out)
                y[8] = hi;
        }
    }
}

/* The staged bf16 tile to y, 16 bytes a thread where the rows allow it. */
template <int KIND, int TOKENS>
MM_DEV_FN void mm_large_flush(const mm_large_args &p, const uint16_t *tile, int row0,
                              int64_t y_row0, int n_token)
{
    const int width = KIND == MM_OUT_SWIGLU ? 64 : 128;
    const int n_out = KIND == MM_OUT_SWIGLU ? p.n_out / 2 : p.n_out;
    const int first = KIND == MM_OUT_SWIGLU ? row0 / 2 : row0;
    const bool wide = p.y_stride % 8 == 0 && ((uintptr_t)p.y % 16) == 0;
    for (int i = (int)threadIdx.x; i < TOKENS * width / 8; i += MM_LARGE_WARPS * 32) {
        const int n = i / (width / 8), c = i % (width / 8) * 8;
        if (n >= n_token || first + c >= n_out)
            continue;
        const uint16_t *src = tile + n * (width + 8) + c;
        uint16_t *dst = (uint16_t *)p.y + (y_row0 + n) * p.y_stride + first + c;
        if (wide && first + c + 8 <= n_out) {
            *(uint4 *)(void *)dst = *(const uint4 *)(const void *)src;
        } else {
            for (int k = 0; k < 8 && first + c + k < n_out; k++)
                dst[k] = src[k];
        }
    }
}

/* grid (ceil(n_tile / 8), token tiles), 256 threads, STAGES * BYTES of shared memory (at least what
 * the staged tile needs: see mm_large_smem). */
template <int FORMAT, int KIND, int TOKENS>
static __global__ void __launch_bounds__(256, 2) mm_gemm_large(const mm_large_args p)
{
    typedef mm_large_stage<FORMAT, TOKENS> S;
    enum {
        STAGES = mm_large_format<FORMAT>::STAGES,
        WN = TOKENS == 128 ? 2 : 1,         /* warps along tokens */
        MT = WN,                            /* row tiles of a warp */
        NT = (TOKENS == 128 ? 16 : 4) / MT, /* n8 pieces of a warp and row tile */
        PER_THREAD = TOKENS * 8 / 256,
        FRAGS = mm_large_format<FORMAT>::FRAGS,
        PER = 4 / FRAGS /* steps of a fragment */
    };
    uint8_t *smem = mm_smem();
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int tile0 = (int)blockIdx.x * 8, row0 = tile0 * 16;
    mm_pdl_wait();
    mm_pdl_trigger();
    int group = 0;
    int32_t first = (int32_t)blockIdx.y * TOKENS, end = p.n_row;
    if (p.tile_group != NULL) {
        group = p.tile_group[blockIdx.y];
        if (group < 0)
            return;
        first = p.tile_first[blockIdx.y];
        end = p.tile_end[blockIdx.y];
    }
    const int n_token = end - first < TOKENS ? end - first : TOKENS;
    const uint8_t *frag = p.frag + ((int64_t)group * p.n_tile + tile0) * p.tile_bytes;
    const uint8_t *scale = p.scale + ((int64_t)group * p.n_tile + tile0) * p.tile_scale_bytes;
    int32_t x_row[PER_THREAD];
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++) {
        const int n = ((int)threadIdx.x + j * 256) / 8;
        x_row[j] = n >= n_token ? -1 : p.gather != NULL ? p.gather[first + n] : first + n;
    }
    float acc[MT * NT * 4];
#pragma unroll
    for (int i = 0; i < MT * NT * 4; i++)
        acc[i] = 0.0f;
    const int n_chunk = (p.n_in + 63) / 64;
    /* a stage is filled again two chunks after it was read: by then every warp's products are done
     */
#pragma unroll
    for (int i = 0; i < STAGES - 2; i++) {
        if (i < n_chunk)
            mm_large_load<FORMAT, TOKENS>(p, smem + i * S::BYTES, i, frag, scale, tile0, x_row);
        mm_cp_async_commit();
    }
    const int tile_of = warp / WN * MT, n8_of = warp % WN * NT;
    uint32_t a[MT][4];
    mm_large_piece v[MT];
#pragma unroll 2
    for (int i = 0; i < n_chunk; i++) {
        mm_cp_async_wait<STAGES - 3>();
        __syncthreads();
        const int next = i + STAGES - 2;
        if (next < n_chunk)
            mm_large_load<FORMAT, TOKENS>(p, smem + next % STAGES * S::BYTES, next, frag, scale,
                                          tile0, x_row);
        mm_cp_async_commit();
        const uint8_t *stage = smem + i % STAGES * S::BYTES, *x = stage + S::A + S::S;
#pragma unroll
        for (int s = 0; s < 4; s++) {
#pragma unroll
            for (int m = 0; m < MT; m++) {
                if (s % PER == 0)
                    v[m] = mm_large_fetch<FORMAT>(stage, stage + S::A,
                                                  (tile_of + m) * FRAGS + s / PER, lane);
                mm_large_operand<FORMAT>(v[m], s % PER, a[m]);
            }
#pragma unroll
            for (int j = 0; j < NT; j += 2) { /* two n8 pieces: 16 rows of x, 2 chunks */
                const int n = (n8_of + j) * 8 + lane / 16 * 8 + lane % 8;
                const int c = 2 * s + lane / 8 % 2;
                uint32_t b[4];
                mm_ldmatrix_x4(b, x + n * 128 + ((c ^ (n % 8)) * 16));
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    mm_mma_bf16(acc + (m * NT + j) * 4, a[m], b);
                    mm_mma_bf16(acc + (m * NT + j + 1) * 4, a[m], b + 2);
                }
            }
        }
    }
    mm_cp_async_wait<0>();
    __syncthreads(); /* the stages become the staged tile */
    const mm_large_factor f = mm_large_factors<KIND>(p, group);
    uint16_t *tile = (uint16_t *)(void *)smem;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int j = 0; j < NT; j++)
            mm_large_store<KIND, TOKENS>(p, acc + (m * NT + j) * 4, (tile_of + m) * 16,
                                         (n8_of + j) * 8, row0, first, n_token, f, tile);
    }
    if (KIND == MM_OUT_F32)
        return;
    __syncthreads();
    mm_large_flush<KIND, TOKENS>(p, tile, row0, first, n_token);
}

template <int FORMAT, int TOKENS> static size_t mm_large_smem()
{
    const size_t pipe =
        (size_t)mm_large_format<FORMAT>::STAGES * mm_large_stage<FORMAT, TOKENS>::BYTES;
    const size_t tile = (size_t)TOKENS * (128 + 8) * 2;
    return pipe > tile ? pipe : tile;
}

/* Launches for n_token_tile tiles of rows; by instruction set. Generic: `tokens` (128 or 32) rows a
 * tile; sm_90a: 128. */
mm_status mm_large_generic(const mm_op_context *c, mm_weight_format format, mm_out_kind kind,
                           int tokens, int32_t n_token_tile, const mm_large_args *p);
mm_status mm_large_sm90a(const mm_op_context *c, mm_weight_format format, mm_out_kind kind,
                         int32_t n_token_tile, const mm_large_args *p);
#endif
