/* fields.c: Python values -> fields of C structs, by name and with errors that name the field.
 * A table of mm_py_field describes the plain fields of a struct; lists have one function each. */
#include "csrc/py/mm_py.h"

#include <stddef.h>
#include <stdio.h>

const char *const mm_py_dtype_names[] = {"f32", "bf16", "f8_e4m3", "u8", "i16",
                                         "i32", "i64",  "f16",     NULL};
const char *const mm_py_safetensors_names[] = {"F32", "BF16", "F8_E4M3", "U8", "I16",
                                               "I32", "I64",  "F16",     NULL};
const char *const mm_py_cache_names[] = {"f32", "bf16", "fp8", "nvfp4", NULL};
const char *const mm_py_load_names[] = {"files", "dummy", NULL};
const char *const mm_py_logprob_names[] = {"raw",        "tempered",         "processed",
                                           "raw_logits", "processed_logits", NULL};
const char *const mm_py_think_names[] = {"off", "adaptive", "enabled", "disabled", NULL};
const char *const mm_py_finish_names[] = {"none", "stop", "length", "abort", "error", NULL};
const char *const mm_py_stop_names[] = {"none",       "eos",        "token",     "string",
                                        "repetition", "max_tokens", "model_len", NULL};

/* ---------------------------------------------------------------- scratch */

struct mm_py_block {
    struct mm_py_block *next;
    max_align_t data[];
};

void *mm_py_scratch_alloc(mm_py_scratch *s, size_t n_bytes)
{
    struct mm_py_block *block = PyMem_Malloc(sizeof *block + n_bytes);
    if (block == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    block->next = s->block;
    s->block = block;
    return block->data;
}

PyObject *mm_py_scratch_keep(mm_py_scratch *s, PyObject *owned)
{
    const int cap = (int)(sizeof s->object / sizeof s->object[0]);
    if (owned == NULL)
        return NULL;
    if (s->n_object == cap) {
        Py_DECREF(owned);
        PyErr_NoMemory();
        return NULL;
    }
    return s->object[s->n_object++] = owned;
}

void mm_py_scratch_free(mm_py_scratch *s)
{
    while (s->block != NULL) {
        struct mm_py_block *next = s->block->next;
        PyMem_Free(s->block);
        s->block = next;
    }
    while (s->n_object > 0)
        Py_DECREF(s->object[--s->n_object]);
}

/* ---------------------------------------------------------------- scalars */

int mm_py_raise_unknown(const mm_py_reader *r, const char *name)
{
    PyErr_Format(PyExc_TypeError, "%s: there is no field %s", r->what, name);
    return -1;
}

/* "name=repr: text"; -1. */
static int bad_value(const mm_py_reader *r, const char *name, PyObject *value, const char *text)
{
    PyErr_Clear();
    PyObject *repr = PyObject_Repr(value);
    const char *shown = repr != NULL ? PyUnicode_AsUTF8(repr) : NULL;
    if (shown != NULL)
        mm_py_raise_value(r->state, r->bad, name, value, "%s=%.120s: %s", name, shown, text);
    Py_XDECREF(repr);
    return -1;
}

int mm_py_read_i64(const mm_py_reader *r, const char *name, PyObject *value, int64_t *out)
{
    PyObject *number = PyFloat_Check(value) ? NULL : PyNumber_Index(value);
    if (number == NULL)
        return bad_value(r, name, value, "an integer is needed");
    int overflow = 0;
    const long long v = PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    if (overflow != 0)
        return bad_value(r, name, value, "it does not fit into 64 bits");
    *out = v;
    return 0;
}

int mm_py_read_i32(const mm_py_reader *r, const char *name, PyObject *value, int32_t *out)
{
    int64_t wide;
    if (mm_py_read_i64(r, name, value, &wide) < 0)
        return -1;
    if (wide < INT32_MIN || wide > INT32_MAX)
        return bad_value(r, name, value, "it does not fit into 32 bits");
    *out = (int32_t)wide;
    return 0;
}

static int read_u64(const mm_py_reader *r, const char *name, PyObject *value, uint64_t *out)
{
    PyObject *number = PyFloat_Check(value) ? NULL : PyNumber_Index(value);
    if (number == NULL)
        return bad_value(r, name, value, "an integer is needed");
    const unsigned long long v = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (v == (unsigned long long)-1 && PyErr_Occurred())
        return bad_value(r, name, value, "it must lie in 0 .. 2^64 - 1");
    *out = v;
    return 0;
}

static int read_f64(const mm_py_reader *r, const char *name, PyObject *value, double *out)
{
    const double v = PyFloat_AsDouble(value);
    if (v == -1.0 && PyErr_Occurred())
        return bad_value(r, name, value, "a number is needed");
    *out = v;
    return 0;
}

int mm_py_read_name(const mm_py_reader *r, const char *name, PyObject *value,
                    const char *const *names, int *out)
{
    const char *text = PyUnicode_Check(value) ? PyUnicode_AsUTF8(value) : NULL;
    char list[160] = "expected one of";
    for (int i = 0; names[i] != NULL; i++) {
        if (text != NULL && strcmp(text, names[i]) == 0) {
            *out = i;
            return 0;
        }
        const size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, " %s", names[i]);
    }
    return bad_value(r, name, value, list);
}

