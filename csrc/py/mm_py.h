/* mm_py.h: what the files of the Python extension share.
 *
 * The extension is thin: a method reads its arguments into C, releases the GIL where the call can
 * wait, makes one call of mm.h, and builds the result. All state lives in the module's state struct
 * and in heap types. No file here takes a lock: the GIL orders what the binding owns, the core
 * locks what it owns. */
#ifndef MM_PY_H
#define MM_PY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <sys/types.h>

#include "csrc/mm.h"

/* ---------------------------------------------------------------- module state */

enum { MM_PY_N_ERROR = MM_E_CANCELLED + 1 };

typedef struct mm_py_state {
    PyTypeObject *engine_type;
    PyTypeObject *waiter_type;
    PyObject *error[MM_PY_N_ERROR]; /* exception class of each mm_status; NULL where none crosses
                                       the border */
} mm_py_state;

extern struct PyModuleDef mm_py_module;
extern PyType_Spec mm_py_engine_spec;
extern PyType_Spec mm_py_waiter_spec;

static inline mm_py_state *mm_py_state_of(PyTypeObject *type)
{
    PyObject *module = PyType_GetModuleByDef(type, &mm_py_module);
    return module != NULL ? (mm_py_state *)PyModule_GetState(module) : NULL;
}

/* ---------------------------------------------------------------- errors (errors.c) */

/* Fills state->error from minimax_m31.errors and the builtins; -1 with an exception on failure. */
int mm_py_errors_init(mm_py_state *state);
/* Raises this thread's last mm_* failure. Always returns NULL. A pending Python exception wins
 * (MM_E_CANCELLED). */
PyObject *mm_py_raise(const mm_py_state *state, mm_status st);
/* Raises the class of `st` with a message of our own; `param` may be NULL, `value` too. Always
 * returns NULL. */
