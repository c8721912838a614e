/* attn_page.h: one page (128 keys) of one KV head against a few query heads, by a block of W = 4
 * or 8 warps: the page partial of ops.h. Keys are the M operand of mma m16n8k16, query heads the N
 * operand.
 *
 * S^T [key, head] = K Q^T: each warp one or two tiles of 16 keys; the order of the dims inside the
 * sum is the order in which a lane's 16-byte pieces of a key row lie, for K and Q alike.
 *
 * O^T [dim, head] = V^T P^T: lane 4 g + t takes dims 4 g .. 4 g + 3 of keys 2 t, 2 t + 8, 2 t + 1,
 * 2 t + 9 of every 16, so that codes of V are read as words and P, whose keys g and g + 8 one lane
 * makes, crosses as words; tile i = 0, 1 has dims 4 g + 2 i and + 1 as its rows g and g + 8. Both
 * tiles of 32 dims are one warp's (W = 4) or a tile each (W = 8). Every sum has the same terms in
 * the same order with 4 and with 8 warps.
 *
 * Scores are kept times log2 e, maxima too, so that weights are powers of two.
 *
 * Operands: bf16 beside a bf16 cache. Codes of FP8 and NVFP4 caches are taken as f16, exactly,
 * which one instruction makes of two codes, NaN included; what stands beside them is brought into
 * f16's range by powers of two: a query head by its largest element, P (its bf16 value) by 2^15, so
 * that what is below 2^-32 of the largest is all that may lose bits.
 *
 * Tiles lie raw (in the cache's format) in shared memory, their 16-byte pieces permuted so that
 * both ways of reading are free of bank conflicts. */
#ifndef MM_CUDA_ATTN_PAGE_H
#define MM_CUDA_ATTN_PAGE_H
#include "kernels/cuda/cache.h"

#define MM_PAGE_THREADS 128
#define MM_PAGE_P_STRIDE 144 /* 16-bit elements from head to head of P: 72 words, 8 modulo 32 */

template <int F> static constexpr __host__ __device__ int mm_tile_bytes() /* one plane's tile */
{
    return MM_PAGE * (mm_cache_codes<F>() + mm_cache_scales<F>());
}

/* Where 16-byte piece `piece` of row `row` of a tile lies. */
template <int F, bool is_v> MM_DEV_FN int mm_tile_at(int row, int piece)
{
    const int x = is_v ? (F == MM_CACHE_NVFP4 ? row >> 1 & 3 : (row >> 1 & 3) << 1)
                       : (F == MM_CACHE_NVFP4 ? 0 : (row & 1) << 2);
    return row * mm_cache_codes<F>() + 16 * (piece ^ x);
}

/* Starts the copy (by W warps) of rows [0, n_key) of the page whose row 0 is plane row `first`; the
 * codes behind them become zeros (their scales may be anything). */
template <int F, bool is_v, int W = 4>
MM_DEV_FN void mm_tile_load(uint8_t *tile, const mm_plane &p, int64_t first, int n_key, int thread)
{
    constexpr int n_piece = mm_cache_codes<F>() / 16, step = 32 * W / n_piece;
    static_assert(step % 8 == 0, "rows that one thread takes have their pieces in the same order");
    const int row = (int)((unsigned)thread / n_piece), piece = (int)((unsigned)thread % n_piece);
    const uint8_t *data = mm_cache_data<F>(p, first) + 16 * thread;
    uint8_t *to = tile + mm_tile_at<F, is_v>(row, piece);
#pragma unroll
    for (int i = 0; i < MM_PAGE / step; i++)
        mm_cp_async16(to + i * step * mm_cache_codes<F>(), data + i * 16 * 32 * W,
                      row + i * step < n_key);
    if (F == MM_CACHE_NVFP4 && thread < MM_PAGE / 2)
        mm_cp_async16(tile + MM_PAGE * mm_cache_codes<F>() + 16 * thread,
                      mm_cache_scale<F>(p, first) + 16 * thread, 2 * thread < n_key);
}

/* Writes a row that is in no page into a tile as the cache's format would hold it: a whole warp; x
 * as in mm_cache_encode4. */
