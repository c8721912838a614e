/* mock_device.c: a library that looks like libmm_cuda.so and computes with ref: a device whose
 * memory the host cannot touch, with graphs that replay what was recorded. It shows what an engine
 * does on a device (uploads, padding, captured steps, one download) with models of any size, in
 * milliseconds, where no GPU is.
 *
 * Device memory is unreadable except while an op or a copy runs: an engine that dereferences it
 * dies. An op keeps its arguments by value, as a kernel does. And the device is as late as it may
 * be: what is queued runs when the host waits for an event after it, so host memory that is written
 * too early is seen written. */
#include <stdio.h>
#include <sys/mman.h>

#include "kernels/host.h"

#define EXPORT __attribute__((visibility("default")))

enum { MAX_BLOCK = 256, MAX_NODE = 8192 };

typedef struct block {
    uint8_t *base;
    size_t size, asked;
} block;

static struct {
    const mm_host_services *services;
    block list[MAX_BLOCK];
    int32_t n_alloc, n_launch, n_capture, n_download, n_eager, n_pad;
    uint32_t kinds; /* bit of every kind of op that ran by itself; 16 on: of prefill */
    mm_status (*alloc_host)(mm_backend *b, void **out, size_t n_bytes); /* ref's */
    int32_t fail_after; /* ops until one fails; 0: never */
} mock;

/* For tests: what happened so far. */
EXPORT int64_t mm_mock_count(const char *what);
EXPORT void mm_mock_fail_after(int32_t n);

/* ---------------------------------------------------------------- memory */

static void protect(int how)
{
    for (int i = 0; i < MAX_BLOCK; i++)
        if (mock.list[i].base != NULL)
            (void)mprotect(mock.list[i].base, mock.list[i].size, how);
}

static mm_status mock_alloc_host(mm_backend *b, void **out, size_t n_bytes)
{
    mock.n_alloc++;
    return mock.alloc_host(b, out, n_bytes);
}

