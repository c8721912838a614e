/* cuda_limits.h: what shapes the CUDA kernels take. In C, so that the library (ops.cu) and a plan
 * that is made without it (kernels/plan_backend.c) refuse the same, in the same words. A shape that
 * passes is taken by every kernel: none of them looks at it again. */
#ifndef MM_KERNELS_CUDA_LIMITS_H
#define MM_KERNELS_CUDA_LIMITS_H
#include <stdarg.h>
#include <stdio.h>

#include "kernels/ops.h"

enum {
    MM_CUDA_HEAD_DIM = 128,
    MM_CUDA_MAX_GROUP = 16,    /* query heads for each KV head: rows of an mma tile */
    MM_CUDA_MAX_BLOCKS = 64,   /* per query */
    MM_CUDA_MAX_KV_HEADS = 64, /* on a rank: index queries of a row that one block scores */
    MM_CUDA_MAX_EXPERTS = 1024,
    MM_CUDA_MAX_USED = 8,
    MM_CUDA_MAX_WIDTH = 16384,  /* what the threads of a norm hold, and shared memory of 99 KB */
    MM_CUDA_MAX_VOCAB = 1 << 19 /* keys of the sampler have 22 bits of id, masses fit 64 bits */
};

typedef struct mm_cuda_refusal {
    const char *param; /* NULL: the shape is taken */
    char text[256];
} mm_cuda_refusal;

__attribute__((format(printf, 3, 4))) static inline void
mm_cuda_refuse(mm_cuda_refusal *r, const char *param, const char *fmt, ...)
{
    va_list ap;
    if (r->param != NULL) /* the first reason is told */
        return;
    r->param = param;
    va_start(ap, fmt);
    (void)vsnprintf(r->text, sizeof r->text, fmt, ap);
    va_end(ap);
}

static inline void mm_cuda_check_width(mm_cuda_refusal *r, const char *name, int32_t n)
{
    if (n < 0 || n % 16 != 0 || n > MM_CUDA_MAX_WIDTH)
        mm_cuda_refuse(r, name,
                       "cuda: %s is %d; on this rank it must be a multiple of 16 up to %d (the "
                       "number of tensor-parallel ranks divides it; backend=\"cpu\" takes it)",
                       name, n, MM_CUDA_MAX_WIDTH);
}

static inline void mm_cuda_check_heads(mm_cuda_refusal *r, const mm_op_shape *s)
{
    const int32_t group = s->n_kv_head > 0 ? s->n_head / s->n_kv_head : 0;
    if (s->head_dim != MM_CUDA_HEAD_DIM ||
        (s->n_index_head > 0 && s->index_dim != MM_CUDA_HEAD_DIM))
        mm_cuda_refuse(r, s->head_dim != MM_CUDA_HEAD_DIM ? "head_dim" : "index_dim",
                       "cuda: head_dim is %d and index_dim %d; the kernels are made for %d; "
                       "backend=\"cpu\" takes other sizes",
                       s->head_dim, s->index_dim, MM_CUDA_HEAD_DIM);
    if (group < 1 || group > MM_CUDA_MAX_GROUP || s->n_head != group * s->n_kv_head)
        mm_cuda_refuse(r, "n_head",
                       "cuda: %d query heads for %d KV heads; 1 to %d for each are possible; "
                       "backend=\"cpu\" takes others",
                       s->n_head, s->n_kv_head, MM_CUDA_MAX_GROUP);
    if (s->n_kv_head > MM_CUDA_MAX_KV_HEADS)
        mm_cuda_refuse(r, "n_kv_head",
                       "cuda: %d KV heads on a rank; at most %d are possible; more tensor-parallel "
                       "ranks make it smaller, backend=\"cpu\" takes it",
                       s->n_kv_head, MM_CUDA_MAX_KV_HEADS);
    if (s->n_rotary < 0 || s->n_rotary % 8 != 0 || s->n_rotary > s->head_dim)
        mm_cuda_refuse(r, "n_rotary",
                       "cuda: %d rotary dims of a head of %d; a multiple of 8 up to the head is "
                       "possible; backend=\"cpu\" takes other even numbers",
                       s->n_rotary, s->head_dim);
    if (s->n_index_head > 0 && s->n_index_head != s->n_kv_head)
        mm_cuda_refuse(r, "n_index_head",
                       "cuda: %d index heads for %d KV heads; they must be equal; "
                       "backend=\"cpu\" takes others",
                       s->n_index_head, s->n_kv_head);
    if (s->n_index_head > 0 && (s->n_top_block < 1 || s->n_top_block > MM_CUDA_MAX_BLOCKS))
        mm_cuda_refuse(r, "n_top_block",
                       "cuda: %d blocks per query; 1 to %d are possible; backend=\"cpu\" takes "
                       "more",
                       s->n_top_block, MM_CUDA_MAX_BLOCKS);
}

/* What is wrong with s, with the remedy. */
static inline mm_cuda_refusal mm_cuda_check_limits(const mm_op_shape *s)
{
    mm_cuda_refusal r = {NULL, ""};
    if (s->act != MM_DTYPE_BF16)
        mm_cuda_refuse(&r, "dtype",
                       "cuda: activations are bfloat16 only: set dtype=\"bfloat16\", or "
                       "backend=\"cpu\" for float32");
    if (s->kv_format == MM_CACHE_F32 || (s->n_index_head > 0 && s->index_format == MM_CACHE_F32))
        mm_cuda_refuse(&r, "kv_cache_dtype",
                       "cuda: keys and values are kept as bfloat16, fp8 or nvfp4, not as float32; "
                       "backend=\"cpu\" takes float32");
    mm_cuda_check_heads(&r, s);
    mm_cuda_check_width(&r, "d_model", s->d_model);
    mm_cuda_check_width(&r, "d_expert", s->d_expert);
    mm_cuda_check_width(&r, "d_shared", s->d_shared);
    mm_cuda_check_width(&r, "d_dense", s->d_dense);
    if (s->d_model == 0)
        mm_cuda_refuse(&r, "d_model", "cuda: d_model is 0; it must be a multiple of 16");
    if ((int64_t)s->n_head * s->head_dim > MM_CUDA_MAX_WIDTH)
        mm_cuda_refuse(
            &r, "n_head",
            "cuda: %d query heads of %d on a rank; at most %d values together are "
            "possible; more tensor-parallel ranks make it fewer, backend=\"cpu\" takes it",
            s->n_head, s->head_dim, MM_CUDA_MAX_WIDTH);
    if (s->n_vocab > MM_CUDA_MAX_VOCAB)
        mm_cuda_refuse(&r, "vocab_size",
                       "cuda: a vocabulary of %d; up to %d ids are possible; backend=\"cpu\" takes "
                       "more",
                       s->n_vocab, MM_CUDA_MAX_VOCAB);
    if (s->n_expert > 0 && (s->n_expert > MM_CUDA_MAX_EXPERTS || s->n_expert_used < 1 ||
                            s->n_expert_used > MM_CUDA_MAX_USED || s->n_expert_used > s->n_expert))
        mm_cuda_refuse(&r, "n_expert",
                       "cuda: %d of %d experts per row; 1 to %d of at most %d are possible; "
                       "backend=\"cpu\" takes others",
                       s->n_expert_used, s->n_expert, MM_CUDA_MAX_USED, MM_CUDA_MAX_EXPERTS);
    return r;
}

#endif
