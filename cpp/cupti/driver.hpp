// The functions of the driver that the check itself calls, taken from the library that the process has loaded.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

namespace check {

// False, and no function, if the library does not have the symbol.
template <class Function>
bool find_symbol(void* library, const char* name, Function& function) {
    function = library ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
    return function;
}

struct Driver {
    using ParamInfo = CUresult (*)(void* kernel, size_t index, size_t* offset, size_t* bytes);
    ParamInfo function_parameter = nullptr, kernel_parameter = nullptr;  // of CUDA 12.4 and later

    CUresult (*address_range)(CUdeviceptr* begin, size_t* bytes, CUdeviceptr address) = nullptr;

    CUresult (*device_attribute)(int* value, CUdevice_attribute attribute, CUdevice device) = nullptr;
    CUresult (*primary_state)(CUdevice device, unsigned* flags, int* active) = nullptr;

    CUresult (*exchange_capture_mode)(CUstreamCaptureMode* mode) = nullptr;
    CUresult (*load_module)(CUmodule* module, const void* image) = nullptr;
    CUresult (*get_function)(CUfunction* function, CUmodule module, const char* name) = nullptr;
    CUresult (*allocate)(CUdeviceptr* address, size_t bytes) = nullptr;
    CUresult (*register_host)(void* address, size_t bytes, unsigned flags) = nullptr;
    CUresult (*fill)(CUdeviceptr address, unsigned value, size_t count, CUstream stream) = nullptr;
    CUresult (*launch)(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       CUstream stream, void** parameters, void** extra) = nullptr;
    bool complete = false;  // from cuThreadExchangeStreamCaptureMode on

    static const Driver& get();
};

}  // namespace check
