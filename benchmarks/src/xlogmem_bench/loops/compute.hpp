// Work that shares nothing with other threads but the core.
#pragma once

#include <cstdint>

namespace xlogmem_bench {

// As many instructions in each cycle as a core has units for, and none that waits for memory: two threads on one core
// halve each other's speed, as they do where code runs from the nearest cache.
inline std::uint64_t compute(std::uint64_t rounds)
{
  std::uint64_t a = rounds, b = 2, c = 3, d = 4, e = 5, f = 6;
  for (std::uint64_t i = 0; i < rounds * 100; ++i) {
    a += i, b ^= i, c -= i, d += i, e ^= i, f -= i;
    asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f));
  }
  return a + b + c + d + e + f;
}

}  // namespace xlogmem_bench
