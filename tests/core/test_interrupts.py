"""An interrupt (Ctrl-C) leaves nothing half done, wherever it comes: the call can be made again, in any thread."""
from __future__ import annotations

import pytest
from interrupts import in_another_thread, interrupted

from xlogmem import (
    MAX_DEVICES,
    Access,
    DeviceRuntime,
    DeviceState,
    get_device_state,
    get_runtime,
    runtime,
)
from xlogmem.interop import devices


@pytest.mark.usefixtures("_cold")
def test_get_runtime_works_after_an_interrupt_anywhere():
    """In particular the first, which marked its runtime as being made for ever."""
    tried = 0
    for _ in interrupted(lambda: get_runtime(0)):
        assert in_another_thread(lambda: get_runtime(0)) is get_runtime(0)
        runtime._runtimes[0] = None
        tried += 1
    assert tried > 10


@pytest.mark.usefixtures("_cold")
def test_a_runtime_is_replaced_after_an_interrupt_anywhere():
    own = DeviceRuntime()
    for _ in interrupted(lambda: runtime.set_runtime(own)):
        in_another_thread(lambda: runtime.set_runtime(own))
        assert get_runtime() is own
        runtime._runtimes[0] = None


def test_a_state_is_made_after_an_interrupt_anywhere():
    own = DeviceRuntime()
    for _ in interrupted(lambda: DeviceState(own)):
        assert in_another_thread(lambda: DeviceState(own).runtime) is own


@pytest.fixture
def _no_state(monkeypatch):
    """As if none of the process's runtimes and states had been made yet."""
    monkeypatch.setattr(runtime, "_runtimes", [None] * MAX_DEVICES)
    monkeypatch.setattr(devices, "_own", {})


@pytest.mark.usefixtures("_no_state")
def test_get_device_state_works_after_an_interrupt_anywhere():
    for _ in interrupted(get_device_state):
        assert in_another_thread(get_device_state) is get_device_state()
        assert get_device_state().runtime is get_runtime()
        devices._own.clear()
        runtime._runtimes[0] = None


def test_a_loss_is_noticed_once_after_an_interrupt_anywhere():
    states = []

    def lose() -> None:
        states.append(DeviceState(DeviceRuntime()))
        states[-1].mark_lost()

    for _ in interrupted(lose):
        if states:
            state = states.pop()
            in_another_thread(state.mark_lost)
            assert (state.epoch, state.runtime) == (1, None)
            assert state.accepting_operations


@pytest.mark.usefixtures("_no_state")
def test_recover_works_after_an_interrupt_anywhere():
    """The state and the process's runtime are replaced together, or not yet."""
    state = get_device_state()
    state.mark_lost()
    tried = 0
    for _ in interrupted(state.recover):
        if state.runtime is None:
            in_another_thread(state.recover)
        assert get_runtime() is state.runtime
        assert get_device_state() is state
        assert state.snapshot() == (get_runtime(), state.epoch)
        state.mark_lost()
        tried += 1
    assert tried > 20
    state.__dict__.clear()


@pytest.mark.filterwarnings("ignore:.*was dropped without being left:ResourceWarning")
def test_a_block_can_be_freed_after_an_interrupt_of_its_use():
    own = DeviceRuntime()
    stream = own.acquire_stream()

    def once() -> None:
        block = own.allocate(64, stream)
        own.prepare_block_use(block, stream, Access.WRITE)
        own.finish_block_use(block, stream, Access.WRITE)

    for _ in interrupted(once):
        in_another_thread(own.reap_pending)
    own._prepared.clear()                               # windows that were opened, and whose finish was never called
    own.reap_pending()
    assert own.bytes_outstanding == 0
