# The table of this module: CuPy's signatures. The value that stands for an exception is not compared when a function is
# put in place, so it is that of CuPy 14's own runtime.pxd.
from libc.stdint cimport intptr_t, uintmax_t

cdef extern from *:
    """
    enum cudaMemcpyKind {MOST_OF_KINDS = 4};
    """
    enum MemoryKind "cudaMemcpyKind":
        pass

cpdef deviceSynchronize()
cpdef int getDevice() except? -1
cpdef int getDeviceCount() except? -1
cpdef setDevice(int device)
cpdef int driverGetVersion() except? -1
cpdef int deviceGetAttribute(int attrib, int device) except? -1
cpdef int deviceCanAccessPeer(int device, int peer) except? -1
cpdef deviceEnablePeerAccess(int peer)
cpdef intptr_t deviceGetDefaultMemPool(int device) except? 0
cpdef intptr_t deviceGetMemPool(int device) except? 0
cpdef deviceSetMemPool(int device, intptr_t pool)
cpdef intptr_t malloc(size_t size) except? 0
cpdef intptr_t mallocAsync(size_t size, intptr_t stream) except? 0
cpdef intptr_t mallocFromPoolAsync(size_t size, intptr_t pool, intptr_t stream) except? 0
cpdef free(intptr_t ptr)
cpdef freeAsync(intptr_t ptr, intptr_t stream)
cpdef intptr_t hostAlloc(size_t size, unsigned int flags) except? 0
cpdef freeHost(intptr_t ptr)
cpdef hostRegister(intptr_t ptr, size_t size, unsigned int flags)
cpdef hostUnregister(intptr_t ptr)
cpdef memcpy(intptr_t dst, intptr_t src, size_t size, int kind)
cpdef memcpyAsync(intptr_t dst, intptr_t src, size_t size, int kind, intptr_t stream)
cpdef memset(intptr_t ptr, int value, size_t size)
cpdef memsetAsync(intptr_t ptr, int value, size_t size, intptr_t stream)
cpdef memPoolDestroy(intptr_t pool)
cpdef memPoolTrimTo(intptr_t pool, size_t size)
cpdef intptr_t streamCreate() except? 0
cpdef intptr_t streamCreateWithFlags(unsigned int flags) except? 0
cpdef intptr_t streamCreateWithPriority(unsigned int flags, int priority) except? 0
cpdef streamDestroy(intptr_t stream)
cpdef streamSynchronize(intptr_t stream)
cpdef unsigned int streamGetFlags(intptr_t stream) except? 0
cpdef int streamGetPriority(intptr_t stream) except? 0
cpdef bint streamIsCapturing(intptr_t stream) except *
cpdef intptr_t streamEndCapture(intptr_t stream) except? 0
cpdef intptr_t graphInstantiate(intptr_t graph) except? 0
cpdef graphLaunch(intptr_t graphExec, intptr_t stream)
cpdef graphDestroy(intptr_t graph)
cpdef graphExecDestroy(intptr_t graphExec)
cpdef intptr_t eventCreate() except? 0
cpdef intptr_t eventCreateWithFlags(unsigned int flags) except? 0
cpdef eventDestroy(intptr_t event)
cpdef float eventElapsedTime(intptr_t start, intptr_t end) except? 0
cpdef eventRecord(intptr_t event, intptr_t stream)
cpdef eventSynchronize(intptr_t event)
cpdef graphUpload(intptr_t graphExec, intptr_t stream)
cpdef memcpyPeerAsync(intptr_t dst, int dstDevice, intptr_t src, int srcDevice, size_t size, intptr_t stream)
cpdef size_t deviceGetLimit(int limit) except? -1
cpdef memGetInfo()
cpdef streamQuery(intptr_t stream)
cpdef eventQuery(intptr_t event)
cpdef intptr_t mallocManaged(size_t size, unsigned int flags=*) except? 0
cpdef streamWaitEvent(intptr_t stream, intptr_t event, unsigned int flags=*)
cpdef streamBeginCapture(intptr_t stream, int mode=*)
cpdef memPoolSetAttribute(intptr_t pool, int attr, object value)
cpdef memPoolGetAttribute(intptr_t pool, int attr)
cpdef int pointerGetMemoryType(intptr_t ptr) except -1
cpdef pointerGetAttributes(intptr_t ptr)
cpdef _deviceEnsurePeerAccess(int peer)
cdef _ensure_context()
cpdef launchHostFunc(intptr_t stream, callback, intptr_t arg)
cpdef getDeviceProperties(int device)
cpdef intptr_t malloc3DArray(intptr_t desc, size_t width, size_t height, size_t depth, unsigned int flags=*) except? 0
cpdef intptr_t mallocArray(intptr_t desc, size_t width, size_t height, unsigned int flags=*) except? 0
cpdef freeArray(intptr_t ptr)
cpdef memcpy2DFromArray(intptr_t dst, size_t dpitch, intptr_t src, size_t wOffset, size_t hOffset, size_t width,
                        size_t height, int kind)
cpdef memcpy2DFromArrayAsync(intptr_t dst, size_t dpitch, intptr_t src, size_t wOffset, size_t hOffset, size_t width,
                             size_t height, int kind, intptr_t stream)
cpdef memcpy2DToArray(intptr_t dst, size_t wOffset, size_t hOffset, intptr_t src, size_t spitch, size_t width,
                      size_t height, int kind)
cpdef memcpy2DToArrayAsync(intptr_t dst, size_t wOffset, size_t hOffset, intptr_t src, size_t spitch, size_t width,
                           size_t height, int kind, intptr_t stream)
cpdef uintmax_t createTextureObject(intptr_t resource, intptr_t texture) except? 0
cpdef destroyTextureObject(uintmax_t texture)
cpdef uintmax_t createSurfaceObject(intptr_t resource) except? 0
cpdef destroySurfaceObject(uintmax_t surface)
cpdef graphDebugDotPrint(intptr_t graph, str path, unsigned int flags)
cpdef memcpyPeer(intptr_t dst, int dstDevice, intptr_t src, int srcDevice, size_t size)
cpdef memcpy2D(intptr_t dst, size_t dpitch, intptr_t src, size_t spitch, size_t width, size_t height, MemoryKind kind)
cpdef memcpy2DAsync(intptr_t dst, size_t dpitch, intptr_t src, size_t spitch, size_t width, size_t height,
                    MemoryKind kind, intptr_t stream)
cpdef memcpy3D(intptr_t Memcpy3DParmsPtr)
cpdef memcpy3DAsync(intptr_t Memcpy3DParmsPtr, intptr_t stream)
cpdef memPrefetchAsync(intptr_t devPtr, size_t count, int dstDevice, intptr_t stream)
cpdef memAdvise(intptr_t devPtr, size_t count, int advice, int device)
cpdef intptr_t memPoolCreate(object props) except? 0
cpdef int deviceGetByPCIBusId(str bus) except? -1
cpdef str deviceGetPCIBusId(int device)
cpdef deviceSetLimit(int limit, size_t value)
cpdef profilerStart()
cpdef profilerStop()
cpdef streamAddCallback(intptr_t stream, callback, intptr_t arg, unsigned int flags=*)
cpdef _launchHostFuncUnmanaged(intptr_t stream, tuple func_arg)
