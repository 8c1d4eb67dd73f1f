// Streams, events, and waits of the host.
#include "callers.hpp"
#include "calls.hpp"
#include "driver.hpp"
#include "newer.hpp"

#include <algorithm>

namespace check {

Stream* Call::stream(CUstream handle) const {
    u64 number = u64(handle);
    if (!number && own_default) number = Handles::kPerThread;
    Stream* found = front.find_stream(number, {context(), thread.number}, what.site);
    return found ? found : front.handles().stream(number, {context(), thread.number}, what);
}

namespace {

u64 handle(CUstream stream) { return u64(stream); }
u64 handle(CUevent event) { return u64(event); }

bool is_alive(const Call& call, CUevent event) { return call.front.handles().is_alive(handle(event), call.what); }

}  // namespace

void Call::record(CUevent event, CUstream handle_of_stream) const {
    if (!is_alive(*this, event)) return;
    Stream* on = stream(handle_of_stream);
    if (!on) return;
    thread.changes.fed.push_back({on, what, front.engine().record(handle(event), *on, what)});
    thread.changes.recorded.push_back(handle(event));
}

namespace {

void create(const Call& call, CUstream stream, unsigned flags) {
    std::string library;
    {
        Unlocked unlocked(call.front.lock);  // looking at the native stack takes locks of the loader's
        library = library_of_caller();
    }
    u32 name = call.front.engine().name(library);
    call.front.handles().create_stream(handle(stream), call.context(),
                                       {!(flags & CU_STREAM_NON_BLOCKING), name, call.what.site});
}

// External events are nodes of a graph, which wait and record when the graph is launched: they are not modelled.
void wait(const Call& call, CUstream stream, CUevent event, unsigned flags) {
    if (!is_alive(call, event)) return;
    Stream* on = call.stream(stream);
    if (!on) return;
    bool external = flags & CU_EVENT_WAIT_EXTERNAL && on->capture;
    if (!external) call.front.engine().wait(*on, handle(event), call.what);
    if (external || call.front.is_foreign(handle(event))) call.front.engine().wait_unseen(*on);
}

void record_with_flags(const Call& call, CUevent event, CUstream stream, unsigned flags) {
    Stream* on = flags & CU_EVENT_RECORD_EXTERNAL ? call.stream(stream) : nullptr;
    if (!on || !on->capture)
        call.record(event, stream);
    else if (is_alive(call, event))
        call.front.add_foreign_event(handle(event));
}

// The engine cannot know what lets the stream go on.
void wait_unseen(const Call& call, CUstream stream) {
    if (Stream* on = call.stream(stream)) call.front.engine().wait_unseen(*on);
    call.front.count_unseen(call.what.name);
}

// Programs look at memory of the host until the value is there.
void show_host(const Call& call, CUdeviceptr target, Stream& on) {
    if (!on.capture && !call.front.is_on_device(target))
        call.front.engine().host_may_learn(call.front.engine().queued_on(on));
}

void write_value(const Call& call, CUdeviceptr target, u64 bytes, CUstream stream) {
    Stream* on = call.stream(stream);
    if (!on) return;
    call.fill({target, bytes}, stream);
    show_host(call, target, *on);
}

// Writes of values, and waits for them, that one call makes.
struct ValueBatch {
    const CUstreamBatchMemOpParams* all;
    unsigned count;

