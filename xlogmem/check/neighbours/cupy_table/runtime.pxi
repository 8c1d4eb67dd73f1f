# The functions of the simulated runtime, xlogmem/check/cudart.

cdef extern from *:
    """
    struct Attributes { int type, device; void *device_pointer, *host_pointer; };
    struct Extent { size_t width, height, depth; };
    struct PoolProperties { int allocation = 0, handle = 0, location = 0, device = 0; char rest[72] = {}; };
    extern "C" {
    int cudaDeviceSynchronize();
    int cudaGetDevice(int*);
    int cudaGetDeviceCount(int*);
    int cudaSetDevice(int);
    int cudaDriverGetVersion(int*);
    int cudaDeviceGetAttribute(int*, int, int);
    int cudaDeviceCanAccessPeer(int*, int, int);
    int cudaDeviceEnablePeerAccess(int, unsigned int);
    int cudaDeviceGetDefaultMemPool(void**, int);
    int cudaDeviceGetMemPool(void**, int);
    int cudaDeviceSetMemPool(int, void*);
    int cudaMalloc(void**, size_t);
    int cudaMallocAsync(void**, size_t, void*);
    int cudaMallocFromPoolAsync(void**, size_t, void*, void*);
    int cudaFree(void*);
    int cudaFreeAsync(void*, void*);
    int cudaHostAlloc(void**, size_t, unsigned int);
    int cudaFreeHost(void*);
    int cudaHostRegister(void*, size_t, unsigned int);
    int cudaHostUnregister(void*);
    int cudaMemcpy(void*, void*, size_t, int);
    int cudaMemcpyAsync(void*, void*, size_t, int, void*);
    int cudaMemset(void*, int, size_t);
    int cudaMemsetAsync(void*, int, size_t, void*);
    int cudaMemPoolDestroy(void*);
    int cudaMemPoolTrimTo(void*, size_t);
    int cudaStreamCreate(void**);
    int cudaStreamCreateWithFlags(void**, unsigned int);
    int cudaStreamCreateWithPriority(void**, unsigned int, int);
    int cudaStreamDestroy(void*);
    int cudaStreamSynchronize(void*);
    int cudaStreamGetFlags(void*, unsigned int*);
    int cudaStreamGetPriority(void*, int*);
    int cudaStreamIsCapturing(void*, int*);
    int cudaStreamEndCapture(void*, void**);
    int cudaGraphInstantiate(void**, void*, unsigned long long);
    int cudaGraphLaunch(void*, void*);
    int cudaGraphDestroy(void*);
    int cudaGraphExecDestroy(void*);
    int cudaEventCreate(void**);
    int cudaEventCreateWithFlags(void**, unsigned int);
    int cudaEventDestroy(void*);
    int cudaEventElapsedTime(float*, void*, void*);
    int cudaEventRecord(void*, void*);
    int cudaEventSynchronize(void*);
    int cudaGraphUpload(void*, void*);
    int cudaMemcpyPeerAsync(void*, int, void*, int, size_t, void*);
    int cudaDeviceGetLimit(size_t*, int);
    int cudaStreamWaitEvent(void*, void*, unsigned int);
    int cudaStreamQuery(void*);
    int cudaEventQuery(void*);
    int cudaMemGetInfo(size_t*, size_t*);
    int cudaStreamBeginCapture(void*, int);
    int cudaMallocManaged(void**, size_t, unsigned int);
    int cudaPointerGetAttributes(Attributes*, void*);
    int cudaLaunchHostFunc(void*, void (*)(void*), void*);
    int cudaMemPoolSetAttribute(void*, int, void*);
    int cudaMemPoolGetAttribute(void*, int, void*);
    int cudaGetLastError();
    int cudaDeviceSetLimit(int, size_t);
    int cudaDeviceGetByPCIBusId(int*, const char*);
    int cudaDeviceGetPCIBusId(char*, int, int);
    int cudaDeviceDisablePeerAccess(int);
    int cudaProfilerStart();
    int cudaProfilerStop();
    int cudaMemPoolCreate(void**, const PoolProperties*);
    int cudaMemcpyPeer(void*, int, void*, int, size_t);
    int cudaMemcpy2D(void*, size_t, void*, size_t, size_t, size_t, int);
    int cudaMemcpy2DAsync(void*, size_t, void*, size_t, size_t, size_t, int, void*);
    int cudaMemcpy3D(void*);
    int cudaMemcpy3DAsync(void*, void*);
    int cudaStreamAddCallback(void*, void (*)(void*, int, void*), void*, unsigned int);
    int cudaCreateSurfaceObject(unsigned long long*, void*);
    int cudaCreateTextureObject(unsigned long long*, void*, void*, void*);
    int cudaDestroySurfaceObject(unsigned long long);
    int cudaDestroyTextureObject(unsigned long long);
    int cudaFreeArray(void*);
    int cudaGraphDebugDotPrint();
    int cudaIpcCloseMemHandle();
    int cudaIpcGetEventHandle();
    int cudaIpcGetMemHandle();
    int cudaIpcOpenEventHandle();
    int cudaIpcOpenMemHandle();
    int cudaMalloc3DArray(void**, void*, Extent, unsigned int);
    int cudaMallocArray(void**, void*, size_t, size_t, unsigned int);
    int cudaMemcpy2DFromArray(void*, size_t, void*, size_t, size_t, size_t, size_t, int);
    int cudaMemcpy2DFromArrayAsync(void*, size_t, void*, size_t, size_t, size_t, size_t, int, void*);
    int cudaMemcpy2DToArray(void*, size_t, size_t, void*, size_t, size_t, size_t, int);
    int cudaMemcpy2DToArrayAsync(void*, size_t, size_t, void*, size_t, size_t, size_t, int, void*);
    int cudaMemPrefetchAsync();                         // of CUDA 12 or 13: with a device or a location
    int cudaMemAdvise();
    }
    struct MemoryLocation { int type, id; };
    static MemoryLocation location_of(int device) {     // -1 is the host
        return device < 0 ? MemoryLocation{2, 0} : MemoryLocation{1, device};
    }
    static int prefetch(void* address, size_t bytes, int device, void* stream, int with_locations) {
        void (*function)() = reinterpret_cast<void (*)()>(cudaMemPrefetchAsync);
        if (!with_locations)
            return reinterpret_cast<int (*)(void*, size_t, int, void*)>(function)(address, bytes, device, stream);
        return reinterpret_cast<int (*)(void*, size_t, MemoryLocation, unsigned, void*)>(function)(
            address, bytes, location_of(device), 0, stream);
    }
    static int advise(void* address, size_t bytes, int advice, int device, int with_locations) {
        void (*function)() = reinterpret_cast<void (*)()>(cudaMemAdvise);
        if (!with_locations)
            return reinterpret_cast<int (*)(void*, size_t, int, int)>(function)(address, bytes, advice, device);
        return reinterpret_cast<int (*)(void*, size_t, int, MemoryLocation)>(function)(
            address, bytes, advice, location_of(device));
    }
    """
    struct Extent:
        size_t width, height, depth
    struct Attributes:
        int type
        int device
        void* device_pointer
        void* host_pointer
    struct PoolProperties:
        int allocation
        int handle
        int location
        int device

