/* linear_small.cu: y = x W^T for few rows: up to 8 at once through gemv.h, 9 to 64 through
 * linear_mid.cu, more in pieces of 64. All of them add in the same order, so a row's bits are the
 * same whichever is used. Schedule and numbers: notes/linear_small.md. */
#include "kernels/cuda/gemv.h"
#include "kernels/cuda/linear.h"

typedef struct mm_small_args {
    mm_gemv_matrix m;
    mm_gemv_out out;
    const uint16_t *x;
    int64_t x_stride;
    const int32_t *row; /* or NULL */
    int32_t n_row;      /* <= 8 */
    int32_t n_iter;     /* row tiles of a warp */
    int32_t pitch, x_bytes, sum_bytes;
    float factor[2];     /* of rows 0..7 and 8..15 of a row tile */
    const float *global; /* GATE_UP of NVFP4: [2], in place of factor */
} mm_small_args;

/* Pieces of 16 bytes of the warp's slice of all rows of x to its shared memory, by way of
 * registers, BATCH a lane on their way together: a group of cp.async would end only after those of
 * the weights before it, which the first products need not wait for. */
template <int BATCH>
MM_DEV_FN void small_load_x(const mm_small_args &p, const mm_gemv_warp &w, int cols)
{
    const uint32_t n = (uint32_t)(w.n_stage * cols / 8);
    const int first = w.stage0 * cols;
    const uint32_t all = n * (uint32_t)p.n_row, inverse = ((1u << 22) + n - 1) / n;
    for (uint32_t q0 = (uint32_t)w.lane; q0 - (uint32_t)w.lane < all; q0 += 32 * BATCH) {
        uint4 v[BATCH];
        int to[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const uint32_t q = q0 + 32 * (uint32_t)i, r = q * inverse >> 22; /* q / n: 8 n^2 < 2^22
                                                                              */
            const int at = (int)(q - r * n) * 8;
            to[i] = (int)r * p.pitch + at;
            v[i] = make_uint4(0, 0, 0, 0);
            if (q < all && first + at < p.m.n_in)
                v[i] = *(const uint4 *)(const void *)(p.x + first + at +
                                                      (p.row != NULL ? p.row[r] : (int)r) *
                                                          p.x_stride);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (q0 + 32 * (uint32_t)i < all)
                *(uint4 *)(void *)(w.x + to[i]) = v[i];
        }
    }
    __syncwarp();
}

/* The sums d of the warp's slice of its row tile i: by way of shared memory, some row tiles held
 * there, to emit(tile, sums of all slices) in one warp. All warps call it for the same i. */
template <typename Emit>
MM_DEV_FN void small_hand_out(const mm_small_args &p, const mm_gemv_warp &w, float *sum, int i,
                              const float d[4], Emit emit)
{
    if (p.m.n_slice == 1) {
        const int tile = w.tile0 + i * w.tile_step;
        if (tile < p.m.n_tile)
            emit(tile, d);
        return;
    }
    const int held = i % MM_GEMV_HELD, warp = (int)threadIdx.x / 32;
    *(float4 *)(void *)(sum + (held * MM_GEMV_WARPS + warp) * 128 + w.lane * 4) =
        make_float4(d[0], d[1], d[2], d[3]);
    if (held == MM_GEMV_HELD - 1 || i + 1 == w.n_iter) {
        __syncthreads();
        mm_gemv_add_up(p.m, w, sum, i - held, held + 1, emit);
        if (i + 1 < w.n_iter)
            __syncthreads(); /* the sums' places are used again */
    }
}

/* Where the lane reads x. Rows that do not exist: row 0 again; their columns of the sums are never
 * looked at. */
MM_DEV_FN const uint16_t *small_x(const mm_small_args &p, const mm_gemv_warp &w)
{
    const int token = w.lane % 8, quarter = w.lane / 8;
    return w.x + quarter * 8 + (token < p.n_row ? token * p.pitch : 0);
}

/* mm_gemv_run with one chain of sums, where every stage of the ring is a group of its own: products
 * begin with the first stage that has come. */
template <int FORMAT, int STAGES, typename Emit>
MM_DEV_FN void small_stream(const mm_small_args &p, mm_gemv_warp &w, float *sum, Emit emit)
{
    typedef mm_gemv_stage<FORMAT> S;
    int slot = 0;
    for (int i = 0; i < w.n_iter; i++) {
        float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        const uint16_t *x = small_x(p, w);
        for (int k = 0; k < w.n_stage; k++) {
            mm_cp_async_wait<STAGES - 1>();
            __syncwarp(); /* scales come from other lanes' copies */
            mm_gemv_codes<FORMAT> c;
            mm_gemv_take<FORMAT>(w.ring + slot * S::BYTES, w.lane, c);
            __syncwarp(); /* all have read before the slot is filled again */
            mm_gemv_load<FORMAT, STAGES>(p.m, w);
            mm_cp_async_commit();
#pragma unroll
            for (int s = 0; s < S::COLS / 32; s++) {
                uint32_t b[4];
                mm_ldmatrix_x4(b, x + s * 32);
                mm_gemv_step<FORMAT>(c, 2 * s, b, d);
                mm_gemv_step<FORMAT>(c, 2 * s + 1, b + 2, d);
            }
            x += S::COLS;
            if (++slot == STAGES)
                slot = 0;
        }
        small_hand_out(p, w, sum, i, d, emit);
    }
    mm_cp_async_wait<0>();
}

