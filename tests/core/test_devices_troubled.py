"""Launches across devices in trouble: devices that are lost or reset, calls of other threads in between, and streams
that several runtimes of a device name.  What a reading with programs of its own found stays repaired."""
from __future__ import annotations

import contextlib
import threading
import time

import pytest
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream
from places import HELPERS
from sim_support import python
from two_devices import current

from xlogmem import (
    AsyncMemoryResource,
    DeviceRuntime,
    DeviceState,
    DirectMemoryResource,
    DriverError,
    LaunchRecorder,
    StreamMisuseError,
    UseAfterFreeError,
    disable_peer_access,
    enable_peer_access,
    use,
)
from xlogmem._driver import device_count, forget_context
from xlogmem.sim.kernels import check

UNKNOWN = 999                                           # a CUresult that does not lose the device
pytestmark = [pytest.mark.simulator, pytest.mark.skipif(device_count() < 2, reason="needs two devices")]


def wait_until_it_waits(runtime: DeviceRuntime) -> None:
    """A thread waits for a window of this runtime that conflicts."""
    while not runtime.counters()["conflict_waits"]:
        time.sleep(.001)


def run_with_three_devices(program: str) -> None:
    """In a process that sees so many."""
    done = python("-W", "error", "-c", f"""
import xlogmem.sim
driver = xlogmem.sim.install()
from two_devices import Devices
from xlogmem import DeviceLostError, DeviceState, DriverError, StreamMisuseError, use
x = Devices(3)
{program}
""", devices=3, PYTHONPATH=str(HELPERS))
    assert (done.returncode, done.stderr) == (0, "")


def stream_of(device_id: int) -> int:
    with current(device_id):
        return int(check(cuda.cuStreamCreate(1)))


def destroy(*handles: int) -> None:
    for handle in handles:
        check(cuda.cuStreamDestroy(handle))


# ---------------------------------------------------------------------------------------------- lost devices
def test_a_wait_that_fails_for_its_own_device_leaves_the_source_unseen():
    """The stream's device fails, and not the one that it would have waited for: that one's work goes on."""
    run_with_three_devices("""
S, T, U = (streams[0] for streams in x.streams)
a, b = x.allocate(0), x.allocate(0)
with use(T, read=b):
    pass
driver.set_policy("max")
with use(U, write=a):
    x.write(U, a)
driver.fail("cuStreamWaitEvent", code=700)
try:
    use(T, read=a).preflight()
except DriverError as error:
    assert "device 1 was lost" in str(error)
with use(S, read_write=a):
    x.add(S, a)
assert not driver.races(), driver.races()
""")


def test_a_wait_that_fails_for_the_memorys_device_is_its_loss():
    run_with_three_devices("""
S, T = x.streams[0][0], x.streams[1][0]
a = x.allocate(0)
with use(T, write=a):
    x.write(T, a)
driver.fail("cuStreamWaitEvent", code=700)
try:
    use(S, read=a).preflight()
except DeviceLostError:
    assert x.runtimes[0].lost and not x.runtimes[1].lost
else:
    raise AssertionError("it was not refused")
""")


def test_a_reset_ends_the_access_that_was_seen(devices):
    x = devices(resource=lambda device_id: DirectMemoryResource(device_id))
    T, a = x.streams[1][0], x.allocate(0)
    with use(T, read=a):
        pass
    state = DeviceState(x.runtimes[1])
    with current(1):
        check(cuda.cuCtxSynchronize())
    state.mark_lost()
    disable_in_driver(1, 0)
    fresh = DeviceRuntime(1)
    state.recover(fresh)
    with pytest.raises(StreamMisuseError, match=r"device 1, .* has no access"):
        use(fresh.acquire_stream(), read=a).preflight()


def disable_in_driver(device_id: int, peer: int) -> None:
    """What the reset of a device does to its access."""
    with current(peer):
        context = check(cuda.cuCtxGetCurrent())
    with current(device_id):
        check(cuda.cuCtxDisablePeerAccess(context))


