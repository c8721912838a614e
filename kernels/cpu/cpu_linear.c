/* cpu_linear.c: y = x W^T over the pool. The matrices of an op become one list of items, 16 rows of
 * W each, so that small projections share one parallel loop. One row of x: weights are decoded in
 * registers. Several: 16 rows are decoded once into a panel that fits the cache, and all rows of x
 * pass over it. */
#include "kernels/cpu/cpu.h"

#define PANEL_BYTES (512 << 10) /* of a thread's panel: half of a usual second-level cache */

mm_cpu_kind mm_cpu_kind_of(const mm_cpu_isa *isa, mm_weight_format format, mm_dtype act)
{
    const bool dot = isa->has_dot && act == MM_DTYPE_BF16;
    switch (format) {
    case MM_WEIGHT_BF16:
        return dot ? MM_CPU_BF16_DOT : MM_CPU_BF16;
    case MM_WEIGHT_MXFP8:
        return dot ? MM_CPU_MXFP8_DOT : MM_CPU_MXFP8;
    case MM_WEIGHT_NVFP4:
        return dot ? MM_CPU_NVFP4_DOT : MM_CPU_NVFP4;
    case MM_WEIGHT_NONE:
    case MM_WEIGHT_F32:
        break;
    }
    return MM_CPU_F32;
}

size_t mm_cpu_prepared_bytes(mm_cpu_kind kind, int64_t k)
{
    return (size_t)mm_round_up(k, MM_CPU_PAD) * (kind >= MM_CPU_BF16_DOT ? 2 : 4);
}

size_t mm_cpu_panel_bytes(mm_cpu_kind kind, int64_t k)
{
    switch (kind) {
    case MM_CPU_F32:
        return (size_t)mm_round_up(k, 16) * 4;
    case MM_CPU_BF16:
    case MM_CPU_MXFP8:
        return (size_t)mm_round_up(k, 32) * 4;
    case MM_CPU_NVFP4: /* 8 and the scales per 128 */
        return (size_t)mm_ceil_div(k, 128) * 9 * 64;
    case MM_CPU_BF16_DOT:
        return (size_t)mm_ceil_div(k, 32) * 64;
    case MM_CPU_MXFP8_DOT:
        return (size_t)mm_ceil_div(k, 64) * 3 * 64;
    case MM_CPU_NVFP4_DOT:
        return (size_t)mm_ceil_div(k, 128) * 5 * 64;
    case MM_CPU_N_KIND:
        break;
    }
    return 0;
}

mm_status mm_cpu_check_weight(const mm_weight *w, const char *name)
{
    if (w->layout != MM_LAYOUT_CHECKPOINT)
        return MM_FAIL(MM_E_UNSUPPORTED,
                       "cpu: weight %s is packed; cpu reads checkpoint order only", name);
    switch (w->format) {
    case MM_WEIGHT_F32:
    case MM_WEIGHT_BF16:
        return MM_OK;
    case MM_WEIGHT_MXFP8:
        if (w->n_in % 32 == 0 && w->scale != NULL)
            return MM_OK;
        break;
    case MM_WEIGHT_NVFP4:
        if (w->n_in % 16 == 0 && w->scale != NULL)
            return MM_OK;
        break;
    case MM_WEIGHT_NONE:
        return MM_FAIL(MM_E_UNSUPPORTED, "cpu: weight %s is missing", name);
    }
    return MM_FAIL(
        MM_E_UNSUPPORTED,
        "cpu: weight %s [%lld, %lld]: the width must be a multiple of %d and scales present", name,
        (long long)w->n_out, (long long)w->n_in, w->format == MM_WEIGHT_MXFP8 ? 32 : 16);
}

/* ---------------------------------------------------------------- jobs */

typedef struct linear_run {
    const mm_cpu_linear_kernels *k;
    const mm_cpu_job *job;
    int32_t n_job;
    uint8_t *panel; /* [n_thread, panel_bytes] */
    size_t panel_bytes;
} linear_run;

/* Rows of W that are decoded at once. */
static int64_t panel_rows(const mm_cpu_job *j)
{
    const size_t n_byte = mm_cpu_panel_bytes(j->kind, j->w->n_in);
    int64_t n = MM_CPU_PANEL;
    while (n > 4 && (size_t)n * n_byte > PANEL_BYTES)
        n /= 2;
    return n;
}

/* Rows that the tile can read where they lie: plain values in the order of K, whole vectors. */
static bool is_panel(const mm_cpu_job *j)
{
    return (j->kind == MM_CPU_F32 && j->w->n_in % 16 == 0) ||
           (j->kind == MM_CPU_BF16_DOT && j->w->n_in % 32 == 0);
}

static void run_many(const linear_run *r, const mm_cpu_job *j, int64_t first, int64_t last,
                     uint8_t *panel)
{
    const int64_t step = panel_rows(j);
    for (int64_t i = first; i < last; i += step) {
        const int64_t n = mm_min_i64(step, last - i);
        const uint8_t *rows = (const uint8_t *)j->w->data + i * j->w->data_stride;
        int64_t stride = j->w->data_stride;
        if (!is_panel(j)) {
            r->k->panel(j->kind, j->w, i, n, panel);
            rows = panel;
            stride = (int64_t)mm_cpu_panel_bytes(j->kind, j->w->n_in);
        }
        r->k->tile(j->kind, rows, stride, n, j->w->n_in, j->x, j->m, j->w->global_scale, j->y + i,
                   j->y_stride);
    }
}

