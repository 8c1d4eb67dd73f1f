# Fills and copies.  Each is one piece of `Work`, enqueued inside a use of the buffers that it touches, so it is ordered
# as any launch is; page-locked memory that is tracked is a part of the use.  Host memory may be used when the call
# returns: if the driver still has to read or write it, the host waits for the position of this work alone.
#
# A fill or copy that found its buffer valid goes on in the buffer's context: `DeviceState.recover` waits for it.

from contextlib import nullcontext

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from xlogmem._foreign.advice import kind_of
from xlogmem.errors import StreamMisuseError
from xlogmem.interop._dtypes import dtype_of, element
from xlogmem.streams import host
from xlogmem._base.cpp cimport unlikely
from xlogmem._base.failures cimport STREAM_IS_CAPTURING, Failure, fail_stream
from xlogmem._core cimport CANCELLED, LAUNCHED, READ, WRITE, Outcome, refuse_forked, refuse_lost
from xlogmem._driver cimport (
    Scope,
    copy_across,
    copy_between,
    copy_in,
    copy_out,
    enter_context,
    fill,
    host_is_pinned,
    is_system_memory,
    leave_context,
    stream_create,
    stream_destroy,
    stream_is_capturing,
    stream_synchronize,
)
from xlogmem._order cimport OrderState, enter_stream, host_wait_unlocks, leave_stream
from xlogmem.blocks cimport Core, DeviceBlock
from xlogmem.interop._layout cimport ArrayLayout
from xlogmem.launch cimport (
    LaunchRecorder,
    add_host_memory,
    add_use,
    copy_together,
    is_in_capture,
    record_on,
)
from xlogmem.streams cimport Host, Stream


cdef extern from *:
    """
    static thread_local unsigned xlogmem_calls_here = 0;    // fills and copies that this thread is inside
    """
    unsigned int xlogmem_calls_here


def calls_of_this_thread():
    """The number of fills and copies that this thread is inside: a resource written in Python, or a finalizer, may run
    inside one."""
    return xlogmem_calls_here


cdef int begin_call(Buffer buffer) except -1:
    """Begin a fill or copy: first count it, then refuse it if the buffer is stale.  A recovery first makes buffers
    stale, and then reads the count."""
    global xlogmem_calls_here
    buffer.device.status.calls.fetch_add(1)
    xlogmem_calls_here += 1
    try:
        buffer.refuse_stale()
    except BaseException:
        end_call(buffer)
        raise
    return 0


cdef void end_call(Buffer buffer) noexcept:
    global xlogmem_calls_here
    xlogmem_calls_here -= 1
    buffer.device.status.calls.fetch_sub(1)


cdef enum:
    SEED = 4096                             # bytes of a fill that come from the host

cdef enum WorkKind:
    FILL
    FILL_WIDELY                             # with what is wider than the driver's fills
    COPY_IN                                 # from the host
    COPY_OUT                                # to the host
    COPY_ACROSS
    COPY_BETWEEN                            # devices
    COPY_APART                              # with memory of the system, on a stream that is not the other memory's


cdef struct Work:
    WorkKind kind
    uint64_t target                         # addresses, of host memory too
    uint64_t source
    size_t nbytes
    uint32_t word                           # of a fill: the value, in `width` bytes
    int width                               # of a wide fill: the bytes at `source`, some elements
    cy.CUcontext target_context             # of a copy between devices
    cy.CUcontext source_context


