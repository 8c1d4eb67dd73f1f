# Allocators as C++ code calls them, and the loops over pairs of allocate and free.

from cpython.pycapsule cimport PyCapsule_GetContext, PyCapsule_GetPointer, PyCapsule_New, PyCapsule_SetContext
from cpython.ref cimport Py_DECREF, Py_INCREF
from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint64_t
from libcpp.algorithm cimport sort
from libcpp.vector cimport vector

from xlogmem import _table
from xlogmem.native cimport (
    XLOGMEM_TABLE,
    XLOGMEM_UPSTREAM,
    xlogmem_error,
    xlogmem_runtime,
    xlogmem_table,
    xlogmem_upstream,
)
from xlogmem.blocks cimport Core


cdef extern from "loops/allocators.hpp" namespace "xlogmem_bench" nogil:
    cdef cppclass driver_allocator:
        driver* calls
        cy.CUmemoryPool pool
    cdef cppclass page_locked_allocator:
        driver* calls
    cdef cppclass table_allocator:
        xlogmem_table* table
        xlogmem_runtime* runtime
    cdef cppclass trivial_allocator:
        pass
    xlogmem_upstream as_upstream[T](T* of)

cdef extern from "loops/per_use_events.hpp" namespace "xlogmem_bench" nogil:
    cdef cppclass per_use_events:
        per_use_events(driver*, cy.CUmemoryPool)
        int prepare(cy.CUstream, uint64_t, bint, xlogmem_error*)
        int finish(cy.CUstream, uint64_t, bint, xlogmem_error*)
        xlogmem_upstream functions

cdef extern from "loops/pairs.hpp" namespace "xlogmem_bench" nogil:
    int c_pairs "xlogmem_bench::pairs"(xlogmem_upstream, size_t, void**, size_t, size_t, size_t, uint64_t*, uint64_t*,
                                       xlogmem_error*)
    int c_batches "xlogmem_bench::batches"(xlogmem_table&, xlogmem_runtime*, vector[size_t]&, void*, size_t, uint64_t*,
                                           xlogmem_error*)
    int pairs_in_threads(xlogmem_upstream, driver, cy.CUcontext, size_t, void**, size_t, size_t, uint64_t*,
                         xlogmem_error*)


cdef void drop_holder(object capsule) noexcept:
    Py_DECREF(<object>PyCapsule_GetContext(capsule))


