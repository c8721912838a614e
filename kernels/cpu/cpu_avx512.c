/* cpu_avx512.c: the kernels of tier "avx512": AVX-512 (F, BW, DQ, VL), f32 lanes. */
#if defined(__x86_64__)
#include "kernels/cpu/cpu_simd_avx512.h"

#define MM_CPU_TIER avx512
#include "kernels/cpu/cpu_kernel_tables.h"
#else
typedef int mm_cpu_avx512_unused; /* a file is not empty */
#endif
