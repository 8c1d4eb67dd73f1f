// Allocators as an `xlogmem_upstream`, the shape that all loops take: the driver's two, xlogmem's through its C table,
// and one without memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "driver.hpp"

namespace xlogmem_bench {

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
    return call_failed(error, "cuMemAllocFromPoolAsync", code);
  }
  static int deallocate(void* self, std::uint64_t ptr, std::size_t, void* stream, xlogmem_error* error) noexcept
  {
    return call_failed(error, "cuMemFreeAsync",
                static_cast<driver_allocator*>(self)->calls->free(ptr, static_cast<CUstream>(stream)));
  }
};

// The floor of page-locked memory: the driver's, which has no stream.
struct page_locked_allocator {
  driver const* calls;

  static int allocate(void* self, std::size_t bytes, void*, std::uint64_t* ptr, xlogmem_error* error) noexcept
  {
    void* address = nullptr;
    CUresult const code = static_cast<page_locked_allocator*>(self)->calls->allocate_host(&address, bytes, 0);
    *ptr = reinterpret_cast<std::uintptr_t>(address);
    return call_failed(error, "cuMemHostAlloc", code);
  }
  static int deallocate(void* self, std::uint64_t ptr, std::size_t, void*, xlogmem_error* error) noexcept
  {
    return call_failed(error, "cuMemFreeHost",
                       static_cast<page_locked_allocator*>(self)->calls->free_host(reinterpret_cast<void*>(ptr)));
  }
};

// An xlogmem runtime as C++ code calls it: through the C table.
struct table_allocator {
  xlogmem_table const* table;
  xlogmem_runtime* runtime;

  static int allocate(void* self, std::size_t bytes, void* stream, std::uint64_t* ptr, xlogmem_error* error) noexcept
  {
    auto const* me = static_cast<table_allocator*>(self);
    void* address;
    int const status = me->table->allocate(me->runtime, bytes, stream, &address, error);
    *ptr = reinterpret_cast<std::uintptr_t>(address);
    return status;
  }
  static int deallocate(void* self, std::uint64_t ptr, std::size_t, void* stream, xlogmem_error*) noexcept
  {
    auto const* me = static_cast<table_allocator*>(self);
    me->table->deallocate(me->runtime, reinterpret_cast<void*>(ptr), stream);
    return 0;
  }
};

// Addresses without memory behind them, the last freed first: what remains is the cost of the layers above.
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
xlogmem_upstream as_upstream(T* of)
{
  return {XLOGMEM_TABLE_VERSION, sizeof(xlogmem_upstream), of, T::allocate, T::deallocate, XLOGMEM_FINDS_DEVICE};
}

}  // namespace xlogmem_bench
