# Allocation, free and adoption as Python calls them: arguments are checked, the core carries out the operation at once
# or without the GIL, and a handle owns the block until it is freed.

import time

from cuda.bindings cimport cydriver as cy
from cpython.exc cimport PyErr_Clear, PyErr_Fetch, PyErr_Restore
from cpython.long cimport PyLong_CheckExact
from cpython.number cimport PyIndex_Check, PyNumber_Index
from cpython.ref cimport PyObject, Py_DECREF, Py_INCREF
from libc.stdint cimport SIZE_MAX, UINT64_MAX, uint64_t

from xlogmem._foreign.advice import in_words, kind_of
from xlogmem._base.units import bytes_in_words, counted, parse_size
from xlogmem.errors import StreamMisuseError
from xlogmem._base.cpp cimport peek, unlikely
from xlogmem._base.failures cimport BLOCK_IS_CONTESTED, LOST, PYTHON_RAISED, STREAM_IS_CAPTURING
from xlogmem._base.labels cimport Label, label_of_stack, label_of_tag, release, stack_for
from xlogmem._core cimport (
    DONE,
    FREED,
    NOT_AT_ONCE,
    REFUSED,
    UNKNOWN_ACCESS,
    CoreState,
    Range,
    adopt,
    allocate,
    allocate_at_once,
    block_at,
    defer_free,
    find_site_for_check,
    free_at_once,
    free_block,
    free_into_cache,
    keep_stack_of_free,
)
from xlogmem._driver cimport BEYOND_MEMORY, DEVICE_MEMORY, NO_MEMORY, Memory, kind_of_memory, process_was_forked
from xlogmem._foreign.named cimport Extent, name_memory
from xlogmem._order cimport StreamState
from xlogmem.resources.base cimport Allocation, DeviceMemoryResource, ResourceTable, start_call, start_call_on
from xlogmem.streams cimport Host


cdef object allocate_in_capture = None      # see `provide_captures`
cdef object take_from_capture = None


def provide_captures(allocate_in_capture_of_graph, take_from_capture_of_graph):
    """Set the function that allocates memory of a graph on a stream that captures it, and the one that takes new memory
    from the graph.  The first returns a block, or None if no graph is known there."""
    global allocate_in_capture, take_from_capture
    allocate_in_capture, take_from_capture = allocate_in_capture_of_graph, take_from_capture_of_graph


cdef DeviceBlock new_handle(Core core, Stream stream, str tag):
    """Make a handle that has no block yet."""
    cdef DeviceBlock handle = DeviceBlock.__new__(DeviceBlock)
    handle.core = core
    handle.stream = stream
    handle.tag = tag
    return handle


cdef inline void fill_handle(DeviceBlock handle, Block* block, uint64_t ptr, size_t nbytes, uint64_t generation,
                             bint owns) noexcept:
    """Fill a handle from plain values: the structure itself may hold another block by now."""
    handle.block = block
    handle.address = ptr
    handle.nbytes = nbytes
    handle.generation = generation
    if owns:
        handle.owned.item = block
        handle.owned.object = <void*>handle.core
        handle.owned.number = generation
        handle.owned.end = drop_block


cdef void drop_block(Block* block, void* core, uint64_t generation) noexcept:
    """Drop the block of the last handle: the next operation frees the block, unless the cache of its stream takes it.
    The structure may hold another block by now, if the block was freed through the C table."""
    cdef int depth = (<Core>core).state.stack_depth     # of any resource: the structure may change meanwhile
    cdef PyObject* kind
    cdef PyObject* error
    cdef PyObject* traceback
    if peek(block.generation) != generation:
        return
    if unlikely(depth != 0):
        PyErr_Fetch(&kind, &error, &traceback)          # the one that is under way stays
        keep_stack_of_drop(&(<Core>core).state, block, depth)
        PyErr_Restore(kind, error, traceback)
    elif free_into_cache(&(<Core>core).state, block, generation, NULL):
        return
    defer_free(&(<Core>core).state, block)


cdef void keep_stack_of_drop(CoreState* core, Block* block, int depth) noexcept:
    """Keep the stack of a drop.  No handle refers to the block, but an allocation may evict it meanwhile: hence the
    lock."""
    cdef Label* stack = label_of_stack(depth)
    core.order.lock.lock()
    if block.state != FREED:
        keep_stack_of_free(block, stack)
    core.order.lock.unlock()
    release(stack)


# ---------------------------------------------------------------------------------------------- allocate
cdef inline size_t bytes_wanted(object nbytes) except? 0:
    cdef size_t wanted
    if PyLong_CheckExact(nbytes):
        wanted = PyLong_AsSize_t(nbytes)
        if 0 < wanted < SIZE_MAX:
            return wanted
        PyErr_Clear()
    return parse_bytes_wanted(nbytes)


