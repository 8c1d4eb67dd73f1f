"""Small programs that together make every public operation, for `driver_faults`, which makes their driver calls fail.

A program is a function of `World`.  It makes each operation through ``w.do``, which makes it again after a documented
exception; what it keeps goes to ``w.keep``.  Memory is written by kernels, so that the simulated driver sees races.
"""
from __future__ import annotations

import ctypes
import warnings

import numpy as np
from arrays import Array
from c_table import Hold
from capsules import Producer
from cuda.bindings import driver as cuda
from fault_resources import PROGRAMS, program
from fault_world import NBYTES, World, mine

from xlogmem import (
    Access,
    BlockState,
    Buffer,
    BufferToken,
    DeviceBlock,
    DeviceRuntime,
    DeviceState,
    LaunchRecorder,
    ManagedMemoryResource,
    PinnedMemoryResource,
    PoolMemoryResource,
    Stream,
    StreamPool,
    from_arrow,
    from_cuda_array,
    from_dlpack,
    host,
    use,
)

__all__ = ["PROGRAMS"]

# ---------------------------------------------------------------------------------------------- blocks and uses
@program
def blocks(w: World) -> None:
    runtime, s, t = w.two()
    first = w.do(runtime.allocate, NBYTES, s, tag="first")
    w.write(s, first.ptr)                               # not recorded
    w.launch(t, read=first)
    second = w.do(runtime.allocate, NBYTES)
    w.launch(s, write=[second, first])
    w.do(runtime.deallocate, first, t)
    w.do(second.free)
    dropped = w.do(runtime.allocate, NBYTES, t)
    w.launch(s, write=dropped)
    del dropped                                         # freed by a later operation
    w.do(w.do(runtime.allocate, NBYTES, s).free)
    several = w.do(runtime.allocate_many, [NBYTES] * 3, s)
    w.launch(t, write=several)
    w.do(lambda: runtime.deallocate_many([block for block in several if block.state is BlockState.LIVE]))
    w.do(runtime.reap_pending, blocking=False)
    w.do(runtime.reap_pending)
    runtime.find_block(w.scratch), runtime.counters(), runtime.memory_summary()


@program
def whole_streams(w: World) -> None:
    runtime, s, t = w.two()
    (u,) = w.streams(w.runtime(), "ordinary")
    foreign = w.foreign_stream()
    w.write(s, w.scratch)
    event = w.do(s.record)
    w.do(t.wait, event)
    w.write(t, w.scratch)                               # after the first
    w.do(u.wait, t)
    w.do(t.wait_event, w.do(u.record).handle)
    w.do(s.wait, foreign)
    w.do(s.wait, t)
    w.do(event.synchronize)
    w.do(getattr, w.do(t.record), "ready")
    w.do(s.synchronize)
    w.do(runtime.synchronize)


@program
def complete_blocks(w: World) -> None:
    runtime, s, t = w.two()
    block = w.do(runtime.allocate, NBYTES, s)
    w.write(s, block.ptr)                               # not recorded
    w.do(getattr, block, "ready")
    w.launch(t, write=block)
    w.do(getattr, block, "ready")
    w.do(block.is_ready, Access.READ)
    w.do(getattr, runtime, "ready")
    w.do(block.synchronize)
    assert w.do(getattr, block, "__cuda_array_interface__")["stream"]
    w.launch(s, read=block)
    w.do(runtime.synchronize)
    w.do(block.close)
    with w.do(runtime.allocate, 0, s):
        pass
    w.do(runtime.reap_pending)


def uses(w: World, policy: str) -> None:
    runtime, s, t = w.two(policy=policy)
    (u,) = w.streams(runtime, "sealed")
    a, b = w.do(runtime.allocate, NBYTES, s), w.do(runtime.allocate, NBYTES, t)
    for stream in (s, t, u):
        w.launch(stream, write=a, read=b)
        w.launch(stream, read=[a, b])
        w.launch(stream, write=b)
    w.do(a.free)
    w.do(b.free, s)
    w.do(runtime.reap_pending)


@program
def adaptive_uses(w: World) -> None:
    uses(w, "adaptive")


@program
def precise_uses(w: World) -> None:
    uses(w, "precise")


