# `use`, and its choice of a runtime where none is named.

cimport cython

from xlogmem.errors import StreamMisuseError
from xlogmem._core cimport READ, READ_WRITE, WRITE
from xlogmem._foreign.named cimport find_current_streams
from xlogmem._foreign.objects cimport provide_runtimes as provide_to_streams
from xlogmem.blocks cimport BlockView, Core, DeviceBlock, for_each
from xlogmem.streams cimport Stream, core_of, device_of, parse


cdef object process_runtime = None          # get_runtime of runtime.py, which is above this room


def provide_runtimes(get_runtime, existing_runtimes=None):
    """Set the functions that return the process's own runtime of a device, and all existing runtimes (None: as
    before)."""
    global process_runtime, all_runtimes
    process_runtime = get_runtime
    if existing_runtimes is not None:
        all_runtimes = existing_runtimes
    provide_to_streams(get_runtime)


cdef Core runtime_of(object stream):
    """Return the process's own runtime for the device of a foreign stream."""
    return process_runtime(device_of(stream))


cdef Core owner_of(list what):
    """Return the runtime of the first block among the arguments of `use`, None if there is none.

    A block of no bytes has no core: it stands for nothing, and decides only where there is no other block.
    """
    cdef Core runtime
    cdef DeviceBlock empty = None
    for item in what:
        if isinstance(item, BlockView):
            runtime = (<BlockView>item).core
        elif isinstance(item, DeviceBlock):
            runtime = (<DeviceBlock>item).core
            if runtime is None and empty is None and (<DeviceBlock>item).stream is not None:
                empty = item
        else:
            continue
        if runtime is not None:
            return runtime
    return core_of(empty.stream) if empty is not None else None


cdef object current_stream(list things, Core runtime):
    """Return the current stream of the libraries that have these objects; without such objects, of all libraries in
    use."""
    streams = find_current_streams(things, runtime.device_id if runtime is not None else 0)
    handles = {name: <size_t>parse(stream) for name, stream in streams.items()}
    if not handles:
        raise TypeError("use: no stream was named, and no library in use has a current one (CuPy and PyTorch have, "
                        "Numba where its arrays are named, cuda.core has not): name the stream")
    if len(set(handles.values())) > 1:
        current = ", ".join([f"{name} is on {handle:#x}" for name, handle in handles.items()])
        raise StreamMisuseError(f"use: no stream was named, and the current streams differ ({current}): name the "
                                "stream")
    return next(iter(streams.values()))


cdef list NOT_GIVEN = []                    # no other list is this one
cdef str NAMES_NOTHING = ("use: no memory is named, so nothing is ordered: pass read=, write= or read_write=. For a "
                          "launch that touches none pass read=[]")


@cython.embedsignature(False)               # see quick.pxi
def use(stream=NOT_GIVEN, read=NOT_GIVEN, write=NOT_GIVEN, read_write=NOT_GIVEN, *, Core runtime=None,
        str untracked="raise", str handback="all", str on_conflict="wait"):
    """Protect a launch: ``with use(stream, read=a, write=b): launch(...)``.

    On entry `stream` has to wait, on the device, for all work that the launch has to come after: writers of the memory
    that it reads, readers and writers of the memory that it writes.  On exit the launch is filed, so that later users
    and the free of each block wait for it.

    Parameters
    ----------
    stream : stream
        The stream of the launch: a `Stream`, an int, or a stream of CuPy, Numba, PyTorch, RMM, cuda.core or
        cuda.bindings.  None or ``"current"``: the current stream of the libraries whose arrays are named or, if there
        are none, of CuPy and PyTorch as far as they are in use.  CuPy and PyTorch have a current stream in each thread;
        Numba's is the default stream, legacy or per-thread; cuda.core has none.
    read, write, read_write : object, or nested lists, tuples and dicts of objects
        The memory that the launch touches: buffers, blocks, their ids, integer device addresses, ``CUdeviceptr``,
        objects of a type with a resolver (`register_resolver`), and anything with ``data_ptr()``,
        ``__cuda_array_interface__``, ``__dlpack__``, or a ``handle`` or ``ptr`` beside a size (the first in this order
        is read): arrays and memory of CuPy, PyTorch, Numba, JAX, RMM and cuda.core.  Blocks, ids and addresses
        stand for all of a block; an array, or a slice of a buffer, for its own bytes: launches on disjoint ranges of a
        block do not wait for each other.  An object without elements stands for nothing.
    runtime : DeviceRuntime, optional
        The runtime whose blocks are meant, for a foreign stream.  The default is the runtime of the given blocks, else
        the process's own runtime for the stream's device.
    untracked : {"raise", "ignore", "adopt"}
        What to do with memory that is not tracked: refuse it, leave it out, or track it as long as its owner lives.
    handback : {"all", "writes"}
        The uses after which the stream of CuPy, PyTorch or cuDF on which the memory was allocated waits: all, or only
        those that write.  Several readers of one array overlap more with ``"writes"``.
    on_conflict : {"wait", "raise", "count"}
        What to do while another thread is inside a `use` that conflicts.  `LaunchRecorder` has more of all three.

    Returns
    -------
    LaunchRecorder
        A context manager; call its `cancel` if nothing was launched.

    Raises
    ------
    TypeError, ValueError, BufferError, StreamMisuseError
        At the call: an argument is host memory, or no memory, contradicts itself, is written and says that it is
        read-only, or belongs to another runtime; or there is no current stream, or several that differ.
    StreamMisuseError, UseAfterFreeError, DriverError
        On entry: neither `read` nor `write` nor `read_write` was given (``read=[]`` is for launches that touch nothing,
        and for what the returned recorder is given afterwards nothing is missing); see `LaunchRecorder.preflight`.

    Examples
    --------
    >>> runtime = xlogmem.get_runtime()
    >>> load, work = runtime.acquire_stream(), runtime.acquire_stream()
    >>> a, b, c = (runtime.allocate(1000, load) for _ in range(3))
    >>> with xlogmem.use(load, write=[a, b]):
    ...     pass                                    # kernel[grid, block, load](a, b)
    >>> with xlogmem.use(work, read=[a, b], write=c):
    ...     pass                                    # kernel[grid, block, work](a, b, c), after the first
    """
    cdef list things = []
    if stream is NOT_GIVEN:
        raise TypeError("use: stream is missing: use(stream, read=..., write=...), and None is the current stream of "
                        "the libraries whose arrays are named")
    if not isinstance(stream, Stream):
        for_each((read, write, read_write), things.append, b" in use")
        if runtime is None:
            runtime = owner_of(things)
        if stream is None or (isinstance(stream, str) and stream == "current"):
            stream = current_stream(things, runtime)
    cdef LaunchRecorder recorder = LaunchRecorder(stream, runtime=runtime, untracked=untracked, handback=handback,
                                                  on_conflict=on_conflict)
    register(recorder, read, READ)
    register(recorder, write, WRITE)
    register(recorder, read_write, READ_WRITE)
    if read is NOT_GIVEN and write is NOT_GIVEN and read_write is NOT_GIVEN:
        recorder.unsettled = [NAMES_NOTHING]
    return recorder
