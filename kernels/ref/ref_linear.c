/* ref_linear.c: y = x W^T over every format of mm_weight, strided views included. A weight row is
 * decoded once and then multiplied with all rows of x, so a row of y depends on its row of x only.
 * The global scale of NVFP4 divides the finished sum. */
#include "kernels/ref/ref.h"

float mm_ref_dot(const float *a, const float *b, int64_t n)
{
    float s[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        for (int j = 0; j < 16; j++)
            s[j] += a[i + j] * b[i + j];
    }
    for (int j = 0; i + j < n; j++)
        s[j] += a[i + j] * b[i + j];
    for (int w = 8; w > 0; w /= 2) {
        for (int j = 0; j < w; j++)
            s[j] += s[j + w];
    }
    return s[0];
}

mm_status mm_ref_check_weight(const mm_weight *w, const char *name)
{
    if (w->layout != MM_LAYOUT_CHECKPOINT)
        return MM_FAIL(MM_E_UNSUPPORTED,
                       "ref: weight %s is packed; ref reads checkpoint order only", name);
    switch (w->format) {
    case MM_WEIGHT_F32:
    case MM_WEIGHT_BF16:
        return MM_OK;
    case MM_WEIGHT_MXFP8:
        if (w->n_in % 32 == 0 && w->scale != NULL)
            return MM_OK;
        break;
    case MM_WEIGHT_NVFP4:
        if (w->n_in % 16 == 0 && w->scale != NULL)
            return MM_OK;
        break;
    case MM_WEIGHT_NONE:
        return MM_FAIL(MM_E_UNSUPPORTED, "ref: weight %s is missing", name);
    }
    return MM_FAIL(
        MM_E_UNSUPPORTED,
        "ref: weight %s [%lld, %lld]: the width must be a multiple of %d and scales present", name,
        (long long)w->n_out, (long long)w->n_in, w->format == MM_WEIGHT_MXFP8 ? 32 : 16);
}

static void mxfp8_row(const uint8_t *code, const uint8_t *scale, int64_t n, float *out)
{
    MM_ASSERT(scale != NULL); /* mm_ref_check_weight */
    for (int64_t b = 0; b < n / 32; b++) {
        const float s = mm_f32_from_e8m0(scale[b]);
        for (int j = 0; j < 32; j++)
            out[b * 32 + j] = mm_f32_from_e4m3(code[b * 32 + j]) * s;
    }
}

static void nvfp4_row(const uint8_t *code, const uint8_t *scale, int64_t n, float *out)
{
    MM_ASSERT(scale != NULL);
    for (int64_t b = 0; b < n / 16; b++) {
        const float s = mm_f32_from_e4m3(scale[b]);
        for (int j = 0; j < 16; j++)
            out[b * 16 + j] = mm_f32_from_e2m1(mm_e2m1_at(code, b * 16 + j)) * s;
    }
}

void mm_ref_weight_row(const mm_weight *w, int64_t i, float *out)
{
    const uint8_t *data = (const uint8_t *)w->data + i * w->data_stride;
    const uint8_t *scale = w->scale != NULL ? w->scale + i * w->scale_stride : NULL;
    switch (w->format) {
    case MM_WEIGHT_F32:
        memcpy(out, data, (size_t)w->n_in * sizeof(float));
        return;
    case MM_WEIGHT_BF16:
        for (int64_t j = 0; j < w->n_in; j++) {
            uint16_t h;
            memcpy(&h, data + 2 * j, sizeof h);
            out[j] = mm_f32_from_bf16(h);
        }
        return;
    case MM_WEIGHT_MXFP8:
        mxfp8_row(data, scale, w->n_in, out);
        return;
    case MM_WEIGHT_NVFP4:
        nvfp4_row(data, scale, w->n_in, out);
        return;
    case MM_WEIGHT_NONE:
        break;
    }
    MM_ASSERT(!"a weight without a format");
}

void mm_ref_linear(const mm_weight *w, const float *x, int64_t n_row, float *y, int64_t y_stride,
                   float *row)
{
    for (int64_t i = 0; i < w->n_out; i++) {
        mm_ref_weight_row(w, i, row);
        for (int64_t r = 0; r < n_row; r++) {
            const float sum = mm_ref_dot(x + r * w->n_in, row, w->n_in);
            y[r * y_stride + i] = w->format == MM_WEIGHT_NVFP4 ? sum / w->global_scale : sum;
        }
    }
}
