# A fast path of `use` for the arguments that nearly all programs write: a stream of the runtime, and the memory read
# and written, by place or by name; or the host, and one block.
#
# It is a function of C's own calling convention, so that arguments come as they lie on the interpreter's stack.  Names
# are compared as objects: the names of a call in a program's text are the interpreter's only ones.  All other calls,
# and all erroneous ones, go on to the function that takes any arguments.

from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE

from xlogmem._core cimport READ, READ_WRITE, WRITE
from xlogmem.blocks cimport DeviceBlock
from xlogmem.streams cimport Host, Stream


cdef extern from "Python.h":
    ctypedef struct PyMethodDef:
        pass
    object PyCFunction_NewEx(PyMethodDef* method, PyObject* self, object module)
    object PyObject_Vectorcall(object function, PyObject** arguments, size_t count, PyObject* names)

cdef extern from *:
    """
    static PyMethodDef xlogmem_use = {"use", nullptr, METH_FASTCALL | METH_KEYWORDS, nullptr};
    static PyMethodDef* xlogmem_define_use(PyObject* (*function)(PyObject*, PyObject**, Py_ssize_t, PyObject*),
                                           const char* text) {
        xlogmem_use.ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
        xlogmem_use.ml_doc = text;
        return &xlogmem_use;
    }
    """
    PyMethodDef* define_use "xlogmem_define_use"(object (*function)(PyObject*, PyObject**, Py_ssize_t, PyObject*),
                                                 const char* text)

cdef object use_anything = use
cdef str READ_NAME = "read"
cdef str WRITE_NAME = "write"
cdef str READ_WRITE_NAME = "read_write"


cdef object use_quickly(PyObject* _, PyObject** arguments, Py_ssize_t count, PyObject* names):
    cdef PyObject* things[3]                # read, write, read_write; NULL: not given
    cdef LaunchRecorder recorder
    if count < 1 or count > 4 or not sort_arguments(arguments, count, names, things):
        return PyObject_Vectorcall(use_anything, arguments, count, names)
    if Py_TYPE(arguments[0]) == <PyTypeObject*>Stream:
        recorder = record_on(<Stream>arguments[0])
    elif Py_TYPE(arguments[0]) == <PyTypeObject*>Host and only_block(things) != NULL:
        recorder = LaunchRecorder.__new__(LaunchRecorder)
        begin_access(recorder, (<DeviceBlock>only_block(things)).core)
    else:
        return PyObject_Vectorcall(use_anything, arguments, count, names)
    if things[0] != NULL:
        add_uses(recorder, things[0], READ)
    if things[1] != NULL:
        add_uses(recorder, things[1], WRITE)
    if things[2] != NULL:
        add_uses(recorder, things[2], READ_WRITE)
    return recorder


cdef inline PyObject* only_block(PyObject** things) noexcept:
    """Return the one thing that is given, if it is a block of some bytes; else NULL."""
    cdef PyObject* thing = NULL
    cdef Py_ssize_t i
    for i in range(3):
        if things[i] != NULL:
            if thing != NULL:
                return NULL
            thing = things[i]
    if thing == NULL or Py_TYPE(thing) != <PyTypeObject*>DeviceBlock or (<DeviceBlock>thing).core is None:
        return NULL
    return thing


cdef inline bint sort_arguments(PyObject** arguments, Py_ssize_t count, PyObject* names, PyObject** things) noexcept:
    """Sort arguments: by place after the stream, then by name.  False if a name is unknown, or its argument was given
    already, or there is none."""
    cdef Py_ssize_t i, place
    cdef PyObject* name
    for i in range(3):
        things[i] = arguments[i + 1] if i + 1 < count else NULL
    if names == NULL:
        return count > 1
    for i in range(PyTuple_GET_SIZE(<object>names)):
        name = PyTuple_GET_ITEM(<object>names, i)
        if name == <PyObject*>READ_NAME:
            place = 0
        elif name == <PyObject*>WRITE_NAME:
            place = 1
        elif name == <PyObject*>READ_WRITE_NAME:
            place = 2
        else:
            return False
        if things[place] != NULL:
            return False
        things[place] = arguments[count + i]
    return True


# Kept: the function has its address.  `inspect` reads the first line.
cdef bytes text_of_use = ("use(stream, read=(), write=(), read_write=(), *, runtime=None, untracked='raise', "
                          f"handback='all', on_conflict='wait')\n--\n\n{use_anything.__doc__}").encode()
use = PyCFunction_NewEx(define_use(use_quickly, text_of_use), NULL, "xlogmem.launch")
