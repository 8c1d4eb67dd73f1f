# Batches as Python calls them: several blocks allocated, or freed, by one call.
#
# All arguments are checked before anything is done.  While a batch is freed its handles own nothing, so a handle that
# is named twice, or that another thread frees meanwhile, is found.

from libc.stdlib cimport calloc, free
from libc.stdint cimport uint64_t

from xlogmem._foreign.advice import kind_of
from xlogmem.errors import StreamMisuseError
from xlogmem._base.cpp cimport peek, unlikely, vector
from xlogmem._base.failures cimport STREAM_IS_CAPTURING, Failure, drop_exception
from xlogmem._base.labels cimport Label, release, stack_for
from xlogmem._core cimport (
    DONE,
    NOT_AT_ONCE,
    REFUSED,
    UNKNOWN_ACCESS,
    Piece,
    allocate_many,
    allocate_many_at_once,
    find_site_for_check,
    free_many,
    free_many_at_once,
)
from xlogmem._order cimport StreamState
from xlogmem.resources.base cimport Allocation, start_call_on


cdef extern from "Python.h":
    void PyObject_GC_Track(void* of)
    void PyObject_GC_UnTrack(void* of)


cdef Piece* new_pieces(size_t count) except NULL:
    """Make the pieces of a batch, all empty.  Users choose how many, so their lack is an error."""
    cdef Piece* pieces = <Piece*>calloc(count + 1, sizeof(Piece))
    if pieces == NULL:
        raise MemoryError(f"no host memory for a batch of {count} blocks")
    return pieces


cdef list items_of(object given, str what):
    if isinstance(given, (str, bytes)):
        raise TypeError(f"{what} must be several, in a list for example, got {given!r}")
    try:
        return list(given)
    except TypeError:
        raise TypeError(f"{what} must be several, in a list for example, got {kind_of(given)}") from None


# ---------------------------------------------------------------------------------------------- allocate
cdef list allocate_blocks(Core core, object sizes, object stream, str tag):
    """Allocate several blocks; see `Runtime.allocate_many`."""
    cdef list wanted_sizes = items_of(sizes, "sizes")
    cdef list handles = []
    cdef size_t i, count = len(wanted_sizes)
    cdef Stream ordered = stream_for(core, stream)
    cdef Piece* pieces = new_pieces(count)
    cdef Allocation wanted
    collect_exports()
    start_call_on(&wanted, 0, ordered.state)
    try:
        if tag is not None or core.state.resource.stack_depth or unlikely(open_scopes.load() != 0):
            tag = tag_or_scope(tag)
            core.label(&wanted, tag, core.state.resource.stack_depth)
        for i in range(count):                          # first: nothing that may fail follows the allocation
            pieces[i].nbytes = bytes_wanted(wanted_sizes[i])
            wanted.nbytes |= pieces[i].nbytes
            if pieces[i].nbytes == 0:
                handles.append(new_empty(core, ordered, tag))
                continue
            handles.append(new_handle(core, ordered, tag))
            PyObject_GC_UnTrack(<void*>handles[i])      # many new objects begin a collection, which visits each of them
        if wanted.nbytes:
            allocate_pieces(core, handles, wanted_sizes, &wanted, pieces)
    finally:
        release(wanted.tag)
        release(wanted.stack)
        free(pieces)
    return handles


cdef int allocate_pieces(Core core, list handles, list sizes, Allocation* wanted, Piece* pieces) except -1:
    """Allocate the pieces, all or none, and give them to their handles."""
    cdef size_t i, count = len(handles)
    cdef Failure failure
    cdef int done = allocate_many_at_once(&core.state, wanted, pieces, count, &failure)
    if done == NOT_AT_ONCE:
        with nogil:
            done = REFUSED if allocate_many(&core.state, wanted, pieces, count, &failure) else DONE
    for i in range(count):
        if pieces[i].block != NULL:
            fill_handle(<DeviceBlock>handles[i], pieces[i].block, pieces[i].ptr, pieces[i].nbytes,
                        pieces[i].generation, True)
            PyObject_GC_Track(<void*>handles[i])
    if done == REFUSED:
        fail_batch(core, handles, sizes, wanted, pieces, &failure)
    core.drop_owners()
    if unlikely(<bint>core.state.has_evicted):
        core.warn_of_eviction()
    return 0


