# Launches across devices: memory of one device that is used on a stream of another.
#
# Each runtime keeps its own memory in order.  So a launch has a recorder in every runtime whose blocks it names: the
# recorder that the program holds, and in `together` those of other devices, on the same CUDA stream as these devices
# know it (_foreign/objects/remote.pxi).  All recorders are opened, in the order of their devices and runtimes, before
# the launch, and filed after it.  Two launches that name blocks of the same devices wait for each other in that order,
# so never in a circle.  A copy may touch memory of two runtimes of one device, and is a launch of this kind too.
#
# Work that has no access to the memory would end its context.  So access is checked before anything is opened: block by
# block, or once for a resource that hands out memory of one kind.

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint64_t

from xlogmem._foreign.advice import kind_of
from xlogmem._driver import can_access_peer, reaches_system_memory
from xlogmem.errors import StreamMisuseError
from xlogmem.resources import AsyncMemoryResource, DirectMemoryResource
from xlogmem.resources.layers import layers_of
from xlogmem._base.failures cimport Failure, raise_failure
from xlogmem._base.sections cimport Section
from xlogmem._core cimport (
    ADOPT_UNTRACKED,
    IGNORE_UNTRACKED,
    NOT_PREPARED,
    READ,
    Block,
    Found,
    Outcome,
    Request,
    bring_in_locked,
    cache_of,
    file_window_locked,
    finish_rest,
    is_host_accessible,
)
from xlogmem._driver cimport (
    is_peer_enabled,
    is_system_memory,
    peer_access_of,
    pointer_device,
    pool_of_pointer,
    pool_open_to,
)
from xlogmem._foreign.named cimport Extent
from xlogmem._order cimport Ordering, StreamState, fail_elsewhere
from xlogmem.blocks cimport (
    BEYOND,
    READ_ONLY_HERE,
    UNTRACKED,
    BlockId,
    BlockView,
    Core,
    DeviceBlock,
    Resolved,
    describe_beyond,
    described,
)
from xlogmem.streams cimport Stream


cdef object all_runtimes = None             # existing_runtimes of runtime.py


cdef uint64_t accesses_changed = 0          # how often


def forget_peers(int device_id):
    """Have accesses queried again, because the program takes accesses away from a device."""
    global accesses_changed
    cdef Core core
    accesses_changed += 1                   # for queries that are under way in other threads
    for core in all_runtimes():
        forbid(core, <uint64_t>1 << (device_id & 63))


cdef void forbid(Core core, uint64_t bit) noexcept:
    cdef Section section
    section.begin(core)
    core.accessible &= ~bit


cdef void allow(Core core, uint64_t bit, uint64_t changed) noexcept:
    """Note an access that was queried when accesses had changed so often."""
    cdef Section section
    section.begin(core)
    if changed == accesses_changed:
        core.accessible |= bit


# ---------------------------------------------------------------------------------------------- whose block it is
cdef LaunchRecorder recorder_of(LaunchRecorder recorder, object what):
    """Return the recorder for a block of another device; None for anything else."""
    cdef Core core = None
    cdef Ordering ordering
    if isinstance(what, DeviceBlock):
        core = (<DeviceBlock>what).core
        if core is None and (<DeviceBlock>what).stream is not None:     # of no bytes
            ordering = (<DeviceBlock>what).stream.ordering
            core = ordering.core() if ordering.core is not None else None
    elif isinstance(what, BlockView):
        core = (<BlockView>what).core
    elif isinstance(what, BlockId):
        ordering = (<BlockId>what).ordering             # None: forged
        core = ordering.core() if ordering is not None and ordering.core is not None else None
    if core is None or core is recorder.runtime or core.device_id == recorder.runtime.device_id:
        return None
    return recorder_in(recorder, core)


