// Kernels that are compiled into a program, as the compiler's own code registers and launches them.
#include "runtime.hpp"

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

using namespace cudart;

namespace {

// The structure that the compiler hands over: a magic number, a version, and the place of the fat binary.
struct Wrapper {
    int magic, version;
    const void* image;
};

struct FatBinary {
    const Wrapper* wrapper;
    CUmodule module;
};

struct Registered {
    FatBinary* from = nullptr;
    std::string name;
    CUfunction function = nullptr;
};

std::mutex launch_mutex;

// Kernels by the address of the function on the host that stands for the kernel.
std::map<const void*, Registered>& registered() {
    static auto& all = *new std::map<const void*, Registered>;
    return all;
}

}  // namespace

CUresult cudart::function_of(const void* host, CUfunction* function) {
    std::lock_guard<std::mutex> guard(launch_mutex);
    auto found = registered().find(host);
    if (found == registered().end()) return CUDA_ERROR_INVALID_HANDLE;
    Registered& kernel = found->second;
    CUmodule& module = kernel.from->module;
    if (!module)
        if (CUresult refused = cuModuleLoadFatBinary(&module, kernel.from->wrapper->image)) return refused;
    if (!kernel.function)
        if (CUresult refused = cuModuleGetFunction(&kernel.function, module, kernel.name.c_str())) return refused;
    *function = kernel.function;
    return CUDA_SUCCESS;
}

namespace {

struct Configuration {
    Extents grid, block;
    size_t shared;
    CUstream stream;
};
thread_local std::vector<Configuration> configurations;

}  // namespace

RUNTIME void** __cudaRegisterFatBinary(const Wrapper* wrapper) {
    return reinterpret_cast<void**>(new FatBinary{wrapper, nullptr});
}
RUNTIME void __cudaRegisterFatBinaryEnd(void**) {}
RUNTIME void __cudaUnregisterFatBinary(void**) {}
RUNTIME void __cudaRegisterFunction(void** from, const char* host, char*, const char* name, int, void*, void*, void*,
                                    void*, int*) {
    std::lock_guard<std::mutex> guard(launch_mutex);
    registered()[host] = {reinterpret_cast<FatBinary*>(from), name, nullptr};
}
RUNTIME char __cudaInitModule(void**) { return 0; }

RUNTIME unsigned __cudaPushCallConfiguration(Extents grid, Extents block, size_t shared, CUstream stream) {
    configurations.push_back({grid, block, shared, stream});
    return 0;
}
RUNTIME Error __cudaPopCallConfiguration(Extents* grid, Extents* block, size_t* shared, CUstream* stream) {
    if (configurations.empty()) return done(CUDA_ERROR_INVALID_VALUE);
    Configuration last = configurations.back();
    configurations.pop_back();
    *grid = last.grid;
    *block = last.block;
    *shared = last.shared;
    *stream = last.stream;
    return 0;
}

RUNTIME Error cudaLaunchKernel(const void* host, Extents grid, Extents block, void** parameters, size_t shared,
                               CUstream stream) {
    CUfunction function;
    if (CUresult refused = begin()) return done(refused);
    if (CUresult refused = function_of(host, &function)) return done(refused);
    return done(cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, unsigned(shared), stream,
                               parameters, nullptr));
}
// Programs of CUDA 12.8 and later launch their compiled kernels in this way: the handle of a kernel is its stand-in on
// the host, which cudaLaunchKernel takes as well.
RUNTIME Error __cudaGetKernel(const void** kernel, const void* host) {
    *kernel = host;
    return 0;
}
RUNTIME Error __cudaLaunchKernel(const void* kernel, Extents grid, Extents block, void** parameters, size_t shared,
                                 CUstream stream) {
    return cudaLaunchKernel(kernel, grid, block, parameters, shared, stream);
}
RUNTIME Error cudaLaunchCooperativeKernel(const void* host, Extents grid, Extents block, void** parameters,
                                          size_t shared, CUstream stream) {
    DRIVER([&]() -> CUresult {
        CUfunction function;
        if (CUresult refused = function_of(host, &function)) return refused;
        return cuLaunchCooperativeKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, unsigned(shared),
                                         stream, parameters);
    }());
}

