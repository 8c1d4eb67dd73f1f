"""Every CUDA call that xlogmem makes, and nothing else.

* Calls go through ``cuda.bindings.cydriver`` only.  The CUDA runtime library is never used: it would bring a second
  idea of the current device, and it does not run on the simulated driver.
* Functions return 0, or 1 with a `Failure` filled in: see `_failures`.
* They are declared ``except -1`` because cydriver raises when the installed driver lacks a function.  `initialize`
  refuses drivers older than CUDA 12.0, the newest function used here, so that cannot happen after a successful start;
  if it did, the exception would travel up rather than be taken for CUDA_SUCCESS, which is what ``noexcept`` would do.
* No lock of the rooms above is held during any call here, and the GIL never is: on a full queue the driver blocks.

Nothing in this file knows what a block, a position or a use is.
"""
import atexit
import os
import threading

from libc.stdint cimport uint32_t
from libc.string cimport memset

from xlogmem._failures cimport DRIVER_FAILED, PROCESS_WAS_FORKED, error_name, raise_failure

from xlogmem._failures import FORKED
from xlogmem.errors import DriverError, DriverNotFoundError

cdef extern from *:
    """
    #include <pthread.h>
    // CUDA cannot be used in a forked child, and a lock may have been held by a thread that the child does not have.
    static int xlogmem_started = 0;
    static volatile int xlogmem_forked = 0;
    static void xlogmem_in_child() { xlogmem_forked = xlogmem_started; }
    static int xlogmem_watch_forks() { return pthread_atfork(nullptr, nullptr, xlogmem_in_child); }
    """
    const char* XLOGMEM_BUILD_NAME
    int xlogmem_started
    int xlogmem_forked
    int xlogmem_watch_forks()

__all__ = ["BUILD", "active_devices", "device_count", "device_name", "driver_version", "forget_context", "initialize",
           "is_simulated", "live_events", "supports_memory_pools", "trim_events"]

OLDEST_DRIVER = 12000
BUILD = XLOGMEM_BUILD_NAME.decode()         # release, debug, asan or tsan; see setup.py

cdef bint closing = False
cdef bint initialized = False
cdef object start = threading.Lock()
cdef dict contexts = {}                     # ordinal -> Context; kept until the process ends


xlogmem_watch_forks()


@atexit.register
def _close():
    """From here on finalizers make no driver call: the driver may be gone before our last object is (W57)."""
    global closing
    closing = True


cdef bint process_is_closing() noexcept nogil:
    """Whether finalizers have to leave the driver alone: at the end of the process, and in a forked child."""
    return closing or xlogmem_forked


cdef bint process_was_forked() noexcept nogil:
    return xlogmem_forked


# ---------------------------------------------------------------------------------------------- start
def initialize():
    """Load and initialise the driver; the first call of anything that needs one does this.

    Raises
    ------
    DriverNotFoundError
        There is no driver, no device, or the driver is older than CUDA 12.0.  The next call tries again.
    """
    global initialized, xlogmem_started
    cdef cy.CUresult result
    cdef int version = 0
    if xlogmem_forked:
        raise DriverError(FORKED)
    if initialized:
        return
    with start:
        if initialized:
            return
        if os.environ.get("XLOGMEM_SIMULATE", "0") not in ("", "0"):
            from xlogmem import sim

            sim.install()
        try:
            with nogil:
                result = cy.cuInit(0)
            if result == cy.CUDA_SUCCESS:
                with nogil:
                    result = cy.cuDriverGetVersion(&version)
        except RuntimeError as error:
            raise DriverNotFoundError(
                "no CUDA driver was found (libcuda.so.1 could not be loaded). Install the NVIDIA driver, or run on "
                "the simulated one: set XLOGMEM_SIMULATE=1 or call xlogmem.sim.install() first") from error
        if result != cy.CUDA_SUCCESS:
            name, text = error_name(result)
            raise DriverNotFoundError(
                f"the CUDA driver could not be initialised: cuInit gave {name} ({text}). Without a GPU, use the "
                "simulated driver: set XLOGMEM_SIMULATE=1 or call xlogmem.sim.install() first",
                call="cuInit", code=int(result), name=name)
        if version < OLDEST_DRIVER:
            raise DriverNotFoundError(
                f"the installed driver supports CUDA {version // 1000}.{version % 1000 // 10}; xlogmem needs 12.0 or "
                "later")
        initialized = True
        xlogmem_started = 1


def is_simulated():
    """Whether the driver of this process is the simulated one."""
    from xlogmem import sim

    return sim.installed()


