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

struct Channels {  // cudaChannelFormatDesc: their bits
    int x, y, z, w, kind;
};
// Channels are the first ones, all of one width.
CUresult format_of(const Channels& channels, CUarray_format* format, unsigned* count);
Channels channels_of(CUarray_format format, unsigned count);
CUresult element_of(CUarray array, size_t* bytes);
CUresult rows_of(CUarray array, size_t* width, size_t* count);  // the width in bytes

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
    CUarray source_array;
    Place source_place;
    Pitched source;
    CUarray target_array;
    Place target_place;
    Pitched target;
    Extent extent;
    int way;
};
// Where a side is an array, the extent counts its elements, and so does that side's place.
template <class Made, class Parameters>
CUresult planes_of(const Parameters& p, int way, Made* planes) {
    Made& made = *planes;
    size_t to = 0, from = 0;
    CUresult refused = p.target_array ? element_of(p.target_array, &to) : CUDA_SUCCESS;
    if (!refused && p.source_array) refused = element_of(p.source_array, &from);
    if (refused || (to && from && to != from)) return CUDA_ERROR_INVALID_VALUE;
    made = {};
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
    made.WidthInBytes = p.extent.width * (to ? to : from ? from : 1);
    made.Height = p.extent.height;
    made.Depth = p.extent.depth;
    if (from) {
        made.srcMemoryType = CU_MEMORYTYPE_ARRAY;
        made.srcArray = p.source_array;
        made.srcXInBytes *= from;
    }
    if (to) {
        made.dstMemoryType = CU_MEMORYTYPE_ARRAY;
        made.dstArray = p.target_array;
        made.dstXInBytes *= to;
    }
    return CUDA_SUCCESS;
}

}  // namespace cudart
