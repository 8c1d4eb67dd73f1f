// Calls of libraries that are simulated (cuRAND, cuBLAS, cuFFT, cuSOLVER, cuSPARSE, Thrust), as the simulated driver takes
// them: which memory a call reads and writes on which stream, and a function that does it.
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL 1
#endif
#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cmath>
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

// `count` matrices of which the first is `one`, from each to the next `stride` elements of `size` bytes, without the room
// between them. The first extent begins where the first matrix does. There are few extents however many matrices there
// are: of those that lie in no simple pattern some part counts.
inline std::vector<Extent> extents_of_batch(Extent one, std::int64_t count, std::int64_t stride, std::uint64_t size) {
    constexpr std::uint64_t kMostExtents = 4096, kMostBytes = std::uint64_t(1) << 48;  // no memory is larger
    std::uint64_t matrices = std::uint64_t(std::max<std::int64_t>(count, 0)), bytes = one.bytes();
    if (!matrices) one.rows = 0;
    if (matrices <= 1 || !stride || !bytes) return {one};
    std::vector<Extent> all;
    std::uint64_t step = std::uint64_t(stride) * size;
    double reach = double(matrices - 1) * std::fabs(double(stride)) * double(size) + double(bytes);
    if (stride < 0) {  // the last one is the first in memory
        all.push_back({one.address, 0, 0, 0, one.use});
        one.address += (matrices - 1) * step;
        step = -step;
    }
    std::uint64_t span = reach < double(kMostBytes) ? (matrices - 1) * step + bytes : kMostBytes;
    // These bytes of each matrix.
    auto of_each = [&](std::uint64_t offset, std::uint64_t width) {
        bool is_one = step <= width;
        std::uint64_t all_bytes = is_one ? (matrices - 1) * step + width : width;
        all.push_back({one.address + offset, all_bytes, is_one ? 1 : matrices, is_one ? all_bytes : step, one.use});
    };
    if (span == kMostBytes || std::min(matrices, one.rows) > kMostExtents) {
        all.push_back({one.address, span, 1, span, one.use, true});
    } else if (step == one.pitch * one.rows) {
        all.push_back({one.address, one.width, one.rows * matrices, one.pitch, one.use});
    } else if (one.rows == 1 || one.pitch == one.width) {
        of_each(0, bytes);
    } else if (matrices > one.rows) {
        for (std::uint64_t i = 0; i < one.rows; i++) of_each(i * one.pitch, one.width);
    } else {
        for (std::uint64_t i = 0; i < matrices; i++, one.address += step) all.push_back(one);
    }
    return all;
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

constexpr double kOfEach = 100;  // what a matrix of a batch costs beside its multiplications
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
