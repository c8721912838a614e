/* cpu_avx2.c: the kernels of tier "avx2": AVX2 + FMA. */
#if defined(__x86_64__)
#include "kernels/cpu/cpu_simd_avx2.h"

#define MM_CPU_TIER avx2
#include "kernels/cpu/cpu_kernel_tables.h"
#else
typedef int mm_cpu_avx2_unused; /* a file is not empty */
#endif