template <int F, bool is_v>
MM_DEV_FN void mm_tile_store(uint8_t *tile, int row, int lane, const float x[4])
{
    uint32_t scale;
    const uint2 codes = mm_cache_encode4<F>(x, &scale);
    constexpr int n = mm_cache_codes<F>() / 32; /* bytes of a lane: 8, 4, 2 */
    uint8_t *at = tile + mm_tile_at<F, is_v>(row, lane * n / 16) + lane * n % 16;
    if (F == MM_CACHE_BF16) {
        *(uint2 *)at = codes;
    } else if (F == MM_CACHE_FP8) {
        *(uint32_t *)at = codes.x;
    } else {
        *(uint16_t *)at = (uint16_t)codes.x;
        if (lane % 4 == 0)
            tile[MM_PAGE * mm_cache_codes<F>() + 8 * row + lane / 4] = (uint8_t)scale;
    }
}

/* First dim of the four that step kk = 0..7 of the S product takes from lane t (t = lane % 4). */
template <int F> MM_DEV_FN int mm_step_dim(int t, int kk)
{
    constexpr int n = F == MM_CACHE_BF16 ? 8 : F == MM_CACHE_FP8 ? 16 : 32; /* dims of a piece */
    return (kk / (n / 4) * 4 + t) * n + kk % (n / 4) * 4;
}

/* Lane t's part of a key row in the cache's format: its 16-byte pieces, and (NVFP4) two scales. */
template <int F> struct mm_raw_row {
    static constexpr int n_piece = mm_cache_codes<F>() / 64;
    uint4 piece[n_piece];
    uint32_t scale;
};
template <int F> MM_DEV_FN mm_raw_row<F> mm_row_of_tile(const uint8_t *tile, int row, int t)
{
    mm_raw_row<F> r;
#pragma unroll
    for (int c = 0; c < r.n_piece; c++)
        r.piece[c] = *(const uint4 *)(tile + mm_tile_at<F, false>(row, 4 * c + t));
    r.scale = 0;
    if (F == MM_CACHE_NVFP4)
        r.scale = *(const uint16_t *)(tile + MM_PAGE * mm_cache_codes<F>() + 8 * row + 2 * t);
    return r;
}
template <int F> MM_DEV_FN mm_raw_row<F> mm_row_of_page(const mm_plane &p, int64_t row, int t)
{
    mm_raw_row<F> r;
    const uint8_t *at = mm_cache_data<F>(p, row) + 16 * t;
#pragma unroll
    for (int c = 0; c < r.n_piece; c++)
        r.piece[c] = __ldcg((const uint4 *)(at + 64 * c));
    r.scale = 0;
    if (F == MM_CACHE_NVFP4)
        r.scale = *(const uint16_t *)(mm_cache_scale<F>(p, row) + 2 * t);
    return r;
}

/* Its four values of step kk as operands. */
template <int F>
MM_DEV_FN void mm_row_step(const mm_raw_row<F> &r, int kk, const uint2 *lut, uint32_t out[2])
{
    constexpr int n_step = 8 / r.n_piece; /* of a piece */
    const uint4 v = r.piece[kk / n_step];
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
    if (F == MM_CACHE_BF16) {
        out[0] = w[kk % 2 * 2];
        out[1] = w[kk % 2 * 2 + 1];
    } else if (F == MM_CACHE_FP8) {
        mm_e4m3x4_f16x4(w[kk % 4], out);
    } else {
        const uint2 entry = lut[(kk < 4 ? r.scale : r.scale >> 8) & 0x7Fu];
        mm_e4m3x4_f16x4(mm_e2m1x4_e4m3x4(w[kk / 2] >> 16 * (kk % 2), entry), out);
    }
}
template <int F> MM_DEV_FN void mm_cache_mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    if (F == MM_CACHE_BF16)
        mm_mma_bf16(d, a, b);
    else
        mm_mma_f16(d, a, b);
}
/* Two query elements that are rounded to e4m3, as f16. */
MM_DEV_FN uint32_t mm_query_e4m3(uint32_t q2)
{
    uint32_t out[2];
    mm_e4m3x4_f16x4(mm_f32x2_e4m3x2(mm_bf16_lo(q2), mm_bf16_hi(q2)), out);
    return out[0];
}

/* Where a lane finds V: dims 4 at .. 4 at + 3 (one tile of bf16: dims 4 at + 2 i0, + 1) of row 2 t
 * of a tile. The other rows that it looks at have their pieces in the same order: they lie at
 * constant distances. */
