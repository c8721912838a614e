/* index_decode.cu: block scores of few rows (ops.h, attn_sparse). A persistent grid shares one line
 * of units: a page of a sequence that needs scores, for up to 8 rows of it times the index heads.
 * Keys are the M operand of mma m16n8k16, the queries of a unit its columns; kept is the maximum.
 *
 * Up to 8 columns (index_stream): keys go straight from memory to registers, 16 at a time, four
 * such pieces of a warp on their way; nothing but the warp itself waits for them. Where there are
 * fewer units than blocks the four warps of a block share a page, else every warp has its own.
 * More columns (index_decode): pages go through a ring in shared memory, whose queries lie there.
 * A score is a maximum of dots, each summed in one order, so nothing depends on who computes it. */
#include "kernels/cuda/attn_page.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/decode_work.h"
#include "kernels/cuda/kernels.h"

#define Q_STRIDE 136 /* bf16 elements from column to column: 68 words, 4 modulo 8 */
#define N_LIST 128   /* units whose pages are looked up at once */

typedef struct index_params {
    mm_plane ik;
    const int32_t *page_table, *row_start, *row_seq, *slot, *pos;
    int32_t page_stride;
    bool is_single; /* row t is sequence t */
    const uint16_t *iq;
    int32_t first, n_row;       /* rows of this launch */
    int32_t n_head, n_tile_row; /* index heads; rows that one unit takes */
    int32_t n_top_block, n_stage;
    int32_t max_block; /* of any row */
    float *score;
    int32_t stride;
} index_params;

/* Rows of the unit entry that row r (of the launch) begins; 0 where none begins. */
MM_DEV_FN int tile_rows(const index_params &p, int r)
{
    if (p.is_single)
        return 1;
    const int t = p.first + r, i = p.row_seq[t];
    const int begin = max(p.row_start[i], p.first),
              end = min(p.row_start[i + 1], p.first + p.n_row);
    return (t - begin) % p.n_tile_row != 0 ? 0 : min(p.n_tile_row, end - t);
}
/* Blocks to score for `rows` rows from row r; 0 where each reads all its blocks. */
MM_DEV_FN int tile_blocks(const index_params &p, int r, int rows)
{
    const int n = rows == 0 ? 0 : (p.pos[p.first + r] + rows - 1) / MM_PAGE;
    return n < p.n_top_block ? 0 : n;
}

/* Operands: bf16 beside bf16 keys; beside FP8 and NVFP4 both sides are e4m3 values, as f16. */
template <int F> MM_DEV_FN uint32_t query_pair(uint32_t q2)
{
    return F == MM_CACHE_BF16 ? q2 : mm_query_e4m3(q2);
}

/* Column c of the entry at row r, block b: the largest of the four warps' scores. */
MM_DEV_FN void write_score(const index_params &p, const float *best, int n_all, int c, int r, int b)
{
    float x = best[c];
    for (int w = 1; w < 4; w++)
        x = mm_max_nan(x, best[n_all * w + c]);
    p.score[((int64_t)r * p.n_head + c) * p.stride + b] = x;
}

/* ---------------------------------------------------------------- up to 8 columns */

/* A piece: 16 keys of a page in the cache's format; a lane holds its parts of rows g and g + 8. */
template <int F> struct key_piece {
    mm_raw_row<F> lo, hi;
};
/* Pieces of a warp that are on their way: 64 registers. */
template <int F> static constexpr __host__ __device__ int n_piece_ahead()
{
    return F == MM_CACHE_BF16 ? 2 : 4;
}

