"""Calls of the driver that the check leaves alone, and why: patterns of the entry points' names.

What is not here, modelled or counted is an error of tests/check/test_cupti_calls.py, so that a new CUPTI needs a
decision about each new call.  Versions of CUDA 3, whose numbers are below those of their own _v2, are left alone,
too.
"""
WITHOUT_MEANING = {
    "they say something, or change how calls are made": (
        r"cu\w*Get(?!ParamInfo)\w*", r"cuStreamIsCapturing", r"cuOccupancy\w+",
        r"cuDeviceCanAccessPeer", r"cuDeviceComputeCapability", r"cuDeviceTotalMem", r"cu64DeviceTotalMem",
        r"cuFuncIsLoaded", r"cu\w+Enumerate\w+", r"cuFuncGetParamInfo", r"cuKernelGetParamInfo",
        r"cuGraphDebugDotPrint",
        r"cu(Func|Kernel|Ctx|DevicePrimaryCtx|Pointer|Stream|MemPool|DeviceSet|Coredump)Set\w+", r"cuDeviceSet\w+",
        r"cuStreamCopyAttributes", r"cuMemAdvise", r"cuMem(SetAccess|SetMemPool)", r"cuInit", r"cuProfiler\w+",
        r"cuLogs\w+", r"cuDevice(Un)?[Rr]egisterAsyncNotification", r"cuCoredump\w+",
        r"cuThreadExchangeStreamCaptureMode",
        r"cuUserObject\w+", r"cuGraph(Retain|Release)UserObject", r"cuTensorMap\w+", r"cuDevResource\w+",
        r"cuDevSmResource\w+", r"cuCtxResetPersistingL2Cache", r"cuFlushGPUDirectRDMAWrites", r"cuNNSetAllocator"),
    "contexts: streams, events and memory are known by their own handles": (
        r"cuCtx(Create|Attach|Detach|PushCurrent|PopCurrent|FromGreenCtx)", r"cuGreenCtxDestroy",
        r"cuCtx(En|Dis)ablePeerAccess", r"cuMemPeer\w+", r"cuCheckpoint\w+"),
    "code: kernels are known when they are launched": (
        r"cuModule(Load\w*)", r"cuLibraryLoad\w+", r"cuLink\w+", r"cuCompilePtx", r"cuBinaryFree", r"cuFuncLoad"),
    "they reserve, and nothing can be accessed yet, or any more": (
        r"cuMem(AddressReserve|AddressFree|Create|Release|RetainAllocationHandle|ExportToShareableHandle)",
        r"cuMemImportFromShareableHandle", r"cuMemPool(Create|Destroy|TrimTo|Export\w+|ImportFrom\w+)",
        r"cuDeviceGraphMemTrim", r"cuIpcCloseMemHandle", r"cuImportExternalMemory", r"cuDestroyExternalMemory",
        r"cuMulticast\w+", r"cuLogicalEndpoint\w+", r"cuSemaphore(Create|Destroy|Export)",
        r"cuMultiKernelCooperativeDomain(Create|Destroy)"),
    "they order nothing and touch no byte": (
        r"cuMemPrefetchBatchAsync", r"cuGraphUpload", r"cuImportExternalSemaphore",
        r"cuDestroyExternalSemaphore", r"cuSignalExternalSemaphoresAsync", r"cuGraphConditionalHandleCreate"),
    "what a graph does is learnt from its capture; these add no work, or are of nodes that are counted already": (
        r"cuGraph(Create|AddEmptyNode|AddHostNode|AddDependencies|RemoveDependencies|NodeFindInClone)",
        r"cuGraph(Exec)?HostNodeSetParams", r"cuGraph(Exec)?ExternalSemaphores(Signal|Wait)NodeSetParams",
        r"cuGraphAddExternalSemaphoresSignalNode", r"cuGraphKernelNode(Copy|Set)Attributes?"),
    "arrays and textures have no addresses": (
        r"cu(64)?(Array|Array3D|MipmappedArray|TexRef|SurfRef|TexObject|SurfObject)\w+", r"cuMemMapArrayAsync",
        r"cuParamSetTexRef", r"cuExternalMemoryGetMappedMipmappedArray"),
    "graphics": (
        r"cu(64)?(D3D\d+|GL|WGL|VDPAU|EGLStream|Graphics|NVN)\w+", r"cuEventCreateFromNVNSync"),
    "not of the drivers of today": (r"cu64\w+", r"cuParamSet\w+", r"cuMemHostAlloc_v2", r"cuMemcpy_v2"),
    "numbers that CUPTI has not named": (r"cuda\d+",),
}
