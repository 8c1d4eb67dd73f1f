"""What is measured: the cases by family, and who takes part in each.

A case has an id that never changes meaning.  Its *candidates* do the same thing in their own way, from Python and from
C++; one is the floor, the raw driver calls in C, where there is such a thing.  What is not like for like says so in its
`note`, which is printed with the row.  How long a turn is and how often it is taken is decided elsewhere.
"""
from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any

from cuda.bindings import driver as cuda

import xlogmem
from xlogmem._kernels import check
from xlogmem.bench import _loops, logs
from xlogmem.bench.allocators import (
    CPP,
    FLOOR,
    OURS,
    PEER,
    PYTHON,
    NativeAllocator,
    PythonAllocator,
    World,
    native,
    python,
    rmm_resources,
    runtimes,
    streams_for,
)

__all__ = ["FAMILIES", "Candidate", "Case", "all_cases"]

# And which neighbours take part.  Nobody else is imported: it takes seconds, and some bring CUDA libraries that others
# do not get on with.
ALLOCATING = ("RMM", "CuPy", "PyTorch", "cuda.core")
FAMILIES: dict[str, tuple[str, ...]] = {
    "allocate": ALLOCATING, "use": ("CuPy", "PyTorch", "cuda.core", "CUDASTF"), "free": ("PyTorch",), "lookup": (),
    "replay": ALLOCATING, "shapes": ALLOCATING, "rmm": ("RMM",), "pylibcudf": ("RMM", "pylibcudf")}
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = {256: "256 B", 4 * KIB: "4 KiB", 64 * KIB: "64 KiB", MIB: "1 MiB", 16 * MIB: "16 MiB", 64 * MIB: "64 MiB"}
BY_HAND = "events by hand: no books are kept; whoever writes it has to know who waits for whom"
READ, WRITE, READ_WRITE = 1, 2, 3
KERNEL_NS = 505_000                         # a million cycles at an H200's 1.98 GHz

Uses = list[tuple[int, list[tuple[int, int]]]]          # (stream, [(block, READ or WRITE)])
Failed = Callable[[str, BaseException], None]


@dataclass
class Candidate:
    """One way to do what the case asks for.  ``run(calls)`` does it that often and returns the nanoseconds."""

    name: str
    language: str
    role: str
    run: Callable[[int], float]
    note: str = ""
    most: int = 1 << 30                     # calls in one turn, at most
    before: Callable[[], object] = lambda: None         # of each turn, not measured
    close: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Case:
    """`build` gives the candidates; `per` is how many `unit`s one call does; `quick`: part of a quick run; `needs`:
    bytes of device memory that have to be free."""

    id: str
    family: str
    unit: str
    build: Callable[[World, ExitStack, Failed], Iterator[Candidate]]
    parameters: dict[str, Any] = field(default_factory=dict)
    per: int = 1
    quick: bool = False
    needs: int = 0


def timed(function: Callable[[], object]) -> Callable[[int], float]:
    """Calls in a loop of Python, as pyperf makes them; the loop itself is in the figure."""
    def run(calls: int) -> float:
        clock, turns = time.perf_counter_ns, repeat(None, calls)
        before = clock()
        for _ in turns:
            function()
        return clock() - before

    return run


# ---------------------------------------------------------------------------------------------- allocate and free
def allocate_and_free(nbytes: int, streams: int = 1, room: int = GIB) -> Callable[..., Iterator[Candidate]]:
    """A pair; on several streams in turn."""
    def of_native(a: NativeAllocator) -> Candidate:
        return Candidate(a.name, CPP, a.role, partial(a.loops.pairs, nbytes, a.streams[:streams]), a.note)

    def of_python(a: PythonAllocator) -> Candidate:
        if streams == 1:
            function = a.pair(nbytes, 0)
            return Candidate(a.name, PYTHON, a.role, entered(a, timed(function)), a.note)
        ways = [a.on(stream, switching=True) for stream in range(streams)]
        turn = 0

        def one() -> None:
            nonlocal turn
            allocate, free = ways[turn % streams]
            turn += 1
            free(allocate(nbytes), nbytes)

        return Candidate(a.name, PYTHON, a.role, timed(one), a.note)

    return everybody(of_native, of_python, room)


