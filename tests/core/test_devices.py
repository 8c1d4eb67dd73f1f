"""Launches across devices: memory of one device that is used on a stream of another.

Programs on the simulated driver, with two and with eight devices.  Each has a twin in which the driver drops a wait.
"""
from __future__ import annotations

import threading

import pytest
from arrays import Column
from cuda.bindings import driver as cuda
from two_devices import COUNT, Devices, current

from xlogmem import (
    DeviceRuntime,
    DeviceState,
    DirectMemoryResource,
    DriverError,
    LaunchRecorder,
    PoolMemoryResource,
    StreamMisuseError,
    UseAfterFreeError,
    can_access_peer,
    disable_peer_access,
    enable_peer_access,
    use,
)
from xlogmem._driver import device_count, live_events
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.skipif(device_count() < 2, reason="needs two devices")

RESOURCES = {"async": None, "direct": lambda device_id: DirectMemoryResource(device_id),
             "pool": lambda device_id: PoolMemoryResource(device_id=device_id)}


@pytest.fixture(params=RESOURCES)
def two(devices, request):
    """Two devices, with each resource."""
    resource = RESOURCES[request.param]
    return devices(**({"resource": resource} if resource is not None else {}))


def read_elsewhere(x: Devices) -> None:
    """Written on device 0, read on device 1 into memory of that."""
    S, T = x.streams[0][0], x.streams[1][0]
    a, b = x.allocate(0), x.allocate(1)
    with use(S, write=a):
        x.write(S, a)
    with use(T, read=a, write=b):
        x.copy(T, b, a)
    a.free()
    b.free()


def write_elsewhere(x: Devices) -> None:
    """Written on device 1, then read on two streams of device 0, and freed there."""
    S, U, T = *x.streams[0], x.streams[1][0]
    a, c = x.allocate(0), x.allocate(0)
    with use(T, write=a):
        x.write(T, a)
    with use(U, read=a, write=c):
        x.copy(U, c, a)
    with use(S, read=a, write=c):
        x.copy(S, c, a)
    a.free()
    c.free()


def fill_unrecorded(x: Devices) -> None:
    """A fresh block is filled without a record, and read on the other device."""
    S, T = x.streams[0][0], x.streams[1][0]
    a, b = x.allocate(0, S), x.allocate(1, T)
    x.write(S, a)
    with use(T, read=a, write=b):
        x.copy(T, b, a)
    a.free()
    b.free()


def free_while_read(x: Devices) -> None:
    """Freed on its own stream while the other device reads; the memory is taken again there."""
    S, T = x.streams[0][0], x.streams[1][0]
    a, b = x.allocate(0, S), x.allocate(1, T)
    with use(S, write=a):
        x.write(S, a)
    with use(T, read=a, write=b):
        x.copy(T, b, a)
    a.free()
    again = x.allocate(0, S)
    with use(S, write=again):
        x.write(S, again, 3)
    again.free()
    b.free()


def hand_back(x: Devices) -> None:
    """An opaque home of device 0 goes on without a record after a use on device 1."""
    S, T = x.runtimes[0].acquire_stream(discipline="opaque"), x.streams[1][0]
    a = x.allocate(0, S)
    x.write(S, a)
    with use(T, read_write=a):
        x.add(T, a)
    x.add(S, a)                                         # unrecorded: S was ordered after T
    a.free()


def opaque_elsewhere(x: Devices) -> None:
    """An opaque stream of device 1 goes on with the memory without a record."""
    S, T = x.streams[0][0], x.runtimes[1].acquire_stream(discipline="opaque")
    a = x.allocate(0, S)
    with use(T, write=a):
        x.write(T, a)
    x.add(T, a)                                         # unrecorded
    with use(S, read_write=a):
        x.add(S, a)
    a.free()


