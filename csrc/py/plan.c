/* plan.c: _core.plan: what an engine would take, before there is one. */
#include "csrc/py/mm_py.h"

static const char *const class_name[MM_N_WEIGHT_CLASS] = {
    [MM_CLASS_EXPERTS] = "experts",     [MM_CLASS_SHARED] = "shared",
    [MM_CLASS_ATTENTION] = "attention", [MM_CLASS_INDEX] = "index",
    [MM_CLASS_DENSE] = "dense",         [MM_CLASS_EMBEDDING] = "embedding",
    [MM_CLASS_HEAD] = "head",           [MM_CLASS_SMALL] = "small",
};

static PyObject *class_dict(const int64_t n_bytes[MM_N_WEIGHT_CLASS])
{
    PyObject *dict = PyDict_New();
    for (int i = 0; dict != NULL && i < MM_N_WEIGHT_CLASS; i++)
        if (mm_py_dict_take(dict, class_name[i], PyLong_FromLongLong(n_bytes[i])) < 0)
            Py_CLEAR(dict);
    return dict;
}

static PyObject *plan_dict(const mm_forecast *p)
{
    const struct {
        const char *name;
        long long value;
    } number[] = {
        {"page_bytes", p->page_bytes},   {"index_page_bytes", p->index_page_bytes},
        {"n_page", p->n_page},           {"memory_total", p->memory_total},
        {"memory_free", p->memory_free}, {"reserve", p->reserve},
        {"row_bytes", p->row_bytes},
    };
    PyObject *dict = PyDict_New();
    if (dict == NULL)
        return NULL;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof number / sizeof number[0]; i++)
        rc = mm_py_dict_take(dict, number[i].name, PyLong_FromLongLong(number[i].value));
    if (rc == 0)
        rc = mm_py_dict_take(dict, "is_host", PyBool_FromLong(p->is_host));
    if (rc == 0)
        rc = mm_py_dict_take(dict, "lines", mm_py_memory_list(p->line, p->n_line));
    if (rc == 0)
        rc = mm_py_dict_take(dict, "weights", class_dict(p->weights));
    if (rc == 0)
        rc = mm_py_dict_take(dict, "param", PyUnicode_FromString(p->param));
    if (rc == 0)
        rc = mm_py_dict_take(
            dict, "problem",
            PyUnicode_DecodeUTF8(p->problem, (Py_ssize_t)strlen(p->problem), "replace"));
    if (rc < 0)
        Py_CLEAR(dict);
    return dict;
}

PyObject *mm_py_plan(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"config",       "options",     "files", "tensors",
                            "memory_total", "memory_free", NULL};
    const mm_py_state *state = PyModule_GetState(module);
    PyObject *empty = PyTuple_New(0);
    if (empty == NULL)
        return NULL;
    mm_py_open_args a = {
        .files = empty, .tensors = empty, .eos_token_ids = empty, .token_bytes = Py_None};
    mm_py_scratch scratch = {0};
    mm_config config;
    mm_tensor_table table;
    mm_engine_options options;
    mm_forecast plan;
    PyObject *result = NULL;
    long long memory_total = 0, memory_free = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$OOLL:plan", names, &a.config, &a.options,
                                     &a.files, &a.tensors, &memory_total, &memory_free))
        goto done;
    if (mm_py_read_options(state, &scratch, &a, &config, &table, &options) < 0)
        goto done;
    options.verify = -1;
    mm_status st;
    Py_BEGIN_ALLOW_THREADS;
    st = mm_engine_plan(&options, memory_total, memory_free, &plan);
    Py_END_ALLOW_THREADS;
    result = st == MM_OK ? plan_dict(&plan) : mm_py_raise(state, st);
done:
    mm_py_scratch_free(&scratch);
    Py_DECREF(empty);
    return result;
}
