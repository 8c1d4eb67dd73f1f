// Entry points: copies and fills.
//
// When a call returns, the host has waited as CUDA promises, and not longer: see host_waits.hpp. An upload of staged
// bytes may be under way still, so it is not ordered before the work of a non-blocking stream.
// A copy in the legacy default stream comes after what the devices whose memory it touches have queued in their legacy
// and blocking streams, and before what they queue there afterwards; in another stream, and for a fill, only the stream
// counts. A copy reaches cuMemAlloc's memory of each device, and pool memory where the stream's device has access.
// (As two H200s with driver 13.0 do it.)
// Of copies with attributes nothing is promised: see api_batch.cpp.
// Page-locked memory is read and written when the operation runs.
#include "arrays.hpp"
#include "calls.hpp"
#include "watch.hpp"

#include <cstring>

using namespace sim;

namespace {

CUresult copy(Lock& lock, u64 target, u64 source, size_t bytes, CUstream handle, Form form, bool target_on_device,
              bool source_on_device, Peers peers = Peers::Checked) {
    return copy(lock, Side{target, target_on_device, bytes}, Side{source, source_on_device, bytes}, handle, form,
                peers);
}

// One side as the caller describes it.
struct Given {
    CUmemorytype type;
    const void* host;
    CUdeviceptr device;
    CUarray array;
    size_t x, y, z, pitch, height;
};

constexpr size_t kMostPitch = 2147483647;  // CU_DEVICE_ATTRIBUTE_MAX_PITCH

// A pitch or a height of 0 is that of rows or planes without gaps.
CUresult side_of(Given given, size_t width, size_t rows, size_t planes, Side* side) {
    if (given.type == CU_MEMORYTYPE_ARRAY)
        return side_of_array(given.array, {given.x, given.y, given.z}, width, rows, planes, side);
    if (given.type < CU_MEMORYTYPE_HOST || given.type > CU_MEMORYTYPE_UNIFIED) return CUDA_ERROR_INVALID_VALUE;
    if (!given.pitch) given.pitch = given.x + width;
    if (!given.height) given.height = given.y + rows;
    if (given.pitch < given.x + width || given.height < given.y + rows) return CUDA_ERROR_INVALID_VALUE;
    size_t plane = given.pitch * given.height;
    bool is_huge = given.height > kMostPitch || given.z > kMostPitch || planes > kMostPitch ||
                   double(plane) * double(given.z + planes) > 1e18;
    if (given.pitch > kMostPitch || is_huge) return CUDA_ERROR_INVALID_VALUE;
    u64 begin = given.type == CU_MEMORYTYPE_HOST ? reinterpret_cast<u64>(given.host) : u64(given.device);
    begin += (given.z * given.height + given.y) * given.pitch + given.x;
    *side = {begin, given.type == CU_MEMORYTYPE_DEVICE, width, rows, given.pitch, planes, plane};
    return CUDA_SUCCESS;
}

CUresult copy_rows(Lock& lock, const CUDA_MEMCPY2D* c, CUstream handle, Form form) {
    if (!c) return CUDA_ERROR_INVALID_VALUE;
    Side to, from;
    Given target{c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray, c->dstXInBytes, c->dstY, 0, c->dstPitch, 0};
    Given source{c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray, c->srcXInBytes, c->srcY, 0, c->srcPitch, 0};
    REFUSE_IF(side_of(target, c->WidthInBytes, c->Height, 1, &to));
    REFUSE_IF(side_of(source, c->WidthInBytes, c->Height, 1, &from));
    return copy(lock, to, from, handle, form);
}

template <class Parameters>  // of two devices or of one
CUresult sides(const Parameters* c, Side* to, Side* from) {
    if (!c || c->dstLOD || c->srcLOD) return CUDA_ERROR_INVALID_VALUE;
    Given target{c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray, c->dstXInBytes,
                 c->dstY,          c->dstZ,    c->dstPitch,  c->dstHeight};
    Given source{c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray, c->srcXInBytes,
                 c->srcY,          c->srcZ,    c->srcPitch,  c->srcHeight};
    auto lacks_height = [&](const Given& one) { return one.type != CU_MEMORYTYPE_ARRAY && !one.height; };
    if (c->Depth > 1 && (lacks_height(target) || lacks_height(source))) return CUDA_ERROR_INVALID_VALUE;
    REFUSE_IF(side_of(target, c->WidthInBytes, c->Height, c->Depth, to));
    return side_of(source, c->WidthInBytes, c->Height, c->Depth, from);
}

template <class Parameters>
CUresult copy_planes(Lock& lock, const Parameters* c, CUstream handle, Form form, Peers peers) {
    Side to, from;
    REFUSE_IF(sides(c, &to, &from));
    return copy(lock, to, from, handle, form, peers);
}

void fill_row(u8* bytes, u32 value, size_t width, size_t count) {
    if (width == 1) {
        memset(bytes, int(value), count);
    } else {
        for (size_t i = 0; i < count; i++) memcpy(bytes + i * width, &value, width);
    }
}

CUresult fill(Lock& lock, u64 target, u32 value, size_t width, FilledRows rows, CUstream handle,
              Form form = Form::Async) {
    Stream* stream;
    REFUSE_IF(find_stream(handle, &stream));
    if (!rows.count || !rows.height) return CUDA_SUCCESS;
    Work work;
    REFUSE_IF(work_of_fill(stream->context, target, value, width, rows, &work));
    Position position;
    REFUSE_IF(submit(lock, stream, std::move(work), &position));
    if (form == Form::Sync && check::fill_waits(where_is({target, true, 1})))
        synchronize(lock, position, queued(stream));
    return CUDA_SUCCESS;
}

u64 address_of(const void* pointer) { return reinterpret_cast<u64>(pointer); }

}  // namespace

