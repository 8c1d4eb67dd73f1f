"""A forked child of the tests' process, and what every public operation does there."""
from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from xlogmem import Access, DeviceRuntime, DeviceState, StreamPool, XlogmemError, _driver, get_runtime, use
from xlogmem.interop import devices

LIMIT = 10                                              # seconds for one operation: a child that hangs is killed
Operations = Mapping[str, Callable[[], object]]


def outcomes(operations: Operations) -> dict[str, str]:
    """What a child answers: "answered", "refused" as a forked child is, or what else was raised; the operation that it
    hangs in is the last one, and is missing."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():                     # of Python 3.12, and of JAX where another test has imported it
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for name, operation in operations.items():
            signal.alarm(LIMIT)
            os.write(writer, f"{name}\t{outcome(operation)}\n".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        found = dict(line.rstrip("\n").split("\t", 1) for line in answers)
    os.waitpid(child, 0)
    return found


def outcome(operation: Callable[[], object]) -> str:
    try:
        operation()
    except XlogmemError as error:
        return "refused" if "forked" in str(error) else repr(error)
    except BaseException as error:
        return repr(error)
    return "answered"


@contextmanager
def inside(work: Callable[[], object], *, until: Callable[[], object], release: Callable[[], object]) -> Iterator[None]:
    """Another thread is inside `work`, at a place that `until` waits for, until `release`."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert until()
        yield
    finally:
        release()
        thread.join()


class Everything:
    """A runtime with one of each thing, and every public operation on it."""

    def __init__(self, runtime: DeviceRuntime, foreign: Callable[[], int]) -> None:
        self.runtime = runtime
        self.stream = runtime.acquire_stream()
        self.acquired = runtime.acquire_stream()        # spare from here on
        self.acquired = None
        self.known, self.unknown = runtime.register_stream(foreign()), foreign()
        self.block, self.dropped = runtime.allocate(64, self.stream), runtime.allocate(64, self.stream)
        self.recorder = use(self.stream, read=self.block)
        self.prepared = use(self.stream, read=self.block)
        self.prepared.preflight()
        self.state = DeviceState(runtime)
        self.buffer = self.state.empty(8, "uint8", self.stream)
        self.watch = self.state.watch()

    def close(self) -> None:
        self.prepared.commit()
        self.__dict__.clear()

    def answered(self) -> Operations:
        """What only looks."""
        runtime, block, stream, state = self.runtime, self.block, self.stream, self.state
        return {
            "state": lambda: block.state, "repr(block)": lambda: repr(block), "frontier": lambda: block.frontier,
            "id": lambda: block.id, "find_block": lambda: runtime.find_block(block.ptr),
            "live_bytes": lambda: runtime.live_bytes, "bytes_outstanding": lambda: runtime.bytes_outstanding,
            "memory_summary": runtime.memory_summary, "counters": runtime.counters,
            "stream_count": runtime.stream_count, "lost": lambda: runtime.lost, "repr(runtime)": lambda: repr(runtime),
            "discipline": lambda: stream.discipline, "handle": lambda: stream.handle, "repr(stream)":
            lambda: repr(stream), "known": lambda: runtime.register_stream(stream), "acquired":
            lambda: runtime.stream_pool.acquired, "default": lambda: runtime.default_stream,
            "statistics": getattr(runtime.resource, "statistics", lambda: None), "pool_size":
            getattr(runtime.resource, "pool_size", lambda: None), "live_events": _driver.live_events,
            "epoch": lambda: state.epoch, "repr(state)": lambda: repr(state), "changed": lambda: self.watch.changed,
            "runtime": lambda: state.runtime, "is_stale": lambda: self.buffer.is_stale,
            "repr(buffer)": lambda: repr(self.buffer), "last_write_stream": lambda: self.buffer.last_write_stream,
            "drop": self.drop,
        }

    def drop(self) -> None:
        """Finalizers."""
        self.dropped = self.watch = None

    def refused(self) -> Operations:
        """What would use the driver, or change what the parent owns."""
        runtime, block, stream, buffer, state = self.runtime, self.block, self.stream, self.buffer, self.state
        return {
            "allocate": lambda: runtime.allocate(64), "acquire_stream": runtime.acquire_stream,
            "adopt": lambda: runtime.adopt(1 << 40, 64), "reap": runtime.reap_pending, "poll":
            lambda: runtime.reap_pending(blocking=False), "record": lambda: runtime.record_block_use(block, stream),
            "prepare": lambda: runtime.prepare_block_use(block, stream, Access.READ),
            "finish": lambda: runtime.finish_block_use(block, stream, Access.READ),
            "use": lambda: use(stream, read=block).preflight(), "preflight": self.recorder.preflight,
            "commit": self.prepared.commit, "register": lambda: runtime.register_stream(self.unknown),
            "opaque": lambda: runtime.register_stream(self.known, discipline="opaque"),
            "unregister": lambda: runtime.unregister_stream(self.known), "get_runtime(n)": lambda: get_runtime(3),
            "DeviceRuntime": DeviceRuntime, "StreamPool": StreamPool, "trim":
            getattr(runtime.resource, "trim", lambda: runtime.allocate(1)), "trim_events": _driver.trim_events,
            "empty": lambda: state.empty(8), "fill": lambda: buffer.fill(1), "copy_from":
            lambda: buffer.copy_from(bytes(8)), "copy_to": lambda: buffer.copy_to(bytearray(8)),
            "to_numpy": buffer.to_numpy, "__dlpack__": buffer.__dlpack__, "interface":
            lambda: buffer.__cuda_array_interface__, "arrow": buffer.__arrow_c_device_array__,
            "pointer": lambda: buffer.pointer(stream, Access.READ).__enter__(),
            "map": buffer.map,
            "wait": lambda: devices.Watch(state).wait(1), "mark_lost": state.mark_lost, "recover": state.recover,
            "begin_shutdown": state.begin_shutdown, "snapshot": state.snapshot, "free": block.free,
        }
