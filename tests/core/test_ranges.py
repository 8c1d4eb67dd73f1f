"""Launches that name ranges of a block: each range has an order of its own, and whatever means all of it has all."""
from __future__ import annotations

import ctypes
import random
import threading

import numpy
import pytest
from arrays import Column
from cuda.bindings import driver as cuda
from exchanges import Library
from four_streams import READ, READ_WRITE, WRITE, at
from other_threads import Beside, beside_waiting
from ranges import HALF, SIZE, use_range, work, written

import xlogmem
from xlogmem import (
    AsyncMemoryResource,
    BlockState,
    DeviceRuntime,
    LaunchRecorder,
    PinnedMemoryResource,
    PoolMemoryResource,
    StreamMisuseError,
    UseAfterFreeError,
    host,
    use,
)
from xlogmem.interop.devices import DeviceState
from xlogmem.observe.history import record_history
from xlogmem.sim.kernels import Kernels, check

pytestmark = pytest.mark.simulator


@pytest.fixture
def x(four):
    return four(policy="lazy")


# ---------------------------------------------------------------- what is ordered, and what is not
def test_disjoint_ranges_wait_for_nothing(x):
    """The first use on each stream comes after the block's former users; then nothing is left to wait for."""
    block = written(x)
    for _ in range(2):
        use_range(x, x.S, block, 0, HALF)
        use_range(x, x.T, block, HALF, HALF)
    records, waits = x.records(), x.waits()
    for _ in range(10):
        use_range(x, x.S, block, 0, HALF)
        use_range(x, x.T, block, HALF, HALF)
    assert (x.records(), x.waits()) == (records, waits)


def test_the_same_uses_of_the_whole_block_wait_each_time(x):
    """The twin of the above."""
    block = written(x)
    waits = x.waits()
    for _ in range(10):
        x.use(x.S, (block, WRITE))
        x.use(x.T, (block, WRITE))
    assert x.waits() - waits >= 19


@pytest.mark.parametrize(("first", "nbytes"), [(0, HALF), (HALF - 4, 4), (0, SIZE), (64, 4), (HALF - 64, HALF)])
@pytest.mark.parametrize(("former", "latter"), [(WRITE, READ), (READ, WRITE), (WRITE, WRITE), (READ_WRITE, READ)])
def test_ranges_that_overlap_are_ordered(x, first, nbytes, former, latter):
    block = written(x)
    operation = use_range(x, x.T, block, 0, HALF, former)
    use_range(x, x.U, block, first, nbytes, latter)
    assert x.ordered(operation, x.U)


def test_a_range_beside_it_is_not_ordered(x):
    """The twin of the above: a launch that works on more than it names has a race."""
    block = written(x)
    use_range(x, x.T, block, 0, HALF)
    use_range(x, x.U, block, HALF, HALF)                # comes after what all of the block was used for
    operation = use_range(x, x.T, block, 0, HALF)
    with use(x.U, write=Column(block, HALF, HALF)):
        assert not x.ordered(operation, x.U)
        work(x, x.U, block, HALF - 4, 8)
    assert x.driver.races()
    x.driver.clear_races()


def test_reads_of_one_range_overlap(x):
    block = written(x)
    use_range(x, x.S, block, 0, HALF, READ)
    waits = x.waits()
    read = use_range(x, x.T, block, 0, HALF, READ)
    assert x.waits() == waits
    assert not x.ordered(read, x.U)
    use_range(x, x.U, block, HALF - 4, 4, WRITE)
    assert x.ordered(read, x.U)


def test_a_launch_that_names_many_ranges(x):
    """Also ranges that overlap each other, and one in the middle of another: each is used once, all of it."""
    block = written(x)
    names = [Column(block, 0, 400), Column(block, 100, 300), Column(block, 200, 40), Column(block, 400, 4)]
    with use(x.T, read=names[0], write=names[1:]) as recorder:
        operation = work(x, x.T, block, 0, 404)
    assert recorder.recorded_count == 4
    for first in (0, 100, 196, 220, 236, 396, 400):
        with use(x.U, write=Column(block, first, 4)):
            assert x.ordered(operation, x.U), first
            work(x, x.U, block, first, 4)
    use_range(x, x.V, block, 404, 4)
    assert not x.ordered(operation, x.V)


