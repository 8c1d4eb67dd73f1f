// CUDA's arrays, and objects: see arrays.hpp.
#include "arrays.hpp"

#include "calls.hpp"
#include "capture.hpp"
#include "watch.hpp"

#include <algorithm>

namespace sim {

HandleTable<Array>& arrays() {
    static auto& table = *new HandleTable<Array>(0x3a00000000ull);
    return table;
}
HandleTable<Mipmap>& mipmaps() {
    static auto& table = *new HandleTable<Mipmap>(0x3b00000000ull);
    return table;
}
HandleTable<Object>& textures() {
    static auto& table = *new HandleTable<Object>(0x3c00000000ull);
    return table;
}
HandleTable<Object>& surfaces() {
    static auto& table = *new HandleTable<Object>(0x3d00000000ull);
    return table;
}

namespace {

using ArrayShape = CUDA_ARRAY3D_DESCRIPTOR;

constexpr unsigned kLayered = CUDA_ARRAY3D_LAYERED, kCubemap = CUDA_ARRAY3D_CUBEMAP;
constexpr unsigned kNotSimulated = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
constexpr unsigned kFlags = kLayered | kCubemap | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_TEXTURE_GATHER |
                            CUDA_ARRAY3D_DEPTH_TEXTURE | CUDA_ARRAY3D_COLOR_ATTACHMENT | kNotSimulated;

// The bytes of a channel.
CUresult width_of(CUarray_format format, size_t* bytes) {
    switch (format) {
        case CU_AD_FORMAT_UNSIGNED_INT8:
        case CU_AD_FORMAT_SIGNED_INT8: *bytes = 1; return CUDA_SUCCESS;
        case CU_AD_FORMAT_UNSIGNED_INT16:
        case CU_AD_FORMAT_SIGNED_INT16:
        case CU_AD_FORMAT_HALF: *bytes = 2; return CUDA_SUCCESS;
        case CU_AD_FORMAT_UNSIGNED_INT32:
        case CU_AD_FORMAT_SIGNED_INT32:
        case CU_AD_FORMAT_FLOAT: *bytes = 4; return CUDA_SUCCESS;
        default: break;
    }
    if (unsigned(format) < CU_AD_FORMAT_BC1_UNORM) return CUDA_ERROR_INVALID_VALUE;
    log_line("%s: arrays of format %d are not simulated", this_thread().call, int(format));
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult size_of_element(CUarray_format format, unsigned channels, size_t* bytes) {
    REFUSE_IF(width_of(format, bytes));
    if (channels != 1 && channels != 2 && channels != 4) return CUDA_ERROR_INVALID_VALUE;
    *bytes *= channels;
    return CUDA_SUCCESS;
}

// As on an H100: CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE…
bool fits(const ArrayShape& w) {
    if (w.Flags & kLayered) return w.Width <= 32768 && w.Height <= 32768 && w.Depth <= 2048;
    if (w.Depth) return w.Width <= 16384 && w.Height <= 16384 && w.Depth <= 16384;
    return w.Width <= 131072 && w.Height <= 65536;
}

CUresult check_shape(const ArrayShape& w) {
    if (!w.Width || (w.Flags & ~kFlags) || !fits(w)) return CUDA_ERROR_INVALID_VALUE;
    bool layered = w.Flags & kLayered, cube = w.Flags & kCubemap;
    if (layered ? !w.Depth : w.Depth && !w.Height) return CUDA_ERROR_INVALID_VALUE;
    if (cube && (w.Width != w.Height || (layered ? w.Depth % 6 != 0 : w.Depth != 6))) return CUDA_ERROR_INVALID_VALUE;
    if ((w.Flags & CUDA_ARRAY3D_TEXTURE_GATHER) && (!w.Height || w.Depth)) return CUDA_ERROR_INVALID_VALUE;
    if (!(w.Flags & kNotSimulated)) return CUDA_SUCCESS;
    log_line("%s: sparse arrays, and those that are mapped later, are not simulated", this_thread().call);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult describe(const ArrayShape& wanted, Array* made) {
    made->descriptor = wanted;
    REFUSE_IF(size_of_element(wanted.Format, wanted.NumChannels, &made->element));
    return check_shape(wanted);
}

CUresult allocate(Lock& lock, u64* address, u64 bytes) {
    Context* context;
    REFUSE_IF(current_context(&context));
    REFUSE_IF(check_unsafe_call());
    return allocate_now(lock, address, bytes, context);
}

void free_memory(u64 address) {
    host_may_learn(driver().engine.queued());
    free_at_once(address);
}

void wait_for_device(Lock& lock, u64 address) {
    const Block* block = find_block(address);
    if (!block) return;
    const int device = block->device;  // another thread may free the block meanwhile
    for (std::size_t i = 0; i < driver().streams.size(); i++) {
        Stream* stream = driver().streams[i];
        bool is_pending = !stream->reached(stream->queued);
        if (is_pending && stream->context->device == device) run_until(lock, stream, stream->queued);
    }
}

bool is_gone(u64 address) {
    const Block* block = find_block(address);
    return !block || !block->live;
}

void forget(Mipmap* mipmap) {
    for (Array* level : mipmap->levels) {
        arrays().remove(level->handle);
        delete level;
    }
    mipmaps().remove(mipmap->handle);
    delete mipmap;
}

}  // namespace

CUresult make_array(Lock& lock, CUarray* handle, const ArrayShape& wanted) {
    auto made = std::make_unique<Array>();
    REFUSE_IF(describe(wanted, made.get()));
    REFUSE_IF(allocate(lock, &made->address, made->bytes()));
    made->handle = arrays().add(made.get());
    *handle = reinterpret_cast<CUarray>(made.release()->handle);
    return CUDA_SUCCESS;
}

CUresult make_mipmap(Lock& lock, CUmipmappedArray* handle, const ArrayShape& wanted, unsigned count) {
    Array level;
    REFUSE_IF(describe(wanted, &level));
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    bool layered = wanted.Flags & kLayered, is_flat = layered || (wanted.Flags & kCubemap);
    auto made = std::make_unique<Mipmap>();
    std::vector<Array> levels;
    u64 bytes = 0;
    for (;;) {
        level.address = bytes;
        level.is_level = true;
        levels.push_back(level);
        bytes += (level.bytes() + 511) / 512 * 512;
        auto& size = level.descriptor;
        size_t depth = is_flat ? 1 : size.Depth;
        if (levels.size() == count || std::max({size.Width, size.Height, depth}) <= 1) break;
        size.Width = std::max<size_t>(size.Width / 2, 1);
        if (size.Height) size.Height = std::max<size_t>(size.Height / 2, 1);
        if (!is_flat && size.Depth) size.Depth = std::max<size_t>(size.Depth / 2, 1);
    }
    REFUSE_IF(allocate(lock, &made->address, bytes));
    for (Array& one : levels) {
        one.address += made->address;
        made->levels.push_back(new Array(one));
        made->levels.back()->handle = arrays().add(made->levels.back());
    }
    made->handle = mipmaps().add(made.get());
    *handle = reinterpret_cast<CUmipmappedArray>(made.release()->handle);
    return CUDA_SUCCESS;
}

CUresult destroy_array(Lock& lock, CUarray handle) {
    auto found = [&] {
        Array* array = arrays().get(handle);
        return array && !array->is_level ? array : nullptr;
    };
    if (!found()) return CUDA_ERROR_INVALID_HANDLE;
    REFUSE_IF(check_unsafe_call());
    wait_for_device(lock, found()->address);
    Array* array = found();  // another thread may have destroyed it meanwhile
    if (!array) return CUDA_ERROR_INVALID_HANDLE;
    free_memory(array->address);
    arrays().remove(array->handle);
    delete array;
    return CUDA_SUCCESS;
}

CUresult destroy_mipmap(Lock& lock, CUmipmappedArray handle) {
    if (!mipmaps().get(handle)) return CUDA_ERROR_INVALID_HANDLE;
    REFUSE_IF(check_unsafe_call());
    wait_for_device(lock, mipmaps().get(handle)->address);
    Mipmap* mipmap = mipmaps().get(handle);
    if (!mipmap) return CUDA_ERROR_INVALID_HANDLE;
    free_memory(mipmap->address);
    forget(mipmap);
    return CUDA_SUCCESS;
}

void forget_arrays() {
    mipmaps().each([](Mipmap* mipmap, u64) {
        if (is_gone(mipmap->address)) forget(mipmap);
    });
    arrays().each([](Array* array, u64 handle) {
        if (!is_gone(array->address)) return;
        arrays().remove(handle);
        delete array;
    });
}

CUresult side_of_array(CUarray handle, const InArray& from, size_t width, size_t rows, size_t planes, Side* side) {
    const Array* array = arrays().get(handle);
    auto inside = [](size_t begin, size_t size, size_t all) { return begin <= all && size <= all - begin; };
    if (!array || !inside(from.x, width, array->width()) || !inside(from.y, rows, array->rows()) ||
        !inside(from.z, planes, array->planes()))
        return CUDA_ERROR_INVALID_VALUE;
    size_t pitch = array->width(), plane = pitch * array->rows();
    *side = {array->address + from.z * plane + from.y * pitch + from.x, true, width, rows, pitch, planes, plane};
    return CUDA_SUCCESS;
}

// -- objects ----------------------------------------------------------------------------------------------------------

const Object* find_object(u64 word) {
    if (const Object* texture = textures().get(word)) return texture;
    return surfaces().get(word);
}

namespace {

constexpr u64 kAlignment = 512, kPitchAlignment = 32;  // CU_DEVICE_ATTRIBUTE_TEXTURE_…ALIGNMENT
constexpr size_t kMostLinear = size_t(1) << 28;  // elements

CUresult memory_of_linear(const CUDA_RESOURCE_DESC& resource, u64* address) {
    auto& given = resource.res.linear;
    size_t element;
    REFUSE_IF(size_of_element(given.format, given.numChannels, &element));
    if (given.devPtr % kAlignment || !given.sizeInBytes || given.sizeInBytes / element > kMostLinear ||
        !on_device(given.devPtr, given.sizeInBytes))
        return CUDA_ERROR_INVALID_VALUE;
    *address = given.devPtr;
    return CUDA_SUCCESS;
}

CUresult memory_of_rows(const CUDA_RESOURCE_DESC& resource, u64* address) {
    auto& given = resource.res.pitch2D;
    size_t element;
    REFUSE_IF(size_of_element(given.format, given.numChannels, &element));
    bool is_wrong = !given.width || !given.height || given.width > 131072 || given.height > 65536 ||
                    given.pitchInBytes < given.width * element || given.pitchInBytes > 2147483647;
    if (is_wrong || given.devPtr % kAlignment || given.pitchInBytes % kPitchAlignment ||
        !on_device(given.devPtr, (given.height - 1) * given.pitchInBytes + given.width * element))
        return CUDA_ERROR_INVALID_VALUE;
    *address = given.devPtr;
    return CUDA_SUCCESS;
}

CUresult memory_of(const CUDA_RESOURCE_DESC& resource, bool is_surface, u64* address) {
    if (resource.resType == CU_RESOURCE_TYPE_ARRAY) {
        const Array* array = arrays().get(resource.res.array.hArray);
        if (!array || (is_surface && !(array->descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST)))
            return CUDA_ERROR_INVALID_VALUE;
        *address = array->address;
        return CUDA_SUCCESS;
    }
    if (is_surface) return CUDA_ERROR_INVALID_VALUE;
    if (resource.resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
        const Mipmap* mipmap = mipmaps().get(resource.res.mipmap.hMipmappedArray);
        if (!mipmap) return CUDA_ERROR_INVALID_VALUE;
        *address = mipmap->address;
        return CUDA_SUCCESS;
    }
    if (resource.resType == CU_RESOURCE_TYPE_LINEAR) return memory_of_linear(resource, address);
    return resource.resType == CU_RESOURCE_TYPE_PITCH2D ? memory_of_rows(resource, address) : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult make_object(unsigned long long* handle, bool is_surface, const CUDA_RESOURCE_DESC* resource,
                     const CUDA_TEXTURE_DESC* texture, const CUDA_RESOURCE_VIEW_DESC* view) {
    Context* context;
    if (!handle || !resource || resource->flags || (!is_surface && !texture)) return CUDA_ERROR_INVALID_VALUE;
    REFUSE_IF(current_context(&context));
    auto made = std::make_unique<Object>();
    REFUSE_IF(memory_of(*resource, is_surface, &made->address));
    bool is_array =
        resource->resType == CU_RESOURCE_TYPE_ARRAY || resource->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    if (view && !is_array) return CUDA_ERROR_INVALID_VALUE;
    made->is_surface = is_surface;
    made->resource = *resource;
    if (texture) made->texture = *texture;
    if (view) made->view = *view;
    made->has_view = view != nullptr;
    *handle = (is_surface ? surfaces() : textures()).add(made.release());
    return CUDA_SUCCESS;
}

}  // namespace sim
