/* head.cu: logits of the rows that need them. With several ranks each computes its columns, which
 * are gathered and put side by side; a shard that runs alone leaves -inf where other ranks would
 * write. */
#include "kernels/cuda/gemv.h"

#define PLACE_THREADS 256
#define PLACE_GROUPS 4 /* of 16 bytes, of a thread */

/* logits [n, n_vocab] from parts [world, n, width], or -inf around columns [first, first + width).
 * grid (pieces of a row, rows). Groups of four columns begin at 16 bytes; the ends of a row and the
 * groups across the border of two parts go column by column. */
static __global__ void __launch_bounds__(PLACE_THREADS)
    mm_head_place(const float *all, float *logits, int32_t n, int32_t n_vocab, int32_t width,
                  int32_t first)
{
    const int32_t row = (int32_t)blockIdx.y;
    float *to = logits + (int64_t)row * n_vocab;
    const int32_t lead = (int32_t)((uintptr_t)to / 4 % 4); /* floats since the last 16 bytes */
    const int32_t at0 =
        ((int32_t)blockIdx.x * PLACE_THREADS * PLACE_GROUPS + (int32_t)threadIdx.x) * 4 - lead;
    mm_pdl_trigger();
    mm_pdl_wait();
#pragma unroll
    for (int j = 0; j < PLACE_GROUPS; j++) {
        const int32_t at = at0 + j * PLACE_THREADS * 4;
        if (at >= n_vocab)
            return;
        const int32_t part = all != NULL && at > 0 ? at / width : 0;
        const int32_t begin = all != NULL ? part * width : first, end = begin + width;
        const bool is_inside = at >= begin && at + 4 <= end;
        const bool is_whole = at >= 0 && at + 4 <= n_vocab;
        if (all != NULL) {
            const float *from = all + ((int64_t)part * n + row) * width - begin;
            float v[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int32_t i = at + k;
                if (i >= 0 && i < n_vocab)
                    v[k] = i < end ? from[i]
                                   : all[((int64_t)(i / width) * n + row) * width + i % width];
            }
            if (is_whole) {
                *(float4 *)(void *)(to + at) = make_float4(v[0], v[1], v[2], v[3]);
                continue;
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (at + k >= 0 && at + k < n_vocab)
                    to[at + k] = v[k];
            }
            continue;
        }
        if (is_inside)
            continue;
        if (is_whole && (at + 4 <= begin || at >= end)) {
            *(float4 *)(void *)(to + at) = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
            continue;
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (at + k >= 0 && at + k < n_vocab && (at + k < begin || at + k >= end))
                to[at + k] = -INFINITY;
        }
    }
}

static mm_status place(const mm_op_context *c, const mm_head_args *a, const float *all,
                       int64_t width)
{
    const mm_op_shape *s = c->shape;
    const int32_t per = PLACE_THREADS * PLACE_GROUPS * 4;
    return mm_launch(c, "head_place", mm_head_place,
                     dim3((unsigned)((s->n_vocab + 3 + per - 1) / per), (unsigned)a->n_out),
                     dim3(PLACE_THREADS), 0, all, a->logits, a->n_out, (int32_t)s->n_vocab,
                     (int32_t)width, (int32_t)s->vocab_first);
}

mm_status mm_cuda_head(const mm_op_context *c, const mm_head_args *a)
{
    const mm_op_shape *s = c->shape;
    const int64_t d = s->d_model, v = s->n_vocab, local = s->n_vocab_local, n = a->n_out;
    const int32_t world = c->comm != NULL ? c->comm->world : 1;
    mm_cuda_start(c);
    if (n < 1)
        return MM_OK;
    if (world < 2) {
        if (local < v)
            MM_TRY(place(c, a, NULL, local));
        return mm_cuda_linear_gather(c, a->w, a->h, d, a->row, a->n_out, MM_OUT_F32,
                                     a->logits + (local < v ? s->vocab_first : 0), v);
    }
    /* all ranks but the last have as many columns */
    const int64_t even = (v + world - 1) / world, width = local > even ? local : even;
    void *part, *all;
    MM_TRY(mm_cuda_take(c, (size_t)(n * width) * sizeof(float), &part));
    MM_TRY(mm_cuda_take(c, (size_t)(world * n * width) * sizeof(float), &all));
    MM_TRY(mm_cuda_linear_gather(c, a->w, a->h, d, a->row, a->n_out, MM_OUT_F32, part, width));
    MM_TRY(c->comm->all_gather(c->comm, c->stream, part, all, n * width * (int64_t)sizeof(float)));
    return place(c, a, (const float *)all, width);
}
