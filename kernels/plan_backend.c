/* plan_backend.c: the sizes that kernels/cuda/pack.cu and the *_scratch functions there give, in C,
 * so that a machine without the CUDA library can tell them. They are a second statement of the
 * same rules: tests/test_api_plan.py compares them with a CUDA library, line by line and to the
 * byte. Who changes what an op takes of scratch changes it here too; each function names its twin.
 */
#include "kernels/plan_backend.h"
#include "csrc/base/base.h"
#include "kernels/cuda_limits.h"
#include "kernels/ops.h"

enum {
    HEAD_DIM = MM_CUDA_HEAD_DIM,
    SMALL_ROWS = 64,     /* MM_CUDA_SMALL_ROWS */
    FRAG_ROWS = 16,      /* frag.h */
    FRAG_BYTES = 512,    /* frag.h */
    MOE_PIECE = 8192,    /* moe_large.cu, PIECE_ROWS */
    ROUTER_PIECE = 512,  /* router.cu */
    ROUTER_COLS = 384,   /* router.cu, n_slice */
    WORK_MAX = 1024,     /* decode_work.h */
    DENSE_PIECES = 256,  /* attn_decode_host.h, MM_DENSE_PIECES */
    SAMPLE_GROUP = 128,  /* sample_row.h */
    SAMPLE_BINS = 2048,  /* sample_order.h */
    SAMPLE_SLICE = 4096, /* sample_order.h */
    DRAW_BLOCK = 1024    /* sample_row.h */
};

/* A piece of scratch or of a packing. */
static int64_t piece(int64_t n_bytes)
{
    return mm_round_up(n_bytes, 256);
}

/* ---------------------------------------------------------------- packed weights: frag.h */

static int64_t frag_cols(mm_weight_format f)
{
    return f == MM_WEIGHT_MXFP8 ? 32 : f == MM_WEIGHT_NVFP4 ? 64 : 16;
}

static int64_t frag_scale_bytes(mm_weight_format f)
{
    return f == MM_WEIGHT_MXFP8 ? 16 : f == MM_WEIGHT_NVFP4 ? 64 : 0;
}

/* layout_of of pack.cu */
static size_t pack_bytes(const mm_op_shape *s, mm_pack kind, const mm_weight *src, int32_t n)
{
    (void)s;
    if (n < 1 || src->format == MM_WEIGHT_NONE)
        return 256;
    const mm_weight_format f = src->format;
    const bool is_pair = kind == MM_PACK_GATE_UP || kind == MM_PACK_EXPERTS_W13;
    const bool is_experts = kind == MM_PACK_EXPERTS_W13 || kind == MM_PACK_EXPERTS_W2;
    const int64_t n_frag =
        mm_ceil_div(src->n_in, frag_cols(f)) * (f == MM_WEIGHT_F32 ? 3 : 1); /* f32: three parts */
    int64_t n_tile = 0;
    for (int32_t i = 0; i < n; i += is_pair ? 2 : 1)
        n_tile += mm_ceil_div(src[i].n_out, is_pair ? FRAG_ROWS / 2 : FRAG_ROWS);
    const int64_t n_global = f == MM_WEIGHT_NVFP4 && (is_experts || is_pair) ? n : 0;
    return (size_t)(piece(n_tile * n_frag * FRAG_BYTES) +
                    piece(n_tile * n_frag * frag_scale_bytes(f)) + piece(4 * n_global));
}

static mm_status no_pack(const mm_op_context *c, mm_pack kind, const mm_weight *src, int32_t n,
                         void *dst, mm_weight *out)
{
    (void)c;
    (void)kind;
    (void)src;
    (void)n;
    (void)dst;
    (void)out;
    return MM_FAIL(MM_E_UNSUPPORTED, "a planned device packs nothing");
}

/* ---------------------------------------------------------------- scratch */

/* linear.cu, linear_mid.cu */
static int64_t linear_scratch(const mm_op_shape *s)
{
    int64_t n = s->d_model;
    n = mm_max_i64(n, (int64_t)(s->n_head + 2 * s->n_kv_head) * s->head_dim +
                          (int64_t)(s->n_index_head + 1) * s->index_dim);
    n = mm_max_i64(n, 2 * (int64_t)s->d_dense);
    n = mm_max_i64(n, 2 * (int64_t)s->d_shared);
    n = mm_max_i64(n, s->n_vocab_local);
    const int64_t n_tile = mm_min_i64(mm_ceil_div(n, 16) + 12, 520);
    return piece(n_tile * 16 * SMALL_ROWS * 8 * 4);
}

