# Snapshots of a runtime, as Python objects: for snapshots.py, and for the messages of errors about a block.

import enum

from libc.stdint cimport uint64_t

from xlogmem._base.texts import printable, shown
from xlogmem._base.units import bytes_in_words, counted
from xlogmem.errors import StreamMisuseError, UseAfterFreeError
from xlogmem.resources.layers import find_layer
from xlogmem._base.cpp cimport peek, vector
from xlogmem._base.labels cimport object_of, release
from xlogmem._base.survey cimport Seen, SeenStream, SeenUser, Survey
from xlogmem._core cimport Figures, mark_lost_if_sticky, see_generation_locked, survey_locked, tally_tags_locked
from xlogmem._driver cimport Scope, enter_context, leave_context, memory_info
from xlogmem._order cimport OPAQUE, ORDINARY, SEALED, OrderState, empty_caches_locked
from xlogmem.resources.base cimport DeviceMemoryResource
from xlogmem.resources.pool cimport PoolFigures, PoolMemoryResource, PoolState, figures_as_dict, read_figures_locked
from xlogmem.resources.tally cimport Tally, forget_all
from xlogmem.streams cimport core_of


cdef enum:
    LINES = 5                       # tags that a message names

cdef dict DISCIPLINES = {ORDINARY: "ordinary", OPAQUE: "opaque", SEALED: "sealed"}


def survey(Core core not None, list pools):
    """Return totals, blocks, streams and the figures of pools of this runtime, all of one moment, as a dictionary.

    They are read in one acquisition of the lock, without the GIL and without a driver call; see `Snapshot`.
    """
    cdef OrderState* order = core.state.order
    cdef Survey found
    cdef vector[PoolState*] states
    cdef vector[PoolFigures] figures
    cdef size_t i
    for pool in pools:
        if (<PoolMemoryResource?>pool).state.order == order:
            states.push_back(&(<PoolMemoryResource>pool).state)
    figures.resize(states.size())
    with nogil:
        order.lock.lock()
        if not states.empty():
            empty_caches_locked(order, NULL, NULL)      # what streams and the host have there is free
        survey_locked(&core.state, &found)
        for i in range(states.size()):
            read_figures_locked(states[i], &figures[i])
        order.lock.unlock()
    if not states.empty() and core.resource is pools[0]:
        figures[0].used -= found.cached_bytes           # what was freed since the caches were emptied
    try:
        return {
            "live_bytes": found.live_bytes, "live_blocks": found.live_blocks,
            "pending_bytes": found.pending_bytes,
            "blocks": [fields_of_block(&found, &found.blocks[i]) for i in range(found.blocks.size())],
            "streams": [fields_of_stream(&found.streams[i]) for i in range(found.streams.size())],
            "pools": [figures_as_dict(&figures[i]) for i in range(figures.size())]}
    finally:
        forget_survey(&found)


cdef tuple fields_of_block(Survey* survey, Seen* seen):
    """Return the fields of `BlockRecord`, in its order."""
    cdef SeenUser* user
    cdef dict readers = {}
    cdef dict writers = {}
    cdef size_t i
    for i in range(seen.first, seen.end):
        user = &survey.users[i]
        (writers if user.writes else readers)[user.stream] = user.position
    return (seen.ptr, seen.nbytes, object_of(seen.tag), seen.generation,
            "freed" if seen.freed else "adopted" if seen.adopted else "live", seen.adopted,
            number_of(seen.stream), number_of(seen.home), readers, writers, seen.windows, seen.pins,
            None if seen.adopted else seen.resource)


cdef tuple fields_of_stream(SeenStream* stream):
    """Return the fields of `StreamRecord`, in its order."""
    return (stream.number, stream.handle, DISCIPLINES[stream.discipline], stream.alive, stream.pending_bytes)


cdef void forget_survey(Survey* survey) noexcept nogil:
    """Release the references of a survey."""
    cdef size_t i
    for i in range(survey.blocks.size()):
        release(survey.blocks[i].tag)
    survey.blocks.clear()


cdef object number_of(uint64_t stream):
    return stream - 1 if stream else None


def runtime_of(what not None):
    """Return the runtime that a stream, a block or a block's identity belongs to; None where it is not known."""
    if isinstance(what, DeviceBlock) and (<DeviceBlock>what).core is not None:
        return (<DeviceBlock>what).core
    stream = what if isinstance(what, Stream) else (
        (<DeviceBlock>what).stream if isinstance(what, DeviceBlock) else (<BlockId?>what).alloc_stream)
    return core_of(stream) if stream is not None and (<Stream>stream).ordering.core is not None else None


def handle_in(Core core not None, what):
    """Return the block, or the stream's handle, that an argument of `why` means in this runtime; None if it has none.
    A stream is registered, as `use` does."""
    try:
        return (<Runtime?>core).find_one(what, "why")
    except TypeError:                                   # no memory
        try:
            return core.stream_of(what)
        except (TypeError, StreamMisuseError):
            return None


