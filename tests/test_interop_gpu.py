"""Round trips with the neighbours on a GPU: different streams, a late producer, a thousand rounds, every word checked.

Beside ours, where the same program can be written with the neighbours alone, it is run that way too, and the rounds
that went wrong are printed, not judged: they are theirs.
"""
from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from cuda.bindings import driver as cuda

from xlogmem import DeviceRuntime, DeviceState, from_cuda_array, from_dlpack, use
from xlogmem._kernels import Kernels, check

ROUNDS, OWN_ROUNDS, WORDS, LATE = 1000, 200, 1 << 14, 300_000       # nanoseconds that producers and readers are late


def needs(name: str, module: str) -> pytest.MarkDecorator:
    try:
        missing = importlib.util.find_spec(module) is None
    except ModuleNotFoundError:                         # of a package that is not there
        missing = True
    return pytest.mark.skipif(missing, reason=f"needs a neighbour: {name}")


CUPY, TORCH, NUMBA = needs("CuPy", "cupy"), needs("PyTorch", "torch"), needs("Numba", "numba.cuda")
if not hasattr(numpy, "row_stack"):                     # which numba-cuda asks for up to 0.30
    NUMBA = pytest.mark.skip(reason="needs a neighbour: Numba with a NumPy below 2.5")
CORE, JAX, CUDF = needs("cuda.core", "cuda.core"), needs("JAX", "jax"), needs("cuDF", "cudf")

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]    # what neighbours warn of is theirs


class Program:
    """A runtime, a stream of ours, and a word that counts what was not as it has to be."""

    def __init__(self) -> None:
        self.runtime = DeviceRuntime()
        self.state = DeviceState(self.runtime)
        self.kernels = Kernels()
        self.S = self.runtime.acquire_stream()
        self.wrong = self.state.full(1, 0, "uint32", self.S)

    def produce(self, buffer: Any, value: int) -> None:
        """Late, on our stream."""
        with use(self.S, write=buffer):
            self.kernels.delay(self.S.handle, LATE)
            self.kernels.fill(self.S.handle, buffer.access().ptr, value, buffer.size)

    def consume(self, buffer: Any, value: int) -> None:
        """Late, on our stream: a reader who is not waited for is overtaken by the next writer."""
        with use(self.S, read=buffer, read_write=self.wrong):
            self.kernels.delay(self.S.handle, LATE)
            self.kernels.count_unequal(self.S.handle, self.wrong.access().ptr, buffer.access().ptr, value, WORDS)

    def count(self) -> int:
        return int(self.wrong.to_numpy(self.S)[0])

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        self.kernels.close()
        self.__dict__.clear()


@pytest.fixture
def program(_context: Any) -> Iterator[Program]:
    program = Program()
    yield program
    program.close()


def wrong_rounds(rounds: int, one: Callable[[int], Any]) -> int:
    """How many rounds saw a wrong word: `one` gives a count on the device, or on the host, for each."""
    counts = [one(turn) for turn in range(1, rounds + 1)]
    check(cuda.cuCtxSynchronize())                      # they are fetched on whatever stream is current
    return sum(int(seen) != 0 for seen in counts)


def show(capsys: pytest.CaptureFixture[str], what: str, ours: int, own: int | None = None) -> None:
    beside = "" if own is None else f"; its own hand-over: {own} of {OWN_ROUNDS} wrong"
    with capsys.disabled():
        print(f"\n    {what}: {ours} of {ROUNDS} wrong{beside}", end="")


# ---------------------------------------------------------------------------------------- CuPy
class Unordered:
    """A producer who ignores the consumer's stream, as some do."""

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


# ---------------------------------------------------------------------------------------- PyTorch
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
    """Its interface names no stream: the one it works on is asked of it."""
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


# ---------------------------------------------------------------------------------------- Numba
@NUMBA
def test_numba_reads_what_we_wrote_and_we_what_it_wrote(program, capsys):
    from numba import cuda as numba

    @numba.jit
    def count(array, value, seen):
        i = numba.grid(1)
        if i < array.size and array[i] != value:
            numba.atomic.add(seen, 0, 1)

    @numba.jit
    def fill(array, value):
        i = numba.grid(1)
        if i < array.size:
            array[i] = value

    stream = numba.stream()
    grid = (WORDS + 255) // 256
    buffer = program.state.empty(WORDS, "int32", program.S)
    seen = numba.to_device([0])
    for turn in range(1, ROUNDS + 1):
        program.produce(buffer, turn)
        with use(stream, read=buffer, runtime=program.runtime):
            count[grid, 256, stream](numba.as_cuda_array(buffer, sync=False), turn, seen)
    stream.synchronize()
    there = int(seen.copy_to_host()[0])
    array = numba.device_array(WORDS, "int32", stream=stream)
    for turn in range(1, ROUNDS + 1):
        program.kernels.delay(int(getattr(stream.handle, "value", stream.handle)), LATE)
        fill[grid, 256, stream](array, turn)
        ours = from_cuda_array(array, state=program.state, producer=stream)
        program.consume(ours, turn)
        del ours
        program.runtime.reap_pending(blocking=False)
    back = program.count()
    show(capsys, "ours to Numba, words", there)
    show(capsys, "Numba to ours, words", back)
    assert there == back == 0


