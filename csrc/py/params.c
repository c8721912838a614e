/* params.c: the dict of Engine.submit -> mm_request_params.
 *
 * Keys are the struct's fields by name. Lists: bias_token, bias_value, allowed_token, stop_token,
 * forced_token, logprob_token, prompt_logprob_token as sequences (their counts follow), bad_words
 * as a sequence of token sequences, stop as a sequence of bytes, think_open and think_close as
 * bytes. What a value means, and its range, is checked by the core: here only types and widths. */
#include "csrc/py/mm_py.h"

#include <stddef.h>

#define FIELD(name, kind) {#name, kind, offsetof(mm_request_params, name), NULL}
#define NAMED(name, names) {#name, MM_PY_NAME, offsetof(mm_request_params, name), names}

static const mm_py_field fields[] = {
    FIELD(max_tokens, MM_PY_I32),
    FIELD(min_tokens, MM_PY_I32),
    FIELD(priority, MM_PY_I32),
    FIELD(notify_tokens, MM_PY_I32),
    FIELD(salt, MM_PY_U64),
    FIELD(group, MM_PY_U64),
    FIELD(skip_prefix_read, MM_PY_I32),
    FIELD(seed, MM_PY_U64),
    FIELD(temperature, MM_PY_F32),
    FIELD(top_k, MM_PY_I32),
    FIELD(top_p, MM_PY_F32),
    FIELD(min_p, MM_PY_F32),
    FIELD(repetition_penalty, MM_PY_F32),
    FIELD(frequency_penalty, MM_PY_F32),
    FIELD(presence_penalty, MM_PY_F32),
    FIELD(ignore_eos, MM_PY_I32),
    FIELD(n_logprob, MM_PY_I32),
    NAMED(logprob_mode, mm_py_logprob_names),
    FIELD(want_sampling_logprob, MM_PY_I32),
    FIELD(n_prompt_logprob, MM_PY_I32),
    FIELD(prompt_logprob_start, MM_PY_I32),
    NAMED(prompt_logprob_mode, mm_py_logprob_names),
    NAMED(think_start, mm_py_think_names),
    FIELD(think_close_token, MM_PY_I32),
    FIELD(think_budget, MM_PY_I32),
    FIELD(stop_in_thinking, MM_PY_I32),
    FIELD(rep_min_size, MM_PY_I32),
    FIELD(rep_max_size, MM_PY_I32),
    FIELD(rep_min_count, MM_PY_I32),
    FIELD(want_mask, MM_PY_I32),
    FIELD(n_draft_max, MM_PY_I32),
};
_Static_assert(sizeof(mm_logprob_mode) == sizeof(int) && sizeof(mm_think_state) == sizeof(int),
               "enums are ints");

/* Sequence of token sequences -> bad_token, bad_offset. */
static int read_bad_words(const mm_py_reader *r, PyObject *value, mm_request_params *out)
{
    PyObject *words = mm_py_scratch_keep(r->scratch, PySequence_Tuple(value));
    if (words == NULL)
        return -1;
    const Py_ssize_t n = PyTuple_GET_SIZE(words);
    if (n > MM_MAX_LIST) {
        mm_py_raise_value(r->state, r->bad, "bad_words", NULL,
                          "bad_words: %zd entries, at most %d are possible", n, MM_MAX_LIST);
        return -1;
    }
    int32_t *offset = mm_py_scratch_alloc(r->scratch, (size_t)(n + 1) * sizeof *offset);
    int32_t *token = mm_py_scratch_alloc(r->scratch, (size_t)MM_MAX_BAD_TOKENS * sizeof *token);
    if (offset == NULL || token == NULL)
        return -1;
    offset[0] = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *word = PySequence_Tuple(PyTuple_GET_ITEM(words, i));
        if (word == NULL)
            return -1;
        const Py_ssize_t size = PyTuple_GET_SIZE(word);
        int rc = 0;
        if (size > MM_MAX_BAD_TOKENS - offset[i]) {
            mm_py_raise_value(
                r->state, r->bad, "bad_words", NULL,
                "bad_words: more than %d tokens together; give fewer or shorter words",
                MM_MAX_BAD_TOKENS);
            rc = -1;
        }
        for (Py_ssize_t j = 0; rc == 0 && j < size; j++)
            rc = mm_py_read_i32(r, "bad_words", PyTuple_GET_ITEM(word, j), &token[offset[i] + j]);
        Py_DECREF(word);
        if (rc < 0)
            return -1;
        offset[i + 1] = offset[i] + (int32_t)size;
    }
    out->bad_token = token;
    out->bad_offset = offset;
    out->n_bad = (int32_t)n;
    return 0;
}

