// An NVML of the simulated driver's machine, for programs that are checked without a GPU: how many devices there are,
// their names and memory. A reading that nothing simulates is not supported, as on some cards, and named once.
//
// The signatures are those of nvml.h, with plain types: no header of NVML is needed to build this.
#include "not_simulated.hpp"

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL 1
#endif
#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>

#define NVML extern "C" __attribute__((visibility("default")))

// Of the simulated driver, initialised or not: all devices of the machine, whatever CUDA_VISIBLE_DEVICES says.
extern "C" int xsim_machine();
extern "C" void xsim_describe_device(int number, unsigned char* uuid, std::uint64_t* bytes, std::uint64_t* reserved);

namespace nvml {

using u64 = std::uint64_t;

enum Status : int {
    kSuccess = 0,
    kUninitialized = 1,
    kInvalidArgument = 2,
    kNotSupported = 3,
    kNotFound = 6,
    kInsufficientSize = 7,
};

struct Pci {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
};

struct Memory {
    u64 total, free, used;
};

struct Memory2 {
    unsigned version;
    u64 total, reserved, free, used;
};

struct Device {
    unsigned char uuid[16];
    u64 bytes, reserved;
    char text[41];  // of the UUID

    explicit Device(int number) {
        xsim_describe_device(number, uuid, &bytes, &reserved);
        char* end = text + std::snprintf(text, sizeof text, "GPU-");
        for (int i = 0; i < 16; i++)
            end += std::sprintf(end, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
    }
};

std::atomic<int> uses{0};

Status give(const char* text, char* buffer, unsigned size) {
    if (!buffer) return kInvalidArgument;
    if (size <= std::strlen(text)) return kInsufficientSize;
    std::strcpy(buffer, text);
    return kSuccess;
}

// Handles are the devices' numbers, from 1 on.
void* handle_of(int number) { return reinterpret_cast<void*>(std::intptr_t(number) + 1); }

template <class Give>
Status of_system(Give give_it) {
    return uses > 0 ? give_it() : kUninitialized;
}

template <class Give>
Status of_device(void* handle, Give give_it) {
    return of_system([&]() -> Status {
        const auto number = int(reinterpret_cast<std::intptr_t>(handle)) - 1;
        return number >= 0 && number < xsim_machine() ? give_it(number) : kInvalidArgument;
    });
}

Memory memory_of(int number) {
    const Device device(number);
    return {device.bytes, device.bytes - device.reserved, device.reserved};
}

Pci place_of(int number) {
    Pci place{};
    place.bus = unsigned(number) + 1;  // as CU_DEVICE_ATTRIBUTE_PCI_BUS_ID has it
    std::snprintf(place.legacy, sizeof place.legacy, "0000:%02X:00.0", place.bus);
    std::snprintf(place.id, sizeof place.id, "00000000:%02X:00.0", place.bus);
    return place;
}

// The device that `is_it` accepts.
template <class IsIt>
Status find(void** handle, IsIt is_it) {
    return of_system([&]() -> Status {
        if (!handle) return kInvalidArgument;
        for (int number = 0; number < xsim_machine(); number++)
            if (is_it(number)) return *handle = handle_of(number), kSuccess;
        return kNotFound;
    });
}

int version() {
    int found = 0;
    cuDriverGetVersion(&found);
    return found;
}

}  // namespace nvml

using namespace nvml;

NVML Status nvmlInit_v2() { return uses++, kSuccess; }
NVML Status nvmlInit() { return nvmlInit_v2(); }
NVML Status nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }

NVML Status nvmlShutdown() {
    return of_system([] { return uses--, kSuccess; });
}

NVML const char* nvmlErrorString(int status) {
    switch (status) {
        case kSuccess: return "The operation was successful";
        case kUninitialized: return "Uninitialized";
        case kInvalidArgument: return "Invalid Argument";
        case kNotSupported: return "Not Supported";
        case kNotFound: return "Not Found";
        case kInsufficientSize: return "Insufficient Size";
        default: return "Unknown Error";
    }
}

