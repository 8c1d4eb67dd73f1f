"""Memory that somebody else allocated, single uses, lost devices, and resources written in Python."""
from __future__ import annotations

import gc
import threading
import weakref

import pytest
from bench import READ, READ_WRITE, WRITE
from conftest import SIMULATED
from cuda.bindings import driver as cuda

from xlogmem import (
    Access,
    BlockState,
    DeviceLostError,
    DeviceMemoryResource,
    DeviceRuntime,
    DriverError,
    LaunchRecorder,
    OutOfDeviceMemoryError,
    StreamMisuseError,
    UseAfterFreeError,
    use,
)
from xlogmem._kernels import check

NBYTES = 4096


class Owner:
    """Device memory of somebody else's library, freed when the object dies."""

    def __init__(self) -> None:
        self.ptr = int(check(cuda.cuMemAlloc(NBYTES)))

    def __del__(self) -> None:
        check(cuda.cuMemFree(self.ptr))


# ---------------------------------------------------------------------------------------- adopted memory
def test_adopted_memory_is_used_like_a_block_and_its_owner_is_held():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    owner = Owner()
    alive = weakref.ref(owner)
    block = runtime.adopt(owner.ptr, NBYTES, stream, owner=owner, tag="theirs")
    ptr = owner.ptr
    del owner
    gc.collect()
    assert alive() is not None
    assert (block.ptr, block.nbytes, block.stream, block.tag) == (ptr, NBYTES, stream, "theirs")
    assert runtime.bytes_outstanding == 0               # not our bytes
    with use(stream, read=[block, ptr + 5]):
        pass
    block.free()
    assert block.state is BlockState.FREED
    assert alive() is None
    assert runtime.find_block(ptr) is None


def test_dropping_the_handle_lets_go():
    runtime = DeviceRuntime()
    owner = Owner()
    alive = weakref.ref(owner)
    block = runtime.adopt(owner.ptr, NBYTES, owner=owner)
    del owner, block
    runtime.reap_pending()
    assert alive() is None
    owner = Owner()
    alive = weakref.ref(owner)
    block = runtime.adopt(owner.ptr, NBYTES, owner=owner)
    del owner, block, runtime                           # and so does the end of the runtime
    gc.collect()
    assert alive() is None


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
def test_adopted_with_a_stream_its_work_so_far_comes_first(bench, driver, dropped):
    x = bench()
    owner = Owner()
    theirs = x.work(x.S)
    x.kernels.fill(x.S.handle, owner.ptr, 1, 1)
    block = x.runtime.adopt(owner.ptr, NBYTES, x.S, owner=owner)
    if dropped:
        driver.drop("cuStreamWaitEvent")
    read = x.use(x.T, (block, READ))
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    assert x.ordered(theirs, x.T) == (not dropped)
    block.free()                                        # S comes after the reader before the owner goes
    assert x.ordered(read, x.S)
    check(cuda.cuCtxSynchronize())
    driver.clear_races()


@pytest.mark.simulator
def test_adopted_without_a_stream_the_host_waits_before_the_owner_goes(bench, driver):
    x = bench()
    driver.set_policy("min")
    owner = Owner()
    block = x.runtime.adopt(owner.ptr, NBYTES, owner=owner)
    x.use(x.T, (block, WRITE))
    assert driver.calls("cuStreamWaitEvent") == 0       # it was ready for everybody
    del owner
    block.free()
    assert driver.calls("cuEventSynchronize") == 1
    assert not driver.races()


def test_a_part_of_a_tracked_block_is_that_block():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(4096, stream)
    part = runtime.adopt(block.ptr + 256, 512)
    assert part.generation == block.generation
    assert part.state is BlockState.LIVE
    with use(stream, write=part):
        pass
    assert ("written", stream.id) in block.frontier
    with pytest.raises(UseAfterFreeError):
        part.free()                                     # it owns nothing
    for ptr, nbytes in ((block.ptr + 4000, 512), (block.ptr - 256, 512), (block.ptr - 256, 8192)):
        with pytest.raises(StreamMisuseError, match="overlaps"):
            runtime.adopt(ptr, nbytes)
    del part
    assert block.state is BlockState.LIVE


@pytest.mark.parametrize(("ptr", "nbytes"), [(0, 5), (-1, 5), (4096, 0), (4096, -1), (2**64 - 2, 16), (1.5, 1),
                                            (1, "x")])
def test_ranges_that_make_no_sense(ptr, nbytes):
    runtime = DeviceRuntime()
    with pytest.raises((ValueError, TypeError)):
        runtime.adopt(ptr, nbytes)


# ---------------------------------------------------------------------------------------- single uses
@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [None, 1, 3])
@pytest.mark.contract(24, 63)
def test_record_block_use_protects_the_free_and_later_readers(bench, driver, dropped):
    """W5: work of unknown access counts as a write."""
    x = bench()
    b = x.alloc(x.S)
    own_event = check(cuda.cuEventCreate(2))
    check(cuda.cuEventRecord(own_event, x.S.handle))
    check(cuda.cuStreamWaitEvent(x.T.handle, own_event, 0))
    if dropped:
        driver.drop("cuStreamWaitEvent", dropped)
    done = x.work(x.T, (b, WRITE))
    x.runtime.record_block_use(b, x.T)
    x.use(x.U, (b, READ))
    b.free()
    races = driver.races()
    driver.clear_races()
    assert bool(races) == bool(dropped)
    if not dropped:
        assert x.ordered(done, x.S)
    check(cuda.cuEventDestroy(own_event))


