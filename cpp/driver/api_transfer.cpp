// Entry points: copies and fills.
//
// When a call returns, the host has waited as CUDA promises ("API synchronization behavior",
// docs.nvidia.com/cuda/cuda-driver-api/api-sync-behavior.html), and not longer, although hardware often waits longer:
// a program that needs more has to be found.
//   - To pageable host memory, and from host to host: until the copy is done, in the Async forms too.
//   - From pageable memory to the device: until the bytes are staged. The transfer may be under way still, so it is not
//     ordered before the work of a non-blocking stream. The forms without a stream synchronize the stream before they
//     begin.
//   - The forms without a stream wait where one side is page-locked or managed; the Async forms do not.
//   - Device to device, and a fill of device memory: for nothing.
// A copy in the legacy default stream comes after what the devices whose memory it touches have queued in their legacy
// and blocking streams, and before what they queue there afterwards; in another stream, and for a fill, only the stream
// counts. A copy reaches cuMemAlloc's memory of each device, and pool memory where the stream's device has access.
// (As two H200s with driver 13.0 do it.)
// Page-locked memory is read and written when the operation runs. Of host memory managed memory alone is
// watched for races.
#include "calls.hpp"
#include "capture.hpp"
#include "memory.hpp"
#include "watch.hpp"

#include <cstring>
#include <set>

using namespace sim;

namespace {

enum class Sync { No, Yes };
enum class Peers { Checked, Any };  // cuMemcpyPeer finds a way between any two devices

bool in_arena(u64 address) { return memory().in_arena(address); }

enum class Wait { Nothing, Before, Copy };  // for what the host waits: nothing, what was queued before, the copy

// `pageable`: neither the device's memory nor page-locked.
Wait wait_of(u64 target, u64 source, bool target_pageable, bool source_pageable, Sync sync) {
    bool managed = is_managed(target) || is_managed(source);
    bool to_device = in_arena(target) || is_managed(target), from_device = in_arena(source) || is_managed(source);
    if (target_pageable || !(to_device || from_device)) return Wait::Copy;
    if (sync == Sync::No) return Wait::Nothing;
    if (managed) return Wait::Copy;
    if (to_device && from_device) return Wait::Nothing;
    return to_device && source_pageable ? Wait::Before : Wait::Copy;
}

bool copy_reaches(const Context* context, u64 address, Use use) {
    const Block* block = find_block(address);
    return (block && block->owner) || can_access(context, address, use);
}

// The legacy streams of other contexts that a copy in this stream is ordered with.
std::set<Stream*> legacy_streams_beside(const Stream* stream, u64 target, u64 source) {
    std::set<Stream*> found;
    if (!stream->is_legacy()) return found;
    for (u64 address : {target, source}) {
        if (is_managed(address))  // on any device
            driver().contexts.each([&](Context* context, u64) {
                if (context != stream->context) found.insert(legacy_stream(context));
            });
        const Block* block = find_block(address);
        if (!block || block->device == stream->context->device) continue;
        found.insert(legacy_stream(block->owner ? block->owner : &driver().primary[std::size_t(block->device)]));
    }
    return found;
}

// One side of a copy: rows of `width` bytes that begin `pitch` bytes apart.
struct Side {
    u64 begin;
    bool on_device;  // by the call
    size_t width, height = 1, pitch = 0;

