# `use`, and whose blocks it means where no runtime is named.

cdef object process_runtime = None          # get_runtime of runtime.py, which is above this room


def provide_runtimes(get_runtime):
    """Say what gives the process's own runtime of a device."""
    global process_runtime
    process_runtime = get_runtime


cdef Core runtime_of(object stream):
    """The process's own runtime for the device of a foreign stream."""
    return process_runtime(device_of(stream))


cdef Core owner_of(object what):
    """The runtime of the first block among the arguments of `use`, None if there is none."""
    for item in what if isinstance(what, (list, tuple)) else (what,):
        if isinstance(item, DeviceBlock):
            return (<DeviceBlock>item).core
        if isinstance(item, BlockView):
            return (<BlockView>item).core
    return None


@cython.embedsignature(False)               # see quick.pxi
def use(stream not None, read=(), write=(), read_write=(), *, runtime=None, str mode="strict", str handback="all",
        str on_conflict="wait"):
    """Protect a launch: ``with use(stream, read=a, write=b): launch(...)``.

    On entry `stream` is made to wait, on the device, for whatever the launch has to come after: writers of what it
    reads, readers and writers of what it writes.  On exit the launch is filed, so that later users and the free of
    each block wait for it.

    Parameters
    ----------
    stream : stream
        Where the launch goes: a `Stream`, an int, or a stream of CuPy, Numba, PyTorch, RMM, cuda.core or cuda.bindings.
    read, write, read_write : object, or list or tuple of objects
        What it touches: buffers, blocks, their ids, integer device addresses, anything with
        ``__cuda_array_interface__``, or of a type with a resolver (`register_resolver`).  Addresses inside a block
        stand for the block.
    runtime : DeviceRuntime, optional
        For a foreign stream: whose blocks are meant.  The default is the runtime of the blocks given, else the
        process's own for the stream's device.
    mode, handback, on_conflict : str
        See `LaunchRecorder`.

    Returns
    -------
    LaunchRecorder
        A context manager; its `cancel` says that nothing was launched.

    Raises
    ------
    TypeError, StreamMisuseError
        At the call: an argument is not memory, or belongs to another runtime.
    StreamMisuseError, UseAfterFreeError, DriverError
        On entry; see `LaunchRecorder.preflight`.

    Examples
    --------
    >>> with xlogmem.use(stream, read=[a, b], write=c):
    ...     kernel[grid, block, stream](a, b, c)
    """
    if runtime is None and not isinstance(stream, Stream):
        runtime = owner_of(read) or owner_of(write) or owner_of(read_write)
    cdef LaunchRecorder recorder = LaunchRecorder(stream, runtime=runtime, mode=mode, handback=handback,
                                                  on_conflict=on_conflict)
    register(recorder, read, READ)
    register(recorder, write, WRITE)
    register(recorder, read_write, READ_WRITE)
    return recorder
