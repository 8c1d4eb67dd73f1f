# From arguments to block identities: blocks directly, other objects by their resolver, interface or address.
#
# The recorder keeps no hold on the arguments.  Foreign code runs wherever an argument is not a block, and may call the
# recorder itself.

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport uint64_t

from xlogmem._foreign.advice import kind_of
from xlogmem._base.failures cimport LOST
from xlogmem._base.sections cimport Section
from xlogmem._core cimport IGNORE_UNTRACKED, ByteRange, Found, Request
from xlogmem._foreign.named cimport Extent
from xlogmem._order cimport current_thread
from xlogmem.blocks cimport (
    BEYOND,
    READ_ONLY_HERE,
    SEVERAL,
    TRACKED,
    UNTRACKED,
    BlockId,
    BlockView,
    Core,
    DeviceBlock,
    Resolved,
    contents_of,
    describe_beyond,
    resolver_of,
)


cdef int register(LaunchRecorder recorder, object what, int access) except -1:
    cdef Section section
    section.begin(recorder)
    recorder.refuse_late(access)
    if recorder.unsettled is not None and NAMES_NOTHING in recorder.unsettled:
        recorder.unsettled = None
    if recorder.window.thread != current_thread():
        recorder.window.moved = True
    return add_uses(recorder, <PyObject*>what, access)


cdef inline int add_uses(LaunchRecorder recorder, PyObject* what, int access) except -1:
    """Register one object, or each object of a list or tuple."""
    if add_block(recorder, what, access):
        return 0
    if isinstance(<object>what, tuple):
        return add_uses_of_tuple(recorder, <tuple>what, access)
    if isinstance(<object>what, list):
        return add_uses_of_list(recorder, <list>what, access)
    return add_use(recorder, <object>what, access, <object>what)


cdef inline bint add_block(LaunchRecorder recorder, PyObject* what, int access) noexcept:
    """Add a block of this runtime, which nearly every argument is.  False if the argument is anything else."""
    cdef Request* request
    if Py_TYPE(what) != <PyTypeObject*>DeviceBlock or (<DeviceBlock>what).core is not recorder.runtime:
        return False
    request = &recorder.window.requests.emplace_back()
    request.slot = (<DeviceBlock>what).block.slot
    request.access = access
    request.generation = (<DeviceBlock>what).generation
    return True


cdef int add_uses_of_tuple(LaunchRecorder recorder, tuple things, int access) except -1:
    cdef Py_ssize_t i
    for i in range(PyTuple_GET_SIZE(things)):
        if not add_block(recorder, PyTuple_GET_ITEM(things, i), access):
            thing = <object>PyTuple_GET_ITEM(things, i)
            add_use(recorder, thing, access, thing)
    return 0


cdef int add_uses_of_list(LaunchRecorder recorder, list things, int access) except -1:
    """Register each object of a list; foreign code may change the list meanwhile."""
    cdef Py_ssize_t i = 0
    cdef Section section                                # of the list: another thread may change it
    section.begin(things)
    while i < PyList_GET_SIZE(things):
        if not add_block(recorder, PyList_GET_ITEM(things, i), access):
            thing = <object>PyList_GET_ITEM(things, i)
            add_use(recorder, thing, access, thing)
        i += 1
    return 0


cdef int add_use(LaunchRecorder recorder, object what, int access, object named) except -1:
    """Find the blocks behind an object and note their identities.  `named` is the user's argument, of which `what` is a
    part."""
    if add_block(recorder, <PyObject*>what, access):
        return 0
    other = recorder_of(recorder, what)
    if other is not None:
        return add_use_there(recorder, other, what, access, named)
    resolver = resolver_of(what)
    if resolver is not None:
        add_parts(recorder, parts_of(recorder, what, resolver), access, named)
        return recorder.refuse_late(access)
    return add_memory(recorder, what, access, named)


cdef int add_use_there(LaunchRecorder recorder, LaunchRecorder other, object what, int access, object named) except -1:
    """Register a block of another device; its own runtime reports any error."""
    recorder.refuse_late(access)
    return add_use(other, what, access, named)


cdef int add_memory(LaunchRecorder recorder, object what, int access, object named) except -1:
    """Find the block behind an object without a resolver."""
    cdef Found found
    cdef Extent extent
    cdef Resolved known = recorder.runtime.resolve(what, &found, &extent, ARGUMENTS[access])
    recorder.refuse_late(access)
    if known == TRACKED:
        add_part(recorder, what, &found, &extent, access)
    elif known == READ_ONLY_HERE:
        refuse_writing(&extent, access, named)
        add_part(recorder, what, &found, &extent, access)
    elif known == SEVERAL:
        add_parts(recorder, contents_of(what), access, None)
    elif known == UNTRACKED:
        add_untracked(recorder, what, &extent, access, named)
    elif known == BEYOND and recorder.window.untracked == IGNORE_UNTRACKED:
        add_tracked_in(recorder, recorder.runtime, &extent, access)
    elif known == BEYOND:
        recorder.reject(access, f"{kind_of(named)} is not in one block: {describe_beyond(&found, &extent)}. Make "
                        "one of its size, or adopt all of it")
    return 0


