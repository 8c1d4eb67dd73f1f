"""Streams made outside xlogmem."""
from __future__ import annotations

from cuda.bindings import driver as cuda
from four_streams import FourStreams

from xlogmem.sim.kernels import check

NON_BLOCKING = 1


class ForeignStream:
    """A stream of another library: destroys the CUDA stream when it is dropped, as CuPy's do."""

    def __init__(self, flags: int = NON_BLOCKING) -> None:
        self.stream = check(cuda.cuStreamCreate(flags))

    @property
    def handle(self) -> int:
        return int(self.stream)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def destroy(self) -> None:
        if self.stream is not None:
            check(cuda.cuStreamDestroy(self.stream))
            self.stream = None

    def __del__(self) -> None:
        self.destroy()


def foreign(x: FourStreams):
    owner = ForeignStream()
    return owner, x.runtime.register_stream(owner)
