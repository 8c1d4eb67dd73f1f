# Uses of memory of other devices, and uses in captures: a recorder of Python takes part for the caller.
#
# A launch across devices has a window in the runtime of each device (launch/elsewhere.pxi): it registers its stream
# there, and queries if its device has access to the memory.  A use in a capture has one in the core of the capture
# (launch/captures.pxi).  All of that is Python's, so such a use takes the GIL when it is prepared and when it ends.
# The last bit of an `xlogmem_use` says if it is a recorder or a window.

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport uint32_t
from libc.stdio cimport snprintf

from xlogmem.errors import DeviceLostError, DriverError, StreamMisuseError, UnknownBufferError, UseAfterFreeError
from xlogmem._base.failures cimport (
    BLOCK_IS_AWAITED,
    BLOCK_IS_CONTESTED,
    BLOCK_IS_STALE,
    SOURCE_IS_CAPTURING,
    STREAM_IS_CAPTURING,
    WAIT_IS_CIRCULAR,
    Failure,
    UnderWay,
    put_back,
    set_aside,
)
from xlogmem._core cimport Found
from xlogmem._order cimport has_several_devices
from xlogmem.blocks cimport Core
from xlogmem.launch import host
from xlogmem.launch cimport LaunchRecorder, add_use, captured_by_handle, has_captures
from xlogmem.streams cimport Stream
from xlogmem.native cimport (
    XLOGMEM_ANY_THREAD,
    XLOGMEM_CAPTURING,
    XLOGMEM_CONFLICT,
    XLOGMEM_FAILED,
    XLOGMEM_HAND_BACK_WRITES,
    XLOGMEM_INVALID,
    XLOGMEM_LOST,
    XLOGMEM_NOT_FOUND,
    XLOGMEM_REFUSE_CONFLICTS,
    XLOGMEM_STALE,
    XLOGMEM_TEXT,
    xlogmem_access,
    xlogmem_error,
    xlogmem_use,
)


cdef bint may_be_elsewhere(Launch* launch, Failure* failure) noexcept nogil:
    """True if a runtime of another device may have a block that was not found."""
    if launch.flags & <uint32_t>OF_GRAPH or not has_several_devices():
        return False
    if launch.refused:
        return is_access(&launch.accesses[launch.refused - 1])
    return failure.kind == BLOCK_IS_STALE


cdef bint may_be_inside(Launch* launch, Failure* failure) noexcept nogil:
    """True if the stream may take part in a capture that is known.  Of an access that is wrong there is no failure."""
    return (launch.refused == 0 and has_captures() and not launch.flags & <uint32_t>OF_GRAPH
            and not names_host(launch.handle) and kind_of_failure(failure) == XLOGMEM_CAPTURING)


cdef inline bint is_recorder(xlogmem_use* use) noexcept nogil:
    return <size_t>use & 1


cdef int prepare_elsewhere(RuntimeHold* hold, Launch* launch, bint inside, xlogmem_use** use,
                           xlogmem_error* error) noexcept with gil:
    """Prepare a use `inside` a capture, or one of which an access is not in this runtime.  Returns 1 with the error
    filled in, or 1 with its kind 0 if the capture is not known, or no runtime tracks the memory."""
    cdef LaunchRecorder recorder
    cdef UnderWay exception
    set_aside(&exception)
    error.kind = 0
    try:
        recorder = begin_elsewhere(hold, launch, inside)
        if recorder is None:
            return 1
        recorder.preflight()
        Py_INCREF(recorder)
        use[0] = <xlogmem_use*>(<size_t><void*>recorder | 1)
        return 0
    except BaseException as raised:
        fill_raised(raised, error)
        return 1
    finally:
        put_back(&exception)


