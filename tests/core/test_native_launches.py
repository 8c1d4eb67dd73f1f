"""Launches of xlogmem.hpp: what `use` does for Python, from C++."""
from __future__ import annotations

import ctypes
import threading

import pytest
from cuda.bindings import driver as cuda
from four_streams import at, nothing_happens
from native_calls import FORMS, NativeRuntime, Thrown
from other_threads import beside_waiting

from xlogmem import AsyncMemoryResource, PoolMemoryResource, get_runtime
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
DECLARED = pytest.mark.parametrize("declared", [True, False])
HAND_BACK_WRITES, ANY_THREAD, KEEPS_STREAM = 2, 4, 8


# ------------------------------------------------------------------------------------------------ order
@DECLARED
@pytest.mark.parametrize("resource", [AsyncMemoryResource, PoolMemoryResource])
@pytest.mark.parametrize(("first", "then"), [("write", "read"), ("read", "write"), ("read_write", "read_write")])
def test_launches_are_ordered(native, declared, resource, first, then):
    b, runtime = native(resource=resource())
    block = b.alloc(b.S)
    with runtime.launch(b.T.handle, **{first: [block.ptr]}):
        operation = b.work(b.T)
    if declared:
        with runtime.launch(b.U.handle, **{then: [block.ptr + 511]}):       # anywhere into the block
            pass
    assert b.ordered(operation, b.U) == declared


@DECLARED
@pytest.mark.parametrize("python_first", [True, False])
def test_launches_and_uses_of_python_are_ordered(native, declared, python_first):
    b, runtime = native()
    block = b.alloc(b.S)
    if python_first:
        operation = b.use(b.T, (block, "write"))
        if declared:
            runtime.open(b.U.handle, read=[block.ptr]).delete()
    else:
        with runtime.launch(b.T.handle, write=[block.ptr]):
            operation = b.work(b.T)
        if declared:
            b.use(b.U, (block, "read"))
    assert b.ordered(operation, b.U) == declared


@DECLARED
@pytest.mark.parametrize("form", FORMS)
def test_each_way_to_name_memory_orders(native, form, declared):
    """The work is after the one that wrote what is read, and before the next use of what is written."""
    b, runtime = native()
    read, written = b.alloc(b.S), b.alloc(b.S)
    b.use(b.S, (written, "write"))
    before = b.use(b.U, (read, "write"))
    operation = []
    if declared:
        runtime.launch_around(form, b.T.handle, read.ptr, written.ptr, lambda: operation.append(b.work(b.T)))
    else:
        operation.append(b.work(b.T))
    after_it = b.ordered(before, b.T)
    b.use(b.V, (written, "read"))
    assert (after_it, b.ordered(operation[0], b.V)) == (declared, declared)


def test_null_is_no_memory(native):
    b, runtime = native()
    with nothing_happens(b.driver, b.runtime):
        with runtime.launch(b.S.handle, read=[0], write=[0, 0]):
            pass
        runtime.wait(b.S.handle, 0)
        launch = runtime.open(b.S.handle)
        launch.commit()
        launch.delete()


@pytest.mark.parametrize("form", FORMS)
def test_what_is_read_is_not_written(native, form):
    b, runtime = native()
    read, written = b.alloc(b.S), b.alloc(b.S)
    runtime.launch_around(form, b.S.handle, read.ptr, written.ptr, lambda: None)
    reads, writes = ({kind for kind, *_ in block.frontier} for block in (read, written))
    assert "written" in writes
    assert ("written" in reads) == (form == "described")    # both are `reads_writes` there


@pytest.mark.parametrize("end", ["commit", "delete"])
@DECLARED
def test_both_ends_file(native, declared, end):
    b, runtime = native()
    block = b.alloc(b.S)
    launch = runtime.open(b.T.handle, write=[block.ptr])
    operation = b.work(b.T)
    if not declared:
        launch.cancel()
    elif end == "commit":
        launch.commit()
    launch.delete()
    assert runtime_counts(b) == ((1, 0) if declared else (0, 1))
    b.use(b.U, (block, "read"))
    assert declared <= b.ordered(operation, b.U)


def runtime_counts(b):
    counters = b.runtime.counters()
    return counters["uses"], counters["cancelled"]


@DECLARED
def test_a_cancelled_launch_orders_nothing(native, declared):
    b, runtime = native(sealed="STUV")
    block = b.alloc(b.S)
    launch = runtime.open(b.T.handle, write=[block.ptr])
    operation = b.work(b.T)
    if not declared:
        launch.cancel()
    launch.delete()
    b.use(b.U, (block, "read"))
    assert b.ordered(operation, b.U) == declared