cdef int fail_batch(Core core, list handles, list sizes, Allocation* wanted, Piece* pieces,
                    Failure* failure) except -1:
    """Free what a batch has got, and raise the failure of the first block that is missing.  In a capture that is known
    all blocks are memory of the graph instead, or, if one is refused, free when the capture ends."""
    cdef size_t i, k, missing = 0, count = len(handles)
    cdef Stream named = None
    cdef StreamState* stream = wanted.stream
    cdef Label* stack = wanted.stack
    cdef vector[Failure] failures
    while pieces[missing].block != NULL or pieces[missing].nbytes == 0:
        missing += 1
    with nogil:
        free_many(&core.state, pieces, count, stream, stack, &failures)
        for i in range(failures.size()):                # the next operation tries these again: their handles drop them
            drop_exception(&failures[i])
    for i in range(count):
        if pieces[i].block == NULL and pieces[i].nbytes:
            (<DeviceBlock>handles[i]).owned.item = NULL
    i = 0 if failure.kind == STREAM_IS_CAPTURING else missing
    try:
        while i < count:
            if pieces[i].nbytes and pieces[i].block == NULL:
                if named is None:
                    named = (<DeviceBlock>handles[i]).stream
                end_refused_allocation(core, <DeviceBlock>handles[i], failure, sizes[i], None)
                PyObject_GC_Track(<void*>handles[i])
            i += 1
    except BaseException as error:
        for k in range(i if failure.kind == STREAM_IS_CAPTURING else 0):
            if pieces[k].nbytes:
                take_from_capture(core, named, (<DeviceBlock>handles[k]).generation)
        error.add_note(f"in allocate_many: it is block {i} of {count}, and none was allocated")
        raise
    return 0


# ---------------------------------------------------------------------------------------------- free
cdef int free_handles(Core core, object blocks, object stream) except -1:
    """Free several blocks; see `Runtime.deallocate_many`."""
    cdef list handles = items_of(blocks, "blocks")
    cdef size_t i, claimed = 0, count = len(handles)
    cdef Stream given = None if stream is None else stream_given(core, stream)
    cdef Piece* pieces = new_pieces(count)
    cdef vector[Failure] failures
    try:
        while claimed < count:
            claim(core, handles, claimed, &pieces[claimed])
            claimed += 1
        if given is not None and given.state.remote:    # as `stream_for_free` does
            for handle in handles:
                (<Runtime>core)._file(handle, given, UNKNOWN_ACCESS)
            given = None
        free_pieces(core, handles, pieces, given, &failures)
    finally:
        for i in range(claimed):
            if pieces[i].block != NULL:                 # it was not freed
                (<DeviceBlock>handles[i]).owned.item = (<DeviceBlock>handles[i]).block
        free(pieces)
    core.drop_owners()
    if failures.size() == 1:
        core.fail(&failures[0], "freeing one of several blocks")
    if not failures.empty():
        core.fail_all(&failures, f"freeing {failures.size()} of {count} blocks")
    return 0


cdef int claim(Core core, list handles, size_t place, Piece* piece) except -1:
    """Take a block away from its handle, if it is a live block of the runtime."""
    cdef DeviceBlock block
    cdef bint has_none                                  # no bytes
    if not isinstance(handles[place], DeviceBlock):
        raise TypeError(f"blocks[{place}] must be a DeviceBlock, got {kind_of(handles[place])}")
    block = <DeviceBlock>handles[place]
    if block.owned.item == NULL:
        refuse_repeated(handles, place)
    has_none = block.core is not core and is_empty_of(block, core)
    if block.core is not core and not has_none:
        raise StreamMisuseError(f"blocks[{place}]: {block!r} belongs to another runtime than {core!r}")
    if block.owned.item == NULL or (not has_none and peek(block.block.generation) != block.generation):
        raise stale_handle(block)
    piece.block = block.block
    piece.generation = block.generation
    block.owned.item = NULL
    return 0


cdef int refuse_repeated(list handles, size_t place) except -1:
    cdef size_t i
    for i in range(place):
        if handles[i] is handles[place]:
            raise ValueError(f"blocks[{place}] is blocks[{i}] once more: name each block once. None was freed")
    return 0


cdef int free_pieces(Core core, list handles, Piece* pieces, Stream given, vector[Failure]* failures) except -1:
    """Free the blocks that were claimed.  Those that could not be freed stay pieces, and are failures."""
    cdef StreamState* home = given.state if given is not None else NULL
    cdef int depth = core.state.stack_depth
    cdef size_t i, count = len(handles)
    cdef Label* stack
    for i in range(count):
        if (<DeviceBlock>handles[i]).core is None:      # of no bytes
            pieces[i].block = NULL
    if depth == 0 and free_many_at_once(&core.state, pieces, count, home):
        return 0
    stack = stack_for(depth)
    find_site_for_check()
    with nogil:
        free_many(&core.state, pieces, count, home, stack, failures)
    release(stack)
    return 0
