// Entry points: initialisation, devices.
#include "calls.hpp"
#include "memory.hpp"
#include "unknown.hpp"
#include "watch.hpp"

#include <cstdio>
#include <cstring>

using namespace sim;

namespace {

int device_attribute(CUdevice_attribute attribute, CUdevice device) {
    switch (int(attribute)) {
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return kMostThreads;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X: return kMostOfLaunch[3];
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return kMostOfLaunch[4];
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return kMostOfLaunch[5];
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return kMostOfLaunch[0];
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: return kMostOfLaunch[1];
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return kMostOfLaunch[2];
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 49152;
        case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return 65536;
        case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return 1000000;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 132;
        case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return driver().config.visible[std::size_t(device)] + 1;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return 2048;
        case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 3;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return 9;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return 233472;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return 232448;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return 32;
        case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
        case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
        case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
        case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
        case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
        case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
        case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
        case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: return 1;
        case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS: return driver().config.pageable;
        default: return 0;
    }
}

}  // namespace

EXPORT CUresult cuInit(unsigned flags) {
    return api_call(
        CALL("cuInit"),
        [&](Lock&) -> CUresult {
            if (flags) return CUDA_ERROR_INVALID_VALUE;
            Config& config = driver().config;
            for (const std::string& line : config.wrong) log_line("%s", line.c_str());
            if (!config.wrong.empty()) return CUDA_ERROR_INVALID_VALUE;
            if (driver().gate != CUDA_ERROR_NOT_INITIALIZED) return CUDA_SUCCESS;
            config.find_devices();
            if (config.devices == 0) return CUDA_ERROR_NO_DEVICE;
            driver().gate = CUDA_SUCCESS;
            begin_without_python();
            driver().engine.page().used = 1;
            return CUDA_SUCCESS;
        },
        false);
}

EXPORT CUresult cuDriverGetVersion(int* version) {
    return api_call(
        CALL("cuDriverGetVersion"),
        [&](Lock&) -> CUresult {
            if (!version) return CUDA_ERROR_INVALID_VALUE;
            *version = driver().config.version;
            return CUDA_SUCCESS;
        },
        false);
}

EXPORT CUresult cuDeviceGetCount(int* count) {
    return api_call(CALL("cuDeviceGetCount"), [&](Lock&) -> CUresult {
        if (!count) return CUDA_ERROR_INVALID_VALUE;
        *count = driver().config.devices;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    return api_call(CALL("cuDeviceGet"), [&](Lock&) -> CUresult {
        if (!device) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(check_device(ordinal));
        *device = ordinal;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
    return api_call(CALL("cuDeviceGetName"), [&](Lock&) -> CUresult {
        REFUSE_IF(check_device(device));
        snprintf(name, std::size_t(length), "xlogmem simulated device");
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
    return api_call(CALL("cuDeviceGetUuid"), [&](Lock&) -> CUresult {
        REFUSE_IF(check_device(device));
        unsigned char bytes[16];
        uuid_of(driver().config.visible[std::size_t(device)], bytes);
        memcpy(uuid->bytes, bytes, sizeof bytes);
        return CUDA_SUCCESS;
    });
}
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid(uuid, device); }

EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    return api_call(CALL("cuDeviceTotalMem"), [&](Lock&) -> CUresult {
        REFUSE_IF(check_device(device));
        *bytes = driver().config.memory;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
    return api_call(CALL("cuDeviceGetPCIBusId"), [&](Lock&) -> CUresult {
        REFUSE_IF(check_device(device));
        snprintf(text, std::size_t(length), "0000:%02x:00.0", driver().config.visible[std::size_t(device)] + 1);
        return CUDA_SUCCESS;
    });
}

// By domain, bus, device and function; the first or the last may be missing. All are 0 but the bus.
EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
    return api_call(CALL("cuDeviceGetByPCIBusId"), [&](Lock&) -> CUresult {
        if (!device || !text) return CUDA_ERROR_INVALID_VALUE;
        unsigned domain = 0, bus = 0, slot = 0, function = 0;
        if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
            domain = 0;
            if (sscanf(text, "%x:%x.%x", &bus, &slot, &function) < 3) return CUDA_ERROR_INVALID_VALUE;
        }
        for (int i = 0; i < driver().config.devices; i++)
            if (!domain && !slot && !function && int(bus) == device_attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, i)) {
                *device = i;
                return CUDA_SUCCESS;
            }
        return CUDA_ERROR_INVALID_DEVICE;
    });
}

EXPORT CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
    return api_call(CALL("cuDeviceComputeCapability"), [&](Lock&) -> CUresult {
        REFUSE_IF(check_device(device));
        *major = 9;
        *minor = 0;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
    return api_call(CALL("cuDeviceCanAccessPeer"), [&](Lock&) -> CUresult {
        if (!can) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(check_device(device));
        REFUSE_IF(check_device(peer));
        *can = device != peer && driver().config.peers;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice device, CUdevice peer) {
    return api_call(CALL("cuDeviceGetP2PAttribute"), [&](Lock&) -> CUresult {
        if (!value) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(check_device(device));
        REFUSE_IF(check_device(peer));
        if (device == peer) return CUDA_ERROR_INVALID_DEVICE;
        *value = attribute != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK && driver().config.peers;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    return api_call(CALL("cuDeviceGetAttribute"), [&](Lock&) -> CUresult {
        if (!value) return CUDA_ERROR_INVALID_VALUE;
        REFUSE_IF(check_device(device));
        *value = device_attribute(attribute, device);
        return CUDA_SUCCESS;
    });
}

// NVIDIA's runtime looks for undocumented tables here, and makes sure that the driver is NVIDIA's. Not answered.
EXPORT CUresult cuGetExportTable(const void** table, const CUuuid*) {
    *table = nullptr;
    Lock lock(driver().mutex);
    called_in_vain().private_tables = true;
    return CUDA_ERROR_NOT_FOUND;
}