template <int F> struct mm_v_place {
    const uint8_t *code, *scale;
};
template <int F> MM_DEV_FN mm_v_place<F> mm_v_at(const uint8_t *tile, int t, int at, int i0)
{
    constexpr int n = mm_cache_codes<F>() / 32; /* bytes of four dims */
    const uint8_t *code = tile + mm_tile_at<F, true>(2 * t, at * n / 16) + at * n % 16;
    return mm_v_place<F>{code + (F == MM_CACHE_BF16 ? 4 * i0 : 0),
                         tile + MM_PAGE * mm_cache_codes<F>() + 16 * t + at / 4};
}
/* A lane's four keys of 16, after 2 t: 0, 8, 1, 9. */
static constexpr __host__ __device__ int mm_v_row(int k)
{
    return k / 2 + k % 2 * 8;
}
/* V operands of keys 16 ks + 2 t + mm_v_row(0 .. 3), of tiles [i0, i0 + I) of the place. */
template <int F, int I>
MM_DEV_FN void mm_tile_v(const mm_v_place<F> &v, int ks, int t, int i0, int n_key, const uint2 *lut,
                         uint32_t a[I][4])
{
    const uint8_t *code = v.code + 16 * ks * mm_cache_codes<F>();
    if (F == MM_CACHE_BF16) {
        uint32_t x[4][I];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint8_t *row = code + mm_v_row(k) * mm_cache_codes<F>();
            if (I == 2) {
                const uint2 two = *(const uint2 *)row;
                x[k][0] = two.x;
                x[k][I - 1] = two.y;
            } else {
                x[k][0] = *(const uint32_t *)row;
            }
        }
#pragma unroll
        for (int i = 0; i < I; i++) {
            a[i][0] = mm_prmt(x[0][i], x[1][i], 0x5410);
            a[i][1] = mm_prmt(x[0][i], x[1][i], 0x7632);
            a[i][2] = mm_prmt(x[2][i], x[3][i], 0x5410);
            a[i][3] = mm_prmt(x[2][i], x[3][i], 0x7632);
        }
    } else {
        uint32_t c[4]; /* of one key each, as e4m3 */
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int key = 16 * ks + mm_v_row(k);
            const uint8_t *row = code + mm_v_row(k) * mm_cache_codes<F>();
            if (F == MM_CACHE_FP8) {
                c[k] = *(const uint32_t *)row;
            } else {
                c[k] = mm_e2m1x4_e4m3x4(*(const uint16_t *)row, lut[v.scale[8 * key] & 0x7F]);
                c[k] = key + 2 * t < n_key ? c[k] : 0; /* the scale behind may be anything */
            }
        }
#pragma unroll
        for (int i = 0; i < I; i++) { /* bytes: both keys of the first dim, both of the second */
            const uint32_t sel = i0 + i == 0 ? 0x5140u : 0x7362u;
            mm_e4m3x4_f16x4(mm_prmt(c[0], c[1], sel), a[i]);
            mm_e4m3x4_f16x4(mm_prmt(c[2], c[3], sel), a[i] + 2);
        }
    }
}

#define MM_QUERY_STEP                                                                              \
    36 /* 8-byte operands from step to step in shared memory: 8 modulo 32 words                    \
        */
#define MM_QUERY_SCALE 0.12751743159651756f /* log2 e / sqrt(128) */

/* Query operands; scale: what a dot of heads 8 n + 2 t, + 1 is multiplied with, log2 e included. */
template <int NT> struct mm_query {
    uint32_t f[NT][8][2];
    float scale[NT][2];
    __device__ __forceinline__ uint2 operand(int n, int kk) const
    {
        return uint2{f[n][kk][0], f[n][kk][1]};
    }
};
/* The same in shared memory, where registers are short: every warp has the same operands. */
template <int NT> struct mm_query_shared {
    const uint2 *f; /* + lane; [NT][8][STEP] */
    float scale[NT][2];
    __device__ __forceinline__ uint2 operand(int n, int kk) const
    {
        return f[MM_QUERY_STEP * (8 * n + kk)];
    }
};
static constexpr __host__ __device__ int mm_query_bytes(int NT)
{
    return NT * (8 * MM_QUERY_STEP * 8 + 32);
}

/* What elements are multiplied with to become f16: the largest, of magnitude `largest` (as
 * f32 bits), comes to 2^14 .. 2^15; *down: the biased exponent of the inverse. */
MM_DEV_FN float mm_query_up(uint32_t largest, uint32_t *down)
{
    const uint32_t e = largest >> 23; /* 255: infinite or NaN, which it stays */
    *down = e == 255u ? 127u : max(e, 15u) - 14u;
    return mm_f32_bits((254u - *down) << 23);
}

