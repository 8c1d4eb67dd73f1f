"""Figures of a process and its runtimes: plain data, which passes through JSON."""
from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from xlogmem._base.texts import parsed_json
from xlogmem.observe.snapshots import take
from xlogmem.runtime import DeviceRuntime, existing_runtimes

__all__ = ["COUNTED", "Pool", "ProcessFigures", "RuntimeFigures", "Tag", "figures_of", "figures_of_process"]

FORMAT = 1                                  # of the JSON
TAGS = 10                                   # largest ones that are named
COUNTED = ("allocations", "frees", "uses", "waits", "host_waits", "conflict_waits", "conflicts")


@dataclass(frozen=True)
class Tag:
    """Live memory of one tag, or of several together.

    Attributes
    ----------
    name : str or None
        None: without a tag.
    nbytes, blocks : int
        Live bytes, and how many blocks.
    """

    name: str | None
    nbytes: int
    blocks: int


@dataclass(frozen=True)
class Pool:
    """A `PoolMemoryResource`; all in bytes.

    Attributes
    ----------
    size, free, largest_free, peak : int
        Of all chunks; free bytes, and the largest free span; the most that was handed out.
    """

    size: int
    free: int
    largest_free: int
    peak: int


@dataclass(frozen=True)
class RuntimeFigures:
    """One runtime at one moment.

    Attributes
    ----------
    number : int
        Of the runtime in its process, from 1.
    device : int
        The device.
    resource : str
        Where the bytes come from.
    live_bytes, live_blocks, pending_bytes, peak_bytes : int
        As in a `Snapshot`.
    tags : tuple of Tag
        The largest.
    further_tags : int
        How many tags are not among them.
    further : Tag
        The sums of those.
    pools : tuple of Pool
        From the top of the stack of resources.
    counters : dict of str to int
        Those of `DeviceRuntime.counters` that `COUNTED` names, since the runtime was made.
    """

    number: int
    device: int
    resource: str
    live_bytes: int
    live_blocks: int
    pending_bytes: int
    peak_bytes: int
    tags: tuple[Tag, ...]
    further_tags: int
    further: Tag
    pools: tuple[Pool, ...]
    counters: dict[str, int]


@dataclass(frozen=True)
class ProcessFigures:
    """All runtimes of a process at about one moment.

    Attributes
    ----------
    pid : int
        The process.
    program : str
        Its arguments.
    clock : float
        Seconds of its monotonic clock, from which rates are computed.
    runtimes : tuple of RuntimeFigures
        In the order in which they were made.
    """

    pid: int
    program: str
    clock: float
    runtimes: tuple[RuntimeFigures, ...]

    def to_dict(self) -> dict[str, Any]:
        """As dictionaries, lists, texts and numbers."""
        return {"format": FORMAT, **asdict(self)}

    def to_json(self) -> str:
        """`to_dict` as one line."""
        return json.dumps(self.to_dict())

    @classmethod
    def parse(cls, text: str | bytes) -> ProcessFigures:
        """The figures in a text of `to_json`.

        Raises
        ------
        ValueError
            The text is something else.
        """
        fields = parsed_json(text)
        if not isinstance(fields, dict) or fields.get("format") != FORMAT:
            raise ValueError(f"it is not of format {FORMAT}: the process has another release of xlogmem")
        try:
            runtimes = tuple(_runtime(one) for one in fields["runtimes"])
            return cls(_number(fields["pid"]), str(fields["program"]), float(fields["clock"]), runtimes)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"a field is missing or wrong: {error!r}") from error


def _runtime(fields: dict[str, Any]) -> RuntimeFigures:
    numbers = {name: _number(fields[name]) for name in (
        "number", "device", "live_bytes", "live_blocks", "pending_bytes", "peak_bytes", "further_tags")}
    return RuntimeFigures(
        **numbers, resource=str(fields["resource"]),
        tags=tuple(_tag(tag) for tag in fields["tags"]), further=_tag(fields["further"]),
        pools=tuple(Pool(**{name: _number(value) for name, value in pool.items()}) for pool in fields["pools"]),
        counters={name: _number(fields["counters"][name]) for name in COUNTED})


def _tag(fields: dict[str, Any]) -> Tag:
    name = fields["name"]
    return Tag(None if name is None else str(name), _number(fields["nbytes"]), _number(fields["blocks"]))


def _number(value: Any) -> int:
    number = int(value)
    if not 0 <= number < 1 << 64:
        raise ValueError("a number is not from 0 to 2**64 - 1")
    return number


def figures_of(runtime: DeviceRuntime, tags: int = TAGS) -> RuntimeFigures:
    """The figures of a runtime, with its `tags` largest tags.  Makes no driver call; costs a snapshot."""
    snapshot = take(runtime, with_ages=False)
    counters = runtime.counters()
    by_tag = [Tag(name, record.nbytes, record.blocks) for name, record in snapshot.by_tag().items()]
    rest = by_tag[tags:]
    return RuntimeFigures(
        number=runtime._number, device=snapshot.device_id, resource=snapshot.resource, live_bytes=snapshot.live_bytes,
        live_blocks=snapshot.live_blocks, pending_bytes=snapshot.pending_bytes, peak_bytes=snapshot.peak_bytes,
        tags=tuple(by_tag[:tags]), further_tags=len(rest),
        further=Tag(None, sum(tag.nbytes for tag in rest), sum(tag.blocks for tag in rest)),
        pools=tuple(Pool(int(pool["pool_size"]), int(pool["free_bytes"]), int(pool["largest_free_bytes"]),
                         int(pool["peak_bytes"])) for pool in snapshot.pools),
        counters={name: counters[name] for name in COUNTED})


def figures_of_process() -> ProcessFigures:
    """The figures of all runtimes that exist in this process."""
    program = " ".join(getattr(sys, "argv", []))        # missing while the interpreter starts
    return ProcessFigures(os.getpid(), program, time.monotonic(),
                          tuple(figures_of(runtime) for runtime in existing_runtimes()))