def entered(a: PythonAllocator, run: Callable[[int], float]) -> Callable[[int], float]:
    def prepared(calls: int) -> float:
        a.enter(0)
        return run(calls)

    return prepared


def everybody(of_native: Callable[[NativeAllocator], Candidate],
              of_python: Callable[[PythonAllocator], Candidate] | None, room: int
              ) -> Callable[..., Iterator[Candidate]]:
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        mine = world.share(room)
        yield from map(of_native, native(world, stack, mine, failed))
        if of_python is not None:
            yield from map(of_python, python(world, stack, mine, failed))

    return build


def in_threads(nbytes: int, threads: int) -> Callable[..., Iterator[Candidate]]:
    """Pairs in threads that begin together, each on a stream of its own: what a pair takes in each."""
    def of_native(a: NativeAllocator) -> Candidate:
        return Candidate(a.name, CPP, a.role, partial(a.loops.pairs_in_threads, nbytes, a.streams[:threads]), a.note)

    def of_python(a: PythonAllocator) -> Candidate:
        def run(calls: int) -> float:
            start = threading.Barrier(threads + 1)

            def one(stream: int) -> None:
                # The context is the thread's own, as are the current streams of CuPy and PyTorch.
                check(cuda.cuCtxSetCurrent(context))
                a.enter(stream)
                pair = a.pair(nbytes, stream)
                start.wait()
                for _ in repeat(None, calls):
                    pair()

            context = check(cuda.cuCtxGetCurrent())
            workers = [threading.Thread(target=one, args=(stream,)) for stream in range(threads)]
            for worker in workers:
                worker.start()
            start.wait()
            before = time.perf_counter_ns()
            for worker in workers:
                worker.join()
            return time.perf_counter_ns() - before

        return Candidate(a.name, PYTHON, a.role, run, a.note)

    return everybody(of_native, of_python, GIB)


def replayed(made: Callable[[], list[logs.Step]], room: int,
             prelude: tuple[list[logs.Step], list[logs.Step]] | None = None, from_python: bool = True
             ) -> Callable[..., Iterator[Candidate]]:
    """A program, over and over, which `made` makes when it is wanted; `prelude` goes before the first time and after
    the last."""
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        steps = made()
        slots = 1 + max(step[1] for step in [*steps, *(prelude[0] if prelude else ())])
        streams = 1 + max(step[3] for step in steps)
        function = int(check(cuda.cuModuleGetFunction(world.kernels._module, b"xlogmem_delay")))

        def of_native(a: NativeAllocator) -> Candidate:
            held = _loops.Slots(slots)

            def run(some: list[logs.Step], limit: float = 0) -> Callable[..., float]:
                program = _loops.Program(some, held, function, 0 if world.simulated else KERNEL_NS)
                return lambda *_: a.loops.program(program, a.streams, limit)

            candidate = Candidate(a.name, CPP, a.role, run(steps, world.longest), a.note, most=1)
            if prelude:
                run(prelude[0])()
                candidate.close = run(prelude[1])
            return candidate

        def of_python(a: PythonAllocator) -> Candidate:
            ways = [a.on(stream, switching=streams > 1) for stream in range(streams)]
            held: dict[int, Any] = {}

            def run(some: list[logs.Step]) -> float:
                a.enter(0)
                before = time.perf_counter_ns()
                for operation, slot, nbytes, stream in some:
                    if operation == logs.ALLOCATE:
                        with suppress(MemoryError):     # what finds no memory is left out
                            held[slot] = ways[stream][0](nbytes)
                    elif operation == logs.FREE:
                        if slot in held:
                            ways[stream][1](held.pop(slot), nbytes)
                    elif operation == logs.LAUNCH:
                        world.kernels.delay(world.streams[stream], 0 if world.simulated else KERNEL_NS)
                    else:
                        world.synchronize()
                return time.perf_counter_ns() - before

            candidate = Candidate(a.name, PYTHON, a.role, lambda _: run(steps), a.note, most=1, close=held.clear)
            if prelude:
                run(prelude[0])
                candidate.close = lambda: run(prelude[1])
            return candidate

        yield from everybody(of_native, of_python if from_python else None, room)(world, stack, failed)

    return build


