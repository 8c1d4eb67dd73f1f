"""Uploads and downloads that the host does not wait for, and what may be changed behind them."""
from __future__ import annotations

import asyncio
import ctypes
import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
import pytest
from cuda.bindings import driver as cuda
from four_streams import Capture

from xlogmem import (
    AsyncMemoryResource,
    DeviceState,
    DriverError,
    PinnedMemoryResource,
    StaleBufferError,
    StreamMisuseError,
    host,
    use,
)
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
MIB = 1 << 20
WAITS = ("cuEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize")


class Program:
    """Uploads on streams whose copies run as late as they may."""

    def __init__(self, x: Any) -> None:
        x.driver.set_policy("min")
        self.x, self.state = x, DeviceState(x.runtime)
        self.pinned: list[int] = []

    def page_locked(self, nbytes: int) -> Any:
        """An array that xlogmem does not know."""
        self.pinned.append(int(check(cuda.cuMemHostAlloc(nbytes, 0))))
        return numpy.frombuffer((ctypes.c_uint8 * nbytes).from_address(self.pinned[-1]), numpy.uint8)

    def waits(self) -> int:
        return sum(self.x.driver.calls(name) for name in WAITS)

    def staging(self) -> Any:
        """The pool that the runtime keeps for copies, and None before the first."""
        return self.x.runtime.resources[1] if len(self.x.runtime.resources) > 1 else None

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        self.x.runtime.reap_pending()
        for address in self.pinned:
            check(cuda.cuMemFreeHost(address))
        self.__dict__.clear()                           # pytest keeps this object, which must not keep the runtime


def value_of(buffer: Any, stream: Any = None) -> int:
    """The value of all elements."""
    array = buffer.to_numpy(stream)
    assert (array == array[0]).all()
    return int(array[0])


@pytest.fixture
def program(four):
    made = Program(four())
    yield made
    made.close()


@pytest.mark.parametrize("nbytes", [1, MIB, MIB + 1, 4 * MIB, 10 * MIB + 3])
@pytest.mark.parametrize("kind", ["pageable", "page-locked"])
def test_an_array_may_be_changed_at_once(program, kind, nbytes):
    p = program
    array = p.page_locked(nbytes) if kind == "page-locked" else numpy.empty(nbytes, numpy.uint8)
    array[:] = 1
    x = p.state.upload(array, p.x.S)
    array[:] = 2
    assert p.waits() == 0
    assert p.x.driver.pending_operations() > 0 or nbytes <= MIB
    assert value_of(x, p.x.S) == 1
    assert (p.staging() is None) == (kind == "pageable" and nbytes <= MIB)
    x.release()


@pytest.mark.parametrize("declared", [True, False])
def test_memory_of_a_block_is_read_in_place(program, declared):
    """It may be changed inside of an access, which waits for the copy."""
    p = program
    block = p.x.runtime.allocate(MIB, host, resource=PinnedMemoryResource())
    array = numpy.frombuffer((ctypes.c_uint8 * MIB).from_address(block.ptr), numpy.uint8)
    array[:] = 1
    x = p.state.upload(array[5:], p.x.S)
    assert p.waits() == 0
    assert p.x.driver.calls("cuMemHostAlloc") == 1
    with use(host, write=block if declared else (), runtime=p.x.runtime):
        array[:] = 2
    assert p.waits() == declared
    assert value_of(x, p.x.S) == (1 if declared else 2)
    x.release()
    del array
    block.free()


@pytest.mark.parametrize("dropped", [False, True])
def test_an_array_of_two_blocks_is_read_behind_the_work_on_them(program, dropped):
    """The copy engine writes the second half, which the host then copies to the staging memory."""
    p = program
    array = p.page_locked(2 * MIB)
    array[:] = 1
    half = p.x.runtime.adopt(p.pinned[0] + MIB, MIB)
    source = p.x.alloc(p.x.T, MIB)
    check(cuda.cuMemsetD8Async(source.ptr, 5, MIB, p.x.T.handle))
    with use(p.x.T, read=source, write=half):
        check(cuda.cuMemcpyDtoHAsync(half.ptr, source.ptr, MIB, p.x.T.handle))
    if dropped:
        p.x.driver.drop("cuEventSynchronize")
    x = p.state.upload(array, p.x.S)
    assert x.to_numpy(p.x.S)[[0, -1]].tolist() == [1, 1 if dropped else 5]
    p.x.driver.clear_races()
    x.release()
    half.free()
    source.free()


def test_other_streams_come_after_all_pieces(program):
    p = program
    x = p.state.upload(numpy.full(10 * MIB, 1, "uint8"), p.x.S)
    y = p.state.empty(10 * MIB, "uint8", p.x.T)
    y.copy_from(x, p.x.T)
    assert p.waits() == 0
    assert value_of(y, p.x.T) == 1
    x.release()
    y.release()


