// Copies and fills: the bytes that they touch, and the work that the host knows to be done when they return
// (host_waits.hpp).
// A copy in the legacy default stream comes after what the devices whose memory it touches have queued in their legacy
// and blocking streams, and before what they queue there afterwards (as two H200s with driver 13.0 do it).
#include "calls.hpp"
#include "driver.hpp"
#include "newer.hpp"

#include "host/pageable.hpp"

#include <algorithm>
#include <set>

namespace check {

namespace {

Range range(const Extent& extent, Role role) {
    Range made;
    made.begin = extent.begin;
    made.end = extent.begin + extent.bytes;
    made.role = role;
    made.anchor = extent.has_planes ? extent.begin : 0;
    made.rows = extent.rows;
    return made;
}

bool is_on_device(const Call& call, const Extent& extent) {
    return extent.side == Side::Device || call.front.is_on_device(extent.begin);
}

Where where_is(const Call& call, const Extent& extent) {
    if (const Pinned* pinned = call.front.find_pinned(extent.begin))
        return pinned->is_managed() ? Where::Managed : Where::PageLocked;
    return is_on_device(call, extent) ? Where::Device : Where::Pageable;
}

}  // namespace

void Call::work(Stream& on, const Range* ranges, std::size_t count) const {
    Noted& noted = front.backlog.next();
    noted.kind = Noted::Kind::Work;
    noted.thread = thread.number;
    noted.stream = &on;
    noted.what = what;
    std::copy_n(ranges, count, noted.ranges.begin());
    if (host::is_on())
        for (std::size_t i = 0; i < count; i++) thread.touches_host |= front.find_pinned(ranges[i].begin) != nullptr;
    noted.count = count;
    thread.changes.note(noted.number);
    front.backlog.keep();
}

void Call::fill(Extent target, CUstream handle, Form form) const {
    Range written = range(target, Role::Write);
    Stream* on = target.bytes ? stream(handle) : nullptr;
    if (!on) return;
    work(*on, &written, 1);
    bool waits = form == Form::Sync && fill_waits(where_is(*this, target));
    if (waits && !on->capture) wait_for(front.engine().queued_on(*on));
}

namespace {

// The contexts whose devices have these bytes. Memory of which the check does not know that may be on any device.
std::set<u64> contexts_of(const Call& call, const Copy& copy) {
    std::set<u64> found;
    for (const Extent* extent : {&copy.target, &copy.source}) {
        if (!is_on_device(call, *extent)) continue;
        const Block* block = call.front.engine().find_whole(extent->begin);
        if (block && block->context)
            found.insert(block->context);
        else
            for (auto& known : call.front.contexts()) found.insert(known.second);
    }
    return found;
}

// The legacy streams of other contexts that a copy in this stream is ordered with.
std::vector<Stream*> legacy_streams_beside(const Call& call, const Stream& on, const Copy& copy) {
    std::vector<Stream*> found;
    if (!on.legacy || call.front.contexts().size() < 2) return found;
    for (u64 context : contexts_of(call, copy))
        if (context && context != on.context)
            found.push_back(call.front.find_stream(Handles::kLegacy, {context, call.thread.number}, call.what.site));
    return found;
}

}  // namespace

void Call::copy(const Copy& copy) const {
    Stream* on = stream(copy.stream);
    if (!on || !copy.target.bytes) return;
    Range touched[2];
    std::size_t count = 0;
    if (!front.was_managed(copy.source.begin) && !copy.has_read) touched[count++] = range(copy.source, Role::Read);
    if (!front.was_managed(copy.target.begin)) touched[count++] = range(copy.target, Role::Write);
    if (where_is(*this, copy.target) == Where::Pageable)
        host::forget_late_reads(copy.target.begin, copy.target.begin + copy.target.bytes);
    std::vector<Stream*> beside = legacy_streams_beside(*this, *on, copy);
    if (!beside.empty()) thread.changes.ordered.push_back({on, front.engine().queued(*on)});
    for (Stream* other : beside) thread.changes.ordered.push_back({other, front.engine().queued(*other)});
    for (Stream* other : beside) front.engine().come_after(*on, front.engine().queued_on(*other));
    Wait wait = on->capture ? Wait::Nothing
                            : wait_of_copy(where_is(*this, copy.target), where_is(*this, copy.source), copy.form);
    if (wait == Wait::Before) wait_for(front.engine().queued_on(*on));
    work(*on, touched, count);
    for (Stream* other : beside) front.engine().come_after(*other, front.engine().queued_on(*on));
    thread.changes.end_ordering();
    if (wait == Wait::Copy) wait_for(front.engine().queued_on(*on));
}

namespace {

u64 address_of(const void* host) { return reinterpret_cast<u64>(host); }

Extent on_device(u64 begin, u64 bytes) { return {begin, bytes, {}, false, Side::Device}; }
Extent on_host(const void* begin, u64 bytes) { return {address_of(begin), bytes}; }
Extent array(u64 bytes) { return on_device(0, bytes); }  // it has no address, and is not watched

// Either may be on the host or on the device.
void copy_bytes(const Call& call, u64 target, u64 source, u64 bytes, CUstream stream, Form form) {
    call.copy({{target, bytes}, {source, bytes}, stream, form});
}

// Rows of a pitch, planes of a height.
struct Layout {
    u64 pitch, height;
};

Extent extent(CUmemorytype type, const void* host, CUdeviceptr device, u64 offset, Layout layout, u64 width, u64 rows,
              u64 planes) {
    if (type == CU_MEMORYTYPE_ARRAY || !width || !rows || !planes) return array(width * rows * planes);
    u64 begin = (type == CU_MEMORYTYPE_HOST ? address_of(host) : u64(device)) + offset;
    Side side = type == CU_MEMORYTYPE_DEVICE ? Side::Device : Side::Unknown;
    u64 pitch = layout.pitch ? layout.pitch : width, height = layout.height ? layout.height : rows;
    u64 bytes = ((planes - 1) * height + rows - 1) * pitch + width;
    bool gaps = bytes != width * rows * planes, has_planes = gaps && planes > 1 && height != rows;
    return {begin, bytes, gaps && !has_planes ? Rows{pitch, width} : Rows{}, has_planes, side};
}

void copy_2d(const Call& call, const CUDA_MEMCPY2D& c, CUstream stream, Form form) {
    Extent target = extent(c.dstMemoryType, c.dstHost, c.dstDevice, c.dstY * c.dstPitch + c.dstXInBytes,
                           {c.dstPitch, 0}, c.WidthInBytes, c.Height, 1);
    Extent source = extent(c.srcMemoryType, c.srcHost, c.srcDevice, c.srcY * c.srcPitch + c.srcXInBytes,
                           {c.srcPitch, 0}, c.WidthInBytes, c.Height, 1);
    call.copy({target, source, stream, form});
}

template <class Parameters>  // of two devices or of one
void copy_3d(const Call& call, const Parameters& c, CUstream stream, Form form) {
    u64 to = (c.dstZ * c.dstHeight + c.dstY) * c.dstPitch + c.dstXInBytes;
    u64 from = (c.srcZ * c.srcHeight + c.srcY) * c.srcPitch + c.srcXInBytes;
    Extent target = extent(c.dstMemoryType, c.dstHost, c.dstDevice, to, {c.dstPitch, c.dstHeight}, c.WidthInBytes,
                           c.Height, c.Depth);
    Extent source = extent(c.srcMemoryType, c.srcHost, c.srcDevice, from, {c.srcPitch, c.srcHeight}, c.WidthInBytes,
                           c.Height, c.Depth);
    call.copy({target, source, stream, form});
}

using Attributes = CUmemcpyAttributes;

bool is_for_call(const Attributes& one) { return one.srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL; }

// True if the source of the copy with this index has been read when the call returns. Each attribute has the index of the
// first copy that it is for.
template <class Parameters>
bool is_read_in_call(const Parameters& p, std::size_t index) {
    if (!p.attrs || !p.numAttrs) return false;
    std::size_t one = 0;
    while (p.attrsIdxs && one + 1 < p.numAttrs && p.attrsIdxs[one + 1] <= index) one++;
    return is_for_call(static_cast<const Attributes*>(p.attrs)[one]);
}

// True if kernels reach all memory of the host, as with heterogeneous memory management: then one may write there.
bool kernels_reach_all(const Call& call) {
    static std::atomic<int> known{-1};
    if (known < 0) {
        Unlocked unlocked(call.front.lock);
        int value = 0;
        auto attribute = Driver::get().device_attribute;
        if (attribute) attribute(&value, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0);
        known = value;
    }
    return known;
}

// The newest operation on the stream reads pageable memory when it runs.
void note_late_read(const Call& call, CUstream handle, u64 begin, u64 bytes, bool sure) {
    Stream* on = host::is_on() && bytes ? call.stream(handle) : nullptr;
    if (!on || on->capture || where_is(call, {begin, bytes}) != Where::Pageable) return;
    Engine& engine = call.front.engine();
    u64 number = engine.read_late(*on, call.what, on->now(), begin, begin + bytes, sure);
    host::read_late(number, begin, begin + bytes, on->now());
    call.thread.changes.late_reads.push_back(number);
}

// `p` has a list of copies, and of their attributes.
template <class Parameters>
void copy_batch(const Call& call, const Parameters& p) {
    auto* attributes = static_cast<const Attributes*>(p.attrs);
    bool in_call = std::any_of(attributes, attributes + (attributes ? p.numAttrs : 0), is_for_call);
    bool waits = std::any_of(p.srcs, p.srcs + p.count, [&](CUdeviceptr source) {
        return !call.front.is_on_device(source) && (in_call || !call.front.find_pinned(source));
    });
    Stream* on = waits ? call.stream(p.hStream) : nullptr;
    if (on && !on->capture) call.front.engine().host_may_learn(call.front.engine().queued_on(*on));
    bool sure = host::is_on() && !kernels_reach_all(call);
    for (std::size_t i = 0; i < p.count; i++) {
        bool has_read = is_read_in_call(p, i);
        call.copy({{p.dsts[i], p.sizes[i]}, {p.srcs[i], p.sizes[i]}, p.hStream, Form::Attributes, has_read});
        if (!has_read) note_late_read(call, p.hStream, p.srcs[i], p.sizes[i], sure);
    }
}

void add_async_copies(Calls& calls) {
    BEFORE_BOTH(cuMemcpyHtoDAsync_v2, _ptsz) {
        call.copy({on_device(p.dstDevice, p.ByteCount), on_host(p.srcHost, p.ByteCount), p.hStream, Form::Async});
    });
    BEFORE_BOTH(cuMemcpyDtoHAsync_v2, _ptsz) {
        call.copy({on_host(p.dstHost, p.ByteCount), on_device(p.srcDevice, p.ByteCount), p.hStream, Form::Async});
    });
    BEFORE_BOTH(cuMemcpyDtoDAsync_v2, _ptsz) {
        call.copy({on_device(p.dstDevice, p.ByteCount), on_device(p.srcDevice, p.ByteCount), p.hStream, Form::Async});
    });
    BEFORE_BOTH(cuMemcpyAsync, _ptsz) { copy_bytes(call, p.dst, p.src, p.ByteCount, p.hStream, Form::Async); });
    BEFORE_BOTH(cuMemcpyPeerAsync, _ptsz) {
        call.copy({on_device(p.dstDevice, p.ByteCount), on_device(p.srcDevice, p.ByteCount), p.hStream, Form::Async});
    });
    BEFORE_BOTH(cuMemcpy2DAsync_v2, _ptsz) { copy_2d(call, *p.pCopy, p.hStream, Form::Async); });
    BEFORE_BOTH(cuMemcpy3DAsync_v2, _ptsz) { copy_3d(call, *p.pCopy, p.hStream, Form::Async); });
    BEFORE_BOTH(cuMemcpy3DPeerAsync, _ptsz) { copy_3d(call, *p.pCopy, p.hStream, Form::Async); });
    BEFORE_BOTH(cuMemcpyBatchAsync, _ptsz) { copy_batch(call, p); });
    calls.before<newer::cuMemcpyBatchAsync_params>(
        {"cuMemcpyBatchAsync", newer::kMemcpyBatchAsync, newer::kMemcpyBatchAsyncPtsz},
        [](const Call& call, const newer::cuMemcpyBatchAsync_params& p) { copy_batch(call, p); });
    calls.before<newer::cuMemcpyWithAttributesAsync_params>(
        {"cuMemcpyWithAttributesAsync", newer::kMemcpyWithAttributesAsync, newer::kMemcpyWithAttributesAsyncPtsz},
        [](const Call& call, const newer::cuMemcpyWithAttributesAsync_params& p) {
            CUdeviceptr target = p.dst, source = p.src;
            size_t bytes = p.size;
            copy_batch(call,
                       newer::cuMemcpyBatchAsync_params{&target, &source, &bytes, 1, p.attr, nullptr, 1, p.hStream});
        });
    for (auto entry : {ENTRIES(cuMemcpy3DBatchAsync, _ptsz), ENTRIES(cuMemBatchDecompressAsync, _ptsz)})
        calls.unseen(entry);
    for (const Calls::Entry& entry : newer::kUnseenCopies) calls.unseen(entry);
}

