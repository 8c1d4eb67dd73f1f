# The contents of a runtime at one moment, as plain data: core/survey.pxi fills them in, blocks/survey.pxi reads them.

from libc.stdint cimport uint32_t, uint64_t

from xlogmem._base.cpp cimport vector
from xlogmem._base.labels cimport Label


cdef struct Seen:
    # A block.
    uint64_t generation
    uint64_t ptr
    size_t nbytes
    Label* tag                  # a reference
    uint64_t stream             # number + 1, 0: none
    uint64_t home               # the same
    uint32_t windows
    uint32_t pins
    bint freed                  # and the memory is still there
    bint adopted
    uint32_t resource           # its place among the resources of the runtime
    size_t first                # its users: survey.users[first:end]
    size_t end


cdef struct SeenUser:
    uint64_t stream             # number
    uint64_t position
    bint writes


cdef struct SeenStream:
    uint64_t number
    size_t handle
    uint32_t discipline
    bint alive
    uint64_t pending_bytes


cdef cppclass Survey:
    uint64_t live_bytes
    uint64_t live_blocks
    uint64_t pending_bytes
    uint64_t cached_bytes       # that caches have for further blocks; in what the pool has handed out
    vector[Seen] blocks
    vector[SeenUser] users
    vector[SeenStream] streams
