// What is timed in C++: loops over anything that has the shape of `xlogmem_upstream`, the raw driver calls, and the
// scheme that xlogmem grew out of.  No GIL, no Python object; a loop gives the nanoseconds that it took.
//
// The driver's functions come as pointers from the driver itself (`cuGetProcAddress`), so that nothing of ours or of
// cuda-bindings is in the floor.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

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
  CUresult (*create)(CUevent*, unsigned int);
  CUresult (*destroy)(CUevent);
  CUresult (*record)(CUevent, CUstream);
  CUresult (*wait)(CUstream, CUevent, unsigned int);
  CUresult (*synchronize)();
  CUresult (*set_current)(CUcontext);
  CUresult (*launch)(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                     unsigned int, CUstream, void**, void**);
};

inline int told(xlogmem_error* error, char const* call, CUresult code)
{
  if (code == CUDA_SUCCESS) { return 0; }
  error->kind = code == CUDA_ERROR_OUT_OF_MEMORY ? XLOGMEM_OUT_OF_MEMORY : XLOGMEM_FAILED;
  std::snprintf(error->text, sizeof(error->text), "%s failed with %d", call, static_cast<int>(code));
  return 1;
}

// ---------------------------------------------------------------------------------------------- allocators
// The floor: the driver's stream-ordered allocator on a pool that keeps what it has.
struct driver_allocator {
  driver const* calls;
  CUmemoryPool pool;

  static int allocate(void* self, std::size_t bytes, void* stream, std::uint64_t* ptr, xlogmem_error* error) noexcept
  {
    auto const* me = static_cast<driver_allocator*>(self);
    CUdeviceptr address;
    CUresult const code = me->calls->allocate(&address, bytes, me->pool, static_cast<CUstream>(stream));
    *ptr = address;
    return told(error, "cuMemAllocFromPoolAsync", code);
  }
  static int deallocate(void* self, std::uint64_t ptr, std::size_t, void* stream, xlogmem_error* error) noexcept
  {
    return told(error, "cuMemFreeAsync",
                static_cast<driver_allocator*>(self)->calls->free(ptr, static_cast<CUstream>(stream)));
  }
};

// A runtime of ours, as C++ code has it: through the C table.
struct table_allocator {
  xlogmem_table const* table;
  xlogmem_runtime* runtime;

  static int allocate(void* self, std::size_t bytes, void* stream, std::uint64_t* ptr, xlogmem_error* error) noexcept
  {
    auto const* me = static_cast<table_allocator*>(self);
    void* address;
    int const failed = me->table->allocate(me->runtime, bytes, stream, &address, error);
    *ptr = reinterpret_cast<std::uintptr_t>(address);
    return failed;
  }
  static int deallocate(void* self, std::uint64_t ptr, std::size_t, void* stream, xlogmem_error*) noexcept
  {
    auto const* me = static_cast<table_allocator*>(self);
    me->table->deallocate(me->runtime, reinterpret_cast<void*>(ptr), stream);
    return 0;
  }
};

// Addresses with nothing behind them, the last freed first: what is left is the cost of what lies above.
struct trivial_allocator {
  std::uint64_t next{1ull << 44};
  std::vector<std::uint64_t> spare;

  static int allocate(void* self, std::size_t, void*, std::uint64_t* ptr, xlogmem_error*) noexcept
  {
    auto* me = static_cast<trivial_allocator*>(self);
    if (me->spare.empty()) {
      *ptr = me->next;
      me->next += 1 << 27;
    } else {
      *ptr = me->spare.back();
      me->spare.pop_back();
    }
    return 0;
  }
  static int deallocate(void* self, std::uint64_t ptr, std::size_t, void*, xlogmem_error*) noexcept
  {
    static_cast<trivial_allocator*>(self)->spare.push_back(ptr);
    return 0;
  }
};

template <typename T>
xlogmem_upstream shape(T* of)
{
  return {XLOGMEM_TABLE_VERSION, sizeof(xlogmem_upstream), of, T::allocate, T::deallocate, XLOGMEM_FINDS_DEVICE};
}

// The scheme that xlogmem grew out of: each allocation and each use of a block creates and records an event of its own;
// a use waits for each event of another stream that it depends on, a free for all of them.
class seed {
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
  seed(driver const* calls, CUmemoryPool pool) : below_{calls, pool} {}