/* One row tile a warp, of at most AHEAD stages: decoded before the kernel waits for x, so that
 * nothing but the products is left. MXFP8. */
template <int AHEAD> struct mm_small_ahead {
    uint32_t a[AHEAD][8][4];
};

template <int AHEAD>
MM_DEV_FN void small_decode(const mm_gemv_warp &w, mm_small_ahead<AHEAD> *ahead)
{
    typedef mm_gemv_stage<MM_WEIGHT_MXFP8> S;
    mm_cp_async_wait<0>();
    __syncwarp(); /* scales come from other lanes' copies */
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        if (k >= w.n_stage)
            continue;
        mm_gemv_codes<MM_WEIGHT_MXFP8> c;
        mm_gemv_take<MM_WEIGHT_MXFP8>(w.ring + k * S::BYTES, w.lane, c);
#pragma unroll
        for (int s = 0; s < 8; s++) {
            const uint4 v = c.frag[s / 2];
            mm_frag_mxfp8(s % 2 == 0 ? make_uint2(v.x, v.y) : make_uint2(v.z, v.w),
                          c.scale[s / 2].x, c.scale[s / 2].y, ahead->a[k][s]);
        }
    }
}

template <int AHEAD>
MM_DEV_FN void small_multiply(const mm_small_args &p, const mm_gemv_warp &w,
                              const mm_small_ahead<AHEAD> &ahead, float d[4])
{
    const uint16_t *x = small_x(p, w);
    d[0] = d[1] = d[2] = d[3] = 0.0f;
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        if (k >= w.n_stage)
            continue;
#pragma unroll
        for (int s = 0; s < 8; s += 2) {
            uint32_t b[4];
            mm_ldmatrix_x4(b, x + k * 128 + s * 16);
            mm_mma_bf16(d, ahead.a[k][s], b);
            mm_mma_bf16(d, ahead.a[k][s + 1], b + 2);
        }
    }
}

/* grid: any; block 256. Row tiles of block b: those of parts b, b + grid, ... AHEAD: 0, or the most
 * stages of a slice, all of which are decoded before the wait. */
template <int FORMAT, int STAGES, int AHEAD, int BATCH>
static __global__ void __launch_bounds__(256, STAGES > 3 ? 1 : 2)
    mm_linear_small(const mm_small_args p)
{
    typedef mm_gemv_stage<FORMAT> S;
    uint8_t *smem = mm_smem();
    mm_pdl_trigger(); /* what comes next may fetch its weights meanwhile */
    const int warp = (int)threadIdx.x / 32;
    float *sum = (float *)(void *)smem;
    uint8_t *ring = smem + p.sum_bytes + warp * STAGES * S::BYTES;
    uint8_t *x = smem + p.sum_bytes + MM_GEMV_WARPS * STAGES * S::BYTES + warp * p.x_bytes;
    const int per = MM_GEMV_WARPS / p.m.n_slice;
    mm_gemv_warp w =
        mm_gemv_begin<FORMAT>(p.m, ring, x, (int)blockIdx.x * per, (int)gridDim.x * per, p.n_iter);
#pragma unroll
    for (int i = 0; i < STAGES; i++) {
        mm_gemv_load<FORMAT, STAGES>(p.m, w);
        mm_cp_async_commit();
    }
    const float lo = p.global != NULL ? p.global[0] : p.factor[0];
    const float hi = p.global != NULL ? p.global[1] : p.factor[1];
    const auto emit = [&](int tile, const float d[4]) {
        mm_gemv_store(p.out, tile, d, p.n_row, [](int n) { return (int64_t)n; }, lo, hi);
    };
    if constexpr (AHEAD > 0) {
        mm_small_ahead<AHEAD> ahead;
        small_decode<AHEAD>(w, &ahead);
        mm_pdl_wait();
        small_load_x<BATCH>(p, w, S::COLS);
        float d[4];
        small_multiply<AHEAD>(p, w, ahead, d);
        small_hand_out(p, w, sum, 0, d, emit);
    } else {
        mm_pdl_wait();
        small_load_x<BATCH>(p, w, S::COLS);
        small_stream<FORMAT, STAGES>(p, w, sum, emit);
    }
}

