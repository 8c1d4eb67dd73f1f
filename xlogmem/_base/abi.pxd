# The C table as Cython reads it; include/xlogmem.h is the promise.

from libc.stdint cimport int32_t, uint32_t, uint64_t


cdef extern from "xlogmem.h":
    const char* XLOGMEM_TABLE
    const char* XLOGMEM_UPSTREAM
    enum: XLOGMEM_TABLE_VERSION
    enum: XLOGMEM_TEXT
    enum: XLOGMEM_FAILED
    enum: XLOGMEM_OUT_OF_MEMORY
    enum: XLOGMEM_NOT_FOUND
    enum: XLOGMEM_FINDS_DEVICE
    enum: XLOGMEM_CUDA_POOL

    ctypedef struct xlogmem_error:
        int32_t kind
        char* text

    ctypedef struct xlogmem_runtime:
        pass

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

    ctypedef struct xlogmem_upstream:
        uint32_t version
        uint32_t size
        void* self
        int (*allocate)(void* self, size_t nbytes, void* stream, uint64_t* ptr, xlogmem_error* error) noexcept nogil
        int (*deallocate)(void* self, uint64_t ptr, size_t nbytes, void* stream, xlogmem_error* error) noexcept nogil
        uint64_t flags
