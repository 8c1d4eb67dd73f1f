"""One program's world: a runtime, streams, blocks, and the side of the bargain that the program itself has to keep.

The program promises what any user promises: no launch outside a window, no use after a free, data that two launches
both write is claimed by one of them, unrecorded work only where the rules allow it.  This package keeps that promise,
so that whatever goes wrong is xlogmem's: a race that the simulated driver reports, a word on the GPU that is not what
was written last, a byte, an event or an owner that is left over.

A `World` is made in layers, each of which uses only those below: `bookkeeping`, `streams`, `blocks`, `claims`,
`libraries`.
`models` is what they keep books of, `calls` and `callbacks` are how program and library call each other, and `ending`
closes a world and looks for what is left.  What programs do stands in `steps`.

Nothing here is for users.
"""
from __future__ import annotations

from random import Random
from typing import Any

from xlogmem_bench._loops import Held

from xlogmem._devices import enable_peer_access
from xlogmem.interop.devices import DeviceState
from xlogmem.resources import (
    AsyncMemoryResource,
    DeviceMemoryResource,
    DirectMemoryResource,
    GuardResourceAdaptor,
    GuardViolation,
    PoolMemoryResource,
    ResourceAdaptor,
)
from xlogmem.runtime import DeviceRuntime, existing_runtime, forget_runtime, set_runtime
from xlogmem.streams import StreamPool
from xlogmem_selftest.libraries import Library
from xlogmem_selftest.programs import Kind
from xlogmem_selftest.world.adaptors import adapted
from xlogmem_selftest.world.blocks import ROOM
from xlogmem_selftest.world.bookkeeping import refused
from xlogmem_selftest.world.callbacks import Owner, PinnedOwner, Scripted
from xlogmem_selftest.world.calls import CODES, ForeignStream, NothingToDo, sure, tools
from xlogmem_selftest.world.claims import SCRATCH
from xlogmem_selftest.world.ending import alive, end
from xlogmem_selftest.world.libraries import Libraries
from xlogmem_selftest.world.models import (
    PARTS,
    READ,
    READ_WRITE,
    WRITE,
    CapturedItem,
    Claim,
    Export,
    GraphCapture,
    GraphUse,
    Item,
    ProgramGraph,
    ProgramStream,
    Window,
)

__all__ = ["CODES", "PARTS", "READ", "READ_WRITE", "ROOM", "SCRATCH", "WRITE", "CapturedItem", "Claim", "Export",
           "ForeignStream", "GraphCapture", "GraphUse", "Item", "NothingToDo", "Owner", "PinnedOwner", "ProgramGraph",
           "ProgramStream", "Window", "World", "end", "refused", "sure", "tools"]