def test_a_launch_that_names_a_range_and_all_of_it(x):
    block = written(x)
    for names in ([block, Column(block, 0, HALF)], [Column(block, 0, HALF), block.id]):
        operation = use_range(x, x.T, block, HALF, HALF)
        with use(x.U, write=names):
            assert x.ordered(operation, x.U)


def test_memory_may_be_filled_until_its_own_bytes_are_used_elsewhere(x):
    """New memory is filled without a record, and what lies beside it is used elsewhere already."""
    block = x.alloc(x.S, SIZE)
    work(x, x.S, block, 0, HALF)
    use_range(x, x.T, block, 0, HALF, READ)
    fill = work(x, x.S, block, HALF, HALF)              # S has not given this half away
    use_range(x, x.T, block, HALF, HALF, READ)
    assert x.ordered(fill, x.T)


def test_an_opaque_home_comes_after_uses_of_a_range(four):
    x = four(opaque="S")
    block = x.alloc(x.S, SIZE)
    operation = use_range(x, x.T, block, 0, HALF)
    assert x.ordered(operation, x.S)
    fill = work(x, x.S, block, 0, SIZE)
    for first in (0, HALF):
        use_range(x, x.T, block, first, HALF, READ)
    assert x.ordered(fill, x.T)


# ---------------------------------------------------------------- whatever means all of the block
def of_two_ranges(x):
    block = written(x)
    return block, [use_range(x, x.T, block, 0, HALF), use_range(x, x.U, block, HALF, HALF)]


@pytest.mark.parametrize("name", [lambda b: b, lambda b: b.id, lambda b: b.ptr, lambda b: Column(b, 0, SIZE),
                                  lambda b: [b]])
def test_a_use_of_all_of_it_comes_after_all_ranges(x, name):
    block, operations = of_two_ranges(x)
    with use(x.V, read=name(block)):
        assert all(x.ordered(operation, x.V) for operation in operations)
    assert {("written", x.T.id), ("written", x.U.id)} <= block.frontier.keys()


@pytest.mark.parametrize("resource", [AsyncMemoryResource, PoolMemoryResource])
def test_a_free_comes_after_all_ranges(four, resource):
    x = four(resource=resource())
    block, operations = of_two_ranges(x)
    address = block.ptr
    block.free()
    again = x.alloc(x.S, SIZE)
    if again.ptr == address:                            # else nothing has its memory yet
        x.work(x.S, (again, WRITE))
        assert all(x.ordered(operation, x.S) for operation in operations)
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == SIZE


def test_a_wait_for_the_block_comes_after_all_ranges(x):
    x.driver.set_policy("min")
    block, operations = of_two_ranges(x)
    assert not block.is_ready()
    block.synchronize()
    assert block.is_ready()
    assert all(x.ordered(operation, x.V) for operation in operations)


def test_work_that_is_recorded_afterwards_is_on_all_ranges(x):
    block, _ = of_two_ranges(x)
    with use(x.V, write=block):
        pass
    use_range(x, x.V, block, 0, 4)
    operation = work(x, x.V, block, 0, SIZE)
    x.runtime.record_block_use(block, x.V)
    for first in (0, HALF):
        with use(x.T, read=Column(block, first, HALF)):
            assert x.ordered(operation, x.T)


def test_an_export_is_of_all_ranges(x):
    """While a library has the memory its stream may be anywhere in it: each range counts as the whole block."""
    state = DeviceState(x.runtime)
    buffer = state.empty(SIZE, "uint8", x.S)
    block = buffer.access()
    for stream, first in ((x.T, 0), (x.U, HALF)):
        use_range(x, stream, block, first, HALF)
    capsule = buffer.__dlpack__(stream=x.V.handle)
    for _ in range(2):
        for first in (0, HALF):
            operation = work(x, x.V, block, first, HALF)
            use_range(x, x.T, block, first, HALF)
            assert x.ordered(operation, x.T)
    last = work(x, x.V, block, 0, 4, READ)
    del capsule
    use_range(x, x.U, block, 0, 4)
    assert x.ordered(last, x.U)


@pytest.mark.parametrize("how", ["take", "look"])
@pytest.mark.parametrize(("named", "given", "ordered"), [
    ("half", "all", True), ("half", "other", True), ("all", "all", True), ("nothing", "all", True),
    ("half", "half", False)])
