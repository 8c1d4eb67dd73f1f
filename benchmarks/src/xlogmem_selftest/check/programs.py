"""Random programs: each step makes calls of the simulated driver, and the oracle follows those that were accepted.

Each step draws its own numbers, so steps can be left out: that is how a program is shortened.
"""
from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

from xlogmem import sim
from xlogmem_selftest.check.oracle import Block, Capture, Event, Oracle, Stream

__all__ = ["Program", "World", "play"]

DEVICES, UNIT, ROOM = 2, 64, 1024
POLICIES = ("eager", "min", "max", "seeded")
LENGTHS = (10, 25, 50, 90)
WEIGHTS = {"create_stream": 3, "destroy_stream": 2, "create_event": 3, "destroy_event": 1, "allocate": 7, "free": 5,
           "fill": 20, "run_kernel": 16, "copy": 12, "transfer": 18, "on_host": 1, "record": 14, "wait": 16,
           "synchronize": 3, "query": 3, "synchronize_context": 1, "begin": 2, "end": 2, "launch": 5, "call_host": .3,
           "use_dead": .3}
# One thread each: what the check knows of a kernel in PTX is where its first thread goes.  With the pointers that a
# kernel has, and if it writes there; None: it keeps the pointer, and nothing is certain.
KERNELS = {b"writes": (True,), b"copies": (True, False), b"reads": (False, True), b"counts": (True,),
           b"keeps": (True, None)}
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry writes(.param .u64 p)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [p];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, 7;
    st.global.u32 [%rd2], %r1;
    ret;
}
.visible .entry copies(.param .u64 p, .param .u64 q)
{
    .reg .b64 %rd<5>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [p];
    ld.param.u64 %rd2, [q];
    cvta.to.global.u64 %rd3, %rd1;
    cvta.to.global.u64 %rd4, %rd2;
    ld.global.u32 %r1, [%rd4];
    st.global.u32 [%rd3], %r1;
    ret;
}
.visible .entry reads(.param .u64 q, .param .u64 p)
{
    .reg .b64 %rd<5>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [q];
    ld.param.u64 %rd2, [p];
    cvta.to.global.u64 %rd3, %rd1;
    cvta.to.global.u64 %rd4, %rd2;
    ld.global.u32 %r1, [%rd3];
    st.global.u32 [%rd4], %r1;
    ret;
}
.visible .entry counts(.param .u64 p)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<3>;
    ld.param.u64 %rd1, [p];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, 1;
    atom.global.add.u32 %r2, [%rd2], %r1;
    ret;
}
.visible .entry keeps(.param .u64 p, .param .u64 q)
{
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [p];
    ld.param.u64 %rd2, [q];
    cvta.to.global.u64 %rd3, %rd1;
    st.global.u64 [%rd3], %rd2;
    ret;
}
"""
BEGINNING = ("create_stream", "create_stream", "create_event", "allocate", "allocate")


@dataclass(frozen=True)
class Program:
    """The program of a seed, or some of its steps."""

    seed: int
    numbers: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Program:
        seed, _, steps = text.partition(":")
        length = len(BEGINNING) + Random(int(seed)).choice(LENGTHS)
        return cls(int(seed), tuple(map(int, steps.split(","))) if steps else tuple(range(length)))

    def keeping(self, numbers: tuple[int, ...]) -> Program:
        return replace(self, numbers=numbers)

    def __str__(self) -> str:
        return f"{self.seed}:{','.join(map(str, self.numbers))}"


class Machine:
    """The driver, its contexts, host memory, and a second thread, whose per-thread default stream is another one."""

    def __init__(self) -> None:
        self.simulator = sim.install()
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.site = 0
        self._find_site = ctypes.CFUNCTYPE(ctypes.c_uint32)(lambda: self.site)
        self.simulator.find_sites(ctypes.cast(self._find_site, ctypes.c_void_p).value)
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
        self.function = ctypes.cast(self._function, ctypes.c_void_p).value or 0
        self._room = ctypes.create_string_buffer(ROOM)
        self.pageable = ctypes.addressof(self._room)
        self.contexts: list[int] = []
        self.pools: list[int] = []
        self.kernels: list[dict[bytes, int]] = []
        self.simulator.launch_unknown()
        self.jobs: queue.SimpleQueue[Callable[[], int]] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[int] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()
        self._open()

    def _open(self) -> None:
        self.need("cuInit", 0)
        self.contexts = [self.made("cuDevicePrimaryCtxRetain", device) for device in range(DEVICES)]
        for device in range(DEVICES):
            self.need("cuCtxSetCurrent", self.contexts[device])
            properties = (ctypes.c_int * 22)(1, 0, 1, device)       # CUmemPoolProps
            self.pools.append(self.made("cuMemPoolCreate", ctypes.addressof(properties)))
            pools = self.made("cuDeviceGetDefaultMemPool", device), self.pools[-1]
            for other in set(range(DEVICES)) - {device}:
                self.need("cuCtxEnablePeerAccess", self.contexts[other], 0)
                access = (ctypes.c_int * 3)(1, other, 3)        # the device may read and write
                for pool in pools:
                    self.need("cuMemPoolSetAccess", pool, ctypes.addressof(access), 1)
            image = ctypes.create_string_buffer(PTX)
            module = self.made("cuModuleLoadData", ctypes.addressof(image))
            names = {name: ctypes.create_string_buffer(name) for name in KERNELS}
            self.kernels.append({name: self.made("cuModuleGetFunction", module, ctypes.addressof(text))
                                 for name, text in names.items()})
        self.pinned = self.made("cuMemHostAlloc", ROOM, 0)

    def _work(self) -> None:
        while True:
            self.answers.put(self.jobs.get()())

    def call(self, name: str, *values: int, device: int | None = None, thread: int = 0) -> int:
        def make() -> int:
            if device is not None:
                self.driver.cuCtxSetCurrent(ctypes.c_uint64(self.contexts[device]))
            return int(getattr(self.driver, name)(*map(ctypes.c_uint64, values)))

        if not thread:
            return make()
        self.jobs.put(make)
        return self.answers.get()

    def need(self, name: str, *values: int) -> None:
        if status := self.call(name, *values):
            raise RuntimeError(f"{name}{values} failed: {status}")

    def made(self, name: str, *values: int) -> int:
        result = ctypes.c_uint64()
        self.need(name, ctypes.addressof(result), *values)
        return result.value


machine = cache(Machine)


class World:
    """What there is while a program runs."""

    def __init__(self, seed: int) -> None:
        draws = Random(seed)
        self.machine = machine()
        self.machine.simulator.reset(draws.choice(POLICIES), seed)
        self.oracle = Oracle(DEVICES)
        self.devices = draws.choice((1, 1, 1, DEVICES))
        self.calls = 0
        self.script: list[str] = []
        self.events: list[Event] = []
        self.dead: dict[int, tuple[int, str]] = {}      # by handle the call, and what it was
        self.capture: Capture | None = None
        self.graphs: list[Capture] = []
        self.draws = draws
        if draws.random() < .4:
            self.oracle.streams += [Stream(2, 0, blocking=True, thread=thread) for thread in range(2)]

    # -- calls -------------------------------------------------------------------------------------------------------

    def do(self, name: str, *values: int, on: Stream | int = 0) -> bool:
        device, thread = (on.device, on.thread) if isinstance(on, Stream) else (on, 0)
        self.calls += 1
        self.machine.site = self.calls
        status = self.machine.call(name, *values, device=device, thread=thread)
        self.script.append(f"{self.calls}: {name}({', '.join(map(hex, values))}), device {device}, thread {thread}"
                           + (f": refused, {status}" if status else ""))
        return not status

    def make(self, name: str, *values: int, on: Stream | int = 0) -> int:
        """The handle or the address that a call makes; 0 if it is refused."""
        result = ctypes.c_uint64()
        done = self.do(name, ctypes.addressof(result), *values, on=on)
        self.script[-1] += f" -> {result.value:#x}"
        return result.value if done else 0

    def some(self, there: list[Any]) -> Any:
        return self.draws.choice(there) if there else None

    def draw_device(self) -> int:
        return self.draws.randrange(self.devices)

    def stream(self, *, legacy: bool = True, capturing: bool = True) -> Stream:
        """A blocking stream's capture forbids the use of the default stream."""
        if self.capture:
            legacy &= not any(member.blocking for member in self.capture.members)
        return self.draws.choice([
            stream for stream in self.oracle.streams if not stream.ended and stream.device < self.devices
            and (legacy or not stream.legacy) and (capturing or not stream.capture)] or self.oracle.streams[:1])

    def block(self) -> Block | None:
        """A live one, or sometimes a freed one."""
        alive = [block for block in self.oracle.blocks if not block.freed]
        found: Block | None = self.some(self.oracle.blocks if self.draws.random() < .02 else alive)
        return found

    def part(self, block: Block, most: int = ROOM) -> tuple[int, int]:
        units = (block.end - block.begin) // UNIT
        begin = self.draws.randrange(units)
        count = min(units - begin, self.draws.choice((1, 2, 4, units)), most // UNIT)
        return block.begin + begin * UNIT, block.begin + (begin + count) * UNIT

    # -- streams and events ------------------------------------------------------------------------------------------

    def create_stream(self) -> None:
        flags, device = self.draws.choice((0, 1, 1)), self.draw_device()
        if handle := self.make("cuStreamCreate", flags, on=device):
            self.oracle.streams.append(Stream(handle, device, blocking=not flags))
            self.dead.pop(handle, None)

    def destroy_stream(self) -> None:
        stream = self.some([stream for stream in self.oracle.streams
                            if stream.handle > 2 and not stream.ended and not stream.capture])
        if stream and self.do("cuStreamDestroy_v2", stream.handle, on=stream):
            stream.ended = True
            self.dead[stream.handle] = (self.calls, "stream")

    def create_event(self) -> Event | None:
        return self.new_event(self.draw_device())

    def new_event(self, device: int) -> Event | None:
        handle = self.make("cuEventCreate", self.draws.choice((0, 2)), on=device)
        if not handle:
            return None
        self.events.append(Event(handle, device))
        self.dead.pop(handle, None)
        return self.events[-1]

    def destroy_event(self) -> None:
        event = self.some(self.events)
        if event and self.do("cuEventDestroy_v2", event.handle, on=event.device):
            self.events.remove(event)
            self.dead[event.handle] = (self.calls, "event")

    def record(self) -> None:
        stream = self.stream()
        if event := self.some([event for event in self.events if event.device == stream.device]):
            self.record_on(event, stream)

    def record_on(self, event: Event, stream: Stream) -> None:
        if self.do("cuEventRecord", event.handle, stream.handle, on=stream):
            self.oracle.record(event, stream)

    def wait(self) -> None:
        """A capture takes no event from outside; with one of its own a stream joins it."""
        stream = self.stream()
        there = {stream.capture} if stream.capture else {None} if stream.legacy else {None, self.capture}
        if event := self.some([event for event in self.events if event.capture in there]):
            self.wait_on(stream, event)

    def wait_on(self, stream: Stream, event: Event) -> None:
        if self.do("cuStreamWaitEvent", stream.handle, event.handle, 0, on=stream):
            self.oracle.wait(stream, event)

    def finished_event(self) -> Event | None:
        found: Event | None = self.some([event for event in self.events if not event.capture])
        return found

    def synchronize(self) -> None:
        self.learn("Synchronize", self.oracle.synchronize)

    def query(self) -> None:
        self.learn("Query", self.oracle.query)

    def learn(self, what: str, learn_of_stream: Callable[[Stream], None]) -> None:
        event, stream = self.finished_event(), self.stream(capturing=False)
        if event and self.draws.random() < .5:
            if self.do(f"cuEvent{what}", event.handle, on=event.device):
                self.oracle.host |= event.past
        elif self.do(f"cuStream{what}", stream.handle, on=stream):
            learn_of_stream(stream)

    def synchronize_context(self) -> None:
        device = self.draw_device()
        if not self.capture and self.do("cuCtxSynchronize", on=device):
            self.oracle.host |= self.oracle.in_context(device)

    def call_host(self) -> None:
        stream = self.stream(capturing=False)
        if self.do("cuLaunchHostFunc", stream.handle, self.machine.function, 0, on=stream):
            self.oracle.call_host(stream, self.calls)

    def use_dead(self) -> None:
        """A call with the handle of something destroyed."""
        handle, stream = self.some(list(self.dead)), self.stream(capturing=False)
        if not handle:
            return
        call, what = self.dead[handle]
        if what == "stream":
            self.do("cuStreamSynchronize", handle, on=stream)
        else:
            self.do("cuStreamWaitEvent", stream.handle, handle, 0, on=stream)
        self.oracle.expected.add((call, self.calls, 0))

    # -- memory ------------------------------------------------------------------------------------------------------

    def allocate(self) -> None:
        size, ordered = self.draws.choice((256, ROOM)), self.draws.random() < .6
        stream = self.stream(capturing=False)
        device = stream.device
        if ordered and self.draws.random() < .4:            # from a pool of the program's own, on any device
            device = self.draw_device()
            begin = self.make("cuMemAllocFromPoolAsync", size, self.machine.pools[device], stream.handle, on=stream)
        elif ordered:
            begin = self.make("cuMemAllocAsync", size, stream.handle, on=stream)
        else:
            begin = self.make("cuMemAlloc_v2", size, on=device)
        if begin:
            block = Block(begin, begin + size, device, ordered, self.calls)
            self.oracle.allocate(block, stream if ordered else None)

    def free(self) -> None:
        block, stream = self.some([block for block in self.oracle.blocks if not block.freed]), self.stream(
            capturing=False)
        if not block:
            return
        if block.ordered and self.draws.random() < .8:
            if self.do("cuMemFreeAsync", block.begin, stream.handle, on=stream):
                self.oracle.free(block, stream, self.calls)
        elif self.do("cuMemFree_v2", block.begin, on=block.device):
            self.oracle.free(block, None, self.calls)

    def fill(self) -> None:
        stream, block = self.stream(), self.block()
        if not block:
            return
        (begin, end), width = self.part(block), self.draws.choice((1, 2, 4))
        values = (begin, 7, (end - begin) // width)
        if self.draws.random() < .1 and stream.legacy:
            done = self.do(f"cuMemsetD{8 * width}_v2", *values, on=stream)
        else:
            done = self.do(f"cuMemsetD{8 * width}Async", *values, stream.handle, on=stream)
        if done:
            self.oracle.work(stream, self.calls, [(block, begin, end, True)])

    def run_kernel(self) -> None:
        """Its memory is used where its pointer is, and nowhere else for certain."""
        stream, name = self.stream(), self.draws.choice(list(KERNELS))
        places = [(block, self.part(block)[0], writes) for writes in KERNELS[name] if (block := self.block())]
        if len(places) < len(KERNELS[name]):
            return
        values = (ctypes.c_uint64 * len(places))(*(at for _, at, _ in places))
        where = (ctypes.c_uint64 * len(places))(*(ctypes.addressof(values) + 8 * i for i in range(len(places))))
        if self.do("cuLaunchKernel", self.machine.kernels[stream.device][name], 1, 1, 1, 1, 1, 1, 0, stream.handle,
                   ctypes.addressof(where), 0, on=stream):
            uses = [(block, at, at + 1, writes) for block, at, writes in places if writes is not None]
            self.oracle.work(stream, self.calls, uses, counts=name == b"counts")

    def copy(self) -> None:
        """From device memory to device memory."""
        stream, source, target = self.stream(), self.block(), self.block()
        if not source or not target:
            return
        begin, end = self.part(source)
        at, past = self.part(target, end - begin)
        uses = [(source, begin, begin + past - at, False), (target, at, past, True)]
        values, form = (at, begin, past - at), self.draws.randrange(4)
        if stream.legacy and form == 0:
            done = self.do("cuMemcpyDtoD_v2", *values, on=stream)
        elif form == 1 and not stream.capture:
            contexts = self.machine.contexts
            done = self.do("cuMemcpyPeerAsync", at, contexts[target.device], begin, contexts[source.device], past - at,
                           stream.handle, on=stream)
        else:
            done = self.do(("cuMemcpyDtoDAsync_v2", "cuMemcpyAsync")[form % 2], *values, stream.handle, on=stream)
        if done:
            self.oracle.copy(stream, self.calls, uses, "")

    def transfer(self) -> None:
        """Between device and host memory."""
        stream, block = self.stream(), self.block()
        if not block:
            return
        (begin, end), up, pinned = self.part(block), self.draws.random() < .5, self.draws.random() < .5
        host = self.machine.pinned if pinned else self.machine.pageable
        values, name = ((begin, host), "HtoD") if up else ((host, begin), "DtoH")
        waits = "copy" if not (up or pinned) else ""
        if stream.legacy and self.draws.random() < .5:
            waits = "before" if up and not pinned else "copy"
            done = self.do(f"cuMemcpy{name}_v2", *values, end - begin, on=stream)
        else:
            done = self.do(f"cuMemcpy{name}Async_v2", *values, end - begin, stream.handle, on=stream)
        if done:
            self.oracle.copy(stream, self.calls, [(block, begin, end, up)], waits)

    def on_host(self) -> None:
        stream = self.stream(capturing=False)
        values = (self.machine.pinned, self.machine.pageable, UNIT)
        if self.do("cuMemcpyAsync", *values, stream.handle, on=stream):
            self.oracle.copy(stream, self.calls, [], "copy")

    # -- graphs ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        stream = self.stream(legacy=False)
        if not self.capture and not stream.legacy and self.do("cuStreamBeginCapture_v2", stream.handle, 2, on=stream):
            self.capture = stream.capture = Capture([stream])
            stream.captured = 0

    def end(self) -> None:
        """Joins all branches first."""
        if not self.capture:
            return
        capture, first = self.capture, self.capture.members[0]
        for branch in capture.members[1:]:
            if event := self.new_event(branch.device):
                self.record_on(event, branch)
                self.wait_on(first, event)
        graph = ctypes.c_uint64()
        self.do("cuStreamEndCapture", first.handle, ctypes.addressof(graph), on=first)
        for member in capture.members:
            member.capture = None
        self.capture = None
        if graph.value and (executable := self.make("cuGraphInstantiateWithFlags", graph.value, 0, on=first)):
            capture.graph = executable
            self.graphs.append(capture)

    def launch(self) -> None:
        graph, stream = self.some(self.graphs), self.stream(capturing=False)
        if graph and self.do("cuGraphLaunch", graph.graph, stream.handle, on=stream):
            self.oracle.launch(graph, stream, self.calls)

    # -- the end -----------------------------------------------------------------------------------------------------

    def clean(self) -> None:
        if self.capture:
            self.end()
        self.machine.simulator.reset("eager")
        for block in self.oracle.blocks:
            if not block.freed:
                self.do("cuMemFree_v2", block.begin, on=block.device)
        for capture in self.graphs:
            self.do("cuGraphExecDestroy", capture.graph)
        for event in self.events:
            self.do("cuEventDestroy_v2", event.handle, on=event.device)
        for stream in self.oracle.streams:
            if stream.handle > 2 and not stream.ended:
                self.do("cuStreamDestroy_v2", stream.handle, on=stream)


def step_of(seed: int, number: int) -> tuple[str, Random]:
    draws = Random(seed << 16 | number)
    name = BEGINNING[number] if number < len(BEGINNING) else draws.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    return name, draws


def play(program: Program) -> tuple[World, list[str]]:
    """Runs a program; what comes back is what the engine missed, and what it found falsely."""
    world = World(program.seed)
    for number in program.numbers:
        name, world.draws = step_of(program.seed, number)
        getattr(world, name)()
    found = {(one["first"]["site"], one["second"]["site"], one["block"]["begin"])
             for one in world.machine.simulator.findings() if one["certain"]}
    expected = world.oracle.expected
    named = {(second, block) for _, second, block in found}
    wrong = [f"false: {first} and {second} in {block:#x}" for first, second, block in sorted(found - expected)]
    wrong += [f"missed: {first} and {second} in {block:#x}" for first, second, block in sorted(expected)
              if (second, block) not in named]
    script = world.script[:]
    world.clean()
    world.script = script
    return world, wrong
