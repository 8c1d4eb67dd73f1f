# The functions of the simulated runtime, xlogmem/check/cudart.

cdef extern from *:
    """
    struct Attributes { int type, device; void *device_pointer, *host_pointer; };
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
    }
    """
    struct Attributes:
        int type
        int device
        void* device_pointer
        void* host_pointer

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
