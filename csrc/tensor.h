/* tensor.h: views of memory. mm_tensor describes, never owns. mm_weight is a matrix in one of the
 * checkpoint's number formats, in checkpoint order or in a backend's own packing. */
#ifndef MM_TENSOR_H
#define MM_TENSOR_H
#include "csrc/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mm_tensor {
    void *data;
    mm_dtype dtype;
    int32_t rank;
    int64_t dim[5];
    int64_t stride[5]; /* elements */
} mm_tensor;

size_t mm_dtype_size(mm_dtype dtype);
const char *mm_dtype_name(mm_dtype dtype);
/* Contiguous row-major view. */
mm_tensor mm_tensor_make(void *data, mm_dtype dtype, int32_t rank, const int64_t *dim);
int64_t mm_tensor_count(const mm_tensor *t);

/* Number formats of weights, bit by bit:
 *   F32, BF16  plain, row-major
 *   MXFP8      e4m3 codes [n_out, n_in], scale e8m0 [n_out, n_in/32]:  w = e4m3(c) * 2^(scale -
 * 127)      (exact in f32) NVFP4      e2m1 codes two per byte (even column = low nibble) [n_out,
 * n_in/2], scale e4m3 [n_out, n_in/16]: w = e2m1(c) * e4m3(scale) / global_scale; the product is
 * exact in bf16, the division belongs to the f32 epilogue */
typedef enum mm_weight_format {
    MM_WEIGHT_NONE = 0,
    MM_WEIGHT_F32,
    MM_WEIGHT_BF16,
    MM_WEIGHT_MXFP8,
    MM_WEIGHT_NVFP4
} mm_weight_format;
typedef enum mm_weight_layout { MM_LAYOUT_CHECKPOINT = 0, MM_LAYOUT_BACKEND } mm_weight_layout;

typedef struct mm_weight {
    mm_weight_format format;
    mm_weight_layout layout;
    int64_t n_out, n_in;
    const void *data;
    int64_t data_stride; /* bytes from a row to the next: views of column slices are allowed */
    const uint8_t *scale;
    int64_t scale_stride;       /* bytes; NULL when the format has none */
    float global_scale;         /* NVFP4 encode scale (divide); 1 otherwise */
    const float *global_scales; /* BACKEND layout of several matrices: one per source, backend
                                   memory; else NULL */
} mm_weight;

/* Bytes of one row's codes and scales in checkpoint order; n_in a multiple of 32 (MXFP8) or 16
 * (NVFP4). */
int64_t mm_weight_row_bytes(mm_weight_format format, int64_t n_in);
int64_t mm_weight_row_scale_bytes(mm_weight_format format, int64_t n_in);
/* Rows [first, first + n) of w, or columns (multiples of 64): views, nothing is copied. */
mm_weight mm_weight_rows(const mm_weight *w, int64_t first, int64_t n);
mm_weight mm_weight_cols(const mm_weight *w, int64_t first, int64_t n);

/* Bytes of one cached row of `dim` elements: codes and scales. */
int64_t mm_cache_row_bytes(mm_cache_format format, int64_t dim);
int64_t mm_cache_row_scale_bytes(mm_cache_format format, int64_t dim);

#ifdef __cplusplus
}
#endif
#endif
