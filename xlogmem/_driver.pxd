# The CUDA calls that the other compiled modules make; _driver.pyx has the rules.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint32_t, uint64_t

from xlogmem._base.cpp cimport make_new, vector
from xlogmem._base.failures cimport Failure
from xlogmem._base.locks cimport mutex

cdef enum:
    # Handles of the default streams.  0 means the legacy one too; everything behind `parse` and the C table has 1.
    LEGACY = 1                  # CU_STREAM_LEGACY
    PER_THREAD = 2              # CU_STREAM_PER_THREAD: another stream in each thread

cdef enum:
    SPOILT_CAPTURE = 0xFFFFFFFFFFFFFFFF     # in place of the id of a capture

cdef enum LockLevel:
    OUTER_LOCK                  # of a runtime
    LEAF_LOCK                   # no other is taken under it

cdef enum MemoryKind:
    DEVICE_MEMORY
    HOST_MEMORY                 # page-locked, or pageable memory that the device reaches
    MANAGED_MEMORY
    NO_MEMORY                   # nothing is allocated there
    BEYOND_MEMORY               # the range ends behind the allocation in which it begins


cdef struct Memory:
    # What the driver knows about a range of memory.
    MemoryKind kind
    int device_id               # of the host's: where it was made; negative: of none
    size_t allocated            # bytes up to the end of the allocation, or of reserved addresses
    bint is_whole               # all of the range is memory of this kind, as its first byte is


cdef struct Scope:
    # What `leave_context` has to restore.
    bint pushed


cdef cppclass EventPool:
    # Events of one context that are not in use.  Its lock is a leaf: no other is taken under it.
    mutex lock
    vector[cy.CUevent] spare
    uint64_t created            # and not destroyed: spare and in use


cdef class Context:
    cdef readonly int device_id
    cdef cy.CUcontext handle
    cdef cy.CUdevice device
    cdef EventPool events

cdef Context context_of(int device_id)
cdef object total_memory(int device_id)
cdef bint process_is_closing() noexcept nogil
cdef bint process_was_forked() noexcept nogil
cdef void take_at_forks(mutex* lock, LockLevel level) noexcept nogil
cdef void forget_at_forks(mutex* lock) noexcept nogil

cdef int enter_context(cy.CUcontext context, Scope* scope, Failure* failure) except -1 nogil
cdef int leave_context(Scope* scope) except -1 nogil
cdef int current_context(cy.CUcontext* context, Failure* failure) except -1 nogil
cdef cy.CUstreamCaptureMode relax_capture() except? <cy.CUstreamCaptureMode>-1 nogil
cdef int restore_capture(cy.CUstreamCaptureMode mode) except -1 nogil

cdef int take_event(EventPool* pool, cy.CUevent* event, Failure* failure) except -1 nogil
cdef void give_event(EventPool* pool, cy.CUevent event) noexcept nogil

cdef int event_record(cy.CUevent event, cy.CUstream stream, Failure* failure) except -1 nogil
cdef int timed_event_create(cy.CUevent* event, Failure* failure) except -1 nogil
cdef int event_elapsed(cy.CUevent before, cy.CUevent after, uint64_t* nanoseconds, Failure* failure) except -1 nogil
cdef int event_destroy(cy.CUevent event, Failure* failure) except -1 nogil
cdef int event_synchronize(cy.CUevent event, Failure* failure) except -1 nogil
cdef int event_is_done(cy.CUevent event, bint* done, Failure* failure) except -1 nogil
cdef int stream_create(int priority, cy.CUstream* stream, Failure* failure) except -1 nogil
cdef int stream_destroy(cy.CUstream stream, Failure* failure) except -1 nogil
cdef int context_synchronize(Failure* failure) except -1 nogil
cdef int stream_id(cy.CUstream stream, uint64_t* number, Failure* failure) except -1 nogil
cdef int stream_flags(cy.CUstream stream, unsigned int* flags, Failure* failure) except -1 nogil
cdef int stream_context(cy.CUstream stream, cy.CUcontext* context, Failure* failure) except -1 nogil
cdef int stream_device(cy.CUstream stream, int* device_id, Failure* failure) except -1 nogil
cdef int stream_is_capturing(cy.CUstream stream, bint* capturing, Failure* failure) except -1 nogil
cdef int stream_is_idle(cy.CUstream stream, bint* idle, Failure* failure) except -1 nogil
cdef int launch_host_function(cy.CUstream stream, void (*function)(void*) noexcept nogil, void* data,
                              Failure* failure) except -1 nogil
