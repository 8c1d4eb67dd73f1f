// cuGetProcAddress: the function that a client gets for a name and a version.
//
// Clients request the documented name ("cuMemAlloc") and the CUDA version that they were written for; the driver
// answers with the newest form that is not newer than this version. A driver of version 12.2 does not know functions
// that came with 12.8: the answer then is NULL. XLOGMEM_SIM=version=12020 makes an old driver of this one.
#include "calls.hpp"

#include <cstring>
#include <type_traits>

using namespace sim;

// Entry points that not every cuda.h declares.
EXPORT CUresult cuCtxSynchronize_v2(CUcontext);
EXPORT CUresult cuCtxGetDevice_v2(CUdevice*, CUcontext);
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid*, CUdevice);
EXPORT CUresult cuEventElapsedTime_v2(float*, CUevent, CUevent);
EXPORT CUresult cuLaunchHostFunc_v2(CUstream, CUhostFn, void*, unsigned);
EXPORT CUresult cuKernelGetLibrary(CUlibrary*, CUkernel);
EXPORT CUresult cuStreamGetDevice(CUstream, CUdevice*);
EXPORT CUresult cuGreenCtxGetId(CUgreenCtx, unsigned long long*);
EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*, const CUgraphNode**,
                                          const CUgraphEdgeData**, size_t*);
EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*, size_t*, size_t,
                                      CUstream);
EXPORT CUresult cuMemcpy3DBatchAsync_v2(size_t, CUDA_MEMCPY3D_BATCH_OP*, unsigned long long, CUstream);
EXPORT CUresult cuMemcpyWithAttributesAsync(CUdeviceptr, CUdeviceptr, size_t, CUmemcpyAttributes*, CUstream);
EXPORT CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP*, unsigned long long, CUstream);
EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool*, CUmemLocation*, CUmemAllocationType);
EXPORT CUresult cuMemGetMemPool(CUmemoryPool*, CUmemLocation*, CUmemAllocationType);
EXPORT CUresult cuMemSetMemPool(CUmemLocation*, CUmemAllocationType, CUmemoryPool);
EXPORT CUresult cuGetProcAddress(const char*, void**, int, cuuint64_t);
EXPORT CUresult cuProfilerStart();  // of cudaProfiler.h
EXPORT CUresult cuProfilerStop();

