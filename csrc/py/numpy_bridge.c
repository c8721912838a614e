/* numpy_bridge.c: the only file that knows NumPy. bf16 never crosses this border; arrays handed out
 * own their data. */
#include "csrc/py/mm_py.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wundef" /* NumPy's headers test macros that they do not define */
#include <numpy/arrayobject.h>
#pragma GCC diagnostic pop

static const int typenum[] = {NPY_INT16, NPY_INT32, NPY_UINT32, NPY_FLOAT32};
static const char *const dtype_name[] = {"int16", "int32", "uint32", "float32"};
static const size_t dtype_bytes[] = {2, 4, 4, 4};

int mm_py_arrays_init(void)
{
    if (PyArray_ImportNumPyAPI() == 0)
        return 0;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_Format(PyExc_ImportError,
                 "minimax_m31 needs NumPy 2.0 or newer, and it cannot be loaded: %S",
                 value != NULL ? value : Py_None);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return -1;
}

PyObject *mm_py_array_copy(mm_py_dtype dtype, const void *data, int64_t rows, int64_t width)
{
    npy_intp dims[2] = {(npy_intp)rows, (npy_intp)width};
    PyObject *array = PyArray_SimpleNew(width < 0 ? 1 : 2, dims, typenum[dtype]);
    const size_t n_bytes = (size_t)rows * (width < 0 ? 1 : (size_t)width) * dtype_bytes[dtype];
    if (array != NULL && n_bytes > 0)
        memcpy(PyArray_DATA((PyArrayObject *)array), data, n_bytes);
    return array;
}

PyObject *mm_py_array_from(PyObject *value, mm_py_dtype dtype, int rank, const char *name)
{
    PyObject *array =
        PyArray_FROM_OTF(value, typenum[dtype], NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED);
    if (array == NULL)
        return NULL;
    if (PyArray_NDIM((PyArrayObject *)array) != rank) {
        PyErr_Format(PyExc_TypeError, "%s: an array of %s with %d dimension(s) is needed, got %d",
                     name, dtype_name[dtype], rank, PyArray_NDIM((PyArrayObject *)array));
        Py_CLEAR(array);
    }
    return array;
}

void *mm_py_array_data(PyObject *array, int64_t *out_n)
{
    *out_n = (int64_t)PyArray_SIZE((PyArrayObject *)array);
    return PyArray_DATA((PyArrayObject *)array);
}

void *mm_py_array_buffer(PyObject *value, mm_py_dtype dtype, int rank, const int64_t *shape,
                         bool writable, const char *name)
{
    if (!PyArray_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s: an ndarray is needed, got %s", name,
                     Py_TYPE(value)->tp_name);
        return NULL;
    }
    PyArrayObject *array = (PyArrayObject *)value;
    bool fits = PyArray_TYPE(array) == typenum[dtype] && PyArray_NDIM(array) == rank &&
                PyArray_ISCARRAY_RO(array) && (!writable || PyArray_ISWRITEABLE(array));
    for (int i = 0; fits && i < rank; i++)
        fits = shape[i] < 0 || (int64_t)PyArray_DIM(array, i) == shape[i];
    if (fits)
        return PyArray_DATA(array);
    PyErr_Format(
        PyExc_ValueError,
        "%s: a C-contiguous%s %s array of shape (%lld, %lld, %lld; first %d count) is needed", name,
        writable ? " writable" : "", dtype_name[dtype], rank > 0 ? (long long)shape[0] : 0LL,
        rank > 1 ? (long long)shape[1] : 0LL, rank > 2 ? (long long)shape[2] : 0LL, rank);
    return NULL;
}
