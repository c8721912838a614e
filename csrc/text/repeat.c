/* repeat.c: the last size * count tokens repeat a pattern of `size` exactly when the last size *
 * (count - 1) tokens each equal the token `size` before: so one run length per size is all the
 * state there is. */
#include "csrc/text/repeat.h"

#define MAX_SIZE 4096

mm_status mm_repeat_open(mm_repeat *out, int32_t min_size, int32_t max_size, int32_t min_count)
{
    *out = (mm_repeat){0};
    if (min_size == 0 && max_size == 0 && min_count == 0)
        return MM_OK;
    if (min_size < 1 || max_size < min_size || max_size > MAX_SIZE)
        return MM_FAIL_PARAM(
            MM_E_INVALID, "repetition_detection", -1,
            "repetition_detection: pattern sizes %d to %d; they must be 1 to %d, the least first",
            min_size, max_size, MAX_SIZE);
    if (min_count < 2)
        return MM_FAIL_PARAM(MM_E_INVALID, "repetition_detection", -1,
                             "repetition_detection: min_count is %d; it must be at least 2",
                             min_count);
    int32_t *run = calloc((size_t)max_size - (size_t)min_size + 1, sizeof *run);
    if (run == NULL)
        return MM_FAIL(MM_E_NOMEM, "no host memory for loop detection");
    *out =
        (mm_repeat){.min_size = min_size, .max_size = max_size, .min_count = min_count, .run = run};
    return MM_OK;
}

void mm_repeat_close(mm_repeat *r)
{
    if (r == NULL)
        return;
    free(r->run);
    *r = (mm_repeat){0};
}

bool mm_repeat_push(mm_repeat *r, const int32_t *token, int32_t n)
{
    if (r->run == NULL)
        return false;
    bool loops = false;
    const int32_t last = token[n - 1];
    for (int32_t size = r->min_size; size <= r->max_size && size < n; size++) {
        int32_t *run = &r->run[size - r->min_size];
        *run = token[n - 1 - size] == last ? *run + 1 : 0;
        loops |= *run >= (int64_t)size * (r->min_count - 1);
    }
    return loops;
}
