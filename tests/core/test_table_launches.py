"""Uses of callers of the C table: what `use` does for Python, without the GIL."""
from __future__ import annotations

import ctypes

import pytest
from c_table import (
    CAPTURING,
    CONFLICT,
    HAND_BACK_WRITES,
    INVALID,
    LOST,
    NOT_FOUND,
    READ,
    READ_WRITE,
    REFUSE_CONFLICTS,
    STALE,
    WRITE,
    Access,
    Counters,
    Hold,
    Refused,
    functions,
)
from cuda.bindings import driver as cuda
from four_streams import Capture, at, nothing_happens
from two_devices import Devices

from xlogmem import AsyncMemoryResource, PoolMemoryResource, StreamMisuseError, get_runtime, use
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
RESOURCES = pytest.mark.parametrize("resource", [AsyncMemoryResource, PoolMemoryResource])
DECLARED = pytest.mark.parametrize("declared", [True, False])


@pytest.fixture
def held(four, request):
    """A runtime with four streams, and a hold on it."""
    def make(resource=AsyncMemoryResource, **options):
        b = four(resource=resource(), **options)
        hold = Hold(b.runtime)
        request.addfinalizer(hold.close)
        return b, hold
    return make


def refused(kind: int, text: str):
    """A refusal of this kind; its text matches."""
    return pytest.raises(Refused, match=text, check=lambda error: error.kind == kind)


# ------------------------------------------------------------------------------------------------ order
@RESOURCES
@DECLARED
@pytest.mark.parametrize(("first", "then"), [("write", "read"), ("read", "write"), ("write", "write"),
                                             ("read_write", "read")])
def test_uses_are_ordered(held, resource, declared, first, then):
    b, hold = held(resource)
    block = b.alloc(b.S)
    with hold.use(b.T.handle, **{first: [block.ptr]}):
        operation = b.work(b.T)
    if declared:
        with hold.use(b.U.handle, **{then: [block.ptr + 511]}):
            pass
    assert b.ordered(operation, b.U) == declared


@DECLARED
def test_readers_are_not_ordered(held, declared):
    b, hold = held()
    block = b.alloc(b.S)
    with hold.use(b.S.handle, write=[block.ptr]):
        pass
    with hold.use(b.T.handle, read=[block.ptr]):
        operation = b.work(b.T)
    with hold.use(b.U.handle, **{"read" if declared else "write": [block.ptr]}):
        pass
    assert b.ordered(operation, b.U) != declared


@DECLARED
@pytest.mark.parametrize("python_first", [True, False])
def test_uses_of_both_languages_are_ordered(held, declared, python_first):
    b, hold = held()
    block = b.alloc(b.S)
    if python_first:
        operation = b.use(b.T, (block, "write"))
        if declared:
            hold.finish(hold.prepare(b.U.handle, read=[block.ptr]))
    else:
        with hold.use(b.T.handle, write=[block.ptr]):
            operation = b.work(b.T)
        if declared:
            b.use(b.U, (block, "read"))
    assert b.ordered(operation, b.U) == declared


@DECLARED
def test_a_free_comes_after_them(held, declared):
    b, hold = held(policy="precise")                    # an event right behind each use, which covers nothing later
    block = b.alloc(b.S)
    b.use(b.T, (block, "read"))
    if declared:
        with hold.use(b.T.handle, read=[block.ptr]):
            operation = b.work(b.T)
    else:
        operation = b.work(b.T)
    block.free(b.S)
    assert b.ordered(operation, b.S) == declared


@RESOURCES
@pytest.mark.parametrize("end", ["finish", "cancel"])
def test_a_free_inside_is_carried_out_at_its_end(held, resource, end):
    b, hold = held(resource)
    block = b.alloc(b.S)
    opened = hold.prepare(b.T.handle, write=[block.ptr])
    block.free()
    assert (b.runtime.live_bytes, b.runtime.counters()["deferred_frees"]) == (512, 1)
    getattr(hold, end)(opened)
    assert b.runtime.live_bytes == 0


@DECLARED
def test_a_cancelled_use_files_nothing(held, declared):
    b, hold = held(sealed="STUV")
    block = b.alloc(b.S)
    opened = hold.prepare(b.T.handle, write=[block.ptr])
    operation = b.work(b.T)
    (hold.finish if declared else hold.cancel)(opened)
    b.use(b.U, (block, "read"))
    assert b.ordered(operation, b.U) == declared
    assert b.runtime.counters()["cancelled"] == (not declared)


@DECLARED
@pytest.mark.parametrize(("kind", "access"), [(READ, "write"), (WRITE, "read"), (WRITE, "write")])
def test_a_stream_waits_without_a_use(held, declared, kind, access):
    b, hold = held()
    block = b.alloc(b.S)
    operation = b.use(b.T, (block, access))
    if declared:
        hold.wait(b.U.handle, block.ptr, kind)
    assert b.ordered(operation, b.U) == declared
    assert b.runtime.counters()["uses"] == 1
    block.free()
    assert b.runtime.counters()["deferred_frees"] == 0


