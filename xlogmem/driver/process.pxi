# The process: initialisation and exit of the driver, driver and device properties.
#
# At exit the driver may be gone before the last object is, and a forked child has none (forks.pxi).  In both cases
# finalizers make no driver call.

import atexit
import os

from xlogmem._base.failures import FORKED
from xlogmem._base.units import parse_device_id
from xlogmem.errors import DriverError, DriverNotFoundError
from xlogmem._base.cpp cimport flag
from xlogmem._base.failures cimport error_name, raise_failure


cdef extern from *:
    const char* XLOGMEM_BUILD_NAME

OLDEST_DRIVER = 12000                       # CUDA 12.0
BUILD = XLOGMEM_BUILD_NAME.decode()         # release, debug, asan or tsan; see setup.py

# The calls of hot paths go through the driver's own pointers, without the layers of cuda.bindings.
ctypedef cy.CUresult (*CaptureQuery)(cy.CUstream stream, cy.CUstreamCaptureStatus* status) noexcept nogil
ctypedef cy.CUresult (*CaptureInfo)(cy.CUstream stream, cy.CUstreamCaptureStatus* status, unsigned long long* number,
                                    cy.CUgraph* graph, void* nodes, size_t* count) noexcept nogil
ctypedef cy.CUresult (*GraphLaunch)(cy.CUgraphExec executable, cy.CUstream stream) noexcept nogil
ctypedef cy.CUresult (*ContextQuery)(cy.CUcontext* context) noexcept nogil
ctypedef cy.CUresult (*ContextsQuery)(cy.CUstream stream, cy.CUcontext* context, cy.CUgreenCtx* green) noexcept nogil
ctypedef cy.CUresult (*IdQuery)(cy.CUstream stream, unsigned long long* number) noexcept nogil
ctypedef cy.CUresult (*ModeExchange)(cy.CUstreamCaptureMode* mode) noexcept nogil
ctypedef cy.CUresult (*EventRecord)(cy.CUevent event, cy.CUstream stream) noexcept nogil
ctypedef cy.CUresult (*EventQuery)(cy.CUevent event) noexcept nogil
ctypedef cy.CUresult (*StreamWait)(cy.CUstream stream, cy.CUevent event, unsigned int flags) noexcept nogil
ctypedef cy.CUresult (*PoolAllocate)(cy.CUdeviceptr* ptr, size_t nbytes, cy.CUmemoryPool pool,
                                     cy.CUstream stream) noexcept nogil
ctypedef cy.CUresult (*PoolFree)(cy.CUdeviceptr ptr, cy.CUstream stream) noexcept nogil

cdef CaptureQuery query_capture = NULL
cdef CaptureInfo get_capture = NULL
cdef GraphLaunch launch_graph = NULL
cdef ContextQuery query_context = NULL
cdef ContextsQuery query_contexts = NULL        # NULL: the driver is older than CUDA 12.5
cdef IdQuery query_id = NULL
cdef ModeExchange exchange_mode = NULL
cdef EventRecord record_event = NULL
cdef EventQuery query_event = NULL
cdef StreamWait wait_for_event = NULL
cdef PoolAllocate allocate_from_pool = NULL
cdef PoolFree free_to_pool = NULL

cdef flag closing                           # threads that wait at the end of the process look, too
cdef bint initialized = False
cdef object starting = ProcessLock()


@atexit.register
def _close():
    """Let finalizers make no driver call from now on."""
    closing.store(True)


cdef bint process_is_closing() noexcept nogil:
    """True if finalizers must not call the driver: at the end of the process, and in a forked child."""
    return <bint>closing or child_is_refused


# ---------------------------------------------------------------------------------------------- start
def no_driver():
    """The message where there is no driver."""
    return NO_DRIVER + WITHOUT_GPU + BY_ITSELF


def no_driver_for(libraries):
    """The message where there is none for other libraries, which do not find the simulated one by themselves."""
    return f"xlogmem.enable({libraries}): {NO_DRIVER}{WITHOUT_GPU}"