def test_the_host_runs_ahead_as_far_as_the_staging_memory_goes(program):
    """Beyond 64 MiB it waits for the oldest piece."""
    p = program
    buffers = [p.state.upload(numpy.full(8 * MIB, number, "uint8"), p.x.S) for number in range(8)]
    assert p.waits() == 0
    buffers += [p.state.upload(numpy.full(8 * MIB, number, "uint8"), p.x.S) for number in range(8, 20)]
    assert p.waits() > 0
    assert p.staging().statistics()["pool_size"] == 64 * MIB
    for number, buffer in enumerate(buffers):
        assert value_of(buffer, p.x.S) == number
        buffer.release()


@pytest.mark.parametrize(("policy", "pieces"), [("eager", 2), ("min", 20)])
def test_pieces_are_filled_again_where_the_copies_keep_up(program, policy, pieces):
    """They are in the processor's cache then."""
    program.x.driver.set_policy(policy)
    x = program.state.upload(numpy.full(10 * MIB, 1, "uint8"), program.x.S)
    assert program.staging().statistics()["allocations"] == pieces
    assert value_of(x, program.x.S) == 1
    x.release()


@pytest.mark.parametrize("waits", [True, False])
def test_a_download_is_waited_for_where_it_is_read(program, waits):
    p = program
    x = p.state.upload(numpy.arange(1000), p.x.S)
    result = x.download(p.x.T)
    assert (result.shape, result.dtype, result.access().stream) == ((1000,), "int64", None)
    assert p.waits() == 0
    if waits:
        with result.map() as array:
            assert array.tolist() == list(range(1000))
    else:
        seen = (ctypes.c_int64 * 1000).from_address(result.ptr)
        assert seen[999] != 999
    x.release()
    result.release()


def test_a_download_is_awaited(program):
    p = program
    p.x.driver.set_policy("eager")                      # nothing else makes a driver call meanwhile

    async def main() -> Any:
        result = p.state.upload(numpy.arange(5.0), p.x.S).download()
        await result
        with result.map() as array:
            return array.tolist()

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


def test_downloads_name_their_memory(program):
    p = program
    x = p.state.upload(numpy.arange(6.0).reshape(2, 3), p.x.S)
    own = PinnedMemoryResource()
    assert x.download(resource=own).access().resource is own
    with pytest.raises(ValueError, match="resource: <AsyncMemoryResource device=0> has memory of the device alone"):
        x.download(resource=AsyncMemoryResource())
    with pytest.raises(ValueError, match="only a contiguous buffer can be copied from"):
        x[:, 1].download()
    assert x[:0].download().tolist() == []
    x.release()
    with pytest.raises(StaleBufferError, match="consumed"):
        x.download()


def test_what_is_taken_as_an_array(program):
    p = program
    for source, values in (([1, 2], [1, 2]), (numpy.arange(6)[::-2], [5, 3, 1]), (numpy.empty((0, 2)), []),
                           (numpy.array(7.0), 7.0), (numpy.arange(4, dtype=">i4").astype("<i4"), [0, 1, 2, 3])):
        made = p.state.upload(source, p.x.S)
        assert made.tolist(p.x.S) == values
        made.release()
    with pytest.raises((TypeError, ValueError)):
        p.state.upload(object(), p.x.S)
    with pytest.raises(TypeError, match="object is not a CUDA stream"):
        p.state.upload([1], object())
    with pytest.raises(ValueError, match="memory of the device alone, which the host cannot use"):
        p.state.upload([1], host)
    x = p.state.upload([1], p.x.S)
    resources = p.x.runtime.resources
    for wrong, error in ((AsyncMemoryResource(), ValueError), (7, TypeError)):
        with pytest.raises(error, match="resource"):
            x.download(resource=wrong)
    assert p.x.runtime.resources == resources           # none is bound
    x.release()


def test_a_capture_is_refused(program):
    p = program
    with Capture(p.x.S), pytest.raises(StreamMisuseError, match="capturing"):
        p.state.upload(numpy.empty(MIB), p.x.S)
    assert p.x.runtime.live_bytes == 0


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_piece_that_fails_leaves_nothing(program, nth):
    p = program
    p.x.driver.fail("cuMemcpyHtoDAsync", nth, 1)
    with pytest.raises(DriverError, match=r"cuMemcpyHtoDAsync .* while copying from the host"):
        p.state.upload(numpy.empty(10 * MIB, "uint8"), p.x.S)
    gc.collect()                                        # the traceback has kept the buffer
    p.x.runtime.reap_pending()
    assert p.x.runtime.live_bytes == 0
    assert p.staging().statistics()["used_bytes"] == 0
    x = p.state.upload(numpy.full(10 * MIB, 3, "uint8"), p.x.S)
    assert value_of(x) == 3
    x.release()


def test_threads_upload_at_once(program):
    p = program

    def run(number: int) -> Any:
        stream = (p.x.S, p.x.T, p.x.U, p.x.V)[number]
        return [p.state.upload(numpy.full(5 * MIB, 10 * number + turn, "uint8"), stream) for turn in range(3)]

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(run, range(4)))
    for number, buffers in enumerate(made):
        for turn, buffer in enumerate(buffers):
            assert value_of(buffer) == 10 * number + turn
            buffer.release()