def test_a_wait_for_the_writers_alone(held):
    b, hold = held()
    block = b.alloc(b.S)
    b.use(b.S, (block, "write"))
    operation = b.use(b.T, (block, "read"))
    hold.wait(b.U.handle, block.ptr, READ)
    assert not b.ordered(operation, b.U)


@pytest.mark.parametrize("flags", [0, HAND_BACK_WRITES])
def test_an_opaque_home_is_ordered_after_uses(held, flags):
    b, hold = held(opaque="S")
    block = b.alloc(b.S)
    with hold.use(b.T.handle, read=[block.ptr], flags=flags):
        operation = b.work(b.T)
    assert b.ordered(operation, b.S) == (flags == 0)


# ------------------------------------------------------------------------------------------------ memory
def test_empty_arrays_are_no_memory(held, driver):
    b, hold = held()
    block = b.alloc(b.S)
    with nothing_happens(driver, b.runtime):
        assert hold.prepare(b.T.handle) == 0
        assert hold.prepare(b.T.handle, read=[0], write=[0, 0]) == 0
        hold.finish(0)
        hold.cancel(0)
    with hold.use(b.T.handle, read=[0, block.ptr, 0]) as opened:
        assert opened


def test_one_block_may_be_named_often(held):
    b, hold = held()
    block = b.alloc(b.S)
    with hold.use(b.T.handle, read=[block.ptr, block.ptr + 8], write=[block.ptr + 16]):
        operation = b.work(b.T)
    b.use(b.U, (block, "read"))
    assert b.ordered(operation, b.U)                    # it was a write


@pytest.mark.parametrize("how", ["find", "identify", "view"])
def test_an_identity_outlives_no_block(held, how):
    b, hold = held(PoolMemoryResource)
    block, other = b.alloc(b.S), b.alloc(b.S)
    ptr = block.ptr
    identity = hold.find(ptr + 7)[0] if how == "find" else hold.identify(block if how == "identify" else ptr)
    assert (identity.address, identity.generation) == (ptr, block.generation)
    with hold.use(b.S.handle, write=[identity]):
        pass
    block.free()
    with refused(STALE, f"^access 2 of 2: block {identity.generation} was freed, and cannot be used any more$"):
        hold.prepare(b.S.handle, read=[other.ptr, identity])
    again = b.alloc(b.S)
    assert again.ptr == ptr
    for call in (lambda: hold.prepare(b.S.handle, read=[identity]), lambda: hold.ready(identity),
                 lambda: hold.synchronize(identity), lambda: hold.wait(b.S.handle, identity)):
        with refused(STALE, f"^block {identity.generation} was freed"):
            call()
    assert hold.ready(ptr)                              # the block that has the address now


def test_find_gives_the_block_around_an_address(held):
    b, hold = held()
    block = b.alloc(b.S)
    access, base, nbytes = hold.find(block.ptr + 511)
    assert (access.generation, base, nbytes) == (block.generation, block.ptr, 512)
    access = Access(access=WRITE)
    error = ctypes.create_string_buffer(512)
    assert functions.find(hold.runtime, block.ptr, ctypes.byref(access), None, None,
                          ctypes.cast(error, functions.find.argtypes[-1])) == 0
    assert access.access == WRITE                       # stays


def test_identify_takes_what_find_block_takes(held):
    b, hold = held()
    block = b.alloc(b.S)
    array = at(0)
    array.__cuda_array_interface__ = {"shape": (0,), "typestr": "<f4", "data": (0, False), "version": 3}
    assert hold.identify(block.id).generation == hold.identify(block.ptr + 5).generation == block.generation
    assert hold.identify(array).generation == 0
    for wrong, error, text in ((b"host", TypeError, "host memory"), ([block], LookupError, "list is not in one block"),
                               (77, LookupError, r"int is not in one block of .*adopt\(\) it")):
        with pytest.raises(error, match=text):
            hold.identify(wrong)
    block.free()
    with pytest.raises(Exception, match="was freed"):
        hold.identify(block)


# ------------------------------------------------------------------------------------------------ errors
def nothing_is_left(b, *blocks) -> None:
    """No window is open: the blocks are freed at once."""
    for block in blocks:
        block.free()
    assert b.runtime.counters()["deferred_frees"] == 0