cdef size_t parse_bytes_wanted(object nbytes) except? 0:
    return parse_size("nbytes", nbytes)


cdef inline Stream stream_for(Core core, object stream):
    """Do as `Core.stream_of`, with a short way for the usual arguments."""
    if (type(stream) is Stream and (<Stream>stream).ordering is core.ordering and (<Stream>stream).state != NULL
            and not (<Stream>stream).state.remote):
        return <Stream>stream
    return core.stream_of(stream)


cdef DeviceBlock allocate_block(Core core, object nbytes, object stream, str tag, object resource):
    cdef Allocation wanted
    cdef Failure failure
    cdef DeviceBlock handle
    cdef Stream ordered
    cdef Block* block = NULL
    cdef size_t size = bytes_wanted(nbytes)
    cdef ResourceTable* source = core.state.resource
    cdef int done
    if unlikely(type(stream) is Host):
        return allocate_block_for_host(core, size, tag, resource)
    if unlikely(resource is not None):
        source = core.table_of(resource)
    if unlikely(size == 0):
        return new_empty(core, stream, tag)
    collect_exports()
    ordered = stream_for(core, stream)
    handle = new_handle(core, ordered, tag)             # first: nothing that may fail follows the allocation
    start_call_on(&wanted, size, ordered.state)
    if tag is not None or source.stack_depth or unlikely(open_scopes.load() != 0):
        label_in_scope(core, handle, &wanted, source.stack_depth)
    done = allocate_at_once(&core.state, source, &wanted, &block, &failure)
    if done == NOT_AT_ONCE:
        with nogil:
            done = REFUSED if allocate(&core.state, source, &wanted, &block, &failure) else DONE
    end_allocation(core, handle, block, &wanted, &failure, done, resource)
    return handle


cdef DeviceBlock allocate_block_for_host(Core core, size_t nbytes, str tag, object resource):
    """Do as `allocate_block`, for the host: the memory belongs to no stream."""
    cdef ResourceTable* source = core.known_table(resource)
    cdef Allocation wanted
    cdef Failure failure
    cdef DeviceBlock handle
    cdef Block* block = NULL
    cdef int done
    if source == NULL or not source.host_accessible:
        if nbytes != 0:
            refuse_for_host(core, resource)             # before the resource is bound
        source = core.table_of(resource)
    if nbytes == 0:
        return new_empty(core, None, tag)
    collect_exports()
    handle = new_handle(core, None, tag)
    start_call(&wanted, nbytes, core.state.order.first)
    if tag is not None or source.stack_depth or open_scopes.load() != 0:
        label_in_scope(core, handle, &wanted, source.stack_depth)
    done = allocate_at_once(&core.state, source, &wanted, &block, &failure)
    if done == NOT_AT_ONCE:
        with nogil:
            done = REFUSED if allocate(&core.state, source, &wanted, &block, &failure) else DONE
    end_allocation(core, handle, block, &wanted, &failure, done, resource)
    return handle


cdef inline int end_allocation(Core core, DeviceBlock handle, Block* block, Allocation* wanted, Failure* failure,
                               int done, object resource) except -1:
    """Give a handle the block that was allocated, or raise what prevented it."""
    release(wanted.tag)
    release(wanted.stack)
    if done == REFUSED:
        return end_refused_allocation(core, handle, failure, wanted.nbytes, resource)
    core.drop_owners()
    fill_handle(handle, block, wanted.ptr, wanted.nbytes, wanted.generation, True)
    if unlikely(<bint>core.state.has_evicted):
        core.warn_of_eviction()
    return 0


cdef int end_refused_allocation(Core core, DeviceBlock handle, Failure* failure, size_t nbytes,
                                object resource) except -1:
    """Give a handle memory of the graph that its stream captures, or raise what prevented the allocation."""
    cdef DeviceBlock block = None
    if failure.kind == STREAM_IS_CAPTURING and allocate_in_capture is not None:
        block = allocate_in_capture(core, nbytes, handle.stream, handle.tag, resource)
    if block is None:
        return fail_allocation(core, failure, nbytes, handle.stream, resource)
    block.owned.item = NULL                             # the other handle has it
    handle.stream = block.stream
    fill_handle(handle, block.block, block.address, nbytes, block.generation, True)
    return 0


