// An extension as it was written before the table had uses: tests/core/test_native_abi.py runs it on this core.
#include <Python.h>

#include "xlogmem_without_uses.h"

// Allocates on one stream, has another one use the memory, and frees it.  Only opening the runtime needs the GIL.
static PyObject* work(PyObject*, PyObject* arguments) {
    PyObject* object;
    Py_ssize_t nbytes;
    unsigned long long stream, other;
    if (!PyArg_ParseTuple(arguments, "OnKK", &object, &nbytes, &stream, &other)) return nullptr;
    auto* table = static_cast<const xlogmem_table*>(PyCapsule_Import(XLOGMEM_TABLE, 0));
    if (!table) return nullptr;
    if (table->version != XLOGMEM_TABLE_VERSION || table->size < sizeof(xlogmem_table)) {
        PyErr_SetString(PyExc_ImportError, "this extension was built with another version of xlogmem.h");
        return nullptr;
    }
    xlogmem_runtime* runtime = table->open(object);
    if (!runtime) {
        PyErr_SetString(PyExc_TypeError, "a DeviceRuntime is needed");
        return nullptr;
    }
    xlogmem_error error;
    void* memory = nullptr;
    PyThreadState* thread = PyEval_SaveThread();
    int failed = table->allocate(runtime, nbytes, reinterpret_cast<void*>(stream), &memory, &error);
    if (!failed) {
        // ... launch what uses `memory` on `other`, which waits for `stream`
        failed = table->record_use(runtime, memory, reinterpret_cast<void*>(other), &error);
        table->deallocate(runtime, memory, reinterpret_cast<void*>(stream));    // after that use
    }
    table->close(runtime);
    PyEval_RestoreThread(thread);
    if (failed) {
        PyErr_SetString(PyExc_RuntimeError, error.text);
        return nullptr;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"work", work, METH_VARARGS, nullptr}, {}};
static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "client_without_uses", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit_client_without_uses() {
    PyObject* const made = PyModule_Create(&module);
#ifdef Py_GIL_DISABLED
    if (made) PyUnstable_Module_SetGIL(made, Py_MOD_GIL_NOT_USED);
#endif
    return made;
}