def driver_version():
    """CUDA version that the driver supports, as ``(major, minor)``."""
    cdef int version = 0, status
    cdef Failure failure
    initialize()
    with nogil:
        status = _check(&failure, "cuDriverGetVersion", cy.cuDriverGetVersion(&version))
    if status:
        raise_failure(&failure)
    return version // 1000, version % 1000 // 10


def device_count():
    """Number of CUDA devices that the process can see."""
    cdef int count = 0, status
    cdef Failure failure
    initialize()
    with nogil:
        status = _check(&failure, "cuDeviceGetCount", cy.cuDeviceGetCount(&count))
    if status:
        raise_failure(&failure)
    return count


def device_name(int ordinal):
    """Name of a device, for example ``"NVIDIA H200"``."""
    cdef char name[256]
    cdef int status
    cdef Failure failure
    cdef cy.CUdevice device = context_of(ordinal).device
    with nogil:
        status = _check(&failure, "cuDeviceGetName", cy.cuDeviceGetName(name, sizeof(name), device))
    if status:
        raise_failure(&failure)
    return (<bytes>name).decode()


def supports_memory_pools(int ordinal):
    """Whether the device has the driver's stream-ordered allocator."""
    cdef int supported = 0, status
    cdef Failure failure
    cdef cy.CUdevice device = context_of(ordinal).device
    with nogil:
        status = _check(&failure, "cuDeviceGetAttribute", cy.cuDeviceGetAttribute(
            &supported, cy.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, device))
    if status:
        raise_failure(&failure)
    return bool(supported)


def active_devices():
    """The ordinals of the devices whose primary context is active in this process, and of the current context's."""
    cdef cy.CUcontext current = NULL
    cdef cy.CUdevice device = 0
    cdef Failure failure
    cdef unsigned int flags = 0
    cdef int active = 0, ordinal, failed
    cdef set found = set()
    for ordinal in range(device_count()):
        with nogil:
            failed = _check(&failure, "cuDeviceGet", cy.cuDeviceGet(&device, ordinal)) or _check(
                &failure, "cuDevicePrimaryCtxGetState", cy.cuDevicePrimaryCtxGetState(device, &flags, &active))
        if failed:
            raise_failure(&failure, f"looking at device {ordinal}")
        if active:
            found.add(ordinal)
    with nogil:
        failed = _check(&failure, "cuCtxGetCurrent", cy.cuCtxGetCurrent(&current))
        if not failed and current != NULL:
            failed = _check(&failure, "cuCtxGetDevice", cy.cuCtxGetDevice(&device))
    if failed:
        raise_failure(&failure, "looking at the current context")
    if current != NULL:
        found.add(int(device))
    return sorted(found)


cdef inline int _check(Failure* failure, const char* call, cy.CUresult code) noexcept nogil:
    if code == cy.CUDA_SUCCESS:
        return 0
    failure.kind = DRIVER_FAILED
    failure.call = call
    failure.code = code
    return 1


# ---------------------------------------------------------------------------------------------- contexts
cdef class Context:
    """The primary context of a device and its spare events.  One per device and process, kept until the end: we share
    the primary context with everybody else in the process and never reset it."""

    def __init__(self):
        raise TypeError("contexts are made by xlogmem itself")


cdef Context context_of(int ordinal):
    """The device's context, retained at first sight."""
    cdef Context context
    cdef Failure failure
    cdef int status
    initialize()
    context = contexts.get(ordinal)
    if context is not None:
        return context
    count = device_count()
    if not 0 <= ordinal < count:
        raise DriverError(f"device ordinal {ordinal} is out of range: this process sees {count} device(s)")
    context = Context.__new__(Context)
    context.ordinal = ordinal
    with nogil:
        status = _check(&failure, "cuDeviceGet", cy.cuDeviceGet(&context.device, ordinal))
        if not status:
            status = _check(&failure, "cuDevicePrimaryCtxRetain",
                            cy.cuDevicePrimaryCtxRetain(&context.handle, context.device))
    if status:
        raise_failure(&failure, f"opening device {ordinal}")
    return contexts.setdefault(ordinal, context)


def forget_context(int ordinal):
    """Somebody has reset the device: what is made from now on is made in its new context."""
    contexts.pop(ordinal, None)


cdef int enter_context(cy.CUcontext context, Scope* scope, Failure* failure) except -1 nogil:
    """Make the context current; `leave_context` restores the caller's (W60).  Costs one query where it is already."""
    cdef cy.CUcontext current = NULL
    scope.pushed = False
    if process_was_forked():
        failure.kind = PROCESS_WAS_FORKED
        return 1
    if _check(failure, "cuCtxGetCurrent", cy.cuCtxGetCurrent(&current)):
        return 1
    if current == context:
        return 0
    if _check(failure, "cuCtxPushCurrent", cy.cuCtxPushCurrent(context)):
        return 1
    scope.pushed = True
    return 0