/* Where a lane's parts of a page begin. */
template <int F> struct page_at {
    const uint8_t *data, *scale;
};
template <int F> MM_DEV_FN page_at<F> page_of(const mm_plane &ik, int page, int lane)
{
    const int64_t row = mm_cache_row(ik, page, 0, lane / 4);
    return page_at<F>{mm_cache_data<F>(ik, row) + lane % 4 * 16,
                      mm_cache_scale<F>(ik, row) + (F == MM_CACHE_NVFP4 ? lane % 4 * 2 : 0)};
}
/* Piece i of the page. */
template <int F> MM_DEV_FN key_piece<F> piece_load(const page_at<F> &at, int i)
{
    key_piece<F> x;
    x.lo.scale = x.hi.scale = 0;
    const uint8_t *lo = at.data + 16 * i * mm_cache_codes<F>(), *hi = lo + 8 * mm_cache_codes<F>();
#pragma unroll
    for (int c = 0; c < x.lo.n_piece; c++) {
        x.lo.piece[c] = mm_ld_stream(lo + 64 * c);
        x.hi.piece[c] = mm_ld_stream(hi + 64 * c);
    }
    if (F == MM_CACHE_NVFP4) {
        x.lo.scale = __ldcg((const uint16_t *)(at.scale + 128 * i));
        x.hi.scale = __ldcg((const uint16_t *)(at.scale + 128 * i + 64));
    }
    return x;
}

/* A lane's operands of the queries: 8 steps, column g. */
template <int F>
MM_DEV_FN void columns_load(const index_params &p, int r, int n_col, int lane, uint2 q[8])
{
    const int g = lane / 4, t = lane % 4;
    const uint16_t *src = p.iq + ((int64_t)(p.first + r) * p.n_head + g) * MM_CACHE_DIM;
    uint4 v[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = g < n_col ? *(const uint4 *)(src + mm_step_dim<F>(t, 2 * i)) : uint4{0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        q[2 * i] = uint2{query_pair<F>(v[i].x), query_pair<F>(v[i].y)};
        q[2 * i + 1] = uint2{query_pair<F>(v[i].z), query_pair<F>(v[i].w)};
    }
}

/* best[c] = the larger of it and the dots of a piece with columns 2 t + c, of the lane's rows. */
template <int F>
MM_DEV_FN void piece_score(const key_piece<F> &x, const uint2 *lut, const uint2 q[8], float best[2])
{
    float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int kk = 0; kk < 8; kk++) {
        uint32_t lo[2], hi[2];
        mm_row_step<F>(x.lo, kk, lut, lo);
        mm_row_step<F>(x.hi, kk, lut, hi);
        const uint32_t a[4] = {lo[0], hi[0], lo[1], hi[1]}, b[2] = {q[kk].x, q[kk].y};
        mm_cache_mma<F>(s, a, b);
    }
    best[0] = mm_max_nan(mm_max_nan(best[0], s[0]), s[2]);
    best[1] = mm_max_nan(mm_max_nan(best[1], s[1]), s[3]);
}
/* Over the rows of all lanes of a t. */
MM_DEV_FN void lanes_max(float best[2])
{
#pragma unroll
    for (int i = 4; i < 32; i *= 2) {
        best[0] = mm_max_nan(best[0], __shfl_xor_sync(0xFFFFFFFFu, best[0], i));
        best[1] = mm_max_nan(best[1], __shfl_xor_sync(0xFFFFFFFFu, best[1], i));
    }
}

/* Unit u: its first row, block and page. */
typedef struct unit_place {
    int row, block, page;
} unit_place;
MM_DEV_FN unit_place unit_find(const index_params &p, const int *prefix, const int *slot, int u)
{
    unit_place x;
    x.row = mm_work_find(prefix, p.n_row, u);
    x.block = u - prefix[x.row];
    x.page = p.page_table[(int64_t)slot[x.row] * p.page_stride + x.block];
    return x;
}

/* A unit by all four warps of the block, 32 keys each. */
template <int F>
MM_DEV_FN void page_shared(const index_params &p, const unit_place &x, const uint2 *lut,
                           float *best, int thread)
{
    const int lane = thread % 32, warp = thread / 32;
    const page_at<F> at = page_of<F>(p.ik, x.page, lane);
    const key_piece<F> a = piece_load<F>(at, 2 * warp), b = piece_load<F>(at, 2 * warp + 1);
    mm_pdl_wait();
    mm_pdl_trigger();
    const int n_col = tile_rows(p, x.row) * p.n_head;
    uint2 q[8];
    columns_load<F>(p, x.row, n_col, lane, q);
    float y[2] = {-INFINITY, -INFINITY};
    piece_score<F>(a, lut, q, y);
    piece_score<F>(b, lut, q, y);
    lanes_max(y);
    if (lane < 4)
        *(float2 *)(best + 8 * warp + 2 * lane) = float2{y[0], y[1]};
    __syncthreads();
    if (thread < n_col)
        write_score(p, best, 8, thread, x.row, x.block);
}

