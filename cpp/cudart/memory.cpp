// Allocations, copies, fills.
#include "copies.hpp"

using namespace cudart;

RUNTIME Error cudaMalloc(CUdeviceptr* address, size_t bytes) {
    *address = 0;
    if (!bytes) return 0;
    DRIVER(cuMemAlloc_v2(address, bytes));
}
RUNTIME Error cudaFree(CUdeviceptr address) { DRIVER(address ? cuMemFree_v2(address) : CUDA_SUCCESS); }
RUNTIME Error cudaMallocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
    DRIVER(cuMemAllocAsync(address, bytes, stream));
}
RUNTIME Error cudaMallocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
    DRIVER(cuMemAllocFromPoolAsync(address, bytes, pool, stream));
}
RUNTIME Error cudaFreeAsync(CUdeviceptr address, CUstream stream) { DRIVER(cuMemFreeAsync(address, stream)); }
RUNTIME Error cudaMallocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
    DRIVER(cuMemAllocManaged(address, bytes, flags));
}
#if CUDART_VERSION < 13000
RUNTIME Error cudaMemPrefetchAsync(CUdeviceptr address, size_t bytes, int device, CUstream stream) {
    DRIVER(cuMemPrefetchAsync(address, bytes, device, stream));
}
RUNTIME Error cudaMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation place, unsigned flags,
                                      CUstream stream) {
    DRIVER(cuMemPrefetchAsync_v2(address, bytes, place, flags, stream));
}
RUNTIME Error cudaMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, int device) {
    DRIVER(cuMemAdvise(address, bytes, advice, device));
}
RUNTIME Error cudaMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation place) {
    DRIVER(cuMemAdvise_v2(address, bytes, advice, place));
}
#else
RUNTIME Error cudaMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUmemLocation place, unsigned flags,
                                   CUstream stream) {
    DRIVER(cuMemPrefetchAsync_v2(address, bytes, place, flags, stream));
}
RUNTIME Error cudaMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation place) {
    DRIVER(cuMemAdvise_v2(address, bytes, advice, place));
}
#endif
RUNTIME Error cudaMemRangeGetAttribute(void* data, size_t size, CUmem_range_attribute attribute, CUdeviceptr address,
                                       size_t bytes) {
    DRIVER(cuMemRangeGetAttribute(data, size, attribute, address, bytes));
}
RUNTIME Error cudaMemRangeGetAttributes(void** data, size_t* sizes, CUmem_range_attribute* attributes, size_t count,
                                        CUdeviceptr address, size_t bytes) {
    DRIVER(cuMemRangeGetAttributes(data, sizes, attributes, count, address, bytes));
}
RUNTIME Error cudaStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t bytes, unsigned flags) {
    DRIVER(cuStreamAttachMemAsync(stream, address, bytes, flags));
}
RUNTIME Error cudaMallocHost(void** address, size_t bytes) { DRIVER(cuMemHostAlloc(address, bytes, 0)); }
RUNTIME Error cudaHostAlloc(void** address, size_t bytes, unsigned flags) {
    DRIVER(cuMemHostAlloc(address, bytes, flags));
}
RUNTIME Error cudaFreeHost(void* address) { DRIVER(address ? cuMemFreeHost(address) : CUDA_SUCCESS); }
RUNTIME Error cudaHostRegister(void* address, size_t bytes, unsigned flags) {
    DRIVER(cuMemHostRegister_v2(address, bytes, flags));
}
RUNTIME Error cudaHostUnregister(void* address) { DRIVER(cuMemHostUnregister(address)); }
RUNTIME Error cudaHostGetDevicePointer(CUdeviceptr* address, void* host, unsigned flags) {
    DRIVER(cuMemHostGetDevicePointer_v2(address, host, flags));
}
RUNTIME Error cudaMemGetInfo(size_t* free, size_t* total) { DRIVER(cuMemGetInfo_v2(free, total)); }

