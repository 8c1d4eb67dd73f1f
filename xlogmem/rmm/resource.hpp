// Both directions of RMM, in C++: a resource that models cuda::mr::resource over xlogmem's C table, and an
// xlogmem_upstream over any RMM resource.
//
// No function of librmm is used here, because its symbols are in a namespace of each release: only CCCL's templates and
// virtual calls through them, so that one build runs with every release whose CCCL keeps their layout.  No GIL, no
// Python object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include <cuda/memory_resource>
#include <cuda/stream>
#include <rmm/resource_ref.hpp>

#include "xlogmem.h"

namespace xlogmem_rmm {

using any_resource = cuda::mr::any_resource<cuda::mr::device_accessible>;

inline constexpr std::size_t alignment = 256;  // what RMM's containers request, and what every xlogmem resource gives

// An upstream's exception on its way through the core, which passes errors as plain data: it is rethrown above the core,
// in the same thread, so that callers see RMM's own type and text.  Comparing the error that arrives with the one that
// the exception became shows whether it is the same failure: a resource in Python may have caught it and raised another,
// and a second attempt may have succeeded or failed in another way.
inline thread_local std::exception_ptr thrown;
inline thread_local xlogmem_error thrown_as;

// Throws rmm::out_of_memory, which code that is not linked to librmm cannot throw itself.  Never destroyed.
inline any_resource* refuser = nullptr;

// The refuser's text says that a limit of 0 bytes was exceeded.  What happened takes its place, as far as there is room.
// That RMM's text names the request shows that it was composed for this exception, in memory that may be written; until
// 26.6 it did so in KiB or so.
inline void explain(std::bad_alloc const& exception, std::size_t bytes, char const* text) noexcept
{
  char request[24];
  std::snprintf(request, sizeof(request), " %zu", bytes);
  char* said = std::strstr(const_cast<char*>(exception.what()), "out_of_memory: ");
  if (said == nullptr || !(std::strstr(said, request) || std::strstr(said, "(failed to allocate "))) { return; }
  said += std::strlen("out_of_memory: ");
  char ours[XLOGMEM_TEXT + 16];
  std::snprintf(ours, sizeof(ours), "xlogmem: %s", text);
  std::size_t const room = std::strlen(said);
  if (std::strlen(ours) > room) {  // up to the end of a word, and so of a character
    std::size_t cut = room < 3 ? 0 : room - 3;
    while (cut > 0 && ours[cut] != ' ') {
      --cut;
    }
    if (cut == 0) { return; }
    std::strcpy(ours + cut, "...");
  }
  std::strcpy(said, ours);
}

[[noreturn]] inline void raise(xlogmem_error const& error, cuda::stream_ref stream, std::size_t bytes)
{
  if (auto const from_below = std::exchange(thrown, nullptr);
      from_below && error.kind == thrown_as.kind && std::strcmp(error.text, thrown_as.text) == 0) {
    std::rethrow_exception(from_below);
  }
  if (error.kind == XLOGMEM_OUT_OF_MEMORY) {
    if (refuser != nullptr) {
      try {
        refuser->allocate(stream, bytes, alignment);
      } catch (std::bad_alloc const& exception) {
        explain(exception, bytes, error.text);
        throw;
      }
    }
    throw std::bad_alloc{};
  }
  throw std::runtime_error{error.text};
}

// One hold on a runtime, shared by the copies of a resource.  RMM's containers and its map of devices have copies, so
// the last copy may be destroyed long after the Python object, in any thread.
class hold {
 public:
  hold(xlogmem_table const* functions, void* python_runtime)
    : runtime_{functions->open(python_runtime)}, functions_{*functions}
  {
    if (runtime_ == nullptr) { throw std::invalid_argument{"this is not a DeviceRuntime"}; }
  }
  ~hold() { functions_.close(runtime_); }
  hold(hold const&)            = delete;
  hold& operator=(hold const&) = delete;

  xlogmem_table const& functions() const noexcept { return functions_; }
  xlogmem_runtime* runtime() const noexcept { return runtime_; }

 private:
  xlogmem_runtime* runtime_;
  xlogmem_table functions_;  // copied: one load less in each call
};

class runtime_resource {
 public:
  runtime_resource(xlogmem_table const* functions, void* python_runtime)
    : hold_{std::make_shared<hold>(functions, python_runtime)}
  {
  }

  xlogmem_runtime* runtime() const noexcept { return hold_->runtime(); }

