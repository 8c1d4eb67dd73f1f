// What copies of the runtime have in common.
#pragma once

#include "runtime.hpp"

namespace cudart {

// cudaMemcpyKind. From host to host, and where the kind is not said, the driver looks where the addresses are.
enum Way { HostToDevice = 1, DeviceToHost, DeviceToDevice, Default };

inline CUdeviceptr number(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

// Of the side that one way has on the host.
inline CUmemorytype type_of(int way, Way host_side) {
    if (way == host_side) return CU_MEMORYTYPE_HOST;
    return way == HostToDevice || way == DeviceToHost || way == DeviceToDevice ? CU_MEMORYTYPE_DEVICE
                                                                               : CU_MEMORYTYPE_UNIFIED;
}

inline CUresult retain_both(int device, CUcontext* here, int source, CUcontext* there) {
    CUresult refused = retain(device, here);
    return refused ? refused : retain(source, there);
}

}  // namespace cudart