void add_sync_copies(Calls& calls) {
    BEFORE_BOTH(cuMemcpyHtoD_v2, _ptds) {
        call.copy({on_device(p.dstDevice, p.ByteCount), on_host(p.srcHost, p.ByteCount), nullptr, Form::Sync});
    });
    BEFORE_BOTH(cuMemcpyDtoH_v2, _ptds) {
        call.copy({on_host(p.dstHost, p.ByteCount), on_device(p.srcDevice, p.ByteCount), nullptr, Form::Sync});
    });
    BEFORE_BOTH(cuMemcpyDtoD_v2, _ptds) {
        call.copy({on_device(p.dstDevice, p.ByteCount), on_device(p.srcDevice, p.ByteCount), nullptr, Form::Sync});
    });
    BEFORE_BOTH(cuMemcpy, _ptds) { copy_bytes(call, p.dst, p.src, p.ByteCount, nullptr, Form::Sync); });
    BEFORE_BOTH(cuMemcpyPeer, _ptds) {
        call.copy({on_device(p.dstDevice, p.ByteCount), on_device(p.srcDevice, p.ByteCount), nullptr, Form::Sync});
    });
    BEFORE_BOTH(cuMemcpy2D_v2, _ptds) { copy_2d(call, *p.pCopy, nullptr, Form::Sync); });
    BEFORE_BOTH(cuMemcpy2DUnaligned_v2, _ptds) { copy_2d(call, *p.pCopy, nullptr, Form::Sync); });
    BEFORE_BOTH(cuMemcpy3D_v2, _ptds) { copy_3d(call, *p.pCopy, nullptr, Form::Sync); });
    BEFORE_BOTH(cuMemcpy3DPeer, _ptds) { copy_3d(call, *p.pCopy, nullptr, Form::Sync); });
}

