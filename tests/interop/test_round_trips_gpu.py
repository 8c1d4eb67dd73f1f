"""Round trips with Numba, cuda.core, JAX and cuDF on a GPU; see `round_trips`."""
from __future__ import annotations

from typing import Any

import pytest
from cuda.bindings import driver as cuda
from round_trips import CORE, CUDF, CUPY, JAX, LATE, NUMBA, OWN_ROUNDS, ROUNDS, WORDS, show, wrong_rounds

from xlogmem import from_cuda_array, from_dlpack, use
from xlogmem.sim.kernels import check

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]    # warnings of other libraries are theirs


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
    """Its buffers ignore the consumer's stream; the caller names the producer's."""
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
    # else it takes three quarters of the GPU's memory from all other code for as long as the process lives
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy as jnp

    if jax.default_backend() != "gpu":
        pytest.skip("needs another library: JAX with a GPU")
    buffer = program.state.empty(WORDS, "int32", program.S)

    def one(turn: int) -> int:
        program.produce(buffer, turn)
        return int((jax.dlpack.from_dlpack(buffer) != turn).sum())      # JAX does not say when it has read, but so

    there = wrong_rounds(ROUNDS, one)
    double = jax.jit(lambda value: jnp.full((WORDS,), 2, "int32") * value)
    for turn in range(1, ROUNDS + 1):
        ours = from_dlpack(double(turn), state=program.state)
        program.consume(ours, 2 * turn)
        del ours
        program.runtime.reap_pending(blocking=False)                    # the host waits: JAX's stream is not known
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
