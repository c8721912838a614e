/* check_cache.c: cache rows that attn_in stored against what ref computes, before it is stored. A
 * code is right where the format's rule makes it of a value within the noise of ref's own: another
 * order of sums moves a value by a rounding or two, and only a value next to the border between two
 * codes then takes the other one. Coarse codes are held to that border, not to their step. */
#include <math.h>
#include <stdio.h>

#include "csrc/base/half.h"
#include "csrc/model/check_compare.h"

/* BLOCK: values under one scale of NVFP4; MAX_DIM: as config.c allows */
enum { BLOCK = 16, MAX_DIM = 512 };

/* One value of ref with its noise. */
typedef struct spot {
    float low, exact, high;
} spot;

/* How far what was stored may lie from ref's value x before its format: by a rounding to bf16 of
 * the projection that fell the other way, by half a rounding of x itself (ref's is rounded, ops.h),
 * and by the sums. pair: the other value of the pair that rotates into x, 0 where nothing rotates;
 * top: largest of the head. */
static spot spot_at(const mm_model *m, float x, float pair, float top)
{
    if (!isfinite(x))
        return (spot){x, x, x};
    float noise = 0x1p-14f * top;
    if (m->shape.act == MM_DTYPE_BF16)
        noise += 0x1p-7f * (isfinite(pair) ? hypotf(x, pair) : fabsf(x)) + 0x1p-8f * fabsf(x);
    return (spot){x - noise, x, x + noise};
}

/* Head vector x [dim] whose first n_rotary values rotate in pairs. */
static void spots_of(const mm_model *m, const float *x, int32_t dim, int32_t n_rotary, spot *out)
{
    const int32_t half = n_rotary / 2;
    float top = 0.0f;
    for (int32_t j = 0; j < dim; j++)
        if (isfinite(x[j]))
            top = fmaxf(top, fabsf(x[j]));
    for (int32_t j = 0; j < dim; j++)
        out[j] = spot_at(m, x[j], j >= 2 * half ? 0.0f : x[j < half ? j + half : j - half], top);
}

/* ---------------------------------------------------------------- one value, one code */

static float e4m3_of(float x)
{
    return mm_f32_from_e4m3(mm_e4m3_from_f32(mm_f32_round_bf16(x)));
}

static float stored(mm_cache_format format, float x)
{
    return format == MM_CACHE_F32 ? x : format == MM_CACHE_BF16 ? mm_f32_round_bf16(x) : e4m3_of(x);
}

static float value_of(const mm_plane *p, const uint8_t *data, int32_t j)
{
    if (p->format == MM_CACHE_F32)
        return ((const float *)(const void *)data)[j];
    return p->format == MM_CACHE_BF16 ? mm_f32_from_bf16(((const uint16_t *)(const void *)data)[j])
                                      : mm_f32_from_e4m3(data[j]);
}

/* The first value of a row that is wrong, -1 for none. */
static int32_t wrong_value(const mm_plane *p, const uint8_t *data, const spot *s, float *got,
                           float *want)
{
    for (int32_t j = 0; j < p->dim; j++) {
        *got = value_of(p, data, j);
        *want = stored(p->format, s[j].exact);
        if (isnan(*want)
                ? !isnan(*got)
                : !(*got >= stored(p->format, s[j].low) && *got <= stored(p->format, s[j].high)))
            return j;
    }
    return -1;
}

/* ---------------------------------------------------------------- NVFP4 */

/* Scale of a block with this largest magnitude (mm_kv4_quantize16). */
static uint8_t scale_of(float top)
{
    const float x[BLOCK] = {mm_f32_round_bf16(top)};
    uint8_t code[BLOCK / 2] = {0}, scale;
    mm_kv4_quantize16(x, code, &scale);
    return scale;
}

/* A zero has no sign. */
static float e2m1_of(float x, float scale)
{
    return mm_f32_from_e2m1(mm_e2m1_from_f32(mm_f32_round_bf16(x) / scale)) + 0.0f;
}

/* As wrong_value; a scale that no noise explains counts for its first value. */
static int32_t wrong_code(const mm_plane *p, const uint8_t *data, const uint8_t *scale,
                          const spot *s, float *got, float *want, bool *is_scale)
{
    for (int32_t b = 0; b < p->dim; b += BLOCK) {
        float least = 0.0f, most = 0.0f, top = 0.0f;
        bool has_nan = false;
        for (int32_t j = b; j < b + BLOCK; j++) {
            has_nan |= isnan(s[j].exact);
            least = fmaxf(least, s[j].exact >= 0.0f ? s[j].low : -s[j].high);
            most = fmaxf(most, s[j].exact >= 0.0f ? s[j].high : -s[j].low);
            top = fmaxf(top, fabsf(s[j].exact));
        }
        const uint8_t given = scale[b / BLOCK];
        *got = mm_f32_from_e4m3(given);
        *want = has_nan ? NAN : mm_f32_from_e4m3(scale_of(top));
        *is_scale = true;
        if (has_nan ? !isnan(*got) : given < scale_of(least) || given > scale_of(most))
            return b;
        *is_scale = false;
        for (int32_t j = b; j < b + BLOCK && !has_nan; j++) {
            const float unit = mm_f32_from_e4m3(given);
            const uint8_t code = mm_e2m1_at(data, j);
            const float x = mm_f32_from_e2m1(code);
            *got = x * unit;
            *want = e2m1_of(s[j].exact, unit) * unit;
            if (code == 8 || x < e2m1_of(s[j].low, unit) || x > e2m1_of(s[j].high, unit))
                return j; /* code 8: -0 */
        }
    }
    return -1;
}

/* ---------------------------------------------------------------- rows */

void mm_check_plane(mm_model *m, const char *what, int32_t layer, const mm_plane *got,
                    const mm_plane *want, int32_t n_rotary)
{
    struct mm_check_state *k = m->check;
    const mm_seq_view *seq = &k->seq;
    const int64_t n_byte = mm_cache_row_bytes(got->format, got->dim),
                  n_scale = mm_cache_row_scale_bytes(got->format, got->dim);
    spot spots[MAX_DIM];
    MM_ASSERT(got->dim <= MAX_DIM && want->format == MM_CACHE_F32);
    k->n_compared++;
    for (int32_t t = 0; t < seq->n_row; t++) {
        const int32_t slot = seq->slot[seq->row_seq[t]], pos = seq->pos[t];
        const int32_t *pages = seq->slots->page_table + (int64_t)slot * seq->slots->page_stride;
        for (int32_t h = 0; h < got->n_head; h++) {
            const int64_t row =
                ((int64_t)pages[pos / MM_PAGE] * got->n_head + h) * MM_PAGE + pos % MM_PAGE;
            const uint8_t *data = got->data + row * n_byte;
            float is = 0.0f, should = 0.0f;
            bool is_scale = false;
            char name[64];
            spots_of(m, (const float *)(const void *)want->data + row * got->dim, got->dim,
                     n_rotary, spots);
            const int32_t j = got->format == MM_CACHE_NVFP4
                                  ? wrong_code(got, data, got->scale + row * n_scale, spots, &is,
                                               &should, &is_scale)
                                  : wrong_value(got, data, spots, &is, &should);
            if (j < 0)
                continue;
            (void)snprintf(name, sizeof name, "%s%s", what, is_scale ? " scale" : "");
            mm_check_report(m, name, layer, ((int64_t)t * got->n_head + h) * got->dim + j,
                            (double)is, (double)should);
            return;
        }
    }
}
