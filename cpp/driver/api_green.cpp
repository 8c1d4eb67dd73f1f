// Entry points: green contexts, which have part of a device's multiprocessors and streams of their own. They share
// everything else with the primary context: memory, modules, events.
//
// Which multiprocessors a kernel gets changes nothing here, where kernels take no time.
#include "calls.hpp"
#include "capture.hpp"

#include <algorithm>
#include <cstring>

using namespace sim;

namespace {

constexpr unsigned kProcessors = 132,
                   kLeast = 8;  // of the simulated device; the least part, and what parts are made of

// Fields that not every cuda.h declares come after the count.
CUdevResource processors(unsigned count) {
    CUdevResource made{};
    unsigned fields[] = {count, kLeast, kLeast};
    made.type = CU_DEV_RESOURCE_TYPE_SM;
    memcpy(&made.sm, fields, sizeof fields);
    return made;
}

CUresult describe(CUdevResource* resource, CUdevResourceType type, unsigned count) {
    if (!resource) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    *resource = processors(count);
    return CUDA_SUCCESS;
}

unsigned count_of(const Context* context) { return context->parent ? context->processors : kProcessors; }

// A descriptor is the number of multiprocessors, in words that are no other object's.
constexpr u64 kDescriptors = 0x3a00000000ull;
unsigned described(CUdevResourceDesc descriptor) {
    u64 count = reinterpret_cast<u64>(descriptor) - kDescriptors;
    return count && count <= kProcessors ? unsigned(count) : 0;
}

CUresult find(CUgreenCtx handle, Context** context) {
    *context = driver().greens.get(handle);
    return *context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult find(CUcontext handle, Context** context) {
    *context = driver().contexts.get(handle);
    return *context && (*context)->alive ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult split(CUdevResource* parts, unsigned* wanted, const CUdevResource* whole, CUdevResource* rest,
               unsigned least) {
    if (!wanted || !whole || whole->type != CU_DEV_RESOURCE_TYPE_SM || least > whole->sm.smCount)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned each = std::max((least + kLeast - 1) / kLeast * kLeast, kLeast);
    unsigned most = whole->sm.smCount / each, made = parts ? std::min(*wanted, most) : most;
    for (unsigned i = 0; parts && i < made; i++) parts[i] = processors(each);
    if (rest) *rest = processors(whole->sm.smCount - made * each);
    *wanted = made;
    return CUDA_SUCCESS;
}

CUresult create(CUgreenCtx* handle, unsigned count, CUdevice device) {
    Context& primary = driver().primary[std::size_t(device)];
    if (primary.references++ == 0) {
        primary.alive = true;
        primary.id = driver().next_id++;
    }
    Context* green = new Context;  // never deleted: streams of it may live on
    green->device = device;
    green->alive = true;
    green->id = driver().next_id++;
    green->parent = &primary;
    green->handle = reinterpret_cast<CUcontext>(driver().contexts.add(green));
    green->green = reinterpret_cast<CUgreenCtx>(driver().greens.add(green));
    green->processors = count;
    primary.greens.push_back(green);
    *handle = green->green;
    return CUDA_SUCCESS;
}

// For calls that take a context and an event.
template <class Handle, class Do>
CUresult with_event(Handle handle, CUevent event_handle, Do&& act) {
    Context* context;
    REFUSE_IF(find(handle, &context));
    Event* event = made_event(event_handle);
    return event ? act(event, context) : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

EXPORT CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
    return api_call(CALL("cuDeviceGetDevResource"), [&](Lock&) -> CUresult {
        REFUSE_IF(check_device(device));
        return describe(resource, type, kProcessors);
    });
}

EXPORT CUresult cuCtxGetDevResource(CUcontext handle, CUdevResource* resource, CUdevResourceType type) {
    return api_call(CALL("cuCtxGetDevResource"), [&](Lock&) -> CUresult {
        Context* context;
        REFUSE_IF(find(handle, &context));
        return describe(resource, type, count_of(context));
    });
}

EXPORT CUresult cuGreenCtxGetDevResource(CUgreenCtx handle, CUdevResource* resource, CUdevResourceType type) {
    return api_call(CALL("cuGreenCtxGetDevResource"), [&](Lock&) -> CUresult {
        Context* context;
        REFUSE_IF(find(handle, &context));
        return describe(resource, type, count_of(context));
    });
}

EXPORT CUresult cuDevSmResourceSplitByCount(CUdevResource* parts, unsigned* count, const CUdevResource* whole,
                                            CUdevResource* rest, unsigned, unsigned least) {
    return api_call(CALL("cuDevSmResourceSplitByCount"),
                    [&](Lock&) { return split(parts, count, whole, rest, least); });
}

EXPORT CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* descriptor, CUdevResource* resources, unsigned count) {
    return api_call(CALL("cuDevResourceGenerateDesc"), [&](Lock&) -> CUresult {
        u64 all = 0;
        if (!descriptor || !resources || !count) return CUDA_ERROR_INVALID_VALUE;
        for (unsigned i = 0; i < count; i++) {
            if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
            all += resources[i].sm.smCount;
        }
        if (!all || all > kProcessors) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        *descriptor = reinterpret_cast<CUdevResourceDesc>(kDescriptors + all);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuGreenCtxCreate(CUgreenCtx* handle, CUdevResourceDesc descriptor, CUdevice device, unsigned flags) {
    return api_call(CALL("cuGreenCtxCreate"), [&](Lock&) -> CUresult {
        unsigned count = described(descriptor);
        if (!handle || !count || flags & ~unsigned(CU_GREEN_CTX_DEFAULT_STREAM)) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(check_device(device));
        return create(handle, count, device);
    });
}

EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx handle) {
    return api_call(CALL("cuGreenCtxDestroy"), [&](Lock& lock) -> CUresult {
        Context* green;
        REFUSE_IF(find(handle, &green));
        detach_green(green);
        if (--green->parent->references == 0) destroy_context(lock, green->parent);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx handle) {
    return api_call(CALL("cuCtxFromGreenCtx"), [&](Lock&) -> CUresult {
        Context* green;
        if (!context) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(find(handle, &green));
        *context = green->handle;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuGreenCtxGetId(CUgreenCtx handle, unsigned long long* id) {
    return api_call(CALL("cuGreenCtxGetId"), [&](Lock&) -> CUresult {
        Context* green;
        if (!id) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(find(handle, &green));
        *id = green->id;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuGreenCtxStreamCreate(CUstream* handle, CUgreenCtx of, unsigned flags, int priority) {
    return api_call(CALL("cuGreenCtxStreamCreate"), [&](Lock&) -> CUresult {
        Context* green;
        if (!handle || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(find(of, &green));
        *handle = made_for_program(green, flags, priority);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx* green) {
    return api_call(CALL("cuStreamGetGreenCtx"), [&](Lock&) -> CUresult {
        Stream* stream;
        if (!green) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(find_stream(handle, &stream));
        *green = stream->context->green;
        return CUDA_SUCCESS;
    });
}

#define RECORD_AND_WAIT(of, Handle) \
    EXPORT CUresult cu##of##RecordEvent(Handle handle, CUevent event) { \
        return api_call(CALL("cu" #of "RecordEvent"), [&](Lock& lock) { \
            return with_event(handle, event, \
                              [&](Event* made, Context* context) { return record_context(lock, made, context); }); \
        }); \
    } \
    EXPORT CUresult cu##of##WaitEvent(Handle handle, CUevent event) { \
        return api_call(CALL("cu" #of "WaitEvent"), [&](Lock& lock) { \
            return with_event(handle, event, \
                              [&](Event* made, Context* context) { return wait_in_context(lock, made, context); }); \
        }); \
    }
RECORD_AND_WAIT(GreenCtx, CUgreenCtx)
RECORD_AND_WAIT(Ctx, CUcontext)
