/* index_decode.cu: block scores of few rows (ops.h, attn_sparse). A persistent grid shares one line
 * of pages, those of every sequence that needs scores: each block streams its pages through a ring
 * in shared memory, raw; its four warps take 32 keys each as the M operand of mma m16n8k16, the
 * index queries of up to 8 rows of the sequence (times the index heads) as columns, and keep the
 * maximum. A score is a maximum of dots, so nothing depends on who computes it. */
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

/* Column c of the entry at row r, block b: the largest of the four warps' scores. */
MM_DEV_FN void write_score(const index_params &p, const float *best, int n_all, int c, int r, int b)
{
    float x = best[c];
    for (int w = 1; w < 4; w++)
        x = mm_max_nan(x, best[n_all * w + c]);
    p.score[((int64_t)r * p.n_head + c) * p.stride + b] = x;
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
        for (int j = 0; j < n; j++) {
            if (p.n_stage == 3)
                mm_cp_async_wait<1>();
            else
                mm_cp_async_wait<0>();
            __syncthreads(); /* page j is there, page j - 1 is used up, its scores are in `best` */
            if (j + p.n_stage - 1 < n)
                mm_tile_load<F, false>(tile + tile_bytes * ((j + p.n_stage - 1) % p.n_stage), p.ik,
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
            score_tile<F, NT>(tile + tile_bytes * (j % p.n_stage), lut, q, warp, lane, x);
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
        return launch<F, 1>(c, p);
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
    if (s->n_index_head > 64)
        return MM_CUDA_FAIL(
            b, MM_E_UNSUPPORTED,
            "cuda: %d index heads on one rank, at most 64 are taken; use more ranks",
            s->n_index_head);
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
