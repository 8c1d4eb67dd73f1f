# Accesses by the host: a thread of the program itself reads or writes memory that copies and kernels use, too.
#
# An access has a window, as a launch has: `prepare_on_host` opens it, and the host waits for what a launch would be
# ordered after.  Its close files nothing (the outcome is ACCESSED): whatever is queued after the access begins after
# it.  It removes no entry either, and a fresh block stays fresh, because an entry that was removed could not be raised
# again.
#
# Two threads conflict with each other as two streams do, and one thread does not conflict with itself.  So each thread
# that accesses memory has a `HostThread` in the runtime: a stream to the pages of conflicting windows, where streams
# are compared, and to nothing else.  It has no place in clocks and takes no positions.

from xlogmem._base.cpp cimport check, make_new, unlikely
from xlogmem._base.failures cimport BLOCK_IS_ON_DEVICE, ON_HOST, fail_block
from xlogmem._base.index cimport NO_STREAM
from xlogmem._driver cimport Scope, enter_context, leave_context
from xlogmem._order cimport SEALED, current_thread, thread_is_alive


cdef StreamState* host_of_thread_locked(CoreState* core) noexcept nogil:
    """Return what stands for this thread in the windows of its accesses.  That of a thread which has ended is given to
    the next."""
    check(core.order.lock.held(), "the lock is held")
    cdef uint64_t thread = current_thread()
    cdef HostThread* host
    cdef size_t i
    for i in range(core.host_threads.size()):
        if core.host_threads[i].thread == thread:
            return &core.host_threads[i].as_stream
    for i in range(core.host_threads.size()):
        host = core.host_threads[i]
        if host.as_stream.windows == 0 and host.as_stream.busy == 0 and not thread_is_alive(host.thread):
            host.thread = thread
            return &host.as_stream
    host = make_new[HostThread]()
    host.thread = thread
    host.as_stream.index = NO_STREAM
    host.as_stream.number = <uint64_t>ON_HOST
    host.as_stream.discipline = SEALED
    host.as_stream.alive.store(True)
    core.host_threads.push_back(host)
    return &host.as_stream


cdef int refuse_device_memory_locked(CoreState* core, Window* window, Failure* failure) noexcept nogil:
    """Fail if the host cannot reach a block.  Stale blocks are refused where the window opens."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i
    cdef Request* request
    cdef Block* block
    for i in range(window.requests.size()):
        request = &window.requests[i]
        block = core.blocks[request.slot] if request.slot < core.blocks.size() else NULL
        if block != NULL and cache_of(block) != NULL:
            bring_in_locked(core, block, request.generation)
        if block != NULL and block.generation == request.generation and not is_host_accessible(block):
            return fail_block(failure, BLOCK_IS_ON_DEVICE, request.generation, i + 1)
    return 0


cdef int refuse_device_memory(CoreState* core, Window* window, Failure* failure) noexcept nogil:
    """Do as `refuse_device_memory_locked`, for a window that is not opened yet."""
    cdef int failed
    core.order.lock.lock()
    failed = refuse_device_memory_locked(core, window, failure)
    core.order.lock.unlock()
    return failed


cdef AtOnce open_on_host_locked(CoreState* core, Window* window, Failure* failure) noexcept nogil:
    """Open the window of an access.  UNFINISHED: the host has to wait, and `prepare_rest` follows."""
    check(core.order.lock.held(), "the lock is held")
    if refuse_device_memory_locked(core, window, failure):
        return REFUSED
    window.stream = host_of_thread_locked(core)
    return open_known_locked(core, window, failure)


cdef int prepare_on_host(CoreState* core, Window* window, Failure* failure) except -1 nogil:
    """Open one window over all blocks of an access, and have the host wait for their users."""
    cdef Scope scope
    cdef AtOnce done
    if has_deferred_work(core):
        if refuse_lost(core, failure) or enter_context(core.order.context, &scope, failure):
            return 1
        drain(core)
        leave_context(&scope)
    core.order.lock.lock()
    done = open_on_host_locked(core, window, failure)
    core.order.lock.unlock()
    if done == UNFINISHED and prepare_rest(core, window, failure):
        return 1
    if core.marks.load() and done != REFUSED:
        report_opening(core, window)
    return done == REFUSED


cdef int prepare_on_host_at_once(CoreState* core, Window* window, Failure* failure) except -1:
    """Do as `prepare_on_host`, with the GIL, where that waits for nothing."""
    cdef AtOnce done
    if has_deferred_work(core) or not core.order.lock.try_lock():
        return NOT_AT_ONCE
    done = open_on_host_locked(core, window, failure)
    core.order.lock.unlock()
    return done