# ---------------------------------------------------------------------------------------------- uses
@dataclass(frozen=True)
class Pattern:
    """Rounds of launches, and the same by hand."""

    uses: Uses
    hand: list[tuple[int, int, int]]
    blocks: int = 1
    stride: int = 0                         # blocks by which each round moves on

    @property
    def most(self) -> int:
        return self.blocks if self.stride else 1 << 30


def same_stream(blocks: int) -> Pattern:
    return Pattern([(0, [(block, READ_WRITE) for block in range(blocks)])], [(_loops.RECORD, 0, 0)], blocks)


HAND_OVER = Pattern([(0, [(0, WRITE)]), (1, [(0, READ)])], [(_loops.RECORD, 0, 0), (_loops.WAIT, 1, 0)], 1024, 1)
PING_PONG = Pattern([(0, [(0, READ_WRITE)]), (1, [(0, READ_WRITE)])],
                    [(_loops.RECORD, 0, 0), (_loops.WAIT, 1, 0), (_loops.RECORD, 1, 1), (_loops.WAIT, 0, 1)])
FAN_OUT = Pattern(
    [(0, [(0, WRITE)]), *((reader, [(0, READ)]) for reader in range(1, 9))],
    [(_loops.RECORD, 0, 0), *((_loops.WAIT, reader, 0) for reader in range(1, 9)),
     *(step for reader in range(1, 9) for step in ((_loops.RECORD, reader, reader), (_loops.WAIT, 0, reader)))])


def used(pattern: Pattern) -> Callable[..., Iterator[Candidate]]:
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        most = pattern.most
        streams = 1 + max(stream for stream, _ in pattern.uses)
        floor = _loops.Hand(pattern.hand, world.streams)
        yield Candidate("driver", CPP, FLOOR, floor.run, BY_HAND, most)
        for policy in ("adaptive", "lazy", "precise"):
            name = "xlogmem" if policy == "adaptive" else f"xlogmem, {policy}"
            runtime = xlogmem.DeviceRuntime(policy=policy)
            on = [runtime.acquire_stream() for _ in range(streams)]
            blocks = [runtime.allocate(256, on[0]) for _ in range(pattern.blocks)]
            if pattern.stride:                          # no block is fresh any more: first hand-overs are in `free`
                with xlogmem.use(on[1], read=blocks):
                    pass
            before = partial(settle, on, blocks, runtime.allocate(256, on[0])) if pattern.stride else nothing
            yield Candidate(name, CPP, OURS, _loops.Uses(pattern.uses, on, blocks, pattern.stride).run, most=most,
                            before=before)
            if policy == "adaptive":
                yield Candidate(name, PYTHON, OURS, timed(with_use(pattern, on, blocks)), most=most, before=before)
        scheme = _loops.SeedUses(pattern.uses, world.streams, pattern.blocks, 256, pattern.stride)
        stack.callback(scheme.close)
        yield Candidate("an event for each use (the seeds)", CPP, PEER, scheme.run, most=most,
                        before=scheme.settle if pattern.stride else nothing)
        yield from others(pattern, world, stack, failed)

    return build


def nothing() -> None:
    """Nothing to do."""


def settle(streams: list[Any], blocks: list[Any], spare: Any) -> None:
    """Have the first stream ordered after every use of the blocks, and the adaptive policy forget that somebody waited:
    without this the turn would begin with waits for the readers of the turn before."""
    with xlogmem.use(streams[0], read_write=blocks):
        pass
    for stream in streams[1:]:
        for _ in range(64):                             # PRECISE_FOR in _core.pyx
            with xlogmem.use(stream, read=spare):
                pass


def with_use(pattern: Pattern, streams: list[Any], blocks: list[Any]) -> Callable[[], None]:
    """The round as people write it."""
    use = xlogmem.use
    names = {READ: "read", WRITE: "write", READ_WRITE: "read_write"}
    rounds: list[list[tuple[Any, dict[str, Any]]]] = []
    for base in range(0, pattern.blocks if pattern.stride else 1, pattern.stride or 1):
        rounds.append([])
        for stream, accesses in pattern.uses:
            arguments: dict[str, Any] = {}
            for block, flags in accesses:
                arguments.setdefault(names[flags], []).append(blocks[base + block])
            rounds[-1].append((streams[stream], {name: touched if len(touched) > 1 else touched[0]
                                                 for name, touched in arguments.items()}))
    turn = 0

    def one() -> None:
        nonlocal turn
        for stream, arguments in rounds[turn]:
            with use(stream, **arguments):
                pass
        turn += 1
        if turn == len(rounds):
            turn = 0

    return one


