# The CUDA array interface: a dictionary.  The interface names a stream.  If this stream is known to live on, the
# producer goes on working on it.  The stream of a bare handle may be destroyed, so it is used once, to order one of our
# streams after it.

from collections.abc import Mapping
from cpython.number cimport PyIndex_Check, PyNumber_Index
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport UINT64_MAX, int64_t, uint64_t

from xlogmem._base.units import counted
from xlogmem._foreign.advice import kind_of
from xlogmem.errors import StreamMisuseError
from xlogmem.interop._dtypes import DTYPES, dtype_of
from xlogmem._driver cimport NO_MEMORY, MemoryKind
from xlogmem._foreign.dltensor cimport MOST_DIMENSIONS
from xlogmem._foreign.named cimport find_producer_stream
from xlogmem._foreign.strided cimport take_integer, take_integers
from xlogmem.blocks cimport Core
from xlogmem.interop._layout cimport ArrayLayout, Extents, new_layout, plain_layout
from xlogmem.interop.buffers cimport DeviceSnapshot
from xlogmem.streams cimport Stream


cdef dict by_typestr = {row.typestr: row for row in DTYPES.values() if row.typestr is not None}


cdef class Interface:
    # The contents of a CUDA array interface.
    cdef ArrayLayout layout             # None: not known yet
    cdef object version
    cdef object handle                  # of the stream, None: not named


def from_cuda_array(array, /, *, stream=None, producer=None, state=None):
    """Import an array by the CUDA array interface; it is tracked, and shares the memory.

    Parameters
    ----------
    array : object with ``__cuda_array_interface__``
        The object is held as long as the buffer.  Its memory is the device's, managed, or page-locked: what the host
        reaches, `Buffer.map` shows.
    stream : stream, optional
        The stream on which the buffer may be used at once; elsewhere `use` orders it.
    producer : stream, optional
        The stream on which the producer's work with the memory was and will be enqueued.  The default is the current
        stream of the producer's library (CuPy, Numba, PyTorch), else the stream that the interface names.
    state : DeviceState, optional
        The default is the process's own.

    Returns
    -------
    Buffer
        Every recorder accepts it.

    Raises
    ------
    ValueError, TypeError, BufferError
        The interface is malformed, or describes memory that cannot be used here: an unknown dtype, a mask, stream 0,
        which is ambiguous, ...
    StreamMisuseError
        An interface before version 3 names no stream, and neither does the caller; or the memory overlaps a tracked
        block in part.
    StaleBufferError
        The device is not accepting operations.

    Examples
    --------
    >>> class Array:                                # of another library
    ...     memory = xlogmem.DeviceRuntime().allocate(12)
    ...     __cuda_array_interface__ = {"shape": (3,), "typestr": "<i4", "data": (memory.ptr, False), "version": 3}
    >>> x = xlogmem.from_cuda_array(Array())
    >>> x.shape, str(x.dtype)
    ((3,), 'int32')
    """
    cdef DeviceSnapshot device
    cdef Interface interface
    cdef MemoryKind kind = NO_MEMORY
    cdef Core core
    cdef Stream owner = None, ordered = None
    said = getattr(array, "__cuda_array_interface__", None)
    if said is None:
        raise TypeError(f"{kind_of(array)} has no __cuda_array_interface__")
    interface = parse_interface(said)
    device = take_snapshot(state, 0)
    core = device.core
    if interface.layout.size:
        kind = kind_of_array(core, interface.layout, "the array")
    if stream is not None:
        ordered = core.stream_of(stream)
    what = producer if producer is not None else find_producer_stream(array)
    if what is not None:
        owner = core.stream_of(what)
    elif interface.handle is not None:
        owner = core.owned_stream(interface.handle)
        if owner is None:                               # it may be destroyed: order one of ours after it now
            if ordered is None:
                ordered = core.stream_pool.default
            order_now(core, ordered, core.stream_of(interface.handle))
    elif interface.version < 3:
        raise StreamMisuseError(f"an interface of version {interface.version} does not say on which stream the array "
                                "is ready: say producer=, or import it with from_dlpack()")
    return adopt(device, interface.layout, kind, array, owner, ordered)


cdef Interface parse_interface(object said):
    cdef Interface interface = Interface.__new__(Interface)
    if not isinstance(said, (dict, Mapping)):
        raise TypeError(f"a CUDA array interface is a dictionary, not {kind_of(said)}")
    for name in ("shape", "typestr", "data", "version"):
        if name not in said:
            refuse_missing(said)
    interface.version = integer(said["version"], "version")
    if interface.version < 0:
        raise ValueError(f"{interface.version} is not a version of the CUDA array interface")
    interface.layout = layout_of_plain(<dict>said) if type(said) is dict else None
    if interface.layout is None:
        interface.layout = interface_layout(said)
    interface.handle = parse_stream(said.get("stream"))
    return interface


