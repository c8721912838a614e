/* engine_type.c: Engine, an open engine. Submit, read and release keep the GIL: they are short, and
 * it makes reading and releasing one request from two threads safe. Whatever can wait gives the GIL
 * up and counts itself in n_use. */
#include "csrc/py/mm_py.h"

#include <time.h>
#include <unistd.h>

mm_engine *mm_py_engine_get(mm_py_engine *self)
{
    mm_py_state *state = mm_py_state_of(Py_TYPE(self));
    if (state == NULL)
        return NULL;
    if (self->pid != 0 && self->pid != getpid()) {
        mm_py_raise_value(state, MM_E_FORKED, NULL, NULL,
                          "the engine was opened in process %d, this is %d: open an engine of your "
                          "own after a fork",
                          (int)self->pid, (int)getpid());
        return NULL;
    }
    if (self->engine == NULL || self->closing) {
        mm_py_raise_value(state, MM_E_CLOSED, NULL, NULL, "the engine was shut down");
        return NULL;
    }
    return self->engine;
}

/* ---------------------------------------------------------------- open and close */

typedef struct open_ctx {
    PyThreadState *thread;
    PyObject *progress; /* callable or NULL */
} open_ctx;

/* Runs in the opening thread, without the GIL: takes it, looks at signals, reports, gives it up
 * again. */
static int poll_open(void *ctx, int64_t bytes_done, int64_t bytes_total)
{
    open_ctx *c = ctx;
    PyEval_RestoreThread(c->thread);
    /* The core may ask again after it was told to stop. */
    int rc = PyErr_Occurred() ? -1 : PyErr_CheckSignals();
    if (rc == 0 && c->progress != NULL) {
        PyObject *result =
            PyObject_CallFunction(c->progress, "LL", (long long)bytes_done, (long long)bytes_total);
        rc = result != NULL ? 0 : -1;
        Py_XDECREF(result);
    }
    c->thread = PyEval_SaveThread();
    return rc;
}

static int engine_init(PyObject *obj, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"config",        "options",     "files",    "tensors",
                            "eos_token_ids", "token_bytes", "progress", NULL};
    mm_py_engine *self = (mm_py_engine *)obj;
    mm_py_state *state = mm_py_state_of(Py_TYPE(obj));
    PyObject *empty = PyTuple_New(0);
    if (state == NULL || empty == NULL)
        return -1;
    mm_py_open_args a = {
        .files = empty, .tensors = empty, .eos_token_ids = empty, .token_bytes = Py_None};
    PyObject *progress = Py_None;
    mm_py_scratch scratch = {0};
    mm_config config;
    mm_tensor_table table;
    mm_engine_options options;
    mm_engine *e = NULL;
    mm_status st;
    int rc = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOOOOO:Engine", names, &a.config, &a.options,
                                     &a.files, &a.tensors, &a.eos_token_ids, &a.token_bytes,
                                     &progress))
        goto done;
    if (a.config == NULL || a.options == NULL) {
        PyErr_SetString(PyExc_TypeError, "Engine: config and options are needed");
        goto done;
    }
    if (self->pid != 0) {
        PyErr_SetString(PyExc_TypeError, "Engine: __init__ may be called once");
        goto done;
    }
    if (mm_py_read_options(state, &scratch, &a, &config, &table, &options) < 0)
        goto done;
    open_ctx ctx = {.progress = progress != Py_None ? progress : NULL};
    options.poll = poll_open;
    options.poll_ctx = &ctx;
    Py_XSETREF(self->held, PyDict_New());
    if (self->held == NULL)
        goto done;
    ctx.thread = PyEval_SaveThread();
    st = mm_engine_open(&e, &options);
    PyEval_RestoreThread(ctx.thread);
    if (st != MM_OK) {
        mm_py_raise(state, st);
        goto done;
    }
    self->engine = e;
    self->pid = getpid();
    self->config = config;
    self->config.layer_is_sparse = self->config.layer_is_moe = NULL; /* the scratch owned them */
    rc = 0;
done:
    mm_py_scratch_free(&scratch);
    Py_DECREF(empty);
    return rc;
}

/* Waits until no thread is inside a call, then closes. Idempotent; a second caller
 * returns at once. */
static void engine_close_now(mm_py_engine *self)
{
    if (self->engine == NULL || self->closing)
        return;
    if (self->pid != getpid()) {
        self->engine = NULL; /* a forked child: threads and memory are the parent's */
        return;
    }
    self->closing = true;
    while (self->n_use > 0) {
        Py_BEGIN_ALLOW_THREADS nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        Py_END_ALLOW_THREADS
    }
    mm_engine *e = self->engine;
    Py_BEGIN_ALLOW_THREADS mm_engine_close(e);
    Py_END_ALLOW_THREADS self->engine = NULL;
    if (self->held != NULL)
        PyDict_Clear(self->held);
}

