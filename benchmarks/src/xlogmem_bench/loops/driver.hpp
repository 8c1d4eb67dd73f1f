// The clock, and the driver's functions as pointers from the driver itself (`cuGetProcAddress`), so that no code of
// xlogmem or of cuda-bindings is in the floor.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string_view>

#include <cuda.h>

#include "xlogmem.h"

namespace xlogmem_bench {

using clock = std::chrono::steady_clock;

inline std::uint64_t since(clock::time_point before)
{
  return std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now() - before).count();
}

inline std::uint64_t now()
{
  return std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now().time_since_epoch()).count();
}

struct driver {
  CUresult (*allocate)(CUdeviceptr*, std::size_t, CUmemoryPool, CUstream);
  CUresult (*free)(CUdeviceptr, CUstream);
  CUresult (*allocate_host)(void**, std::size_t, unsigned int);
  CUresult (*free_host)(void*);
  CUresult (*create)(CUevent*, unsigned int);
  CUresult (*destroy)(CUevent);
  CUresult (*record)(CUevent, CUstream);
  CUresult (*wait)(CUstream, CUevent, unsigned int);
  CUresult (*synchronize)();
  CUresult (*set_current)(CUcontext);
  CUresult (*launch)(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                     unsigned int, CUstream, void**, void**);
  CUresult (*launch_graph)(CUgraphExec, CUstream);
};

inline int call_failed(xlogmem_error* error, char const* call, CUresult code)
{
  if (code == CUDA_SUCCESS) { return 0; }
  error->kind = code == CUDA_ERROR_OUT_OF_MEMORY ? XLOGMEM_OUT_OF_MEMORY : XLOGMEM_FAILED;
  std::snprintf(error->text, sizeof(error->text), "%s failed with %d", call, static_cast<int>(code));
  return 1;
}


// Sets the pointer of the driver function `name`; false if `of` has no such function.
inline bool bind(driver* of, char const* name, void* function)
{
  struct {
    char const* name;
    void** pointer;
  } const functions[] = {
    {"cuMemAllocFromPoolAsync", reinterpret_cast<void**>(&of->allocate)},
    {"cuMemFreeAsync", reinterpret_cast<void**>(&of->free)},
    {"cuMemHostAlloc", reinterpret_cast<void**>(&of->allocate_host)},
    {"cuMemFreeHost", reinterpret_cast<void**>(&of->free_host)},
    {"cuEventCreate", reinterpret_cast<void**>(&of->create)},
    {"cuEventDestroy", reinterpret_cast<void**>(&of->destroy)},
    {"cuEventRecord", reinterpret_cast<void**>(&of->record)},
    {"cuStreamWaitEvent", reinterpret_cast<void**>(&of->wait)},
    {"cuCtxSynchronize", reinterpret_cast<void**>(&of->synchronize)},
    {"cuCtxSetCurrent", reinterpret_cast<void**>(&of->set_current)},
    {"cuLaunchKernel", reinterpret_cast<void**>(&of->launch)},
    {"cuGraphLaunch", reinterpret_cast<void**>(&of->launch_graph)},
  };
  for (auto const& known : functions) {
    if (std::string_view{known.name} == name) {
      *known.pointer = function;
      return true;
    }
  }
  return false;
}

}  // namespace xlogmem_bench
