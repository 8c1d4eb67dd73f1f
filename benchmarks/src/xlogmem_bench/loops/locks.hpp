// Threads that take one lock over and over: how often, and how long they wait for it.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "driver.hpp"

namespace xlogmem_bench {

// The system's mutex, as it is or with a spin before it sleeps.
class system_mutex {
  pthread_mutex_t mutex_;

 public:
  explicit system_mutex(bool spins)
  {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, spins ? PTHREAD_MUTEX_ADAPTIVE_NP : PTHREAD_MUTEX_NORMAL);
    pthread_mutex_init(&mutex_, &attributes);
    pthread_mutexattr_destroy(&attributes);
  }
  ~system_mutex() { pthread_mutex_destroy(&mutex_); }
  system_mutex(system_mutex const&)            = delete;
  system_mutex& operator=(system_mutex const&) = delete;
  void lock() { pthread_mutex_lock(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }
};

struct contention {
  std::uint64_t took;           // nanoseconds, until the last thread has ended
  std::uint64_t sections;       // of all threads
  std::uint64_t counted;        // by a plain variable under the lock: as many, if no two threads were inside at once
  std::uint64_t fewest;         // sections of one thread
  std::uint64_t median, p99, longest;   // nanoseconds that a thread waited for the lock, clock included
};

// About as long as the bookkeeping of an allocation.
inline void work(std::uint64_t volatile& counter, int steps)
{
  for (int i = 0; i < steps; ++i) { counter = counter + 1; }
}

// Each thread holds the lock for `inside` steps and works for `outside` steps without it, for so many nanoseconds.
template <typename Lock>
contention contend(Lock& lock, std::size_t n_threads, std::uint64_t nanoseconds, int inside, int outside)
{
  constexpr std::size_t most = std::size_t{1} << 20;    // waits that a thread keeps
  struct part {
    std::vector<std::uint32_t> waits;
    std::uint64_t sections{};
  };
  std::vector<part> parts(n_threads);
  std::uint64_t volatile counter = 0;
  std::atomic<std::size_t> ready{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (auto& mine : parts) {
    mine.waits.reserve(most);
    threads.emplace_back([&] {
      std::uint64_t volatile own = 0;
      ++ready;
      while (ready != n_threads) { std::this_thread::yield(); }
      while (!stop.load(std::memory_order_relaxed)) {
        auto const before = clock::now();
        lock.lock();
        auto const waited = since(before);
        work(counter, inside);
        lock.unlock();
        if (mine.waits.size() < most) { mine.waits.push_back(std::min<std::uint64_t>(waited, UINT32_MAX)); }
        ++mine.sections;
        work(own, outside);
      }
    });
  }
  while (ready != n_threads) { std::this_thread::yield(); }
  auto const before = clock::now();
  std::this_thread::sleep_for(std::chrono::nanoseconds{nanoseconds});
  stop = true;
  for (auto& thread : threads) { thread.join(); }
  contention all{since(before), 0, inside ? counter / inside : 0, UINT64_MAX, 0, 0, 0};
  std::vector<std::uint32_t> waits;
  for (auto const& one : parts) {
    all.sections += one.sections;
    all.fewest = std::min(all.fewest, one.sections);
    waits.insert(waits.end(), one.waits.begin(), one.waits.end());
  }
  std::sort(waits.begin(), waits.end());
  if (!waits.empty()) {
    all.median  = waits[waits.size() / 2];
    all.p99     = waits[waits.size() - 1 - waits.size() / 100];
    all.longest = waits.back();
  }
  return all;
}

}  // namespace xlogmem_bench