template <int FORMAT, int STAGES, int AHEAD, int BATCH>
static mm_status launch(const mm_op_context *c, const mm_small_args *p, int32_t n_block)
{
    const size_t smem =
        (size_t)p->sum_bytes +
        MM_GEMV_WARPS * ((size_t)STAGES * mm_gemv_stage<FORMAT>::BYTES + (size_t)p->x_bytes);
    return mm_launch(c, "linear_small", mm_linear_small<FORMAT, STAGES, AHEAD, BATCH>,
                     dim3((unsigned)n_block), dim3(256), smem, *p);
}

#define SMALL_AHEAD 2

/* Short slices of one row tile a warp are decoded early. With a block a multiprocessor there is
 * room for a deeper ring. */
template <int FORMAT>
static mm_status choose_ring(const mm_op_context *c, const mm_small_args *p, int32_t n_block)
{
    const mm_cuda *b = mm_cuda_of(c);
    const size_t deep =
        (size_t)p->sum_bytes +
        MM_GEMV_WARPS * (6 * (size_t)mm_gemv_stage<FORMAT>::BYTES + (size_t)p->x_bytes);
    if constexpr (FORMAT == MM_WEIGHT_MXFP8) {
        if (p->n_iter == 1 && p->m.n_stage <= SMALL_AHEAD * p->m.n_slice)
            return launch<FORMAT, 3, SMALL_AHEAD, 8>(c, p, n_block);
    }
    if (n_block > b->n_sm || deep > (size_t)b->smem_max)
        return launch<FORMAT, 3, 0, 8>(c, p, n_block);
    /* one or two rows: few registers, so that a block fits beside those of the kernel before */
    return p->n_row <= 2 ? launch<FORMAT, 6, 0, 6>(c, p, n_block)
                         : launch<FORMAT, 6, 0, 24>(c, p, n_block);
}

/* As many rows as fit, at most 8. */
static mm_status few(const mm_op_context *c, mm_small_args *p)
{
    const mm_cuda *b = mm_cuda_of(c);
    p->pitch = mm_gemv_x_pitch(&p->m);
    p->x_bytes = (int32_t)mm_gemv_x_bytes(&p->m, p->n_row);
    const size_t smem =
        mm_gemv_sum_bytes(&p->m, MM_GEMV_HELD) +
        MM_GEMV_WARPS *
            (3 * (size_t)mm_gemv_stage_bytes((mm_weight_format)p->m.format) + (size_t)p->x_bytes);
    const int32_t per = MM_GEMV_WARPS / p->m.n_slice, n_part = (p->m.n_tile + per - 1) / per;
    const int32_t most = b->n_sm * (2 * (smem + 1024) <= (size_t)b->smem_max + 1024 ? 2 : 1);
    p->n_iter = (n_part + most - 1) / most;
    p->sum_bytes = (int32_t)mm_gemv_sum_bytes(&p->m, p->n_iter);
    const int32_t n_block = (n_part + p->n_iter - 1) / p->n_iter;
    switch (p->m.format) {
    case MM_WEIGHT_BF16:
        return choose_ring<MM_WEIGHT_BF16>(c, p, n_block);
    case MM_WEIGHT_MXFP8:
        return choose_ring<MM_WEIGHT_MXFP8>(c, p, n_block);
    case MM_WEIGHT_NVFP4:
        return choose_ring<MM_WEIGHT_NVFP4>(c, p, n_block);
    default:
        return choose_ring<MM_WEIGHT_F32>(c, p, n_block);
    }
}

/* Rows of x that fit into shared memory beside a ring of 3. */
static int32_t rows_that_fit(const mm_op_context *c, const mm_gemv_matrix *m)
{
    const size_t ring = 3 * (size_t)mm_gemv_stage_bytes((mm_weight_format)m->format);
    int32_t n = MM_GEMV_ROWS;
    while (n > 0 &&
           mm_gemv_sum_bytes(m, MM_GEMV_HELD) + MM_GEMV_WARPS * (ring + mm_gemv_x_bytes(m, n)) >
               (size_t)mm_cuda_of(c)->smem_max)
        n--;
    return n;
}

