/* tool_formats: the functions of csrc/base/half.h behind a line protocol, for
 * tests/test_formats.py. A line is an operation and hexadecimal words (f32 values as their bits);
 * the answer is a line of hexadecimal words. */
#include <stdio.h>

#include "csrc/base/half.h"

#define MAX_WORD 64

static void put_f32(float x)
{
    printf("%08x ", mm_bits_from_f32(x));
}

static void put_bytes(const uint8_t *b, int n)
{
    for (int i = 0; i < n; i++)
        printf("%02x", b[i]);
    putchar(' ');
}

static bool answer(const char *op, const uint32_t *word, int n)
{
    uint8_t codes[32], scale;
    float x[MAX_WORD];
    for (int i = 0; i < n; i++)
        x[i] = mm_f32_from_bits(word[i]);
    if (strcmp(op, "e2m1_encode") == 0 && n == 1) {
        printf("%x ", mm_e2m1_from_f32(x[0]));
        put_f32(mm_f32_from_e2m1(mm_e2m1_from_f32(x[0])));
    } else if (strcmp(op, "e4m3_encode") == 0 && n == 1) {
        printf("%02x", mm_e4m3_from_f32(x[0]));
    } else if (strcmp(op, "e4m3_decode") == 0 && n == 1) {
        put_f32(mm_f32_from_e4m3((uint8_t)word[0]));
    } else if (strcmp(op, "e8m0_decode") == 0 && n == 1) {
        put_f32(mm_f32_from_e8m0((uint8_t)word[0]));
    } else if (strcmp(op, "e8m0_encode") == 0 && n == 1) {
        printf("%02x %02x", mm_e8m0_from_f32_ceil(x[0]), mm_e8m0_from_f32_floor(x[0]));
    } else if (strcmp(op, "bf16_encode") == 0 && n == 1) {
        printf("%04x", mm_bf16_from_f32(x[0]));
    } else if (strcmp(op, "kv4_quantize_block") == 0 && n == 16) {
        mm_kv4_quantize16(x, codes, &scale);
        put_bytes(&scale, 1);
        put_bytes(codes, 8);
        for (int i = 0; i < 16; i++)
            put_f32(mm_f32_from_e2m1(mm_e2m1_at(codes, i)) * mm_f32_from_e4m3(scale));
    } else if (strcmp(op, "kv4_operand") == 0 && n == 2) {
        put_f32(mm_kv4_operand((uint8_t)word[0], (uint8_t)word[1]));
    } else if (strcmp(op, "nvfp4_quantize_block") == 0 && n == 17) {
        /* the decode scale comes first */
        mm_nvfp4_quantize16(x + 1, 1.0f / x[0], codes, &scale);
        put_bytes(&scale, 1);
        put_bytes(codes, 8);
        for (int i = 0; i < 16; i++)
            put_f32(mm_f32_from_e2m1(mm_e2m1_at(codes, i)) * mm_f32_from_e4m3(scale) * x[0]);
    } else if (strcmp(op, "mxfp8_quantize_block") == 0 && n == 33) { /* word 0: the rule */
        mm_mxfp8_quantize32(x + 1, (mm_mx_rule)word[0], codes, &scale);
        put_bytes(&scale, 1);
        put_bytes(codes, 32);
        for (int i = 0; i < 32; i++)
            put_f32(mm_f32_from_e4m3(codes[i]) * mm_f32_from_e8m0(scale));
    } else if (strcmp(op, "swizzle_128x4_offset") == 0 && n == 3) {
        printf("%llx", (unsigned long long)mm_scale_swizzle_128x4(word[0], word[1], word[2]));
    } else if (strcmp(op, "v_scale_swizzle_offset") == 0 && n == 3) {
        printf("%llx", (unsigned long long)mm_scale_swizzle_v(word[0], word[1], word[2]));
    } else if (strcmp(op, "e2m1_pack") == 0 && n > 0 && n % 2 == 0) {
        for (int i = 0; i < n; i++)
            mm_e2m1_put(codes, i, (uint8_t)word[i]);
        put_bytes(codes, n / 2);
    } else {
        return false;
    }
    putchar('\n');
    return true;
}

int main(void)
{
    char line[1024];
    while (fgets(line, sizeof line, stdin) != NULL) {
        uint32_t word[MAX_WORD];
        int n = 0;
        char *save = NULL;
        const char *op = strtok_r(line, " \n", &save);
        for (const char *w; n < MAX_WORD && (w = strtok_r(NULL, " \n", &save)) != NULL;)
            word[n++] = (uint32_t)strtoul(w, NULL, 16);
        if (op == NULL || !answer(op, word, n)) {
            printf("no such operation, or %d words are not what it takes: %s\n", n,
                   op != NULL ? op : "");
            return 1;
        }
    }
    return 0;
}
