# cython: auto_pickle=False
"""The compiled loops of the benchmarks, without the GIL: what C++ code pays, and the raw driver calls.

``loops.hpp`` has the loops.  Here are the shells around them, and the loops over the core's own functions, which are
what the paths from Python end in.  A method that runs a loop returns the nanoseconds that it took.  Nothing but the
benchmarks uses this module.
"""
from cpython.pycapsule cimport PyCapsule_GetContext, PyCapsule_GetPointer, PyCapsule_New, PyCapsule_SetContext
from cpython.ref cimport Py_DECREF, Py_INCREF
from cuda.bindings cimport cydriver as cy
from libc.stdint cimport int32_t, uint64_t, uintptr_t
from libc.string cimport memset
from libcpp.algorithm cimport sort
from libcpp.vector cimport vector

from xlogmem._core cimport (
    HAND_BACK_ALL,
    LAUNCHED,
    READ,
    Block,
    CoreState,
    Found,
    Request,
    Window,
    allocate,
    file_window_locked,
    find_by_address_locked,
    finish_rest,
    free_block,
    give_window,
    prepare,
    take_window,
)
from xlogmem._driver cimport Failure
from xlogmem._order cimport StreamState
from xlogmem.blocks cimport Core, DeviceBlock
from xlogmem.streams cimport Stream, core_of

from xlogmem import _table
from xlogmem.errors import DriverError

__all__ = ["Allocator", "Bases", "Hand", "SeedUses", "Uses"]

cdef extern from "xlogmem.h" nogil:
    const char* XLOGMEM_TABLE
    const char* XLOGMEM_UPSTREAM
    ctypedef struct xlogmem_error:
        int32_t kind
        char* text
    ctypedef struct xlogmem_runtime:
        pass
    ctypedef struct xlogmem_table:
        xlogmem_runtime* (*open)(void* runtime) noexcept
        void (*close)(xlogmem_runtime* runtime) noexcept nogil
    ctypedef struct xlogmem_upstream:
        void* self
        int (*allocate)(void*, size_t, void*, uint64_t*, xlogmem_error*) noexcept nogil
        int (*deallocate)(void*, uint64_t, size_t, void*, xlogmem_error*) noexcept nogil

cdef extern from *:
    """
    // Where the counting of instructions ends one part and begins the next.
    extern "C" __attribute__((noinline)) void xlogmem_bench_mark() { asm volatile(""); }
    """
    const char* __VERSION__
    unsigned long CYTHON_HEX_VERSION
    void xlogmem_bench_mark() nogil

cdef extern from "loops.hpp" namespace "xlogmem_bench" nogil:
    cdef struct driver:
        pass
    cdef cppclass driver_allocator:
        driver* calls
        cy.CUmemoryPool pool
    cdef cppclass table_allocator:
        xlogmem_table* table
        xlogmem_runtime* runtime
    cdef cppclass trivial_allocator:
        pass
    xlogmem_upstream shape[T](T* of)
    cdef cppclass seed:
        seed(driver*, cy.CUmemoryPool)
        int prepare(cy.CUstream, uint64_t, bint, xlogmem_error*)
        int finish(cy.CUstream, uint64_t, bint, xlogmem_error*)
        xlogmem_upstream functions
    cdef struct step:
        uint64_t operation
        uint64_t slot
        uint64_t bytes
        uint64_t stream
    cdef struct launch:
        cy.CUfunction function
        uint64_t argument
    cdef struct hand_step:
        uint64_t what
        uint64_t stream
        uint64_t event
    cdef struct use:
        uint64_t stream
        uint64_t first
        uint64_t end
    cdef struct access:
        uint64_t block
        uint64_t flags
    cdef cppclass tree:
        pass
    uint64_t now()
    int c_pairs "xlogmem_bench::pairs"(xlogmem_upstream, size_t, void**, size_t, size_t, uint64_t*, uint64_t*,
                                       xlogmem_error*)
    int pairs_in_threads(xlogmem_upstream, driver, cy.CUcontext, size_t, void**, size_t, size_t, uint64_t*,
                         xlogmem_error*)
    int c_program "xlogmem_bench::program"(xlogmem_upstream, driver, launch, step*, size_t, void**, vector[uint64_t],
                                           uint64_t, size_t*, size_t*, uint64_t*, xlogmem_error*)
    int by_hand(driver, driver_allocator, hand_step*, size_t, void**, cy.CUevent*, size_t, size_t, uint64_t*,
                xlogmem_error*)
    int seed_uses(seed, use*, size_t, access*, uint64_t*, size_t, size_t, size_t, void**, size_t, uint64_t*,
                  xlogmem_error*)
    int seed_frees(seed, size_t, void**, size_t, size_t, uint64_t*, xlogmem_error*)
    uint64_t search_sorted(vector[uint64_t], uint64_t*, size_t)
    uint64_t search_tree(tree, uint64_t*, size_t)

