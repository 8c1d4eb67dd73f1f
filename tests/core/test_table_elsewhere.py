"""Uses of callers of the C table that name memory of several devices."""
from __future__ import annotations

import gc

import pytest
from c_table import ANY_THREAD, CAPTURING, CONFLICT, INVALID, NOT_FOUND, READ, REFUSE_CONFLICTS, STALE, Hold, Refused
from four_streams import Capture
from other_threads import Beside
from two_devices import COUNT, Devices, current

from xlogmem import disable_peer_access, enable_peer_access, use

pytestmark = pytest.mark.simulator
DECLARED = pytest.mark.parametrize("declared", [True, False])


@pytest.fixture
def devices():
    devices = Devices()
    devices.holds = [Hold(runtime) for runtime in devices.runtimes]
    yield devices
    for hold in devices.holds:
        hold.close()
    devices.close()


def refused(kind: int, text: str):
    return pytest.raises(Refused, match=text, check=lambda error: error.kind == kind)


def named(devices, hold, block, how: str):
    return block.ptr + 4 if how == "address" else devices.holds[block.stream.device_id].identify(block)


@DECLARED
@pytest.mark.parametrize("how", ["address", "identity"])
@pytest.mark.parametrize("both", [True, False])
def test_uses_are_ordered_across_devices(devices, driver, declared, how, both):
    hold, here, there = devices.holds[0], devices.streams[0][0], devices.streams[1][0]
    block, own = devices.allocate(1), devices.allocate(0)
    with use(there, write=block):
        devices.write(there, block)
    accesses = [named(devices, hold, block, how)] * declared + [own.ptr] * both
    opened = hold.prepare(here.handle, read_write=accesses)
    devices.add(here, block)
    hold.finish(opened)
    assert bool(driver.races()) != declared
    driver.clear_races()
    if declared:
        with use(there, read=block):
            devices.copy(there, block, block)
        assert driver.races() == []


@pytest.mark.parametrize("end", ["finish", "cancel"])
def test_a_free_inside_is_put_off(devices, end):
    hold, here = devices.holds[0], devices.streams[0][0]
    block = devices.allocate(1)
    opened = hold.prepare(here.handle, read=[block.ptr])
    block.free()
    assert devices.runtimes[1].live_bytes == 4 * COUNT
    getattr(hold, end)(opened)
    assert devices.runtimes[1].live_bytes == 0


def test_a_stream_is_ordered_after_a_block_of_another_device(devices, driver):
    hold, here, there = devices.holds[0], devices.streams[0][0], devices.streams[1][0]
    block = devices.allocate(1)
    with use(there, write=block):
        devices.write(there, block)
    hold.wait(here.handle, block.ptr, READ)
    devices.add(here, block)
    assert driver.races() == []


def test_errors_have_their_kinds(devices, driver):
    hold, here, there = devices.holds[0], devices.streams[0][0], devices.streams[1][0]
    block, freed = devices.allocate(1), devices.allocate(1)
    identity = devices.holds[1].identify(freed)
    freed.free()
    with refused(STALE, "was freed, and cannot be used any more"):
        hold.prepare(here.handle, read=[identity])
    with refused(STALE, "was freed, and cannot be used any more"):
        hold.prepare(here.handle, read=[block.ptr, identity])
    with refused(NOT_FOUND, "^access 2 of 2: no block of this runtime is alive around 0x4d"):
        hold.prepare(here.handle, read=[block.ptr, 77])
    with Capture(here), refused(CAPTURING, "is capturing a graph"):
        hold.prepare(here.handle, read=[block.ptr])
    with use(there, write=block), refused(CONFLICT, "in another use that is still open"):
        hold.prepare(here.handle, read=[block.ptr], flags=REFUSE_CONFLICTS)
    disable_peer_access(0, 1)
    try:
        with refused(INVALID, r"has no access to .* call xlogmem.enable_peer_access\(0, 1\) first"):
            hold.prepare(here.handle, read=[block.ptr])
    finally:
        enable_peer_access(0, 1)
    hold.finish(hold.prepare(here.handle, read=[block.ptr]))        # as the message says
    with use(there, write=block):
        devices.write(there, block)
    driver.fail("cuStreamWaitEvent", code=907)
    with refused(CAPTURING, "CUDA_ERROR_CAPTURED_EVENT"):
        hold.prepare(here.handle, read=[block.ptr])
    block.free()
    assert devices.runtimes[1].counters()["deferred_frees"] == 0


def test_another_thread_may_finish_it(devices):
    hold, here = devices.holds[0], devices.streams[0][0]
    block = devices.allocate(1)
    opened = Beside(lambda: hold.prepare(here.handle, read=[block.ptr], flags=ANY_THREAD)).result()
    with use(devices.streams[1][0], read=block):
        pass
    Beside(lambda: hold.finish(opened)).result()
    block.free()
    gc.collect()
    assert devices.runtimes[1].live_bytes == 0


@DECLARED
def test_a_default_stream_is_that_of_the_runtimes_device(devices, driver, declared):
    """Whichever device is current."""
    hold, there = devices.holds[0], devices.streams[1][0]
    block = devices.allocate(1)
    with use(there, write=block):
        devices.write(there, block)
    with current(1):
        opened = hold.prepare(2, read_write=[block.ptr] * declared)
    with current(0):
        devices.kernels[0].add(2, block.ptr, 1, COUNT)
    with current(1):
        hold.finish(opened)
    assert bool(driver.races()) != declared
    driver.clear_races()
