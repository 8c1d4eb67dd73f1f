# DLPack's exchange between functions in C, as a library uses it that is called with arrays.

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport uint64_t

from xlogmem._foreign.dltensor cimport CUDA, EXCHANGE, DLManagedTensorVersioned, DLPackExchange, DLTensor

cdef extern from "Python.h":
    int Py_MakePendingCalls() except -1

cdef enum:
    RELEASES = 16                           # before what the interpreter has to do for them is done


cdef class Exchanges:
    """An array, whose type has ``__dlpack_c_exchange_api__``."""
    cdef DLPackExchange* table
    cdef object array

    def __init__(self, array):
        self.table = <DLPackExchange*>PyCapsule_GetPointer(type(array).__dlpack_c_exchange_api__, EXCHANGE)
        self.array = array

    def exported(self, size_t count):
        """Export the array, and call the deleter."""
        cdef DLManagedTensorVersioned* tensor
        cdef uint64_t before = now()
        cdef size_t i
        for i in range(count):
            self.table.managed_of(<void*>self.array, &tensor)
            tensor.deleter(tensor)
            if i % RELEASES == 0:
                Py_MakePendingCalls()
        return now() - before

    def described(self, size_t count):
        """Describe the array for the time of a call."""
        cdef uint64_t before = now()
        cdef DLTensor tensor
        cdef size_t _
        for _ in range(count):
            self.table.tensor_of(<void*>self.array, &tensor)
        return now() - before

    def streams(self, size_t count):
        """Query the stream to work on."""
        cdef uint64_t before = now()
        cdef void* stream
        cdef size_t _
        for _ in range(count):
            self.table.current_stream(CUDA, 0, &stream)
        return now() - before
