# Stream objects of other libraries, and their handles.  No other library is imported: a stream is recognised by a
# protocol, or by the name of an attribute.

from cpython.number cimport PyIndex_Check, PyNumber_Index

from xlogmem._foreign.advice import in_words, kind_of
from xlogmem import _driver
from xlogmem._foreign.stream_owners import owns_stream
from xlogmem._base.failures cimport Failure, raise_failure
from xlogmem._driver cimport LEGACY, stream_device


cdef object value_of(object what):
    """The ``CUstream`` of a stream object of any library, as an int; None if the object is not a stream.

    The driver crashes on an integer that was never a stream handle.  So a pointer alone does not make an object a
    stream: arrays, blocks and events have a pointer too, and some of them have ``synchronize``.
    """
    if PyIndex_Check(what):
        try:
            return PyNumber_Index(what)
        except TypeError:                               # NumPy's arrays have an index for single numbers only
            return None
    protocol = getattr(what, "__cuda_stream__", None)               # cuda.core, CuPy, Numba, RMM
    if protocol is not None:
        return handle_in(protocol() if callable(protocol) else protocol, what)
    if str(type(what).__module__).startswith("cuda.bindings"):           # CUstream, cudaStream_t
        return int(what)
    if (not callable(getattr(what, "synchronize", None)) or is_event(what)
            or hasattr(type(what), "__cuda_array_interface__")):
        return None
    for name in ("cuda_stream", "ptr", "handle"):                   # PyTorch, older CuPy, older Numba
        value = getattr(what, name, None)
        if value is not None:
            value = getattr(value, "value", value)                  # a ctypes pointer; its null is None
            return 0 if value is None else handle_from(value, what, name)
    value = getattr(what, "value", None)                            # RMM before it followed the protocol
    return handle_from(value(), what, "value()") if callable(value) else None


cdef object handle_from(object value, object what, str name):
    if not PyIndex_Check(value):
        raise TypeError(f"{name} of {kind_of(what)} is the integer handle of a CUDA stream, not {value!r}")
    return PyNumber_Index(value)


cdef object handle_in(object answer, object what):
    """The handle that ``__cuda_stream__`` gives: ``(0, handle)``."""
    pair = tuple(answer) if isinstance(answer, (tuple, list)) else ()   # what it has, whatever it says of its length
    if len(pair) < 2 or not PyIndex_Check(pair[0]) or not PyIndex_Check(pair[1]):
        raise TypeError(f"__cuda_stream__ of {kind_of(what)} gave {answer!r}, not (0, handle)")
    if pair[0] != 0:
        raise ValueError(f"__cuda_stream__ of {kind_of(what)} is version {pair[0]}; xlogmem knows version 0")
    return PyNumber_Index(pair[1])


cdef cy.CUstream parse(object what) except? <cy.CUstream>-1:
    """The handle of a stream argument, `LEGACY` instead of 0."""
    value = value_of(what)
    if type(what) is Host:
        raise TypeError("xlogmem.host is not a CUDA stream: give it to use(), for what the program itself does to "
                        "memory; to allocate() and empty(), with a resource whose memory the host reaches; and to "
                        "fill(), and to copies from and to objects of the host, of a Buffer in such memory")
    if value is None:
        raise TypeError(f"{in_words(what)} is not a CUDA stream: give a Stream, an int, or an object with "
                        "__cuda_stream__ (CuPy, Numba, PyTorch, RMM, cuda.core, cuda.bindings)")
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{in_words(value)} is not the handle of a CUDA stream, which is from 0 to 2**64 - 1")
    return <cy.CUstream><size_t>(value or LEGACY)


cdef int device_of(object what) except -1:
    """The number of a foreign stream's device; for a default stream, that of the current context's device."""
    cdef cy.CUstream handle = parse(what)
    cdef Failure failure
    cdef int device_id = 0, failed
    _driver.initialize()
    with nogil:
        failed = stream_device(handle, &device_id, &failure)
    if failed:
        raise_failure(&failure, f"looking for the device of stream {<size_t>handle:#x}")
    return device_id


cdef bint can_own(object what) except -1:
    """True if the object keeps the stream that it names alive, as far as is known."""
    return not (PyIndex_Check(what) or str(type(what).__module__).startswith("cuda.bindings")) and owns_stream(what)
