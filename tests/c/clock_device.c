/* clock_device.c: a library that looks like libmm_cuda.so, computes nothing and keeps time: a graph
 * takes a fixed time, everything else none, and work begins when it was queued and what lies before
 * it has ended. It shows what the host does around a step: how many calls it makes, how long they
 * take, and whether the device ever waits for it. Tokens are all 0.
 *
 * MM_CLOCK_US: microseconds of a graph (default 300). */
#include <math.h>
#include <time.h>

#include "csrc/base/base.h"
#include "kernels/ops.h"

#define EXPORT __attribute__((visibility("default")))

struct mm_stream {
    mm_backend *backend; /* first: comm.c relies on it */
    double end;          /* of everything queued so far */
};
struct mm_event {
    double at;
};
struct mm_graph {
    int n;
};

static struct {
    double step_s, idle_s;
    double began; /* when mm_mock_reset was called */
    int64_t n_call, n_launch, n_late, n_upload, n_download, n_wait, n_stray;
    uint64_t step; /* of the batch of the step that was queued last */
    bool has_step;
} count;
static bool is_capturing;
static mm_ring captured; /* all graphs have the same */

/* For tests: "calls", "launches", "late" (graphs queued when the device had nothing to do),
 * "idle_ns" (how long it had waited by then), "uploads", "downloads", "waits", "strays" (steps
 * that found another batch than the one after the last step's); all since mm_mock_reset. */
EXPORT int64_t mm_mock_count(const char *what);
EXPORT void mm_mock_reset(void);

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int64_t mm_mock_count(const char *what)
{
    const struct {
        const char *name;
        int64_t value;
    } all[] = {{"calls", count.n_call},     {"launches", count.n_launch},
               {"late", count.n_late},      {"idle_ns", (int64_t)(1e9 * count.idle_s)},
               {"uploads", count.n_upload}, {"downloads", count.n_download},
               {"waits", count.n_wait},     {"strays", count.n_stray}};
    for (size_t i = 0; i < MM_ARRAY_LEN(all); i++)
        if (strcmp(all[i].name, what) == 0)
            return all[i].value;
    return -1;
}

void mm_mock_reset(void)
{
    const double step_s = count.step_s;
    memset(&count, 0, sizeof count);
    count.step_s = step_s;
    count.began = now();
}

/* ---------------------------------------------------------------- ops */

static size_t no_scratch(const mm_op_shape *s, int32_t n_thread)
{
    (void)s, (void)n_thread;
    return 0;
}
static mm_status any_shape(const mm_backend *b, const mm_op_shape *s)
{
    (void)b;
    (void)s;
    return MM_OK;
}
static mm_status begin(const mm_op_context *c, const mm_begin_args *a)
{
    (void)c, (void)a;
    count.n_call++;
    return MM_OK;
}

/* The next step of the engine: one after the other, whether captured or not. */
static void begin_step(const mm_batch *b)
{
    count.n_stray += count.has_step && b->step != count.step + 1;
    count.has_step = true;
    count.step = b->step;
}
static mm_status expand(const mm_op_context *c, const mm_expand_args *a)
{
    (void)c;
    if (is_capturing) {
        captured = *a->ring;
        return MM_OK;
    }
    count.n_call++;
    if (a->plan == NULL) /* the first run of a size, before it is captured */
        return MM_OK;
    begin_step(a->plan);
    *a->ring->turn = (a->i_ring + 1) % a->ring->n;
    return MM_OK;
}
#define SEQ_OP(name, args)                                                                         \
    static mm_status name(const mm_op_context *c, const mm_seq_view *seq, const args *a)           \
    {                                                                                              \
        (void)c, (void)seq, (void)a;                                                               \
        return MM_OK;                                                                              \
    }
#define PLAIN_OP(name, args)                                                                       \
    static mm_status name(const mm_op_context *c, const args *a)                                   \
    {                                                                                              \
        (void)c, (void)a;                                                                          \
        return MM_OK;                                                                              \
    }
SEQ_OP(embed, mm_embed_args)
SEQ_OP(attn_in, mm_attn_in_args)
SEQ_OP(attn_sparse, mm_attn_sparse_args)
SEQ_OP(attn_dense, mm_attn_dense_args)
SEQ_OP(attn_out, mm_attn_out_args)
SEQ_OP(mlp, mm_mlp_args)
SEQ_OP(moe, mm_moe_args)
PLAIN_OP(head, mm_head_args)
PLAIN_OP(sample, mm_sample_args)
PLAIN_OP(logprobs, mm_logprob_args)
PLAIN_OP(copy_pages, mm_copy_pages_args)
PLAIN_OP(gather_rows, mm_gather_args)

static const mm_ops table = {
    .scratch_bytes = no_scratch,
    .check_shape = any_shape,
    .begin = begin,
    .expand = expand,
    .embed = embed,
    .attn_in = attn_in,
    .attn_sparse = attn_sparse,
    .attn_dense = attn_dense,
    .attn_out = attn_out,
    .mlp = mlp,
    .moe = moe,
    .head = head,
    .sample = sample,
    .logprobs = logprobs,
    .copy_pages = copy_pages,
    .gather_rows = gather_rows,
};

/* ---------------------------------------------------------------- the backend */

