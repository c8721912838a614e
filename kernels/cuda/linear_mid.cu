/* linear_mid.cu: y = x W^T for 9 to 64 rows: in which of its ways the kernel of linear_mid.h does a
 * product, slices as blocks or not, with how many row tiles a block: the cheapest by the bytes that
 * the busiest multiprocessor reads (cost()); or whether linear_thin_sm90a.cu does it. */
#include "kernels/cuda/linear_mid.h"

#define MID_SPLIT_TILES 508 /* row tiles; of more a block does all slices, which bounds scratch */

/* One way to do a product: row tiles of a block, slices as blocks or not. Slices that are blocks go
 * to `left` where that is given. */
typedef struct mid_way {
    int32_t tiles;
    bool is_split;
    mm_linear_slices *left;
} mid_way;

/* Stages of a block, at most. */
static int32_t stages_of(const mm_gemv_matrix *m, bool is_split)
{
    return is_split ? (m->n_stage + m->n_slice - 1) / m->n_slice : m->n_stage;
}

template <int FORMAT, int NT, int TILES>
static mm_status launch(const mm_op_context *c, mm_mid_args *p, const mid_way *way)
{
    typedef mm_mid<FORMAT, NT, TILES> M;
    const int32_t n_group = (p->m.n_tile + TILES - 1) / TILES;
    const size_t n_slice = (size_t)p->m.n_slice;
    void *part;
    p->part = NULL;
    p->counter = c->stream->counter;
    p->is_split = way->is_split;
    const int32_t n_stage = stages_of(&p->m, way->is_split);
    p->n_ring = n_stage < M::STAGES ? n_stage : M::STAGES;
    if (way->is_split && way->left != NULL) {
        const int64_t n = (int64_t)p->n_row * p->out.n_out;
        MM_TRY(mm_cuda_take(c, n_slice * (size_t)n * sizeof(float), &part));
        *way->left = {(const float *)part, n, p->m.n_slice};
        p->out.kind = (int32_t)MM_OUT_F32;
        p->out.y = part;
        p->out.y_stride = p->out.n_out;
    } else if (way->is_split) {
        const size_t n = (size_t)n_group * TILES * 16 * NT * 8;
        MM_TRY(mm_cuda_take(c, n_slice * n * sizeof(float), &part));
        p->part = (float4 *)part;
    }
    if (NT > 2 && TILES != MM_MID_ANYWHERE && mm_cuda_of(c)->tier == MM_CUDA_HOPPER)
        return mm_linear_mid_sm90a(c, NT, TILES, p);
    return mm_mid_launch<FORMAT, NT, TILES, false>(c, p);
}

/* What the busiest multiprocessor reads in one way, in bytes, or -1 where the device cannot do it
 * that way. The last block of a group reads the sums of all slices, and nothing of that is on its
 * way before all of them are done: as bad as SPLIT_BYTES more. Sums left to the reader cost it
 * little. */
#define SPLIT_BYTES (96 * 1024)
#define WAVE_BYTES (64 * 1024) /* what could have come while the first bytes were awaited */
template <int FORMAT, int NT, int TILES>
static int64_t cost(const mm_op_context *c, const mm_gemv_matrix *m, bool is_split, bool is_left)
{
    typedef mm_mid<FORMAT, NT, TILES> M;
    const mm_cuda *b = mm_cuda_of(c);
    if (M::BYTES + 1024 > b->smem_max)
        return -1;
    const int64_t n_group = (m->n_tile + TILES - 1) / TILES;
    const int64_t n_block = n_group * (is_split ? m->n_slice : 1);
    const int64_t n_wave = (n_block + b->n_sm - 1) / b->n_sm;
    const int64_t sums = (int64_t)m->n_slice * TILES * 16 * NT * 8 * 4;
    return n_wave * (stages_of(m, is_split) * (M::X + M::W) + WAVE_BYTES) +
           (!is_split ? 0
            : is_left ? SPLIT_BYTES / 4
                      : sums + SPLIT_BYTES);
}

