/* attn_in.cu: the projections of q, k, v and the index (one matrix product), then one kernel for
 * what is done per head vector: norm, rotation, one rounding, and the way out: q and iq as rows, k,
 * v and ik into the pages of their positions. One warp takes one head vector, four values a lane.
 *
 * All but the vector itself is looked up before mm_pdl_wait: weights, and what the step's expand
 * has written, which has ended before any kernel behind the embedding starts (that one triggers
 * behind its own wait). */
#include "kernels/cuda/cache.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/linear.h"

#define WARPS 4

typedef enum head_kind { HEAD_Q = 0, HEAD_K, HEAD_V, HEAD_IQ, HEAD_IK } head_kind;

typedef struct head_params {
    const uint16_t *y;       /* [n_row, n_vec * 128]: heads in the order of head_kind */
    mm_linear_slices slices; /* n > 0: y is their sum */
    int32_t n_row, n_vec;    /* n_vec: head vectors of a row */
    int32_t count[5];        /* of each kind; 0: not wanted */
    const float *weight[4];  /* norms of q, k, iq, ik */
    const float *rope;
    int32_t n_rotary;
    float eps;
    const int32_t *pos, *row_seq, *slot, *page_table;
    int32_t page_stride;
    bool is_single; /* row t is sequence t */
    mm_plane k, v, ik;
    uint16_t *q, *iq, *k_out, *v_out;
} head_params;

MM_DEV_FN void write_row(uint16_t *out, int64_t vec, int lane, const float x[4])
{
    ((uint2 *)(out + vec * MM_CACHE_DIM))[lane] =
        uint2{mm_f32x2_bf16x2(x[0], x[1]), mm_f32x2_bf16x2(x[2], x[3])};
}

/* The rotation of a lane's four values: lanes below n_rotary / 8 hold the first values of pairs,
 * as many behind them the second ones. */
typedef struct rotation {
    bool is_first, is_second;
    float4 cos_a, sin_a;
} rotation;
MM_DEV_FN rotation rotation_load(const float *rope, int n_rotary, int lane)
{
    const int half = n_rotary / 8;
    rotation r = {lane < half, lane >= half && lane < 2 * half, {}, {}};
    if (r.is_first || r.is_second) {
        const int j = r.is_first ? lane : lane - half;
        r.cos_a = ((const float4 *)rope)[j];
        r.sin_a = ((const float4 *)rope)[half + j];
    }
    return r;
}

/* x: values 4 lane .. 4 lane + 3 of a head. */
MM_DEV_FN void norm_rotate(float x[4], const float w[4], const rotation &rot, int n_rotary,
                           float eps, int lane)
{
    const int half = n_rotary / 8;
    float sum = x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3];
#pragma unroll
    for (int d = 1; d < 32; d *= 2)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, d);
    const float r = 1.0f / sqrtf(sum / (float)MM_CACHE_DIM + eps);
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] = x[i] * r * (1.0f + w[i]);
    const int other = rot.is_first ? lane + half : rot.is_second ? lane - half : lane;
    const float cos_a[4] = {rot.cos_a.x, rot.cos_a.y, rot.cos_a.z, rot.cos_a.w};
    const float sin_a[4] = {rot.sin_a.x, rot.sin_a.y, rot.sin_a.z, rot.sin_a.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float y = __shfl_sync(0xFFFFFFFFu, x[i], other);
        const float a = __fmul_rn(x[i], cos_a[i]), b = __fmul_rn(y, sin_a[i]);
        if (rot.is_first || rot.is_second)
            x[i] = rot.is_first ? __fsub_rn(a, b) : __fadd_rn(a, b);
        x[i] = mm_round_bf16(x[i]);
    }
}

