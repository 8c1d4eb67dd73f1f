// Refuses an argument that a compiled function does not have, by a message with the nearest one that it has, and an
// argument of another type, by a message with the class that users know.
//
// Cython's own messages have the wrong name alone, and its own class: compiling.py puts these calls in their place.
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

static inline void xlogmem_refuse_type(const char* name, PyObject* given, PyTypeObject* expected) {
    PyObject* module = PyImport_ImportModule("xlogmem._base.signatures");
    PyObject* result = module ? PyObject_CallMethod(module, "refuse_type", "sOO", name, given, expected) : nullptr;
    Py_XDECREF(result);
    Py_XDECREF(module);
}