    u64 bytes() const { return (height - 1) * pitch + width; }
    check::Rows rows() const { return check::rows_of(pitch, width, height); }
    u8* row(u8* first, size_t index) const { return first + index * pitch; }
};

// An address that is not the driver's is pageable host memory, where the call allows that and it exists.
bool is_there(const Side& side) {
    u64 bytes = side.bytes();
    bool elsewhere = !in_arena(side.begin) && !is_managed(side.begin);
    return on_device(side.begin, bytes) || (!side.on_device && elsewhere && is_mapped(side.begin, bytes));
}

CUresult copy(Lock& lock, const Side& to, const Side& from, CUstream handle, Sync sync, Peers peers = Peers::Checked) {
    Stream* stream;
    REFUSE_IF(find_stream(handle, &stream));
    if (!to.width || !to.height) return CUDA_SUCCESS;
    u64 target = to.begin, source = from.begin;
    bool device_target = on_device(target, to.bytes()), device_source = on_device(source, from.bytes());
    if (!is_there(to) || !is_there(from)) return CUDA_ERROR_INVALID_VALUE;
    if (peers == Peers::Checked &&
        !(copy_reaches(stream->context, source, Use::Read) && copy_reaches(stream->context, target, Use::Write)))
        return CUDA_ERROR_INVALID_VALUE;
    Wait wait = wait_of(target, source, !device_target, !device_source, sync);
    if (stream->capture) {
        if (sync == Sync::Yes) return check_not_capturing(stream);
        wait = Wait::Nothing;  // a node of the graph, which reads and writes host memory at each launch
    }
    REFUSE_IF(check_legacy_use(stream));
    std::set<Stream*> beside = legacy_streams_beside(stream, target, source);
    for (Stream* other : beside) come_after_legacy(lock, stream, other);
    if (wait == Wait::Before) REFUSE_IF(synchronize_stream(lock, stream));
    Work work;
    work.name = this_thread().call;
    bool staged_now = !device_source && wait != Wait::Copy && !stream->capture;
    auto move = [to, from](u8* read) {
        u8* written = memory().view(to.begin);
        for (size_t i = 0; i < to.height; i++) memmove(to.row(written, i), from.row(read, i), to.width);
    };
    if (!staged_now) {
        work.run = [move, source] { move(memory().view(source)); };
    } else {
        const u8* start = reinterpret_cast<const u8*>(source);
        auto staged = std::make_shared<std::vector<u8>>(start, start + from.bytes());
        work.run = [move, staged] { move(staged->data()); };
    }
    if (!staged_now) work.touches(source, from.bytes(), Use::Read, from.rows());
    work.touches(target, to.bytes(), Use::Write, to.rows());
    Position position;
    REFUSE_IF(submit(lock, stream, std::move(work), &position));
    for (Stream* other : beside) come_after_legacy(lock, other, stream);
    if (wait == Wait::Copy) synchronize(lock, position, queued(stream));
    return CUDA_SUCCESS;
}

CUresult copy(Lock& lock, u64 target, u64 source, size_t bytes, CUstream handle, Sync sync, bool target_on_device,
              bool source_on_device, Peers peers = Peers::Checked) {
    return copy(lock, Side{target, target_on_device, bytes}, Side{source, source_on_device, bytes}, handle, sync,
                peers);
}

// Arrays of CUDA are not simulated. A pitch of 0 is that of rows without gaps.
CUresult side_of(CUmemorytype type, const void* host, CUdeviceptr device, size_t x, size_t y, size_t pitch,
                 const CUDA_MEMCPY2D& c, Side* side) {
    if (!pitch) pitch = x + c.WidthInBytes;
    if (type == CU_MEMORYTYPE_ARRAY) return CUDA_ERROR_NOT_SUPPORTED;
    if (type < CU_MEMORYTYPE_HOST || type > CU_MEMORYTYPE_UNIFIED) return CUDA_ERROR_INVALID_VALUE;
    if (pitch < x + c.WidthInBytes) return CUDA_ERROR_INVALID_VALUE;
    u64 begin = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<u64>(host) : u64(device);
    *side = {begin + y * pitch + x, type == CU_MEMORYTYPE_DEVICE, c.WidthInBytes, c.Height, pitch};
    return CUDA_SUCCESS;
}

CUresult copy_rows(Lock& lock, const CUDA_MEMCPY2D* c, CUstream handle, Sync sync) {
    if (!c) return CUDA_ERROR_INVALID_VALUE;
    Side to, from;
    REFUSE_IF(side_of(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstXInBytes, c->dstY, c->dstPitch, *c, &to));
    REFUSE_IF(side_of(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcXInBytes, c->srcY, c->srcPitch, *c, &from));
    return copy(lock, to, from, handle, sync);
}

// The memory that a fill writes: so many elements in each row; the rows begin `pitch` bytes apart.
struct Rows {
    size_t count, height, pitch;
    Rows(size_t count, size_t height = 1, size_t pitch = 0) : count(count), height(height), pitch(pitch) {}
};

void fill_row(u8* bytes, u32 value, size_t width, size_t count) {
    if (width == 1) {
        memset(bytes, int(value), count);
    } else {
        for (size_t i = 0; i < count; i++) memcpy(bytes + i * width, &value, width);
    }
}

CUresult fill(Lock& lock, u64 target, u32 value, size_t width, Rows rows, CUstream handle, Sync sync = Sync::No) {
    Stream* stream;
    REFUSE_IF(find_stream(handle, &stream));
    if (!rows.count || !rows.height) return CUDA_SUCCESS;
    if (target % width || rows.pitch % width) return CUDA_ERROR_INVALID_VALUE;
    size_t row = rows.count * width, extent = (rows.height - 1) * rows.pitch + row;
    if ((rows.height > 1 && rows.pitch < row) || !on_device(target, extent)) return CUDA_ERROR_INVALID_VALUE;
    if (!can_access(stream->context, target, Use::Write)) return CUDA_ERROR_INVALID_VALUE;
    Work work;
    work.name = this_thread().call;
    work.run = [target, value, width, rows] {
        u8* bytes = memory().view(target);
        for (size_t i = 0; i < rows.height; i++) fill_row(bytes + i * rows.pitch, value, width, rows.count);
    };
    work.touches(target, extent, Use::Write, check::rows_of(rows.pitch, row, rows.height));
    Position position;
    REFUSE_IF(submit(lock, stream, std::move(work), &position));
    if (sync == Sync::Yes && !in_arena(target)) synchronize(lock, position, queued(stream));
    return CUDA_SUCCESS;
}

u64 address_of(const void* pointer) { return reinterpret_cast<u64>(pointer); }

}  // namespace

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
     n, h, Sync::No, true, false)
