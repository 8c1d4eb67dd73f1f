# CUDA's arrays, and the objects of textures and surfaces.

from libc.stdint cimport intptr_t, uintmax_t


cpdef intptr_t malloc3DArray(intptr_t desc, size_t width, size_t height, size_t depth, unsigned int flags=0) except? 0:
    cdef void* result = NULL
    cdef Extent extent = Extent(width, height, depth)
    cdef int status
    with nogil:
        status = cudaMalloc3DArray(&result, <void*>desc, extent, flags)
    check(status)
    return <intptr_t>result


cpdef intptr_t mallocArray(intptr_t desc, size_t width, size_t height, unsigned int flags=0) except? 0:
    cdef void* result = NULL
    cdef int status
    with nogil:
        status = cudaMallocArray(&result, <void*>desc, width, height, flags)
    check(status)
    return <intptr_t>result


cpdef freeArray(intptr_t ptr):
    cdef int status
    with nogil:
        status = cudaFreeArray(<void*>ptr)
    check(status)


cpdef memcpy2DFromArray(intptr_t dst, size_t dpitch, intptr_t src, size_t wOffset, size_t hOffset, size_t width,
                        size_t height, int kind):
    cdef int status
    with nogil:
        status = cudaMemcpy2DFromArray(<void*>dst, dpitch, <void*>src, wOffset, hOffset, width, height, kind)
    check(status)


cpdef memcpy2DFromArrayAsync(intptr_t dst, size_t dpitch, intptr_t src, size_t wOffset, size_t hOffset, size_t width,
                             size_t height, int kind, intptr_t stream):
    cdef int status
    with nogil:
        status = cudaMemcpy2DFromArrayAsync(<void*>dst, dpitch, <void*>src, wOffset, hOffset, width, height, kind,
                                            <void*>stream)
    check(status)


cpdef memcpy2DToArray(intptr_t dst, size_t wOffset, size_t hOffset, intptr_t src, size_t spitch, size_t width,
                      size_t height, int kind):
    cdef int status
    with nogil:
        status = cudaMemcpy2DToArray(<void*>dst, wOffset, hOffset, <void*>src, spitch, width, height, kind)
    check(status)


cpdef memcpy2DToArrayAsync(intptr_t dst, size_t wOffset, size_t hOffset, intptr_t src, size_t spitch, size_t width,
                           size_t height, int kind, intptr_t stream):
    cdef int status
    with nogil:
        status = cudaMemcpy2DToArrayAsync(<void*>dst, wOffset, hOffset, <void*>src, spitch, width, height, kind,
                                          <void*>stream)
    check(status)


cpdef uintmax_t createTextureObject(intptr_t resource, intptr_t texture) except? 0:
    cdef unsigned long long result = 0
    check(cudaCreateTextureObject(&result, <void*>resource, <void*>texture, NULL))
    return <uintmax_t>result


cpdef destroyTextureObject(uintmax_t texture):
    check(cudaDestroyTextureObject(texture))


cpdef uintmax_t createSurfaceObject(intptr_t resource) except? 0:
    cdef unsigned long long result = 0
    check(cudaCreateSurfaceObject(&result, <void*>resource))
    return <uintmax_t>result


cpdef destroySurfaceObject(uintmax_t surface):
    check(cudaDestroySurfaceObject(surface))
