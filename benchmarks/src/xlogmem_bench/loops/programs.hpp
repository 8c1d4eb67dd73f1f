// Programs of allocations, frees and launches, from a log or from the benchmarks of another library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "driver.hpp"

namespace xlogmem_bench {

enum operation : std::uint64_t { ALLOCATE, FREE, LAUNCH, SYNCHRONIZE };

struct step {
  std::uint64_t operation;
  std::uint64_t slot;
  std::uint64_t bytes;
  std::uint64_t stream;
};

struct launch {
  CUfunction function;
  std::uint64_t argument;
};

// Runs the steps of a program.  An allocation that finds no memory is left out, and so is its free; `refused` counts
// them.  After `limit` nanoseconds (0: no limit) nothing more is allocated or launched, live memory is freed, and
// `stopped` is the step at which that began: some allocators need time that grows with the square of the program.
inline int program(xlogmem_upstream const& of, driver const& calls, launch kernel, step const* steps, std::size_t count,
                   void* const* streams, std::vector<std::uint64_t>& slots, std::uint64_t limit, std::size_t* refused,
                   std::size_t* stopped, std::uint64_t* took, xlogmem_error* error)
{
  void* arguments[] = {&kernel.argument};
  *refused = 0;
  *stopped = count;
  auto const before = clock::now();
  for (step const* now = steps; now != steps + count; ++now) {
    std::size_t const index = now - steps;
    if (limit != 0 && index % 64 == 0 && *stopped == count && since(before) > limit) { *stopped = index; }
    void* const stream = streams[now->stream];
    auto& ptr = slots[now->slot];
    bool const late = *stopped != count;
    switch (now->operation) {
      case ALLOCATE:
        if (late) { break; }
        if (of.allocate(of.self, now->bytes, stream, &ptr, error)) {
          if (error->kind != XLOGMEM_OUT_OF_MEMORY) { return 1; }
          ptr = 0;
          ++*refused;
        }
        break;
      case FREE:
        if (ptr != 0 && of.deallocate(of.self, ptr, now->bytes, stream, error)) { return 1; }
        ptr = 0;
        break;
      case LAUNCH:
        if (!late && call_failed(error, "cuLaunchKernel",
                                 calls.launch(kernel.function, 1, 1, 1, 1, 1, 1, 0, static_cast<CUstream>(stream),
                                              arguments, nullptr))) {
          return 1;
        }
        break;
      default:
        if (call_failed(error, "cuCtxSynchronize", calls.synchronize())) { return 1; }
    }
  }
  *took = since(before);
  return 0;
}

}  // namespace xlogmem_bench