  static int allocate(void* self, std::size_t bytes, void* stream, std::uint64_t* ptr, xlogmem_error* error) noexcept
  {
    auto* me = static_cast<seed*>(self);
    if (driver_allocator::allocate(&me->below_, bytes, stream, ptr, error)) { return 1; }
    std::lock_guard const hold{me->lock_};
    auto& made = me->blocks_[*ptr];
    made.bytes = bytes;
    return me->event_on(static_cast<CUstream>(stream), made.write, error);
  }

  static int deallocate(void* self, std::uint64_t ptr, std::size_t bytes, void* stream, xlogmem_error* error) noexcept
  {
    auto* me = static_cast<seed*>(self);
    {
      std::lock_guard const hold{me->lock_};
      auto const found = me->blocks_.find(ptr);
      if (found == me->blocks_.end()) { return told(error, "free", CUDA_ERROR_INVALID_VALUE); }
      if (me->wait(static_cast<CUstream>(stream), found->second, true, error)) { return 1; }
      me->forget(found->second);
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
    forget(used);
    return event_on(stream, used.write, error);
  }

  xlogmem_upstream functions{shape(this)};

 private:
  int event_on(CUstream stream, entry& made, xlogmem_error* error)
  {
    made.stream = stream;
    return told(error, "cuEventCreate", below_.calls->create(&made.event, CU_EVENT_DISABLE_TIMING)) ||
           told(error, "cuEventRecord", below_.calls->record(made.event, stream));
  }
  int wait(CUstream stream, block const& used, bool for_readers, xlogmem_error* error)
  {
    auto const one = [&](entry const& there) {
      return there.stream != stream && told(error, "cuStreamWaitEvent", below_.calls->wait(stream, there.event, 0));
    };
    if (one(used.write)) { return 1; }
    return for_readers && std::any_of(used.reads.begin(), used.reads.end(), one);
  }
  void forget(block& used)
  {
    below_.calls->destroy(used.write.event);
    for (auto const& read : used.reads) { below_.calls->destroy(read.event); }
    used.reads.clear();
  }

  driver_allocator below_;
  std::mutex lock_;
  std::unordered_map<std::uint64_t, block> blocks_;
};

// ---------------------------------------------------------------------------------------------- allocate and free
// `each` (may be null): what each pair took, clock included.
inline int pairs(xlogmem_upstream const& of, std::size_t bytes, void* const* streams, std::size_t n_streams,
                 std::size_t count, std::uint64_t* each, std::uint64_t* took, xlogmem_error* error)
{
  std::size_t turn = 0;
  std::uint64_t ptr;
  auto const before = clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    void* const stream = streams[turn];
    if (++turn == n_streams) { turn = 0; }
    auto const started = each ? clock::now() : clock::time_point{};
    if (of.allocate(of.self, bytes, stream, &ptr, error) || of.deallocate(of.self, ptr, bytes, stream, error)) {
      return 1;
    }
    if (each) { each[i] = since(started); }
  }
  *took = since(before);
  return 0;
}