namespace sim {

CUresult sides_of(const CUDA_MEMCPY3D* copy, Side* to, Side* from) { return sides(copy, to, from); }

CUresult work_of_fill(const Context* context, u64 target, u32 value, size_t width, const FilledRows& rows, Work* work) {
    if (target % width || rows.pitch % width) return CUDA_ERROR_INVALID_VALUE;
    size_t row = rows.count * width, extent = (rows.height - 1) * rows.pitch + row;
    if ((rows.height > 1 && rows.pitch < row) || !on_device(target, extent)) return CUDA_ERROR_INVALID_VALUE;
    if (!can_access(context, target, Use::Write)) return CUDA_ERROR_INVALID_VALUE;
    work->name = this_thread().call;
    work->run = [target, value, width, rows] {
        u8* bytes = memory().view(target);
        for (size_t i = 0; i < rows.height; i++) fill_row(bytes + i * rows.pitch, value, width, rows.count);
    };
    work->touches(target, extent, Use::Write, check::rows_of(rows.pitch, row, rows.height));
    return CUDA_SUCCESS;
}

}  // namespace sim

// name, the documentation's name, parameters, then the arguments of copy() or fill().
#define COPY(symbol, base, parameters, ...) \
    EXPORT CUresult symbol parameters { \
        return api_call(CALL(base), [&](Lock& lock) { return copy(lock, __VA_ARGS__); }); \
    }
#define FILL(symbol, base, parameters, ...) \
    EXPORT CUresult symbol parameters { \
        return api_call(CALL(base), [&](Lock& lock) { return fill(lock, __VA_ARGS__); }); \
    }

COPY(cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync", (CUdeviceptr d, const void* s, size_t n, CUstream h), d, address_of(s),
     n, h, Form::Async, true, false)
COPY(cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync", (void* d, CUdeviceptr s, size_t n, CUstream h), address_of(d), s, n, h,
     Form::Async, false, true)
COPY(cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync", (CUdeviceptr d, CUdeviceptr s, size_t n, CUstream h), d, s, n, h,
     Form::Async, true, true)
COPY(cuMemcpyAsync, "cuMemcpyAsync", (CUdeviceptr d, CUdeviceptr s, size_t n, CUstream h), d, s, n, h, Form::Async,
     false, false)
COPY(cuMemcpyPeerAsync, "cuMemcpyPeerAsync", (CUdeviceptr d, CUcontext, CUdeviceptr s, CUcontext, size_t n, CUstream h),
     d, s, n, h, Form::Async, true, true, Peers::Any)
COPY(cuMemcpyHtoD_v2, "cuMemcpyHtoD", (CUdeviceptr d, const void* s, size_t n), d, address_of(s), n, nullptr,
     Form::Sync, true, false)
COPY(cuMemcpyDtoH_v2, "cuMemcpyDtoH", (void* d, CUdeviceptr s, size_t n), address_of(d), s, n, nullptr, Form::Sync,
     false, true)
