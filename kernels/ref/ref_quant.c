/* ref_quant.c: rows of the caches in their four formats, written and read, and the operands that
 * multiply with them. A NaN stays a NaN in every format. */
#include "kernels/ref/ref.h"

/* 16 values, already bf16: the KV4 rule, but a block with a NaN gets a NaN scale and so reads as
 * NaN throughout. */
static void write_nvfp4_block(const float *x, uint8_t *codes8, uint8_t *scale)
{
    for (int i = 0; i < 16; i++) {
        if (isnan(x[i])) {
            memset(codes8, 0, 8);
            *scale = 0x7F;
            return;
        }
    }
    mm_kv4_quantize16(x, codes8, scale);
}

void mm_ref_cache_write(mm_cache_format format, int32_t dim, const float *x, uint8_t *data,
                        uint8_t *scale)
{
    switch (format) {
    case MM_CACHE_F32:
        memcpy(data, x, (size_t)dim * sizeof(float));
        return;
    case MM_CACHE_BF16:
        for (int32_t j = 0; j < dim; j++) {
            const uint16_t h = mm_bf16_from_f32(x[j]);
            memcpy(data + 2 * j, &h, sizeof h);
        }
        return;
    case MM_CACHE_FP8:
        for (int32_t j = 0; j < dim; j++)
            data[j] = mm_e4m3_from_f32(mm_f32_round_bf16(x[j]));
        return;
    case MM_CACHE_NVFP4:
        for (int32_t b = 0; b < dim / 16; b++) {
            float v[16];
            for (int j = 0; j < 16; j++)
                v[j] = mm_f32_round_bf16(x[16 * b + j]);
            write_nvfp4_block(v, data + 8 * b, scale + b);
        }
        return;
    }
}

void mm_ref_cache_read(mm_cache_format format, int32_t dim, const uint8_t *data,
                       const uint8_t *scale, float *out)
{
    switch (format) {
    case MM_CACHE_F32:
        memcpy(out, data, (size_t)dim * sizeof(float));
        return;
    case MM_CACHE_BF16:
        for (int32_t j = 0; j < dim; j++) {
            uint16_t h;
            memcpy(&h, data + 2 * j, sizeof h);
            out[j] = mm_f32_from_bf16(h);
        }
        return;
    case MM_CACHE_FP8:
        for (int32_t j = 0; j < dim; j++)
            out[j] = mm_f32_from_e4m3(data[j]);
        return;
    case MM_CACHE_NVFP4:
        MM_ASSERT(scale != NULL);
        for (int32_t j = 0; j < dim; j++)
            out[j] = mm_kv4_operand(mm_e2m1_at(data, j), scale[j / 16]);
        return;
    }
}

/* Index of row (page, head, offset) of a plane. */
static int64_t plane_row(const mm_plane *p, int64_t page, int32_t head, int32_t offset)
{
    MM_ASSERT(page >= 0 && page < p->n_page && head < p->n_head && offset < MM_PAGE);
    return (page * p->n_head + head) * MM_PAGE + offset;
}

void mm_ref_plane_write(const mm_plane *p, int64_t page, int32_t head, int32_t offset,
                        const float *x)
{
    const int64_t row = plane_row(p, page, head, offset);
    uint8_t *scale =
        p->scale != NULL ? p->scale + row * mm_cache_row_scale_bytes(p->format, p->dim) : NULL;
    mm_ref_cache_write(p->format, p->dim, x, p->data + row * mm_cache_row_bytes(p->format, p->dim),
                       scale);
}

void mm_ref_plane_read(const mm_plane *p, int64_t page, int32_t head, int32_t n_key, float *out)
{
    const int64_t n_byte = mm_cache_row_bytes(p->format, p->dim),
                  n_scale = mm_cache_row_scale_bytes(p->format, p->dim);
    const int64_t row = plane_row(p, page, head, 0);
    for (int64_t i = 0; i < n_key; i++) {
        const uint8_t *scale = p->scale != NULL ? p->scale + (row + i) * n_scale : NULL;
        mm_ref_cache_read(p->format, p->dim, p->data + (row + i) * n_byte, scale, out + i * p->dim);
    }
}

int64_t mm_ref_page(const mm_seq_view *seq, int32_t i_seq, int64_t block)
{
    const mm_slots *s = seq->slots;
    MM_ASSERT(block >= 0 && block < s->page_stride);
    return s->page_table[(int64_t)seq->slot[i_seq] * s->page_stride + block];
}

static void round_bf16(float *x, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        x[j] = mm_f32_round_bf16(x[j]);
}

static void round_e4m3(float *x, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        x[j] = mm_f32_from_e4m3(mm_e4m3_from_f32(mm_f32_round_bf16(x[j])));
}

void mm_ref_round_query(mm_cache_format format, float *q, int64_t n)
{
    if (format == MM_CACHE_BF16 || format == MM_CACHE_FP8)
        round_bf16(q, n);
    else if (format == MM_CACHE_NVFP4)
        round_e4m3(q, n);
}

void mm_ref_round_index_query(mm_cache_format format, float *iq, int64_t n)
{
    if (format == MM_CACHE_BF16)
        round_bf16(iq, n);
    else if (format == MM_CACHE_FP8 || format == MM_CACHE_NVFP4)
        round_e4m3(iq, n);
}
