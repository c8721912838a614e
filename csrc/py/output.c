/* output.c: structs of results -> dicts and lists.
 * Arrays are copies of the entries from token `start` on: nothing handed out refers to the engine's
 * memory. */
#include "csrc/py/mm_py.h"

int mm_py_dict_take(PyObject *dict, const char *name, PyObject *owned)
{
    if (owned == NULL)
        return -1;
    const int rc = PyDict_SetItemString(dict, name, owned);
    Py_DECREF(owned);
    return rc;
}

static PyObject *text_of(const char *text)
{
    return text != NULL ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace")
                        : Py_NewRef(Py_None);
}

static PyObject *error_of(const mm_output *o)
{
    if (o->error == MM_OK)
        return Py_NewRef(Py_None);
    PyObject *message = text_of(o->error_message != NULL ? o->error_message : ""), *param = NULL,
             *index = NULL;
    param = o->error_param != NULL && o->error_param[0] != '\0' ? text_of(o->error_param)
                                                                : Py_NewRef(Py_None);
    index = o->error_index >= 0 ? PyLong_FromLongLong(o->error_index) : Py_NewRef(Py_None);
    PyObject *tuple = NULL;
    if (message != NULL && param != NULL && index != NULL)
        tuple = Py_BuildValue("sOOO", mm_status_name(o->error), message, param, index);
    Py_XDECREF(message);
    Py_XDECREF(param);
    Py_XDECREF(index);
    return tuple;
}

/* `n` entries of `width` after the first `start`; None where the engine recorded none. */
static PyObject *rows_of(mm_py_dtype dtype, const void *data, int64_t start, int64_t n,
                         int64_t width)
{
    if (data == NULL)
        return Py_NewRef(Py_None);
    const int64_t step = width > 0 ? width : 1;
    return mm_py_array_copy(dtype, (const char *)data + start * step * 4, n, width); /* all of them:
                                                                                        4 bytes */
}

PyObject *mm_py_output_dict(const mm_output *o, int64_t start)
{
    PyObject *d = PyDict_New();
    if (d == NULL)
        return NULL;
    if (start < 0 || start > o->n_token)
        start = o->n_token;
    const int64_t n = o->n_token - start, w = o->logprob_width, pw = o->prompt_width,
                  pn = o->n_prompt_row;
    const struct {
        const char *name;
        int64_t value;
    } ints[] = {
        {"stop_index", o->stop_index},
        {"stop_begin", o->stop_begin},
        {"stop_end", o->stop_end},
        {"n_token", o->n_token},
        {"n_prompt", o->n_prompt},
        {"n_cached", o->n_cached},
        {"n_preempted", o->n_preempted},
        {"n_think_token", o->n_think_token},
        {"want_mask_token", o->want_mask_token},
        {"n_draft", o->n_draft},
        {"n_draft_accepted", o->n_draft_accepted},
        {"n_verify", o->n_verify},
        {"prompt_width", pw},
        {"n_prompt_row", pn},
        {"logprob_width", w},
    };
    const struct {
        const char *name;
        double value;
    } times[] = {
        {"t_submit", o->t_submit}, {"t_scheduled", o->t_scheduled}, {"t_first", o->t_first},
        {"t_last", o->t_last},     {"t_done", o->t_done},
    };
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof ints / sizeof ints[0]; i++)
        rc = mm_py_dict_take(d, ints[i].name, PyLong_FromLongLong(ints[i].value));
    for (size_t i = 0; rc == 0 && i < sizeof times / sizeof times[0]; i++)
        rc = mm_py_dict_take(d, times[i].name, PyFloat_FromDouble(times[i].value));
    const bool has_lp = w > 0 && o->logprob != NULL,
               has_prompt = pw > 0 && o->prompt_logprob != NULL;
    if (rc < 0 ||
        mm_py_dict_take(d, "finish", PyUnicode_FromString(mm_py_finish_names[o->finish])) < 0 ||
        mm_py_dict_take(d, "stop", PyUnicode_FromString(mm_py_stop_names[o->stop])) < 0 ||
        mm_py_dict_take(d, "weight_version", PyLong_FromUnsignedLongLong(o->weight_version)) < 0 ||
        mm_py_dict_take(d, "error", error_of(o)) < 0 ||
        mm_py_dict_take(d, "token",
                        mm_py_array_copy(MM_PY_ARRAY_I32, o->token + (n > 0 ? start : 0), n, -1)) <
            0 ||
        mm_py_dict_take(d, "logprob_id",
                        rows_of(MM_PY_ARRAY_I32, has_lp ? o->logprob_id : NULL, start, n, w)) < 0 ||
        mm_py_dict_take(d, "logprob",
                        rows_of(MM_PY_ARRAY_F32, has_lp ? o->logprob : NULL, start, n, w)) < 0 ||
        mm_py_dict_take(d, "logprob_rank",
                        rows_of(MM_PY_ARRAY_I32, has_lp ? o->logprob_rank : NULL, start, n, w)) <
            0 ||
        mm_py_dict_take(d, "sampling_logprob",
                        rows_of(MM_PY_ARRAY_F32, o->sampling_logprob, start, n, -1)) < 0 ||
        mm_py_dict_take(d, "prompt_id",
                        rows_of(MM_PY_ARRAY_I32, has_prompt ? o->prompt_id : NULL, 0, pn, pw)) <
            0 ||
        mm_py_dict_take(
            d, "prompt_logprob",
            rows_of(MM_PY_ARRAY_F32, has_prompt ? o->prompt_logprob : NULL, 0, pn, pw)) < 0 ||
        mm_py_dict_take(d, "prompt_rank",
                        rows_of(MM_PY_ARRAY_I32, has_prompt ? o->prompt_rank : NULL, 0, pn, pw)) <
            0)
        Py_CLEAR(d);
    return d;
}

