"""Streams that were destroyed and are found so, because their handle came back for another one."""
from __future__ import annotations

import threading

import pytest
from c_table import Hold
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream, foreign
from four_streams import READ, WRITE, at

from xlogmem import (
    AsyncMemoryResource,
    BlockState,
    DirectMemoryResource,
    DriverError,
    OutOfDeviceMemoryError,
    PoolMemoryResource,
    StreamMisuseError,
)
from xlogmem.sim.kernels import check

UNKNOWN = 999                                           # a CUresult that does not lose the device


def come_back(x, stream):
    """Destroy a stream; the next one has its handle, and is registered."""
    handle = stream.handle
    stream.destroy()
    again = ForeignStream()
    assert again.handle == handle
    x.runtime.register_stream(handle)
    return again


def filled_and_gone(x, count):
    """Blocks that were filled without a record on streams that are destroyed; the last stream, which has the handle."""
    stream = ForeignStream()
    blocks, fills = [], []
    for _ in range(count):
        blocks.append(x.runtime.allocate(512, stream.handle))
        fills.append(x.work(at(stream.handle), (blocks[-1], WRITE)))
        stream = come_back(x, stream)
    return blocks, fills, stream


@pytest.mark.simulator
def test_nothing_is_waited_for_when_a_handle_comes_back(four, driver):
    x = four()
    stream = ForeignStream()
    for _ in range(10):
        x.use(x.runtime.register_stream(stream.handle), (x.alloc(x.S), READ))
        stream = come_back(x, stream)
    assert driver.calls("cuCtxSynchronize") == 0
    assert driver.calls("cuEventSynchronize") == 0


@pytest.mark.simulator
@pytest.mark.parametrize("how", ["use", "free", "free here", "unregister"])
@pytest.mark.parametrize("policy", ["adaptive", "lazy"])
def test_one_wait_serves_all_that_are_gone(four, driver, policy, how):
    """The host waits for the context once, where the first of their blocks is looked at elsewhere."""
    x = four(policy=policy)
    blocks, fills, stream = filled_and_gone(x, 3)
    assert driver.calls("cuCtxSynchronize") == 0
    if how == "unregister":
        x.runtime.unregister_stream(stream.handle, successor=x.T)
    for block in blocks:
        if how == "use":
            x.use(x.T, (block, READ))
        else:
            block.free(x.T) if how == "free" else block.free()
    assert driver.calls("cuCtxSynchronize") == 1
    for fill in fills:
        assert x.ordered(fill, x.T)


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
def test_the_newest_fence_answers_for_what_it_covers(four, driver, dropped):
    x = four()
    block = x.alloc(x.S)
    stream = ForeignStream()
    write = x.use(x.runtime.register_stream(stream.handle), (block, WRITE))
    stream = come_back(x, stream)
    if dropped:                                         # the twin
        driver.drop("cuStreamWaitEvent")
    x.use(x.T, (block, READ))
    races = driver.races()
    driver.clear_races()
    assert driver.calls("cuCtxSynchronize") == 0
    assert bool(races) == dropped
    assert x.ordered(write, x.T) != dropped


@pytest.mark.simulator
def test_the_newest_fence_does_not_answer_for_more(four, driver):
    x = four(policy="lazy")
    block = x.alloc(x.S)
    stream = ForeignStream()
    named = x.runtime.register_stream(stream.handle)
    x.use(named, (block, WRITE))
    x.use(x.T, (block, READ))
    driver.fail("cuEventRecord", 2, UNKNOWN)            # the commit's own fence, which is not an error
    later = x.use(named, (block, WRITE))
    stream = come_back(x, stream)
    waits = x.waits()
    x.use(x.U, (block, READ))
    assert x.ordered(later, x.U)
    assert (x.waits() - waits, driver.calls("cuCtxSynchronize")) == (0, 1)


@pytest.mark.simulator
def test_an_index_is_not_used_again_before_the_host_has_seen_the_work_complete(four, driver):
    x = four(policy="lazy")
    block = x.alloc(x.S)
    check(cuda.cuCtxSynchronize())
    stream = ForeignStream()
    named = x.runtime.register_stream(stream.handle)
    driver.fail("cuEventRecord", 2, UNKNOWN)
    write = x.use(named, (block, WRITE))
    del named
    stream = come_back(x, stream)                       # no fence covers the write
    others = [foreign(x) for _ in range(5)]
    for _, other in others:
        x.use(other, (x.alloc(x.S), READ))
    x.use(x.T, (block, READ))
    assert x.ordered(write, x.T)
    count = x.runtime.stream_count()                    # the host has waited for the context
    owner = ForeignStream()
    x.runtime.register_stream(owner)
    assert x.runtime.stream_count() == count


@pytest.mark.simulator
def test_streams_that_were_destroyed_do_not_become_many(four, driver):
    """Beyond a number of them the host waits once for all; their pending bytes are released by a reap."""
    x = four()
    hold = Hold(x.runtime)
    stream = ForeignStream()
    for _ in range(100):
        hold.free(hold.allocate(64, stream.handle), stream.handle)
        stream = come_back(x, stream)
    assert driver.calls("cuCtxSynchronize") == 100 // 64
    assert x.runtime.stream_count() < 80
    x.runtime.reap_pending()
    assert x.runtime.pending_bytes == 0
    hold.close()


