/* options.c: the arguments of Engine(...) -> mm_config, mm_tensor_table, mm_engine_options.
 * Keys are the structs' fields by name; a missing key of the config is an error, options have the
 * core's defaults. */
#include "csrc/py/mm_py.h"

#include <stddef.h>

#define CONFIG(name, kind) {#name, kind, offsetof(mm_config, name), NULL}
#define OPTION(name, kind) {#name, kind, offsetof(mm_engine_options, name), NULL}
#define NAMED(name, names) {#name, MM_PY_NAME, offsetof(mm_engine_options, name), names}

static const mm_py_field config_fields[] = {
    CONFIG(n_layer, MM_PY_I32),       CONFIG(n_vocab, MM_PY_I32),
    CONFIG(d_model, MM_PY_I32),       CONFIG(n_head, MM_PY_I32),
    CONFIG(n_kv_head, MM_PY_I32),     CONFIG(head_dim, MM_PY_I32),
    CONFIG(n_rotary, MM_PY_I32),      CONFIG(n_index_head, MM_PY_I32),
    CONFIG(index_dim, MM_PY_I32),     CONFIG(n_top_block, MM_PY_I32),
    CONFIG(n_init_block, MM_PY_I32),  CONFIG(n_expert, MM_PY_I32),
    CONFIG(n_expert_used, MM_PY_I32), CONFIG(d_expert, MM_PY_I32),
    CONFIG(d_shared, MM_PY_I32),      CONFIG(d_dense, MM_PY_I32),
    CONFIG(max_position, MM_PY_I32),  CONFIG(has_routing_bias, MM_PY_I32),
    CONFIG(rope_theta, MM_PY_F64),    CONFIG(rms_eps, MM_PY_F64),
    CONFIG(swiglu_alpha, MM_PY_F64),  CONFIG(swiglu_beta, MM_PY_F64),
    CONFIG(swiglu_limit, MM_PY_F64),  CONFIG(routed_scale, MM_PY_F64),
};

static const mm_py_field option_fields[] = {
    NAMED(load, mm_py_load_names),
    OPTION(dummy_seed, MM_PY_U64),
    OPTION(dummy_quantized, MM_PY_I32),
    OPTION(dummy_context, MM_PY_I32),
    OPTION(verify, MM_PY_I32),
    NAMED(dtype, mm_py_dtype_names),
    NAMED(kv_format, mm_py_cache_names),
    NAMED(index_format, mm_py_cache_names),
    OPTION(n_thread, MM_PY_I32),
    OPTION(n_rank, MM_PY_I32),
    OPTION(shard_rank, MM_PY_I32),
    OPTION(shard_world, MM_PY_I32),
    OPTION(max_model_len, MM_PY_I32),
    OPTION(max_num_seqs, MM_PY_I32),
    OPTION(max_batched_tokens, MM_PY_I32),
    OPTION(kv_bytes, MM_PY_I64),
    OPTION(memory_fraction, MM_PY_F64),
    OPTION(max_logprobs, MM_PY_I32),
    OPTION(batch_invariant, MM_PY_I32),
    OPTION(enable_prefix_cache, MM_PY_I32),
    OPTION(priority_policy, MM_PY_I32),
    OPTION(enforce_eager, MM_PY_I32),
    OPTION(graph_rows, MM_PY_I32),
    OPTION(run_ahead, MM_PY_I32),
};
_Static_assert(sizeof(mm_dtype) == sizeof(int) && sizeof(mm_cache_format) == sizeof(int) &&
                   sizeof(mm_load) == sizeof(int),
               "enums are ints");

static const char *key_text(PyObject *key, const char *what)
{
    const char *name = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : NULL;
    if (name == NULL)
        PyErr_Format(PyExc_TypeError, "%s: names must be strings", what);
    return name;
}

/* One flag per layer, as bytes. */
static int read_flags(const mm_py_reader *r, const char *name, PyObject *value, const uint8_t **out,
                      int32_t *out_n)
{
    const int32_t *list = NULL;
    if (mm_py_read_i32_list(r, name, value, &list, out_n) < 0)
        return -1;
    uint8_t *flags = mm_py_scratch_alloc(r->scratch, (size_t)*out_n);
    if (flags == NULL)
        return -1;
    for (int32_t i = 0; i < *out_n; i++)
        flags[i] = list[i] != 0;
    *out = flags;
    return 0;
}