cdef int leave_context(Scope* scope) except -1 nogil:
    cdef cy.CUcontext popped
    if scope.pushed:
        cy.cuCtxPopCurrent(&popped)
    return 0


# ---------------------------------------------------------------------------------------------- captures
cdef cy.CUstreamCaptureMode relax_capture() except? <cy.CUstreamCaptureMode>-1 nogil:
    """While anybody in the process captures a graph in global mode, allocating, freeing, querying and synchronizing
    are refused in every thread, and spoil his capture, unless the thread is in relaxed mode.  These calls are made
    in it; the mode returned is given to `restore_capture`."""
    cdef cy.CUstreamCaptureMode mode = cy.CU_STREAM_CAPTURE_MODE_RELAXED
    cy.cuThreadExchangeStreamCaptureMode(&mode)
    return mode


cdef int restore_capture(cy.CUstreamCaptureMode mode) except -1 nogil:
    cy.cuThreadExchangeStreamCaptureMode(&mode)
    return 0


# ---------------------------------------------------------------------------------------------- events
cdef int take_event(EventPool* pool, cy.CUevent* event, Failure* failure) except -1 nogil:
    """An unused event, timing disabled.  The context must be current: with no spare one an event is created."""
    pool.lock.lock()
    if not pool.spare.empty():
        event[0] = pool.spare.back()
        pool.spare.pop_back()
        pool.lock.unlock()
        return 0
    pool.lock.unlock()
    if _check(failure, "cuEventCreate", cy.cuEventCreate(event, cy.CU_EVENT_DISABLE_TIMING)):
        return 1
    pool.lock.lock()
    pool.created += 1
    pool.lock.unlock()
    return 0


cdef void give_event(EventPool* pool, cy.CUevent event) noexcept nogil:
    """Waits that are queued for the event are not disturbed when it is recorded again: each holds the state that the
    event had at the call (CUDA driver API, cuStreamWaitEvent)."""
    pool.lock.lock()
    pool.spare.push_back(event)
    pool.lock.unlock()


def live_events(int ordinal=0):
    """Events of a device's context that are in use now, and those created so far, as ``(in_use, created)``.

    Spare events are kept for ever, so in a steady state `created` stands still.
    """
    cdef Context context = contexts.get(ordinal)
    cdef uint64_t created, spare
    if context is None:
        return 0, 0
    with nogil:
        context.events.lock.lock()
        created = context.events.created
        spare = context.events.spare.size()
        context.events.lock.unlock()
    return created - spare, created


def trim_events(int ordinal=0):
    """Destroy the spare events of a device's context; they are made again when needed."""
    cdef Context context = contexts.get(ordinal)
    cdef vector[cy.CUevent] spare
    cdef Scope scope
    cdef Failure failure
    cdef size_t i
    cdef int failed
    if context is None:
        return
    with nogil:
        failed = enter_context(context.handle, &scope, &failure)
        if not failed:
            context.events.lock.lock()
            spare = context.events.spare
            context.events.spare.clear()
            context.events.created -= spare.size()
            context.events.lock.unlock()
            for i in range(spare.size()):
                failed |= _check(&failure, "cuEventDestroy", cy.cuEventDestroy(spare[i]))
            leave_context(&scope)
    if failed:
        raise_failure(&failure, "destroying spare events")


cdef int event_record(cy.CUevent event, cy.CUstream stream, Failure* failure) except -1 nogil:
    return _check(failure, "cuEventRecord", cy.cuEventRecord(event, stream))


cdef int event_synchronize(cy.CUevent event, Failure* failure) except -1 nogil:
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuEventSynchronize(event)
    restore_capture(mode)
    return _check(failure, "cuEventSynchronize", result)


cdef int event_is_done(cy.CUevent event, bint* done, Failure* failure) except -1 nogil:
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuEventQuery(event)
    restore_capture(mode)
    done[0] = result == cy.CUDA_SUCCESS
    if result == cy.CUDA_ERROR_NOT_READY:
        return 0
    return _check(failure, "cuEventQuery", result)


# ---------------------------------------------------------------------------------------------- streams
cdef int stream_create(int priority, cy.CUstream* stream, Failure* failure) except -1 nogil:
    """A stream that neither waits for the legacy default stream nor makes it wait (W14)."""
    return _check(failure, "cuStreamCreateWithPriority",
                  cy.cuStreamCreateWithPriority(stream, cy.CU_STREAM_NON_BLOCKING, priority))


