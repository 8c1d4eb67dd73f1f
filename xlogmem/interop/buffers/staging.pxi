# Copies that the host does not wait for, through page-locked memory of the runtime's own.
#
# The driver reads pageable memory in the call that copies it, and that call may wait for the stream.  So an upload
# takes the bytes to page-locked memory first, piece by piece: each piece is memory for the host, which is idle, and is
# freed once its copy is queued.  The pool of these pieces lets the host run ahead, and has the host wait for the oldest
# piece at most.

from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from xlogmem._core cimport LAUNCHED, READ, WRITE, Found
from xlogmem._driver cimport is_system_memory
from xlogmem.blocks cimport Core, DeviceBlock
from xlogmem.interop._layout cimport ArrayLayout
from xlogmem.launch cimport LaunchRecorder, add_use, record_on
from xlogmem.streams cimport Stream
from xlogmem.streams import host


cdef enum:
    PIECE = 512 << 10                       # bytes: two are in the processor's cache
    TAKEN_AT_ONCE = 1 << 20                 # bytes of pageable memory that the driver takes without a wait


cdef bint is_read_in_place(Core core, const void* memory, size_t nbytes) except -1:
    """True if one block of the runtime has all of the memory, which the driver reads in the order of the stream."""
    cdef Found found
    cdef uint64_t first = <uint64_t>memory
    if is_system_memory(first):
        return False
    return core.find(first, &found) and found.nbytes - (first - found.ptr) >= nbytes


def upload_into(Buffer target not None, source, stream):
    """Copy an array of host memory into a buffer.  The host does not wait for the stream.  Memory of a block is read in
    place; all other memory may be changed when the call returns."""
    cdef Py_buffer view
    acquire_host(source, target.layout, &view, 0)
    try:
        if target.layout.size:
            upload_without_wait(target, view.buf, target.resolve_stream(stream))
    finally:
        PyBuffer_Release(&view)


cdef int upload_without_wait(Buffer target, const void* source, Stream stream) except -1:
    cdef size_t nbytes = target.layout.nbytes()
    cdef bint pinned = is_pinned(target.core, source)
    if pinned and is_read_in_place(target.core, source, nbytes):
        upload(target, source, stream, True)
    elif pinned:                            # of the system, of several blocks, or not declared by a use here
        with read_memory_on_host(target.core, source, nbytes):
            upload_in_pieces(target, source, nbytes, stream)
    elif nbytes <= <size_t>TAKEN_AT_ONCE:
        upload(target, source, stream, False)
    else:
        upload_in_pieces(target, source, nbytes, stream)
    return 0


cdef int upload_in_pieces(Buffer target, const void* source, size_t nbytes, Stream stream) except -1:
    """Copy host memory through page-locked memory.  One use of the buffer covers all pieces, so that a use by another
    thread has none of them or all."""
    cdef LaunchRecorder whole = target.new_recorder(stream, WRITE)
    cdef DeviceBlock piece
    cdef list newest = []                   # pieces, at most two; where a copy fails, the next operation frees them
    cdef size_t done = 0, count
    begin_call(target)
    try:
        whole.open()
        try:
            while done < nbytes:
                count = min(<size_t>PIECE, nbytes - done)
                piece = next_piece(target.core, newest, min(<size_t>PIECE, nbytes))
                newest.append(piece)
                upload_piece(target, done, <const char*>source + done, count, piece, stream)
                done += count
        finally:
            whole.finish(LAUNCHED)
        for piece in newest:
            piece.close()
    finally:
        end_call(target)
    return 0


cdef DeviceBlock next_piece(Core core, list newest, size_t nbytes):
    """Return the older of the two newest pieces if its copy is complete, because it is in the processor's cache; else
    it is freed, and there is a new one."""
    cdef DeviceBlock older
    if len(newest) == 2:
        older = newest.pop(0)
        if older.ready:
            return older
        older.close()
    return core.allocate(nbytes, host, resource=core._page_locked_pool())


cdef int upload_piece(Buffer target, size_t offset, const void* source, size_t nbytes, DeviceBlock piece,
                      Stream stream) except -1:
    cdef LaunchRecorder recorder
    cdef Work work
    with nogil:
        memcpy(<void*>piece.address, source, nbytes)    # it is idle, and no other thread knows it
    work.kind, work.target, work.nbytes = COPY_IN, target.layout.ptr + offset, nbytes
    work.source = piece.address
    recorder = record_on(stream)
    add_use(recorder, piece, READ, piece)
    enqueue(target, recorder, &work, "copying from the host")
    return 0


cdef Buffer download_buffer(Buffer source, object stream, object resource):
    """Make a buffer for the host, and queue a copy of the contents."""
    cdef Core core = source.core
    cdef ArrayLayout layout = source.layout
    cdef DeviceBlock block = None
    cdef Buffer made
    source.refuse_stale()
    layout.refuse_strided("only a contiguous buffer can be copied from; to_numpy() copies others")
    if layout.size:
        if resource is None:
            resource = core._page_locked_pool()
        block = core.allocate(layout.nbytes(), host, resource=resource)
    made = make_buffer(source.device, block, layout.shape, layout.dtype)
    copy_device(made, source, source.resolve_stream(stream))
    return made
