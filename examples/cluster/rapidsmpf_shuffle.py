"""rapidsmpf: memory is packed on one stream and given to a shuffler on another, while a third writes its source.

    python examples/cluster/rapidsmpf_shuffle.py [--rounds N] [--mib N] [--json]
    python examples/cluster/rapidsmpf_shuffle.py --without         # without the uses

Each round a slow producer writes its number to `source`, a packer copies that, and the copy goes to a shuffler of one
process.  The shuffler takes a buffer as it is on the stream that the buffer was allocated on, here one of its pool,
and what is sent or spilled is ordered after that stream alone ("the caller promises that inserted buffers are
stream-ordered").  Three uses make it so: of the producer, of the packer, and of the stream that the shuffler is given.
Without them some partitions have what was there too early, others what was written too late.
"""
from __future__ import annotations

import argparse
import contextlib
from typing import Any

import numpy
from cuda.bindings import driver as cuda
from on_host import main, needed

import xlogmem

SLOW = 32                                               # fills before each write; twice as many before each copy
FILLED = 16                                             # times what is sent: of as much is each of them


class Shuffle:
    """One shuffle: a partition for each round."""

    def __init__(self, rounds: int, mib: float, protected: bool) -> None:
        self.rounds, self.protected = rounds, protected
        self.words = int(mib * 2**18)
        self.rmm, resources, rapidsmpf = needed("rmm"), needed("rmm.mr"), needed("rapidsmpf.shuffler")
        packed_data, buffers = needed("rapidsmpf.memory.packed_data"), needed("rapidsmpf.memory.buffer_resource")
        import xlogmem.rmm

        resources.set_current_device_resource(resources.CudaAsyncMemoryResource())
        xlogmem.rmm.enable()                            # before rapidsmpf is given the resource
        self.resource = buffers.BufferResource(resources.get_current_device_resource())
        self.from_device_buffer = packed_data.PackedData.from_device_buffer
        communicator = needed("rapidsmpf.communicator.single").new_communicator(
            needed("rapidsmpf.config").Options(), needed("rapidsmpf.progress_thread").ProgressThread())
        self.shuffler = rapidsmpf.Shuffler(communicator, 0, rounds, self.resource)
        runtime = xlogmem.get_runtime()
        self.producer, self.packer = (runtime.acquire_stream() for _ in range(2))
        self.source = runtime.allocate(4 * self.words, self.producer)
        self.scratch = runtime.allocate(FILLED * 4 * self.words, self.producer)
        self.of_packer = runtime.allocate(FILLED * 4 * self.words, self.packer)
        self.fill(self.source, rounds, self.producer)   # no round's number
        self.producer.synchronize()

    def fill(self, block: xlogmem.DeviceBlock, value: int, stream: xlogmem.Stream) -> None:
        ok(cuda.cuMemsetD32Async(block.ptr, value, block.nbytes // 4, stream.handle))

    def use(self, stream: Any, **what: Any) -> contextlib.AbstractContextManager[Any]:
        return xlogmem.use(stream, **what) if self.protected else contextlib.nullcontext()

    def produce(self, number: int) -> None:
        """In place of kernels: it is slow, and then writes."""
        with self.use(self.producer, write=self.source):                        # after the last copy
            for _ in range(SLOW):
                self.fill(self.scratch, number, self.producer)
            self.fill(self.source, number, self.producer)

    def pack(self, number: int) -> Any:
        """A copy that is slow, and is given to the shuffler as one of a stream of its own."""
        stream = self.resource.stream_pool.get_stream()
        packed = self.rmm.DeviceBuffer(size=4 * self.words, stream=stream, mr=self.resource.device_mr)
        with self.use(self.packer, read=self.source, write=packed):             # after the producer, and the allocation
            for _ in range(2 * SLOW):                   # it falls behind the producer, if nothing holds that back
                self.fill(self.of_packer, number, self.packer)
            ok(cuda.cuMemcpyDtoDAsync(packed.ptr, self.source.ptr, 4 * self.words, self.packer.handle))
        with self.use(stream, read_write=packed):                               # `stream` after the packer
            return self.from_device_buffer(packed, number.to_bytes(8, "little"), stream, self.resource)

    def run(self) -> dict[str, int]:
        for number in range(self.rounds):
            self.produce(number)
            self.shuffler.insert_chunks({number: self.pack(number)})
        self.shuffler.insert_finished()
        self.shuffler.wait()
        seen = {"too_early": 0, "too_late": 0}
        for number in range(self.rounds):
            (chunk,) = self.shuffler.extract(number)
            values = numpy.frombuffer(chunk.to_host_bytes(), numpy.uint32)      # waits for its stream
            if (values != number).any():
                later = (values > number) & (values < self.rounds)
                seen["too_late" if later.any() else "too_early"] += 1
        self.shuffler.shutdown()
        return seen


def ok(result: tuple[Any, ...]) -> None:
    if int(result[0]):
        raise RuntimeError(result[0])


def run(options: argparse.Namespace) -> dict[str, int]:
    return Shuffle(options.rounds, options.mib, not options.without).run()


if __name__ == "__main__":
    main(__doc__.splitlines()[0], run, mib=1)           # rapidsmpf takes 30 ms to hand the host one MiB
