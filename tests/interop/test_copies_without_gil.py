"""No driver call that may wait is made with the GIL in a fill or copy: each is held up while other threads go on."""
from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from cuda.bindings import driver as cuda

from xlogmem import DeviceRuntime, DeviceState, PoolMemoryResource
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
NBYTES = 64
PATIENCE = 5                                            # seconds: a driver call that keeps the GIL is over after them


class Copies:
    """Operations on buffers that were written on another stream, so that they have to wait."""

    def __init__(self) -> None:
        self.state = DeviceState(DeviceRuntime(resource=PoolMemoryResource()))
        writer, self.stream = (self.state.runtime.acquire_stream() for _ in range(2))
        self.writer = writer
        self.buffer, self.other = (self.state.empty(NBYTES, "uint8", writer) for _ in range(2))
        self.pinned = int(check(cuda.cuMemAllocHost(NBYTES)))

    def write(self) -> None:
        for buffer in (self.buffer, self.other):
            buffer.fill(1, self.writer)

    def close(self) -> None:
        check(cuda.cuMemFreeHost(self.pinned))
        self.state.__dict__.clear()
        self.__dict__.clear()

    def operations(self) -> dict[str, Callable[[], object]]:
        page_locked = (ctypes.c_char * NBYTES).from_address(self.pinned)
        return {
            "fill": lambda: self.buffer.fill(2, self.stream),
            "copy_from": lambda: self.buffer.copy_from(bytes(NBYTES), self.stream),
            "copy_from page-locked memory": lambda: self.buffer.copy_from(page_locked, self.stream),
            "copy_from a buffer": lambda: self.buffer.copy_from(self.other, self.stream),
            "copy_from on a foreign stream": lambda: self.buffer.copy_from(bytes(NBYTES), 2),
            "copy_to": lambda: self.buffer.copy_to(bytearray(NBYTES), self.stream),
            "copy_to a buffer": lambda: self.buffer.copy_to(self.other, self.stream),
            "to_numpy": lambda: self.buffer.to_numpy(self.stream),
            "to_numpy of a part": lambda: self.buffer[::2].to_numpy(self.stream),
            "from_dlpack": lambda: np.from_dlpack(self.buffer, device="cpu", copy=True),
            "from_numpy": lambda: self.state.from_numpy(np.zeros(NBYTES, "uint8"), self.stream),
            "full": lambda: self.state.full(NBYTES, 3, "uint8", self.stream),
        }


@pytest.fixture
def copies():
    copies = Copies()
    yield copies
    copies.close()


NAMES = ("fill", "copy_from", "copy_from page-locked memory", "copy_from a buffer", "copy_from on a foreign stream",
         "copy_to", "copy_to a buffer", "to_numpy", "to_numpy of a part", "from_dlpack", "from_numpy", "full")


def calls_of(driver, operation: Callable[[], object]) -> Counter[str]:
    before = Counter(driver.all_calls())
    operation()
    return Counter(driver.all_calls()) - before


@pytest.mark.parametrize("name", NAMES)
def test_the_gil_is_released_around_every_driver_call(copies, driver, name):
    operation = copies.operations()[name]
    driver.set_policy("min")                            # nothing is complete before the host waits for it
    for _ in range(4):                                  # the first register a stream and create events
        copies.write()
        made = calls_of(driver, operation)
    reached = 0
    made.pop("cuStreamIsCapturing")                     # which does not wait: docs/ordering.md, query-with-gil
    for call, nth in [(call, nth) for call, count in made.items() for nth in range(1, count + 1)]:
        copies.write()
        held = driver.hold(call, nth, PATIENCE)
        worker = threading.Thread(target=operation)
        worker.start()
        while worker.is_alive() and not held.reached(.01):
            pass                                        # it may need fewer events or waits than before
        reached += worker.is_alive()
        in_time = held.release()                        # which this thread can say only with the GIL
        worker.join()
        assert in_time, f"{name} keeps the GIL during {call}"
    assert reached >= 2