def test_a_reset_while_pools_are_looked_at(driver):
    """Those of the device are gone, and nothing is done to them again."""
    def looked_at() -> int:
        before = driver.calls("cuMemPoolTrimTo")
        AsyncMemoryResource(0)
        return driver.calls("cuMemPoolTrimTo") - before

    usual = looked_at()
    driver.set_policy("max")
    runtime = DeviceRuntime(1)
    runtime.allocate(64).free()
    del runtime
    assert looked_at() > usual
    for occasion in range(1, usual + 2):                    # one of them is the pool's
        driver.on_call("cuMemPoolTrimTo", lambda: forget_context(1), occasion)
    looked_at()
    assert looked_at() == usual
    with current(1):
        check(cuda.cuCtxSynchronize())


# ---------------------------------------------------------------------------------------------- other threads
@pytest.mark.parametrize("call", ["commit", "cancel", "read"])
def test_nothing_is_done_to_a_recorder_in_preflight(devices, call):
    """One of its windows is open, and the other waits: all is as in a launch on one device."""
    x = devices()
    S, T = x.streams[0][1], x.streams[1][1]
    a, b = x.allocate(0), x.allocate(1)
    held = use(T, write=b)
    held.preflight()
    recorder = use(S, write=[a, b])
    thread = threading.Thread(target=recorder.preflight)
    thread.start()
    wait_until_it_waits(x.runtimes[1])
    with pytest.raises(StreamMisuseError, match="another thread is entering this use"):
        getattr(recorder, call)(*([a] if call == "read" else []))
    held.commit()
    thread.join()
    x.write(S, a)
    recorder.commit()
    with use(x.streams[0][0], read_write=a), use(T, write=b, on_conflict="raise"):
        x.add(x.streams[0][0], a)


def test_access_that_ends_during_a_use_is_queried_again(devices, driver):
    x = devices(resource=lambda device_id: DirectMemoryResource(device_id))
    T, a = x.streams[1][0], x.allocate(0)

    def use_it() -> None:
        with use(T, read=a):
            pass

    driver.on_call("cuCtxDisablePeerAccess", use_it)
    disable_peer_access(1, 0)
    with pytest.raises(StreamMisuseError, match="has no access"):
        use(T, read=a).preflight()


@pytest.mark.parametrize("pops", [1, 2])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_context_that_cannot_be_popped_is_left_all_the_same(devices, driver, nth, pops):
    """Else the calls that follow create events in the context of the other device, and these events are kept."""
    x = devices()
    X = stream_of(1)
    remote = x.runtimes[1].register_stream(X)

    def use_remotely(a) -> None:
        with use(remote, read=a):
            pass

    for call in (use_remotely, lambda a: a.free(remote), lambda _: x.runtimes[0].reap_pending(),
                 lambda _: x.allocate(0).free()):
        a = x.allocate(0)
        use_remotely(a)
        before = int(check(cuda.cuCtxGetCurrent()))
        for number in range(pops):
            driver.fail("cuCtxPopCurrent", nth + number, UNKNOWN)
        with contextlib.suppress(DriverError):
            call(a)
        assert int(check(cuda.cuCtxGetCurrent())) == before
        driver.reset()
        with contextlib.suppress(UseAfterFreeError):
            a.free()
        x.runtimes[0].reap_pending()
    x.runtimes[1].unregister_stream(remote)
    destroy(X)


def test_a_discipline_that_another_threads_use_keeps_back(devices, driver):
    """It is accepted at home, and holds elsewhere from the next use on."""
    x = devices()
    a, X, held = x.allocate(0), stream_of(1), []
    handle = x.runtimes[1].register_stream(X, discipline="opaque")

    def use_it() -> None:
        recorder = use(handle, read=a)
        recorder.preflight()
        held.append(recorder)

    driver.on_call("cuCtxPushCurrent", use_it, 1)
    x.runtimes[1].register_stream(handle, discipline="ordinary")
    assert handle.discipline == "ordinary"
    for recorder in held:
        recorder.commit()
    assert LaunchRecorder(handle, runtime=x.runtimes[0]).stream.discipline == "ordinary"
    x.runtimes[1].unregister_stream(handle)
    destroy(X)


