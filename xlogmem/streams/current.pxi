# `with stream:`, as in CuPy and PyTorch: the innermost stream is current, in its thread or its asynchronous task.

from contextvars import ContextVar

from xlogmem.errors import StreamMisuseError


cdef object current = ContextVar("xlogmem.current_stream", default=None)    # (stream, the entry around it)


def current_stream():
    """The stream of the innermost ``with stream:`` around the call, None if there is none.

    Returns
    -------
    Stream or None

    Notes
    -----
    The current stream belongs to this thread or asynchronous task alone: a thread begins without one.  Nothing uses the
    current stream unless it is named, as in ``use(current_stream(), ...)``; defaults of arguments stay as the functions
    document them.

    Examples
    --------
    >>> stream = xlogmem.get_runtime().acquire_stream()
    >>> with stream:
    ...     xlogmem.current_stream() == stream
    True
    >>> xlogmem.current_stream() is None
    True
    """
    entry = current.get()
    return entry[0] if entry is not None else None


cdef int enter_current(Stream stream) except -1:
    if stream.state == NULL:
        raise StreamMisuseError("the stream was never made")
    current.set((stream, current.get()))
    return 0


cdef int leave_current(Stream stream) except -1:
    entry = current.get()
    if entry is None or entry[0] is not stream:
        raise StreamMisuseError(f"{stream!r} is not the current stream of this thread or task: `with` statements are "
                                "left from the inside out, where they were entered")
    current.set(entry[1])
    return 0
