# Contexts: the primary context of each device, and the capture mode of the thread.
#
# Calls are made with the device's primary context current, and the caller's context is restored after them.  A capture
# in another thread restricts the calls that this thread may make; `relax_capture` lifts the restriction for a call.

from xlogmem._base.failures cimport PROCESS_WAS_FORKED, raise_failure


cdef dict contexts = {}                     # by device_id; kept until the process ends


cdef class Context:
    """The primary context of a device and its spare events.

    One for each device and process, kept until the process ends: other libraries use the same context, so it is never
    reset.

    Attributes
    ----------
    device_id : int
        The device.
    """

    def __cinit__(self):
        take_at_forks(&self.events.lock, LEAF_LOCK)

    def __init__(self):
        raise TypeError("contexts are made by xlogmem itself")

    def __dealloc__(self):
        forget_at_forks(&self.events.lock)


cdef Context context_of(int device_id):
    """The primary context of a device, retained on first use.  Raises ValueError if there is no such device."""
    cdef Context context
    cdef Failure failure
    cdef int failed
    initialize()
    context = contexts.get(device_id)
    if context is not None:
        return context
    context = Context.__new__(Context)
    context.device_id = device_id
    device_with_id(device_id, &context.device)
    with nogil:
        failed = _check(&failure, "cuDevicePrimaryCtxRetain",
                        cy.cuDevicePrimaryCtxRetain(&context.handle, context.device))
    if failed:
        raise_failure(&failure, f"opening device {device_id}")
    return contexts.setdefault(device_id, context)


def forget_context(int device_id):
    """Forget the context of a device that was reset and has a new context, which is retained when it is next needed.

    Objects that were made before keep the old context.
    """
    cdef Context former = contexts.pop(device_id, None)
    if former is not None:
        forget_own_pools(former.handle)
    forget_peer_access(device_id)


cdef int enter_context(cy.CUcontext context, Scope* scope, Failure* failure) except -1 nogil:
    """Make a context current; `leave_context` restores the caller's context.  Makes a single query if the context is
    current already.  Fails in a forked child, so a function that enters a context first needs no check of its own."""
    cdef cy.CUcontext current = NULL
    scope.pushed = False
    if process_was_forked():
        failure.kind = PROCESS_WAS_FORKED
        return 1
    if _check(failure, "cuCtxGetCurrent", query_context(&current)):
        return 1
    if current == context:
        return 0
    if _check(failure, "cuCtxPushCurrent", cy.cuCtxPushCurrent(context)):
        return 1
    scope.pushed = True
    return 0


cdef int leave_context(Scope* scope) except -1 nogil:
    """Restore the context that was current before `enter_context`; do nothing in a child forked in between.

    If the pop fails, `cuCtxSetCurrent(NULL)` pops as well (CUDA driver API): else the next call would create events in
    another context than that of the streams they are for.
    """
    cdef cy.CUcontext popped
    if scope.pushed and not process_was_forked() and cy.cuCtxPopCurrent(&popped) != cy.CUDA_SUCCESS:
        cy.cuCtxSetCurrent(NULL)
    return 0


cdef int current_context(cy.CUcontext* context, Failure* failure) except -1 nogil:
    """Get the current context; NULL if there is none."""
    return _check(failure, "cuCtxGetCurrent", query_context(context))


cdef int context_synchronize(Failure* failure) except -1 nogil:
    """Have the host wait for everything enqueued in the current context."""
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuCtxSynchronize()
    restore_capture(mode)
    return _check(failure, "cuCtxSynchronize", result)


# ---------------------------------------------------------------------------------------------- captures
cdef cy.CUstreamCaptureMode relax_capture() except? <cy.CUstreamCaptureMode>-1 nogil:
    """Put the thread into relaxed capture mode; returns the former mode, for `restore_capture`.

    While a graph is captured in global mode anywhere in the process, allocating, freeing, querying and synchronizing
    fail in every thread that is not in relaxed mode, and invalidate the capture.
    """
    cdef cy.CUstreamCaptureMode mode = cy.CU_STREAM_CAPTURE_MODE_RELAXED
    exchange_mode(&mode)
    return mode


cdef int restore_capture(cy.CUstreamCaptureMode mode) except -1 nogil:
    exchange_mode(&mode)
    return 0
