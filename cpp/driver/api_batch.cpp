// Entry points: copies with attributes, one or a batch.
//
// The host learns nothing from the call. When a source is read, its attribute says:
//   STREAM           in the order of the stream, pageable memory too: the program has to keep it until then.
//   DURING_API_CALL  before the call returns, whatever the stream has yet to do: nothing that is queued later is beside
//                    that. Memory that is not the host's is read here when the operation runs.
//   ANY              at any time. Here in the order of the stream, so after the call.
// On an H100 a call that reads pageable memory, or page-locked memory during the call, waits for work that was queued
// before it; so the host may have learned of that work.
// A capturing stream refuses a batch, and goes on capturing (seen with CUDA 13: RMM's issue 2518). For one copy with
// attributes nothing says otherwise: it is refused too.
#include "arrays.hpp"
#include "calls.hpp"
#include "capture.hpp"
#include "watch.hpp"

#include <algorithm>

using namespace sim;

namespace {

struct Copy {
    Side to, from;
    CUmemcpySrcAccessOrder order;
    unsigned flags;

    bool is_empty() const { return !to.width || !to.height || !to.depth; }
    bool is_valid() const {
        return order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY &&
               !(flags & ~unsigned(CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE));
    }
    bool in_call() const { return order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL; }
    // In memory of the host: pageable or page-locked.
    bool is_on_host() const { return !memory().in_arena(from.begin) && !is_managed(from.begin); }
    // Pageable memory, which is read later. Of rows with gaps between them the gaps are the program's.
    bool is_read_late() const { return !in_call() && where_is(from) == check::Where::Pageable && !from.has_gaps(); }
    Source reading() const {
        if (!in_call()) return Source::InOrder;
        return is_on_host() ? Source::Now : Source::AsNow;
    }
};
using Copies = std::vector<Copy>;

// The lists of a batch, as the caller has them: attributes, and the first copy of each.
struct Batch {
    CUdeviceptr *targets, *sources;
    size_t *sizes, count;
    const CUmemcpyAttributes* attributes;
    const size_t* firsts;
    size_t attribute_count;

    Copy copy(size_t i) const {
        const size_t* next = std::upper_bound(firsts, firsts + attribute_count, i);
        const CUmemcpyAttributes& its = attributes[next - firsts - 1];
        return {{targets[i], false, sizes[i]}, {sources[i], false, sizes[i]}, its.srcAccessOrder, its.flags};
    }
};

CUresult check_lists(const Batch& batch) {
    if (!batch.targets || !batch.sources || !batch.sizes || !batch.count) return CUDA_ERROR_INVALID_VALUE;
    if (!batch.attributes || !batch.firsts || !batch.attribute_count || batch.attribute_count > batch.count)
        return CUDA_ERROR_INVALID_VALUE;
    if (batch.firsts[0]) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < batch.attribute_count; i++) {
        if (batch.firsts[i] >= batch.count) return CUDA_ERROR_INVALID_VALUE;
        if (i && batch.firsts[i] <= batch.firsts[i - 1]) return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

// See above. This goes to the engine before the copies do.
void note_perhaps_waited(const Copies& copies, Stream* stream) {
    bool in_call = std::any_of(copies.begin(), copies.end(), [](const Copy& one) { return one.in_call(); });
    for (const Copy& one : copies)
        if (one.is_on_host() && (in_call || !is_pinned(one.from.begin)))
            return host_may_learn(driver().engine.queued_on(*stream->order));
}

CUresult copy_all(Lock& lock, const Copies& copies, size_t* failed, Stream* stream) {
    for (const Copy& one : copies)
        if (!one.is_valid()) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    for (size_t i = 0; i < copies.size(); i++) {
        if (copies[i].is_empty()) continue;
        *failed = i;
        REFUSE_IF(check_copy(stream->context, copies[i].to, copies[i].from, Peers::Checked));
    }
    *failed = SIZE_MAX;
    note_perhaps_waited(copies, stream);
    std::vector<std::pair<const Copy*, Work>> all;  // read now, before a full queue makes the call wait
    for (const Copy& one : copies)
        if (!one.is_empty()) all.emplace_back(&one, work_of_copy(one.to, one.from, one.reading()));
    for (auto& [one, work] : all) {
        Position position;
        REFUSE_IF(submit(lock, stream, std::move(work), &position));
        if (one->is_read_late()) watch_late_read(stream, position.time, one->from.begin, one->from.bytes());
    }
    return CUDA_SUCCESS;
}

CUresult copy_batch(Lock& lock, const Batch& batch, size_t* failed, CUstream handle) {
    Stream* stream;
    Copies copies;
    *failed = SIZE_MAX;
    REFUSE_IF(find_stream(handle, &stream));
    REFUSE_IF(check_lists(batch));
    if (stream->is_legacy()) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < batch.count; i++) copies.push_back(batch.copy(i));
    return copy_all(lock, copies, failed, stream);
}

// Where one side is an array, the extent and the lengths of rows count its elements; else bytes.
size_t element_of(const CUmemcpy3DOperand& given) {
    const Array* array = given.type == CU_MEMCPY_OPERAND_TYPE_ARRAY ? arrays().get(given.op.array.array) : nullptr;
    return array ? array->element : 0;
}

// A length or a height of 0 is that of rows or layers without gaps.
CUresult side_of(const CUmemcpy3DOperand& given, const CUextent3D& extent, size_t element, Side* side) {
    size_t width = extent.width * element;
    if (given.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
        const CUoffset3D& at = given.op.array.offset;
        return side_of_array(given.op.array.array, {at.x * element, at.y, at.z}, width, extent.height, extent.depth,
                             side);
    }
    if (given.type != CU_MEMCPY_OPERAND_TYPE_POINTER) return CUDA_ERROR_INVALID_VALUE;
    size_t pitch = given.op.ptr.rowLength ? given.op.ptr.rowLength * element : width;
    size_t height = given.op.ptr.layerHeight ? given.op.ptr.layerHeight : extent.height;
    if (pitch < width || height < extent.height) return CUDA_ERROR_INVALID_VALUE;
    if (double(pitch) * double(height) * double(extent.depth) > 1e18) return CUDA_ERROR_INVALID_VALUE;
    *side = {given.op.ptr.ptr, false, width, extent.height, pitch, extent.depth, pitch * height};
    return CUDA_SUCCESS;
}

CUresult copy_of(const CUDA_MEMCPY3D_BATCH_OP& given, Copy* made) {
    const CUextent3D& extent = given.extent;
    if (!extent.width || !extent.height || !extent.depth) return CUDA_ERROR_INVALID_VALUE;
    *made = {{}, {}, given.srcAccessOrder, given.flags};
    size_t to = element_of(given.dst), from = element_of(given.src);
    if (to && from && to != from) return CUDA_ERROR_INVALID_VALUE;
    size_t element = std::max({to, from, size_t(1)});
    REFUSE_IF(side_of(given.dst, extent, element, &made->to));
    return side_of(given.src, extent, element, &made->from);
}

CUresult copy_planes_batch(Lock& lock, const CUDA_MEMCPY3D_BATCH_OP* given, size_t count, size_t* failed,
                           unsigned long long flags, Stream* stream) {
    Copies copies(count);
    if (!given || !count || flags) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        *failed = i;
        REFUSE_IF(copy_of(given[i], &copies[i]));
    }
    *failed = SIZE_MAX;
    return copy_all(lock, copies, failed, stream);
}

}  // namespace

