/* An extension in C: copy(runtime, stream, target, source, nbytes, declared) enqueues work, and says what it uses.
 * CMakeLists.txt builds it; README.md has the commands. */
#include <Python.h>

#include "work.h"
#include "xlogmem.h"

static const xlogmem_table *table;

static PyObject *failed(const xlogmem_error *error) {
    return PyErr_Format(PyExc_RuntimeError, "xlogmem: %s", error->text);
}

static PyObject *copy(PyObject *module, PyObject *arguments) {
    PyObject *object, *target, *source;
    unsigned long long stream;
    Py_ssize_t nbytes;
    int declared, result = 0, refused = 0;
    xlogmem_error error;
    xlogmem_access accesses[2];
    xlogmem_use *use = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OKOOnp", &object, &stream, &target, &source, &nbytes, &declared)) return NULL;
    xlogmem_runtime *runtime = table->open(object);     /* a module that is called often keeps it */
    if (!runtime) return PyErr_Format(PyExc_TypeError, "a DeviceRuntime is needed, not %R", object);
    if (table->identify(runtime, target, &accesses[0]) || table->identify(runtime, source, &accesses[1])) {
        table->close(runtime);
        return NULL;                                    /* the exception is set */
    }
    accesses[0].access = XLOGMEM_WRITE;
    accesses[1].access = XLOGMEM_READ;

    Py_BEGIN_ALLOW_THREADS
    if (declared) refused = table->prepare(runtime, (void *)(uintptr_t)stream, accesses, 2, 0, &use, &error);
    if (!refused) {
        result = enqueue_copy((void *)(uintptr_t)stream, accesses[0].address, accesses[1].address, (size_t)nbytes);
        if (result) table->cancel(runtime, use);        /* nothing was enqueued */
        else refused = table->finish(runtime, use, &error);
    }
    table->close(runtime);
    Py_END_ALLOW_THREADS

    if (refused) return failed(&error);
    if (result) return PyErr_Format(PyExc_RuntimeError, "the driver gave %d", result);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"copy", copy, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "copy_c", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_copy_c(void) {
    table = PyCapsule_Import(XLOGMEM_TABLE, 0);
    if (!table) return NULL;
    if (table->version != XLOGMEM_TABLE_VERSION || table->size < XLOGMEM_SIZE_WITH_USES) {
        PyErr_SetString(PyExc_ImportError, "copy_c needs another version of xlogmem");
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
#ifdef Py_GIL_DISABLED
    if (module) PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    return module;
}
