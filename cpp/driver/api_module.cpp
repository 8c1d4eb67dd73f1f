// Entry points: modules, libraries, functions.
#include "calls.hpp"
#include "capture.hpp"
#include "kernels.hpp"
#include "memory.hpp"

#include <cstdio>
#include <cstring>

using namespace sim;

namespace {

CUresult load(u64* handle, const void* image, bool needs_context) {
    Context* context;
    if (!image || !handle) return CUDA_ERROR_INVALID_VALUE;
    if (needs_context) REFUSE_IF(current_context(&context));
    Module* module = load_module(image);
    if (!module) return CUDA_ERROR_INVALID_IMAGE;
    *handle = module->handle = modules().add(module);
    return CUDA_SUCCESS;
}

// The driver reads the file itself.
CUresult load_file(u64* handle, const char* path, bool needs_context) {
    if (!path) return CUDA_ERROR_INVALID_VALUE;
    FILE* file = fopen(path, "rb");
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    std::string image;
    char part[65536];
    for (std::size_t read; (read = fread(part, 1, sizeof part, file)) > 0;) image.append(part, read);
    fclose(file);
    image.append(64, '\0');  // what is not there reads as the end
    return load(handle, image.data(), needs_context);
}

CUresult unload(Lock& lock, u64 handle) {
    Module* module = modules().get(handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    run_everything(lock);
    for (auto& place : module->places)
        is_managed(place.second) ? free_host(lock, place.second, true) : free_now(lock, place.second);
    for (u64 function : module->function_handles) functions().remove(function);
    modules().remove(handle);
    delete module;
    return CUDA_SUCCESS;
}

u64 handle_of(Function* function) {
    if (!function->handle) {
        function->handle = functions().add(function);
        function->module->function_handles.push_back(function->handle);
    }
    return function->handle;
}

CUresult function_of(u64* handle, u64 module_handle, const char* name) {
    Module* module = modules().get(module_handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    Function* function = get_function(module, name);
    if (!function) return CUDA_ERROR_NOT_FOUND;
    *handle = handle_of(function);
    return CUDA_SUCCESS;
}

bool is_live(u64 address) {
    const Block* block = find_block(address);
    return is_managed(address) || (block && block->live && block->address == address);
}

CUresult make_variable(Lock& lock, u64* place, const check::Variable& variable, Context* context) {
    if (variable.is_managed) return allocate_host(reinterpret_cast<void**>(place), variable.bytes, true);
    REFUSE_IF(allocate_now(lock, place, variable.bytes, context));
    memset(memory().view(*place), 0, variable.bytes);
    return CUDA_SUCCESS;
}

// The memory of a variable is made where the program names the variable for the first time, with zeros in it: kernels
// compute nothing here, and the values in the program's source are not read.
CUresult variable_of(Lock& lock, CUdeviceptr* address, size_t* bytes, u64 module_handle, const char* name,
                     bool managed_alone = false) {
    Context* context;
    Module* module = modules().get(module_handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    if (!name || (!address && !bytes)) return CUDA_ERROR_INVALID_VALUE;
    auto found = module->variables.find(name);
    if (found == module->variables.end()) return CUDA_ERROR_NOT_FOUND;
    const check::Variable& variable = found->second;
    if (managed_alone && !variable.is_managed) return CUDA_ERROR_NOT_FOUND;
    REFUSE_IF(current_context(&context));
    if (bytes) *bytes = variable.bytes;
    if (!address) return CUDA_SUCCESS;
    u64& place = module->places[{found->first, variable.is_managed ? nullptr : context->shared()}];
    if (!is_live(place)) REFUSE_IF(make_variable(lock, &place, variable, context));
    *address = place;
    return CUDA_SUCCESS;
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

EXPORT CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
    return api_call(CALL("cuModuleLoadFatBinary"), [&](Lock&) { return load(slot(module), image, true); });
}

EXPORT CUresult cuModuleLoad(CUmodule* module, const char* path) {
    return api_call(CALL("cuModuleLoad"), [&](Lock&) { return load_file(slot(module), path, true); });
}

EXPORT CUresult cuModuleUnload(CUmodule module) {
    return api_call(CALL("cuModuleUnload"), [&](Lock& lock) { return unload(lock, number(module)); });
}

EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    return api_call(CALL("cuModuleGetFunction"),
                    [&](Lock&) { return function_of(slot(function), number(module), name); });
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name) {
    return api_call(CALL("cuModuleGetGlobal"),
                    [&](Lock& lock) { return variable_of(lock, address, bytes, number(module), name); });
}

EXPORT CUresult cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option*, void**, unsigned,
                                  CUlibraryOption*, void**, unsigned) {
    return api_call(CALL("cuLibraryLoadData"), [&](Lock&) { return load(slot(library), image, false); });
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option*, void**, unsigned,
                                      CUlibraryOption*, void**, unsigned) {
    return api_call(CALL("cuLibraryLoadFromFile"), [&](Lock&) { return load_file(slot(library), path, false); });
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

EXPORT CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
    return api_call(CALL("cuLibraryGetModule"), [&](Lock&) -> CUresult {
        if (!modules().get(number(library))) return CUDA_ERROR_INVALID_HANDLE;
        *module = reinterpret_cast<CUmodule>(library);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
    return api_call(CALL("cuLibraryGetGlobal"),
                    [&](Lock& lock) { return variable_of(lock, address, bytes, number(library), name); });
}

EXPORT CUresult cuLibraryGetManaged(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
    return api_call(CALL("cuLibraryGetManaged"),
                    [&](Lock& lock) { return variable_of(lock, address, bytes, number(library), name, true); });
}

EXPORT CUresult cuLibraryGetKernelCount(unsigned* count, CUlibrary library) {
    return api_call(CALL("cuLibraryGetKernelCount"), [&](Lock&) -> CUresult {
        Module* module = modules().get(number(library));
        if (!module) return CUDA_ERROR_INVALID_HANDLE;
        *count = unsigned(module->functions.size());
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned count, CUlibrary library) {
    return api_call(CALL("cuLibraryEnumerateKernels"), [&](Lock&) -> CUresult {
        Module* module = modules().get(number(library));
        if (!module) return CUDA_ERROR_INVALID_HANDLE;
        for (auto& entry : module->functions)
            if (count) *kernels++ = reinterpret_cast<CUkernel>(handle_of(entry.second.get())), count--;
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
    *mode = CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}
