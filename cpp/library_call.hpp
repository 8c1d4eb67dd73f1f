// Calls of libraries that are simulated (cuRAND, cuBLAS, cuFFT, cuSOLVER, cuSPARSE, Thrust), as the simulated driver takes
// them: which memory a call reads and writes on which stream, and a function that does it.
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL 1
#endif
#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

namespace library {

// Rows of `width` bytes, which begin `pitch` bytes apart.
struct Extent {
    std::uint64_t address, width, rows, pitch;
    char use;  // 'r', 'w', or 'b' for both
    bool some = false;  // indices choose which of these bytes are touched

    std::uint64_t bytes() const { return rows && width ? (rows - 1) * pitch + width : 0; }
};
inline Extent extent_of(const void* address, std::uint64_t bytes, char use) {
    return {reinterpret_cast<std::uint64_t>(address), bytes, 1, bytes, use};
}

// Where the host reaches the first byte of each extent.
using Views = std::vector<unsigned char*>;
using Run = std::function<void(const Views&)>;

struct Call {
    const char* name;  // lives as long as the process
    CUstream stream;
    std::vector<Extent> extents;
    Run run;  // in the order of the stream; none: it computes nothing
    bool touches_more = false;  // memory of which nothing is known
};

// A context is current from here on: that of the first device, if there was none.
inline CUresult begin() {
    CUcontext context = nullptr;
    CUresult result = cuInit(0);
    if (!result) result = cuCtxGetCurrent(&context);
    if (result || context) return result;
    if (CUresult refused = cuDevicePrimaryCtxRetain(&context, 0)) return refused;
    return cuCtxSetCurrent(context);
}

// A program may compute more than a CPU can in its time: the budget of all calls of a library, in multiplications.
inline bool can_afford(double cost, double budget) {
    static std::atomic<double> spent{0};
    double before = spent.load();
    while (before + cost <= budget)
        if (spent.compare_exchange_weak(before, before + cost)) return true;
    return false;
}

}  // namespace library

// Of the simulated driver. Both are built at the same time, by the same compiler.
extern "C" CUresult xsim_library_call(library::Call* call);