/* router.cu */
static int64_t branch_scratch(const mm_op_shape *s)
{
    const int64_t rows = s->max_rows, part = mm_min_i64(rows, ROUTER_PIECE);
    const int64_t router = part * mm_ceil_div(s->d_model, ROUTER_COLS) * s->n_expert * 4;
    return piece(2 * rows * s->d_model) + (s->n_expert > 0 ? piece(router) : 0);
}

/* moe_small.cu */
static int64_t moe_small_scratch(const mm_op_shape *s)
{
    const int64_t n = SMALL_ROWS, k = s->n_expert_used;
    if (s->n_expert < 1)
        return 0;
    return piece(2 * n * k * s->d_expert) + piece(2 * n * s->d_shared) +
           piece(4 * n * k * s->d_model) + piece(4 * n * s->d_model);
}

/* moe_large.cu */
static int64_t moe_large_scratch(const mm_op_shape *s)
{
    const int64_t rows = mm_min_i64(s->max_rows, MOE_PIECE), pair = rows * s->n_expert_used;
    if (s->n_expert == 0)
        return 0;
    const int64_t tile = pair / 32 + mm_min_i64(s->n_expert, pair);
    return 2 * piece(pair * 4) + 3 * piece(tile * 4) + piece(pair * s->d_expert * 2) +
           piece(pair * s->d_model * 4) + piece(rows * s->d_shared * 2) +
           piece(rows * s->d_model * 4);
}

/* attn_out.cu */
static int64_t out_scratch(const mm_op_shape *s)
{
    const int64_t rows = s->max_rows, n = s->max_logit_rows, v = s->n_vocab;
    const int64_t mlp = piece(2 * rows * s->d_dense) + piece(4 * rows * s->d_model);
    if (s->n_vocab_local >= s->n_vocab)
        return mlp;
    const int64_t width = mm_max_i64(s->n_vocab_local, (v + 1) / 2);
    return mm_max_i64(mlp, piece(4 * n * width) + piece(4 * n * (v + width)));
}

/* attn_in.cu */
static int64_t attn_in_scratch(const mm_op_shape *s)
{
    const int64_t vectors =
        s->n_head + 2 * s->n_kv_head + s->n_index_head + (s->n_index_head > 0 ? 1 : 0);
    return piece(s->max_rows * vectors * HEAD_DIM * 2) + linear_scratch(s);
}

/* attn_decode.cu, attn_decode_dense.cu */
static int64_t launch_rows(const mm_op_shape *s, int64_t row_bytes)
{
    const int64_t n = ((int64_t)64 << 20) / row_bytes;
    return mm_min_i64(mm_max_i64(1, mm_min_i64(n, WORK_MAX)), s->max_rows);
}

static int64_t attn_decode_scratch(const mm_op_shape *s)
{
    const int64_t blocks = mm_ceil_div(s->max_model_len, MM_PAGE);
    const int64_t pieces = mm_min_i64(blocks + mm_ceil_div(s->max_rows, MM_PAGE), DENSE_PIECES);
    const int64_t partial = (int64_t)s->n_head * (HEAD_DIM + 2) * 4;
    const int64_t score = (int64_t)s->n_index_head * mm_round_up(blocks, 4) * 4;
    const int64_t top = partial * s->n_top_block;
    const int64_t sparse = s->n_index_head > 0 ? launch_rows(s, mm_max_i64(score, top)) : 0;
    const int64_t dense = launch_rows(s, partial * pieces);
    return mm_max_i64(piece(sparse * score) + piece(sparse * top),
                      piece(dense * partial * pieces)) +
           256;
}

/* attn_prefill.cu, attn_prefill_plan.cu, index_prefill.cu */
static int64_t plan_scratch(int64_t n_row, int64_t piece_rows, int64_t per_row)
{
    const int64_t n_piece = mm_ceil_div(n_row, piece_rows), items = n_row * per_row;
    int64_t bins = 64;
    while (bins < 2 * piece_rows * per_row)
        bins *= 2;
    return 3 * piece(n_piece * bins * 4) + 3 * piece(items * 4) + piece(items * 20) +
           2 * piece(n_piece * 4);
}

