"""The scene of a situation: a small runtime of its own, and short names for operations on it."""
from __future__ import annotations

from random import Random
from types import TracebackType
from typing import Any, Self

from xlogmem.blocks import BlockState, DeviceBlock
from xlogmem.interop._dtypes import DTYPES
from xlogmem.interop.buffers import Buffer, DeviceSnapshot, make_buffer
from xlogmem.interop.devices import DeviceState
from xlogmem.launch import LaunchRecorder
from xlogmem.resources import AsyncMemoryResource, DeviceMemoryResource
from xlogmem.runtime import DeviceRuntime
from xlogmem.streams import StreamPool
from xlogmem_selftest.world import READ, WRITE, World

__all__ = ["HALF", "NBYTES", "Scene"]

NBYTES = 1024
HALF = NBYTES // 2


class Scene:
    """A runtime with a few streams, which is closed at the end and has to be empty then."""

    def __init__(self, world: World, rng: Random, resource: DeviceMemoryResource | None = None,
                 policy: str | None = None) -> None:
        self.world = world
        self.simulator = world.simulator
        self.kernels = world.kernels
        self.runtime = DeviceRuntime(policy=policy or rng.choice(["adaptive", "lazy", "precise"]),
                                     resource=resource or AsyncMemoryResource(),
                                     stream_pool=StreamPool(max_streams=8))
        self.state = DeviceState(self.runtime)          # of buffers
        self.blocks: list[DeviceBlock] = []
        self.lost_blocks = 0                            # that the runtime was right to give up

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if kind is None:
            for block in self.blocks:
                if block.state is BlockState.LIVE:
                    block.free()
            self.blocks.clear()
            self.runtime.reap_pending()
            counters = self.runtime.counters()
            self.expect(self.runtime.bytes_outstanding == 0 and counters["live_blocks"] == 0
                        and counters["allocations"] == counters["frees"] + self.lost_blocks,
                        f"{self.runtime.bytes_outstanding} bytes are left: {counters}")

    def expect(self, truth: bool, text: str) -> None:
        if not truth:
            self.world.violation(text)

    def stream(self, discipline: str = "ordinary") -> Any:
        return self.runtime.acquire_stream(discipline=discipline)

    def block(self, stream: Any = None) -> DeviceBlock:
        """Freed at the end, unless it is before."""
        self.blocks.append(self.runtime.allocate(NBYTES, stream))
        return self.blocks[-1]

    def work(self, stream: int, block: DeviceBlock, access: str, offset: int = 0, nbytes: int = NBYTES) -> None:
        """Queue a kernel, recorded or not."""
        at, words = block.ptr + offset, nbytes // 4
        if access == READ:
            self.kernels.copy(stream, self.world.scratch(nbytes), at, words)
        elif access == WRITE:
            self.kernels.fill(stream, at, 1, words)
        else:
            self.kernels.add(stream, at, 1, words)

    def buffer(self, block: DeviceBlock) -> Buffer:
        """A buffer over the whole of a block."""
        return make_buffer(DeviceSnapshot(self.state._status, self.runtime, 0), block, (NBYTES // 4,), DTYPES["uint32"])

    def read_interface(self, block: DeviceBlock, stream: Any) -> None:
        """A consumer reads the interface of a block, which names this stream."""
        named = self.buffer(block).__cuda_array_interface__["stream"]
        self.expect(named == stream.handle, f"the interface names {named:#x}, not {stream.handle:#x}")

    def prepare(self, stream: Any, *uses: tuple[DeviceBlock, str], **options: Any) -> LaunchRecorder:
        """By one thread, which cannot wait for its own windows: conflicting ones are counted."""
        recorder = LaunchRecorder(stream, runtime=self.runtime, **{"on_conflict": "count", **options})
        for block, access in uses:
            getattr(recorder, access)(block)
        recorder.preflight()
        return recorder

    def use(self, stream: Any, *uses: tuple[DeviceBlock, str]) -> None:
        recorder = self.prepare(stream, *uses)
        for block, access in uses:
            self.work(getattr(stream, "handle", stream), block, access)
        recorder.commit()
