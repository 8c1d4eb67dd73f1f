"""Conflicting windows that must not wait for ever: of recorders on their way between threads, of code that runs inside
a wait, and through several runtimes."""
from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable

import pytest
from four_streams import READ, WRITE, FourStreams
from open_windows import has_looked_up, opened, prepare
from other_threads import PATIENCE, Beside, beside_waiting, interrupted_after, until, waiting

from xlogmem import (
    AsyncMemoryResource,
    BlockingWindowWarning,
    DeviceBlock,
    DeviceMemoryResource,
    DeviceRuntime,
    DriverError,
    LaunchRecorder,
    Stream,
    StreamMisuseError,
    use,
)

pytestmark = pytest.mark.simulator


# ---------------------------------------------------------------------------------------------- recorders that move
class Worker:
    """A thread that runs what it is given, as a pool's does."""

    def __init__(self) -> None:
        self.given: list[Callable[[], object]] = []
        self.done = 0
        self.ended = threading.Event()
        self.beside = Beside(self.run, "worker")

    def run(self) -> None:
        while not self.ended.is_set() or self.done < len(self.given):
            if self.done < len(self.given):
                self.given[self.done]()
                self.done += 1
            time.sleep(.0005)

    def end(self) -> None:
        self.ended.set()
        self.beside.result()


def test_a_thread_that_prepares_for_another_one_waits_for_it(four, driver):
    """As in ``asyncio.to_thread(recorder.preflight)``: the pool's thread has other work before the commit."""
    x = four()
    block = x.alloc(x.S)
    recorder = LaunchRecorder(x.S).write(block)
    worker = Worker()
    worker.given.append(recorder.preflight)
    until(lambda: worker.done)
    launched = x.work(x.S, (block, WRITE))
    with waiting(x.runtime) as is_waiting:
        worker.given.append(lambda: prepare(x.T, READ, block).commit())
        is_waiting()
    recorder.commit()
    worker.end()
    assert x.ordered(launched, x.T)


def test_the_thread_that_a_recorder_moved_to_reads_once_more(four, driver):
    """A writer waits for the window that this thread will commit; this thread need not wait behind the writer."""
    x = four()
    block = x.alloc(x.S)
    recorder = LaunchRecorder(x.S).read(block)
    Beside(recorder.preflight).result()
    writer = beside_waiting(x.runtime, lambda: prepare(x.T, WRITE, block).commit())
    with interrupted_after(5):
        prepare(x.U, READ, block).commit()
    recorder.commit()
    writer.result()


# ---------------------------------------------------------------------------------------------- code inside a wait
class Hooked(DeviceMemoryResource):
    """Runs something inside its next deallocation."""

    order = "stream"

    def __init__(self) -> None:
        super().__init__()
        self.inner = AsyncMemoryResource()
        self.then: Callable[[], object] | None = None

    def allocate(self, nbytes: int, stream: Stream) -> int:
        return self.inner.allocate(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: Stream) -> None:
        then, self.then = self.then, None
        if then is not None:
            then()
        self.inner.deallocate(ptr, nbytes, stream)


def launch_inside(x: FourStreams, block: DeviceBlock, go: threading.Event, opens: list[str]) -> Callable[..., None]:
    """The code that runs inside a wait: the window that is in the way is closed meanwhile."""
    def run(*_: object, **__: object) -> None:
        go.set()
        with use(x.U, read=block):
            opens.append("inside")
    return run


def launch_behind(x: FourStreams, block: DeviceBlock) -> Beside:
    """A thread that comes later than the wait."""
    beside = beside_waiting(x.runtime, lambda: prepare(x.V, WRITE, block).commit())
    return beside


@pytest.mark.parametrize("how", ["signal", "warning"])
def test_the_main_thread_uses_the_block_inside_its_wait(four, driver, how, monkeypatch):
    x = four()
    block = x.alloc(x.S)
    opens: list[str] = []
    behind: list[Beside] = []
    holder, go = opened(x.runtime, x.S, WRITE, block)
    inside = launch_inside(x, block, go, opens)

    def run(*_: object, **__: object) -> None:
        behind.append(launch_behind(x, block))
        inside()

    before = signal.signal(signal.SIGUSR1, run)
    try:
        with interrupted_after(10), warnings.catch_warnings():
            warnings.simplefilter("always", BlockingWindowWarning)
            monkeypatch.setattr(warnings, "showwarning", run)
            if how == "signal":
                n = x.runtime.counters()["conflict_waits"]
                main = threading.main_thread().ident
                Beside(lambda: (until(lambda: x.runtime.counters()["conflict_waits"] > n),
                                signal.pthread_kill(main, signal.SIGUSR1)))
            with use(x.T, write=block):
                opens.append("outside")
    finally:
        signal.signal(signal.SIGUSR1, before)
        go.set()
    holder.result()
    behind[0].result()
    assert opens == ["inside", "outside"]


