"""State of every layer of a world: its lock, its script, its counts, and the errors that are excused."""
from __future__ import annotations

import contextlib
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem.errors import (
    DriverError,
    OutOfBudgetError,
    OutOfDeviceMemoryError,
    StreamMisuseError,
    UseAfterFreeError,
    XlogmemError,
)
from xlogmem_selftest.programs import Kind
from xlogmem_selftest.world.calls import CODES, Injected, sure, tools

__all__ = ["Bookkeeping", "refused"]


class Bookkeeping:
    """The lowest layer of a `World`."""

    def __init__(self, kind: Kind, simulator: Any, protect: bool, threads: int, devices: int = 1) -> None:
        self.kind, self.simulator, self.protect, self.threads = kind, simulator, protect, threads
        self.fails = kind.failures and simulator is not None    # driver calls are made to fail
        self.lock = threading.RLock()
        self.states_lock = threading.RLock()    # around constructors of states, in which finalizers may take the other
        self.devices = range(devices)
        self.kernels = tools()[1]           # of device 0
        for device in self.devices[1:]:
            tools(device)
        self.armed: dict[str, list[Callable[[], None]]] = defaultdict(list)
        self.resource_fails = 0             # calls of resources written in Python that are still to fail
        self.owners = 0                     # of adopted memory, alive
        self.depth = 0                      # of gaps within gaps
        self.limited = False                # there may be no memory for what the program wants
        self.over = False                   # the end has begun: nothing runs in gaps any more
        self.violations: list[str] = []
        self.happened: Counter[str] = Counter()
        self.script: list[str] | None = None
        self.numbers: Counter[str] = Counter()

    @contextlib.contextmanager
    def context(self, device: int = 0) -> Iterator[None]:
        """The device is the current one inside."""
        sure(cuda.cuCtxPushCurrent, tools(device)[0])
        try:
            yield
        finally:
            sure(cuda.cuCtxPopCurrent)

    def next_number(self, of: str) -> int:
        with self.lock:
            self.numbers[of] += 1
            return self.numbers[of]

    def in_gap(self, where: str) -> None:
        """Run what was armed for this gap, inside another call."""
        if self.threads == 1 and self.armed[where]:
            self.armed[where].pop()()

    # ------------------------------------------------------------------------------------------ what is reported
    def say(self, text: str) -> None:
        """A line of the script."""
        if self.script is not None:
            self.script.append("    " * self.depth + text)

    def violation(self, text: str) -> None:
        self.violations.append(text)
        if not self.over:
            self.say(f"# {text}")

    def surprise(self, error: BaseException) -> None:
        """An error that the program does not expect."""
        trace, frames = error.__traceback__, []
        while trace is not None:
            frames.append(f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}")
            trace = trace.tb_next
        self.violation(f"{type(error).__name__}: {error} ({' > '.join(frames[-6:])})")

    @contextlib.contextmanager
    def surprises_reported(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.surprise(error)

    def excuses(self, error: BaseException) -> bool:
        """True if this error may come out of a call of a program that keeps its side."""
        if isinstance(error, Injected):
            return self.fails
        if isinstance(error, (OutOfDeviceMemoryError, OutOfBudgetError)) and self.limited:
            return True
        crowded = self.threads > 1 or self.kind.gaps
        if isinstance(error, DriverError):
            return (self.fails and error.code in CODES) or (
                self.kind.gaps and "the whole context" in str(error))       # in a callback inside of an allocation
        if isinstance(error, UseAfterFreeError):
            return crowded
        if isinstance(error, StreamMisuseError):
            return (crowded or self.kind.captures or self.kind.foreign or self.fails
                    or any(text in str(error) for text in CONFLICTS))
        return False

    @contextlib.contextmanager
    def no_refusal_in(self, capture: object) -> Iterator[None]:
        """A legal use in a capture may be refused because of another use alone, or after a failure of the driver."""
        try:
            yield
        except StreamMisuseError as error:
            if capture is None or self.fails or any(text in str(error) for text in CONFLICTS):
                raise
            raise AssertionError(f"refused, in a capture: {error}") from error


CONFLICTS = ("in another use that is still open", "wanted by another use")


def refused(world: Bookkeeping, error: type[XlogmemError], call: Callable[[], Any], what: str) -> None:
    """The call must raise this error; a driver that fails meanwhile is the only excuse."""
    try:
        call()
    except error:
        return
    except DriverError:
        if not world.fails:
            raise
        return
    world.violation(f"{what} was not refused")
