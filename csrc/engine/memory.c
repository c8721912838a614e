/* memory.c: see memory.h. A host commits memory when it is touched, so there only the pages are
 * counted; a device is planned to the byte. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "csrc/engine/memory.h"

enum { LEAST_PAGES = 2 }; /* page 0 is never given out */

typedef struct text {
    char at[900];
    size_t used;
} text;

__attribute__((format(printf, 2, 3))) static void say(text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(t->at + t->used, sizeof t->at - t->used, fmt, ap);
    va_end(ap);
    if (n > 0)
        t->used = (size_t)mm_min_i64((int64_t)sizeof t->at - 1, (int64_t)t->used + n);
}

static double gb(int64_t n_bytes)
{
    return (double)n_bytes * 1e-9;
}

/* The most rows of a step that leave `pages` bytes of `room`; 0 when not even MM_PAGE do. */
static int32_t rows_within(const mm_engine_options *o, const mm_memory_need *need, int64_t fixed,
                           int64_t pages, int64_t room)
{
    const int64_t rest =
        fixed + pages - need->step_bytes(need->rank, need->model, o->max_batched_tokens);
    int32_t low = 0, high = o->max_batched_tokens / MM_PAGE; /* in steps of MM_PAGE */
    while (high - low > 1) {
        const int32_t mid = low + (high - low) / 2;
        if (rest + need->step_bytes(need->rank, need->model, mid * MM_PAGE) <= room)
            low = mid;
        else
            high = mid;
    }
    return low * MM_PAGE;
}

/* The setting that would fit, cheapest change first. */
static const char *advise(text *t, const mm_engine_options *o, const mm_backend_props *p,
                          const mm_memory_need *need, int64_t fixed, int64_t pages, int64_t allowed)
{
    const int64_t least = fixed + LEAST_PAGES * need->page_bytes;
    if (o->kv_bytes > 0 && least <= p->memory_free) {
        const int64_t n = (p->memory_free - fixed) / need->page_bytes * need->page_bytes;
        say(t, "kv_cache_memory_bytes=%lld fits", (long long)n);
        return "kv_cache_memory_bytes";
    }
    if (least <= p->memory_free) {
        const double share = ceil((double)least / (double)p->memory_total * 100) / 100;
        say(t, "gpu_memory_utilization=%.2f fits", fmin(share, 1.0));
        return "gpu_memory_utilization";
    }
    int32_t rows = rows_within(o, need, fixed, pages, allowed);
    if (rows > 0) {
        say(t, "max_num_batched_tokens=%d fits", rows);
        return "max_num_batched_tokens";
    }
    rows = rows_within(o, need, fixed, least - fixed, p->memory_free);
    if (rows > 0 && o->kv_bytes > 0)
        say(t, "max_num_batched_tokens=%d with kv_cache_memory_bytes=%lld fits", rows,
            (long long)(least - fixed));
    else if (rows > 0)
        say(t, "max_num_batched_tokens=%d with gpu_memory_utilization=1.0 fits", rows);
    if (rows > 0)
        return "max_num_batched_tokens";
    say(t, "no setting of the pages or of the step is small enough: free memory of the device, "
           "use one with more, or run from host memory (backend=\"cpu\")");
    return "gpu_memory_utilization";
}

static mm_status refuse(const mm_engine_options *o, const mm_backend_props *p,
                        const mm_memory_need *need, int64_t fixed, int64_t allowed)
{
    text t = {.used = 0};
    const int64_t pages = o->kv_bytes > 0 ? o->kv_bytes : (int64_t)LEAST_PAGES * need->page_bytes;
    say(&t,
        "the engine needs %.2f GB of device memory, %.2f GB can be used (%.2f of %.2f GB are "
        "free",
        gb(fixed + pages), gb(allowed), gb(p->memory_free), gb(p->memory_total));
    if (o->kv_bytes <= 0)
        say(&t, ", gpu_memory_utilization=%g", o->memory_fraction);
    say(&t, "):");
    for (int32_t i = 0; i < need->n_line; i++)
        if (strcmp(need->line[i].kind, "device") == 0)
            say(&t, " %s %.3f,", need->line[i].what, gb(need->line[i].n_bytes));
    say(&t, " driver %.3f, KV pages %.3f GB%s; ", gb(MM_DEVICE_RESERVE), gb(pages),
        o->kv_bytes > 0 ? "" : " at the least");
    const char *param = advise(&t, o, p, need, fixed, pages, allowed);
    return MM_FAIL_PARAM(MM_E_NOMEM, param, -1, "%s", t.at);
}

static mm_status plan_host(const mm_engine_options *o, const mm_memory_need *need,
                           int64_t *out_n_page)
{
    const int64_t one = mm_ceil_div(o->max_model_len, MM_PAGE) + o->max_num_seqs;
    const int64_t n = o->kv_bytes > 0 ? o->kv_bytes / need->page_bytes : one + 1;
    if (n < LEAST_PAGES)
        return MM_FAIL_PARAM(MM_E_CONFIG, "kv_bytes", -1,
                             "kv_cache_memory_bytes=%lld holds %lld pages of %lld bytes; at least "
                             "%d are needed",
                             (long long)o->kv_bytes, (long long)n, (long long)need->page_bytes,
                             LEAST_PAGES);
    *out_n_page = n;
    return MM_OK;
}

mm_status mm_memory_plan(const mm_engine_options *o, const mm_backend_props *p,
                         const mm_memory_need *need, int64_t *out_n_page)
{
    int64_t fixed = MM_DEVICE_RESERVE;
    if (p->is_host)
        return plan_host(o, need, out_n_page);
    for (int32_t i = 0; i < need->n_line; i++)
        if (strcmp(need->line[i].kind, "device") == 0)
            fixed += need->line[i].n_bytes;
    /* pages asked for in bytes may use all that is free */
    const int64_t share = (int64_t)(o->memory_fraction * (double)p->memory_total);
    const int64_t allowed = o->kv_bytes > 0 ? p->memory_free : mm_min_i64(share, p->memory_free);
    const int64_t bytes = o->kv_bytes > 0
                              ? o->kv_bytes
                              : mm_min_i64(allowed - fixed, need->most_pages * need->page_bytes);
    const int64_t n = bytes > 0 ? bytes / need->page_bytes : 0;
    if (n < LEAST_PAGES || fixed + n * need->page_bytes > allowed)
        return refuse(o, p, need, fixed, allowed);
    *out_n_page = n;
    return MM_OK;
}
