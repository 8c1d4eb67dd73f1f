"""What a history says is what happened: counted, in order, and of every thread."""
from __future__ import annotations

import gc
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import partial

import pytest
from arrays import CudaArray
from c_table import Hold
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream
from four_streams import READ, READ_WRITE, WRITE, FourStreams, nothing_happens
from other_threads import Beside
from places import HELPERS
from sim_support import python

import xlogmem
from xlogmem import AsyncMemoryResource, DirectMemoryResource, OutOfBudgetError, PoolMemoryResource
from xlogmem.observe.history import record_history
from xlogmem.observe.history.events import BEGINNINGS, ENDS

pytestmark = pytest.mark.simulator
RESOURCES = {"async": AsyncMemoryResource, "direct": DirectMemoryResource,
             "pool": lambda: PoolMemoryResource(initial_pool_size=64 << 20)}
COUNTED = {"allocate": "allocations", "free": "frees", "free put off": "deferred_frees", "wait": "waits",
           "host wait": "host_waits", "fence": "records", "evict": "evictions", "window wait": "conflict_waits"}


@pytest.fixture(params=RESOURCES)
def x(four, request) -> FourStreams:
    return four(resource=RESOURCES[request.param](), opaque="V")


def counted(events, runtime) -> dict[str, int]:
    """What the events of a runtime come to, named as its counters are."""
    mine = [event for event in events if event.runtime == runtime.stream_pool.ordering.number]
    kinds = Counter(event.kind for event in mine)
    launches = {(event.stream, event.position) for event in mine if event.kind == "use"}
    return {counter: kinds[kind] for kind, counter in COUNTED.items()} | {"uses": len(launches)}


def play(x: FourStreams) -> None:
    """Something of everything."""
    for number in range(12):
        blocks = [x.alloc(stream) for stream in (x.S, x.T, x.V)]
        blocks.append(x.runtime.allocate(2048, x.S, tag=f"tag {number % 3}"))
        x.use(x.S, (blocks[0], WRITE), (blocks[1], READ))
        x.use(x.T, *((block, READ) for block in blocks))
        x.use(x.U, (blocks[2], READ_WRITE), (blocks[3], READ))
        window = x.prepare(x.T, (blocks[0], READ))
        blocks[0].free()                                # put off
        window.commit()
        x.prepare(x.U, (blocks[1], READ)).cancel()
        blocks[1].free(x.U)
        blocks[2].free()
        del blocks                                      # the last is dropped
        for _ in range(4):                              # from a cache, if there is one
            x.alloc(x.S).free()
    gc.collect()
    x.runtime.reap_pending(blocking=True)


def test_the_events_are_what_the_counters_say(x):
    play(x)
    before = x.runtime.counters()
    with record_history() as recording:
        play(x)
        after = x.runtime.counters()
    seen = counted(recording.events(), x.runtime)
    assert seen == {name: after[name] - before[name] for name in seen}
    assert all(seen[name] for name in ("allocations", "frees", "deferred_frees", "waits", "records", "uses"))
    play(x)
    assert counted(recording.events(), x.runtime) == seen, "after its end"


def test_what_is_freed_is_pending_until_it_is_reaped(x):
    with record_history() as recording:
        play(x)
    sums = Counter()
    for event in recording.events():
        sums[event.kind] += event.nbytes
    pending = 0 if isinstance(x.runtime.resource, (PoolMemoryResource, DirectMemoryResource)) else sums["free"]
    assert sums["allocate"] == sums["free"] > 0
    assert sums["reap"] == pending


def test_every_block_begins_is_used_and_ends_in_this_order(x):
    with record_history() as recording:
        play(x)
    lives = defaultdict(list)
    for event in recording.events():
        if event.generation:
            lives[event.generation].append(event.kind)
    assert len(lives) == 12 * 8
    for kinds in lives.values():
        assert (kinds[0], kinds[-1]) == ("allocate", "free")
        assert not set(kinds[1:-1]) & {*BEGINNINGS, *ENDS}


def test_no_two_live_blocks_have_an_address(x):
    """A free is noted before the resource has the bytes, which it may hand out to another thread at once."""
    live = set()
    with record_history() as recording:
        play(x)
    for event in recording.events():
        if event.kind == "allocate":
            assert event.address not in live
            live.add(event.address)
        elif event.kind == "free":
            live.remove(event.address)


