# Devices and contexts.

from libc.stdint cimport intptr_t

cdef enum:
    PCI_BUS = 33                                        # cudaDevAttrPciBusId
    ALREADY_ENABLED = 704                               # cudaErrorPeerAccessAlreadyEnabled


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


def _getLocalRuntimeVersion():
    return theirs.runtimeGetVersion()                   # CuPy looks for a libcudart, and may find the other major's


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


cpdef deviceSetLimit(int limit, size_t value):
    cdef int status
    with nogil:
        status = cudaDeviceSetLimit(limit, value)
    check(status)


cpdef int deviceGetByPCIBusId(str bus) except? -1:
    encoded = bus.encode("ascii")
    cdef const char* text = encoded
    cdef int result = -1
    check(cudaDeviceGetByPCIBusId(&result, text))
    return result


cpdef str deviceGetPCIBusId(int device):
    cdef char text[13]
    check(cudaDeviceGetPCIBusId(text, sizeof(text), device))
    return text.decode("ascii")


cpdef _deviceEnsurePeerAccess(int peer):
    cdef int status
    with nogil:
        status = cudaDeviceEnablePeerAccess(peer, 0)
    if status == ALREADY_ENABLED:
        cudaGetLastError()
    else:
        check(status)


def deviceDisablePeerAccess(int peer):
    cdef int status
    with nogil:
        status = cudaDeviceDisablePeerAccess(peer)
    check(status)


cpdef profilerStart():
    check(cudaProfilerStart())


cpdef profilerStop():
    check(cudaProfilerStop())


cdef _ensure_context():
    check(cudaFree(NULL))


cpdef getDeviceProperties(int device):
    """Those of texture memory and of links are missing."""
    cdef int bus = 0
    cdef size_t free = 0, total = 0
    check(cudaDeviceGetAttribute(&bus, PCI_BUS, device))
    check(cudaMemGetInfo(&free, &total))
    return {
        "name": b"xlogmem simulated device", "totalGlobalMem": total, "sharedMemPerBlock": 48 << 10,
        "regsPerBlock": 65536, "warpSize": 32, "maxThreadsPerBlock": 1024, "maxThreadsDim": (1024, 1024, 64),
        "maxGridSize": (2147483647, 65535, 65535), "clockRate": 1000000, "totalConstMem": 65536, "major": 9, "minor": 0,
        "multiProcessorCount": 132, "concurrentKernels": 1, "maxThreadsPerMultiProcessor": 2048,
        "sharedMemPerMultiprocessor": 228 << 10, "sharedMemPerBlockOptin": 227 << 10, "l2CacheSize": 50 << 20,
        "regsPerMultiprocessor": 65536, "maxBlocksPerMultiProcessor": 32, "reservedSharedMemPerBlock": 1024,
        "managedMemory": 1, "cooperativeLaunch": 1, "asyncEngineCount": 3, "unifiedAddressing": 1,
        "canMapHostMemory": 1, "concurrentManagedAccess": 1, "canUseHostPointerForRegisteredMem": 1,
        "streamPrioritiesSupported": 1, "deviceOverlap": 1, "integrated": 0, "isMultiGpuBoard": 0, "ECCEnabled": 0,
        "computeMode": 0, "kernelExecTimeoutEnabled": 0, "tccDriver": 0, "pageableMemoryAccess": 0,
        "memoryClockRate": 2619000, "memoryBusWidth": 5120, "pciBusID": bus, "pciDeviceID": 0, "pciDomainID": 0}
