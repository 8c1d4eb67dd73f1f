# Graphs: captures, and the executable graphs that are made of them.

cdef int capture_of(cy.CUstream stream, uint64_t* capture, Failure* failure) except -1 nogil:
    """Get the id of the capture that the stream takes part in, which the driver never uses again; 0 if there is none,
    `SPOILT_CAPTURE` if it was invalidated."""
    cdef cy.CUstreamCaptureStatus status = cy.CU_STREAM_CAPTURE_STATUS_NONE
    cdef unsigned long long number = 0
    cdef cy.CUresult result = get_capture(stream, &status, &number, NULL, NULL, NULL)
    capture[0] = 0
    if result == cy.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:     # the legacy stream, beside a capture
        return 0
    if status == cy.CU_STREAM_CAPTURE_STATUS_ACTIVE:
        capture[0] = number
    elif status == cy.CU_STREAM_CAPTURE_STATUS_INVALIDATED:
        capture[0] = <uint64_t>SPOILT_CAPTURE
    return _check(failure, "cuStreamGetCaptureInfo", result)


cdef int begin_capture(cy.CUstream stream, cy.CUstreamCaptureMode mode, Failure* failure) except -1 nogil:
    return _check(failure, "cuStreamBeginCapture", cy.cuStreamBeginCapture(stream, mode))


cdef int end_capture(cy.CUstream stream, cy.CUgraph* graph, Failure* failure) except -1 nogil:
    """End the capture, on failure too; then there is no graph."""
    graph[0] = NULL
    return _check(failure, "cuStreamEndCapture", cy.cuStreamEndCapture(stream, graph))


cdef int graph_instantiate(cy.CUgraph graph, cy.CUgraphExec* executable, Failure* failure) except -1 nogil:
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuGraphInstantiate(executable, graph, 0)
    restore_capture(mode)
    return _check(failure, "cuGraphInstantiate", result)


cdef int graph_destroy(cy.CUgraph graph, Failure* failure) except -1 nogil:
    return _check(failure, "cuGraphDestroy", cy.cuGraphDestroy(graph))


cdef int executable_destroy(cy.CUgraphExec executable, Failure* failure) except -1 nogil:
    """Destroy an executable graph; launches of it that are queued go on."""
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuGraphExecDestroy(executable)
    restore_capture(mode)
    return _check(failure, "cuGraphExecDestroy", result)


cdef int graph_launch(cy.CUgraphExec executable, cy.CUstream stream, Failure* failure) except -1 nogil:
    return _check(failure, "cuGraphLaunch", launch_graph(executable, stream))
