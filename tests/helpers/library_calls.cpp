// A driver for the simulated libraries alone: it notes what a call says of itself, and does it at once, in memory of the
// host.
#include "library_call.hpp"

#include <cstdlib>
#include <string>

namespace {
std::string noted;
}

extern "C" {
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = reinterpret_cast<CUcontext>(1);
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext*, CUdevice) { return CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }
CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes) {
    *address = reinterpret_cast<CUdeviceptr>(malloc(bytes));
    return CUDA_SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr address) {
    free(reinterpret_cast<void*>(address));
    return CUDA_SUCCESS;
}

CUresult xsim_library_call(library::Call* call) {
    noted = std::string(call->name) + " " + std::to_string(reinterpret_cast<std::uint64_t>(call->stream));
    library::Views views;
    for (const library::Extent& one : call->extents) {
        noted += " " + std::to_string(one.address) + " " + std::to_string(one.width) + " " + std::to_string(one.rows) +
                 " " + std::to_string(one.pitch) + " " + one.use;
        views.push_back(reinterpret_cast<unsigned char*>(one.address));
    }
    if (call->run) call->run(views);
    return CUDA_SUCCESS;
}

void xsim_not_simulated(const char*) {}

const char* newest_call() { return noted.c_str(); }
}