static PyObject *engine_close(PyObject *obj, PyObject *Py_UNUSED(ignored))
{
    engine_close_now((mm_py_engine *)obj);
    Py_RETURN_NONE;
}

static PyObject *engine_closed(PyObject *obj, void *Py_UNUSED(closure))
{
    const mm_py_engine *self = (mm_py_engine *)obj;
    return PyBool_FromLong(self->engine == NULL || self->closing);
}

/* ---------------------------------------------------------------- requests */

static PyObject *engine_waiter(PyObject *obj, PyObject *Py_UNUSED(ignored))
{
    return mm_py_waiter_new((mm_py_engine *)obj);
}

static PyObject *engine_submit(PyObject *obj, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"waiter", "prompt", "params", NULL};
    mm_py_engine *self = (mm_py_engine *)obj;
    mm_py_state *state = mm_py_state_of(Py_TYPE(obj));
    PyObject *waiter, *prompt, *params, *result = NULL;
    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO!:submit", names, state->waiter_type,
                                     &waiter, &prompt, &PyDict_Type, &params))
        return NULL;
    mm_engine *e = mm_py_engine_get(self);
    mm_waiter *w = e != NULL ? mm_py_waiter_get((mm_py_waiter *)waiter, self) : NULL;
    if (w == NULL)
        return NULL;
    mm_py_scratch scratch = {0};
    mm_request_params p;
    int64_t n = 0;
    uint64_t id = 0;
    PyObject *ids =
        mm_py_scratch_keep(&scratch, mm_py_array_from(prompt, MM_PY_ARRAY_I32, 1, "prompt"));
    if (ids == NULL || mm_py_read_params(state, &scratch, params, &p) < 0)
        goto done;
    p.prompt = mm_py_array_data(ids, &n);
    if (n > INT32_MAX) {
        mm_py_raise_value(state, MM_E_TOO_LONG, "prompt", NULL, "the prompt has %lld tokens",
                          (long long)n);
        goto done;
    }
    p.n_prompt = (int32_t)n;
    /* Reading the arguments may have run Python code, and another thread with it. */
    if (mm_py_engine_get(self) == NULL || mm_py_waiter_get((mm_py_waiter *)waiter, self) == NULL)
        goto done;
    const mm_status st = mm_engine_submit(e, w, &p, &id);
    result = st == MM_OK ? PyLong_FromUnsignedLongLong(id) : mm_py_raise(state, st);
done:
    mm_py_scratch_free(&scratch);
    return result;
}

static PyObject *engine_read(PyObject *obj, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"request_id", "start", NULL};
    mm_py_engine *self = (mm_py_engine *)obj;
    mm_py_state *state = mm_py_state_of(Py_TYPE(obj));
    unsigned long long id;
    long long start = 0;
    if (state == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "K|L:read", names, &id, &start))
        return NULL;
    mm_engine *e = mm_py_engine_get(self);
    if (e == NULL)
        return NULL;
    mm_output out;
    const mm_status st = mm_request_read(e, id, &out);
    return st == MM_OK ? mm_py_output_dict(&out, start) : mm_py_raise(state, st);
}

static PyObject *engine_notify(PyObject *obj, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"request_id", "n_tokens", NULL};
    mm_py_state *state = mm_py_state_of(Py_TYPE(obj));
    unsigned long long id;
    int n_tokens;
    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "Ki:notify", names, &id, &n_tokens))
        return NULL;
    mm_engine *e = mm_py_engine_get((mm_py_engine *)obj);
    if (e == NULL)
        return NULL;
    const mm_status st = mm_request_notify(e, id, n_tokens);
    if (st != MM_OK)
        return mm_py_raise(state, st);
    Py_RETURN_NONE;
}