/* Those of `n_head` heads whose vectors lie one after the other at q; heads behind are zero. */
template <int F, int NT>
MM_DEV_FN void mm_query_load(mm_query<NT> *out, const uint16_t *q, int n_head, int lane)
{
    const float scale = MM_QUERY_SCALE;
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const bool is_head = 8 * n + g < n_head;
        const uint16_t *row = q + (8 * n + (is_head ? g : 0)) * MM_CACHE_DIM;
        uint32_t largest = 0; /* magnitude, as the upper half of an f32 */
#pragma unroll
        for (int kk = 0; kk < 8; kk += 2) { /* two steps are 8 dims in a row, in every format */
            const uint4 v =
                is_head ? *(const uint4 *)(row + mm_step_dim<F>(t, kk)) : uint4{0, 0, 0, 0};
            const uint32_t x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                out->f[n][kk + i / 2][i % 2] = F == MM_CACHE_NVFP4 ? mm_query_e4m3(x[i]) : x[i];
                largest = max(largest, max(x[i] << 16 & 0x7FFF0000u, x[i] & 0x7FFF0000u));
            }
        }
        out->scale[n][0] = out->scale[n][1] = scale;
        if (F == MM_CACHE_FP8) { /* the largest element to 2^14 .. 2^15 */
            largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
            largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
            uint32_t down;
            const float up = mm_query_up(largest, &down);
#pragma unroll
            for (int i = 0; i < 16; i++) {
                uint32_t *x = &out->f[n][i / 2][i % 2];
                *x = mm_f32x2_f16x2(mm_bf16_lo(*x) * up, mm_bf16_hi(*x) * up);
            }
#pragma unroll
            for (int c = 0; c < 2; c++)
                out->scale[n][c] =
                    scale * mm_f32_bits(__shfl_sync(0xFFFFFFFFu, down << 23, 4 * (2 * t + c)));
        }
    }
}

/* The operands of mm_query_load to shared memory, a warp per head, seen behind a barrier. */
template <int F, int NT, int W>
MM_DEV_FN void mm_query_store(const uint16_t *q, int n_head, uint8_t *smem, int thread)
{
    const int lane = thread % 32;
    float *scale = (float *)((uint2 *)smem + NT * 8 * MM_QUERY_STEP); /* [8 NT] */
    /* dims 4 lane .. + 3 are those of step kk of lanes t */
    constexpr int n = F == MM_CACHE_BF16 ? 8 : F == MM_CACHE_FP8 ? 16 : 32; /* as mm_step_dim */
    const int piece = 4 * lane / n, t = piece % 4, kk = piece / 4 * (n / 4) + lane % (n / 4);
#pragma unroll
    for (int head = thread / 32; head < 8 * NT; head += W) {
        uint2 x = {0, 0};
        if (head < n_head)
            x = ((const uint2 *)(q + head * MM_CACHE_DIM))[lane];
        float s = MM_QUERY_SCALE;
        if (F == MM_CACHE_NVFP4) {
            x = uint2{mm_query_e4m3(x.x), mm_query_e4m3(x.y)};
        } else if (F == MM_CACHE_FP8) {
            uint32_t largest = max(max(x.x << 16 & 0x7FFF0000u, x.x & 0x7FFF0000u),
                                   max(x.y << 16 & 0x7FFF0000u, x.y & 0x7FFF0000u));
#pragma unroll
            for (int i = 1; i < 32; i *= 2)
                largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, i));
            uint32_t down;
            const float up = mm_query_up(largest, &down);
            x = uint2{mm_f32x2_f16x2(mm_bf16_lo(x.x) * up, mm_bf16_hi(x.x) * up),
                      mm_f32x2_f16x2(mm_bf16_lo(x.y) * up, mm_bf16_hi(x.y) * up)};
            s *= mm_f32_bits(down << 23);
        }
        ((uint2 *)smem)[MM_QUERY_STEP * (8 * (head / 8) + kk) + 4 * (head % 8) + t] = x;
        if (lane == 0)
            scale[head] = s;
    }
}
template <int NT>
MM_DEV_FN void mm_query_share(mm_query_shared<NT> *q, const uint8_t *smem, int lane)
{
    const float *scale =
        (const float *)((const uint2 *)smem + NT * 8 * MM_QUERY_STEP) + 2 * (lane % 4);
    q->f = (const uint2 *)smem + lane;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        q->scale[n][0] = scale[8 * n];
        q->scale[n][1] = scale[8 * n + 1];
    }
}

