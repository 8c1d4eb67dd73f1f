"""The rules that the model can do without, one by one, and what the other modules share.

Each switch of `Rules` is a part of one rule of docs/ordering.md, and names that rule.  All switches are on in the right
rules.  Turning one off plants a defect: test_model_counterexamples.py has the smallest program that breaks then, and
random programs find it too.

Operations that release the runtime's lock are generators.  **A `yield` is the place where the lock is released**, so
another thread may run there; everything between two of them happens under the lock.  Every driver call stands between
two of them (docs/ordering.md, no-call-under-lock), and `unlocked` is the usual way to make one.
"""
from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from ordering_model.driver import DriverError

Result = TypeVar("Result")
Operation = Generator[None, None, Result]

READ, WRITE, READ_WRITE = "read", "write", "read-write"             # the access of a use
ALLOCATED, WRITTEN, HAS_READ = "allocated", "written", "has-read"   # the kind of a frontier entry


class UseAfterFree(Exception):
    """The block was freed."""


class StreamMisuse(Exception):
    """The stream cannot be used so: it is unregistered, in use or capturing."""


REFUSED = (DriverError, StreamMisuse)       # why an operation on a live block fails


def run(operation: Operation[Result]) -> Result:
    """Execute one operation without interference of other threads."""
    try:
        while True:
            next(operation)
    except StopIteration as stop:
        result: Result = stop.value
        return result


def unlocked(call: Callable[..., Result], *arguments: Any) -> Operation[Result]:
    """Make one driver call without the lock.  Its failure is raised once the lock is taken again."""
    yield
    try:
        result = call(*arguments)
    except DriverError as error:
        failure = error
    else:
        yield
        return result
    yield
    raise failure


def switch(rule: str, off: str) -> Any:
    """A part of the named rule, and what the runtime does without it."""
    return field(default=True, metadata={"rule": rule, "off": off})


@dataclass(frozen=True)
class Rules:
    policy: str = "adaptive"                # lazy, precise or adaptive
    ring: int = 4                           # fences that a stream keeps

    # Positions, fences and clocks
    position_after_work: bool = switch("position-after-work", "a launch has its position from the prepare")
    allocation_position_after_call: bool = switch("allocation-entry", "the position is taken before the call")
    clock_after_wait: bool = switch("clock-after-wait", "the clock rises before the wait is queued, or fails")
    fence_sampled_before_record: bool = switch(
        "fence-sampled-before-record", "a fence claims the position that the stream has after the record call")
    fence_pinned: bool = switch("fence-pinned", "an event is recorded again while a call is about to wait for it")

    # Unrecorded work
    fresh_hides_work: bool = switch("unrecorded-work", "new blocks are not protected, but for opaque streams")
    raising_advances: bool = switch("new-position-covers", "an entry is raised to a position that exists already")
    raises_every_entry: bool = switch("raise-entries", "only the allocation entry of a fresh block is raised")
    fresh_until_filed: bool = switch("fresh-until-filed", "a block stops being fresh at the prepare")
    fresh_entries_stay: bool = switch("fresh-entries-stay", "the first write elsewhere removes the home's entries")
    opaque_counts_as_written: bool = switch("opaque-counts-as-written", "a read on an opaque stream is a read")
    opaque_entries_stay: bool = switch("opaque-entries-stay", "a write removes entries of opaque streams")

    # Windows
    windows_open_with_validation: bool = switch("windows-open-with-validation", "windows open after the waits")
    capturing_source: bool = switch("capturing-source", "a fence is recorded on a stream that captures")
    write_removes_snapshot: bool = switch("write-removes-snapshot", "a write removes all entries")
    last_close_claims: bool = switch("last-close-claims", "a close looks for retired blocks after it dropped the lock")
    hands_back: bool = switch("hand-back", "an opaque home is not ordered after launches elsewhere")
    late_record_files: bool = switch("record-on-retired", "a use of a retired block is refused and not filed")

    # Frees
    free_waits_for_windows: bool = switch("free-inside-window", "a free inside a window is carried out at once")
    leaves_index_first: bool = switch("free-steps", "a block leaves the address index after its bytes were returned")
    marker_after_free: bool = switch("marker-after-free", "the marker is taken before the free is queued")

    # The pool
    pool_free_advances: bool = switch("pool-free", "a free takes no new position of the home")
    chunk_has_frontier: bool = switch("pool-chunk", "the rest of a new chunk carries no position")
    pool_allocation_waits: bool = switch("pool-allocate", "an allocation does not wait for the frontier of its memory")
    join_keeps_both: bool = switch("pool-split-join", "joined memory has the frontier of one part")

    # Streams that end
    unregister_refuses_use: bool = switch("unregister", "a stream is unregistered while it is in use")
    unregister_checks_again: bool = switch("unregister", "the checks are not repeated after the last fence")
    unregister_advances: bool = switch("tombstone", "an older fence may be the last one")
    successor_files_last: bool = switch("successor", "a block whose home moved has no entry of the former home")