def test_memory_that_is_not_tracked_is_refused(held, driver):
    b, hold = held()
    block = b.alloc(b.S)
    b.use(b.S, (block, "write"))
    elsewhere = int(check(cuda.cuMemAlloc(64)))
    for place, wrong in ((1, elsewhere), (2, block.ptr + 512), (2, 2**64 - 1)):
        named = [wrong, block.ptr] if place == 1 else [block.ptr, wrong]
        with nothing_happens(driver, b.runtime), refused(
                NOT_FOUND, rf"^access {place} of 2: no block of this runtime is alive around {wrong:#x}. Allocate the "
                           r"memory from xlogmem, or have the runtime adopt\(\) it$"):
            hold.prepare(b.T.handle, read=named)
    adopted = b.runtime.adopt(elsewhere, 64)            # as the message says
    hold.finish(hold.prepare(b.T.handle, read=[elsewhere, block.ptr]))
    adopted.free()
    nothing_is_left(b, block)
    check(cuda.cuMemFree(elsewhere))


@pytest.mark.parametrize(("accesses", "flags", "text"), [
    ([0], 0, "an access is not XLOGMEM_READ, _WRITE or _READ_WRITE: 0"),
    ([READ, 4], 0, "an access is not XLOGMEM_READ, _WRITE or _READ_WRITE: 0x4"),
    ([WRITE | 0x80000000], 0, "an access is not XLOGMEM_READ, _WRITE or _READ_WRITE: 0x80000002"),
    ([READ], 16, "flags has bits that this version does not know: 0x10"),
    ([READ], 0x80000001, "flags has bits that this version does not know: 0x80000001"),
])
def test_unknown_bits_are_refused(held, driver, accesses, flags, text):
    b, hold = held()
    block = b.alloc(b.S)
    named = (Access * len(accesses))(*[Access(block.ptr, 0, 0, kind) for kind in accesses])
    opened, error = ctypes.c_void_p(7), functions.prepare.argtypes[-1]._type_()
    with nothing_happens(driver, b.runtime):
        assert functions.prepare(hold.runtime, b.T.handle, named, len(accesses), flags, ctypes.byref(opened),
                                 ctypes.byref(error)) == 1
    assert (error.kind, opened.value) == (INVALID, None)
    assert error.text.decode() == f"prepare: {text}. Nothing was done"
    nothing_is_left(b, block)


@pytest.mark.parametrize("known", [True, False])
def test_a_stream_that_captures_is_refused(held, foreign, known):
    b, hold = held()
    block, stream = b.alloc(b.S), at(foreign())
    for one in (stream, b.T) if known else ():
        hold.finish(hold.prepare(one.handle, read=[block.ptr]))
    with Capture(stream), refused(CAPTURING, "is capturing a graph"):
        hold.prepare(stream.handle, read=[block.ptr])
    with Capture(b.T), refused(CAPTURING, "is capturing a graph"):
        hold.prepare(b.T.handle, read=[block.ptr])
    nothing_is_left(b, block)


def test_a_source_that_captures_is_refused(held):
    b, hold = held()
    block = b.alloc(b.S)
    with Capture(b.S), refused(CAPTURING, "which this work has to wait for, is capturing a graph"):
        hold.prepare(b.T.handle, read=[block.ptr])
    nothing_is_left(b, block)


def test_a_conflicting_use_of_this_thread_is_refused(held):
    b, hold = held()
    block = b.alloc(b.S)
    opened = hold.prepare(b.T.handle, write=[block.ptr])
    for flags, text in ((0, "cannot be left while this one"), (REFUSE_CONFLICTS, "in another use that is still open")):
        with refused(CONFLICT, text):
            hold.prepare(b.U.handle, read=[block.ptr], flags=flags)
    with pytest.raises(StreamMisuseError):
        use(b.U, read=block).preflight()
    hold.finish(opened)
    hold.finish(hold.prepare(b.U.handle, read=[block.ptr]))
    nothing_is_left(b, block)


def test_a_lost_device_refuses_everything(held, driver):
    b, hold = held()
    block = b.alloc(b.S)
    driver.fail("cuStreamWaitEvent", code=700)
    with refused(LOST, "CUDA_ERROR_ILLEGAL_ADDRESS"):
        hold.prepare(b.T.handle, read=[block.ptr])
    for call in (lambda: hold.prepare(b.T.handle, read=[block.ptr]), lambda: hold.wait(b.T.handle, block.ptr),
                 lambda: hold.ready(block.ptr), lambda: hold.synchronize(block.ptr),
                 lambda: hold.hold_stream(b.T.handle)):
        with refused(LOST, "^the device was lost to an earlier error$"):
            call()
    assert hold.find(block.ptr)[0].generation == block.generation
    check(cuda.cuMemFreeAsync(block.ptr, b.S.handle))   # the simulated device lives on


