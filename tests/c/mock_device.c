/* mock_device.c: a library that looks like libmm_cuda.so and computes with ref: a device whose
 * memory the host cannot touch, with graphs that replay what was recorded. It shows what an engine
 * does on a device (uploads, padding, captured steps, one download) with models of any size, in
 * milliseconds, where no GPU is.
 *
 * Device memory is unreadable except while an op or a copy runs: an engine that dereferences it
 * dies. A recorded op keeps its arguments by value, as a kernel does. */
#include <stdio.h>
#include <sys/mman.h>

#include "kernels/host.h"
#include "kernels/host_begin.h"

#define EXPORT __attribute__((visibility("default")))

enum { MAX_BLOCK = 256, MAX_NODE = 8192 };

typedef struct block {
    uint8_t *base;
    size_t size, asked;
} block;

static struct {
    const mm_host_services *services;
    block list[MAX_BLOCK];
    int32_t n_launch, n_capture, n_download, n_eager, n_pad;
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

static mm_status mock_alloc(mm_backend *b, void **out, size_t n_bytes)
{
    (void)b;
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

static void mock_free(mm_backend *b, void *p)
{
    (void)b;
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
    return n;
}

void mm_mock_fail_after(int32_t n)
{
    mock.fail_after = n;
}

/* ---------------------------------------------------------------- ops */

typedef enum op_kind {
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
    OP_DOWNLOAD
} op_kind;

typedef struct node {
    op_kind kind;
    mm_op_context c;
    mm_seq_view seq;
    mm_out_view out;
    union {
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

static mm_graph *recording;

static mm_status run_node(const node *n)
{
    const mm_ops *r = &mm_ref_ops;
    switch (n->kind) {
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
        return r->sample(&n->c, &n->a.sample);
    case OP_LOGPROBS:
        return r->logprobs(&n->c, &n->a.logprobs);
    case OP_ZERO:
        memset(n->a.zero.dst, 0, n->a.zero.n_bytes);
        return MM_OK;
    case OP_DOWNLOAD:
        mock.n_download++;
        memcpy(*n->a.download.to, n->a.download.src, n->a.download.n_bytes);
    }
    return MM_OK;
}

static mm_status run_open(const node *n)
{
    if (mock.fail_after > 0 && --mock.fail_after == 0) {
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

static mm_status submit(node *n)
{
    if (n->kind == OP_SAMPLE) { /* the views' pointers are values, the struct is the caller's */
        n->out = *n->a.sample.out;
        n->a.sample.out = &n->out;
    }
    if (n->kind == OP_LOGPROBS) {
        n->out = *n->a.logprobs.out;
        n->a.logprobs.out = &n->out;
    }
    if (recording == NULL) {
        mock.n_eager++;
        return run_open(n);
    }
    if (recording->n == MAX_NODE)
        return MM_E_NOMEM;
    node *to = &recording->item[recording->n++];
    *to = *n;
    if (n->kind == OP_SAMPLE)
        to->a.sample.out = &to->out;
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
SEQ_OP(embed, OP_EMBED, mm_embed_args)
SEQ_OP(attn_in, OP_ATTN_IN, mm_attn_in_args)
SEQ_OP(attn_sparse, OP_ATTN_SPARSE, mm_attn_sparse_args)
SEQ_OP(attn_dense, OP_ATTN_DENSE, mm_attn_dense_args)
SEQ_OP(attn_out, OP_ATTN_OUT, mm_attn_out_args)
SEQ_OP(mlp, OP_MLP, mm_mlp_args)
SEQ_OP(moe, OP_MOE, mm_moe_args)
PLAIN_OP(head, OP_HEAD, mm_head_args)
PLAIN_OP(sample, OP_SAMPLE, mm_sample_args)
PLAIN_OP(logprobs, OP_LOGPROBS, mm_logprob_args)

#define WRITABLE(field) ((int32_t *)(uintptr_t)(field))

/* Fills up with sequences of the reserved slot (ops.h, pad_seqs). */
static void pad(const mm_begin_args *a)
{
    const mm_batch *b = a->plan;
    mm_seq_view *v = a->seq;
    mm_out_view *o = a->out;
    const int32_t rows = b->n_row / b->n_seq, spare = a->slots->n_slot - 1;
    mock.n_pad += a->pad_seqs - b->n_seq;
    for (int32_t i = b->n_seq; i < a->pad_seqs; i++) {
        WRITABLE(v->slot)[i] = spare;
        WRITABLE(v->row_start)[i + 1] = (i + 1) * rows;
        for (int32_t r = 0; r < rows; r++) {
            WRITABLE(v->row_seq)[i * rows + r] = i;
            WRITABLE(v->pos)[i * rows + r] = r;
            WRITABLE(v->token)[i * rows + r] = 0;
        }
        if (b->n_out != b->n_seq)
            continue;
        WRITABLE(o->row)[i] = i * rows + rows - 1;
        WRITABLE(o->row_slot)[i] = spare;
        WRITABLE(o->lane)[i] = 0;
        WRITABLE(o->kind)[i] = MM_OUT_SAMPLE;
        WRITABLE(o->token)[i] = -1;
        WRITABLE(o->row_token)[i] = 0;
        WRITABLE(o->n_top)[i] = -1;
    }
    v->n_seq = a->pad_seqs;
    v->n_row = a->pad_seqs * rows;
    if (b->n_out == b->n_seq)
        o->n_out = a->pad_seqs;
}

static mm_status mock_begin(const mm_op_context *c, const mm_begin_args *a)
{
    protect(PROT_READ | PROT_WRITE);
    mm_begin_args plain = *a; /* host backends pad nothing */
    plain.pad_seqs = 0;
    const mm_status st = mm_host_begin(c, &plain);
    if (st == MM_OK && a->pad_seqs > 0)
        pad(a);
    protect(PROT_NONE);
    return st;
}

/* ---------------------------------------------------------------- streams, copies, graphs */

static mm_backend *ref;

static mm_status mock_stream_open(mm_backend *b, mm_stream **out, size_t scratch)
{
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

static mm_status mock_nothing(mm_backend *b, mm_stream *s)
{
    (void)b, (void)s;
    return MM_OK;
}

static mm_status move(void *dst, const void *src, size_t n_bytes)
{
    protect(PROT_READ | PROT_WRITE);
    memmove(dst, src, n_bytes);
    protect(PROT_NONE);
    return recording == NULL ? MM_OK : MM_E_UNSUPPORTED;
}

static mm_status mock_copy(mm_backend *b, mm_stream *s, void *dst, const void *src, size_t n)
{
    (void)b, (void)s;
    return move(dst, src, n);
}

static mm_status mock_download(mm_backend *b, mm_stream *s, void *dst, const void *src, size_t n)
{
    (void)b, (void)s;
    mock.n_download++;
    return move(dst, src, n);
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
        MM_TRY(run_open(&g->item[i]));
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
    *b = *ref; /* host memory, events */
    b->ops = &table;
    b->alloc = mock_alloc;
    b->free = mock_free;
    b->stream_open = mock_stream_open;
    b->stream_close = mock_stream_close;
    b->sync = mock_nothing;
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
    b->props.reads_host = true;
    b->props.has_graph = services->graph != 0;
    b->props.memory_total = (int64_t)8 << 30;
    b->props.memory_free = (int64_t)8 << 30;
    *out = b;
    return MM_OK;
}
