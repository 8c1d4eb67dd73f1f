"""Round trips with CuPy on a GPU; see `round_trips`."""
from __future__ import annotations

from typing import Any

import pytest
from round_trips import CUPY, LATE, ROUNDS, WORDS, show, wrong_rounds

from xlogmem import from_cuda_array, from_dlpack, use

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]    # warnings of other libraries are theirs


class Unordered:
    """A producer that ignores the consumer's stream, as some do."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.buffer.__dlpack_device__()

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        return self.buffer.__dlpack__(stream=-1, **options)


@CUPY
@pytest.mark.parametrize("ordered", [True, False])
def test_cupy_reads_what_we_wrote(program, capsys, ordered):
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    buffer = program.state.empty(WORDS, "int32", program.S)
    given = buffer if ordered else Unordered(buffer)

    def one(turn: int) -> Any:
        program.produce(buffer, turn)
        with stream:
            return (cupy.from_dlpack(given) != turn).sum()

    seen = wrong_rounds(ROUNDS, one)
    assert (seen == 0) == ordered                       # the twin
    if ordered:
        show(capsys, "ours to CuPy by DLPack", seen)


@CUPY
def test_cupy_reads_our_interface(program, capsys):
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    buffer = program.state.empty(WORDS, "int32", program.S)

    def one(turn: int) -> Any:
        program.produce(buffer, turn)
        with stream, use(stream, read=buffer, runtime=program.runtime):
            return (cupy.asarray(buffer) != turn).sum()

    seen = wrong_rounds(ROUNDS, one)
    show(capsys, "ours to CuPy by the CUDA array interface", seen)
    assert seen == 0


@CUPY
def test_we_read_what_cupy_wrote(program, capsys):
    """And it writes again only when we have read."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = cupy.empty(WORDS, "int32")
    for turn in range(1, ROUNDS + 1):
        with stream:
            program.kernels.delay(stream.ptr, LATE)
            array.fill(turn)
            take = from_dlpack if turn % 2 else from_cuda_array
            buffer = take(array, state=program.state)
        program.consume(buffer, turn)
        del buffer
        program.runtime.reap_pending(blocking=False)
    seen = program.count()
    show(capsys, "CuPy to ours", seen)
    assert seen == 0


@CUPY
def test_cupy_may_destroy_its_stream_while_it_has_ours(program):
    import cupy

    for turn in range(100):
        buffer = program.state.empty(WORDS, "int32", program.S)
        program.produce(buffer, turn)
        with cupy.cuda.Stream(non_blocking=True):
            array = cupy.from_dlpack(buffer)
            seen = int((array != turn).sum())           # copied on this stream: CuPy orders no other after it
        assert seen == 0
        program.produce(buffer, turn + 1)
        del array, buffer
    program.runtime.reap_pending()
