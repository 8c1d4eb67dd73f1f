// The floor of ordered uses: events recorded and waited for by hand, each once, without any bookkeeping.
#pragma once

#include <cstddef>
#include <cstdint>

#include "allocators.hpp"

namespace xlogmem_bench {

enum hand : std::uint64_t { RECORD, WAIT, TAKE, GIVE };

struct hand_step {
  std::uint64_t what;
  std::uint64_t stream;
  std::uint64_t event;
};

inline int by_hand(driver const& calls, driver_allocator& memory, hand_step const* steps, std::size_t count,
                   void* const* streams, CUevent const* events, std::size_t bytes, std::size_t rounds,
                   std::uint64_t* took, xlogmem_error* error)
{
  std::uint64_t ptr = 0;
  auto const before = clock::now();
  for (std::size_t i = 0; i < rounds; ++i) {
    for (hand_step const* now = steps; now != steps + count; ++now) {
      auto const stream = static_cast<CUstream>(streams[now->stream]);
      int status = 0;
      switch (now->what) {
        case RECORD: status = call_failed(error, "cuEventRecord", calls.record(events[now->event], stream)); break;
        case WAIT: status = call_failed(error, "cuStreamWaitEvent", calls.wait(stream, events[now->event], 0)); break;
        case TAKE: status = driver_allocator::allocate(&memory, bytes, stream, &ptr, error); break;
        default: status = driver_allocator::deallocate(&memory, ptr, bytes, stream, error);
      }
      if (status) { return 1; }
    }
  }
  *took = since(before);
  return 0;
}

}  // namespace xlogmem_bench