COPY(cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync", (void* d, CUdeviceptr s, size_t n, CUstream h), address_of(d), s, n, h,
     Sync::No, false, true)
COPY(cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync", (CUdeviceptr d, CUdeviceptr s, size_t n, CUstream h), d, s, n, h,
     Sync::No, true, true)
COPY(cuMemcpyAsync, "cuMemcpyAsync", (CUdeviceptr d, CUdeviceptr s, size_t n, CUstream h), d, s, n, h, Sync::No, false,
     false)
COPY(cuMemcpyPeerAsync, "cuMemcpyPeerAsync", (CUdeviceptr d, CUcontext, CUdeviceptr s, CUcontext, size_t n, CUstream h),
     d, s, n, h, Sync::No, true, true, Peers::Any)
COPY(cuMemcpyHtoD_v2, "cuMemcpyHtoD", (CUdeviceptr d, const void* s, size_t n), d, address_of(s), n, nullptr, Sync::Yes,
     true, false)
COPY(cuMemcpyDtoH_v2, "cuMemcpyDtoH", (void* d, CUdeviceptr s, size_t n), address_of(d), s, n, nullptr, Sync::Yes,
     false, true)
COPY(cuMemcpyDtoD_v2, "cuMemcpyDtoD", (CUdeviceptr d, CUdeviceptr s, size_t n), d, s, n, nullptr, Sync::Yes, true, true)
COPY(cuMemcpyPeer, "cuMemcpyPeer", (CUdeviceptr d, CUcontext, CUdeviceptr s, CUcontext, size_t n), d, s, n, nullptr,
     Sync::Yes, true, true, Peers::Any)
COPY(cuMemcpy, "cuMemcpy", (CUdeviceptr d, CUdeviceptr s, size_t n), d, s, n, nullptr, Sync::Yes, false, false)

#define COPY_ROWS(symbol, base, parameters, ...) \
    EXPORT CUresult symbol parameters { \
        return api_call(CALL(base), [&](Lock& lock) { return copy_rows(lock, __VA_ARGS__); }); \
    }
COPY_ROWS(cuMemcpy2DAsync_v2, "cuMemcpy2DAsync", (const CUDA_MEMCPY2D* c, CUstream h), c, h, Sync::No)
COPY_ROWS(cuMemcpy2D_v2, "cuMemcpy2D", (const CUDA_MEMCPY2D* c), c, nullptr, Sync::Yes)
COPY_ROWS(cuMemcpy2DUnaligned_v2, "cuMemcpy2DUnaligned", (const CUDA_MEMCPY2D* c), c, nullptr, Sync::Yes)

FILL(cuMemsetD8Async, "cuMemsetD8Async", (CUdeviceptr d, unsigned char v, size_t n, CUstream h), d, v, 1, n, h)
FILL(cuMemsetD16Async, "cuMemsetD16Async", (CUdeviceptr d, unsigned short v, size_t n, CUstream h), d, v, 2, n, h)
FILL(cuMemsetD32Async, "cuMemsetD32Async", (CUdeviceptr d, unsigned v, size_t n, CUstream h), d, v, 4, n, h)
// The forms without a stream are on the legacy default stream, and wait for page-locked and managed memory alone.
FILL(cuMemsetD8_v2, "cuMemsetD8", (CUdeviceptr d, unsigned char v, size_t n), d, v, 1, n, nullptr, Sync::Yes)
FILL(cuMemsetD16_v2, "cuMemsetD16", (CUdeviceptr d, unsigned short v, size_t n), d, v, 2, n, nullptr, Sync::Yes)
FILL(cuMemsetD32_v2, "cuMemsetD32", (CUdeviceptr d, unsigned v, size_t n), d, v, 4, n, nullptr, Sync::Yes)

#define FILL_ROWS(bits, type) \
    FILL(cuMemsetD2D##bits##Async, "cuMemsetD2D" #bits "Async", \
         (CUdeviceptr d, size_t pitch, type v, size_t n, size_t height, CUstream h), d, v, bits / 8, \
         Rows(n, height, pitch), h) \
    FILL(cuMemsetD2D##bits##_v2, "cuMemsetD2D" #bits, (CUdeviceptr d, size_t pitch, type v, size_t n, size_t height), \
         d, v, bits / 8, Rows(n, height, pitch), nullptr, Sync::Yes)
FILL_ROWS(8, unsigned char)
FILL_ROWS(16, unsigned short)
FILL_ROWS(32, unsigned)

FILL(cuStreamWriteValue32_v2, "cuStreamWriteValue32", (CUstream h, CUdeviceptr d, cuuint32_t v, unsigned), d, v, 4, 1,
     h)