def test_a_library_that_is_called_inside_gets_no_more_than_the_use_names(x, how, named, given, ordered):
    """It works on the use's stream, which is ordered first after the users of what the use does not name."""
    state = DeviceState(x.runtime)
    buffer = state.empty(SIZE, "uint8", x.S)
    library = Library(type(buffer))
    parts = {"nothing": [], "half": buffer[:HALF], "other": buffer[HALF:], "all": buffer}
    with use(x.S, write=buffer):
        pass
    for _ in range(2):
        with use(x.V, write=buffer[:HALF]):
            pass
        use_range(x, x.U, buffer, HALF, HALF)
    operation = use_range(x, x.U, buffer, HALF, HALF)
    with use(x.V, write=parts[named]):
        exported = library.take(parts[given]) if how == "take" else library.look(parts[given])
        stream = library.stream()                       # without a use it is the default stream
        assert stream == (x.V.handle if named != "nothing" else 0)
        assert x.ordered(operation, at(stream)) == ordered
    if how == "take":
        exported.delete()
    x.driver.clear_races()


@pytest.mark.parametrize("why", ["exported", "shared part", "nothing"])
@pytest.mark.parametrize("access", [READ, WRITE])
def test_a_library_that_is_called_beside_a_launch_on_other_bytes(x, why, access):
    """The use has all of the block, or a part that others share, and names some bytes of it alone: what the library
    gets beside these is ordered first."""
    state = DeviceState(x.runtime)
    buffer = state.empty(SIZE, "uint8", x.S)
    library = Library(type(buffer))
    kept = buffer.__dlpack__(stream=x.S.handle) if why == "exported" else None
    reader = LaunchRecorder(x.V).read(buffer[HALF:] if access == WRITE else buffer[:HALF])
    if why == "shared part":
        reader.preflight()
    beside = getattr(LaunchRecorder(x.T), access)(buffer[64:128])
    beside.preflight()
    used = LaunchRecorder(x.U).read(buffer[:16])
    used.preflight()
    operation = work(x, x.T, buffer, 64, 64, access)
    beside.commit()
    reader.commit() if why == "shared part" else reader.cancel()
    exported = library.take(buffer[:HALF])              # inside of the last use
    assert library.stream() == x.U.handle
    assert x.ordered(operation, x.U)
    exported.delete()
    used.commit()
    del kept


def test_a_library_reads_what_the_use_reads_beside_a_range_that_it_writes(x):
    state = DeviceState(x.runtime)
    buffer = state.empty(SIZE, "uint8", x.S)
    library = Library(type(buffer))
    with use(x.U, read=buffer, write=buffer[:16]):
        for part, writable in ((buffer, False), (buffer[:16], True), (buffer[8:24], False)):
            exported = library.take(part)
            assert (exported.managed.flags & 1 == 0) == writable
            exported.delete()


def test_a_library_is_refused_what_the_thread_accesses(x):
    """Also where a use names other bytes of the same memory, of which an export lives."""
    state = DeviceState(x.runtime)
    buffer = state.empty(SIZE, "uint8", x.S, resource=PinnedMemoryResource())
    library = Library(type(buffer))
    kept = buffer.__dlpack__(stream=x.S.handle)
    with use(host, write=buffer[:64]), use(x.T, write=buffer[HALF:]):
        with pytest.raises(BufferError):
            library.take(buffer)
        library.take(buffer[HALF:]).delete()
    del kept


def test_a_library_may_read_what_the_use_reads(x):
    """Of two ranges one is written: all of it may be read."""
    state = DeviceState(x.runtime)
    buffer = state.empty(SIZE, "uint8", x.S)
    library = Library(type(buffer))
    with use(x.V, read=buffer[:HALF], write=buffer[HALF:]):
        for part, writable in ((buffer[:HALF], False), (buffer[HALF:], True), (buffer, False)):
            exported = library.take(part)
            assert (exported.managed.flags & 1 == 0) == writable
            exported.delete()


def test_a_snapshot_shows_the_users_of_all_ranges(x):
    block, _ = of_two_ranges(x)
    seen = next(one for one in x.runtime.snapshot().blocks if one.generation == block.generation)
    assert seen.writers.keys() >= {x.T.id, x.U.id}


def test_a_history_is_of_whole_blocks(x, tmp_path):
    block, operations = of_two_ranges(x)
    with record_history(tmp_path / "history"):
        use_range(x, x.V, block, 0, HALF)
        assert all(x.ordered(operation, x.V) for operation in operations)