/* Units u, u + stride, ... below n_unit, one or more, by one warp. All warps together move through
 * the line as one window. */
template <int F>
MM_DEV_FN void pages_own(const index_params &p, const int *prefix, const int *slot,
                         const uint2 *lut, int u, int stride, int n_unit, int lane)
{
    constexpr int n_ahead = n_piece_ahead<F>(), n_part = 8 / n_ahead;
    unit_place unit = unit_find(p, prefix, slot, u);
    page_at<F> at = page_of<F>(p.ik, unit.page, lane);
    key_piece<F> x[n_ahead];
#pragma unroll
    for (int i = 0; i < n_ahead; i++)
        x[i] = piece_load<F>(at, i);
    mm_pdl_wait();
    mm_pdl_trigger();
    uint2 q[8];
    int row = -1, n_col = 0;
    do {
        if (unit.row != row) {
            row = unit.row;
            n_col = tile_rows(p, row) * p.n_head;
            columns_load<F>(p, row, n_col, lane, q);
        }
        float *out = p.score + ((int64_t)row * p.n_head + 2 * lane) * p.stride + unit.block;
        u += stride;
        if (u < n_unit) /* its page is wanted half a page later */
            unit = unit_find(p, prefix, slot, u);
        float y[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
        for (int part = 1; part <= n_part; part++) {
            if (part == n_part)
                at = page_of<F>(p.ik, unit.page, lane);
            const int first = part == n_part ? 0 : part * n_ahead;
            const bool is_more = part < n_part || u < n_unit;
#pragma unroll
            for (int j = 0; j < n_ahead; j++) {
                piece_score<F>(x[j], lut, q, y);
                if (is_more)
                    x[j] = piece_load<F>(at, first + j);
            }
        }
        lanes_max(y);
        if (lane < 4 && 2 * lane < n_col)
            out[0] = y[0];
        if (lane < 4 && 2 * lane + 1 < n_col)
            out[p.stride] = y[1];
    } while (u < n_unit);
}

#define STREAM_RESIDENT 4 /* blocks on an SM: 128 registers */

template <int F>
static __global__ void __launch_bounds__(MM_WORK_THREADS, STREAM_RESIDENT)
    index_stream_kernel(const index_params p)
{
    const int thread = (int)threadIdx.x, n_block = (int)gridDim.x;
    uint2 *lut = (uint2 *)mm_smem();
    float *best = (float *)(lut + MM_CACHE_LUT_BYTES / 8); /* [4][8] */
    int *slot = (int *)(best + 4 * 8), *prefix = slot + p.n_row;

    if (F == MM_CACHE_NVFP4)
        mm_cache_lut_fill(lut, thread, MM_WORK_THREADS);
    /* With one row per sequence nothing that is read before the queries comes from this layer's
     * kernels: positions, slots and page tables are of the step's expand, which has ended before
     * any kernel behind the embedding starts (that one triggers behind its own wait), and the pages
     * hold positions before the row's own, written in other steps. */
    if (!p.is_single)
        mm_pdl_wait();
    for (int r = thread; r < p.n_row; r += MM_WORK_THREADS)
        slot[r] = p.slot[p.is_single ? p.first + r : p.row_seq[p.first + r]];
    mm_work_scan(prefix, p.n_row, thread,
                 [&p](int r) { return tile_blocks(p, r, tile_rows(p, r)); });
    const int n_unit = prefix[p.n_row];
    const int u = (int)blockIdx.x + (n_unit <= n_block ? 0 : thread / 32 * n_block);
    if (u >= n_unit)
        mm_pdl_wait(); /* every kernel waits: what follows it may rely on all before it */
    else if (n_unit <= n_block)
        page_shared<F>(p, unit_find(p, prefix, slot, u), lut, best, thread);
    else
        pages_own<F>(p, prefix, slot, lut, u, MM_WORK_THREADS / 32 * n_block, n_unit, thread % 32);
}

template <int F> static mm_status launch_stream(const mm_op_context *c, const index_params *p)
{
    const size_t smem =
        MM_CACHE_LUT_BYTES + 4 * 8 * 4 + (size_t)p->n_row * 4 + mm_work_bytes(p->n_row);
    /* as many blocks as fit, or as there can be pages */
    const int64_t most = (int64_t)p->n_row * p->max_block;
    const int64_t room = (int64_t)mm_cuda_of(c)->n_sm * STREAM_RESIDENT;
    return mm_launch(c, "index_stream", index_stream_kernel<F>,
                     dim3((unsigned)(most < room ? most : room)), dim3(MM_WORK_THREADS), smem, *p);
}

/* ---------------------------------------------------------------- more columns */

/* Index queries of the entry as columns (row * I + head) of operands. */
template <int F>
MM_DEV_FN void load_columns(const index_params &p, int r, int n_col, int n_all, uint16_t *q,
                            int thread)
{
    const uint16_t *src = p.iq + (int64_t)(p.first + r) * p.n_head * MM_CACHE_DIM;
    for (int i = thread; i < n_all * (MM_CACHE_DIM / 4); i += MM_WORK_THREADS) {
        const int col = i / (MM_CACHE_DIM / 4), at = i % (MM_CACHE_DIM / 4) * 4;
        uint2 v = {0, 0};
        if (col < n_col)
            v = *(const uint2 *)(src + (int64_t)col * MM_CACHE_DIM + at);
        *(uint2 *)(q + col * Q_STRIDE + at) = uint2{query_pair<F>(v.x), query_pair<F>(v.y)};
    }
}

/* The largest scores of this warp's 32 keys: best[n][c] of column 8 n + 2 t + c, the same in all
 * lanes of a t. */
template <int F, int NT>
MM_DEV_FN void score_tile(const uint8_t *tile, const uint2 *lut, const uint16_t *q, int warp,
                          int lane, float best[NT][2])
{
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < NT; n++)
        best[n][0] = best[n][1] = -INFINITY;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        uint32_t lo[16], hi[16];
        const int key = 32 * warp + 16 * m + g;
        const mm_raw_row<F> low = mm_row_of_tile<F>(tile, key, t),
                            high = mm_row_of_tile<F>(tile, key + 8, t);
#pragma unroll
        for (int kk = 0; kk < 8; kk++) {
            mm_row_step<F>(low, kk, lut, lo + 2 * kk);
            mm_row_step<F>(high, kk, lut, hi + 2 * kk);
        }
#pragma unroll
        for (int n = 0; n < NT; n++) {
            float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int kk = 0; kk < 8; kk += 2) {
                const uint4 v =
                    *(const uint4 *)(q + (8 * n + g) * Q_STRIDE + mm_step_dim<F>(t, kk));
                const uint32_t a[4] = {lo[2 * kk], hi[2 * kk], lo[2 * kk + 1], hi[2 * kk + 1]};
                const uint32_t a1[4] = {lo[2 * kk + 2], hi[2 * kk + 2], lo[2 * kk + 3],
                                        hi[2 * kk + 3]};
                const uint32_t b[2] = {v.x, v.y}, b1[2] = {v.z, v.w};
                mm_cache_mma<F>(s, a, b);
                mm_cache_mma<F>(s, a1, b1);
            }
            best[n][0] = mm_max_nan(mm_max_nan(best[n][0], s[0]), s[2]);
            best[n][1] = mm_max_nan(mm_max_nan(best[n][1], s[1]), s[3]);
        }
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int i = 4; i < 32; i *= 2) {
            best[n][0] = mm_max_nan(best[n][0], __shfl_xor_sync(0xFFFFFFFFu, best[n][0], i));
            best[n][1] = mm_max_nan(best[n][1], __shfl_xor_sync(0xFFFFFFFFu, best[n][1], i));
        }
    }
}