EXPORT CUresult cuMemcpyBatchAsync(CUdeviceptr* targets, CUdeviceptr* sources, size_t* sizes, size_t count,
                                   CUmemcpyAttributes* attributes, size_t* firsts, size_t attribute_count,
                                   size_t* failed, CUstream stream) {
    size_t unwanted;
    return api_call(CALL("cuMemcpyBatchAsync"), [&](Lock& lock) {
        Batch batch{targets, sources, sizes, count, attributes, firsts, attribute_count};
        return copy_batch(lock, batch, failed ? failed : &unwanted, stream);
    });
}

// The form of CUDA 13.
EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* targets, CUdeviceptr* sources, size_t* sizes, size_t count,
                                      CUmemcpyAttributes* attributes, size_t* firsts, size_t attribute_count,
                                      CUstream stream) {
    return cuMemcpyBatchAsync(targets, sources, sizes, count, attributes, firsts, attribute_count, nullptr, stream);
}

EXPORT CUresult cuMemcpyWithAttributesAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes,
                                            CUmemcpyAttributes* attributes, CUstream handle) {
    return api_call(CALL("cuMemcpyWithAttributesAsync"), [&](Lock& lock) -> CUresult {
        Stream* stream;
        size_t failed;
        REFUSE_IF(find_stream(handle, &stream));
        if (!attributes) return CUDA_ERROR_INVALID_VALUE;
        Copy one{{target, false, bytes}, {source, false, bytes}, attributes->srcAccessOrder, attributes->flags};
        return copy_all(lock, {one}, &failed, stream);
    });
}

EXPORT CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP* given, size_t* failed,
                                     unsigned long long flags, CUstream handle) {
    size_t unwanted;
    return api_call(CALL("cuMemcpy3DBatchAsync"), [&](Lock& lock) -> CUresult {
        Stream* stream;
        REFUSE_IF(find_stream(handle, &stream));
        if (stream->is_legacy()) return CUDA_ERROR_INVALID_VALUE;
        return copy_planes_batch(lock, given, count, failed ? failed : &unwanted, flags, stream);
    });
}

// The form of CUDA 13.
EXPORT CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP* given, unsigned long long flags,
                                        CUstream handle) {
    return cuMemcpy3DBatchAsync(count, given, nullptr, flags, handle);
}

EXPORT CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP* given, unsigned long long flags,
                                              CUstream handle) {
    return api_call(CALL("cuMemcpy3DWithAttributesAsync"), [&](Lock& lock) -> CUresult {
        Stream* stream;
        size_t failed;
        REFUSE_IF(find_stream(handle, &stream));
        return copy_planes_batch(lock, given, 1, &failed, flags, stream);
    });
}
