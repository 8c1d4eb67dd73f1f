# Kernels of xlogmem's own, and the host memory that they write to.
#
# A module is loaded once for a context and never unloaded: work that uses it may be queued anywhere.

cdef int module_load(const char* text, cy.CUmodule* module, Failure* failure) except -1 nogil:
    """Have the driver compile PTX for the current context."""
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuModuleLoadData(module, text)
    restore_capture(mode)
    return _check(failure, "cuModuleLoadData", result)


cdef int module_function(cy.CUmodule module, const char* name, cy.CUfunction* function,
                         Failure* failure) except -1 nogil:
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuModuleGetFunction(function, module, name)
    restore_capture(mode)
    return _check(failure, "cuModuleGetFunction", result)


cdef int launch_kernel(cy.CUfunction function, unsigned int blocks, unsigned int threads, cy.CUstream stream,
                       void** parameters, Failure* failure) except -1 nogil:
    return _check(failure, "cuLaunchKernel", cy.cuLaunchKernel(
        function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL))


cdef int host_allocate(size_t nbytes, void** memory, Failure* failure) except -1 nogil:
    """Allocate pinned memory, at the same address for the device."""
    return host_memory_allocate(nbytes, True, memory, failure)
