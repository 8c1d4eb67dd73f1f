# cython: autotestdict=False
"""Reports of PyTorch's pools, from calls that its library makes of others: see torch_pool/pieces.hpp."""
from xlogmem._base.locks cimport mutex
from xlogmem._driver cimport LEAF_LOCK, take_at_forks


cdef extern from "torch_pool/pieces.hpp" namespace "xlogmem_torch" nogil:
    cdef cppclass Counter "std::atomic<std::uint64_t>":
        size_t load()

    cdef cppclass Pieces:
        mutex lock
        Counter unknown
    Pieces& pieces()
    bint start_pieces "xlogmem_torch::watch_pieces"(size_t hooks)
    void set_stream "xlogmem_torch::expect_stream"(size_t handle)
    void add_deferring "xlogmem_torch::add_deferring"(int change, bint of_graph)


take_at_forks(&pieces().lock, LEAF_LOCK)


def watch_pieces(size_t hooks):
    """Report pieces of PyTorch's own pool from here on, to the front end's table at this address; true if possible."""
    return start_pieces(hooks)


def unknown():
    """The number of pieces about which nothing is known, because host memory was short."""
    return pieces().unknown.load()


def expect_stream(size_t handle):
    """Set the stream of the thread's next allocation, whichever stream is current."""
    set_stream(handle)


def defer(int change, bint of_graph=False):
    """Note that a private pool is in use from here on (1), or no more (-1): for a block that is freed meanwhile it is
    not known which streams PyTorch waits for.  Frees of a graph's pool mean nothing: the graph goes on using the
    memory."""
    add_deferring(change, of_graph)
