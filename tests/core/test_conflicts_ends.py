"""What ends a wait for a conflicting window: besides its close, whatever happens to either of the two."""
from __future__ import annotations

import re
import threading

import pytest
from cuda.bindings import driver as cuda
from four_streams import READ, READ_WRITE, WRITE
from open_windows import has_looked_up, opened, prepare
from other_threads import PATIENCE, Beside, beside_waiting, interrupted_after, waiting
from stress import in_its_own_process

from xlogmem import (
    Access,
    BlockingWindowWarning,
    DeviceLostError,
    StreamMisuseError,
    UseAfterFreeError,
    use,
)
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator


def test_a_wait_can_be_interrupted(four, driver):
    x = four()
    block = x.alloc(x.S)
    holder, go = opened(x.runtime, x.S, WRITE, block)
    with interrupted_after(0.1), pytest.raises(KeyboardInterrupt):
        prepare(x.T, READ, block)
    go.set()
    holder.result()
    x.use(x.T, (block, READ))


def test_a_recorder_that_is_dropped_lets_the_others_go_on(four, driver):
    x = four()
    block = x.alloc(x.S)
    kept = []
    ready = threading.Event()

    def abandon() -> None:
        kept.append(prepare(x.S, WRITE, block))
        ready.set()

    beside = Beside(abandon)
    assert ready.wait(PATIENCE)
    with waiting(x.runtime) as is_waiting:
        reader = Beside(lambda: prepare(x.T, READ, block).commit())
        is_waiting()
        operation = x.work(x.S, (block, WRITE))
        beside.result()                                 # a free-threaded Python ends it in its thread while that lives
        with pytest.warns(ResourceWarning):
            kept.clear()
    reader.result()
    assert x.ordered(operation, x.T)


def test_a_thread_that_ended_keeps_what_its_recorder_protects(four, driver):
    """The recorder is there, so another thread may launch and commit."""
    x = four()
    block = x.alloc(x.S)
    kept = []
    Beside(lambda: kept.append(prepare(x.S, WRITE, block))).result()
    reader = beside_waiting(x.runtime, lambda: prepare(x.T, READ, block).commit())
    has_looked_up(driver)
    launched = x.work(x.S, (block, WRITE))
    kept.pop().commit()
    reader.result()
    assert x.ordered(launched, x.T)


def test_a_kept_use_of_a_thread_that_ended_lets_the_others_go_on(four, driver):
    """Nothing else refers to the recorder.  What was launched is filed; a finish that comes later says so."""
    x = four()
    block = x.alloc(x.S)
    launched = []

    def launch() -> None:
        x.runtime.prepare_block_use(block, x.S, Access.WRITE)
        launched.append(x.work(x.S, (block, WRITE)))

    Beside(launch).result()
    with interrupted_after(5):
        prepare(x.T, READ, block).commit()
    assert x.ordered(launched[0], x.T)
    with pytest.raises(StreamMisuseError, match="ended before the use was left"):
        x.runtime.finish_block_use(block, x.S, Access.WRITE)
    assert x.runtime.counters()["uses"] == 2
    x.use(x.U, (block, READ_WRITE))
    assert x.ordered(launched[0], x.U)


def test_a_kept_use_is_finished_by_another_thread(four, driver):
    x = four()
    block = x.alloc(x.S)
    Beside(lambda: x.runtime.prepare_block_use(block, x.S, Access.WRITE)).result()
    launched = x.work(x.S, (block, WRITE))
    x.runtime.finish_block_use(block, x.S, Access.WRITE)
    x.use(x.T, (block, READ))
    assert x.ordered(launched, x.T)


@pytest.mark.parametrize("how", ["freed", "unregistered"])
def test_what_ends_a_wait(four, driver, foreign, how):
    x = four()
    block = x.alloc(x.S)
    stream = x.runtime.register_stream(foreign())
    holder, go = opened(x.runtime, x.S, WRITE, block)
    beside = beside_waiting(x.runtime, lambda: prepare(stream, READ, block))
    if how == "freed":
        block.free()
        error = UseAfterFreeError
    else:
        x.runtime.unregister_stream(stream)
        error = StreamMisuseError
    with pytest.raises(error):
        beside.result()
    go.set()
    holder.result()


def test_a_stream_is_not_unregistered_while_a_wait_queries_it(four, driver, foreign):
    """Its handle may be destroyed as soon as it is unregistered."""
    x = four()
    block = x.alloc(x.S)
    stream = x.runtime.register_stream(foreign())
    holder, go = opened(x.runtime, x.S, WRITE, block)
    beside = beside_waiting(x.runtime, lambda: prepare(stream, READ, block))
    held = driver.hold("cuStreamIsCapturing")
    assert held.reached()
    unregistered = Beside(lambda: x.runtime.unregister_stream(stream))
    unregistered.join(.2)
    assert unregistered.is_alive()
    held.release()
    unregistered.result()
    with pytest.raises(StreamMisuseError, match="was unregistered"):
        beside.result()
    go.set()
    holder.result()


