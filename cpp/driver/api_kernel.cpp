// Entry points: attributes of kernels.
#include "calls.hpp"
#include "kernels.hpp"

#include <algorithm>

using namespace sim;

namespace {

constexpr int kThreads = 1024, kBlocks = 2, kMultiprocessors = 132, kSharedMemory = 227 << 10;

int attribute_of(CUfunction_attribute attribute) {
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return kThreads;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: return 32;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION: return 90;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: return kSharedMemory;
        default: return 0;
    }
}

template <class Handle>
Function* function_of(Handle handle) {
    return functions().get(reinterpret_cast<u64>(handle));
}

template <class Handle>
CUresult parameter_info(Handle handle, size_t index, size_t* offset, size_t* size) {
    const Function* function = function_of(handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (!offset || !function->facts || index >= function->facts->parameters.size()) return CUDA_ERROR_INVALID_VALUE;
    const check::Parameter& parameter = function->facts->parameters[index];
    *offset = parameter.offset;
    if (size) *size = parameter.size;
    return CUDA_SUCCESS;
}

template <class Handle>
CUresult name_of(const char** name, Handle handle) {
    const Function* function = function_of(handle);
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    *name = function->name;
    return CUDA_SUCCESS;
}

template <class Handle, class Owner>
CUresult owner_of(Owner* owner, Handle handle) {
    const Function* function = function_of(handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    *owner = reinterpret_cast<Owner>(function->module->handle);
    return CUDA_SUCCESS;
}

template <class Value>
CUresult give(Value* place, Value value) {
    if (!place) return CUDA_ERROR_INVALID_VALUE;
    *place = value;
    return CUDA_SUCCESS;
}

CUresult best_shape(int* grid, int* block, int limit) {
    if (!grid || !block) return CUDA_ERROR_INVALID_VALUE;
    *block = limit > 0 ? std::min(limit, kThreads) : kThreads;
    *grid = kBlocks * kMultiprocessors;
    return CUDA_SUCCESS;
}

}  // namespace

EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
    return give(value, attribute_of(attribute));
}
EXPORT CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
EXPORT CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
EXPORT CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel, CUdevice) {
    return give(value, attribute_of(attribute));
}
EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute, int, CUkernel, CUdevice) { return CUDA_SUCCESS; }
EXPORT CUresult cuKernelSetCacheConfig(CUkernel, CUfunc_cache, CUdevice) { return CUDA_SUCCESS; }

EXPORT CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* size) {
    return api_call(CALL("cuFuncGetParamInfo"), [&](Lock&) { return parameter_info(function, index, offset, size); });
}
EXPORT CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
    return api_call(CALL("cuKernelGetParamInfo"), [&](Lock&) { return parameter_info(kernel, index, offset, size); });
}
EXPORT CUresult cuFuncGetName(const char** name, CUfunction function) {
    return api_call(CALL("cuFuncGetName"), [&](Lock&) { return name_of(name, function); });
}
EXPORT CUresult cuKernelGetName(const char** name, CUkernel kernel) {
    return api_call(CALL("cuKernelGetName"), [&](Lock&) { return name_of(name, kernel); });
}
EXPORT CUresult cuFuncGetModule(CUmodule* module, CUfunction function) {
    return api_call(CALL("cuFuncGetModule"), [&](Lock&) { return owner_of(module, function); });
}
EXPORT CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel kernel) {
    return api_call(CALL("cuKernelGetLibrary"), [&](Lock&) { return owner_of(library, kernel); });
}
EXPORT CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction) {
    return give(state, CU_FUNCTION_LOADING_STATE_LOADED);
}
EXPORT CUresult cuFuncLoad(CUfunction) { return CUDA_SUCCESS; }

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, size_t) {
    return give(blocks, kBlocks);
}
EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction, int, size_t, unsigned) {
    return give(blocks, kBlocks);
}
EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction, CUoccupancyB2DSize, size_t,
                                                 int limit) {
    return best_shape(grid, block, limit);
}
EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction, CUoccupancyB2DSize, size_t,
                                                          int limit, unsigned) {
    return best_shape(grid, block, limit);
}
EXPORT CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction, int blocks, int) {
    return give(bytes, size_t(kSharedMemory / std::max(blocks, 1)));
}
EXPORT CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction, const CUlaunchConfig*) {
    return give(size, 8);
}
EXPORT CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
    return give(clusters, kMultiprocessors / 8);
}