/* Maximum (times log2 e), denominator and accumulator of heads 8 n + 2 t, + 1 (max, den: the same
 * in all lanes of a t); acc[n][i]: dims 4 g + 2 i (elements 0, 1: the two heads) and 4 g + 2 i + 1
 * (elements 2, 3) of the 32 dims of the warp; with 8 warps i is the warp's tile, warp % 2. */
template <int NT, int W = 4> struct mm_partial {
    float max[NT][2], den[NT][2], acc[NT][8 / W][4];
};

/* Bytes of shared memory that mm_page_partial uses beside the tiles. */
static constexpr __host__ __device__ int mm_page_scratch(int NT)
{
    return 2 * 8 * 8 * NT * 4 + 8 * NT * MM_PAGE_P_STRIDE * 2;
}
/* Words of P for 16 keys of a head: keys g and g + 8 in word g. Heads 4 .. 7 have their tiles in
 * pairs turned round: neither writing nor reading has bank conflicts. */
MM_DEV_FN int mm_p_at(int head, int tile)
{
    return head * (MM_PAGE_P_STRIDE / 2) + 8 * (tile ^ (head >> 2 & 1));
}
/* One shuffle for two values: lanes whose bit `bit` is clear go on with x, the others with y;
 * returned are their own and, in *other, their partner's. */
MM_DEV_FN float mm_lane_split(float x, float y, int bit, int lane, float *other)
{
    const bool is_y = (lane & bit) != 0;
    *other = __shfl_xor_sync(0xFFFFFFFFu, is_y ? x : y, bit);
    return is_y ? y : x;
}

/* The partial of keys [start, stop) of a page. row(m, half): this lane's part of key row g + 8 half
 * of the warp's tile m of 16 keys (the warp's first key is 128 / W * warp). v_wait: called by every
 * thread before the barrier that precedes the first read of V. v_tile and smem may be overwritten
 * after the next barrier of the block. */
template <int F, int NT, int W, typename Row, typename Query, typename Wait>
MM_DEV_FN void mm_page_partial(Row row, const uint8_t *v_tile, const uint2 *lut, const Query &q,
                               int start, int stop, uint8_t *smem, int thread,
                               mm_partial<NT, W> *out, Wait v_wait)
{
    constexpr int M = 8 / W; /* tiles of 16 keys, and of 16 dims, of a warp */
    const int lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
    float *warp_max = (float *)smem, *tile_den = warp_max + 8 * 8 * NT; /* [8 NT][W], [8 NT][8] */
    uint32_t *p = (uint32_t *)(tile_den + 8 * 8 * NT);                  /* mm_p_at */
    float s[M][NT][4];

    /* sums are two chains, of even and of odd steps: half the time that products wait for */
#pragma unroll
    for (int m = 0; m < M; m++) {
        const int key = 16 * (M * warp + m) + g;
        const mm_raw_row<F> lo = row(m, 0), hi = row(m, 1);
        float odd[NT][4];
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                s[m][n][j] = odd[n][j] = 0.0f;
        }
#pragma unroll
        for (int kk = 0; kk < 8; kk++) {
            uint32_t x[2], y[2];
            mm_row_step<F>(lo, kk, lut, x);
            mm_row_step<F>(hi, kk, lut, y);
            const uint32_t a[4] = {x[0], y[0], x[1], y[1]};
#pragma unroll
            for (int n = 0; n < NT; n++) {
                const uint2 v = q.operand(n, kk);
                const uint32_t b[2] = {v.x, v.y};
                mm_cache_mma<F>(kk % 2 == 0 ? s[m][n] : odd[n], a, b);
            }
        }
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                s[m][n][j] += odd[n][j];
        }
        const bool see_lo = key >= start && key < stop, see_hi = key + 8 >= start && key + 8 < stop;
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                s[m][n][j] = (j < 2 ? see_lo : see_hi) ? s[m][n][j] * q.scale[n][j % 2] : -INFINITY;
        }
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float x[2], other;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            x[c] = fmaxf(s[0][n][c], s[0][n][c + 2]);
            if (M == 2)
                x[c] = fmaxf(x[c], fmaxf(s[M - 1][n][c], s[M - 1][n][c + 2]));
        }
        float y = mm_lane_split(x[0], x[1], 4, lane, &other); /* of head 2 t + g % 2 */
        y = fmaxf(y, other);
        y = fmaxf(y, __shfl_xor_sync(0xFFFFFFFFu, y, 8));
        y = fmaxf(y, __shfl_xor_sync(0xFFFFFFFFu, y, 16));
        if (g < 2)
            warp_max[W * (8 * n + 2 * t + g) + warp] = y;
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float sum[M][2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int head = 8 * n + 2 * t + c;
            float x = -INFINITY;
#pragma unroll
            for (int w = 0; w < W; w += 4) {
                const float4 y = *(const float4 *)(warp_max + W * head + w);
                x = fmaxf(x, fmaxf(fmaxf(y.x, y.y), fmaxf(y.z, y.w)));
            }
            out->max[n][c] = x;
#pragma unroll
            for (int m = 0; m < M; m++) {
                float e[2]; /* a NaN score makes e and den NaN */
                e[0] = mm_exp2(s[m][n][c] - x);
                e[1] = mm_exp2(s[m][n][c + 2] - x);
                uint32_t operand[2];
                if (F == MM_CACHE_NVFP4) {
                    e[0] *= 448.0f;
                    e[1] *= 448.0f;
                    mm_e4m3x4_f16x4(mm_f32x2_e4m3x2(e[0], e[1]), operand);
                } else {
                    operand[0] = mm_f32x2_bf16x2(e[0], e[1]);
                    if (F == MM_CACHE_FP8)
                        operand[0] = mm_f32x2_f16x2(mm_bf16_lo(operand[0]) * 0x1p15f,
                                                    mm_bf16_hi(operand[0]) * 0x1p15f);
                }
                sum[m][c] = e[0] + e[1];
                p[mm_p_at(head, M * warp + m) + g] = operand[0];
            }
        }
        float half[M], other, y; /* over the g of a tile of 16 keys, always in the same order */
