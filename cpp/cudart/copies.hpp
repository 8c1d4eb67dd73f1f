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

struct Pitched {  // cudaPitchedPtr
    void* pointer;
    size_t pitch, width, height;
};
struct Extent {  // cudaExtent
    size_t width, height, depth;
};
struct Place {  // cudaPos
    size_t x, y, z;
};
struct CopyParameters {  // cudaMemcpy3DParms
    void* source_array;
    Place source_place;
    Pitched source;
    void* target_array;
    Place target_place;
    Pitched target;
    Extent extent;
    int way;
};
template <class Made, class Parameters>
Made planes_of(const Parameters& p, int way) {
    Made made = {};
    made.srcMemoryType = type_of(way, HostToDevice);
    made.srcHost = p.source.pointer;
    made.srcDevice = number(p.source.pointer);
    made.srcXInBytes = p.source_place.x;
    made.srcY = p.source_place.y;
    made.srcZ = p.source_place.z;
    made.srcPitch = p.source.pitch;
    made.srcHeight = p.source.height;
    made.dstMemoryType = type_of(way, DeviceToHost);
    made.dstHost = p.target.pointer;
    made.dstDevice = number(p.target.pointer);
    made.dstXInBytes = p.target_place.x;
    made.dstY = p.target_place.y;
    made.dstZ = p.target_place.z;
    made.dstPitch = p.target.pitch;
    made.dstHeight = p.target.height;
    made.WidthInBytes = p.extent.width;
    made.Height = p.extent.height;
    made.Depth = p.extent.depth;
    return made;
}

}  // namespace cudart
