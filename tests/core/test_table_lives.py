"""Uses of callers of the C table, and what ends beside them: holds, owners, threads, the parent of a fork."""
from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from functools import partial

import pytest
from c_table import ANY_THREAD, CONFLICT, READ, REFUSE_CONFLICTS, VOID, Access, Error, Hold, Refused, functions
from cuda.bindings import driver as cuda
from forking import outcomes
from four_streams import at
from other_threads import Beside, until, waiting

from xlogmem import DeviceRuntime, PoolMemoryResource, use
from xlogmem.observe.history import record_history
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator


# ------------------------------------------------------------------------------------------------ holds
@pytest.mark.parametrize("end", ["finish", "cancel"])
@pytest.mark.parametrize("resource", [None, PoolMemoryResource])
def test_a_hold_that_is_closed_inside_a_use_ends_with_it(end, resource):
    runtime = DeviceRuntime(resource=resource and resource())
    stream = runtime.acquire_stream()
    hold, gone = Hold(runtime), weakref.ref(runtime)
    first, second = runtime.allocate(64, stream), runtime.allocate(64, stream)
    opened = [hold.prepare(stream.handle, read=[block.ptr]) for block in (first, second)]
    hold.close()
    del runtime, stream, first, second
    gc.collect()
    for use_of_it in opened:
        assert gone() is not None
        getattr(hold, end)(use_of_it)
    until(lambda: gc.collect() >= 0 and gone() is None)


def test_a_prepare_that_fails_after_the_close_ends_the_hold():
    runtime = DeviceRuntime()
    streams = [runtime.acquire_stream(), runtime.acquire_stream()]
    hold, gone = Hold(runtime), weakref.ref(runtime)
    block = runtime.allocate(64, streams[0])
    hold.finish(hold.prepare(streams[1].handle, read=[block.ptr]))
    opened = hold.prepare(streams[0].handle, write=[block.ptr], flags=ANY_THREAD)
    with waiting(runtime) as begun:
        other = Beside(partial(hold.prepare, streams[1].handle, read=[block.ptr]))
        begun()
    hold.close()
    block.free()
    hold.finish(opened)
    with pytest.raises(Refused, match="was freed"):
        other.result()
    del runtime, streams, block, begun, other
    until(lambda: gc.collect() >= 0 and gone() is None)


def test_holds_may_be_released_while_owners_are_dropped():
    """An owner's finalizer lets another thread run, which runs the deferred work too."""
    entered, go_on = threading.Event(), threading.Event()

    class Owner:
        def __init__(self, waits: bool) -> None:
            self.waits = waits

        def __del__(self) -> None:
            if self.waits:
                entered.set()
                go_on.wait(20)

    runtimes = [DeviceRuntime(), DeviceRuntime()]
    holds = [Hold(runtime) for runtime in runtimes]
    memory = [int(check(cuda.cuMemAlloc(64))) for _ in runtimes]
    streams = [runtime.acquire_stream() for runtime in runtimes]
    opened = []
    for number, runtime in enumerate(runtimes):
        block = runtime.adopt(memory[number], 64, streams[number], owner=Owner(number == 0))
        opened.append(holds[number].prepare(streams[number].handle, read=[memory[number]]))
        block.free()

    def beside() -> None:
        entered.wait(20)
        holds[1].close()
        for _ in range(4):
            Hold(runtimes[0]).close()                   # `open` runs deferred work
        go_on.set()

    other = Beside(beside)
    with_gil = ctypes.PYFUNCTYPE(ctypes.c_int, VOID, VOID, ctypes.POINTER(Error))(
        ctypes.cast(functions.finish, VOID).value)
    error = Error()
    for hold, use_of_it in zip(holds, opened, strict=True):
        with_gil(hold.runtime, use_of_it, ctypes.byref(error))
    other.result()
    holds[0].close()
    for ptr in memory:
        check(cuda.cuMemFree(ptr))


def test_windows_go_back_to_the_runtime(four):
    b = four()
    block = b.alloc(b.S)
    for _ in range(200):                                # more than any reserve
        hold = Hold(b.runtime)
        hold.finish(hold.prepare(b.S.handle, write=[block.ptr]))
        hold.close()
    with use(b.T, read=block):
        operation = b.work(b.T)
    b.use(b.U, (block, "write"))
    assert b.ordered(operation, b.U)


@pytest.mark.parametrize("end", ["finish", "cancel"])
def test_the_owner_of_adopted_memory_is_dropped_after_a_use(four_and_hold, end):
    """Without another call to the runtime."""
    class Owner:
        pass

    b, hold = four_and_hold
    owner = Owner()
    gone = weakref.ref(owner)
    memory = int(check(cuda.cuMemAlloc(64)))
    block = b.runtime.adopt(memory, 64, b.S, owner=owner)
    opened = hold.prepare(b.S.handle, read=[block.ptr])
    del owner
    block.free()
    assert gone() is not None
    getattr(hold, end)(opened)
    until(lambda: gone() is None)
    check(cuda.cuMemFree(memory))


