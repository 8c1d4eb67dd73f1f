// CUDA's arrays: their allocation, and copies of rows between them and other memory. planes.cpp has cudaMemcpy3D.
#include "copies.hpp"

#include "not_simulated.hpp"

namespace cudart {

CUresult rows_of(CUarray array, size_t* width, size_t* count) {
    CUDA_ARRAY3D_DESCRIPTOR shape;
    if (CUresult refused = element_of(array, width)) return refused;
    if (CUresult refused = cuArray3DGetDescriptor_v2(&shape, array)) return refused;
    *width *= shape.Width;
    *count = shape.Height ? shape.Height : 1;
    return CUDA_SUCCESS;
}

CUresult element_of(CUarray array, size_t* bytes) {
    CUDA_ARRAY3D_DESCRIPTOR shape;
    if (cuArray3DGetDescriptor_v2(&shape, array)) return CUDA_ERROR_INVALID_VALUE;
    Channels channels = channels_of(shape.Format, shape.NumChannels);
    *bytes = size_t(channels.x + channels.y + channels.z + channels.w) / 8;
    return CUDA_SUCCESS;
}

Channels channels_of(CUarray_format format, unsigned count) {
    enum Kind { Signed, Unsigned, Float };
    auto all = [count](int bits, int kind) {
        auto channel = [&](unsigned index) { return index < count ? bits : 0; };
        return Channels{channel(0), channel(1), channel(2), channel(3), kind};
    };
    switch (format) {
        case CU_AD_FORMAT_UNSIGNED_INT8: return all(8, Unsigned);
        case CU_AD_FORMAT_UNSIGNED_INT16: return all(16, Unsigned);
        case CU_AD_FORMAT_UNSIGNED_INT32: return all(32, Unsigned);
        case CU_AD_FORMAT_SIGNED_INT8: return all(8, Signed);
        case CU_AD_FORMAT_SIGNED_INT16: return all(16, Signed);
        case CU_AD_FORMAT_SIGNED_INT32: return all(32, Signed);
        case CU_AD_FORMAT_HALF: return all(16, Float);
        default: return all(32, Float);
    }
}

// Channels are the first ones, all of one width.
CUresult format_of(const Channels& given, CUarray_format* format, unsigned* count) {
    constexpr CUresult kInvalidChannel = CUresult(20);
    enum Kind { Signed, Unsigned, Float };
    int all[] = {given.x, given.y, given.z, given.w};
    *count = 0;
    for (int bits : all) {
        if (bits && (bits != given.x || all[*count] != bits)) return kInvalidChannel;
        *count += bits != 0;
    }
    int size = given.x == 8 ? 0 : given.x == 16 ? 1 : given.x == 32 ? 2 : -1;
    if (size < 0 || *count == 3) return kInvalidChannel;
    constexpr CUarray_format kUnsigned[] = {CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_UNSIGNED_INT16,
                                            CU_AD_FORMAT_UNSIGNED_INT32};
    constexpr CUarray_format kSigned[] = {CU_AD_FORMAT_SIGNED_INT8, CU_AD_FORMAT_SIGNED_INT16,
                                          CU_AD_FORMAT_SIGNED_INT32};
    switch (given.kind) {
        case Signed: *format = kSigned[size]; return CUDA_SUCCESS;
        case Unsigned: *format = kUnsigned[size]; return CUDA_SUCCESS;
        case Float:
            *format = given.x == 16 ? CU_AD_FORMAT_HALF : CU_AD_FORMAT_FLOAT;
            return given.x == 8 ? kInvalidChannel : CUDA_SUCCESS;
        default: break;
    }
    xsim_not_simulated("a cudaChannelFormatDesc of this kind");
    return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace cudart

using namespace cudart;

namespace {

CUresult shape_of(const Channels* channels, const Extent& extent, unsigned flags, CUDA_ARRAY3D_DESCRIPTOR* shape) {
    if (!channels) return CUDA_ERROR_INVALID_VALUE;
    *shape = {extent.width, extent.height, extent.depth, {}, 0, flags};
    return format_of(*channels, &shape->Format, &shape->NumChannels);
}

CUresult make_array(CUarray* array, const Channels* channels, const Extent& extent, unsigned flags) {
    CUDA_ARRAY3D_DESCRIPTOR shape;
    CUresult refused = shape_of(channels, extent, flags, &shape);
    return refused ? refused : cuArray3DCreate_v2(array, &shape);
}

// The place in an array at which a copy begins: the column in bytes.
struct InArray {
    CUarray array;
    size_t x, y;
};

CUDA_MEMCPY2D rows_to(const InArray& to, const void* from, size_t pitch, size_t width, size_t height, int way) {
    CUDA_MEMCPY2D rows = {};
    rows.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    rows.dstArray = to.array;
    rows.dstXInBytes = to.x;
    rows.dstY = to.y;
    rows.srcMemoryType = type_of(way, HostToDevice);
    rows.srcHost = from;
    rows.srcDevice = number(from);
    rows.srcPitch = pitch;
    rows.WidthInBytes = width;
    rows.Height = height;
    return rows;
}

CUDA_MEMCPY2D rows_from(void* to, size_t pitch, const InArray& from, size_t width, size_t height, int way) {
    CUDA_MEMCPY2D rows = {};
    rows.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    rows.srcArray = from.array;
    rows.srcXInBytes = from.x;
    rows.srcY = from.y;
    rows.dstMemoryType = type_of(way, DeviceToHost);
    rows.dstHost = to;
    rows.dstDevice = number(to);
    rows.dstPitch = pitch;
    rows.WidthInBytes = width;
    rows.Height = height;
    return rows;
}

CUDA_MEMCPY2D rows_between(const InArray& to, const InArray& from, size_t width, size_t height) {
    CUDA_MEMCPY2D rows = rows_to(to, nullptr, 0, width, height, DeviceToDevice);
    rows.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    rows.srcArray = from.array;
    rows.srcXInBytes = from.x;
    rows.srcY = from.y;
    return rows;
}

// Bytes that run on from row to row of the array: the rest of the first row, whole rows, and the beginning of the last.
// `call` copies that much between a place in the array and a distance from the other side's beginning.
template <class Call>
CUresult each_part(InArray at, size_t bytes, Call&& call) {
    size_t row, rows;
    if (CUresult refused = rows_of(at.array, &row, &rows)) return refused;
    if (at.x >= row || at.y >= rows || bytes > (rows - at.y) * row - at.x) return CUDA_ERROR_INVALID_VALUE;
    for (size_t done = 0; done < bytes;) {
        size_t width = at.x || bytes - done < row ? row - at.x : row, height = 1;
        if (width > bytes - done) width = bytes - done;
        if (!at.x && width == row) height = (bytes - done) / row;
        if (CUresult refused = call(at, done, width, height)) return refused;
        done += width * height;
        at.y += height;
        at.x = 0;
    }
    return CUDA_SUCCESS;
}

template <class Call>
CUresult bytes_to(const InArray& to, const void* from, size_t bytes, int way, Call&& call) {
    return each_part(to, bytes, [&](const InArray& at, size_t done, size_t width, size_t height) {
        return call(rows_to(at, static_cast<const char*>(from) + done, width, width, height, way));
    });
}

template <class Call>
CUresult bytes_from(void* to, const InArray& from, size_t bytes, int way, Call&& call) {
    return each_part(from, bytes, [&](const InArray& at, size_t done, size_t width, size_t height) {
        return call(rows_from(static_cast<char*>(to) + done, width, at, width, height, way));
    });
}

CUresult now(const CUDA_MEMCPY2D& rows) { return cuMemcpy2DUnaligned_v2(&rows); }
auto on(CUstream stream) {
    return [stream](const CUDA_MEMCPY2D& rows) { return cuMemcpy2DAsync_v2(&rows, stream); };
}

}  // namespace

RUNTIME Channels cudaCreateChannelDesc(int x, int y, int z, int w, int kind) { return {x, y, z, w, kind}; }

RUNTIME Error cudaMallocArray(CUarray* array, const Channels* channels, size_t width, size_t height, unsigned flags) {
    DRIVER(make_array(array, channels, {width, height, 0}, flags));
}
RUNTIME Error cudaMalloc3DArray(CUarray* array, const Channels* channels, Extent extent, unsigned flags) {
    DRIVER(make_array(array, channels, extent, flags));
}
RUNTIME Error cudaFreeArray(CUarray array) { DRIVER(array ? cuArrayDestroy(array) : CUDA_SUCCESS); }
RUNTIME Error cudaMallocMipmappedArray(CUmipmappedArray* made, const Channels* channels, Extent extent, unsigned levels,
                                       unsigned flags) {
    CUDA_ARRAY3D_DESCRIPTOR shape;
    if (CUresult refused = shape_of(channels, extent, flags, &shape)) return done(refused);
    DRIVER(cuMipmappedArrayCreate(made, &shape, levels));
}
RUNTIME Error cudaFreeMipmappedArray(CUmipmappedArray made) {
    DRIVER(made ? cuMipmappedArrayDestroy(made) : CUDA_SUCCESS);
}
RUNTIME Error cudaGetMipmappedArrayLevel(CUarray* array, CUmipmappedArray made, unsigned level) {
    DRIVER(cuMipmappedArrayGetLevel(array, made, level));
}

RUNTIME Error cudaArrayGetInfo(Channels* channels, Extent* extent, unsigned* flags, CUarray array) {
    if (CUresult refused = begin()) return done(refused);
    CUDA_ARRAY3D_DESCRIPTOR shape;
    if (CUresult refused = cuArray3DGetDescriptor_v2(&shape, array)) return done(refused);
    if (channels) *channels = channels_of(shape.Format, shape.NumChannels);
    if (extent) *extent = {shape.Width, shape.Height, shape.Depth};
    if (flags) *flags = shape.Flags;
    return done(CUDA_SUCCESS);
}
RUNTIME Error cudaGetChannelDesc(Channels* channels, CUarray array) {
    return channels ? cudaArrayGetInfo(channels, nullptr, nullptr, array) : done(CUDA_ERROR_INVALID_VALUE);
}
RUNTIME Error cudaArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* made, CUarray array, int device) {
    DRIVER(cuArrayGetMemoryRequirements(made, array, device));
}
RUNTIME Error cudaMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* made, CUmipmappedArray array,
                                                      int device) {
    DRIVER(cuMipmappedArrayGetMemoryRequirements(made, array, device));
}