def test_a_wait_comes_with_the_blocks_that_need_it(four):
    x = four(sealed="ST")
    left, right = (x.runtime.allocate(512, x.S, tag=name) for name in ("left", "right"))
    with record_history() as recording:
        x.use(x.T, (left, READ), (right, WRITE))
        x.use(x.U, (right, READ))
        x.use(x.U, (left, READ))                        # known by now
    events = [event for event in recording.events() if event.kind in ("use needs", "wait")]
    assert [(event.kind, event.stream, event.other, event.tag, event.access) for event in events] == [
        ("use needs", x.T.id, x.S.id, "left", "allocated"), ("use needs", x.T.id, x.S.id, "right", "allocated"),
        ("wait", x.T.id, x.S.id, None, None),
        ("use needs", x.U.id, x.T.id, "right", "written"), ("wait", x.U.id, x.T.id, None, None)]
    left.free()
    right.free()


def test_what_a_stream_is_ordered_after_already_is_no_reason(four):
    x = four(sealed="ST")
    left, right = (x.runtime.allocate(512, x.S, tag=name) for name in ("left", "right"))
    x.use(x.U, (left, READ))
    x.use(x.T, (right, WRITE))
    with record_history() as recording:
        x.use(x.U, (left, READ), (right, READ))
    needs = [(event.stream, event.other, event.tag) for event in recording.events() if event.kind == "use needs"]
    assert needs == [(x.U.id, x.T.id, "right")]
    left.free()
    right.free()


def test_positions_are_those_of_the_frontier(four):
    """The fence was recorded right after the write, and covers nothing else."""
    x = four(sealed="S")
    block = x.alloc(x.S)
    with record_history() as recording:
        x.use(x.S, (block, WRITE))
        x.use(x.T, (block, READ))
    written, read = block.frontier["written", x.S.id], block.frontier["has-read", x.T.id]
    assert [(event.kind, event.stream, event.position) for event in recording.events()
            if event.kind != "use needs"] == [
        ("use", x.S.id, written), ("fence", x.S.id, written), ("wait", x.T.id, written), ("use", x.T.id, read)]
    block.free()


def test_a_use_is_as_long_as_its_window_was_open(four):
    """Compared with what was written meanwhile, by the same clock, and not with how long it should take."""
    x = four()
    block = x.alloc(x.S)
    with record_history() as recording:
        window = x.prepare(x.S, (block, READ))
        enough = time.monotonic_ns() + 1_000_000        # many steps in which the length is kept, on every processor
        turns = 0                                       # more than one, however long that takes here
        while time.monotonic_ns() < enough or turns < 100:
            x.alloc(x.T).free()
            turns += 1
        window.commit()
    times = [event.time_ns for event in recording.events() if event.kind == "allocate"]
    used, = (event for event in recording.events() if event.kind == "use")
    assert used.open_ns > .9 * (times[-1] - times[0]) > 0
    block.free()


def test_a_free_says_for_which_users_it_waits(four):
    x = four()
    block = x.alloc(x.S)
    for stream in (x.T, x.U):
        x.use(stream, (block, READ))
    with record_history() as recording:
        block.free()
    kinds = [(event.kind, event.stream, event.other, event.access) for event in recording.events()
             if event.kind in ("free needs", "free", "wait")]
    assert kinds == [("free needs", x.S.id, x.T.id, "read"), ("free needs", x.S.id, x.U.id, "read"),
                     ("wait", x.S.id, x.T.id, None), ("wait", x.S.id, x.U.id, None),
                     ("free", x.S.id, None, None)]


def test_a_hand_back_is_one_of_an_opaque_home(four):
    x = four(opaque="S")
    block = x.alloc(x.S)
    with record_history() as recording:
        x.use(x.T, (block, READ))
    handed = [(event.stream, event.other) for event in recording.events() if event.kind == "hand-back"]
    assert handed == [(x.S.id, x.T.id)]
    block.free()


def test_adopted_memory_begins_and_is_released(x):
    owner = x.alloc(x.S, 4096)
    other = xlogmem.DeviceRuntime()
    with record_history() as recording:
        adopted = other.adopt(owner.ptr, 1024, tag="theirs")
        other.record_block_use(adopted, other.default_stream)
        adopted.free()
    kinds = [(event.kind, event.tag, event.nbytes) for event in recording.events()
             if event.generation and event.kind != "free needs"]
    assert kinds == [(kind, "theirs", 1024) for kind in ("adopt", "record use", "release")]
    owner.free()


def test_out_of_memory_is_an_event(x):
    limited = xlogmem.LimitingResourceAdaptor(AsyncMemoryResource(), 1 << 20)
    runtime = xlogmem.DeviceRuntime(resource=limited)
    with record_history() as recording:
        with pytest.raises(OutOfBudgetError):
            runtime.allocate(2 << 20, tag="much")
        with pytest.raises(xlogmem.UseAfterFreeError):
            block = x.alloc(x.S)
            block.free()
            block.free()
    failed = [(event.nbytes, event.tag) for event in recording.events() if event.kind == "out of memory"]
    assert failed == [(2 << 20, "much")]