static void run_items(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    const linear_run *r = ctx;
    int32_t i = 0;
    while (begin < end) {
        while (i + 1 < r->n_job && r->job[i + 1].item <= begin)
            i++;
        const mm_cpu_job *j = &r->job[i];
        const int64_t stop = i + 1 < r->n_job ? mm_min_i64(end, r->job[i + 1].item) : end;
        const int64_t first = (begin - j->item) * MM_CPU_PANEL;
        const int64_t last = mm_min_i64((stop - j->item) * MM_CPU_PANEL, j->w->n_out);
        if (j->m == 1)
            r->k->gemv(j->kind, j->w, first, last - first, j->x[0], j->y + first);
        else if (j->m > 1)
            run_many(r, j, first, last, r->panel + (size_t)i_thread * r->panel_bytes);
        begin = stop;
    }
}

mm_status mm_cpu_linear(const mm_cpu_run *run, mm_cpu_job *job, int32_t n_job)
{
    mm_arena *scratch = &run->c->stream->scratch;
    const size_t used = scratch->used;
    linear_run r = {.k = run->isa->linear, .job = job, .n_job = n_job};
    int64_t n_item = 0, work = 0;
    bool is_many = false;
    for (int32_t i = 0; i < n_job; i++) {
        job[i].item = n_item;
        n_item += mm_ceil_div(job[i].w->n_out, MM_CPU_PANEL);
        work += job[i].m * job[i].w->n_out * job[i].w->n_in;
        if (job[i].m <= 1)
            continue;
        is_many = true;
        const size_t n_byte = mm_arena_size((size_t)panel_rows(&job[i]) *
                                            mm_cpu_panel_bytes(job[i].kind, job[i].w->n_in));
        r.panel_bytes = n_byte > r.panel_bytes ? n_byte : r.panel_bytes;
    }
    if (is_many) {
        void *p;
        MM_TRY(mm_cpu_scratch(run, r.panel_bytes * (size_t)run->n_thread, &p));
        r.panel = p;
    }
    if (is_many && n_job > 1) /* rows per matrix differ */
        mm_pool_run_dynamic(mm_cpu_pool(run, work), n_item, 1, run_items, &r);
    else
        mm_pool_run(mm_cpu_pool(run, work), n_item, 1, run_items, &r);
    scratch->used = used;
    return MM_OK;
}

size_t mm_cpu_linear_scratch(int64_t max_k, int32_t n_thread)
{
    const size_t row = 5 * 4 * (size_t)mm_round_up(max_k, MM_CPU_PAD) / 4; /* the largest of
                                                                              mm_cpu_panel_bytes */
    size_t n = MM_CPU_PANEL * row;
    if (n > PANEL_BYTES)
        n = 4 * row > PANEL_BYTES ? 4 * row : PANEL_BYTES;
    return mm_arena_size(mm_arena_size(n) * (size_t)n_thread);
}

/* ---------------------------------------------------------------- rows of x */

typedef struct prepare_run {
    const mm_cpu_run *run;
    const mm_cpu_rows *rows;
    mm_cpu_kind kind;
} prepare_run;

static void prepare_rows(void *ctx, int64_t begin, int64_t end, int i_thread)
{
    (void)i_thread;
    const prepare_run *p = ctx;
    const mm_cpu_rows *rows = p->rows;
    const mm_dtype act = p->run->s->act;
    for (int64_t i = begin; i < end; i++) {
        const int64_t row = rows->row != NULL ? rows->row[rows->first + i] : rows->first + i;
        const uint8_t *src = (const uint8_t *)rows->x + row * rows->k * mm_cpu_act_size(act);
        p->run->isa->linear->prepare(p->kind, act, src, rows->k,
                                     (void *)(uintptr_t)rows->at[p->kind][i]);
    }
}

mm_status mm_cpu_prepare(const mm_cpu_run *r, mm_cpu_rows *rows, mm_cpu_kind kind)
{
    if (rows->at[kind] != NULL)
        return MM_OK;
    const size_t n_byte = mm_cpu_prepared_bytes(kind, rows->k);
    void *pointers, *base;
    MM_TRY(mm_cpu_scratch(r, (size_t)rows->n * sizeof(void *), &pointers));
    MM_TRY(mm_cpu_scratch(r, (size_t)rows->n * n_byte, &base));
    rows->at[kind] = pointers;
    for (int64_t i = 0; i < rows->n; i++)
        rows->at[kind][i] = (uint8_t *)base + (size_t)i * n_byte;
    prepare_run p = {r, rows, kind};
    mm_pool_run(mm_cpu_pool(r, rows->n * rows->k * 4), rows->n, 1, prepare_rows, &p);
    return MM_OK;
}

size_t mm_cpu_prepare_scratch(int64_t n, int64_t k, int32_t n_kind)
{
    return (size_t)n_kind * (mm_arena_size((size_t)n * sizeof(void *)) +
                             mm_arena_size((size_t)n * mm_cpu_prepared_bytes(MM_CPU_F32, k)));
}