// The same in threads that begin together, each on a stream of its own: until the last is done.
inline int pairs_in_threads(xlogmem_upstream const& of, driver const& calls, CUcontext context, std::size_t bytes,
                            void* const* streams, std::size_t n_threads, std::size_t count, std::uint64_t* took,
                            xlogmem_error* error)
{
  std::mutex lock;
  std::condition_variable changed;
  std::size_t ready = 0;
  bool go = false;
  int failed = 0;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < n_threads; ++i) {
    threads.emplace_back([&, i] {
      xlogmem_error mine{};
      std::uint64_t ignored;
      bool bad = told(&mine, "cuCtxSetCurrent", calls.set_current(context));
      {
        std::unique_lock hold{lock};
        ++ready;
        changed.notify_all();
        changed.wait(hold, [&] { return go; });
      }
      bad = bad || pairs(of, bytes, streams + i, 1, count, nullptr, &ignored, &mine);
      if (bad) {
        std::lock_guard const hold{lock};
        failed = 1;
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
  return failed;
}

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

// A program of such steps, as a log or a benchmark of somebody else gives it.  An allocation that finds no memory is left
// out, and so is its free; `refused` counts them.  After `limit` nanoseconds (0: never) nothing is allocated or launched
// any more, what is there is freed, and `stopped` says at which step that was: some allocators need time that grows with
// the square of the program.
inline int program(xlogmem_upstream const& of, driver const& calls, launch kernel, step const* steps, std::size_t count,
                   void* const* streams, std::vector<std::uint64_t>& slots, std::uint64_t limit, std::size_t* refused,
                   std::size_t* stopped, std::uint64_t* took, xlogmem_error* error)
{
  void* arguments[] = {&kernel.argument};
  *refused = 0;
  *stopped = count;
  auto const before = clock::now();
  for (step const* now = steps; now != steps + count; ++now) {
    std::size_t const place = now - steps;
    if (limit != 0 && place % 64 == 0 && *stopped == count && since(before) > limit) { *stopped = place; }
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
        if (!late && told(error, "cuLaunchKernel", calls.launch(kernel.function, 1, 1, 1, 1, 1, 1, 0,
                                                                static_cast<CUstream>(stream), arguments, nullptr))) {
          return 1;
        }
        break;
      default:
        if (told(error, "cuCtxSynchronize", calls.synchronize())) { return 1; }
    }
  }
  *took = since(before);
  return 0;
}

// ---------------------------------------------------------------------------------------------- uses
// Events as somebody who knows who waits for whom records them by hand, once each and with nothing kept in between.
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
      int failed = 0;
      switch (now->what) {
        case RECORD: failed = told(error, "cuEventRecord", calls.record(events[now->event], stream)); break;
        case WAIT: failed = told(error, "cuStreamWaitEvent", calls.wait(stream, events[now->event], 0)); break;
        case TAKE: failed = driver_allocator::allocate(&memory, bytes, stream, &ptr, error); break;
        default: failed = driver_allocator::deallocate(&memory, ptr, bytes, stream, error);
      }
      if (failed) { return 1; }
    }
  }
  *took = since(before);
  return 0;
}

// A round of launches: which stream, and which of the blocks from `first` on it reads or writes.
struct use {
  std::uint64_t stream;
  std::uint64_t first;
  std::uint64_t end;
};

struct access {
  std::uint64_t block;
  std::uint64_t flags;  // 1 reads, 2 writes, as in _core.pxd
};

inline int seed_uses(seed& scheme, use const* uses, std::size_t n_uses, access const* accesses,
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

inline int seed_frees(seed& scheme, std::size_t bytes, void* const* streams, std::size_t n_readers, std::size_t rounds,
                      std::uint64_t* took, xlogmem_error* error)
{
  std::uint64_t ptr;
  auto const before = clock::now();
  for (std::size_t i = 0; i < rounds; ++i) {
    if (seed::allocate(&scheme, bytes, streams[0], &ptr, error)) { return 1; }
    for (std::size_t reader = 1; reader <= n_readers; ++reader) {
      auto const stream = static_cast<CUstream>(streams[reader]);
      if (scheme.prepare(stream, ptr, false, error) || scheme.finish(stream, ptr, false, error)) { return 1; }
    }
    if (seed::deallocate(&scheme, ptr, bytes, streams[0], error)) { return 1; }
  }
  *took = since(before);
  return 0;
}

// ---------------------------------------------------------------------------------------------- lookup
// Somebody wants the result: else the compiler leaves the search out.
inline void found(std::uint64_t base) { asm volatile("" : : "r"(base) : "memory"); }

// The least that a search by address can cost: a sorted array, which nobody can add to.
inline std::uint64_t search_sorted(std::vector<std::uint64_t> const& bases, std::uint64_t const* wanted,
                                   std::size_t count)
{
  auto const before = clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    found(*(std::upper_bound(bases.begin(), bases.end(), wanted[i]) - 1));
  }
  return since(before);
}

// What most programs have: a balanced tree under a lock.
struct tree {
  std::mutex lock;
  std::map<std::uint64_t, std::uint64_t> bases;
};

inline std::uint64_t search_tree(tree& in, std::uint64_t const* wanted, std::size_t count)
{
  auto const before = clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    std::lock_guard const hold{in.lock};
    found(std::prev(in.bases.upper_bound(wanted[i]))->first);
  }
  return since(before);
}

}  // namespace xlogmem_bench
