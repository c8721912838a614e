/* cpu_scalar.c: the kernels of tier "scalar": plain C, for any processor. */
#include "kernels/cpu/cpu_simd_scalar.h"

#define MM_CPU_TIER scalar
#include "kernels/cpu/cpu_kernel_tables.h"