/* FK: format of k and v, FI: of ik. */
template <int FK, int FI>
static __global__ void __launch_bounds__(32 * WARPS) attn_in_heads_kernel(const head_params p)
{
    const int lane = (int)threadIdx.x % 32;
    const uint32_t item = blockIdx.x * WARPS + threadIdx.x / 32, n_vec = (uint32_t)p.n_vec;
    const int t = (int)(item / n_vec);
    mm_pdl_trigger(); /* what comes next looks up what does not come from here, and waits too */
    if (t >= p.n_row) {
        mm_pdl_wait();
        return;
    }
    int kind = 0, head = (int)(item % n_vec);
    while (head >= p.count[kind])
        head -= p.count[kind++];
    const int pos = p.pos[t], slot = p.slot[p.is_single ? t : p.row_seq[t]];
    float w[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (kind != HEAD_V) {
        const float4 f = ((const float4 *)p.weight[kind - (kind > HEAD_V)])[lane];
        w[0] = f.x, w[1] = f.y, w[2] = f.z, w[3] = f.w;
    }
    const bool is_row =
        kind == HEAD_Q || kind == HEAD_IQ || (kind != HEAD_IK && p.k_out != nullptr);
    int64_t page = 0;
    if (!is_row)
        page = p.page_table[(int64_t)slot * p.page_stride + pos / MM_PAGE];
    const rotation rot = rotation_load(p.rope + (int64_t)pos * p.n_rotary, p.n_rotary, lane);
    mm_pdl_wait();
    float x[4];
    if (p.slices.n > 0) {
        mm_linear_read4(p.slices, (int64_t)item * MM_CACHE_DIM + 4 * lane, x);
    } else {
        const uint2 y = ((const uint2 *)(p.y + (int64_t)item * MM_CACHE_DIM))[lane];
        x[0] = mm_bf16_lo(y.x), x[1] = mm_bf16_hi(y.x);
        x[2] = mm_bf16_lo(y.y), x[3] = mm_bf16_hi(y.y);
    }
    if (kind != HEAD_V)
        norm_rotate(x, w, rot, p.n_rotary, p.eps, lane);
    if (is_row) {
        uint16_t *out = kind == HEAD_Q    ? p.q
                        : kind == HEAD_IQ ? p.iq
                        : kind == HEAD_K  ? p.k_out
                                          : p.v_out;
        write_row(out, (int64_t)t * p.count[kind] + head, lane, x);
        return;
    }
    const mm_plane &plane = kind == HEAD_K ? p.k : kind == HEAD_V ? p.v : p.ik;
    const int64_t row = mm_cache_row(plane, page, head, pos % MM_PAGE);
    if (FK == FI || kind != HEAD_IK)
        mm_cache_write4<FK>(plane, row, lane, x);
    else
        mm_cache_write4<FI>(plane, row, lane, x);
}

template <int FK, int FI> static mm_status launch(const mm_op_context *c, const head_params *p)
{
    const int64_t n = ((int64_t)p->n_row * p->n_vec + WARPS - 1) / WARPS;
    return mm_launch(c, "attn_in_heads", attn_in_heads_kernel<FK, FI>, dim3((unsigned)n),
                     dim3(32 * WARPS), 0, *p);
}
template <int FK>
static mm_status launch_index(const mm_op_context *c, const head_params *p, mm_cache_format index)
{
    MM_CACHE_DISPATCH(mm_cuda_of(c), index, launch<FK, F>(c, p));
    return MM_OK;
}

static int32_t vectors(const mm_op_shape *s)
{
    return s->n_head + 2 * s->n_kv_head + s->n_index_head + (s->n_index_head > 0 ? 1 : 0);
}

size_t mm_cuda_attn_in_scratch(const mm_op_shape *s)
{
    return mm_cuda_size((size_t)s->max_rows * (size_t)vectors(s) * MM_CACHE_DIM * 2) +
           mm_cuda_linear_scratch(s);
}

static mm_status check(const mm_op_context *c, const mm_attn_in_args *a, int32_t n_vec)
{
    const mm_cuda *b = mm_cuda_of(c);
    if ((a->k_out == nullptr) != (a->v_out == nullptr))
        return MM_CUDA_FAIL(b, MM_E_INVALID,
                            "attn_in: k_out and v_out must both be given or both be NULL");
    if (a->w->qkv.layout != MM_LAYOUT_BACKEND || a->w->qkv.format == MM_WEIGHT_NONE)
        return MM_CUDA_FAIL(b, MM_E_INVALID,
                            "cuda: attn_in needs packed projections (MM_PACK_QKV)");
    if (a->w->qkv.n_out != (int64_t)n_vec * MM_CACHE_DIM)
        return MM_CUDA_FAIL(b, MM_E_INVALID,
                            "cuda: the packed projections have %lld rows, the layer %lld",
                            (long long)a->w->qkv.n_out, (long long)n_vec * MM_CACHE_DIM);
    return MM_OK;
}

/* Rows [first, first + n) of a packed matrix, both multiples of 16. */
static mm_weight packed_rows(const mm_weight *w, int64_t first, int64_t n)
{
    mm_weight out = *w;
    out.n_out = n;
    out.data = (const uint8_t *)w->data + first / 16 * w->data_stride;
    if (w->scale != nullptr)
        out.scale = w->scale + first / 16 * w->scale_stride;
    return out;
}

mm_status mm_cuda_attn_in(const mm_op_context *c, const mm_seq_view *seq, const mm_attn_in_args *a)
{
    const mm_op_shape *s = c->shape;
    const bool want_query = a->q != nullptr, is_sparse = a->w->iq.format != MM_WEIGHT_NONE;
    const bool want_index = want_query && a->iq != nullptr;
    const int32_t n_index = is_sparse ? s->n_index_head + 1 : 0;
    mm_cuda_start(c);
    MM_TRY(check(c, a, s->n_head + 2 * s->n_kv_head + n_index));
    if (seq->n_row == 0)
        return MM_OK;

    head_params p = {};
    p.count[HEAD_Q] = want_query ? s->n_head : 0;
    p.count[HEAD_K] = p.count[HEAD_V] = s->n_kv_head;
    p.count[HEAD_IQ] = want_index ? s->n_index_head : 0;
    p.count[HEAD_IK] = want_index ? 1 : 0;
    for (int i = 0; i < 5; i++)
        p.n_vec += p.count[i];
    const int64_t first = want_query ? 0 : (int64_t)s->n_head * MM_CACHE_DIM;
    const int64_t width = (int64_t)p.n_vec * MM_CACHE_DIM;
    const mm_weight w = packed_rows(&a->w->qkv, first, width);
    void *y;
    MM_TRY(mm_cuda_take(c, (size_t)seq->n_row * (size_t)width * 2, &y));
    MM_TRY(mm_cuda_linear_slices(c, &w, a->h, s->d_model, seq->n_row, MM_OUT_BF16, y, width,
                                 &p.slices));

    p.y = (const uint16_t *)y;
    p.n_row = seq->n_row;
    p.weight[0] = a->w->q_norm;
    p.weight[1] = a->w->k_norm;
    p.weight[2] = a->w->iq_norm;
    p.weight[3] = a->w->ik_norm;
    p.rope = c->rope;
    p.n_rotary = s->n_rotary;
    p.eps = s->eps;
    p.pos = seq->pos;
    p.row_seq = seq->row_seq;
    p.slot = seq->slot;
    p.page_table = seq->slots->page_table;
    p.page_stride = seq->slots->page_stride;
    p.is_single = seq->n_row == seq->n_seq;
    p.k = a->cache->k;
    p.v = a->cache->v;
    p.ik = a->cache->ik;
    p.q = (uint16_t *)a->q;
    p.iq = (uint16_t *)a->iq;
    p.k_out = (uint16_t *)a->k_out;
    p.v_out = (uint16_t *)a->v_out;
    if (p.k.format != p.v.format)
        return MM_CUDA_FAIL(mm_cuda_of(c), MM_E_INVALID,
                            "cuda: the K and V planes of a layer differ in format");
    const mm_cache_format index = want_index ? p.ik.format : p.k.format;
    MM_CACHE_DISPATCH(mm_cuda_of(c), p.k.format, launch_index<F>(c, &p, index));
    return MM_OK;
}
