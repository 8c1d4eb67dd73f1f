# Uses of blocks on an xlogmem runtime, over the functions of the core that all paths from Python end in.

from libc.stdint cimport uint64_t
from libcpp.vector cimport vector

from xlogmem._base.failures cimport Failure
from xlogmem._core cimport (
    HAND_BACK_ALL,
    LAUNCHED,
    READ,
    WAIT_FOR_CONFLICTS,
    Block,
    CoreState,
    Request,
    Window,
    allocate,
    file_window_locked,
    finish_rest,
    free_block,
    prepare,
    return_window,
    take_window,
)
from xlogmem._order cimport StreamState, current_thread
from xlogmem.blocks cimport Core, DeviceBlock
from xlogmem.resources.base cimport Allocation, start_call_on
from xlogmem.streams cimport Stream, core_of


cdef extern from "loops/per_use_events.hpp" namespace "xlogmem_bench" nogil:
    cdef struct use:
        uint64_t stream
        uint64_t first
        uint64_t end
    cdef struct access:
        uint64_t block
        uint64_t flags


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


cdef inline Window* window_on(CoreState* core, StreamState* stream) noexcept nogil:
    cdef Window* window = take_window(core)
    window.stream = stream
    window.on_conflict = WAIT_FOR_CONFLICTS
    window.thread = current_thread()
    window.hand_back = HAND_BACK_ALL
    return window


cdef inline int launch_nothing(CoreState* core, Window* window, Failure* failure) except -1 nogil:
    """What `use` does around a launch, and the end of the window."""
    cdef bint more
    cdef int failed = prepare(core, window, failure)
    if not failed:
        core.order.lock.lock()
        more = file_window_locked(core, window, LAUNCHED)
        core.order.lock.unlock()
        if more:
            failed = finish_rest(core, window, failure)
    return_window(core, window)
    return failed


cdef class Uses(Rounds):
    """Rounds of uses on an xlogmem runtime: what `use` ends in, without Python's part."""
    cdef Core runtime
    cdef list streams
    cdef list blocks
    cdef vector[Request] requests

    def __init__(self, uses, streams, blocks, size_t stride=0):
        cdef Request request
        cdef DeviceBlock block
        super().__init__(uses, stride)
        self.streams = list(streams)
        self.blocks = list(blocks)
        self.runtime = core_of(self.streams[0])
        for block in self.blocks:
            request.slot = block.block.slot
            request.generation = block.generation
            request.access = 0
            self.requests.push_back(request)
        if self.span > self.requests.size():
            raise ValueError(f"{self.span} blocks are used, there are {self.requests.size()}")

    def run(self, size_t rounds):
        cdef CoreState* core = &self.runtime.state
        cdef vector[StreamState*] states
        cdef Failure failure
        cdef Request* request
        cdef Window* window
        cdef size_t base = 0, _, j, k
        cdef uint64_t before, took
        cdef int failed = 0
        for stream in self.streams:
            states.push_back((<Stream>stream).state)
        with nogil:
            before = now()
            for _ in range(rounds):
                for j in range(self.uses.size()):
                    window = window_on(core, states[self.uses[j].stream])
                    for k in range(self.uses[j].first, self.uses[j].end):
                        request = &window.requests.emplace_back()       # a copy that is changed stalls the processor
                        request.slot = self.requests[base + self.accesses[k].block].slot
                        request.generation = self.requests[base + self.accesses[k].block].generation
                        request.access = self.accesses[k].flags
                    failed = launch_nothing(core, window, &failure)
                    if failed:
                        break
                if failed:
                    break
                base += self.stride
                if base + self.span > self.requests.size():
                    base = 0
            took = now() - before
        if failed:
            self.runtime.fail(&failure, "a benchmark")
        return took


def frees_after_reads(streams, size_t nbytes, size_t readers, size_t rounds):
    """Allocate on the first stream, read on `readers` others, free: on an xlogmem runtime, from C."""
    cdef Core runtime = core_of(streams[0])
    cdef CoreState* core = &runtime.state
    cdef vector[StreamState*] states
    cdef Block* block = NULL
    cdef Allocation wanted
    cdef Failure failure
    cdef Request request
    cdef Window* window
    cdef uint64_t before, took
    cdef size_t _, reader
    cdef int failed = 0
    for stream in streams:
        states.push_back((<Stream>stream).state)
    with nogil:
        before = now()
        for _ in range(rounds):
            start_call_on(&wanted, nbytes, states[0])
            failed = allocate(core, &wanted, &block, &failure)
            if failed:
                break
            request.slot, request.generation, request.access = block.slot, block.generation, READ
            for reader in range(1, readers + 1):
                window = window_on(core, states[reader])
                window.requests.push_back(request)
                failed = launch_nothing(core, window, &failure)
                if failed:
                    break
            if not failed:
                failed = free_block(core, request.slot, request.generation, NULL, NULL, &failure)
            if failed:
                break
        took = now() - before
    if failed:
        runtime.fail(&failure, "a benchmark")
    return took