cdef int stream_wait(cy.CUstream stream, cy.CUevent event, Failure* failure) except -1 nogil
cdef int stream_synchronize(cy.CUstream stream, Failure* failure) except -1 nogil
cdef int capture_of(cy.CUstream stream, uint64_t* capture, Failure* failure) except -1 nogil
cdef int begin_capture(cy.CUstream stream, cy.CUstreamCaptureMode mode, Failure* failure) except -1 nogil
cdef int end_capture(cy.CUstream stream, cy.CUgraph* graph, Failure* failure) except -1 nogil
cdef int graph_instantiate(cy.CUgraph graph, cy.CUgraphExec* executable, Failure* failure) except -1 nogil
cdef int graph_destroy(cy.CUgraph graph, Failure* failure) except -1 nogil
cdef int executable_destroy(cy.CUgraphExec executable, Failure* failure) except -1 nogil
cdef int graph_launch(cy.CUgraphExec executable, cy.CUstream stream, Failure* failure) except -1 nogil
cdef int memory_allocate(size_t nbytes, cy.CUdeviceptr* ptr, Failure* failure) except -1 nogil
cdef int memory_free(cy.CUdeviceptr ptr, Failure* failure) except -1 nogil
cdef int managed_allocate(size_t nbytes, cy.CUdeviceptr* ptr, Failure* failure) except -1 nogil
cdef int host_memory_allocate(size_t nbytes, bint portable, void** memory, Failure* failure) except -1 nogil
cdef int host_free(void* memory, Failure* failure) except -1 nogil
cdef int pool_create(cy.CUcontext context, cy.CUdevice device, uint64_t release_threshold, cy.CUmemoryPool* pool,
                     uint64_t* number, Failure* failure) except -1 nogil
cdef int host_pool_create(cy.CUcontext context, int node, int first, int count, cy.CUmemoryPool* pool,
                          uint64_t* number, Failure* failure) except -1 nogil
cdef int pool_end(uint64_t number, Failure* failure) except -1 nogil
cdef int destroy_ended_pools(Failure* failure) except -1 nogil
cdef int pool_trim(cy.CUmemoryPool pool, size_t keep, Failure* failure) except -1 nogil
cdef int pool_allocate(cy.CUmemoryPool pool, size_t nbytes, cy.CUstream stream, cy.CUdeviceptr* ptr,
                       Failure* failure) except -1 nogil
cdef int pool_free(cy.CUdeviceptr ptr, cy.CUstream stream, Failure* failure) except -1 nogil

cdef int module_load(const char* text, cy.CUmodule* module, Failure* failure) except -1 nogil
cdef int module_function(cy.CUmodule module, const char* name, cy.CUfunction* function,
                         Failure* failure) except -1 nogil
cdef int launch_kernel(cy.CUfunction function, unsigned int blocks, unsigned int threads, cy.CUstream stream,
                       void** parameters, Failure* failure) except -1 nogil
cdef int host_allocate(size_t nbytes, void** memory, Failure* failure) except -1 nogil

cdef int peer_access_of(cy.CUcontext context, int device_id, cy.CUdeviceptr ptr, unsigned int* flags,
                        Failure* failure) except -1 nogil
cdef int pool_open_to(cy.CUmemoryPool pool, int device_id, Failure* failure) except -1 nogil
cdef int pool_open_to_peers(cy.CUmemoryPool pool, int device_id) except -1
cdef bint is_peer_enabled(int device_id, int peer)

cdef int memory_info(size_t* free_bytes, size_t* total, Failure* failure) except -1 nogil
cdef int pointer_device(cy.CUdeviceptr ptr, int* device_id, Failure* failure) except -1 nogil
cdef int pool_of_pointer(cy.CUdeviceptr ptr, cy.CUmemoryPool* pool) except -1 nogil
cdef int pool_allocate_plainly(cy.CUmemoryPool pool, size_t nbytes, cy.CUstream stream, cy.CUdeviceptr* ptr,
                               Failure* failure) except -1 nogil
cdef int pool_free_plainly(cy.CUdeviceptr ptr, cy.CUstream stream, Failure* failure) except -1 nogil
cdef int is_host_memory(cy.CUdeviceptr ptr, bint* on_host, Failure* failure) except -1 nogil
cdef int kind_of_memory(cy.CUdevice device, cy.CUdeviceptr ptr, size_t nbytes, Memory* memory,
                        Failure* failure) except -1 nogil
cdef int host_is_pinned(const void* ptr, bint* pinned, Failure* failure) except -1 nogil
cdef int system_allocate(size_t nbytes, uint64_t* ptr, Failure* failure) noexcept nogil
cdef void system_free(uint64_t ptr) noexcept nogil
cdef bint is_system_memory(uint64_t ptr) noexcept nogil
cdef int copy_in(cy.CUdeviceptr target, const void* source, size_t nbytes, cy.CUstream stream,
                 Failure* failure) except -1 nogil
cdef int copy_out(void* target, cy.CUdeviceptr source, size_t nbytes, cy.CUstream stream,
                  Failure* failure) except -1 nogil
cdef int copy_across(cy.CUdeviceptr target, cy.CUdeviceptr source, size_t nbytes, cy.CUstream stream,
                     Failure* failure) except -1 nogil
cdef int copy_between(cy.CUdeviceptr target, cy.CUcontext target_context, cy.CUdeviceptr source,
                      cy.CUcontext source_context, size_t nbytes, cy.CUstream stream, Failure* failure) except -1 nogil
cdef int fill(cy.CUdeviceptr target, uint32_t value, int width, size_t count, cy.CUstream stream,
              Failure* failure) except -1 nogil