#pragma unroll
        for (int m = 0; m < M; m++) {
            half[m] = mm_lane_split(sum[m][0], sum[m][1], 4, lane, &other);
            half[m] += other;
        }
        if (M == 2)
            y = mm_lane_split(half[0], half[M - 1], 8, lane, &other);
        else
            y = half[0], other = __shfl_xor_sync(0xFFFFFFFFu, y, 8);
        y += other;
        y += __shfl_xor_sync(0xFFFFFFFFu, y, 16);
        if (g < 2 * M)
            tile_den[8 * (8 * n + 2 * t + g % 2) + M * warp + g / 2] = y;
    }
    v_wait();
    __syncthreads();
    float odd[NT][M][4];
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const float4 *d = (const float4 *)(tile_den + 8 * (8 * n + 2 * t + c));
            const float4 x = d[0], y = d[1];
            out->den[n][c] = ((((((x.x + x.y) + x.z) + x.w) + y.x) + y.y) + y.z) + y.w;
        }
#pragma unroll
        for (int i = 0; i < 4 * M; i++)
            out->acc[n][i / 4][i % 4] = odd[n][i / 4][i % 4] = 0.0f;
    }
    /* a NaN of V, beside whatever P, makes its dim NaN in every head */
    const int i0 = M == 2 ? 0 : warp % 2;
    const mm_v_place<F> v = mm_v_at<F>(v_tile, t, 8 * (M * warp / 2) + g, i0);
    const uint32_t *p_of[2] = {p + mm_p_at(g, 0) + 2 * t, p + mm_p_at(g, 1) + 2 * t};
#pragma unroll
    for (int ks = 0; ks < 8; ks++) {
        uint32_t a[M][4];
        mm_tile_v<F, M>(v, ks, t, i0, stop, lut, a);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const uint2 x = *(const uint2 *)(p_of[ks % 2] + mm_p_at(8 * n, ks - ks % 2)); /* head 8
                                                                                             n + g
                                                                                           */
            const uint32_t b[2] = {x.x, x.y};
#pragma unroll
            for (int i = 0; i < M; i++)
                mm_cache_mma<F>(ks % 2 == 0 ? out->acc[n][i] : odd[n][i], a[i], b);
        }
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int i = 0; i < 4 * M; i++) {
            float *x = &out->acc[n][i / 4][i % 4];
            *x += odd[n][i / 4][i % 4];
            if (F == MM_CACHE_FP8)
                *x *= 0x1p-15f; /* what P was multiplied with */
        }
    }
}

#endif