  void* allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t align = alignment)
  {
    void* ptr = nullptr;
    xlogmem_error error;
    if (!wanted(bytes, align)) { return nullptr; }
    if (hold_->functions().allocate(hold_->runtime(), bytes, stream.get(), &ptr, &error)) {
      raise(error, stream, bytes);
    }
    return ptr;
  }

  void deallocate(cuda::stream_ref stream, void* ptr, std::size_t, std::size_t = alignment) noexcept
  {
    if (ptr != nullptr) { hold_->functions().deallocate(hold_->runtime(), ptr, stream.get()); }
  }

  void* allocate_sync(std::size_t bytes, std::size_t align = alignment)
  {
    void* ptr = nullptr;
    xlogmem_error error;
    if (!wanted(bytes, align)) { return nullptr; }
    if (hold_->functions().allocate_sync(hold_->runtime(), bytes, &ptr, &error)) {
      raise(error, cuda::stream_ref{cudaStream_t{}}, bytes);
    }
    return ptr;
  }

  void deallocate_sync(void* ptr, std::size_t, std::size_t = alignment) noexcept
  {
    if (ptr != nullptr) { hold_->functions().deallocate_sync(hold_->runtime(), ptr); }
  }

  friend bool operator==(runtime_resource const& a, runtime_resource const& b) noexcept { return a.hold_ == b.hold_; }
  friend bool operator!=(runtime_resource const& a, runtime_resource const& b) noexcept { return !(a == b); }
  friend void get_property(runtime_resource const&, cuda::mr::device_accessible) noexcept {}

 private:
  static bool wanted(std::size_t bytes, std::size_t align)
  {
    if (align > alignment) { throw std::bad_alloc{}; }  // not rmm::out_of_memory: spilling would not help
    return bytes != 0;
  }

  std::shared_ptr<hold> hold_;
};

static_assert(cuda::mr::resource_with<runtime_resource, cuda::mr::device_accessible>);
// It sits inside any_resource, of which every RMM container has one: no allocation, and no exception in a move.
static_assert(sizeof(runtime_resource) <= 3 * sizeof(void*));
static_assert(std::is_nothrow_move_constructible_v<runtime_resource>);

// Any RMM resource, for xlogmem.ForeignMemoryResource.  Owns a copy of it.
class upstream {
 public:
  upstream(rmm::device_async_resource_ref mr, bool is_cuda_pool) : mr_{mr}
  {
    if (is_cuda_pool) { functions_.flags |= XLOGMEM_CUDA_POOL; }
  }
  upstream(upstream const&)            = delete;
  upstream& operator=(upstream const&) = delete;

  xlogmem_upstream* functions() noexcept { return &functions_; }

 private:
  static int failed(xlogmem_error* error, std::int32_t kind, char const* text) noexcept
  {
    error->kind = kind;
    std::snprintf(error->text, sizeof(error->text), "%s", text);
    return 1;
  }

  static int caught(xlogmem_error* error, std::int32_t kind, char const* text) noexcept
  {
    failed(error, kind, text);
    thrown    = std::current_exception();
    thrown_as = *error;
    return 1;
  }

  static int allocate(void* self, std::size_t bytes, void* stream, std::uint64_t* ptr, xlogmem_error* error) noexcept
  {
    try {
      void* address = static_cast<upstream*>(self)->mr_.allocate(static_cast<cudaStream_t>(stream), bytes, alignment);
      if (address == nullptr) { return failed(error, XLOGMEM_FAILED, "the RMM resource returned a null pointer"); }
      *ptr = reinterpret_cast<std::uintptr_t>(address);
      return 0;
    } catch (std::bad_alloc const& exception) {
      return caught(error, XLOGMEM_OUT_OF_MEMORY, exception.what());
    } catch (std::exception const& exception) {
      return caught(error, XLOGMEM_FAILED, exception.what());
    } catch (...) {
      return caught(error, XLOGMEM_FAILED, "the RMM resource threw something that is not a std::exception");
    }
  }

  static int deallocate(void* self, std::uint64_t ptr, std::size_t bytes, void* stream, xlogmem_error*) noexcept
  {
    static_cast<upstream*>(self)->mr_.deallocate(
      static_cast<cudaStream_t>(stream), reinterpret_cast<void*>(ptr), bytes, alignment);
    return 0;
  }

  any_resource mr_;
  xlogmem_upstream functions_{
    XLOGMEM_TABLE_VERSION, sizeof(xlogmem_upstream), this, allocate, deallocate, XLOGMEM_FINDS_DEVICE};
};

}  // namespace xlogmem_rmm
