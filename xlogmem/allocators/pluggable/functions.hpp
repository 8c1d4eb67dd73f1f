// What PyTorch calls instead of its own allocator (torch.cuda.memory.CUDAPluggableAllocator): each function is a call of
// xlogmem's C table. From any thread, with the GIL or without it.
#pragma once

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "pluggable/errors.hpp"
#include "xlogmem.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kDevices = 64;

// Returns a hold on the runtime of a device, or NULL with the error filled in.  It takes the GIL.
using OpenRuntime = xlogmem_runtime* (*)(int device, xlogmem_error* error);

const xlogmem_table* table = nullptr;
OpenRuntime open_runtime = nullptr;
std::atomic<xlogmem_runtime*> runtimes[kDevices];  // opened with the first allocation of the device, and never closed
std::atomic<bool> counting{false};                 // tensors that are dropped, while PyTorch captures a graph
std::atomic<size_t> dropped_count{0}, dropped_bytes{0};

xlogmem_runtime* runtime_of(int device) {
    if (device < 0 || device >= kDevices)
        throw std::runtime_error("xlogmem: there is no device " + std::to_string(device));
    if (xlogmem_runtime* known = runtimes[device].load()) return known;
    xlogmem_error error;
    xlogmem_runtime* opened = open_runtime(device, &error);
    if (!opened) throw std::runtime_error(error.text);
    xlogmem_runtime* other = nullptr;
    if (runtimes[device].compare_exchange_strong(other, opened)) return opened;
    table->close(opened);  // another thread was first
    return other;
}

// False: there is no memory, and the error says more.  What else fails is thrown.
bool allocated(intptr_t size, int device, void* stream, void** ptr, xlogmem_error* error) {
    if (!table->allocate(runtime_of(device), size_t(size), stream, ptr, error)) return true;
    if (error->kind != XLOGMEM_OUT_OF_MEMORY) throw std::runtime_error(error->text);
    return false;
}

std::string out_of_memory(size_t size, int device, const xlogmem_error& error) {
    return "CUDA out of memory. Tried to allocate " + std::to_string(size) + " bytes on GPU " + std::to_string(device) +
           " from xlogmem: " + error.text;
}

}  // namespace

// Called once, before the others and when PyTorch has been imported.  Returns whether out of memory is PyTorch's own error.
inline bool xlogmem_torch_begin(const xlogmem_table* functions, OpenRuntime open) {
    table = functions;
    open_runtime = open;
    return xlogmem_torch::find_errors();
}

struct xlogmem_torch_dropped {
    size_t count, nbytes;
};

inline void xlogmem_torch_begin_counting() {
    dropped_count = dropped_bytes = 0;
    counting = true;
}

inline xlogmem_torch_dropped xlogmem_torch_end_counting() {
    counting = false;
    return {dropped_count, dropped_bytes};
}

EXPORTED void* xlogmem_torch_allocate(intptr_t size, int device, void* stream) {
    xlogmem_error error;
    void* ptr = nullptr;
    if (!allocated(size, device, stream, &ptr, &error))
        xlogmem_torch::throw_out_of_memory(out_of_memory(size_t(size), device, error));
    return ptr;
}

// For a torch.cuda.MemPool: where there is no memory, PyTorch's allocator drops what it has cached and calls again.
EXPORTED void* xlogmem_torch_allocate_segment(intptr_t size, int device, void* stream) {
    xlogmem_error error;
    void* ptr = nullptr;
    return allocated(size, device, stream, &ptr, &error) ? ptr : nullptr;
}

EXPORTED void xlogmem_torch_free(void* ptr, size_t nbytes, int device, void* stream) {
    if (counting.load(std::memory_order_relaxed)) {
        dropped_count++;
        dropped_bytes += nbytes;
    }
    if (device >= 0 && device < kDevices)
        if (xlogmem_runtime* runtime = runtimes[device].load()) table->deallocate(runtime, ptr, stream);
}

// `Tensor.record_stream`. Memory that no runtime knows is passed over, as PyTorch's own allocator passes over what it has
// not allocated.
EXPORTED void xlogmem_torch_record_stream(void* ptr, void* stream) {
    xlogmem_error error;
    for (auto& runtime : runtimes) {
        xlogmem_runtime* known = runtime.load();
        if (!known) continue;
        if (!table->record_use(known, ptr, stream, &error)) return;
        if (error.kind != XLOGMEM_NOT_FOUND) throw std::runtime_error(error.text);
    }
}
