// Entry points: modules, libraries, functions, launches.
#include "calls.hpp"
#include "capture.hpp"
#include "kernels.hpp"
#include "memory.hpp"

#include <cstring>

using namespace sim;

namespace {

// Modules and libraries share a table, functions and kernels another: the driver's two views of the same
// things.
HandleTable<Module>& modules() {
    static auto& table = *new HandleTable<Module>(0x3100000000ull);
    return table;
}
HandleTable<Function>& functions() {
    static auto& table = *new HandleTable<Function>(0x3200000000ull);
    return table;
}

CUresult load(u64* handle, const void* image, bool needs_context) {
    Context* context;
    if (!image || !handle) return CUDA_ERROR_INVALID_VALUE;
    if (needs_context) REFUSE_IF(current_context(&context));
    Module* module = load_module(image);
    if (!module) return CUDA_ERROR_INVALID_IMAGE;
    *handle = module->handle = modules().add(module);
    return CUDA_SUCCESS;
}

CUresult unload(Lock& lock, u64 handle) {
    Module* module = modules().get(handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    run_everything(lock);
    for (u64 function : module->function_handles) functions().remove(function);
    modules().remove(handle);
    delete module;
    return CUDA_SUCCESS;
}

CUresult function_of(u64* handle, u64 module_handle, const char* name) {
    Module* module = modules().get(module_handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    Function* function = get_function(module, name);
    if (!function) return CUDA_ERROR_NOT_FOUND;
    for (u64 known : module->function_handles) {
        if (functions().get(known) != function) continue;
        *handle = known;
        return CUDA_SUCCESS;
    }
    *handle = functions().add(function);
    module->function_handles.push_back(*handle);
    return CUDA_SUCCESS;
}

// Parameters come as an array of pointers, or packed in one buffer named by `extra`, each at its natural
// alignment.
bool collect(const Kernel& kernel, void** pointers, void** extra, Parameters* parameters) {
    if (pointers) {
        for (std::size_t i = 0; i < kernel.sizes.size(); i++) parameters->add(pointers[i], kernel.sizes[i]);
        return true;
    }
    const u8* buffer = nullptr;
    for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2)
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = static_cast<const u8*>(extra[1]);
    if (!buffer) return kernel.sizes.empty();
    std::size_t offset = 0;
    for (std::size_t size : kernel.sizes) {
        offset = (offset + size - 1) / size * size;
        parameters->add(buffer + offset, size);
        offset += size;
    }
    return true;
}

// Whether a kernel may touch memory of another device shows when it runs: where it may not, it crashes.
bool check_reach(const Work& work, const Context* context) {
    for (unsigned i = 0; i < work.range_count; i++) {
        const Range& range = work.ranges[i];
        if (can_access(context, range.address, range.use)) continue;
        log_line("kernel %s on device %d: no access to bytes [0x%llx,0x%llx) of another device", work.name,
                 context->device, (unsigned long long)range.address, (unsigned long long)(range.address + range.bytes));
        fault(CUDA_ERROR_ILLEGAL_ADDRESS);
        return false;
    }
    return true;
}

CUresult launch(Lock& lock, CUfunction handle, CUstream stream_handle, const unsigned (&shape)[6], void** pointers,
                void** extra) {
    Stream* stream;
    Function* function = functions().get(reinterpret_cast<u64>(handle));
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    REFUSE_IF(find_stream(stream_handle, &stream));
    for (unsigned extent : shape)
        if (!extent) return CUDA_ERROR_INVALID_VALUE;
    const Kernel* kernel = function->kernel;
    if (!kernel) {
        log_line("kernel '%s' has no simulation: the launch is refused", function->name.c_str());
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    Parameters parameters;
    if (!collect(*kernel, pointers, extra, &parameters)) return CUDA_ERROR_INVALID_VALUE;
    Work work;
    work.name = kernel->name;
    kernel->declare(work, parameters);
    for (unsigned i = 0; i < work.range_count; i++) {
        const Range& range = work.ranges[i];
        if (on_device(range.address, range.bytes)) continue;
        log_line("kernel %s: bytes [0x%llx,0x%llx) are not device memory", kernel->name,
                 (unsigned long long)range.address, (unsigned long long)(range.address + range.bytes));
        return CUDA_ERROR_INVALID_VALUE;
    }
    Work reach = work;  // what it touches, for the moment when it runs
    work.run = [kernel, parameters, reach, context = stream->context] {
        if (check_reach(reach, context)) kernel->run(parameters);
    };
    return submit(lock, stream, std::move(work));
}

int function_attribute(CUfunction_attribute attribute) {
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: return 32;
        default: return 0;
    }
}

template <class H>
u64* slot(H* handle) {
    return reinterpret_cast<u64*>(handle);
}
template <class H>
u64 number(H handle) {
    return reinterpret_cast<u64>(handle);
}

}  // namespace

EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    return api_call(CALL("cuModuleLoadData"), [&](Lock&) { return load(slot(module), image, true); });
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
    return api_call(CALL("cuModuleLoadDataEx"), [&](Lock&) { return load(slot(module), image, true); });
}

EXPORT CUresult cuModuleUnload(CUmodule module) {
    return api_call(CALL("cuModuleUnload"), [&](Lock& lock) { return unload(lock, number(module)); });
}

EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    return api_call(CALL("cuModuleGetFunction"),
                    [&](Lock&) { return function_of(slot(function), number(module), name); });
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr*, size_t*, CUmodule, const char*) {
    return api_call(CALL("cuModuleGetGlobal"), [&](Lock&) -> CUresult { return CUDA_ERROR_NOT_FOUND; });
}

EXPORT CUresult cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option*, void**, unsigned,
                                  CUlibraryOption*, void**, unsigned) {
    return api_call(CALL("cuLibraryLoadData"), [&](Lock&) { return load(slot(library), image, false); });
}

EXPORT CUresult cuLibraryUnload(CUlibrary library) {
    return api_call(CALL("cuLibraryUnload"), [&](Lock& lock) { return unload(lock, number(library)); });
}

EXPORT CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
    return api_call(CALL("cuLibraryGetKernel"),
                    [&](Lock&) { return function_of(slot(kernel), number(library), name); });
}

EXPORT CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
    return api_call(CALL("cuKernelGetFunction"), [&](Lock&) -> CUresult {
        if (!functions().get(number(kernel))) return CUDA_ERROR_INVALID_HANDLE;
        *function = reinterpret_cast<CUfunction>(kernel);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
    *value = function_attribute(attribute);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }

EXPORT CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel, CUdevice) {
    *value = function_attribute(attribute);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned, CUstream stream, void** parameters,
                               void** extra) {
    return api_call(CALL("cuLaunchKernel"), [&](Lock& lock) {
        return launch(lock, function, stream, {grid_x, grid_y, grid_z, block_x, block_y, block_z}, parameters, extra);
    });
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
    return api_call(CALL("cuLaunchKernelEx"), [&](Lock& lock) {
        return launch(lock, function, config->hStream,
                      {config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY,
                       config->blockDimZ},
                      parameters, extra);
    });
}