def test_a_stream_that_is_used_elsewhere_while_it_goes(devices, driver):
    x = devices()
    a, X, held = x.allocate(0), stream_of(1), []
    handle = x.runtimes[1].register_stream(X)

    def use_it() -> None:
        recorder = use(handle, read=a)
        recorder.preflight()
        held.append(recorder)

    driver.on_call("cuEventRecord", use_it)
    x.runtimes[1].unregister_stream(handle)
    assert not handle.registered
    for recorder in held:
        recorder.commit()
    destroy(X)
    a.free()
    x.runtimes[0].reap_pending()


def test_a_call_that_another_thread_has_not_left_is_waited_for(devices, driver):
    """docs/ordering.md, remote-unregistered: the launch is filed, its fence is being recorded, and the stream goes."""
    x = devices(policy="precise")
    a, X, held = x.allocate(0), stream_of(1), []
    handle = x.runtimes[1].register_stream(X, discipline="opaque")

    def use_it() -> None:
        with use(handle, write=a):
            x.write(handle, a)

    def begin() -> None:
        held.append(driver.hold("cuEventRecord"))
        thread.start()
        assert held[0].reached()
        driver.on_call("cuStreamIsCapturing", held[0].release, 4)   # the second try

    for _ in range(2):                                      # the first of them raises the allocation
        use_it()
    remote = LaunchRecorder(handle, runtime=x.runtimes[0]).stream
    thread = threading.Thread(target=use_it)
    driver.on_call("cuEventRecord", begin)
    x.runtimes[1].unregister_stream(handle)
    held[0].release()                                       # if it was not waited for
    thread.join()
    assert not remote.registered
    destroy(X)
    with use(x.streams[0][0], read_write=a):
        x.add(x.streams[0][0], a)
    assert not driver.races()


# ---------------------------------------------------------------------------------------------- names
def test_nothing_is_no_name_of_a_stream(devices):
    x = devices()
    a = x.allocate(0)
    with use(x.streams[1][0], read=a):
        pass
    with pytest.raises(TypeError, match="None is not a CUDA stream"):
        x.runtimes[0].unregister_stream(None)


def test_a_stream_that_two_runtimes_of_its_device_have_named(devices, driver):
    """The second one ends, and others come: none of their streams is taken for it."""
    x = devices()
    a = x.allocate(0)
    many, other = [stream_of(1) for _ in range(20)], stream_of(1)
    handles = [x.runtimes[1].register_stream(handle) for handle in many]
    for handle in handles:
        with use(handle, read=a):
            pass
    for handle in many:
        visitor = DeviceRuntime(1)
        with use(visitor.register_stream(handle), read=a):
            pass
        del visitor
    driver.set_policy("max")
    for _ in range(10):
        visitor = DeviceRuntime(1)
        named = visitor.register_stream(other)
        with use(named, write=a):
            x.write(named, a)
        known = {LaunchRecorder(handle, runtime=x.runtimes[0]).stream.id for handle in handles}
        assert LaunchRecorder(named, runtime=x.runtimes[0]).stream.id not in known
        del visitor, named
    with use(x.streams[0][0], read_write=a):
        x.add(x.streams[0][0], a)
    assert not driver.races()
    for handle in handles:
        x.runtimes[1].unregister_stream(handle)
    check(cuda.cuCtxSynchronize())
    del handles, handle
    destroy(*many, other)


def test_an_opaque_stream_stays_that_while_one_runtime_says_so(devices):
    x = devices()
    a, X = x.allocate(0), stream_of(1)
    opaque = x.runtimes[1].register_stream(X, discipline="opaque")
    with use(opaque, read=a):
        pass
    visitor = DeviceRuntime(1)
    ordinary = visitor.register_stream(X, discipline="ordinary")
    with use(ordinary, read=a):
        pass
    assert LaunchRecorder(ordinary, runtime=x.runtimes[0]).stream.discipline == "opaque"
    x.runtimes[1].register_stream(opaque, discipline="ordinary")
    assert LaunchRecorder(ordinary, runtime=x.runtimes[0]).stream.discipline == "ordinary"
    visitor.unregister_stream(X)
    x.runtimes[1].unregister_stream(X)
    destroy(X)


