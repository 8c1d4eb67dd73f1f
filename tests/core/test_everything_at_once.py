"""Every operation beside every other, in many threads."""
from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest
from arrays import Array
from cuda.bindings import driver as cuda
from stress import together

from xlogmem import (
    AsyncMemoryResource,
    BlockState,
    Buffer,
    DeviceBlock,
    DeviceMemoryResource,
    DeviceRuntime,
    DeviceState,
    LaunchRecorder,
    ManagedMemoryResource,
    PinnedMemoryResource,
    PoolMemoryResource,
    StatisticsResourceAdaptor,
    Stream,
    StreamMisuseError,
    StreamPool,
    TrackingResourceAdaptor,
    UseAfterFreeError,
    current_stream,
    use,
)
from xlogmem.interop._dtypes import DTYPES
from xlogmem.interop.buffers import DeviceSnapshot, make_buffer
from xlogmem.sim.kernels import check

THREADS = 12


class Foreign:
    """A stream, and memory, of another library."""

    def __init__(self) -> None:
        self.stream = check(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self.ptr = int(check(cuda.cuMemAlloc(4096)))

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, int(self.stream)

    def __del__(self) -> None:
        check(cuda.cuMemFree(self.ptr))
        check(cuda.cuStreamDestroy(self.stream))


class Shared:
    """What all threads use: a runtime, its streams, blocks that any of them may free, and exports."""

    def __init__(self, resource: DeviceMemoryResource) -> None:
        self.resource = resource
        self.runtime = DeviceRuntime(stream_pool=StreamPool(max_streams=4 * THREADS), resource=resource)
        self.streams = [self.runtime.acquire_stream(discipline=kind)
                        for kind in ("ordinary", "opaque", "sealed", "ordinary")]
        self.blocks = [self.runtime.allocate(4096, stream) for stream in self.streams]
        self.others = [ManagedMemoryResource(), PoolMemoryResource(PinnedMemoryResource()), AsyncMemoryResource()]
        self.elsewhere: list[int] = []                  # blocks that were allocated from these
        self.state = DeviceState(self.runtime)
        self.exports: list[object] = []


class Worker:
    """The operations of one thread; it counts its allocations and uses."""

    def __init__(self, shared: Shared, seed: str, number: int) -> None:
        self.shared, self.runtime, self.streams = shared, shared.runtime, shared.streams
        self.chance = random.Random(seed)
        self.foreign = Foreign()
        self.allocations, self.uses = 2, 2
        self.own = shared.state.full(64, number, "uint8")
        self.staging = shared.state.full(64, number, "uint8", resource=shared.others[1])
        shared.elsewhere.append(self.staging.access().generation)
        self.kept: list[DeviceBlock] = []

    def operations(self) -> list[Callable[[], object]]:
        operations = [
            self.export, self.export, self.show, self.release_export, self.release_export, self.copy,
            lambda: self.launch(self.stream()), lambda: self.launch(self.foreign),
            lambda: self.launch(self.runtime.acquire_stream()),
            self.exchange, self.exchange, self.exchange_elsewhere, self.exchange_many, self.free, self.free,
            self.kept.clear, self.map, self.adopt, self.adopt_a_part, self.adopt_while_owned,
            self.register_and_unregister, self.register_and_forget, self.drop_recorder, self.query,
            self.record_one_use, self.wait, self.synchronize, self.close,
            lambda: self.runtime.reap_pending(blocking=self.chance.random() < 0.3),
        ]
        operations.append(self.runtime.memory_summary)
        if isinstance(self.shared.resource, PoolMemoryResource):
            operations.append(self.shared.resource.trim)
        return operations

    def stream(self) -> Stream:
        return self.chance.choice(self.streams)

    def pick(self) -> DeviceBlock:
        """A block that any thread may have freed by the time it is used."""
        return self.shared.blocks[self.chance.randrange(len(self.shared.blocks))]

    def buffer(self) -> Buffer:
        block = self.pick()
        device = DeviceSnapshot(self.shared.state._status, self.runtime, 0)
        return make_buffer(device, block, (block.nbytes,), DTYPES["uint8"])

    # ------------------------------------------------------------------------------------------ blocks and uses
    def launch(self, stream: object) -> None:
        with contextlib.suppress(UseAfterFreeError), \
                use(stream, read=[self.pick(), self.pick()], write=self.pick()):
            self.uses += 1

    def exchange(self) -> None:
        self.kept.append(self.runtime.allocate(256, self.stream()))
        self.allocations += 1
        blocks, place = self.shared.blocks, self.chance.randrange(len(self.shared.blocks))
        self.kept[-1], blocks[place] = blocks[place], self.kept[-1]     # the last reference may be another thread's

    def exchange_elsewhere(self) -> None:
        """A block of a resource that is not the runtime's own, which another thread may free."""
        self.kept.append(self.runtime.allocate(256, self.stream(), resource=self.chance.choice(self.shared.others)))
        self.allocations += 1
        self.shared.elsewhere.append(self.kept[-1].generation)
        blocks, place = self.shared.blocks, self.chance.randrange(len(self.shared.blocks))
        self.kept[-1], blocks[place] = blocks[place], self.kept[-1]

    def exchange_many(self) -> None:
        """A batch, of which one block changes places with one that another thread may free meanwhile."""
        batch = self.runtime.allocate_many([256] * 70, self.stream())
        self.allocations += 70
        self.kept.append(batch.pop())
        with contextlib.suppress(UseAfterFreeError):
            self.runtime.deallocate_many([*batch[:30], self.pick(), *batch[30:]],
                                         self.chance.choice([None, *self.streams]))

    def map(self) -> None:
        with self.staging.map(write=self.chance.random() < 0.5) as array:
            assert len(set(array.tolist())) == 1
            if array.flags.writeable:
                array[:] = self.chance.randrange(256)
        self.own.copy_from(self.staging, self.stream())
        self.uses += 1                                  # the copy; a map counts as none

    def free(self) -> None:
        with contextlib.suppress(UseAfterFreeError):
            block = self.kept.pop() if self.kept and self.chance.random() < 0.7 else self.pick()
            block.free(self.chance.choice([None, *self.streams]))

    def drop_recorder(self) -> None:
        recorder = LaunchRecorder(self.stream()).read_write(self.pick())
        with contextlib.suppress(UseAfterFreeError):
            recorder.preflight()
            self.uses += 1

    def record_one_use(self) -> None:
        with contextlib.suppress(UseAfterFreeError):
            self.runtime.record_block_use(self.pick(), self.stream())

    def copy(self) -> None:
        """On memory of this thread: uses that two threads queue at once are in no order."""
        if self.chance.random() < 0.5:
            self.own.fill(self.chance.randrange(256), self.stream())
        else:
            assert len(set(self.own.to_numpy(self.stream()))) == 1
        self.uses += 1

    def wait(self) -> None:
        """Streams and events wait for each other; the event may be another thread's."""
        stream, event = self.stream(), self.stream().record()
        stream.wait(self.chance.choice([event, self.foreign, self.stream()]))
        with stream:
            assert current_stream() is stream
        if self.chance.random() < 0.5:
            event.synchronize()
            assert event.ready

    def synchronize(self) -> None:
        with contextlib.suppress(UseAfterFreeError):
            self.chance.choice([self.runtime, self.stream(), self.pick()]).synchronize()
            assert self.chance.choice([self.runtime, self.pick()]).ready in (True, False)

    def close(self) -> None:
        if self.kept:
            self.kept.pop().close(self.chance.choice([None, *self.streams]))

    def query(self) -> None:
        block = self.pick()
        self.runtime.find_block(block.id.ptr)
        assert all(kind in ("allocated", "written", "has-read") for kind, _ in block.frontier)
        assert block.state in BlockState
        assert self.runtime.counters()["allocations"] >= len(self.streams)
        snapshot = self.runtime.snapshot()
        assert sum(record.nbytes for record in snapshot.by_tag().values()) == snapshot.live_bytes
        assert self.runtime.stream_count() > len(self.streams)
        assert self.runtime.stream_pool.stream(self.streams[0].id) == self.streams[0]

    # ------------------------------------------------------------------------------------------ foreign streams
    def register_and_unregister(self) -> None:
        """A stream that comes and goes; another one frees what was allocated there."""
        stream = check(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))
        registered = self.runtime.register_stream(stream, discipline=self.chance.choice(["ordinary", "opaque"]))
        self.kept.append(self.runtime.allocate(64, registered))
        self.allocations += 1
        self.launch(registered)
        self.unregister(stream)
        check(cuda.cuStreamDestroy(stream))

    def unregister(self, stream: object) -> None:
        while True:
            try:
                return self.runtime.unregister_stream(stream, successor=self.stream())
            except StreamMisuseError as error:                      # another thread is waiting for it right now
                assert "is in use" in str(error)

    def register_and_forget(self) -> None:
        """A stream that is never unregistered: the registry sweeps it away one day."""
        self.launch(Foreign())

    # ------------------------------------------------------------------------------------------ other libraries
    def adopt(self) -> None:
        block = self.runtime.adopt(self.foreign.ptr, 4096, self.chance.choice([None, self.foreign]),
                                   owner=self.foreign)
        with contextlib.suppress(UseAfterFreeError):                # the block of the last time, about to be dropped
            with use(self.stream(), read=block):
                self.uses += 1
            if self.chance.random() < 0.5:
                block.free()

    def adopt_while_owned(self) -> None:
        """Its owner ends with the use, and the address has the next one."""
        owner = Array(data=(self.foreign.ptr, False), shape=(4096,))
        with contextlib.suppress(UseAfterFreeError), use(self.stream(), read=owner, untracked="adopt"):
            self.uses += 1                                          # else it is a block that `adopt` has dropped

    def adopt_a_part(self) -> None:
        """Another thread may free the block between its address and the adoption."""
        block = self.pick()
        with contextlib.suppress(UseAfterFreeError, StreamMisuseError):
            try:
                part = self.runtime.adopt(block.ptr, 16)
            except ValueError as error:
                assert "the driver knows no allocation there" in str(error)
                return
            with use(self.stream(), read=part):
                self.uses += 1

    def export(self) -> None:
        """The deleter may run in another thread, beside everything else."""
        with contextlib.suppress(UseAfterFreeError):
            if self.chance.random() < 0.3:
                self.shared.exports.append(self.buffer().__dlpack__(stream=-1))
                return
            stream = self.chance.choice([1, self.foreign, *self.streams])
            version = self.chance.choice([None, (1, 0)])
            self.shared.exports.append(self.buffer().__dlpack__(stream=stream, max_version=version))
            self.uses += 1

    def show(self) -> None:
        with contextlib.suppress(UseAfterFreeError):
            if self.chance.random() < 0.5:
                self.shared.exports.append(self.buffer().__arrow_c_device_array__())
            else:
                assert self.buffer().__cuda_array_interface__["stream"]
            self.uses += 1

    def release_export(self) -> None:
        with contextlib.suppress(IndexError):
            self.shared.exports.pop(self.chance.randrange(len(self.shared.exports) + 1))