# ---------------------------------------------------------------------------------------------- for messages
cdef str described(Core core, uint64_t generation, str name):
    """Return a name, and in parentheses size, tag and stream of a block that is not freed; an empty text for any other
    block."""
    cdef OrderState* order = core.state.order
    cdef Seen seen
    cdef bint found
    with nogil:
        order.lock.lock()
        found = see_generation_locked(&core.state, generation, &seen)
        order.lock.unlock()
    if not found:
        return ""
    tag = object_of(seen.tag)
    release(seen.tag)
    return f"{name} ({words_of(seen.nbytes, tag, number_of(seen.stream))})"


cdef str words_of(size_t nbytes, object tag, object stream):
    return bytes_in_words(nbytes) + (f", tag {shown(tag)}" if tag is not None else "") + (
        f", allocated on stream {stream}" if stream is not None else ", of no stream")


cdef object stale_handle(DeviceBlock block):
    """Make the error for a handle that owns no memory any more."""
    words = words_of(block.nbytes, block.tag, block.stream.id if block.stream is not None else None)
    alias = block.core is not None and block.owned.end == NULL and peek(block.block.generation) == block.generation
    what = "does not belong to this handle: the one that allocate() returned frees it" if alias else (
        "was freed, and cannot be used any more")
    return UseAfterFreeError(block.generation, f"block {block.generation} ({words}) {what}"
                             + recorded_lines(block.generation))


cdef int explain_shortage(Core core, object error, bint is_foreign, DeviceMemoryResource resource) except -1:
    """Add to the error of an allocation that found no memory the figures of memory in use, and the tags that have it.
    Figures that cannot be queried are left out.  The exception of a resource in Python keeps its text; if the same
    exception is raised again and again, it has one note."""
    if not is_foreign:
        error.args = (f"{error}; {figures_of_shortage(core, resource)}",)
    elif not hasattr(error, "__notes__"):
        error.add_note(figures_of_shortage(core, resource))
    return 0


cdef str figures_of_shortage(Core core, DeviceMemoryResource resource):
    cdef Figures figures
    cdef uint64_t pending
    known = recording
    by_tag = tags_and_totals(core, &figures, &pending)
    rows = rows_by_line(core, known) if known is not None else [
        (shown(tag), nbytes, count) for tag, nbytes, count in by_tag]
    parts = [f"the runtime has {bytes_in_words(figures.live_bytes)} live in {counted(figures.live_blocks, 'block')} "
             f"and {bytes_in_words(pending)} pending"]
    parts += figures_of_pool(resource)
    if not resource.table.host_accessible:
        parts += figures_of_device(core)
    return "; ".join(parts) + "".join([
        f"\n  {bytes_in_words(nbytes)} in {counted(count, 'block')}: {name}" for name, nbytes, count in rows[:LINES]])


cdef list rows_by_line(Core core, object known):
    """Sum up by tag; blocks without a tag count under the lines that allocated them, as far as the history has these
    lines."""
    cdef dict rows = {}
    blocks = [fields for fields in survey(core, [])["blocks"] if not fields[5]]         # adopted
    begun = known.beginnings_of_blocks([fields[3] for fields in blocks if fields[2] is None])
    for _, nbytes, tag, generation, *_ in blocks:
        event = begun.get(generation)
        line = event.place if event is not None else None
        name = shown(tag) + (printable(f", {line}") if line is not None else "")
        total, count = rows.get(name, (0, 0))
        rows[name] = total + nbytes, count + 1
    return sorted([(name, *row) for name, row in rows.items()], key=lambda row: -row[1])


def live_by_tag(Core core not None):
    """Return tag, live bytes and blocks, the largest first.  Thread-safe; no driver call."""
    cdef Figures figures
    cdef uint64_t pending
    return tags_and_totals(core, &figures, &pending)


cdef list tags_and_totals(Core core, Figures* figures, uint64_t* pending):
    """Return `live_by_tag`, and the totals of the same moment."""
    cdef OrderState* order = core.state.order
    cdef Tally tally
    cdef list rows = []
    cdef size_t i
    tally.keeps_totals = False
    with nogil:
        order.lock.lock()
        tally_tags_locked(&core.state, &tally, figures)
        pending[0] = core.state.pending_bytes
        order.lock.unlock()
    try:
        for i in range(tally.rows.size()):
            rows.append((object_of(tally.rows[i].tag), tally.rows[i].nbytes, tally.rows[i].count))
    finally:
        forget_all(&tally)
    return sorted(rows, key=lambda row: -row[1])


cdef list figures_of_pool(DeviceMemoryResource resource):
    cdef dict figures
    pool = find_layer(resource, PoolMemoryResource)
    if pool is None:
        return []
    figures = pool.statistics()
    return [f"the pool has {bytes_in_words(figures['free_bytes'])} free of {bytes_in_words(figures['pool_size'])}, the "
            f"largest piece {bytes_in_words(figures['largest_free_bytes'])}"]


cdef list figures_of_device(Core core):
    cdef size_t free_bytes = 0, total = 0
    cdef Failure ignored
    cdef Scope scope
    cdef int failed
    with nogil:
        failed = enter_context(core.state.order.context, &scope, &ignored)
        if not failed:
            failed = mark_lost_if_sticky(&core.state, memory_info(&free_bytes, &total, &ignored), &ignored)
            leave_context(&scope)
    return [] if failed else [f"the device has {bytes_in_words(free_bytes)} free of {bytes_in_words(total)}"]
