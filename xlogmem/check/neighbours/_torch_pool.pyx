# cython: autotestdict=False
"""What PyTorch's library says of its pools when it calls others: see torch_pool/pieces.hpp."""
from xlogmem._base.locks cimport mutex
from xlogmem._driver cimport LEAF_LOCK, take_at_forks


cdef extern from "torch_pool/pieces.hpp" namespace "xlogmem_torch" nogil:
    cdef cppclass Pieces:
        mutex lock
    Pieces& pieces()
    bint start_pieces "xlogmem_torch::watch_pieces"(size_t hooks)
    void set_stream "xlogmem_torch::expect_stream"(size_t handle)
    void add_deferring "xlogmem_torch::add_deferring"(int change, bint of_graph)


take_at_forks(&pieces().lock, LEAF_LOCK)


def watch_pieces(size_t hooks):
    """Whether pieces of PyTorch's own pool are reported from here on, to the front end's table at this address."""
    return start_pieces(hooks)


def expect_stream(size_t handle):
    """The thread's next allocation is for this stream, whichever is current."""
    set_stream(handle)


def defer(int change, bint of_graph=False):
    """A private pool is in use from here on (1), or no more (-1): of a block that is freed meanwhile it is not known
    for which streams PyTorch waits.  Of a graph's pool frees mean nothing: the graph goes on using the memory."""
    add_deferring(change, of_graph)
