# The bytes that an object of another library names; _foreign/named.pyx has the order of the queries.

from libc.stdint cimport uint64_t

from xlogmem._foreign.dltensor cimport DLPackExchange, DLTensor


cdef struct Extent:
    # The memory that an object names, as far as it says.
    uint64_t ptr                # address of the first element
    uint64_t first              # of the lowest byte; addresses are cut off where they end
    uint64_t last               # of the highest
    bint sized                  # False: a bare address; `last` is `first`
    bint read_only              # the object says that it must not be written
    bint on_host                # page-locked memory
    int device_id               # of the device; -1: not said


cdef bint name_memory(object what, str where, Extent* extent) except -1
cdef DLPackExchange* exchange_of(object what) except? NULL
cdef tuple pair_of(object what, str name, object giver=*)
cdef tuple device_pair(object array)
cdef tuple shape_of_tensor(DLTensor* tensor)
cdef tuple parts_of_tensor(DLTensor* tensor, object itemsize)
cdef DLTensor* peek_tensor(object capsule, bint* read_only) except NULL
cdef object find_producer_stream(object array)
cdef dict find_current_streams(list things, int device_id)
