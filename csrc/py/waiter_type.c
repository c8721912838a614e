/* waiter_type.c: Waiter, the mailbox of one caller. Waits in slices of a tenth of a second, so that
 * signals and a close from another thread are noticed within that time. */
#include "csrc/py/mm_py.h"

#include <time.h>
#include <unistd.h>

#define WAIT_SLICE_S 0.1
#define MAX_IDS 65536

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

PyObject *mm_py_waiter_new(mm_py_engine *engine)
{
    mm_py_state *state = mm_py_state_of(Py_TYPE(engine));
    mm_engine *e = mm_py_engine_get(engine);
    if (state == NULL || e == NULL)
        return NULL;
    mm_waiter *w = NULL;
    const mm_status st = mm_waiter_open(&w, e);
    if (st != MM_OK)
        return mm_py_raise(state, st);
    mm_py_waiter *self = (mm_py_waiter *)state->waiter_type->tp_alloc(state->waiter_type, 0);
    if (self == NULL) {
        mm_waiter_close(w);
        return NULL;
    }
    self->waiter = w;
    self->engine = (mm_py_engine *)Py_NewRef((PyObject *)engine);
    return (PyObject *)self;
}

mm_waiter *mm_py_waiter_get(mm_py_waiter *self, const mm_py_engine *engine)
{
    mm_py_state *state = mm_py_state_of(Py_TYPE(self));
    if (state == NULL || mm_py_engine_get(self->engine) == NULL)
        return NULL;
    if (self->waiter == NULL || self->closing) {
        mm_py_raise_value(state, MM_E_CLOSED, NULL, NULL, "this waiter was closed");
        return NULL;
    }
    if (engine != NULL && engine != self->engine) {
        PyErr_SetString(PyExc_ValueError, "this waiter belongs to another engine");
        return NULL;
    }
    return self->waiter;
}

static PyObject *waiter_wait(PyObject *obj, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"timeout", "cap", NULL};
    mm_py_waiter *self = (mm_py_waiter *)obj;
    double timeout;
    int cap = 1024;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "d|i:wait", names, &timeout, &cap))
        return NULL;
    if (cap < 1 || cap > MAX_IDS)
        return PyErr_Format(PyExc_ValueError, "cap=%d: it must lie in 1 .. %d", cap, MAX_IDS);
    uint64_t *id = PyMem_Malloc((size_t)cap * sizeof *id);
    if (id == NULL)
        return PyErr_NoMemory();
    const double end = now_s() + timeout;
    int32_t n = 0;
    PyObject *list = NULL;
    for (;;) {
        mm_waiter *w = mm_py_waiter_get(self, NULL); /* again in every round: it may have been
                                                        closed meanwhile */
        if (w == NULL)
            goto done;
        const double left = end - now_s();
        const double slice = left < WAIT_SLICE_S ? (left > 0 ? left : 0) : WAIT_SLICE_S;
        mm_status st;
        self->n_use++;
        self->engine->n_use++;
        Py_BEGIN_ALLOW_THREADS st = mm_waiter_wait(w, slice, id, cap, &n);
        Py_END_ALLOW_THREADS self->engine->n_use--;
        self->n_use--;
        if (st != MM_OK) {
            mm_py_state *state = mm_py_state_of(Py_TYPE(self));
            if (state != NULL)
                mm_py_raise(state, st);
            goto done;
        }
        /* Taken ids are never thrown away: a signal that came with them is left for the next
         * bytecode. */
        if (n > 0 || left <= 0)
            break;
        if (PyErr_CheckSignals() < 0)
            goto done;
    }
    list = PyList_New(n);
    for (int32_t i = 0; list != NULL && i < n; i++) {
        PyObject *item = PyLong_FromUnsignedLongLong(id[i]);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
done:
    PyMem_Free(id);
    return list;
}

/* Frees the mailbox once no thread is inside it. In a forked child nothing is touched. */
static void waiter_close_now(mm_py_waiter *self)
{
    if (self->waiter == NULL || self->closing)
        return;
    if (self->engine == NULL || self->engine->pid != getpid()) {
        self->waiter = NULL;
        return;
    }
    self->closing = true;
    while (self->n_use > 0) {
        Py_BEGIN_ALLOW_THREADS nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        Py_END_ALLOW_THREADS
    }
    mm_waiter *w = self->waiter;
    self->waiter = NULL;
    self->engine->n_use++; /* the engine stays while its waiter is closed */
    Py_BEGIN_ALLOW_THREADS mm_waiter_close(w);
    Py_END_ALLOW_THREADS self->engine->n_use--;
}

static PyObject *waiter_close(PyObject *obj, PyObject *Py_UNUSED(ignored))
{
    waiter_close_now((mm_py_waiter *)obj);
    Py_RETURN_NONE;
}

static int waiter_traverse(PyObject *obj, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(obj));
    Py_VISIT(((mm_py_waiter *)obj)->engine);
    return 0;
}

static void waiter_dealloc(PyObject *obj)
{
    mm_py_waiter *self = (mm_py_waiter *)obj;
    PyTypeObject *type = Py_TYPE(obj);
    PyObject *error_type, *error_value, *error_trace;
    PyObject_GC_UnTrack(obj);
    PyErr_Fetch(&error_type, &error_value, &error_trace);
    waiter_close_now(self);
    PyErr_Restore(error_type, error_value, error_trace);
    Py_CLEAR(self->engine);
    type->tp_free(obj);
    Py_DECREF(type);
}

static PyMethodDef waiter_methods[] = {
    {"wait", (PyCFunction)(void (*)(void))waiter_wait, METH_VARARGS | METH_KEYWORDS,
     "wait(timeout, cap=1024) -> list of request ids with news; [] after `timeout` seconds."},
    {"close", waiter_close, METH_NOARGS,
     "Aborts and releases the unfinished requests of this waiter."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot waiter_slots[] = {
    {Py_tp_doc, (void *)"Mailbox of one caller; one thread waits on it at a time."},
    {Py_tp_methods, waiter_methods},
    {Py_tp_traverse, (void *)waiter_traverse},
    {Py_tp_dealloc, (void *)waiter_dealloc},
    {0, NULL},
};

PyType_Spec mm_py_waiter_spec = {
    .name = "minimax_m31._core.Waiter",
    .basicsize = sizeof(mm_py_waiter),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = waiter_slots,
};
