// Refuses an argument that a compiled function does not have, by a message with the nearest one that it has.
//
// Cython's own message has the wrong name alone: compiling.py puts this call in its place.
#pragma once

#include <Python.h>

static inline void xlogmem_refuse_keyword(const char* function, PyObject* key, PyObject** const known[]) {
    PyObject* module = PyImport_ImportModule("xlogmem._base.signatures");
    PyObject* names = module ? PyList_New(0) : nullptr;
    bool failed = !names;
    for (; !failed && *known; known++) failed = PyList_Append(names, **known) != 0;
    PyObject* result = failed ? nullptr : PyObject_CallMethod(module, "refuse_keyword", "sOO", function, key, names);
    Py_XDECREF(result);
    Py_XDECREF(names);
    Py_XDECREF(module);
}