cdef LaunchRecorder recorder_in(LaunchRecorder recorder, Core core):
    """Return the recorder of the same launch in another runtime, which nearly always is that of another device."""
    cdef LaunchRecorder other
    if isinstance(recorder.runtime, CaptureCore):
        raise StreamMisuseError(f"memory of device {core.device_id} is used in a capture on device "
                                f"{recorder.runtime.device_id}: a graph uses memory of its own device alone. Copy it "
                                "before")
    cdef Together together = begin_together(recorder, recorder.stream)
    for other in together.others:
        if other.runtime is core:
            return other
    if recorder.stream is None:
        other = LaunchRecorder.__new__(LaunchRecorder)
        begin_access(other, core)
    elif together.named is not None and core.device_id == together.own_stream.ordering.context.device_id:
        other = record_on(core.stream_of(together.named))       # its own device may have several runtimes
    elif is_beside(recorder, core):                     # to which the stream of a copy is remote all the same
        other = record_on(core.streams.remote(together.own_stream))
    else:
        other = record_on(core.stream_for_use(together.own_stream))
    other.together = None                               # it is one of several itself
    other.is_part = True
    other.window.untracked = recorder.window.untracked
    other.window.on_conflict = recorder.window.on_conflict
    other.window.hand_back = recorder.window.hand_back
    together.others.append(other)
    return other


cdef int copy_together(LaunchRecorder recorder, Stream own_stream) except -1:
    """Mark the launch as consisting only of copies by the driver, which need no access, on this stream of either
    device."""
    begin_together(recorder, own_stream)
    recorder.together.own_stream = own_stream
    recorder.together.copies = True
    return 0


cdef Together begin_together(LaunchRecorder recorder, Stream stream):
    """Make the launch one across devices, if it is not yet."""
    if recorder.together is None:
        recorder.together = Together.__new__(Together)
        recorder.together.others = []
        recorder.together.own_stream = stream
    return recorder.together


cdef bint add_elsewhere(LaunchRecorder recorder, object what, Extent* extent, int access, object named) except -1:
    """Add memory that the recorder's runtime does not track, if a runtime of another device does.  False, with nothing
    done, if none does."""
    cdef Core core
    cdef Found found
    cdef Resolved known
    for core in all_runtimes():
        if core.device_id == recorder.runtime.device_id or extent.device_id not in (-1, core.device_id):
            continue
        known = core.find_extent(extent, &found)
        if known == UNTRACKED:
            continue
        if known == BEYOND and recorder.window.untracked == IGNORE_UNTRACKED:
            return add_tracked_in(recorder, core, extent, access) == 0
        if known == BEYOND:
            return recorder.reject(access, f"{kind_of(named)} is not in one block of device {core.device_id}: "
                                   f"{describe_beyond(&found, extent)}. Make one of its size, or adopt all of it") == 0
        if known == READ_ONLY_HERE:
            refuse_writing(extent, access, named)
        recorder.refuse_late(access)
        add_part(recorder_in(recorder, core), what, &found, extent, access)
        return True
    if recorder.window.untracked != ADOPT_UNTRACKED:
        return False
    device_id = extent.device_id if extent.device_id != -1 else device_of_memory(recorder.runtime, extent.ptr)
    if device_id in (-1, recorder.runtime.device_id):
        return False
    return note_adoption(recorder_in(recorder, process_runtime(device_id)), what, extent, access, named) == 0


cdef int device_of_memory(Core core, uint64_t ptr) except? -1:
    """Return the device of an address; -1 if the driver knows none."""
    cdef Failure failure
    cdef int device_id = -1, failed
    with nogil:
        failed = pointer_device(ptr, &device_id, &failure)
    if failed:
        core.fail(&failure, "querying the device of untracked memory")
    return device_id


