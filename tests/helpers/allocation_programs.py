"""What allocation_failures.py runs: random programs of every kind, and what these leave out.

Nothing here starts a driver when it is imported.  A program leaves nothing behind, also where it raises MemoryError.
"""
from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

IMPORTED_ONCE = ("numpy", "xlogmem_selftest.running", "xlogmem.interop.interchange", "xlogmem.rmm")


def random_program(seed: int) -> Callable[[], None]:
    def run() -> None:
        from xlogmem_selftest.programs import Program
        from xlogmem_selftest.running import play

        world = play(Program(seed))
        others = [text for text in world.violations if "MemoryError" not in text]
        if others:
            raise AssertionError(world.violations)
        if world.violations:
            raise MemoryError

    return run


def new_state() -> Any:
    from xlogmem import DeviceRuntime, DeviceState

    return DeviceState(DeviceRuntime())


def dlpack() -> None:
    """Both kinds of capsules, consumed and not, on the device and in host memory."""
    from capsules import Taken

    from xlogmem import from_dlpack

    state, other = new_state(), new_state()
    buffer = state.full((4, 6), 7, "int32")
    for array in (buffer, buffer[1:3, ::2], buffer[:0], state.empty((), "uint8")):
        for options in ({}, {"stream": -1}, {"max_version": (1, 0)}, {"dl_device": (1, 0)}):
            array.__dlpack__(**options)
        for options in ({}, {"max_version": (1, 0), "dl_device": (1, 0)}):
            taken = Taken(array.__dlpack__(**options))
            taken.delete()
    buffer.__dlpack__(copy=True)
    imported = from_dlpack(buffer, state=other)
    with buffer.pointer(None, _write()):
        pass
    del imported, array, taken, buffer
    settle(state, other)


def mappings() -> None:
    from xlogmem import PinnedMemoryResource

    state = new_state()
    staging = state.empty((4, 6), "int32", resource=PinnedMemoryResource())
    for buffer in (staging, staging[1:, ::2], staging[:0]):
        with buffer.map(write=True) as array:
            array[:] = 1
        with buffer.map() as array:
            pass
    del staging, buffer, array
    settle(state)


def _write() -> Any:
    from xlogmem import Access

    return Access.WRITE


def arrow() -> None:
    from xlogmem import from_arrow

    state, other = new_state(), new_state()
    buffer = state.full(32, 1, "float32")
    buffer.__arrow_c_schema__()
    pair = buffer.__arrow_c_device_array__()
    imported = from_arrow(buffer[4:], state=other)
    del pair, imported
    buffer[:0].__arrow_c_device_array__()
    del buffer
    settle(state, other)


def interfaces() -> None:
    from xlogmem import from_cuda_array

    state, other = new_state(), new_state()
    buffer = state.full(32, 1, "float32")
    imported = [from_cuda_array(buffer[number:], state=other) for number in range(3)]
    imported[0].copy_to(bytearray(128))
    copy = state.empty(32, "float32")
    copy.copy_from(buffer)
    copy.to_numpy()
    del imported, buffer, copy
    settle(state, other)


def names() -> None:
    """What other libraries name, in nested lists and dicts; adopted by handles, and while an owner lives."""
    from stand_ins import Buffer, Tensor

    from xlogmem import use

    state = new_state()
    runtime, memory = state.runtime, new_state()
    there = memory.empty(8192, "uint8")
    ptr = there.access().ptr
    stream = runtime.acquire_stream()
    owners = [Tensor(ptr, (1024,)), Buffer(ptr + 2048, 1024)]
    with use(stream, read={"all": owners}, untracked="adopt"):
        pass
    runtime.find_block([owners, {"first": ptr + 1}])
    with use(stream, write=owners[0]):
        owners.clear()
    handles = runtime.adopt({"x": Tensor(ptr + 4096, (512,)), "y": [Buffer(ptr + 6144, 512)]}, stream=stream)
    del handles, there, owners, stream, runtime
    settle(state, memory)


def settle(*states: Any) -> None:
    """What was released is collected and freed."""
    for state in states[::-1] + states:                 # the last ones hold memory of the first
        gc.collect()
        state.runtime.reap_pending()
    for state in states:
        if state.runtime.bytes_outstanding:
            raise AssertionError(f"{state.runtime.bytes_outstanding} bytes are left")