template <int FORMAT, int NT, int TILES>
static void consider(const mm_op_context *c, const mm_gemv_matrix *m, int64_t *least, mid_way *way)
{
    for (int split = 0; split < 2; split++) {
        /* scratch holds the sums of some row groups only */
        if (split == 1 && (m->n_slice < 2 || m->n_tile > MID_SPLIT_TILES))
            continue;
        const int64_t n = cost<FORMAT, NT, TILES>(c, m, split == 1, way->left != NULL);
        if (n >= 0 && (*least < 0 || n < *least)) {
            *least = n;
            way->tiles = TILES;
            way->is_split = split == 1;
        }
    }
}

/* Whether linear_thin_sm90a.cu takes the product: MXFP8, slices of the lengths that it knows, and
 * no more blocks than run at once. Of clusters of eight a device holds fewer than its
 * multiprocessors would: they lie in one of its parts of 16 or 18. */
static bool is_thin(const mm_op_context *c, const mm_gemv_matrix *m, mm_thin_way *w)
{
    const mm_cuda *b = mm_cuda_of(c);
    if (b->tier != MM_CUDA_HOPPER || m->n_in % 128 != 0 || m->n_stage % m->n_slice != 0)
        return false;
    const int32_t stages = m->n_stage / m->n_slice, n_group = (m->n_tile + 3) / 4;
    *w = {1, 1, stages, 1};
    if (m->n_slice == 4 && stages == 2)
        w->slices = 4;
    else if (m->n_slice == 8 && (stages == 3 || stages == 6))
        w->cluster = 8;
    else if (m->n_slice != 1 || stages != 3)
        return false;
    if (w->cluster == 1)
        return n_group <= b->n_sm;
    const int32_t most = b->n_sm * 3 / 4 / w->cluster;
    w->groups = n_group <= most ? 1 : 2;
    return (n_group + w->groups - 1) / w->groups <= most;
}

/* Formats of the real model's thin products have many ways, others one that every device can do. */
template <int FORMAT, int NT>
static mm_status choose_way(const mm_op_context *c, mm_mid_args *p, mm_linear_slices *left)
{
    const bool is_many = FORMAT == MM_WEIGHT_MXFP8 || FORMAT == MM_WEIGHT_BF16;
    mid_way way = {MM_MID_ANYWHERE, false, left};
    int64_t least = -1;
    if constexpr (FORMAT == MM_WEIGHT_MXFP8) {
        mm_thin_way thin;
        if (is_thin(c, &p->m, &thin))
            return mm_linear_thin_sm90a(c, NT < 4 ? 4 : NT, &thin, p);
    }
    if constexpr (is_many) {
        consider<FORMAT, NT, 4>(c, &p->m, &least, &way);
        consider<FORMAT, NT, 8>(c, &p->m, &least, &way);
        consider<FORMAT, NT, MM_MID_MOST_TILES>(c, &p->m, &least, &way);
        if (way.tiles == 4)
            return launch<FORMAT, NT, 4>(c, p, &way);
        if (way.tiles == 8)
            return launch<FORMAT, NT, 8>(c, p, &way);
        if (way.tiles == MM_MID_MOST_TILES)
            return launch<FORMAT, NT, MM_MID_MOST_TILES>(c, p, &way);
    }
    consider<FORMAT, NT, MM_MID_ANYWHERE>(c, &p->m, &least, &way);
    return launch<FORMAT, NT, MM_MID_ANYWHERE>(c, p, &way);
}

template <int FORMAT>
static mm_status choose_rows(const mm_op_context *c, mm_mid_args *p, mm_linear_slices *left)
{
    return p->n_row <= 16   ? choose_way<FORMAT, 2>(c, p, left)
           : p->n_row <= 32 ? choose_way<FORMAT, 4>(c, p, left)
                            : choose_way<FORMAT, 8>(c, p, left);
}