static mm_status mock_alloc(mm_backend *b, void **out, size_t n_bytes)
{
    (void)b;
    mock.n_alloc++;
    for (int i = 0; i < MAX_BLOCK; i++) {
        block *k = &mock.list[i];
        if (k->base != NULL)
            continue;
        k->asked = n_bytes;
        k->size = (n_bytes + 4096) & ~(size_t)4095;
        void *p =
            mmap(NULL, k->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            break;
        k->base = p;
        *out = p;
        return MM_OK;
    }
    (void)mock.services->error_set(MM_E_NOMEM, "", -1, "mock: %zu bytes", n_bytes);
    return MM_E_NOMEM;
}

static mm_status run_all(void);

static void mock_free(mm_backend *b, void *p)
{
    (void)b;
    (void)run_all(); /* as a device does */
    for (int i = 0; i < MAX_BLOCK; i++)
        if (p != NULL && mock.list[i].base == p) {
            munmap(mock.list[i].base, mock.list[i].size);
            mock.list[i] = (block){0};
        }
}

int64_t mm_mock_count(const char *what)
{
    int64_t n = 0;
    if (strcmp(what, "bytes") == 0)
        for (int i = 0; i < MAX_BLOCK; i++)
            n += (int64_t)mock.list[i].asked;
    if (strcmp(what, "alloc") == 0) /* of device and host memory, streams, events, captures */
        n = mock.n_alloc;
    if (strcmp(what, "launch") == 0)
        n = mock.n_launch;
    if (strcmp(what, "capture") == 0)
        n = mock.n_capture;
    if (strcmp(what, "download") == 0)
        n = mock.n_download;
    if (strcmp(what, "eager") == 0)
        n = mock.n_eager;
    if (strcmp(what, "pad") == 0)
        n = mock.n_pad;
    if (strcmp(what, "kinds") == 0)
        n = __builtin_popcount(mock.kinds);
    return n;
}

void mm_mock_fail_after(int32_t n)
{
    mock.fail_after = n;
}

/* ---------------------------------------------------------------- ops */

typedef enum op_kind {
    OP_BEGIN,
    OP_EXPAND,
    OP_EMBED,
    OP_ATTN_IN,
    OP_ATTN_SPARSE,
    OP_ATTN_DENSE,
    OP_ATTN_OUT,
    OP_MLP,
    OP_MOE,
    OP_HEAD,
    OP_SAMPLE,
    OP_LOGPROBS,
    OP_ZERO,
    OP_COPY,
    OP_DOWNLOAD
} op_kind;
_Static_assert(OP_DOWNLOAD < 16, "mock.kinds");

typedef struct node {
    op_kind kind;
    mm_op_context c;
    mm_seq_view seq;
    mm_out_view out;
    mm_ring ring;
    union {
        mm_begin_args begin;
        mm_expand_args expand;
        mm_embed_args embed;
        mm_attn_in_args attn_in;
        mm_attn_sparse_args attn_sparse;
        mm_attn_dense_args attn_dense;
        mm_attn_out_args attn_out;
        mm_mlp_args mlp;
        mm_moe_args moe;
        mm_head_args head;
        mm_sample_args sample;
        mm_logprob_args logprobs;
        struct {
            void *dst;
            size_t n_bytes;
        } zero;
        struct {
            void *dst;
            const void *src;
            size_t n_bytes;
        } copy;
        struct {
            void *const *to;
            const void *src;
            size_t n_bytes;
        } download;
    } a;
} node;

struct mm_graph {
    node *item;
    int32_t n;
};

struct mm_event {
    int64_t at; /* what was queued before it */
};

static mm_graph *recording;

/* What was queued: item i came after start + i others; those before `next` have run. */
static struct {
    node *item;
    int64_t start, next, n, cap;
} queue;

/* The ref op on the device's memory; the views' pointers are values of the node. */
static mm_status run_expand(node *n)
{
    mm_expand_args a = n->a.expand;
    a.seq = &n->seq;
    a.out = &n->out;
    a.ring = a.ring != NULL ? &n->ring : NULL;
    if (a.plan == NULL) {
        const mm_batch *b = n->ring.batch[*n->ring.turn];
        mock.n_pad += n->seq.n_seq - b->n_seq;
    } else {
        a.plan = a.blob; /* the same header, where it was sent */
    }
    return mm_ref_ops.expand(&n->c, &a);
}

static mm_status run_node(node *n)
{
    const mm_ops *r = &mm_ref_ops;
    switch (n->kind) {
    case OP_BEGIN:
        return r->begin(&n->c, &n->a.begin);
    case OP_EXPAND:
        return run_expand(n);
    case OP_EMBED:
        return r->embed(&n->c, &n->seq, &n->a.embed);
    case OP_ATTN_IN:
        return r->attn_in(&n->c, &n->seq, &n->a.attn_in);
    case OP_ATTN_SPARSE:
        return r->attn_sparse(&n->c, &n->seq, &n->a.attn_sparse);
    case OP_ATTN_DENSE:
        return r->attn_dense(&n->c, &n->seq, &n->a.attn_dense);
    case OP_ATTN_OUT:
        return r->attn_out(&n->c, &n->seq, &n->a.attn_out);
    case OP_MLP:
        return r->mlp(&n->c, &n->seq, &n->a.mlp);
    case OP_MOE:
        return r->moe(&n->c, &n->seq, &n->a.moe);
    case OP_HEAD:
        return r->head(&n->c, &n->a.head);
    case OP_SAMPLE:
        n->a.sample.out = &n->out;
        return r->sample(&n->c, &n->a.sample);
    case OP_LOGPROBS:
        n->a.logprobs.out = &n->out;
        return r->logprobs(&n->c, &n->a.logprobs);
    case OP_ZERO:
        memset(n->a.zero.dst, 0, n->a.zero.n_bytes);
        return MM_OK;
    case OP_COPY:
        memmove(n->a.copy.dst, n->a.copy.src, n->a.copy.n_bytes);
        return MM_OK;
    case OP_DOWNLOAD:
        mock.n_download++;
        memcpy(*n->a.download.to, n->a.download.src, n->a.download.n_bytes);
    }
    return MM_OK;
}

static mm_status run_open(node *n)
{
    if (n->kind != OP_COPY && mock.fail_after > 0 && --mock.fail_after == 0) {
        (void)mock.services->error_set(MM_E_DEVICE, "", -1, "mock: the device fell off the bus");
        return MM_E_DEVICE;
    }
    protect(PROT_READ | PROT_WRITE);
    const mm_status st = run_node(n);
    protect(PROT_NONE);
    if (st != MM_OK) /* the message is in this library's own copy of the core */
        (void)mock.services->error_set(st, mm_error_param(), mm_error_index(), "%s",
                                       mm_error_message());
    return st;
}

/* Everything queued before `at`; what follows a failure never runs. */
static mm_status run_until(int64_t at)
{
    mm_status st = MM_OK;
    while (st == MM_OK && queue.start + queue.next < at)
        st = run_open(&queue.item[queue.next++]);
    if (st == MM_OK && queue.next < queue.n)
        return MM_OK;
    queue.start += queue.n;
    queue.next = queue.n = 0;
    return st;
}

static mm_status run_all(void)
{
    return run_until(queue.start + queue.n);
}

static mm_status push(const node *n)
{
    if (queue.n == queue.cap) {
        const int64_t cap = queue.cap > 0 ? 2 * queue.cap : 1024;
        node *item = realloc(queue.item, (size_t)cap * sizeof *item);
        if (item == NULL)
            return MM_E_NOMEM;
        queue.item = item;
        queue.cap = cap;
    }
    queue.item[queue.n++] = *n;
    return MM_OK;
}

static mm_status submit(const node *n)
{
    if (recording == NULL) {
        mock.n_eager++;
        mock.kinds |= 1u << (n->kind + (n->seq.n_row > 0 && !n->seq.is_decode ? 16 : 0));
        return push(n);
    }
    if (recording->n == MAX_NODE)
        return MM_E_NOMEM;
    recording->item[recording->n++] = *n;
    return MM_OK;
}

#define SEQ_OP(name, KIND, args)                                                                   \
    static mm_status mock_##name(const mm_op_context *c, const mm_seq_view *seq, const args *a)    \
    {                                                                                              \
        node n = {.kind = KIND, .c = *c, .seq = *seq};                                             \
        n.a.name = *a;                                                                             \
        return submit(&n);                                                                         \
    }
#define PLAIN_OP(name, KIND, args)                                                                 \
    static mm_status mock_##name(const mm_op_context *c, const args *a)                            \
    {                                                                                              \
        node n = {.kind = KIND, .c = *c};                                                          \
        n.a.name = *a;                                                                             \
        return submit(&n);                                                                         \
    }
#define OUT_OP(name, KIND, args)                                                                   \
    static mm_status mock_##name(const mm_op_context *c, const args *a)                            \
    {                                                                                              \
        node n = {.kind = KIND, .c = *c, .out = *a->out};                                          \
        n.a.name = *a;                                                                             \
        return submit(&n);                                                                         \
    }
SEQ_OP(embed, OP_EMBED, mm_embed_args)
SEQ_OP(attn_in, OP_ATTN_IN, mm_attn_in_args)
SEQ_OP(attn_sparse, OP_ATTN_SPARSE, mm_attn_sparse_args)
SEQ_OP(attn_dense, OP_ATTN_DENSE, mm_attn_dense_args)
SEQ_OP(attn_out, OP_ATTN_OUT, mm_attn_out_args)
SEQ_OP(mlp, OP_MLP, mm_mlp_args)
SEQ_OP(moe, OP_MOE, mm_moe_args)
PLAIN_OP(begin, OP_BEGIN, mm_begin_args)
PLAIN_OP(head, OP_HEAD, mm_head_args)
OUT_OP(sample, OP_SAMPLE, mm_sample_args)
OUT_OP(logprobs, OP_LOGPROBS, mm_logprob_args)

static mm_status mock_expand(const mm_op_context *c, const mm_expand_args *a)
{
    node n = {.kind = OP_EXPAND, .c = *c, .seq = *a->seq, .out = *a->out};
    n.a.expand = *a;
    if (a->ring != NULL)
        n.ring = *a->ring;
    return submit(&n);
}

/* ---------------------------------------------------------------- streams, copies, graphs */

static mm_backend *ref;

static mm_status mock_stream_open(mm_backend *b, mm_stream **out, size_t scratch)
{
    mock.n_alloc++;
    const mm_status st = ref->stream_open(ref, out, scratch);
    if (st == MM_OK)
        (*out)->backend = b;
    return st;
}

static void mock_stream_close(mm_backend *b, mm_stream *s)
{
    (void)b;
    ref->stream_close(ref, s);
}

static mm_status mock_sync(mm_backend *b, mm_stream *s)
{
    (void)b, (void)s;
    return run_all();
}

static mm_status mock_event_open(mm_backend *b, mm_event **out)
{
    (void)b;
    mock.n_alloc++;
    *out = calloc(1, sizeof **out);
    return *out != NULL ? MM_OK : MM_E_NOMEM;
}

static void mock_event_close(mm_backend *b, mm_event *ev)
{
    (void)b;
    free(ev);
}

static mm_status mock_event_record(mm_backend *b, mm_event *ev, mm_stream *s)
{
    (void)b, (void)s;
    ev->at = queue.start + queue.n;
    return MM_OK;
}

static mm_status mock_event_wait(mm_backend *b, mm_event *ev)
{
    (void)b;
    return run_until(ev->at);
}

/* There is one queue: everything waits for what was queued before it. */
static mm_status mock_stream_wait(mm_backend *b, mm_stream *s, mm_event *ev)
{
    (void)b, (void)s, (void)ev;
    return MM_OK;
}

static mm_status mock_copy(mm_backend *b, mm_stream *s, void *dst, const void *src, size_t n_bytes)
{
    (void)b, (void)s;
    node n = {.kind = OP_COPY};
    n.a.copy.dst = dst;
    n.a.copy.src = src;
    n.a.copy.n_bytes = n_bytes;
    return recording == NULL ? push(&n) : MM_E_UNSUPPORTED;
}

static mm_status mock_download(mm_backend *b, mm_stream *s, void *dst, const void *src, size_t n)
{
    mock.n_download++;
    return mock_copy(b, s, dst, src, n);
}

static mm_status mock_download_to(mm_backend *b, mm_stream *s, void *const *to, const void *src,
                                  size_t n_bytes)
{
    (void)b, (void)s;
    node n = {.kind = OP_DOWNLOAD};
    n.a.download.to = to;
    n.a.download.src = src;
    n.a.download.n_bytes = n_bytes;
    return submit(&n);
}

static mm_status mock_zero(mm_backend *b, mm_stream *s, void *dst, size_t n_bytes)
{
    (void)b, (void)s;
    node n = {.kind = OP_ZERO};
    n.a.zero.dst = dst;
    n.a.zero.n_bytes = n_bytes;
    return submit(&n);
}

static mm_status mock_graph_begin(mm_backend *b, mm_stream *s)
{
    (void)b, (void)s;
    mock.n_alloc++;
    recording = calloc(1, sizeof *recording);
    if (recording != NULL)
        recording->item = calloc(MAX_NODE, sizeof *recording->item);
    return recording != NULL && recording->item != NULL ? MM_OK : MM_E_NOMEM;
}

static mm_status mock_graph_end(mm_backend *b, mm_stream *s, mm_graph **out)
{
    (void)b, (void)s;
    *out = recording;
    recording = NULL;
    mock.n_capture++;
    return MM_OK;
}

static mm_status mock_graph_launch(mm_backend *b, mm_graph *g, mm_stream *s)
{
    (void)b, (void)s;
    mock.n_launch++;
    for (int32_t i = 0; i < g->n; i++)
        MM_TRY(push(&g->item[i]));
    return MM_OK;
}

static void mock_graph_close(mm_backend *b, mm_graph *g)
{
    (void)b;
    free(g->item);
    free(g);
}

static mm_status mock_event_elapsed(mm_backend *b, mm_event *from, mm_event *to, double *out_s)
{
    (void)b, (void)from, (void)to;
    *out_s = 1e-6;
    return MM_OK;
}

static void mock_close(mm_backend *b)
{
    free(b);
}

/* ---------------------------------------------------------------- opening */

static mm_ops table;

EXPORT mm_status mm_cuda_backend(uint32_t abi, const mm_host_services *services,
                                 const mm_backend_options *opt, mm_backend **out);

mm_status mm_cuda_backend(uint32_t abi, const mm_host_services *services,
                          const mm_backend_options *opt, mm_backend **out)
{
    static mm_host_services kept;
    kept = *services;
    mock.services = &kept;
    *out = NULL;
    if (abi != MM_ABI || (ref == NULL && mm_ref_backend(&ref, opt) != MM_OK))
        return MM_E_UNSUPPORTED;
    mm_backend *b = calloc(1, sizeof *b);
    if (b == NULL)
        return MM_E_NOMEM;
    table = mm_ref_ops;
    table.begin = mock_begin;
    table.expand = mock_expand;
    table.embed = mock_embed;
    table.attn_in = mock_attn_in;
    table.attn_sparse = mock_attn_sparse;
    table.attn_dense = mock_attn_dense;
    table.attn_out = mock_attn_out;
    table.mlp = mock_mlp;
    table.moe = mock_moe;
    table.head = mock_head;
    table.sample = mock_sample;
    table.logprobs = mock_logprobs;
    *b = *ref; /* host memory */
    b->ops = &table;
    b->alloc = mock_alloc;
    b->free = mock_free;
    mock.alloc_host = b->alloc_host;
    b->alloc_host = mock_alloc_host;
    b->stream_open = mock_stream_open;
    b->stream_close = mock_stream_close;
    b->sync = mock_sync;
    b->event_open = mock_event_open;
    b->event_close = mock_event_close;
    b->event_record = mock_event_record;
    b->event_wait = mock_event_wait;
    b->stream_wait = mock_stream_wait;
    b->upload = mock_copy;
    b->download = mock_download;
    b->copy = mock_copy;
    b->download_to = mock_download_to;
    b->zero = mock_zero;
    b->graph_begin = mock_graph_begin;
    b->graph_end = mock_graph_end;
    b->graph_launch = mock_graph_launch;
    b->graph_close = mock_graph_close;
    b->event_elapsed = services->profile ? mock_event_elapsed : NULL;
    b->close = mock_close;
    snprintf(b->props.name, sizeof b->props.name, "cuda");
    snprintf(b->props.tier, sizeof b->props.tier, "mock");
    snprintf(b->props.device, sizeof b->props.device, "ref behind a wall");
    b->props.is_host = false;
    b->props.has_graph = services->graph != 0;
    b->props.memory_total = (int64_t)8 << 30;
    b->props.memory_free = (int64_t)8 << 30;
    *out = b;
    return MM_OK;
}
