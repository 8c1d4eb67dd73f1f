// Entry points: copies in batches, with attributes.
//
// The host learns nothing from the call. When a source is read, its attribute says:
//   STREAM           in the order of the stream, pageable memory too: the program has to keep it until then.
//   DURING_API_CALL  before the call returns, whatever the stream has yet to do: nothing that is queued later is beside
//                    that. Memory that is not the host's is read here when the operation runs.
//   ANY              at any time. Here in the order of the stream, so after the call.
// On an H100 a call that reads pageable memory, or page-locked memory during the call, waits for work that was queued
// before it; so the host may have learned of that work.
// A capturing stream refuses the call, and goes on capturing (seen with CUDA 13: RMM's issue 2518).
#include "calls.hpp"
#include "capture.hpp"
#include "copies.hpp"
#include "watch.hpp"

#include <algorithm>

using namespace sim;

namespace {

struct Batch {
    CUdeviceptr *targets, *sources;
    size_t *sizes, count;
    const CUmemcpyAttributes* attributes;
    const size_t* firsts;  // the first copy of each
    size_t attribute_count;

    Side target(size_t i) const { return {targets[i], false, sizes[i]}; }
    Side source(size_t i) const { return {sources[i], false, sizes[i]}; }
    CUmemcpySrcAccessOrder order(size_t i) const {
        const size_t* next = std::upper_bound(firsts, firsts + attribute_count, i);
        return attributes[next - firsts - 1].srcAccessOrder;
    }
    // In memory of the host: pageable or page-locked.
    bool is_on_host(size_t i) const { return !memory().in_arena(sources[i]) && !is_managed(sources[i]); }
    Source reading(size_t i) const {
        if (order(i) != CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL) return Source::InOrder;
        return is_on_host(i) ? Source::Now : Source::AsNow;
    }
};

bool is_valid(const CUmemcpyAttributes& one) {
    int order = one.srcAccessOrder;
    return order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY &&
           !(one.flags & ~unsigned(CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE));
}

CUresult check_lists(const Batch& batch) {
    if (!batch.targets || !batch.sources || !batch.sizes || !batch.count) return CUDA_ERROR_INVALID_VALUE;
    if (!batch.attributes || !batch.firsts || !batch.attribute_count || batch.attribute_count > batch.count)
        return CUDA_ERROR_INVALID_VALUE;
    if (batch.firsts[0]) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < batch.attribute_count; i++) {
        if (!is_valid(batch.attributes[i]) || batch.firsts[i] >= batch.count) return CUDA_ERROR_INVALID_VALUE;
        if (i && batch.firsts[i] <= batch.firsts[i - 1]) return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

// See above. This goes to the engine before the copies do.
void note_perhaps_waited(const Batch& batch, Stream* stream) {
    bool in_call = std::any_of(
        batch.attributes, batch.attributes + batch.attribute_count,
        [](const CUmemcpyAttributes& one) { return one.srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL; });
    for (size_t i = 0; i < batch.count; i++)
        if (batch.is_on_host(i) && (in_call || !is_pinned(batch.sources[i])))
            return host_may_learn(driver().engine.queued_on(*stream->order));
}

CUresult copy_batch(Lock& lock, const Batch& batch, size_t* failed, CUstream handle) {
    Stream* stream;
    *failed = SIZE_MAX;
    REFUSE_IF(find_stream(handle, &stream));
    REFUSE_IF(check_lists(batch));
    if (stream->is_legacy()) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    for (size_t i = 0; i < batch.count; i++) {
        if (!batch.sizes[i]) continue;
        *failed = i;
        REFUSE_IF(check_copy(stream->context, batch.target(i), batch.source(i), Peers::Checked));
    }
    *failed = SIZE_MAX;
    note_perhaps_waited(batch, stream);
    std::vector<Work> all;  // read now, before a full queue makes the call wait
    for (size_t i = 0; i < batch.count; i++) {
        if (batch.sizes[i]) all.push_back(work_of_copy(batch.target(i), batch.source(i), batch.reading(i)));
    }
    for (Work& work : all) REFUSE_IF(submit(lock, stream, std::move(work)));
    return CUDA_SUCCESS;
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