cdef int stream_destroy(cy.CUstream stream, Failure* failure) except -1 nogil:
    return _check(failure, "cuStreamDestroy", cy.cuStreamDestroy(stream))


cdef int stream_id(cy.CUstream stream, uint64_t* number, Failure* failure) except -1 nogil:
    """The driver's own number of the stream, which it never reuses.  Spoils a capture, so registration alone asks."""
    cdef unsigned long long value = 0
    cdef int status = _check(failure, "cuStreamGetId", cy.cuStreamGetId(stream, &value))
    number[0] = value
    return status


cdef int context_synchronize(Failure* failure) except -1 nogil:
    """Wait for everything in the current context."""
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuCtxSynchronize()
    restore_capture(mode)
    return _check(failure, "cuCtxSynchronize", result)


cdef int stream_flags(cy.CUstream stream, unsigned int* flags, Failure* failure) except -1 nogil:
    return _check(failure, "cuStreamGetFlags", cy.cuStreamGetFlags(stream, flags))


cdef int stream_context(cy.CUstream stream, cy.CUcontext* context, Failure* failure) except -1 nogil:
    return _check(failure, "cuStreamGetCtx", cy.cuStreamGetCtx(stream, context))


cdef int stream_device(cy.CUstream stream, int* ordinal, Failure* failure) except -1 nogil:
    """The device of a stream; of the default streams (handles 0 to 2) the current context's, device 0 without one."""
    cdef cy.CUcontext context = NULL
    cdef cy.CUcontext popped
    cdef cy.CUdevice device = 0
    cdef int failed
    if <size_t>stream <= 2:
        failed = _check(failure, "cuCtxGetCurrent", cy.cuCtxGetCurrent(&context))
    else:
        failed = stream_context(stream, &context, failure)
    if failed or context == NULL:
        ordinal[0] = 0
        return failed
    if _check(failure, "cuCtxPushCurrent", cy.cuCtxPushCurrent(context)):
        return 1
    failed = _check(failure, "cuCtxGetDevice", cy.cuCtxGetDevice(&device))
    cy.cuCtxPopCurrent(&popped)
    ordinal[0] = device
    return failed


cdef int stream_is_capturing(cy.CUstream stream, bint* capturing, Failure* failure) except -1 nogil:
    """Whether a graph is being captured on the stream, spoiled captures included.  The legacy stream counts as
    capturing while a blocking stream does: it may not be used, and asking about it says so with an error of its own
    that spoils nothing (CUDA driver API, cuStreamIsCapturing)."""
    cdef cy.CUstreamCaptureStatus status = cy.CU_STREAM_CAPTURE_STATUS_NONE
    cdef cy.CUresult result = cy.cuStreamIsCapturing(stream, &status)
    if result == cy.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
        capturing[0] = True
        return 0
    capturing[0] = status != cy.CU_STREAM_CAPTURE_STATUS_NONE
    return _check(failure, "cuStreamIsCapturing", result)


cdef int stream_wait(cy.CUstream stream, cy.CUevent event, Failure* failure) except -1 nogil:
    return _check(failure, "cuStreamWaitEvent", cy.cuStreamWaitEvent(stream, event, 0))


# ---------------------------------------------------------------------------------------------- memory
cdef int memory_allocate(size_t nbytes, cy.CUdeviceptr* ptr, Failure* failure) except -1 nogil:
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuMemAlloc(ptr, nbytes)
    restore_capture(mode)
    return _check(failure, "cuMemAlloc", result)


cdef int memory_free(cy.CUdeviceptr ptr, Failure* failure) except -1 nogil:
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuMemFree(ptr)
    restore_capture(mode)
    return _check(failure, "cuMemFree", result)


cdef int pool_create(cy.CUdevice device, uint64_t release_threshold, cy.CUmemoryPool* pool,
                     Failure* failure) except -1 nogil:
    cdef cy.CUmemPoolProps properties
    memset(&properties, 0, sizeof(properties))
    properties.allocType = cy.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.handleTypes = cy.CU_MEM_HANDLE_TYPE_NONE
    properties.location.type = cy.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = device
    if _check(failure, "cuMemPoolCreate", cy.cuMemPoolCreate(pool, &properties)):
        return 1
    if _check(failure, "cuMemPoolSetAttribute", cy.cuMemPoolSetAttribute(
            pool[0], cy.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &release_threshold)):
        cy.cuMemPoolDestroy(pool[0])
        return 1
    return 0


cdef int pool_destroy(cy.CUmemoryPool pool, Failure* failure) except -1 nogil:
    return _check(failure, "cuMemPoolDestroy", cy.cuMemPoolDestroy(pool))


