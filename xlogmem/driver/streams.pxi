# Streams: creation and destruction, attributes of a handle, and waits on the device.
#
# A handle is not an identity: the driver reuses it.  The id that `stream_id` returns is an identity, but the query
# invalidates a capture, so the capture state is queried before it.

cdef int stream_create(int priority, cy.CUstream* stream, Failure* failure) except -1 nogil:
    """Create a stream that is not ordered with the legacy default stream: neither waits for the other."""
    return _check(failure, "cuStreamCreateWithPriority",
                  cy.cuStreamCreateWithPriority(stream, cy.CU_STREAM_NON_BLOCKING, priority))


cdef int stream_destroy(cy.CUstream stream, Failure* failure) except -1 nogil:
    return _check(failure, "cuStreamDestroy", cy.cuStreamDestroy(stream))


cdef int stream_synchronize(cy.CUstream stream, Failure* failure) except -1 nogil:
    """Have the host wait for all work on the stream, which captures no graph."""
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuStreamSynchronize(stream)
    restore_capture(mode)
    return _check(failure, "cuStreamSynchronize", result)


cdef int stream_id(cy.CUstream stream, uint64_t* number, Failure* failure) except -1 nogil:
    """Get the driver's id of the stream, which the driver never reuses.  Invalidates a capture on the stream."""
    cdef unsigned long long value = 0
    cdef int status = _check(failure, "cuStreamGetId", query_id(stream, &value))
    number[0] = value
    return status


cdef int stream_flags(cy.CUstream stream, unsigned int* flags, Failure* failure) except -1 nogil:
    return _check(failure, "cuStreamGetFlags", cy.cuStreamGetFlags(stream, flags))


cdef int stream_context(cy.CUstream stream, cy.CUcontext* context, Failure* failure) except -1 nogil:
    """Get the context of a stream; of one of a green context, the primary context that the green one is part of."""
    cdef cy.CUgreenCtx green = NULL
    if query_contexts != NULL:
        return _check(failure, "cuStreamGetCtx", query_contexts(stream, context, &green))
    return _check(failure, "cuStreamGetCtx", cy.cuStreamGetCtx(stream, context))


cdef int stream_device(cy.CUstream stream, int* device_id, Failure* failure) except -1 nogil:
    """Get the device of a stream.  The default streams (handles 0 to 2) are on the device of the current context, or on
    device 0 if no context is current."""
    cdef cy.CUcontext context = NULL
    cdef cy.CUdevice device = 0
    cdef Scope scope
    cdef int failed
    if <size_t>stream <= 2:
        failed = _check(failure, "cuCtxGetCurrent", cy.cuCtxGetCurrent(&context))
    else:
        failed = stream_context(stream, &context, failure)
    if failed or context == NULL:
        device_id[0] = 0
        return failed
    if enter_context(context, &scope, failure):
        return 1
    failed = _check(failure, "cuCtxGetDevice", cy.cuCtxGetDevice(&device))
    leave_context(&scope)
    device_id[0] = device
    return failed


cdef int stream_is_capturing(cy.CUstream stream, bint* capturing, Failure* failure) except -1 nogil:
    """Query whether a graph is captured on the stream, invalidated captures included.

    While a blocking stream is capturing, the legacy stream may not be used, so it counts as capturing.  The driver then
    answers this query with a special error, and invalidates nothing (CUDA driver API, cuStreamIsCapturing).
    """
    cdef cy.CUstreamCaptureStatus status = cy.CU_STREAM_CAPTURE_STATUS_NONE
    cdef cy.CUresult result = query_capture(stream, &status)
    if result == cy.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
        capturing[0] = True
        return 0
    capturing[0] = status != cy.CU_STREAM_CAPTURE_STATUS_NONE
    return _check(failure, "cuStreamIsCapturing", result)


cdef int stream_is_idle(cy.CUstream stream, bint* idle, Failure* failure) except -1 nogil:
    """Query, without waiting, whether all work on the stream is complete.  Invalidates a capture on the stream."""
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuStreamQuery(stream)
    restore_capture(mode)
    idle[0] = result == cy.CUDA_SUCCESS
    if result == cy.CUDA_ERROR_NOT_READY:
        return 0
    return _check(failure, "cuStreamQuery", result)


cdef int launch_host_function(cy.CUstream stream, void (*function)(void*) noexcept nogil, void* data,
                              Failure* failure) except -1 nogil:
    """Have the driver call a function of C behind the work on the stream.  The function must not call the driver."""
    return _check(failure, "cuLaunchHostFunc", cy.cuLaunchHostFunc(stream, <cy.CUhostFn>function, data))


cdef int stream_wait(cy.CUstream stream, cy.CUevent event, Failure* failure) except -1 nogil:
    """Have the stream wait, on the device, for the last record of the event."""
    return _check(failure, "cuStreamWaitEvent", wait_for_event(stream, event, 0))