cdef int refuse_for_host(Core core, object named) except -1:
    """Raise if the host cannot reach memory of the resource that an allocation names (None: the runtime's own)."""
    cdef DeviceMemoryResource resource = core.resource if named is None else core.checked_resource(named)
    if resource.table.host_accessible:
        return 0
    which = "resource: " if named is not None else "xlogmem.host: no resource is named, and "
    raise ValueError(f"{which}{resource!r} has memory of the device alone, which the host cannot use. Give a resource "
                     "such as PoolMemoryResource(PinnedMemoryResource()), or allocate on a stream")


cdef int fail_allocation(Core core, Failure* failure, object nbytes, Stream stream, object resource) except -1:
    """Raise the failure that an allocation reported; `resource` is the one that it named."""
    cdef bint is_foreign = failure.kind == PYTHON_RAISED
    where = f"on {stream!r}" if stream is not None else "for the host"
    source = f" from {resource!r}" if resource is not None else ""
    try:
        core.fail(failure, f"allocating {bytes_in_words(bytes_wanted(nbytes))} {where}{source}")
    except MemoryError as error:
        explain_shortage(core, error, is_foreign, core.resource if resource is None else resource)
        raise
    return 0


# ---------------------------------------------------------------------------------------------- free
cdef int free_handle(Core core, DeviceBlock block, object stream) except -1:
    """Free a block of this core; see `Runtime.deallocate`."""
    cdef StreamState* home = NULL
    cdef Stream given
    cdef int done = NOT_AT_ONCE
    if stream is not None:
        given = stream_for_free(core, block, stream)
        home = given.state if given is not None else NULL
    if block.owned.item == NULL:
        raise stale_handle(block)
    if free_into_cache(&core.state, block.block, block.generation, home):
        done = DONE
    elif core.state.stack_depth == 0:
        done = free_at_once(&core.state, block.block.slot, block.generation, home)
    if done == NOT_AT_ONCE:
        free_slowly(core, block, home)
    block.owned.item = NULL                             # the handle owns nothing any more
    return core.drop_owners()


cdef inline Stream stream_given(Core core, object stream):
    """Return the stream that a free names, which may be on another device."""
    if type(stream) is Stream and (<Stream>stream).ordering is core.ordering:
        return stream_for(core, stream)
    return core.stream_for_use(stream)


cdef Stream stream_for_free(Core core, DeviceBlock block, object stream):
    """Return the stream on which a block is freed.  None: the block is freed on its home, after all work that is queued
    by now on the named stream, which is on another device."""
    cdef Stream given = stream_given(core, stream)
    if not given.state.remote:
        return given
    if block.owned.item == NULL:
        raise stale_handle(block)
    (<Runtime>core)._file(block, given, UNKNOWN_ACCESS)
    return None


cdef int free_slowly(Core core, DeviceBlock block, StreamState* home) except -1:
    cdef Label* stack = stack_for(core.state.stack_depth)
    cdef Failure failure
    cdef int failed
    find_site_for_check()
    with nogil:
        failed = free_block(&core.state, block.block.slot, block.generation, home, stack, &failure)
    release(stack)
    if failed:
        core.fail(&failure, f"freeing {block!r}")
    return 0


# ---------------------------------------------------------------------------------------------- adopt
cdef DeviceBlock adopt_named(Core core, object what, object nbytes, tuple options):
    """Adopt the memory that an object names, or `nbytes` bytes from its address; `options` are those of
    `adopt_range`."""
    cdef Extent extent
    stream, owner, tag = options
    refuse_several(what, "adopt each of them")
    if not name_memory(what, "adopt", &extent):
        raise ValueError(f"adopt: {kind_of(what)} has no elements, so there is nothing to track")
    if extent.device_id not in (-1, core.device_id):
        raise StreamMisuseError(f"adopt: {kind_of(what)} is on device {extent.device_id}, and {core!r} is not")
    if owner is None and (extent.sized or not PyIndex_Check(what)):    # PyTorch's tensors have __index__, too
        owner = what
    if nbytes is not None:
        return adopt_range(core, extent.ptr, nbytes, stream, owner, tag)
    if not extent.sized:
        raise ValueError(f"adopt: {in_words(what)} is an address, which does not say how many bytes are meant: "
                         "give nbytes")
    return adopt_range(core, extent.first, bytes_of(&extent), stream, owner, tag)


cdef object bytes_of(Extent* extent):
    return int(extent.last) - int(extent.first) + 1


cdef int adopt_after_ended(Core core, Range* memory, Found* found, Failure* failure) except -1:
    """Adopt a range.  An ended adoption of the same memory is not adopted again: its block is freed first.  If another
    thread is freeing that block right now, this thread waits; if a window or a capture keeps the block, the range is
    contested."""
    cdef int failed
    while True:
        with nogil:
            failed = adopt(&core.state, memory, found, failure)
        if failed and failure.kind != BLOCK_IS_CONTESTED:
            return failed
        if not failed:
            failure.generation = found.generation
        if (not failed and found.adopted) or not core.has_ended(failure.generation):
            return failed
        if ended_adoption_is_kept(core, failure.generation):
            failure.kind = BLOCK_IS_CONTESTED
            return 1
        time.sleep(0)