int mm_py_read_config(const mm_py_state *state, mm_py_scratch *s, PyObject *dict, mm_config *out)
{
    const mm_py_reader r = {.state = state, .bad = MM_E_CONFIG, .what = "config", .scratch = s};
    mm_config_init(out);
    int32_t n_sparse = -1, n_moe = -1;
    size_t n_seen = 0;
    PyObject *copy = mm_py_scratch_keep(s, PyDict_New());
    if (copy == NULL || PyDict_Update(copy, dict) < 0)
        return -1;
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(copy, &at, &key, &value)) {
        const char *name = key_text(key, "config");
        if (name == NULL)
            return -1;
        int rc = mm_py_read_field(&r, config_fields, sizeof config_fields / sizeof config_fields[0],
                                  out, name, value);
        n_seen += rc == 1;
        if (rc == 0 && strcmp(name, "layer_is_sparse") == 0)
            rc = read_flags(&r, name, value, &out->layer_is_sparse, &n_sparse) < 0 ? -1 : 1;
        else if (rc == 0 && strcmp(name, "layer_is_moe") == 0)
            rc = read_flags(&r, name, value, &out->layer_is_moe, &n_moe) < 0 ? -1 : 1;
        else if (rc == 0 && strcmp(name, "never_token") == 0) {
            const int32_t *list = NULL;
            int32_t n = 0;
            const int32_t cap = (int32_t)(sizeof out->never_token / sizeof out->never_token[0]);
            rc = mm_py_read_i32_list(&r, name, value, &list, &n);
            if (rc == 0 && n > cap) {
                mm_py_raise_value(state, MM_E_CONFIG, name, NULL, "never_token: %d ids, at most %d",
                                  n, cap);
                rc = -1;
            }
            for (int32_t i = 0; rc == 0 && i < n; i++)
                out->never_token[i] = list[i];
            rc = rc < 0 ? -1 : 1;
        }
        if (rc == 0)
            rc = mm_py_raise_unknown(&r, name);
        if (rc < 0)
            return -1;
    }
    for (size_t i = 0; i < sizeof config_fields / sizeof config_fields[0]; i++) {
        if (n_seen == sizeof config_fields / sizeof config_fields[0])
            break;
        if (PyDict_GetItemString(copy, config_fields[i].name) == NULL) {
            mm_py_raise_value(state, MM_E_CONFIG, config_fields[i].name, NULL,
                              "config: %s is missing", config_fields[i].name);
            return -1;
        }
    }
    if (n_sparse != out->n_layer || n_moe != out->n_layer) {
        mm_py_raise_value(
            state, MM_E_CONFIG, "layer_is_sparse", NULL,
            "config: layer_is_sparse has %d and layer_is_moe %d entries for %d layers", n_sparse,
            n_moe, out->n_layer);
        return -1;
    }
    return 0;
}

/* ---------------------------------------------------------------- tensor table */

/* One (name, file, dtype, shape, offset, bytes). Strings stay borrowed from the tuple. */
static int read_entry(const mm_py_reader *r, PyObject *item, int32_t n_file, mm_tensor_entry *out)
{
    const char *name, *dtype;
    PyObject *shape;
    long long offset, n_bytes;
    int file;
    if (!PyTuple_Check(item) || !PyArg_ParseTuple(item, "sisO!LL", &name, &file, &dtype,
                                                  &PyTuple_Type, &shape, &offset, &n_bytes)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError,
                            "tensors: (name, file, dtype, shape, offset, bytes) tuples are needed");
        return -1;
    }
    *out = (mm_tensor_entry){.name = name, .file = file, .offset = offset, .n_bytes = n_bytes};
    int code = -1;
    for (int i = 0; mm_py_safetensors_names[i] != NULL; i++)
        if (strcmp(mm_py_safetensors_names[i], dtype) == 0)
            code = i;
    const Py_ssize_t rank = PyTuple_GET_SIZE(shape);
    const char *wrong = code < 0                     ? "a dtype that no model of this family has"
                        : rank > 5                   ? "more than five dimensions"
                        : file < 0 || file >= n_file ? "a file that is not in the list"
                        : offset < 0 || n_bytes < 0  ? "a negative offset or size"
                                                     : NULL;
    if (wrong != NULL) {
        mm_py_raise_value(r->state, MM_E_FORMAT, name, NULL, "%s (%s, %zd dimensions) has %s", name,
                          dtype, rank, wrong);
        return -1;
    }
    out->dtype = (mm_dtype)code;
    out->rank = (int32_t)rank;
    for (Py_ssize_t i = 0; i < rank; i++)
        if (mm_py_read_i64(r, name, PyTuple_GET_ITEM(shape, i), &out->dim[i]) < 0)
            return -1;
    return 0;
}

