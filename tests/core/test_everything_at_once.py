"""Every operation beside every other, in many threads."""
from __future__ import annotations

import contextlib
import random

import pytest
from cuda.bindings import driver as cuda
from stress import together

from xlogmem import (
    BlockState,
    DeviceRuntime,
    DeviceState,
    LaunchRecorder,
    PoolMemoryResource,
    StreamMisuseError,
    StreamPool,
    UseAfterFreeError,
    use,
)
from xlogmem._dtypes import DTYPES
from xlogmem._kernels import check
from xlogmem.buffers import mint


class Theirs:
    """A stream, and memory, of somebody else's library."""

    def __init__(self):
        self.stream = check(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self.ptr = int(check(cuda.cuMemAlloc(4096)))

    def __cuda_stream__(self):
        return 0, int(self.stream)

    def __del__(self):
        check(cuda.cuMemFree(self.ptr))
        check(cuda.cuStreamDestroy(self.stream))


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.filterwarnings("ignore:.* was dropped between preflight and commit:ResourceWarning")
def test_every_operation_beside_every_other(seed, pooled, _context):
    """Twelve threads share a runtime, streams and blocks, and do to them whatever a program may do.

    What is asserted here is the books; under `.ci/sanitize tsan` this is where two threads meet in the core.
    """
    count = 12
    pool = PoolMemoryResource(chunk_size=8192) if pooled else None
    runtime = DeviceRuntime(stream_pool=StreamPool(max_streams=4 * count), resource=pool)
    streams = [runtime.acquire_stream(discipline=kind) for kind in ("ordinary", "opaque", "sealed", "ordinary")]
    shared = [runtime.allocate(4096, stream) for stream in streams]
    state, loans = DeviceState(runtime), []

    def work(number):
        check(cuda.cuCtxSetCurrent(_context))
        chance = random.Random(f"{seed} {number}")
        theirs = Theirs()
        calls = {"allocations": 5, "uses": 1}
        mine = state.full(64, number, "uint8")
        kept = []

        def pick():
            """A block that any thread may have freed by the time it is used."""
            return shared[chance.randrange(len(shared))]

        def launch(stream):
            with contextlib.suppress(UseAfterFreeError), use(stream, read=[pick(), pick()], write=pick()):
                calls["uses"] += 1

        def exchange():
            kept.append(runtime.allocate(256, chance.choice(streams)))
            calls["allocations"] += 1
            place = chance.randrange(len(shared))
            kept[-1], shared[place] = shared[place], kept[-1]       # the last reference may be another thread's

        def free():
            with contextlib.suppress(UseAfterFreeError):
                (kept.pop() if kept and chance.random() < 0.7 else pick()).free(chance.choice([None, *streams]))

        def lend():
            block = runtime.adopt(theirs.ptr, 4096, chance.choice([None, theirs]), owner=theirs)
            with contextlib.suppress(UseAfterFreeError):            # the block of the last time, about to be let go
                with use(chance.choice(streams), read=block):
                    calls["uses"] += 1
                if chance.random() < 0.5:
                    block.free()

        def part():
            block = pick()
            with contextlib.suppress(UseAfterFreeError, StreamMisuseError), \
                    use(chance.choice(streams), read=runtime.adopt(block.ptr, 16)):
                calls["uses"] += 1

        def unregister(stream):
            while True:
                try:
                    return runtime.unregister_stream(stream, heir=chance.choice(streams))
                except StreamMisuseError as error:                      # another thread is waiting for it right now
                    assert "is in use" in str(error)

        def leave():
            """A stream that comes and goes; another one frees what was allocated there."""
            stream = check(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))
            known = runtime.register_stream(stream, discipline=chance.choice(["ordinary", "opaque"]))
            kept.append(runtime.allocate(64, known))
            calls["allocations"] += 1
            launch(known)
            unregister(stream)
            check(cuda.cuStreamDestroy(stream))

        def forget():
            """A stream that nobody unregisters: the registry sweeps it away one day."""
            launch(Theirs())

        def drop_recorder():
            recorder = LaunchRecorder(chance.choice(streams)).read_write(pick())
            with contextlib.suppress(UseAfterFreeError):
                recorder.preflight()
                calls["uses"] += 1

        def ask():
            block = pick()
            runtime.find_block(block.ptr)
            assert all(kind in ("allocated", "written", "has-read") for kind, _ in block.frontier)
            assert block.state in BlockState
            assert runtime.counters()["allocations"] >= len(streams)
            assert runtime.stream_count() > len(streams)
            assert runtime.stream_pool.stream(streams[0].id) == streams[0]

        def one_use():
            with contextlib.suppress(UseAfterFreeError):
                runtime.record_block_use(pick(), chance.choice(streams))

        def buffer():
            block = pick()
            return mint(state._standing, runtime, 0, block, (block.nbytes,), DTYPES["uint8"])

        def export():
            """The deleter may run in another thread, beside everything else."""
            with contextlib.suppress(UseAfterFreeError):
                if chance.random() < 0.3:
                    loans.append(buffer().__dlpack__(stream=-1))
                    return
                stream = chance.choice([1, theirs, *streams])
                loans.append(buffer().__dlpack__(stream=stream, max_version=chance.choice([None, (1, 0)])))
                calls["uses"] += 1

        def show():
            with contextlib.suppress(UseAfterFreeError):
                if chance.random() < 0.5:
                    loans.append(buffer().__arrow_c_device_array__())
                else:
                    assert buffer().__cuda_array_interface__["stream"]
                calls["uses"] += 1

        def give_back():
            with contextlib.suppress(IndexError):
                loans.pop(chance.randrange(len(loans) + 1))

        def copy():
            """On memory of this thread: uses that two threads queue at once are in no order."""
            if chance.random() < 0.5:
                mine.fill(chance.randrange(256), chance.choice(streams))
            else:
                assert len(set(mine.to_numpy(chance.choice(streams)))) == 1
            calls["uses"] += 1

        operations = [
            export, export, show, give_back, give_back, copy,
            lambda: launch(chance.choice(streams)), lambda: launch(theirs), lambda: launch(runtime.acquire_stream()),
            exchange, exchange, free, free, kept.clear, lend, part, leave, forget, drop_recorder, ask, one_use,
            lambda: runtime.reap_pending(blocking=chance.random() < 0.3),
        ]
        if pool is not None:
            operations += [pool.trim, runtime.memory_summary]
        for _ in range(300):
            chance.choice(operations)()
        kept.clear()
        runtime.reap_pending()
        return calls

    done = together(work, count)
    shared.clear()
    loans.clear()
    runtime.reap_pending()
    counters = runtime.counters()
    assert runtime.bytes_outstanding == counters["live_blocks"] == 0
    assert counters["allocations"] == counters["frees"] == 4 + sum(calls["allocations"] - 4 for calls in done)
    assert counters["uses"] == sum(calls["uses"] for calls in done)
