// Objects of textures and surfaces.
#include "copies.hpp"

#include <cstring>

using namespace cudart;

namespace {

struct Resource {  // cudaResourceDesc; from CUDA 13 on `flags` follow behind the union, which is larger
    int type;
    union {
        CUarray array;
        CUmipmappedArray mipmap;
        struct {
            CUdeviceptr address;
            Channels channels;
            size_t bytes;
        } linear;
        struct {
            CUdeviceptr address;
            Channels channels;
            size_t width, height, pitch;
        } rows;
#if CUDART_VERSION >= 13000
        int reserved[32];
#endif
    };
#if CUDART_VERSION >= 13000
    unsigned flags;
#endif
};

struct Texture {  // cudaTextureDesc
    int address_mode[3], filter_mode, read_mode, srgb;
    float border[4];
    int normalized;
    unsigned anisotropy;
    int mipmap_filter;
    float bias, smallest, largest;
    int no_trilinear, seamless;
};

// What goes into cudaResourceViewDesc has the driver's numbers.
struct View {
    int format;
    size_t width, height, depth;
    unsigned first_level, last_level, first_layer, last_layer;
};

CUresult driver_resource(const Resource* given, CUDA_RESOURCE_DESC* made) {
    *made = {};
    if (!given) return CUDA_ERROR_INVALID_VALUE;
    made->resType = CUresourcetype(given->type);
    switch (made->resType) {
        case CU_RESOURCE_TYPE_ARRAY: made->res.array.hArray = given->array; return CUDA_SUCCESS;
        case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: made->res.mipmap.hMipmappedArray = given->mipmap; return CUDA_SUCCESS;
        case CU_RESOURCE_TYPE_LINEAR: {
            auto& to = made->res.linear;
            to.devPtr = given->linear.address;
            to.sizeInBytes = given->linear.bytes;
            return format_of(given->linear.channels, &to.format, &to.numChannels);
        }
        case CU_RESOURCE_TYPE_PITCH2D: {
            auto& to = made->res.pitch2D;
            to.devPtr = given->rows.address;
            to.width = given->rows.width;
            to.height = given->rows.height;
            to.pitchInBytes = given->rows.pitch;
            return format_of(given->rows.channels, &to.format, &to.numChannels);
        }
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

void runtime_resource(const CUDA_RESOURCE_DESC& known, Resource* made) {
    memset(made, 0, sizeof *made);
    made->type = known.resType;
    if (known.resType == CU_RESOURCE_TYPE_ARRAY) made->array = known.res.array.hArray;
    if (known.resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) made->mipmap = known.res.mipmap.hMipmappedArray;
    if (known.resType == CU_RESOURCE_TYPE_LINEAR) {
        auto& from = known.res.linear;
        made->linear = {from.devPtr, channels_of(from.format, from.numChannels), from.sizeInBytes};
    }
    if (known.resType == CU_RESOURCE_TYPE_PITCH2D) {
        auto& from = known.res.pitch2D;
        made->rows = {from.devPtr, channels_of(from.format, from.numChannels), from.width, from.height,
                      from.pitchInBytes};
    }
}

CUDA_TEXTURE_DESC driver_texture(const Texture& given) {
    CUDA_TEXTURE_DESC made = {};
    for (int i = 0; i < 3; i++) made.addressMode[i] = CUaddress_mode(given.address_mode[i]);
    made.filterMode = CUfilter_mode(given.filter_mode);
    made.flags = (given.read_mode ? 0 : CU_TRSF_READ_AS_INTEGER) | (given.srgb ? CU_TRSF_SRGB : 0) |
                 (given.normalized ? CU_TRSF_NORMALIZED_COORDINATES : 0) |
                 (given.no_trilinear ? CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION : 0) |
                 (given.seamless ? CU_TRSF_SEAMLESS_CUBEMAP : 0);
    made.maxAnisotropy = given.anisotropy;
    made.mipmapFilterMode = CUfilter_mode(given.mipmap_filter);
    made.mipmapLevelBias = given.bias;
    made.minMipmapLevelClamp = given.smallest;
    made.maxMipmapLevelClamp = given.largest;
    memcpy(made.borderColor, given.border, sizeof made.borderColor);
    return made;
}

Texture runtime_texture(const CUDA_TEXTURE_DESC& known) {
    Texture made = {};
    auto is_set = [&](unsigned flag) { return (known.flags & flag) != 0; };
    for (int i = 0; i < 3; i++) made.address_mode[i] = known.addressMode[i];
    made.filter_mode = known.filterMode;
    made.read_mode = !is_set(CU_TRSF_READ_AS_INTEGER);
    made.srgb = is_set(CU_TRSF_SRGB);
    memcpy(made.border, known.borderColor, sizeof made.border);
    made.normalized = is_set(CU_TRSF_NORMALIZED_COORDINATES);
    made.anisotropy = known.maxAnisotropy;
    made.mipmap_filter = known.mipmapFilterMode;
    made.bias = known.mipmapLevelBias;
    made.smallest = known.minMipmapLevelClamp;
    made.largest = known.maxMipmapLevelClamp;
    made.no_trilinear = is_set(CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION);
    made.seamless = is_set(CU_TRSF_SEAMLESS_CUBEMAP);
    return made;
}

CUDA_RESOURCE_VIEW_DESC driver_view(const View& given) {
    CUDA_RESOURCE_VIEW_DESC made = {};
    made.format = CUresourceViewFormat(given.format);
    made.width = given.width;
    made.height = given.height;
    made.depth = given.depth;
    made.firstMipmapLevel = given.first_level;
    made.lastMipmapLevel = given.last_level;
    made.firstLayer = given.first_layer;
    made.lastLayer = given.last_layer;
    return made;
}

View runtime_view(const CUDA_RESOURCE_VIEW_DESC& known) {
    return {known.format,           known.width,           known.height,     known.depth,
            known.firstMipmapLevel, known.lastMipmapLevel, known.firstLayer, known.lastLayer};
}

template <class Known, class Made, class Call, class Change>
Error described(Made* made, Call&& call, Change&& change) {
    Known known;
    if (CUresult refused = begin()) return done(refused);
    if (!made) return done(CUDA_ERROR_INVALID_VALUE);
    if (CUresult refused = call(&known)) return done(refused);
    change(known);
    return done(CUDA_SUCCESS);
}

}  // namespace

RUNTIME Error cudaCreateTextureObject(CUtexObject* made, const Resource* resource, const Texture* texture,
                                      const View* view) {
    CUDA_RESOURCE_DESC memory;
    if (CUresult refused = driver_resource(resource, &memory)) return done(refused);
    if (!texture) return done(CUDA_ERROR_INVALID_VALUE);
    CUDA_TEXTURE_DESC how = driver_texture(*texture);
    CUDA_RESOURCE_VIEW_DESC part = view ? driver_view(*view) : CUDA_RESOURCE_VIEW_DESC{};
    DRIVER(cuTexObjectCreate(made, &memory, &how, view ? &part : nullptr));
}
RUNTIME Error cudaDestroyTextureObject(CUtexObject object) {
    DRIVER(object ? cuTexObjectDestroy(object) : CUDA_SUCCESS);
}
RUNTIME Error cudaGetTextureObjectResourceDesc(Resource* made, CUtexObject object) {
    return described<CUDA_RESOURCE_DESC>(
        made, [&](auto* known) { return cuTexObjectGetResourceDesc(known, object); },
        [&](auto& known) { runtime_resource(known, made); });
}
RUNTIME Error cudaGetTextureObjectTextureDesc(Texture* made, CUtexObject object) {
    return described<CUDA_TEXTURE_DESC>(
        made, [&](auto* known) { return cuTexObjectGetTextureDesc(known, object); },
        [&](auto& known) { *made = runtime_texture(known); });
}
RUNTIME Error cudaGetTextureObjectResourceViewDesc(View* made, CUtexObject object) {
    return described<CUDA_RESOURCE_VIEW_DESC>(
        made, [&](auto* known) { return cuTexObjectGetResourceViewDesc(known, object); },
        [&](auto& known) { *made = runtime_view(known); });
}

RUNTIME Error cudaCreateSurfaceObject(CUsurfObject* made, const Resource* resource) {
    CUDA_RESOURCE_DESC memory;
    if (CUresult refused = driver_resource(resource, &memory)) return done(refused);
    DRIVER(cuSurfObjectCreate(made, &memory));
}
RUNTIME Error cudaDestroySurfaceObject(CUsurfObject object) {
    DRIVER(object ? cuSurfObjectDestroy(object) : CUDA_SUCCESS);
}
RUNTIME Error cudaGetSurfaceObjectResourceDesc(Resource* made, CUsurfObject object) {
    return described<CUDA_RESOURCE_DESC>(
        made, [&](auto* known) { return cuSurfObjectGetResourceDesc(known, object); },
        [&](auto& known) { runtime_resource(known, made); });
}
RUNTIME Error cudaDeviceGetTexture1DLinearMaxWidth(size_t* elements, const Channels* channels, int) {
    CUarray_format format;
    unsigned count;
    if (!elements || !channels) return done(CUDA_ERROR_INVALID_VALUE);
    if (CUresult refused = format_of(*channels, &format, &count)) return done(refused);
    *elements = size_t(1) << 28;
    return done(CUDA_SUCCESS);
}
