/* module.c: the module _core: multi-phase initialisation, its state, and the functions that need no
 * engine. */
#include "csrc/py/mm_py.h"

static PyObject *core_config_check(PyObject *module, PyObject *arg)
{
    const mm_py_state *state = PyModule_GetState(module);
    mm_py_scratch scratch = {0};
    mm_config config;
    PyObject *result = NULL;
    if (mm_py_read_config(state, &scratch, arg, &config) == 0) {
        const mm_status st = mm_config_check(&config);
        result = st == MM_OK ? Py_NewRef(Py_None) : mm_py_raise(state, st);
    }
    mm_py_scratch_free(&scratch);
    return result;
}

static PyObject *core_page_bytes(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"config",     "kv_format",   "index_format",
                            "shard_rank", "shard_world", NULL};
    const mm_py_state *state = PyModule_GetState(module);
    mm_py_scratch scratch = {0};
    const mm_py_reader r = {
        .state = state, .bad = MM_E_CONFIG, .what = "page_bytes", .scratch = &scratch};
    mm_config config;
    PyObject *dict, *kv, *index, *result = NULL;
    int kv_format, index_format, shard_rank, shard_world;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOii:page_bytes", names, &dict, &kv, &index,
                                     &shard_rank, &shard_world))
        return NULL;
    if (mm_py_read_name(&r, "kv_format", kv, mm_py_cache_names, &kv_format) == 0 &&
        mm_py_read_name(&r, "index_format", index, mm_py_cache_names, &index_format) == 0 &&
        mm_py_read_config(state, &scratch, dict, &config) == 0) {
        const mm_status st = mm_config_check(&config);
        if (st != MM_OK)
            mm_py_raise(state, st);
        else if (shard_world < 1 || shard_rank < 0 || shard_rank >= shard_world)
            PyErr_Format(PyExc_ValueError, "shard %d of %d does not exist", shard_rank,
                         shard_world);
        else
            result = PyLong_FromLongLong(mm_model_page_bytes(&config, (mm_cache_format)kv_format,
                                                             (mm_cache_format)index_format,
                                                             shard_rank, shard_world));
    }
    mm_py_scratch_free(&scratch);
    return result;
}

/* Paths in the text may hold any bytes. */
static PyObject *decode(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static PyObject *core_backends(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    mm_backend_line line[16];
    int32_t n = mm_backend_list(line, 16);
    n = n < 16 ? n : 16;
    PyObject *list = PyList_New(0);
    for (int32_t i = 0; list != NULL && i < n; i++) {
        PyObject *item = Py_BuildValue("sNN", line[i].name, PyBool_FromLong(line[i].usable),
                                       decode(line[i].text));
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *core_log_drain(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *list = PyList_New(0);
    char text[1024];
    int32_t level = 0;
    while (list != NULL && mm_log_take(&level, text, sizeof text) != 0) {
        PyObject *item = Py_BuildValue("iN", (int)level, decode(text));
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *core_env_table(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *list = PyList_New(0);
    const char *name, *value, *help;
    for (int32_t i = 0; list != NULL && mm_env_entry(i, &name, &value, &help) != 0; i++) {
        PyObject *item = Py_BuildValue("sNs", name, decode(value != NULL ? value : ""), help);
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *core_env_problems(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *list = PyList_New(0);
    const char *name, *text;
    int32_t is_value = 0;
    for (int32_t i = 0; list != NULL && mm_env_problem(i, &name, &text, &is_value) != 0; i++) {
        PyObject *item =
            Py_BuildValue("NNN", decode(name), decode(text), PyBool_FromLong(is_value));
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyMethodDef core_functions[] = {
    {"config_check", core_config_check, METH_O,
     "Raises ConfigError when the forward pass cannot run such a model."},
    {"page_bytes", (PyCFunction)(void (*)(void))core_page_bytes, METH_VARARGS | METH_KEYWORDS,
     "Bytes of one page (128 tokens) over all layers on one rank."},
    {"plan", (PyCFunction)(void (*)(void))mm_py_plan, METH_VARARGS | METH_KEYWORDS,
     "What an engine with these options would take; nothing is loaded."},
    {"backends", core_backends, METH_NOARGS, "(name, usable, text) of every backend."},
    {"log_drain", core_log_drain, METH_NOARGS, "Queued log lines of the core: (level, text)."},
    {"env_table", core_env_table, METH_NOARGS, "(name, value, help) of every MM_* variable."},
    {"env_problems", core_env_problems, METH_NOARGS,
     "(name, what is wrong, whether it is the value: else the name) of MM_* variables."},
    {NULL, NULL, 0, NULL},
};

static int core_exec(PyObject *module)
{
    mm_py_state *state = PyModule_GetState(module);
    if (mm_py_arrays_init() < 0 || mm_py_errors_init(state) < 0)
        return -1;
    state->engine_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &mm_py_engine_spec, NULL);
    state->waiter_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &mm_py_waiter_spec, NULL);
    if (state->engine_type == NULL || state->waiter_type == NULL)
        return -1;
    if (PyModule_AddType(module, state->engine_type) < 0 ||
        PyModule_AddType(module, state->waiter_type) < 0 ||
        PyModule_AddIntConstant(module, "ABI", MM_ABI) < 0 ||
        PyModule_AddIntConstant(module, "PAGE", MM_PAGE) < 0 ||
        PyModule_AddIntConstant(module, "MAX_LIST", MM_MAX_LIST) < 0)
        return -1;
    return 0;
}

static int core_traverse(PyObject *module, visitproc visit, void *arg)
{
    mm_py_state *state = PyModule_GetState(module);
    Py_VISIT(state->engine_type);
    Py_VISIT(state->waiter_type);
    for (int i = 0; i < MM_PY_N_ERROR; i++)
        Py_VISIT(state->error[i]);
    return 0;
}

static int core_clear(PyObject *module)
{
    mm_py_state *state = PyModule_GetState(module);
    Py_CLEAR(state->engine_type);
    Py_CLEAR(state->waiter_type);
    for (int i = 0; i < MM_PY_N_ERROR; i++)
        Py_CLEAR(state->error[i]);
    return 0;
}

static void core_free(void *module)
{
    core_clear(module);
}

static PyModuleDef_Slot core_slots[] = {
    {Py_mod_exec, (void *)core_exec},
    {0, NULL},
};

struct PyModuleDef mm_py_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "minimax_m31._core",
    .m_doc = "The C core of minimax_m31. Thin: each method is one call of csrc/mm.h.",
    .m_size = sizeof(mm_py_state),
    .m_methods = core_functions,
    .m_slots = core_slots,
    .m_traverse = core_traverse,
    .m_clear = core_clear,
    .m_free = core_free,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&mm_py_module);
}