cdef int start_work(const Work* work, Stream stream, Failure* failure) except -1 nogil:
    if work.kind == FILL:
        return fill(work.target, work.word, work.width, work.nbytes // work.width, stream.state.handle, failure)
    if work.kind == FILL_WIDELY:
        return fill_widely(work, stream, failure)
    if work.kind == COPY_IN:
        return copy_in(work.target, <void*>work.source, work.nbytes, stream.state.handle, failure)
    if work.kind == COPY_OUT:
        return copy_out(<void*>work.target, work.source, work.nbytes, stream.state.handle, failure)
    if work.kind == COPY_BETWEEN:
        return copy_between(work.target, work.target_context, work.source, work.source_context, work.nbytes,
                            stream.state.handle, failure)
    return copy_across(work.target, work.source, work.nbytes, stream.state.handle, failure)


cdef inline int start_in_context(const Work* work, Stream stream, Failure* failure) except -1 nogil:
    """Enqueue work in the context of the stream, which may be on another device."""
    cdef Scope scope
    if enter_stream(stream.state, &scope, failure):
        return 1
    if is_of_system(work):
        return leave_stream(stream.state, &scope, work_with_system(work, stream, failure), failure)
    return leave_stream(stream.state, &scope, start_work(work, stream, failure), failure)


cdef inline bint is_of_system(const Work* work) noexcept nogil:
    """True if the work is on ordinary memory of the host, which the driver does not know and xlogmem tracks."""
    return is_system_memory(work.target) or (work.kind >= COPY_IN and is_system_memory(work.source))


cdef int work_with_system(const Work* work, Stream stream, Failure* failure) except -1 nogil:
    """Do work on memory of the system.  What is on the host alone is done by the host, once the stream is idle; so is
    a copy to the device, because the driver may read such memory in the call, and a copy by another device."""
    cdef bint from_host = work.kind == COPY_IN or is_system_memory(work.source)
    cdef bint to_host = work.kind == COPY_OUT or is_system_memory(work.target)
    cdef bint fills = work.kind < COPY_IN
    cdef bint capturing = False
    cdef Work copy = work[0]
    if stream_is_capturing(stream.state.handle, &capturing, failure):
        return 1
    if capturing:
        return fail_stream(failure, STREAM_IS_CAPTURING, stream.state.number)
    if (from_host or fills or work.kind == COPY_APART) and stream_synchronize(stream.state.handle, failure):
        return 1
    if work.kind == FILL:
        repeat(<char*>work.target, <const char*>&work.word, work.width, work.nbytes)
        return 0
    if work.kind == FILL_WIDELY:
        repeat(<char*>work.target, <const char*>work.source, work.width, work.nbytes)
        return 0
    if from_host and to_host:
        memmove(<void*>work.target, <void*>work.source, work.nbytes)
        return 0
    copy.kind = COPY_IN if from_host else COPY_OUT
    if work.kind == COPY_APART:
        return copy_apart(&copy, work.target_context if from_host else work.source_context, failure)
    return start_work(&copy, stream, failure)


cdef int copy_apart(const Work* copy, cy.CUcontext context, Failure* failure) except -1 nogil:
    """Copy between memory of the system and that of a device, on a stream of this device for this copy alone, while the
    host waits."""
    cdef cy.CUstream stream = NULL
    cdef Failure ignored
    cdef Scope scope
    cdef int failed
    if enter_context(context, &scope, failure):
        return 1
    failed = stream_create(0, &stream, failure)
    if not failed:
        if copy.kind == COPY_IN:
            failed = copy_in(copy.target, <void*>copy.source, copy.nbytes, stream, failure)
        else:
            failed = copy_out(<void*>copy.target, copy.source, copy.nbytes, stream, failure)
        if not failed and stream_synchronize(stream, failure):
            failed = 1
            stream_synchronize(stream, &ignored)        # once more: nothing else is ordered after the copy
        stream_destroy(stream, &ignored)
    leave_context(&scope)
    return failed


cdef void repeat(char* target, const char* pattern, size_t size, size_t nbytes) noexcept nogil:
    """Have the host fill memory with `size` bytes, again and again."""
    cdef size_t done = min(size, nbytes), count
    memmove(target, pattern, done)
    while done < nbytes:
        count = min(done, nbytes - done)
        memcpy(target + done, target, count)
        done += count


cdef int fill_widely(const Work* work, Stream stream, Failure* failure) except -1 nogil:
    """Fill with a wide pattern: copy some elements from the host, and have the device double them until the memory is
    full."""
    cdef size_t count, done = work.width
    if copy_in(work.target, <void*>work.source, done, stream.state.handle, failure):
        return 1
    while done < work.nbytes:
        count = min(done, work.nbytes - done)
        if copy_across(work.target + done, work.target, count, stream.state.handle, failure):
            return 1
        done += count
    return 0


cdef uint64_t enqueue(Buffer buffer, LaunchRecorder recorder, const Work* work, str what) except? 0:
    """Enqueue work on the buffer as the recorder's launch.  Returns the position at which the work was filed."""
    if unlikely(is_in_capture(recorder)) and work.kind in (FILL_WIDELY, COPY_IN, COPY_OUT):
        raise StreamMisuseError(f"{what}: {recorder.stream!r} takes part in a capture, and a launch of the graph would "
                                "read or write this memory of the host, which the graph does not hold. Name memory "
                                "that is tracked: a Buffer in page-locked memory (empty(..., xlogmem.host, "
                                "resource=...)), or copy outside of the capture")
    begin_call(buffer)
    try:
        recorder.open()
        launch(recorder, work, what)
    finally:
        end_call(buffer)
    return recorder.window.position


cdef int launch(LaunchRecorder recorder, const Work* work, str what) except -1:
    """Enqueue the work inside the recorder's window, and close the window."""
    cdef Core core = recorder.runtime
    cdef Stream stream = recorder.stream
    cdef Failure failure
    cdef Scope scope
    cdef Outcome outcome = LAUNCHED
    cdef int failed
    try:
        with nogil:
            if refuse_lost(&core.state, &failure):      # meanwhile, by another thread
                failed = 1
                outcome = CANCELLED
            else:
                failed = enter_context(core.state.order.context, &scope, &failure)
                if not failed:
                    failed = start_in_context(work, stream, &failure)
                    leave_context(&scope)
    finally:
        recorder.finish(outcome)
    if failed:
        core.fail(&failure, what)
    return 0


cdef int host_wait(Stream stream, uint64_t position, Core core) except -1:
    """Have the host wait for a position of this stream, and for nothing else."""
    cdef OrderState* order = core.state.order
    cdef Failure failure
    cdef Scope scope
    cdef int failed
    with nogil:
        failed = enter_context(order.context, &scope, &failure)
        if not failed:
            order.lock.lock()
            failed = host_wait_unlocks(order, stream.state, position, &failure)
            order.lock.unlock()
            leave_context(&scope)
    if failed:
        core.fail(&failure, f"waiting for {stream!r}")
    return 0


# ---------------------------------------------------------------------------------------------- fills
cdef int fill_buffer(Buffer buffer, object value, object stream) except -1:
    cdef bytes pattern = element(buffer.layout.dtype, value)
    cdef ArrayLayout layout = buffer.layout
    cdef Stream resolved
    cdef Work work
    buffer.refuse_stale()
    buffer.refuse_writing("fill")
    if layout.size == 0:
        return 0
    layout.refuse_strided("only a contiguous buffer can be filled")
    if type(stream) is Host:
        return write_on_host(buffer, <const char*>pattern, len(pattern), False)
    resolved = buffer.resolve_stream(stream)
    work.kind, work.target, work.nbytes, work.word = FILL, layout.ptr, layout.nbytes(), 0
    for width in (1, 2, 4):
        if len(pattern) % width == 0 and pattern == pattern[:width] * (len(pattern) // width):
            work.word = int.from_bytes(pattern[:width], "little")
            work.width = width
            break
    else:                                               # wider than the driver's fills, and not uniform
        pattern *= min(layout.size, <size_t>SEED // layout.itemsize)
        work.kind, work.width, work.source = FILL_WIDELY, len(pattern), <uint64_t><const char*>pattern
    enqueue(buffer, buffer.new_recorder(resolved, WRITE), &work, "filling a buffer")
    return 0


# ---------------------------------------------------------------------------------------------- host memory
cdef int acquire_host(object host, ArrayLayout layout, Py_buffer* view, int flags) except -1:
    """Get the memory of a host object, which has to fit the layout; release it with `PyBuffer_Release`."""
    if not PyObject_CheckBuffer(host):
        raise TypeError(f"{kind_of(host)} has no buffer of host memory; import arrays on the device with "
                        "from_dlpack() or from_cuda_array()")
    dtype = getattr(host, "dtype", None)
    if dtype is not None:
        shape = getattr(host, "shape", None)
        if not isinstance(shape, (tuple, list)):
            raise TypeError(f"shape of {kind_of(host)} is a tuple of integers, not {shape!r}")
        layout.refuse_other(dtype_of(dtype), tuple(shape))
    try:
        PyObject_GetBuffer(host, view, PyBUF_C_CONTIGUOUS | flags)
    except (BufferError, ValueError) as error:          # NumPy raises the latter where an array is read-only
        raise ValueError(f"the host memory cannot be used: {error}") from None
    if <size_t>view.len != layout.nbytes():
        length = view.len
        PyBuffer_Release(view)
        raise ValueError(f"{length} bytes are not the buffer's {layout.nbytes()}")
    return 0


cdef bint is_pinned(Core core, const void* host) except -1:
    """True if the memory is page-locked or managed, as the driver knows, or of the system: it may be tracked."""
    cdef bint pinned = False
    cdef Failure failure
    cdef int failed
    with nogil:
        failed = (refuse_forked(&failure) or refuse_lost(&core.state, &failure)
                  or host_is_pinned(host, &pinned, &failure))
    if failed:
        core.fail(&failure, "querying if host memory is page-locked")
    return pinned or is_system_memory(<uint64_t>host)


cdef uint64_t upload(Buffer buffer, const void* source, Stream stream, bint pinned) except? 0:
    """Copy the whole of the buffer's contents from the host.  Returns the position of the copy."""
    cdef LaunchRecorder recorder = buffer.new_recorder(stream, WRITE)
    cdef Work work
    work.kind, work.target, work.nbytes = COPY_IN, buffer.layout.ptr, buffer.layout.nbytes()
    work.source = <uint64_t>source
    if pinned:
        add_host_memory(recorder, source, work.nbytes, READ)
    return enqueue(buffer, recorder, &work, "copying from the host")


cdef int download(Buffer buffer, void* target, Stream stream) except -1:
    """Copy all bytes from the first to the last element to the host, and wait for the copy."""
    cdef LaunchRecorder recorder = buffer.new_recorder(stream, READ)
    cdef Work work
    work.kind, work.source, work.nbytes = COPY_OUT, buffer.layout.start, buffer.layout.extent
    work.target = <uint64_t>target
    if is_pinned(buffer.core, target):
        add_host_memory(recorder, target, work.nbytes, WRITE)
    begin_call(buffer)
    try:
        host_wait(stream, enqueue(buffer, recorder, &work, "copying to the host"), buffer.core)
    finally:
        end_call(buffer)
    return 0


# ---------------------------------------------------------------------------------------------- by the host itself
cdef int write_on_host(Buffer target, const void* source, size_t nbytes, bint pinned) except -1:
    """Have the host write the whole of a buffer: `nbytes` bytes, again and again."""
    cdef LaunchRecorder recorder = LaunchRecorder(host, runtime=target.core)
    cdef char* first = <char*>target.layout.ptr
    cdef size_t whole = target.layout.nbytes()
    add_use(recorder, target, WRITE, target)
    if pinned:
        add_host_memory(recorder, source, nbytes, READ)
    begin_call(target)
    try:
        with recorder, nogil:
            repeat(first, <const char*>source, nbytes, whole)
    finally:
        end_call(target)
    return 0


cdef int read_out(Buffer source, void* target, object stream) except -1:
    """Copy all bytes from the first to the last element to the host: on a stream, or by the host itself."""
    cdef LaunchRecorder recorder
    if type(stream) is not Host:
        return download(source, target, source.resolve_stream(stream))
    recorder = LaunchRecorder(host, runtime=source.core)
    add_use(recorder, source, READ, source)
    if is_pinned(source.core, target):
        add_host_memory(recorder, target, source.layout.extent, WRITE)
    begin_call(source)
    try:
        with recorder, nogil:
            memmove(target, <void*>source.layout.start, source.layout.extent)
    finally:
        end_call(source)
    return 0


def copy_on_host(Core core, array):
    """Return a contiguous copy of an array of NumPy's.  The host reads tracked memory behind the work on it."""
    cdef LaunchRecorder recorder = read_on_host(core, array)
    with recorder if recorder is not None else nullcontext():
        return array.copy()


cdef LaunchRecorder read_on_host(Core core, array):
    """The recorder of an access that reads an array, None where no memory of it may be tracked."""
    cdef uint64_t first, last
    interface = getattr(array, "__array_interface__", None)
    if interface is None or array.size == 0:
        return None
    first = last = interface["data"][0]
    if not is_pinned(core, <const void*>first):
        return None
    for length, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            first -= <uint64_t>((length - 1) * -stride)
        else:
            last += <uint64_t>((length - 1) * stride)
    return read_memory_on_host(core, <const void*>first, last - first + <uint64_t>array.itemsize)


cdef LaunchRecorder read_memory_on_host(Core core, const void* memory, size_t nbytes):
    """The recorder of an access that reads what is tracked of page-locked memory."""
    cdef LaunchRecorder recorder = LaunchRecorder(host, runtime=core)
    add_host_memory(recorder, memory, nbytes, READ)
    return recorder


# ---------------------------------------------------------------------------------------------- objects of the host
cdef int copy_from_host(Buffer target, object source, object stream) except -1:
    cdef Py_buffer view
    acquire_host(source, target.layout, &view, 0)
    try:
        copy_host(target, view.buf, stream)
    finally:
        PyBuffer_Release(&view)
    return 0


cdef int copy_host(Buffer target, const void* host, object stream) except -1:
    """Copy host memory of the buffer's size into the buffer; the host memory may be changed when this returns."""
    cdef Stream resolved
    cdef bint pinned
    if target.layout.size == 0:
        return 0
    target.refuse_stale()
    pinned = is_pinned(target.core, host)
    if type(stream) is Host:
        return write_on_host(target, host, target.layout.nbytes(), pinned)
    resolved = target.resolve_stream(stream)
    begin_call(target)
    try:
        if not pinned:
            upload(target, host, resolved, False)
        else:                                           # the driver reads it later than the call returns
            host_wait(resolved, upload(target, host, resolved, True), target.core)
    finally:
        end_call(target)
    return 0


cdef int copy_to_host(Buffer source, object target, object stream) except -1:
    cdef Py_buffer view
    acquire_host(target, source.layout, &view, PyBUF_WRITABLE)
    try:
        if source.layout.size:
            read_out(source, view.buf, stream)
    finally:
        PyBuffer_Release(&view)
    return 0


cdef object numpy_dtype(ArrayLayout layout):
    """NumPy's dtype of the elements, which for some comes with another package."""
    import numpy

    if layout.dtype.pack is not None:
        return numpy.dtype(layout.dtype.name)
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(f"NumPy has {layout.dtype.name} with the package ml_dtypes only; see it as another dtype "
                        "with view()") from None
    return numpy.dtype(getattr(ml_dtypes, layout.dtype.name))


cdef object copy_to_numpy(Buffer source, object stream):
    """A NumPy array with the buffer's shape and strides, over a copy of all bytes from the first to the last element.
    """
    import numpy

    cdef ArrayLayout layout = source.layout
    cdef bytearray host
    source.refuse_stale()
    dtype = numpy_dtype(layout)
    if layout.size == 0:
        return numpy.empty(layout.shape, dtype)
    host = bytearray(layout.extent)
    read_out(source, <char*>host, stream)
    return numpy.ndarray(layout.shape, dtype, host, layout.ptr - layout.start, layout.strides)


# ---------------------------------------------------------------------------------------------- other buffers
cdef int copy_device(Buffer target, Buffer source, object stream) except -1:
    cdef ArrayLayout to = target.layout, origin = source.layout
    cdef LaunchRecorder recorder
    cdef Buffer far
    cdef Work work
    source.refuse_stale()
    if source.core is not target.core and source.core.device_id == target.core.device_id:
        raise StreamMisuseError(f"{source!r} belongs to another runtime than {target!r}: import it with from_dlpack()")
    to.refuse_other(origin.dtype, origin.shape)
    origin.refuse_strided("only a contiguous buffer can be copied from; to_numpy() copies others")
    if origin.size == 0:
        return 0
    if to.start < origin.start + origin.extent and origin.start < to.start + to.extent:
        raise ValueError("the buffers overlap")
    work.kind, work.target, work.source, work.nbytes = COPY_ACROSS, to.ptr, origin.ptr, origin.nbytes()
    recorder = record_on(target.resolve_stream(None) if stream is None else target.core.stream_for_use(stream))
    if source.core is not target.core:
        work.kind = COPY_BETWEEN
        work.target_context = target.core.ordering.context.handle
        work.source_context = source.core.ordering.context.handle
        copy_together(recorder, recorder.stream if stream is None else target.core.streams.find_at_home(stream))
        if recorder.together.own_stream.device_id not in (target.core.device_id, source.core.device_id):
            raise StreamMisuseError(f"copying {source!r} to {target!r}: {recorder.together.own_stream!r} is on neither "
                                    "of their devices. Name a stream of one of them")
        far = source if is_system_memory(work.target) else target
        if is_of_system(&work) and far.core.device_id != recorder.together.own_stream.device_id:
            work.kind = COPY_APART
    begin_call(source)                                  # a recovery of its device waits too
    try:
        add_use(recorder, target, WRITE, target)
        add_use(recorder, source, READ, source)
        enqueue(target, recorder, &work, "copying between buffers")
    finally:
        end_call(source)
    return 0


cdef Buffer copy_of(Buffer source, object stream):
    """Make a buffer in a block of its own with the same contents and strides, including the bytes between elements."""
    cdef ArrayLayout layout = source.layout
    cdef Stream resolved
    cdef DeviceBlock block
    cdef LaunchRecorder recorder
    cdef Buffer made
    cdef Work work
    source.refuse_stale()
    if layout.size == 0:
        return new_buffer(source.device, None, layout, None)
    resolved = source.resolve_stream(stream)
    block = source.core.allocate(layout.extent, resolved)
    made = new_buffer(source.device, block, layout.at(block.address + (layout.ptr - layout.start)), None)
    work.kind, work.target, work.source, work.nbytes = COPY_ACROSS, block.address, layout.start, layout.extent
    recorder = made.new_recorder(resolved, WRITE)
    add_use(recorder, source, READ, source)
    enqueue(made, recorder, &work, "copying a buffer")
    return made