@pytest.mark.simulator
def test_pool_memory_of_a_stream_that_is_gone_is_taken_last(four, driver):
    """The pool rather expands; where it cannot, only a reap waits for the context."""
    pool = PoolMemoryResource(maximum_pool_size=1024, chunk_size=512)
    x = four(resource=pool)
    stream = ForeignStream()
    block = x.runtime.allocate(512, stream.handle)
    fill = x.work(at(stream.handle), (block, WRITE))
    block.free()
    stream = come_back(x, stream)
    first = x.alloc(x.T)
    assert driver.calls("cuCtxSynchronize") == 0
    with pytest.raises(OutOfDeviceMemoryError, match=r"reap_pending\(\) may wait for more"):
        x.alloc(x.T)
    assert driver.calls("cuCtxSynchronize") == 0
    x.runtime.reap_pending()
    second = x.alloc(x.T)
    assert driver.calls("cuCtxSynchronize") == 1
    assert x.ordered(fill, x.T)
    assert pool.pool_size() == 1024
    first.free()
    second.free()


@pytest.mark.simulator
def test_a_capture_is_not_spoiled_by_waiting_for_everything(four, _context):
    """cuCtxSynchronize fails during a capture and spoils it, on a GPU in relaxed mode too: it is refused."""
    x = four()
    stream = ForeignStream()
    block = x.runtime.allocate(512, stream.handle)
    check(cuda.cuStreamBeginCapture(x.S.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    for _ in range(70):
        stream = come_back(x, stream)
    with pytest.raises(StreamMisuseError, match="capturing"):
        x.prepare(x.T, (block, READ))
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.S.handle))))
    x.use(x.T, (block, READ))
    block.free()


@pytest.mark.simulator
def test_a_wait_for_those_that_are_gone_may_fail(four, driver):
    """Nothing had to be ordered: the next stream that comes tries again."""
    x = four()
    stream = ForeignStream()
    x.runtime.register_stream(stream.handle)
    driver.fail("cuCtxSynchronize", 1, 999)
    for _ in range(65):
        stream = come_back(x, stream)
    assert driver.calls("cuCtxSynchronize") == 2


# ---------------------------------------------------------------------------------------------- streams come and go
@pytest.mark.simulator
@pytest.mark.parametrize("how", ["dropped", "unregistered"])
def test_streams_that_come_and_go_leave_nothing_behind_without_a_reap(four, driver, how):
    x = four()
    shared = x.alloc(x.S)
    before = driver.live_events()
    for _ in range(400):
        owner = ForeignStream()
        block = x.runtime.allocate(512, owner)
        x.use(x.runtime.register_stream(owner), (shared, READ), (block, WRITE))
        x.use(x.S, (block, READ))
        if how == "unregistered":
            x.runtime.unregister_stream(owner)
        del block, owner
        check(cuda.cuCtxSynchronize())
    assert x.runtime.stream_count() < (80 if how == "dropped" else 20)
    assert driver.live_events() - before < (160 if how == "dropped" else 40)


@pytest.mark.simulator
def test_a_registration_looks_at_a_bounded_number_of_dead_streams(four, driver):
    """Of those that are not done yet, too; and each gets its turn."""
    x = four()
    driver.set_policy("min")
    for _ in range(60):
        _owner, stream = foreign(x)
        x.use(stream, (x.alloc(x.S), READ))
        x.runtime.unregister_stream(stream)
    del stream
    count = x.runtime.stream_count()
    before = driver.calls("cuEventQuery")
    kept = [foreign(x)]
    assert driver.calls("cuEventQuery") - before <= 4
    check(cuda.cuCtxSynchronize())
    kept += [foreign(x) for _ in range(20)]
    assert x.runtime.stream_count() == count


@pytest.mark.simulator
def test_no_lock_is_held_while_dead_streams_are_queried(four, driver):
    x = four()
    _owner, stream = foreign(x)
    x.runtime.unregister_stream(stream)
    held_up = driver.hold("cuEventQuery")
    new = ForeignStream()
    thread = threading.Thread(target=lambda: (check(cuda.cuCtxSetCurrent(context)), x.runtime.register_stream(new)))
    context = check(cuda.cuCtxGetCurrent())
    thread.start()
    assert held_up.reached()
    x.use(x.S, (x.alloc(x.T), WRITE))
    others = [foreign(x) for _ in range(3)]
    assert held_up.release()
    thread.join()
    assert len(others) == 3