cdef extern from * nogil:
    int cudaDeviceSynchronize()
    int cudaGetDevice(int*)
    int cudaGetDeviceCount(int*)
    int cudaSetDevice(int)
    int cudaDriverGetVersion(int*)
    int cudaDeviceGetAttribute(int*, int, int)
    int cudaDeviceCanAccessPeer(int*, int, int)
    int cudaDeviceEnablePeerAccess(int, unsigned int)
    int cudaDeviceGetDefaultMemPool(void**, int)
    int cudaDeviceGetMemPool(void**, int)
    int cudaDeviceSetMemPool(int, void*)
    int cudaMalloc(void**, size_t)
    int cudaMallocAsync(void**, size_t, void*)
    int cudaMallocFromPoolAsync(void**, size_t, void*, void*)
    int cudaFree(void*)
    int cudaFreeAsync(void*, void*)
    int cudaHostAlloc(void**, size_t, unsigned int)
    int cudaFreeHost(void*)
    int cudaHostRegister(void*, size_t, unsigned int)
    int cudaHostUnregister(void*)
    int cudaMemcpy(void*, void*, size_t, int)
    int cudaMemcpyAsync(void*, void*, size_t, int, void*)
    int cudaMemset(void*, int, size_t)
    int cudaMemsetAsync(void*, int, size_t, void*)
    int cudaMemPoolDestroy(void*)
    int cudaMemPoolTrimTo(void*, size_t)
    int cudaStreamCreate(void**)
    int cudaStreamCreateWithFlags(void**, unsigned int)
    int cudaStreamCreateWithPriority(void**, unsigned int, int)
    int cudaStreamDestroy(void*)
    int cudaStreamSynchronize(void*)
    int cudaStreamGetFlags(void*, unsigned int*)
    int cudaStreamGetPriority(void*, int*)
    int cudaStreamIsCapturing(void*, int*)
    int cudaStreamEndCapture(void*, void**)
    int cudaGraphInstantiate(void**, void*, unsigned long long)
    int cudaGraphLaunch(void*, void*)
    int cudaGraphDestroy(void*)
    int cudaGraphExecDestroy(void*)
    int cudaEventCreate(void**)
    int cudaEventCreateWithFlags(void**, unsigned int)
    int cudaEventDestroy(void*)
    int cudaEventElapsedTime(float*, void*, void*)
    int cudaEventRecord(void*, void*)
    int cudaEventSynchronize(void*)
    int cudaGraphUpload(void*, void*)
    int cudaMemcpyPeerAsync(void*, int, void*, int, size_t, void*)
    int cudaDeviceGetLimit(size_t*, int)
    int cudaStreamWaitEvent(void*, void*, unsigned int)
    int cudaStreamQuery(void*)
    int cudaEventQuery(void*)
    int cudaMemGetInfo(size_t*, size_t*)
    int cudaStreamBeginCapture(void*, int)
    int cudaMallocManaged(void**, size_t, unsigned int)
    int cudaPointerGetAttributes(Attributes*, void*)
    int cudaLaunchHostFunc(void*, void (*)(void*), void*)
    int cudaMemPoolSetAttribute(void*, int, void*)
    int cudaMemPoolGetAttribute(void*, int, void*)
    int cudaGetLastError()
    int cudaDeviceSetLimit(int, size_t)
    int cudaDeviceGetByPCIBusId(int*, const char*)
    int cudaDeviceGetPCIBusId(char*, int, int)
    int cudaDeviceDisablePeerAccess(int)
    int cudaProfilerStart()
    int cudaProfilerStop()
    int cudaMemPoolCreate(void**, PoolProperties*)
    int cudaMemcpyPeer(void*, int, void*, int, size_t)
    int cudaMemcpy2D(void*, size_t, void*, size_t, size_t, size_t, int)
    int cudaMemcpy2DAsync(void*, size_t, void*, size_t, size_t, size_t, int, void*)
    int cudaMemcpy3D(void*)
    int cudaMemcpy3DAsync(void*, void*)
    int cudaStreamAddCallback(void*, void (*)(void*, int, void*), void*, unsigned int)
    int cudaCreateSurfaceObject(unsigned long long*, void*)
    int cudaCreateTextureObject(unsigned long long*, void*, void*, void*)
    int cudaDestroySurfaceObject(unsigned long long)
    int cudaDestroyTextureObject(unsigned long long)
    int cudaFreeArray(void*)
    int cudaGraphDebugDotPrint()
    int cudaIpcCloseMemHandle()
    int cudaIpcGetEventHandle()
    int cudaIpcGetMemHandle()
    int cudaIpcOpenEventHandle()
    int cudaIpcOpenMemHandle()
    int cudaMalloc3DArray(void**, void*, Extent, unsigned int)
    int cudaMallocArray(void**, void*, size_t, size_t, unsigned int)
    int cudaMemcpy2DFromArray(void*, size_t, void*, size_t, size_t, size_t, size_t, int)
    int cudaMemcpy2DFromArrayAsync(void*, size_t, void*, size_t, size_t, size_t, size_t, int, void*)
    int cudaMemcpy2DToArray(void*, size_t, size_t, void*, size_t, size_t, size_t, int)
    int cudaMemcpy2DToArrayAsync(void*, size_t, size_t, void*, size_t, size_t, size_t, int, void*)
    int prefetch(void*, size_t, int, void*, int)
    int advise(void*, size_t, int, int, int)