def test_a_stream_of_another_device_is_refused():
    devices = Devices()
    try:
        hold = Hold(devices.runtimes[0])
        home, elsewhere = (runtime.acquire_stream() for runtime in devices.runtimes)
        block = devices.runtimes[0].allocate(64, home)
        with refused(INVALID, "belongs to another context or device than this runtime"):
            hold.prepare(elsewhere.handle, read=[block.ptr])
        block.free()
        assert devices.runtimes[0].counters()["deferred_frees"] == 0
        hold.close()
    finally:
        devices.close()


def test_a_use_ends_once_and_with_its_own_hold(held):
    b, hold = held()
    other, block = Hold(b.runtime), b.alloc(b.S)
    opened = hold.prepare(b.T.handle, read=[block.ptr])
    kept = other.prepare(b.T.handle, read=[block.ptr])
    for wrong, of in ((opened, other), (kept, hold)):
        with refused(INVALID, "^finish: this use was ended before, or prepared with another hold: 0x"):
            of.finish(wrong)
        of.cancel(wrong)
    hold.finish(opened)
    with refused(INVALID, "^finish: this use was ended before"):
        hold.finish(opened)
    hold.cancel(opened)
    other.finish(kept)
    other.close()
    uses = [hold.prepare(b.T.handle, read=[block.ptr]) for _ in range(3)]
    assert len(set(uses)) == 3
    for one in uses:
        hold.finish(one)
    nothing_is_left(b, block)


def test_a_driver_that_fails_leaves_nothing_open(held, driver):
    b, hold = held()
    block = b.alloc(b.S)
    driver.fail("cuStreamWaitEvent", code=999)
    with refused(1, "cuStreamWaitEvent"):
        hold.prepare(b.T.handle, read=[block.ptr])
    hold.finish(hold.prepare(b.T.handle, read=[block.ptr]))
    nothing_is_left(b, block)


def test_a_hand_back_that_fails_is_reported_by_finish(held, driver):
    b, hold = held(opaque="S")
    block = b.alloc(b.S)
    opened = hold.prepare(b.T.handle, read=[block.ptr])
    driver.fail("cuStreamWaitEvent", code=999)
    driver.fail("cuEventSynchronize", code=999)
    with refused(1, "cuEventSynchronize"):
        hold.finish(opened)
    nothing_is_left(b, block)


# ------------------------------------------------------------------------------------------------ what is complete
def test_ready_and_synchronize(held, driver):
    b, hold = held(sealed="STUV")
    block = b.alloc(b.S)
    with hold.use(b.T.handle, write=[block.ptr]):
        b.work(b.T)
    hold.synchronize(block.ptr)
    assert hold.ready(block.ptr)
    for empty in (0, Access()):
        assert hold.ready(empty)
        hold.synchronize(empty)
    for call in (hold.ready, hold.synchronize):
        with refused(NOT_FOUND, "^access 1 of 1: no block of this runtime is alive around 0x4d"):
            call(77)


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("kind", [0, READ, WRITE, READ_WRITE, 2**32 - 1])
def test_before_a_read_the_host_waits_for_writers_alone(held, driver, kind, dropped):
    """Of a kind that is none, as `find` may leave it, for all.  Twin: the driver drops the waits."""
    b, hold = held(sealed="STUV")
    block = b.alloc(b.S)
    driver.set_policy("min")
    written, read = b.use(b.T, (block, "write")), b.use(b.U, (block, "read"))
    if dropped:
        for number in range(1, 5):
            driver.drop("cuEventSynchronize", number)
    assert not hold.ready(block.ptr, kind)
    hold.synchronize(block.ptr, kind)
    assert b.ordered(written, b.V) is not dropped
    assert b.ordered(read, b.V) is (not dropped and kind != READ)
    assert hold.ready(block.ptr, kind)
    assert hold.ready(block.ptr) is (kind != READ)


def test_counters(held):
    b, hold = held()
    block = b.alloc(b.S)
    b.use(b.T, (block, "read"))
    with hold.use(b.U.handle, read=[block.ptr]):
        pass
    counters, python = hold.counters(), b.runtime.counters()
    assert (counters.live_bytes, counters.live_blocks, counters.uses) == (512, 1, 2)
    for name in ("allocations", "frees", "uses", "waits", "records", "host_waits"):
        assert getattr(counters, name) == python[name], name
    short = Counters(live_blocks=7)
    functions.counters(hold.runtime, ctypes.byref(short), 8)        # of a caller with an older header
    assert (short.live_bytes, short.live_blocks) == (512, 7)
    block.free()
    assert hold.counters().pending_bytes == b.runtime.pending_bytes == 512


def test_the_runtime_of_a_device():
    hold = Hold.__new__(Hold)
    hold.runtime = functions.runtime_for(0)
    block = get_runtime(0).allocate(64)
    assert hold.find(block.ptr)[0].generation == block.generation
    block.free()
    hold.close()
    for wrong in (-1, 99):
        with pytest.raises(ValueError, match="device"):
            functions.runtime_for(wrong)
