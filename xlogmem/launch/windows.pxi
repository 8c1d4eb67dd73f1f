# The windows that recorders own.  A runtime keeps some windows for its next recorders; the GIL guards these, or a
# section of the runtime's core.
# Finalizers come and go inside any allocation, so taking and returning a window are single steps.

from cpython.exc cimport PyErr_Fetch, PyErr_Restore
from cpython.ref cimport PyObject
from libc.stdint cimport uint64_t

from xlogmem._base.log import warn
from xlogmem._base.units import counted
from xlogmem._base.sections cimport Section
from xlogmem._core cimport abandon, is_host, return_window, take_window
from xlogmem._driver cimport process_is_closing
from xlogmem.blocks cimport RESERVE_WITH_GIL, Core


cdef inline Window* window_for(Core core) noexcept:
    """Take a window from the runtime's reserve, or from the core's; it is empty and closed."""
    cdef Window* window
    cdef Section section
    section.begin(core)
    if core.n_windows == 0:
        return take_window(&core.state)
    core.n_windows -= 1
    window = core.windows[core.n_windows]
    window.requests.clear()
    window.ranges.clear()
    return window


cdef void end_window(Window* window, void* core, uint64_t number) noexcept:
    """End the window of a recorder that is gone.  The next call to the runtime, or the runtime's end, files a window
    that is still open."""
    cdef PyObject* kind
    cdef PyObject* error
    cdef PyObject* traceback
    cdef Section section
    section.begin_of(core)
    if window.is_open:
        if not process_is_closing():
            PyErr_Fetch(&kind, &error, &traceback)      # the one that is under way stays
            warn_of_dropped(window)
            PyErr_Restore(kind, error, traceback)
        abandon(&(<Core>core).state, window)
    elif (<Core>core).n_windows < RESERVE_WITH_GIL:
        (<Core>core).windows[(<Core>core).n_windows] = window
        (<Core>core).n_windows += 1
    else:
        return_window(&(<Core>core).state, window)


cdef void warn_of_dropped(Window* window) noexcept:
    """Warn of a dropped recorder.  A finalizer cannot raise a warning that is an error: it is printed."""
    warn(f"{describe_window(window, 'entered')} was entered, and was dropped without being left; it counts as "
         "launched. Use it in a `with` statement, or call commit() or cancel()", ResourceWarning)


cdef str describe_window(Window* window, str state):
    return (f"<LaunchRecorder on {place_of_window(window)}, untracked={name_of_choice(window)!r}: "
            f"{counted(window.requests.size(), 'use')}, {state}>")


cdef str place_of_window(Window* window):
    return "the host" if window.stream == NULL or is_host(window.stream) else f"stream {window.stream.number}"


cdef str name_of_choice(Window* window):
    """The value of `untracked` that the recorder of this window has."""
    return next(name for name, value in UNTRACKED_CHOICES.items() if value == window.untracked)