int mm_py_read_field(const mm_py_reader *r, const mm_py_field *field, size_t n_field, void *out,
                     const char *name, PyObject *value)
{
    for (size_t i = 0; i < n_field; i++) {
        if (strcmp(field[i].name, name) != 0)
            continue;
        char *at = (char *)out + field[i].offset;
        double number = 0;
        int rc = -1;
        switch (field[i].kind) {
        case MM_PY_I32:
            rc = mm_py_read_i32(r, name, value, (int32_t *)(void *)at);
            break;
        case MM_PY_I64:
            rc = mm_py_read_i64(r, name, value, (int64_t *)(void *)at);
            break;
        case MM_PY_U64:
            rc = read_u64(r, name, value, (uint64_t *)(void *)at);
            break;
        case MM_PY_NAME:
            rc = mm_py_read_name(r, name, value, field[i].names, (int *)(void *)at);
            break;
        case MM_PY_F64:
            rc = read_f64(r, name, value, (double *)(void *)at);
            break;
        case MM_PY_F32:
            rc = read_f64(r, name, value, &number);
            if (rc == 0)
                *(float *)(void *)at = (float)number;
            break;
        }
        return rc < 0 ? -1 : 1;
    }
    return 0;
}

/* ---------------------------------------------------------------- lists */

/* A tuple of the items, kept in the scratch, so that no other thread can change it under us. */
static PyObject *items_of(const mm_py_reader *r, const char *name, PyObject *value)
{
    if (PyUnicode_Check(value) || PyBytes_Check(value)) {
        bad_value(r, name, value, "a sequence is needed");
        return NULL;
    }
    PyObject *items = mm_py_scratch_keep(r->scratch, PySequence_Tuple(value));
    if (items == NULL)
        bad_value(r, name, value, "a sequence is needed");
    else if (PyTuple_GET_SIZE(items) > INT32_MAX) {
        bad_value(r, name, value, "it is too long");
        items = NULL;
    }
    return items;
}

int mm_py_read_i32_list(const mm_py_reader *r, const char *name, PyObject *value,
                        const int32_t **out, int32_t *out_n)
{
    PyObject *items = items_of(r, name, value);
    if (items == NULL)
        return -1;
    const Py_ssize_t n = PyTuple_GET_SIZE(items);
    int32_t *list = mm_py_scratch_alloc(r->scratch, (size_t)n * sizeof *list);
    if (list == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < n; i++)
        if (mm_py_read_i32(r, name, PyTuple_GET_ITEM(items, i), &list[i]) < 0)
            return -1;
    *out = list;
    *out_n = (int32_t)n;
    return 0;
}

int mm_py_read_f32_list(const mm_py_reader *r, const char *name, PyObject *value, const float **out,
                        int32_t *out_n)
{
    PyObject *items = items_of(r, name, value);
    if (items == NULL)
        return -1;
    const Py_ssize_t n = PyTuple_GET_SIZE(items);
    float *list = mm_py_scratch_alloc(r->scratch, (size_t)n * sizeof *list);
    if (list == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        double number = 0;
        if (read_f64(r, name, PyTuple_GET_ITEM(items, i), &number) < 0)
            return -1;
        list[i] = (float)number;
    }
    *out = list;
    *out_n = (int32_t)n;
    return 0;
}

int mm_py_read_bytes_list(const mm_py_reader *r, const char *name, PyObject *value,
                          const uint8_t **out_blob, const int32_t **out_offset32,
                          const int64_t **out_offset64, int32_t *out_n)
{
    PyObject *items = items_of(r, name, value);
    if (items == NULL)
        return -1;
    const Py_ssize_t n = PyTuple_GET_SIZE(items);
    int64_t n_bytes = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PyTuple_GET_ITEM(items, i);
        if (!PyBytes_Check(item))
            return bad_value(r, name, item, "bytes are needed");
        n_bytes += PyBytes_GET_SIZE(item);
    }
    if (out_offset32 != NULL && n_bytes > INT32_MAX)
        return bad_value(r, name, Py_None, "the entries are longer than 2 GiB together");
    uint8_t *blob = mm_py_scratch_alloc(r->scratch, (size_t)n_bytes);
    int32_t *at32 = out_offset32 != NULL
                        ? mm_py_scratch_alloc(r->scratch, (size_t)(n + 1) * sizeof *at32)
                        : NULL;
    int64_t *at64 = out_offset64 != NULL
                        ? mm_py_scratch_alloc(r->scratch, (size_t)(n + 1) * sizeof *at64)
                        : NULL;
    if (blob == NULL || (out_offset32 != NULL && at32 == NULL) ||
        (out_offset64 != NULL && at64 == NULL))
        return -1;
    int64_t used = 0;
    for (Py_ssize_t i = 0; i <= n; i++) {
        if (at32 != NULL)
            at32[i] = (int32_t)used;
        if (at64 != NULL)
            at64[i] = used;
        if (i == n)
            break;
        PyObject *item = PyTuple_GET_ITEM(items, i);
        memcpy(blob + used, PyBytes_AS_STRING(item), (size_t)PyBytes_GET_SIZE(item));
        used += PyBytes_GET_SIZE(item);
    }
    *out_blob = blob;
    if (out_offset32 != NULL)
        *out_offset32 = at32;
    if (out_offset64 != NULL)
        *out_offset64 = at64;
    *out_n = (int32_t)n;
    return 0;
}
