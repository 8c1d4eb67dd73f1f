# Copies and fills.

from libc.stdint cimport intptr_t


cpdef memcpy(intptr_t dst, intptr_t src, size_t size, int kind):
    cdef int status
    with nogil:
        status = cudaMemcpy(<void*>dst, <void*>src, size, kind)
    check(status)


cpdef memcpyAsync(intptr_t dst, intptr_t src, size_t size, int kind, intptr_t stream):
    cdef int status
    with nogil:
        status = cudaMemcpyAsync(<void*>dst, <void*>src, size, kind, <void*>stream)
    check(status)


cpdef memcpyPeer(intptr_t dst, int dstDevice, intptr_t src, int srcDevice, size_t size):
    cdef int status
    with nogil:
        status = cudaMemcpyPeer(<void*>dst, dstDevice, <void*>src, srcDevice, size)
    check(status)


cpdef memcpyPeerAsync(intptr_t dst, int dstDevice, intptr_t src, int srcDevice, size_t size, intptr_t stream):
    cdef int status
    with nogil:
        status = cudaMemcpyPeerAsync(<void*>dst, dstDevice, <void*>src, srcDevice, size, <void*>stream)
    check(status)


cpdef memcpy2D(intptr_t dst, size_t dpitch, intptr_t src, size_t spitch, size_t width, size_t height, MemoryKind kind):
    cdef int status
    with nogil:
        status = cudaMemcpy2D(<void*>dst, dpitch, <void*>src, spitch, width, height, kind)
    check(status)


cpdef memcpy2DAsync(intptr_t dst, size_t dpitch, intptr_t src, size_t spitch, size_t width, size_t height,
                    MemoryKind kind, intptr_t stream):
    cdef int status
    with nogil:
        status = cudaMemcpy2DAsync(<void*>dst, dpitch, <void*>src, spitch, width, height, kind, <void*>stream)
    check(status)


cpdef memcpy3D(intptr_t Memcpy3DParmsPtr):
    cdef int status
    with nogil:
        status = cudaMemcpy3D(<void*>Memcpy3DParmsPtr)
    check(status)


cpdef memcpy3DAsync(intptr_t Memcpy3DParmsPtr, intptr_t stream):
    cdef int status
    with nogil:
        status = cudaMemcpy3DAsync(<void*>Memcpy3DParmsPtr, <void*>stream)
    check(status)


cpdef memset(intptr_t ptr, int value, size_t size):
    cdef int status
    with nogil:
        status = cudaMemset(<void*>ptr, value, size)
    check(status)


cpdef memsetAsync(intptr_t ptr, int value, size_t size, intptr_t stream):
    cdef int status
    with nogil:
        status = cudaMemsetAsync(<void*>ptr, value, size, <void*>stream)
    check(status)