NO_DRIVER = "no CUDA driver was found (libcuda.so.1 could not be loaded): install the NVIDIA driver. "
WITHOUT_GPU = ("Without a GPU, `xlogmem check --no-gpu program.py` runs a program on the simulated driver, where no "
               "kernel computes anything, and finds its missing waits")
BY_ITSELF = "; XLOGMEM_SIMULATE=1 lets xlogmem itself run there"


def initialize():
    """Load and initialise the driver.  All code that needs a driver calls this first; further calls do nothing.

    With ``XLOGMEM_SIMULATE=1`` in the environment the simulated driver is installed before.

    Raises
    ------
    DriverNotFoundError
        There is no driver, no device, or the driver is older than CUDA 12.0.  The next call tries again.
    DriverError
        The process was forked from one that had started the driver.

    Notes
    -----
    Thread-safe.
    """
    global initialized, driver_started
    if child_is_refused:
        raise DriverError(FORKED)
    if initialized:
        return
    with starting:
        if initialized:
            return
        driver_started = True                           # a child that is forked meanwhile has half a driver
        try:
            load_driver()
        except BaseException:
            driver_started = False
            raise
        initialized = True


cdef int load_driver() except -1:
    """Install the simulated driver, if the environment says so, and start the driver."""
    if os.environ.get("XLOGMEM_SIMULATE", "0") not in ("", "0"):
        from xlogmem import sim

        sim.install()
    return start_driver()


cdef int start_driver() except -1:
    """Make the first calls; if they fail, raise DriverNotFoundError, with advice."""
    cdef cy.CUresult result
    cdef int version = 0
    try:
        with nogil:
            result = cy.cuInit(0)
        if result == cy.CUDA_SUCCESS:
            with nogil:
                result = cy.cuDriverGetVersion(&version)
    except RuntimeError:
        raise DriverNotFoundError(no_driver()) from None
    if result != cy.CUDA_SUCCESS:
        name, text = error_name(result)
        raise DriverNotFoundError(
            f"the CUDA driver could not be initialised: cuInit gave {name} ({text}). " + WITHOUT_GPU + BY_ITSELF,
            call="cuInit", code=int(result), name=name)
    if version < OLDEST_DRIVER:
        raise DriverNotFoundError(
            f"the installed driver supports CUDA {version // 1000}.{version % 1000 // 10}; xlogmem needs 12.0 or "
            "later. "
            + WITHOUT_GPU + BY_ITSELF)
    find_hot_functions()
    return 0


cdef int find_hot_functions() except -1:
    global query_capture, query_context, query_id, exchange_mode, record_event, query_event, wait_for_event
    global allocate_from_pool, free_to_pool, get_capture, launch_graph, query_contexts
    cdef void* newer = NULL
    query_capture = <CaptureQuery>driver_function(b"cuStreamIsCapturing")
    get_capture = <CaptureInfo>driver_function(b"cuStreamGetCaptureInfo")
    launch_graph = <GraphLaunch>driver_function(b"cuGraphLaunch")
    query_context = <ContextQuery>driver_function(b"cuCtxGetCurrent")
    query_id = <IdQuery>driver_function(b"cuStreamGetId")
    exchange_mode = <ModeExchange>driver_function(b"cuThreadExchangeStreamCaptureMode")
    record_event = <EventRecord>driver_function(b"cuEventRecord")
    query_event = <EventQuery>driver_function(b"cuEventQuery")
    wait_for_event = <StreamWait>driver_function(b"cuStreamWaitEvent")
    allocate_from_pool = <PoolAllocate>driver_function(b"cuMemAllocFromPoolAsync")
    free_to_pool = <PoolFree>driver_function(b"cuMemFreeAsync")
    if cy.cuGetProcAddress(b"cuStreamGetCtx", &newer, 12050, 0, NULL) == cy.CUDA_SUCCESS:
        query_contexts = <ContextsQuery>newer


