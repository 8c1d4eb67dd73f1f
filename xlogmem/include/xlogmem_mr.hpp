//! A runtime as a memory resource of CCCL, and so of RMM.  Needs CCCL's headers (librmm brings them), and nothing to link.
//!
//!     xlogmem::memory_resource resource{xlogmem::runtime::of_device(0)};
//!     rmm::device_uvector<int> values{1000, stream, resource};
//!     xlogmem::launch use{resource.runtime(), stream, xlogmem::writes(values)};
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include <cuda/memory_resource>
#include <cuda/stream>

#include "xlogmem.hpp"

namespace xlogmem {

//! Copies share the hold on the runtime, and are equal.  Memory that is used on other streams than that of its free needs
//! a `launch`, or `record_use`, there: the free comes after these.
class memory_resource {
  public:
    explicit memory_resource(xlogmem::runtime of) : runtime_{std::make_shared<xlogmem::runtime const>(std::move(of))} {}

    xlogmem::runtime const& runtime() const noexcept { return *runtime_; }

    //! Throws `out_of_memory`, which is a std::bad_alloc and not an rmm::bad_alloc.
    void* allocate(cuda::stream_ref stream, std::size_t nbytes, std::size_t alignment = largest_alignment) {
        check(alignment);
        return runtime_->allocate(nbytes, stream);
    }
    void deallocate(cuda::stream_ref stream, void* memory, std::size_t, std::size_t = largest_alignment) noexcept {
        if (memory != nullptr) runtime_->deallocate(memory, stream);
    }
    //! Memory that is ready on every stream: the host waits.
    void* allocate_sync(std::size_t nbytes, std::size_t alignment = largest_alignment) {
        check(alignment);
        void* memory = nullptr;
        detail::call(table().allocate_sync, runtime_->get(), nbytes, &memory);
        return memory;
    }
    void deallocate_sync(void* memory, std::size_t, std::size_t = largest_alignment) noexcept {
        if (memory != nullptr) table().deallocate_sync(runtime_->get(), memory);
    }

    friend bool operator==(memory_resource const& a, memory_resource const& b) noexcept {
        return a.runtime_ == b.runtime_;
    }
    friend bool operator!=(memory_resource const& a, memory_resource const& b) noexcept { return !(a == b); }
    friend void get_property(memory_resource const&, cuda::mr::device_accessible) noexcept {}

  private:
    static constexpr std::size_t largest_alignment = 256;
    static void check(std::size_t alignment) {
        if (alignment > largest_alignment)
            throw invalid_argument{XLOGMEM_INVALID, "xlogmem's memory is aligned to 256 bytes, and not to more"};
    }

    std::shared_ptr<xlogmem::runtime const> runtime_;
};

static_assert(cuda::mr::resource_with<memory_resource, cuda::mr::device_accessible>);

}  // namespace xlogmem
