// Searches for the block that an address is in, beside which xlogmem's lookup is measured.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include "driver.hpp"

namespace xlogmem_bench {

// Uses the result: otherwise the compiler drops the search.
inline void found(std::uint64_t base) { asm volatile("" : : "r"(base) : "memory"); }

// The least that a search by address can cost: a sorted array, without a lock and without insertion.
inline std::uint64_t search_sorted(std::vector<std::uint64_t> const& bases, std::uint64_t const* wanted,
                                   std::size_t count)
{
  auto const before = clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    found(*(std::upper_bound(bases.begin(), bases.end(), wanted[i]) - 1));
  }
  return since(before);
}

// The usual choice: a balanced tree under a lock.
struct tree {
  std::mutex lock;
  std::map<std::uint64_t, std::uint64_t> bases;

  void add(std::uint64_t base) { bases[base] = base; }
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