def others(pattern: Pattern, world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
    """What neighbours have instead, from Python."""
    for name, make in (("cuda.bindings", hand_in_bindings), ("PyTorch", hand_in_torch), ("CuPy", hand_in_cupy),
                       ("cuda.core", hand_in_core), ("CUDASTF", in_stf)):
        if name in world.modules or name == "cuda.bindings":
            try:
                yield from make(pattern, world, stack)
            except GeneratorExit:
                raise
            except Exception as error:
                failed(name, error)


def by_hand(name: str, pattern: Pattern, record: Callable[[int, int], Callable[[], object]],
            wait: Callable[[int, int], Callable[[], object]]) -> Candidate:
    calls = [record(stream, event) if what == _loops.RECORD else wait(stream, event)
             for what, stream, event in pattern.hand]

    def one() -> None:
        for call in calls:
            call()

    return Candidate(name, PYTHON, PEER, timed(one), BY_HAND)


def hand_in_bindings(pattern: Pattern, world: World, stack: ExitStack) -> Iterator[Candidate]:
    events = [check(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING)) for _ in range(9)]
    stack.callback(lambda: [check(cuda.cuEventDestroy(event)) for event in events])
    record, wait = cuda.cuEventRecord, cuda.cuStreamWaitEvent
    yield by_hand("cuda.bindings", pattern,
                  lambda stream, event: partial(record, events[event], world.streams[stream]),
                  lambda stream, event: partial(wait, world.streams[stream], events[event], 0))


def hand_in_torch(pattern: Pattern, world: World, stack: ExitStack) -> Iterator[Candidate]:
    torch, streams = world.modules["PyTorch"], streams_for(world, "PyTorch")
    events = [torch.cuda.Event() for _ in range(9)]
    yield by_hand("torch events", pattern, lambda stream, event: partial(events[event].record, streams[stream]),
                  lambda stream, event: partial(streams[stream].wait_event, events[event]))
    tensors = [torch.empty(256, dtype=torch.uint8, device="cuda") for _ in range(pattern.blocks)]
    marks = [(tensors[block].record_stream, streams[stream + 1]) for stream, accesses in pattern.uses
             for block, _ in accesses]

    def marked() -> None:
        for mark, stream in marks:
            mark(stream)

    yield Candidate("torch record_stream", PYTHON, PEER, timed(marked),
                    "marks only: orders no use after another, and the memory is kept until its events were polled")


def hand_in_cupy(pattern: Pattern, world: World, stack: ExitStack) -> Iterator[Candidate]:
    cupy, streams = world.modules["CuPy"], streams_for(world, "CuPy")
    events = [cupy.cuda.Event(disable_timing=True) for _ in range(9)]
    yield by_hand("cupy events", pattern, lambda stream, event: partial(events[event].record, streams[stream]),
                  lambda stream, event: partial(streams[stream].wait_event, events[event]))


def hand_in_core(pattern: Pattern, world: World, stack: ExitStack) -> Iterator[Candidate]:
    streams = streams_for(world, "cuda.core")
    events = [stream.record() for stream in streams[:9]]
    yield by_hand("cuda.core events", pattern, lambda stream, event: partial(streams[stream].record, events[event]),
                  lambda stream, event: partial(streams[stream].wait, events[event]))


def in_stf(pattern: Pattern, world: World, stack: ExitStack) -> Iterator[Candidate]:
    context = world.modules["CUDASTF"].context()
    stack.callback(context.finalize)
    count = 1 + max(block for _, accesses in pattern.uses for block, _ in accesses)
    tokens = [context.token() for _ in range(count)]
    names = {READ: "read", WRITE: "write", READ_WRITE: "rw"}

    def one() -> None:
        for _, accesses in pattern.uses:
            task = context.task(*(getattr(tokens[block], names[flags])() for block, flags in accesses))
            task.start()
            task.end()

    one()
    yield Candidate("CUDASTF tasks", PYTHON, PEER, timed(one),
                    "tasks on tokens, on streams that CUDASTF chooses; no allocation behind them")


