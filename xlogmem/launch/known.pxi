# The captures that are known, and the streams that take part in them.
#
# The driver says in which capture a stream takes part.  The table is looked at only while there are captures.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint32_t, uint64_t

from xlogmem.blocks import provide_captures
from xlogmem._base.cpp cimport atomic
from xlogmem._base.sections cimport Section
from xlogmem._core cimport Found, OpenUse
from xlogmem._driver cimport SPOILT_CAPTURE, Context, Scope, capture_of, enter_context, leave_context

cdef atomic[int] captures_open              # in `captures`
cdef dict captures = {}                     # by the driver's id of the capture


cdef bint has_captures() noexcept nogil:
    """True if a capture is known."""
    return captures_open.load() != 0


cdef int know_capture(CaptureCore core) except -1:
    captures[core.ordering.state.capture] = core
    captures_open.fetch_add(1)
    return 0


cdef int end_known(uint64_t number) except -1:
    """Forget a capture that has ended; the caller has its core."""
    if captures.pop(number, None) is not None:
        captures_open.fetch_sub(1)
    return 0


cdef int forget_capture(CaptureCore core) except -1:
    """Forget a capture that was entered and dropped; the stream goes on capturing."""
    end_known(core.ordering.state.capture)
    if not core.is_over:
        core.end(True)
    warn(f"a capture of {core.runtime!r} was entered and dropped, and its stream still captures: use it in a `with` "
         "statement", ResourceWarning)
    return 0


cdef CaptureCore capture_on(cy.CUstream handle, Context context):
    """Return the core of the capture that a stream takes part in; None if it takes part in none that is known."""
    cdef uint64_t capture = 0
    cdef Failure ignored
    cdef Scope scope
    with nogil:
        if not enter_context(context.handle, &scope, &ignored):
            capture_of(handle, &capture, &ignored)      # what fails here fails on entry, too
            leave_context(&scope)
    if capture == <uint64_t>SPOILT_CAPTURE:             # its core says so
        return next((each for each in list(captures.values()) if <size_t>handle in (<CaptureCore>each).members), None)
    return captures.get(capture)


def allocate_in_capture(Core runtime, nbytes, Stream stream, tag, resource):
    """Allocate memory of the graph that a stream captures; None if no capture is known there."""
    cdef CaptureCore core
    if not has_captures():
        return None
    core = capture_on(stream.state.handle, runtime.ordering.context)
    return core.allocate(nbytes, stream, tag, resource) if core is not None and core.runtime is runtime else None


def take_from_capture(Core runtime, Stream stream, uint64_t generation):
    """Take a block, which nothing has named yet, from the graph that a stream captures."""
    take_from_graph(runtime, stream.state.handle, generation)


provide_captures(allocate_in_capture, take_from_capture)


def captures_are_open():
    """True if a capture is known, which holds what is dropped inside."""
    return has_captures()


cdef bint is_capture(Core core):
    """True if this is the core of a capture."""
    return isinstance(core, CaptureCore)


cdef bint is_in_capture(LaunchRecorder recorder):
    """True if the use is one inside a capture."""
    return is_capture(recorder.runtime)


cdef int export_inside(LaunchRecorder recorder, DeviceBlock block, Stream consumer) except -1:
    """Let unrecorded work of a consumer follow on its stream, if the use that exports the block is inside a capture."""
    cdef CaptureCore core
    cdef StandIn stand_in
    cdef StreamOutside outside
    if not is_in_capture(recorder):
        return 0
    core = <CaptureCore>recorder.runtime
    stand_in = core.stand_ins[block.generation]
    outside.handle = <size_t>consumer.state.handle
    outside.is_home = outside.lives = False
    add_stream(stand_in, &outside)
    return core.meet(stand_in)


cdef extern from *:
    """
    static inline PyObject* xlogmem_referent(PyObject* reference) {
    #if PY_VERSION_HEX >= 0x030D0000
        PyObject* found = nullptr;
        if (PyWeakref_GetRef(reference, &found) == 1) return found;
        Py_RETURN_NONE;
    #else
        return Py_NewRef(PyWeakref_GET_OBJECT(reference));
    #endif
    }
    """
    object referent "xlogmem_referent"(object reference)    # None: it is gone

cdef list known_runtimes = [[]]             # weak references to all that were made; replaced in its section


def know_runtimes(list references):
    """Let libraries that are called find the uses of these runtimes."""
    cdef Section section
    section.begin(known_runtimes)
    known_runtimes[0] = references


cdef list runtimes_now():
    cdef Section section
    section.begin(known_runtimes)
    return known_runtimes[0]


