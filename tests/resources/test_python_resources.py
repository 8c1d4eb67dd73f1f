"""Resources written in Python."""
from __future__ import annotations

import gc
import threading

import pytest
from cuda.bindings import driver as cuda
from which_driver import SIMULATED

from xlogmem import (
    BlockState,
    DeviceMemoryResource,
    DeviceRuntime,
    DriverError,
    OutOfDeviceMemoryError,
    StreamMisuseError,
    UseAfterFreeError,
    use,
)
from xlogmem.sim.kernels import check


class Mine(DeviceMemoryResource):
    """Two methods."""

    order = "stream"

    def __init__(self, device_id: int = 0) -> None:
        super().__init__(device_id)
        self.live: dict[int, int] = {}

    def allocate(self, nbytes, stream):
        ptr = int(check(cuda.cuMemAllocAsync(nbytes, stream)))
        self.live[ptr] = nbytes
        return ptr

    def deallocate(self, ptr, nbytes, stream):
        assert self.live.pop(ptr) == nbytes
        check(cuda.cuMemFreeAsync(ptr, stream))


@pytest.mark.promise(27)
def test_a_resource_with_two_methods(_context):
    resource = Mine()
    runtime = DeviceRuntime(resource=resource)
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(100, S)
    assert resource.live == {block.ptr: 100}
    with use(T, read=block):
        pass
    block.free()
    assert resource.live == {}
    assert runtime.pending_bytes == 100
    dropped = runtime.allocate(50, S)
    del dropped
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0


def test_a_host_ordered_resource_frees_after_the_uses():
    class Host(Mine):
        order = "host"

        def allocate(self, nbytes, stream):
            return int(check(cuda.cuMemAlloc(nbytes)))

        def deallocate(self, ptr, nbytes, stream):
            check(cuda.cuMemFree(ptr))

    runtime = DeviceRuntime(resource=Host())
    stream = runtime.acquire_stream()
    block = runtime.allocate(100, stream)
    with use(stream, write=block):
        pass
    block.free()
    assert runtime.counters()["host_waits"] >= 1
    assert runtime.bytes_outstanding == 0


def test_what_a_resource_raises_is_raised_and_nothing_is_lost():
    class Moody(Mine):
        mood: BaseException | None = None

        def allocate(self, nbytes, stream):
            if self.mood:
                raise self.mood
            return super().allocate(nbytes, stream)

        def deallocate(self, ptr, nbytes, stream):
            if self.mood:
                raise self.mood
            super().deallocate(ptr, nbytes, stream)

    resource = Moody()
    runtime = DeviceRuntime(resource=resource)
    block = runtime.allocate(64)
    for mood in (KeyError("mood"), OutOfDeviceMemoryError("mine"), KeyboardInterrupt()):
        resource.mood = mood
        with pytest.raises(type(mood)):
            runtime.allocate(64)
        with pytest.raises(type(mood)):
            block.free()
    assert block.state is BlockState.LIVE
    del block
    with pytest.raises(KeyboardInterrupt):
        runtime.reap_pending()                          # the free inside another call fails: reported by the reap
    assert runtime.live_bytes == 64
    resource.mood = None
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0
    for nonsense in (0, -1, 1 << 70, "x", None):
        resource.allocate = lambda nbytes, stream, nonsense=nonsense: nonsense
        with pytest.raises((ValueError, TypeError)):
            runtime.allocate(64)


def test_a_resource_may_use_the_runtime_and_threads():
    """It is called without any lock: it may allocate, reap and wait for other threads that do."""
    class Social(Mine):
        runtime: DeviceRuntime | None = None
        busy = False

        def deallocate(self, ptr, nbytes, stream):
            super().deallocate(ptr, nbytes, stream)
            if self.runtime is not None and not self.busy:
                self.busy = True
                self.runtime.reap_pending()
                thread = threading.Thread(target=lambda: self.runtime.allocate(32).free())
                thread.start()
                thread.join(30)
                assert not thread.is_alive()
                self.busy = False

    resource = Social()
    runtime = resource.runtime = DeviceRuntime(resource=resource)
    for _ in range(5):
        runtime.allocate(64).free()
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0
    resource.runtime = None