static PyObject *engine_release(PyObject *obj, PyObject *arg)
{
    mm_py_engine *self = (mm_py_engine *)obj;
    const unsigned long long id = PyLong_AsUnsignedLongLong(arg);
    if (id == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    mm_engine *e = mm_py_engine_get(self);
    if (e == NULL)
        return NULL;
    /* Arrays of a trace that still runs stay alive until the engine is closed: a step may be
     * writing them. */
    const int is_held = PyDict_Contains(self->held, arg);
    mm_output out;
    const bool ended =
        is_held == 1 && mm_request_read(e, id, &out) == MM_OK && out.finish != MM_FINISH_NONE;
    mm_request_release(e, id);
    if (is_held < 0 || (ended && PyDict_DelItem(self->held, arg) < 0))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *engine_abort(PyObject *obj, PyObject *arg)
{
    mm_py_engine *self = (mm_py_engine *)obj;
    mm_py_state *state = mm_py_state_of(Py_TYPE(obj));
    uint64_t *id = NULL;
    Py_ssize_t n = 0;
    if (state == NULL)
        return NULL;
    if (arg != Py_None) {
        PyObject *items = PySequence_Tuple(arg);
        if (items == NULL)
            return NULL;
        n = PyTuple_GET_SIZE(items);
        id = PyMem_Malloc(((size_t)n + 1) * sizeof *id);
        for (Py_ssize_t i = 0; id != NULL && i < n; i++)
            id[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(items, i));
        Py_DECREF(items);
        if (id == NULL || PyErr_Occurred()) {
            PyMem_Free(id);
            return id == NULL ? PyErr_NoMemory() : NULL;
        }
    }
    mm_engine *e = mm_py_engine_get(self);
    if (e == NULL) {
        PyMem_Free(id);
        return NULL;
    }
    int32_t n_alive = 0;
    mm_status st;
    self->n_use++;
    Py_BEGIN_ALLOW_THREADS st =
        id != NULL && n == 0 ? MM_OK : mm_engine_abort(e, id, (int32_t)n, &n_alive);
    Py_END_ALLOW_THREADS self->n_use--;
    PyMem_Free(id);
    return st == MM_OK ? PyLong_FromLong(n_alive) : mm_py_raise(state, st);
}

static PyObject *engine_put_mask(PyObject *obj, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"request_id", "i_token", "words", NULL};
    mm_py_engine *self = (mm_py_engine *)obj;
    mm_py_state *state = mm_py_state_of(Py_TYPE(obj));
    unsigned long long id;
    int i_token;
    PyObject *words;
    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "KiO:put_mask", names, &id, &i_token, &words))
        return NULL;
    PyObject *array = mm_py_array_from(words, MM_PY_ARRAY_U32, 1, "words");
    mm_engine *e = array != NULL ? mm_py_engine_get(self) : NULL;
    if (e == NULL) {
        Py_XDECREF(array);
        return NULL;
    }
    int64_t n = 0;
    const uint32_t *word = mm_py_array_data(array, &n);
    const int64_t need = ((int64_t)self->config.n_vocab + 31) / 32;
    if (n != need) {
        PyErr_Format(PyExc_ValueError, "words: %lld given, %lld are needed", (long long)n,
                     (long long)need);
        Py_DECREF(array);
        return NULL;
    }
    const mm_status st = mm_engine_put_mask(e, id, i_token, word);
    Py_DECREF(array);
    if (st != MM_OK)
        return mm_py_raise(state, st);
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- state */

static PyObject *engine_reset_prefix_cache(PyObject *obj, PyObject *Py_UNUSED(ignored))
{
    mm_py_engine *self = (mm_py_engine *)obj;
    mm_py_state *state = mm_py_state_of(Py_TYPE(obj));
    mm_engine *e = state != NULL ? mm_py_engine_get(self) : NULL;
    if (e == NULL)
        return NULL;
    mm_status st;
    self->n_use++;
    Py_BEGIN_ALLOW_THREADS st = mm_engine_reset_prefix_cache(e);
    Py_END_ALLOW_THREADS self->n_use--;
    if (st != MM_OK)
        return mm_py_raise(state, st);
    Py_RETURN_NONE;
}

static PyObject *engine_pause(PyObject *obj, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"how", "timeout", NULL};
    static const char *const how_names[] = {"none", "drain", "freeze"};
    mm_py_engine *self = (mm_py_engine *)obj;
    mm_py_state *state = mm_py_state_of(Py_TYPE(obj));
    const char *name;
    double timeout = 0;
    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "s|d:pause", names, &name, &timeout))
        return NULL;
    static const mm_pause kinds[] = {MM_PAUSE_NONE, MM_PAUSE_DRAIN, MM_PAUSE_FREEZE};
    enum { N_KIND = sizeof kinds / sizeof kinds[0] };
    int how = 0;
    while (how < N_KIND && strcmp(name, how_names[how]) != 0)
        how++;
    if (how == N_KIND)
        return PyErr_Format(PyExc_ValueError,
                            "pause(how='%s'): expected one of none, drain, freeze", name);
    mm_engine *e = mm_py_engine_get(self);
    if (e == NULL)
        return NULL;
    int32_t is_settled = 0;
    mm_status st;
    self->n_use++;
    Py_BEGIN_ALLOW_THREADS st = mm_engine_pause(e, kinds[how], timeout, &is_settled);
    Py_END_ALLOW_THREADS self->n_use--;
    return st == MM_OK ? PyBool_FromLong(is_settled) : mm_py_raise(state, st);
}