def test_an_allocation_that_fails_otherwise_is_not_out_of_memory(driver, four):
    x = four(resource=AsyncMemoryResource())
    with record_history() as recording:
        driver.fail("cuMemAllocFromPoolAsync", 1, int(cuda.CUresult.CUDA_ERROR_NOT_SUPPORTED))
        with pytest.raises(xlogmem.DriverError):
            x.alloc(x.S)
    assert list(recording.events()) == []


def test_a_free_is_written_before_the_resource_has_the_bytes(driver, four):
    """... which another thread may get at once."""
    x = four(resource=AsyncMemoryResource())
    seen = []
    with record_history() as recording:
        block = x.alloc(x.S)
        driver.on_call("cuMemFreeAsync", lambda: seen.extend(event.kind for event in recording.events()))
        block.free()
    assert seen == ["allocate", "free"]


def test_a_free_that_fails_says_so(driver, four):
    x = four(resource=AsyncMemoryResource())
    block = x.alloc(x.S)
    with record_history() as recording:
        driver.fail("cuMemFreeAsync", 1)
        with pytest.raises(xlogmem.DriverError):
            block.free()
        block.free()
    kinds = [event.kind for event in recording.events() if event.generation == block.generation]
    assert kinds == ["free", "free failed", "free"]


# ---------------------------------------------------------------------------------------------- caches, the C table
def test_a_cache_goes_on_and_is_recorded(four):
    x = four(resource=RESOURCES["pool"]())
    for _ in range(8):
        x.alloc(x.S).free()
    before = x.runtime.counters()
    with record_history() as recording:
        for _ in range(100):
            x.alloc(x.S).free()
    after = x.runtime.counters()
    assert after["cached"] - before["cached"] == 100
    assert [event.kind for event in recording.events()] == ["allocate", "free"] * 100
    with nothing_happens(x.driver):
        block = x.alloc(x.S)
        block.free()


def test_a_dropped_block_is_freed_into_its_cache(four):
    x = four(resource=RESOURCES["pool"]())
    for _ in range(8):
        x.alloc(x.S).free()
    with record_history() as recording:
        for _ in range(3):
            block = x.alloc(x.S)
            del block
    assert [event.kind for event in recording.events()] == ["allocate", "free"] * 3


@pytest.mark.parametrize("resource", RESOURCES)
def test_the_c_table_is_recorded(four, resource):
    x = four(resource=RESOURCES[resource]())
    hold = Hold(x.runtime)
    before = x.runtime.counters()
    with record_history() as recording:
        for stream in (x.S.handle, 0):
            for _ in range(20):
                hold.free(hold.allocate(512, stream), stream)
        after = x.runtime.counters()
    hold.close()
    seen = counted(recording.events(), x.runtime)
    assert seen == {name: after[name] - before[name] for name in seen}
    assert seen["allocations"] == 40


def test_launches_are_prepared_with_the_gil_all_the_same(four):
    """A use for which nothing has to wait makes no driver call but the query, recorded or not."""
    x = four()
    block = x.alloc(x.S)
    effects = []
    for recorded in (False, True):
        before = x.driver.all_calls()
        if recorded:
            with record_history() as recording, xlogmem.use(x.S, write=block):
                pass
        else:
            with xlogmem.use(x.S, write=block):
                pass
        after = x.driver.all_calls()
        effects.append({name: after[name] - before.get(name, 0) for name in after
                        if after[name] != before.get(name, 0)})
    assert effects[0] == effects[1] == {"cuStreamIsCapturing": 1}
    used, = recording.events()
    assert (used.kind, used.access, used.generation) == ("use", "write", block.generation)
    assert used.open_ns >= 0
    block.free()


# ---------------------------------------------------------------------------------------------- runtimes, threads
def test_runtimes_that_come_and_go_meanwhile(driver):
    with record_history() as recording:
        runtime = xlogmem.DeviceRuntime()
        runtime.allocate(512).free()
        kept = runtime.allocate(1024)
        number = runtime.stream_pool.ordering.number
        del kept, runtime
        gc.collect()
    kinds = [(event.kind, event.nbytes) for event in recording.events()
             if event.runtime == number and event.kind in ("allocate", "free")]
    assert kinds == [("allocate", 512), ("free", 512), ("allocate", 1024), ("free", 1024)]
    assert {event.device for event in recording.events()} == {0}