static int64_t attn_prefill_scratch(const mm_op_shape *s)
{
    const int64_t rows = s->max_rows, most = (int64_t)256 << 20;
    if (s->n_index_head == 0)
        return 0;
    const int64_t row_bytes = (int64_t)s->n_top_block * s->n_head * (HEAD_DIM * 4 + 8);
    const int64_t fit = ((int64_t)96 << 20) / row_bytes / 64 * 64;
    const int64_t n = mm_max_i64(64, mm_min_i64(fit, mm_round_up(rows, 64)));
    const int64_t heads = n * s->n_top_block * s->n_head;
    const int64_t blocks = mm_round_up(mm_ceil_div(s->max_model_len, MM_PAGE), 8);
    const int64_t per_row = s->n_index_head * blocks * 4, all = per_row * rows;
    const int64_t score = all < most ? all : mm_max_i64(per_row, most);
    return piece(rows * s->n_index_head * s->n_top_block * 2) + piece(rows * s->n_index_head) +
           piece(score) + plan_scratch(rows, n, (int64_t)s->n_kv_head * s->n_top_block) +
           2 * (piece(heads * HEAD_DIM * 4) + piece(heads * 8));
}

/* sample.cu, logprobs.cu */
static int64_t sample_scratch(const mm_op_shape *s)
{
    const int64_t n = mm_min_i64(s->max_logit_rows, SAMPLE_GROUP);
    const int64_t parts = n * mm_ceil_div(s->n_vocab, SAMPLE_SLICE);
    const int64_t sample = piece(n * 96) + piece(parts * 16) + piece(n * SAMPLE_BINS * 4) +
                           piece(n * SAMPLE_BINS * 8) + piece(n * 4096 * 8) +
                           piece(parts * (SAMPLE_SLICE / DRAW_BLOCK) * 4);
    const int64_t logprobs =
        piece(n * 72) + piece(parts * 24) + piece(n * SAMPLE_BINS * 4) + piece(n * 2048 * 8);
    return mm_max_i64(sample, logprobs);
}

/* ops.cu */
static size_t scratch_bytes(const mm_op_shape *s, int32_t n_thread)
{
    (void)n_thread;
    const int64_t linear = linear_scratch(s);
    const int64_t moe = mm_max_i64(moe_small_scratch(s), moe_large_scratch(s));
    int64_t n = linear + branch_scratch(s) + mm_max_i64(moe, out_scratch(s));
    n = mm_max_i64(n, attn_in_scratch(s) + linear);
    n = mm_max_i64(n, attn_decode_scratch(s));
    n = mm_max_i64(n, attn_prefill_scratch(s));
    return (size_t)mm_max_i64(n, sample_scratch(s));
}

/* ---------------------------------------------------------------- shapes: cuda_limits.h */

static mm_status check_shape(const mm_backend *b, const mm_op_shape *s)
{
    (void)b;
    const mm_cuda_refusal r = mm_cuda_check_limits(s);
    return r.param == NULL ? MM_OK : MM_FAIL_PARAM(MM_E_UNSUPPORTED, r.param, -1, "%s", r.text);
}

/* ---------------------------------------------------------------- the backend */

static void plan_close(mm_backend *b)
{
    free(b);
}

mm_status mm_plan_backend(mm_backend **out, int64_t memory_total, int64_t memory_free)
{
    static const mm_ops ops = {.pack_bytes = pack_bytes,
                               .pack = no_pack,
                               .scratch_bytes = scratch_bytes,
                               .check_shape = check_shape};
    *out = NULL;
    mm_backend *b = calloc(1, sizeof *b);
    if (b == NULL)
        return MM_FAIL(MM_E_NOMEM, "no host memory for a plan");
    b->props = (mm_backend_props){.name = "cuda",
                                  .tier = "planned",
                                  .has_graph = true,
                                  .memory_total = memory_total,
                                  .memory_free = memory_free};
    b->ops = &ops;
    b->close = plan_close;
    *out = b;
    return MM_OK;
}
