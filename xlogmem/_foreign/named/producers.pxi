# The stream on which a library works with its arrays: its current stream, by its own rules.  Imports none of these
# libraries: one that was not imported is not in use.

import sys

from cpython.unicode cimport PyUnicode_CheckExact

from xlogmem._foreign.stream_owners import LIBRARIES
from xlogmem._foreign.dltensor cimport CUDA, CUDA_MANAGED, DLPackExchange, DLTensor

cdef tuple libraries = LIBRARIES            # whose current stream is known

cdef enum:
    LEGACY_STREAM = 1
    PER_THREAD_STREAM = 2


cdef object find_producer_stream(object array):
    """The stream on which a library goes on working with an array, as the library's object, or as the number of a
    default stream, which is that of the array's device; None if it is not known."""
    cdef str library = known_library(array)
    if library is None:
        return None
    if library == "torch" and works_on_default_stream(array):
        return LEGACY_STREAM
    own = getattr(array, "stream", 0) if library == "numba" else 0      # its interface says None there
    return own or current_stream_of(library, array, 0)


cdef dict find_current_streams(list things, int device_id):
    """The current stream of each library that one of these things belongs to, by the library's name.  If none belongs
    to a known library, the current streams of CuPy and PyTorch, as far as these are in use."""
    cdef dict streams = {}
    cdef dict named = {}
    for thing in things:
        library = known_library(thing)
        if library is not None:
            named[library] = thing
    for library in (named or ("cupy", "torch")):
        stream = current_stream_of(library, named.get(library), device_id)
        if stream is not None:
            streams[library] = stream
    return streams


cdef str known_library(object what):
    """The library that an object belongs to; None if its current stream is not known."""
    cdef str library
    module = type(what).__module__
    cdef str name = module if PyUnicode_CheckExact(module) else str(module)
    for library in libraries:
        if name.startswith(library) and (len(name) == len(library) or name[len(library)] == "."):
            return library
    return None


cdef object current_stream_of(str library, object thing, int device_id):
    """The current stream of a library, by its rules; `thing` is an object of the library, or None."""
    module = sys.modules.get(library)
    if module is None:
        return None
    if library == "numba":
        return default_stream_of_numba(module)
    cuda = getattr(module, "cuda", None)
    if cuda is None:                                    # its import is not complete
        return None
    if library == "cupy":
        return cuda.get_current_stream()
    if thing is not None:
        return cuda.current_stream(thing.device)
    return cuda.current_stream(device_id) if cuda.is_initialized() else None    # else the query starts it


cdef bint works_on_default_stream(object array) except -1:
    """True if the exchange of an array's type says that the library works on the legacy default stream of the array's
    device: so does PyTorch's, in a hundredth of the time that its Python code takes.  A handle of another stream would
    not say what keeps that stream alive."""
    cdef DLPackExchange* exchange = exchange_of(array)
    cdef DLTensor tensor
    cdef void* stream = NULL
    if exchange == NULL or exchange.tensor_of == NULL or exchange.current_stream == NULL:
        return False
    try:
        if exchange.tensor_of(<void*>array, &tensor) or tensor.device.device_type not in (CUDA, CUDA_MANAGED):
            return False
        return exchange.current_stream(tensor.device.device_type, tensor.device.device_id, &stream) == 0 and (
            stream == NULL)
    except Exception:
        return False


cdef int default_stream_of_numba(object numba) except -1:
    """The default stream of Numba.  Numba has no current stream: work without a named stream goes to the default
    stream."""
    config = getattr(numba, "config", None)
    return PER_THREAD_STREAM if getattr(config, "CUDA_PER_THREAD_DEFAULT_STREAM", 0) else LEGACY_STREAM
