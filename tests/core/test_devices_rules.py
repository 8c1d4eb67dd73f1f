"""Launches across devices: the rules that random programs do not see being broken."""
from __future__ import annotations

import pytest
from arrays import CudaArray
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream
from two_devices import Devices, current

from xlogmem import DeviceRuntime, DriverError, LaunchRecorder, StreamMisuseError, use
from xlogmem._driver import device_count
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.skipif(device_count() < 2, reason="needs two devices")


@pytest.fixture
def x():
    devices = Devices()
    yield devices
    devices.close()


def test_windows_are_opened_in_the_order_of_the_devices(x):
    """docs/ordering.md, launch-across-devices.  Both blocks are in use: the first of them is in the way, whichever
    device the launch is on, and whichever block it names first."""
    (S, U), (T, V) = x.streams
    a, b = x.allocate(0), x.allocate(1)
    with use(S, write=a), use(T, write=b):
        for stream in (U, V):
            for named in ([a, b], [b, a]):
                with pytest.raises(StreamMisuseError, match=f"block {a.id.generation}\\b"), \
                        use(stream, write=named, on_conflict="raise"):
                    pass
    a.free()
    b.free()


def become_opaque_in_a_window(x, updated: bool = True) -> None:
    """Unrecorded work follows on a stream of another device, which became opaque while its window was open."""
    with current(1):
        handle = int(check(cuda.cuStreamCreate(1)))
    T = x.runtimes[1].register_stream(handle, discipline="ordinary")
    a = x.allocate(0)
    with use(T, write=a):
        x.write(T, a)
        if updated:
            x.runtimes[1].register_stream(handle, discipline="opaque")
    x.add(T, a)
    U = x.streams[0][1]
    with use(U, read_write=a):
        x.add(U, a)
    a.free()
    del T
    x.runtimes[1].unregister_stream(handle)
    check(cuda.cuStreamDestroy(handle))


@pytest.mark.simulator
def test_a_new_discipline_holds_on_other_devices_at_once(x, driver):
    """docs/ordering.md, remote-discipline."""
    become_opaque_in_a_window(x)
    assert not driver.races()


@pytest.mark.simulator
def test_without_the_new_discipline_it_races(x, driver):
    become_opaque_in_a_window(x, updated=False)
    assert driver.races()
    driver.clear_races()


# ---------------------------------------------------------------------------------------------- unregistering
def stay_opaque_after_a_refusal(x, drop=None) -> None:
    """Unrecorded work follows on an opaque stream of another device, which could not be unregistered: it is in use with
    memory of its own device."""
    with current(1):
        handle = int(check(cuda.cuStreamCreate(1)))
    T = x.runtimes[1].register_stream(handle, discipline="opaque")
    a, b = x.allocate(0), x.allocate(1)
    with use(T, write=a):
        x.write(T, a)
    with use(T, write=b), pytest.raises(StreamMisuseError, match="in use"):
        x.runtimes[1].unregister_stream(handle)
    x.add(T, a)
    if drop is not None:
        drop("cuStreamWaitEvent")
    U = x.streams[0][1]
    with use(U, read_write=a):
        x.add(U, a)
    a.free()
    b.free()
    del T
    x.runtimes[1].unregister_stream(handle)
    check(cuda.cuStreamDestroy(handle))


@pytest.mark.simulator
def test_a_refusal_at_home_changes_nothing_on_other_devices(x, driver):
    """docs/ordering.md, remote-unregistered."""
    stay_opaque_after_a_refusal(x)
    assert not driver.races()


@pytest.mark.simulator
def test_after_a_refusal_it_races_without_its_wait(x, driver):
    stay_opaque_after_a_refusal(x, driver.drop)
    assert driver.races()
    driver.clear_races()


@pytest.mark.simulator
@pytest.mark.parametrize("nth", [4, 5, 6])          # the first three are at home
def test_a_failure_on_another_device_is_tried_again(x, driver, nth):
    """docs/ordering.md, remote-unregistered: nothing is touched afterwards."""
    with current(1):
        handle = int(check(cuda.cuStreamCreate(1)))
    T = x.runtimes[1].register_stream(handle, discipline="opaque")
    a = x.allocate(0)
    with use(T, write=a):
        x.write(T, a)
    remote = LaunchRecorder(T, runtime=x.runtimes[0]).stream
    driver.fail("cuStreamIsCapturing", nth, 999)
    x.runtimes[1].unregister_stream(handle)
    assert not remote.registered
    check(cuda.cuStreamDestroy(handle))
    U = x.streams[0][1]
    with use(U, read_write=a):
        x.add(U, a)
    a.free()
    assert not driver.races()


# ---------------------------------------------------------------------------------------------- sweeps
def sweep(runtime: DeviceRuntime) -> list[ForeignStream]:
    """Register so many streams that the registry looks for unused ones; those of the list are used."""
    with current(runtime.device_id):
        owners = [ForeignStream() for _ in range(40)]
    for owner in owners:
        runtime.register_stream(owner)
    return owners


def become_opaque_after_a_sweep(x, drop=None) -> None:
    """Unrecorded work follows on a bare handle of another device, which became opaque after a sweep of the runtime that
    has the memory."""
    with current(1):
        handle = int(check(cuda.cuStreamCreate(1)))
    T = x.runtimes[1].register_stream(handle, discipline="ordinary")
    a = x.allocate(0)
    with use(T, write=a):
        x.write(T, a)
    sweep(x.runtimes[0])
    x.runtimes[1].register_stream(handle, discipline="opaque")
    x.add(T, a)
    if drop is not None:
        drop("cuStreamWaitEvent")
    U = x.streams[0][1]
    with use(U, read_write=a):
        x.add(U, a)
    a.free()
    del T
    x.runtimes[1].unregister_stream(handle)
    check(cuda.cuStreamDestroy(handle))


@pytest.mark.simulator
def test_a_bare_handle_of_another_device_outlives_a_sweep(x, driver):
    """docs/ordering.md, sweep: the program may use it still, and no object would show that."""
    become_opaque_after_a_sweep(x)
    assert not driver.races()


@pytest.mark.simulator
def test_after_a_sweep_it_races_without_its_wait(x, driver):
    become_opaque_after_a_sweep(x, driver.drop)
    assert driver.races()
    driver.clear_races()


@pytest.mark.simulator
def test_a_sweep_does_not_touch_bare_handles_of_another_device(x, driver):
    """docs/ordering.md, sweep: they may be destroyed, and on a GPU the driver crashes in a query of such a stream."""
    with current(1):
        handle = int(check(cuda.cuStreamCreate(1)))
    T = x.runtimes[1].register_stream(handle)
    a = x.allocate(0)
    with use(T, read=a):
        pass
    check(cuda.cuStreamDestroy(handle))
    before = driver.calls("cuStreamIsCapturing")
    owners = sweep(x.runtimes[0])
    assert driver.calls("cuStreamIsCapturing") - before == len(owners)


def test_untracked_memory_is_not_adopted_where_the_driver_cannot_say_on_which_device_it_is(x, driver):
    """On this device it would be ordered with nothing of the other."""
    with current(1):
        address = int(check(cuda.cuMemAlloc(64)))
    driver.fail("cuPointerGetAttributes", code=1)
    with pytest.raises(DriverError, match="cuPointerGetAttributes"):
        use(x.streams[0][0], read=CudaArray(address), untracked="adopt", runtime=x.runtimes[0]).__enter__()
    assert x.runtimes[0].live_bytes == 0
    check(cuda.cuMemFree(address))
