// Pairs of allocate and free, on one thread and on several.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "compute.hpp"
#include "driver.hpp"

namespace xlogmem_bench {

// A pair on each of the streams in turn, with so many rounds of work after each call.  `each` (may be null) receives the
// time of each pair, clock included.
inline int pairs(xlogmem_upstream const& of, std::size_t bytes, void* const* streams, std::size_t n_streams,
                 std::size_t count, std::size_t work, std::uint64_t* each, std::uint64_t* took,
                 xlogmem_error* error)
{
  std::size_t turn = 0;
  std::uint64_t ptr;
  auto const before = clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    void* const stream = streams[turn];
    if (++turn == n_streams) { turn = 0; }
    auto const started = each ? clock::now() : clock::time_point{};
    if (of.allocate(of.self, bytes, stream, &ptr, error)) { return 1; }
    compute(work);
    if (of.deallocate(of.self, ptr, bytes, stream, error)) { return 1; }
    compute(work);
    if (each) { each[i] = since(started); }
  }
  *took = since(before);
  return 0;
}

// Batches through the C table: so many blocks by one call, and freed by another.
inline int batches(xlogmem_table const& table, xlogmem_runtime* runtime, std::vector<std::size_t> const& sizes,
                   void* stream, std::size_t count, std::uint64_t* took, xlogmem_error* error)
{
  std::vector<void*> ptrs(sizes.size());
  auto const before = clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    if (table.allocate_many(runtime, sizes.size(), sizes.data(), stream, ptrs.data(), error)) { return 1; }
    table.deallocate_many(runtime, sizes.size(), ptrs.data(), stream);
  }
  *took = since(before);
  return 0;
}

// Pairs in threads that begin together, each on a stream of its own; `took` is until the last one ends.
inline int pairs_in_threads(xlogmem_upstream const& of, driver const& calls, CUcontext context, std::size_t bytes,
                            void* const* streams, std::size_t n_threads, std::size_t count, std::uint64_t* took,
                            xlogmem_error* error)
{
  std::mutex lock;
  std::condition_variable changed;
  std::size_t ready = 0;
  bool go = false;
  int status = 0;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < n_threads; ++i) {
    threads.emplace_back([&, i] {
      xlogmem_error mine{};
      std::uint64_t ignored;
      bool bad = call_failed(&mine, "cuCtxSetCurrent", calls.set_current(context));
      {
        std::unique_lock hold{lock};
        ++ready;
        changed.notify_all();
        changed.wait(hold, [&] { return go; });
      }
      bad = bad || pairs(of, bytes, streams + i, 1, count, 0, nullptr, &ignored, &mine);
      if (bad) {
        std::lock_guard const hold{lock};
        status = 1;
        *error = mine;
      }
    });
  }
  clock::time_point before;
  {
    std::unique_lock hold{lock};
    changed.wait(hold, [&] { return ready == n_threads; });
    before = clock::now();
    go = true;
  }
  changed.notify_all();
  for (auto& thread : threads) { thread.join(); }
  *took = since(before);
  return status;
}

}  // namespace xlogmem_bench
