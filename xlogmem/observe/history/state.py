"""Owners of memory at this moment, in sentences: from a snapshot, with or without a history."""
from __future__ import annotations

from collections.abc import Iterator

from xlogmem._base.units import format_bytes, format_duration
from xlogmem.observe.history.events import name_of_block, name_of_stream
from xlogmem.observe.snapshots import BlockRecord, Snapshot

__all__ = ["of_block", "of_stream"]


def of_stream(snapshot: Snapshot, stream: int) -> Iterator[str]:
    """The pending bytes behind a stream, and the frees on it that are put off, as sentences."""
    for record in snapshot.streams:
        if record.id == stream and record.pending_bytes:
            yield (f"{format_bytes(record.pending_bytes)} is pending behind stream {stream}: freed there, and not seen "
                   "complete")
    for block in snapshot.blocks:
        if block.state == "freed" and block.home == stream:
            yield _put_off(block)


def of_block(snapshot: Snapshot, generation: int) -> Iterator[str]:
    """The state of a block as sentences: address, what keeps it, and the users that its free would be ordered after."""
    for block in snapshot.blocks:
        if block.generation == generation:
            name = name_of_block(block)
            yield f"{name} is {block.state}, {format_bytes(block.nbytes)} at {block.address:#x}{_beginning(block)}"
            if block.state == "freed":
                yield _put_off(block)
            elif kept := _kept(block):
                yield f"a free of {name} would be put off: {kept}"
            if users := sorted(_users(block)):
                yield (f"a free of {name} on {name_of_stream(block.home)} would be ordered after {len(users)} "
                       f"{'users' if len(users) > 1 else 'user'}: {', '.join(users)}")


def _users(block: BlockRecord) -> Iterator[str]:
    """The users of a block on other streams than the one that it will be freed on."""
    for access, streams in (("read", block.readers), ("written", block.writers)):
        for stream in streams:
            if stream != block.home:
                yield f"{access} on stream {stream}"


def _beginning(block: BlockRecord) -> str:
    where = f", {'adopted' if block.adopted else 'allocated'} on {name_of_stream(block.stream)}"
    when = f" {format_duration(block.age_ns)} ago" if block.age_ns is not None else ""
    return where + when + (f" ({block.line})" if block.line else "")


def _kept(block: BlockRecord) -> str:
    """The open uses of a block, and its exports and graphs, as text; empty if there are none."""
    uses = f"{block.windows} {'uses are' if block.windows > 1 else 'use is'} still open"
    pins = f"{block.pins} {'exports or graphs hold' if block.pins > 1 else 'export or graph holds'} it"
    return " and ".join([uses] * bool(block.windows) + [pins] * bool(block.pins))


def _put_off(block: BlockRecord) -> str:
    return f"the free of {name_of_block(block)} on {name_of_stream(block.home)} is put off: " + (
        _kept(block) or "a graph is being captured, or the next call carries it out")