    bool is_known() const { return all && count <= 256; }  // else the driver refuses
    bool waits() const {
        return std::any_of(all, all + count, [](const CUstreamBatchMemOpParams& one) {
            return one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 || one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
        });
    }
};

template <class Visit>
void each_write(const ValueBatch& batch, Visit&& visit) {
    for (unsigned i = 0; i < batch.count; i++) {
        const auto& one = batch.all[i].writeValue;
        if (one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32) visit(one.address, 4);
        if (one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64) visit(one.address, 8);
    }
}

// What comes after a wait may be ordered by it: the writes of a batch that waits are not compared.
void write_values(const Call& call, const ValueBatch& batch, CUstream stream) {
    if (!batch.is_known() || batch.waits()) return;
    each_write(batch, [&](CUdeviceptr at, u64 bytes) { write_value(call, at, bytes, stream); });
}

void wait_for_values(const Call& call, const ValueBatch& batch, CUstream stream) {
    if (!batch.is_known() || !batch.waits()) return;
    wait_unseen(call, stream);
    Stream* on = call.stream(stream);
    each_write(batch, [&](CUdeviceptr at, u64) {
        if (on) show_host(call, at, *on);
    });
}

// The function may let the program know that earlier work of the stream is done.
void call_host(const Call& call, CUstream stream) {
    Stream* on = call.stream(stream);
    if (!on) return;
    call.front.engine().work(*on, call.what);
    if (!on->capture) call.front.engine().host_may_learn(call.front.engine().queued_on(*on));
}

// Work of its stream that touches no byte, and is ordered as any other.
void touch_nothing(const Call& call, CUstream stream) {
    if (Stream* on = call.stream(stream)) call.front.engine().work(*on, call.what);
}

void wait_for(const Call& call, CUevent event) {
    if (is_alive(call, event)) call.wait_for(call.front.engine().recorded(handle(event)));
}

void wait_for_both(const Call& call, CUevent start, CUevent end) {
    if (!is_alive(call, start) || !is_alive(call, end)) return;
    Clock both = call.front.engine().recorded(handle(start));
    both.join(call.front.engine().recorded(handle(end)));
    call.wait_for(std::move(both));
}

void wait_for(const Call& call, CUstream stream) {
    Stream* on = call.stream(stream);
    if (!on) return;
    call.front.engine().host_awaits(*on);
    call.wait_for(call.front.engine().queued_on(*on));
}

// A query of the legacy stream that succeeds promises nothing about the blocking streams, and a driver may wait for them.
void found_done(const Call& call, CUstream stream) {
    if (Stream* on = call.stream(stream)) call.find_done(Clock(call.front.engine().queued(*on)));
}
void perhaps_done(const Call& call, CUstream stream) {
    if (call.thread.queries == XLOGMEM_CHECK_OF_BUFFERS) return;
    Stream* on = call.stream(stream);
    if (on && on->legacy) call.front.engine().host_may_learn(call.front.engine().queued_on(*on));
}

void add_streams(Calls& calls) {
    AFTER(cuStreamCreate) { create(call, *p.phStream, p.Flags); });
    AFTER(cuStreamCreateWithPriority) { create(call, *p.phStream, p.flags); });
    AFTER(cuGreenCtxStreamCreate) { create(call, *p.phStream, p.flags); });
    BEFORE(cuStreamDestroy_v2) {
        call.thread.changes.doomed_stream = call.front.handles().doomed_stream(handle(p.hStream), call.what);
    });
    AFTER(cuStreamDestroy_v2) {
        call.front.handles().end_stream(handle(p.hStream), call.thread.changes.doomed_stream, call.what);
    });
    AFTER_BOTH(cuStreamWaitEvent, _ptsz) { wait(call, p.hStream, p.hEvent, p.Flags); });
    // Destroyed handles are reported where the driver refuses them, too.
    FAILED_BOTH(cuStreamWaitEvent, _ptsz) { is_alive(call, p.hEvent) && call.stream(p.hStream); });
    AFTER_BOTH(cuStreamWaitValue32, _ptsz) { wait_unseen(call, p.stream); });
    AFTER_BOTH(cuStreamWaitValue64, _ptsz) { wait_unseen(call, p.stream); });
    BEFORE_BOTH(cuStreamBatchMemOp, _ptsz) { write_values(call, {p.paramArray, p.count}, p.stream); });
    AFTER_BOTH(cuStreamBatchMemOp, _ptsz) { wait_for_values(call, {p.paramArray, p.count}, p.stream); });
    BEFORE_BOTH(cuStreamWriteValue32, _ptsz) { write_value(call, p.addr, 4, p.stream); });
    BEFORE_BOTH(cuStreamWriteValue64, _ptsz) { write_value(call, p.addr, 8, p.stream); });
    AFTER_BOTH(cuStreamWaitValue32_v2, _ptsz) { wait_unseen(call, p.stream); });
    AFTER_BOTH(cuStreamWaitValue64_v2, _ptsz) { wait_unseen(call, p.stream); });
    BEFORE_BOTH(cuStreamBatchMemOp_v2, _ptsz) { write_values(call, {p.paramArray, p.count}, p.stream); });
    AFTER_BOTH(cuStreamBatchMemOp_v2, _ptsz) { wait_for_values(call, {p.paramArray, p.count}, p.stream); });
    AFTER_BOTH(cuWaitExternalSemaphoresAsync, _ptsz) { wait_unseen(call, p.stream); });
    BEFORE_BOTH(cuStreamWriteValue32_v2, _ptsz) { write_value(call, p.addr, 4, p.stream); });
    BEFORE_BOTH(cuStreamWriteValue64_v2, _ptsz) { write_value(call, p.addr, 8, p.stream); });
    BEFORE_BOTH(cuLaunchHostFunc, _ptsz) { call_host(call, p.hStream); });
    BEFORE_BOTH(cuStreamAddCallback, _ptsz) { call_host(call, p.hStream); });
    AFTER_BOTH(cuMemPrefetchAsync, _ptsz) { touch_nothing(call, p.hStream); });
    AFTER_BOTH(cuMemPrefetchAsync_v2, _ptsz) { touch_nothing(call, p.hStream); });
    AFTER_BOTH(cuStreamAttachMemAsync, _ptsz) { touch_nothing(call, p.hStream); });
    calls.before<newer::cuLaunchHostFunc_params>(
        {"cuLaunchHostFunc", newer::kLaunchHostFunc, newer::kLaunchHostFuncPtsz},
        [](const Call& call, const newer::cuLaunchHostFunc_params& p) { call_host(call, p.hStream); });
}

