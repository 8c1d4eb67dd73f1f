"""What may be called a stream, and which stream it is."""
from __future__ import annotations

import gc
import threading
import warnings
import weakref

import pytest
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream

import xlogmem
from xlogmem import (
    BlockingStreamWarning,
    DeviceRuntime,
    StreamMisuseError,
    StreamPool,
    launch,
    use,
)
from xlogmem.sim.kernels import check


def test_every_spelling_of_a_stream():
    runtime = DeviceRuntime()
    owner = ForeignStream()
    registered = runtime.register_stream(owner)

    class Spelling:
        def __init__(self, **attributes):
            self.__dict__.update(attributes)

        def synchronize(self):
            """What has a pointer and this is a stream; arrays and blocks have a pointer too."""

    class Event(Spelling):
        """CuPy's have the attributes of its older streams."""

    class Pointer:
        value = owner.handle

    for spelled in (owner.handle, owner.stream, owner, registered, Spelling(__cuda_stream__=lambda: (0, owner.handle)),
                    Spelling(cuda_stream=owner.handle), Spelling(ptr=owner.handle), Spelling(handle=Pointer()),
                    Spelling(handle=owner.handle), Spelling(value=lambda: owner.handle)):
        assert runtime.register_stream(spelled) == registered, spelled
    assert registered.foreign
    assert registered.handle == owner.handle
    assert registered.discipline == "ordinary"
    for wrong in ("a stream", "5", 5.0, object(), None, [1], runtime.allocate(64), runtime.allocate(64).id,
                  registered.record(), Event(ptr=owner.handle)):
        with pytest.raises(TypeError, match="not a CUDA stream"):
            runtime.register_stream(wrong)
    with pytest.raises(ValueError, match="not the handle of a CUDA stream"):
        runtime.register_stream(-5)


def test_the_legacy_stream_has_two_names_and_is_opaque():
    runtime = DeviceRuntime()
    legacy = runtime.register_stream(0)
    assert legacy == runtime.register_stream(1)
    assert legacy.discipline == "opaque"


def test_the_per_thread_stream_is_another_in_every_thread():
    runtime = DeviceRuntime()
    seen = [runtime.register_stream(2), runtime.register_stream(2)]
    assert seen[0] == seen[1]
    assert seen[0].discipline == "opaque"

    def elsewhere():
        seen.append(runtime.register_stream(2))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen[2] != seen[0]


def test_one_object_may_stand_for_the_per_thread_streams_of_all_threads():
    """As CuPy's ``Stream.ptds`` does: it is not the owner of the stream that it was first seen with."""
    runtime = DeviceRuntime()

    class PerThread:
        def __cuda_stream__(self):
            return 0, 2

    what = PerThread()
    seen = [runtime.register_stream(what), runtime.register_stream(what)]
    assert seen[0] == seen[1]
    thread = threading.Thread(target=lambda: seen.append(runtime.register_stream(what)))
    thread.start()
    thread.join()
    assert seen[2] != seen[0] == runtime.register_stream(what)


@pytest.mark.simulator
def test_which_names_need_the_driver(driver):
    """Default streams, own streams and objects that are held need no call; another handle needs the driver's id."""
    runtime = DeviceRuntime()
    owner, bare = ForeignStream(), ForeignStream()
    own = runtime.acquire_stream()
    names = [0, 1, 2, own.handle, owner, bare.handle]
    streams = [runtime.register_stream(name) for name in names]
    calls = []
    for name, stream in zip(names, streams, strict=True):
        before = driver.calls("cuStreamIsCapturing"), driver.calls("cuStreamGetId"), sum(driver.all_calls().values())
        assert runtime.register_stream(name) == stream
        calls.append((driver.calls("cuStreamIsCapturing") - before[0], driver.calls("cuStreamGetId") - before[1],
                      sum(driver.all_calls().values()) - before[2]))
    assert calls[:-1] == [(0, 0, 0)] * 5
    assert calls[-1] == (1, 1, 3)                       # and whether the context is current


@pytest.mark.simulator
def test_an_object_that_names_another_stream_by_now_keeps_the_former_one_no_more(driver):
    runtime = DeviceRuntime()
    first, second = ForeignStream(), ForeignStream()

    class Current:
        stream = first

        def __cuda_stream__(self):
            return 0, self.stream.handle

    what = Current()
    former = runtime.register_stream(what)
    what.stream = second
    assert runtime.register_stream(what) == former      # it is held, so its stream is taken to live
    assert runtime.register_stream(what, discipline="opaque") != former
    first.destroy()
    again = ForeignStream()
    assert again.handle == former.handle
    assert runtime.register_stream(again.handle) != former
    assert not former.registered


