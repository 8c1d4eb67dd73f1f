"""Windows that are open while another thread, or this one, wants a conflicting one."""
from __future__ import annotations

import threading
from collections.abc import Callable

from other_threads import PATIENCE, Beside, until

from xlogmem import DeviceBlock, DeviceRuntime, LaunchRecorder, Stream
from xlogmem.sim import Simulator

__all__ = ["has_looked_up", "opened", "prepare"]


def prepare(stream: Stream, access: str, *blocks: DeviceBlock, **options: str) -> LaunchRecorder:
    recorder = LaunchRecorder(stream, **options)
    getattr(recorder, access)(list(blocks))
    recorder.preflight()
    return recorder


def opened(runtime: DeviceRuntime, stream: Stream, access: str, block: DeviceBlock,
           then: Callable[[], object] = lambda: None) -> tuple[Beside, threading.Event]:
    """A window that another thread opens, and commits when it may."""
    ready, go = threading.Event(), threading.Event()

    def hold() -> None:
        recorder = prepare(stream, access, block)
        ready.set()
        assert go.wait(PATIENCE)
        then()
        recorder.commit()

    beside = Beside(hold, "holder")
    assert ready.wait(PATIENCE)
    return beside, go


def has_looked_up(driver: Simulator) -> None:
    """Returns once a thread that waits has looked up a few times: each time it queries its stream."""
    before = driver.calls("cuStreamIsCapturing")
    until(lambda: driver.calls("cuStreamIsCapturing") >= before + 4)
