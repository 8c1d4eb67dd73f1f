"""Random programs as data: which steps, with which draws, in which gap of another call.

A program is a seed and a length.  Each step has random numbers of its own, so leaving some out changes nothing for the
others: that is how a failing program shrinks to a few steps, and why ``SEED:2,17,31`` is enough to run those again.
Nothing here touches the library; `world` and `steps` do.
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

__all__ = ["ACROSS", "KINDS", "WITH_LIBRARIES", "Kind", "Program", "Step"]

# Gaps where another thread may get in.  The callbacks of the simulated driver put a step there, before or after the
# call, on the same thread: every interleaving can be repeated.
GAPS = ("cuEventRecord", "cuStreamWaitEvent", "cuEventSynchronize", "cuMemAllocFromPoolAsync", "cuMemFreeAsync",
        "cuStreamIsCapturing", "cuEventQuery", "cuCtxGetCurrent", "cuStreamGetId", "cuCtxSynchronize",
        "resource", "owner")

USES = {"allocate": 4, "open_window": 4, "close_window": 5, "use": 8, "free": 3, "drop": 2, "hidden": 5, "reap": 1,
        "abandon": 1, "record": 1, "single": 2, "look_up": 1, "stale": .7, "late": .4, "empty": .2, "collect": .2,
        "add_stream": .2, "account": .7}
ADOPTS = {"adopt": 2, "alias": .5, "overlap": .2, "adopt_pinned": 1.5, "access_on_host": 3,
          "allocate_for_host": 2}
STREAMS = {"new_stream": .8, "unregister": .8, "discipline": .6, "drop_stream": .6, "many_streams": .1}
GRAPHS = {"begin_graph": 2, "join_graph": 3, "hide_in_graph": 4, "end_graph": 1.2, "launch_graph": 6, "close_graph": .6,
          "drop_graph": .4}
CAPTURES = {"capture": .6, "end_capture": 1} | GRAPHS
FAILURES = {"fail": 2.5}
FORKS = {"fork": .15}
POOLS = {"trim": 1}
DEVICES = {"copy_between": 1.5, "free_after": .8, "visit": .5, "wrong_device": .3}
EXPORTS = {"export": 3, "export_unordered": .5, "consume": 3, "release_export": 1.5, "offer": 1, "take": .7}


@dataclass(frozen=True)
class Kind:
    """A kind of programs, with what they may contain."""

    name: str
    weights: dict[str, float] = field(hash=False)
    resources: tuple[str, ...] = ("async",)             # async, direct, pool, guard; in Python: stream, host
    upstreams: tuple[str, ...] = ()                     # of pools and guards, besides async and direct
    disciplines: tuple[str, ...] = ("ordinary",)
    foreign: bool = False
    neighbour: bool = False                             # a second runtime beside the one that is tested
    captures: bool = False
    failures: bool = False
    gaps: bool = False
    situations: bool = False


MIXED = ("ordinary", "ordinary", "opaque", "sealed")
EVERYTHING = (USES | ADOPTS | STREAMS | CAPTURES | FAILURES | POOLS | EXPORTS
              | {"adopt_from_neighbour": .7, "wrong_runtime": .3})

KINDS: tuple[Kind, ...] = (
    Kind("plain", USES),
    Kind("disciplines", USES, disciplines=MIXED),
    Kind("adopting", USES | ADOPTS | {"adopt_from_neighbour": 1, "wrong_runtime": .5}, disciplines=MIXED,
         neighbour=True),
    Kind("foreign", USES | ADOPTS | STREAMS, disciplines=MIXED, foreign=True),
    Kind("resources", USES | ADOPTS, resources=("direct", "stream", "host"), disciplines=MIXED),
    Kind("pools", USES | ADOPTS | POOLS, resources=("pool",), disciplines=MIXED),
    Kind("pools and streams", USES | ADOPTS | STREAMS | CAPTURES | POOLS, resources=("pool",), disciplines=MIXED,
         foreign=True, captures=True),
    Kind("pools in trouble", USES | ADOPTS | FAILURES | POOLS, resources=("pool",), upstreams=("stream", "host"),
         disciplines=MIXED, failures=True, gaps=True),
    Kind("gaps", USES | ADOPTS, disciplines=MIXED, resources=("async", "async", "stream", "host"), gaps=True),
    Kind("captures", USES | CAPTURES | STREAMS | {"adopt": 1}, disciplines=MIXED, foreign=True, captures=True),
    Kind("failing", USES | ADOPTS | FAILURES, resources=("async", "async", "direct", "stream", "host"),
         disciplines=MIXED, failures=True),
    Kind("situations", {name: weight / 2 for name, weight in USES.items()} | {"situation": 20}, disciplines=MIXED,
         situations=True),
    Kind("exports", USES | EXPORTS | {"adopt": 1}, disciplines=MIXED, resources=("async", "async", "direct", "pool"),
         neighbour=True),
    Kind("guards", USES | ADOPTS | STREAMS | CAPTURES | POOLS | EXPORTS, resources=("guard",),
         upstreams=("stream", "host"), disciplines=MIXED, foreign=True, neighbour=True, captures=True),
    Kind("guards in trouble", USES | ADOPTS | FAILURES | POOLS, resources=("guard",), upstreams=("stream", "host"),
         disciplines=MIXED, failures=True, gaps=True),
    Kind("graphs", USES | EXPORTS | {name: 2 * weight for name, weight in GRAPHS.items()}
         | {"adopt": 1, "allocate_for_host": 1, "access_on_host": 2, "new_stream": .4}, disciplines=MIXED, foreign=True,
         captures=True),
    Kind("everything", EVERYTHING, resources=("async", "async", "direct", "stream", "host", "pool", "guard"),
         upstreams=("stream", "host"), disciplines=MIXED, foreign=True, neighbour=True, captures=True, failures=True,
         gaps=True),
)

# With other libraries, in programs of their own: they are imported only for these.
WITH_LIBRARIES = Kind(
    "libraries", USES | ADOPTS | POOLS | EXPORTS | {"export_to_library": 6, "adopt_array": 3, "use_array": 4,
                                                    "account": 0, "take": 0},
    resources=("async", "async", "direct", "pool", "guard"), disciplines=MIXED)

# Across devices: each has a runtime, and blocks of any are used on streams of any.
ACROSS: tuple[Kind, ...] = (
    Kind("devices", USES | DEVICES, disciplines=MIXED),
    Kind("devices and streams", USES | ADOPTS | STREAMS | POOLS | DEVICES,
         resources=("async", "async", "direct", "pool"), disciplines=MIXED, foreign=True),
    Kind("devices and gaps", USES | ADOPTS | DEVICES, disciplines=MIXED, gaps=True),
    Kind("devices and captures", USES | STREAMS | CAPTURES | DEVICES, disciplines=MIXED, foreign=True, captures=True),
    Kind("failing devices", USES | ADOPTS | FAILURES | DEVICES, resources=("async", "async", "direct"),
         disciplines=MIXED, failures=True),
)

# Steps that several threads may take at once: no gap, no capture.
IN_THREADS = (USES | ADOPTS | STREAMS | POOLS | EXPORTS
              | {"adopt_from_neighbour": .7, "wrong_runtime": .3, "account": 0})
CROWDS: tuple[Kind, ...] = (
    Kind("threads", IN_THREADS, resources=("async", "async", "async", "stream", "pool", "pool", "guard"),
         disciplines=MIXED, foreign=True, neighbour=True),
    Kind("threads in trouble", IN_THREADS | FAILURES | FORKS, resources=("async", "async", "direct", "stream", "pool"),
         upstreams=("stream", "host"), disciplines=MIXED, foreign=True, neighbour=True, failures=True),
)
ACROSS_IN_CROWDS: tuple[Kind, ...] = (
    Kind("devices in threads", USES | ADOPTS | STREAMS | POOLS | DEVICES | {"account": 0},
         resources=("async", "async", "direct", "pool"), disciplines=MIXED, foreign=True),
)


@dataclass(frozen=True)
class Step:
    """One step: `draws` are its random numbers; `gap` the (call, occasion, when) where it runs, None: in its turn."""

    number: int
    name: str
    draws: Random = field(compare=False)
    gap: tuple[str, int, str] | None


@dataclass(frozen=True)
class Program:
    """The program of a seed; `kept` are the steps that are left after shrinking (None: all); `libraries`
    are the other libraries that take part, by name; `devices` is how many take part."""

    seed: int
    length: int = 160
    threads: int = 1
    kept: tuple[int, ...] | None = None
    libraries: tuple[str, ...] = ()
    devices: int = 1

    @property
    def kind(self) -> Kind:
        if self.libraries:
            return WITH_LIBRARIES
        alone, crowds = (KINDS, CROWDS) if self.devices == 1 else (ACROSS, ACROSS_IN_CROWDS)
        kinds = crowds if self.threads > 1 else alone
        return kinds[self.seed % len(kinds)]

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(range(self.length)) if self.kept is None else self.kept

    def step(self, number: int) -> Step:
        draws = Random(f"{self.seed}.{number}")
        weights = self.kind.weights
        name = draws.choices(list(weights), list(weights.values()))[0]
        gap = None
        if self.kind.gaps and draws.random() < .25:
            gap = draws.choice(GAPS), draws.randint(1, 3), draws.choice(["before", "after"])
        return Step(number, name, draws, gap)

    def keeping(self, numbers: tuple[int, ...]) -> Program:
        return replace(self, kept=numbers)

    def __str__(self) -> str:
        """The text that ``--replay`` takes for this program."""
        return str(self.seed) if self.kept is None else f"{self.seed}:{','.join(map(str, self.kept))}"

    @classmethod
    def parse(cls, text: str, length: int = 160, threads: int = 1, devices: int = 1) -> Program:
        seed, _, kept = text.partition(":")
        return cls(int(seed), length, threads, tuple(map(int, kept.split(","))) if kept else None, devices=devices)
