/* cpu_fixture.h: random weights in every format and one open backend with its stream: what the
 * tests of the cpu backend and its benchmark runner share. */
#ifndef MM_CPU_FIXTURE_H
#define MM_CPU_FIXTURE_H
#include <stdio.h>

#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"
#include "mm_random.h"

/* About normal: mean 0, deviation 1. */
static inline float random_normal(uint64_t *seed)
{
    float sum = 0.0f;
    for (int i = 0; i < 4; i++)
        sum += (float)(random_next(seed) >> 40) * 0x1p-24f;
    return (sum - 2.0f) * 1.7320508f;
}

static inline void random_fill(uint64_t *seed, mm_dtype act, float scale, void *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float x = scale * random_normal(seed);
        if (act == MM_DTYPE_BF16)
            ((uint16_t *)out)[i] = mm_bf16_from_f32(x);
        else
            ((float *)out)[i] = x;
    }
}

/* A weight [n_out, n_in] of deviation 1 / sqrt(n_in); rows lie `pad` columns (a multiple of 64)
 * further apart than they must. Memory is the caller's to free: w.data and w.scale. */
static inline mm_weight random_weight(uint64_t *seed, mm_weight_format format, int64_t n_out,
                                      int64_t n_in, int64_t pad)
{
    const int64_t width = n_in + pad;
    const int64_t stride = mm_weight_row_bytes(format, width),
                  scale_stride = mm_weight_row_scale_bytes(format, width);
    uint8_t *data = malloc((size_t)(n_out * stride)),
            *scale = scale_stride > 0 ? malloc((size_t)(n_out * scale_stride)) : NULL;
    float *row = malloc((size_t)width * sizeof(float));
    const float amax = 4.0f / sqrtf((float)n_in), encode = 448.0f * 6.0f / amax;
    for (int64_t i = 0; i < n_out; i++) {
        uint8_t *d = data + i * stride, *s = scale != NULL ? scale + i * scale_stride : NULL;
        random_fill(seed, MM_DTYPE_F32, 1.0f / sqrtf((float)n_in), row, width);
        if (format == MM_WEIGHT_F32) {
            memcpy(d, row, (size_t)stride);
        } else if (format == MM_WEIGHT_BF16) {
            for (int64_t j = 0; j < width; j++)
                ((uint16_t *)(void *)d)[j] = mm_bf16_from_f32(row[j]);
        } else if (format == MM_WEIGHT_MXFP8) {
            for (int64_t b = 0; b < width / 32; b++)
                mm_mxfp8_quantize32(row + 32 * b, MM_MX_CEIL, d + 32 * b, s + b);
        } else {
            memset(d, 0, (size_t)stride);
            for (int64_t b = 0; b < width / 16; b++)
                mm_nvfp4_quantize16(row + 16 * b, encode, d + 8 * b, s + b);
        }
    }
    free(row);
    return (mm_weight){.format = format,
                       .layout = MM_LAYOUT_CHECKPOINT,
                       .n_out = n_out,
                       .n_in = n_in,
                       .data = data,
                       .data_stride = stride,
                       .scale = scale,
                       .scale_stride = scale_stride,
                       .global_scale = format == MM_WEIGHT_NVFP4 ? encode : 1.0f};
}

static inline void free_weight(mm_weight *w)
{
    free((void *)(uintptr_t)w->data);
    free((void *)(uintptr_t)w->scale);
    *w = (mm_weight){0};
}

/* A backend with a stream. tier NULL: ref. */
typedef struct host {
    mm_backend *backend;
    mm_stream *stream;
    mm_comm *comm;
} host;

static inline mm_status open_host(host *h, const char *tier, int n_thread, const mm_op_shape *shape,
                                  size_t more_scratch)
{
    const mm_backend_options opt = {.name = tier != NULL ? "cpu" : "ref", .n_thread = n_thread};
    *h = (host){0};
    MM_TRY(tier != NULL ? mm_cpu_backend_open(&h->backend, &opt, tier)
                        : mm_ref_backend(&h->backend, &opt));
    MM_TRY(mm_comm_open_self(&h->comm));
    const size_t n =
        shape != NULL ? h->backend->ops->scratch_bytes(shape, h->backend->props.n_thread) : 0;
    return h->backend->stream_open(h->backend, &h->stream, n + more_scratch);
}

static inline void close_host(host *h)
{
    if (h->stream != NULL)
        h->backend->stream_close(h->backend, h->stream);
    mm_comm_close(h->comm);
    mm_backend_close(h->backend);
    *h = (host){0};
}

/* True when the machine runs exactly this tier. */
static inline bool has_tier(const char *tier)
{
    const mm_cpu_isa *isa = NULL;
    return mm_cpu_isa_find(tier, &isa) == MM_OK && strcmp(isa->name, tier) == 0;
}

/* |a - b| over the deviation of b; infinite when NaNs differ. */
static inline double relative_error(const float *a, const float *b, int64_t n)
{
    double square = 0.0, max = 0.0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(a[i]) != isnan(b[i]))
            return (double)INFINITY;
        if (isnan(a[i]))
            continue;
        const double diff = fabs((double)a[i] - (double)b[i]);
        max = diff > max ? diff : max;
        square += (double)b[i] * (double)b[i];
    }
    const double scale = sqrt(square / (double)(n > 0 ? n : 1));
    return max == 0.0 ? 0.0 : max / (scale > 0.0 ? scale : 1.0);
}
#endif
