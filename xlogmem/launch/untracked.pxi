# Memory that the runtime does not track: refused at the preflight, left out, or adopted by the preflight.

import weakref

from xlogmem._base.log import warn
from xlogmem._base.units import format_bytes
from xlogmem._foreign.advice import adopted_late, how_to_track, in_words, kind_of
from xlogmem._foreign.memory_owners import find_memory_owner
from xlogmem.errors import StreamMisuseError
from xlogmem._core cimport ADOPT_UNTRACKED, RAISE_UNTRACKED, READ, Found
from xlogmem._foreign.named cimport Extent, find_producer_stream, name_memory
from xlogmem.blocks cimport adopt_while_owned
from xlogmem.streams cimport Stream


cdef str TRACK_ON_HOST = ("Track page-locked memory with xlogmem.get_runtime().adopt(x) where it is made, and keep the "
                          "handle")

explanations = []                           # functions of a runtime: a sentence about untracked memory, or None


cdef int add_untracked(LaunchRecorder recorder, object what, Extent* extent, int access, object named) except -1:
    if add_elsewhere(recorder, what, extent, access, named):
        return 0
    if recorder.window.untracked == ADOPT_UNTRACKED:
        return note_adoption(recorder, what, extent, access, named)
    if recorder.window.untracked == RAISE_UNTRACKED:
        if extent.first == 0:
            return recorder.reject(access, f"{in_words(named)} names address 0, where no memory is: leave it out, or "
                                   "name the block or array itself")
        size = f" ({format_bytes(extent.last - extent.first + 1)})" if extent.sized else ""
        recorder.advice = explain(recorder) or (TRACK_ON_HOST if extent.on_host else how_to_track(named))
        return recorder.reject(access, f"{in_words(named)} at {extent.first:#x}{size} is not tracked by "
                               f"{recorder.runtime!r}")
    if explanations:
        explanation = explain(recorder)
        if explanation:
            warn(explanation, RuntimeWarning)
        recorder.refuse_late(access)
    return 0


cdef str explain(LaunchRecorder recorder):
    """Explain why memory is untracked that should be tracked, if a binding knows."""
    for function in explanations:
        explanation = function(recorder.runtime)
        if explanation:
            return explanation
    return None


cdef int refuse_writing(Extent* extent, int access, object named) except -1:
    if extent.read_only and access != READ:
        raise StreamMisuseError(f"{ARGUMENTS[access]}: {kind_of(named)} says that it is read-only: a launch that "
                                "writes it would be wrong")
    return 0


# ---------------------------------------------------------------------------------------------- adopt
cdef int note_adoption(LaunchRecorder recorder, object what, Extent* extent, int access, object named) except -1:
    """Check memory that has to be adopted; the preflight adopts it once everything is checked, and the arguments live
    until then."""
    cdef Extent whole
    cdef str name = kind_of(named)
    if isinstance(recorder.runtime, CaptureCore):
        return recorder.reject(access, f"{name} is not tracked, and untracked='adopt' adopts nothing in a capture: "
                               "xlogmem.get_runtime().adopt(x) tracks it before")
    refuse_writing(extent, access, named)
    if not extent.sized:
        return recorder.reject(access, f"{name} is an untracked address, and does not say how many bytes are meant: "
                               "xlogmem.get_runtime().adopt(ptr, nbytes, stream) tracks them")
    if extent.device_id not in (-1, recorder.runtime.device_id):
        return recorder.reject(access, f"{name} is on device {extent.device_id}, and {recorder.runtime!r} is not")
    owner = find_memory_owner(what)
    if not (owner is not what and name_memory(owner, ARGUMENTS[access], &whole) and whole.sized
            and whole.first <= extent.first and whole.last >= extent.last):
        whole = extent[0]
    try:
        weakref.ref(owner)
    except TypeError:
        return recorder.reject(access, f"{name} cannot be tracked as long as it lives: {kind_of(owner)} has no "
                               "weak references. Track it with xlogmem.get_runtime().adopt(x), and keep the handle")
    recorder.refuse_late(access)
    recorder.unsettled = recorder.unsettled or []
    recorder.unsettled.append((what, owner, (whole.first, whole.last, whole.on_host), access))
    return 0


cdef Stream home_of_adoption(LaunchRecorder recorder, object what, object producer):
    """Return the stream on which the library of adopted memory works, as far as it is known.  Warns if the launch, or
    the access, is not ordered after what the library may have queued elsewhere."""
    cdef Stream default = recorder.runtime.stream_pool.default
    cdef Stream home = default
    if producer is not None:
        home = recorder.runtime.stream_of(producer)
    elif recorder.stream is not None and not recorder.stream.state.remote:
        home = recorder.stream
    late = None
    if recorder.stream is None and producer is None:
        late = (f"untracked='adopt': this access does not wait for what streams have queued on this {kind_of(what)} "
                f"before. {TRACK_ON_HOST}")
    elif recorder.stream is not None and home.state == recorder.stream.state and home.state != default.state:
        late = adopted_late(what)
    if late:
        warn(late, RuntimeWarning)
    return home


cdef int adopt_noted(LaunchRecorder recorder) except -1:
    """Adopt the noted memory, at the preflight.  A repeated call does not adopt it again.  The argument, which may have
    no other reference, is held until the use is filed."""
    cdef Extent extent
    cdef Found found
    cdef Stream home
    while recorder.unsettled:
        what, owner, where, access = recorder.unsettled[0]
        extent.first, extent.last, extent.on_host = where
        producer = find_producer_stream(what)
        extent.on_host = extent.on_host and producer is None    # else the library may queue copies by itself
        home = home_of_adoption(recorder, what, producer)
        adopt_while_owned(recorder.runtime, owner, &extent, home, &found)
        add_found(recorder, &found, access)
        recorder.held = recorder.held or []
        recorder.held.append(what)
        del recorder.unsettled[0]
    recorder.unsettled = None
    return 0