cdef DeviceBlock adopt_range(Core core, object ptr, object nbytes, object stream, object owner, str tag):
    """Adopt a range of memory, unless the driver knows that it is none of a device.  What begins in a tracked block is
    memory."""
    cdef Found found
    cdef Failure ignored
    cdef uint64_t address
    cdef size_t size
    cdef Memory memory
    cdef cy.CUdevice device = core.ordering.context.device
    cdef DeviceBlock handle
    ptr, nbytes = check_range(ptr, nbytes)
    address, size = ptr, nbytes
    if core.find(address, &found):
        handle = adopt_device_range(core, address, size, stream, owner, tag, False, True)
        if handle is not None:
            return handle                               # else the block was freed meanwhile
    memory.kind = DEVICE_MEMORY                         # where the driver cannot say
    if not core.state.marks.load() & LOST and not process_was_forked():
        with nogil:
            kind_of_memory(device, address, size, &memory, &ignored)
        if memory.kind in (NO_MEMORY, BEYOND_MEMORY):
            refuse_memory(&memory, address, size)
    return adopt_device_range(core, address, size, stream, owner, tag, memory.kind != DEVICE_MEMORY)


cdef int refuse_memory(Memory* memory, uint64_t address, size_t nbytes) except -1:
    if memory.kind == NO_MEMORY:
        raise ValueError(f"adopt: address {address:#x} is not memory of a device, nor page-locked: the driver knows no "
                         "allocation there. Was it freed, or is it a number of something else?")
    raise ValueError(f"adopt: {bytes_in_words(nbytes)} at {address:#x} are more than there is: the allocation ends "
                     f"after {bytes_in_words(memory.allocated)}")


cdef tuple check_range(object ptr, object nbytes):
    """Return the address and the size of a range; raises if it makes no sense."""
    ptr, nbytes = PyNumber_Index(ptr), PyNumber_Index(nbytes)
    if not 0 < ptr <= UINT64_MAX or nbytes < 1 or ptr + nbytes > UINT64_MAX:
        raise ValueError(f"adopt: not a range of device memory: {counted(nbytes, 'byte')} at {ptr}")
    return ptr, nbytes


cdef DeviceBlock adopt_device_range(Core core, uint64_t ptr, size_t nbytes, object stream, object owner, str tag,
                                    bint host_accessible=False, bint only_tracked=False):
    """Adopt a range of at least one byte, which lies in the address space and of which the kind of memory is known.
    `only_tracked`: return None where no block has it."""
    cdef Range memory
    cdef Found found
    cdef Failure failure
    cdef Stream home = None
    cdef DeviceBlock handle
    cdef int failed
    memory.ptr, memory.nbytes = ptr, nbytes
    memory.host_accessible = host_accessible
    memory.only_tracked = only_tracked
    memory.stream = NULL
    memory.owner = NULL
    memory.tag = label_of_tag(tag)
    if stream is not None:
        home = core.stream_of(stream)
        memory.stream = home.state
    if owner is not None:
        memory.owner = <void*>owner
        Py_INCREF(owner)
    failed = True
    try:
        failed = adopt_after_ended(core, &memory, &found, &failure)
    finally:
        release(memory.tag)
        if owner is not None and (failed or not found.adopted):
            Py_DECREF(owner)
    if failed and failure.kind == BLOCK_IS_CONTESTED and core.has_ended(failure.generation):
        raise StreamMisuseError(f"adopt: the range of {bytes_in_words(nbytes)} is still in use as block "
                                f"{failure.generation}, whose owner is gone: leave the uses that are open on it, and "
                                "end the capture of its stream")
    if failed and failure.kind == BLOCK_IS_CONTESTED:
        block = described(core, failure.generation, f"block {failure.generation}") or f"block {failure.generation}"
        raise StreamMisuseError(f"adopt: the range of {bytes_in_words(nbytes)} at {ptr:#x} overlaps {block} in part: "
                                "adopt the whole of it, or a part that is inside it")
    if failed:
        core.fail(&failure, f"adopting {bytes_in_words(nbytes)}")
    core.drop_owners()
    if found.generation == 0:
        return None
    handle = new_handle(core, home, tag)
    fill_handle(handle, block_at(&core.state, found.slot), found.ptr, found.nbytes, found.generation, found.adopted)
    return handle
