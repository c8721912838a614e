/* pack.cu: weights from checkpoint order in host memory (files that are mapped, views of columns)
 * into fragments (frag.h). Pieces of rows are copied into one of two pinned buffers, uploaded, and
 * reordered by a kernel while the host fills the other buffer. What the kernels cannot multiply
 * with exactly (NaN codes and scales, negative or huge scales) is found by the reordering kernel
 * and refused when a matrix is done. */
#include <string.h>

#include "kernels/cuda/frag_decode.h"
#include "kernels/cuda/kernels.h"

#define STAGE_BYTES ((size_t)32 << 20)
#define SMALL_BYTES ((size_t)64 << 10) /* pinned: global scales, flags */
#define MAX_PIECE 256                  /* launches of one stage */

enum {
    FLAG_CODE_NAN = 0,   /* MXFP8 code 0x7F or 0xFF */
    FLAG_SCALE_NAN,      /* e8m0 255, e4m3 0x7F or 0xFF */
    FLAG_SCALE_NEGATIVE, /* e4m3 with a sign */
    FLAG_SCALE_LARGE,    /* e8m0 above 134 over codes that are not all 0 */
    N_FLAG
};

/* Rows of one or two sources (two: gate and up, 8 rows of each in a row tile). */
typedef struct mm_pack_piece {
    const uint8_t *code[2], *scale[2]; /* in the stage's device buffer */
    int64_t row_bytes, scale_bytes;    /* of a source row */
    int32_t n_row, n_in;               /* rows of a source in this piece */
    int32_t n_tile, n_frag;            /* row tiles made; fragments of one (F32: parts counted) */
    bool is_pair;
    uint8_t *frag, *frag_scale; /* of the first row tile made */
    uint32_t *flag;             /* [N_FLAG] */
} mm_pack_piece;

struct mm_cuda_stage {
    mm_backend *b;
    uint8_t *host[2], *device[2];
    mm_event *done[2];
    bool is_busy[2];
    int now;         /* buffer being filled */
    size_t n_used;   /* bytes of it */
    int32_t n_piece; /* launches waiting for its upload */
    uint32_t *flag;  /* device [N_FLAG], 64 bytes */
    uint8_t *small;  /* pinned [SMALL_BYTES] */
    mm_pack_piece piece[MAX_PIECE];
};

/* ---------------------------------------------------------------- reordering */

MM_DEV_FN const uint8_t *piece_row(const mm_pack_piece &p, int64_t tile, int r,
                                   const uint8_t *const *of, int64_t bytes)
{
    const int64_t row = p.is_pair ? 8 * tile + (r & 7) : 16 * tile + r;
    return row < p.n_row ? of[p.is_pair ? r >> 3 : 0] + row * bytes : NULL;
}

/* e4m3 scale to the packed byte (frag.h); 0 for a scale of 0. */
MM_DEV_FN uint32_t packed_scale(uint32_t c)
{
    const uint32_t m = c & 7;
    c &= 0x7Fu;
    if (c >= 8)
        return c + 24;
    return m == 0 ? 0 : m == 1 ? 8 : m < 4 ? 16 | (m - 2) << 2 : 24 | (m - 4) << 1;
}