cdef extern from *:
    """
    static inline void xlogmem_plant(xlogmem_bench::tree& in, std::uint64_t base) { in.bases[base] = base; }
    static inline int xlogmem_bind(xlogmem_bench::driver* of, const char* name, void* function) {
        struct { const char* name; void** place; } const places[] = {
            {"cuMemAllocFromPoolAsync", (void**)&of->allocate}, {"cuMemFreeAsync", (void**)&of->free},
            {"cuEventCreate", (void**)&of->create}, {"cuEventDestroy", (void**)&of->destroy},
            {"cuEventRecord", (void**)&of->record}, {"cuStreamWaitEvent", (void**)&of->wait},
            {"cuCtxSynchronize", (void**)&of->synchronize}, {"cuCtxSetCurrent", (void**)&of->set_current},
            {"cuLaunchKernel", (void**)&of->launch},
        };
        for (auto const& place : places) {
            if (std::string_view{place.name} == name) { *place.place = function; return 1; }
        }
        return 0;
    }
    """
    void xlogmem_plant(tree, uint64_t)
    int xlogmem_bind(driver*, const char*, void*)

COMPILER = f"{__VERSION__.decode()}, Cython {CYTHON_HEX_VERSION >> 24}.{CYTHON_HEX_VERSION >> 16 & 255}"
ALLOCATE, FREE, LAUNCH, SYNCHRONIZE = range(4)          # of Allocator.program
RECORD, WAIT, TAKE, GIVE = range(4)                     # of Hand

cdef driver calls
cdef bint bound = False


def mark():
    """Where the counting of instructions ends one part and begins the next."""
    xlogmem_bench_mark()


cdef int succeed(cy.CUresult code, str call) except -1:
    if code != cy.CUDA_SUCCESS:
        raise DriverError(f"{call} failed with {<int>code}", code=<int>code)
    return 0


cdef int refuse(xlogmem_error* error) except -1:
    raise DriverError(error.text.decode(errors="replace"))


cdef int bind_driver() except -1:
    """The driver's functions, asked of the driver."""
    global bound
    cdef void* function
    if bound:
        return 0
    for name in (b"cuMemAllocFromPoolAsync", b"cuMemFreeAsync", b"cuEventCreate", b"cuEventDestroy", b"cuEventRecord",
                 b"cuStreamWaitEvent", b"cuCtxSynchronize", b"cuCtxSetCurrent", b"cuLaunchKernel"):
        function = NULL
        succeed(cy.cuGetProcAddress(name, &function, 12000, 0, NULL), "cuGetProcAddress")
        if function == NULL or not xlogmem_bind(&calls, name, function):
            raise DriverError(f"the driver has no {name.decode()}")
    bound = True
    return 0


cdef cy.CUmemoryPool new_pool() except NULL:
    """A pool of the driver that keeps what it has, in the current context."""
    cdef cy.CUmemPoolProps properties
    cdef cy.CUmemoryPool pool
    cdef cy.CUdevice device
    cdef uint64_t threshold = <uint64_t>-1
    bind_driver()
    succeed(cy.cuCtxGetDevice(&device), "cuCtxGetDevice")
    memset(&properties, 0, sizeof(properties))
    properties.allocType = cy.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.handleTypes = cy.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    properties.location.type = cy.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    succeed(cy.cuMemPoolCreate(&pool, &properties), "cuMemPoolCreate")
    succeed(cy.cuMemPoolSetAttribute(pool, cy.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold),
            "cuMemPoolSetAttribute")
    return pool


cdef class Handles:
    """CUDA streams, as the loops take them."""
    cdef vector[void*] streams

    def __cinit__(self, handles):
        for handle in handles:
            self.streams.push_back(<void*><uintptr_t>handle)


