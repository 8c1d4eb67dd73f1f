# Devices and contexts.

from cpython.ref cimport Py_DECREF
from libc.stdint cimport intptr_t


cpdef deviceSynchronize():
    cdef int status
    with nogil:
        status = cudaDeviceSynchronize()
    check(status)


cpdef int getDevice() except? -1:
    cdef int result = 0
    cdef int status
    with nogil:
        status = cudaGetDevice(&result)
    check(status)
    return result


cpdef int getDeviceCount() except? -1:
    cdef int result = 0
    cdef int status
    with nogil:
        status = cudaGetDeviceCount(&result)
    check(status)
    return result


cpdef setDevice(int device):
    cdef int status
    with nogil:
        status = cudaSetDevice(device)
    check(status)


cpdef int driverGetVersion() except? -1:
    cdef int result = 0
    cdef int status
    with nogil:
        status = cudaDriverGetVersion(&result)
    check(status)
    return result


cpdef int deviceGetAttribute(int attrib, int device) except? -1:
    cdef int result = 0
    cdef int status
    with nogil:
        status = cudaDeviceGetAttribute(&result, attrib, device)
    check(status)
    return result


cpdef int deviceCanAccessPeer(int device, int peer) except? -1:
    cdef int result = 0
    cdef int status
    with nogil:
        status = cudaDeviceCanAccessPeer(&result, device, peer)
    check(status)
    return result


cpdef deviceEnablePeerAccess(int peer):
    cdef int status
    with nogil:
        status = cudaDeviceEnablePeerAccess(peer, 0)
    check(status)


cpdef intptr_t deviceGetDefaultMemPool(int device) except? 0:
    cdef void* result = NULL
    cdef int status
    with nogil:
        status = cudaDeviceGetDefaultMemPool(&result, device)
    check(status)
    return <intptr_t>result


cpdef intptr_t deviceGetMemPool(int device) except? 0:
    cdef void* result = NULL
    cdef int status
    with nogil:
        status = cudaDeviceGetMemPool(&result, device)
    check(status)
    return <intptr_t>result


cpdef deviceSetMemPool(int device, intptr_t pool):
    cdef int status
    with nogil:
        status = cudaDeviceSetMemPool(device, <void*>pool)
    check(status)


cpdef size_t deviceGetLimit(int limit) except? -1:
    cdef size_t result = 0
    cdef int status
    with nogil:
        status = cudaDeviceGetLimit(&result, limit)
    check(status)
    return result


cpdef _deviceEnsurePeerAccess(int peer):
    try:
        deviceEnablePeerAccess(peer)
    except theirs.CUDARuntimeError as error:
        if error.status != theirs.errorPeerAccessAlreadyEnabled:
            raise


cdef _ensure_context():
    check(cudaFree(NULL))


cdef void call_back(void* data) noexcept with gil:
    pair = <object>data
    try:
        pair[0](pair[1])
    finally:
        Py_DECREF(pair)


cpdef getDeviceProperties(int device):
    """As far as CuPy itself reads them."""
    return {
        "name": b"xlogmem simulated device", "totalGlobalMem": 16 << 30, "sharedMemPerBlock": 48 << 10,
        "regsPerBlock": 65536, "warpSize": 32, "maxThreadsPerBlock": 1024, "maxThreadsDim": (1024, 1024, 64),
        "maxGridSize": (2147483647, 65535, 65535), "clockRate": 1000000, "totalConstMem": 65536, "major": 9, "minor": 0,
        "multiProcessorCount": 132, "concurrentKernels": 1, "maxThreadsPerMultiProcessor": 2048,
        "sharedMemPerMultiprocessor": 228 << 10, "sharedMemPerBlockOptin": 227 << 10, "l2CacheSize": 50 << 20,
        "managedMemory": 1, "cooperativeLaunch": 1, "asyncEngineCount": 3, "unifiedAddressing": 1}
