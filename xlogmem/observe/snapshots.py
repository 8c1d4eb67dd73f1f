"""Snapshots of memory for people: `DeviceRuntime.snapshot`.

A snapshot is plain data and refers to nothing: it may be kept, compared with a later one, and written to a file.
"""
from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import starmap
from typing import Any, NamedTuple

from xlogmem import blocks
from xlogmem._base.texts import as_html, shown
from xlogmem._base.units import counted, format_bytes
from xlogmem.blocks import Core, survey
from xlogmem.resources import DeviceMemoryResource, PoolMemoryResource
from xlogmem.resources.layers import find_layers

__all__ = ["BlockRecord", "ResourceRecord", "Snapshot", "StreamRecord", "TagRecord", "take"]

SHOWN = 10                                  # tags in a text and in a table


class BlockRecord(NamedTuple):
    """A block in a snapshot.

    Attributes
    ----------
    address, nbytes : int
        Where it is, and the bytes requested.
    tag : str or None
        The label given to the allocation.
    generation : int
        Its identity.  A later block has a higher one, but among streams with caches of a pool only roughly.
    state : str
        ``"live"``; ``"adopted"``: memory of another library; ``"freed"``: requested, and put off by an open window, an
        export or a capture, or being carried out.
    adopted : bool
        Whether it is memory of another library, in whichever state.
    stream, home : int or None
        The ids of the streams on which it was allocated, and will be freed.
    readers, writers : dict of int to int
        By the id of a stream, the newest position at which the block was read, or written, there, as far as a next
        user has to be ordered after it.
    windows, pins : int
        Uses that are still open, and exports and graphs that hold it.
    resource : int or None
        The place of its resource in `Snapshot.resources`; None for adopted memory.
    age_ns : int or None
        How long ago it was allocated, or adopted.  Known while a history is recorded that still has its beginning; see
        `xlogmem.record_history`.
    line : str or None
        Where in the program that was, as ``"file:line"``, where that history has stacks.
    """

    address: int
    nbytes: int
    tag: str | None
    generation: int
    state: str
    adopted: bool
    stream: int | None
    home: int | None
    readers: dict[int, int]
    writers: dict[int, int]
    windows: int
    pins: int
    resource: int | None
    age_ns: int | None = None
    line: str | None = None


class StreamRecord(NamedTuple):
    """A stream in a snapshot.

    Attributes
    ----------
    id : int
        As `Stream.id`.
    handle : int
        The driver's; one that is not registered any more may be another stream's by now.
    discipline : str
        As `Stream.discipline`.
    registered : bool
        False: it was unregistered, and something is still ordered after it.
    pending_bytes : int
        Freed there, and not seen complete.
    """

    id: int
    handle: int
    discipline: str
    registered: bool
    pending_bytes: int


class TagRecord(NamedTuple):
    """The blocks of one tag.

    Attributes
    ----------
    nbytes, blocks : int
        Their bytes, and how many there are; adopted memory does not count.
    """

    nbytes: int
    blocks: int


class ResourceRecord(NamedTuple):
    """The blocks of one resource.

    Attributes
    ----------
    name : str
        Where the bytes come from, as its `repr` has it.
    nbytes, blocks : int
        Their bytes, and how many there are.
    """

    name: str
    nbytes: int
    blocks: int


