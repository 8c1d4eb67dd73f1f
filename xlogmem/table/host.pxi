# Accesses by the host for callers of the C table, which name XLOGMEM_HOST in place of a stream: core/host.pxi.

from libc.stdio cimport snprintf

from xlogmem._base.failures cimport fail_argument
from xlogmem._core cimport prepare_on_host, refuse_forked
from xlogmem.native cimport XLOGMEM_HOST, XLOGMEM_KEEPS_STREAM


cdef inline bint names_host(void* stream) noexcept nogil:
    return stream == XLOGMEM_HOST


cdef int fail_no_stream(Failure* failure) noexcept nogil:
    snprintf(failure.text, sizeof(failure.text), "XLOGMEM_HOST is the host, and no stream: only prepare, wait, "
             "allocate and deallocate take it")
    return fail_argument(failure, cy.CUDA_ERROR_INVALID_VALUE)


cdef int prepare_access(RuntimeHold* hold, Launch* launch, Window** result, Failure* failure) except -1 nogil:
    """Prepare an access by the host: no stream is looked up, and nothing is queued."""
    cdef CoreState* core = hold.core
    cdef PyThreadState* thread
    cdef Window* window
    cdef int failed
    if launch.flags & <uint32_t>XLOGMEM_KEEPS_STREAM:
        return fail_no_stream(failure)
    if not names_memory(launch):
        return 0
    if refuse_forked(failure):                          # before the lock
        return 1
    core.order.lock.lock()
    window = take_window_of_hold_locked(hold)
    failed = find_blocks_locked(core, window, launch)
    core.order.lock.unlock()
    if not failed:
        begin_window(window, NULL, launch.flags)
        thread = release_gil()
        failed = prepare_on_host(core, window, failure)
        restore_gil(thread)
    core.order.lock.lock()
    if failed:
        hold.windows.push_back(window)
    else:
        hold.open_uses += 1
        result[0] = window
    core.order.lock.unlock()
    return failed