def default_streams(x: Devices) -> None:
    """The legacy default streams of both devices, which have one handle."""
    a = x.allocate(0, x.runtimes[0].register_stream(1))
    T = x.runtimes[1].register_stream(1)
    with use(T, read_write=a):
        x.add(T, a)
    with use(x.streams[0][1], read_write=a):
        x.add(x.streams[0][1], a)
    a.free()


def record_later(x: Devices) -> None:
    """Work that is queued already is filed."""
    S, U, T = *x.streams[0], x.streams[1][0]
    a = x.allocate(0, S)
    x.runtimes[0].prepare_block_use(a, T, access("WRITE"))
    x.write(T, a)
    x.runtimes[0].finish_block_use(a, T, access("WRITE"))
    x.add(T, a)
    x.runtimes[0].record_block_use(a, T)
    with use(U, read_write=a):
        x.add(U, a)
    a.free()


def freed_on_the_other(x: Devices) -> None:
    """A free that names a stream of another device comes after what is queued there."""
    S, T = x.streams[0][0], x.streams[1][0]
    a = x.allocate(0, S)
    with use(T, write=a):
        x.write(T, a)
    x.add(T, a)                                         # unrecorded, and so named by the free
    a.free(T)


def copies(x: Devices) -> None:
    """Buffers are copied between devices, on a stream of either, without a wait of the host."""
    states = [DeviceState(runtime) for runtime in x.runtimes]
    S, T = x.streams[0][0], x.streams[1][0]
    source = states[0].empty(COUNT, "u4", stream=S)
    target = states[1].empty(COUNT, "u4", stream=T)
    back = states[0].empty(COUNT, "u4", stream=S)
    source.fill(7, S)
    target.copy_from(source, T)
    back.copy_from(target, S)
    source.fill(8, x.streams[0][1])
    target.copy_from(back, x.streams[0][1])             # on a stream of the source's device
    target.copy_from(source)


def access(name: str):
    from xlogmem import Access

    return Access[name]


PROGRAMS = [read_elsewhere, write_elsewhere, fill_unrecorded, free_while_read, hand_back, opaque_elsewhere,
            default_streams, record_later, freed_on_the_other]


NEEDED = dict(zip(PROGRAMS, [(2, 2), (3, 5), (2, 2), (2, 2), (2, 2), (2, 3), (2, 6), (2, 4), (2, 2)], strict=True))


@pytest.mark.parametrize("program", [*PROGRAMS], ids=lambda program: program.__name__)
@pytest.mark.parametrize("policy", ["eager", "min", "max"])
def test_programs_across_devices_are_in_order(two, driver, program, policy):
    driver.set_policy(policy, 0)
    with current(1):                                    # whichever device is current
        program(two)
    assert not driver.races()


@pytest.mark.parametrize("program", [*PROGRAMS], ids=lambda program: program.__name__)
def test_without_a_wait_the_programs_race(devices, driver, program):
    """Each wait is left out in turn.  Some stand behind another one, which is enough; the counts are of those that do
    not."""
    program(devices())
    waits = driver.calls("cuStreamWaitEvent")
    assert not driver.races()
    needed = 0
    for number in range(1, waits + 1):
        x = devices()
        driver.drop("cuStreamWaitEvent", number)
        program(x)
        needed += bool(driver.races())
        driver.clear_races()
    assert (needed, waits) == NEEDED[program]


# ---------------------------------------------------------------------------------------------- copies
@pytest.mark.parametrize("peers", [True, False])
@pytest.mark.parametrize("policy", ["eager", "min", "max"])
def test_buffers_are_copied_between_devices(devices, driver, policy, peers):
    """In order, without a wait of the host and, as the driver finds a way by itself, without peer access."""
    driver.set_policy(policy, 0)
    x = devices(peers=peers)
    copies(x)
    assert driver.calls("cuMemcpyPeerAsync") == 4
    assert driver.calls("cuEventSynchronize") == 0
    assert driver.calls("cuStreamSynchronize") == driver.calls("cuCtxSynchronize") == 0
    assert not driver.races()