static mm_status alloc(mm_backend *b, void **out, size_t n_bytes)
{
    (void)b;
    *out = calloc(1, n_bytes > 0 ? n_bytes : 1);
    return *out != NULL ? MM_OK : MM_E_NOMEM;
}
static void release(mm_backend *b, void *p)
{
    (void)b;
    free(p);
}
static mm_status stream_open(mm_backend *b, mm_stream **out, size_t scratch_bytes)
{
    (void)scratch_bytes;
    *out = calloc(1, sizeof **out);
    if (*out == NULL)
        return MM_E_NOMEM;
    (*out)->backend = b;
    return MM_OK;
}
static void stream_close(mm_backend *b, mm_stream *s)
{
    (void)b;
    free(s);
}
static void wait_until(double when)
{
    while (now() < when) {
        const double left = when - now();
        const struct timespec t = {.tv_nsec = (long)(5e8 * fmin(left, 1))};
        if (left > 2e-4) /* a sleep ends late by about 60 us */
            (void)nanosleep(&t, NULL);
    }
}
static mm_status sync(mm_backend *b, mm_stream *s)
{
    (void)b;
    wait_until(s->end);
    return MM_OK;
}
static mm_status upload(mm_backend *b, mm_stream *s, void *dst, const void *src, size_t n)
{
    (void)b, (void)s;
    count.n_call++;
    count.n_upload++;
    memmove(dst, src, n);
    return MM_OK;
}
static mm_status download(mm_backend *b, mm_stream *s, void *dst, const void *src, size_t n)
{
    (void)b, (void)s;
    count.n_call++;
    count.n_download++;
    memmove(dst, src, n);
    return MM_OK;
}
static mm_status download_to(mm_backend *b, mm_stream *s, void *const *to, const void *src,
                             size_t n)
{
    (void)b, (void)s, (void)to, (void)src, (void)n; /* what it brings is 0 anyway */
    return MM_OK;
}
static mm_status copy(mm_backend *b, mm_stream *s, void *dst, const void *src, size_t n)
{
    (void)b, (void)s;
    memmove(dst, src, n);
    return MM_OK;
}
static mm_status zero(mm_backend *b, mm_stream *s, void *dst, size_t n)
{
    (void)b, (void)s;
    memset(dst, 0, n);
    return MM_OK;
}
static mm_status event_open(mm_backend *b, mm_event **out)
{
    (void)b;
    *out = calloc(1, sizeof **out);
    return *out != NULL ? MM_OK : MM_E_NOMEM;
}
static void event_close(mm_backend *b, mm_event *ev)
{
    (void)b;
    free(ev);
}
static mm_status event_record(mm_backend *b, mm_event *ev, mm_stream *s)
{
    (void)b;
    count.n_call++;
    ev->at = s->end;
    return MM_OK;
}
static mm_status event_wait(mm_backend *b, mm_event *ev)
{
    (void)b;
    count.n_wait++;
    wait_until(ev->at);
    return MM_OK;
}
static mm_status stream_wait(mm_backend *b, mm_stream *s, mm_event *ev)
{
    (void)b;
    count.n_call++;
    s->end = ev->at > s->end ? ev->at : s->end;
    return MM_OK;
}
static mm_status graph_begin(mm_backend *b, mm_stream *s)
{
    (void)b, (void)s;
    is_capturing = true;
    return MM_OK;
}
static mm_status graph_end(mm_backend *b, mm_stream *s, mm_graph **out)
{
    (void)b, (void)s;
    is_capturing = false;
    *out = calloc(1, sizeof **out);
    return *out != NULL ? MM_OK : MM_E_NOMEM;
}
static mm_status graph_launch(mm_backend *b, mm_graph *g, mm_stream *s)
{
    (void)b, (void)g;
    const double t = now();
    const int32_t i = *captured.turn;
    begin_step(captured.batch[i]);
    *captured.turn = (i + 1) % captured.n;
    count.n_call++;
    count.n_launch++;
    if (s->end < t) { /* the first step of all has nothing to be late for */
        count.n_late += s->end >= count.began;
        count.idle_s += s->end >= count.began ? t - s->end : 0;
        s->end = t;
    }
    s->end += count.step_s;
    return MM_OK;
}
static void graph_close(mm_backend *b, mm_graph *g)
{
    (void)b;
    free(g);
}
static void close_backend(mm_backend *b)
{
    free(b);
}

EXPORT mm_status mm_cuda_backend(uint32_t abi, const mm_host_services *services,
                                 const mm_backend_options *opt, mm_backend **out);

mm_status mm_cuda_backend(uint32_t abi, const mm_host_services *services,
                          const mm_backend_options *opt, mm_backend **out)
{
    const char *us = getenv("MM_CLOCK_US");
    (void)opt;
    *out = NULL;
    mm_backend *b = abi == MM_ABI ? calloc(1, sizeof *b) : NULL;
    if (b == NULL)
        return MM_E_UNSUPPORTED;
    count.step_s = 1e-6 * (us != NULL ? atof(us) : 300);
    *b = (mm_backend){
        .props = {.name = "cuda", .tier = "clock", .device = "a clock", .n_thread = 1},
        .ops = &table,
        .alloc = alloc,
        .free = release,
        .alloc_host = alloc,
        .free_host = release,
        .stream_open = stream_open,
        .stream_close = stream_close,
        .sync = sync,
        .upload = upload,
        .download = download,
        .copy = copy,
        .zero = zero,
        .event_open = event_open,
        .event_close = event_close,
        .event_record = event_record,
        .event_wait = event_wait,
        .stream_wait = stream_wait,
        .graph_begin = graph_begin,
        .graph_end = graph_end,
        .graph_launch = graph_launch,
        .graph_close = graph_close,
        .download_to = download_to,
        .close = close_backend,
    };
    b->props.has_graph = services->graph != 0;
    b->props.memory_total = b->props.memory_free = (int64_t)16 << 30;
    *out = b;
    return MM_OK;
}
