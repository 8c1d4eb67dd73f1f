// The forms of a program that is compiled with `nvcc --default-stream per-thread`: each thread has a default stream of its
// own, with which the stream 0 of these functions, and of those without a stream, is meant.
//
// They have the signatures of the functions that they call. So each is found when the library is loaded, by its name.
// This file comes last: what it names is defined before.
#include "runtime.hpp"

// Of the simulated driver: whether stream 0 is the calling thread's own from here on. Returns what was before.
extern "C" int xsim_default_stream_per_thread(int wanted);

namespace {

template <auto function>
struct PerThread;
template <class... Arguments, cudart::Error (*function)(Arguments...)>
struct PerThread<function> {
    static cudart::Error call(Arguments... arguments) {
        int before = xsim_default_stream_per_thread(1);
        cudart::Error result = function(arguments...);
        xsim_default_stream_per_thread(before);
        return result;
    }
};

using Any = void (*)();

}  // namespace

// It runs before the library's own addresses are known, and before what a sanitizer needs.
#define PER_THREAD(name, suffix) \
    extern "C" __attribute__((used, no_sanitize("address", "thread", "undefined"))) Any find_##name() { \
        return reinterpret_cast<Any>(&PerThread<&name>::call); \
    } \
    extern "C" __attribute__((visibility("default"), ifunc("find_" #name))) void name##suffix();

PER_THREAD(__cudaLaunchKernel, _ptsz)
PER_THREAD(cudaEventRecordWithFlags, _ptsz)
PER_THREAD(cudaEventRecord, _ptsz)
PER_THREAD(cudaFreeAsync, _ptsz)
PER_THREAD(cudaGraphInstantiateWithParams, _ptsz)
PER_THREAD(cudaGraphLaunch, _ptsz)
PER_THREAD(cudaGraphUpload, _ptsz)
PER_THREAD(cudaLaunchCooperativeKernel, _ptsz)
PER_THREAD(cudaLaunchHostFunc, _ptsz)
PER_THREAD(cudaLaunchKernelExC, _ptsz)
PER_THREAD(cudaLaunchKernel, _ptsz)
PER_THREAD(cudaMallocAsync, _ptsz)
PER_THREAD(cudaMallocFromPoolAsync, _ptsz)
PER_THREAD(cudaMemPrefetchAsync, _ptsz)
PER_THREAD(cudaMemcpy2DArrayToArray, _ptds)
PER_THREAD(cudaMemcpy2DAsync, _ptsz)
PER_THREAD(cudaMemcpy2DFromArrayAsync, _ptsz)
PER_THREAD(cudaMemcpy2DFromArray, _ptds)
PER_THREAD(cudaMemcpy2DToArrayAsync, _ptsz)
PER_THREAD(cudaMemcpy2DToArray, _ptds)
PER_THREAD(cudaMemcpy2D, _ptds)
PER_THREAD(cudaMemcpy3DAsync, _ptsz)
PER_THREAD(cudaMemcpy3DPeerAsync, _ptsz)
PER_THREAD(cudaMemcpy3DPeer, _ptds)
PER_THREAD(cudaMemcpy3D, _ptds)
PER_THREAD(cudaMemcpyAsync, _ptsz)
PER_THREAD(cudaMemcpyBatchAsync, _ptsz)
PER_THREAD(cudaMemcpyFromArrayAsync, _ptsz)
PER_THREAD(cudaMemcpyFromArray, _ptds)
PER_THREAD(cudaMemcpyFromSymbolAsync, _ptsz)
PER_THREAD(cudaMemcpyFromSymbol, _ptds)
PER_THREAD(cudaMemcpyToArrayAsync, _ptsz)
PER_THREAD(cudaMemcpyToArray, _ptds)
PER_THREAD(cudaMemcpyToSymbolAsync, _ptsz)
PER_THREAD(cudaMemcpyToSymbol, _ptds)
PER_THREAD(cudaMemcpy, _ptds)
PER_THREAD(cudaMemset2DAsync, _ptsz)
PER_THREAD(cudaMemset2D, _ptds)
PER_THREAD(cudaMemset3DAsync, _ptsz)
PER_THREAD(cudaMemset3D, _ptds)
PER_THREAD(cudaMemsetAsync, _ptsz)
PER_THREAD(cudaMemset, _ptds)
PER_THREAD(cudaStreamAddCallback, _ptsz)
PER_THREAD(cudaStreamAttachMemAsync, _ptsz)
PER_THREAD(cudaStreamBeginCapture, _ptsz)
PER_THREAD(cudaStreamCopyAttributes, _ptsz)
PER_THREAD(cudaStreamEndCapture, _ptsz)
PER_THREAD(cudaStreamGetAttribute, _ptsz)
PER_THREAD(cudaStreamGetCaptureInfo, _ptsz)
PER_THREAD(cudaStreamGetCaptureInfo_v2, _ptsz)
PER_THREAD(cudaStreamGetCaptureInfo_v3, _ptsz)
PER_THREAD(cudaStreamGetDevice, _ptsz)
PER_THREAD(cudaStreamGetFlags, _ptsz)
PER_THREAD(cudaStreamGetId, _ptsz)
PER_THREAD(cudaStreamGetPriority, _ptsz)
PER_THREAD(cudaStreamIsCapturing, _ptsz)
PER_THREAD(cudaStreamQuery, _ptsz)
PER_THREAD(cudaStreamSetAttribute, _ptsz)
PER_THREAD(cudaStreamSynchronize, _ptsz)
PER_THREAD(cudaStreamWaitEvent, _ptsz)
#if CUDART_VERSION < 13000
PER_THREAD(cudaMemPrefetchAsync_v2, _ptsz)
#endif

namespace {

// The program's flags; where they choose no default stream, that of a thread.
unsigned long long per_thread(unsigned long long flags) {
    return flags & (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
               ? flags
               : flags | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
}

}  // namespace

RUNTIME Error cudaGetDriverEntryPoint_ptsz(const char* name, void** function, unsigned long long flags, int* status) {
    return cudaGetDriverEntryPoint(name, function, per_thread(flags), status);
}
RUNTIME Error cudaGetDriverEntryPointByVersion_ptsz(const char* name, void** function, unsigned version,
                                                    unsigned long long flags, int* status) {
    return cudaGetDriverEntryPointByVersion(name, function, version, per_thread(flags), status);
}
