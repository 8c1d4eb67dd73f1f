# Memory: the synchronous allocator, allocations in memory pools, pointer attributes, and copies.
#
# Functions that allocate and free use relaxed capture mode.  The functions named `plainly` leave the mode alone: their
# callers stand in for a resource in C, which is called in the mode that the thread has.  Copies and fills are
# asynchronous, and ordered on the stream.

from libc.stdint cimport uint32_t

cdef extern from "<sys/mman.h>" nogil:
    int mincore(void* address, size_t length, unsigned char* pages)


cdef int memory_allocate(size_t nbytes, cy.CUdeviceptr* ptr, Failure* failure) except -1 nogil:
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuMemAlloc(ptr, nbytes)
    restore_capture(mode)
    return _check(failure, "cuMemAlloc", result)


cdef int memory_free(cy.CUdeviceptr ptr, Failure* failure) except -1 nogil:
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuMemFree(ptr)
    restore_capture(mode)
    return _check(failure, "cuMemFree", result)


cdef int managed_allocate(size_t nbytes, cy.CUdeviceptr* ptr, Failure* failure) except -1 nogil:
    """Allocate managed memory that every stream may access; `memory_free` frees it."""
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuMemAllocManaged(ptr, nbytes, cy.CU_MEM_ATTACH_GLOBAL)
    restore_capture(mode)
    return _check(failure, "cuMemAllocManaged", result)


cdef int host_memory_allocate(size_t nbytes, bint portable, void** memory, Failure* failure) except -1 nogil:
    """Allocate page-locked memory, at the same address for the device; portable: of every context."""
    cdef unsigned int flags = cy.CU_MEMHOSTALLOC_DEVICEMAP
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result
    if portable:
        flags |= cy.CU_MEMHOSTALLOC_PORTABLE
    result = cy.cuMemHostAlloc(memory, nbytes, flags)
    restore_capture(mode)
    return _check(failure, "cuMemHostAlloc", result)


cdef int host_free(void* memory, Failure* failure) except -1 nogil:
    """Free page-locked memory.  The driver may wait for the whole device."""
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuMemFreeHost(memory)
    restore_capture(mode)
    return _check(failure, "cuMemFreeHost", result)


cdef int pool_allocate_plainly(cy.CUmemoryPool pool, size_t nbytes, cy.CUstream stream, cy.CUdeviceptr* ptr,
                               Failure* failure) except -1 nogil:
    return _check(failure, "cuMemAllocFromPoolAsync", allocate_from_pool(ptr, nbytes, pool, stream))


cdef int pool_free_plainly(cy.CUdeviceptr ptr, cy.CUstream stream, Failure* failure) except -1 nogil:
    return _check(failure, "cuMemFreeAsync", free_to_pool(ptr, stream))


cdef int pool_allocate(cy.CUmemoryPool pool, size_t nbytes, cy.CUstream stream, cy.CUdeviceptr* ptr,
                       Failure* failure) except -1 nogil:
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef int failed = pool_allocate_plainly(pool, nbytes, stream, ptr, failure)
    restore_capture(mode)
    return failed


cdef int pool_free(cy.CUdeviceptr ptr, cy.CUstream stream, Failure* failure) except -1 nogil:
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef int failed = pool_free_plainly(ptr, stream, failure)
    restore_capture(mode)
    return failed


cdef int memory_info(size_t* free_bytes, size_t* total, Failure* failure) except -1 nogil:
    """Get the free and the total bytes of the device of the current context."""
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuMemGetInfo(free_bytes, total)
    restore_capture(mode)
    return _check(failure, "cuMemGetInfo", result)


cdef int pointer_device(cy.CUdeviceptr ptr, int* device_id, Failure* failure) except -1 nogil:
    """Get the device that the memory belongs to, managed memory included; -1 if it is not device memory.  May be called
    during a capture."""
    cdef cy.CUpointer_attribute attributes[3]
    cdef void* answers[3]
    cdef unsigned int kind = 0, managed = 0
    attributes[0] = cy.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    attributes[1] = cy.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    attributes[2] = cy.CU_POINTER_ATTRIBUTE_IS_MANAGED
    answers[0], answers[1], answers[2] = &kind, device_id, &managed
    if _check(failure, "cuPointerGetAttributes", cy.cuPointerGetAttributes(3, attributes, answers, ptr)):
        return 1
    if kind != <unsigned int>cy.CU_MEMORYTYPE_DEVICE and not managed:
        device_id[0] = -1
    return 0


cdef int is_host_memory(cy.CUdeviceptr ptr, bint* on_host, Failure* failure) except -1 nogil:
    """Query whether the driver knows the memory, which is neither a device's nor managed.  May be called during a
    capture."""
    cdef unsigned int kind = 0, managed = 0
    if kind_of_pointer(ptr, &kind, &managed, failure):
        return 1
    on_host[0] = kind == <unsigned int>cy.CU_MEMORYTYPE_HOST and not managed
    return 0


cdef int kind_of_pointer(cy.CUdeviceptr ptr, unsigned int* kind, unsigned int* managed,
                         Failure* failure) except -1 nogil:
    """Get the type of memory, 0 if the driver does not know it: a query of one attribute would fail then."""
    cdef cy.CUpointer_attribute attributes[2]
    cdef void* answers[2]
    attributes[0], answers[0] = cy.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, kind
    attributes[1], answers[1] = cy.CU_POINTER_ATTRIBUTE_IS_MANAGED, managed
    return _check(failure, "cuPointerGetAttributes", cy.cuPointerGetAttributes(2, attributes, answers, ptr))