# ---------------------------------------------------------------------------------------------- allocate and free
cdef void drop_holder(object capsule) noexcept:
    Py_DECREF(<object>PyCapsule_GetContext(capsule))


cdef class Allocator:
    """Somebody's allocator as C++ code calls it; one of the functions below makes it."""
    cdef xlogmem_upstream* functions
    cdef xlogmem_upstream own
    cdef driver_allocator raw
    cdef table_allocator tracked
    cdef trivial_allocator* trivial
    cdef seed* scheme
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
        """The driver's calls, on a pool of its own that keeps what it has."""
        cdef Allocator made = Allocator.__new__(Allocator)
        made.raw.pool = new_pool()
        made.raw.calls = &calls
        made.own = shape(&made.raw)
        made.functions = &made.own
        return made

    @staticmethod
    def table(Core runtime not None):
        """A runtime of ours through the C table."""
        cdef Allocator made = Allocator.__new__(Allocator)
        made.tracked.table = <xlogmem_table*>PyCapsule_GetPointer(_table.table, XLOGMEM_TABLE)
        made.tracked.runtime = made.tracked.table.open(<void*>runtime)
        made.own = shape(&made.tracked)
        made.functions = &made.own
        return made

    @staticmethod
    def nothing():
        """Addresses without memory."""
        cdef Allocator made = Allocator.__new__(Allocator)
        made.trivial = new trivial_allocator()
        made.own = shape(made.trivial)
        made.functions = &made.own
        return made

    @staticmethod
    def seed():
        """The scheme of an event for each use of a block, on a pool of the driver."""
        cdef Allocator made = Allocator.__new__(Allocator)
        made.raw.pool = new_pool()
        made.scheme = new seed(&calls, made.raw.pool)
        made.functions = &made.scheme.functions
        return made

    @staticmethod
    def of(capsule):
        """What a capsule for `ForeignMemoryResource` has: an RMM resource, from `xlogmem.rmm._binding.upstream_of`."""
        cdef Allocator made = Allocator.__new__(Allocator)
        made.functions = <xlogmem_upstream*>PyCapsule_GetPointer(capsule, XLOGMEM_UPSTREAM)
        made.held = capsule
        return made

    @property
    def capsule(self):
        """For `ForeignMemoryResource`; it holds the allocator."""
        capsule = PyCapsule_New(self.functions, XLOGMEM_UPSTREAM, drop_holder)
        PyCapsule_SetContext(capsule, <void*>self)
        Py_INCREF(self)
        return capsule

    def pairs(self, size_t nbytes, streams, size_t count):
        """Allocate and free, the streams in turn."""
        cdef Handles on = Handles(streams)
        cdef xlogmem_error error
        cdef uint64_t took = 0
        cdef int failed
        with nogil:
            failed = c_pairs(self.functions[0], nbytes, on.streams.data(), on.streams.size(), count, NULL, &took,
                             &error)
        if failed:
            refuse(&error)
        return took

    def each_pair(self, size_t nbytes, streams, size_t count):
        """What each pair took, as a list, sorted."""
        cdef Handles on = Handles(streams)
        cdef vector[uint64_t] each
        cdef xlogmem_error error
        cdef uint64_t took = 0
        cdef int failed
        each.resize(count)
        with nogil:
            failed = c_pairs(self.functions[0], nbytes, on.streams.data(), on.streams.size(), count, each.data(), &took,
                             &error)
            sort(each.begin(), each.end())
        if failed:
            refuse(&error)
        return each

    def pairs_in_threads(self, size_t nbytes, streams, size_t count):
        """`count` pairs in each of as many threads as there are streams; until the last thread is done."""
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
            refuse(&error)
        return took

    def program(self, Program program not None, streams, double limit=0):
        """All steps of a program; what was refused for want of memory is left out, and counted by the program.  One
        that takes longer than `limit` seconds (0: as long as it likes) is given up, with nothing allocated, and raises
        `TimeoutError`."""
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
            refuse(&error)
        if stopped < program.steps.size():
            raise TimeoutError(f"given up after {limit:g} s, with {100 * stopped // program.steps.size()} % of the "
                               f"{program.steps.size():,} steps done")
        return took