NVML Status nvmlSystemGetDriverVersion(char* text, unsigned size) {
    return of_system([&] { return give(version() < 13000 ? "575.51.03" : "580.65.06", text, size); });
}

NVML Status nvmlSystemGetNVMLVersion(char* text, unsigned size) {
    return of_system([&] { return give(version() < 13000 ? "12.575.51.03" : "13.580.65.06", text, size); });
}

NVML Status nvmlSystemGetCudaDriverVersion_v2(int* found) {
    return found ? (*found = version(), kSuccess) : kInvalidArgument;
}
NVML Status nvmlSystemGetCudaDriverVersion(int* found) { return nvmlSystemGetCudaDriverVersion_v2(found); }

NVML Status nvmlDeviceGetCount_v2(unsigned* count) {
    return of_system([&] { return count ? (*count = unsigned(xsim_machine()), kSuccess) : kInvalidArgument; });
}
NVML Status nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }

NVML Status nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
    if (int(index) >= xsim_machine()) return uses > 0 ? kInvalidArgument : kUninitialized;
    return find(handle, [&](int number) { return number == int(index); });
}
NVML Status nvmlDeviceGetHandleByIndex(unsigned index, void** handle) {
    return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

NVML Status nvmlDeviceGetHandleByUUID(const char* wanted, void** handle) {
    return find(handle, [&](int number) { return wanted && !std::strcmp(wanted, Device(number).text); });
}

NVML Status nvmlDeviceGetHandleByPciBusId_v2(const char* wanted, void** handle) {
    unsigned domain = 0, bus = 0, device = 0;
    const bool is_read = wanted && (std::sscanf(wanted, "%x:%x:%x", &domain, &bus, &device) == 3 ||
                                    (domain = 0, std::sscanf(wanted, "%x:%x", &bus, &device) == 2));
    return find(handle,
                [&](int number) { return is_read && domain == 0 && device == 0 && place_of(number).bus == bus; });
}
NVML Status nvmlDeviceGetHandleByPciBusId(const char* wanted, void** handle) {
    return nvmlDeviceGetHandleByPciBusId_v2(wanted, handle);
}

NVML Status nvmlDeviceGetIndex(void* device, unsigned* index) {
    return of_device(device,
                     [&](int number) { return index ? (*index = unsigned(number), kSuccess) : kInvalidArgument; });
}
NVML Status nvmlDeviceGetMinorNumber(void* device, unsigned* minor) { return nvmlDeviceGetIndex(device, minor); }

NVML Status nvmlDeviceGetName(void* device, char* text, unsigned size) {
    return of_device(device, [&](int) { return give("xlogmem simulated device", text, size); });
}

NVML Status nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
    return of_device(device, [&](int number) { return give(Device(number).text, text, size); });
}

NVML Status nvmlDeviceGetPciInfo_v3(void* device, Pci* place) {
    return of_device(device,
                     [&](int number) { return place ? (*place = place_of(number), kSuccess) : kInvalidArgument; });
}

NVML Status nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
    return of_device(device,
                     [&](int number) { return memory ? (*memory = memory_of(number), kSuccess) : kInvalidArgument; });
}

NVML Status nvmlDeviceGetMemoryInfo_v2(void* device, Memory2* memory) {
    return of_device(device, [&](int number) {
        if (!memory) return kInvalidArgument;
        const Memory found = memory_of(number);
        *memory = {memory->version, found.total, 0, found.free, found.used};
        return kSuccess;
    });
}

NVML Status nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
    return of_device(device, [&](int) {
        return major && minor ? (*major = 9, *minor = 0, kSuccess) : kInvalidArgument;  // the simulated device's
    });
}

NVML Status nvmlDeviceGetComputeMode(void* device, int* mode) {
    return of_device(device, [&](int) { return mode ? (*mode = 0, kSuccess) : kInvalidArgument; });
}

#define STUB(name) NOT_SIMULATED(name, nvml::kNotSupported)
#include "names.hpp"