size_t mm_cuda_linear_mid_scratch(int64_t n_out)
{
    const int64_t n_tile = (n_out + 15) / 16 + MM_MID_MOST_TILES;
    const int64_t most = MID_SPLIT_TILES + MM_MID_MOST_TILES;
    return mm_cuda_size((size_t)(n_tile < most ? n_tile : most) * 16 * 64 * 8 * sizeof(float));
}

/* Rows that fit into shared memory in the way that every device can do. */
template <int FORMAT> static int32_t most_rows(size_t smem)
{
    return (size_t)mm_mid<FORMAT, 8, MM_MID_ANYWHERE>::BYTES <= smem   ? 64
           : (size_t)mm_mid<FORMAT, 4, MM_MID_ANYWHERE>::BYTES <= smem ? 32
                                                                       : 16;
}

static mm_status run(const mm_op_context *c, mm_mid_args *p, mm_linear_slices *left)
{
    switch (p->m.format) {
    case MM_WEIGHT_BF16:
        return choose_rows<MM_WEIGHT_BF16>(c, p, left);
    case MM_WEIGHT_MXFP8:
        return choose_rows<MM_WEIGHT_MXFP8>(c, p, left);
    case MM_WEIGHT_NVFP4:
        return choose_rows<MM_WEIGHT_NVFP4>(c, p, left);
    default:
        return choose_rows<MM_WEIGHT_F32>(c, p, left);
    }
}

static int32_t rows_at_once(const mm_op_context *c, int32_t format)
{
    const size_t smem = (size_t)mm_cuda_of(c)->smem_max - 1024;
    return format == MM_WEIGHT_BF16    ? most_rows<MM_WEIGHT_BF16>(smem)
           : format == MM_WEIGHT_MXFP8 ? most_rows<MM_WEIGHT_MXFP8>(smem)
           : format == MM_WEIGHT_NVFP4 ? most_rows<MM_WEIGHT_NVFP4>(smem)
                                       : most_rows<MM_WEIGHT_F32>(smem);
}

mm_status mm_cuda_linear_mid(const mm_op_context *c, const mm_gemv_matrix *m, const float *global,
                             const float factor[2], const uint16_t *x, int64_t x_stride,
                             const int32_t *row, int32_t n_row, const mm_gemv_out *out)
{
    mm_mid_args p = {};
    p.m = *m;
    p.x_stride = x_stride;
    p.factor[0] = factor[0];
    p.factor[1] = factor[1];
    p.global = global;
    const int32_t most = rows_at_once(c, m->format);
    const size_t used = c->stream->scratch_used;
    for (int32_t t = 0; t < n_row; t += most) {
        p.n_row = n_row - t < most ? n_row - t : most;
        p.x = row != NULL ? x : x + t * x_stride;
        p.row = row != NULL ? row + t : NULL;
        p.out = *out;
        p.out.y = (uint8_t *)out->y + t * out->y_stride * (out->kind == MM_OUT_F32 ? 4 : 2);
        c->stream->scratch_used = used;
        MM_TRY(run(c, &p, NULL));
    }
    return MM_OK;
}

mm_status mm_cuda_linear_mid_slices(const mm_op_context *c, const mm_gemv_matrix *m,
                                    const uint16_t *x, int64_t x_stride, int32_t n_row,
                                    const mm_gemv_out *out, mm_linear_slices *slices)
{
    static const float one[2] = {1.0f, 1.0f};
    slices->n = 0;
    if (n_row > rows_at_once(c, m->format))
        return mm_cuda_linear_mid(c, m, NULL, one, x, x_stride, NULL, n_row, out);
    mm_mid_args p = {};
    p.m = *m;
    p.out = *out;
    p.x = x;
    p.x_stride = x_stride;
    p.n_row = n_row;
    p.factor[0] = p.factor[1] = 1.0f;
    return run(c, &p, slices);
}
