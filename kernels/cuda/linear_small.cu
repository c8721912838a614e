/* linear_small.cu: y = x W^T for few rows: up to 8 at once through gemv.h, 9 to 64 through
 * linear_mid.cu, more in pieces of 64. All of them add in the same order, so a row's bits are the
 * same whichever is used. Schedule and numbers: notes/linear_small.md. */
#include "kernels/cuda/gemv.h"

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

/* grid: any; block 256. Row tiles of block b: those of parts b, b + grid, ... */
template <int FORMAT, int STAGES>
static __global__ void __launch_bounds__(256, STAGES > 3 ? 1 : 2)
    mm_linear_small(const mm_small_args p)
{
    typedef mm_gemv_stage<FORMAT> S;
    uint8_t *smem = mm_smem();
    const int warp = (int)threadIdx.x / 32;
    float *sum = (float *)(void *)smem;
    uint8_t *ring = smem + p.sum_bytes + warp * STAGES * S::BYTES;
    uint8_t *x = smem + p.sum_bytes + MM_GEMV_WARPS * STAGES * S::BYTES + warp * p.x_bytes;
    const int per = MM_GEMV_WARPS / p.m.n_slice;
    mm_gemv_warp w =
        mm_gemv_begin<FORMAT>(p.m, ring, x, (int)blockIdx.x * per, (int)gridDim.x * per, p.n_iter);
#pragma unroll
    for (int i = 0; i < STAGES; i++)
        mm_gemv_load<FORMAT, STAGES>(p.m, w);
    const float lo = p.global != NULL ? p.global[0] : p.factor[0];
    const float hi = p.global != NULL ? p.global[1] : p.factor[1];
    mm_pdl_wait();
    mm_pdl_trigger();
    mm_gemv_load_x(p.m, w, S::COLS, p.pitch, p.n_row,
                   [&](int r) { return p.x + (p.row != NULL ? p.row[r] : r) * p.x_stride; });
    mm_gemv_run<FORMAT, STAGES, 1>(p.m, w, p.pitch, p.n_row, sum, [&](int tile, const float d[4]) {
        mm_gemv_store(p.out, tile, d, p.n_row, [](int n) { return (int64_t)n; }, lo, hi);
    });
}

template <int FORMAT, int STAGES>
static mm_status launch(const mm_op_context *c, const mm_small_args *p, int32_t n_block)
{
    const size_t smem =
        (size_t)p->sum_bytes +
        MM_GEMV_WARPS * ((size_t)STAGES * mm_gemv_stage<FORMAT>::BYTES + (size_t)p->x_bytes);
    return mm_launch(c, "linear_small", mm_linear_small<FORMAT, STAGES>, dim3((unsigned)n_block),
                     dim3(256), smem, *p);
}

/* With a block a multiprocessor there is room for a deeper ring. */
template <int FORMAT>
static mm_status choose_ring(const mm_op_context *c, const mm_small_args *p, int32_t n_block)
{
    const mm_cuda *b = mm_cuda_of(c);
    const size_t deep =
        (size_t)p->sum_bytes +
        MM_GEMV_WARPS * (6 * (size_t)mm_gemv_stage<FORMAT>::BYTES + (size_t)p->x_bytes);
    return n_block <= b->n_sm && deep <= (size_t)b->smem_max ? launch<FORMAT, 6>(c, p, n_block)
                                                             : launch<FORMAT, 3>(c, p, n_block);
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
        return MM_CUDA_FAIL(mm_cuda_of(c), MM_E_UNSUPPORTED,
                            "cuda: a row of %lld values does not fit into shared memory",
                            (long long)w->n_in);
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