void add_copies_of_arrays(Calls& calls) {
    BEFORE_BOTH(cuMemcpyDtoA_v2, _ptds) {
        call.copy({array(p.ByteCount), on_device(p.srcDevice, p.ByteCount), nullptr, Form::Sync});
    });
    BEFORE_BOTH(cuMemcpyAtoD_v2, _ptds) {
        call.copy({on_device(p.dstDevice, p.ByteCount), array(p.ByteCount), nullptr, Form::Sync});
    });
    BEFORE_BOTH(cuMemcpyHtoA_v2, _ptds) {
        call.copy({array(p.ByteCount), on_host(p.srcHost, p.ByteCount), nullptr, Form::Sync});
    });
    BEFORE_BOTH(cuMemcpyAtoH_v2, _ptds) {
        call.copy({on_host(p.dstHost, p.ByteCount), array(p.ByteCount), nullptr, Form::Sync});
    });
    BEFORE_BOTH(cuMemcpyAtoA_v2, _ptds) { call.copy({array(p.ByteCount), array(p.ByteCount), nullptr, Form::Sync}); });
    BEFORE_BOTH(cuMemcpyHtoAAsync_v2, _ptsz) {
        call.copy({array(p.ByteCount), on_host(p.srcHost, p.ByteCount), p.hStream, Form::Async});
    });
    BEFORE_BOTH(cuMemcpyAtoHAsync_v2, _ptsz) {
        call.copy({on_host(p.dstHost, p.ByteCount), array(p.ByteCount), p.hStream, Form::Async});
    });
}

}  // namespace

