// Entry points: CUDA's arrays, their copies by bytes, and objects of textures and surfaces. api_transfer.cpp has the
// copies of rows and planes. See arrays.hpp.
#include "arrays.hpp"
#include "calls.hpp"
#include "capture.hpp"

using namespace sim;

namespace {

CUDA_ARRAY3D_DESCRIPTOR flat(const CUDA_ARRAY_DESCRIPTOR& given) {
    CUDA_ARRAY3D_DESCRIPTOR made = {};
    made.Width = given.Width;
    made.Height = given.Height;
    made.Format = given.Format;
    made.NumChannels = given.NumChannels;
    return made;
}

// Bytes of an array, in the order of its rows.
CUresult bytes_of(CUarray handle, size_t offset, size_t bytes, Side* side) {
    const Array* array = arrays().get(handle);
    if (!array || offset > array->bytes() || bytes > array->bytes() - offset) return CUDA_ERROR_INVALID_VALUE;
    *side = {array->address + offset, true, bytes};
    return CUDA_SUCCESS;
}

CUresult to_array(Lock& lock, CUarray target, size_t offset, u64 source, bool on_device, size_t bytes, CUstream stream,
                  Form form) {
    Side to;
    REFUSE_IF(bytes_of(target, offset, bytes, &to));
    return copy(lock, to, Side{source, on_device, bytes}, stream, form);
}

CUresult from_array(Lock& lock, u64 target, bool on_device, CUarray source, size_t offset, size_t bytes,
                    CUstream stream, Form form) {
    Side from;
    REFUSE_IF(bytes_of(source, offset, bytes, &from));
    return copy(lock, Side{target, on_device, bytes}, from, stream, form);
}

u64 address_on_host(const void* pointer) { return reinterpret_cast<u64>(pointer); }

template <class Call>
CUresult with_array(CUarray handle, const void* out, Call&& call) {
    const Array* array = arrays().get(handle);
    if (!array) return CUDA_ERROR_INVALID_HANDLE;
    return out ? call(*array) : CUDA_ERROR_INVALID_VALUE;
}

constexpr size_t kArrayAlignment = 512;

void answer_size(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, u64 bytes) {
    *out = {};
    out->size = bytes;
    out->alignment = kArrayAlignment;
}

}  // namespace

EXPORT CUresult cuArray3DCreate_v2(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR* wanted) {
    return api_call(CALL("cuArray3DCreate"), [&](Lock& lock) -> CUresult {
        if (!handle || !wanted) return CUDA_ERROR_INVALID_VALUE;
        return make_array(lock, handle, *wanted);
    });
}

EXPORT CUresult cuArrayCreate_v2(CUarray* handle, const CUDA_ARRAY_DESCRIPTOR* wanted) {
    return api_call(CALL("cuArrayCreate"), [&](Lock& lock) -> CUresult {
        if (!handle || !wanted) return CUDA_ERROR_INVALID_VALUE;
        return make_array(lock, handle, flat(*wanted));
    });
}

EXPORT CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* out, CUarray handle) {
    return api_call(CALL("cuArray3DGetDescriptor"), [&](Lock&) {
        return with_array(handle, out, [&](const Array& array) { return answer(out, array.descriptor); });
    });
}

EXPORT CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* out, CUarray handle) {
    return api_call(CALL("cuArrayGetDescriptor"), [&](Lock&) {
        return with_array(handle, out, [&](const Array& array) {
            const auto& known = array.descriptor;
            return answer(out, CUDA_ARRAY_DESCRIPTOR{known.Width, known.Height, known.Format, known.NumChannels});
        });
    });
}

EXPORT CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, CUarray handle, CUdevice device) {
    return api_call(CALL("cuArrayGetMemoryRequirements"), [&](Lock&) -> CUresult {
        REFUSE_IF(check_device(device));
        return with_array(handle, out, [&](const Array& array) {
            answer_size(out, array.bytes());
            return CUDA_SUCCESS;
        });
    });
}

EXPORT CUresult cuArrayDestroy(CUarray handle) {
    return api_call(CALL("cuArrayDestroy"), [&](Lock& lock) { return destroy_array(lock, handle); });
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray* handle, const CUDA_ARRAY3D_DESCRIPTOR* wanted,
                                       unsigned levels) {
    return api_call(CALL("cuMipmappedArrayCreate"), [&](Lock& lock) -> CUresult {
        if (!handle || !wanted) return CUDA_ERROR_INVALID_VALUE;
        return make_mipmap(lock, handle, *wanted, levels);
    });
}

