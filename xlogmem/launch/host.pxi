# Accesses by the host: windows without a stream.

from xlogmem._core cimport prepare_on_host, prepare_on_host_at_once, refuse_device_memory
from xlogmem.streams import host


cdef int begin_access(LaunchRecorder recorder, Core runtime) except -1:
    """Begin the recorder of an access by the host, with the defaults of `LaunchRecorder`."""
    recorder.runtime = runtime
    begin_window(recorder)
    recorder.window.stream = NULL                       # until the thread is known that opens it
    return 0


cdef int open_on_host(LaunchRecorder recorder) except -1:
    """Open the window of an access: where another launch or access is in the way, or work on the memory is not
    complete, this waits without the GIL."""
    cdef Failure failure
    cdef int done, failed
    recorder.busy = True
    note_thread(recorder.window)
    done = prepare_on_host_at_once(&recorder.runtime.state, recorder.window, &failure)
    failed = done == REFUSED
    if done != DONE and not failed:
        with nogil:
            if done == NOT_AT_ONCE:
                failed = prepare_on_host(&recorder.runtime.state, recorder.window, &failure)
            else:
                failed = prepare_rest(&recorder.runtime.state, recorder.window, &failure)
    recorder.busy = False
    if failed:
        recorder.runtime.fail(&failure, "preparing an access by the host", recorder.arguments_of(failure.generation))
    return 0


cdef int refuse_device_memory_in(LaunchRecorder recorder) except -1:
    """Raise if the host cannot reach a block of the access, before anything is waited for."""
    cdef LaunchRecorder part
    cdef Failure failure
    cdef int failed
    for part in [recorder] + (recorder.together.others if recorder.together is not None else []):
        with nogil:
            failed = refuse_device_memory(&part.runtime.state, part.window, &failure)
        if failed:
            part.runtime.fail(&failure, "preparing an access by the host", part.arguments_of(failure.generation))
    return 0


cdef str place_of_use(LaunchRecorder recorder):
    """Where a use is, in messages."""
    return "the host" if recorder.stream is None else repr(recorder.stream)
