// A CUDA runtime on top of the simulated driver, for programs that are checked without a GPU: each of its functions is
// a call of the driver or two. The runtime takes the place of libcudart for code that loads libcudart dynamically.
// Where a library has a runtime linked into it and hands out a table of that runtime's functions, the functions here
// take their place.
//
// The signatures are those of cuda_runtime_api.h, with the driver's types for the same things: handles, device
// pointers, and errors, which have the same numbers. So no header of the runtime is needed to build this.
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL 1
#endif
#include <cuda.h>

#include <cstddef>

#define RUNTIME extern "C" __attribute__((visibility("default")))

namespace cudart {

using Error = int;

// A thread's last error, and its device.
Error done(CUresult result);
extern thread_local int current_device;

// The primary context of the thread's device is current from here on, if none was.
CUresult begin();
CUresult retain(int device, CUcontext* context);
void forget_variables(CUdevice device);  // their memory is gone

template <class Call>
Error with_context(Call&& call) {
    if (CUresult refused = begin()) return done(refused);
    return done(call());
}

struct Extents {  // dim3
    unsigned x, y, z;
};
// The kernel for which this function on the host stands.
CUresult function_of(const void* host, CUfunction* function);

// Functions that are missing here log their names, once each, and return this.
constexpr Error kNotSupported = CUDA_ERROR_NOT_SUPPORTED;

}  // namespace cudart

#define DRIVER(...) return cudart::with_context([&]() -> CUresult { return __VA_ARGS__; })
