// CUDA's arrays, and the objects of textures and surfaces.
//
// An array is a block of device memory whose address no program learns: rows, planes and layers lie there without gaps,
// and a copy's side is in the array as it is in any other memory. All levels of a mipmapped array are one block.
//
// An object stands for memory: a kernel that takes it as a parameter has a pointer to the beginning of that memory.
#pragma once

#include "copies.hpp"

namespace sim {

struct Array {
    u64 handle = 0;
    CUDA_ARRAY3D_DESCRIPTOR descriptor{};
    u64 address = 0;
    size_t element = 0;  // bytes
    bool is_level = false;  // of a mipmapped array, which owns it

    size_t width() const { return descriptor.Width * element; }  // in bytes, like the next two
    size_t rows() const { return descriptor.Height ? descriptor.Height : 1; }
    size_t planes() const { return descriptor.Depth ? descriptor.Depth : 1; }
    size_t bytes() const { return width() * rows() * planes(); }
};

struct Mipmap {
    u64 handle = 0;
    u64 address = 0;
    std::vector<Array*> levels;
};

HandleTable<Array>& arrays();
HandleTable<Mipmap>& mipmaps();

CUresult make_array(Lock& lock, CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR& wanted);
CUresult make_mipmap(Lock& lock, CUmipmappedArray* handle, const CUDA_ARRAY3D_DESCRIPTOR& wanted, unsigned levels);
// Nothing says that a destruction waits for the work that is queued, nor that it does not: here it does, as with NVIDIA's
// drivers, and the host does not know that for certain.
CUresult destroy_array(Lock& lock, CUarray handle);
CUresult destroy_mipmap(Lock& lock, CUmipmappedArray handle);
void forget_arrays();  // whose memory is gone

// `width` bytes of `rows` rows of `planes` planes, from this place in the array on.
struct InArray {
    size_t x, y, z;
};
CUresult side_of_array(CUarray handle, const InArray& from, size_t width, size_t rows, size_t planes, Side* side);

struct Object {
    bool is_surface = false;
    CUDA_RESOURCE_DESC resource{};
    CUDA_TEXTURE_DESC texture{};
    CUDA_RESOURCE_VIEW_DESC view{};
    bool has_view = false;
    u64 address = 0;
};

HandleTable<Object>& textures();
HandleTable<Object>& surfaces();
const Object* find_object(u64 word);  // nullptr: it is none

CUresult make_object(unsigned long long* handle, bool is_surface, const CUDA_RESOURCE_DESC* resource,
                     const CUDA_TEXTURE_DESC* texture, const CUDA_RESOURCE_VIEW_DESC* view);

}  // namespace sim