cdef void* driver_function(bytes name) except NULL:
    """The driver's pointer to a function that exists since CUDA 12.0."""
    cdef void* function = NULL
    cdef cy.CUresult result = cy.cuGetProcAddress(name, &function, OLDEST_DRIVER, 0, NULL)
    if result != cy.CUDA_SUCCESS or function == NULL:
        raise DriverNotFoundError(f"the CUDA driver has no {name.decode()}: cuGetProcAddress gave "
                                  f"{error_name(result)[0]}. " + WITHOUT_GPU + BY_ITSELF,
                                  call="cuGetProcAddress", code=int(result))
    return function


# ---------------------------------------------------------------------------------------------- driver and devices
def is_simulated():
    """True if the driver of this process is the simulated driver.

    Examples
    --------
    >>> xlogmem.is_simulated()                      # without a GPU, and with XLOGMEM_SIMULATE=1
    True
    """
    from xlogmem import sim

    return sim.installed()


def driver_version():
    """The CUDA version that the driver supports, as ``(major, minor)``.

    Examples
    --------
    >>> major, minor = xlogmem.driver_version()
    >>> major >= 12
    True
    """
    cdef int version = 0, failed
    cdef Failure failure
    initialize()
    with nogil:
        failed = _check(&failure, "cuDriverGetVersion", cy.cuDriverGetVersion(&version))
    if failed:
        raise_failure(&failure)
    return version // 1000, version % 1000 // 10


def device_count():
    """Number of CUDA devices that the process can see."""
    cdef int count = 0, failed
    cdef Failure failure
    initialize()
    with nogil:
        failed = _check(&failure, "cuDeviceGetCount", cy.cuDeviceGetCount(&count))
    if failed:
        raise_failure(&failure)
    return count


def device_name(int device_id):
    """Name of a device, for example ``"NVIDIA H200"``."""
    cdef char name[256]
    cdef int failed
    cdef Failure failure
    cdef cy.CUdevice device = context_of(device_id).device
    with nogil:
        failed = _check(&failure, "cuDeviceGetName", cy.cuDeviceGetName(name, sizeof(name), device))
    if failed:
        raise_failure(&failure)
    return (<bytes>name).decode()


cdef object total_memory(int device_id):
    """Bytes of the device's memory."""
    cdef size_t nbytes = 0
    cdef Failure failure
    cdef int failed
    cdef cy.CUdevice device = context_of(device_id).device
    with nogil:
        failed = _check(&failure, "cuDeviceTotalMem", cy.cuDeviceTotalMem(&nbytes, device))
    if failed:
        raise_failure(&failure)
    return nbytes


def supports_memory_pools(device_id):
    """True if the device supports the driver's stream-ordered allocator."""
    cdef int supported = 0, failed
    cdef Failure failure
    cdef cy.CUdevice device = context_of(parse_device_id(device_id)).device
    with nogil:
        failed = _check(&failure, "cuDeviceGetAttribute", cy.cuDeviceGetAttribute(
            &supported, cy.CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, device))
    if failed:
        raise_failure(&failure)
    return bool(supported)


def active_devices():
    """Numbers of the devices whose primary context is active in this process, and of the current context's device."""
    cdef cy.CUcontext current = NULL
    cdef cy.CUdevice device = 0
    cdef Failure failure
    cdef unsigned int flags = 0
    cdef int active = 0, device_id, failed
    cdef set found = set()
    for device_id in range(device_count()):
        with nogil:
            failed = _check(&failure, "cuDeviceGet", cy.cuDeviceGet(&device, device_id)) or _check(
                &failure, "cuDevicePrimaryCtxGetState", cy.cuDevicePrimaryCtxGetState(device, &flags, &active))
        if failed:
            raise_failure(&failure, f"querying device {device_id}")
        if active:
            found.add(device_id)
    with nogil:
        failed = _check(&failure, "cuCtxGetCurrent", cy.cuCtxGetCurrent(&current))
        if not failed and current != NULL:
            failed = _check(&failure, "cuCtxGetDevice", cy.cuCtxGetDevice(&device))
    if failed:
        raise_failure(&failure, "querying the current context")
    if current != NULL:
        found.add(int(device))
    return sorted(found)
