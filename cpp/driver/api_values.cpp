// Entry points: values in memory that streams write and wait for.
//
// A write is an access as any other. What lets a wait go on, another stream or the host, the check cannot know: races of
// what the stream does later are possible at most. The writes of a batch that waits, too, are not compared.
// Programs look at memory of the host until a value is there, so a write there may let the host know what came before it.
#include "calls.hpp"
#include "capture.hpp"
#include "memory.hpp"
#include "watch.hpp"

#include "host/guard.hpp"

#include <algorithm>
#include <utility>

using namespace sim;

namespace {

constexpr unsigned kMostOfBatch = 256;

struct Value {
    u64 address, value;
    size_t width;
    unsigned flags;
    bool is_wait;

    bool is_on_host() const { return !memory().in_arena(address) && !is_managed(address); }
};

CUresult check_value(const Context* context, const Value& one) {
    unsigned last = one.is_wait ? unsigned(CU_STREAM_WAIT_VALUE_NOR) : unsigned(CU_STREAM_WRITE_VALUE_DEFAULT);
    if (one.is_wait && one.flags & CU_STREAM_WAIT_VALUE_FLUSH) return CUDA_ERROR_NOT_SUPPORTED;  // of few machines
    if (one.flags > last || one.address % one.width || !on_device(one.address, one.width))
        return CUDA_ERROR_INVALID_VALUE;
    Use use = one.is_wait ? Use::Read : Use::Write;
    return can_access(context, one.address, use) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool has_come(const Value& one) {
    if (!on_device(one.address, one.width)) return true;  // a graph's: the memory was freed, and the operation fails
    const u8* bytes = memory().view(one.address);
    bool wide = one.width == 8;
    u64 now = wide ? __atomic_load_n(reinterpret_cast<const u64*>(bytes), __ATOMIC_ACQUIRE)
                   : __atomic_load_n(reinterpret_cast<const u32*>(bytes), __ATOMIC_ACQUIRE);
    u64 mask = wide ? ~u64(0) : 0xffffffffu;
    switch (one.flags) {
        case CU_STREAM_WAIT_VALUE_EQ: return now == one.value;
        case CU_STREAM_WAIT_VALUE_AND: return now & one.value;
        case CU_STREAM_WAIT_VALUE_NOR: return ~(now | one.value) & mask;
        default: return !((now - one.value) & (mask ^ mask >> 1));  // "greater or equal", around the end
    }
}

Work work_of(const Value& one) {
    Work work;
    work.name = this_thread().call;
    if (one.is_wait) {
        work.until = [one] {
            check::host::OfDriver scope;
            return has_come(one);
        };
        work.run = [one] {
            if (!on_device(one.address, one.width)) fault(CUDA_ERROR_ILLEGAL_ADDRESS);
        };
        return work;
    }
    work.run = [one] {
        u8* bytes = memory().view(one.address);
        if (one.width == 8)
            __atomic_store_n(reinterpret_cast<u64*>(bytes), one.value, __ATOMIC_RELEASE);
        else
            __atomic_store_n(reinterpret_cast<u32*>(bytes), u32(one.value), __ATOMIC_RELEASE);
    };
    work.touches(one.address, one.width, Use::Write);
    return work;
}

CUresult use_values(Lock& lock, CUstream handle, const std::vector<Value>& all) {
    Stream* stream;
    REFUSE_IF(find_stream(handle, &stream));
    for (const Value& one : all) REFUSE_IF(check_value(stream->context, one));
    bool waits = std::any_of(all.begin(), all.end(), [](const Value& one) { return one.is_wait; });
    bool waited = false;  // once to the engine
    auto watch = [&] {
        if (!std::exchange(waited, true)) driver().engine.wait_unseen(*stream->order);
        return newest(stream);
    };
    for (const Value& one : all) {
        REFUSE_IF(waits ? submit(lock, stream, work_of(one), nullptr, watch) : submit(lock, stream, work_of(one)));
        if (!one.is_wait && one.is_on_host() && !stream->capture)
            host_may_learn(driver().engine.queued_on(*stream->order));
    }
    return CUDA_SUCCESS;
}

// One operation of a batch; a barrier and a flush order nothing that is not in order here.
CUresult add_operation(const CUstreamBatchMemOpParams& one, std::vector<Value>& all) {
    const auto& wait = one.waitValue;
    const auto& write = one.writeValue;
    switch (int(one.operation)) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32: all.push_back({wait.address, wait.value, 4, wait.flags, true}); break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_64: all.push_back({wait.address, wait.value64, 8, wait.flags, true}); break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_32: all.push_back({write.address, write.value, 4, write.flags, false}); break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_64:
            all.push_back({write.address, write.value64, 8, write.flags, false});
            break;
        case CU_STREAM_MEM_OP_BARRIER:
            return one.memoryBarrier.flags > CU_STREAM_MEMORY_BARRIER_TYPE_GPU ? CUDA_ERROR_INVALID_VALUE
                                                                               : CUDA_SUCCESS;
        case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: return CUDA_ERROR_NOT_SUPPORTED;  // of few machines
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

}  // namespace

#define VALUE(symbol, base, type, is_wait) \
    EXPORT CUresult symbol(CUstream stream, CUdeviceptr address, type value, unsigned flags) { \
        return api_call(CALL(base), [&](Lock& lock) { \
            return use_values(lock, stream, {{address, value, sizeof(value), flags, is_wait}}); \
        }); \
    }
VALUE(cuStreamWriteValue32_v2, "cuStreamWriteValue32", cuuint32_t, false)
VALUE(cuStreamWriteValue64_v2, "cuStreamWriteValue64", cuuint64_t, false)
VALUE(cuStreamWaitValue32_v2, "cuStreamWaitValue32", cuuint32_t, true)
VALUE(cuStreamWaitValue64_v2, "cuStreamWaitValue64", cuuint64_t, true)

EXPORT CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations,
                                      unsigned flags) {
    return api_call(CALL("cuStreamBatchMemOp"), [&](Lock& lock) -> CUresult {
        if (!count || count > kMostOfBatch || !operations || flags) return CUDA_ERROR_INVALID_VALUE;
        std::vector<Value> all;
        for (unsigned i = 0; i < count; i++) REFUSE_IF(add_operation(operations[i], all));
        return use_values(lock, stream, all);
    });
}