COPY(cuMemcpyDtoD_v2, "cuMemcpyDtoD", (CUdeviceptr d, CUdeviceptr s, size_t n), d, s, n, nullptr, Form::Sync, true,
     true)
COPY(cuMemcpyPeer, "cuMemcpyPeer", (CUdeviceptr d, CUcontext, CUdeviceptr s, CUcontext, size_t n), d, s, n, nullptr,
     Form::Sync, true, true, Peers::Any)
COPY(cuMemcpy, "cuMemcpy", (CUdeviceptr d, CUdeviceptr s, size_t n), d, s, n, nullptr, Form::Sync, false, false)

#define COPY_ROWS(symbol, base, parameters, ...) \
    EXPORT CUresult symbol parameters { \
        return api_call(CALL(base), [&](Lock& lock) { return copy_rows(lock, __VA_ARGS__); }); \
    }
COPY_ROWS(cuMemcpy2DAsync_v2, "cuMemcpy2DAsync", (const CUDA_MEMCPY2D* c, CUstream h), c, h, Form::Async)
COPY_ROWS(cuMemcpy2D_v2, "cuMemcpy2D", (const CUDA_MEMCPY2D* c), c, nullptr, Form::Sync)
COPY_ROWS(cuMemcpy2DUnaligned_v2, "cuMemcpy2DUnaligned", (const CUDA_MEMCPY2D* c), c, nullptr, Form::Sync)

#define COPY_PLANES(symbol, base, parameters, ...) \
    EXPORT CUresult symbol parameters { \
        return api_call(CALL(base), [&](Lock& lock) { return copy_planes(lock, __VA_ARGS__); }); \
    }
COPY_PLANES(cuMemcpy3DAsync_v2, "cuMemcpy3DAsync", (const CUDA_MEMCPY3D* c, CUstream h), c, h, Form::Async,
            Peers::Checked)
COPY_PLANES(cuMemcpy3D_v2, "cuMemcpy3D", (const CUDA_MEMCPY3D* c), c, nullptr, Form::Sync, Peers::Checked)
COPY_PLANES(cuMemcpy3DPeerAsync, "cuMemcpy3DPeerAsync", (const CUDA_MEMCPY3D_PEER* c, CUstream h), c, h, Form::Async,
            Peers::Any)
COPY_PLANES(cuMemcpy3DPeer, "cuMemcpy3DPeer", (const CUDA_MEMCPY3D_PEER* c), c, nullptr, Form::Sync, Peers::Any)

FILL(cuMemsetD8Async, "cuMemsetD8Async", (CUdeviceptr d, unsigned char v, size_t n, CUstream h), d, v, 1, n, h)
FILL(cuMemsetD16Async, "cuMemsetD16Async", (CUdeviceptr d, unsigned short v, size_t n, CUstream h), d, v, 2, n, h)
FILL(cuMemsetD32Async, "cuMemsetD32Async", (CUdeviceptr d, unsigned v, size_t n, CUstream h), d, v, 4, n, h)
// The forms without a stream are on the legacy default stream, and wait for page-locked and managed memory alone.
FILL(cuMemsetD8_v2, "cuMemsetD8", (CUdeviceptr d, unsigned char v, size_t n), d, v, 1, n, nullptr, Form::Sync)
FILL(cuMemsetD16_v2, "cuMemsetD16", (CUdeviceptr d, unsigned short v, size_t n), d, v, 2, n, nullptr, Form::Sync)
FILL(cuMemsetD32_v2, "cuMemsetD32", (CUdeviceptr d, unsigned v, size_t n), d, v, 4, n, nullptr, Form::Sync)

#define FILL_ROWS(bits, type) \
    FILL(cuMemsetD2D##bits##Async, "cuMemsetD2D" #bits "Async", \
         (CUdeviceptr d, size_t pitch, type v, size_t n, size_t height, CUstream h), d, v, bits / 8, \
         FilledRows(n, height, pitch), h) \
    FILL(cuMemsetD2D##bits##_v2, "cuMemsetD2D" #bits, (CUdeviceptr d, size_t pitch, type v, size_t n, size_t height), \
         d, v, bits / 8, FilledRows(n, height, pitch), nullptr, Form::Sync)
FILL_ROWS(8, unsigned char)
FILL_ROWS(16, unsigned short)
FILL_ROWS(32, unsigned)
