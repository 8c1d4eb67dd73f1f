// Calls of the C table while an exception is under way, as finalizers make them: with the GIL, or without it.
#include <Python.h>

#include "xlogmem.h"

namespace {

template <class Call>
int is_kept(int with_gil, Call&& call) {
    PyErr_SetString(PyExc_KeyError, "under way");
    if (with_gil) {
        call();
    } else {
        PyThreadState* thread = PyEval_SaveThread();
        call();
        PyEval_RestoreThread(thread);
    }
    int kept = PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_KeyError);
    PyErr_Clear();
    return kept;
}

}  // namespace

extern "C" {

int allocate(const xlogmem_table* table, int with_gil, xlogmem_runtime* runtime, size_t nbytes, void* stream, void** ptr,
             xlogmem_error* error, int* failed) {
    return is_kept(with_gil, [&] { *failed = table->allocate(runtime, nbytes, stream, ptr, error); });
}

int deallocate(const xlogmem_table* table, int with_gil, xlogmem_runtime* runtime, void* ptr, void* stream) {
    return is_kept(with_gil, [&] { table->deallocate(runtime, ptr, stream); });
}

int record_use(const xlogmem_table* table, int with_gil, xlogmem_runtime* runtime, void* ptr, void* stream,
               xlogmem_error* error) {
    return is_kept(with_gil, [&] { table->record_use(runtime, ptr, stream, error); });
}

int allocate_for_torch(void* (*function)(ssize_t, int, void*), int with_gil, size_t nbytes, void** ptr) {
    return is_kept(with_gil, [&] { *ptr = function(ssize_t(nbytes), 0, nullptr); });
}
}