RESOURCES: dict[str, Callable[[], DeviceMemoryResource]] = {
    "async": AsyncMemoryResource, "pool": lambda: PoolMemoryResource(chunk_size=8192),
    "adaptors": lambda: StatisticsResourceAdaptor(TrackingResourceAdaptor(AsyncMemoryResource(), depth=3))}


@pytest.mark.parametrize("over", RESOURCES)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.filterwarnings("ignore:.* was dropped without being left:ResourceWarning")
@pytest.mark.filterwarnings("ignore:.* handed out memory of a live block:RuntimeWarning")   # adopted after its free
def test_every_operation_beside_every_other(seed, over, _context):
    """Twelve threads share a runtime, streams and blocks, and do to them whatever a program may do.

    What is asserted here is the accounting; under `.ci/sanitize tsan` this is where two threads meet in the core.
    """
    shared = Shared(RESOURCES[over]())

    def work(number: int) -> tuple[int, int]:
        check(cuda.cuCtxSetCurrent(_context))
        worker = Worker(shared, f"{seed} {number}", number)
        operations = worker.operations()
        for _ in range(300):
            worker.chance.choice(operations)()
        worker.kept.clear()
        shared.runtime.reap_pending()
        return worker.allocations, worker.uses

    counted = together(work, THREADS)
    runtime = shared.runtime
    shared.blocks.clear()
    shared.exports.clear()
    runtime.reap_pending()
    counters = runtime.counters()
    assert runtime.bytes_outstanding == counters["live_blocks"] == 0
    assert counters["allocations"] == counters["frees"] == 4 + sum(allocations for allocations, _ in counted)
    assert counters["uses"] == sum(uses for _, uses in counted)
    if over == "adaptors":
        now = shared.resource.allocation_counts
        own = counters["allocations"] - len(shared.elsewhere)
        assert (now.current_bytes, now.current_count, now.total_count) == (0, 0, own)
        assert shared.resource.pending_bytes == shared.resource.upstream.outstanding_bytes == 0