@pytest.mark.parametrize("end", ["free", "drop", "runtime"])
def test_a_block_in_parts_ends(x, end):
    """Nothing is left of its parts, which the end of every test looks for."""
    block, _ = of_two_ranges(x)
    if end == "free":
        block.free()
    del block
    if end != "runtime":
        x.runtime.reap_pending()
        assert x.runtime.live_bytes == 0


# ---------------------------------------------------------------- windows
def test_a_free_inside_a_window_on_a_range_waits_for_its_end(x):
    block = written(x)
    recorder = LaunchRecorder(x.T).write(Column(block, 0, HALF)).read(Column(block, HALF, 4))
    recorder.preflight()
    block.free()
    assert block.state is BlockState.RETIRED
    work(x, x.T, block, 0, HALF)
    recorder.commit()
    assert block.state is BlockState.FREED
    assert x.runtime.counters()["deferred_frees"] == 1


def test_a_range_of_a_freed_block_is_refused(x):
    block = written(x)
    name = Column(block, 0, HALF)
    recorder = LaunchRecorder(x.T).read(block).write(name)
    block.free()
    with pytest.raises(UseAfterFreeError, match="number 1 of 2"):
        recorder.preflight()
    other = written(x)
    recorder = LaunchRecorder(x.T).read(other).write(Column(other, 0, HALF))
    recorder.read(Column(other, 4, 4))
    other.free()
    with pytest.raises(UseAfterFreeError):
        recorder.preflight()


def test_a_range_of_a_freed_block_is_not_one_of_the_next(x):
    """The next block has the same slot, the same address and the same ranges."""
    block = written(x)
    use_range(x, x.T, block, 0, HALF)
    recorder = LaunchRecorder(x.T).write(Column(block, 0, HALF))
    address = block.ptr
    block.free()
    after = written(x)
    assert after.ptr == address
    use_range(x, x.T, after, 0, HALF)
    with pytest.raises(UseAfterFreeError):
        recorder.preflight()


def test_a_launch_that_repeats_a_range(x):
    block = written(x)
    for _ in range(2):
        with use(x.T, read=[Column(block, 0, HALF), Column(block, HALF, HALF)], write=Column(block, 0, HALF)):
            operation = work(x, x.T, block, 0, SIZE)
        with use(x.U, read=Column(block, 0, HALF)):
            assert x.ordered(operation, x.U)


def test_only_ranges_that_overlap_conflict(x):
    block = written(x)
    with use(x.T, write=Column(block, 0, HALF)):
        with use(x.U, write=Column(block, HALF, HALF), on_conflict="raise"):
            pass
        for name in (Column(block, 0, 4), Column(block, HALF - 4, 8), block, block.ptr, Column(block, 0, SIZE)):
            with pytest.raises(StreamMisuseError, match=r"conflict|another thread|this thread"):
                LaunchRecorder(x.U, on_conflict="raise").write(name).preflight()
    with use(x.U, write=block, on_conflict="raise"):
        pass


def test_a_part_outlives_a_join(x):
    """All of the block is read while a range is in a window, so the parts are joined: what the window files is not
    lost."""
    block = written(x)
    use_range(x, x.T, block, 0, HALF, READ)
    with use(x.T, read=Column(block, 0, HALF)):
        operation = work(x, x.T, block, 0, HALF, READ)
        with use(x.U, read=block):
            pass
        use_range(x, x.U, block, HALF, HALF, READ)
    with use(x.S, write=block):
        assert x.ordered(operation, x.S)
    assert block.frontier.keys() == {("written", x.S.id)}


def test_a_part_is_not_cut_inside_a_window(x):
    """Another launch reads a part of what this one reads: later writers come after both, on each side of the cut."""
    block = written(x)
    with use(x.T, read=Column(block, 0, HALF)):
        operation = work(x, x.T, block, 0, HALF, READ)
        use_range(x, x.U, block, 64, 64, READ)
    for first in (0, 64, 128):
        with use(x.V, write=Column(block, first, 64)):
            assert x.ordered(operation, x.V)


def test_a_cancelled_use_of_a_range_files_nothing(x):
    block = written(x)
    recorder = LaunchRecorder(x.T).write(Column(block, 0, HALF))
    recorder.preflight()
    recorder.cancel()
    assert ("written", x.T.id) not in block.frontier
    with use(x.U, write=block, on_conflict="raise"):    # the window is closed
        pass


