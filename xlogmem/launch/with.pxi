# `with use(…)` without method objects.
#
# Up to Python 3.13 a `with` statement looks up `__enter__` and `__exit__` on the recorder and binds both: two objects
# are made, tracked and dropped, which takes a fifth of the time of a use.  Here the lookup on a recorder gives the
# recorder itself, and the statement calls it: without arguments to enter, with three to leave.  The lookup on the
# class, as `contextlib.ExitStack` makes it, gives the ordinary methods.  So a recorder can be called, which no program
# has a reason to do.

from cpython.ref cimport PyObject


cdef extern from *:
    """
    // A descriptor: on an object the object itself, on the class the method.
    struct xlogmem_itself { PyObject_HEAD PyObject* method; };

    static PyObject* xlogmem_get_itself(PyObject* self, PyObject* object, PyObject*) {
        return Py_NewRef(object != nullptr ? object : reinterpret_cast<xlogmem_itself*>(self)->method);
    }

    static PyTypeObject xlogmem_itself_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

    // Replace a method of a type.  The type has the descriptor, and the descriptor the method, for ever.
    static int xlogmem_bind_to_itself(PyTypeObject* type, const char* name) {
        PyObject* method = PyDict_GetItemString(type->tp_dict, name);
        if (method == nullptr) {
            PyErr_SetString(PyExc_AttributeError, name);
            return -1;
        }
        xlogmem_itself* itself = PyObject_New(xlogmem_itself, &xlogmem_itself_type);
        if (itself == nullptr) return -1;
        itself->method = Py_NewRef(method);
        int failed = PyDict_SetItemString(type->tp_dict, name, reinterpret_cast<PyObject*>(itself));
        Py_DECREF(itself);
        return failed;
    }

    // Let objects of a type be called, through the function whose address they have at `offset`.
    static int xlogmem_call_itself(PyTypeObject* type, Py_ssize_t offset) {
        xlogmem_itself_type.tp_name = "xlogmem.launch.itself";
        xlogmem_itself_type.tp_basicsize = sizeof(xlogmem_itself);
        xlogmem_itself_type.tp_flags = Py_TPFLAGS_DEFAULT;
        xlogmem_itself_type.tp_descr_get = xlogmem_get_itself;
        if (PyType_Ready(&xlogmem_itself_type) < 0 || xlogmem_bind_to_itself(type, "__enter__") < 0
            || xlogmem_bind_to_itself(type, "__exit__") < 0)
            return -1;
        type->tp_vectorcall_offset = offset;
        type->tp_call = PyVectorcall_Call;
        type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
        PyType_Modified(type);
        return 0;
    }
    """
    int call_itself "xlogmem_call_itself"(type recorder, Py_ssize_t offset) except -1

cdef extern from "Python.h":
    Py_ssize_t PyVectorcall_NARGS(size_t count)


cdef object enter_or_leave(PyObject* itself, PyObject** arguments, size_t count, PyObject* names):
    """Do as `__enter__` without arguments, and as `__exit__` with three."""
    cdef LaunchRecorder recorder = <LaunchRecorder>itself
    cdef Py_ssize_t given = PyVectorcall_NARGS(count)
    if names != NULL or (given != 0 and given != 3):
        raise TypeError("a use is entered by a `with` statement, and not called")
    if given == 0:
        recorder.open()
        return recorder
    recorder.leave()
    return None


cdef LaunchRecorder some = LaunchRecorder.__new__(LaunchRecorder)
call_itself(LaunchRecorder, <char*>&some.call - <char*><PyObject*>some)
