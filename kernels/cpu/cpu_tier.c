/* cpu_tier.c: which instruction tier this processor runs. CPUID and the operating system's promise
 * to save the registers
 * (__builtin_cpu_supports knows both) decide once, when a backend opens. */
#include "kernels/cpu/cpu.h"

#define E8M0_1(s) ((uint32_t)(s) << 23 | (uint32_t)((s) == 0 || (s) == 255) << 22)
#define E8M0_4(s) E8M0_1(s), E8M0_1((s) + 1), E8M0_1((s) + 2), E8M0_1((s) + 3)
#define E8M0_16(s) E8M0_4(s), E8M0_4((s) + 4), E8M0_4((s) + 8), E8M0_4((s) + 12)
#define E8M0_64(s) E8M0_16(s), E8M0_16((s) + 16), E8M0_16((s) + 32), E8M0_16((s) + 48)
const uint32_t mm_cpu_e8m0_bits[256] = {E8M0_64(0), E8M0_64(64), E8M0_64(128), E8M0_64(192)};

/* Ascending: a limit admits its own tier and those before it. */
static const mm_cpu_isa tier[] = {
    {"scalar", false, &mm_cpu_linear_scalar, &mm_cpu_math_scalar},
#if defined(__x86_64__)
    {"avx2", false, &mm_cpu_linear_avx2, &mm_cpu_math_avx2},
    {"avx512", false, &mm_cpu_linear_avx512, &mm_cpu_math_avx512},
    {"avx512_bf16", true, &mm_cpu_linear_avx512_bf16, &mm_cpu_math_avx512},
#endif
};

static bool is_supported(const char *name)
{
    if (strcmp(name, "scalar") == 0)
        return true;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("bmi2");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");
    if (strcmp(name, "avx2") == 0)
        return avx2;
    if (strcmp(name, "avx512") == 0)
        return avx512;
    return avx512 && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

mm_status mm_cpu_isa_find(const char *limit, const mm_cpu_isa **out)
{
    static const char *const known[] = {"scalar", "avx2", "avx512", "avx512_bf16"};
    int top = limit == NULL ? (int)MM_ARRAY_LEN(known) - 1 : -1;
    for (int i = 0; limit != NULL && i < (int)MM_ARRAY_LEN(known); i++) {
        if (strcmp(limit, known[i]) == 0)
            top = i;
    }
    if (top < 0)
        return MM_FAIL_PARAM(
            MM_E_CONFIG, "MM_TIER", -1,
            "MM_TIER=%s: the cpu backend knows scalar, avx2, avx512 and avx512_bf16", limit);
    for (int i = 0; i <= top && i < (int)MM_ARRAY_LEN(tier); i++) {
        if (is_supported(tier[i].name))
            *out = &tier[i];
    }
    return MM_OK;
}
