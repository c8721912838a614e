/* cpu_scalar.c: the kernels of tier "scalar": plain C, for any processor. */
#include "kernels/cpu/cpu_simd_scalar.h"

#include "kernels/cpu/cpu_kernels_attn.h"
#include "kernels/cpu/cpu_kernels_linear.h"

const mm_cpu_linear_kernels mm_cpu_linear_scalar = {
    .prepare = linear_prepare,
    .gemv = linear_gemv,
    .panel = linear_panel,
    .tile = linear_tile,
};

const mm_cpu_math_kernels mm_cpu_math_scalar = {
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
