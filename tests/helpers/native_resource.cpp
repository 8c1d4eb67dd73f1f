// xlogmem::memory_resource as CCCL and RMM take resources, for tests/core/test_native_headers.py.
#include <Python.h>

#include <cuda/memory_resource>

#ifdef WITH_RMM
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#include <rmm/device_buffer.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/resource_ref.hpp>
#endif

#include "xlogmem_mr.hpp"

using xlogmem::memory_resource;
using any_resource = cuda::mr::any_resource<cuda::mr::device_accessible>;

static_assert(cuda::mr::resource_with<memory_resource, cuda::mr::device_accessible>);
static_assert(!cuda::mr::resource_with<memory_resource, cuda::mr::host_accessible>);
static_assert(std::is_copy_constructible_v<memory_resource> && std::is_nothrow_move_constructible_v<memory_resource>);

struct without_gil {
    PyThreadState* thread = PyEval_SaveThread();
    ~without_gil() { PyEval_RestoreThread(thread); }
};

extern "C" {

// Allocates and frees as an `any_resource`, on the stream and without one.  Returns how many bytes were live between, by
// `live`, or -1 for what is not as it has to be.  With the GIL, which it releases.
long long work(PyObject* runtime, CUstream_st* stream, long long (*live)()) {
    try {
        xlogmem::import_table();
        memory_resource resource{xlogmem::runtime{runtime}};
        any_resource const another{memory_resource{xlogmem::runtime{runtime}}};
        without_gil released;
        any_resource any{resource};
        cuda::stream_ref const on{stream};
        void* const first = any.allocate(on, 1000, 256);
        void* const second = any.allocate_sync(24, 8);
        long long const between = live();
        xlogmem::launch{resource.runtime(), on, xlogmem::writes(first, second)}.commit();
        any.deallocate(on, first, 1000, 256);
        any.deallocate_sync(second, 24, 8);
        bool refused = false;
        try {
            any.allocate(on, 8, 512);
        } catch (xlogmem::invalid_argument const&) {
            refused = true;
        }
        any_resource const copy{any};
        return refused && copy == any && any != another ? between : -1;
    } catch (...) {
        return -1;
    }
}

#ifdef WITH_RMM
// Containers of RMM allocate from it, and are memory of a launch.  Returns 0; with the GIL, which it releases.
int containers(PyObject* runtime, CUstream_st* handle) {
    try {
        xlogmem::import_table();
        memory_resource resource{xlogmem::runtime{runtime}};
        without_gil released;
        cuda::stream_ref const stream{handle};
        rmm::device_async_resource_ref const ref{resource};
        rmm::device_buffer source{400, stream, ref};
        rmm::device_uvector<int> target{100, stream, ref};
        cuda::std::span<int> const part{target.data() + 10, 10};
        xlogmem::launch use{resource.runtime(), stream, xlogmem::reads(source, part), xlogmem::writes(target)};
        rmm::device_buffer const copy{source, stream, ref};
        use.commit();
        return copy.size() == 400 ? 0 : 2;
    } catch (...) {
        return 1;
    }
}
#endif
}
