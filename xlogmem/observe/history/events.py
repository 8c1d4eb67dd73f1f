"""Events as Python objects."""
from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from xlogmem.check.frames import Frame, place_in

if TYPE_CHECKING:
    from xlogmem.observe.snapshots import BlockRecord

__all__ = ["ACCESSES", "BEGINNINGS", "ENDS", "KINDS", "NEEDING", "NEEDS", "Event", "name_of_block", "name_of_stream"]

# In the order of `EventKind` in xlogmem/observe/_history.pxd.
KINDS = ("", "allocate", "adopt", "free", "release", "evict", "free put off", "free failed", "use", "record use",
         "use needs", "free needs", "wait", "host wait", "fence", "hand-back", "reap", "out of memory", "window wait")
ACCESSES = ("unknown", "read", "write", "read_write")   # of uses
NEEDS = ("allocated", "written", "read")                # actions on a block that others have to wait for
BEGINNINGS = ("allocate", "adopt", "free failed")       # of blocks; after the last one it goes on
NEEDING = ("use needs", "free needs")                   # what waits are for
ENDS = ("free", "release", "evict")


class Event(NamedTuple):
    """Something that a runtime did.

    Which fields have a meaning depends on the kind; docs/history.md has the list.  `time_ns` are nanoseconds of the
    epoch, `open_ns` is how long the window of a use was open, `waited_ns` how long a wait held up its stream,
    None where that was not measured.  `stream` and `other` are the ids of streams
    (`Stream.id`), None for the host.  `stack` is the innermost frame first, and empty where none was recorded.

    Examples
    --------
    >>> runtime = xlogmem.get_runtime()
    >>> with xlogmem.record_history() as history:
    ...     runtime.allocate(1000, tag="join").free()
    >>> first, *others = [event for event in history.events() if event.tag == "join"]
    >>> first.kind, first.nbytes, first.tag
    ('allocate', 1000, 'join')
    """

    number: int
    time_ns: int
    kind: str
    thread: int
    device: int
    runtime: int
    stream: int | None
    other: int | None
    generation: int
    address: int
    nbytes: int
    tag: str | None
    access: str | None
    position: int
    open_ns: int
    stack: tuple[Frame, ...]
    waited_ns: int | None

    @property
    def place(self) -> Frame | None:
        """The line of the program itself, None where no stack was recorded."""
        return place_in(self.stack)


def name_of_block(of: Event | BlockRecord) -> str:
    """Name of a block for readers: its tag and, because other blocks may have the same tag, its generation."""
    return f"{of.tag} (block {of.generation})" if of.tag else f"block {of.generation}"


def name_of_stream(stream: int | None) -> str:
    """Name of a stream for readers, by its id; None is the host."""
    return "the host" if stream is None else f"stream {stream}"