namespace {

// cudaLaunchConfig_t.
struct Launch {
    Extents grid, block;
    size_t shared;
    CUstream stream;
    CUlaunchAttribute* attributes;
    unsigned attribute_count;
};

}  // namespace

RUNTIME Error cudaLaunchKernelExC(const Launch* launch, const void* host, void** parameters) {
    DRIVER([&]() -> CUresult {
        CUfunction function;
        if (CUresult refused = function_of(host, &function)) return refused;
        CUlaunchConfig config = {};
        config.gridDimX = launch->grid.x, config.gridDimY = launch->grid.y, config.gridDimZ = launch->grid.z;
        config.blockDimX = launch->block.x, config.blockDimY = launch->block.y, config.blockDimZ = launch->block.z;
        config.sharedMemBytes = unsigned(launch->shared);
        config.hStream = launch->stream;
        config.attrs = launch->attributes;
        config.numAttrs = launch->attribute_count;
        return cuLaunchKernelEx(&config, function, parameters, nullptr);
    }());
}

namespace {

// cudaFuncAttributes.
struct KernelAttributes {
    size_t shared, constant, local;
    int threads, registers, ptx_version, binary_version, cache_mode, dynamic_shared, carveout;
    int cluster_is_needed, cluster_width, cluster_height, cluster_depth, cluster_policy, cluster_is_free;
    int reserved[16];
};

}  // namespace

RUNTIME Error cudaFuncGetAttributes(KernelAttributes* attributes, const void* host) {
    DRIVER([&]() -> CUresult {
        CUfunction function;
        if (CUresult refused = function_of(host, &function)) return refused;
        *attributes = {};
        std::pair<int*, CUfunction_attribute> wanted[] = {
            {&attributes->threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
            {&attributes->registers, CU_FUNC_ATTRIBUTE_NUM_REGS},
            {&attributes->ptx_version, CU_FUNC_ATTRIBUTE_PTX_VERSION},
            {&attributes->binary_version, CU_FUNC_ATTRIBUTE_BINARY_VERSION},
            {&attributes->dynamic_shared, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES}};
        for (auto& [value, attribute] : wanted)
            if (CUresult refused = cuFuncGetAttribute(value, attribute, function)) return refused;
        return CUDA_SUCCESS;
    }());
}
RUNTIME Error cudaFuncSetAttribute(const void*, int, int) { return 0; }
RUNTIME Error cudaFuncSetCacheConfig(const void*, int) { return 0; }
RUNTIME Error cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
    *blocks = 2;
    return 0;
}
RUNTIME Error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
    *blocks = 2;
    return 0;
}

RUNTIME Error cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void*, int blocks, int threads) {
    return done(cuOccupancyAvailableDynamicSMemPerBlock(bytes, nullptr, blocks, threads));
}
RUNTIME Error cudaOccupancyMaxPotentialClusterSize(int* size, const void*, const CUlaunchConfig* launch) {
    return done(cuOccupancyMaxPotentialClusterSize(size, nullptr, launch));
}
RUNTIME Error cudaOccupancyMaxActiveClusters(int* clusters, const void*, const CUlaunchConfig* launch) {
    return done(cuOccupancyMaxActiveClusters(clusters, nullptr, launch));
}

// The driver's functions by their names; a status of 0 is success.
RUNTIME Error cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                               unsigned long long flags, int* status) {
    CUdriverProcAddressQueryResult found;
    CUresult result = cuGetProcAddress_v2(name, function, int(version), flags, &found);
    if (status) *status = int(found);
    return result == CUDA_ERROR_NOT_FOUND ? 0 : done(result);
}
RUNTIME Error cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags, int* status) {
    return cudaGetDriverEntryPointByVersion(name, function, CUDART_VERSION, flags, status);
}