@program
def recorders(w: World) -> None:
    runtime, s, t = w.two()
    a, b = w.do(runtime.allocate, NBYTES, s), w.do(runtime.allocate, NBYTES, s)
    for last in ("commit", "cancel", "drop"):
        recorder = LaunchRecorder(t, runtime=runtime).read(a).write(b)
        w.do(recorder.preflight)
        if last == "commit":
            w.write(t, b.ptr)
            w.do(a.free)                                # inside the window: carried out by the close
            w.do(recorder.commit)
            a = w.do(runtime.allocate, NBYTES, s)
        elif last == "cancel":
            recorder.cancel()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del recorder
    w.do(w.do(runtime.allocate, NBYTES, t).free)        # files what was dropped
    w.launch(s, write=[a, b])
    w.do(runtime.reap_pending)


@program
def single_uses(w: World) -> None:
    runtime, s, t = w.two()
    block = w.do(runtime.allocate, NBYTES, s)
    for stream, access in ((t, Access.WRITE), (s, Access.READ), (t, Access.READ_WRITE)):
        w.do(runtime.prepare_block_use, block, stream, access)
        w.write(stream, block.ptr)
        w.must(runtime.finish_block_use, block, stream, access)
    w.read(t, block.ptr)
    w.must(runtime.record_block_use, block, t)
    w.do(block.free)
    w.do(runtime.reap_pending)


@program
def disciplines(w: World) -> None:
    runtime = w.runtime()
    opaque, sealed, s = w.streams(runtime, "opaque", "sealed", "ordinary")
    for home in (opaque, sealed):
        block = w.do(runtime.allocate, NBYTES, home)
        w.launch(home, write=block)
        w.launch(s, write=block)
        w.launch(home, read=block)
        w.launch(s, read=block)
        w.do(block.free)
    w.do(runtime.reap_pending)


@program
def adopted_memory(w: World) -> None:
    runtime, s, t = w.two()
    ptr, owner = w.foreign_memory(), object()
    for stream in (None, s):
        block = w.do(runtime.adopt, ptr, NBYTES, stream, owner=owner, tag="adopted")
        w.launch(t, write=block)
        w.launch(s, read=block)
        w.do(block.free)
    w.do(runtime.reap_pending)


@program
def accesses_by_the_host(w: World) -> None:
    """A kernel that no use declares races with what the host has not waited for."""
    runtime, s, t = w.two()
    pool = w.do(PoolMemoryResource, w.do(PinnedMemoryResource), 1 << 16, maximum_pool_size=1 << 16)

    def access(block: DeviceBlock) -> None:
        try:
            with use(host, write=block):
                w.write(s, block.ptr)
                mine(cuda.cuStreamSynchronize, s.handle)
        except TypeError:
            if block is not adopted:                    # where the query failed, which says that it is page-locked
                raise

    ptr = w.page_locked_memory()
    adopted = w.do(runtime.adopt, ptr, NBYTES)
    for resource in (pool, w.do(ManagedMemoryResource), None):
        block = adopted if resource is None else w.do(runtime.allocate, NBYTES, t, resource=resource)
        for stream in (t, s):
            w.launch(stream, write=block)
            w.do(access, block)
            w.launch(s, read=block)
            w.launch(t, read=block)
        w.do(block.free)
    w.do(runtime.reap_pending)


@program
def untracked_memory(w: World) -> None:
    """Adopted by the preflight, for as long as its owner lives."""
    runtime, s, t = w.two()
    ptr = w.foreign_memory()

    def use_it(stream: Stream, owner: Array) -> None:
        with use(stream, write=owner, untracked="adopt"):
            w.write(stream, ptr)

    for _ in range(2):
        owner = Array(data=(ptr, False), shape=(NBYTES,))
        w.do(use_it, s, owner)
        w.do(use_it, t, owner)
        del owner                                       # a later operation ends it
    block = w.do(runtime.adopt, {"x": Array(data=(ptr, False), shape=(NBYTES,))}, stream=s)["x"]
    w.launch(s, write=block)
    w.do(block.free)
    w.do(runtime.reap_pending)


@program
def captures(w: World) -> None:
    runtime, _, t = w.two()
    foreign = w.foreign_stream()
    s = w.do(runtime.register_stream, foreign)
    block, other = w.do(runtime.allocate, NBYTES, s), w.do(runtime.allocate, NBYTES, t)
    w.launch(s, write=block)
    mine(cuda.cuStreamBeginCapture, foreign, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)

    def end_capture() -> None:
        if graph := mine(cuda.cuStreamEndCapture, foreign):
            mine(cuda.cuGraphDestroy, graph)
    w.at_end(end_capture)                               # what could not be ended before
    try:
        w.do(block.free)                                # put off
        w.do(other.free)
    finally:
        end_capture()
    w.do(w.do(runtime.allocate, NBYTES, t).free)
    w.do(runtime.reap_pending)