static size_t index_smem(int tile_bytes, int n_stage, int NT, int32_t n_row)
{
    return (size_t)tile_bytes * (size_t)n_stage + MM_CACHE_LUT_BYTES + 8 * NT * Q_STRIDE * 2 +
           2 * 4 * 8 * NT * 4 + 3 * N_LIST * 4 + mm_work_bytes(n_row);
}

template <int F, int NT>
static __global__ void __launch_bounds__(MM_WORK_THREADS) index_decode_kernel(const index_params p)
{
    constexpr int tile_bytes = mm_tile_bytes<F>(), n_all = 8 * NT;
    const int thread = (int)threadIdx.x, lane = thread % 32, warp = thread / 32;
    uint8_t *tile = mm_smem();
    uint2 *lut = (uint2 *)(tile + tile_bytes * p.n_stage);
    uint16_t *q = (uint16_t *)(lut + MM_CACHE_LUT_BYTES / 8);
    float *best = (float *)(q + n_all * Q_STRIDE); /* [2][4][n_all] */
    int *list_page = (int *)(best + 2 * 4 * n_all), *list_row = list_page + N_LIST;
    int *list_block = list_row + N_LIST, *prefix = list_block + N_LIST;

    if (F == MM_CACHE_NVFP4)
        mm_cache_lut_fill(lut, thread, MM_WORK_THREADS);
    mm_pdl_wait();
    mm_pdl_trigger();
    const int first_slot = p.slot[p.is_single ? p.first : p.row_seq[p.first]];
    mm_work_scan(prefix, p.n_row, thread,
                 [&p](int r) { return tile_blocks(p, r, tile_rows(p, r)); });
    const int n_unit = prefix[p.n_row];
    const int begin = mm_work_first(n_unit, (int)blockIdx.x, (int)gridDim.x);
    const int end = mm_work_first(n_unit, (int)blockIdx.x + 1, (int)gridDim.x);
    int row = -1, n_col = 0; /* of the columns in q */

    for (int base = begin; base < end; base += N_LIST) {
        const int n = min(N_LIST, end - base);
        __syncthreads();
        if (thread < n) {
            const int r = mm_work_find(prefix, p.n_row, base + thread);
            const int b = base + thread - prefix[r];
            const int slot =
                r == 0 ? first_slot : p.slot[p.is_single ? p.first + r : p.row_seq[p.first + r]];
            list_row[thread] = r;
            list_block[thread] = b;
            list_page[thread] = p.page_table[(int64_t)slot * p.page_stride + b];
        }
        __syncthreads();
        for (int j = 0; j < p.n_stage - 1; j++) {
            if (j < n)
                mm_tile_load<F, false>(tile + tile_bytes * j, p.ik,
                                       mm_cache_row(p.ik, list_page[j], 0, 0), MM_PAGE, thread);
            mm_cp_async_commit();
        }
        if (list_row[0] != row) { /* while the first pages come; seen behind the next barrier */
            row = list_row[0];
            n_col = tile_rows(p, row) * p.n_head;
            load_columns<F>(p, row, n_col, n_all, q, thread);
        }
        int done_row = 0, done_col = 0; /* of the scores that wait in `best` */
        for (int j = 0, stage = 0; j < n; j++, stage = stage + 1 == p.n_stage ? 0 : stage + 1) {
            if (p.n_stage == 3)
                mm_cp_async_wait<1>();
            else
                mm_cp_async_wait<0>();
            __syncthreads(); /* page j is there, page j - 1 is used up, its scores are in `best` */
            const int freed = stage == 0 ? p.n_stage - 1 : stage - 1; /* of page j - 1 */
            if (j + p.n_stage - 1 < n)
                mm_tile_load<F, false>(tile + tile_bytes * freed, p.ik,
                                       mm_cache_row(p.ik, list_page[j + p.n_stage - 1], 0, 0),
                                       MM_PAGE, thread);
            mm_cp_async_commit();
            if (j > 0 && thread < done_col)
                write_score(p, best + (j - 1) % 2 * 4 * n_all, n_all, thread, done_row,
                            list_block[j - 1]);
            if (list_row[j] != row) {
                row = list_row[j];
                n_col = tile_rows(p, row) * p.n_head;
                load_columns<F>(p, row, n_col, n_all, q, thread);
                __syncthreads();
            }
            float x[NT][2];
            score_tile<F, NT>(tile + tile_bytes * stage, lut, q, warp, lane, x);
            if (lane < 4) {
#pragma unroll
                for (int m = 0; m < NT; m++) {
                    float *out = best + (j % 2 * 4 + warp) * n_all + 8 * m + 2 * lane;
                    out[0] = x[m][0];
                    out[1] = x[m][1];
                }
            }
            done_row = row;
            done_col = n_col;
        }
        mm_cp_async_wait<0>();
        __syncthreads();
        if (thread < done_col)
            write_score(p, best + (n - 1) % 2 * 4 * n_all, n_all, thread, done_row,
                        list_block[n - 1]);
    }
}