@pytest.mark.simulator
@pytest.mark.parametrize("role", ["home", "user", "named", "launch"])
@pytest.mark.parametrize("resource", [AsyncMemoryResource, DirectMemoryResource])
def test_a_call_that_needs_a_destroyed_stream_says_how_to_go_on(four, driver, role, resource):
    """Its owner lives, so it counts as alive.  What the message says helps."""
    x = four(resource=resource(), policy="lazy")
    owner, stream = foreign(x)
    block = x.alloc(stream if role == "home" else x.S)
    if role == "user":
        x.use(stream, (block, READ))
    handle = owner.handle
    check(cuda.cuStreamDestroy(handle))
    owner.stream = None
    calls = {"home": block.free, "user": lambda: block.free(x.T), "named": lambda: block.free(stream),
             "launch": lambda: x.prepare(stream, (block, READ))}
    said = f"stream {handle:#x} was destroyed: .*INVALID_HANDLE.*unregister_stream"
    with pytest.raises(DriverError, match=said) as raised:
        calls[role]()
    assert (raised.value.call, raised.value.name) == ("cuStreamIsCapturing", "CUDA_ERROR_INVALID_HANDLE")
    assert block.state is BlockState.LIVE
    x.runtime.unregister_stream(handle)
    block.free()
    x.runtime.reap_pending()
    assert driver.races() == ["DEAD STREAM: cuStreamIsCapturing was called with the handle of a destroyed stream"]
    driver.reset()


# ---------------------------------------------------------------------------------------------- bare handles
@pytest.mark.simulator
@pytest.mark.parametrize("policy", ["lazy", "precise", "adaptive"])
@pytest.mark.parametrize("discipline", [None, "sealed"])
@pytest.mark.parametrize("access", [READ, WRITE, "record"])
def test_the_handle_of_a_stream_that_was_only_used_is_not_touched_again(four, driver, policy, discipline, access):
    """Nothing keeps it: what comes later waits for the fence of the commit."""
    x = four(policy=policy)
    block = x.alloc(x.S)
    for _ in range(2):
        handle = int(check(cuda.cuStreamCreate(1)))
        stream = x.runtime.register_stream(handle, discipline=discipline)
        if access == "record":
            used = x.work(stream)
            x.runtime.record_block_use(block, stream)
        else:
            used = x.use(stream, (block, access))
        check(cuda.cuStreamDestroy(handle))
    x.use(x.T, (block, WRITE))
    assert x.ordered(used, x.T)
    block.free()
    assert driver.calls("cuCtxSynchronize") == 0
    assert not driver.races()


@pytest.mark.simulator
@pytest.mark.parametrize("policy", ["lazy", "precise", "adaptive"])
@pytest.mark.parametrize("resource", [AsyncMemoryResource, DirectMemoryResource])
@pytest.mark.parametrize("how", ["free", "drop", "inside", "used at home"])
def test_a_block_is_freed_though_the_stream_that_it_came_from_is_gone(four, driver, policy, resource, how):
    """It was used elsewhere, so fences cover all that matters of that stream; the default stream frees it."""
    x = four(policy=policy, resource=resource())
    handle = int(check(cuda.cuStreamCreate(1)))
    block = x.runtime.allocate(512, handle)
    fill = x.work(at(handle), (block, WRITE))
    uses = [x.use(x.S, (block, WRITE))]
    if how == "used at home":
        uses.append(x.use(x.runtime.register_stream(handle), (block, READ)))
    window = x.prepare(x.T, (block, READ)) if how == "inside" else None
    check(cuda.cuStreamDestroy(handle))
    if how == "drop":
        del block
    else:
        block.free()
    if window is not None:
        uses.append(x.work(x.T, (block, READ)))
        window.commit()
    x.runtime.reap_pending(blocking=False)              # it drains what was dropped
    assert x.runtime.live_bytes == 0
    assert all(x.ordered(use, x.runtime.default_stream) for use in [fill, *uses])
    x.runtime.reap_pending()
    assert x.runtime.bytes_outstanding == 0
    assert driver.calls("cuCtxSynchronize") == 0
    assert not driver.races()


@pytest.mark.simulator
@pytest.mark.parametrize("kind", ["fresh", "opaque", "named"])
def test_a_home_that_is_needed_frees_its_blocks(four, driver, kind):
    """Unrecorded work may stand there; or the free names the stream, which lives then."""
    x = four()
    owner = ForeignStream()
    if kind == "opaque":
        x.runtime.register_stream(owner.handle, discipline="opaque")
    block = x.runtime.allocate(512, owner.handle)
    if kind != "fresh":
        x.use(x.S, (block, WRITE))
    fill = x.work(at(owner.handle), *([] if kind == "named" else [(block, WRITE)]))
    freed = driver.calls("cuMemFreeAsync")
    block.free(owner.handle if kind == "named" else None)
    assert driver.calls("cuMemFreeAsync") == freed + 1
    assert x.ordered(fill, at(owner.handle))
    assert not x.ordered(fill, x.runtime.default_stream)


@pytest.mark.simulator
def test_a_free_that_fails_leaves_the_block_at_home(four, driver):
    x = four()
    owner = ForeignStream()
    block = x.runtime.allocate(512, owner.handle)
    x.use(x.S, (block, WRITE))
    driver.fail("cuMemFreeAsync", 1, UNKNOWN)
    with pytest.raises(DriverError):
        block.free()
    assert block.state is BlockState.LIVE
    x.use(x.S, (block, WRITE))
    block.free()