void add_copies(Calls& calls) {
    add_async_copies(calls);
    add_sync_copies(calls);
    add_copies_of_arrays(calls);
}

namespace {

Extent rows(u64 begin, u64 pitch, u64 width, u64 height) {
    return {begin, width && height ? pitch * (height - 1) + width : 0, rows_of(pitch, width, height)};
}

}  // namespace

// The width of a fill counts elements; the letters of its name are their bits.
#define FILLS(bits) \
    BEFORE_BOTH(cuMemsetD##bits##_v2, _ptds) { call.fill({p.dstDevice, p.N * (bits / 8)}, nullptr, Form::Sync); }); \
    BEFORE_BOTH(cuMemsetD##bits##Async, _ptsz) { call.fill({p.dstDevice, p.N * (bits / 8)}, p.hStream); }); \
    BEFORE_BOTH(cuMemsetD2D##bits##_v2, _ptds) { \
        call.fill(rows(p.dstDevice, p.dstPitch, p.Width * (bits / 8), p.Height), nullptr, Form::Sync); \
    }); \
    BEFORE_BOTH(cuMemsetD2D##bits##Async, _ptsz) { \
        call.fill(rows(p.dstDevice, p.dstPitch, p.Width * (bits / 8), p.Height), p.hStream); \
    });

void add_fills(Calls& calls) {
    FILLS(8)
    FILLS(16)
    FILLS(32)
}

}  // namespace check