namespace {

// cudaPointerAttributes.
struct Attributes {
    int type;  // 0: not registered, 1: host, 2: device, 3: managed
    int device;
    CUdeviceptr device_pointer;
    void* host_pointer;  // in CUDA 13 more follows, which is reserved
};

CUresult copy(void* to, const void* from, size_t bytes, int way) {
    switch (way) {
        case HostToDevice: return cuMemcpyHtoD_v2(number(to), from, bytes);
        case DeviceToHost: return cuMemcpyDtoH_v2(to, number(from), bytes);
        case DeviceToDevice: return cuMemcpyDtoD_v2(number(to), number(from), bytes);
        default: return cuMemcpy(number(to), number(from), bytes);
    }
}

CUresult copy_async(void* to, const void* from, size_t bytes, int way, CUstream stream) {
    switch (way) {
        case HostToDevice: return cuMemcpyHtoDAsync_v2(number(to), from, bytes, stream);
        case DeviceToHost: return cuMemcpyDtoHAsync_v2(to, number(from), bytes, stream);
        case DeviceToDevice: return cuMemcpyDtoDAsync_v2(number(to), number(from), bytes, stream);
        default: return cuMemcpyAsync(number(to), number(from), bytes, stream);
    }
}

CUDA_MEMCPY2D rows_of(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                      int way) {
    CUDA_MEMCPY2D rows = {};
    rows.dstMemoryType = type_of(way, DeviceToHost);
    rows.srcMemoryType = type_of(way, HostToDevice);
    rows.dstHost = to;
    rows.dstDevice = number(to);
    rows.srcHost = from;
    rows.srcDevice = number(from);
    rows.dstPitch = to_pitch;
    rows.srcPitch = from_pitch;
    rows.WidthInBytes = width;
    rows.Height = height;
    return rows;
}

}  // namespace

RUNTIME Error cudaPointerGetAttributes(Attributes* attributes, const void* address) {
    if (CUresult refused = begin()) return done(refused);
    *attributes = {0, -1, 0, nullptr};
    attributes->host_pointer = const_cast<void*>(address);
    unsigned type = 0, managed = 0;
    if (cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, number(address))) return 0;
    if (cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, number(address))) managed = 0;
    attributes->type = managed ? 3 : int(type);
    attributes->device_pointer = number(address);
    if (type == CU_MEMORYTYPE_DEVICE && !managed) attributes->host_pointer = nullptr;
    return done(cuPointerGetAttribute(&attributes->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, number(address)));
}

RUNTIME Error cudaMemcpy(void* to, const void* from, size_t bytes, int way) { DRIVER(copy(to, from, bytes, way)); }
RUNTIME Error cudaMemcpyAsync(void* to, const void* from, size_t bytes, int way, CUstream stream) {
    DRIVER(copy_async(to, from, bytes, way, stream));
}
RUNTIME Error cudaMemcpyPeerAsync(CUdeviceptr to, int device, CUdeviceptr from, int source, size_t bytes,
                                  CUstream stream) {
    CUcontext here, there;
    if (CUresult refused = retain_both(device, &here, source, &there)) return done(refused);
    DRIVER(cuMemcpyPeerAsync(to, here, from, there, bytes, stream));
}
RUNTIME Error cudaMemcpyPeer(CUdeviceptr to, int device, CUdeviceptr from, int source, size_t bytes) {
    CUcontext here, there;
    if (CUresult refused = retain_both(device, &here, source, &there)) return done(refused);
    DRIVER(cuMemcpyPeer(to, here, from, there, bytes));
}
RUNTIME Error cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                           int way) {
    CUDA_MEMCPY2D rows = rows_of(to, to_pitch, from, from_pitch, width, height, way);
    DRIVER(cuMemcpy2DUnaligned_v2(&rows));
}
RUNTIME Error cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                size_t height, int way, CUstream stream) {
    CUDA_MEMCPY2D rows = rows_of(to, to_pitch, from, from_pitch, width, height, way);
    DRIVER(cuMemcpy2DAsync_v2(&rows, stream));
}
#if CUDART_VERSION < 13000
RUNTIME Error cudaMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                                   CUmemcpyAttributes* attributes, size_t* firsts, size_t attribute_count,
                                   size_t* failed, CUstream stream) {
    DRIVER(cuMemcpyBatchAsync(to, from, sizes, count, attributes, firsts, attribute_count, failed, stream));
}
#else
RUNTIME Error cudaMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                                   CUmemcpyAttributes* attributes, size_t* firsts, size_t attribute_count,
                                   CUstream stream) {
    DRIVER(cuMemcpyBatchAsync(to, from, sizes, count, attributes, firsts, attribute_count, nullptr, stream));
}
#endif
RUNTIME Error cudaMemset(CUdeviceptr address, int value, size_t bytes) {
    DRIVER(cuMemsetD8_v2(address, static_cast<unsigned char>(value), bytes));
}
RUNTIME Error cudaMemsetAsync(CUdeviceptr address, int value, size_t bytes, CUstream stream) {
    DRIVER(cuMemsetD8Async(address, static_cast<unsigned char>(value), bytes, stream));
}