// The last release of a primary context ends it. References of CUDA's runtime are not seen, so the driver has to say
// whether it has ended; meanwhile another thread may have made it anew.
void release(const Call& call, CUdevice device) {
    Front::Primary before = call.front.primary(device);
    u32 number = call.front.number_of(before.context);
    unsigned flags = 0;
    int active = 1;
    {
        Unlocked unlocked(call.front.lock);
        auto* state = Driver::get().primary_state;
        if (!state || state(device, &flags, &active) != CUDA_SUCCESS) return;
    }
    bool is_same =
        (call.front.primary(device).retained == before.retained) && call.front.number_of(before.context) == number;
    if (!active && is_same) call.front.end_context(before.context, call.what);
}

void add_contexts(Calls& calls) {
    AFTER(cuGreenCtxCreate) { call.front.note_green(); });
    AFTER(cuDevicePrimaryCtxRetain) { call.front.note_primary(p.dev, *p.pctx); });
    for (auto entry : {ENTRY(cuCtxDestroy), ENTRY(cuCtxDestroy_v2)})
        calls.after<cuCtxDestroy_v2_params>(
            entry, [](const Call& call, const cuCtxDestroy_v2_params& p) { call.front.end_context(p.ctx, call.what); });
    for (auto entry : {ENTRY(cuDevicePrimaryCtxReset), ENTRY(cuDevicePrimaryCtxReset_v2)})
        calls.after<cuDevicePrimaryCtxReset_v2_params>(
            entry, [](const Call& call, const cuDevicePrimaryCtxReset_v2_params& p) {
                call.front.end_context(call.front.primary(p.dev).context, call.what);
            });
    for (auto entry : {ENTRY(cuDevicePrimaryCtxRelease), ENTRY(cuDevicePrimaryCtxRelease_v2)})
        calls.after<cuDevicePrimaryCtxRelease_v2_params>(
            entry, [](const Call& call, const cuDevicePrimaryCtxRelease_v2_params& p) { release(call, p.dev); });
}

void add_events(Calls& calls) {
    AFTER(cuEventCreate) { call.front.handles().create_event(handle(*p.phEvent), call.context()); });
    AFTER(cuIpcGetEventHandle) { call.front.add_foreign_event(handle(p.event)); });
    AFTER(cuIpcOpenEventHandle) {
        call.front.handles().create_event(handle(*p.phEvent), call.context());
        call.front.add_foreign_event(handle(*p.phEvent));
    });
    BEFORE(cuEventDestroy_v2) {
        call.thread.changes.doomed_event = call.front.handles().doomed_event(handle(p.hEvent), call.what);
    });
    AFTER(cuEventDestroy_v2) {
        if (call.front.handles().end_event(handle(p.hEvent), call.thread.changes.doomed_event, call.what))
            call.front.drop_event(handle(p.hEvent));
    });
    BEFORE_BOTH(cuEventRecord, _ptsz) { call.record(p.hEvent, p.hStream); });
    BEFORE_BOTH(cuEventRecordWithFlags, _ptsz) { record_with_flags(call, p.hEvent, p.hStream, p.flags); });
    for (auto entry : {ENTRY(cuCtxRecordEvent), ENTRY(cuCtxWaitEvent), ENTRY(cuGreenCtxRecordEvent),
                       ENTRY(cuGreenCtxWaitEvent), ENTRY(cuEventCreateFromEGLSync)})
        calls.unseen(entry);
}

// A query of the program's that succeeds says as much as a wait.
void add_host(Calls& calls) {
    BEFORE(cuEventSynchronize) { wait_for(call, p.hEvent); });
    BEFORE(cuEventQuery) {
        if (is_alive(call, p.hEvent)) call.find_done(call.front.engine().recorded(handle(p.hEvent)));
    });
    BEFORE(cuEventElapsedTime) { wait_for_both(call, p.hStart, p.hEnd); });
    BEFORE(cuEventElapsedTime_v2) { wait_for_both(call, p.hStart, p.hEnd); });
    BEFORE_BOTH(cuStreamSynchronize, _ptsz) { wait_for(call, p.hStream); });
    BEFORE_BOTH(cuStreamQuery, _ptsz) { found_done(call, p.hStream); });
    AFTER_BOTH(cuStreamQuery, _ptsz) { perhaps_done(call, p.hStream); });
    calls.before<int>(ENTRY(cuCtxSynchronize),
                      [](const Call& call, const int&) { call.wait_for(call.front.queued_in(call.context())); });
    calls.before<newer::cuCtxSynchronize_params>(
        {"cuCtxSynchronize", newer::kCtxSynchronize}, [](const Call& call, const newer::cuCtxSynchronize_params& p) {
            // Contexts are known by the number that CUPTI gives the current context; for another context too much is
            // ordered.
            bool current = !p.ctx || p.ctx == call.data.context;
            call.wait_for(current ? call.front.queued_in(call.context()) : call.front.engine().queued());
        });
}

}  // namespace

void add_order(Calls& calls) {
    add_streams(calls);
    add_contexts(calls);
    add_events(calls);
    add_host(calls);
}

}  // namespace check
