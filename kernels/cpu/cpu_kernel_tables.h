/* cpu_kernel_tables.h: the two kernel tables of one tier. A file of a tier includes its
 * cpu_simd_*.h, defines MM_CPU_TIER (the tail of the tables' names) and includes this. */
#include "kernels/cpu/cpu_kernels_attn.h"
#include "kernels/cpu/cpu_kernels_linear.h"

#define MM_CPU_JOIN_(a, b) a##b
#define MM_CPU_JOIN(a, b) MM_CPU_JOIN_(a, b)

const mm_cpu_linear_kernels MM_CPU_JOIN(mm_cpu_linear_, MM_CPU_TIER) = {
    .prepare = linear_prepare,
    .gemv = linear_gemv,
    .panel = linear_panel,
    .tile = linear_tile,
};

const mm_cpu_math_kernels MM_CPU_JOIN(mm_cpu_math_, MM_CPU_TIER) = {
    .to_f32 = math_to_f32,
    .from_f32 = math_from_f32,
    .round = math_round,
    .norm = math_norm,
    .add = math_add,
    .swiglu = math_swiglu,
    .axpy = math_axpy,
    .sum_exp = math_sum_exp,
    .has_nan = math_has_nan,
    .max = math_max,
    .rank = math_rank,
    .cache_rows = attn_cache_rows,
    .cache_columns = attn_cache_columns,
    .round_query = attn_round_query,
    .attend = attn_attend,
    .merge = attn_merge,
    .finish = attn_finish,
    .index_score = attn_index_score,
};
