// Entry points: launches of kernels.
#include "calls.hpp"
#include "capture.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "unknown.hpp"
#include "watch.hpp"

#include <cstring>

using namespace sim;

namespace {

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

// A kernel that touches memory of another device without access to it crashes when it runs.
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

CUresult launch(Lock& lock, CUfunction handle, CUstream stream_handle, const LaunchShape& shape, void** pointers,
                void** extra) {
    Stream* stream;
    Function* function = functions().get(reinterpret_cast<u64>(handle));
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    REFUSE_IF(find_stream(stream_handle, &stream));
    Launchable made;
    REFUSE_IF(prepare_launch(function, stream->context, shape, pointers, extra, &made));
    return submit(lock, stream, std::move(made.work), nullptr, [&] { return made.watch(stream); });
}

}  // namespace

namespace sim {

CUresult prepare_launch(const Function* function, const Context* context, const LaunchShape& shape, void** pointers,
                        void** extra, Launchable* made) {
    for (std::size_t i = 0; i < 6; i++)
        if (!shape[i] || shape[i] > kMostOfLaunch[i]) return CUDA_ERROR_INVALID_VALUE;
    if (shape[3] * shape[4] * shape[5] > kMostThreads) return CUDA_ERROR_INVALID_VALUE;  // at most 2^26
    const Kernel* kernel = function->kernel;
    if (!kernel && driver().config.unknown_kernels) {
        Shape extents{{shape[0], shape[1], shape[2]}, {shape[3], shape[4], shape[5]}};
        return prepare_unknown(*function, extents, pointers, extra, made);
    }
    if (!kernel) {
        log_line("kernel '%s' has no simulation: the launch is refused", function->name);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    Parameters parameters;
    if (!collect(*kernel, pointers, extra, &parameters)) return CUDA_ERROR_INVALID_VALUE;
    Work work;
    work.name = kernel->name;
    kernel->declare(work, parameters);
    for (unsigned i = 0; i < work.range_count; i++) {
        const Range& range = work.ranges[i];
        if (is_reached(range.address, range.bytes)) continue;
        log_line("kernel %s: bytes [0x%llx,0x%llx) are not device memory", kernel->name,
                 (unsigned long long)range.address, (unsigned long long)(range.address + range.bytes));
        return CUDA_ERROR_INVALID_VALUE;
    }
    Work reach = work;  // what it touches, for the moment when it runs
    work.run = [kernel, parameters, reach, context] {
        if (check_reach(reach, context)) kernel->run(parameters);
    };
    look_at_host_memory(work);
    *made = {std::move(work), [reach](Stream* stream) { return watch_work(stream, reach); }};
    return CUDA_SUCCESS;
}

}  // namespace sim

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned, CUstream stream, void** parameters,
                               void** extra) {
    return api_call(CALL("cuLaunchKernel"), [&](Lock& lock) {
        return launch(lock, function, stream, LaunchShape{grid_x, grid_y, grid_z, block_x, block_y, block_z},
                      parameters, extra);
    });
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
    return api_call(CALL("cuLaunchKernelEx"), [&](Lock& lock) {
        return launch(lock, function, config->hStream,
                      LaunchShape{config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                                  config->blockDimY, config->blockDimZ},
                      parameters, extra);
    });
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned,
                                          CUstream stream, void** parameters) {
    return api_call(CALL("cuLaunchCooperativeKernel"), [&](Lock& lock) {
        return launch(lock, function, stream, LaunchShape{grid_x, grid_y, grid_z, block_x, block_y, block_z},
                      parameters, nullptr);
    });
}
