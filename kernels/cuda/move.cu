/* move.cu: copies of page prefixes (forks of shared pages) and of rows. Planes travel as kernel
 * arguments, so that one launch covers up to MAX_PLANES of them; a block copies one page of one
 * plane. */
#include "kernels/cuda/kernels.h"

enum { MOVE_THREADS = 256, MAX_PLANES = 150 };

struct move_plane {
    uint8_t *data, *scale; /* scale NULL but for NVFP4 */
    int32_t n_head;
    int16_t row_bytes, scale_bytes; /* of one position of one head */
};
struct move_planes {
    move_plane plane[MAX_PLANES];
};

/* n bytes, both ends at multiples of 16 unless `wide` is false. */
MM_DEV_FN void copy_bytes(uint8_t *to, const uint8_t *from, int64_t n, bool wide)
{
    const int64_t n16 = wide ? n / 16 : 0;
    for (int64_t i = threadIdx.x; i < n16; i += MOVE_THREADS)
        ((uint4 *)to)[i] = ((const uint4 *)from)[i];
    for (int64_t i = 16 * n16 + threadIdx.x; i < n; i += MOVE_THREADS)
        to[i] = from[i];
}

MM_DEV_FN bool is_wide(const void *a, const void *b)
{
    return ((uintptr_t)a | (uintptr_t)b) % 16 == 0;
}

static __global__ void __launch_bounds__(MOVE_THREADS)
    copy_page_prefixes(move_planes planes, const int32_t *src, const int32_t *dst,
                       const int32_t *n_tok)
{
    mm_pdl_wait();
    mm_pdl_trigger();
    const move_plane &p = planes.plane[blockIdx.x];
    const int64_t from = src[blockIdx.y], to = dst[blockIdx.y], n = n_tok[blockIdx.y];
    for (int32_t g = 0; g < p.n_head; g++) {
        const int64_t i = (from * p.n_head + g) * MM_PAGE, k = (to * p.n_head + g) * MM_PAGE;
        const uint8_t *a = p.data + i * p.row_bytes;
        uint8_t *b = p.data + k * p.row_bytes;
        copy_bytes(b, a, n * p.row_bytes, is_wide(a, b));
        if (p.scale != NULL) {
            const uint8_t *sa = p.scale + i * p.scale_bytes;
            uint8_t *sb = p.scale + k * p.scale_bytes;
            copy_bytes(sb, sa, n * p.scale_bytes, is_wide(sa, sb));
        }
    }
}

/* Bytes of one cached row (tensor.h), which the library does not link. */
static int64_t row_bytes(mm_cache_format f, int64_t dim)
{
    return f == MM_CACHE_F32    ? 4 * dim
           : f == MM_CACHE_BF16 ? 2 * dim
           : f == MM_CACHE_FP8  ? dim
                                : dim / 2;
}

static move_plane describe(const mm_plane *p)
{
    move_plane out;
    out.data = p->data;
    out.scale = p->scale;
    out.n_head = p->n_head;
    out.row_bytes = (int16_t)row_bytes(p->format, p->dim);
    out.scale_bytes = (int16_t)(p->scale != NULL ? p->dim / 16 : 0);
    return out;
}

mm_status mm_cuda_copy_pages(const mm_op_context *c, const mm_copy_pages_args *a)
{
    mm_cuda_start(c);
    if (a->n_copy == 0)
        return MM_OK;
    if (a->n_copy > 65535)
        return MM_CUDA_FAIL(mm_cuda_of(c), MM_E_UNSUPPORTED,
                            "copy_pages: %d copies; cuda takes up to 65535 in one call: split them",
                            a->n_copy);
    move_planes planes;
    int32_t n = 0;
    for (int32_t l = 0; l < a->n_layer; l++) {
        const mm_plane *plane[3] = {&a->layer[l].k, &a->layer[l].v, &a->layer[l].ik};
        for (int i = 0; i < 3; i++)
            if (plane[i]->data != NULL)
                planes.plane[n++] = describe(plane[i]);
        if (n > 0 && (n > MAX_PLANES - 3 || l == a->n_layer - 1)) {
            MM_TRY(mm_launch(c, "copy_pages", copy_page_prefixes,
                             dim3((unsigned)n, (unsigned)a->n_copy), dim3(MOVE_THREADS), 0, planes,
                             a->src, a->dst, a->n_tok));
            n = 0;
        }
    }
    return MM_OK;
}

/* ---------------------------------------------------------------- rows */

enum { GATHER_BYTES = 16384 }; /* of a block */

static __global__ void __launch_bounds__(MOVE_THREADS)
    gather_rows(uint8_t *out, const uint8_t *in, const int32_t *row, int64_t n_bytes)
{
    mm_pdl_wait();
    mm_pdl_trigger();
    const int64_t first = (int64_t)blockIdx.y * GATHER_BYTES, left = n_bytes - first;
    const uint8_t *from = in + row[blockIdx.x] * n_bytes + first;
    uint8_t *to = out + (int64_t)blockIdx.x * n_bytes + first;
    copy_bytes(to, from, left < GATHER_BYTES ? left : GATHER_BYTES, is_wide(from, to));
}

mm_status mm_cuda_gather_rows(const mm_op_context *c, const mm_gather_args *a)
{
    mm_cuda_start(c);
    if (a->n_row == 0 || a->n_bytes == 0)
        return MM_OK;
    const int64_t n_part = (a->n_bytes + GATHER_BYTES - 1) / GATHER_BYTES;
    if (n_part > 65535)
        return MM_CUDA_FAIL(mm_cuda_of(c), MM_E_UNSUPPORTED,
                            "gather_rows: rows of %lld bytes; cuda takes up to %lld",
                            (long long)a->n_bytes, 65535LL * GATHER_BYTES);
    return mm_launch(c, "gather_rows", gather_rows, dim3((unsigned)a->n_row, (unsigned)n_part),
                     dim3(MOVE_THREADS), 0, (uint8_t *)a->out, (const uint8_t *)a->in, a->row,
                     a->n_bytes);
}
