// Entry points: allocating and freeing, on the device and in page-locked host memory, and questions about
// pointers.
#include "calls.hpp"
#include "capture.hpp"
#include "mappings.hpp"
#include "memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

using namespace sim;

namespace {

CUresult allocate_async(Lock& lock, CUdeviceptr* address, size_t bytes, Pool* pool, CUstream handle) {
    Stream* stream;
    if (!address) return CUDA_ERROR_INVALID_VALUE;
    REFUSE_IF(find_stream(handle, &stream));
    REFUSE_IF(check_legacy_use(stream));
    if (!stream->capture) REFUSE_IF(check_unsafe_call());
    if (!pool) pool = memory().devices[std::size_t(stream->context->device)].current_pool;
    make_room(lock, stream);
    u64 result;
    REFUSE_IF(allocate_ordered(lock, &result, bytes, pool, stream));
    *address = result;
    return CUDA_SUCCESS;
}

// The program's mapping of new memory, and another one.
void* map_twice(size_t bytes, u8** alias) {
    int file = memfd_create("xlogmem-host", MFD_CLOEXEC);
    if (file < 0) return MAP_FAILED;
    auto map = [&] { return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0); };
    void* own = ftruncate(file, off_t(bytes)) ? MAP_FAILED : map();
    void* programs = own == MAP_FAILED ? MAP_FAILED : map();
    close(file);
    if (own != MAP_FAILED && programs == MAP_FAILED) munmap(own, bytes);
    *alias = static_cast<u8*>(own);
    return programs;
}

}  // namespace

namespace sim {

CUresult allocate_host(void** address, u64 bytes, bool managed) {
    HostRange range{bytes, managed, false, memory().next_buffer_id++};
    *address = map_twice(bytes, &range.alias);
    if (*address == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    memory().pinned[reinterpret_cast<u64>(*address)] = range;
    if (managed)
        watch_managed(reinterpret_cast<u64>(*address), bytes);
    else
        watch_pin(reinterpret_cast<u64>(*address), bytes);
    return CUDA_SUCCESS;
}

// Freeing page-locked memory waits for the device: queued copies may use it. So does a free of managed memory, whose
// device is not known: the host has waited for all work. Its addresses are not used again, and who uses them fails.
CUresult free_host(Lock& lock, u64 address, bool managed) {
    auto& pinned = memory().pinned;
    auto found = pinned.find(address);
    if (found == pinned.end() || found->second.managed != managed || found->second.registered)
        return CUDA_ERROR_INVALID_VALUE;
    check::Clock learned = driver().engine.queued();
    if (!managed) watch_unpin(address);
    run_everything(lock);
    found = pinned.find(address);
    if (found == pinned.end()) return CUDA_ERROR_INVALID_VALUE;  // freed by another thread while we waited
    auto [bytes, alias] = std::pair(found->second.bytes, found->second.alias);
    pinned.erase(found);
    munmap(alias, bytes);
    if (!managed) {
        munmap(reinterpret_cast<void*>(address), bytes);
        return CUDA_SUCCESS;
    }
    host_learns(learned);
    watch_free(nullptr, address);
    mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
         -1, 0);
    return CUDA_SUCCESS;
}

}  // namespace sim