def table() -> None:
    """The C table: many streams, frees that fail, lines in the log, holds that are closed."""
    import logging

    from c_table import Hold
    from foreign_streams import ForeignStream

    from xlogmem import DeviceRuntime, PoolMemoryResource

    logging.getLogger("xlogmem").addHandler(logging.NullHandler())
    for runtime in (DeviceRuntime(), DeviceRuntime(resource=PoolMemoryResource())):
        hold, streams = Hold(runtime), [ForeignStream() for _ in range(9)]
        handles = [0, 1, 2, *(stream.handle for stream in streams)]
        live = [(hold.allocate(1 << 10, handle), handle) for handle in handles * 4]
        blocks = [hold.allocate_sync(100) for _ in range(18)]
        for ptr, handle in live:
            hold.free(ptr, handle if handle else 1)
        for ptr in blocks:
            hold.free(ptr)
        hold.free(blocks[0])                            # twice: a line in the log
        hold.close()
        try:
            runtime.reap_pending()
        except Exception as error:
            if "no block of the runtime" not in str(error):
                raise
        runtime.reap_pending()
        for stream in streams:
            runtime.unregister_stream(stream.handle)
            stream.destroy()
        del hold, streams


def adaptors() -> None:
    """Many tags and addresses, and what is made of them for Python."""
    from xlogmem import AsyncMemoryResource, DeviceRuntime, StatisticsResourceAdaptor, TrackingResourceAdaptor

    adaptor = StatisticsResourceAdaptor(TrackingResourceAdaptor(AsyncMemoryResource()))
    runtime = DeviceRuntime(resource=adaptor)
    blocks = [runtime.allocate(100, tag=f"tag {i % 90}") for i in range(200)]
    for _ in range(9):
        adaptor.push_counters()
    adaptor.counters(by="tag"), adaptor.counters(by="stream"), runtime.memory_summary()
    if len(adaptor.upstream.outstanding_text().splitlines()) < 400:
        raise AssertionError(adaptor.upstream.outstanding_text())
    del blocks
    runtime.reap_pending()
    if adaptor.upstream.outstanding_bytes or runtime.bytes_outstanding:
        raise AssertionError("bytes are left")


def places() -> None:
    """A recording with the stacks of many places, in a file and in memory, and what is made of them for Python."""
    import tempfile

    from xlogmem import DeviceRuntime, record_history
    from xlogmem.observe.history import read

    source = "".join(f"def f{number}(): runtime.allocate(100, tag='x').free()\n" for number in range(18))
    runtime = DeviceRuntime()
    names = {"runtime": runtime}
    exec(source, names)                                 # new code each time: places that are not known yet
    with tempfile.TemporaryDirectory() as folder:
        for path in f"{folder}/a.xlog", None:
            with record_history(path, max_events=1000, stacks="all") as recording:
                for number in range(18):
                    names[f"f{number}"]()
            if len({event.place for event in recording.events() if event.kind == "free"}) < 18:
                raise AssertionError(list(recording.events()))
        if len(read(f"{folder}/a.xlog")) < 36:
            raise AssertionError
    runtime.reap_pending()


def rmm() -> None:
    """Both directions of the binding, in C++."""
    import rmm

    import xlogmem.rmm
    from xlogmem import DeviceRuntime

    lower = DeviceRuntime()
    limited = rmm.mr.LimitingResourceAdaptor(xlogmem.rmm.RuntimeMemoryResource(lower), 1 << 15)
    upper = DeviceRuntime(resource=xlogmem.rmm.RmmMemoryResource(limited))
    resource = xlogmem.rmm.RuntimeMemoryResource(upper)
    buffers: list[Any] = []
    try:
        while True:                                     # until the limit refuses: an exception in C++
            buffers.append(rmm.DeviceBuffer(size=1 << 10, mr=resource))
    except MemoryError:
        if len(buffers) != 1 << 5:
            raise
    del buffers, resource, limited
    for runtime in (upper, lower):
        gc.collect()
        runtime.reap_pending()


def programs() -> dict[str, Callable[[], None]]:
    """By name; RMM's where it is installed."""
    from importlib.util import find_spec

    from xlogmem_selftest.programs import KINDS

    named = {f"random {seed}, {kind.name}": random_program(seed) for seed, kind in enumerate(KINDS)}
    own = [dlpack, mappings, arrow, interfaces, names, table, adaptors, places, *([rmm] if find_spec("rmm") else [])]
    return {program.__name__: program for program in own} | named