@pytest.mark.simulator
@pytest.mark.contract(26)
def test_h16_record_block_use_on_a_retired_block(bench, driver):
    """The work is in flight already: refusing to file it would leave it unprotected."""
    x = bench()
    b = x.alloc(x.S)
    window = x.prepare(x.T, (b, READ))
    own = x.work(x.U)
    identity = b.id
    b.free()
    with pytest.raises(UseAfterFreeError):
        x.runtime.record_block_use(identity, x.U)
    window.commit()
    assert b.state is BlockState.FREED
    assert x.ordered(own, x.S)
    with pytest.raises(UseAfterFreeError):
        x.runtime.record_block_use(identity, x.U)


@pytest.mark.simulator
@pytest.mark.contract(28, 66)
def test_prepare_and_finish_of_one_block(bench, driver):
    x = bench()
    b = x.alloc(x.S)
    write = x.use(x.S, (b, WRITE))
    x.runtime.prepare_block_use(b, x.T, Access.READ)
    assert x.ordered(write, x.T)
    read = x.work(x.T, (b, READ))
    identity = b.id
    b.free()
    assert b.state is BlockState.RETIRED
    x.runtime.finish_block_use(identity, x.T, Access.READ)
    assert b.state is BlockState.FREED
    assert x.ordered(read, x.S)
    with pytest.raises(UseAfterFreeError):
        x.runtime.prepare_block_use(identity, x.T, Access.WRITE)


@pytest.mark.simulator
@pytest.mark.contract(30, 67)
def test_w4_finish_without_prepare_removes_nothing(bench, driver):
    x = bench()
    b = x.alloc(x.S)
    read = x.use(x.U, (b, READ))
    x.runtime.finish_block_use(b, x.S, Access.WRITE)
    b.free()
    assert x.ordered(read, x.S)


# ---------------------------------------------------------------------------------------- conflicting windows
def test_conflicting_windows_are_counted_or_refused():
    runtime = DeviceRuntime()
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(64, S)

    def second(stream, access, on_conflict="raise"):
        recorder = LaunchRecorder(stream, on_conflict=on_conflict)
        getattr(recorder, access)(block)
        recorder.preflight()
        recorder.cancel()

    for first, access, conflict in ((READ, READ, False), (READ, WRITE, True), (WRITE, READ, True),
                                    (WRITE, READ_WRITE, True)):
        with LaunchRecorder(S) as recorder:
            recorder.cancel()
        recorder = LaunchRecorder(S)
        getattr(recorder, first)(block)
        recorder.preflight()
        second(S, access)                               # the same stream orders them
        before = runtime.counters()["conflicts"]
        if conflict:
            with pytest.raises(StreamMisuseError, match="argument 1: a conflicting use"):
                second(T, access)
        else:
            second(T, access)
        second(T, access, "count")
        assert runtime.counters()["conflicts"] - before == 2 * conflict
        recorder.commit()
        second(T, access)
    with pytest.raises(ValueError, match="on_conflict"):
        LaunchRecorder(S, on_conflict="ignore")


# ---------------------------------------------------------------------------------------- lost devices
@pytest.mark.simulator
def test_a_sticky_error_loses_the_device(driver):
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block, kept = runtime.allocate(64, stream), runtime.allocate(64, stream)
    other = DeviceRuntime()
    driver.fail("cuMemFreeAsync", code=700)
    with pytest.raises(DeviceLostError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        block.free()
    assert runtime.lost
    assert not other.lost
    calls = sum(driver.all_calls().values())
    for call in (lambda: runtime.allocate(64, stream), lambda: use(stream, read=kept).preflight(), kept.free,
                 runtime.reap_pending, lambda: runtime.record_block_use(kept, stream),
                 lambda: runtime.adopt(1 << 40, 64)):
        with pytest.raises(DeviceLostError, match="lost to an earlier error"):
            call()
    assert sum(driver.all_calls().values()) == calls
    assert runtime.live_bytes == 128
    for ptr in (block.ptr, kept.ptr):                               # the simulated device lives on
        check(cuda.cuMemFreeAsync(ptr, stream.handle))


# ---------------------------------------------------------------------------------------- resources in Python
class Mine(DeviceMemoryResource):
    """Two methods."""

    order = "stream"

    def __init__(self, ordinal: int = 0) -> None:
        super().__init__(ordinal)
        self.live: dict[int, int] = {}

    def allocate(self, nbytes, stream):
        ptr = int(check(cuda.cuMemAllocAsync(nbytes, stream)))
        self.live[ptr] = nbytes
        return ptr

    def deallocate(self, ptr, nbytes, stream):
        assert self.live.pop(ptr) == nbytes
        check(cuda.cuMemFreeAsync(ptr, stream))


@pytest.mark.contract(27)
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
        runtime.reap_pending()                          # the free inside another call fails: told by the reap
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


@pytest.mark.contract(25, 27, 29, 31)
def test_a_resource_that_is_out_of_memory_is_asked_once_more():
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


def test_an_exception_is_told_once_and_then_forgotten():
    """A reap inside the resource tells what an earlier free raised; the outer one must not tell it again."""
    class Nested(Mine):
        runtime: DeviceRuntime | None = None
        told = 0
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
        """Does not say how its frees are ordered (contract 25)."""

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
@pytest.mark.contract(42)
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
    new = runtime.allocate(64, stream)
    assert old.ptr == new.ptr
    with pytest.raises(UseAfterFreeError):
        old.free()
    with use(stream, write=new):
        pass
    new.free()
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0


def test_out_of_memory_of_the_real_driver():
    if SIMULATED:
        pytest.skip("asks a GPU")
    runtime = DeviceRuntime()
    with pytest.raises((OutOfDeviceMemoryError, DriverError)):
        runtime.allocate(1 << 50)
    assert runtime.bytes_outstanding == 0