namespace {

CUresult allocate_host_now(void** address, size_t bytes, bool managed) {
    Context* context;
    if (!address || !bytes) return CUDA_ERROR_INVALID_VALUE;
    REFUSE_IF(current_context(&context));
    REFUSE_IF(check_unsafe_call());
    return allocate_host(address, bytes, managed);
}

const HostRange* find_pinned(u64 address, u64* start) {
    if (!is_pinned(address)) return nullptr;
    auto found = --memory().pinned.upper_bound(address);
    *start = found->first;
    return &found->second;
}

const std::pair<const u64, u64>& reservation_of(u64 mapped) {
    return *--virtual_memory().reservations.upper_bound(mapped);
}

CUresult pointer_attribute(void* out, CUpointer_attribute attribute, u64 address) {
    Block* block = find_block(address);
    if (block && (!block->live || address >= block->address + block->size)) block = nullptr;
    u64 start = block ? block->address : 0;
    const HostRange* host = block ? nullptr : find_pinned(address, &start);
    if (!block && !host) {
        // Ordinary host memory: unknown to the driver, which is an error for every question but this one.
        if (attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED) return answer<unsigned>(out, 0);
        return CUDA_ERROR_INVALID_VALUE;
    }
    Context* context = nullptr;
    if (current_context(&context)) context = &driver().primary[0];
    int device = block ? block->device : context->device;
    switch (int(attribute)) {
        case CU_POINTER_ATTRIBUTE_CONTEXT: {
            CUcontext owner = driver().primary[std::size_t(device)].handle;
            // Memory of a pool belongs to the device, not to a context.
            return answer<CUcontext>(out, block && block->stream_ordered ? nullptr : owner);
        }
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            return answer<unsigned>(out, block ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            // For memory of another device's pool the query fails with access too (seen on two H100s).
            if (block && block->device != context->device && (block->pool || !can_access(context, address, Use::Read)))
                return CUDA_ERROR_INVALID_VALUE;
            return answer<CUdeviceptr>(out, address);
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            if (block) return CUDA_ERROR_INVALID_VALUE;
            return answer<u64>(out, address);
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return answer<unsigned>(out, 0);
        case CU_POINTER_ATTRIBUTE_BUFFER_ID: return answer<u64>(out, block ? block->buffer_id : host->number);
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: return answer<unsigned>(out, host && host->managed);
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return answer<int>(out, device);
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
            return answer<unsigned>(out, block && !block->stream_ordered && !block->mapped);
        // Of mapped memory these are the reserved addresses (seen on an H200).
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            return answer<CUdeviceptr>(out, block && block->mapped ? reservation_of(address).first : start);
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            if (block && block->mapped) return answer<size_t>(out, reservation_of(address).second);
            return answer<size_t>(out, block ? block->size : host->bytes);
        case CU_POINTER_ATTRIBUTE_MAPPED: return answer<unsigned>(out, 1);
        // The answer does not depend on the allowed access, as on two H100s.
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return answer<unsigned>(out, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: {
            u64 pool = block && block->pool ? block->pool->handle : 0;
            return answer<u64>(out, pool);
        }
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

}  // namespace

EXPORT CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
    return api_call(CALL("cuMemAllocAsync"),
                    [&](Lock& lock) { return allocate_async(lock, address, bytes, nullptr, stream); });
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool handle, CUstream stream) {
    return api_call(CALL("cuMemAllocFromPoolAsync"), [&](Lock& lock) -> CUresult {
        Pool* pool = memory().pools.get(handle);
        if (!pool) return CUDA_ERROR_INVALID_VALUE;
        return allocate_async(lock, address, bytes, pool, stream);
    });
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
    return api_call(CALL("cuMemFreeAsync"), [&](Lock& lock) -> CUresult {
        Stream* stream;
        REFUSE_IF(find_stream(handle, &stream));
        REFUSE_IF(check_legacy_use(stream));
        if (!stream->capture) REFUSE_IF(check_unsafe_call());
        return free_ordered(lock, address, stream);
    });
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
    return api_call(CALL("cuMemAlloc"), [&](Lock& lock) -> CUresult {
        Context* context;
        if (!address || !bytes) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(current_context(&context));
        REFUSE_IF(check_unsafe_call());
        u64 result;
        REFUSE_IF(allocate_now(lock, &result, bytes, context));
        *address = result;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height, unsigned element) {
    return api_call(CALL("cuMemAllocPitch"), [&](Lock& lock) -> CUresult {
        constexpr size_t kAlignment = 512, kMost = size_t(1) << 31;
        Context* context;
        if (!address || !pitch || !width || !height) return CUDA_ERROR_INVALID_VALUE;
        if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
        if (width > kMost - kAlignment || height > kMost) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(current_context(&context));
        REFUSE_IF(check_unsafe_call());
        size_t aligned = (width + kAlignment - 1) / kAlignment * kAlignment;
        u64 result;
        REFUSE_IF(allocate_now(lock, &result, aligned * height, context));
        *address = result;
        *pitch = aligned;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
    return api_call(CALL("cuMemFree"), [&](Lock& lock) -> CUresult {
        Context* context;
        if (!address) return CUDA_SUCCESS;
        REFUSE_IF(current_context(&context));
        REFUSE_IF(check_unsafe_call());
        if (is_pinned(address)) return free_host(lock, address, true);
        return free_now(lock, address);
    });
}

// Managed memory is host memory that both sides reach at one address.
EXPORT CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned) {
    return api_call(CALL("cuMemAllocManaged"), [&](Lock&) -> CUresult {
        void* result = nullptr;
        if (!address) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(allocate_host_now(&result, bytes, true));
        *address = reinterpret_cast<u64>(result);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned) {
    return api_call(CALL("cuMemHostAlloc"), [&](Lock&) { return allocate_host_now(address, bytes, false); });
}

EXPORT CUresult cuMemAllocHost_v2(void** address, size_t bytes) {
    return api_call(CALL("cuMemAllocHost"), [&](Lock&) { return allocate_host_now(address, bytes, false); });
}

EXPORT CUresult cuMemFreeHost(void* address) {
    return api_call(CALL("cuMemFreeHost"),
                    [&](Lock& lock) { return free_host(lock, reinterpret_cast<u64>(address), false); });
}

EXPORT CUresult cuMemHostRegister_v2(void* address, size_t bytes, unsigned) {
    return api_call(CALL("cuMemHostRegister"), [&](Lock&) -> CUresult {
        if (!address || !bytes) return CUDA_ERROR_INVALID_VALUE;
        if (is_pinned(reinterpret_cast<u64>(address))) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
        memory().pinned[reinterpret_cast<u64>(address)] = {bytes, false, true, memory().next_buffer_id++};
        watch_pin(reinterpret_cast<u64>(address), bytes);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemHostUnregister(void* address) {
    return api_call(CALL("cuMemHostUnregister"), [&](Lock& lock) -> CUresult {
        auto found = memory().pinned.find(reinterpret_cast<u64>(address));
        if (found == memory().pinned.end() || !found->second.registered) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
        watch_unpin(reinterpret_cast<u64>(address));
        run_everything(lock);
        memory().pinned.erase(reinterpret_cast<u64>(address));
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* result, void* address, unsigned) {
    return api_call(CALL("cuMemHostGetDevicePointer"), [&](Lock&) -> CUresult {
        if (!is_pinned(reinterpret_cast<u64>(address))) return CUDA_ERROR_INVALID_VALUE;
        *result = reinterpret_cast<u64>(address);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
    return api_call(CALL("cuMemGetInfo"), [&](Lock&) -> CUresult {
        Context* context;
        REFUSE_IF(current_context(&context));
        u64 all = driver().config.memory;
        if (total) *total = all;
        if (free_bytes) *free_bytes = all - memory().devices[std::size_t(context->device)].reserved;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* start, size_t* bytes, CUdeviceptr address) {
    return api_call(CALL("cuMemGetAddressRange"), [&](Lock&) -> CUresult {
        Block* block = find_block(address);
        if (!block || !block->live || address >= block->address + block->size) return CUDA_ERROR_NOT_FOUND;
        if (start) *start = block->address;
        if (bytes) *bytes = block->size;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuPointerGetAttribute(void* result, CUpointer_attribute attribute, CUdeviceptr address) {
    return api_call(CALL("cuPointerGetAttribute"), [&](Lock&) -> CUresult {
        if (!result) return CUDA_ERROR_INVALID_VALUE;
        return pointer_attribute(result, attribute, address);
    });
}

// Unlike the single question, this one succeeds for unknown memory and fills in zeros.
EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** results,
                                       CUdeviceptr address) {
    return api_call(CALL("cuPointerGetAttributes"), [&](Lock&) -> CUresult {
        for (unsigned i = 0; i < count; i++) {
            if (!pointer_attribute(results[i], attributes[i], address)) continue;
            switch (int(attributes[i])) {
                case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
                case CU_POINTER_ATTRIBUTE_IS_MANAGED: answer<unsigned>(results[i], 0); break;
                case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: answer<int>(results[i], -2); break;
                case CU_POINTER_ATTRIBUTE_CONTEXT:
                case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
                case CU_POINTER_ATTRIBUTE_HOST_POINTER:
                case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
                case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
                case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: answer<u64>(results[i], 0); break;
                default: break;
            }
        }
        return CUDA_SUCCESS;
    });
}
