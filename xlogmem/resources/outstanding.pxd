# What was allocated and not freed, by address.  outstanding.pyx explains it.

from libc.stdint cimport uint64_t

from xlogmem._base.cpp cimport vector
from xlogmem._base.labels cimport Label
from xlogmem.resources.base cimport Allocation

cdef struct Record:
    # One line of the cache.
    uint64_t ptr                # 0: an empty place
    uint64_t nbytes
    uint64_t generation         # of the block; 0: of none
    uint64_t stream             # `key_of_stream`
    uint64_t number             # what the owner has given it
    Label* tag                  # references of the owner's; NULL: none
    Label* stack
    Allocation* freeing         # the call that frees it now; NULL: it is outstanding


cdef cppclass Outstanding:
    vector[Record] places       # a power of two, at most half of them in use
    size_t count                # of places in use


cdef inline void start_record(Record* record, Allocation* made) noexcept nogil:
    """Without references."""
    record.ptr = made.ptr
    record.nbytes = made.nbytes
    record.generation = made.generation
    record.stream = key_of_stream(made)
    record.number = 0
    record.tag = record.stack = NULL
    record.freeing = NULL


cdef inline uint64_t key_of_stream(Allocation* call) noexcept nogil:
    """The id that users see; of a call without a runtime the handle, with the highest bit set."""
    return call.stream.number if call.stream != NULL else <uint64_t>call.handle | (<uint64_t>1 << 63)


# Guarded by the owner's lock.
cdef bint add_record(Outstanding* outstanding, Record* record, Record* replaced) noexcept nogil
cdef Record* begin_free(Outstanding* outstanding, Allocation* freed) noexcept nogil
cdef bint end_free(Outstanding* outstanding, Allocation* freed, Record* removed) noexcept nogil
cdef Record* undo_free(Outstanding* outstanding, Allocation* freed) noexcept nogil

cdef object name_of_stream(uint64_t key)