PyObject *mm_py_raise_value(const mm_py_state *state, mm_status st, const char *param,
                            PyObject *value, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* ---------------------------------------------------------------- struct fields from a mapping
 * (fields.c) */

typedef enum mm_py_kind {
    MM_PY_I32,
    MM_PY_I64,
    MM_PY_U64,
    MM_PY_F32,
    MM_PY_F64,
    MM_PY_NAME, /* enum stored as int: its value is the position in `names` */
} mm_py_kind;

typedef struct mm_py_field {
    const char *name;
    mm_py_kind kind;
    size_t offset;
    const char *const *names; /* NULL-terminated, MM_PY_NAME only */
} mm_py_field;

/* Enum names, NULL-terminated, in the order of the C enums. */
extern const char *const mm_py_dtype_names[], *const mm_py_safetensors_names[],
                                                  *const mm_py_cache_names[];
extern const char *const mm_py_load_names[], *const mm_py_logprob_names[],
                                                 *const mm_py_think_names[];
extern const char *const mm_py_finish_names[], *const mm_py_stop_names[];

/* Memory that lives as long as one call: freed in one go, whatever happened. */
typedef struct mm_py_scratch {
    struct mm_py_block *block; /* newest first */
    PyObject *object[32];
    int n_object;
} mm_py_scratch;
void *mm_py_scratch_alloc(mm_py_scratch *s, size_t n_bytes); /* never NULL for 0 bytes; NULL with
                                                                MemoryError */
PyObject *mm_py_scratch_keep(mm_py_scratch *s, PyObject *owned); /* NULL passes through */
void mm_py_scratch_free(mm_py_scratch *s);

/* Where a value came from and which class an error about it has. */
typedef struct mm_py_reader {
    const mm_py_state *state;
    mm_status bad;    /* class of a bad value */
    const char *what; /* "config", "params": used for unknown names */
    mm_py_scratch *scratch;
} mm_py_reader;

/* Writes dict[name] into the struct when `name` is one of the fields: 1 taken, 0 no such field, -1
 * exception. */
int mm_py_read_field(const mm_py_reader *r, const mm_py_field *field, size_t n_field, void *out,
                     const char *name, PyObject *value);
int mm_py_read_i32(const mm_py_reader *r, const char *name, PyObject *value, int32_t *out);
int mm_py_read_i64(const mm_py_reader *r, const char *name, PyObject *value, int64_t *out);
int mm_py_read_name(const mm_py_reader *r, const char *name, PyObject *value,
                    const char *const *names, int *out);
int mm_py_read_i32_list(const mm_py_reader *r, const char *name, PyObject *value,
                        const int32_t **out, int32_t *out_n);
int mm_py_read_f32_list(const mm_py_reader *r, const char *name, PyObject *value, const float **out,
                        int32_t *out_n);
/* list[bytes] -> blob and [n + 1] offsets of 4 or 8 bytes each. */
int mm_py_read_bytes_list(const mm_py_reader *r, const char *name, PyObject *value,
                          const uint8_t **out_blob, const int32_t **out_offset32,
                          const int64_t **out_offset64, int32_t *out_n);
int mm_py_raise_unknown(const mm_py_reader *r, const char *name); /* TypeError; returns -1 */

/* ---------------------------------------------------------------- larger structs */

/* params.c: dict -> mm_request_params; what the pointers refer to lives in the scratch. 0 or -1. */
int mm_py_read_params(const mm_py_state *state, mm_py_scratch *s, PyObject *dict,
                      mm_request_params *out);
/* options.c: dict -> mm_config, and the arguments of Engine() -> mm_engine_options. 0 or -1. */
int mm_py_read_config(const mm_py_state *state, mm_py_scratch *s, PyObject *dict, mm_config *out);
typedef struct mm_py_open_args {
    PyObject *config, *options, *files, *tensors, *eos_token_ids, *token_bytes;
} mm_py_open_args;
int mm_py_read_options(const mm_py_state *state, mm_py_scratch *s, const mm_py_open_args *args,
                       mm_config *config, mm_tensor_table *table, mm_engine_options *out);
/* output.c */
PyObject *mm_py_output_dict(const mm_output *o, int64_t start);
PyObject *mm_py_stats_dict(const mm_engine_stats *s);
PyObject *mm_py_info_dict(const mm_engine_info *info);
PyObject *mm_py_memory_list(const mm_memory_line *line, int32_t n);
/* steals; NULL value = -1 */
int mm_py_dict_take(PyObject *dict, const char *name, PyObject *owned);

/* ---------------------------------------------------------------- arrays (numpy_bridge.c: the only
 * import_array) */

typedef enum mm_py_dtype {
    MM_PY_ARRAY_I16,
    MM_PY_ARRAY_I32,
    MM_PY_ARRAY_U32,
    MM_PY_ARRAY_F32
} mm_py_dtype;

int mm_py_arrays_init(void);
/* New array that owns a copy of `data` (rows x width; width -1: one dimension). */
PyObject *mm_py_array_copy(mm_py_dtype dtype, const void *data, int64_t rows, int64_t width);
/* New reference to a C-contiguous array of this dtype and rank with the same values; TypeError
 * otherwise. */
PyObject *mm_py_array_from(PyObject *value, mm_py_dtype dtype, int rank, const char *name);
/* The caller's own array, which must already be exactly that: for buffers that the core writes or
 * borrows. `shape` has `rank` entries, -1 = any. Borrowed pointer or NULL with
 * TypeError/ValueError. */
void *mm_py_array_buffer(PyObject *value, mm_py_dtype dtype, int rank, const int64_t *shape,
                         bool writable, const char *name);
void *mm_py_array_data(PyObject *array, int64_t *out_n); /* of mm_py_array_from's result */

/* ---------------------------------------------------------------- objects */

/* `n_use` counts threads inside a core call without the GIL; close waits until it is 0, so that no
 * call can run on a freed engine. `pid`: a forked child may not touch the engine, not even to free
 * it. */
typedef struct mm_py_engine {
    PyObject_HEAD mm_engine *engine;
    pid_t pid;
    int n_use;
    bool closing;
    PyObject *held;   /* request id -> objects its trace writes into */
    mm_config config; /* numbers only: shapes of what callers hand in */
} mm_py_engine;

typedef struct mm_py_waiter {
    PyObject_HEAD mm_waiter *waiter;
    mm_py_engine *engine;
    int n_use;
    bool closing;
} mm_py_waiter;

/* The open engine of this process, or NULL with EngineClosedError / EngineForkedError. */
mm_engine *mm_py_engine_get(mm_py_engine *self);
/* trace.c: Engine.submit_trace */
PyObject *mm_py_engine_submit_trace(PyObject *self, PyObject *args, PyObject *kwargs);
/* plan.c: _core.plan */
PyObject *mm_py_plan(PyObject *module, PyObject *args, PyObject *kwargs);
/* New Waiter on an engine that mm_py_engine_get accepted. */
PyObject *mm_py_waiter_new(mm_py_engine *engine);
mm_waiter *mm_py_waiter_get(mm_py_waiter *self, const mm_py_engine *engine);

#endif
