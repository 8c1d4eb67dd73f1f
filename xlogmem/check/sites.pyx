# cython: autotestdict=False
"""Places in Python programs: numbers for stacks, and the frames of each number."""
# Reading the stack through Python's objects takes several microseconds, and the GIL, which the callers mostly do not
# have: hence sites.hpp.

from cpython.ref cimport PyObject
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free

from xlogmem._base.labels cimport line_of
from xlogmem._base.locks cimport mutex
from xlogmem._driver cimport LEAF_LOCK, take_at_forks

import json
from time import perf_counter_ns

from xlogmem.check.frames import Frame


cdef extern from "sites.hpp" namespace "check" nogil:
    cdef cppclass Place:
        PyObject* code
        int instruction
    cdef cppclass Stack:
        Place* places "places.data()"
        int depth
    cdef cppclass Sites:
        mutex lock
        bint start()
        uint32_t of_caller()
        size_t size()
        Stack at(uint32_t number)
    bint is_native_place "check::is_native" (uint32_t number)
    cdef cppclass SitesOfSignals:
        @staticmethod
        bint of "is"(uint32_t number)
        uint32_t next(uint32_t number)


cdef extern from *:
    """
    static std::atomic<char* (*)(uint32_t)> xlogmem_native_frames{nullptr};
    static check::Sites& xlogmem_sites() {
        static auto& sites = *xlogmem_make_new<check::Sites>(); // threads may outlive the statics
        return sites;
    }
    static check::SitesOfSignals xlogmem_sites_of_signals;      // handlers cannot make them
    extern "C" __attribute__((visibility("default"))) uint32_t xlogmem_site_in_handler() {
        return xlogmem_sites().can_read() ? xlogmem_sites_of_signals.of_caller() : 0;
    }
    extern "C" __attribute__((visibility("default"))) uint32_t xlogmem_site_of_caller() {
        return xlogmem_sites().of_caller();
    }
    extern "C" __attribute__((visibility("default"))) char* xlogmem_text_of_site(uint32_t number) {
        try {
            if (check::is_native(number)) {
                auto frames = xlogmem_native_frames.load();
                return frames ? frames(number) : strdup("[]");
            }
            if (check::SitesOfSignals::is(number)) return strdup(xlogmem_sites_of_signals.text(number));
            return strdup(check::text_of(xlogmem_sites().at(number)).c_str());
        } catch (const std::bad_alloc&) {
            return nullptr;
        }
    }
    """
    void take_native_frames "xlogmem_native_frames = (char* (*)(uint32_t))" (void* function)
    Sites& xlogmem_sites() nogil
    SitesOfSignals xlogmem_sites_of_signals
    uint32_t xlogmem_site_in_handler() nogil
    char* xlogmem_text_of_site(uint32_t number) nogil
    uint32_t xlogmem_site_of_caller() nogil


take_at_forks(&xlogmem_sites().lock, LEAF_LOCK)


def start():
    """Return true if stacks can be read: see sites.hpp.  In an unknown version of Python stacks have no numbers."""
    return xlogmem_sites().start()


def site_of_caller():
    """Return the number of the calling thread's stack; see `frames_at`."""
    return xlogmem_site_of_caller()


def address_of_function():
    """The address of ``uint32_t site_of_caller(void)``, which any thread may call, with the GIL or without it."""
    return <uintptr_t><void*>xlogmem_site_of_caller


def address_of_function_for_handlers():
    """The same for handlers of signals, which can neither allocate nor take the GIL."""
    return <uintptr_t><void*>xlogmem_site_in_handler


def take_native(uintptr_t address):
    """From now on the C function ``char* frames_of(uint32_t)`` at this address gives the frames of places outside of
    Python: cpp/native."""
    take_native_frames(<void*>address)


def is_native(uint32_t number):
    """True for a place outside of Python: `json_of` has objects for its frames then."""
    return is_native_place(number)


def numbers():
    """Yield the numbers of all stacks of Python that have one."""
    cdef uint32_t number
    yield from range(1, site_count() + 1)
    number = xlogmem_sites_of_signals.next(0)
    while number:
        yield number
        number = xlogmem_sites_of_signals.next(number + 1)


def site_count():
    """Return the number of stacks that have a number."""
    return xlogmem_sites().size()


def frames_at(uint32_t number):
    """Return the innermost frames of a stack, the innermost first, as a list of `Frame`; none for 0.

    Raises
    ------
    ValueError
        No stack has this number.
    """
    cdef Stack stack
    cdef int i
    if SitesOfSignals.of(number):
        return [Frame(*frame) for frame in json.loads(json_of(number))]
    if number > site_count():
        raise ValueError(f"no place has the number {number}")
    stack = xlogmem_sites().at(number)
    return [frame_of(<object>stack.places[i].code, stack.places[i].instruction) for i in range(stack.depth)]


def json_of(uint32_t number):
    """Return the same as JSON, `[file, line, function]` for each frame.  No code of Python runs meanwhile, nor a
    handler of a signal."""
    cdef char* text = xlogmem_text_of_site(number)
    if text == NULL:
        raise MemoryError("no host memory for the text of a stack")
    try:
        return (<bytes>text).decode(errors="surrogateescape")
    finally:
        free(text)


def address_of_text():
    """The address of ``char* text_of_site(uint32_t)``: as `json_of`, to be freed with `free()`, for any thread,
    with the GIL or without it."""
    return <uintptr_t><void*>xlogmem_text_of_site


cdef object frame_of(object code, int instruction):
    return Frame(code.co_filename, line_of(code, instruction), code.co_qualname)


def time_calls(size_t count):
    """Return the mean time of so many calls that find the caller's number, in nanoseconds."""
    cdef uint64_t sum = 0
    cdef size_t _
    before = perf_counter_ns()
    with nogil:
        for _ in range(count):
            sum += xlogmem_site_of_caller()
    return (perf_counter_ns() - before) / count