cdef inline int add_found(LaunchRecorder recorder, Found* found, int access) except -1:
    cdef Request* request = &recorder.window.requests.emplace_back()
    request.slot = found.slot
    request.access = access
    request.generation = found.generation
    return 0


cdef int add_part(LaunchRecorder recorder, object what, Found* found, Extent* extent, int access) except -1:
    """Register the block that an object lies in or, where the object says so, the bytes that it has of it."""
    cdef ByteRange part
    cdef DeviceBlock block
    add_found(recorder, found, access)
    if isinstance(what, BlockView):
        block = (<BlockView>what).held()
        if block is not None and (<BlockView>what).find_range(block, &part):
            add_range(recorder, part.first, part.end)
    elif not isinstance(what, (DeviceBlock, BlockId)) and extent.sized:
        add_range_in(recorder, found, extent)
    return 0


cdef inline void add_range_in(LaunchRecorder recorder, Found* found, Extent* extent) noexcept:
    """Note the bytes of a block that an array has, unless these are all."""
    cdef uint64_t first = max(extent.first, found.ptr), last = min(extent.last, found.ptr + (found.nbytes - 1))
    if last - first != found.nbytes - 1:
        add_range(recorder, first, last + 1)


cdef inline void add_range(LaunchRecorder recorder, uint64_t first, uint64_t end) noexcept:
    """Note that the newest request names a part of its block."""
    cdef ByteRange* part = &recorder.window.ranges.emplace_back()
    part.request = recorder.window.requests.size() - 1
    part.first = first
    part.end = end


cdef int add_tracked_in(LaunchRecorder recorder, Core core, Extent* extent, int access) except -1:
    """Register what the memory reaches of each block of a runtime, the recorder's or another device's."""
    cdef Found found
    cdef LaunchRecorder there
    cdef uint64_t ptr = extent.first
    while core.find_from(ptr, extent.last, &found):
        if not core.has_ended(found.generation):
            there = recorder if core is recorder.runtime else recorder_in(recorder, core)
            add_found(there, &found, access)
            add_range_in(there, &found, extent)
        if extent.last - found.ptr < found.nbytes:
            break
        ptr = found.ptr + found.nbytes
    return 0


cdef int add_host_memory(LaunchRecorder recorder, const void* memory, size_t nbytes, int access) except -1:
    """Register the blocks that page-locked or managed memory of the program reaches, in this runtime and in the others;
    where it is not tracked, nothing."""
    cdef Core core
    cdef Extent extent
    extent.first = <uint64_t>memory
    extent.last = extent.first + (nbytes - 1)
    for core in all_runtimes():
        if not is_beside(recorder, core) or not core.state.marks.load() & LOST:     # nothing runs there any more
            add_tracked_in(recorder, core, &extent, access)
    return 0


cdef inline bint is_beside(LaunchRecorder recorder, Core core) noexcept:
    """True if this is another runtime of the same device."""
    return (core is not recorder.runtime
            and core.ordering.context.device_id == recorder.runtime.ordering.context.device_id)


cdef int add_parts(LaunchRecorder recorder, object parts, int access, object named) except -1:
    """Find the blocks behind the parts of an object, and behind the parts of those.  Errors call the parts by `named`;
    None: by their own names.  Resolvers may name each other in a circle, and lists contain themselves: parts may be as
    deep as calls may."""
    cdef list iterators = [parts], names = [named]      # the innermost last
    while iterators:
        for part in iterators[len(iterators) - 1]:
            name = names[len(names) - 1]
            resolver = resolver_of(part)
            inside = contents_of(part) if resolver is None else parts_of(recorder, part, resolver)
            if inside is None:
                other = recorder_of(recorder, part)
                add_memory(recorder if other is None else other, part, access, part if name is None else name)
                continue
            if name is None and resolver is not None:
                name = part
            if len(iterators) >= Py_GetRecursionLimit():
                refuse_depth(access, name, len(iterators))
            iterators.append(inside)
            names.append(name)
            break
        else:
            iterators.pop()
            names.pop()
    return 0


cdef int refuse_depth(int access, object named, Py_ssize_t depth) except -1:
    which = "lists, tuples and dicts" if named is None else f"the resolvers of {kind_of(named)} and its parts"
    raise RecursionError(f"{ARGUMENTS[access]}: {which} name parts of parts, {depth} deep: does one of them name "
                         "itself?")


cdef object parts_of(LaunchRecorder recorder, object what, object resolver):
    """Return an iterator over the parts that the resolver names."""
    if recorder.held is None:
        recorder.held = []
    try:
        parts = resolver(what, recorder.held.append)
    except Exception as error:
        error.add_note(f"raised by the resolver of {kind_of(what)} (register_resolver), which is called as "
                       "resolver(what, hold)")
        raise
    try:
        return iter(parts)
    except TypeError:
        raise TypeError(f"the resolver of {kind_of(what)} gave {parts!r}, not an iterable of parts") from None