cdef int refuse_missing(object said) except -1:
    missing = [name for name in ("shape", "typestr", "data", "version") if name not in said]
    raise ValueError(f"the CUDA array interface lacks {', '.join(missing)}")


cdef ArrayLayout layout_of_plain(dict said):
    """The array that an interface describes in integers of 64 bits, and tuples of them; None for others."""
    cdef int64_t shape[MOST_DIMENSIONS]
    cdef int64_t strides[MOST_DIMENSIONS]
    cdef int64_t address
    cdef Extents given
    cdef int i
    typestr, pair, steps = said.get("typestr"), said.get("data"), said.get("strides")
    dtype = by_typestr.get(typestr) if type(typestr) is str else None
    if dtype is None or said.get("mask") is not None:
        return None
    if not PyTuple_CheckExact(pair) or PyTuple_GET_SIZE(pair) != 2 or (
            not take_integer(<object>PyTuple_GET_ITEM(pair, 0), &address)):
        return None
    read_only = <object>PyTuple_GET_ITEM(pair, 1)
    if address <= 0 or (read_only is not True and read_only is not False):
        return None
    given.ndim, given.shape, given.unit = take_integers(said.get("shape"), shape), shape, 1
    given.strides = NULL
    if steps is not None:
        given.strides = strides
        if take_integers(steps, strides) != given.ndim:
            return None
    itemsize = <int64_t>dtype.itemsize
    if given.ndim < 0 or address % itemsize:
        return None
    for i in range(given.ndim if steps is not None else 0):
        if strides[i] % itemsize:
            return None
    return plain_layout(dtype, itemsize, <uint64_t>address, &given, read_only is True)


cdef ArrayLayout interface_layout(object said):
    """The array that an interface describes."""
    cdef ArrayLayout layout
    dtype = parse_typestr(said["typestr"])
    if said.get("mask") is not None:
        raise ValueError("masked arrays cannot be imported")
    shape = integers(said["shape"], "shape")
    if any(extent < 0 for extent in shape) or len(shape) > <int>MOST_DIMENSIONS:
        raise ValueError(f"{shape} is not a shape")
    strides = said.get("strides")
    if strides is not None:
        strides = integers(strides, "strides")
        if len(strides) != len(shape):
            raise ValueError(f"{counted(len(strides), 'stride')} for {counted(len(shape), 'dimension')}")
    data = said["data"]
    pair = tuple(data) if isinstance(data, tuple) else ()           # what it has, whatever it says of its length
    if len(pair) != 2:
        raise TypeError(f"data is a pair of an address and whether it is read-only, not {data!r}")
    ptr = integer(pair[0], "the address") if pair[0] is not None else 0
    if not 0 <= ptr <= UINT64_MAX or (0 not in shape and ptr == 0):
        raise ValueError(f"{ptr} is not a device address")
    layout = new_layout(dtype, ptr, shape, strides, bool(pair[1]))
    if not layout.is_aligned():
        raise ValueError("the memory is not aligned to its elements")
    return layout


cdef object parse_typestr(object typestr):
    if not isinstance(typestr, str):
        raise TypeError(f"typestr is a string, not {kind_of(typestr)}")
    dtype = dtype_of(typestr)
    if dtype.typestr is None or typestr[:1] not in ("<", "|", "="):
        raise TypeError(f"typestr {typestr!r} is unknown here")
    return dtype


cdef object parse_stream(object handle):
    if handle is None:
        return None
    handle = integer(handle, "stream")
    if handle == 0:
        raise ValueError("stream 0 is ambiguous, and the interface does not allow it: 1 is the legacy default stream, "
                         "2 the per-thread default stream")
    if not 0 < handle <= UINT64_MAX:
        raise ValueError(f"{handle} is not a CUDA stream handle")
    return handle


cdef object integer(object what, str name):
    if not PyIndex_Check(what) or isinstance(what, bool):
        raise TypeError(f"{name} is an integer, not {what!r}")
    return PyNumber_Index(what)


cdef tuple integers(object what, str name):
    if not isinstance(what, (tuple, list)):
        raise TypeError(f"{name} is a tuple of integers, not {what!r}")
    return tuple([integer(item, name) for item in what])