@pytest.mark.parametrize("number", [1, 2])
def test_a_copy_without_its_wait_races(devices, driver, number):
    x = devices(peers=False)
    driver.drop("cuStreamWaitEvent", number)
    copies(x)
    assert driver.races()
    driver.clear_races()


def test_a_copy_arrives(devices):
    x = devices()
    states = [DeviceState(runtime) for runtime in x.runtimes]
    source, target = (state.empty(COUNT, "u4") for state in states)
    source.fill(41)
    target.copy_from(source)
    assert list(target.to_numpy()) == [41] * COUNT


def test_a_copy_that_fails_is_filed_and_leaves_both_usable(devices, driver):
    x = devices()
    states = [DeviceState(runtime) for runtime in x.runtimes]
    source, target = (state.empty(COUNT, "u4") for state in states)
    source.fill(1)
    driver.fail("cuMemcpyPeerAsync", 1, int(cuda.CUresult.CUDA_ERROR_INVALID_VALUE))
    with pytest.raises(DriverError, match=r"cuMemcpyPeerAsync.*copying between buffers"):
        target.copy_from(source)
    target.copy_from(source)
    source.fill(2)


# ---------------------------------------------------------------------------------------------- access
def test_memory_without_access_is_refused_with_the_pair(devices, driver):
    x = devices(peers=False)
    S, T = x.streams[0][0], x.streams[1][0]
    a, b = x.allocate(0), x.allocate(1)
    before = x.runtimes[0].counters(), x.runtimes[1].counters()
    with pytest.raises(StreamMisuseError, match=(
            r"device 1.* has no access to block \d+ \(256 bytes, allocated on stream 1\) on "
            r"device 0: call xlogmem.enable_peer_access\(1, 0\) first")):
        use(T, read=a, write=b).preflight()
    with pytest.raises(StreamMisuseError, match=r"enable_peer_access\(0, 1\)"):
        use(S, read=[a, b]).preflight()
    assert (x.runtimes[0].counters(), x.runtimes[1].counters()) == before
    enable_peer_access(1, 0)
    with use(T, read=a, write=b):
        x.copy(T, b, a)
    with pytest.raises(StreamMisuseError, match=r"enable_peer_access\(0, 1\)"):      # the other direction
        use(S, read=b).preflight()
    disable_peer_access(1, 0)
    later = DeviceRuntime(resource=DirectMemoryResource())
    with pytest.raises(StreamMisuseError, match=r"enable_peer_access\(1, 0\)"):
        use(T, read=later.allocate(64)).preflight()


def test_devices_that_are_not_peers(devices, driver, monkeypatch):
    x = devices(peers=False)
    a = x.allocate(0)
    monkeypatch.setattr("xlogmem._driver.can_access_peer", lambda *_: False)
    with pytest.raises(StreamMisuseError, match="device 0 cannot access the memory of device 1: they are not peers"):
        enable_peer_access(0, 1)
    a.free()


@pytest.mark.simulator                                  # drivers do not support it (580.159: CUDA_ERROR_NOT_SUPPORTED)
def test_memory_that_may_only_be_read(devices):
    """A program opens its pool for reading: what is read is not taken for what may be written."""
    x = devices(peers=False)
    T, a, empty = x.streams[1][0], x.allocate(0), x.runtimes[0].allocate(0)
    pool = check(cuda.cuPointerGetAttribute(cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, a.ptr))
    access = cuda.CUmemAccessDesc()
    access.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = 1
    access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
    check(cuda.cuMemPoolSetAccess(pool, [access], 1))
    with use(T, read=[a, empty]):
        pass
    with pytest.raises(StreamMisuseError, match="write=: device 1"):
        use(T, write=a).preflight()


def test_a_device_is_not_its_own_peer():
    with pytest.raises(StreamMisuseError, match="device 1 is one device"):
        enable_peer_access(1, 1)
    with pytest.raises(ValueError, match="device 99 is not here"):
        can_access_peer(0, 99)