static mm_status check(const mm_op_context *c, const mm_weight *w, const void *x, int64_t x_stride,
                       mm_out_kind kind)
{
    const mm_cuda *b = mm_cuda_of(c);
    if (w->format == MM_WEIGHT_NONE || w->layout != MM_LAYOUT_BACKEND || w->data == NULL)
        return MM_CUDA_FAIL(
            b, MM_E_UNSUPPORTED,
            "cuda: a matrix [%lld, %lld] of format %d is not packed; cuda reads packed "
            "weights only (pack it)",
            (long long)w->n_out, (long long)w->n_in, (int)w->format);
    if (w->n_in % 8 != 0 || x_stride % 8 != 0 || ((uintptr_t)x & 15) != 0)
        return MM_CUDA_FAIL(
            b, MM_E_UNSUPPORTED,
            "cuda: rows of %lld values at a stride of %lld: both must be multiples of 8 "
            "and begin at 16 bytes",
            (long long)w->n_in, (long long)x_stride);
    if (kind == MM_OUT_SWIGLU && w->n_out % 2 != 0)
        return MM_CUDA_FAIL(b, MM_E_SHAPE, "cuda: a gate-up matrix of %lld rows",
                            (long long)w->n_out);
    return MM_OK;
}

mm_status mm_cuda_linear_gather(const mm_op_context *c, const mm_weight *w, const void *x,
                                int64_t x_stride, const int32_t *row, int32_t n_row,
                                mm_out_kind kind, void *y, int64_t y_stride)
{
    const mm_op_shape *s = c->shape;
    MM_TRY(check(c, w, x, x_stride, kind));
    /* a gate-up matrix has 8 rows of each in a row tile */
    const bool is_pair = kind == MM_OUT_SWIGLU;
    const int32_t n_tile = (int32_t)(is_pair ? (w->n_out / 2 + 7) / 8 : (w->n_out + 15) / 16);
    mm_small_args p = {};
    p.m = mm_gemv_matrix_of(w, n_tile);
    p.factor[0] = p.factor[1] = w->format == MM_WEIGHT_NVFP4 ? 1.0f / w->global_scale : 1.0f;
    p.global = is_pair ? w->global_scales : NULL;
    const mm_gemv_out out = {(int32_t)kind,  (int32_t)w->n_out, y, y_stride, s->swiglu_alpha,
                             s->swiglu_beta, s->swiglu_limit};
    const int32_t fit = rows_that_fit(c, &p.m);
    if (fit < 1)
        return MM_CUDA_FAIL(
            mm_cuda_of(c), MM_E_UNSUPPORTED,
            "cuda: a row of %lld values does not fit into the shared memory of this "
            "device beside weights of format %d; store the matrix as bfloat16 or "
            "quantised, or use backend=\"cpu\"",
            (long long)w->n_in, (int)w->format);
    const size_t used = c->stream->scratch_used;
    for (int32_t t = 0; t < n_row;) {
        const int32_t left = n_row - t;
        const int32_t n = left > MM_GEMV_ROWS
                              ? (left < MM_CUDA_SMALL_ROWS ? left : MM_CUDA_SMALL_ROWS)
                              : (left < fit ? left : fit);
        const int64_t y_bytes = kind == MM_OUT_F32 ? 4 : 2;
        p.out = out;
        p.out.y = (uint8_t *)y + t * y_stride * y_bytes;
        p.x = (const uint16_t *)x + (row != NULL ? 0 : t * x_stride);
        p.x_stride = x_stride;
        p.row = row != NULL ? row + t : NULL;
        p.n_row = n;
        c->stream->scratch_used = used; /* pieces run one after the other */
        if (n > MM_GEMV_ROWS)
            MM_TRY(
                mm_cuda_linear_mid(c, &p.m, p.global, p.factor, p.x, x_stride, p.row, n, &p.out));
        else
            MM_TRY(few(c, &p));
        t += n;
    }
    return MM_OK;
}

mm_status mm_cuda_linear_small(const mm_op_context *c, const mm_weight *w, const void *x,
                               int64_t x_stride, int32_t n_row, mm_out_kind kind, void *y,
                               int64_t y_stride)
{
    return mm_cuda_linear_gather(c, w, x, x_stride, NULL, n_row, kind, y, y_stride);
}

mm_status mm_cuda_linear_slices(const mm_op_context *c, const mm_weight *w, const void *x,
                                int64_t x_stride, int32_t n_row, mm_out_kind kind, void *y,
                                int64_t y_stride, mm_linear_slices *slices)
{
    const bool has_factor = w->format == MM_WEIGHT_NVFP4;
    slices->n = 0;
    if (n_row <= MM_GEMV_ROWS || n_row > MM_CUDA_SMALL_ROWS || has_factor || w->n_out % 4 != 0)
        return mm_cuda_linear(c, w, x, x_stride, n_row, kind, y, y_stride);
    MM_TRY(check(c, w, x, x_stride, kind));
    const mm_gemv_matrix m = mm_gemv_matrix_of(w, (int32_t)((w->n_out + 15) / 16));
    mm_gemv_out out = {};
    out.kind = (int32_t)kind;
    out.n_out = (int32_t)w->n_out;
    out.y = y;
    out.y_stride = y_stride;
    return mm_cuda_linear_mid_slices(c, &m, (const uint16_t *)x, x_stride, n_row, &out, slices);
}
