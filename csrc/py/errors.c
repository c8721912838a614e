/* errors.c: the one place that turns an mm_status into a Python exception.
 * Classes come from minimax_m31.errors; `param` and `index` of the core's message become
 * attributes. */
#include "csrc/py/mm_py.h"

#include <stdarg.h>
#include <stdio.h>

static const struct {
    mm_status status;
    const char *class_name; /* in minimax_m31.errors; a name starting with '.' is a builtin */
} error_table[] = {
    {MM_FULL, ".RuntimeError"},
    {MM_AGAIN, ".RuntimeError"},
    {MM_E_INVALID, "InvalidRequestError"},
    {MM_E_SHAPE, "InvalidRequestError"},
    {MM_E_TOO_LONG, "PromptTooLongError"},
    {MM_E_GRAMMAR, "GrammarError"},
    {MM_E_CONFIG, "ConfigError"},
    {MM_E_FORMAT, "ConfigError"},
    {MM_E_CLOSED, "EngineClosedError"},
    {MM_E_FORKED, "EngineForkedError"},
    {MM_E_SLEEPING, "EngineSleepingError"},
    {MM_E_NO_WEIGHTS, "WeightsNotLoadedError"},
    {MM_E_DEAD, "EngineDeadError"},
    {MM_E_NOMEM, "OutOfDeviceMemoryError"},
    {MM_E_IO, ".OSError"},
    {MM_E_UNSUPPORTED, ".NotImplementedError"},
    {MM_E_DEVICE, "EngineDeadError"},
    {MM_E_COMM, "EngineDeadError"},
    {MM_E_CANCELLED, ".KeyboardInterrupt"},
};

int mm_py_errors_init(mm_py_state *state)
{
    PyObject *errors = PyImport_ImportModule("minimax_m31.errors");
    PyObject *builtins = errors != NULL ? PyImport_ImportModule("builtins") : NULL;
    int rc = builtins != NULL ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < sizeof error_table / sizeof error_table[0]; i++) {
        const char *name = error_table[i].class_name;
        PyObject *cls = name[0] == '.' ? PyObject_GetAttrString(builtins, name + 1)
                                       : PyObject_GetAttrString(errors, name);
        state->error[error_table[i].status] = cls;
        rc = cls != NULL ? 0 : -1;
    }
    Py_XDECREF(builtins);
    Py_XDECREF(errors);
    return rc;
}

static bool is_request_error(mm_status st)
{
    return st == MM_E_INVALID || st == MM_E_SHAPE || st == MM_E_TOO_LONG || st == MM_E_GRAMMAR;
}

static PyObject *raise_with(const mm_py_state *state, mm_status st, const char *message,
                            const char *param, int64_t index, PyObject *value)
{
    const bool known = (int)st > 0 && (int)st < MM_PY_N_ERROR && state->error[st] != NULL;
    PyObject *cls = known ? state->error[st] : PyExc_RuntimeError;
    PyObject *text = PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace");
    PyObject *args = text != NULL ? PyTuple_Pack(1, text) : NULL;
    PyObject *kwargs = NULL, *error = NULL;
    if (args != NULL && known && is_request_error(st)) {
        kwargs = PyDict_New();
        PyObject *name = kwargs == NULL
                             ? NULL
                             : (param != NULL && param[0] != '\0' ? PyUnicode_FromString(param)
                                                                  : Py_NewRef(Py_None));
        PyObject *where =
            name == NULL ? NULL : (index >= 0 ? PyLong_FromLongLong(index) : Py_NewRef(Py_None));
        const bool ok = where != NULL && PyDict_SetItemString(kwargs, "param", name) == 0 &&
                        PyDict_SetItemString(kwargs, "index", where) == 0 &&
                        PyDict_SetItemString(kwargs, "value", value != NULL ? value : Py_None) == 0;
        Py_XDECREF(where);
        Py_XDECREF(name);
        if (!ok)
            Py_CLEAR(args);
    }
    if (args != NULL)
        error = PyObject_Call(cls, args, kwargs);
    if (error != NULL)
        PyErr_SetObject(cls, error);
    Py_XDECREF(error);
    Py_XDECREF(kwargs);
    Py_XDECREF(args);
    Py_XDECREF(text);
    return NULL;
}

PyObject *mm_py_raise(const mm_py_state *state, mm_status st)
{
    if (PyErr_Occurred())
        return NULL;
    const char *message = mm_error_message();
    return raise_with(state, st, message[0] != '\0' ? message : mm_status_name(st),
                      mm_error_param(), mm_error_index(), NULL);
}

PyObject *mm_py_raise_value(const mm_py_state *state, mm_status st, const char *param,
                            PyObject *value, const char *fmt, ...)
{
    char message[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    PyErr_Clear(); /* a conversion error of CPython's that this message replaces */
    return raise_with(state, st, message, param, -1, value);
}