@pytest.mark.parametrize("function", [can_access_peer, enable_peer_access, disable_peer_access])
def test_what_is_not_a_device_is_named(function):
    with pytest.raises(TypeError, match="device_id must be an int, not None"):
        function(None, 1)
    with pytest.raises(TypeError, match="peer_id must be an int, not None"):
        function(1, None)


def test_pools_are_opened_before_memory_of_theirs_is_used(devices, driver):
    """Those that there are when access is enabled, and those that come; not while other threads allocate there."""
    x = devices()
    T = x.streams[1][0]
    later = DeviceRuntime(0)
    there, come = x.allocate(0), later.allocate(64)
    opened = driver.calls("cuMemPoolSetAccess")
    for block in (there, come):
        with use(T, read=block):
            pass
    assert driver.calls("cuMemPoolSetAccess") == opened


def test_access_is_queried_once_where_one_answer_is_enough(devices, driver):
    """A resource that hands out memory of one kind; adopted memory is queried each time."""
    x = devices()
    T = x.streams[1][0]
    a = x.allocate(0)
    for _ in range(3):
        with use(T, read=a):
            pass
    queried = driver.calls("cuMemPoolGetAccess")
    assert queried == 1
    other = x.allocate(0)
    with use(T, read=other):
        pass
    assert driver.calls("cuMemPoolGetAccess") == queried


# ---------------------------------------------------------------------------------------------- windows together
def test_all_windows_are_opened_or_none(devices, driver):
    """A stale block of one device, a wait that cannot be queued: the other device's window is closed again, and a
    second try does the rest."""
    x = devices()
    S, T = x.streams[0][0], x.streams[1][0]
    a, b, gone = x.allocate(0, S), x.allocate(1, T), x.allocate(1)
    gone.free()
    with pytest.raises(UseAfterFreeError):
        use(T, read=a, write=[b, gone]).preflight()
    x.write(S, a)
    recorder = LaunchRecorder(x.streams[1][1]).read(a).write(b)
    driver.fail("cuStreamWaitEvent", 2)
    with pytest.raises(DriverError):
        recorder.preflight()
    assert a.state.value == b.state.value == "live"
    assert x.runtimes[0].counters()["uses"] == x.runtimes[1].counters()["uses"] == 0
    with pytest.raises(StreamMisuseError, match=r"preflight\(\) was not called"):
        recorder.commit()
    recorder = LaunchRecorder(x.streams[1][1]).read(a).write(b)
    recorder.preflight()
    x.copy(x.streams[1][1], b, a)
    recorder.commit()
    assert x.runtimes[0].counters()["uses"] == x.runtimes[1].counters()["uses"] == 1
    assert recorder.recorded_count == 2
    a.free()
    b.free()
    assert a.state.value == b.state.value == "freed"


def test_a_cancelled_or_dropped_launch_closes_every_window(devices):
    x = devices()
    T = x.streams[1][0]
    a, b = x.allocate(0), x.allocate(1)
    recorder = use(T, read=a, write=b)
    recorder.preflight()
    recorder.cancel()
    recorder = use(T, read=a, write=b)
    recorder.preflight()
    with pytest.warns(ResourceWarning, match="dropped without being left"):
        del recorder
    a.free()
    b.free()
    assert a.state.value == b.state.value == "freed"
    assert [runtime.counters()["abandoned"] for runtime in x.runtimes] == [1, 1]


def test_a_free_inside_of_the_launch_is_carried_out_by_its_end(devices):
    x = devices()
    T = x.streams[1][0]
    a, b = x.allocate(0), x.allocate(1)
    with use(T, read=a, write=b):
        a.free()
        assert a.state.value == "retired"
        x.copy(T, b, a)
    assert a.state.value == "freed"
    b.free()


