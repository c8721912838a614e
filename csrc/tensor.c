/* tensor.c: sizes and sub-views. The one idea: a row or a column slice of a quantised matrix is
 * again such a matrix, because codes and scales lie row by row in checkpoint order. */
#include "csrc/tensor.h"

typedef struct dtype_info {
    size_t size;
    const char *name; /* as in safetensors headers */
} dtype_info;

static const dtype_info dtype_table[MM_DTYPE_COUNT] = {
    [MM_DTYPE_F32] = {4, "F32"}, [MM_DTYPE_BF16] = {2, "BF16"}, [MM_DTYPE_F8_E4M3] = {1, "F8_E4M3"},
    [MM_DTYPE_U8] = {1, "U8"},   [MM_DTYPE_I16] = {2, "I16"},   [MM_DTYPE_I32] = {4, "I32"},
    [MM_DTYPE_I64] = {8, "I64"}, [MM_DTYPE_F16] = {2, "F16"},
};

size_t mm_dtype_size(mm_dtype dtype)
{
    return (unsigned)dtype < MM_DTYPE_COUNT ? dtype_table[dtype].size : 0;
}

const char *mm_dtype_name(mm_dtype dtype)
{
    return (unsigned)dtype < MM_DTYPE_COUNT ? dtype_table[dtype].name : "unknown";
}

mm_tensor mm_tensor_make(void *data, mm_dtype dtype, int32_t rank, const int64_t *dim)
{
    mm_tensor t = {.data = data, .dtype = dtype, .rank = rank};
    MM_ASSERT(rank >= 0 && rank <= 5);
    int64_t stride = 1;
    for (int32_t i = rank - 1; i >= 0; i--) {
        t.dim[i] = dim[i];
        t.stride[i] = stride;
        stride *= dim[i];
    }
    return t;
}

int64_t mm_tensor_count(const mm_tensor *t)
{
    int64_t n = 1;
    for (int32_t i = 0; i < t->rank; i++)
        n *= t->dim[i];
    return n;
}

int64_t mm_weight_row_bytes(mm_weight_format format, int64_t n_in)
{
    switch (format) {
    case MM_WEIGHT_F32:
        return 4 * n_in;
    case MM_WEIGHT_BF16:
        return 2 * n_in;
    case MM_WEIGHT_MXFP8:
        return n_in;
    case MM_WEIGHT_NVFP4:
        return n_in / 2;
    case MM_WEIGHT_NONE:
        break;
    }
    return 0;
}

int64_t mm_weight_row_scale_bytes(mm_weight_format format, int64_t n_in)
{
    switch (format) {
    case MM_WEIGHT_MXFP8:
        return n_in / 32;
    case MM_WEIGHT_NVFP4:
        return n_in / 16;
    case MM_WEIGHT_NONE:
    case MM_WEIGHT_F32:
    case MM_WEIGHT_BF16:
        break;
    }
    return 0;
}

mm_weight mm_weight_rows(const mm_weight *w, int64_t first, int64_t n)
{
    MM_ASSERT(w->layout == MM_LAYOUT_CHECKPOINT);
    MM_ASSERT(first >= 0 && n >= 0 && first + n <= w->n_out);
    mm_weight v = *w;
    v.n_out = n;
    v.data = (const uint8_t *)w->data + first * w->data_stride;
    if (w->scale != NULL)
        v.scale = w->scale + first * w->scale_stride;
    return v;
}

mm_weight mm_weight_cols(const mm_weight *w, int64_t first, int64_t n)
{
    MM_ASSERT(w->layout == MM_LAYOUT_CHECKPOINT);
    MM_ASSERT(first >= 0 && n >= 0 && first + n <= w->n_in);
    MM_ASSERT(first % 64 == 0 && n % 64 == 0);
    mm_weight v = *w;
    v.n_in = n;
    v.data = (const uint8_t *)w->data + mm_weight_row_bytes(w->format, first);
    if (w->scale != NULL)
        v.scale = w->scale + mm_weight_row_scale_bytes(w->format, first);
    return v;
}

int64_t mm_cache_row_bytes(mm_cache_format format, int64_t dim)
{
    switch (format) {
    case MM_CACHE_F32:
        return 4 * dim;
    case MM_CACHE_BF16:
        return 2 * dim;
    case MM_CACHE_FP8:
        return dim;
    case MM_CACHE_NVFP4:
        return dim / 2;
    }
    return 0;
}

int64_t mm_cache_row_scale_bytes(mm_cache_format format, int64_t dim)
{
    return format == MM_CACHE_NVFP4 ? dim / 16 : 0;
}
