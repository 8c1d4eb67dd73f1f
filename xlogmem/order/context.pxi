# Synchronization of the context, when no stream-level wait is possible.
#
# The wait fails during any graph capture in the context, and invalidates the capture.  So the capture state of the
# streams of every runtime of the process is queried first: the streams of this order, then those of each other order,
# never under two locks.  Another order may end meanwhile.  Each order is in a list, with the streams of it that others
# may query.  A thread that ends an order first withdraws these streams, then waits for the threads that are querying
# them, but not for itself: a callback may end a runtime inside a query of one of its streams.

from xlogmem._base.cpp cimport check, make_new
from xlogmem._base.failures cimport NEEDS_CONTEXT_SYNC, SOURCE_IS_CAPTURING, fail_stream
from xlogmem._base.locks cimport mutex
from xlogmem._driver cimport (
    LEAF_LOCK,
    PER_THREAD,
    Scope,
    context_synchronize,
    process_is_closing,
    stream_is_capturing,
    take_at_forks,
)
from xlogmem.observe._history cimport HOST_WAITS


cdef cppclass ListedOrder:
    # The streams of one runtime, for the other runtimes.
    atomic[OrderState*] order           # NULL: they are gone
    flag owners_held                    # foreign streams that are not unowned may be queried
    cy.CUcontext context
    uint64_t number                     # in the order in which they came
    uint32_t watchers                   # under the lock of the list


cdef cppclass Orders:
    mutex lock                          # a leaf
    vector[ListedOrder*] listed
    uint64_t count                      # so far


cdef struct Watch:
    # The order that this thread is watching, for callbacks that are run inside.
    ListedOrder* listed
    Watch* outer

cdef Orders* orders = make_new[Orders]()            # never destroyed: threads may outlive the interpreter
take_at_forks(&orders.lock, LEAF_LOCK)


# ---------------------------------------------------------------------------------------------- the list
cdef void list_order(OrderState* order) noexcept nogil:
    """List an order: from now on other runtimes query whether its own streams are capturing."""
    cdef ListedOrder* listed = make_new[ListedOrder]()
    listed.order.store(order)
    listed.owners_held.store(False)
    listed.context = order.context
    listed.watchers = 0
    order.listed = listed
    orders.lock.lock()
    orders.count += 1
    listed.number = orders.count
    orders.listed.push_back(listed)
    orders.lock.unlock()


cdef void hold_owners(OrderState* order) noexcept nogil:
    """Let other runtimes query the foreign streams too: their owners are held from now on."""
    if order.listed != NULL:
        (<ListedOrder*>order.listed).owners_held.store(True)


cdef int release_owners(OrderState* order) except -1 nogil:
    """Prepare for the end of the owners: returns when no other thread queries their streams.  Call without any lock and
    without the GIL."""
    cdef ListedOrder* listed = <ListedOrder*>order.listed
    if listed != NULL and <bint>listed.owners_held:
        listed.owners_held.store(False)
        wait_for_watchers(listed)
    return 0


cdef int unlist_order(OrderState* order) except -1 nogil:
    """Remove an order from the list before its own streams are destroyed.  Returns when no other thread queries them.
    Call it as `release_owners`."""
    cdef ListedOrder* listed = <ListedOrder*>order.listed
    cdef size_t i
    if listed == NULL:
        return 0
    order.listed = NULL
    orders.lock.lock()
    listed.order.store(NULL)
    for i in range(orders.listed.size()):
        if orders.listed[i] == listed:
            orders.listed[i] = orders.listed.back()
            orders.listed.pop_back()
            break
    listed.watchers += 1                                # it is not deleted meanwhile
    orders.lock.unlock()
    wait_for_watchers(listed)
    end_watch(listed)
    return 0


cdef int wait_for_watchers(ListedOrder* listed) except -1 nogil:
    """Wait until no thread but this one watches the order."""
    cdef Watch* watch = <Watch*>xlogmem_watch
    cdef uint32_t own = 0 if listed.order.load() != NULL else 1     # that of `unlist_order`
    cdef bint others = True
    while watch != NULL:
        own += watch.listed == listed
        watch = watch.outer
    while others and not process_is_closing():
        orders.lock.lock()
        others = listed.watchers > own
        orders.lock.unlock()
        if others:
            usleep(PAUSE)
    return 0