@DECLARED
def test_the_destructor_files_during_an_exception(native, declared):
    b, runtime = native(sealed="STUV")
    block, other = b.alloc(b.S), b.alloc(b.S)
    operation = []

    def work():
        operation.append(b.work(b.T))
        raise ArithmeticError

    if declared:
        with pytest.raises(Thrown, match="the work failed"):
            runtime.launch_around("pointers", b.T.handle, other.ptr, block.ptr, work)
    else:
        with pytest.raises(ArithmeticError):
            work()
    b.use(b.U, (block, "read"))
    assert b.ordered(operation[0], b.U) == declared
    block.free()
    other.free()
    assert b.runtime.live_bytes == 0                    # no window is open


def test_a_free_inside_is_carried_out_at_the_end(native):
    b, runtime = native()
    block = b.alloc(b.S)
    with runtime.launch(b.T.handle, write=[block.ptr]):
        block.free()
        assert b.runtime.live_bytes == 512
    assert b.runtime.live_bytes == 0


@DECLARED
def test_a_stream_waits_without_a_launch(native, declared):
    b, runtime = native()
    block = b.alloc(b.S)
    read = b.use(b.T, (block, "read"))
    runtime.wait(b.U.handle, block.ptr, written=declared)
    assert b.ordered(read, b.U) == declared
    b.use(b.T, (block, "write"))
    write = b.work(b.T)
    b.use(b.T, (block, "write"))
    runtime.wait(b.V.handle, block.ptr)
    assert b.ordered(write, b.V)


@DECLARED
def test_record_use_holds_a_free_back(native, foreign, declared):
    b, runtime = native()
    home, side = foreign(), foreign()
    memory = runtime.allocate(512, home)
    operation = b.work(at(side))
    if declared:
        runtime.record_use(memory + 511, side)
    runtime.free(memory, home)
    assert b.ordered(operation, at(home)) == declared


# ------------------------------------------------------------------------------------------------ lives
def test_a_launch_is_moved(native):
    b, runtime = native()
    block = b.alloc(b.S)
    first = runtime.open(b.T.handle, write=[block.ptr])
    second = first.move()
    first.delete()                                      # nothing is in it
    block.free()
    assert (b.runtime.live_bytes, runtime_counts(b)) == (512, (0, 0))
    second.delete()
    assert (b.runtime.live_bytes, runtime_counts(b)) == (0, (1, 0))


def test_a_launch_that_another_is_assigned_to_is_filed(native):
    b, runtime = native()
    blocks = [b.alloc(b.S) for _ in range(2)]
    first, second = (runtime.open(b.T.handle, write=[block.ptr]) for block in blocks)
    first.assign(second)
    assert runtime_counts(b) == (1, 0)
    second.delete()
    assert runtime_counts(b) == (1, 0)
    first.delete()
    assert runtime_counts(b) == (2, 0)


@pytest.mark.parametrize("end", ["commit", "cancel"])
def test_a_launch_that_has_ended_leaves_the_next_one_alone(native, end):
    """The next one may have its window."""
    b, runtime = native()
    block, other = b.alloc(b.S), b.alloc(b.S)
    first = runtime.open(b.T.handle, write=[block.ptr])
    getattr(first, end)()
    counts = runtime_counts(b)
    second = runtime.open(b.T.handle, write=[other.ptr])
    first.delete()
    assert runtime_counts(b) == counts
    second.delete()
    assert runtime_counts(b)[0] == counts[0] + 1


def test_a_runtime_is_moved_and_a_closed_one_is_refused(native):
    b, runtime = native()
    block = b.alloc(b.S)
    moved = runtime.move()
    moved.open(b.T.handle, read=[block.ptr]).delete()
    moved.close()
    for closed in (runtime, moved):
        for call in (lambda one: one.open(b.T.handle, read=[block.ptr]), lambda one: one.find(block.ptr),
                     lambda one: one.allocate(8, b.S.handle), lambda one: one.free(block.ptr, b.S.handle),
                     lambda one: one.allocate_many([8], b.S.handle), lambda one: one.free_many([8], b.S.handle),
                     lambda one: one.wait(b.T.handle, block.ptr), lambda one: one.record_use(block.ptr, b.T.handle),
                     lambda one: one.held(b.T.handle).__enter__()):
            with nothing_happens(b.driver, b.runtime), pytest.raises(
                    Thrown, match="closed or moved from", check=lambda error: error.name == "invalid_argument"):
                call(closed)
    moved.close()                                       # once more does no harm
    moved.delete()