cdef int pool_trim(cy.CUmemoryPool pool, size_t keep, Failure* failure) except -1 nogil:
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuMemPoolTrimTo(pool, keep)
    restore_capture(mode)
    return _check(failure, "cuMemPoolTrimTo", result)


# As the driver is, for callers who have made the device current and know of captures.
cdef int pool_allocate_plainly(cy.CUmemoryPool pool, size_t nbytes, cy.CUstream stream, cy.CUdeviceptr* ptr,
                               Failure* failure) except -1 nogil:
    return _check(failure, "cuMemAllocFromPoolAsync", cy.cuMemAllocFromPoolAsync(ptr, nbytes, pool, stream))


cdef int pool_free_plainly(cy.CUdeviceptr ptr, cy.CUstream stream, Failure* failure) except -1 nogil:
    return _check(failure, "cuMemFreeAsync", cy.cuMemFreeAsync(ptr, stream))


cdef int pool_allocate(cy.CUmemoryPool pool, size_t nbytes, cy.CUstream stream, cy.CUdeviceptr* ptr,
                       Failure* failure) except -1 nogil:
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef int failed = pool_allocate_plainly(pool, nbytes, stream, ptr, failure)
    restore_capture(mode)
    return failed


cdef int pool_free(cy.CUdeviceptr ptr, cy.CUstream stream, Failure* failure) except -1 nogil:
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef int failed = pool_free_plainly(ptr, stream, failure)
    restore_capture(mode)
    return failed


cdef int pointer_device(cy.CUdeviceptr ptr, int* ordinal, Failure* failure) except -1 nogil:
    """The device whose memory this is, -1 for what is no device memory at all.  Any thread, capture or not."""
    cdef cy.CUpointer_attribute attributes[2]
    cdef void* answers[2]
    cdef unsigned int kind = 0
    attributes[0] = cy.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    attributes[1] = cy.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    answers[0], answers[1] = &kind, ordinal
    if _check(failure, "cuPointerGetAttributes", cy.cuPointerGetAttributes(2, attributes, answers, ptr)):
        return 1
    if kind != <unsigned int>cy.CU_MEMORYTYPE_DEVICE:
        ordinal[0] = -1
    return 0


cdef int pool_of_pointer(cy.CUdeviceptr ptr, cy.CUmemoryPool* pool) except -1 nogil:
    """The CUDA pool that this memory was allocated from, NULL if there is none.  Any thread, capture or not."""
    if cy.cuPointerGetAttribute(pool, cy.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr) != cy.CUDA_SUCCESS:
        pool[0] = NULL
    return 0


cdef int host_is_pinned(const void* ptr, bint* pinned) except -1 nogil:
    """Whether the driver knows this host memory, and copies from it later than the call returns."""
    cdef unsigned int kind = 0
    pinned[0] = cy.cuPointerGetAttribute(&kind, cy.CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                         <cy.CUdeviceptr><size_t>ptr) == cy.CUDA_SUCCESS
    return 0


# ---------------------------------------------------------------------------------------------- copies
cdef int copy_in(cy.CUdeviceptr target, const void* source, size_t nbytes, cy.CUstream stream,
                 Failure* failure) except -1 nogil:
    return _check(failure, "cuMemcpyHtoDAsync", cy.cuMemcpyHtoDAsync(target, source, nbytes, stream))


cdef int copy_out(void* target, cy.CUdeviceptr source, size_t nbytes, cy.CUstream stream,
                  Failure* failure) except -1 nogil:
    return _check(failure, "cuMemcpyDtoHAsync", cy.cuMemcpyDtoHAsync(target, source, nbytes, stream))


cdef int copy_across(cy.CUdeviceptr target, cy.CUdeviceptr source, size_t nbytes, cy.CUstream stream,
                     Failure* failure) except -1 nogil:
    return _check(failure, "cuMemcpyDtoDAsync", cy.cuMemcpyDtoDAsync(target, source, nbytes, stream))


cdef int fill(cy.CUdeviceptr target, uint32_t value, int width, size_t count, cy.CUstream stream,
              Failure* failure) except -1 nogil:
    """`count` elements of `width` bytes: 1, 2 or 4."""
    if width == 1:
        return _check(failure, "cuMemsetD8Async", cy.cuMemsetD8Async(target, <unsigned char>value, count, stream))
    if width == 2:
        return _check(failure, "cuMemsetD16Async", cy.cuMemsetD16Async(target, <unsigned short>value, count, stream))
    return _check(failure, "cuMemsetD32Async", cy.cuMemsetD32Async(target, value, count, stream))
