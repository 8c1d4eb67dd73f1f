// Devices, contexts, pools.
#include "runtime.hpp"

#include <atomic>
#include <mutex>

// Of cudaProfiler.h, which is not needed to build this.
extern "C" CUresult cuProfilerStart();
extern "C" CUresult cuProfilerStop();

namespace cudart {

thread_local int current_device = 0;

namespace {

thread_local Error last = 0;
std::mutex mutex;
CUcontext contexts[64];

}  // namespace

Error done(CUresult result) {
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) last = int(result);
    return int(result);
}

CUresult retain(int device, CUcontext* context) {
    std::lock_guard<std::mutex> guard(mutex);
    if (device < 0 || device >= 64) return CUDA_ERROR_INVALID_DEVICE;
    if (!contexts[device])
        if (CUresult refused = cuDevicePrimaryCtxRetain(&contexts[device], device)) return refused;
    *context = contexts[device];
    return CUDA_SUCCESS;
}

CUresult begin() {
    CUcontext context = nullptr;
    CUresult result = cuCtxGetCurrent(&context);
    if (result == CUDA_ERROR_NOT_INITIALIZED) {
        result = cuInit(0);
        if (!result) result = cuCtxGetCurrent(&context);
    }
    if (result || context) return result;
    result = retain(current_device, &context);
    return result ? result : cuCtxSetCurrent(context);
}

}  // namespace cudart

using namespace cudart;

RUNTIME Error cudaGetLastError() {
    Error error = last;
    last = 0;
    return error;
}
RUNTIME Error cudaPeekAtLastError() { return last; }

RUNTIME Error cudaRuntimeGetVersion(int* version) {
    *version = CUDART_VERSION;
    return 0;
}
RUNTIME Error cudaDriverGetVersion(int* version) { return done(cuDriverGetVersion(version)); }

RUNTIME Error cudaGetDeviceCount(int* count) {
    if (CUresult refused = cuInit(0)) return done(refused);
    return done(cuDeviceGetCount(count));
}
RUNTIME Error cudaGetDevice(int* device) {
    CUdevice of_context;
    CUcontext context = nullptr;
    if (!cuCtxGetCurrent(&context) && context && !cuCtxGetDevice(&of_context)) current_device = of_context;
    *device = current_device;
    return 0;
}
RUNTIME Error cudaSetDevice(int device) {
    int count = 0;
    CUcontext context;
    if (Error error = cudaGetDeviceCount(&count)) return error;
    if (device < 0 || device >= count) return done(CUDA_ERROR_INVALID_DEVICE);
    current_device = device;
    if (CUresult refused = retain(device, &context)) return done(refused);
    return done(cuCtxSetCurrent(context));
}
RUNTIME Error cudaInitDevice(int device, unsigned, unsigned) { return cudaSetDevice(device); }
RUNTIME Error cudaSetDeviceFlags(unsigned) { return 0; }
RUNTIME Error cudaGetDeviceFlags(unsigned* flags) {
    *flags = 0;
    return 0;
}
RUNTIME Error cudaDeviceSynchronize() { DRIVER(cuCtxSynchronize()); }
RUNTIME Error cudaDeviceReset() {
    return with_context([]() -> CUresult {
        CUdevice device;
        if (CUresult refused = cuCtxGetDevice(&device)) return refused;
        forget_variables(device);
        return cuDevicePrimaryCtxReset_v2(device);
    });
}
RUNTIME Error cudaThreadExit() { return cudaDeviceReset(); }
RUNTIME Error cudaThreadSynchronize() { return cudaDeviceSynchronize(); }
RUNTIME Error cudaDeviceGetAttribute(int* value, int attribute, int device) {
    if (CUresult refused = cuInit(0)) return done(refused);
    return done(cuDeviceGetAttribute(value, CUdevice_attribute(attribute), device));
}
RUNTIME Error cudaDeviceCanAccessPeer(int* can, int device, int peer) {
    DRIVER(cuDeviceCanAccessPeer(can, device, peer));
}
RUNTIME Error cudaDeviceGetP2PAttribute(int* value, int attribute, int device, int peer) {
    DRIVER(cuDeviceGetP2PAttribute(value, CUdevice_P2PAttribute(attribute), device, peer));
}
RUNTIME Error cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    CUcontext context;
    if (CUresult refused = retain(peer, &context)) return done(refused);
    DRIVER(cuCtxEnablePeerAccess(context, flags));
}
RUNTIME Error cudaDeviceDisablePeerAccess(int peer) {
    CUcontext context;
    if (CUresult refused = retain(peer, &context)) return done(refused);
    DRIVER(cuCtxDisablePeerAccess(context));
}
RUNTIME Error cudaDeviceGetPCIBusId(char* text, int length, int device) {
    DRIVER(cuDeviceGetPCIBusId(text, length, device));
}
RUNTIME Error cudaDeviceGetByPCIBusId(int* device, const char* text) { DRIVER(cuDeviceGetByPCIBusId(device, text)); }
RUNTIME Error cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    DRIVER(cuCtxGetStreamPriorityRange(least, greatest));
}
RUNTIME Error cudaDeviceGetLimit(size_t* value, int limit) { DRIVER(cuCtxGetLimit(value, CUlimit(limit))); }
RUNTIME Error cudaDeviceSetLimit(int limit, size_t value) { DRIVER(cuCtxSetLimit(CUlimit(limit), value)); }
RUNTIME Error cudaDeviceGetDefaultMemPool(CUmemoryPool* pool, int device) {
    DRIVER(cuDeviceGetDefaultMemPool(pool, device));
}
RUNTIME Error cudaDeviceGetMemPool(CUmemoryPool* pool, int device) { DRIVER(cuDeviceGetMemPool(pool, device)); }
RUNTIME Error cudaDeviceSetMemPool(int device, CUmemoryPool pool) { DRIVER(cuDeviceSetMemPool(device, pool)); }