@dataclass(frozen=True)
class HostRules(Rules):
    """The rules of the host's side, of which docs/ordering.md has the first ones."""

    host_write_waits_for_readers: bool = switch("host-access", "a host write does not wait for readers")
    host_read_waits_for_writers: bool = switch("host-access", "a host read does not wait for writers")
    host_raises_entries: bool = switch("host-access", "entries with unrecorded work are taken as they are")
    host_opens_window: bool = switch("host-access", "a free inside a host access is carried out at once")
    host_keeps_entries: bool = switch("host-files-none", "a host write removes the entries that it waited for")
    host_looks_again: bool = switch("host-await", "an awaited access opens without a second look")
    host_first_is_idle: bool = switch("host-first", "the host gets memory whose last uses are not complete")
    host_free_keeps_frontier: bool = switch("host-free", "freed host memory has no frontier")
    host_poll_reads_fence: bool = switch("poll-completes", "a poll raises the clock to the newest position")


@dataclass(frozen=True)
class GraphRules(HostRules):
    """The rules of captures and of launches of graphs."""

    graph_own_time: bool = switch("graph-time", "clocks of outside count inside a capture")
    graph_edges: bool = switch("graph-edges", "a use inside a capture waits for no other")
    graph_joins: bool = switch("graph-joins", "the end leaves streams of the capture out")
    graph_launch_reads: bool = switch("graph-is-a-use", "a launch does not name what the graph reads")
    graph_launch_writes: bool = switch("graph-is-a-use", "a launch reads what the graph writes")
    graph_holds: bool = switch("graph-holds", "a block of a graph is freed before the graph is closed")
    graph_memory_is_ordered: bool = switch("graph-memory", "memory is allocated inside again without an edge")
    graph_foreign_is_opaque: bool = switch("graph-foreign", "work that another library captures is not expected")


@dataclass(frozen=True)
class RangeRules(GraphRules):
    """The rules of launches that name ranges of a block."""

    range_begins_with_entries: bool = switch("range-parts", "a part begins without entries")
    range_begins_fresh: bool = switch("range-parts", "a part begins as if it had been used elsewhere")
    range_begins_at_home: bool = switch("range-parts", "a part has no home, so nothing is handed back")
    range_cut_is_used: bool = switch("range-parts", "a launch that cuts a part which it has named uses one side")
    range_record_joins: bool = switch("range-join", "work without a window is filed beside the parts")
    range_join_keeps_newest: bool = switch("range-join", "of each kind and stream the entry of the last part stays")
    range_join_keeps_fresh: bool = switch("range-join", "a joined block is not fresh")
    range_close_hands_over: bool = switch("range-window", "what is filed in a part after a join is lost")
    range_window_counts: bool = switch("range-window", "a free does not wait for windows on parts")
    range_window_is_whole: bool = switch("range-window", "a part is cut inside a window")
    range_not_beside_whole: bool = switch("range-whole", "parts begin inside a window on all of the block")
    range_merge_keeps_entries: bool = switch("range-shared", "merged parts have the entries of the first")
    range_merge_waits: bool = switch("range-shared", "parts are merged inside a window")
    range_shared_stays_fresh: bool = switch("range-fresh", "a use of a range ends the freshness of all of its part")
    range_unowned_is_whole: bool = switch("range-unowned", "ranges of a fresh block of an unowned stream have parts")


def switches(rules: type[Rules]) -> dict[str, str]:
    """The switches that this class adds to its base class, and the rule that each names."""
    of_base = {known.name for base in rules.__mro__[1:] if issubclass(base, Rules) for known in fields(base)}
    return {known.name: known.metadata["rule"] for known in fields(rules)
            if "rule" in known.metadata and known.name not in of_base}
