/* testing_ext.c: minimax_m31._testing, the ops of any backend from Python; built only with
 * MM_DEV=1.
 *
 * It is generic: structs travel as bytes whose layout tests/c_structs.py reads from the headers,
 * memory travels as addresses of the backend. So an op that is added to ops.h needs one line here
 * (op_table). Beyond the ops it shows the stages of the reference that have known answers: cache
 * rows, Philox, the draw. Objects: capsules. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wundef" /* NumPy's headers test macros that they do not define */
#include <numpy/arrayobject.h>
#pragma GCC diagnostic pop

#include "kernels/ref/ref.h"

static const char backend_name[] = "mm.backend", context_name[] = "mm.context";
static const char graph_name[] = "mm.graph";

static PyObject *fail(mm_status st)
{
    return PyErr_Format(PyExc_RuntimeError, "%s: %s", mm_status_name(st), mm_error_message());
}

/* ---------------------------------------------------------------- backend, memory */

static void close_backend(PyObject *capsule)
{
    mm_backend_close(PyCapsule_GetPointer(capsule, backend_name));
}

static PyObject *py_open(PyObject *self, PyObject *args)
{
    (void)self;
    const char *name;
    int n_thread = 1;
    mm_backend *b;
    if (!PyArg_ParseTuple(args, "s|i", &name, &n_thread))
        return NULL;
    const mm_backend_options opt = {.name = name, .device = 0, .n_thread = n_thread};
    const mm_status st = mm_backend_open(&b, &opt);
    return st == MM_OK ? PyCapsule_New(b, backend_name, close_backend) : fail(st);
}

static PyObject *py_props(PyObject *self, PyObject *capsule)
{
    (void)self;
    const mm_backend *b = PyCapsule_GetPointer(capsule, backend_name);
    if (b == NULL)
        return NULL;
    return Py_BuildValue("{s:s,s:s,s:s,s:i,s:O,s:L}", "name", b->props.name, "tier", b->props.tier,
                         "device", b->props.device, "n_thread", (int)b->props.n_thread, "has_graph",
                         b->props.has_graph ? Py_True : Py_False, "memory_free",
                         (long long)b->props.memory_free);
}