# ---------------------------------------------------------------------------------------------- access
cdef int refuse_inaccessible(LaunchRecorder recorder, Stream own_stream) except -1:
    """Raise if the device of a remote stream may not access a block as the launch does."""
    cdef Core core = recorder.runtime
    cdef uint64_t bit = <uint64_t>1 << (recorder.stream.state.device & 63)
    cdef uint64_t changed
    cdef Request* request
    cdef uint64_t ptr = 0
    cdef size_t i
    cdef bint apart = False, on_host = False
    for i in range(recorder.window.requests.size()):
        request = &recorder.window.requests[i]
        if not place_of(core, request, &ptr, &apart, &on_host) or (core.accessible & bit and not apart):
            continue                                    # stale: the preflight says so
        if on_host:                                     # page-locked and managed memory is every device's
            if is_system_memory(ptr) and not reaches_system_memory(recorder.stream.state.device):
                raise StreamMisuseError(
                    f"{ARGUMENTS[request.access]}: device {recorder.stream.state.device}, to which {own_stream!r} "
                    f"belongs, does not reach {describe_request(core, request)}, which is ordinary memory of the host "
                    "(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS is 0): copy it there")
            continue
        changed = accesses_changed
        if (refuse_inaccessible_block(recorder, request, ptr, own_stream) and not apart
                and hands_out_one_kind(core)):
            allow(core, bit, changed)
    return 0


cdef str describe_request(Core core, Request* request):
    """Describe the block of a request, for an error."""
    words = described(core, request.generation, f"block {request.generation}")
    return words or f"block {request.generation}"


cdef bint place_of(Core core, Request* request, uint64_t* ptr, bint* apart, bint* on_host) noexcept:
    """Find the address of a block, if it is memory apart (not of the runtime's own resource), and if the host reaches
    it.  False if the slot has another block by now."""
    cdef Block* block
    cdef bint there = False
    with nogil:
        core.state.order.lock.lock()
        block = core.state.blocks[request.slot] if request.slot < core.state.blocks.size() else NULL
        if block != NULL and cache_of(block) != NULL:
            bring_in_locked(&core.state, block, request.generation)
        there = block != NULL and block.generation == request.generation
        if there:
            ptr[0], on_host[0] = block.ptr, is_host_accessible(block)
            apart[0] = block.adopted or block.resource != core.state.resource
        core.state.order.lock.unlock()
    return there


cdef bint refuse_inaccessible_block(LaunchRecorder recorder, Request* request, uint64_t ptr,
                                    Stream own_stream) except -1:
    """Raise if the device may not access the block as the launch does.  True if the device may write the block, too."""
    cdef StreamState* stream = recorder.stream.state
    cdef int device = stream.device, peer = recorder.runtime.device_id, failed, access = request.access
    cdef unsigned int needed = READ_ACCESS if access == READ else READ_WRITE_ACCESS
    cdef unsigned int allowed = 0
    cdef cy.CUmemoryPool pool = NULL
    cdef Failure failure
    cdef bint enabled = is_peer_enabled(device, peer)
    cdef bint apart, on_host
    with nogil:
        failed = peer_access_of(stream.context, device, ptr, &allowed, &failure)
        if not failed and allowed & needed != needed and enabled:
            pool_of_pointer(ptr, &pool)
            if pool != NULL:
                failed = (pool_open_to(pool, device, &failure)
                          or peer_access_of(stream.context, device, ptr, &allowed, &failure))
    if (failed or allowed & needed != needed) and not place_of(
            recorder.runtime, request, &ptr, &apart, &on_host):
        return False                                    # another thread has freed it: the preflight says so
    if failed:
        fail_elsewhere(device, &failure)
        raise_failure(&failure, f"querying whether device {device} can access memory of device {peer}")
    if allowed & needed == needed:
        return allowed == READ_WRITE_ACCESS
    what = (f"{ARGUMENTS[access]}: device {device}, to which {own_stream!r} belongs, has no access to "
            f"{describe_request(recorder.runtime, request)} on device {peer}")
    if not can_access_peer(device, peer):
        raise StreamMisuseError(f"{what}, and these devices are not peers: copy it there, as Buffer.copy_from does")
    raise StreamMisuseError(f"{what}: call xlogmem.enable_peer_access({device}, {peer}) first"
                            + (", which did not open this memory" if enabled else ""))