cdef class Slots:
    """What a program has allocated, by number; programs that go on with each other share it."""
    cdef vector[uint64_t] places

    def __init__(self, size_t count):
        self.places.resize(count)


cdef class Program:
    """Steps (operation, slot, bytes, stream); `function` and `argument`: the kernel that LAUNCH launches."""
    cdef vector[step] steps
    cdef Slots slots
    cdef launch kernel
    cdef readonly size_t refused

    def __init__(self, steps, Slots slots not None, uintptr_t function=0, uint64_t argument=0):
        cdef step one
        self.slots = slots
        for operation, slot, nbytes, stream in steps:
            one.operation, one.slot, one.bytes, one.stream = operation, slot, nbytes, stream
            if one.slot >= slots.places.size():
                raise ValueError(f"slot {slot} of {slots.places.size()}")
            self.steps.push_back(one)
        self.kernel.function = <cy.CUfunction>function
        self.kernel.argument = argument


# ---------------------------------------------------------------------------------------------- uses
cdef class Hand:
    """Driver calls in a row, as somebody makes them who keeps no books: steps (RECORD or WAIT, stream, event), or (TAKE
    or GIVE, stream, 0) for a block of `nbytes`."""
    cdef driver_allocator memory
    cdef vector[hand_step] steps
    cdef vector[cy.CUevent] events
    cdef Handles streams
    cdef size_t nbytes

    def __init__(self, steps, streams, size_t nbytes=256):
        cdef hand_step one
        cdef cy.CUevent event
        cdef size_t events = 0
        self.memory.pool = new_pool()
        self.memory.calls = &calls
        self.streams = Handles(streams)
        self.nbytes = nbytes
        for what, stream, number in steps:
            one.what, one.stream, one.event = what, stream, number
            events = max(events, one.event + 1)
            self.steps.push_back(one)
        for _ in range(events):
            succeed(cy.cuEventCreate(&event, cy.CUevent_flags.CU_EVENT_DISABLE_TIMING), "cuEventCreate")
            self.events.push_back(event)

    def __dealloc__(self):
        cdef size_t i
        for i in range(self.events.size()):
            cy.cuEventDestroy(self.events[i])
        if self.memory.pool != NULL:
            cy.cuMemPoolDestroy(self.memory.pool)

    def run(self, size_t rounds):
        cdef xlogmem_error error
        cdef uint64_t took = 0
        cdef int failed
        with nogil:
            failed = by_hand(calls, self.memory, self.steps.data(), self.steps.size(), self.streams.streams.data(),
                             self.events.data(), self.nbytes, rounds, &took, &error)
        if failed:
            refuse(&error)
        return took


cdef class Rounds:
    """Uses, a list of (stream, [(block, flags)]) by their numbers, over and over; each round begins `stride` blocks
    further on, and at the first block again when there are not enough left."""
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


cdef inline Window* window_on(StreamState* stream) noexcept nogil:
    cdef Window* window = take_window()
    window.stream = stream
    window.exclusive = False
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
    give_window(window)
    return failed


cdef class Uses(Rounds):
    """Rounds of uses on a runtime of ours: what `use` ends in, without Python's part."""
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
        cdef Request request
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
                    window = window_on(states[self.uses[j].stream])
                    for k in range(self.uses[j].first, self.uses[j].end):
                        request = self.requests[base + self.accesses[k].block]
                        request.access = self.accesses[k].flags
                        window.requests.push_back(request)
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
    """Allocate on the first stream, read on `readers` others, free: on a runtime of ours, from C."""
    cdef Core runtime = core_of(streams[0])
    cdef CoreState* core = &runtime.state
    cdef vector[StreamState*] states
    cdef Block* block = NULL
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
            failed = allocate(core, nbytes, states[0], &block, &failure)
            if failed:
                break
            request.slot, request.generation, request.access = block.slot, block.generation, READ
            for reader in range(1, readers + 1):
                window = window_on(states[reader])
                window.requests.push_back(request)
                failed = launch_nothing(core, window, &failure)
                if failed:
                    break
            if not failed:
                failed = free_block(core, request.slot, request.generation, NULL, &failure)
            if failed:
                break
        took = now() - before
    if failed:
        runtime.fail(&failure, "a benchmark")
    return took