EXPORT CUresult cuMipmappedArrayGetLevel(CUarray* out, CUmipmappedArray handle, unsigned level) {
    return api_call(CALL("cuMipmappedArrayGetLevel"), [&](Lock&) -> CUresult {
        const Mipmap* mipmap = mipmaps().get(handle);
        if (!mipmap) return CUDA_ERROR_INVALID_HANDLE;
        if (!out || level >= mipmap->levels.size()) return CUDA_ERROR_INVALID_VALUE;
        *out = reinterpret_cast<CUarray>(mipmap->levels[level]->handle);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, CUmipmappedArray handle,
                                                      CUdevice device) {
    return api_call(CALL("cuMipmappedArrayGetMemoryRequirements"), [&](Lock&) -> CUresult {
        const Mipmap* mipmap = mipmaps().get(handle);
        REFUSE_IF(check_device(device));
        if (!mipmap) return CUDA_ERROR_INVALID_HANDLE;
        if (!out) return CUDA_ERROR_INVALID_VALUE;
        answer_size(out, find_block(mipmap->address)->size);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle) {
    return api_call(CALL("cuMipmappedArrayDestroy"), [&](Lock& lock) { return destroy_mipmap(lock, handle); });
}

// name, the documentation's name, parameters, the function, then its arguments.
#define ARRAY_COPY(symbol, base, parameters, function, ...) \
    EXPORT CUresult symbol parameters { \
        return api_call(CALL(base), [&](Lock& lock) { return function(lock, __VA_ARGS__); }); \
    }
ARRAY_COPY(cuMemcpyHtoAAsync_v2, "cuMemcpyHtoAAsync", (CUarray d, size_t at, const void* s, size_t n, CUstream h),
           to_array, d, at, address_on_host(s), false, n, h, Form::Async)
ARRAY_COPY(cuMemcpyAtoHAsync_v2, "cuMemcpyAtoHAsync", (void* d, CUarray s, size_t at, size_t n, CUstream h), from_array,
           address_on_host(d), false, s, at, n, h, Form::Async)
ARRAY_COPY(cuMemcpyHtoA_v2, "cuMemcpyHtoA", (CUarray d, size_t at, const void* s, size_t n), to_array, d, at,
           address_on_host(s), false, n, nullptr, Form::Sync)
ARRAY_COPY(cuMemcpyAtoH_v2, "cuMemcpyAtoH", (void* d, CUarray s, size_t at, size_t n), from_array, address_on_host(d),
           false, s, at, n, nullptr, Form::Sync)
ARRAY_COPY(cuMemcpyDtoA_v2, "cuMemcpyDtoA", (CUarray d, size_t at, CUdeviceptr s, size_t n), to_array, d, at, s, true,
           n, nullptr, Form::Sync)
ARRAY_COPY(cuMemcpyAtoD_v2, "cuMemcpyAtoD", (CUdeviceptr d, CUarray s, size_t at, size_t n), from_array, d, true, s, at,
           n, nullptr, Form::Sync)

EXPORT CUresult cuMemcpyAtoA_v2(CUarray target, size_t at, CUarray source, size_t from, size_t bytes) {
    return api_call(CALL("cuMemcpyAtoA"), [&](Lock& lock) -> CUresult {
        Side to;
        REFUSE_IF(bytes_of(target, at, bytes, &to));
        return from_array(lock, to.begin, true, source, from, bytes, nullptr, Form::Sync);
    });
}

// -- objects ----------------------------------------------------------------------------------------------------------

namespace {

CUresult destroy_object(HandleTable<Object>& table, u64 handle) {
    Object* object = table.get(handle);
    if (!object) return CUDA_ERROR_INVALID_VALUE;
    table.remove(handle);
    delete object;
    return CUDA_SUCCESS;
}

template <class Part>
CUresult part_of(HandleTable<Object>& table, u64 handle, Part* out, Part Object::* part) {
    const Object* object = table.get(handle);
    return object && out ? answer(out, object->*part) : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

EXPORT CUresult cuTexObjectCreate(CUtexObject* handle, const CUDA_RESOURCE_DESC* resource,
                                  const CUDA_TEXTURE_DESC* texture, const CUDA_RESOURCE_VIEW_DESC* view) {
    return api_call(CALL("cuTexObjectCreate"),
                    [&](Lock&) { return make_object(handle, false, resource, texture, view); });
}

EXPORT CUresult cuTexObjectDestroy(CUtexObject handle) {
    return api_call(CALL("cuTexObjectDestroy"), [&](Lock&) { return destroy_object(textures(), handle); });
}

EXPORT CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUtexObject handle) {
    return api_call(CALL("cuTexObjectGetResourceDesc"),
                    [&](Lock&) { return part_of(textures(), handle, out, &Object::resource); });
}

EXPORT CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* out, CUtexObject handle) {
    return api_call(CALL("cuTexObjectGetTextureDesc"),
                    [&](Lock&) { return part_of(textures(), handle, out, &Object::texture); });
}

EXPORT CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* out, CUtexObject handle) {
    return api_call(CALL("cuTexObjectGetResourceViewDesc"), [&](Lock&) -> CUresult {
        const Object* object = textures().get(handle);
        if (object && !object->has_view) return CUDA_ERROR_INVALID_VALUE;
        return part_of(textures(), handle, out, &Object::view);
    });
}

EXPORT CUresult cuSurfObjectCreate(CUsurfObject* handle, const CUDA_RESOURCE_DESC* resource) {
    return api_call(CALL("cuSurfObjectCreate"),
                    [&](Lock&) { return make_object(handle, true, resource, nullptr, nullptr); });
}

EXPORT CUresult cuSurfObjectDestroy(CUsurfObject handle) {
    return api_call(CALL("cuSurfObjectDestroy"), [&](Lock&) { return destroy_object(surfaces(), handle); });
}

EXPORT CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUsurfObject handle) {
    return api_call(CALL("cuSurfObjectGetResourceDesc"),
                    [&](Lock&) { return part_of(surfaces(), handle, out, &Object::resource); });
}