PyObject *mm_py_stats_dict(const mm_engine_stats *s)
{
    PyObject *d = PyDict_New();
    const struct {
        const char *name;
        int64_t value;
    } ints[] = {
        {"n_waiting", s->n_waiting},
        {"n_running", s->n_running},
        {"n_finished", s->n_finished},
        {"n_aborted", s->n_aborted},
        {"n_failed", s->n_failed},
        {"n_preempted", s->n_preempted},
        {"n_prompt_token", s->n_prompt_token},
        {"n_cached_token", s->n_cached_token},
        {"n_output_token", s->n_output_token},
        {"n_step", s->n_step},
        {"n_graph_step", s->n_graph_step},
        {"n_page", s->n_page},
        {"n_page_free", s->n_page_free},
        {"n_page_cached", s->n_page_cached},
        {"n_block_read", s->n_block_read},
        {"n_block_held", s->n_block_held},
    };
    int rc = d != NULL ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < sizeof ints / sizeof ints[0]; i++)
        rc = mm_py_dict_take(d, ints[i].name, PyLong_FromLongLong(ints[i].value));
    if (rc < 0 || mm_py_dict_take(d, "t_step_total", PyFloat_FromDouble(s->t_step_total)) < 0 ||
        mm_py_dict_take(d, "t_step_last", PyFloat_FromDouble(s->t_step_last)) < 0 ||
        mm_py_dict_take(d, "t_step_p50", PyFloat_FromDouble(s->t_step_p50)) < 0 ||
        mm_py_dict_take(d, "t_step_p99", PyFloat_FromDouble(s->t_step_p99)) < 0 ||
        mm_py_dict_take(d, "t_host_total", PyFloat_FromDouble(s->t_host_total)) < 0 ||
        mm_py_dict_take(d, "weight_version", PyLong_FromUnsignedLongLong(s->weight_version)) < 0)
        Py_CLEAR(d);
    return d;
}

PyObject *mm_py_info_dict(const mm_engine_info *info)
{
    PyObject *d = PyDict_New();
    const struct {
        const char *name;
        int64_t value;
    } ints[] = {
        {"n_thread", info->n_thread},
        {"n_rank", info->n_rank},
        {"max_model_len", info->max_model_len},
        {"max_num_seqs", info->max_num_seqs},
        {"max_batched_tokens", info->max_batched_tokens},
        {"run_ahead", info->run_ahead},
        {"n_page", info->n_page},
        {"page_bytes", info->page_bytes},
        {"max_entries", info->max_entries},
        {"n_tensor_unused", info->n_tensor_unused},
    };
    int rc = d != NULL ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < sizeof ints / sizeof ints[0]; i++)
        rc = mm_py_dict_take(d, ints[i].name, PyLong_FromLongLong(ints[i].value));
    if (rc < 0 || mm_py_dict_take(d, "backend", text_of(info->backend)) < 0 ||
        mm_py_dict_take(d, "tier", text_of(info->tier)) < 0 ||
        mm_py_dict_take(d, "kv_format", text_of(mm_py_cache_names[info->kv_format])) < 0 ||
        mm_py_dict_take(d, "index_format", text_of(mm_py_cache_names[info->index_format])) < 0 ||
        mm_py_dict_take(d, "dtype", text_of(mm_py_dtype_names[info->dtype])) < 0)
        Py_CLEAR(d);
    return d;
}

PyObject *mm_py_memory_list(const mm_memory_line *line, int32_t n)
{
    PyObject *list = PyList_New(n);
    for (int32_t i = 0; list != NULL && i < n; i++) {
        PyObject *item =
            Py_BuildValue("ssL", line[i].what, line[i].kind, (long long)line[i].n_bytes);
        if (item == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, item);
    }
    return list;
}