cdef int kind_of_memory(cy.CUdevice device, cy.CUdeviceptr ptr, size_t nbytes, Memory* memory,
                        Failure* failure) except -1 nogil:
    """Find what the driver knows about a range of memory, in one query, which needs no context and may be made during a
    capture."""
    cdef cy.CUpointer_attribute attributes[7]
    cdef void* answers[7]
    cdef unsigned int kind = 0, managed = 0, for_ipc = 0
    cdef cy.CUmemoryPool pool = NULL
    cdef cy.CUdeviceptr start = 0
    cdef size_t size = 0
    cdef bint pageable = False
    attributes[0], answers[0] = cy.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, &kind
    attributes[1], answers[1] = cy.CU_POINTER_ATTRIBUTE_IS_MANAGED, &managed
    attributes[2], answers[2] = cy.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, &start
    attributes[3], answers[3] = cy.CU_POINTER_ATTRIBUTE_RANGE_SIZE, &size
    attributes[4], answers[4] = cy.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, &memory.device_id
    attributes[5], answers[5] = cy.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, &for_ipc
    attributes[6], answers[6] = cy.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, &pool
    memory.is_whole = False
    if _check(failure, "cuPointerGetAttributes", cy.cuPointerGetAttributes(7, attributes, answers, ptr)):
        return 1
    memory.allocated = size - (ptr - start)
    if kind == 0 and not managed:
        if is_pageable(device, ptr, &pageable, failure):
            return 1
        memory.kind = HOST_MEMORY if pageable else NO_MEMORY
        if memory.kind == HOST_MEMORY:
            system_adopt(ptr, nbytes)
    elif 0 < size < ptr - start + nbytes:
        memory.kind = BEYOND_MEMORY
    elif managed:
        memory.kind = MANAGED_MEMORY
    else:
        memory.kind = HOST_MEMORY if kind == <unsigned int>cy.CU_MEMORYTYPE_HOST else DEVICE_MEMORY
        # Of reserved addresses some may have no memory, and only these belong to neither kind of allocation.
        memory.is_whole = memory.kind == DEVICE_MEMORY and size != 0 and (for_ipc or pool != NULL)
    return 0


cdef int is_pageable(cy.CUdevice device, cy.CUdeviceptr ptr, bint* pageable, Failure* failure) except -1 nogil:
    """Query whether the device reaches all memory of the process (HMM, ATS), and the process has a page at this
    address."""
    cdef unsigned char resident
    cdef int reaches = 0
    if _check(failure, "cuDeviceGetAttribute", cy.cuDeviceGetAttribute(
            &reaches, cy.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, device)):
        return 1
    pageable[0] = reaches and mincore(<void*><size_t>(ptr & ~<cy.CUdeviceptr>4095), 1, &resident) == 0
    return 0


cdef int pool_of_pointer(cy.CUdeviceptr ptr, cy.CUmemoryPool* pool) except -1 nogil:
    """Get the CUDA pool that the memory was allocated from, NULL if there is none.  May be called during a capture."""
    if cy.cuPointerGetAttribute(pool, cy.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr) != cy.CUDA_SUCCESS:
        pool[0] = NULL
    return 0


cdef int host_is_pinned(const void* ptr, bint* pinned, Failure* failure) except -1 nogil:
    """Query whether the driver knows the host memory: copies from it may end after the call returns."""
    cdef unsigned int kind = 0, managed = 0
    if kind_of_pointer(<cy.CUdeviceptr><size_t>ptr, &kind, &managed, failure):
        return 1
    pinned[0] = kind or managed
    return 0


# ---------------------------------------------------------------------------------------------- copies
cdef int copy_in(cy.CUdeviceptr target, const void* source, size_t nbytes, cy.CUstream stream,
                 Failure* failure) except -1 nogil:
    return _check(failure, "cuMemcpyHtoDAsync", cy.cuMemcpyHtoDAsync(target, source, nbytes, stream))


cdef int copy_out(void* target, cy.CUdeviceptr source, size_t nbytes, cy.CUstream stream,
                  Failure* failure) except -1 nogil:
    return _check(failure, "cuMemcpyDtoHAsync", cy.cuMemcpyDtoHAsync(target, source, nbytes, stream))


cdef int copy_across(cy.CUdeviceptr target, cy.CUdeviceptr source, size_t nbytes, cy.CUstream stream,
                     Failure* failure) except -1 nogil:
    return _check(failure, "cuMemcpyDtoDAsync", cy.cuMemcpyDtoDAsync(target, source, nbytes, stream))


cdef int copy_between(cy.CUdeviceptr target, cy.CUcontext target_context, cy.CUdeviceptr source,
                      cy.CUcontext source_context, size_t nbytes, cy.CUstream stream, Failure* failure) except -1 nogil:
    """Copy between devices, through the host where they are not peers (CUDA driver API, cuMemcpyPeerAsync)."""
    return _check(failure, "cuMemcpyPeerAsync", cy.cuMemcpyPeerAsync(target, target_context, source, source_context,
                                                                     nbytes, stream))


cdef int fill(cy.CUdeviceptr target, uint32_t value, int width, size_t count, cy.CUstream stream,
              Failure* failure) except -1 nogil:
    """Set `count` elements of `width` bytes (1, 2 or 4) to a value."""
    if width == 1:
        return _check(failure, "cuMemsetD8Async", cy.cuMemsetD8Async(target, <unsigned char>value, count, stream))
    if width == 2:
        return _check(failure, "cuMemsetD16Async", cy.cuMemsetD16Async(target, <unsigned short>value, count, stream))
    return _check(failure, "cuMemsetD32Async", cy.cuMemsetD32Async(target, value, count, stream))
