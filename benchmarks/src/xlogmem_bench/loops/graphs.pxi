# Launches of a graph, as a program in C++ makes them.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint64_t

from xlogmem.native cimport xlogmem_error, xlogmem_graph


cdef class GraphLaunches:
    """A graph of Python on one stream, by its handle."""
    cdef Held held
    cdef object keeps
    cdef xlogmem_graph* graph
    cdef cy.CUgraphExec executable
    cdef void* stream

    def __init__(self, Core runtime, graph, size_t stream):
        bind_driver()
        self.held = Held(runtime)
        self.keeps = graph
        self.graph = c_table.open_graph(self.held.runtime, <void*>graph)
        self.executable = <cy.CUgraphExec><size_t>graph.handle
        self.stream = <void*>stream

    def __dealloc__(self):
        if self.graph != NULL:
            c_table.close_graph(self.held.runtime, self.graph)

    def run(self, size_t count):
        """Launch through the C table."""
        cdef xlogmem_error error
        cdef uint64_t before, took
        cdef size_t _
        cdef int failed = 0
        with nogil:
            before = now()
            for _ in range(count):
                failed = c_table.launch_graph(self.held.runtime, self.stream, self.graph, &error)
                if failed:
                    break
            took = now() - before
        if failed:
            raise_as_python(&error)
        return took

    def driver(self, size_t count):
        """Launch by the driver, as no use."""
        cdef cy.CUresult code = cy.CUDA_SUCCESS
        cdef uint64_t before, took
        cdef size_t _
        with nogil:
            before = now()
            for _ in range(count):
                code = calls.launch_graph(self.executable, <cy.CUstream>self.stream)
                if code != cy.CUDA_SUCCESS:
                    break
            took = now() - before
        succeed(code, "cuGraphLaunch")
        return took
