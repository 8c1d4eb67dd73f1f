# Bytes and calls by key: by tag, by stream.  A table that grows, and is emptied of what is not used any more.

from libc.stdint cimport UINT64_MAX, uint32_t, uint64_t

from xlogmem._base.cpp cimport vector
from xlogmem._base.labels cimport Label
from xlogmem._base.locks cimport mutex

cdef struct Row:
    uint64_t key
    Label* tag                  # a reference, where keys are tags; NULL otherwise
    uint64_t nbytes
    uint64_t count
    uint64_t peak_bytes
    uint64_t peak_count
    uint64_t total_bytes
    uint64_t total_count


cdef cppclass Tally:
    vector[Row] rows
    vector[uint32_t] places     # of rows, by the hash of their key: number + 1; a power of two
    bint keeps_totals           # rows without bytes stay


cdef inline size_t place_of(uint64_t key, size_t mask) noexcept nogil:
    return <size_t>((key * <uint64_t>0x9E3779B97F4A7C15) >> 20) & mask


cdef inline uint64_t key_of_rest() noexcept nogil:
    """The key of the row that `row_within` gives to keys beyond its limit."""
    return UINT64_MAX


# Guarded by the owner's lock.
cdef Row* row_of(Tally* tally, uint64_t key, Label* tag) noexcept nogil
cdef Row* row_within(Tally* tally, uint64_t key, Label* tag, size_t most) noexcept nogil
cdef void add_to(Row* row, uint64_t nbytes) noexcept nogil
cdef void take_from(Row* row, uint64_t nbytes) noexcept nogil
cdef void restore_to(Row* row, uint64_t nbytes) noexcept nogil
cdef void forget_all(Tally* tally) noexcept nogil

# Takes that lock.
cdef list read_rows(Tally* tally, mutex* lock)