static int entry_by_name(const void *a, const void *b)
{
    return strcmp(((const mm_tensor_entry *)a)->name, ((const mm_tensor_entry *)b)->name);
}

static int read_table(const mm_py_reader *r, PyObject *files, PyObject *tensors,
                      mm_tensor_table *out)
{
    PyObject *paths = mm_py_scratch_keep(r->scratch, PySequence_Tuple(files));
    PyObject *items =
        paths != NULL ? mm_py_scratch_keep(r->scratch, PySequence_Tuple(tensors)) : NULL;
    if (items == NULL)
        return -1;
    const Py_ssize_t n_file = PyTuple_GET_SIZE(paths), n = PyTuple_GET_SIZE(items);
    const char **path = mm_py_scratch_alloc(r->scratch, (size_t)n_file * sizeof *path);
    mm_tensor_entry *entry = mm_py_scratch_alloc(r->scratch, (size_t)n * sizeof *entry);
    if (path == NULL || entry == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < n_file; i++) {
        /* bytes of the file system's encoding: a path need not be valid UTF-8 */
        PyObject *encoded = NULL;
        if (!PyUnicode_FSConverter(PyTuple_GET_ITEM(paths, i), &encoded))
            return -1;
        char *text = mm_py_scratch_alloc(r->scratch, (size_t)PyBytes_GET_SIZE(encoded) + 1);
        if (text != NULL)
            memcpy(text, PyBytes_AS_STRING(encoded), (size_t)PyBytes_GET_SIZE(encoded) + 1);
        Py_DECREF(encoded);
        if (text == NULL)
            return -1;
        path[i] = text;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        if (read_entry(r, PyTuple_GET_ITEM(items, i), (int32_t)n_file, &entry[i]) < 0)
            return -1;
    qsort(entry, (size_t)n, sizeof *entry, entry_by_name);
    *out = (mm_tensor_table){.entry = entry, .n_entry = n, .path = path, .n_file = (int32_t)n_file};
    return 0;
}

/* ---------------------------------------------------------------- options */

int mm_py_read_options(const mm_py_state *state, mm_py_scratch *s, const mm_py_open_args *args,
                       mm_config *config, mm_tensor_table *table, mm_engine_options *out)
{
    const mm_py_reader r = {.state = state, .bad = MM_E_CONFIG, .what = "options", .scratch = s};
    mm_engine_options_init(out);
    if (mm_py_read_config(state, s, args->config, config) < 0)
        return -1;
    out->config = config;
    PyObject *copy = mm_py_scratch_keep(s, PyDict_New());
    if (copy == NULL || PyDict_Update(copy, args->options) < 0)
        return -1;
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(copy, &at, &key, &value)) {
        const char *name = key_text(key, "options");
        if (name == NULL)
            return -1;
        int rc = mm_py_read_field(&r, option_fields, sizeof option_fields / sizeof option_fields[0],
                                  out, name, value);
        if (rc == 0 && strcmp(name, "backend") == 0) {
            out->backend = PyUnicode_Check(value) ? PyUnicode_AsUTF8(value) : NULL;
            rc = out->backend != NULL ? 1 : -1;
            if (rc < 0 && !PyErr_Occurred())
                PyErr_SetString(PyExc_TypeError, "options: backend must be a string");
        } else if (rc == 0 && strcmp(name, "device") == 0) {
            int32_t n_device = 0;
            rc = mm_py_read_i32_list(&r, name, value, &out->device, &n_device) < 0 ? -1 : 1;
        } else if (rc == 0 && strcmp(name, "graph_size") == 0) {
            rc = mm_py_read_i32_list(&r, name, value, &out->graph_size, &out->n_graph_size);
            rc = rc < 0 ? -1 : 1;
        }
        if (rc == 0)
            rc = mm_py_raise_unknown(&r, name);
        if (rc < 0)
            return -1;
    }
    if (read_table(&r, args->files, args->tensors, table) < 0)
        return -1;
    out->weights = table;
    if (mm_py_read_i32_list(&r, "eos_token_ids", args->eos_token_ids, &out->eos_token,
                            &out->n_eos) < 0)
        return -1;
    mm_token_bytes *bytes = &out->token_bytes;
    if (args->token_bytes != Py_None &&
        mm_py_read_bytes_list(&r, "token_bytes", args->token_bytes, &bytes->blob, NULL,
                              &bytes->offset, &bytes->n_token) < 0)
        return -1;
    return 0;
}
