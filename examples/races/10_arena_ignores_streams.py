"""An arena hands memory to another stream while work on it is still queued.

Threads: https://github.com/microsoft/onnxruntime/issues/32342, https://github.com/microsoft/onnxruntime/issues/4829
Wrong:   Buffers are requested without a stream, so that the arena's chunks have none, and a chunk without a stream
         counts as free for every stream as soon as the host has freed it.  The copy that was queued for its first
         owner may run after the computation of the second one.
Repair:  A chunk remembers its stream, and the next owner's stream waits for it.
"""
from __future__ import annotations

import sys

from driver import begin, cuda, ok, stream, wait

FIXED = "--fixed" in sys.argv
SIZE = 1 << 12


class Arena:
    """One chunk."""

    def __init__(self) -> None:
        self.chunk, self.last = ok(cuda.cuMemAlloc(SIZE)), None

    def allocate(self, stream: object) -> object:
        if FIXED and self.last is not None:
            wait(stream, self.last)
        return self.chunk

    def free(self, stream: object) -> None:
        self.last = stream


begin()
compute, copy = stream(), stream()
arena = Arena()
buffer = arena.allocate(copy)
ok(cuda.cuMemcpyHtoDAsync(buffer, bytes(SIZE), SIZE, copy))     # first
arena.free(copy)
other = arena.allocate(compute)
ok(cuda.cuMemsetD8Async(other, 2, SIZE, compute))       # then
ok(cuda.cuCtxSynchronize())