def test_the_runtime_of_a_device_is_the_process_s_own(library):
    address = library.make("runtime_of_device", 0)
    made = get_runtime(0)
    before = made.live_bytes
    stream = made.acquire_stream()
    runtime = NativeRuntime(library, address)
    memory = runtime.allocate(100, stream.handle)
    assert made.live_bytes == before + 100
    assert made.find_block(memory).ptr == memory
    runtime.free(memory, stream.handle)
    runtime.delete()


def test_another_thread_ends_a_launch(native):
    b, runtime = native()
    block = b.alloc(b.S)
    launch = runtime.open(b.T.handle, write=[block.ptr], flags=ANY_THREAD)
    thread = threading.Thread(target=launch.commit)
    thread.start()
    thread.join()
    launch.delete()
    assert runtime_counts(b) == (1, 0)


# ------------------------------------------------------------------------------------------------ streams, blocks
@pytest.mark.parametrize("how", ["held", "flag", "bare"])
def test_a_held_stream_is_not_identified_again(native, foreign, driver, how):
    b, runtime = native()
    stream, block = foreign(), b.alloc(b.S)
    b.runtime.register_stream(b.S)
    b.use(b.S, (block, "write"))

    def launches():
        for _ in range(3):
            with runtime.launch(stream, read=[block.ptr], flags=KEEPS_STREAM if how == "flag" else 0):
                pass

    def counted():
        before = driver.calls("cuStreamGetId")
        launches()
        return driver.calls("cuStreamGetId") - before

    if how == "held":
        with runtime.held(stream):
            assert counted() == 0
        assert counted() == 3
    else:
        launches()
        assert counted() == (0 if how == "flag" else 3)


def test_a_block_is_ready_when_its_uses_are_complete(native, driver):
    b, runtime = native()
    block = b.alloc(b.S)
    named = runtime.find(block.ptr + 100)
    assert named.data == block.ptr
    driver.set_policy("min")
    with runtime.launch(b.T.handle, write=[block.ptr]):
        b.work(b.T, (block, "write"))
    assert not named.ready()
    named.synchronize()
    assert named.ready()
    named.delete()


@pytest.mark.parametrize("kind", [0, 1, 2, 3])          # 0: left out
@pytest.mark.parametrize("call", ["ready", "synchronize"])
def test_before_a_read_a_block_is_ready_when_its_writers_are_complete(native, driver, call, kind):
    b, runtime = native(sealed="STUV")
    block = b.alloc(b.S)
    named = runtime.find(block.ptr)
    driver.set_policy("min")
    written = b.use(b.T, (block, "write"))
    assert not named.ready(kind)
    if call == "ready":
        named.synchronize(1)
    read = b.use(b.U, (block, "read"))
    getattr(named, call)(kind)
    assert named.ready(kind) is (kind == 1 or call == "synchronize")
    assert b.ordered(written, b.V)
    assert b.ordered(read, b.V) is (kind != 1 and call == "synchronize")
    named.delete()


def test_a_block_is_identified_from_what_python_has(native):
    b, runtime = native()
    block = b.alloc(b.S)
    named = runtime.identify(block)
    assert named.data == block.ptr
    named.use(b.T.handle)
    named.delete()


# ------------------------------------------------------------------------------------------------ the host
def test_the_host_waits_and_launches_wait_for_it(native):
    b, runtime = native()
    b.driver.set_policy("min")
    address, device = int(check(cuda.cuMemHostAlloc(512, 0))), b.alloc(b.S)
    ctypes.memset(address, 1, 512)
    block = b.runtime.adopt(address, 512)
    waits = []

    def upload() -> None:
        with runtime.launch(b.S.handle, read=[address], write=[device.ptr]):
            check(cuda.cuMemcpyHtoDAsync(device.ptr, address, 512, b.S.handle))

    def refill() -> None:
        waits.append(beside_waiting(b.runtime, upload))
        ctypes.memset(address, 2, 512)

    upload()
    runtime.access_on_host(address, refill)
    waits[0].result()
    check(cuda.cuCtxSynchronize())
    assert b.driver.peek(device.ptr, 1) == b"\2"
    assert b.runtime.counters()["host_waits"] >= 1
    with pytest.raises(Thrown, match="device memory, which the host cannot read or write"):
        runtime.access_on_host(device.ptr, lambda: None)
    with pytest.raises(Thrown, match="XLOGMEM_HOST: the runtime's resource has memory of the device alone"):
        runtime.allocate(16, 2**64 - 2)
    block.free()
    check(cuda.cuMemFreeHost(address))