def test_a_copy_is_queued_on_a_stream_of_one_of_its_devices():
    run_with_three_devices("""
states = [DeviceState(runtime) for runtime in x.runtimes]
source, target = states[0].full(64, 1, "u4"), states[1].full(64, 2, "u4")
try:
    target.copy_from(source, x.streams[2][0])
except StreamMisuseError as error:
    assert "is on neither of their devices" in str(error), error
else:
    raise AssertionError("it was not refused")
target.copy_from(source, x.streams[0][0])
assert (target.to_numpy() == 1).all()
""")


@pytest.mark.parametrize("kept", [0, 20])
def test_streams_of_libraries_come_and_go(devices, driver, kept):
    """What the program has dropped goes, on both devices; what it has keeps its registration."""
    x = devices()
    a, there, held = x.allocate(0), driver.live_streams(), []
    for count in range(300):
        with current(1):
            stream = ForeignStream()
        with use(x.runtimes[1].register_stream(stream), read=a):
            pass
        if count < kept:
            held.append(stream)
    assert driver.live_streams() - there < 200
    for stream in held:
        known = LaunchRecorder(x.runtimes[1].register_stream(stream), runtime=x.runtimes[0]).stream
        assert known.id <= 4 * kept
    held.clear()
    del stream


def test_a_bare_name_does_not_keep_a_stream_alive(devices, driver):
    """The runtime that had its object unregisters it; another one has named it by its handle."""
    x = devices()
    a, visitor = x.allocate(0), DeviceRuntime(1)
    with current(1):
        stream = ForeignStream()
    with use(x.runtimes[1].register_stream(stream), read=a):
        pass
    bare = visitor.register_stream(stream.handle)
    with use(bare, write=a):
        pass
    x.runtimes[1].unregister_stream(stream)
    with use(bare, read=a):
        pass
    with current(1):
        check(cuda.cuCtxSynchronize())
    del stream
    with use(x.streams[0][0], read_write=a):
        pass
    assert not driver.races()


def test_what_was_opaque_for_a_runtime_that_has_ended_is_used_on(devices):
    """A window is open: the stream stays opaque until that is closed, and the next use is not refused."""
    x = devices()
    a, b, X, visitor = x.allocate(0), x.allocate(0), stream_of(1), DeviceRuntime(1)
    ordinary = x.runtimes[1].register_stream(X, discipline="ordinary")
    opaque = visitor.register_stream(X, discipline="opaque")
    for named in (ordinary, opaque):
        with use(named, read=a):
            pass
    recorder = use(ordinary, write=a)
    recorder.preflight()
    del opaque, named, visitor
    with use(ordinary, write=b):
        pass
    assert x.runtimes[1].register_stream(X, discipline="ordinary").discipline == "ordinary"
    recorder.commit()
    assert LaunchRecorder(ordinary, runtime=x.runtimes[0]).stream.discipline == "ordinary"
    x.runtimes[1].unregister_stream(X)
    destroy(X)


def test_access_that_ends_while_it_is_queried_is_not_seen(devices, driver):
    x = devices(resource=lambda device_id: DirectMemoryResource(device_id))
    T, a, b = x.streams[1][0], x.allocate(0), x.allocate(0)
    for occasion in (1, 2, 3):
        driver.on_call("cuPointerGetAttribute", lambda: disable_peer_access(1, 0), occasion, "after")
    for block in (a, b):
        with contextlib.suppress(StreamMisuseError):
            use(T, read=block).preflight()
    with pytest.raises(StreamMisuseError, match="has no access"):
        use(T, write=b).preflight()


def test_access_that_could_not_be_enabled_is_not_there(devices, driver):
    x = devices(peers=False)
    T, a = x.streams[1][0], x.allocate(0)
    driver.fail("cuMemPoolSetAccess", code=999)
    with pytest.raises(DriverError, match="giving device 1 access"):
        enable_peer_access(1, 0)
    with pytest.raises(StreamMisuseError, match="has no access"):
        use(T, read=a).preflight()
