"""Round trips with PyTorch on a GPU; see `round_trips`."""
from __future__ import annotations

from typing import Any

import pytest
from round_trips import CUPY, LATE, OWN_ROUNDS, ROUNDS, TORCH, WORDS, show, wrong_rounds

from xlogmem import from_cuda_array, from_dlpack

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]    # warnings of other libraries are theirs


@TORCH
def test_torch_reads_what_we_wrote(program, capsys):
    import torch

    stream = torch.cuda.Stream()
    buffer = program.state.empty(WORDS, "int32", program.S)

    def one(turn: int) -> Any:
        program.produce(buffer, turn)
        with torch.cuda.stream(stream):
            return torch.from_dlpack(buffer).ne(turn).sum()

    seen = wrong_rounds(ROUNDS, one)
    show(capsys, "ours to PyTorch by DLPack", seen)
    assert seen == 0


@TORCH
def test_we_read_what_torch_wrote(program, capsys):
    """Its interface names no stream: PyTorch is queried for the one it works on."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tensor = torch.empty(WORDS, dtype=torch.int32, device="cuda")
    for turn in range(1, ROUNDS + 1):
        with torch.cuda.stream(stream):
            program.kernels.delay(stream.cuda_stream, LATE)
            tensor.fill_(turn)
            take = from_dlpack if turn % 2 else from_cuda_array
            buffer = take(tensor, state=program.state)
        program.consume(buffer, turn)
        del buffer
        program.runtime.reap_pending(blocking=False)
    seen = program.count()
    show(capsys, "PyTorch to ours", seen)
    assert seen == 0


@TORCH
def test_torch_reuses_memory_only_when_we_have_read_it(program, capsys):
    """The tensor is dropped while we still read it, and its memory is handed out and written at once."""
    import torch

    stream = torch.cuda.Stream()
    for turn in range(1, ROUNDS + 1):
        with torch.cuda.stream(stream):
            tensor = torch.full((WORDS,), turn, dtype=torch.int32, device="cuda")
            buffer = from_dlpack(tensor, state=program.state)
            del tensor
        program.consume(buffer, turn)
        del buffer
        program.runtime.reap_pending(blocking=False)
        with torch.cuda.stream(stream):
            torch.full((WORDS,), -1, dtype=torch.int32, device="cuda")
    seen = program.count()
    show(capsys, "PyTorch's memory, dropped while we read", seen)
    assert seen == 0


@TORCH
@CUPY
def test_between_torch_and_cupy_with_us_and_without(program, capsys):
    """PyTorch writes late on one stream, CuPy reads on another.  By its interface, PyTorch does not say where."""
    import cupy
    import torch

    writer, reader = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    tensor = torch.empty(WORDS, dtype=torch.int32, device="cuda")

    def write(turn: int) -> None:
        with torch.cuda.stream(writer):
            program.kernels.delay(writer.cuda_stream, LATE)
            tensor.fill_(turn)

    def through_us(turn: int) -> Any:
        write(turn)
        buffer = from_cuda_array(tensor, state=program.state, producer=writer)
        with reader:
            seen = (cupy.from_dlpack(buffer) != turn).sum()
        del buffer
        program.runtime.reap_pending(blocking=False)
        return seen

    def alone(turn: int) -> Any:
        write(turn)
        with reader:
            return (cupy.asarray(tensor) != turn).sum()

    ours, own = wrong_rounds(ROUNDS, through_us), wrong_rounds(OWN_ROUNDS, alone)
    show(capsys, "PyTorch to CuPy by the CUDA array interface", ours, own)
    assert ours == 0


@TORCH
@CUPY
def test_between_cupy_and_torch_with_us_and_without(program, capsys):
    """CuPy writes late on one stream, and exports while another one is current: it orders that one."""
    import cupy
    import torch

    writer, reader = cupy.cuda.Stream(non_blocking=True), torch.cuda.Stream()
    array = cupy.empty(WORDS, "int32")

    def write(turn: int) -> None:
        with writer:
            program.kernels.delay(writer.ptr, LATE)
            array.fill(turn)

    def through_us(turn: int) -> Any:
        write(turn)
        buffer = from_dlpack(array, state=program.state, producer=writer)
        with torch.cuda.stream(reader):
            seen = torch.from_dlpack(buffer).ne(turn).sum()
        del buffer
        program.runtime.reap_pending(blocking=False)
        return seen

    def alone(turn: int) -> Any:
        write(turn)
        with torch.cuda.stream(reader):
            return torch.from_dlpack(array).ne(turn).sum()

    ours, own = wrong_rounds(ROUNDS, through_us), wrong_rounds(OWN_ROUNDS, alone)
    show(capsys, "CuPy to PyTorch by DLPack", ours, own)
    assert ours == 0