def test_four_thousand_runtimes_later_a_number_is_another_one(tmp_path):
    """It has more bits than its field in the file: the others are beside the access."""
    done = python(str(HELPERS / "many_runtimes.py"), str(tmp_path), PYTHONPATH=str(HELPERS))
    assert (done.returncode, done.stderr) == (0, "")


def pairs(x: FourStreams, stream: xlogmem.Stream, turns: Iterable[object]) -> None:
    for _ in turns:
        block = x.runtime.allocate(512, stream)
        with xlogmem.use(stream, write=block):
            pass
        block.free()


def test_threads_differ_and_keep_their_order(four):
    x = four(resource=RESOURCES["pool"]())
    before = x.runtime.counters()
    with record_history() as recording:
        threads = [Beside(partial(pairs, x, stream, range(200))) for stream in (x.S, x.T, x.U, x.V)]
        for thread in threads:
            thread.result()
    after = x.runtime.counters()
    seen = counted(recording.events(), x.runtime)
    assert seen == {name: after[name] - before[name] for name in seen}
    streams_of = defaultdict(set)
    kinds_of = defaultdict(list)
    for event in recording.events():
        if event.kind in ("allocate", "use", "free"):
            streams_of[event.thread].add(event.stream)
            kinds_of[event.thread].append(event.kind)
    assert sorted(map(len, streams_of.values())) == [1, 1, 1, 1]
    assert all(kinds == ["allocate", "use", "free"] * 200 for kinds in kinds_of.values())


def test_it_starts_and_stops_beside_threads_that_work(four):
    """Whatever is recorded of a block is a part of its life; nothing comes after the end."""
    x = four(resource=RESOURCES["pool"]())
    done = threading.Event()
    threads = [Beside(partial(pairs, x, stream, iter(done.is_set, True))) for stream in (x.S, x.T)]
    life = ["allocate", "use", "free"]
    for _ in range(20):
        with record_history(max_events=1 << 12) as recording:
            while len(recording.history()) < 50:
                pass
        kept = len(recording.history())
        lives = defaultdict(list)
        for event in recording.events():
            if event.kind in life:
                lives[event.generation].append(event.kind)
        assert all(any(life[i:k] == kinds for i in range(3) for k in range(i + 1, 4)) for kinds in lives.values())
        assert len(recording.history()) == kept
    done.set()
    for thread in threads:
        thread.result()


@pytest.mark.usefixtures("_busy_interpreter")
def test_recordings_with_and_without_stacks_follow_each_other_beside_threads_that_work(four):
    """A call finds its place without a lock, maybe of a recording that has ended: under `.ci/sanitize tsan` a plain
    look at what is wanted is a race.  Through the C table, where calls wait for the GIL to find their place."""
    x = four(resource=RESOURCES["pool"]())
    hold = Hold(x.runtime)
    done = threading.Event()

    def work() -> int:
        turns = 0
        while not done.is_set():
            hold.free(hold.allocate(512, x.S.handle), x.S.handle)
            turns += 1
        return turns

    threads = [Beside(work) for _ in range(3)]
    wanted: dict[str, set[str]] = {"none": set(), "alloc": {"allocate"}, "all": {"allocate", "free"}}
    try:
        for _ in range(30):
            for stacks in wanted:                       # room for all events, however long this thread has to wait
                with record_history(max_events=1 << 20, stacks=stacks) as recording:
                    block = x.alloc(x.S)
                    block.free()
                own = [event for event in recording.events() if event.generation == block.generation]
                assert {event.kind for event in own} == {"allocate", "free"}
                assert {event.kind for event in own if event.stack} == wanted[stacks]
    finally:
        done.set()                                      # else they would go on in the tests after a failure
    assert all(thread.result() for thread in threads)
    hold.close()


def test_it_starts_and_stops_beside_threads_that_rest(four):
    """A lock stays with a thread that has taken it again and again, whether that thread works or not."""
    x = four()
    done = Beside(lambda: [x.alloc(x.S).free() for _ in range(5000)], "rests")
    done.result()
    for _ in range(3):
        with record_history() as recording:
            x.alloc(x.S).free()
        assert [event.kind for event in recording.events()][:2] == ["allocate", "free"]


def test_foreign_streams_and_views_are_recorded_too(four):
    x = four()
    foreign = ForeignStream()
    with record_history() as recording:
        block = x.runtime.allocate(512, foreign)
        with xlogmem.use(foreign, read=CudaArray(block.ptr), runtime=x.runtime):
            pass
        block.free()
        number = x.runtime.register_stream(foreign).id
    kinds = [(event.kind, event.stream) for event in recording.events() if event.kind in ("allocate", "use", "free")]
    assert kinds == [("allocate", number), ("use", number), ("free", number)]