def freed_after_reads(readers: int, nbytes: int = MIB) -> Callable[..., Iterator[Candidate]]:
    """Allocate, read on other streams, free: the free waits for the readers, on the device."""
    hand = [(_loops.TAKE, 0, 0), (_loops.RECORD, 0, 0), *((_loops.WAIT, reader, 0) for reader in range(1, readers + 1)),
            *(step for reader in range(1, readers + 1)
              for step in ((_loops.RECORD, reader, reader), (_loops.WAIT, 0, reader))), (_loops.GIVE, 0, 0)]

    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        room = world.share(GIB)
        yield Candidate("driver", CPP, FLOOR, _loops.Hand(hand, world.streams, nbytes).run, BY_HAND)
        for name, runtime in runtimes(room).items():
            streams = [runtime.acquire_stream() for _ in range(readers + 1)]
            yield Candidate(name, CPP, OURS, partial(_loops.frees_after_reads, streams, nbytes, readers))

            def one(runtime: Any = runtime, streams: list[Any] = streams, use: Any = xlogmem.use) -> None:
                block = runtime.allocate(nbytes, streams[0])
                for stream in streams[1:]:
                    with use(stream, read=block):
                        pass
                block.free()

            yield Candidate(name, PYTHON, OURS, timed(one))
        scheme = _loops.Allocator.seed()
        yield Candidate("an event for each use (the seeds)", CPP, PEER, partial(
            _loops.seed_frees_after_reads, scheme, world.streams, nbytes, readers))
        if "PyTorch" in world.modules:
            try:
                torch, on = world.modules["PyTorch"], streams_for(world, "PyTorch")
                device = torch.device("cuda", 0)

                def in_torch() -> None:
                    tensor = torch.empty(nbytes, dtype=torch.uint8, device=device)
                    for stream in on[1:readers + 1]:
                        tensor.record_stream(stream)

                stack.callback(torch.cuda.empty_cache)
                yield Candidate("torch empty, record_stream", PYTHON, PEER, timed(in_torch),
                                "readers are not ordered after the allocation; the memory is kept until its events "
                                "were polled")
            except Exception as error:
                failed("PyTorch", error)

    return build


# ---------------------------------------------------------------------------------------------- lookup
LOOKUPS, SPACING = 4096, 512


def looked_up(live: int, interior: bool) -> Callable[..., Iterator[Candidate]]:
    """Find the block that an address is in, for addresses of random blocks."""
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        bases = [(1 << 44) + SPACING * number for number in range(live)]
        runtime = xlogmem.DeviceRuntime()
        stream = runtime.acquire_stream()
        blocks = [runtime.adopt(base, SPACING, stream) for base in bases]
        stack.callback(blocks.clear)
        chosen = random.Random(live).choices(range(live), k=LOOKUPS)
        offset = 300 if interior else 0
        addresses = [bases[number] + offset for number in chosen]
        wanted, searched = _loops.Addresses(addresses), _loops.Bases(bases)
        yield Candidate("sorted array", CPP, FLOOR, partial(searched.sorted, wanted),
                        "nobody can add to it, and it has no lock", LOOKUPS)
        yield Candidate("xlogmem", CPP, OURS, partial(_loops.lookups, runtime, wanted), most=LOOKUPS)
        yield Candidate("std::map under a lock", CPP, PEER, partial(searched.tree, wanted), most=LOOKUPS)

        def over(arguments: list[Any], function: Callable[[Any], object]) -> Callable[[int], float]:
            def run(calls: int) -> float:
                before = time.perf_counter_ns()
                for argument in arguments[:calls]:
                    function(argument)
                return time.perf_counter_ns() - before
            return run

        def by_use(address: Any, use: Any = xlogmem.use) -> None:
            with use(stream, read=address, runtime=runtime):
                pass

        yield Candidate("xlogmem", PYTHON, OURS, over(addresses, runtime.find_block), most=LOOKUPS)
        yield Candidate("xlogmem, use by address", PYTHON, OURS, over(addresses, by_use),
                        "a whole use, not the search alone", LOOKUPS)
        if not interior:
            yield Candidate("xlogmem, use by handle", PYTHON, OURS, over([blocks[number] for number in chosen], by_use),
                            "a whole use, and no search", LOOKUPS)

    return build