MM_DEV_FN uint4 nvfp4_lane(const mm_pack_piece &p, int64_t tile, int frag, int lane)
{
    const int g = lane / 4, t = lane % 4;
    uint32_t out[4];
    for (int s = 0; s < 4; s++) {
        const int col = frag * 64 + s * 16;
        out[s] = 0;
        for (int i = 0; i < 4 && col < p.n_in; i++) {
            const uint8_t *row = piece_row(p, tile, g + 8 * (i & 1), p.code, p.row_bytes);
            const uint8_t *scale = piece_row(p, tile, g + 8 * (i & 1), p.scale, p.scale_bytes);
            if (row == NULL || (scale[col / 16] & 0x7F) == 0)
                continue;
            const uint32_t both = row[(col + 2 * t + 8 * (i >> 1)) / 2];
            out[s] |= mm_frag_nvfp4_bits(i, 0, both & 15) | mm_frag_nvfp4_bits(i, 1, both >> 4);
        }
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

/* Two of the 64 scale bytes of a fragment. */
MM_DEV_FN void nvfp4_scales(const mm_pack_piece &p, int64_t tile, int frag, int lane, uint8_t *out)
{
    for (int at = 2 * lane; at < 2 * lane + 2; at++) {
        const int col = frag * 4 + (at & 3);
        const uint8_t *row = piece_row(p, tile, at / 8 + 8 * (at >> 2 & 1), p.scale, p.scale_bytes);
        const uint32_t c = row != NULL && col < p.n_in / 16 ? row[col] : 0;
        if ((c & 0x7F) == 0x7F)
            atomicOr(&p.flag[FLAG_SCALE_NAN], 1u);
        else if (c > 0x80)
            atomicOr(&p.flag[FLAG_SCALE_NEGATIVE], 1u);
        out[at] = (uint8_t)packed_scale(c);
    }
}

MM_DEV_FN uint4 mxfp8_lane(const mm_pack_piece &p, int64_t tile, int frag, int lane)
{
    const int g = lane / 4, t = lane % 4;
    uint32_t out[4] = {0, 0, 0, 0};
    bool is_nan = false;
    for (int k = 0; k < 16; k++) { /* step k / 8, a[k / 2 % 4], element k % 2 */
        const int i = k / 2 % 4, col = frag * 32 + k / 8 * 16 + 2 * t + 8 * (i >> 1) + k % 2;
        const uint8_t *row = piece_row(p, tile, g + 8 * (i & 1), p.code, p.row_bytes);
        const uint32_t c = row != NULL && col < p.n_in ? row[col] : 0;
        is_nan |= (c & 0x7F) == 0x7F;
        out[k / 4] |= mm_frag_mxfp8_bits(i, k % 2, c);
    }
    if (is_nan)
        atomicOr(&p.flag[FLAG_CODE_NAN], 1u);
    return make_uint4(out[0], out[1], out[2], out[3]);
}

/* The scale byte of row `lane` (of 16) of a fragment. */
MM_DEV_FN uint8_t mxfp8_scale(const mm_pack_piece &p, int64_t tile, int frag, int lane)
{
    const uint8_t *row = piece_row(p, tile, lane, p.scale, p.scale_bytes);
    if (row == NULL || frag * 32 >= p.n_in)
        return 127;
    const uint8_t b = row[frag];
    if (b <= 134)
        return b;
    const uint8_t *code = piece_row(p, tile, lane, p.code, p.row_bytes) + frag * 32;
    uint32_t any = 0;
    for (int i = 0; i < 32; i++)
        any |= code[i] & 0x7Fu;
    if (b == 255)
        atomicOr(&p.flag[FLAG_SCALE_NAN], 1u);
    else if (any != 0)
        atomicOr(&p.flag[FLAG_SCALE_LARGE], 1u);
    return 127;
}

MM_DEV_FN uint4 bf16_lane(const mm_pack_piece &p, int64_t tile, int frag, int lane)
{
    const int g = lane / 4, t = lane % 4;
    uint32_t out[4];
    for (int i = 0; i < 4; i++) {
        const uint16_t *row = (const uint16_t *)(const void *)piece_row(p, tile, g + 8 * (i & 1),
                                                                        p.code, p.row_bytes);
        const int col = frag * 16 + 2 * t + 8 * (i >> 1);
        const uint32_t lo = row != NULL && col < p.n_in ? row[col] : 0;
        const uint32_t hi = row != NULL && col + 1 < p.n_in ? row[col + 1] : 0;
        out[i] = lo | hi << 16;
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

/* Part 0, 1, 2 of an f32 value: each takes 8 bits of what the ones before left. */
MM_DEV_FN uint32_t f32_part(float v, int part)
{
    uint16_t h = mm_f32_bf16(v);
    for (int i = 0; i < part; i++) {
        v -= mm_bf16_f32(h);
        h = mm_f32_bf16(v);
    }
    return h;
}

MM_DEV_FN uint4 f32_lane(const mm_pack_piece &p, int64_t tile, int frag, int lane)
{
    const int g = lane / 4, t = lane % 4, part = frag % 3;
    uint32_t out[4];
    for (int i = 0; i < 4; i++) {
        const float *row =
            (const float *)(const void *)piece_row(p, tile, g + 8 * (i & 1), p.code, p.row_bytes);
        const int col = frag / 3 * 16 + 2 * t + 8 * (i >> 1);
        const float lo = row != NULL && col < p.n_in ? row[col] : 0.0f;
        const float hi = row != NULL && col + 1 < p.n_in ? row[col + 1] : 0.0f;
        out[i] = f32_part(lo, part) | f32_part(hi, part) << 16;
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

/* One warp a fragment. */
template <int FORMAT>
static __global__ void __launch_bounds__(256) mm_pack_kernel(const mm_pack_piece p)
{
    const int lane = (int)threadIdx.x % 32;
    const int64_t at = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    const int64_t tile = at / p.n_frag;
    const int frag = (int)(at % p.n_frag);
    mm_pdl_wait();
    if (tile >= p.n_tile)
        return;
    uint4 v;
    if (FORMAT == MM_WEIGHT_NVFP4) {
        v = nvfp4_lane(p, tile, frag, lane);
        nvfp4_scales(p, tile, frag, lane, p.frag_scale + at * 64);
    } else if (FORMAT == MM_WEIGHT_MXFP8) {
        v = mxfp8_lane(p, tile, frag, lane);
        if (lane < 16)
            p.frag_scale[at * 16 + lane] = mxfp8_scale(p, tile, frag, lane);
    } else if (FORMAT == MM_WEIGHT_BF16) {
        v = bf16_lane(p, tile, frag, lane);
    } else {
        v = f32_lane(p, tile, frag, lane);
    }
    *(uint4 *)(void *)(p.frag + at * MM_FRAG_BYTES + lane * 16) = v;
}

static mm_status launch_piece(const mm_op_context *c, mm_weight_format format,
                              const mm_pack_piece *p)
{
    const int64_t n = (int64_t)p->n_tile * p->n_frag;
    const dim3 grid((unsigned)((n + 7) / 8)), block(256);
    switch (format) {
    case MM_WEIGHT_NVFP4:
        return mm_launch(c, "pack_nvfp4", mm_pack_kernel<MM_WEIGHT_NVFP4>, grid, block, 0, *p);
    case MM_WEIGHT_MXFP8:
        return mm_launch(c, "pack_mxfp8", mm_pack_kernel<MM_WEIGHT_MXFP8>, grid, block, 0, *p);
    case MM_WEIGHT_BF16:
        return mm_launch(c, "pack_bf16", mm_pack_kernel<MM_WEIGHT_BF16>, grid, block, 0, *p);
    default:
        return mm_launch(c, "pack_f32", mm_pack_kernel<MM_WEIGHT_F32>, grid, block, 0, *p);
    }
}

/* ---------------------------------------------------------------- layout */

typedef struct mm_pack_layout {
    int32_t n_unit; /* matrices, or pairs of gate and up */
    bool is_pair;
    int32_t n_frag;                  /* of a row tile, parts counted */
    int64_t tile_bytes, tile_scales; /* of a row tile */
    int64_t n_tile;                  /* of all units */
    int64_t scale_at, global_at, n_bytes;
    int32_t n_global;
} mm_pack_layout;

static bool is_experts(mm_pack kind)
{
    return kind == MM_PACK_EXPERTS_W13 || kind == MM_PACK_EXPERTS_W2;
}

static int64_t unit_tiles(const mm_pack_layout *l, const mm_weight *src)
{
    return (src->n_out + (l->is_pair ? 7 : 15)) / (l->is_pair ? 8 : 16);
}

static mm_pack_layout layout_of(mm_pack kind, const mm_weight *src, int32_t n)
{
    mm_pack_layout l = {};
    const mm_weight_format f = src->format;
    l.is_pair = kind == MM_PACK_GATE_UP || kind == MM_PACK_EXPERTS_W13;
    l.n_unit = l.is_pair ? n / 2 : n;
    l.n_frag = (int32_t)((src->n_in + mm_frag_cols(f) - 1) / mm_frag_cols(f)) * mm_frag_parts(f);
    l.tile_bytes = (int64_t)l.n_frag * MM_FRAG_BYTES;
    l.tile_scales = (int64_t)l.n_frag * mm_frag_scale_bytes(f);
    for (int32_t u = 0; u < l.n_unit; u++)
        l.n_tile += unit_tiles(&l, &src[l.is_pair ? 2 * u : u]);
    l.n_global = f == MM_WEIGHT_NVFP4 && (is_experts(kind) || l.is_pair) ? n : 0;
    l.scale_at = (int64_t)mm_cuda_size((size_t)(l.n_tile * l.tile_bytes));
    l.global_at = l.scale_at + (int64_t)mm_cuda_size((size_t)(l.n_tile * l.tile_scales));
    l.n_bytes = l.global_at + (int64_t)mm_cuda_size(4 * (size_t)l.n_global);
    return l;
}

size_t mm_cuda_pack_bytes(const mm_op_shape *shape, mm_pack kind, const mm_weight *src, int32_t n)
{
    (void)shape;
    return n < 1 || src->format == MM_WEIGHT_NONE ? 256 : (size_t)layout_of(kind, src, n).n_bytes;
}

static mm_status check_sources(const mm_cuda *b, mm_pack kind, const mm_weight *src, int32_t n)
{
    const bool is_pair = kind == MM_PACK_GATE_UP || kind == MM_PACK_EXPERTS_W13;
    if (n < 1 || (is_pair && n % 2 != 0) || (kind == MM_PACK_LINEAR && n != 1))
        return MM_CUDA_FAIL(b, MM_E_SHAPE, "cuda: pack kind %d of %d matrices", (int)kind, (int)n);
    for (int32_t i = 0; i < n; i++) {
        const mm_weight *w = &src[i];
        const int32_t step = w->format == MM_WEIGHT_MXFP8   ? 32
                             : w->format == MM_WEIGHT_NVFP4 ? 16
                                                            : 8;
        const bool is_scaled = mm_frag_scale_bytes(w->format) != 0;
        if (w->layout != MM_LAYOUT_CHECKPOINT || w->format == MM_WEIGHT_NONE || w->data == NULL ||
            (is_scaled && w->scale == NULL))
            return MM_CUDA_FAIL(
                b, MM_E_UNSUPPORTED,
                "cuda: matrix %d of a packing is missing, has no scales, or is packed "
                "already (format %d, layout %d)",
                (int)i, (int)w->format, (int)w->layout);
        if (w->n_in % step != 0)
            return MM_CUDA_FAIL(b, MM_E_UNSUPPORTED,
                                "cuda: a matrix [%lld, %lld]: the width must be a multiple of %d",
                                (long long)w->n_out, (long long)w->n_in, (int)step);
        if (w->format != src->format || w->n_in != src->n_in ||
            ((is_experts(kind) || is_pair) && w->n_out != src->n_out))
            return MM_CUDA_FAIL(b, MM_E_UNSUPPORTED,
                                "cuda: matrices packed together differ: [%lld, %lld] of format %d "
                                "beside [%lld, %lld] of format %d",
                                (long long)src->n_out, (long long)src->n_in, (int)src->format,
                                (long long)w->n_out, (long long)w->n_in, (int)w->format);
        if (kind == MM_PACK_QKV && i + 1 < n && w->n_out % MM_FRAG_ROWS != 0)
            return MM_CUDA_FAIL(b, MM_E_UNSUPPORTED,
                                "cuda: matrix %d of a q, k, v packing has %lld rows; it must be a "
                                "multiple of 16",
                                (int)i, (long long)w->n_out);
        if (kind == MM_PACK_QKV && w->format == MM_WEIGHT_NVFP4 &&
            w->global_scale != src->global_scale)
            return MM_CUDA_FAIL(
                b, MM_E_UNSUPPORTED,
                "cuda: NVFP4 q, k, v with global scales %g and %g; they must be one "
                "(quantise them together, or use MXFP8)",
                (double)src->global_scale, (double)w->global_scale);
    }
    return MM_OK;
}

/* ---------------------------------------------------------------- staging */

void mm_cuda_pack_close(mm_stream *s)
{
    struct mm_cuda_stage *g = s->pack;
    if (g == NULL)
        return;
    for (int i = 0; i < 2; i++) {
        if (g->is_busy[i])
            (void)g->b->event_wait(g->b, g->done[i]);
        if (g->done[i] != NULL)
            g->b->event_close(g->b, g->done[i]);
        if (g->host[i] != NULL)
            g->b->free_host(g->b, g->host[i]);
        if (g->device[i] != NULL)
            g->b->free(g->b, g->device[i]);
    }
    if (g->small != NULL)
        g->b->free_host(g->b, g->small);
    if (g->flag != NULL)
        g->b->free(g->b, g->flag);
    free(g);
    s->pack = NULL;
}

static mm_status open_buffers(struct mm_cuda_stage *g)
{
    mm_backend *b = g->b;
    void *p;
    for (int i = 0; i < 2; i++) {
        MM_TRY(b->alloc_host(b, &p, STAGE_BYTES));
        g->host[i] = (uint8_t *)p;
        MM_TRY(b->alloc(b, &p, STAGE_BYTES));
        g->device[i] = (uint8_t *)p;
        MM_TRY(b->event_open(b, &g->done[i]));
    }
    MM_TRY(b->alloc_host(b, &p, SMALL_BYTES));
    g->small = (uint8_t *)p;
    MM_TRY(b->alloc(b, &p, 64));
    g->flag = (uint32_t *)p;
    return MM_OK;
}

static mm_status open_stage(const mm_op_context *c)
{
    mm_stream *s = c->stream;
    if (s->pack != NULL)
        return MM_OK;
    s->pack = (struct mm_cuda_stage *)calloc(1, sizeof *s->pack);
    if (s->pack == NULL)
        return MM_CUDA_FAIL(mm_cuda_of(c), MM_E_NOMEM, "cuda: no memory to pack weights");
    s->pack->b = s->backend;
    const mm_status st = open_buffers(s->pack);
    if (st != MM_OK)
        mm_cuda_pack_close(s);
    return st;
}

/* Uploads what was filled, launches its pieces, and turns to the other buffer. */
static mm_status flush_stage(const mm_op_context *c, mm_weight_format format)
{
    struct mm_cuda_stage *g = c->stream->pack;
    mm_backend *b = g->b;
    const int i = g->now;
    if (g->n_piece == 0)
        return MM_OK;
    MM_TRY(b->upload(b, c->stream, g->device[i], g->host[i], g->n_used));
    for (int32_t k = 0; k < g->n_piece; k++)
        MM_TRY(launch_piece(c, format, &g->piece[k]));
    MM_TRY(b->event_record(b, g->done[i], c->stream));
    g->is_busy[i] = true;
    g->now = 1 - i;
    g->n_used = 0;
    g->n_piece = 0;
    if (g->is_busy[g->now])
        MM_TRY(b->event_wait(b, g->done[g->now]));
    g->is_busy[g->now] = false;
    return MM_OK;
}

static size_t align16(size_t n)
{
    return (n + 15) & ~(size_t)15;
}

/* Rows of a view into the stage; its device address. */
static const uint8_t *stage_rows(struct mm_cuda_stage *g, const uint8_t *src, int64_t stride,
                                 int64_t row_bytes, int64_t n_row)
{
    uint8_t *dst = g->host[g->now] + g->n_used;
    const uint8_t *at = g->device[g->now] + g->n_used;
    if (stride == row_bytes) {
        memcpy(dst, src, (size_t)(n_row * row_bytes));
    } else {
        for (int64_t r = 0; r < n_row; r++)
            memcpy(dst + r * row_bytes, src + r * stride, (size_t)row_bytes);
    }
    g->n_used += align16((size_t)(n_row * row_bytes));
    return at;
}

static int64_t row_bytes_of(const mm_weight *w)
{
    switch (w->format) {
    case MM_WEIGHT_F32:
        return 4 * w->n_in;
    case MM_WEIGHT_BF16:
        return 2 * w->n_in;
    case MM_WEIGHT_MXFP8:
        return w->n_in;
    default:
        return w->n_in / 2;
    }
}

/* One unit: a matrix, or gate and up. frag, scale: of its first row tile. */
static mm_status pack_unit(const mm_op_context *c, const mm_pack_layout *l, const mm_weight *src,
                           uint8_t *frag, uint8_t *scale)
{
    struct mm_cuda_stage *g = c->stream->pack;
    const int n_src = l->is_pair ? 2 : 1;
    const int64_t rows_of_tile = l->is_pair ? 8 : 16;
    const int64_t row = row_bytes_of(src), scale_row = mm_frag_scale_bytes(src->format) == 0 ? 0
                                                       : src->format == MM_WEIGHT_MXFP8
                                                           ? src->n_in / 32
                                                           : src->n_in / 16;
    const int64_t tile = n_src * rows_of_tile * (row + scale_row) + 64;
    const int64_t most = (int64_t)(STAGE_BYTES / 4) / tile; /* row tiles of a piece */
    if (most < 1)
        return MM_CUDA_FAIL(mm_cuda_of(c), MM_E_UNSUPPORTED,
                            "cuda: rows of %lld columns are too wide to pack",
                            (long long)src->n_in);
    const int64_t n_tile = unit_tiles(l, src);
    for (int64_t t = 0; t < n_tile; t += most) {
        const int64_t n = n_tile - t < most ? n_tile - t : most, first = t * rows_of_tile;
        const int64_t n_row =
            src->n_out - first < n * rows_of_tile ? src->n_out - first : n * rows_of_tile;
        if (g->n_used + (size_t)(n * tile) > STAGE_BYTES || g->n_piece == MAX_PIECE)
            MM_TRY(flush_stage(c, src->format));
        mm_pack_piece *p = &g->piece[g->n_piece];
        memset(p, 0, sizeof *p);
        for (int i = 0; i < n_src; i++) {
            const mm_weight *w = &src[i];
            p->code[i] = stage_rows(g, (const uint8_t *)w->data + first * w->data_stride,
                                    w->data_stride, row, n_row);
            if (scale_row != 0)
                p->scale[i] = stage_rows(g, w->scale + first * w->scale_stride, w->scale_stride,
                                         scale_row, n_row);
        }
        p->row_bytes = row;
        p->scale_bytes = scale_row;
        p->n_row = (int32_t)n_row;
        p->n_in = (int32_t)src->n_in;
        p->n_tile = (int32_t)n;
        p->n_frag = l->n_frag;
        p->is_pair = l->is_pair;
        p->frag = frag + t * l->tile_bytes;
        p->frag_scale = scale + t * l->tile_scales;
        p->flag = g->flag;
        g->n_piece++;
    }
    return MM_OK;
}

/* ---------------------------------------------------------------- the op */

static mm_status judge(const mm_cuda *b, const uint32_t *flag, const mm_weight *src)
{
    static const char *const text[N_FLAG] = {
        "holds a NaN code", "holds a NaN block scale", "holds a negative block scale",
        "holds a block scale above 2^7, which the product in bf16 cannot carry"};
    for (int i = 0; i < N_FLAG; i++) {
        if (flag[i] != 0)
            return MM_CUDA_FAIL(
                b, MM_E_INVALID,
                "cuda: a matrix [%lld, %lld] in %s %s; the checkpoint is damaged or "
                "was quantised wrongly",
                (long long)src->n_out, (long long)src->n_in,
                src->format == MM_WEIGHT_MXFP8 ? "MXFP8" : "NVFP4", text[i]);
    }
    return MM_OK;
}

/* Uploads the global scales, waits, and looks at the flags. */
static mm_status finish(const mm_op_context *c, const mm_pack_layout *l, const mm_weight *src,
                        uint8_t *dst)
{
    struct mm_cuda_stage *g = c->stream->pack;
    mm_backend *b = g->b;
    uint32_t *flag = (uint32_t *)(void *)g->small;
    float *global = (float *)(void *)(g->small + 64);
    if (64 + 4 * (size_t)l->n_global > SMALL_BYTES)
        return MM_CUDA_FAIL(mm_cuda_of(c), MM_E_UNSUPPORTED, "cuda: %d matrices in one packing",
                            (int)l->n_global);
    for (int32_t i = 0; i < l->n_global; i++)
        global[i] = 256.0f / src[i].global_scale; /* frag.h: packed values are 2^-8 */
    if (l->n_global > 0)
        MM_TRY(b->upload(b, c->stream, dst + l->global_at, global, 4 * (size_t)l->n_global));
    MM_TRY(b->download(b, c->stream, flag, g->flag, sizeof(uint32_t) * N_FLAG));
    MM_TRY(b->sync(b, c->stream));
    g->is_busy[0] = g->is_busy[1] = false;
    return judge(mm_cuda_of(c), flag, src);
}

mm_status mm_cuda_pack(const mm_op_context *c, mm_pack kind, const mm_weight *src, int32_t n,
                       void *dst, mm_weight *out)
{
    mm_cuda_start(c);
    MM_TRY(check_sources(mm_cuda_of(c), kind, src, n));
    MM_TRY(open_stage(c));
    struct mm_cuda_stage *g = c->stream->pack;
    const mm_pack_layout l = layout_of(kind, src, n);
    uint8_t *frag = (uint8_t *)dst, *scale = (uint8_t *)dst + l.scale_at;
    g->n_used = 0;
    g->n_piece = 0;
    MM_TRY(g->b->zero(g->b, c->stream, g->flag, 64));
    int64_t n_out = 0;
    for (int32_t u = 0; u < l.n_unit; u++) {
        const mm_weight *w = &src[l.is_pair ? 2 * u : u];
        MM_TRY(pack_unit(c, &l, w, frag, scale));
        const int64_t n_tile = unit_tiles(&l, w);
        frag += n_tile * l.tile_bytes;
        scale += n_tile * l.tile_scales;
        n_out += is_experts(kind) ? n_tile * MM_FRAG_ROWS : l.is_pair ? 2 * w->n_out : w->n_out;
    }
    MM_TRY(flush_stage(c, src->format));
    MM_TRY(finish(c, &l, src, (uint8_t *)dst));
    const bool is_nvfp4 = src->format == MM_WEIGHT_NVFP4;
    mm_weight w = {};
    w.format = src->format;
    w.layout = MM_LAYOUT_BACKEND;
    w.n_out = n_out;
    w.n_in = src->n_in;
    w.data = dst;
    w.data_stride = l.tile_bytes;
    w.scale = l.tile_scales != 0 ? (const uint8_t *)dst + l.scale_at : NULL;
    w.scale_stride = l.tile_scales;
    w.global_scale = is_nvfp4 ? src->global_scale * (1.0f / 256.0f) : 1.0f;
    w.global_scales =
        l.n_global > 0 ? (const float *)(const void *)((uint8_t *)dst + l.global_at) : NULL;
    *out = w; /* may be one of src */
    return MM_OK;
}