template <int F, int NT> static mm_status launch(const mm_op_context *c, index_params *p)
{
    const mm_cuda *b = mm_cuda_of(c);
    const size_t room = (size_t)b->smem_max;
    p->n_stage = 3; /* fp8: four blocks an SM, 128 KB on their way */
    size_t smem = index_smem(mm_tile_bytes<F>(), p->n_stage, NT, p->n_row);
    if (smem > room) {
        p->n_stage = 2;
        smem = index_smem(mm_tile_bytes<F>(), p->n_stage, NT, p->n_row);
    }
    if (smem > room)
        return MM_CUDA_FAIL(b, MM_E_UNSUPPORTED,
                            "cuda: index scoring needs %zu bytes of shared memory, this device has "
                            "%zu; use an fp8 index cache",
                            smem, room);
    const int32_t resident = (int32_t)((room + 1024) / (smem + 1024)); /* 1 KB a block is the
                                                                          system's */
    const int32_t per_sm = resident < 1 ? 1 : resident > 8 ? 8 : resident;
    /* as many blocks as fit, or as there can be pages */
    const int64_t most = (int64_t)p->n_row * p->max_block;
    const int64_t n_block = most < (int64_t)b->n_sm * per_sm ? most : (int64_t)b->n_sm * per_sm;
    return mm_launch(c, "index_decode", index_decode_kernel<F, NT>, dim3((unsigned)n_block),
                     dim3(MM_WORK_THREADS), smem, *p);
}

