"""Launches that name a range of a block, for tests."""
from __future__ import annotations

from typing import Any

from arrays import Column
from four_streams import READ, WRITE, FourStreams, Operation

from xlogmem import use

SIZE = 512
HALF = SIZE // 2


def written(x: FourStreams) -> Any:
    """A block that S has written, and that T and U were ordered after: nothing unrecorded is left."""
    block = x.alloc(x.S, SIZE)
    x.use(x.S, (block, WRITE))
    for _ in range(2):
        for other in (x.T, x.U):
            x.use(other, (block, READ))
    return block


def work(x: FourStreams, stream: Any, block: Any, first: int, nbytes: int, access: str = WRITE) -> Operation:
    """Queue an unrecorded kernel on a range, and the mark."""
    if access == READ:
        x.kernels.count_unequal(stream.handle, x.next_word(), block.ptr + first, 0, nbytes // 4)
    else:
        x.kernels.fill(stream.handle, block.ptr + first, 1, nbytes // 4)
    word = x.next_word()
    x.kernels.fill(stream.handle, word, 1, 1)
    return Operation(word)


def use_range(x: FourStreams, stream: Any, block: Any, first: int, nbytes: int, access: str = WRITE,
              **options: Any) -> Operation:
    """Prepare, launch, finish."""
    with use(stream, **{access: Column(block, first, nbytes)}, **options):
        return work(x, stream, block, first, nbytes, access)