cdef Core core_of_use(int device_id, StreamState** stream):
    """Return the runtime, or the core of the capture, in which this thread is inside of a use on a device, and the
    stream of the use; None if there is none.  Uses on several streams are refused with BufferError: nothing says which
    of them a library would take.  A use of memory of other devices alone is known to their runtimes alone."""
    cdef Core core, found = None
    stream[0] = NULL
    for reference in runtimes_now():
        core = <Core>referent(reference)
        if core is not None and is_used(core, device_id, stream):
            found = core
    if has_captures():
        for core in list(captures.values()):
            if is_used(core, device_id, stream):
                found = core
    return found


cdef bint is_used(Core core, int device_id, StreamState** stream) except -1:
    """True if this thread is inside of a use on a device in a core; then `stream`, which has that of a use in another
    core, gets the stream of this one."""
    cdef OpenUse use
    cdef bint is_here = core.ordering.context.device_id == device_id
    cdef int device
    if not is_here and (core.streams is None or not core.streams.by_remote):
        return False
    core.find_open_use(None, NULL, &use)
    if use.stream == NULL or not (is_here or use.is_far):
        return False
    device = use.stream.device if use.is_far else core.ordering.context.device_id
    if use.several or (device == device_id and stream[0] != NULL and use.stream.handle != stream[0].handle):
        refuse_several()
    if device != device_id and is_here:
        refuse_far(device_id, device)
    if device != device_id:
        return False
    stream[0] = use.stream
    return True


cdef int refuse_several() except -1:
    raise BufferError("this thread is inside of uses on several streams, and a library that it calls would work on one "
                      "of them: leave the others first")


cdef int refuse_far(int device_id, int device) except -1:
    raise BufferError(f"this thread is inside of a use of memory of device {device_id} on a stream of device {device}, "
                      f"and a library that works on device {device_id} would not wait for what that stream waits for. "
                      f"Leave the use to call it; for one that works on device {device}, name the buffer in the use")


cdef Stream captured(Stream stream):
    """Return a stream as the capture knows it that it takes part in; if there is none, the stream itself."""
    if stream.state == NULL or stream.state.remote:
        return stream
    cdef CaptureCore core = capture_on(stream.state.handle, stream.ordering.context)
    return core.entered(stream.state.handle, stream) if core is not None else stream


cdef Stream captured_foreign(object what):
    """Return a stream of another library as the capture knows it that it takes part in; None if there is none.  The
    runtime cannot look at it meanwhile."""
    cdef cy.CUstream handle = parse(what)
    cdef CaptureCore core
    for context in {each.ordering.context for each in list(captures.values())}:
        core = capture_on(handle, context)
        if core is not None:
            return core.entered(handle, None)
    return None


# ---------------------------------------------------------------------------------------------- for the C table
cdef Stream captured_by_handle(Core runtime, cy.CUstream handle):
    """Return the stream under a handle as the capture knows it that it takes part in; None if there is none."""
    cdef CaptureCore core = capture_on(handle, runtime.ordering.context)
    return core.entered(handle, runtime.streams.own(handle, False)) if core is not None else None


cdef int promise_to_live(Core runtime, cy.CUstream handle) except -1:
    """The caller promises that a stream, which takes part in a capture, lives until that has ended."""
    cdef CaptureCore core = capture_on(handle, runtime.ordering.context)
    if core is not None:
        core.living.add(<size_t>handle)
    return 0


cdef Stream stream_outside(Core runtime, cy.CUstream handle):
    """Return the stream outside on which memory of the graph is allocated that the stream under a handle captures; None
    if no capture of this runtime is known there."""
    cdef CaptureCore core = capture_on(handle, runtime.ordering.context)
    return core.stream_outside() if core is not None and core.runtime is runtime else None


cdef int give_to_graph(Core runtime, cy.CUstream handle, uint32_t slot, uint64_t generation) except -1:
    """Make a block, which was allocated on `stream_outside`, memory of the graph."""
    cdef CaptureCore core = capture_on(handle, runtime.ordering.context)
    if core is None:
        raise StreamMisuseError("the capture that this allocation began in has ended")
    core.own(slot, generation, core.entered(handle, runtime.streams.own(handle, False)))
    return 0


cdef int take_from_graph(Core runtime, cy.CUstream handle, uint64_t generation) except -1:
    """Take a block, which nothing has named yet, from the graph that the stream under a handle captures: it is free
    when the capture ends, and not when the graph is closed."""
    cdef CaptureCore core = capture_on(handle, runtime.ordering.context)
    cdef StandIn stand_in = core.stand_ins.get(generation) if core is not None else None
    if stand_in is not None:
        stand_in.is_graphs = False
    return 0


cdef bint is_of_graph(Core runtime, cy.CUstream handle, Found* block) except -1:
    """True if a block is memory of the graph that the stream under a handle captures."""
    cdef CaptureCore core = capture_on(handle, runtime.ordering.context)
    cdef StandIn stand_in = core.stand_ins.get(block.generation) if core is not None else None
    return stand_in is not None and stand_in.is_graphs