cdef LaunchRecorder begin_elsewhere(RuntimeHold* hold, Launch* launch, bint inside):
    """Make a recorder of all accesses; None if the memory of one is tracked nowhere, or the stream captures and no
    capture is known there."""
    cdef Core own = <Core>hold.owner
    cdef const xlogmem_access* access
    cdef LaunchRecorder recorder
    cdef Stream stream = None
    cdef list named = []
    cdef size_t i
    if inside:
        stream = captured_by_handle(own, launch.handle)
        if stream is None:
            return None
    for i in range(launch.count):
        access = &launch.accesses[i]
        if not is_access(access):
            launch.refused = i + 1
            return None
        if access.address != 0 or access.generation != 0:
            block = block_anywhere(own, access)
            if block is None:
                if inside or launch.refused or access.generation != 0:  # else it was freed while the use waited
                    launch.refused = i + 1
                return None
            named.append((block, access.access))
    recorder = LaunchRecorder(
        # Default streams are this device's, whichever is current.
        stream if inside else host if names_host(launch.handle) else own.stream_of(<size_t>launch.handle),
        runtime=own if names_host(launch.handle) else None,
        on_conflict="raise" if launch.flags & <uint32_t>XLOGMEM_REFUSE_CONFLICTS else "wait",
        handback="writes" if launch.flags & <uint32_t>XLOGMEM_HAND_BACK_WRITES else "all")
    for block, kind in named:
        add_use(recorder, block, kind, block)
    recorder.window.moved = recorder.window.is_anyones = launch.flags & <uint32_t>XLOGMEM_ANY_THREAD != 0
    return recorder


cdef object block_anywhere(Core own, const xlogmem_access* access):
    """The identity of the block of an access, in whichever runtime of the process; None if there is none."""
    cdef Core core
    cdef Found found
    cdef bint there
    from xlogmem.runtime import existing_runtimes
    for core in [own, *existing_runtimes()]:
        found.slot, found.generation = access.slot, access.generation
        if access.generation == 0:
            there = core.find(access.address, &found)
        else:
            with nogil:
                there = find_address_of(&core.state, &found)
        if there:
            return core.identity(found.ptr, found.generation, found.slot, None)
    return None


cdef int end_recorder(xlogmem_use* use, bint launched, xlogmem_error* error) noexcept nogil:
    """End what `prepare_elsewhere` began; nothing of it is filed once the interpreter exits."""
    cdef int failed = 0
    if enter_interpreter():
        failed = end_elsewhere(use, launched, error)
        leave_interpreter()
    return failed


cdef int end_elsewhere(xlogmem_use* use, bint launched, xlogmem_error* error) noexcept with gil:
    cdef UnderWay exception
    set_aside(&exception)
    recorder = <object><PyObject*>(<size_t>use & ~<size_t>1)
    try:
        Py_DECREF(recorder)
        recorder.commit() if launched else recorder.cancel()
        return 0
    except BaseException as raised:
        fill_raised(raised, error)
        return 1
    finally:
        put_back(&exception)


cdef int fill_raised(object raised, xlogmem_error* error) except -1:
    """Fill in the error for an exception."""
    kind = getattr(raised, "failure_kind", 0)
    if isinstance(raised, UseAfterFreeError):
        error.kind = XLOGMEM_STALE
    elif isinstance(raised, DeviceLostError):
        error.kind = XLOGMEM_LOST
    elif kind in (STREAM_IS_CAPTURING, SOURCE_IS_CAPTURING) or (
            isinstance(raised, DriverError) and is_of_capture(raised.code or 0)):
        error.kind = XLOGMEM_CAPTURING
    elif kind in (BLOCK_IS_CONTESTED, BLOCK_IS_AWAITED, WAIT_IS_CIRCULAR):
        error.kind = XLOGMEM_CONFLICT
    elif isinstance(raised, UnknownBufferError):
        error.kind = XLOGMEM_NOT_FOUND
    elif isinstance(raised, (StreamMisuseError, TypeError)):
        error.kind = XLOGMEM_INVALID
    else:
        error.kind = XLOGMEM_FAILED
    text = (str(raised) or type(raised).__name__).encode(errors="replace")
    snprintf(error.text, XLOGMEM_TEXT, "%s", <const char*>text)
    if isinstance(raised, KeyboardInterrupt):
        PyErr_SetInterrupt()                            # Python raises it when it goes on
    return 0
