# Allocations, pools, managed memory.

from libc.stdint cimport intptr_t, uint64_t


cpdef intptr_t malloc(size_t size) except? 0:
    cdef void* result = NULL
    cdef int status
    with nogil:
        status = cudaMalloc(&result, size)
    check(status)
    return <intptr_t>result


cpdef intptr_t mallocAsync(size_t size, intptr_t stream) except? 0:
    cdef void* result = NULL
    cdef int status
    with nogil:
        status = cudaMallocAsync(&result, size, <void*>stream)
    check(status)
    return <intptr_t>result


cpdef intptr_t mallocFromPoolAsync(size_t size, intptr_t pool, intptr_t stream) except? 0:
    cdef void* result = NULL
    cdef int status
    with nogil:
        status = cudaMallocFromPoolAsync(&result, size, <void*>pool, <void*>stream)
    check(status)
    return <intptr_t>result


cpdef free(intptr_t ptr):
    cdef int status
    with nogil:
        status = cudaFree(<void*>ptr)
    check(status)


cpdef freeAsync(intptr_t ptr, intptr_t stream):
    cdef int status
    with nogil:
        status = cudaFreeAsync(<void*>ptr, <void*>stream)
    check(status)


cpdef intptr_t hostAlloc(size_t size, unsigned int flags) except? 0:
    cdef void* result = NULL
    cdef int status
    with nogil:
        status = cudaHostAlloc(&result, size, flags)
    check(status)
    return <intptr_t>result


cpdef freeHost(intptr_t ptr):
    cdef int status
    with nogil:
        status = cudaFreeHost(<void*>ptr)
    check(status)


cpdef hostRegister(intptr_t ptr, size_t size, unsigned int flags):
    cdef int status
    with nogil:
        status = cudaHostRegister(<void*>ptr, size, flags)
    check(status)


cpdef hostUnregister(intptr_t ptr):
    cdef int status
    with nogil:
        status = cudaHostUnregister(<void*>ptr)
    check(status)


cpdef intptr_t memPoolCreate(object props) except? 0:
    # Its four numbers have no names outside of CuPy; pickling has them by the order of their names.
    cdef PoolProperties made
    made.allocation, made.device, made.handle, made.location = props.__reduce__()[1][2]
    cdef void* result = NULL
    cdef int status
    with nogil:
        status = cudaMemPoolCreate(&result, &made)
    check(status)
    return <intptr_t>result


cpdef memPoolDestroy(intptr_t pool):
    cdef int status
    with nogil:
        status = cudaMemPoolDestroy(<void*>pool)
    check(status)


cpdef memPoolTrimTo(intptr_t pool, size_t size):
    cdef int status
    with nogil:
        status = cudaMemPoolTrimTo(<void*>pool, size)
    check(status)


cpdef memGetInfo():
    cdef size_t free = 0, total = 0
    check(cudaMemGetInfo(&free, &total))
    return free, total


cpdef intptr_t mallocManaged(size_t size, unsigned int flags=1) except? 0:
    cdef void* result = NULL
    check(cudaMallocManaged(&result, size, flags))
    return <intptr_t>result


cpdef memPoolSetAttribute(intptr_t pool, int attr, object value):
    cdef uint64_t number = value
    cdef int flag = <int>number
    # The first three are flags, the others sizes.
    check(cudaMemPoolSetAttribute(<void*>pool, attr, <void*>&flag if attr <= 3 else <void*>&number))


cpdef memPoolGetAttribute(intptr_t pool, int attr):
    cdef uint64_t number = 0
    cdef int flag = 0
    check(cudaMemPoolGetAttribute(<void*>pool, attr, <void*>&flag if attr <= 3 else <void*>&number))
    return flag if attr <= 3 else number


cpdef int pointerGetMemoryType(intptr_t ptr) except -1:
    cdef Attributes found
    check(cudaPointerGetAttributes(&found, <void*>ptr))
    return found.type


cpdef pointerGetAttributes(intptr_t ptr):
    cdef Attributes found
    check(cudaPointerGetAttributes(&found, <void*>ptr))
    return theirs.PointerAttributes(found.device, <intptr_t>found.device_pointer, <intptr_t>found.host_pointer,
                                    found.type)


cpdef memPrefetchAsync(intptr_t devPtr, size_t count, int dstDevice, intptr_t stream):
    cdef int status
    with nogil:
        status = prefetch(<void*>devPtr, count, dstDevice, <void*>stream, with_locations)
    check(status)


cpdef memAdvise(intptr_t devPtr, size_t count, int advice, int device):
    cdef int status
    with nogil:
        status = advise(<void*>devPtr, count, advice, device, with_locations)
    check(status)