cdef bint hands_out_one_kind(Core core) except -1:
    """True if every block of the resource is as accessible as any other."""
    return isinstance([*layers_of(core.resource)][-1], (AsyncMemoryResource, DirectMemoryResource))


# ---------------------------------------------------------------------------------------------- together
cdef int open_everywhere(LaunchRecorder recorder) except -1:
    """Open a launch across devices: all windows, or none."""
    cdef list opened = []
    cdef LaunchRecorder other
    refuse_opening(recorder)
    recorder.together.opening = True
    try:
        open_in_order(recorder, opened)
    except BaseException as error:
        for other in opened:
            try:
                close_again(other)
            except BaseException as another:            # the windows that are left are closed all the same
                error.add_note(f"and: {another}")
        raise
    finally:
        recorder.together.opening = False
    return 0


cdef int refuse_opening(LaunchRecorder recorder) except -1:
    """Refuse a launch across devices while its windows are being opened, one after the other."""
    cdef LaunchRecorder other
    if recorder.together.opening:
        raise StreamMisuseError("another thread is entering this use: each thread needs one of its own")
    recorder.refuse_busy()
    for other in recorder.together.others:
        other.refuse_busy()
    return 0


cdef int open_in_order(LaunchRecorder recorder, list opened) except -1:
    cdef LaunchRecorder other
    for other in recorder.together.others:
        other.window.moved |= recorder.window.moved
        other.window.is_anyones = recorder.window.is_anyones
    for other in in_order(recorder):
        if other.unsettled is not None:
            other.settle()                          # adopted memory is looked at, too
    for other in in_order(recorder):
        if other.stream is not None and other.stream.state.remote and not recorder.together.copies:
            refuse_inaccessible(other, recorder.together.own_stream)
    for other in in_order(recorder):
        other.open_here()
        opened.append(other)
    return 0


cdef list in_order(LaunchRecorder recorder):
    """Return the recorders of a launch, sorted by their devices and runtimes: in the same order in every thread."""
    return sorted([recorder, *recorder.together.others], key=place_in_order)


def place_in_order(LaunchRecorder recorder):
    return recorder.runtime.device_id, <size_t><void*>recorder.runtime


cdef int close_again(LaunchRecorder recorder) except -1:
    """Close a window without a launch, because another window of the launch could not be opened; a second try may
    follow."""
    cdef Core core = recorder.runtime
    cdef Failure ignored
    cdef bint more
    recorder.preflighted = False
    if recorder.window.is_open:
        with nogil:
            core.state.order.lock.lock()
            more = file_window_locked(&core.state, recorder.window, NOT_PREPARED)
            core.state.order.lock.unlock()
            if more:
                finish_rest(&core.state, recorder.window, &ignored)
        core.drop_owners()
    return 0


cdef int finish_everywhere(LaunchRecorder recorder, Outcome outcome) except -1:
    """Finish a launch across devices: all recorders are filed, even if one fails; then the first error is raised, with
    the others as notes."""
    cdef LaunchRecorder other
    cdef object first = None
    refuse_opening(recorder)
    if recorder.done:
        return recorder.finish_here(outcome)            # which refuses it
    for other in in_order(recorder):
        try:
            other.finish_here(outcome)
        except BaseException as error:
            if first is None:
                first = error
            else:
                first.add_note(f"and: {error}")
    if first is not None:
        raise first
    return 0


cdef bint has_uses(LaunchRecorder recorder) noexcept:
    """True if anything was registered, on whichever device."""
    cdef Py_ssize_t i
    if recorder.window == NULL:
        return False
    if recorder.unsettled is not None or not recorder.window.requests.empty():
        return True
    for i in range(PyList_GET_SIZE(recorder.together.others) if recorder.together is not None else 0):
        if has_uses(<LaunchRecorder>PyList_GET_ITEM(recorder.together.others, i)):
            return True
    return False
