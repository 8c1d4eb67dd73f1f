# Streams, events, graphs.

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport intptr_t

cdef enum:
    INVALIDATED = 2                                     # cudaStreamCaptureStatusInvalidated


cpdef intptr_t streamCreate() except? 0:
    cdef void* result = NULL
    cdef int status
    with nogil:
        status = cudaStreamCreate(&result)
    check(status)
    return <intptr_t>result


cpdef intptr_t streamCreateWithFlags(unsigned int flags) except? 0:
    cdef void* result = NULL
    cdef int status
    with nogil:
        status = cudaStreamCreateWithFlags(&result, flags)
    check(status)
    return <intptr_t>result


cpdef intptr_t streamCreateWithPriority(unsigned int flags, int priority) except? 0:
    cdef void* result = NULL
    cdef int status
    with nogil:
        status = cudaStreamCreateWithPriority(&result, flags, priority)
    check(status)
    return <intptr_t>result


cpdef streamDestroy(intptr_t stream):
    cdef int status
    with nogil:
        status = cudaStreamDestroy(<void*>stream)
    check(status)


cpdef streamSynchronize(intptr_t stream):
    cdef int status
    with nogil:
        status = cudaStreamSynchronize(<void*>stream)
    check(status)


cpdef unsigned int streamGetFlags(intptr_t stream) except? 0:
    cdef unsigned int result = 0
    cdef int status
    with nogil:
        status = cudaStreamGetFlags(<void*>stream, &result)
    check(status)
    return result


cpdef int streamGetPriority(intptr_t stream) except? 0:
    cdef int result = 0
    cdef int status
    with nogil:
        status = cudaStreamGetPriority(<void*>stream, &result)
    check(status)
    return result


cpdef bint streamIsCapturing(intptr_t stream) except *:
    cdef int result = 0
    cdef int status
    with nogil:
        status = cudaStreamIsCapturing(<void*>stream, &result)
    check(status)
    if result == INVALIDATED:
        raise RuntimeError("the stream was capturing, but an error has invalidated the capture sequence")
    return result


cpdef intptr_t streamEndCapture(intptr_t stream) except? 0:
    cdef void* result = NULL
    cdef int status
    with nogil:
        status = cudaStreamEndCapture(<void*>stream, &result)
    check(status)
    return <intptr_t>result


cpdef intptr_t graphInstantiate(intptr_t graph) except? 0:
    cdef void* result = NULL
    cdef int status
    with nogil:
        status = cudaGraphInstantiate(&result, <void*>graph, 0)
    check(status)
    return <intptr_t>result


cpdef graphLaunch(intptr_t graphExec, intptr_t stream):
    cdef int status
    with nogil:
        status = cudaGraphLaunch(<void*>graphExec, <void*>stream)
    check(status)


cpdef graphDestroy(intptr_t graph):
    cdef int status
    with nogil:
        status = cudaGraphDestroy(<void*>graph)
    check(status)


cpdef graphExecDestroy(intptr_t graphExec):
    cdef int status
    with nogil:
        status = cudaGraphExecDestroy(<void*>graphExec)
    check(status)


cpdef intptr_t eventCreate() except? 0:
    cdef void* result = NULL
    cdef int status
    with nogil:
        status = cudaEventCreate(&result)
    check(status)
    return <intptr_t>result


cpdef intptr_t eventCreateWithFlags(unsigned int flags) except? 0:
    cdef void* result = NULL
    cdef int status
    with nogil:
        status = cudaEventCreateWithFlags(&result, flags)
    check(status)
    return <intptr_t>result


cpdef eventDestroy(intptr_t event):
    cdef int status
    with nogil:
        status = cudaEventDestroy(<void*>event)
    check(status)


cpdef float eventElapsedTime(intptr_t start, intptr_t end) except? 0:
    cdef float result = 0
    cdef int status
    with nogil:
        status = cudaEventElapsedTime(&result, <void*>start, <void*>end)
    check(status)
    return result


cpdef eventRecord(intptr_t event, intptr_t stream):
    cdef int status
    with nogil:
        status = cudaEventRecord(<void*>event, <void*>stream)
    check(status)


cpdef eventSynchronize(intptr_t event):
    cdef int status
    with nogil:
        status = cudaEventSynchronize(<void*>event)
    check(status)


cpdef graphUpload(intptr_t graphExec, intptr_t stream):
    cdef int status
    with nogil:
        status = cudaGraphUpload(<void*>graphExec, <void*>stream)
    check(status)


cpdef streamQuery(intptr_t stream):
    return cudaStreamQuery(<void*>stream)


cpdef eventQuery(intptr_t event):
    return cudaEventQuery(<void*>event)


cpdef streamWaitEvent(intptr_t stream, intptr_t event, unsigned int flags=0):
    cdef int status
    with nogil:
        status = cudaStreamWaitEvent(<void*>stream, <void*>event, flags)
    check(status)


cpdef streamBeginCapture(intptr_t stream, int mode=2):
    check(cudaStreamBeginCapture(<void*>stream, mode))


cdef void call_host(void* data) noexcept with gil:
    pair = <object>data
    try:
        pair[0](pair[1])
    finally:
        Py_DECREF(pair)


cdef void call_unmanaged(void* data) noexcept with gil:
    pair = <object>data
    pair[0](pair[1])


cdef void call_back(void* stream, int status, void* data) noexcept with gil:
    pair = <object>data
    try:
        pair[0](<intptr_t>stream, status, pair[1])
    finally:
        Py_DECREF(pair)


cpdef launchHostFunc(intptr_t stream, callback, intptr_t arg):
    cdef int status
    pair = (callback, arg)
    Py_INCREF(pair)                                     # until it has been called
    with nogil:
        status = cudaLaunchHostFunc(<void*>stream, &call_host, <void*>pair)
    check_queued(status, pair)


cpdef _launchHostFuncUnmanaged(intptr_t stream, tuple func_arg):
    cdef int status
    with nogil:                                         # of a captured graph, which calls it at each launch
        status = cudaLaunchHostFunc(<void*>stream, &call_unmanaged, <void*>func_arg)
    check(status)


cpdef streamAddCallback(intptr_t stream, callback, intptr_t arg, unsigned int flags=0):
    cdef int status
    pair = (callback, arg)
    Py_INCREF(pair)
    with nogil:
        status = cudaStreamAddCallback(<void*>stream, &call_back, <void*>pair, flags)
    check_queued(status, pair)


cdef int check_queued(int status, pair) except -1:
    if status:
        Py_DECREF(pair)                                 # it will not be called
    return check(status)
