// Entry points: memory pools.
#include "calls.hpp"
#include "capture.hpp"
#include "memory.hpp"

using namespace sim;

namespace {

CUmemoryPool handle_of(const Pool* pool) { return reinterpret_cast<CUmemoryPool>(pool->handle); }

CUresult check_access(const Pool* pool, const CUmemAccessDesc& wanted) {
    if (wanted.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    REFUSE_IF(check_device(wanted.location.id));
    switch (int(wanted.flags)) {
        case CU_MEM_ACCESS_FLAGS_PROT_NONE:
        case CU_MEM_ACCESS_FLAGS_PROT_READ:
        case CU_MEM_ACCESS_FLAGS_PROT_READWRITE: break;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    if (wanted.location.id == pool->device)  // cannot be revoked
        return wanted.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return driver().config.peers ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace

EXPORT CUresult cuMemPoolCreate(CUmemoryPool* handle, const CUmemPoolProps* properties) {
    return api_call(CALL("cuMemPoolCreate"), [&](Lock&) -> CUresult {
        if (!handle || !properties || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(check_device(properties->location.id));
        Pool* pool = new Pool;
        pool->device = properties->location.id;
        pool->maximum = properties->maxSize;
        pool->handle = memory().pools.add(pool);
        *handle = handle_of(pool);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    return api_call(CALL("cuMemPoolDestroy"), [&](Lock&) -> CUresult {
        Pool* pool = memory().pools.get(handle);
        if (!pool || pool->is_default) return CUDA_ERROR_INVALID_VALUE;
        DeviceMemory& own = memory().devices[std::size_t(pool->device)];
        if (own.current_pool == pool) own.current_pool = &own.default_pool;
        destroy_pool(pool);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    return api_call(CALL("cuMemPoolTrimTo"), [&](Lock&) -> CUresult {
        Pool* pool = memory().pools.get(handle);
        if (!pool) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(check_unsafe_call());
        trim_pool(pool, keep);
        return CUDA_SUCCESS;
    });
}

// All or nothing: one wrong entry refuses the whole list.
EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* wanted, size_t count) {
    return api_call(CALL("cuMemPoolSetAccess"), [&](Lock&) -> CUresult {
        Pool* pool = memory().pools.get(handle);
        if (!pool || (count && !wanted)) return CUDA_ERROR_INVALID_VALUE;
        for (size_t i = 0; i < count; i++) REFUSE_IF(check_access(pool, wanted[i]));
        for (size_t i = 0; i < count; i++) pool->access[std::size_t(wanted[i].location.id)] = u8(wanted[i].flags);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
    return api_call(CALL("cuMemPoolGetAccess"), [&](Lock&) -> CUresult {
        Pool* pool = memory().pools.get(handle);
        if (!pool || !flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
            return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(check_device(location->id));
        bool own = location->id == pool->device;
        *flags = own ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CUmemAccess_flags(pool->access[std::size_t(location->id)]);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
    return api_call(CALL("cuMemPoolSetAttribute"), [&](Lock&) -> CUresult {
        Pool* pool = memory().pools.get(handle);
        if (!pool || !value) return CUDA_ERROR_INVALID_VALUE;
        int flag = *static_cast<int*>(value);
        switch (int(attribute)) {
            case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: pool->follow_dependencies = flag; break;
            case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: pool->opportunistic = flag; break;
            case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: pool->internal_dependencies = flag; break;
            case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: pool->threshold = *static_cast<u64*>(value); break;
            case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: pool->reserved_high = pool->reserved; break;
            case CU_MEMPOOL_ATTR_USED_MEM_HIGH: pool->used_high = pool->used; break;
            default: return CUDA_ERROR_INVALID_VALUE;
        }
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
    return api_call(CALL("cuMemPoolGetAttribute"), [&](Lock&) -> CUresult {
        Pool* pool = memory().pools.get(handle);
        if (!pool || !value) return CUDA_ERROR_INVALID_VALUE;
        switch (int(attribute)) {
            case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: return answer(value, pool->follow_dependencies);
            case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: return answer(value, pool->opportunistic);
            case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: return answer(value, pool->internal_dependencies);
            case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: return answer(value, pool->threshold);
            case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return answer(value, pool->reserved);
            case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return answer(value, pool->reserved_high);
            case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return answer(value, pool->used);
            case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return answer(value, pool->used_high);
            // CUDA 13's attributes, by number: the 12.9 header does not have their names.
            case 9: return answer<int>(value, CU_MEM_ALLOCATION_TYPE_PINNED);
            case 10: return answer<int>(value, CU_MEM_HANDLE_TYPE_NONE);
            case 11: return answer<int>(value, pool->device);
            case 12: return answer<int>(value, CU_MEM_LOCATION_TYPE_DEVICE);
            default: return CUDA_ERROR_INVALID_VALUE;
        }
    });
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* handle, CUdevice device) {
    return api_call(CALL("cuDeviceGetDefaultMemPool"), [&](Lock&) -> CUresult {
        REFUSE_IF(check_device(device));
        *handle = handle_of(&memory().devices[std::size_t(device)].default_pool);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool* handle, CUdevice device) {
    return api_call(CALL("cuDeviceGetMemPool"), [&](Lock&) -> CUresult {
        REFUSE_IF(check_device(device));
        *handle = handle_of(memory().devices[std::size_t(device)].current_pool);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
    return api_call(CALL("cuDeviceSetMemPool"), [&](Lock&) -> CUresult {
        Pool* pool = memory().pools.get(handle);
        REFUSE_IF(check_device(device));
        if (!pool || pool->device != device) return CUDA_ERROR_INVALID_VALUE;
        memory().devices[std::size_t(device)].current_pool = pool;
        return CUDA_SUCCESS;
    });
}

// CUDA 13's form: pools by their place and by what they hand out. Those of the host and managed ones are not simulated.
namespace {

CUresult find_device(const CUmemLocation* place, CUmemAllocationType type, CUdevice* device) {
    constexpr int managed = 2;  // CU_MEM_ALLOCATION_TYPE_MANAGED
    if (!place || (type != CU_MEM_ALLOCATION_TYPE_PINNED && int(type) != managed)) return CUDA_ERROR_INVALID_VALUE;
    bool host = place->type == CU_MEM_LOCATION_TYPE_HOST || place->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    if (int(type) == managed || host) return CUDA_ERROR_NOT_SUPPORTED;
    if (place->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    *device = place->id;
    return check_device(place->id);
}

}  // namespace

EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool* handle, CUmemLocation* place, CUmemAllocationType type) {
    return api_call(CALL("cuMemGetDefaultMemPool"), [&](Lock&) -> CUresult {
        CUdevice device;
        if (!handle) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(find_device(place, type, &device));
        *handle = handle_of(&memory().devices[std::size_t(device)].default_pool);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemGetMemPool(CUmemoryPool* handle, CUmemLocation* place, CUmemAllocationType type) {
    return api_call(CALL("cuMemGetMemPool"), [&](Lock&) -> CUresult {
        CUdevice device;
        if (!handle) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(find_device(place, type, &device));
        *handle = handle_of(memory().devices[std::size_t(device)].current_pool);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemSetMemPool(CUmemLocation* place, CUmemAllocationType type, CUmemoryPool handle) {
    return api_call(CALL("cuMemSetMemPool"), [&](Lock&) -> CUresult {
        CUdevice device;
        Pool* pool = memory().pools.get(handle);
        REFUSE_IF(find_device(place, type, &device));
        if (!pool || pool->device != device) return CUDA_ERROR_INVALID_VALUE;
        memory().devices[std::size_t(device)].current_pool = pool;
        return CUDA_SUCCESS;
    });
}
