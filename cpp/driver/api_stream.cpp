// Entry points: streams, events, host functions.
#include "calls.hpp"
#include "callers.hpp"
#include "capture.hpp"
#include "memory.hpp"
#include "watch.hpp"

using namespace sim;

namespace {

CUresult create(CUstream* handle, unsigned flags, int priority) {
    Context* context;
    if (!handle || flags & ~unsigned(CU_STREAM_NON_BLOCKING)) return CUDA_ERROR_INVALID_VALUE;
    REFUSE_IF(current_context(&context));
    *handle = made_for_program(context, flags, priority);
    return CUDA_SUCCESS;
}

// A query has found the work done that `clock` covers. `perhaps` may be done, too.
void found_done(Lock& lock, const check::Clock& clock, const check::Clock& perhaps = {}) {
    ThreadState& thread = this_thread();
    thread.learned = true;
    judge_host();
    if (thread.queries == XLOGMEM_CHECK_OF_BUFFERS) return driver().engine.host_pools_learn(clock);
    bool of_library = thread.queries == XLOGMEM_CHECK_OF_POOL;
    if (!of_library) {
        lock.unlock();  // looking at the native stack takes locks of the loader's
        of_library = check::is_query_of_library();
        lock.lock();
    }
    if (of_library) {
        driver().engine.host_pools_learn(clock);
        host_may_learn(clock);
    } else {
        host_learns(clock);
    }
    host_may_learn(perhaps);
}

CUresult query(Lock& lock, Stream* stream) {
    // A thread blocked on the stream's full queue blocks all other calls on that stream, queries too.
    while (stream->stalled && stream->queue.size() >= driver().config.queue_limit) wait_for_change(lock);
    u64 sequence = stream->queued;
    if (!stream->reached(sequence)) poll(lock, stream);
    if (!stream->reached(sequence)) return CUDA_ERROR_NOT_READY;
    // Of the blocking streams a query of the legacy stream promises nothing, and a driver may know of them too.
    found_done(lock, queued(stream), driver().engine.queued_on(*stream->order));
    trim_to_thresholds();
    return CUDA_SUCCESS;
}

CUresult wait_event(Lock& lock, Stream* stream, Event* event, unsigned flags) {
    if (flags & ~unsigned(CU_EVENT_WAIT_EXTERNAL)) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture || event->captured) return wait_in_capture(stream, event, flags & CU_EVENT_WAIT_EXTERNAL);
    if (event->at_launch) driver().engine.wait_unseen(*stream->order);
    if (!event->recorded) {
        watch_wait(stream, event->handle);
        return CUDA_SUCCESS;
    }
    REFUSE_IF(check_legacy_use(stream));
    make_room(lock, stream);
    wait_for(stream, event->position);
    watch_wait(stream, event->handle);
    if (driver().config.policy == Policy::Eager) advance(lock, stream);
    return CUDA_SUCCESS;
}

CUresult host_function(Lock& lock, CUstream handle, const char* name, std::function<void()> function) {
    Stream* stream;
    REFUSE_IF(find_stream(handle, &stream));
    Work work;
    work.name = name;
    work.run = std::move(function);
    work.host_function = true;
    REFUSE_IF(submit(lock, stream, std::move(work)));
    if (!stream->capture) host_may_learn(queued(stream));
    return CUDA_SUCCESS;
}

CUresult record(Lock& lock, CUevent handle, CUstream stream_handle, bool external = false) {
    Stream* stream;
    REFUSE_IF(find_stream(stream_handle, &stream));
    Event* event = made_event(handle);
    if (!event || event->context != stream->context->shared()) return CUDA_ERROR_INVALID_HANDLE;
    make_room(lock, stream);
    if (driver().events.get(handle) != event) return CUDA_ERROR_INVALID_HANDLE;  // destroyed while we waited
    return record_event(lock, event, stream, external);
}

// For calls that query a captured event: refused, and the capture is invalidated.
CUresult check_not_captured(Event* event) {
    if (!event->captured) return CUDA_SUCCESS;
    event->captured->invalidated = true;
    return CUDA_ERROR_CAPTURED_EVENT;
}

}  // namespace

EXPORT CUresult cuStreamCreate(CUstream* handle, unsigned flags) {
    return api_call(CALL("cuStreamCreate"), [&](Lock&) { return create(handle, flags, 0); });
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream* handle, unsigned flags, int priority) {
    return api_call(CALL("cuStreamCreateWithPriority"), [&](Lock&) { return create(handle, flags, priority); });
}

EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
    return api_call(CALL("cuStreamDestroy"), [&](Lock& lock) -> CUresult {
        Stream* stream = made_stream(handle);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        if (driver().config.version <= 13000) REFUSE_IF(check_attached(stream));
        leave_capture(lock, stream);
        note_destroyed(check::Kind::DeadStream, stream->handle, stream->id);
        driver().stream_handles.remove(stream->handle);
        end_stream(stream);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuStreamSynchronize(CUstream handle) {
    return api_call(CALL("cuStreamSynchronize"), [&](Lock& lock) -> CUresult {
        Stream* stream;
        REFUSE_IF(find_stream(handle, &stream));
        REFUSE_IF(check_not_capturing(stream));
        REFUSE_IF(check_legacy_use(stream));
        REFUSE_IF(check_unsafe_call());
        return synchronize_stream(lock, stream);
    });
}

EXPORT CUresult cuStreamQuery(CUstream handle) {
    return api_call(CALL("cuStreamQuery"), [&](Lock& lock) -> CUresult {
        Stream* stream;
        REFUSE_IF(find_stream(handle, &stream));
        REFUSE_IF(check_not_capturing(stream));
        REFUSE_IF(check_legacy_use(stream));
        REFUSE_IF(check_unsafe_call());
        return query(lock, stream);
    });
}

EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
    return api_call(CALL("cuStreamWaitEvent"), [&](Lock& lock) -> CUresult {
        Stream* stream;
        REFUSE_IF(find_stream(handle, &stream));
        Event* event = made_event(event_handle);
        if (!event) return CUDA_ERROR_INVALID_HANDLE;
        return wait_event(lock, stream, event, flags);
    });
}

// Questions about a stream: one shape for all of them.
#define STREAM_QUESTION(name, type, answer) \
    EXPORT CUresult name(CUstream handle, type* result) { \
        return api_call(CALL(#name), [&](Lock&) -> CUresult { \
            Stream* stream; \
            if (!result) return CUDA_ERROR_INVALID_VALUE; \
            REFUSE_IF(find_stream(handle, &stream)); \
            *result = answer; \
            return CUDA_SUCCESS; \
        }); \
    }
STREAM_QUESTION(cuStreamGetFlags, unsigned, stream->flags)
STREAM_QUESTION(cuStreamGetPriority, int, stream->priority)
STREAM_QUESTION(cuStreamGetCtx, CUcontext, stream->context->handle)
STREAM_QUESTION(cuStreamGetDevice, CUdevice, stream->context->device)

// They change nothing of what is ordered after what.
namespace {

bool is_of_streams(CUstreamAttrID attribute) {
    switch (int(attribute)) {
        case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
        case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN: return true;
        default: return false;
    }
}

}  // namespace

EXPORT CUresult cuStreamGetAttribute(CUstream handle, CUstreamAttrID attribute, CUstreamAttrValue* value) {
    return api_call(CALL("cuStreamGetAttribute"), [&](Lock&) -> CUresult {
        Stream* stream;
        if (!value || !is_of_streams(attribute)) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(find_stream(handle, &stream));
        auto found = stream->attributes.find(attribute);
        *value = {};
        if (attribute == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) value->syncPolicy = CU_SYNC_POLICY_AUTO;
        if (found != stream->attributes.end()) *value = found->second;
        if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = stream->priority;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuStreamSetAttribute(CUstream handle, CUstreamAttrID attribute, const CUstreamAttrValue* value) {
    return api_call(CALL("cuStreamSetAttribute"), [&](Lock&) -> CUresult {
        Stream* stream;
        if (!value || !is_of_streams(attribute)) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(find_stream(handle, &stream));
        stream->attributes[attribute] = *value;
        if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) stream->priority = value->priority;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuStreamCopyAttributes(CUstream target, CUstream source) {
    return api_call(CALL("cuStreamCopyAttributes"), [&](Lock&) -> CUresult {
        Stream *to, *from;
        REFUSE_IF(find_stream(target, &to));
        REFUSE_IF(find_stream(source, &from));
        to->attributes = from->attributes;
        to->priority = from->priority;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext* context, CUgreenCtx* green) {
    return api_call(CALL("cuStreamGetCtx"), [&](Lock&) -> CUresult {
        Stream* stream;
        if (!context) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(find_stream(handle, &stream));
        *context = stream->context->shared()->handle;
        if (green) *green = stream->context->green;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
    return api_call(CALL("cuStreamGetId"), [&](Lock&) -> CUresult {
        Stream* stream;
        if (!id) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(find_stream(handle, &stream));
        REFUSE_IF(check_not_capturing(stream));  // invalidates the capture, in relaxed mode too (seen on an H200)
        *id = stream->id;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
    return api_call(CALL("cuLaunchHostFunc"), [&](Lock& lock) -> CUresult {
        if (!function) return CUDA_ERROR_INVALID_VALUE;
        return host_function(lock, handle, "host function", [function, data] { function(data); });
    });
}

EXPORT CUresult cuLaunchHostFunc_v2(CUstream handle, CUhostFn function, void* data, unsigned) {
    return cuLaunchHostFunc(handle, function, data);
}

EXPORT CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback function, void* data, unsigned) {
    return api_call(CALL("cuStreamAddCallback"), [&](Lock& lock) -> CUresult {
        if (!function) return CUDA_ERROR_INVALID_VALUE;
        return host_function(lock, handle, "callback",
                             [function, handle, data] { function(handle, CUDA_SUCCESS, data); });
    });
}

EXPORT CUresult cuEventCreate(CUevent* handle, unsigned flags) {
    return api_call(CALL("cuEventCreate"), [&](Lock&) -> CUresult {
        constexpr unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
        Context* context;
        if (!handle || flags & ~known) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(current_context(&context));
        Event* event = new Event;
        event->context = context->shared();
        event->flags = flags;
        event->handle = driver().events.add(event);
        *handle = reinterpret_cast<CUevent>(event->handle);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
    return api_call(CALL("cuEventDestroy"), [&](Lock&) -> CUresult {
        Event* event = made_event(handle);
        if (!event) return CUDA_ERROR_INVALID_HANDLE;
        note_destroyed(check::Kind::DeadEvent, event->handle);
        driver().events.remove(event->handle);
        driver().engine.destroy_event(event->handle);
        delete event;  // queued waits hold the position that they wait for, not the event
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuEventRecord(CUevent handle, CUstream stream) {
    return api_call(CALL("cuEventRecord"), [&](Lock& lock) { return record(lock, handle, stream); });
}

EXPORT CUresult cuEventRecordWithFlags(CUevent handle, CUstream stream, unsigned flags) {
    return api_call(CALL("cuEventRecordWithFlags"),
                    [&](Lock& lock) { return record(lock, handle, stream, flags & CU_EVENT_RECORD_EXTERNAL); });
}

EXPORT CUresult cuEventQuery(CUevent handle) {
    return api_call(CALL("cuEventQuery"), [&](Lock& lock) -> CUresult {
        Event* event = made_event(handle);
        if (!event) return CUDA_ERROR_INVALID_HANDLE;
        REFUSE_IF(check_not_captured(event));
        REFUSE_IF(check_unsafe_call());
        if (!event->recorded) return CUDA_SUCCESS;
        Position position = event->position;
        check::Clock clock = driver().engine.recorded(event->handle);
        if (!position.stream->reached(position.sequence)) poll(lock, position.stream);
        if (!position.stream->reached(position.sequence)) return CUDA_ERROR_NOT_READY;
        found_done(lock, clock);
        trim_to_thresholds();
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuEventSynchronize(CUevent handle) {
    return api_call(CALL("cuEventSynchronize"), [&](Lock& lock) -> CUresult {
        Event* event = made_event(handle);
        if (!event) return CUDA_ERROR_INVALID_HANDLE;
        REFUSE_IF(check_not_captured(event));
        REFUSE_IF(check_unsafe_call());
        if (event->recorded) synchronize(lock, event->position, driver().engine.recorded(event->handle));
        return CUDA_SUCCESS;
    });
}

// "Time" is the number of operations executed, a thousand to the millisecond: it orders, it does not measure.
EXPORT CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start_handle, CUevent end_handle) {
    return api_call(CALL("cuEventElapsedTime"), [&](Lock&) -> CUresult {
        if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
        Event *start = made_event(start_handle), *end = made_event(end_handle);
        if (!start || !end || !start->time || !end->time) return CUDA_ERROR_INVALID_HANDLE;
        for (Event* event : {start, end})
            if (!event->position.stream->reached(event->position.sequence)) return CUDA_ERROR_NOT_READY;
        *milliseconds = float(*end->time - *start->time);
        return CUDA_SUCCESS;
    });
}
EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}
