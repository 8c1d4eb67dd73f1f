// Entry points: virtual memory. Handles do not leave the process: their export and import is refused.
#include "calls.hpp"
#include "mappings.hpp"

using namespace sim;

namespace {

bool is_aligned(u64 number) { return number % kGranularity == 0; }

Physical* find_physical(CUmemGenericAllocationHandle handle) { return virtual_memory().physical.get(u64(handle)); }

// Memory of devices alone is simulated.
CUresult check_properties(const CUmemAllocationProp* properties) {
    if (!properties || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED || properties->win32HandleMetaData)
        return CUDA_ERROR_INVALID_VALUE;
    switch (int(properties->location.type)) {
        case CU_MEM_LOCATION_TYPE_DEVICE: return check_device(properties->location.id);
        case CU_MEM_LOCATION_TYPE_HOST:
        case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
            log_line("%s: memory of the host is not simulated", this_thread().call);
            return CUDA_ERROR_NOT_SUPPORTED;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult not_simulated() {
    log_line("%s is not simulated", this_thread().call);
    return CUDA_ERROR_NOT_SUPPORTED;
}

bool is_access(unsigned flags) {
    return flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
           flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

CUresult check_device_of(const CUmemLocation& location) {
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? check_device(location.id) : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

EXPORT CUresult cuMemGetAllocationGranularity(size_t* result, const CUmemAllocationProp* properties,
                                              CUmemAllocationGranularity_flags option) {
    return api_call(CALL("cuMemGetAllocationGranularity"), [&](Lock&) -> CUresult {
        if (!result || unsigned(option) > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(check_properties(properties));
        *result = kGranularity;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr hint,
                                    unsigned long long flags) {
    return api_call(CALL("cuMemAddressReserve"), [&](Lock&) -> CUresult {
        constexpr size_t kPage = 4096;  // of the host
        if (!address || !bytes || bytes % kPage || hint % kPage || flags) return CUDA_ERROR_INVALID_VALUE;
        if (alignment & (alignment - 1)) return CUDA_ERROR_INVALID_VALUE;
        u64 result;
        REFUSE_IF(reserve(&result, bytes, alignment, hint));
        *address = result;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    return api_call(CALL("cuMemAddressFree"), [&](Lock&) { return end_reservation(address, bytes); });
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                            unsigned long long flags) {
    return api_call(CALL("cuMemCreate"), [&](Lock& lock) -> CUresult {
        if (!handle || !bytes || !is_aligned(bytes) || flags) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(check_properties(properties));
        u64 result;
        REFUSE_IF(make_physical(lock, &result, bytes, *properties));
        *handle = result;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    return api_call(CALL("cuMemRelease"), [&](Lock&) -> CUresult {
        Physical* physical = find_physical(handle);
        if (!physical) return CUDA_ERROR_INVALID_VALUE;
        release_physical(physical);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags) {
    return api_call(CALL("cuMemMap"), [&](Lock&) -> CUresult {
        Physical* physical = find_physical(handle);
        if (!physical || offset || flags) return CUDA_ERROR_INVALID_VALUE;
        if (!bytes || !is_aligned(bytes) || !is_aligned(address) || bytes > physical->bytes)
            return CUDA_ERROR_INVALID_VALUE;
        return map_memory(address, bytes, physical);
    });
}

EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    return api_call(CALL("cuMemUnmap"), [&](Lock&) { return unmap_memory(address, bytes); });
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* given, size_t count) {
    return api_call(CALL("cuMemSetAccess"), [&](Lock&) -> CUresult {
        std::vector<Mapping*> found = mappings_of(address, bytes, true);
        if (found.empty() || !given || !count) return CUDA_ERROR_INVALID_VALUE;
        for (size_t i = 0; i < count; i++) {
            REFUSE_IF(check_device_of(given[i].location));
            if (!is_access(given[i].flags)) return CUDA_ERROR_INVALID_VALUE;
        }
        for (Mapping* mapping : found)
            for (size_t i = 0; i < count; i++)
                mapping->block.own_access[std::size_t(given[i].location.id)] = u8(given[i].flags);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
    return api_call(CALL("cuMemGetAccess"), [&](Lock&) -> CUresult {
        std::vector<Mapping*> found = mappings_of(address, 1, false);
        if (found.empty() || !flags || !location) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(check_device_of(*location));
        *flags = found.front()->block.own_access[std::size_t(location->id)];
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
    return api_call(CALL("cuMemRetainAllocationHandle"), [&](Lock&) -> CUresult {
        std::vector<Mapping*> found = mappings_of(reinterpret_cast<u64>(address), 1, false);
        if (found.empty() || !handle) return CUDA_ERROR_INVALID_VALUE;
        Physical* physical = found.front()->physical;
        if (!physical->references++) physical->handle = virtual_memory().physical.add(physical);
        *handle = physical->handle;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* result,
                                                       CUmemGenericAllocationHandle handle) {
    return api_call(CALL("cuMemGetAllocationPropertiesFromHandle"), [&](Lock&) -> CUresult {
        Physical* physical = find_physical(handle);
        if (!physical || !result) return CUDA_ERROR_INVALID_VALUE;
        *result = physical->properties;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemExportToShareableHandle(void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                                             unsigned long long) {
    return api_call(CALL("cuMemExportToShareableHandle"), [&](Lock&) { return not_simulated(); });
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType) {
    return api_call(CALL("cuMemImportFromShareableHandle"), [&](Lock&) { return not_simulated(); });
}