def test_a_resource_uses_the_block_inside_a_wait(four, driver):
    """A waiting thread frees what another one has dropped."""
    resource = Hooked()
    x = four(resource=resource)
    block, dropped = x.alloc(x.S), [x.alloc(x.S)]
    opens: list[str] = []
    holder, go = opened(x.runtime, x.S, WRITE, block)
    beside = beside_waiting(x.runtime, lambda: (prepare(x.T, WRITE, block).commit(), opens.append("outside")))
    resource.then = launch_inside(x, block, go, opens)
    dropped.clear()
    beside.result()
    holder.result()
    assert opens == ["inside", "outside"]


def end_of(child: int) -> int | None:
    """The exit code of a child; None: it hangs, and is killed."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def test_a_child_that_is_forked_inside_a_wait_does_not_go_on_with_it(four, driver):
    """Its handler returns into the wait."""
    x = four()
    block = x.alloc(x.S)
    parent = os.getpid()
    children: list[int] = []
    holder, go = opened(x.runtime, x.S, WRITE, block)
    calls: dict[str, int] = {}

    def fork(*_: object) -> None:
        calls.update(driver.all_calls())
        child = os.fork()
        if child:
            children.append(end_of(child))
            go.set()

    before = signal.signal(signal.SIGUSR1, fork)
    n = x.runtime.counters()["conflict_waits"]
    killer = Beside(lambda: (until(lambda: x.runtime.counters()["conflict_waits"] > n),
                             signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)))
    answer = 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prepare(x.T, READ, block).commit()
    except DriverError as error:
        answer = 7 if "forked" in str(error) and driver.all_calls() == calls else 2
    finally:
        if os.getpid() != parent:
            os._exit(answer)
        signal.signal(signal.SIGUSR1, before)
        go.set()
    killer.result()
    holder.result()
    assert children == [7]


# ---------------------------------------------------------------------------------------------- several runtimes
def nested(first: tuple[Stream, str, DeviceBlock], second: tuple[Stream, str, DeviceBlock],
           holds: threading.Event, go: threading.Event) -> Callable[[], bool]:
    """Whether a thread got its second window inside of its first one."""
    def run() -> bool:
        with use(first[0], **{first[1]: first[2]}):
            holds.set()
            assert go.wait(PATIENCE)
            try:
                prepare(second[0], second[1], second[2]).commit()
            except StreamMisuseError as error:
                assert "cannot be left while this one" in str(error)
                return False
        return True
    return run


def test_a_circle_through_two_runtimes_is_refused(four, driver):
    x, other = four(), DeviceRuntime()
    far, near = other.acquire_stream(), other.acquire_stream()
    mine, theirs = x.alloc(x.S), other.allocate(64, far)
    go = threading.Event()
    events = threading.Event(), threading.Event()
    threads = [Beside(nested((x.S, WRITE, mine), (near, WRITE, theirs), events[0], go)),
               Beside(nested((far, WRITE, theirs), (x.T, READ, mine), events[1], go))]
    assert all(event.wait(PATIENCE) for event in events)
    go.set()
    assert sorted(thread.result() for thread in threads) == [False, True]


def test_no_circle_through_two_runtimes_is_not_refused(four, driver):
    """Each waits for a thread that waits for another one, which goes on."""
    x, other = four(), DeviceRuntime()
    far, near = other.acquire_stream(), other.acquire_stream()
    mine, theirs = x.alloc(x.S), other.allocate(64, far)
    holder, release = opened(other, near, WRITE, theirs)
    go, holds = threading.Event(), threading.Event()
    go.set()
    with waiting(other) as one_waits, waiting(x.runtime) as two_wait:
        first = Beside(nested((x.S, WRITE, mine), (far, WRITE, theirs), holds, go))
        one_waits()
        second = Beside(lambda: prepare(x.T, READ, mine).commit())
        two_wait()
    has_looked_up(driver)
    release.set()
    holder.result()
    assert first.result()
    second.result()


def test_a_circle_through_a_queue_and_another_runtime_is_none(four, driver):
    """A reader waits behind a writer, which waits for a thread, which waits in another runtime for the reader's."""
    x, other = four(), DeviceRuntime()
    far, near = other.acquire_stream(), other.acquire_stream()
    mine, theirs = x.alloc(x.S), other.allocate(64, far)
    go = threading.Event(), threading.Event()
    holds = threading.Event(), threading.Event()
    reader = Beside(nested((far, WRITE, theirs), (x.U, READ, mine), holds[0], go[0]))
    holder = Beside(nested((x.S, READ, mine), (near, WRITE, theirs), holds[1], go[1]))
    assert all(event.wait(PATIENCE) for event in holds)
    with waiting(x.runtime) as writer_waits:
        writer = Beside(lambda: prepare(x.T, WRITE, mine).commit())
        writer_waits()
    with waiting(other) as holder_waits:
        go[1].set()
        holder_waits()
    go[0].set()
    assert reader.result()
    assert holder.result()
    writer.result()
