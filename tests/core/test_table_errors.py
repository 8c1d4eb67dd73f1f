"""What the C table reports when an allocation fails."""
from __future__ import annotations

import gc
import weakref

import pytest
from c_table import CAPTURING, FAILED, INVALID, OUT_OF_MEMORY, Hold, Refused
from cuda.bindings import driver as cuda

from xlogmem import DeviceMemoryResource, DeviceRuntime
from xlogmem.sim.kernels import check


@pytest.mark.simulator
def test_out_of_memory_is_a_kind_of_its_own(four_and_hold, driver):
    b, hold = four_and_hold
    driver.fail("cuMemAllocFromPoolAsync", 1, 2)
    hold.free(hold.allocate(8))                         # tried once more, after pending frees
    driver.fail("cuMemAllocFromPoolAsync", 1, 2)
    driver.fail("cuMemAllocFromPoolAsync", 2, 2)
    with pytest.raises(Refused) as refused:
        hold.allocate(8)
    assert refused.value.kind == OUT_OF_MEMORY
    driver.fail("cuMemAllocFromPoolAsync", 1, 999)
    with pytest.raises(Refused, match="cuMemAllocFromPoolAsync gave CUDA_ERROR_UNKNOWN") as refused:
        hold.allocate(8)
    assert refused.value.kind == FAILED
    assert b.runtime.live_bytes == 0


CALLS = pytest.mark.parametrize("call", [
    lambda hold, ptr, stream: hold.allocate(8, stream), lambda hold, ptr, stream: hold.record_use(ptr, stream),
    lambda hold, ptr, stream: hold.prepare(stream, read=[ptr]), lambda hold, ptr, stream: hold.wait(stream, ptr),
    lambda hold, ptr, stream: hold.hold_stream(stream)])


@pytest.mark.simulator
@CALLS
def test_a_stream_that_does_not_exist_is_a_wrong_argument(four_and_hold, driver, call):
    """Whether it never did, or was destroyed."""
    _, hold = four_and_hold
    handle, ptr = int(check(cuda.cuStreamCreate(1))), hold.allocate(8)
    check(cuda.cuStreamDestroy(handle))
    for wrong in (handle, 0x1234560):
        with pytest.raises(Refused, match=f"stream {wrong:#x} does not exist: cu.* gave CUDA_ERROR_INVALID_HANDLE",
                           check=lambda error: error.kind == INVALID):
            call(hold, ptr, wrong)
    driver.clear_races()                                # of the destroyed stream
    hold.free(ptr)


@pytest.mark.simulator
@pytest.mark.parametrize(("code", "kind"), [*((code, CAPTURING) for code in range(900, 908)), (908, FAILED)])
@CALLS
def test_what_a_capture_does_not_permit_is_a_kind_of_its_own(four_and_hold, driver, call, code, kind):
    _, hold = four_and_hold
    handle, ptr = int(check(cuda.cuStreamCreate(1))), hold.allocate(8)
    for nth in (1, 2):                                  # a call that keeps the GIL is made once more without it
        driver.fail("cuStreamIsCapturing", nth, code)
    with pytest.raises(Refused, check=lambda error: error.kind == kind):
        call(hold, ptr, handle)
    cuda.cuStreamIsCapturing(handle)                    # the other failure, if it is left
    hold.free(ptr)
    check(cuda.cuStreamDestroy(handle))


def test_what_a_python_resource_raises_is_reported():
    class Mine(DeviceMemoryResource):
        order = "stream"

        def allocate(self, nbytes, stream):
            raise MemoryError("no more of mine") if nbytes > 8 else ValueError("not that few")

        def deallocate(self, ptr, nbytes, stream):
            raise AssertionError

    hold = Hold(DeviceRuntime(resource=Mine()))
    with pytest.raises(Refused, match="MemoryError: no more of mine") as refused:
        hold.allocate(16)
    assert refused.value.kind == OUT_OF_MEMORY
    with pytest.raises(Refused, match="ValueError: not that few") as refused:
        hold.allocate(8)
    assert refused.value.kind == FAILED
    hold.close()


@pytest.mark.parametrize("cut", ["é", "€", "𝄞"])
def test_a_long_text_ends_with_a_whole_character(cut):
    """`Hold` decodes it strictly, as PyTorch does."""
    class Mine(DeviceMemoryResource):
        order = "stream"

        def allocate(self, nbytes, stream):
            raise ValueError("x" * nbytes + cut * 200)

        def deallocate(self, ptr, nbytes, stream):
            raise AssertionError

    runtime = DeviceRuntime(resource=Mine())
    hold = Hold(runtime)
    for padding in (1, 2, 3, 4):
        with pytest.raises(Refused) as refused:
            hold.allocate(padding)
        text = refused.value.args[1]
        assert text.startswith("ValueError: " + "x" * padding + cut)
        assert text.endswith(cut)
        assert 255 - len(cut.encode()) < len(text.encode()) <= 255
    with pytest.raises(Refused) as refused:
        hold.allocate(255 - len("ValueError: "))
    assert refused.value.args[1].endswith("x")
    hold.close()


def test_what_a_python_resource_raises_is_released():
    raised = []

    class Weak(Exception):
        pass

    class Mine(DeviceMemoryResource):
        order = "stream"

        def allocate(self, nbytes, stream):
            failure = Weak()
            raised.append(weakref.ref(failure))
            raise failure

        def deallocate(self, ptr, nbytes, stream):
            raise AssertionError

    runtime = DeviceRuntime(resource=Mine())
    hold = Hold(runtime)
    with pytest.raises(Refused):
        hold.allocate(8)
    with pytest.raises(Weak):
        runtime.allocate(8)                             # a call that has the GIL
    gc.collect()
    assert raised[0]() is None
    hold.close()


def test_an_exception_that_cannot_be_printed_is_reported_by_its_name():
    class Unprintable(Exception):
        def __str__(self):
            raise RuntimeError

    class Mine(DeviceMemoryResource):
        order = "stream"

        def allocate(self, nbytes, stream):
            raise Unprintable

        def deallocate(self, ptr, nbytes, stream):
            raise AssertionError

    hold = Hold(DeviceRuntime(resource=Mine()))
    with pytest.raises(Refused, match="Unprintable"):
        hold.allocate(8)
    hold.close()