cdef void end_watch(ListedOrder* listed) noexcept nogil:
    cdef bint unused
    orders.lock.lock()
    listed.watchers -= 1
    unused = listed.watchers == 0 and listed.order.load() == NULL
    orders.lock.unlock()
    if unused:
        del listed


# ---------------------------------------------------------------------------------------------- captures
cdef int refuse_captures_in_context_unlocks(OrderState* order, cy.CUcontext context, Failure* failure) except -1 nogil:
    """Fail if a registered stream of any runtime of the process is capturing in the context (NULL: the runtime's own).

    cuCtxSynchronize fails during any capture in the context and invalidates the capture (seen on an H200, in relaxed
    mode too).  Captures on unregistered streams cannot be seen.  The context is current."""
    check(order.lock.held(), "the lock is held")
    cdef StreamState* stream
    cdef int refused = 0
    cdef size_t i
    order.in_flight += 1                        # none is deleted meanwhile
    for i in range(order.streams.size()):
        stream = order.streams[i]
        if (not stream.alive or <bint>stream.unowned or stream.context != context
                or is_other_threads_default(stream)):
            continue
        if (refuse_if_capturing_unlocks(order, stream, SOURCE_IS_CAPTURING, failure)
                and failure.kind == SOURCE_IS_CAPTURING):
            refused = 1                         # a stream that cannot be queried is not known to capture
            break
    order.in_flight -= 1
    if not refused:
        order.lock.unlock()
        refused = refuse_own_capture(failure) or refuse_captures_elsewhere(
            order, context if context != NULL else order.context, failure)
        order.lock.lock()
    return refused


cdef int refuse_own_capture(Failure* failure) except -1 nogil:
    """Fail if this thread's default stream is capturing, which may be unregistered.  Call without the lock."""
    cdef bint capturing = False
    cdef Failure ignored
    if stream_is_capturing(<cy.CUstream><size_t>PER_THREAD, &capturing, &ignored) or not capturing:
        return 0
    return fail_stream(failure, SOURCE_IS_CAPTURING, <uint64_t>PER_THREAD)


cdef int refuse_captures_elsewhere(OrderState* order, cy.CUcontext context, Failure* failure) except -1 nogil:
    """Query the streams of the other runtimes on a context, one runtime after the other.  Call without any lock."""
    cdef ListedOrder* listed = begin_watch(order, context, 0)
    cdef uint64_t number
    cdef int refused = 0
    while listed != NULL and not refused:
        number = listed.number
        refused = watch_captures(listed, failure)
        end_watch(listed)
        if not refused:
            listed = begin_watch(order, context, number)
    return refused


cdef ListedOrder* begin_watch(OrderState* order, cy.CUcontext context, uint64_t after) noexcept nogil:
    """The next of the other runtimes on a context, with one more watcher; NULL after the last one."""
    cdef ListedOrder* next = NULL
    cdef ListedOrder* listed
    cdef size_t i
    orders.lock.lock()
    for i in range(orders.listed.size()):
        listed = orders.listed[i]
        if (listed.context == context and listed.order.load() != order and listed.number > after
                and (next == NULL or listed.number < next.number)):
            next = listed
    if next != NULL:
        next.watchers += 1
    orders.lock.unlock()
    return next