# ---------------------------------------------------------------------------------------------- through RMM
def through_rmm(nbytes: int, own_stream: bool) -> Callable[..., Iterator[Candidate]]:
    """A pair as libcudf makes it: in C++, through RMM's types, on the legacy default stream (cuDF's) or on another."""
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        on = world.streams[:1] if own_stream else [0]
        floor = _loops.Allocator.driver()
        yield Candidate("driver", CPP, FLOOR, partial(floor.pairs, nbytes, on))
        for name, role, mr in resources_of_rmm(world):
            yield Candidate(name, CPP, role, partial(rmm_loops(mr).pairs, nbytes, on))

    return when_rmm(build)


def when_rmm(build: Callable[..., Iterator[Candidate]]) -> Callable[..., Iterator[Candidate]]:
    def guarded(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        if "RMM" not in world.modules:
            return
        try:
            yield from build(world, stack, failed)
        except GeneratorExit:
            raise
        except Exception as error:
            failed("RMM", error)

    return guarded


def rmm_loops(mr: Any) -> _loops.Allocator:
    from xlogmem.rmm._binding import upstream_of

    return _loops.Allocator.of(upstream_of(mr))


def resources_of_rmm(world: World) -> Iterator[tuple[str, str, Any]]:
    """RMM's resources alone, under its statistics, and under a runtime of ours; ours alone, seen through RMM."""
    import xlogmem.rmm as binding

    room = world.share(GIB)
    mr = world.modules["RMM"].mr
    for name, below in rmm_resources(world, room).items():
        yield name, PEER, below
        if name.endswith("statistics"):
            continue
        if name != "rmm async":
            yield f"{name}, statistics", PEER, mr.StatisticsResourceAdaptor(below)
        runtime = xlogmem.DeviceRuntime(resource=binding.RmmMemoryResource(below))
        yield f"xlogmem over {name}", OURS, binding.RuntimeMemoryResource(runtime)
    for name, runtime in runtimes(room).items():
        yield name, OURS, binding.RuntimeMemoryResource(runtime)


def beside_python(nbytes: int, calls: int) -> Callable[..., Iterator[Candidate]]:
    """The 99th percentile of a pair in C++ while a Python thread computes: whoever takes the GIL waits for it."""
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        import xlogmem.rmm as binding

        mr = world.modules["RMM"].mr
        asynchronous = mr.CudaAsyncMemoryResource()
        over = binding.RuntimeMemoryResource(xlogmem.DeviceRuntime(resource=binding.RmmMemoryResource(asynchronous)))
        floor = _loops.Allocator.driver()

        def busy(of: _loops.Allocator, count: int) -> Callable[[int], float]:
            def run(_: int) -> float:
                stop = threading.Event()

                def spin() -> None:
                    while not stop.is_set():
                        sum(range(100))

                thread = threading.Thread(target=spin)
                thread.start()
                took = of.each_pair(nbytes, [0], count)
                stop.set()
                thread.join()
                return float(took[count * 99 // 100])
            return run

        yield Candidate("driver", CPP, FLOOR, busy(floor, calls), most=1)
        yield Candidate("rmm async", CPP, PEER, busy(rmm_loops(asynchronous), calls), most=1)
        yield Candidate("xlogmem over rmm async", CPP, OURS, busy(rmm_loops(over), calls), most=1)
        callback = mr.CallbackMemoryResource(asynchronous.allocate, asynchronous.deallocate)
        few = max(calls // 500, 8)
        yield Candidate("rmm callbacks in Python", CPP, PEER, busy(rmm_loops(callback), few),
                        f"what a resource written in Python costs; the worst of {few} pairs", most=1)

    return when_rmm(build)


# ---------------------------------------------------------------------------------------------- pylibcudf
def in_pylibcudf(operation: str, rows: int, calls: int) -> Callable[..., Iterator[Candidate]]:
    """Small columns made one after the other: as bound by allocation as cuDF gets."""
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        if "pylibcudf" not in world.modules:
            return
        import pylibcudf as plc
        from rmm.pylibrmm.stream import DEFAULT_STREAM

        kind = plc.DataType(plc.TypeId.INT64)
        make = plc.column_factories.make_numeric_column
        none = plc.types.MaskState.UNALLOCATED

        def loop(mr: Any) -> Callable[[], object]:
            a, b = (make(kind, rows, none, DEFAULT_STREAM, mr) for _ in range(2))
            if operation == "allocate_like":
                never = plc.copying.MaskAllocationPolicy.NEVER
                return lambda: plc.copying.allocate_like(a, never, rows, DEFAULT_STREAM, mr)
            add = plc.binaryop.BinaryOperator.ADD
            return lambda: plc.binaryop.binary_operation(a, b, add, kind, DEFAULT_STREAM, mr)

        for name, role, mr in resources_of_rmm(world):
            try:
                one = loop(mr)
                one()                                   # loads kernels, the first time
            except Exception as error:                  # the others go on
                failed(name, error)
            else:
                yield Candidate(name, PYTHON, role, timed(one), most=calls)

    return when_rmm(build)


# ---------------------------------------------------------------------------------------------- the list
def all_cases(scale: int = 1, log_files: tuple[str, ...] = ()) -> tuple[Case, ...]:
    """Every case.  `scale` divides what there is of everything, for tests; the ids stay."""
    if (scale, log_files) not in _listed:
        _listed[scale, log_files] = _list_cases(scale, log_files)
    return _listed[scale, log_files]


_listed: dict[tuple[int, tuple[str, ...]], tuple[Case, ...]] = {}       # the logs take a second to make


def _list_cases(scale: int, log_files: tuple[str, ...]) -> tuple[Case, ...]:
    def some(count: int, least: int = 8) -> int:
        return max(min(count, least), count // scale)

    cases: list[Case] = []

    def case(id: str, family: str, unit: str, build: Callable[..., Iterator[Candidate]], **rest: Any) -> None:
        cases.append(Case(id, family, unit, build, **rest))

    for nbytes, name in SIZES.items():
        case(f"allocate/{name}", "allocate", "pair", allocate_and_free(nbytes), parameters={"nbytes": nbytes},
             quick=nbytes in (256, MIB), needs=9 * GIB // scale)
    for nbytes in (256, MIB):
        case(f"allocate/{SIZES[nbytes]}, 8 streams in turn", "allocate", "pair", allocate_and_free(nbytes, 8),
             parameters={"nbytes": nbytes, "streams": 8}, quick=nbytes == MIB)
    for threads in (2, 4, 8, 16):
        case(f"allocate/1 MiB, {threads} threads", "allocate", "pair in each", in_threads(MIB, threads),
             parameters={"nbytes": MIB, "threads": threads, "streams": threads}, quick=threads == 4)
    held = some(512)
    case("allocate/1 MiB, 512 held", "allocate", "pair",
         replayed(partial(logs.held, held, MIB), GIB), parameters={"nbytes": MIB, "held": held}, per=held, quick=True)
    for largest in (64 * KIB, MIB):
        blocks, pairs = some(1000), some(1000)
        case(f"allocate/to {SIZES[largest]}, fragmented", "allocate", "pair",
             replayed(partial(logs.pairs, largest, pairs, 2 * blocks), 2 * GIB,
                      logs.fragments(random.Random(1), blocks, largest)),
             parameters={"largest": largest, "holes": blocks, "seed": 1}, per=pairs, quick=largest == MIB)

    for blocks in (1, 4, 16, 64):
        case(f"use/{blocks} blocks, same stream" if blocks > 1 else "use/1 block, same stream", "use", "use",
             used(same_stream(blocks)), parameters={"blocks": blocks}, quick=blocks in (1, 16))
    case("use/hand-over", "use", "hand-over of two uses", used(HAND_OVER), parameters={"blocks": HAND_OVER.blocks},
         quick=True)
    case("use/ping-pong", "use", "round of two uses", used(PING_PONG), quick=True)
    case("use/fan-out to 8 readers and back", "use", "round of nine uses", used(FAN_OUT), quick=True)

    for readers in (1, 4, 8):
        case(f"free/after {readers} foreign reads" if readers > 1 else "free/after 1 foreign read", "free",
             "allocation, reads and free", freed_after_reads(readers), parameters={"readers": readers, "nbytes": MIB},
             quick=readers == 4)

    for live in (1_000, 10_000, 100_000, 1_000_000):
        for interior in (False, True):
            case(f"lookup/{live:,} live" + (", interior" if interior else ""), "lookup", "lookup",
                 looked_up(some(live), interior), parameters={"live": some(live), "interior": interior},
                 quick=live in (1_000, 100_000) and not interior)

    made = {"random sizes": logs.random_sizes(random.Random(0), events=some(5_000)),
            "random sizes, 8 streams": logs.random_sizes(random.Random(0), 8, events=some(5_000)),
            "ORC-like bursts": logs.orc_bursts(random.Random(0), bursts=2, small=some(2_500)),
            "queries": logs.queries(random.Random(0), count=some(50, 2)),
            "queries, 4 streams": logs.queries(random.Random(0), 4, count=some(50, 2))}
    for name, log in (made | {path: logs.recorded(path) for path in log_files}).items():
        events = list(log)
        steps = logs.steps_of(events)
        room = max(2 * logs.peak(events), GIB // scale)
        case(f"replay/{name}", "replay", "pair", replayed(partial(list, steps), room), per=len(steps) // 2,
             needs=9 * room, parameters={"events": len(events), "peak": logs.peak(events)}, quick=name == "queries")

    # RMM's max_usage is 16,000 MiB, and its pools have half of the GPU and all of it: here everybody has room for that,
    # at once.  What finds no memory in a fragmented pool is left out, as there.
    for allocations, largest in ((1_000, 1), (1_000, 4), (1_000, 64), (1_000, 256), (1_000, 1_024), (1_000, 4_096),
                                 (10_000, 64), (100_000, 4)):
        count = some(allocations)
        program = partial(logs.random_allocations, allocations + largest, count, largest * MIB // scale,
                          16_000 * MIB // scale)
        case(f"shapes/random_allocations, {allocations:,} to {largest:,} MiB", "shapes", "allocation and free",
             replayed(program, 20 * GIB // scale, from_python=allocations == 1_000 and largest <= 4), per=count,
             parameters={"num_allocations": count, "max_size": largest * MIB // scale,
                         "max_usage": 16_000 * MIB // scale, "allocation_probability": 73},
             needs=130 * GIB // scale if largest > 4 else 0,
             quick=(allocations, largest) == (1_000, 64))
    for streams in (1, 2, 4):
        for warm in (False, True):
            prewarm = [(logs.ALLOCATE, 4 + i, 8, i) for i in range(streams)]
            cool = [(logs.FREE, 4 + i, 8, i) for i in range(streams)]
            case(f"shapes/multi_stream_allocations, {streams} streams" + (", prewarmed" if warm else ""), "shapes",
                 "round of 4 kernels",
                 replayed(partial(logs.multi_stream, streams, 4), GIB, (prewarm + cool, []) if warm else None),
                 parameters={"streams": streams, "kernels": 4, "prewarm": warm, "kernel_ns": KERNEL_NS})

    case("rmm/pair of 1 MiB, legacy stream", "rmm", "pair", through_rmm(MIB, False), parameters={"nbytes": MIB},
         quick=True)
    case("rmm/pair of 1 MiB, another stream", "rmm", "pair", through_rmm(MIB, True), parameters={"nbytes": MIB})
    case("rmm/99th percentile beside a busy Python thread", "rmm", "pair", beside_python(MIB, some(10_000)),
         parameters={"nbytes": MIB, "pairs": some(10_000)})
    for operation in ("allocate_like", "binary_operation"):
        case(f"pylibcudf/{operation}, 1,000 rows", "pylibcudf", "column", in_pylibcudf(operation, 1_000, 400),
             parameters={"rows": 1_000}, quick=operation == "allocate_like")
    return tuple(cases)


@contextmanager
def built(case: Case, world: World, failed: Failed) -> Iterator[list[Candidate]]:
    """The candidates of a case; they end with it."""
    with ExitStack() as stack:
        made: list[Candidate] = []
        try:
            made += case.build(world, stack, failed)
            yield made
        finally:
            for candidate in made:
                candidate.close()
            world.synchronize()