def test_a_slot_that_gets_another_block_is_no_conflict(four, driver):
    """A thread waits for a block that is freed, and another one gets its slot before the thread has noticed."""
    x = four()
    gone, other = x.alloc(x.S), x.alloc(x.S)
    holder = prepare(x.S, WRITE, gone)
    ready = threading.Event()

    def wait() -> None:
        with use(x.T, write=other):
            ready.set()
            prepare(x.U, WRITE, gone)

    with waiting(x.runtime) as is_waiting:
        beside = Beside(wait)
        assert ready.wait(PATIENCE)
        is_waiting()
    held = driver.hold("cuStreamIsCapturing")
    assert held.reached()
    gone.free()
    holder.commit()
    mine = prepare(x.S, WRITE, x.alloc(x.S))            # conflicts with nothing
    threading.Timer(.1, held.release).start()
    with interrupted_after(5):
        prepare(x.V, WRITE, other).commit()             # waits; no circle
    mine.commit()
    with pytest.raises(UseAfterFreeError):
        beside.result()


def test_a_lost_device_ends_the_wait(four, driver):
    x = four()
    block, other = x.alloc(x.S), x.alloc(x.S)
    addresses = block.ptr, other.ptr
    holder, go = opened(x.runtime, x.S, WRITE, block)
    beside = beside_waiting(x.runtime, lambda: prepare(x.T, READ, block))
    driver.fail("cuMemFreeAsync", code=700)
    with pytest.raises(DeviceLostError):
        other.free()
    with pytest.raises(DeviceLostError, match="lost to an earlier error"):
        beside.result()
    go.set()
    holder.result()
    for ptr in addresses:                               # the simulated device lives on
        check(cuda.cuMemFreeAsync(ptr, x.S.handle))


@pytest.mark.parametrize("where", ["thread 'holder'", "a thread that has ended"])
def test_a_window_that_stays_open_is_named_once(four, driver, where):
    x = four()
    block = x.alloc(x.S)
    kept = []
    if "ended" in where:
        Beside(lambda: kept.append(prepare(x.S, WRITE, block))).result()
    else:
        holder, go = opened(x.runtime, x.S, WRITE, block)
    with pytest.warns(BlockingWindowWarning) as seen, interrupted_after(2.5), pytest.raises(KeyboardInterrupt):
        prepare(x.T, READ, block)
    if kept:
        kept.pop().commit()
    else:
        go.set()
        holder.result()
    assert len(seen) == 1, [str(one.message) for one in seen]
    assert re.fullmatch(
        rf"thread 'MainThread' has waited for 2 s to launch on stream {x.T.id}: block {block.generation} is in another "
        rf"use that is still open, on stream {x.S.id}, in {where}. Leave that one",
        str(seen[0].message))


WAITS_AT_THE_END = """
import ctypes, threading, time, warnings
from xlogmem import DeviceRuntime, StreamPool, use

C = ctypes.CDLL(None)               # after the interpreter, and before the threads, the process ends 0.4 s later
C.__cxa_atexit(ctypes.cast(C.usleep, ctypes.c_void_p), ctypes.c_void_p(400_000), None)
runtime, warned = DeviceRuntime(stream_pool=StreamPool(max_streams=33)), threading.Semaphore(0)
first, *others = [runtime.acquire_stream() for _ in range(33)]
block = runtime.allocate(64, first)
recorder = use(first, write=block)
recorder.__enter__()
warnings.simplefilter("always")
warnings.showwarning = lambda *_: warned.release()

def wait(stream):
    with use(stream, write=block):
        print("opened")

for stream in others:
    threading.Thread(target=wait, args=(stream,), daemon=True).start()
for _ in others:
    warned.acquire()
time.sleep(.05)                     # all of them wait again
print("ends")
"""


def test_threads_that_wait_when_the_process_ends_take_no_gil():
    """They look up ten times a second, and there is no interpreter any more."""
    assert in_its_own_process(WAITS_AT_THE_END) == "ends\n"


def test_a_wait_without_a_conflict_costs_nothing(four, driver):
    x = four()
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))
    calls = driver.all_calls()
    x.use(x.S, (block, WRITE))
    once = {name: count - calls.get(name, 0) for name, count in driver.all_calls().items()}
    assert once["cuStreamIsCapturing"] == 1
    assert not once.get("cuStreamWaitEvent")