cdef int watch_captures(ListedOrder* listed, Failure* failure) except -1 nogil:
    """Fail if a graph is being captured on a stream of another runtime.  Its streams stay while this thread is counted
    as a watcher, unless a callback inside this very call ends them."""
    global xlogmem_watch, xlogmem_driver_calls
    cdef OrderState* other = listed.order.load()
    cdef StreamState* stream
    cdef Watch watch
    cdef bint capturing = False
    cdef int failed
    cdef size_t i = 0
    if other == NULL:
        return 0
    watch.listed = listed
    watch.outer = <Watch*>xlogmem_watch
    xlogmem_watch = &watch
    other.lock.lock()
    other.in_flight += 1                        # none is deleted meanwhile
    while i < other.streams.size() and not capturing:
        stream = other.streams[i]
        i += 1
        if not may_be_watched(listed, stream):
            continue
        begin_driver_call(stream)
        other.lock.unlock()
        failed = stream_is_capturing(stream.handle, &capturing, failure)
        if listed.order.load() == NULL:         # a callback ended it
            xlogmem_driver_calls -= 1
            other = NULL
            break
        other.lock.lock()
        end_driver_call(stream)
        if not failed and capturing:
            fail_stream(failure, SOURCE_IS_CAPTURING, stream.number)
    if other != NULL:
        other.in_flight -= 1
        other.lock.unlock()
    xlogmem_watch = watch.outer
    return other != NULL and capturing


cdef bint may_be_watched(ListedOrder* listed, StreamState* stream) noexcept nogil:
    """True if another runtime may query the stream."""
    if not stream.alive or is_other_threads_default(stream):
        return False
    return stream.context == NULL and (
        not stream.driver_id or (<bint>listed.owners_held and not <bint>stream.unowned))


# ---------------------------------------------------------------------------------------------- the wait
cdef int sync_context_unlocks(OrderState* order, StreamState* source, Failure* failure) except -1 nogil:
    """Synchronize the context of a stream, as a last resort.  The host is then ordered after every position that was
    taken in the context before.

    The wait ends every graph capture in the context, also captures on streams that this runtime never saw.  So only
    calls that are documented to wait may do it.  Finalizers and allocations fail here, and their work is put off.
    """
    check(order.lock.held(), "the lock is held")
    cdef Scope scope
    cdef int failed
    if xlogmem_may_not_sync:
        order.wants_context_sync = True
        failure.kind = NEEDS_CONTEXT_SYNC
        return 1
    if not source.remote:
        return sync_one_context_unlocks(order, NULL, failure)
    source.busy += 1                                    # it is not deleted meanwhile
    order.lock.unlock()
    failed = enter_stream(source, &scope, failure)
    order.lock.lock()
    if not failed:
        failed = sync_one_context_unlocks(order, source.context, failure)
        order.lock.unlock()
        leave_stream(source, &scope, 0, failure)
        order.lock.lock()
    source.busy -= 1
    return failed and fail_from_locked(order, source, failure)


cdef int sync_one_context_unlocks(OrderState* order, cy.CUcontext context, Failure* failure) except -1 nogil:
    """Synchronize one context (NULL: the runtime's own), which is current, and raise the host's clock for the streams
    of the context."""
    check(order.lock.held(), "the lock is held")
    cdef vector[uint64_t] positions
    cdef uint32_t i
    cdef int failed
    if refuse_captures_in_context_unlocks(order, context, failure):
        return 1
    positions.resize(order.streams.size())
    for i in range(<uint32_t>order.streams.size()):
        if order.streams[i].context == context:
            positions[i] = order.streams[i].count
    order.wants_context_sync = False
    order.lock.unlock()
    failed = context_synchronize(failure)
    order.lock.lock()
    if failed:
        order.wants_context_sync = True
        return 1
    order.counters.host_waits += 1
    if order.is_recorded:
        note_order(order, HOST_WAITS, NULL, NULL, 0)
    for i in range(<uint32_t>positions.size()):
        if positions[i]:
            raise_clock(&order.host_clock, i, positions[i])
    return 0


cdef int sync_contexts_unlocks(OrderState* order, Failure* failure) except -1 nogil:
    """Synchronize the runtime's own context, and the context of each remote stream that the host can be ordered after
    in no other way."""
    check(order.lock.held(), "the lock is held")
    cdef StreamState* stream
    cdef size_t i
    if sync_context_unlocks(order, order.streams[0], failure):
        return 1
    for i in range(order.streams.size()):
        stream = order.streams[i]
        if stream.remote and needs_context_sync_locked(order, NULL, stream, stream.count):
            if sync_context_unlocks(order, stream, failure):
                return 1
    return 0
