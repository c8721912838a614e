/* check_compare.c: results of a real op against those of ref, element by element; rows of the
 * cache: check_cache.c, choices: check_choice.c. */
#include <math.h>

#include "csrc/base/half.h"
#include "csrc/base/log.h"
#include "csrc/model/check_compare.h"

void mm_check_report(mm_model *m, const char *what, int32_t layer, int64_t at, double got,
                     double want)
{
    if (m->check->n_bad++ == 0)
        mm_log(MM_LOG_ERROR,
               "check: %s of layer %d differs from ref, element %lld is %.9g, expected %.9g "
               "(first difference; later ones are not reported)",
               what, layer, (long long)at, got, want);
}

static float value_at(const void *p, mm_dtype dtype, int64_t i)
{
    return dtype == MM_DTYPE_F32 ? ((const float *)p)[i]
                                 : mm_f32_from_bf16(((const uint16_t *)p)[i]);
}

const mm_check_bounds mm_check_sums = {1e-10, 1e-9, 1e-4};
static const mm_check_bounds rounded = {3e-5, 1e-4, 0x1p-7};

const mm_check_bounds *mm_check_act(const mm_model *m)
{
    return m->shape.act == MM_DTYPE_F32 ? &mm_check_sums : &rounded;
}

/* [n_row, n_col]: the same NaNs, then the bounds. */
void mm_check_values(mm_model *m, const char *what, int32_t layer, const void *got,
                     const void *want, mm_dtype dtype, const mm_check_bounds *limit, int64_t n_row,
                     int64_t n_col)
{
    double error = 0.0, norm = 0.0, top = 0.0, worst = 0.0;
    int64_t at = 0, bad_row = -1, bad_at = 0;
    m->check->n_compared++;
    for (int64_t r = 0; r < n_row; r++) {
        double row_error = 0.0, row_norm = 0.0, row_worst = 0.0;
        int64_t row_at = r * n_col;
        for (int64_t i = r * n_col; i < (r + 1) * n_col; i++) {
            const double a = (double)value_at(got, dtype, i), b = (double)value_at(want, dtype, i);
            if (isnan(a) != isnan(b)) {
                mm_check_report(m, what, layer, i, a, b);
                return;
            }
            if (isfinite(b)) {
                row_norm += b * b;
                top = fmax(top, fabs(b));
            }
            if (isnan(a) || a == b) /* equal infinities too */
                continue;
            row_error += (a - b) * (a - b);
            if (fabs(a - b) > row_worst) {
                row_worst = fabs(a - b);
                row_at = i;
            }
        }
        if (row_error > limit->row * row_norm && bad_row < 0) {
            bad_row = r;
            bad_at = row_at;
        }
        if (row_worst > worst) {
            worst = row_worst;
            at = row_at;
        }
        error += row_error;
        norm += row_norm;
    }
    if (error > limit->all * norm || worst > limit->worst * top)
        bad_at = at;
    else if (bad_row < 0)
        return;
    mm_check_report(m, what, layer, bad_at, (double)value_at(got, dtype, bad_at),
                    (double)value_at(want, dtype, bad_at));
}