static PyObject *py_list(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    mm_backend_line line[8];
    const int32_t n = mm_backend_list(line, 8);
    PyObject *list = PyList_New(0);
    for (int32_t i = 0; list != NULL && i < n; i++) {
        PyObject *item = Py_BuildValue("(sis)", line[i].name, (int)line[i].usable, line[i].text);
        if (item == NULL || PyList_Append(list, item) != 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

/* alloc(backend, n_bytes), free(backend, address); of the backend's memory or of the host's that
 * ops can read. */
static PyObject *alloc_of(PyObject *args, bool is_host)
{
    PyObject *capsule;
    Py_ssize_t n;
    void *p;
    if (!PyArg_ParseTuple(args, "On", &capsule, &n))
        return NULL;
    mm_backend *b = PyCapsule_GetPointer(capsule, backend_name);
    if (b == NULL)
        return NULL;
    const mm_status st = (is_host ? b->alloc_host : b->alloc)(b, &p, (size_t)n);
    return st == MM_OK ? PyLong_FromVoidPtr(p) : fail(st);
}

static PyObject *free_of(PyObject *args, bool is_host)
{
    PyObject *capsule;
    unsigned long long p;
    if (!PyArg_ParseTuple(args, "OK", &capsule, &p))
        return NULL;
    mm_backend *b = PyCapsule_GetPointer(capsule, backend_name);
    if (b == NULL)
        return NULL;
    (is_host ? b->free_host : b->free)(b, (void *)(uintptr_t)p);
    Py_RETURN_NONE;
}

static PyObject *py_alloc(PyObject *self, PyObject *args)
{
    (void)self;
    return alloc_of(args, false);
}

static PyObject *py_free(PyObject *self, PyObject *args)
{
    (void)self;
    return free_of(args, false);
}

static PyObject *py_alloc_host(PyObject *self, PyObject *args)
{
    (void)self;
    return alloc_of(args, true);
}

static PyObject *py_free_host(PyObject *self, PyObject *args)
{
    (void)self;
    return free_of(args, true);
}

/* upload(context, address, bytes), download(context, address, writable buffer); both wait. */
static PyObject *transfer(PyObject *args, bool is_upload);

static PyObject *py_upload(PyObject *self, PyObject *args)
{
    (void)self;
    return transfer(args, true);
}

static PyObject *py_download(PyObject *self, PyObject *args)
{
    (void)self;
    return transfer(args, false);
}

/* ---------------------------------------------------------------- context */

typedef struct context {
    mm_op_context c;
    mm_op_shape shape;
    mm_backend *backend;
    PyObject *owner; /* the backend's capsule */
} context;

static void close_context(PyObject *capsule)
{
    context *x = PyCapsule_GetPointer(capsule, context_name);
    x->backend->stream_close(x->backend, x->c.stream);
    mm_comm_close(x->c.comm);
    Py_DECREF(x->owner);
    free(x);
}

/* context(backend, bytes of mm_op_shape, address of the rope table): checks the shape, opens a
 * stream. */
static PyObject *py_context(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *owner;
    Py_buffer shape;
    unsigned long long rope;
    if (!PyArg_ParseTuple(args, "Oy*K", &owner, &shape, &rope))
        return NULL;
    mm_backend *b = PyCapsule_GetPointer(owner, backend_name);
    context *x = b != NULL && shape.len == sizeof x->shape ? calloc(1, sizeof *x) : NULL;
    if (x != NULL)
        memcpy(&x->shape, shape.buf, sizeof x->shape);
    PyBuffer_Release(&shape);
    if (x == NULL)
        return PyErr_Occurred() ? NULL
                                : PyErr_Format(PyExc_ValueError, "shape is not an mm_op_shape");
    mm_status st = b->ops->check_shape(b, &x->shape);
    if (st == MM_OK)
        st = mm_comm_open_self(&x->c.comm);
    if (st == MM_OK)
        st = b->stream_open(b, &x->c.stream, b->ops->scratch_bytes(&x->shape, b->props.n_thread));
    if (st != MM_OK) {
        mm_comm_close(x->c.comm);
        free(x);
        return fail(st);
    }
    x->c.shape = &x->shape;
    x->c.rope = (const float *)(uintptr_t)rope;
    x->backend = b;
    x->owner = Py_NewRef(owner);
    return PyCapsule_New(x, context_name, close_context);
}

static PyObject *transfer(PyObject *args, bool is_upload)
{
    PyObject *capsule;
    Py_buffer host;
    unsigned long long p;
    if (!PyArg_ParseTuple(args, is_upload ? "OKy*" : "OKw*", &capsule, &p, &host))
        return NULL;
    context *x = PyCapsule_GetPointer(capsule, context_name);
    mm_status st = MM_OK;
    void *stage = NULL;
    if (x != NULL) {
        mm_backend *b = x->backend;
        const size_t n = (size_t)host.len;
        st = b->alloc_host(b, &stage, n);
        if (st == MM_OK && is_upload) {
            memcpy(stage, host.buf, n);
            st = b->upload(b, x->c.stream, (void *)(uintptr_t)p, stage, n);
        } else if (st == MM_OK) {
            st = b->download(b, x->c.stream, stage, (const void *)(uintptr_t)p, n);
        }
        if (st == MM_OK)
            st = b->sync(b, x->c.stream);
        if (st == MM_OK && !is_upload)
            memcpy(host.buf, stage, n);
        if (stage != NULL)
            b->free_host(b, stage);
    }
    PyBuffer_Release(&host);
    if (x == NULL)
        return NULL;
    return st == MM_OK ? Py_NewRef(Py_None) : fail(st);
}

/* ---------------------------------------------------------------- packed weights */

/* packs(backend): does it have an order of its own for weights? */
static PyObject *py_packs(PyObject *self, PyObject *capsule)
{
    (void)self;
    const mm_backend *b = PyCapsule_GetPointer(capsule, backend_name);
    return b != NULL ? PyBool_FromLong(b->ops->pack != NULL) : NULL;
}

/* pack_bytes(context, kind, bytes of mm_weight[n]) -> bytes of the packing;
 * pack(context, kind, bytes of mm_weight[n] in host memory, address) -> bytes of the mm_weight;
 * waits. */
static PyObject *pack(PyObject *args, bool is_size)
{
    PyObject *capsule, *result = NULL;
    Py_buffer src;
    int kind;
    unsigned long long dst = 0;
    if (!PyArg_ParseTuple(args, is_size ? "Oiy*" : "Oiy*K", &capsule, &kind, &src, &dst))
        return NULL;
    const context *x = PyCapsule_GetPointer(capsule, context_name);
    const mm_weight *w = src.buf;
    const int32_t n = (int32_t)((size_t)src.len / sizeof *w);
    if (x != NULL && x->backend->ops->pack == NULL) {
        PyErr_SetString(PyExc_ValueError, "this backend packs no weights");
    } else if (x != NULL && is_size) {
        result = PyLong_FromSize_t(x->backend->ops->pack_bytes(&x->shape, (mm_pack)kind, w, n));
    } else if (x != NULL) {
        mm_weight out = {0};
        mm_status st =
            x->backend->ops->pack(&x->c, (mm_pack)kind, w, n, (void *)(uintptr_t)dst, &out);
        if (st == MM_OK)
            st = x->backend->sync(x->backend, x->c.stream);
        result = st == MM_OK ? PyBytes_FromStringAndSize((const char *)&out, sizeof out) : fail(st);
    }
    PyBuffer_Release(&src);
    return result;
}

static PyObject *py_pack_bytes(PyObject *self, PyObject *args)
{
    (void)self;
    return pack(args, true);
}

static PyObject *py_pack(PyObject *self, PyObject *args)
{
    (void)self;
    return pack(args, false);
}

/* ---------------------------------------------------------------- ops */

#define WITH_SEQ(op)                                                                               \
    static mm_status run_##op(const context *x, const mm_seq_view *s, const void *a)               \
    {                                                                                              \
        return x->backend->ops->op(&x->c, s, a);                                                   \
    }
#define WITHOUT_SEQ(op)                                                                            \
    static mm_status run_##op(const context *x, const mm_seq_view *s, const void *a)               \
    {                                                                                              \
        (void)s;                                                                                   \
        return x->backend->ops->op(&x->c, a);                                                      \
    }
WITHOUT_SEQ(begin)
WITHOUT_SEQ(expand)
WITH_SEQ(embed)
WITH_SEQ(attn_in)
WITH_SEQ(attn_sparse)
WITH_SEQ(attn_dense)
WITH_SEQ(attn_out)
WITH_SEQ(mlp)
WITH_SEQ(moe)
WITHOUT_SEQ(head)
WITHOUT_SEQ(sample)
WITHOUT_SEQ(logprobs)
WITHOUT_SEQ(copy_pages)
WITHOUT_SEQ(gather_rows)

typedef struct op_entry {
    const char *name;
    mm_status (*run)(const context *x, const mm_seq_view *s, const void *a);
    size_t n_args;
} op_entry;
static const op_entry op_table[] = {
    {"begin", run_begin, sizeof(mm_begin_args)},
    {"expand", run_expand, sizeof(mm_expand_args)},
    {"embed", run_embed, sizeof(mm_embed_args)},
    {"attn_in", run_attn_in, sizeof(mm_attn_in_args)},
    {"attn_sparse", run_attn_sparse, sizeof(mm_attn_sparse_args)},
    {"attn_dense", run_attn_dense, sizeof(mm_attn_dense_args)},
    {"attn_out", run_attn_out, sizeof(mm_attn_out_args)},
    {"mlp", run_mlp, sizeof(mm_mlp_args)},
    {"moe", run_moe, sizeof(mm_moe_args)},
    {"head", run_head, sizeof(mm_head_args)},
    {"sample", run_sample, sizeof(mm_sample_args)},
    {"logprobs", run_logprobs, sizeof(mm_logprob_args)},
    {"copy_pages", run_copy_pages, sizeof(mm_copy_pages_args)},
    {"gather_rows", run_gather_rows, sizeof(mm_gather_args)},
};

/* run(context, op, address of the host's args struct, its size, address of the mm_seq_view or 0,
 * wait=True): runs and, unless told not to (a graph is captured), waits. */
static PyObject *py_run(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *capsule;
    const char *op;
    unsigned long long a, seq;
    Py_ssize_t n;
    int wait = 1;
    if (!PyArg_ParseTuple(args, "OsKnK|p", &capsule, &op, &a, &n, &seq, &wait))
        return NULL;
    const context *x = PyCapsule_GetPointer(capsule, context_name);
    if (x == NULL)
        return NULL;
    for (size_t i = 0; i < MM_ARRAY_LEN(op_table); i++) {
        if (strcmp(op_table[i].name, op) != 0)
            continue;
        if (op_table[i].n_args != (size_t)n)
            return PyErr_Format(PyExc_ValueError, "%s: args of %zd bytes, expected %zu", op, n,
                                op_table[i].n_args);
        mm_status st;
        Py_BEGIN_ALLOW_THREADS st =
            op_table[i].run(x, (const mm_seq_view *)(uintptr_t)seq, (const void *)(uintptr_t)a);
        if (st == MM_OK && wait)
            st = x->backend->sync(x->backend, x->c.stream);
        Py_END_ALLOW_THREADS return st == MM_OK ? Py_NewRef(Py_None) : fail(st);
    }
    return PyErr_Format(PyExc_ValueError, "no op is named %s", op);
}

/* ---------------------------------------------------------------- graphs */

typedef struct graph {
    mm_graph *g;
    mm_backend *backend;
    PyObject *owner; /* the context's capsule */
} graph;

static void close_graph(PyObject *capsule)
{
    graph *g = PyCapsule_GetPointer(capsule, graph_name);
    g->backend->graph_close(g->backend, g->g);
    Py_DECREF(g->owner);
    free(g);
}

/* graph_begin(context); what runs without waiting until graph_end(context) -> graph. */
static PyObject *py_graph_begin(PyObject *self, PyObject *capsule)
{
    (void)self;
    const context *x = PyCapsule_GetPointer(capsule, context_name);
    if (x == NULL)
        return NULL;
    if (x->backend->graph_begin == NULL)
        return PyErr_Format(PyExc_ValueError, "%s has no graphs", x->backend->props.name);
    const mm_status st = x->backend->graph_begin(x->backend, x->c.stream);
    return st == MM_OK ? Py_NewRef(Py_None) : fail(st);
}

static PyObject *py_graph_end(PyObject *self, PyObject *capsule)
{
    (void)self;
    const context *x = PyCapsule_GetPointer(capsule, context_name);
    graph *g = x != NULL ? calloc(1, sizeof *g) : NULL;
    if (g == NULL)
        return x == NULL ? NULL : PyErr_NoMemory();
    const mm_status st = x->backend->graph_end(x->backend, x->c.stream, &g->g);
    if (st != MM_OK) {
        free(g);
        return fail(st);
    }
    g->backend = x->backend;
    g->owner = Py_NewRef(capsule);
    return PyCapsule_New(g, graph_name, close_graph);
}

/* graph_launch(graph): runs it and waits. */
static PyObject *py_graph_launch(PyObject *self, PyObject *capsule)
{
    (void)self;
    const graph *g = PyCapsule_GetPointer(capsule, graph_name);
    if (g == NULL)
        return NULL;
    const context *x = PyCapsule_GetPointer(g->owner, context_name);
    mm_status st = g->backend->graph_launch(g->backend, g->g, x->c.stream);
    if (st == MM_OK)
        st = g->backend->sync(g->backend, x->c.stream);
    return st == MM_OK ? Py_NewRef(Py_None) : fail(st);
}

#define SIZE(t) #t, (Py_ssize_t)sizeof(t)
static PyObject *py_sizes(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return Py_BuildValue("{sn,sn,sn,sn,sn,sn,sn,sn,sn,sn,sn,sn,sn,sn}", SIZE(mm_weight),
                         SIZE(mm_op_shape), SIZE(mm_plane), SIZE(mm_layer_cache),
                         SIZE(mm_slot_params), SIZE(mm_slots), SIZE(mm_seq_view), SIZE(mm_out_view),
                         SIZE(mm_attn_weights), SIZE(mm_expert_weights), SIZE(mm_batch),
                         SIZE(mm_batch_slot), SIZE(mm_batch_out), SIZE(mm_batch_seq));
}

/* ---------------------------------------------------------------- stages with known answers */

static PyArrayObject *input(PyObject *value, int type, int rank)
{
    return (PyArrayObject *)PyArray_FROMANY(value, type, rank, rank, NPY_ARRAY_CARRAY_RO);
}

/* cache_write(format, x [n, dim]) -> data [n, bytes], scale [n, bytes] */
static PyObject *py_cache_write(PyObject *self, PyObject *args)
{
    (void)self;
    int format;
    PyObject *value;
    if (!PyArg_ParseTuple(args, "iO", &format, &value))
        return NULL;
    PyArrayObject *x = input(value, NPY_FLOAT32, 2);
    if (x == NULL)
        return NULL;
    const int64_t n = PyArray_DIM(x, 0), dim = PyArray_DIM(x, 1);
    npy_intp d[2] = {n, mm_cache_row_bytes((mm_cache_format)format, dim)};
    npy_intp s[2] = {n, mm_cache_row_scale_bytes((mm_cache_format)format, dim)};
    PyObject *data = PyArray_SimpleNew(2, d, NPY_UINT8),
             *scale = PyArray_SimpleNew(2, s, NPY_UINT8);
    for (int64_t i = 0; data != NULL && scale != NULL && i < n; i++)
        mm_ref_cache_write((mm_cache_format)format, (int32_t)dim,
                           (const float *)PyArray_DATA(x) + i * dim,
                           (uint8_t *)PyArray_DATA((PyArrayObject *)data) + i * d[1],
                           (uint8_t *)PyArray_DATA((PyArrayObject *)scale) + i * s[1]);
    Py_DECREF(x);
    return Py_BuildValue("(NN)", data, scale);
}

/* cache_read(format, dim, data, scale) -> [n, dim] */
static PyObject *py_cache_read(PyObject *self, PyObject *args)
{
    (void)self;
    int format, dim;
    PyObject *data_value, *scale_value;
    if (!PyArg_ParseTuple(args, "iiOO", &format, &dim, &data_value, &scale_value))
        return NULL;
    PyArrayObject *data = input(data_value, NPY_UINT8, 2),
                  *scale = input(scale_value, NPY_UINT8, 2);
    PyObject *out = NULL;
    if (data != NULL && scale != NULL) {
        npy_intp d[2] = {PyArray_DIM(data, 0), dim};
        out = PyArray_SimpleNew(2, d, NPY_FLOAT32);
        for (int64_t i = 0; out != NULL && i < d[0]; i++)
            mm_ref_cache_read((mm_cache_format)format, dim,
                              (const uint8_t *)PyArray_DATA(data) + i * PyArray_DIM(data, 1),
                              (const uint8_t *)PyArray_DATA(scale) + i * PyArray_DIM(scale, 1),
                              (float *)PyArray_DATA((PyArrayObject *)out) + i * dim);
    }
    Py_XDECREF(data);
    Py_XDECREF(scale);
    return out;
}

static PyObject *py_philox(PyObject *self, PyObject *args)
{
    (void)self;
    uint32_t key[2], counter[4], out[4];
    if (!PyArg_ParseTuple(args, "(II)(IIII)", &key[0], &key[1], &counter[0], &counter[1],
                          &counter[2], &counter[3]))
        return NULL;
    mm_ref_philox(key, counter, out);
    return Py_BuildValue("(IIII)", out[0], out[1], out[2], out[3]);
}

static PyObject *py_uniform(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned long long seed, n;
    unsigned lane, stream;
    if (!PyArg_ParseTuple(args, "KKII", &seed, &n, &lane, &stream))
        return NULL;
    return PyFloat_FromDouble(mm_ref_uniform(seed, n, lane, stream));
}

/* draw(weight [V], u [n]) -> ids [n] */
static PyObject *py_draw(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *weight_value, *u_value, *out = NULL;
    if (!PyArg_ParseTuple(args, "OO", &weight_value, &u_value))
        return NULL;
    PyArrayObject *weight = input(weight_value, NPY_FLOAT32, 1),
                  *u = input(u_value, NPY_FLOAT64, 1);
    if (weight != NULL && u != NULL)
        out = PyArray_SimpleNew(1, PyArray_DIMS(u), NPY_INT32);
    for (int64_t i = 0; out != NULL && i < PyArray_DIM(u, 0); i++)
        ((int32_t *)PyArray_DATA((PyArrayObject *)out))[i] =
            mm_ref_draw(PyArray_DATA(weight), (int32_t)PyArray_DIM(weight, 0),
                        ((const double *)PyArray_DATA(u))[i]);
    Py_XDECREF(weight);
    Py_XDECREF(u);
    return out;
}

static PyMethodDef methods[] = {
    {"open", py_open, METH_VARARGS, "open(name, n_thread=1) -> backend"},
    {"props", py_props, METH_O, "props(backend) -> dict"},
    {"backends", py_list, METH_NOARGS, "backends() -> [(name, usable, text)]"},
    {"alloc", py_alloc, METH_VARARGS, "alloc(backend, n_bytes) -> address of zeroed memory"},
    {"free", py_free, METH_VARARGS, "free(backend, address)"},
    {"alloc_host", py_alloc_host, METH_VARARGS, "alloc_host(backend, n_bytes) -> address"},
    {"free_host", py_free_host, METH_VARARGS, "free_host(backend, address)"},
    {"context", py_context, METH_VARARGS, "context(backend, shape, rope) -> context"},
    {"upload", py_upload, METH_VARARGS, "upload(context, address, bytes)"},
    {"download", py_download, METH_VARARGS, "download(context, address, buffer)"},
    {"packs", py_packs, METH_O, "packs(backend) -> bool"},
    {"pack_bytes", py_pack_bytes, METH_VARARGS, "pack_bytes(context, kind, weights) -> bytes"},
    {"pack", py_pack, METH_VARARGS, "pack(context, kind, weights, address) -> mm_weight"},
    {"run", py_run, METH_VARARGS, "run(context, op, args, n_args, seq, wait=True)"},
    {"graph_begin", py_graph_begin, METH_O, "graph_begin(context)"},
    {"graph_end", py_graph_end, METH_O, "graph_end(context) -> graph"},
    {"graph_launch", py_graph_launch, METH_O, "graph_launch(graph)"},
    {"sizes", py_sizes, METH_NOARGS, "sizes() -> {struct: bytes}"},
    {"cache_write", py_cache_write, METH_VARARGS, "cache_write(format, x) -> data, scale"},
    {"cache_read", py_cache_read, METH_VARARGS, "cache_read(format, dim, data, scale) -> x"},
    {"philox", py_philox, METH_VARARGS, "philox(key, counter) -> four words"},
    {"uniform", py_uniform, METH_VARARGS,
     "uniform(seed, n_emitted, lane, stream) -> number in (0, 1)"},
    {"draw", py_draw, METH_VARARGS, "draw(weight, u) -> ids"},
    {0},
};

static int exec_module(PyObject *module)
{
    (void)module;
    return PyArray_ImportNumPyAPI();
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)exec_module},
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "minimax_m31._testing",
    .m_doc = "The ops of a backend, for tests.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__testing(void);
PyMODINIT_FUNC PyInit__testing(void)
{
    return PyModuleDef_Init(&module_def);
}