cdef class Allocator:
    """An allocator as C++ code calls it; made by one of the static methods."""
    cdef xlogmem_upstream* functions
    cdef xlogmem_upstream own
    cdef driver_allocator raw
    cdef page_locked_allocator page_locked
    cdef table_allocator tracked
    cdef trivial_allocator* trivial
    cdef per_use_events* scheme
    cdef object held

    def __dealloc__(self):
        if self.tracked.runtime != NULL:
            self.tracked.table.close(self.tracked.runtime)
        del self.trivial
        del self.scheme
        if self.raw.pool != NULL:
            cy.cuMemPoolDestroy(self.raw.pool)

    @staticmethod
    def driver():
        """The driver's calls, on a pool of its own that keeps all of its memory."""
        cdef Allocator made = Allocator.__new__(Allocator)
        made.raw.pool = new_pool()
        made.raw.calls = &calls
        made.own = as_upstream(&made.raw)
        made.functions = &made.own
        return made

    @staticmethod
    def of_page_locked():
        """The driver's calls for page-locked memory, whatever the stream."""
        cdef Allocator made = Allocator.__new__(Allocator)
        bind_driver()
        made.page_locked.calls = &calls
        made.own = as_upstream(&made.page_locked)
        made.functions = &made.own
        return made

    @staticmethod
    def table(Core runtime not None):
        """An xlogmem runtime through the C table."""
        cdef Allocator made = Allocator.__new__(Allocator)
        made.tracked.table = <xlogmem_table*>PyCapsule_GetPointer(_table.table, XLOGMEM_TABLE)
        made.tracked.runtime = made.tracked.table.open(<void*>runtime)
        made.own = as_upstream(&made.tracked)
        made.functions = &made.own
        return made

    @staticmethod
    def nothing():
        """Addresses without memory."""
        cdef Allocator made = Allocator.__new__(Allocator)
        made.trivial = new trivial_allocator()
        made.own = as_upstream(made.trivial)
        made.functions = &made.own
        return made

    @staticmethod
    def per_use_events():
        """The per-use-event scheme, on a pool of the driver."""
        cdef Allocator made = Allocator.__new__(Allocator)
        made.raw.pool = new_pool()
        made.scheme = new per_use_events(&calls, made.raw.pool)
        made.functions = &made.scheme.functions
        return made

    @staticmethod
    def of(capsule):
        """The functions in a capsule for `ForeignMemoryResource`, such as `xlogmem.rmm._binding.upstream_of` makes."""
        cdef Allocator made = Allocator.__new__(Allocator)
        made.functions = <xlogmem_upstream*>PyCapsule_GetPointer(capsule, XLOGMEM_UPSTREAM)
        made.held = capsule
        return made

    @property
    def capsule(self):
        """For `ForeignMemoryResource`; the capsule keeps the allocator alive."""
        capsule = PyCapsule_New(self.functions, XLOGMEM_UPSTREAM, drop_holder)
        PyCapsule_SetContext(capsule, <void*>self)
        Py_INCREF(self)
        return capsule

    def pairs(self, size_t nbytes, streams, size_t count, size_t work=0):
        """Allocate and free, on the streams in turn, with some rounds of `compute_alone` after each call."""
        cdef Handles on = Handles(streams)
        cdef xlogmem_error error
        cdef uint64_t took = 0
        cdef int failed
        with nogil:
            failed = c_pairs(self.functions[0], nbytes, on.streams.data(), on.streams.size(), count, work, NULL,
                             &took, &error)
        if failed:
            raise_error(&error)
        return took

    def batches(self, sizes, size_t stream, size_t count):
        """Allocate blocks of these sizes by one call, and free them by another; of a runtime through the C table."""
        cdef vector[size_t] wanted = sizes
        cdef xlogmem_error error
        cdef uint64_t took = 0
        cdef int failed
        if self.tracked.runtime == NULL:
            raise ValueError("only a runtime has batches")
        with nogil:
            failed = c_batches(self.tracked.table[0], self.tracked.runtime, wanted, <void*>stream, count, &took, &error)
        if failed:
            raise_error(&error)
        return took

    def each_pair(self, size_t nbytes, streams, size_t count):
        """The time of each pair, as a sorted list."""
        cdef Handles on = Handles(streams)
        cdef vector[uint64_t] each
        cdef xlogmem_error error
        cdef uint64_t took = 0
        cdef int failed
        each.resize(count)
        with nogil:
            failed = c_pairs(self.functions[0], nbytes, on.streams.data(), on.streams.size(), count, 0,
                             each.data(), &took, &error)
            sort(each.begin(), each.end())
        if failed:
            raise_error(&error)
        return each

    def pairs_in_threads(self, size_t nbytes, streams, size_t count):
        """`count` pairs in each of as many threads as there are streams; the time until the last thread is done."""
        cdef Handles on = Handles(streams)
        cdef xlogmem_error error
        cdef cy.CUcontext context
        cdef uint64_t took = 0
        cdef int failed
        bind_driver()
        succeed(cy.cuCtxGetCurrent(&context), "cuCtxGetCurrent")
        with nogil:
            failed = pairs_in_threads(self.functions[0], calls, context, nbytes, on.streams.data(), on.streams.size(),
                                      count, &took, &error)
        if failed:
            raise_error(&error)
        return took

    def program(self, Program program not None, streams, double limit=0):
        """All steps of a program.  Allocations that find no memory are left out and counted by the program.  A program
        that takes longer than `limit` seconds (0: no limit) is stopped, its memory is freed, and `TimeoutError` is
        raised."""
        cdef Handles on = Handles(streams)
        cdef xlogmem_error error
        cdef uint64_t took = 0, most = <uint64_t>(1e9 * limit)
        cdef size_t stopped = 0
        cdef int failed
        bind_driver()
        with nogil:
            failed = c_program(self.functions[0], calls, program.kernel, program.steps.data(), program.steps.size(),
                               on.streams.data(), program.slots.places, most, &program.refused, &stopped, &took,
                               &error)
        if failed:
            raise_error(&error)
        if stopped < program.steps.size():
            raise TimeoutError(f"given up after {limit:g} s, with {100 * stopped // program.steps.size()} % of the "
                               f"{program.steps.size():,} steps done")
        return took
