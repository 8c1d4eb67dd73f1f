"""A context is replaced when nothing that began in the old one can enqueue work any more."""
from __future__ import annotations

import threading

import numpy as np
import pytest
from cuda.bindings import driver as cuda

from xlogmem import DeviceLostError, DeviceRuntime, DeviceState, StreamMisuseError
from xlogmem.interop import devices
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
WAIT, SET = "cuStreamWaitEvent", "cuMemsetD8Async"
IN, OUT, ACROSS, DONE = "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuEventSynchronize"


class Lost:
    """A device state, two buffers that were written on one stream, and another stream that works on them."""

    def __init__(self) -> None:
        self.state = DeviceState(DeviceRuntime())
        first, self.stream = (self.state.runtime.acquire_stream() for _ in range(2))
        self.buffer, self.other = (self.state.full(64, 1, "uint8", stream=first) for _ in range(2))
        self.pointers = [buffer.access().ptr for buffer in (self.buffer, self.other)]
        self.operations = {
            "fill": lambda: self.buffer.fill(2, self.stream),
            "copy_from": lambda: self.buffer.copy_from(bytes(64), self.stream),
            "copy_from a buffer": lambda: self.buffer.copy_from(self.other, self.stream),
            "copy_to": lambda: self.buffer.copy_to(bytearray(64), self.stream),
            "copy_to a buffer": lambda: self.buffer.copy_to(self.other, self.stream),
            "to_numpy": lambda: self.buffer.to_numpy(self.stream),
            "from_dlpack": lambda: np.from_dlpack(self.buffer, device="cpu", copy=True),
        }

    def close(self) -> None:
        self.__dict__.pop("operations")
        self.state = self.buffer = self.other = self.stream = None
        check(cuda.cuCtxSynchronize())
        for ptr in self.pointers:                       # which a runtime that is lost cannot free
            check(cuda.cuMemFreeAsync(ptr, 0))
        check(cuda.cuCtxSynchronize())


@pytest.fixture
def lost():
    lost = Lost()
    yield lost
    lost.close()


@pytest.fixture
def waits(monkeypatch):
    """Set when a recovery waits."""
    waits = threading.Event()

    class Time:
        @staticmethod
        def sleep(_: float) -> None:
            waits.set()

    monkeypatch.setattr(devices, "time", Time)
    return waits


@pytest.mark.parametrize(("name", "site"), [
    ("fill", WAIT), ("fill", SET), ("copy_from", WAIT), ("copy_from", IN), ("copy_from a buffer", WAIT),
    ("copy_from a buffer", ACROSS), ("copy_to", WAIT), ("copy_to", OUT), ("copy_to", DONE), ("copy_to a buffer", WAIT),
    ("copy_to a buffer", ACROSS), ("to_numpy", WAIT), ("to_numpy", OUT), ("to_numpy", DONE), ("from_dlpack", OUT),
])
def test_a_recovery_waits_for_fills_and_copies(driver, lost, waits, name, site):
    """docs/ordering.md, context-replaced.  One that had not enqueued its work when the loss was noticed does not."""
    outcome, epochs = [], []

    def work() -> None:
        try:
            lost.operations[name]()
        except DeviceLostError as error:
            outcome.append(str(error))

    driver.set_policy("min")                            # nothing is complete before the host waits for it
    held = driver.hold(site)
    worker, recovery = threading.Thread(target=work), threading.Thread(
        target=lambda: epochs.append(lost.state.recover()))
    worker.start()
    assert held.reached()
    lost.state.mark_lost()
    before = {call: driver.calls(call) for call in (SET, IN, OUT, ACROSS)}
    recovery.start()
    while recovery.is_alive() and not waits.wait(.01):
        pass
    assert (lost.state.epoch, lost.state.runtime, epochs) == (1, None, [])
    assert held.release()
    worker.join(60)
    recovery.join(60)
    assert epochs == [2]
    assert before == {call: driver.calls(call) for call in before}
    assert len(outcome) == (site == WAIT)


@pytest.mark.parametrize("site", [WAIT, SET])
def test_a_recovery_inside_of_a_fill_is_refused(driver, lost, site):
    """As a resource written in Python or a finalizer could try; it would wait for itself."""
    refused = []

    def recover() -> None:
        lost.state.mark_lost()
        with pytest.raises(StreamMisuseError, match="inside a fill or copy") as error:
            lost.state.recover()
        refused.append(error)

    driver.on_call(site, recover)
    if site == WAIT:
        with pytest.raises(DeviceLostError):
            lost.operations["fill"]()
    else:
        lost.operations["fill"]()
    assert refused
    assert lost.state.recover() == 2


def test_what_is_refused_or_fails_is_not_waited_for(driver, lost):
    driver.fail(SET, code=1)
    with pytest.raises(Exception, match=SET):
        lost.operations["fill"]()
    lost.state.mark_lost()
    for operation in lost.operations.values():
        with pytest.raises(Exception, match="context lost"):
            operation()
    assert lost.state.recover() == 2