# ---------------------------------------------------------------------------------------------- streams
@program
def stream_pools(w: World) -> None:
    runtime = w.runtime(stream_pool=w.do(StreamPool, 0, max_streams=3))
    for _ in range(2):
        s, t = w.streams(runtime, "ordinary", "opaque")
        block = w.do(runtime.allocate, NBYTES, s)
        w.launch(t, write=block)
        w.do(block.free)
        del s, t, block
        w.do(runtime.reap_pending, blocking=False)
    w.do(runtime.acquire_stream, priority=-1)
    w.do(runtime.reap_pending)


@program
def foreign_streams(w: World) -> None:
    runtime, s, _ = w.two()
    foreign = w.foreign_stream()
    registered = w.do(runtime.register_stream, foreign, discipline="opaque")
    block, kept = w.do(runtime.allocate, NBYTES, registered), w.do(runtime.allocate, NBYTES, s)
    w.launch(registered, write=block)
    w.launch(foreign, write=kept)
    w.launch(s, write=block)
    w.do(runtime.register_stream, foreign, discipline="ordinary")
    w.do(runtime.unregister_stream, foreign, successor=s)
    w.launch(s, read=[block, kept])
    w.do(block.free)
    w.do(runtime.register_stream, foreign)
    w.do(runtime.unregister_stream, foreign)
    for default in (0, 2):
        w.do(w.do(runtime.allocate, NBYTES, default).free)
    w.do(kept.free)
    w.do(runtime.reap_pending)
    runtime.stream_count()


@program
def c_table(w: World) -> None:
    runtime, s, t = w.two()
    hold = Hold(runtime)
    w.at_end(hold.close)
    for stream in (s.handle, 0):
        ptr = w.do(hold.allocate, NBYTES, stream)
        try:
            w.write(stream, ptr)
            w.launch(t, read=runtime.find_block(ptr))
        finally:
            hold.free(ptr, stream)                      # cannot say that it failed: a later operation frees it
    hold.free(w.do(hold.allocate_sync, NBYTES), t.handle)
    w.do(runtime.reap_pending)


@program
def table_launches(w: World) -> None:
    runtime, s, t = w.two()
    foreign, held = int(w.foreign_stream()), int(w.foreign_stream())
    hold = Hold(runtime)
    w.at_end(hold.close)                                # before the stream that it holds is destroyed
    w.do(hold.hold_stream, held)
    block, kept = w.do(runtime.allocate, NBYTES, s), w.do(runtime.allocate, NBYTES, t)

    def launch(stream: int) -> None:
        with hold.use(stream, write=[block.ptr + 8], read=[kept.ptr]):
            w.write(stream, block.ptr)
            w.read(stream, kept.ptr)

    for stream in (s.handle, t.handle, foreign, held, 0):
        w.do(launch, stream)
        hold.cancel(w.do(hold.prepare, stream, read=[block.ptr]))
    w.do(hold.wait, held, block.ptr)
    w.do(hold.synchronize, block.ptr)
    w.do(hold.ready, block.ptr)
    hold.release_stream(held)
    w.do(block.free)
    w.do(kept.free)
    w.do(runtime.reap_pending)


# ---------------------------------------------------------------------------------------------- other libraries
def state_of(w: World) -> tuple[DeviceState, Stream, Stream]:
    runtime, s, t = w.two()
    return w.keep(DeviceState(runtime)), s, t


@program
def buffers(w: World) -> None:
    state, s, t = state_of(w)
    a = w.do(state.from_numpy, np.arange(64, dtype="int32"), s)
    b = w.do(state.full, (8, 8), 7, "int32", t)
    w.do(a.fill, 3, t)
    w.do(b.copy_from, a.view(shape=(8, 8)), s)
    w.do(a[8:].fill, 1, s)
    w.do(a[8:].copy_to, b.view(shape=(64,))[8:], t)
    w.do(a.copy_to, np.zeros(64, dtype="int32"), t)
    w.do(b.to_numpy, s)
    raw = b.into_bytes()
    w.do(a.record_write, t)
    w.do(w.do(state.full, 1000, 0.1, "float64", s).tolist, t)

    def write(buffer: Buffer) -> None:
        with buffer.pointer(s, Access.WRITE) as ptr:
            w.write(s, ptr)
    w.do(write, raw)
    w.do(a.release)
    w.do(state.empty, 0).to_numpy()
    del raw, b
    w.do(state.runtime.reap_pending)