RUNTIME Error cudaMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
    DRIVER(cuMemPoolCreate(pool, properties));
}
RUNTIME Error cudaMemPoolDestroy(CUmemoryPool pool) { DRIVER(cuMemPoolDestroy(pool)); }
RUNTIME Error cudaMemPoolTrimTo(CUmemoryPool pool, size_t bytes) { DRIVER(cuMemPoolTrimTo(pool, bytes)); }
RUNTIME Error cudaMemPoolSetAttribute(CUmemoryPool pool, int attribute, void* value) {
    DRIVER(cuMemPoolSetAttribute(pool, CUmemPool_attribute(attribute), value));
}
RUNTIME Error cudaMemPoolGetAttribute(CUmemoryPool pool, int attribute, void* value) {
    DRIVER(cuMemPoolGetAttribute(pool, CUmemPool_attribute(attribute), value));
}
RUNTIME Error cudaMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* accesses, size_t count) {
    DRIVER(cuMemPoolSetAccess(pool, accesses, count));
}
RUNTIME Error cudaProfilerStart() { DRIVER(cuProfilerStart()); }
RUNTIME Error cudaProfilerStop() { DRIVER(cuProfilerStop()); }

// Wishes, which change nothing here.
namespace {

std::atomic<int> cache_config{0}, bank_config{0};

Error wish(std::atomic<int>& kept, int wanted, int most) {
    if (wanted < 0 || wanted > most) return done(CUDA_ERROR_INVALID_VALUE);
    kept = wanted;
    return done(begin());
}

Error wished(const std::atomic<int>& kept, int* value) {
    if (!value) return done(CUDA_ERROR_INVALID_VALUE);
    *value = kept;
    return done(begin());
}

}  // namespace

RUNTIME Error cudaDeviceSetCacheConfig(int wanted) { return wish(cache_config, wanted, CU_FUNC_CACHE_PREFER_EQUAL); }
RUNTIME Error cudaDeviceGetCacheConfig(int* value) { return wished(cache_config, value); }
RUNTIME Error cudaThreadSetCacheConfig(int wanted) { return cudaDeviceSetCacheConfig(wanted); }
RUNTIME Error cudaThreadGetCacheConfig(int* value) { return cudaDeviceGetCacheConfig(value); }
RUNTIME Error cudaDeviceSetSharedMemConfig(int wanted) { return wish(bank_config, wanted, 2); }
RUNTIME Error cudaDeviceGetSharedMemConfig(int* value) { return wished(bank_config, value); }
RUNTIME Error cudaFuncSetSharedMemConfig(const void*, int) { return 0; }
