"""In place of RMM and rapidsmpf: what `examples/cluster` uses of them, on memory of the simulated driver.

A buffer is ordered on its own stream alone, as rapidsmpf documents it.
"""
from __future__ import annotations

import itertools
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import xlogmem
from xlogmem import sim


class BufferResource:
    def __init__(self, device_mr: Any) -> None:
        self.device_mr = device_mr
        streams = itertools.cycle([xlogmem.get_runtime().acquire_stream() for _ in range(4)])
        self.stream_pool = SimpleNamespace(get_stream=lambda: next(streams))


class PackedData:
    def __init__(self, block: xlogmem.DeviceBlock, stream: xlogmem.Stream) -> None:
        self.block, self.stream = block, stream

    @classmethod
    def from_device_buffer(cls, gpu_data: Any, metadata: bytes, stream: Any, br: BufferResource) -> PackedData:
        return cls(gpu_data, stream)

    def to_host_bytes(self) -> bytes:
        self.stream.synchronize()
        return bytes(sim.simulator().view(self.block.ptr)[:self.block.nbytes])


class Shuffler:
    """Of one process: what is inserted is moved."""

    def __init__(self, comm: Any, op_id: int, total_num_partitions: int, br: BufferResource) -> None:
        self.parts: dict[int, list[PackedData]] = {}

    def insert_chunks(self, chunks: dict[int, PackedData]) -> None:
        for number, chunk in chunks.items():
            self.parts.setdefault(number, []).append(chunk)

    def extract(self, pid: int) -> list[PackedData]:
        return self.parts.pop(pid)

    def insert_finished(self) -> None:
        pass

    wait = shutdown = insert_finished


def device_buffer(size: int, stream: Any, mr: Any) -> xlogmem.DeviceBlock:
    return xlogmem.get_runtime().allocate(size, stream)


def install() -> None:
    nothing = SimpleNamespace
    for name, parts in (
            ("rmm", {"DeviceBuffer": device_buffer}),
            ("rmm.mr", {"CudaAsyncMemoryResource": nothing, "set_current_device_resource": lambda mr: None,
                        "get_current_device_resource": nothing}),
            ("xlogmem.rmm", {"enable": lambda: None}),
            ("rapidsmpf", {}), ("rapidsmpf.shuffler", {"Shuffler": Shuffler}),
            ("rapidsmpf.memory", {}), ("rapidsmpf.memory.packed_data", {"PackedData": PackedData}),
            ("rapidsmpf.memory.buffer_resource", {"BufferResource": BufferResource}),
            ("rapidsmpf.communicator", {}),
            ("rapidsmpf.communicator.single", {"new_communicator": lambda options, thread: None}),
            ("rapidsmpf.config", {"Options": nothing}), ("rapidsmpf.progress_thread", {"ProgressThread": nothing})):
        module = sys.modules[name] = ModuleType(name)
        vars(module).update(parts)
    xlogmem.rmm = sys.modules["xlogmem.rmm"]            # type: ignore[attr-defined]