namespace {

// The per-thread-default-stream form of a function: the same, with stream 0 meaning the thread's own.
template <auto Function>
struct PerThread;
template <class... Arguments, CUresult (*Function)(Arguments...)>
struct PerThread<Function> {
    static CUresult call(Arguments... arguments) {
        bool& flag = this_thread().per_thread_default;
        bool before = flag;
        flag = true;
        CUresult result = Function(arguments...);
        flag = before;
        return result;
    }
};

struct Symbol {
    const char* name;
    int version;  // the first CUDA version with this form
    void* function;
    void* per_thread;
};

template <class F>
void* pointer(F* function) {
    return reinterpret_cast<void*>(function);
}

#define PLAIN(name, version, function) {#name, version, pointer(function), nullptr}
#define STREAM(name, version, function) {#name, version, pointer(function), pointer(&PerThread<&function>::call)}

const Symbol kSymbols[] = {
    PLAIN(cuInit, 2000, cuInit),
    PLAIN(cuDriverGetVersion, 2020, cuDriverGetVersion),
    PLAIN(cuGetErrorName, 6000, cuGetErrorName),
    PLAIN(cuGetErrorString, 6000, cuGetErrorString),
    PLAIN(cuGetExportTable, 3000, cuGetExportTable),
    PLAIN(cuGetProcAddress, 11030, cuGetProcAddress),
    PLAIN(cuGetProcAddress, 12000, cuGetProcAddress_v2),
    PLAIN(cuDeviceGetCount, 2000, cuDeviceGetCount),
    PLAIN(cuDeviceGet, 2000, cuDeviceGet),
    PLAIN(cuDeviceGetName, 2000, cuDeviceGetName),
    PLAIN(cuDeviceGetUuid, 9020, cuDeviceGetUuid),
    PLAIN(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2),
    PLAIN(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2),
    PLAIN(cuDeviceGetByPCIBusId, 4010, cuDeviceGetByPCIBusId),
    PLAIN(cuDeviceGetPCIBusId, 4010, cuDeviceGetPCIBusId),
    PLAIN(cuDeviceComputeCapability, 2000, cuDeviceComputeCapability),
    PLAIN(cuDeviceCanAccessPeer, 4000, cuDeviceCanAccessPeer),
    PLAIN(cuDeviceGetP2PAttribute, 8000, cuDeviceGetP2PAttribute),
    PLAIN(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute),
    PLAIN(cuDeviceGetDefaultMemPool, 11020, cuDeviceGetDefaultMemPool),
    PLAIN(cuMemGetDefaultMemPool, 13000, cuMemGetDefaultMemPool),
    PLAIN(cuMemGetMemPool, 13000, cuMemGetMemPool),
    PLAIN(cuMemSetMemPool, 13000, cuMemSetMemPool),
    PLAIN(cuDeviceGetMemPool, 11020, cuDeviceGetMemPool),
    PLAIN(cuDeviceSetMemPool, 11020, cuDeviceSetMemPool),
    PLAIN(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain),
    PLAIN(cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease_v2),
    PLAIN(cuDevicePrimaryCtxReset, 7000, cuDevicePrimaryCtxReset_v2),
    PLAIN(cuDevicePrimaryCtxSetFlags, 7000, cuDevicePrimaryCtxSetFlags_v2),
    PLAIN(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState),
    PLAIN(cuCtxCreate, 3020, cuCtxCreate_v2),
    PLAIN(cuCtxCreate, 11040, cuCtxCreate_v3),
    PLAIN(cuCtxCreate, 12050, cuCtxCreate_v4),
    PLAIN(cuCtxDestroy, 4000, cuCtxDestroy_v2),
    PLAIN(cuCtxSetCurrent, 4000, cuCtxSetCurrent),
    PLAIN(cuCtxGetCurrent, 4000, cuCtxGetCurrent),
    PLAIN(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2),
    PLAIN(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2),
    PLAIN(cuCtxGetDevice, 2000, cuCtxGetDevice),
    PLAIN(cuCtxGetDevice, 13000, cuCtxGetDevice_v2),
    PLAIN(cuCtxGetFlags, 7000, cuCtxGetFlags),
    PLAIN(cuCtxGetId, 12000, cuCtxGetId),
    PLAIN(cuCtxGetApiVersion, 3020, cuCtxGetApiVersion),
    PLAIN(cuCtxGetStreamPriorityRange, 5050, cuCtxGetStreamPriorityRange),
    PLAIN(cuCtxGetLimit, 3010, cuCtxGetLimit),
    PLAIN(cuCtxSetLimit, 3010, cuCtxSetLimit),
    PLAIN(cuProfilerStart, 4000, cuProfilerStart),
    PLAIN(cuProfilerStop, 4000, cuProfilerStop),
    PLAIN(cuCtxEnablePeerAccess, 4000, cuCtxEnablePeerAccess),
    PLAIN(cuCtxDisablePeerAccess, 4000, cuCtxDisablePeerAccess),
    PLAIN(cuCtxSynchronize, 2000, cuCtxSynchronize),
    PLAIN(cuCtxSynchronize, 13000, cuCtxSynchronize_v2),
    PLAIN(cuStreamCreate, 2000, cuStreamCreate),
    PLAIN(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority),
    PLAIN(cuStreamDestroy, 4000, cuStreamDestroy_v2),
    STREAM(cuStreamSynchronize, 2000, cuStreamSynchronize),
    STREAM(cuStreamQuery, 2000, cuStreamQuery),
    STREAM(cuStreamWaitEvent, 3020, cuStreamWaitEvent),
    STREAM(cuStreamGetFlags, 5050, cuStreamGetFlags),
    STREAM(cuStreamGetPriority, 5050, cuStreamGetPriority),
    STREAM(cuStreamGetId, 12000, cuStreamGetId),
    STREAM(cuStreamGetAttribute, 11000, cuStreamGetAttribute),
    STREAM(cuStreamSetAttribute, 11000, cuStreamSetAttribute),
    STREAM(cuStreamCopyAttributes, 11000, cuStreamCopyAttributes),
    STREAM(cuStreamGetCtx, 9020, cuStreamGetCtx),
    STREAM(cuStreamGetCtx, 12050, cuStreamGetCtx_v2),
    STREAM(cuStreamGetDevice, 12080, cuStreamGetDevice),
    PLAIN(cuDeviceGetDevResource, 12040, cuDeviceGetDevResource),
    PLAIN(cuCtxGetDevResource, 12040, cuCtxGetDevResource),
    PLAIN(cuGreenCtxGetDevResource, 12040, cuGreenCtxGetDevResource),
    PLAIN(cuDevSmResourceSplitByCount, 12040, cuDevSmResourceSplitByCount),
    PLAIN(cuDevResourceGenerateDesc, 12040, cuDevResourceGenerateDesc),
    PLAIN(cuGreenCtxCreate, 12040, cuGreenCtxCreate),
    PLAIN(cuGreenCtxDestroy, 12040, cuGreenCtxDestroy),
    PLAIN(cuCtxFromGreenCtx, 12040, cuCtxFromGreenCtx),
    PLAIN(cuGreenCtxRecordEvent, 12040, cuGreenCtxRecordEvent),
    PLAIN(cuGreenCtxWaitEvent, 12040, cuGreenCtxWaitEvent),
    PLAIN(cuStreamGetGreenCtx, 12040, cuStreamGetGreenCtx),
    PLAIN(cuGreenCtxStreamCreate, 12050, cuGreenCtxStreamCreate),
    PLAIN(cuCtxRecordEvent, 12050, cuCtxRecordEvent),
    PLAIN(cuCtxWaitEvent, 12050, cuCtxWaitEvent),
    PLAIN(cuGreenCtxGetId, 13000, cuGreenCtxGetId),
    STREAM(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2),
    STREAM(cuStreamEndCapture, 10000, cuStreamEndCapture),
    STREAM(cuStreamIsCapturing, 10000, cuStreamIsCapturing),
    STREAM(cuStreamGetCaptureInfo, 11030, cuStreamGetCaptureInfo_v2),
    STREAM(cuStreamGetCaptureInfo, 12030, cuStreamGetCaptureInfo_v3),
    PLAIN(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode),
    PLAIN(cuGraphCreate, 10000, cuGraphCreate),
    PLAIN(cuGraphDestroy, 10000, cuGraphDestroy),
    PLAIN(cuGraphGetNodes, 10000, cuGraphGetNodes),
    PLAIN(cuGraphGetRootNodes, 10000, cuGraphGetRootNodes),
    PLAIN(cuGraphGetEdges, 10000, cuGraphGetEdges),
    PLAIN(cuGraphGetEdges, 12030, cuGraphGetEdges_v2),
    PLAIN(cuGraphAddNode, 12020, cuGraphAddNode),
    PLAIN(cuGraphAddNode, 12030, cuGraphAddNode_v2),
    PLAIN(cuGraphAddKernelNode, 10000, cuGraphAddKernelNode),
    PLAIN(cuGraphAddKernelNode, 12000, cuGraphAddKernelNode_v2),
    PLAIN(cuGraphAddMemcpyNode, 10000, cuGraphAddMemcpyNode),
    PLAIN(cuGraphAddMemsetNode, 10000, cuGraphAddMemsetNode),
    PLAIN(cuGraphAddHostNode, 10000, cuGraphAddHostNode),
    PLAIN(cuGraphAddChildGraphNode, 10000, cuGraphAddChildGraphNode),
    PLAIN(cuGraphAddEmptyNode, 10000, cuGraphAddEmptyNode),
    PLAIN(cuGraphAddEventRecordNode, 11010, cuGraphAddEventRecordNode),
    PLAIN(cuGraphAddEventWaitNode, 11010, cuGraphAddEventWaitNode),
    PLAIN(cuGraphKernelNodeGetParams, 10000, cuGraphKernelNodeGetParams),
    PLAIN(cuGraphKernelNodeGetParams, 12000, cuGraphKernelNodeGetParams_v2),
    PLAIN(cuGraphMemcpyNodeGetParams, 10000, cuGraphMemcpyNodeGetParams),
    PLAIN(cuGraphMemsetNodeGetParams, 10000, cuGraphMemsetNodeGetParams),
    PLAIN(cuGraphHostNodeGetParams, 10000, cuGraphHostNodeGetParams),
    PLAIN(cuGraphChildGraphNodeGetGraph, 10000, cuGraphChildGraphNodeGetGraph),
    PLAIN(cuGraphEventRecordNodeGetEvent, 11010, cuGraphEventRecordNodeGetEvent),
    PLAIN(cuGraphEventWaitNodeGetEvent, 11010, cuGraphEventWaitNodeGetEvent),
    PLAIN(cuGraphKernelNodeSetParams, 10000, cuGraphKernelNodeSetParams),
    PLAIN(cuGraphKernelNodeSetParams, 12000, cuGraphKernelNodeSetParams_v2),
    PLAIN(cuGraphMemcpyNodeSetParams, 10000, cuGraphMemcpyNodeSetParams),
    PLAIN(cuGraphMemsetNodeSetParams, 10000, cuGraphMemsetNodeSetParams),
    PLAIN(cuGraphHostNodeSetParams, 10000, cuGraphHostNodeSetParams),
    PLAIN(cuGraphEventRecordNodeSetEvent, 11010, cuGraphEventRecordNodeSetEvent),
    PLAIN(cuGraphEventWaitNodeSetEvent, 11010, cuGraphEventWaitNodeSetEvent),
    PLAIN(cuGraphNodeSetParams, 12020, cuGraphNodeSetParams),
    PLAIN(cuGraphExecKernelNodeSetParams, 10010, cuGraphExecKernelNodeSetParams),
    PLAIN(cuGraphExecKernelNodeSetParams, 12000, cuGraphExecKernelNodeSetParams_v2),
    PLAIN(cuGraphExecMemcpyNodeSetParams, 10020, cuGraphExecMemcpyNodeSetParams),
    PLAIN(cuGraphExecMemsetNodeSetParams, 10020, cuGraphExecMemsetNodeSetParams),
    PLAIN(cuGraphExecHostNodeSetParams, 10020, cuGraphExecHostNodeSetParams),
    PLAIN(cuGraphExecChildGraphNodeSetParams, 11010, cuGraphExecChildGraphNodeSetParams),
    PLAIN(cuGraphExecEventRecordNodeSetEvent, 11010, cuGraphExecEventRecordNodeSetEvent),
    PLAIN(cuGraphExecEventWaitNodeSetEvent, 11010, cuGraphExecEventWaitNodeSetEvent),
    PLAIN(cuGraphExecNodeSetParams, 12020, cuGraphExecNodeSetParams),
    PLAIN(cuGraphNodeSetEnabled, 11060, cuGraphNodeSetEnabled),
    PLAIN(cuGraphNodeGetEnabled, 11060, cuGraphNodeGetEnabled),
    PLAIN(cuGraphNodeGetType, 10000, cuGraphNodeGetType),
    PLAIN(cuGraphNodeGetDependencies, 10000, cuGraphNodeGetDependencies),
    PLAIN(cuGraphNodeGetDependencies, 12030, cuGraphNodeGetDependencies_v2),
    PLAIN(cuGraphNodeGetDependentNodes, 10000, cuGraphNodeGetDependentNodes),
    PLAIN(cuGraphNodeGetDependentNodes, 12030, cuGraphNodeGetDependentNodes_v2),
    PLAIN(cuGraphAddDependencies, 10000, cuGraphAddDependencies),
    PLAIN(cuGraphAddDependencies, 12030, cuGraphAddDependencies_v2),
    PLAIN(cuGraphRemoveDependencies, 10000, cuGraphRemoveDependencies),
    PLAIN(cuGraphRemoveDependencies, 12030, cuGraphRemoveDependencies_v2),
    PLAIN(cuGraphDestroyNode, 10000, cuGraphDestroyNode),
    PLAIN(cuGraphKernelNodeSetAttribute, 11000, cuGraphKernelNodeSetAttribute),
    PLAIN(cuGraphKernelNodeGetAttribute, 11000, cuGraphKernelNodeGetAttribute),
    PLAIN(cuGraphKernelNodeCopyAttributes, 11000, cuGraphKernelNodeCopyAttributes),
    PLAIN(cuGraphDebugDotPrint, 11030, cuGraphDebugDotPrint),
    PLAIN(cuGraphClone, 10000, cuGraphClone),
    PLAIN(cuGraphNodeFindInClone, 10000, cuGraphNodeFindInClone),
    PLAIN(cuGraphInstantiate, 12000, cuGraphInstantiateWithFlags),
    PLAIN(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags),
    STREAM(cuGraphInstantiateWithParams, 12000, cuGraphInstantiateWithParams),
    PLAIN(cuGraphExecUpdate, 12000, cuGraphExecUpdate_v2),
    PLAIN(cuGraphExecDestroy, 10000, cuGraphExecDestroy),
    STREAM(cuGraphUpload, 11010, cuGraphUpload),
    STREAM(cuGraphLaunch, 10000, cuGraphLaunch),
    PLAIN(cuUserObjectCreate, 11030, cuUserObjectCreate),
    PLAIN(cuUserObjectRetain, 11030, cuUserObjectRetain),
    PLAIN(cuUserObjectRelease, 11030, cuUserObjectRelease),
    PLAIN(cuGraphRetainUserObject, 11030, cuGraphRetainUserObject),
    PLAIN(cuGraphReleaseUserObject, 11030, cuGraphReleaseUserObject),
    STREAM(cuLaunchHostFunc, 10000, cuLaunchHostFunc),
    STREAM(cuLaunchHostFunc, 13020, cuLaunchHostFunc_v2),
    STREAM(cuStreamAddCallback, 5000, cuStreamAddCallback),
    STREAM(cuStreamWriteValue32, 8000, cuStreamWriteValue32_v2),
    STREAM(cuStreamWriteValue64, 8000, cuStreamWriteValue64_v2),
    STREAM(cuStreamWaitValue32, 8000, cuStreamWaitValue32_v2),
    STREAM(cuStreamWaitValue64, 9000, cuStreamWaitValue64_v2),
    STREAM(cuStreamBatchMemOp, 8000, cuStreamBatchMemOp_v2),
    PLAIN(cuEventCreate, 2000, cuEventCreate),
    PLAIN(cuEventDestroy, 4000, cuEventDestroy_v2),
    STREAM(cuEventRecord, 2000, cuEventRecord),
    STREAM(cuEventRecordWithFlags, 11010, cuEventRecordWithFlags),
    PLAIN(cuEventQuery, 2000, cuEventQuery),
    PLAIN(cuEventSynchronize, 2000, cuEventSynchronize),
    PLAIN(cuEventElapsedTime, 2000, cuEventElapsedTime),
    PLAIN(cuEventElapsedTime, 12080, cuEventElapsedTime_v2),
    STREAM(cuMemAllocAsync, 11020, cuMemAllocAsync),
    STREAM(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync),
    STREAM(cuMemFreeAsync, 11020, cuMemFreeAsync),
    PLAIN(cuMemAlloc, 3020, cuMemAlloc_v2),
    PLAIN(cuMemAllocPitch, 3020, cuMemAllocPitch_v2),
    PLAIN(cuMemFree, 3020, cuMemFree_v2),
    PLAIN(cuMemAllocManaged, 6000, cuMemAllocManaged),
    STREAM(cuMemPrefetchAsync, 8000, cuMemPrefetchAsync),
    STREAM(cuMemPrefetchAsync, 12020, cuMemPrefetchAsync_v2),
    PLAIN(cuMemAdvise, 8000, cuMemAdvise),
    PLAIN(cuMemAdvise, 12020, cuMemAdvise_v2),
    PLAIN(cuMemRangeGetAttribute, 8000, cuMemRangeGetAttribute),
    PLAIN(cuMemRangeGetAttributes, 8000, cuMemRangeGetAttributes),
    STREAM(cuStreamAttachMemAsync, 6000, cuStreamAttachMemAsync),
    PLAIN(cuMemHostAlloc, 2020, cuMemHostAlloc),
    PLAIN(cuMemAllocHost, 3020, cuMemAllocHost_v2),
    PLAIN(cuMemFreeHost, 2000, cuMemFreeHost),
    PLAIN(cuMemHostRegister, 6050, cuMemHostRegister_v2),
    PLAIN(cuMemHostUnregister, 4000, cuMemHostUnregister),
    PLAIN(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2),
    PLAIN(cuMemGetInfo, 3020, cuMemGetInfo_v2),
    PLAIN(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2),
    PLAIN(cuPointerGetAttribute, 4000, cuPointerGetAttribute),
    PLAIN(cuPointerGetAttributes, 7000, cuPointerGetAttributes),
    STREAM(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2),
    STREAM(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2),
    STREAM(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2),
    STREAM(cuMemcpyAsync, 4000, cuMemcpyAsync),
    STREAM(cuMemcpyPeerAsync, 4000, cuMemcpyPeerAsync),
    STREAM(cuMemcpyBatchAsync, 12080, cuMemcpyBatchAsync),
    STREAM(cuMemcpyBatchAsync, 13000, cuMemcpyBatchAsync_v2),
    STREAM(cuMemcpyWithAttributesAsync, 13020, cuMemcpyWithAttributesAsync),
    STREAM(cuMemcpy3DBatchAsync, 12080, cuMemcpy3DBatchAsync),
    STREAM(cuMemcpy3DBatchAsync, 13000, cuMemcpy3DBatchAsync_v2),
    STREAM(cuMemcpy3DWithAttributesAsync, 13020, cuMemcpy3DWithAttributesAsync),
    STREAM(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2),
    STREAM(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2),
    STREAM(cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2),
    STREAM(cuMemcpyPeer, 4000, cuMemcpyPeer),
    STREAM(cuMemcpy, 4000, cuMemcpy),
    STREAM(cuMemcpy2DAsync, 3020, cuMemcpy2DAsync_v2),
    STREAM(cuMemcpy2D, 3020, cuMemcpy2D_v2),
    STREAM(cuMemcpy2DUnaligned, 3020, cuMemcpy2DUnaligned_v2),
    STREAM(cuMemcpy3DAsync, 3020, cuMemcpy3DAsync_v2),
    STREAM(cuMemcpy3D, 3020, cuMemcpy3D_v2),
    STREAM(cuMemcpy3DPeerAsync, 4000, cuMemcpy3DPeerAsync),
    STREAM(cuMemcpy3DPeer, 4000, cuMemcpy3DPeer),
    PLAIN(cuArrayCreate, 3020, cuArrayCreate_v2),
    PLAIN(cuArrayGetDescriptor, 3020, cuArrayGetDescriptor_v2),
    PLAIN(cuArray3DCreate, 3020, cuArray3DCreate_v2),
    PLAIN(cuArray3DGetDescriptor, 3020, cuArray3DGetDescriptor_v2),
    PLAIN(cuArrayGetMemoryRequirements, 11060, cuArrayGetMemoryRequirements),
    PLAIN(cuArrayDestroy, 2000, cuArrayDestroy),
    PLAIN(cuMipmappedArrayCreate, 5000, cuMipmappedArrayCreate),
    PLAIN(cuMipmappedArrayGetLevel, 5000, cuMipmappedArrayGetLevel),
    PLAIN(cuMipmappedArrayGetMemoryRequirements, 11060, cuMipmappedArrayGetMemoryRequirements),
    PLAIN(cuMipmappedArrayDestroy, 5000, cuMipmappedArrayDestroy),
    STREAM(cuMemcpyHtoAAsync, 3020, cuMemcpyHtoAAsync_v2),
    STREAM(cuMemcpyAtoHAsync, 3020, cuMemcpyAtoHAsync_v2),
    STREAM(cuMemcpyHtoA, 3020, cuMemcpyHtoA_v2),
    STREAM(cuMemcpyAtoH, 3020, cuMemcpyAtoH_v2),
    STREAM(cuMemcpyDtoA, 3020, cuMemcpyDtoA_v2),
    STREAM(cuMemcpyAtoD, 3020, cuMemcpyAtoD_v2),
    STREAM(cuMemcpyAtoA, 3020, cuMemcpyAtoA_v2),
    PLAIN(cuTexObjectCreate, 5000, cuTexObjectCreate),
    PLAIN(cuTexObjectDestroy, 5000, cuTexObjectDestroy),
    PLAIN(cuTexObjectGetResourceDesc, 5000, cuTexObjectGetResourceDesc),
    PLAIN(cuTexObjectGetTextureDesc, 5000, cuTexObjectGetTextureDesc),
    PLAIN(cuTexObjectGetResourceViewDesc, 5000, cuTexObjectGetResourceViewDesc),
    PLAIN(cuSurfObjectCreate, 5000, cuSurfObjectCreate),
    PLAIN(cuSurfObjectDestroy, 5000, cuSurfObjectDestroy),
    PLAIN(cuSurfObjectGetResourceDesc, 5000, cuSurfObjectGetResourceDesc),
    STREAM(cuMemsetD8Async, 3020, cuMemsetD8Async),
    STREAM(cuMemsetD16Async, 3020, cuMemsetD16Async),
    STREAM(cuMemsetD32Async, 3020, cuMemsetD32Async),
    STREAM(cuMemsetD8, 3020, cuMemsetD8_v2),
    STREAM(cuMemsetD16, 3020, cuMemsetD16_v2),
    STREAM(cuMemsetD32, 3020, cuMemsetD32_v2),
    STREAM(cuMemsetD2D8Async, 3020, cuMemsetD2D8Async),
    STREAM(cuMemsetD2D16Async, 3020, cuMemsetD2D16Async),
    STREAM(cuMemsetD2D32Async, 3020, cuMemsetD2D32Async),
    STREAM(cuMemsetD2D8, 3020, cuMemsetD2D8_v2),
    STREAM(cuMemsetD2D16, 3020, cuMemsetD2D16_v2),
    STREAM(cuMemsetD2D32, 3020, cuMemsetD2D32_v2),
    PLAIN(cuMemGetAllocationGranularity, 10020, cuMemGetAllocationGranularity),
    PLAIN(cuMemAddressReserve, 10020, cuMemAddressReserve),
    PLAIN(cuMemAddressFree, 10020, cuMemAddressFree),
    PLAIN(cuMemCreate, 10020, cuMemCreate),
    PLAIN(cuMemRelease, 10020, cuMemRelease),
    PLAIN(cuMemMap, 10020, cuMemMap),
    PLAIN(cuMemUnmap, 10020, cuMemUnmap),
    PLAIN(cuMemSetAccess, 10020, cuMemSetAccess),
    PLAIN(cuMemGetAccess, 10020, cuMemGetAccess),
    PLAIN(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle),
    PLAIN(cuMemGetAllocationPropertiesFromHandle, 10020, cuMemGetAllocationPropertiesFromHandle),
    PLAIN(cuMemExportToShareableHandle, 10020, cuMemExportToShareableHandle),
    PLAIN(cuMemImportFromShareableHandle, 10020, cuMemImportFromShareableHandle),
    PLAIN(cuMemPoolCreate, 11020, cuMemPoolCreate),
    PLAIN(cuMemPoolDestroy, 11020, cuMemPoolDestroy),
    PLAIN(cuMemPoolTrimTo, 11020, cuMemPoolTrimTo),
    PLAIN(cuMemPoolSetAccess, 11020, cuMemPoolSetAccess),
    PLAIN(cuMemPoolGetAccess, 11020, cuMemPoolGetAccess),
    PLAIN(cuMemPoolSetAttribute, 11020, cuMemPoolSetAttribute),
    PLAIN(cuMemPoolGetAttribute, 11020, cuMemPoolGetAttribute),
    PLAIN(cuModuleLoadData, 2000, cuModuleLoadData),
    PLAIN(cuModuleLoadDataEx, 2010, cuModuleLoadDataEx),
    PLAIN(cuModuleLoadFatBinary, 2000, cuModuleLoadFatBinary),
    PLAIN(cuModuleLoad, 2000, cuModuleLoad),
    PLAIN(cuModuleGetLoadingMode, 11070, cuModuleGetLoadingMode),
    PLAIN(cuModuleUnload, 2000, cuModuleUnload),
    PLAIN(cuModuleGetFunction, 2000, cuModuleGetFunction),
    PLAIN(cuModuleGetGlobal, 3020, cuModuleGetGlobal_v2),
    PLAIN(cuLibraryLoadData, 12000, cuLibraryLoadData),
    PLAIN(cuLibraryLoadFromFile, 12000, cuLibraryLoadFromFile),
    PLAIN(cuLibraryUnload, 12000, cuLibraryUnload),
    PLAIN(cuLibraryGetModule, 12000, cuLibraryGetModule),
    PLAIN(cuLibraryGetGlobal, 12000, cuLibraryGetGlobal),
    PLAIN(cuLibraryGetManaged, 12000, cuLibraryGetManaged),
    PLAIN(cuLibraryGetKernelCount, 12040, cuLibraryGetKernelCount),
    PLAIN(cuLibraryEnumerateKernels, 12040, cuLibraryEnumerateKernels),
    PLAIN(cuLibraryGetKernel, 12000, cuLibraryGetKernel),
    PLAIN(cuKernelGetFunction, 12000, cuKernelGetFunction),
    PLAIN(cuKernelGetAttribute, 12000, cuKernelGetAttribute),
    PLAIN(cuFuncGetAttribute, 2020, cuFuncGetAttribute),
    PLAIN(cuFuncSetAttribute, 9000, cuFuncSetAttribute),
    PLAIN(cuFuncSetCacheConfig, 3000, cuFuncSetCacheConfig),
    PLAIN(cuFuncGetParamInfo, 12040, cuFuncGetParamInfo),
    PLAIN(cuFuncGetName, 12030, cuFuncGetName),
    PLAIN(cuFuncGetModule, 11000, cuFuncGetModule),
    PLAIN(cuFuncIsLoaded, 12040, cuFuncIsLoaded),
    PLAIN(cuFuncLoad, 12040, cuFuncLoad),
    PLAIN(cuKernelSetAttribute, 12000, cuKernelSetAttribute),
    PLAIN(cuKernelSetCacheConfig, 12000, cuKernelSetCacheConfig),
    PLAIN(cuKernelGetParamInfo, 12040, cuKernelGetParamInfo),
    PLAIN(cuKernelGetName, 12030, cuKernelGetName),
    PLAIN(cuKernelGetLibrary, 12050, cuKernelGetLibrary),
    PLAIN(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, cuOccupancyMaxActiveBlocksPerMultiprocessor),
    PLAIN(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000,
          cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags),
    PLAIN(cuOccupancyMaxPotentialBlockSize, 6050, cuOccupancyMaxPotentialBlockSize),
    PLAIN(cuOccupancyMaxPotentialBlockSizeWithFlags, 7000, cuOccupancyMaxPotentialBlockSizeWithFlags),
    PLAIN(cuOccupancyAvailableDynamicSMemPerBlock, 10020, cuOccupancyAvailableDynamicSMemPerBlock),
    PLAIN(cuOccupancyMaxPotentialClusterSize, 11070, cuOccupancyMaxPotentialClusterSize),
    PLAIN(cuOccupancyMaxActiveClusters, 11070, cuOccupancyMaxActiveClusters),
    STREAM(cuLaunchKernel, 4000, cuLaunchKernel),
    STREAM(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel),
    STREAM(cuLaunchKernelEx, 11060, cuLaunchKernelEx),
};

}  // namespace

EXPORT CUresult cuGetProcAddress_v2(const char* name, void** function, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult* status) {
    if (!name || !function) return CUDA_ERROR_INVALID_VALUE;
    const Symbol* best = nullptr;
    bool known = false;
    for (const Symbol& symbol : kSymbols) {
        if (strcmp(symbol.name, name)) continue;
        known = true;
        if (symbol.version <= version && (!best || symbol.version >= best->version)) best = &symbol;
    }
    // A function that the client knows but this driver is too old for does not exist, even if an older form does.
    if (version > driver().config.version) best = nullptr;
    bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    *function = !best ? nullptr : per_thread && best->per_thread ? best->per_thread : best->function;
    if (status) {
        *status = best    ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                          : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return best ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}
