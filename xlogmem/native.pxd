# The C table for Cython: `from xlogmem.native cimport xlogmem_table`.  include/xlogmem.h is the promise, and documents
# each function.

from libc.stdint cimport int32_t, uint32_t, uint64_t


cdef extern from "xlogmem.h":
    const char* XLOGMEM_TABLE
    const char* XLOGMEM_UPSTREAM
    enum: XLOGMEM_TABLE_VERSION
    enum: XLOGMEM_TEXT
    enum: XLOGMEM_FAILED
    enum: XLOGMEM_OUT_OF_MEMORY
    enum: XLOGMEM_NOT_FOUND
    enum: XLOGMEM_STALE
    enum: XLOGMEM_CAPTURING
    enum: XLOGMEM_CONFLICT
    enum: XLOGMEM_LOST
    enum: XLOGMEM_INVALID
    enum: XLOGMEM_READ
    enum: XLOGMEM_WRITE
    enum: XLOGMEM_READ_WRITE
    enum: XLOGMEM_REFUSE_CONFLICTS
    enum: XLOGMEM_HAND_BACK_WRITES
    enum: XLOGMEM_ANY_THREAD
    enum: XLOGMEM_KEEPS_STREAM
    void* XLOGMEM_HOST
    enum: XLOGMEM_SIZE_WITHOUT_USES
    enum: XLOGMEM_SIZE_WITH_USES
    enum: XLOGMEM_SIZE_WITH_GRAPHS
    enum: XLOGMEM_CAPTURE_GLOBAL
    enum: XLOGMEM_CAPTURE_THREAD_LOCAL
    enum: XLOGMEM_CAPTURE_RELAXED
    enum: XLOGMEM_CAPTURE_OF_OTHERS
    enum: XLOGMEM_FINDS_DEVICE
    enum: XLOGMEM_CUDA_POOL

    ctypedef struct xlogmem_error:
        int32_t kind
        char* text

    ctypedef struct xlogmem_runtime:
        pass

    ctypedef struct xlogmem_use:
        pass

    ctypedef struct xlogmem_capture:
        pass

    ctypedef struct xlogmem_graph:
        pass

    ctypedef struct xlogmem_access:
        uint64_t address
        uint64_t generation
        uint32_t slot
        uint32_t access

    ctypedef struct xlogmem_counters:
        uint64_t live_bytes
        uint64_t live_blocks
        uint64_t pending_bytes
        uint64_t allocations
        uint64_t frees
        uint64_t uses
        uint64_t waits
        uint64_t records
        uint64_t host_waits

    ctypedef struct xlogmem_table:
        uint32_t version
        uint32_t size
        xlogmem_runtime* (*open)(void* runtime) noexcept
        void (*close)(xlogmem_runtime* runtime) noexcept nogil
        int (*allocate)(xlogmem_runtime* runtime, size_t nbytes, void* stream, void** ptr,
                        xlogmem_error* error) noexcept nogil
        int (*allocate_sync)(xlogmem_runtime* runtime, size_t nbytes, void** ptr, xlogmem_error* error) noexcept nogil
        void (*deallocate)(xlogmem_runtime* runtime, void* ptr, void* stream) noexcept nogil
        void (*deallocate_sync)(xlogmem_runtime* runtime, void* ptr) noexcept nogil
        int (*record_use)(xlogmem_runtime* runtime, void* ptr, void* stream, xlogmem_error* error) noexcept nogil
        xlogmem_runtime* (*runtime_for)(int device) except NULL
        int (*prepare)(xlogmem_runtime* runtime, void* stream, const xlogmem_access* accesses, size_t count,
                       uint32_t flags, xlogmem_use** use, xlogmem_error* error) noexcept nogil
        int (*finish)(xlogmem_runtime* runtime, xlogmem_use* use, xlogmem_error* error) noexcept nogil
        void (*cancel)(xlogmem_runtime* runtime, xlogmem_use* use) noexcept nogil
        int (*wait)(xlogmem_runtime* runtime, void* stream, const xlogmem_access* access,
                    xlogmem_error* error) noexcept nogil
        int (*find)(xlogmem_runtime* runtime, const void* ptr, xlogmem_access* access, uint64_t* base, size_t* nbytes,
                    xlogmem_error* error) noexcept nogil
        int (*identify)(xlogmem_runtime* runtime, void* object, xlogmem_access* access) except 1
        int (*ready)(xlogmem_runtime* runtime, const xlogmem_access* access, int* ready,
                     xlogmem_error* error) noexcept nogil
        int (*synchronize)(xlogmem_runtime* runtime, const xlogmem_access* access, xlogmem_error* error) noexcept nogil
        int (*hold_stream)(xlogmem_runtime* runtime, void* stream, xlogmem_error* error) noexcept nogil
        int (*release_stream)(xlogmem_runtime* runtime, void* stream, xlogmem_error* error) noexcept nogil
        int (*allocate_many)(xlogmem_runtime* runtime, size_t count, const size_t* nbytes, void* stream, void** ptrs,
                             xlogmem_error* error) noexcept nogil
        void (*deallocate_many)(xlogmem_runtime* runtime, size_t count, void* const* ptrs, void* stream) noexcept nogil
        void (*counters)(xlogmem_runtime* runtime, xlogmem_counters* counters, size_t size) noexcept nogil
        int (*begin_capture)(xlogmem_runtime* runtime, void* stream, uint32_t mode, const xlogmem_access* accesses,
                             size_t count, xlogmem_capture** capture, xlogmem_error* error) noexcept nogil
        int (*fork_capture)(xlogmem_runtime* runtime, xlogmem_capture* capture, void* stream,
                            xlogmem_error* error) noexcept nogil
        int (*end_capture)(xlogmem_runtime* runtime, xlogmem_capture* capture, xlogmem_graph** graph,
                           xlogmem_error* error) noexcept nogil
        xlogmem_graph* (*open_graph)(xlogmem_runtime* runtime, void* graph) except NULL
        int (*prepare_graph)(xlogmem_runtime* runtime, void* stream, xlogmem_graph* graph, uint32_t flags,
                             xlogmem_use** use, xlogmem_error* error) noexcept nogil
        int (*launch_graph)(xlogmem_runtime* runtime, void* stream, xlogmem_graph* graph,
                            xlogmem_error* error) noexcept nogil
        void (*close_graph)(xlogmem_runtime* runtime, xlogmem_graph* graph) noexcept nogil
        void* (*graph_handle)(xlogmem_runtime* runtime, xlogmem_graph* graph) noexcept nogil

    ctypedef struct xlogmem_upstream:
        uint32_t version
        uint32_t size
        void* self
        int (*allocate)(void* self, size_t nbytes, void* stream, uint64_t* ptr, xlogmem_error* error) noexcept nogil
        int (*deallocate)(void* self, uint64_t ptr, size_t nbytes, void* stream, xlogmem_error* error) noexcept nogil
        uint64_t flags
