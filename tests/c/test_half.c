/* Exhaustive checks of the scalar formats against their definitions in double, and of the block
 * quantisers' rules. The committed vectors are checked by tests/test_formats.py. */
#include "mm_random.h"
#include "mm_test.h"

#include "csrc/base/half.h"

/* Nearest value of a sorted table of magnitudes, ties to the even index. */
static int nearest(const double *value, int n, double a)
{
    for (int i = 0; i + 1 < n; i++) {
        const double middle = (value[i] + value[i + 1]) / 2;
        if (a < middle || (a == middle && i % 2 == 0))
            return i;
    }
    return n - 1;
}

static double e4m3_value(int code)
{
    const int e = code >> 3, m = code & 7;
    return e == 0 ? m * 0x1p-9 : ldexp(1.0 + m / 8.0, e - 7);
}

MM_TEST(test_bf16_round_trips_and_rounds_to_even)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float x = mm_f32_from_bf16((uint16_t)h);
        MM_CHECK(mm_bf16_from_f32(x) == (isnan(x) ? 0x7FFF : h), "%04x", h);
        if (isnan(x) || isinf(x))
            continue;
        /* the halfway point above h goes to the even one of h and h + 1 */
        const uint32_t u = h << 16;
        MM_CHECK(mm_bf16_from_f32(mm_f32_from_bits(u | 0x7FFF)) == h);
        MM_CHECK(mm_bf16_from_f32(mm_f32_from_bits(u | 0x8000)) == h + (h & 1), "%04x", h);
        MM_CHECK(mm_bf16_from_f32(mm_f32_from_bits(u | 0x8001)) == h + 1);
    }
}

MM_TEST(test_e4m3_encodes_every_bf16_and_every_midpoint)
{
    double value[127];
    for (int c = 0; c < 127; c++) {
        value[c] = e4m3_value(c);
        MM_CHECK(mm_f32_from_e4m3((uint8_t)c) == value[c] &&
                 mm_f32_from_e4m3((uint8_t)(c | 0x80)) == -value[c]);
        MM_CHECK(mm_e4m3_from_f32((float)value[c]) == c &&
                 mm_e4m3_from_f32(-(float)value[c]) == (c | 0x80));
    }
    MM_CHECK(isnan(mm_f32_from_e4m3(0x7F)) && isnan(mm_f32_from_e4m3(0xFF)));
    for (uint32_t h = 0; h < 0x7F81; h++) {
        const float x = mm_f32_from_bf16((uint16_t)h);
        const int want = isnan(x) ? 0x7F : nearest(value, 127, fmin(x, 448.0));
        MM_CHECK(mm_e4m3_from_f32(x) == want, "%a", (double)x);
    }
    for (int c = 0; c < 126; c++) {
        const float middle = (float)((value[c] + value[c + 1]) / 2);
        MM_CHECK(mm_e4m3_from_f32(middle) == c + (c & 1));
        MM_CHECK(mm_e4m3_from_f32(nextafterf(middle, 1e9f)) == c + 1);
        MM_CHECK(mm_e4m3_from_f32(nextafterf(middle, 0.0f)) == c);
    }
}

MM_TEST(test_e2m1_encodes_every_bf16_and_every_midpoint)
{
    double value[8];
    for (int c = 0; c < 8; c++) {
        value[c] = (double)mm_f32_from_e2m1((uint8_t)c);
        MM_CHECK(mm_f32_from_e2m1((uint8_t)(c | 8)) == -value[c] &&
                 signbit(mm_f32_from_e2m1((uint8_t)(c | 8))));
    }
    MM_CHECK(value[1] == 0.5 && value[4] == 2.0 && value[7] == 6.0);
    for (uint32_t h = 0; h <= 0x7F80; h++) {
        const float x = mm_f32_from_bf16((uint16_t)h);
        const int want = nearest(value, 8, fmin(x, 6.0));
        MM_CHECK(mm_e2m1_from_f32(x) == want && mm_e2m1_from_f32(-x) == (want | 8), "%a",
                 (double)x);
    }
    MM_CHECK(mm_e2m1_from_f32(NAN) == 7);
}

MM_TEST(test_e8m0_is_a_power_of_two)
{
    for (int b = 0; b < 255; b++) {
        const float x = mm_f32_from_e8m0((uint8_t)b);
        MM_CHECK((double)x == ldexp(1.0, b - 127), "%d", b);
        MM_CHECK(mm_e8m0_from_f32_ceil(x) == b && mm_e8m0_from_f32_floor(x) == b);
        MM_CHECK(mm_e8m0_from_f32_ceil(nextafterf(x, INFINITY)) == (b < 254 ? b + 1 : 254));
        MM_CHECK(mm_e8m0_from_f32_floor(nextafterf(x, 0.0f)) == (b > 0 ? b - 1 : 0));
    }
    MM_CHECK(isnan(mm_f32_from_e8m0(255)) && mm_e8m0_from_f32_ceil(NAN) == 255 &&
             mm_e8m0_from_f32_floor(NAN) == 255);
    MM_CHECK(mm_e8m0_from_f32_ceil(INFINITY) == 254 && mm_e8m0_from_f32_ceil(-1.0f) == 0);
}