@dataclass(frozen=True)
class Snapshot:
    """The memory of a runtime at one moment.

    Attributes
    ----------
    device_id : int
        The device.
    resource : str
        Where the bytes come from, as its `repr` has it: the runtime's own resource.
    live_bytes, live_blocks : int
        Allocated and not freed: the sums of `blocks` without adopted memory.
    pending_bytes : int
        Freed, and not seen complete: the sum of `streams`.  No stream is queried for a snapshot;
        `DeviceRuntime.pending_bytes` does that first.
    peak_bytes : int
        `DeviceRuntime.peak_bytes`, read right after the rest.
    blocks : tuple of BlockRecord
        In no order that means something.  What streams keep in caches for further blocks is free memory.
    streams : tuple of StreamRecord
        All that the runtime has in its tables.
    pools : tuple of dict
        Of each `PoolMemoryResource` in the stacks of resources, from the top, what `PoolMemoryResource.statistics`
        says.
    resources : tuple of ResourceRecord
        Of each resource, the runtime's own first; see `DeviceRuntime.resources`.

    Examples
    --------
    >>> runtime = xlogmem.DeviceRuntime()
    >>> block = runtime.allocate("1MiB", tag="join")
    >>> seen = runtime.snapshot()
    >>> seen.by_tag()["join"].nbytes
    1048576
    >>> seen.live_bytes
    1048576
    """

    device_id: int
    resource: str
    live_bytes: int
    live_blocks: int
    pending_bytes: int
    peak_bytes: int
    blocks: tuple[BlockRecord, ...]
    streams: tuple[StreamRecord, ...]
    pools: tuple[dict[str, int | float], ...]
    resources: tuple[ResourceRecord, ...]

    def by_tag(self) -> dict[str | None, TagRecord]:
        """Bytes and blocks of each tag, the largest first; None stands for all without a tag."""
        found: dict[str | None, TagRecord] = {}
        for block in self.blocks:
            if not block.adopted:
                nbytes, blocks = found.get(block.tag, (0, 0))
                found[block.tag] = TagRecord(nbytes + block.nbytes, blocks + 1)
        return dict(sorted(found.items(), key=lambda item: -item[1].nbytes))

    def to_dict(self) -> dict[str, Any]:
        """All of it as dictionaries, lists, texts and numbers."""
        return {**self.__dict__, "blocks": [block._asdict() for block in self.blocks],
                "streams": [stream._asdict() for stream in self.streams], "pools": [dict(pool) for pool in self.pools],
                "resources": [resource._asdict() for resource in self.resources]}

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """`to_dict` as JSON, where the ids of readers and writers are texts.

        Parameters
        ----------
        path : path, optional
            A file that is written, too.
        """
        import json

        text = json.dumps(self.to_dict())
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text + "\n")
        return text

    def to_dataframe(self) -> Any:
        """The blocks as a `pandas.DataFrame`, a row for each.

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        try:
            import pandas  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            raise ImportError("Snapshot.to_dataframe needs pandas, which is not installed: pip install pandas, or use "
                              "to_dict()") from error
        return pandas.DataFrame(self.blocks, columns=list(BlockRecord._fields))

    def __repr__(self) -> str:
        return (f"<Snapshot device={self.device_id} live={format_bytes(self.live_bytes)} in "
                f"{counted(self.live_blocks, 'block')}, pending={format_bytes(self.pending_bytes)}>")

    def __str__(self) -> str:
        lines = [repr(self), *(f"  {name:<12} {figure}" for name, figure in _totals(self))]
        return "\n".join(lines + [f"  {nbytes:>12} in {counted(blocks, 'block')}: {name}"
                                  for name, nbytes, blocks in _holders(self)])

    def _repr_html_(self) -> str:
        """Totals and the largest holders, for notebooks."""
        return self._as_html(repr(self))

    def _as_html(self, title: str) -> str:
        return as_html(title, (("", ""), _totals(self)), (("tag", "bytes", "blocks"), _holders(self)))


def _totals(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Totals of a snapshot, as pairs of a name and a text."""
    totals = [("live", f"{format_bytes(snapshot.live_bytes)} in {counted(snapshot.live_blocks, 'block')}"),
              ("pending", format_bytes(snapshot.pending_bytes)), ("peak", format_bytes(snapshot.peak_bytes))]
    if len(snapshot.resources) > 1:
        totals += [("of these", f"{format_bytes(record.nbytes)} in {counted(record.blocks, 'block')}: {record.name}")
                   for record in snapshot.resources]
    for pool in snapshot.pools:
        free, largest = format_bytes(int(pool["free_bytes"])), format_bytes(int(pool["largest_free_bytes"]))
        totals.append(("pool", f"{free} of {format_bytes(int(pool['pool_size']))} free in "
                               f"{counted(int(pool['free_spans']), 'place')} of "
                               f"{counted(int(pool['chunks']), 'chunk')}, the largest {largest}"))
    return totals


def _holders(snapshot: Snapshot) -> list[tuple[str, str, int]]:
    """The largest tags, and the rest in one line, as texts."""
    tags = list(snapshot.by_tag().items())
    rows = [(shown(tag), format_bytes(record.nbytes), record.blocks)
            for tag, record in tags[:SHOWN]]
    if rest := [record for _, record in tags[SHOWN:]]:
        rows.append((counted(len(rest), "more tag"), format_bytes(sum(record.nbytes for record in rest)),
                     sum(record.blocks for record in rest)))
    return rows


def take(runtime: Core, *, with_ages: bool = True) -> Snapshot:
    """See `DeviceRuntime.snapshot`.  `with_ages`: and with lines, for which a history is looked through."""
    pools = {id(pool): pool for resource in runtime.resources for pool in find_layers(resource, PoolMemoryResource)}
    found = survey(runtime, [*pools.values()])
    blocks_seen = _records(found["blocks"], with_ages)
    return Snapshot(
        runtime.device_id, repr(runtime.resource), found["live_bytes"], found["live_blocks"], found["pending_bytes"],
        runtime.peak_bytes, blocks_seen, tuple(map(StreamRecord._make, found["streams"])), tuple(found["pools"]),
        _by_resource(runtime.resources, blocks_seen))   # which may be more by now


def _by_resource(resources: tuple[DeviceMemoryResource, ...],
                 blocks_seen: tuple[BlockRecord, ...]) -> tuple[ResourceRecord, ...]:
    totals = [[0, 0] for _ in resources]
    for block in blocks_seen:
        if block.resource is not None:
            totals[block.resource][0] += block.nbytes
            totals[block.resource][1] += 1
    return tuple(ResourceRecord(repr(resource), *total) for resource, total in zip(resources, totals, strict=True))


def _records(found: list[Any], with_ages: bool) -> tuple[BlockRecord, ...]:
    """The blocks, with details of a history that is being recorded."""
    records = tuple(starmap(BlockRecord, found))
    known = blocks.recording
    if known is None or not with_ages:
        return records
    now = time.time_ns()
    begun = known.beginnings_of_blocks([record.generation for record in records])
    return tuple(_with_beginning(record, begun.get(record.generation), now) for record in records)


def _with_beginning(record: BlockRecord, event: Any, now: int) -> BlockRecord:
    if event is None:
        return record
    return record._replace(age_ns=max(now - event.time_ns, 0), line=str(event.place) if event.place else None)
