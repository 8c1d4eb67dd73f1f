# Uses of blocks on an xlogmem runtime, through the C table, as programs in C++ make them.

from cpython.pycapsule cimport PyCapsule_GetPointer
from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint64_t
from libcpp.vector cimport vector

from xlogmem import _table
from xlogmem.blocks cimport Core, DeviceBlock
from xlogmem.native cimport (
    XLOGMEM_READ,
    XLOGMEM_TABLE,
    XLOGMEM_WRITE,
    xlogmem_access,
    xlogmem_error,
    xlogmem_runtime,
    xlogmem_table,
    xlogmem_use,
)
from xlogmem.streams cimport Stream, core_of


cdef extern from "loops/per_use_events.hpp" namespace "xlogmem_bench" nogil:
    cdef struct use:
        uint64_t stream
        uint64_t first
        uint64_t end
    cdef struct access:
        uint64_t block
        uint64_t flags

cdef xlogmem_table* c_table = <xlogmem_table*>PyCapsule_GetPointer(_table.table, XLOGMEM_TABLE)


cdef class Held:
    """A hold on a runtime."""
    cdef xlogmem_runtime* runtime

    def __init__(self, Core runtime):
        self.runtime = c_table.open(<void*>runtime)

    def __dealloc__(self):
        if self.runtime != NULL:
            c_table.close(self.runtime)


cdef class Rounds:
    """Uses, a list of (stream, [(block, flags)]) by number, over and over.  Each round begins `stride` blocks further
    on, and at the first block again when too few are left."""
    cdef vector[use] uses
    cdef vector[access] accesses
    cdef size_t stride
    cdef size_t span

    def __init__(self, uses, size_t stride=0):
        cdef use one
        cdef access touched
        for stream, blocks in uses:
            one.stream, one.first = stream, self.accesses.size()
            for block, flags in blocks:
                touched.block, touched.flags = block, flags
                self.span = max(self.span, touched.block + 1)
                self.accesses.push_back(touched)
            one.end = self.accesses.size()
            self.uses.push_back(one)
        self.stride = stride


cdef class Uses(Rounds):
    """Rounds of uses on an xlogmem runtime, on its own streams or on bare handles, which `hold` holds."""
    cdef Held held
    cdef Handles handles
    cdef list streams
    cdef list blocks
    cdef vector[xlogmem_access] named

    def __init__(self, uses, streams, blocks, size_t stride=0, *, bint by_address=False, bint hold=False):
        cdef xlogmem_access access
        cdef xlogmem_error error
        cdef DeviceBlock block
        super().__init__(uses, stride)
        self.streams = list(streams)
        self.blocks = list(blocks)
        self.held = Held((<DeviceBlock>self.blocks[0]).core)
        self.handles = Handles([stream if isinstance(stream, int) else stream.handle for stream in self.streams])
        for block in self.blocks:
            c_table.identify(self.held.runtime, <void*>block, &access)
            access.generation = 0 if by_address else access.generation
            self.named.push_back(access)
        if self.span > self.named.size():
            raise ValueError(f"{self.span} blocks are used, there are {self.named.size()}")
        for i in range(self.handles.streams.size() if hold else 0):
            if c_table.hold_stream(self.held.runtime, self.handles.streams[i], &error):
                raise_error(&error)

    def run(self, size_t rounds):
        cdef xlogmem_runtime* runtime = self.held.runtime
        cdef vector[xlogmem_access] accesses
        cdef xlogmem_access* access
        cdef xlogmem_error error
        cdef xlogmem_use* opened
        cdef void** streams = self.handles.streams.data()
        cdef size_t base = 0, _, j, k
        cdef uint64_t before, took
        cdef int failed = 0
        with nogil:
            before = now()
            for _ in range(rounds):
                for j in range(self.uses.size()):
                    accesses.resize(self.uses[j].end - self.uses[j].first)
                    access = accesses.data()
                    for k in range(self.uses[j].first, self.uses[j].end):
                        access[0] = self.named[base + self.accesses[k].block]
                        access.access = self.accesses[k].flags
                        access += 1
                    failed = c_table.prepare(runtime, streams[self.uses[j].stream], accesses.data(), accesses.size(), 0,
                                             &opened, &error) or c_table.finish(runtime, opened, &error)
                    if failed:
                        break
                if failed:
                    break
                base += self.stride
                if base + self.span > self.named.size():
                    base = 0
            took = now() - before
        if failed:
            raise_error(&error)
        return took


cdef class Launches:
    """Memsets of one block on a stream, as a stand-in for any launch; each inside of a use, or alone."""
    cdef Held held
    cdef Stream stream
    cdef xlogmem_access access
    cdef size_t nbytes
    cdef bint in_use

    def __init__(self, Stream stream, DeviceBlock block, bint in_use):
        self.held, self.stream, self.in_use, self.nbytes = Held(block.core), stream, in_use, block.nbytes
        c_table.identify(self.held.runtime, <void*>block, &self.access)
        self.access.access = XLOGMEM_WRITE

    def run(self, size_t rounds):
        cdef xlogmem_runtime* runtime = self.held.runtime
        cdef cy.CUstream handle = self.stream.state.handle
        cdef xlogmem_error error
        cdef xlogmem_use* opened = NULL
        cdef int failed = 0
        cdef cy.CUresult status = cy.CUDA_SUCCESS
        with nogil:
            for _ in range(rounds):
                failed = self.in_use and c_table.prepare(runtime, <void*>handle, &self.access, 1, 0, &opened, &error)
                if failed:
                    break
                status = cy.cuMemsetD8Async(<cy.CUdeviceptr>self.access.address, 0, self.nbytes, handle)
                failed = self.in_use and c_table.finish(runtime, opened, &error)
                if failed or status != cy.CUDA_SUCCESS:
                    break
        if failed:
            raise_error(&error)
        if status != cy.CUDA_SUCCESS:
            raise RuntimeError(f"cuMemsetD8Async: {<int>status}")


def frees_after_reads(streams, size_t nbytes, size_t readers, size_t rounds):
    """Allocate on the first stream, read on `readers` others, free."""
    cdef Held held = Held(core_of(streams[0]))
    cdef Handles handles = Handles([stream.handle for stream in streams])
    cdef void** on = handles.streams.data()
    cdef xlogmem_access access
    cdef xlogmem_error error
    cdef xlogmem_use* opened
    cdef void* ptr
    cdef uint64_t before, took
    cdef size_t _, reader
    cdef int failed = 0
    access.access = XLOGMEM_READ
    with nogil:
        before = now()
        for _ in range(rounds):
            failed = (c_table.allocate(held.runtime, nbytes, on[0], &ptr, &error)
                      or c_table.find(held.runtime, ptr, &access, NULL, NULL, &error))
            for reader in range(1, readers + 1 if not failed else 0):
                failed = (c_table.prepare(held.runtime, on[reader], &access, 1, 0, &opened, &error)
                          or c_table.finish(held.runtime, opened, &error))
                if failed:
                    break
            if failed:
                break
            c_table.deallocate(held.runtime, ptr, on[0])
        took = now() - before
    if failed:
        raise_error(&error)
    return took
