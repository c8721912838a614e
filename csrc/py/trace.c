/* trace.c: Engine.submit_trace. The core writes its rows into the caller's arrays, so their dtype,
 * shape and contiguity are checked here, and they are kept alive until the request is released. */
#include "csrc/py/mm_py.h"

/* What a running trace needs besides the arrays: the struct itself and its pointer tables. */
typedef struct trace_box {
    mm_py_scratch scratch;
    mm_trace trace;
} trace_box;

static void free_box(PyObject *capsule)
{
    trace_box *box = PyCapsule_GetPointer(capsule, NULL);
    mm_py_scratch_free(&box->scratch);
    PyMem_Free(box);
}

/* Moves the scratch into a new capsule; on failure it stays where it is. */
static PyObject *box_new(mm_py_scratch *s, const mm_trace *trace, const mm_trace **out)
{
    trace_box *box = PyMem_Malloc(sizeof *box);
    if (box == NULL)
        return PyErr_NoMemory();
    *box = (trace_box){.trace = *trace};
    PyObject *capsule = PyCapsule_New(box, NULL, free_box);
    if (capsule == NULL) {
        PyMem_Free(box);
        return NULL;
    }
    box->scratch = *s;
    *s = (mm_py_scratch){0};
    *out = &box->trace;
    return capsule;
}

/* Sequence of [n_layer] arrays or None -> pointers. The shape's last entries may be -1 (any). */
static int read_layers(const mm_py_engine *self, mm_py_scratch *s, PyObject *value,
                       mm_py_dtype dtype, int rank, const int64_t *shape, bool writable,
                       const char *name, void ***out)
{
    *out = NULL;
    if (value == Py_None)
        return 0;
    PyObject *items = mm_py_scratch_keep(s, PySequence_Tuple(value));
    if (items == NULL)
        return -1;
    const Py_ssize_t n = self->config.n_layer;
    if (PyTuple_GET_SIZE(items) != n) {
        PyErr_Format(PyExc_ValueError, "%s: %zd entries for %zd layers", name,
                     PyTuple_GET_SIZE(items), n);
        return -1;
    }
    void **list = mm_py_scratch_alloc(s, (size_t)n * sizeof *list);
    if (list == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PyTuple_GET_ITEM(items, i);
        list[i] = NULL;
        if (item == Py_None)
            continue;
        list[i] = mm_py_array_buffer(item, dtype, rank, shape, writable, name);
        if (list[i] == NULL)
            return -1;
    }
    *out = list;
    return 0;
}

PyObject *mm_py_engine_submit_trace(PyObject *obj, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {
        "waiter",         "prompt",       "logits",        "hidden",       "blocks", "experts",
        "expert_weights", "force_blocks", "force_experts", "blocks_width", NULL};
    mm_py_engine *self = (mm_py_engine *)obj;
    mm_py_state *state = mm_py_state_of(Py_TYPE(obj));
    PyObject *waiter, *prompt, *logits, *hidden, *blocks, *experts, *weights, *force_blocks,
        *force_experts;
    int width;
    if (state == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "O!O$OOOOOOOi:submit_trace",
                                                      names, state->waiter_type, &waiter, &prompt,
                                                      &logits, &hidden, &blocks, &experts, &weights,
                                                      &force_blocks, &force_experts, &width))
        return NULL;
    mm_engine *e = mm_py_engine_get(self);
    mm_waiter *w = e != NULL ? mm_py_waiter_get((mm_py_waiter *)waiter, self) : NULL;
    if (w == NULL)
        return NULL;
    mm_py_scratch s = {0};
    PyObject *result = NULL, *held = NULL, *key = NULL;
    int64_t n = 0;
    uint64_t id = 0;
    void **hidden_at, **blocks_at, **experts_at, **weights_at, **force_blocks_at,
        **force_experts_at;
    PyObject *ids = mm_py_scratch_keep(&s, mm_py_array_from(prompt, MM_PY_ARRAY_I32, 1, "prompt"));
    if (ids == NULL)
        goto done;
    const int32_t *token = mm_py_array_data(ids, &n);
    const mm_config *c = &self->config;
    const int64_t logit_shape[] = {n, c->n_vocab}, hidden_shape[] = {n, c->d_model};
    const int64_t block_shape[] = {c->n_index_head, n, width},
                  expert_shape[] = {n, c->n_expert_used};
    float *logits_at = NULL;
    if (logits != Py_None) {
        logits_at = mm_py_array_buffer(logits, MM_PY_ARRAY_F32, 2, logit_shape, true, "logits");
        if (logits_at == NULL)
            goto done;
    }
    if (read_layers(self, &s, hidden, MM_PY_ARRAY_F32, 2, hidden_shape, true, "hidden",
                    &hidden_at) < 0 ||
        read_layers(self, &s, blocks, MM_PY_ARRAY_I16, 3, block_shape, true, "blocks", &blocks_at) <
            0 ||
        read_layers(self, &s, experts, MM_PY_ARRAY_I16, 2, expert_shape, true, "experts",
                    &experts_at) < 0 ||
        read_layers(self, &s, weights, MM_PY_ARRAY_F32, 2, expert_shape, true, "expert_weights",
                    &weights_at) < 0 ||
        read_layers(self, &s, force_blocks, MM_PY_ARRAY_I16, 3, block_shape, false, "force_blocks",
                    &force_blocks_at) < 0 ||
        read_layers(self, &s, force_experts, MM_PY_ARRAY_I16, 2, expert_shape, false,
                    "force_experts", &force_experts_at) < 0)
        goto done;
    const int64_t pages = (n + MM_PAGE - 1) / MM_PAGE,
                  most = c->n_top_block < pages ? c->n_top_block : pages;
    if ((blocks_at != NULL || force_blocks_at != NULL) && width != most) {
        PyErr_Format(PyExc_ValueError, "blocks_width=%d: %lld blocks are chosen at this length",
                     width, (long long)most);
        goto done;
    }
    const mm_trace trace = {
        .logits = logits_at,
        .hidden = (float *const *)(void *)hidden_at,
        .blocks = (int16_t *const *)(void *)blocks_at,
        .experts = (int16_t *const *)(void *)experts_at,
        .expert_weights = (float *const *)(void *)weights_at,
        .force_blocks = (const int16_t *const *)(void *)force_blocks_at,
        .force_experts = (const int16_t *const *)(void *)force_experts_at,
        .blocks_width = width,
        .n_prompt = (int32_t)n,
    };
    mm_request_params p;
    mm_request_params_init(&p);
    p.prompt = token;
    p.n_prompt = (int32_t)n;
    p.max_tokens = 0;
    PyObject *box = box_new(&s, &trace, &p.trace);
    if (box == NULL)
        goto done;
    held =
        PyTuple_Pack(8, box, logits, hidden, blocks, experts, weights, force_blocks, force_experts);
    Py_DECREF(box);
    if (held == NULL)
        goto done;
    if (mm_py_engine_get(self) == NULL || mm_py_waiter_get((mm_py_waiter *)waiter, self) == NULL)
        goto done;
    const mm_status st = mm_engine_submit(e, w, &p, &id);
    if (st != MM_OK) {
        mm_py_raise(state, st);
        goto done;
    }
    key = PyLong_FromUnsignedLongLong(id);
    if (key == NULL || PyDict_SetItem(self->held, key, held) < 0) {
        Py_INCREF(held); /* leaked on purpose: the core may be writing into these arrays */
        mm_request_release(e, id);
        goto done;
    }
    result = Py_NewRef(key);
done:
    Py_XDECREF(key);
    Py_XDECREF(held);
    mm_py_scratch_free(&s);
    return result;
}