RUNTIME Error cudaMemcpy2DToArray(CUarray to, size_t x, size_t y, const void* from, size_t pitch, size_t width,
                                  size_t height, int way) {
    DRIVER(now(rows_to({to, x, y}, from, pitch, width, height, way)));
}
RUNTIME Error cudaMemcpy2DToArrayAsync(CUarray to, size_t x, size_t y, const void* from, size_t pitch, size_t width,
                                       size_t height, int way, CUstream stream) {
    DRIVER(on(stream)(rows_to({to, x, y}, from, pitch, width, height, way)));
}
RUNTIME Error cudaMemcpy2DFromArray(void* to, size_t pitch, CUarray from, size_t x, size_t y, size_t width,
                                    size_t height, int way) {
    DRIVER(now(rows_from(to, pitch, {from, x, y}, width, height, way)));
}
RUNTIME Error cudaMemcpy2DFromArrayAsync(void* to, size_t pitch, CUarray from, size_t x, size_t y, size_t width,
                                         size_t height, int way, CUstream stream) {
    DRIVER(on(stream)(rows_from(to, pitch, {from, x, y}, width, height, way)));
}
RUNTIME Error cudaMemcpy2DArrayToArray(CUarray to, size_t x, size_t y, CUarray from, size_t from_x, size_t from_y,
                                       size_t width, size_t height, int) {
    DRIVER(now(rows_between({to, x, y}, {from, from_x, from_y}, width, height)));
}

RUNTIME Error cudaMemcpyToArray(CUarray to, size_t x, size_t y, const void* from, size_t bytes, int way) {
    DRIVER(bytes_to({to, x, y}, from, bytes, way, now));
}
RUNTIME Error cudaMemcpyToArrayAsync(CUarray to, size_t x, size_t y, const void* from, size_t bytes, int way,
                                     CUstream stream) {
    DRIVER(bytes_to({to, x, y}, from, bytes, way, on(stream)));
}
RUNTIME Error cudaMemcpyFromArray(void* to, CUarray from, size_t x, size_t y, size_t bytes, int way) {
    DRIVER(bytes_from(to, {from, x, y}, bytes, way, now));
}
RUNTIME Error cudaMemcpyFromArrayAsync(void* to, CUarray from, size_t x, size_t y, size_t bytes, int way,
                                       CUstream stream) {
    DRIVER(bytes_from(to, {from, x, y}, bytes, way, on(stream)));
}
