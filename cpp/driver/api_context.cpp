// Entry points: contexts. Primary contexts are counted per device; cuCtxCreate makes further ones.
//
// Each thread has a stack of contexts. Objects belong to the context in which they were made, and calls that
// make objects need a current one.
#include "calls.hpp"
#include "capture.hpp"
#include "memory.hpp"

#include <algorithm>

using namespace sim;

namespace {

Context* context_of(CUcontext handle) {
    Context* context = driver().contexts.get(handle);
    return context && context->alive ? context : nullptr;
}

// The given context, or the current one for nullptr.
CUresult context_or_current(CUcontext handle, Context** context) {
    if (!handle) return current_context(context);
    *context = context_of(handle);
    return *context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult create_context(CUcontext* handle, unsigned flags, CUdevice device) {
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    REFUSE_IF(check_device(device));
    Context* context = new Context;
    context->device = device;
    context->alive = true;
    context->flags = flags;
    context->id = driver().next_id++;
    context->handle = reinterpret_cast<CUcontext>(driver().contexts.add(context));
    this_thread().contexts.push_back(context);
    *handle = context->handle;
    return CUDA_SUCCESS;
}

CUresult synchronize_checked(Lock& lock, Context* context) {
    // No mode allows this while a stream of the context captures: each such capture is invalidated.
    CUresult refused = check_unsafe_call();
    for (auto& capture : driver().captures)
        if (capture->has_stream_of(context)) refused = check_not_capturing(capture->streams.front());
    REFUSE_IF(refused);
    synchronize_context(lock, context);
    return CUDA_SUCCESS;
}

}  // namespace

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice device) {
    return api_call(CALL("cuDevicePrimaryCtxRetain"), [&](Lock&) -> CUresult {
        if (!handle) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(check_device(device));
        Context& context = driver().primary[std::size_t(device)];
        if (context.references++ == 0) {
            context.alive = true;
            context.id = driver().next_id++;
        }
        *handle = context.handle;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return api_call(CALL("cuDevicePrimaryCtxRelease"), [&](Lock& lock) -> CUresult {
        REFUSE_IF(check_device(device));
        Context& context = driver().primary[std::size_t(device)];
        if (!context.references) return CUDA_ERROR_INVALID_CONTEXT;
        if (--context.references == 0) destroy_context(lock, &context);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return api_call(CALL("cuDevicePrimaryCtxReset"), [&](Lock& lock) -> CUresult {
        REFUSE_IF(check_device(device));
        Context& context = driver().primary[std::size_t(device)];
        if (!context.alive) return CUDA_SUCCESS;
        destroy_context(lock, &context);
        context.alive = context.references > 0;  // a retained context is made anew when it is used
        context.id = driver().next_id++;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    return api_call(CALL("cuDevicePrimaryCtxSetFlags"), [&](Lock&) -> CUresult {
        REFUSE_IF(check_device(device));
        driver().primary[std::size_t(device)].flags = flags;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    return api_call(CALL("cuDevicePrimaryCtxGetState"), [&](Lock&) -> CUresult {
        REFUSE_IF(check_device(device));
        Context& context = driver().primary[std::size_t(device)];
        *flags = context.flags;
        *active = context.alive;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxCreate_v2(CUcontext* handle, unsigned flags, CUdevice device) {
    return api_call(CALL("cuCtxCreate"), [&](Lock&) { return create_context(handle, flags, device); });
}

EXPORT CUresult cuCtxCreate_v3(CUcontext* handle, CUexecAffinityParam*, int, unsigned flags, CUdevice device) {
    return api_call(CALL("cuCtxCreate"), [&](Lock&) { return create_context(handle, flags, device); });
}

EXPORT CUresult cuCtxCreate_v4(CUcontext* handle, CUctxCreateParams*, unsigned flags, CUdevice device) {
    return api_call(CALL("cuCtxCreate"), [&](Lock&) { return create_context(handle, flags, device); });
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext handle) {
    return api_call(CALL("cuCtxDestroy"), [&](Lock& lock) -> CUresult {
        Context* context = context_of(handle);
        if (!context || context->primary || context->parent) return CUDA_ERROR_INVALID_CONTEXT;
        destroy_context(lock, context);
        driver().contexts.remove(reinterpret_cast<u64>(handle));
        auto& stack = this_thread().contexts;
        if (!stack.empty() && stack.back() == context) stack.pop_back();
        return CUDA_SUCCESS;  // the Context stays: other threads may have it on their stacks
    });
}

EXPORT CUresult cuCtxSetCurrent(CUcontext handle) {
    return api_call(CALL("cuCtxSetCurrent"), [&](Lock&) -> CUresult {
        auto& stack = this_thread().contexts;
        if (!handle) {
            if (!stack.empty()) stack.pop_back();
            return CUDA_SUCCESS;
        }
        Context* context = context_of(handle);
        if (!context) return CUDA_ERROR_INVALID_CONTEXT;
        if (stack.empty())
            stack.push_back(context);
        else
            stack.back() = context;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxGetCurrent(CUcontext* handle) {
    return api_call(CALL("cuCtxGetCurrent"), [&](Lock&) -> CUresult {
        if (!handle) return CUDA_ERROR_INVALID_VALUE;
        auto& stack = this_thread().contexts;
        *handle = stack.empty() ? nullptr : stack.back()->handle;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext handle) {
    return api_call(CALL("cuCtxPushCurrent"), [&](Lock&) -> CUresult {
        Context* context = context_of(handle);
        if (!context) return CUDA_ERROR_INVALID_CONTEXT;
        this_thread().contexts.push_back(context);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* handle) {
    return api_call(CALL("cuCtxPopCurrent"), [&](Lock&) -> CUresult {
        auto& stack = this_thread().contexts;
        if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
        if (handle) *handle = stack.back()->handle;
        stack.pop_back();
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
    return api_call(CALL("cuCtxGetDevice"), [&](Lock&) -> CUresult {
        Context* context;
        if (!device) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(context_or_current(handle, &context));
        *device = context->device;
        return CUDA_SUCCESS;
    });
}
EXPORT CUresult cuCtxGetDevice(CUdevice* device) { return cuCtxGetDevice_v2(device, nullptr); }

EXPORT CUresult cuCtxGetFlags(unsigned* flags) {
    return api_call(CALL("cuCtxGetFlags"), [&](Lock&) -> CUresult {
        Context* context;
        REFUSE_IF(current_context(&context));
        *flags = context->flags;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
    return api_call(CALL("cuCtxGetId"), [&](Lock&) -> CUresult {
        Context* context;
        REFUSE_IF(context_or_current(handle, &context));
        *id = context->id;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
    return api_call(CALL("cuCtxGetApiVersion"), [&](Lock&) -> CUresult {
        Context* context;
        REFUSE_IF(context_or_current(handle, &context));
        *version = 3020;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    return api_call(CALL("cuCtxGetStreamPriorityRange"), [&](Lock&) -> CUresult {
        Context* context;
        REFUSE_IF(current_context(&context));
        if (least) *least = 0;
        if (greatest) *greatest = -5;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
    return api_call(CALL("cuCtxGetLimit"), [&](Lock&) -> CUresult {
        Context* context;
        REFUSE_IF(current_context(&context));
        auto set = context->limits.find(limit);
        *value = set == context->limits.end() ? 1024 : set->second;
        return CUDA_SUCCESS;
    });
}
EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    return api_call(CALL("cuCtxSetLimit"), [&](Lock&) -> CUresult {
        Context* context;
        REFUSE_IF(current_context(&context));
        if (unsigned(limit) >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
        context->limits[limit] = value;
        return CUDA_SUCCESS;
    });
}

// There is no profiler, so a program that begins and ends one profiles nothing.
EXPORT CUresult cuProfilerStart() {
    return api_call(CALL("cuProfilerStart"), [&](Lock&) -> CUresult {
        Context* context;
        return current_context(&context);
    });
}
EXPORT CUresult cuProfilerStop() {
    return api_call(CALL("cuProfilerStop"), [&](Lock&) -> CUresult {
        Context* context;
        return current_context(&context);
    });
}

// One direction, and ordinary memory only: pools have rules of their own (cuMemPoolSetAccess).
EXPORT CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned flags) {
    return api_call(CALL("cuCtxEnablePeerAccess"), [&](Lock&) -> CUresult {
        Context *context, *peer = context_of(handle);
        REFUSE_IF(current_context(&context));
        context = context->shared();
        if (!peer || peer->shared() == context) return CUDA_ERROR_INVALID_CONTEXT;
        peer = peer->shared();
        if (flags) return CUDA_ERROR_INVALID_VALUE;
        if (peer->device == context->device || !driver().config.peers) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
        auto& peers = context->peers;
        if (std::find(peers.begin(), peers.end(), peer) != peers.end()) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
        peers.push_back(peer);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxDisablePeerAccess(CUcontext handle) {
    return api_call(CALL("cuCtxDisablePeerAccess"), [&](Lock&) -> CUresult {
        Context *context, *peer = context_of(handle);
        REFUSE_IF(current_context(&context));
        if (!peer) return CUDA_ERROR_INVALID_CONTEXT;
        auto& peers = context->shared()->peers;
        auto found = std::find(peers.begin(), peers.end(), peer->shared());
        if (found == peers.end()) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
        peers.erase(found);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuCtxSynchronize() {
    return api_call(CALL("cuCtxSynchronize"), [&](Lock& lock) -> CUresult {
        Context* context;
        REFUSE_IF(current_context(&context));
        return synchronize_checked(lock, context);
    });
}

// Not in the cuda.h of CUDA 12.
EXPORT CUresult cuCtxSynchronize_v2(CUcontext handle) {
    return api_call(CALL("cuCtxSynchronize"), [&](Lock& lock) -> CUresult {
        Context* context;
        REFUSE_IF(context_or_current(handle, &context));
        return synchronize_checked(lock, context);
    });
}
