# The bytes of an array whose shape and strides are 64-bit integers, without Python's.
#
# Nearly all descriptions are such ones.  What is refused here is left to code with Python's integers, which do not
# overflow: that says what is wrong, or takes it.

from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint64_t

from xlogmem._foreign.dltensor cimport MOST_DIMENSIONS

cdef extern from *:
    bint multiply_overflows "__builtin_mul_overflow"(int64_t, int64_t, int64_t*) noexcept nogil
    bint add_overflows "__builtin_add_overflow"(int64_t, int64_t, int64_t*) noexcept nogil
    bint subtract_overflows "__builtin_sub_overflow"(int64_t, int64_t, int64_t*) noexcept nogil

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1


cdef struct Reach:
    int64_t size            # elements
    int64_t below           # bytes before the first element
    int64_t above           # bytes from there to the end of the highest


cdef inline bint find_reach(int ndim, const int64_t* shape, const int64_t* strides, int64_t unit, int64_t itemsize,
                            Reach* reach) noexcept nogil:
    """Find where the elements lie; strides are in `unit` bytes (NULL: C order).  False if there are none, or a number
    of bytes does not fit."""
    cdef int64_t stride = itemsize, size = 1, below = 0, above = itemsize, nbytes, distance
    cdef int i
    for i in range(ndim - 1, -1, -1):
        if shape[i] <= 0 or multiply_overflows(size, shape[i], &size):
            return False
        if strides != NULL and multiply_overflows(strides[i], unit, &stride):
            return False
        if multiply_overflows(shape[i] - 1, stride, &distance):
            return False
        if add_overflows(above, distance, &above) if distance > 0 else add_overflows(below, distance, &below):
            return False
        if strides == NULL and multiply_overflows(stride, shape[i], &stride):
            return False
    if multiply_overflows(size, itemsize, &nbytes) or subtract_overflows(above, below, &nbytes):
        return False
    reach.size = size
    reach.below = -below
    reach.above = above
    return True


cdef inline bint take_integer(object what, int64_t* into) except -1:
    """Take an ``int`` of 64 bits; False for anything else."""
    cdef int overflow = 0
    if not PyLong_CheckExact(what):
        return False
    into[0] = PyLong_AsLongLongAndOverflow(what, &overflow)
    return overflow == 0


cdef inline int take_integers(object what, int64_t* into) except -2:
    """Take a tuple of such integers, and return how many there are; -1 for anything else."""
    cdef Py_ssize_t i
    if not PyTuple_CheckExact(what) or PyTuple_GET_SIZE(what) > <Py_ssize_t>MOST_DIMENSIONS:
        return -1
    for i in range(PyTuple_GET_SIZE(what)):
        if not take_integer(<object>PyTuple_GET_ITEM(what, i), &into[i]):
            return -1
    return <int>PyTuple_GET_SIZE(what)
