// The per-use-event scheme, the baseline that xlogmem replaces: each allocation and each use of a block creates and
// records an event of its own; a use waits for each event of another stream that it depends on, a free for all of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "allocators.hpp"

namespace xlogmem_bench {

class per_use_events {
  struct entry {
    CUstream stream;
    CUevent event;
  };
  struct block {
    entry write;
    std::vector<entry> reads;
    std::size_t bytes;
  };

 public:
  per_use_events(driver const* calls, CUmemoryPool pool) : below_{calls, pool} {}

  static int allocate(void* self, std::size_t bytes, void* stream, std::uint64_t* ptr, xlogmem_error* error) noexcept
  {
    auto* me = static_cast<per_use_events*>(self);
    if (driver_allocator::allocate(&me->below_, bytes, stream, ptr, error)) { return 1; }
    std::lock_guard const hold{me->lock_};
    auto& made = me->blocks_[*ptr];
    made.bytes = bytes;
    return me->event_on(static_cast<CUstream>(stream), made.write, error);
  }

  static int deallocate(void* self, std::uint64_t ptr, std::size_t bytes, void* stream, xlogmem_error* error) noexcept
  {
    auto* me = static_cast<per_use_events*>(self);
    {
      std::lock_guard const hold{me->lock_};
      auto const found = me->blocks_.find(ptr);
      if (found == me->blocks_.end()) { return call_failed(error, "free", CUDA_ERROR_INVALID_VALUE); }
      if (me->wait(static_cast<CUstream>(stream), found->second, true, error)) { return 1; }
      me->destroy_events(found->second);
      me->blocks_.erase(found);
    }
    return driver_allocator::deallocate(&me->below_, ptr, bytes, stream, error);
  }

  int prepare(CUstream stream, std::uint64_t ptr, bool writes, xlogmem_error* error)
  {
    std::lock_guard const hold{lock_};
    return wait(stream, blocks_[ptr], writes, error);
  }

  int finish(CUstream stream, std::uint64_t ptr, bool writes, xlogmem_error* error)
  {
    std::lock_guard const hold{lock_};
    auto& used = blocks_[ptr];
    if (!writes) { return event_on(stream, used.reads.emplace_back(), error); }
    destroy_events(used);
    return event_on(stream, used.write, error);
  }

  xlogmem_upstream functions{as_upstream(this)};

 private:
  int event_on(CUstream stream, entry& made, xlogmem_error* error)
  {
    made.stream = stream;
    return call_failed(error, "cuEventCreate", below_.calls->create(&made.event, CU_EVENT_DISABLE_TIMING)) ||
           call_failed(error, "cuEventRecord", below_.calls->record(made.event, stream));
  }
  int wait(CUstream stream, block const& used, bool for_readers, xlogmem_error* error)
  {
    auto const wait_failed = [&](entry const& there) {
      return there.stream != stream &&
             call_failed(error, "cuStreamWaitEvent", below_.calls->wait(stream, there.event, 0));
    };
    if (wait_failed(used.write)) { return 1; }
    return for_readers && std::any_of(used.reads.begin(), used.reads.end(), wait_failed);
  }
  void destroy_events(block& used)
  {
    below_.calls->destroy(used.write.event);
    for (auto const& read : used.reads) { below_.calls->destroy(read.event); }
    used.reads.clear();
  }

  driver_allocator below_;
  std::mutex lock_;
  std::unordered_map<std::uint64_t, block> blocks_;
};

// A launch of a round: its stream, and its accesses `[first, end)` to blocks.
struct use {
  std::uint64_t stream;
  std::uint64_t first;
  std::uint64_t end;
};

struct access {
  std::uint64_t block;
  std::uint64_t flags;  // 1 reads, 2 writes, as in _core.pxd
};

inline int per_use_event_uses(per_use_events& scheme, use const* uses, std::size_t n_uses, access const* accesses,
                              std::uint64_t const* blocks, std::size_t stride, std::size_t span, std::size_t n_blocks,
                              void* const* streams, std::size_t rounds, std::uint64_t* took, xlogmem_error* error)
{
  std::size_t base = 0;
  auto const before = clock::now();
  for (std::size_t i = 0; i < rounds; ++i) {
    for (use const* now = uses; now != uses + n_uses; ++now) {
      auto const stream = static_cast<CUstream>(streams[now->stream]);
      for (auto a = now->first; a != now->end; ++a) {
        if (scheme.prepare(stream, blocks[base + accesses[a].block], accesses[a].flags & 2, error)) { return 1; }
      }
      for (auto a = now->first; a != now->end; ++a) {
        if (scheme.finish(stream, blocks[base + accesses[a].block], accesses[a].flags & 2, error)) { return 1; }
      }
    }
    base += stride;
    if (base + span > n_blocks) { base = 0; }
  }
  *took = since(before);
  return 0;
}

inline int per_use_event_frees(per_use_events& scheme, std::size_t bytes, void* const* streams,
                               std::size_t n_readers, std::size_t rounds, std::uint64_t* took, xlogmem_error* error)
{
  std::uint64_t ptr;
  auto const before = clock::now();
  for (std::size_t i = 0; i < rounds; ++i) {
    if (per_use_events::allocate(&scheme, bytes, streams[0], &ptr, error)) { return 1; }
    for (std::size_t reader = 1; reader <= n_readers; ++reader) {
      auto const stream = static_cast<CUstream>(streams[reader]);
      if (scheme.prepare(stream, ptr, false, error) || scheme.finish(stream, ptr, false, error)) { return 1; }
    }
    if (per_use_events::deallocate(&scheme, ptr, bytes, streams[0], error)) { return 1; }
  }
  *took = since(before);
  return 0;
}

}  // namespace xlogmem_bench