def test_a_launch_waits_for_a_range_in_another_thread(x):
    """And goes on when its window closes: nothing but that close wakes it."""
    block = written(x)
    for name in (lambda: block, lambda: Column(block, HALF - 4, 8)):
        done = threading.Event()

        def write(name=name, done=done):
            with use(x.U, write=name()):
                done.set()

        with use(x.T, write=Column(block, 0, HALF)):
            beside = beside_waiting(x.runtime, write)
            assert not done.is_set()
        beside.result()
        assert done.is_set()


def test_a_launch_does_not_wait_behind_one_that_waits_for_other_bytes(x):
    """Nor is it refused for it."""
    block = written(x)
    with use(x.T, write=Column(block, 0, 64)):
        waits = beside_waiting(x.runtime, lambda: use_range(x, x.U, block, 0, 64))
        use_range(x, x.V, block, 128, 64, on_conflict="raise")
        behind = beside_waiting(x.runtime, lambda: use_range(x, x.V, block, 32, 64))
    waits.result()
    behind.result()


def test_waiting_launches_are_woken_by_bytes(x):
    """The second waits for another range than the first, and in another thread's use, which closes first."""
    block = written(x)
    done = threading.Event()

    def last():
        use_range(x, x.V, block, HALF, 64)
        done.set()

    left, right = (LaunchRecorder(stream).write(Column(block, first, 64)) for stream, first in ((x.S, 0), (x.T, HALF)))
    left.preflight()
    right.preflight()
    first = beside_waiting(x.runtime, lambda: use_range(x, x.U, block, 0, 64))
    second = beside_waiting(x.runtime, last)
    right.commit()
    assert done.wait(30)
    left.commit()
    first.result()
    second.result()


def test_ranges_that_share_a_part_do_not_conflict(x):
    """A part is not cut while a window is open on it, so both others use all of it; they name other bytes."""
    block = written(x)
    reader = LaunchRecorder(x.T).read(Column(block, 0, HALF))
    reader.preflight()
    with use(x.U, read=Column(block, 64, 64), on_conflict="raise"):
        reader.commit()
        with use(x.V, write=Column(block, 0, 64), on_conflict="raise"):
            operation = work(x, x.V, block, 0, 64)
        with pytest.raises(StreamMisuseError):
            LaunchRecorder(x.V).write(Column(block, 64, 64)).preflight()
    with use(x.U, write=Column(block, 0, 4)):
        assert x.ordered(operation, x.U)


def test_threads_share_a_block_by_ranges(driver):
    """Eight threads work on ranges of their own, and none ever waits for another."""
    runtime, kernels = DeviceRuntime(), Kernels()
    streams = [runtime.acquire_stream() for _ in range(8)]
    block = runtime.allocate(8 * 64, streams[0])
    with use(streams[0], write=block):
        kernels.fill(streams[0].handle, block.ptr, 0, 8 * 16)

    def add(number):
        for _ in range(25):
            with use(streams[number], read_write=Column(block, number * 64, 64), on_conflict="raise"):
                kernels.add(streams[number].handle, block.ptr + number * 64, number + 1, 16)

    for thread in [Beside(lambda number=number: add(number)) for number in range(8)]:
        thread.result()
    with use(streams[0], read=block):
        words = (ctypes.c_uint32 * 128)()
        check(cuda.cuMemcpyDtoHAsync(ctypes.addressof(words), block.ptr, 512, streams[0].handle))
    streams[0].synchronize()
    assert list(words) == [25 * (number + 1) for number in range(8) for _ in range(16)]
    assert runtime.counters()["conflict_waits"] == 0
    kernels.close()


# ---------------------------------------------------------------- many ranges
@pytest.mark.parametrize("grain", [4, 16, 64])
def test_many_ranges(x, grain):
    """More than a block has parts, and more than a range may reach: some share a part, and order stays."""
    count = 1024
    block = x.alloc(x.S, count * grain)
    x.use(x.S, (block, WRITE))
    operations = [use_range(x, (x.S, x.T, x.U)[number % 3], block, number * grain, grain) for number in range(count)]
    with use(x.V, write=Column(block, 0, 32 * grain)):
        assert all(x.ordered(operation, x.V) for operation in operations[:32])
        late = work(x, x.V, block, 0, 32 * grain)
    for number in (0, 5, 31):
        with use(x.T, read=Column(block, number * grain, grain)):
            assert x.ordered(late, x.T)
    with use(x.V, write=Column(block, 4, count * grain - 8)):
        assert all(x.ordered(operation, x.V) for operation in operations)