static PyObject *engine_stats(PyObject *obj, PyObject *Py_UNUSED(ignored))
{
    mm_py_engine *self = (mm_py_engine *)obj;
    mm_py_state *state = mm_py_state_of(Py_TYPE(obj));
    mm_engine *e = state != NULL ? mm_py_engine_get(self) : NULL;
    if (e == NULL)
        return NULL;
    mm_engine_stats stats;
    mm_engine_stats_init(&stats);
    mm_status st;
    self->n_use++;
    Py_BEGIN_ALLOW_THREADS st = mm_engine_get_stats(e, &stats);
    Py_END_ALLOW_THREADS self->n_use--;
    return st == MM_OK ? mm_py_stats_dict(&stats) : mm_py_raise(state, st);
}

static PyObject *engine_memory(PyObject *obj, PyObject *Py_UNUSED(ignored))
{
    mm_engine *e = mm_py_engine_get((mm_py_engine *)obj);
    if (e == NULL)
        return NULL;
    int32_t n = 0;
    const mm_memory_line *line = mm_engine_memory(e, &n);
    return mm_py_memory_list(line, n);
}

static PyObject *engine_info(PyObject *obj, PyObject *Py_UNUSED(ignored))
{
    mm_engine *e = mm_py_engine_get((mm_py_engine *)obj);
    if (e == NULL)
        return NULL;
    mm_engine_info info;
    mm_engine_get_info(e, &info);
    return mm_py_info_dict(&info);
}

/* ---------------------------------------------------------------- type */

static int engine_traverse(PyObject *obj, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(obj));
    Py_VISIT(((mm_py_engine *)obj)->held);
    return 0;
}

static void engine_dealloc(PyObject *obj)
{
    mm_py_engine *self = (mm_py_engine *)obj;
    PyTypeObject *type = Py_TYPE(obj);
    PyObject *error_type, *error_value, *error_trace;
    PyObject_GC_UnTrack(obj);
    PyErr_Fetch(&error_type, &error_value, &error_trace);
    engine_close_now(self);
    PyErr_Restore(error_type, error_value, error_trace);
    Py_CLEAR(self->held);
    type->tp_free(obj);
    Py_DECREF(type);
}

#define KEYWORDS(function) (PyCFunction)(void (*)(void)) function, METH_VARARGS | METH_KEYWORDS

static PyMethodDef engine_methods[] = {
    {"waiter", engine_waiter, METH_NOARGS, "A new mailbox."},
    {"submit", KEYWORDS(engine_submit), "submit(waiter, prompt, params) -> request id"},
    {"submit_trace", KEYWORDS(mm_py_engine_submit_trace),
     "A request whose rows are written into the caller's arrays."},
    {"read", KEYWORDS(engine_read), "read(request_id, start=0) -> dict of what there is so far"},
    {"release", engine_release, METH_O,
     "Frees the request's buffers; aborts it first when it still runs."},
    {"notify", KEYWORDS(engine_notify),
     "notify(request_id, n_tokens): wake its waiter every so many tokens from now on"},
    {"abort", engine_abort, METH_O, "abort(ids or None for all) -> how many were alive"},
    {"put_mask", KEYWORDS(engine_put_mask),
     "put_mask(request_id, i_token, words): allowed tokens as bits"},
    {"reset_prefix_cache", engine_reset_prefix_cache, METH_NOARGS,
     "Drops every unreferenced cached page."},
    {"pause", KEYWORDS(engine_pause), "pause(how, timeout=0) -> settled; how: none, drain, freeze"},
    {"stats", engine_stats, METH_NOARGS, "Counters, by name."},
    {"memory", engine_memory, METH_NOARGS, "(what, kind, bytes) of everything the engine holds."},
    {"info", engine_info, METH_NOARGS, "What was chosen at open."},
    {"close", engine_close, METH_NOARGS,
     "Ends all requests, joins all threads, frees everything. Idempotent."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef engine_getset[] = {
    {"closed", engine_closed, NULL, "True once close was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot engine_slots[] = {
    {Py_tp_doc, (void *)"An open engine. Safe from any thread."},
    {Py_tp_new, (void *)PyType_GenericNew},
    {Py_tp_init, (void *)engine_init},
    {Py_tp_methods, engine_methods},
    {Py_tp_getset, engine_getset},
    {Py_tp_traverse, (void *)engine_traverse},
    {Py_tp_dealloc, (void *)engine_dealloc},
    {0, NULL},
};

PyType_Spec mm_py_engine_spec = {
    .name = "minimax_m31._core.Engine",
    .basicsize = sizeof(mm_py_engine),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = engine_slots,
};