# ---------------------------------------------------------------------------------------- cuda.core
@CORE
def test_cuda_core_reads_what_we_wrote(program, capsys):
    from cuda.core import Device
    from cuda.core.utils import StridedMemoryView

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    handle = program.runtime.register_stream(stream).handle
    buffer = program.state.empty(WORDS, "int32", program.S)
    seen = program.state.full(1, 0, "uint32", program.S)
    for turn in range(1, ROUNDS + 1):
        program.produce(buffer, turn)
        view = StridedMemoryView.from_dlpack(buffer, stream_ptr=handle)
        with use(stream, read_write=seen, runtime=program.runtime):
            program.kernels.count_unequal(handle, seen.access().ptr, view.ptr, turn, WORDS)
        del view
    wrong = int(seen.to_numpy()[0])
    show(capsys, "ours to cuda.core by DLPack, words", wrong)
    assert wrong == 0


@CORE
@CUPY
def test_we_read_what_was_written_to_cuda_cores_memory(program, capsys):
    """Its buffers ignore the consumer's stream; whoever knows the producer's says it to us."""
    import cupy
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    writer, reader = device.create_stream(), cupy.cuda.Stream(non_blocking=True)
    handle = program.runtime.register_stream(writer).handle
    memory = device.allocate(4 * WORDS, stream=writer)

    def write(turn: int) -> None:
        program.kernels.delay(handle, LATE)
        program.kernels.fill(handle, int(memory.handle), turn, WORDS)

    def alone(turn: int) -> Any:
        write(turn)
        with reader:
            return (cupy.from_dlpack(memory).view("int32") != turn).sum()

    for turn in range(1, ROUNDS + 1):
        write(turn)
        buffer = from_dlpack(memory, state=program.state, producer=writer)
        program.consume(buffer, turn)
        del buffer
        program.runtime.reap_pending(blocking=False)
    seen = program.count()
    own = wrong_rounds(OWN_ROUNDS, alone)
    show(capsys, "cuda.core to ours by DLPack, words", seen, own)
    assert seen == 0
    check(cuda.cuCtxSynchronize())
    memory.close(writer)


# ---------------------------------------------------------------------------------------- JAX
@JAX
def test_jax_reads_what_we_wrote_and_we_what_it_wrote(program, capsys, monkeypatch):
    # else it takes three quarters of the GPU's memory for as long as the process lives, from whoever else is there
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy as jnp

    if jax.default_backend() != "gpu":
        pytest.skip("needs a neighbour: JAX with a GPU")
    buffer = program.state.empty(WORDS, "int32", program.S)

    def one(turn: int) -> int:
        program.produce(buffer, turn)
        return int((jax.dlpack.from_dlpack(buffer) != turn).sum())      # JAX tells nobody when it has read, but so

    there = wrong_rounds(ROUNDS, one)
    double = jax.jit(lambda value: jnp.full((WORDS,), 2, "int32") * value)
    for turn in range(1, ROUNDS + 1):
        ours = from_dlpack(double(turn), state=program.state)
        program.consume(ours, 2 * turn)
        del ours
        program.runtime.reap_pending(blocking=False)                    # the host waits: nobody knows JAX's stream
    back = program.count()
    show(capsys, "ours to JAX by DLPack", there)
    show(capsys, "JAX to ours by DLPack, words", back)
    assert there == back == 0


# ---------------------------------------------------------------------------------------- cuDF
@CUDF
def test_cudf_reads_what_we_wrote_and_we_what_it_wrote(program, capsys):
    """It works on the legacy default stream, and does not say so."""
    import cudf

    buffer = program.state.empty(WORDS, "int32", program.S)

    def one(turn: int) -> int:
        program.produce(buffer, turn)
        with use(1, read=buffer, runtime=program.runtime):
            return int((cudf.Series(buffer) != turn).sum())

    there = wrong_rounds(ROUNDS, one)
    for turn in range(1, ROUNDS + 1):
        program.kernels.delay(1, LATE)
        series = cudf.Series(range(1), dtype="int32").repeat(WORDS) + turn
        ours = from_cuda_array(series.values, state=program.state, producer=1)
        program.consume(ours, turn)
        del ours, series
        program.runtime.reap_pending(blocking=False)
    back = program.count()
    show(capsys, "ours to cuDF", there)
    show(capsys, "cuDF to ours, words", back)
    assert there == back == 0