@pytest.mark.parametrize("turns", [30])
def test_launches_over_the_same_devices_do_not_wait_in_a_circle(devices, driver, turns):
    """Threads that name the blocks of two devices in opposite orders, on streams of either."""
    x = devices()
    a, b = x.allocate(0), x.allocate(1)
    failures = []

    def work(stream, blocks):
        try:
            for _ in range(turns):
                with use(stream, read_write=blocks):
                    for block in blocks:
                        x.add(stream, block)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(stream, blocks)) for stream, blocks in (
        (x.streams[0][0], [a, b]), (x.streams[1][0], [b, a]), (x.streams[0][1], [b, a]), (x.streams[1][1], [a, b]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures
    assert not driver.races()


# ---------------------------------------------------------------------------------------------- what names them
def test_arrays_of_another_device_are_found(devices, driver):
    """Addresses and arrays, in lists, beside blocks of the stream's own device."""
    class Array:
        def __init__(self, block):
            self.__cuda_array_interface__ = {"shape": (COUNT,), "typestr": "<u4", "data": (block.ptr, False),
                                             "version": 3}

    x = devices()
    T = x.streams[1][0]
    a, b, c = x.allocate(0), x.allocate(1), x.allocate(0)
    with use(T, read=[a.ptr, {"c": Array(c)}], write=b) as recorder:
        assert recorder.recorded_count == 3
        x.copy(T, b, a)
        x.copy(T, b, c)
    assert len(a.frontier) == len(c.frontier) == 2
    with use(T, read=(a.id, Array(b))):
        pass
    assert not driver.races()


@pytest.mark.usefixtures("_cold")
def test_streams_of_other_libraries_name_their_device(devices, driver, foreign_on):
    """A bare handle, with or without a runtime that is named; the default streams are those of the current context."""
    x = devices()
    handle = foreign_on(1)
    a = x.allocate(0)
    with use(handle, read_write=a) as recorder:
        assert recorder.stream.device_id == 1
        assert recorder.runtime is x.runtimes[0]
    with use(handle, read_write=a, runtime=x.runtimes[0]):
        pass
    with current(1), use(1, read_write=a) as recorder:
        assert recorder.stream.device_id == 1
    with use(1, read_write=a) as recorder:
        assert recorder.stream.device_id == 0
    x.runtimes[0].record_block_use(a, handle)
    xlogmem_runtime(1).unregister_stream(handle)
    a.free()


@pytest.mark.usefixtures("_cold")
def test_a_stream_of_another_library_is_found_in_several_runtimes(devices, driver, foreign_on):
    """The runtimes of the blocks are the program's own, not the process's; whichever block comes first."""
    x = devices()
    handle = foreign_on(1)
    a, b = x.allocate(0), x.allocate(1)
    for blocks in ([a, b], [b, a]):
        with use(handle, read_write=blocks):
            pass
        with current(1), use(1, read_write=blocks):
            pass
    states = [DeviceState(runtime) for runtime in x.runtimes]
    buffer, T = states[0].empty(COUNT, "u4"), x.streams[1][0]
    with use(T, write=buffer):
        x.write(T, x.runtimes[0].find_block(buffer))
    assert buffer.last_write_stream == T
    assert buffer.__cuda_array_interface__["stream"] != T.handle       # it is on another device than the memory
    for runtime in (x.runtimes[1], xlogmem_runtime(1)):
        for stream in (handle, x.runtimes[1].register_stream(1) if runtime is x.runtimes[1] else 1):
            with current(1):
                runtime.unregister_stream(stream)
    a.free()
    b.free()


def test_a_stream_of_another_device_neither_allocates_nor_adopts(devices, memory):
    x = devices()
    T, a = x.streams[1][0], x.allocate(0)
    with use(T, read=a) as recorder:
        pass
    assert "used by the runtime of device 0" in repr(LaunchRecorder(T, runtime=x.runtimes[0]).stream)
    for call in (lambda: x.runtimes[0].allocate(64, T), lambda: x.runtimes[0].adopt(memory, 64, T)):
        with pytest.raises(StreamMisuseError, match="another runtime"):
            call()
    remote = LaunchRecorder(T, runtime=x.runtimes[0]).stream
    for call in (lambda: x.runtimes[0].allocate(64, remote), lambda: x.runtimes[0].adopt(memory, 64, remote)):
        with pytest.raises(StreamMisuseError, match="neither allocated nor freed"):
            call()
    assert recorder.stream == T


# ---------------------------------------------------------------------------------------------- their lives
def test_a_stream_is_registered_once_and_remembers_what_it_waited_for(devices, driver):
    """A hundred uses elsewhere cost one record and one wait."""
    x = devices()
    T, a = x.streams[1][0], x.allocate(0)
    x.write(x.streams[0][0], a)
    with use(T, read=a):
        pass
    streams = x.runtimes[0].stream_count()
    records, waits = driver.calls("cuEventRecord"), driver.calls("cuStreamWaitEvent")
    for _ in range(100):
        with use(T, read=a):
            pass
    assert x.runtimes[0].stream_count() == streams
    assert driver.calls("cuEventRecord") - records <= 1
    assert driver.calls("cuStreamWaitEvent") - waits <= 1


def test_a_stream_that_is_unregistered_is_so_everywhere(devices, driver, foreign_on):
    x = devices()
    handle = foreign_on(1)
    T, a = x.runtimes[1].register_stream(handle), x.allocate(0)
    with use(T, write=a):
        x.write(T, a)
    remote = LaunchRecorder(T, runtime=x.runtimes[0]).stream
    recorder = use(T, read=a)
    recorder.preflight()
    with pytest.raises(StreamMisuseError, match="in use"):
        x.runtimes[1].unregister_stream(T)
    assert T.registered
    recorder.cancel()
    x.runtimes[1].unregister_stream(T)
    assert not T.registered
    assert not remote.registered
    with pytest.raises(StreamMisuseError, match="was unregistered"):
        use(T, read=a)
    with use(x.streams[0][0], read=a):                  # the last fence stands for it
        x.add(x.streams[0][0], a)
    a.free()
    assert not driver.races()


def test_a_discipline_holds_everywhere(devices, driver, foreign_on):
    x = devices()
    S, a = x.streams[0][0], x.allocate(0)
    T = x.runtimes[1].register_stream(foreign_on(1), discipline="sealed")
    with use(T, write=a):
        x.write(T, a)
    remote = LaunchRecorder(T, runtime=x.runtimes[0]).stream
    assert remote.discipline == "sealed"
    x.runtimes[1].register_stream(T, discipline="opaque")
    assert remote.discipline == "opaque"
    x.add(T, a)                                         # unrecorded from now on
    with use(S, read_write=a):
        x.add(S, a)
    a.free()
    assert not driver.races()


@pytest.mark.parametrize("first", [0, 1])
def test_runtimes_end_in_any_order(driver, first):
    """Each knows a stream of the other; nothing is left, on either device."""
    events = live_events(0), live_events(1)
    x = Devices()
    a, b = x.allocate(0), x.allocate(1)
    with use(x.streams[1][0], read=a, write=b):
        x.copy(x.streams[1][0], b, a)
    with use(x.streams[0][0], read=b, write=a):
        x.copy(x.streams[0][0], a, b)
    kept = [[a], [b]]
    del a, b
    x.streams[first] = kept[first] = x.runtimes[first] = None
    x.runtimes[1 - first].reap_pending()
    kept.clear()
    x.close()
    assert [now[0] for now in (live_events(0), live_events(1))] == [before[0] for before in events]


def test_a_stream_that_captures_is_refused(devices, driver):
    x = devices()
    T, a = x.streams[1][0], x.allocate(0)
    with use(T, read=a):
        pass
    with current(1):
        check(cuda.cuStreamBeginCapture(T.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    with pytest.raises(StreamMisuseError, match="is capturing a graph"):
        use(T, write=a).preflight()
    other = x.streams[1][1]
    with current(1):
        check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(T.handle))))
        check(cuda.cuStreamBeginCapture(other.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    with pytest.raises(StreamMisuseError, match="is capturing a graph"):
        use(other, write=a).preflight()                 # not registered yet: the query would end the capture
    with current(1):
        graph = check(cuda.cuStreamEndCapture(other.handle))
        check(cuda.cuGraphDestroy(graph))
    with use(other, write=a):
        pass
    a.free()


def test_eight_devices_in_a_ring():
    """Each device writes the next one's memory, in a process that sees eight."""
    from sim_support import python

    done = python("-c", """
import sys
sys.path.insert(0, "tests/helpers")
import xlogmem
from xlogmem import sim
from two_devices import Devices
simulator = sim.install()
x = Devices(8)
blocks = [x.allocate(i) for i in range(8)]
for turn in range(3):
    for i in range(8):
        stream, source, target = x.streams[i][turn % 2], blocks[i], blocks[(i + 1) % 8]
        with xlogmem.use(stream, read=source, write=target):
            x.copy(stream, target, source)
with xlogmem.use(x.streams[3][0], read_write=blocks):
    for block in blocks:
        x.add(x.streams[3][0], block)
assert not simulator.races(), simulator.races()
for block in blocks:
    block.free()
del blocks, block, source, target, stream
x.close()
print("right")
""", devices=8, XLOGMEM_SIMULATE="1")
    assert done.returncode == 0, done.stderr
    assert "right" in done.stdout


def xlogmem_runtime(device_id: int) -> DeviceRuntime:
    import xlogmem

    return xlogmem.get_runtime(device_id)


@pytest.fixture
def foreign_on():
    """Makes streams outside xlogmem on a device, as handles."""
    made = []

    def make(device_id: int) -> int:
        with current(device_id):
            made.append((device_id, check(cuda.cuStreamCreate(1))))
        return int(made[-1][1])

    yield make
    for device_id, stream in made:
        with current(device_id):
            check(cuda.cuStreamDestroy(stream))


# ---------------------------------------------------------------------------------------------- ranges
@pytest.mark.parametrize("kind", ["slice", "array"])
def test_a_range_names_its_bytes_on_another_device(devices, driver, kind):
    """Streams of two devices write the halves of a buffer, and do not wait for each other."""
    x = devices()
    state = DeviceState(x.runtimes[0])
    S, T = x.streams[0][0], x.streams[1][0]
    buffer = state.empty(COUNT, "u4", stream=S)
    size = 4 * COUNT // 2
    halves = ([buffer[:COUNT // 2], buffer[COUNT // 2:]] if kind == "slice"
              else [Column(buffer.access(), 0, size), Column(buffer.access(), size, size)])
    for turn in range(4):
        with use(S, write=halves[0]):
            pass
        with use(T, write=halves[1]):
            pass
        if turn == 1:                                   # each has come after the first use of all, and of the other
            waits = driver.calls("cuStreamWaitEvent")
    assert driver.calls("cuStreamWaitEvent") == waits
    with use(T, read=halves[0]):
        pass
    assert driver.calls("cuStreamWaitEvent") > waits


def test_a_fill_beside_a_range_that_another_device_has_used(devices, driver):
    """The program fills bytes without a record that no stream elsewhere has used: the next user waits for them."""
    x = devices()
    S, U, T = *x.streams[0], x.streams[1][0]
    block, other = x.allocate(0, S), x.allocate(0, S)
    with use(T, read=Column(block, 0, 2 * COUNT)):
        pass
    with use(S, write=other):
        pass
    with use(U, write=other):                           # a fence of S that does not cover what follows
        pass
    with current(0):
        x.kernels[0].fill(S.handle, block.ptr + 2 * COUNT, 1, COUNT // 2)
    with use(T, read_write=block):
        x.add(T, block)
    assert not driver.races()
    block.free()
    other.free()