/* e2m1 * e4m3 fits bf16: what makes weight-only NVFP4 exact. The attention operand
 * rounds it once. */
MM_TEST(test_nvfp4_products_are_exact_in_bf16)
{
    for (int s = 0; s < 127; s++) {
        for (int c = 0; c < 16; c++) {
            const float p = mm_f32_from_e2m1((uint8_t)c) * mm_f32_from_e4m3((uint8_t)s);
            MM_CHECK(mm_f32_round_bf16(p) == p, "code %d scale %d", c, s);
            const float op = mm_kv4_operand((uint8_t)c, (uint8_t)s);
            MM_CHECK(op == mm_f32_from_e4m3(mm_e4m3_from_f32(p)) && fabsf(op) <= 448.0f);
        }
    }
}

static void fill(uint64_t *seed, float *x, int n)
{
    const int spread = (int)random_below(seed, 40) - 20;
    for (int i = 0; i < n; i++) {
        const float unit = (float)(int64_t)(random_next(seed) >> 40) * 0x1p-24f;
        x[i] = mm_f32_round_bf16(ldexpf((unit - 0.5f) * 2.0f, spread + (int)random_below(seed, 6)));
    }
}

MM_TEST(test_kv4_scale_is_never_zero_and_values_are_nearest)
{
    uint64_t seed = 5;
    for (int round = 0; round < 20000; round++) {
        float x[16];
        uint8_t codes[8], scale;
        fill(&seed, x, 16);
        mm_kv4_quantize16(x, codes, &scale);
        MM_CHECK(scale >= 0x01 && scale <= 0x7E, "%02x", scale);
        const float s = mm_f32_from_e4m3(scale);
        for (int i = 0; i < 16; i++) {
            const uint8_t c = mm_e2m1_at(codes, i);
            const double got = fabs((double)(mm_f32_from_e2m1(c) * s) - (double)x[i]);
            MM_CHECK(c != 8, "a negative zero was stored");
            for (int other = 0; other < 16 && fabsf(x[i]) <= 6.0f * s; other++) {
                const double e =
                    fabs((double)(mm_f32_from_e2m1((uint8_t)other) * s) - (double)x[i]);
                MM_CHECK(got <= e * (1 + 1e-6), "%a with scale %a: code %d, %d is nearer",
                         (double)x[i], (double)s, c, other);
            }
        }
    }
}

MM_TEST(test_nvfp4_and_mxfp8_errors_stay_within_a_step)
{
    uint64_t seed = 6;
    for (int round = 0; round < 20000; round++) {
        float x[32];
        uint8_t codes[32], scale;
        fill(&seed, x, 32);
        const float amax = mm_block_amax(x, 32);
        mm_mxfp8_quantize32(x, MM_MX_CEIL, codes, &scale);
        for (int i = 0; i < 32; i++) {
            const double y = (double)mm_f32_from_e4m3(codes[i]) * (double)mm_f32_from_e8m0(scale);
            const double step =
                fmax(fabs((double)x[i]) / 16, (double)mm_f32_from_e8m0(scale) * 0x1p-10);
            MM_CHECK(fabs(y - (double)x[i]) <= step, "%a became %a", (double)x[i], y);
        }
        const float encode = amax > 0.0f ? 2688.0f / amax : 1.0f;
        mm_nvfp4_quantize16(x, encode, codes, &scale);
        const float s = mm_f32_from_e4m3(scale);
        for (int i = 0; i < 16; i++) {
            const double y = (double)(mm_f32_from_e2m1(mm_e2m1_at(codes, i)) * s) / (double)encode;
            MM_CHECK(fabs(y - (double)x[i]) <= (double)amax * 0.2, "%a became %a", (double)x[i], y);
        }
    }
}

MM_TEST(test_e2m1_pairs_put_the_even_element_low)
{
    uint8_t packed[2] = {0xFF, 0xFF};
    mm_e2m1_put(packed, 0, 1);
    mm_e2m1_put(packed, 1, 2);
    mm_e2m1_put(packed, 2, 3);
    MM_CHECK(packed[0] == 0x21 && packed[1] == 0xF3);
    MM_CHECK(mm_e2m1_at(packed, 0) == 1 && mm_e2m1_at(packed, 1) == 2 &&
             mm_e2m1_at(packed, 3) == 15);
}