class World(Libraries):
    """Everything that one program works on.

    Parameters
    ----------
    kind : Kind
        What the program may contain.
    seed : int
        Of the choices made here.
    simulator : xlogmem.sim.Simulator or None
        The simulated driver, if that is what is loaded.
    protect : bool
        Whether launches are recorded; without, the oracle has to find something.
    threads : int
        That will run steps at once.
    policy : str or None
        See `DeviceRuntime`; None chooses one.
    libraries : dict of Library
        Other libraries that take part, by name.
    devices : int
        How many take part, each with a runtime.
    """

    def __init__(self, kind: Kind, seed: int, simulator: Any, *, protect: bool = True, threads: int = 1,
                 policy: str | None = None, libraries: dict[str, Library] | None = None,
                 devices: int = 1) -> None:
        super().__init__(kind, simulator, protect, threads, devices)
        rng = Random(f"world {seed}")
        self.policy = policy or rng.choice(["adaptive", "lazy", "precise"])
        self.sizes = (256, 512, 1024, 4096) if simulator else (4096, 16384, 65536, 1 << 18)
        self.states: dict[int, DeviceState] = {}        # of buffers, by device
        self.neighbour_state: DeviceState | None = None
        self.holds: list[Held] = []                     # of the C table, by device
        self.seed = seed
        self.host_pools: dict[int, PoolMemoryResource] = {}     # of page-locked memory, by device
        self.guard: GuardResourceAdaptor | None = None
        self.found_by_guard: list[GuardViolation] = []
        with self.context():
            if simulator:
                simulator.reset(rng.choice(["eager", "min", "max", "seeded"]), seed % 1000)
            self.before = alive(simulator, devices)
            self.adaptors_rng = Random(f"adaptors {seed}")
            self.runtime = self._runtime(rng)           # may raise: before anything that has to be freed
            self.runtimes = [self.runtime, *[self._runtime(rng, device) for device in self.devices[1:]]]
            self.processes_own: list[DeviceRuntime | None] = []
            if devices > 1:
                self._be_peers()
            self.allocate_areas()
            self.neighbour = DeviceRuntime(stream_pool=StreamPool(max_streams=4)) if kind.neighbour else None
            self._first_streams(rng)
            self.add_libraries(rng, libraries or {})

    def _be_peers(self) -> None:
        """Each device has access to the others; and bare handles of streams mean the runtimes of this world."""
        for device in self.devices:
            for peer in self.devices:
                if device != peer:
                    enable_peer_access(device, peer)
        for device, runtime in enumerate(self.runtimes):
            self.processes_own.append(existing_runtime(device))
            set_runtime(runtime, instead_of=self.processes_own[device])

    def leave_process(self) -> None:
        """The process has the runtimes that it had before."""
        for runtime, former in zip(self.runtimes, self.processes_own, strict=False):
            forget_runtime(runtime)
            if former is not None:
                set_runtime(former)
        self.processes_own.clear()

    def runtime_for(self, rng: Random, stream: ProgramStream) -> DeviceRuntime:
        """One that a recorder on the stream may be of: that of its device, or at times of another one."""
        return self.runtimes[self.draw_device(rng)] if rng.random() < .3 else self.runtime_of(stream)

    def _runtime(self, rng: Random, device: int = 0) -> DeviceRuntime:
        resource = self._resource(rng.choice(self.kind.resources), rng, device)
        resource = adapted(resource, self.adaptors_rng, self._room())
        self.limited = self.limited or isinstance(resource, ResourceAdaptor)
        return DeviceRuntime(device, policy=self.policy, stream_pool=StreamPool(device, max_streams=32),
                             resource=resource)

    def _resource(self, name: str, rng: Random, device: int = 0) -> DeviceMemoryResource:
        if name == "pool":
            return self._pool(rng, device)
        if name == "async":
            return AsyncMemoryResource(device)
        if name == "guard":
            return self._guard(rng)
        return DirectMemoryResource(device) if name == "direct" else Scripted(self, name)

    def _pool(self, rng: Random, device: int = 0) -> PoolMemoryResource:
        """Over any resource; small chunks, so that it splits, coalesces and expands; some are too small for the
        program."""
        upstream = self._resource(rng.choice(["async", "async", "direct", *self.kind.upstreams]), rng, device)
        upstream = adapted(upstream, self.adaptors_rng, 4 * self._room())
        largest = max(self.sizes)
        limited = rng.random() < .3
        self.limited |= limited
        most = self._room() if limited else None
        return PoolMemoryResource(upstream, rng.choice([None, 2 * largest]), most,
                                  chunk_size=rng.choice([largest, 2 * largest, 8 * largest]),
                                  stream_cache_size=rng.choice([None, 0, 8 * largest, 8 * largest]))

    def _room(self) -> int:
        """Bytes that are too few for some programs."""
        return (6 if self.threads == 1 else 24) * max(self.sizes)

    def _guard(self, rng: Random) -> GuardResourceAdaptor:
        """Around any resource; what it finds is a violation, because the program keeps to its memory."""
        upstream = self._resource(rng.choice(["async", "async", "direct", "pool", *self.kind.upstreams]), rng)
        self.guard = GuardResourceAdaptor(
            upstream, canary=rng.choice([256, 1024]), poison=rng.random() < .9, depth=rng.choice([0, 4]),
            quarantine_bytes=rng.choice([0, 4 * max(self.sizes), 64 << 20]), quarantine_age=rng.choice([None, None, 3]),
            on_violation=self.found_by_guard.append)
        return self.guard

    def _first_streams(self, rng: Random) -> None:
        for device, runtime in enumerate(self.runtimes):
            default = runtime.default_stream
            self.defaults.append(ProgramStream(0, "own", default, default.handle, "ordinary", device))
            for _ in range((3 if self.simulator else 6) if len(self.devices) == 1 else 2):
                self.add_own(rng, device)
            if self.kind.foreign and rng.random() < .4:
                self.add_stream("legacy", rng.choice([0, 1]), 0, "opaque", device=device)
            if self.kind.foreign and rng.random() < .4 and self.threads == 1:
                self.add_stream("thread", 2, 2, "opaque", device=device)
