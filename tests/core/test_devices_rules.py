"""Launches across devices: the rules that random programs do not see being broken."""
from __future__ import annotations

import pytest
from cuda.bindings import driver as cuda
from two_devices import Devices, current

from xlogmem import StreamMisuseError, use
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