@program
def mappings(w: World) -> None:
    state, s, t = state_of(w)
    resource = w.do(PinnedMemoryResource)
    staging = w.do(state.empty, 64, "int32", s, resource=resource)
    device = w.do(state.full, 64, 5, "int32", t)

    def fill(buffer: Buffer, value: int) -> None:
        with buffer.map(write=True) as array:
            array[:] = value

    def read(buffer: Buffer) -> int:
        with buffer.map() as array:
            return int(array[0])
    w.do(fill, staging, 1)
    w.do(device.copy_from, staging, t)
    w.do(fill, staging, 2)
    w.do(staging.copy_from, device, s)
    w.do(read, staging)
    del staging, device
    w.do(state.runtime.reap_pending)


@program
def copies_beside_another_runtime(w: World) -> None:
    """Of page-locked memory that it tracks."""
    state, s, t = state_of(w)
    other, u, v = state_of(w)
    staging = w.do(other.empty, 64, "int32", u, resource=w.do(PinnedMemoryResource))
    source, device = w.do(other.full, 64, 5, "int32", u), w.do(state.full, 64, 1, "int32", s)
    array = (ctypes.c_int32 * 64).from_address(staging.ptr)
    for copy in (device.copy_from, device.copy_to):
        w.do(staging.copy_from, source, v)
        w.do(copy, array, t)
    w.do(staging.copy_from, source, v)
    w.do(state.upload, array, s)
    del staging, source, device, copy
    w.do(other.runtime.reap_pending)
    w.do(state.runtime.reap_pending)


@program
def dlpack_exports(w: World) -> None:
    state, s, t = state_of(w)
    a = w.do(state.full, 64, 1, "int32", s)
    for stream, version in ((t, (1, 0)), (-1, None), (t, None), (w.foreign_stream(), (1, 0)), (1, None)):
        taken = w.hold(w.do(a.__dlpack__, stream=stream, max_version=version))
        if stream is t:
            w.write(t, taken.tensor.data)               # the consumer's, not recorded
        w.launch(s, read=a)
        w.release(taken)
    held = w.hold(w.do(a.__dlpack__, stream=t))
    w.do(a.access().free)                               # when the export ends
    del a
    w.release(held)
    w.do(state.runtime.reap_pending)


@program
def other_exports(w: World) -> None:
    state, s, t = state_of(w)
    a = w.do(state.full, 64, 1, "int32", s)
    w.launch(t, write=a)
    assert w.do(getattr, a, "__cuda_array_interface__")["stream"]
    schema, array = w.do(a.__arrow_c_device_array__)
    w.do(from_arrow, a, state=state, stream=t)
    assert a.__arrow_c_schema__()
    del schema, array, a
    w.do(state.runtime.reap_pending)


@program
def imports(w: World) -> None:
    state, s, t = state_of(w)
    ptr, foreign = w.foreign_memory(), w.foreign_stream()
    a = w.do(from_dlpack, Producer(ptr), stream=s, state=state)
    w.launch(t, write=a)
    w.do(a.release)
    w.do(state.runtime.reap_pending)
    b = w.do(from_cuda_array, Array(data=(ptr, False), stream=int(foreign)), stream=t, state=state)
    w.launch(s, write=b)
    del a, b
    c = w.do(state.full, 64, 1, "int32", s)
    w.do(from_dlpack, c, stream=t, state=state)
    w.do(from_dlpack, c[::2], copy=True, stream=t, state=state)
    w.do(from_dlpack, np.arange(8), device=0, stream=t, state=state)
    w.do(from_cuda_array, c, stream=t, state=state)
    del c
    w.do(state.runtime.reap_pending)


@program
def tokens_and_recovery(w: World) -> None:
    state, s, _ = state_of(w)
    a = w.do(state.full, 64, 1, "int32", s)
    token = BufferToken.from_bytes(a.token.to_bytes())
    assert token.resolve() is a
    watch = state.watch()
    block, old = a.access(), w.runtimes[0]
    w.do(block.free)
    w.do(old.reap_pending)
    del a, block, s
    state.mark_lost()
    w.runtimes.remove(old)
    w.runtimes.append(w.do(DeviceRuntime))
    w.do(state.recover, w.runtimes[-1])
    assert watch.changed
    w.do(w.do(state.full, 64, 1, "int32").release)
    w.do(state.runtime.reap_pending)