cdef class SeedUses(Rounds):
    """The same uses under the scheme of an event for each use of a block."""
    cdef Allocator memory
    cdef Handles streams
    cdef vector[uint64_t] blocks
    cdef size_t nbytes

    def __init__(self, uses, streams, size_t blocks, size_t nbytes, size_t stride=0):
        cdef xlogmem_error error
        cdef uint64_t ptr
        super().__init__(uses, stride)
        self.memory = Allocator.seed()
        self.streams = Handles(streams)
        self.nbytes = nbytes
        for _ in range(blocks):
            if self.memory.functions.allocate(self.memory.functions.self, nbytes, self.streams.streams[0], &ptr,
                                              &error):
                refuse(&error)
            self.blocks.push_back(ptr)

    def settle(self):
        """Write all blocks on the first stream: nobody is waited for there from now on."""
        cdef cy.CUstream stream = <cy.CUstream>self.streams.streams[0]
        cdef xlogmem_error error
        cdef size_t i
        for i in range(self.blocks.size()):
            if (self.memory.scheme.prepare(stream, self.blocks[i], True, &error)
                    or self.memory.scheme.finish(stream, self.blocks[i], True, &error)):
                refuse(&error)

    def close(self):
        """Free the blocks."""
        cdef xlogmem_error error
        while not self.blocks.empty():
            self.memory.functions.deallocate(self.memory.functions.self, self.blocks.back(), self.nbytes,
                                             self.streams.streams[0], &error)
            self.blocks.pop_back()

    def run(self, size_t rounds):
        cdef xlogmem_error error
        cdef uint64_t took = 0
        cdef int failed
        with nogil:
            failed = seed_uses(self.memory.scheme[0], self.uses.data(), self.uses.size(), self.accesses.data(),
                               self.blocks.data(), self.stride, self.span, self.blocks.size(),
                               self.streams.streams.data(), rounds, &took, &error)
        if failed:
            refuse(&error)
        return took


def seed_frees_after_reads(Allocator memory not None, streams, size_t nbytes, size_t readers, size_t rounds):
    """`frees_after_reads` under the scheme of an event for each use of a block."""
    cdef Handles on = Handles(streams)
    cdef xlogmem_error error
    cdef uint64_t took = 0
    cdef int failed
    with nogil:
        failed = seed_frees(memory.scheme[0], nbytes, on.streams.data(), readers, rounds, &took, &error)
    if failed:
        refuse(&error)
    return took


# ---------------------------------------------------------------------------------------------- lookup
cdef class Bases:
    """The addresses where blocks begin, in a sorted array and in a tree."""
    cdef vector[uint64_t] bases
    cdef tree* planted

    def __cinit__(self, bases):
        self.planted = new tree()
        for base in sorted(bases):
            self.bases.push_back(base)
            xlogmem_plant(self.planted[0], base)

    def __dealloc__(self):
        del self.planted

    def sorted(self, Addresses wanted not None, size_t count):
        cdef uint64_t* addresses = wanted.first(count)
        cdef uint64_t took
        with nogil:
            took = search_sorted(self.bases, addresses, count)
        return took

    def tree(self, Addresses wanted not None, size_t count):
        cdef uint64_t* addresses = wanted.first(count)
        cdef uint64_t took
        with nogil:
            took = search_tree(self.planted[0], addresses, count)
        return took


cdef class Addresses:
    """What is looked for."""
    cdef vector[uint64_t] addresses

    def __cinit__(self, addresses):
        for address in addresses:
            self.addresses.push_back(address)

    cdef uint64_t* first(self, size_t count) except NULL:
        if count > self.addresses.size():
            raise ValueError(f"{count} addresses are asked for, there are {self.addresses.size()}")
        return self.addresses.data()


def lookups(Core runtime not None, Addresses wanted not None, size_t count):
    """Find the block of each address in a runtime of ours."""
    cdef uint64_t* addresses = wanted.first(count)
    cdef CoreState* core = &runtime.state
    cdef size_t missed = 0, i
    cdef uint64_t before, took
    cdef Found found
    with nogil:
        before = now()
        for i in range(count):
            core.order.lock.lock()
            if not find_by_address_locked(core, addresses[i], &found):
                missed += 1
            core.order.lock.unlock()
        took = now() - before
    if missed:
        raise LookupError(f"{missed} of {count} addresses are in no block")
    return took