# ------------------------------------------------------------------------------------------------ threads
def test_a_conflicting_use_waits_for_another_thread(four_and_hold):
    b, hold = four_and_hold
    block = b.alloc(b.S)
    opened = Beside(lambda: hold.prepare(b.T.handle, write=[block.ptr], flags=ANY_THREAD)).result()
    with pytest.raises(Refused, match="in another use that is still open, on stream",
                       check=lambda error: error.kind == CONFLICT):
        hold.prepare(b.U.handle, read=[block.ptr], flags=REFUSE_CONFLICTS)
    with waiting(b.runtime) as begun:
        other = Beside(lambda: hold.prepare(b.U.handle, read=[block.ptr], flags=ANY_THREAD))
        begun()
    operation = b.work(b.T)
    hold.finish(opened)
    hold.finish(other.result())
    assert b.ordered(operation, b.U)


@pytest.mark.parametrize("python", [True, False])
def test_it_waits_without_the_gil(four_and_hold, python):
    """Its caller holds the GIL; the thread that it waits for needs it."""
    b, hold = four_and_hold
    block = b.alloc(b.S)
    with_gil = ctypes.PYFUNCTYPE(ctypes.c_int, *functions.prepare.argtypes)(
        ctypes.cast(functions.prepare, VOID).value)
    opened, error = VOID(), Error()

    def wait() -> None:
        assert with_gil(hold.runtime, b.U.handle, ctypes.byref(Access(block.ptr, 0, 0, READ)), 1, ANY_THREAD,
                        ctypes.byref(opened), ctypes.byref(error)) == 0

    recorder = use(b.T, write=block)
    first = None if python else hold.prepare(b.T.handle, write=[block.ptr])
    if python:
        recorder.preflight()
    with waiting(b.runtime) as begun:
        other = Beside(wait)
        begun()
    recorder.commit() if python else hold.finish(first)
    other.result()
    hold.finish(opened.value)


@pytest.mark.parametrize("flags", [0, ANY_THREAD])
def test_a_use_whose_thread_has_ended(four_and_hold, flags):
    """Nothing else will close it, unless another thread may."""
    b, hold = four_and_hold
    block = b.alloc(b.S)
    opened = Beside(lambda: hold.prepare(b.T.handle, write=[block.ptr], flags=flags)).result()
    operation = b.work(b.T)
    with waiting(b.runtime) as begun:
        other = Beside(lambda: hold.prepare(b.U.handle, read=[block.ptr], flags=ANY_THREAD))
        begun()
    if flags:
        hold.finish(opened)
        hold.finish(other.result())
    else:
        hold.finish(other.result())                     # goes on by itself
        with pytest.raises(Refused, match=r"thread that prepared this use on stream .* ended before it was finished"):
            hold.finish(opened)
    assert b.ordered(operation, b.U)
    block.free()
    assert b.runtime.counters()["deferred_frees"] == 0


# ------------------------------------------------------------------------------------------------ forks
def test_a_forked_child_refuses_everything(four_and_hold):
    b, hold = four_and_hold
    block, other = b.alloc(b.S), b.alloc(b.S)
    opened, cancelled = (hold.prepare(b.S.handle, read=[x.ptr]) for x in (block, other))
    hold.hold_stream(b.T.handle)
    refused = {
        "prepare": lambda: hold.prepare(b.S.handle, read=[block.ptr]), "finish": lambda: hold.finish(opened),
        "wait": lambda: hold.wait(b.T.handle, block.ptr), "find": lambda: hold.find(block.ptr),
        "ready": lambda: hold.ready(block.ptr), "synchronize": lambda: hold.synchronize(block.ptr),
        "hold_stream": lambda: hold.hold_stream(b.S.handle), "release_stream": lambda: hold.release_stream(b.T.handle),
    }
    found = outcomes(refused | {"cancel": lambda: hold.cancel(cancelled), "counters": hold.counters,
                                "close": hold.close})
    assert {name: "forked" in found[name] for name in refused} == dict.fromkeys(refused, True)
    assert {name: found[name] for name in ("cancel", "counters", "close")} == dict.fromkeys(
        ("cancel", "counters", "close"), "answered")
    hold.finish(opened)
    hold.finish(cancelled)


# ------------------------------------------------------------------------------------------------ observers
def test_a_history_has_them(four_and_hold):
    b, hold = four_and_hold
    block = b.alloc(b.S)
    with record_history() as recording:
        with hold.use(b.T.handle, write=[block.ptr]):
            pass
        hold.cancel(hold.prepare(b.T.handle, read=[block.ptr]))
    assert [event.generation for event in recording.events() if event.kind == "use"] == [block.generation]


def test_many_blocks(four_and_hold):
    b, hold = four_and_hold
    blocks = [b.alloc(b.S, 64) for _ in range(1000)]
    with hold.use(b.T.handle, write=[block.ptr for block in blocks]):
        operation = b.work(b.T)
    for block in (blocks[0], blocks[999]):
        b.use(b.U, (block, "read"))
    assert b.ordered(operation, b.U)
    assert b.waits() <= 3


def test_a_recycled_window_remembers_nothing(four_and_hold):
    """Flags and waits of the use before."""
    b, hold = four_and_hold
    block = b.alloc(b.S)
    for flags in (REFUSE_CONFLICTS, ANY_THREAD, 0):
        hold.finish(hold.prepare(b.S.handle, write=[block.ptr], flags=flags))
    with use(b.T, read=block), pytest.raises(Refused, match="cannot be left while this one") as caught:
        hold.prepare(b.U.handle, write=[block.ptr])     # not refused as before, but because it would never end
    assert caught.value.kind == CONFLICT
    late = b.work(at(b.U.handle))
    with hold.use(b.T.handle, write=[block.ptr]):
        pass
    assert not b.ordered(late, b.T)