static int read_bytes(const mm_py_reader *r, const char *name, PyObject *value, const uint8_t **out,
                      int32_t *out_n)
{
    if (!PyBytes_Check(value) || PyBytes_GET_SIZE(value) > INT32_MAX) {
        mm_py_raise_value(r->state, r->bad, name, value, "%s: bytes are needed", name);
        return -1;
    }
    *out = (const uint8_t *)PyBytes_AS_STRING(value); /* the dict's value outlives the call that
                                                         reads it */
    *out_n = (int32_t)PyBytes_GET_SIZE(value);
    return 0;
}

/* 1 taken, 0 not a list field, -1 exception. */
static int read_list(const mm_py_reader *r, const char *name, PyObject *value, mm_request_params *p)
{
    const struct {
        const char *name;
        const int32_t **list;
        int32_t *n;
    } lists[] = {
        {"bias_token", &p->bias_token, &p->n_bias},
        {"allowed_token", &p->allowed_token, &p->n_allowed},
        {"stop_token", &p->stop_token, &p->n_stop_token},
        {"forced_token", &p->forced_token, &p->n_forced},
        {"logprob_token", &p->logprob_token, &p->n_logprob_token},
        {"prompt_logprob_token", &p->prompt_logprob_token, &p->n_prompt_logprob_token},
    };
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        if (strcmp(name, lists[i].name) == 0)
            return mm_py_read_i32_list(r, name, value, lists[i].list, lists[i].n) < 0 ? -1 : 1;
    int rc = 0;
    int32_t n_value = 0;
    if (strcmp(name, "bias_value") == 0)
        rc = mm_py_read_f32_list(r, name, value, &p->bias_value, &n_value);
    else if (strcmp(name, "bad_words") == 0)
        rc = read_bad_words(r, value, p);
    else if (strcmp(name, "stop") == 0)
        rc = mm_py_read_bytes_list(r, name, value, &p->stop_bytes, &p->stop_offset, NULL,
                                   &p->n_stop);
    else if (strcmp(name, "think_open") == 0)
        rc = read_bytes(r, name, value, &p->think_open, &p->n_think_open);
    else if (strcmp(name, "think_close") == 0)
        rc = read_bytes(r, name, value, &p->think_close, &p->n_think_close);
    else
        return 0;
    return rc < 0 ? -1 : 1;
}

int mm_py_read_params(const mm_py_state *state, mm_py_scratch *s, PyObject *dict,
                      mm_request_params *out)
{
    const mm_py_reader r = {.state = state, .bad = MM_E_INVALID, .what = "params", .scratch = s};
    mm_request_params_init(out);
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(dict, &at, &key, &value)) {
        const char *name = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : NULL;
        if (name == NULL) {
            PyErr_SetString(PyExc_TypeError, "params: names must be strings");
            return -1;
        }
        int rc = mm_py_read_field(&r, fields, sizeof fields / sizeof fields[0], out, name, value);
        if (rc == 0)
            rc = read_list(&r, name, value, out);
        if (rc == 0)
            rc = mm_py_raise_unknown(&r, name);
        if (rc < 0)
            return -1;
    }
    PyObject *token = PyDict_GetItemString(dict, "bias_token"),
             *bias = PyDict_GetItemString(dict, "bias_value");
    const Py_ssize_t n_token = token != NULL ? PyObject_Length(token) : 0;
    const Py_ssize_t n_bias = bias != NULL ? PyObject_Length(bias) : 0;
    if (n_token < 0 || n_bias < 0)
        return -1;
    if (n_token != n_bias) {
        mm_py_raise_value(state, MM_E_INVALID, "logit_bias", NULL,
                          "logit_bias: %zd tokens but %zd values", n_token, n_bias);
        return -1;
    }
    return 0;
}