def test_a_blocking_stream_is_warned_about():
    runtime = DeviceRuntime()
    owner = ForeignStream(flags=0)
    with pytest.warns(BlockingStreamWarning, match="blocking stream") as warned:
        runtime.register_stream(owner)
    assert warned[0].filename == __file__               # the line that names it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runtime.register_stream(owner)                  # once is enough
        runtime.register_stream(ForeignStream())


@pytest.mark.simulator
def test_streams_of_other_devices_are_refused():
    check(cuda.cuCtxPushCurrent(check(cuda.cuDevicePrimaryCtxRetain(1))))
    elsewhere = ForeignStream()
    check(cuda.cuCtxPopCurrent())
    with pytest.raises(StreamMisuseError, match="another context or device"):
        DeviceRuntime().register_stream(elsewhere)


def test_use_finds_the_runtime_of_the_blocks(request):
    own = DeviceRuntime()
    block, owner = own.allocate(64), ForeignStream()
    with use(owner, read=block) as recorder:
        assert recorder.runtime is own
    made = []

    def get_runtime(device_id):
        made.append(DeviceRuntime(device_id))
        return made[-1]

    launch.provide_runtimes(get_runtime)
    request.addfinalizer(lambda: launch.provide_runtimes(xlogmem.get_runtime))
    with use(owner, read=[]) as recorder:
        assert recorder.runtime is made[0]
    with use(owner, read=[], runtime=own) as recorder:
        assert recorder.runtime is own
    with pytest.raises(StreamMisuseError, match="another runtime"):
        use(own.acquire_stream(), runtime=made[0])


def test_the_owner_is_held_and_released_when_only_we_hold_it():
    runtime = DeviceRuntime()
    kept = ForeignStream()
    runtime.register_stream(kept)
    block = runtime.allocate(64, kept)
    number = runtime.register_stream(kept).id
    owners = []
    for _ in range(200):
        owner = ForeignStream()
        runtime.register_stream(owner)
        owners.append(weakref.ref(owner))
    del owner
    gc.collect()
    assert sum(owner() is not None for owner in owners) < 100       # most were released on the way
    assert runtime.register_stream(kept).id == number
    block.free()


def test_a_bare_handle_of_our_own_stream_is_that_stream():
    """It is not registered a second time, as a foreign stream without an owner."""
    runtime = DeviceRuntime()
    stream, other = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(64, stream)
    assert runtime.register_stream(stream.handle) == stream != other
    with use(stream.handle, write=block):
        pass
    before = runtime.counters()
    with use(stream, write=block):
        pass
    after = runtime.counters()
    assert (after["records"], after["waits"]) == (before["records"], before["waits"])
    with pytest.raises(StreamMisuseError, match="one of the pool's own"):
        runtime.register_stream(stream.handle, discipline="opaque")


@pytest.mark.promise(158)
def test_pools_reuse_streams():
    pool = StreamPool(max_streams=2)
    runtime = DeviceRuntime(stream_pool=pool)
    first, second = pool.acquire(), pool.acquire()
    handle, number = first.handle, first.id
    block = runtime.allocate(64, first)
    del first
    assert {pool.acquire(), pool.acquire()} == {block.stream, second}       # the block still holds it
    block.free()
    del block
    third = pool.acquire()
    assert third.handle == handle
    assert third.id not in (number, second.id)          # the stream comes back, the id does not
    assert len(pool) == 2


def test_a_stream_that_is_found_again_goes_back_to_its_pool_once():
    """A dropped block waits to be freed; a lookup of its address gives a stream without other references."""
    runtime = DeviceRuntime()
    first = runtime.acquire_stream()
    block = runtime.allocate(64, first)
    ptr = block.ptr
    del first, block
    runtime.find_block(ptr)                             # it is on its way back to the pool ...
    runtime.acquire_stream(discipline="sealed")         # ... and is sorted there
    found = runtime.find_block(ptr)
    assert runtime.acquire_stream().handle != found.alloc_stream.handle
    del found
    streams = [runtime.acquire_stream() for _ in range(3)]
    assert len({stream.handle for stream in streams}) == 3
    runtime.reap_pending()