@pytest.mark.promise(25, 27, 29, 31)
def test_a_resource_that_is_out_of_memory_is_called_once_more():
    """W34: after pending frees were waited for."""
    class Small(Mine):
        refusals = 0

        def allocate(self, nbytes, stream):
            if self.refusals:
                self.refusals -= 1
                raise MemoryError("full")
            return super().allocate(nbytes, stream)

    resource = Small()
    runtime = DeviceRuntime(resource=resource)
    runtime.allocate(64).free()
    resource.refusals = 1
    block = runtime.allocate(64)
    assert runtime.pending_bytes == 0
    resource.refusals = 2
    with pytest.raises(MemoryError, match="full"):
        runtime.allocate(64)
    assert resource.refusals == 0
    assert runtime.live_bytes == block.nbytes


def test_an_exception_is_raised_once_and_then_released():
    """A reap inside the resource raises what an earlier free raised; the outer one must not raise it again."""
    class Nested(Mine):
        runtime: DeviceRuntime | None = None
        failing = True

        def deallocate(self, ptr, nbytes, stream):
            if self.failing:
                raise Refused("no")
            super().deallocate(ptr, nbytes, stream)

    class Refused(Exception):
        alive = 0

        def __init__(self, text):
            super().__init__(text)
            Refused.alive += 1

        def __del__(self):
            Refused.alive -= 1

    resource = Nested()
    runtime = DeviceRuntime(resource=resource)
    for _ in range(20):
        runtime.allocate(64)                            # dropped at once; each call tries, and fails, to free them all
    gc.collect()
    assert Refused.alive <= 1
    with pytest.raises(Refused):
        runtime.reap_pending()
    resource.failing = False
    runtime.reap_pending()
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0
    gc.collect()
    assert Refused.alive == 0


def test_incomplete_resources_are_refused_loudly():
    class Silent(DeviceMemoryResource):
        """Does not say how its frees are ordered (promise 25)."""

        def allocate(self, nbytes, stream):
            return 4096

    with pytest.raises(StreamMisuseError, match="does not support cross-stream use tracking"):
        DeviceRuntime(resource=Silent())
    with pytest.raises(TypeError, match="base class"):
        DeviceMemoryResource()

    class Half(Silent):
        order = "stream"

    runtime = DeviceRuntime(resource=Half())
    block = runtime.allocate(64)
    with pytest.raises(StreamMisuseError, match="unsupported"):
        block.free()
    Half.deallocate = lambda self, ptr, nbytes, stream: None
    block.free()

    class Wrong(DeviceMemoryResource):
        order = "sometimes"

    with pytest.raises(ValueError, match="sometimes"):
        Wrong()


@pytest.mark.simulator
@pytest.mark.promise(42)
def test_an_address_that_comes_back_while_its_block_lives_poisons_the_old_one():
    """W19: the old block is the corrupt one; it is never freed, its handles are stale."""
    class Twice(Mine):
        def allocate(self, nbytes, stream):
            if self.live:
                return next(iter(self.live))
            return super().allocate(nbytes, stream)

    runtime = DeviceRuntime(resource=Twice())
    stream = runtime.acquire_stream()
    old = runtime.allocate(64, stream)
    with pytest.warns(RuntimeWarning, match="handed out memory of a live block"):
        new = runtime.allocate(64, stream)
    assert old.id.ptr == new.ptr
    with pytest.raises(UseAfterFreeError):
        old.free()
    with use(stream, write=new):
        pass
    new.free()
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0


def test_out_of_memory_of_the_real_driver():
    if SIMULATED:
        pytest.skip("needs the driver of a GPU")
    runtime = DeviceRuntime()
    with pytest.raises((OutOfDeviceMemoryError, DriverError)):
        runtime.allocate(1 << 50)
    assert runtime.bytes_outstanding == 0