template <int F> static mm_status launch_columns(const mm_op_context *c, index_params *p)
{
    const int32_t n_col = p->n_head * p->n_tile_row;
    if (n_col <= 8)
        return launch_stream<F>(c, p);
    if (n_col <= 16)
        return launch<F, 2>(c, p);
    if (n_col <= 32)
        return launch<F, 4>(c, p);
    return launch<F, 8>(c, p);
}

mm_status mm_cuda_index_decode(const mm_op_context *c, const mm_seq_view *seq, const mm_plane *ik,
                               const void *iq, int32_t first, int32_t n, float *score,
                               int32_t stride)
{
    const mm_op_shape *s = c->shape;
    const mm_cuda *b = mm_cuda_of(c);
    index_params p = {};
    p.ik = *ik;
    p.page_table = seq->slots->page_table;
    p.page_stride = seq->slots->page_stride;
    p.row_start = seq->row_start;
    p.row_seq = seq->row_seq;
    p.slot = seq->slot;
    p.pos = seq->pos;
    p.is_single = seq->n_row == seq->n_seq;
    p.iq = (const uint16_t *)iq;
    p.first = first;
    p.n_row = n;
    p.n_head = s->n_index_head;
    p.n_tile_row = p.is_single ? 1 : 64 / s->n_index_head < 8 ? 64 / s->n_index_head : 8;
    p.n_top_block = s->n_top_block;
    p.max_block = (seq->max_pos - 1) / MM_PAGE + 1;
    p.score = score;
    p.stride = stride;
    MM_CACHE_DISPATCH(b, ik->format, launch_columns<F>(c, &p));
    return MM_OK;
}
