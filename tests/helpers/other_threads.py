"""Threads beside a test's own: they end, and what one raises is the test's failure."""
from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

from xlogmem import DeviceRuntime

__all__ = ["Beside", "beside_waiting", "interrupted_after", "until", "waiting"]

PATIENCE = 30.0                                         # seconds, for what takes milliseconds


def until(true: Callable[[], object]) -> None:
    """Returns once that is true."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.0005)


@contextlib.contextmanager
def waiting(runtime: DeviceRuntime, more: int = 1) -> Iterator[Callable[[], None]]:
    """What it gives returns once so many more windows wait for conflicting ones."""
    before = runtime.counters()["conflict_waits"]
    yield lambda: until(lambda: runtime.counters()["conflict_waits"] >= before + more)


class Beside(threading.Thread):
    """Runs a function in another thread.  `result` waits for its end, and raises what it raised."""

    def __init__(self, function: Callable[[], object], name: str | None = None) -> None:
        super().__init__(name=name, daemon=True)
        self.function = function
        self.raised: BaseException | None = None
        self.returned: object = None
        self.start()

    def run(self) -> None:
        try:
            self.returned = self.function()
        except BaseException as error:
            self.raised = error
        finally:
            del self.function                           # what it holds belongs to the test

    def result(self) -> object:
        self.join(PATIENCE)
        assert not self.is_alive(), f"{self.name} hangs"
        if self.raised is not None:
            raised, self.raised = self.raised, None
            raise raised
        return self.returned


def beside_waiting(runtime: DeviceRuntime, function: Callable[[], object], name: str | None = None) -> Beside:
    """A thread whose launch waits by now for a conflicting one."""
    with waiting(runtime) as is_waiting:
        beside = Beside(function, name)
        is_waiting()
    return beside


@contextlib.contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """A main thread that waits inside is interrupted, as by Ctrl-C."""
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
