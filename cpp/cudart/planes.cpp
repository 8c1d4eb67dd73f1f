// Memory in two and three dimensions: its allocation, its copies and fills.
#include "copies.hpp"

using namespace cudart;

namespace {

struct PeerCopyParameters {  // cudaMemcpy3DPeerParms
    CUarray source_array;
    Place source_place;
    Pitched source;
    int source_device;
    CUarray target_array;
    Place target_place;
    Pitched target;
    int target_device;
    Extent extent;
};

template <class Call>
Error copy_planes(const CopyParameters* p, Call&& call) {
    if (!p) return done(CUDA_ERROR_INVALID_VALUE);
    CUDA_MEMCPY3D planes;
    if (CUresult refused = begin()) return done(refused);
    if (CUresult refused = planes_of(*p, p->way, &planes)) return done(refused);
    DRIVER(call(&planes));
}

template <class Call>
Error copy_planes_of_peers(const PeerCopyParameters* p, Call&& call) {
    if (!p) return done(CUDA_ERROR_INVALID_VALUE);
    CUDA_MEMCPY3D_PEER planes;
    if (CUresult refused = begin()) return done(refused);
    if (CUresult refused = planes_of(*p, Default, &planes)) return done(refused);
    CUresult refused = retain_both(p->target_device, &planes.dstContext, p->source_device, &planes.srcContext);
    if (refused) return done(refused);
    DRIVER(call(&planes));
}

// A fill of each plane.
template <class Call>
CUresult each_plane(const Pitched& target, const Extent& extent, Call&& call) {
    for (size_t z = 0; z < extent.depth; z++)
        if (CUresult refused = call(number(target.pointer) + z * target.pitch * target.height)) return refused;
    return CUDA_SUCCESS;
}

}  // namespace

// Of nothing: no memory.
RUNTIME Error cudaMallocPitch(CUdeviceptr* address, size_t* pitch, size_t width, size_t height) {
    *address = *pitch = 0;
    DRIVER(width && height ? cuMemAllocPitch_v2(address, pitch, width, height, 4) : CUDA_SUCCESS);
}
RUNTIME Error cudaMalloc3D(Pitched* made, Extent extent) {
    CUdeviceptr address = 0;
    Error refused = cudaMallocPitch(&address, &made->pitch, extent.width, extent.height * extent.depth);
    made->pointer = reinterpret_cast<void*>(address);
    made->width = extent.width;
    made->height = extent.height;
    return refused;
}

RUNTIME Error cudaMemcpy3D(const CopyParameters* p) { return copy_planes(p, cuMemcpy3D_v2); }
RUNTIME Error cudaMemcpy3DAsync(const CopyParameters* p, CUstream stream) {
    return copy_planes(p, [&](auto* planes) { return cuMemcpy3DAsync_v2(planes, stream); });
}
RUNTIME Error cudaMemcpy3DPeer(const PeerCopyParameters* p) { return copy_planes_of_peers(p, cuMemcpy3DPeer); }
RUNTIME Error cudaMemcpy3DPeerAsync(const PeerCopyParameters* p, CUstream stream) {
    return copy_planes_of_peers(p, [&](auto* planes) { return cuMemcpy3DPeerAsync(planes, stream); });
}

RUNTIME Error cudaMemset2D(CUdeviceptr address, size_t pitch, int value, size_t width, size_t height) {
    DRIVER(cuMemsetD2D8_v2(address, pitch, static_cast<unsigned char>(value), width, height));
}
RUNTIME Error cudaMemset2DAsync(CUdeviceptr address, size_t pitch, int value, size_t width, size_t height,
                                CUstream stream) {
    DRIVER(cuMemsetD2D8Async(address, pitch, static_cast<unsigned char>(value), width, height, stream));
}
RUNTIME Error cudaMemset3D(Pitched target, int value, Extent extent) {
    DRIVER(each_plane(target, extent, [&](CUdeviceptr plane) {
        return cuMemsetD2D8_v2(plane, target.pitch, static_cast<unsigned char>(value), extent.width, extent.height);
    }));
}
RUNTIME Error cudaMemset3DAsync(Pitched target, int value, Extent extent, CUstream stream) {
    DRIVER(each_plane(target, extent, [&](CUdeviceptr plane) {
        return cuMemsetD2D8Async(plane, target.pitch, static_cast<unsigned char>(value), extent.width, extent.height,
                                 stream);
    }));
}