def random_uses(x, rng, named):
    """Fills and reads of random ranges on three streams.  Returns the races that the driver saw."""
    size, grain = 256, rng.choice([4, 16, 64])
    block = x.alloc(x.S, size)
    x.use(x.S, (block, WRITE))
    streams = (x.S, x.T, x.U)
    for step in range(60):
        stream = rng.choice(streams)
        accesses = []
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            first, end = sorted(rng.sample(range(0, size + 1, grain), 2))
            if rng.random() < .05:
                first, end = 0, size
            accesses.append((first, end - first, rng.choice([READ, WRITE])))
        names = {READ: [], WRITE: []}
        for first, nbytes, access in accesses if named or step % 10 else ():
            names[access].append(Column(block, first, nbytes))
        with use(stream, **names):
            for first, nbytes, access in accesses:
                work(x, stream, block, first, nbytes, access)
        if rng.random() < .05:
            assert block.frontier
    block.free()
    races = x.driver.races()
    x.driver.clear_races()
    return races


@pytest.mark.parametrize("seed", range(12))
def test_random_ranges_have_no_race(four, seed):
    rng = random.Random(seed)
    assert not random_uses(four(policy=rng.choice(["lazy", "adaptive", "precise"])), rng, True)


def test_random_ranges_without_names_have_races(four):
    """The twin of the above: every tenth launch names nothing."""
    assert all(random_uses(four(), random.Random(seed), False) for seed in range(3))


# ---------------------------------------------------------------- buffers, the host, graphs
def test_slices_of_buffers_name_their_bytes(x):
    state = DeviceState(x.runtime)
    buffer = state.empty((16, 16), "f4", x.S)
    for _ in range(2):
        with use(x.S, write=buffer[:8]), use(x.T, write=buffer[8:]):
            pass
    waits = x.waits()
    for _ in range(5):
        with use(x.S, write=buffer[:8]), use(x.T, write=buffer[8:]):
            pass
    assert x.waits() == waits
    with use(x.T, read=buffer[:, 3]):                   # not contiguous: all that it reaches
        pass
    assert x.waits() > waits


def test_a_buffer_of_two_halves_on_the_host(x):
    """One half of page-locked memory is filled while a copy reads the other: the host waits for its own half alone."""
    x.driver.set_policy("min")
    address = int(check(cuda.cuMemHostAlloc(SIZE, 0)))
    array = numpy.frombuffer((ctypes.c_uint8 * SIZE).from_address(address), numpy.uint8)
    array[:] = 1
    block = x.runtime.adopt(address, SIZE)
    device = x.alloc(x.T, SIZE)

    def upload(first):
        with use(x.T, read=array[first:first + HALF], write=Column(device, first, HALF)):
            check(cuda.cuMemcpyHtoDAsync(device.ptr + first, address + first, HALF, x.T.handle))

    def synchronized():
        return sum(count for name, count in x.driver.all_calls().items() if "Synchronize" in name)

    upload(0)
    before = synchronized()
    with use(host, write=array[HALF:], runtime=x.runtime):
        array[HALF:] = 2
    assert synchronized() == before
    upload(HALF)
    with use(host, write=array[:HALF], runtime=x.runtime):      # waits for the first copy
        array[:HALF] = 3
    assert synchronized() > before
    x.T.synchronize()
    block.free()
    x.runtime.reap_pending()
    check(cuda.cuMemFreeHost(address))


def test_ranges_inside_a_capture(x):
    """The halves of a block are written by two branches of a graph, which do not wait for each other."""
    block = written(x)
    with xlogmem.capture(x.S) as graph:
        graph.fork(x.T)
        left = use_range(x, x.S, block, 0, HALF)
        use_range(x, x.T, block, HALF, HALF)
        use_range(x, x.S, block, 0, 4, READ)
    assert [one.generation for one in graph.writes] == [block.generation]
    assert left
    graph.launch(x.U)
    with use(x.V, write=Column(block, HALF, 4)):
        pass
    assert block.frontier.keys() >= {("written", x.V.id)}
    graph.close()
