# What is not simulated: CUDA's arrays, textures, sharing between processes.  Each call logs the function's name, which
# the end of the report has too, and raises.

from libc.stdint cimport intptr_t, uintmax_t


cpdef intptr_t malloc3DArray(intptr_t desc, size_t width, size_t height, size_t depth, unsigned int flags=0) except? 0:
    check(cudaMalloc3DArray())
    return 0


cpdef intptr_t mallocArray(intptr_t desc, size_t width, size_t height, unsigned int flags=0) except? 0:
    check(cudaMallocArray())
    return 0


cpdef freeArray(intptr_t ptr):
    check(cudaFreeArray())


cpdef memcpy2DFromArray(intptr_t dst, size_t dpitch, intptr_t src, size_t wOffset, size_t hOffset, size_t width,
                        size_t height, int kind):
    check(cudaMemcpy2DFromArray())


cpdef memcpy2DFromArrayAsync(intptr_t dst, size_t dpitch, intptr_t src, size_t wOffset, size_t hOffset, size_t width,
                             size_t height, int kind, intptr_t stream):
    check(cudaMemcpy2DFromArrayAsync())


cpdef memcpy2DToArray(intptr_t dst, size_t wOffset, size_t hOffset, intptr_t src, size_t spitch, size_t width,
                      size_t height, int kind):
    check(cudaMemcpy2DToArray())


cpdef memcpy2DToArrayAsync(intptr_t dst, size_t wOffset, size_t hOffset, intptr_t src, size_t spitch, size_t width,
                           size_t height, int kind, intptr_t stream):
    check(cudaMemcpy2DToArrayAsync())


cpdef uintmax_t createTextureObject(intptr_t resource, intptr_t texture) except? 0:
    check(cudaCreateTextureObject())
    return 0


cpdef destroyTextureObject(uintmax_t texture):
    check(cudaDestroyTextureObject())


cpdef uintmax_t createSurfaceObject(intptr_t resource) except? 0:
    check(cudaCreateSurfaceObject())
    return 0


cpdef destroySurfaceObject(uintmax_t surface):
    check(cudaDestroySurfaceObject())


cpdef graphDebugDotPrint(intptr_t graph, str path, unsigned int flags):
    check(cudaGraphDebugDotPrint())


def ipcGetMemHandle(intptr_t devPtr):
    check(cudaIpcGetMemHandle())


def ipcOpenMemHandle(handle, flags=1):
    check(cudaIpcOpenMemHandle())


def ipcCloseMemHandle(intptr_t devPtr):
    check(cudaIpcCloseMemHandle())


def ipcGetEventHandle(intptr_t event):
    check(cudaIpcGetEventHandle())


def ipcOpenEventHandle(handle):
    check(cudaIpcOpenEventHandle())
