"""Streams that the C table is given as bare handles."""
from __future__ import annotations

import threading

import pytest
from c_table import Hold, Refused
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream
from four_streams import at

from xlogmem import DeviceState, PoolMemoryResource, StreamMisuseError, use
from xlogmem.sim.kernels import check


@pytest.mark.simulator
def test_streams_first_seen_here_are_opaque(four_and_hold, foreign):
    b, hold = four_and_hold
    handle = foreign()
    ptr = hold.allocate(512, handle)
    stream = b.runtime.register_stream(handle)
    assert stream.discipline == "opaque"
    assert b.runtime.find_block(ptr).alloc_stream == stream
    b.kernels.fill(handle, ptr, 1, 1)                   # unrecorded
    with use(b.S, read=ptr):
        read = b.work(b.S)
        b.kernels.count_unequal(b.S.handle, b.next_word(), ptr, 0, 1)
    assert b.ordered(read, stream)                      # the hand-back
    hold.free(ptr, handle)


@pytest.mark.simulator
@pytest.mark.parametrize("first", ["python", "table"])
def test_one_registration_whichever_side_saw_the_stream_first(four_and_hold, foreign, first):
    b, hold = four_and_hold
    handle = foreign()
    if first == "python":
        stream = b.runtime.register_stream(handle)
        assert stream.discipline == "ordinary"
    before = b.runtime.stream_count()
    ptr = hold.allocate(8, handle)
    if first == "table":
        before += 1
        stream = b.runtime.register_stream(handle)
    assert b.runtime.find_block(ptr).alloc_stream == stream
    assert b.runtime.register_stream(handle) == stream
    assert b.runtime.stream_count() == before
    hold.free(ptr, handle)


@pytest.mark.simulator
@pytest.mark.parametrize("inside", [False, True], ids=["before", "in a window"])
@pytest.mark.parametrize("call", ["allocate", "free"])
@pytest.mark.parametrize("held", [False, True], ids=["handle", "owner"])
def test_the_table_makes_a_stream_opaque_that_python_saw_first(four_and_hold, held, call, inside):
    """Its owner's unrecorded work is waited for, and waits for uses elsewhere."""
    b, hold = four_and_hold
    owner = ForeignStream()
    handle = owner.handle
    stream = b.runtime.register_stream(owner if held else handle)
    block, other = b.alloc(stream), b.alloc(b.T)
    window = b.prepare(stream, (other, "read"))
    if not inside:
        window.commit()
    ptr = hold.allocate(8, handle if call == "allocate" else 0)
    hold.free(ptr, 0 if call == "allocate" else handle)
    if inside:
        window.commit()
    assert stream.discipline == "opaque"
    first = b.use(b.T, (block, "write"))
    assert b.ordered(first, stream)                     # the hand-back
    late = b.work(stream, (block, "write"))             # unrecorded
    b.use(b.T, (block, "write"))
    assert b.ordered(late, b.T)


@pytest.mark.simulator
@pytest.mark.parametrize("discipline", ["ordinary", "sealed", "opaque"])
@pytest.mark.parametrize("first", ["named", "default", "table"])
def test_a_discipline_that_the_program_named_stays(four_and_hold, foreign, first, discipline):
    b, hold = four_and_hold
    handle = foreign()
    if first == "default":
        b.runtime.register_stream(handle)
    elif first == "table":
        hold.free(hold.allocate(8, handle), handle)
    stream = b.runtime.register_stream(handle, discipline=discipline)
    hold.free(hold.allocate(8, handle), handle)
    hold.free(hold.allocate(8, handle), handle)
    assert stream.discipline == b.runtime.register_stream(handle).discipline == discipline


@pytest.mark.simulator
def test_a_stream_that_the_table_saw_can_be_unregistered_and_registered_anew(four_and_hold, foreign):
    b, hold = four_and_hold
    handle = foreign()
    ptr = hold.allocate(8, handle)
    b.runtime.unregister_stream(handle, successor=b.T)
    hold.free(hold.allocate(8, handle), handle)         # first use again
    anew = b.runtime.register_stream(handle, discipline="ordinary")
    assert anew.discipline == "ordinary"
    hold.free(hold.allocate(8, handle), handle)
    assert b.runtime.register_stream(handle) == anew
    hold.free(ptr)


@pytest.mark.simulator
def test_our_own_streams_are_known_by_their_handle(four_and_hold):
    b, hold = four_and_hold
    before = b.runtime.stream_count()
    ptr = hold.allocate(8, b.S.handle)
    assert b.runtime.find_block(ptr).alloc_stream == b.S
    assert b.runtime.stream_count() == before
    hold.free(ptr, b.S.handle)


def come_back(stream: cuda.CUstream) -> list[cuda.CUstream]:
    """Destroy a stream, and make others until its handle means another one."""
    made: list[cuda.CUstream] = []
    check(cuda.cuStreamDestroy(stream))
    while not made or int(made[-1]) != int(stream):
        made.append(check(cuda.cuStreamCreate(1)))
        assert len(made) < 100, "the simulated driver uses handles again, as the real one does"
    return made


@pytest.mark.simulator
def test_a_handle_that_the_driver_reused_is_another_stream_for_the_table(four_and_hold):
    b, hold = four_and_hold
    former = check(cuda.cuStreamCreate(1))
    ptr = hold.allocate(512, int(former))
    known = b.runtime.register_stream(int(former))
    b.kernels.fill(int(former), ptr, 1, 1)
    kept = come_back(former)
    other = hold.allocate(8, int(former))
    assert not known.registered
    assert b.runtime.find_block(other).alloc_stream != known
    hold.free(other, int(former))
    hold.free(ptr, b.S.handle)                          # after the fill: else this is a race
    check(cuda.cuCtxSynchronize())
    for stream in kept:
        check(cuda.cuStreamDestroy(stream))


@pytest.mark.simulator
def test_python_detects_a_reused_handle_of_a_stream_that_only_the_table_saw(four_and_hold):
    b, hold = four_and_hold
    former = check(cuda.cuStreamCreate(1))
    ptr = hold.allocate(512, int(former))
    b.kernels.fill(int(former), ptr, 1, 1)
    kept = come_back(former)
    b.runtime.register_stream(int(former))
    with use(b.S, write=ptr):                           # after the fill: else this is a race
        b.kernels.fill(b.S.handle, ptr, 1, 1)
    hold.free(ptr, b.S.handle)
    check(cuda.cuCtxSynchronize())
    for stream in kept:
        check(cuda.cuStreamDestroy(stream))


@pytest.mark.simulator
def test_a_former_stream_that_cannot_be_unregistered_yet_is_tried_again(four_and_hold):
    """A window is open on it.  The new registration stays, and is the one that the next call finds."""
    b, hold = four_and_hold
    former = check(cuda.cuStreamCreate(1))
    handle = int(former)
    known = b.runtime.register_stream(handle)
    window = b.prepare(known, (b.alloc(b.S), "read"))
    kept = come_back(former)
    for _ in range(2):
        with pytest.raises(Refused, match="in use"):
            hold.allocate(8, handle)
        assert known.registered
    count = b.runtime.stream_count()
    with pytest.raises(StreamMisuseError, match=r"in use while registering stream"):
        b.runtime.register_stream(handle)
    window.cancel()
    anew = b.runtime.register_stream(handle)
    assert not known.registered
    assert b.runtime.stream_count() == count
    ptr = hold.allocate(8, handle)
    assert b.runtime.find_block(ptr).alloc_stream == anew
    hold.free(ptr, handle)
    for stream in kept:
        check(cuda.cuStreamDestroy(stream))


@pytest.mark.simulator
@pytest.mark.parametrize("second", ["python", "table"])
@pytest.mark.parametrize("first", ["python", "table"])
@pytest.mark.parametrize("call", ["cuStreamIsCapturing", "cuStreamGetId", "cuStreamGetCtx"])
def test_two_calls_that_see_a_stream_first_register_it_once(four_and_hold, driver, call, first, second):
    """The second comes while the first is in a driver call.  The stricter of their defaults is what the stream has."""
    b, hold = four_and_hold
    former = check(cuda.cuStreamCreate(1))
    handle = int(former)
    hold.free(hold.allocate(8, handle), handle)
    kept = come_back(former)
    b.runtime.reap_pending()
    seen = []

    def see(door: str) -> None:
        if door == "python":
            seen.append(b.runtime.register_stream(handle))
        else:
            ptr = hold.allocate(8, handle)
            seen.append(b.runtime.find_block(ptr).alloc_stream)
            hold.free(ptr, handle)

    driver.on_call(call, lambda: see(second))
    see(first)
    assert len(seen) == 2
    assert seen[0] == seen[1] == b.runtime.register_stream(handle)
    assert seen[0].registered
    assert seen[0].discipline == ("opaque" if "table" in (first, second) else "ordinary")
    for stream in kept:
        check(cuda.cuStreamDestroy(stream))


@pytest.mark.simulator
def test_streams_that_come_and_go_leave_nothing_behind(four_and_hold):
    b, hold = four_and_hold
    for _ in range(200):
        stream = check(cuda.cuStreamCreate(1))
        hold.free(hold.allocate(8, int(stream)), int(stream))
        check(cuda.cuStreamDestroy(stream))
    b.runtime.reap_pending()
    assert b.runtime.stream_count() < 80


@pytest.mark.simulator
def test_a_per_thread_default_stream_is_another_one_in_each_thread(four_and_hold):
    b, hold = four_and_hold
    seen = []

    def run() -> None:
        ptr = hold.allocate(8, 2)
        seen.append(b.runtime.find_block(ptr).alloc_stream)
        hold.free(ptr, 2)

    run()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen[0] != seen[1]


@pytest.mark.simulator
def test_threads_that_come_and_go_leave_nothing_behind(four_and_hold):
    b, hold = four_and_hold
    for _ in range(200):
        thread = threading.Thread(target=lambda: hold.free(hold.allocate(8, 2), 2))
        thread.start()
        thread.join()
    b.runtime.reap_pending()
    assert b.runtime.live_bytes == 0
    assert b.runtime.stream_count() < 80


@pytest.mark.simulator
def test_default_streams_are_not_queried_for_their_id_twice(four_and_hold, driver):
    b, hold = four_and_hold
    hold.free(hold.allocate(8))
    before = driver.calls("cuStreamGetId")
    for handle in (0, 1, b.S.handle):
        hold.free(hold.allocate(8, handle), handle)
    assert driver.calls("cuStreamGetId") <= before + 1  # ours, on first use


@pytest.mark.simulator
def test_a_stream_whose_owner_is_held_is_not_queried_for_its_id(four_and_hold, driver):
    """It cannot have been destroyed; one that was unregistered has no owner here, and is queried again."""
    b, hold = four_and_hold
    owner = ForeignStream()
    stream = b.runtime.register_stream(owner)
    hold.free(hold.allocate(8, owner.handle), owner.handle)
    before = driver.calls("cuStreamGetId")
    hold.free(hold.allocate(8, owner.handle), owner.handle)
    assert driver.calls("cuStreamGetId") == before
    b.runtime.unregister_stream(stream)
    for queries in (1, 3):                              # on first use, and then with each call
        hold.free(hold.allocate(8, owner.handle), owner.handle)
        assert driver.calls("cuStreamGetId") >= before + queries


@pytest.mark.simulator
def test_a_stream_of_another_device_is_refused(four_and_hold, driver):
    _, hold = four_and_hold
    if check(cuda.cuDeviceGetCount()) < 2:
        pytest.skip("the simulated machine has one device")
    context = check(cuda.cuDevicePrimaryCtxRetain(1))
    check(cuda.cuCtxPushCurrent(context))
    stream = check(cuda.cuStreamCreate(1))
    check(cuda.cuCtxPopCurrent())
    with pytest.raises(Refused, match="belongs to another context or device"):
        hold.allocate(8, int(stream))
    check(cuda.cuStreamDestroy(stream))
    check(cuda.cuDevicePrimaryCtxRelease(1))


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("where", ["elsewhere", "there"])
def test_a_free_that_a_window_puts_off_does_not_need_its_stream(four, driver, where, pooled, dropped):
    """Its owner may destroy it after the free; what was queued there before is waited for all the same."""
    b = four(resource=PoolMemoryResource(maximum_pool_size=512) if pooled else None)
    hold = Hold(b.runtime)
    handle = int(check(cuda.cuStreamCreate(1)))
    ptr = hold.allocate(512, handle)
    window = b.prepare(b.T if where == "elsewhere" else b.runtime.register_stream(handle),
                       (b.runtime.find_block(ptr), "read"))
    late = b.work(at(handle))
    hold.free(ptr, handle)
    if where == "elsewhere":
        check(cuda.cuStreamDestroy(handle))
    if dropped:                                         # the twin: the next two waits are left out
        driver.drop("cuStreamWaitEvent", 2)
        driver.drop("cuStreamWaitEvent", 1)
    window.commit()
    if where == "there":
        check(cuda.cuStreamDestroy(handle))
    again = b.alloc(b.U)
    driver.clear_races()                                # of the free, in the twin
    assert b.ordered(late, b.U if pooled else b.runtime.default_stream) != dropped
    assert driver.calls("cuCtxSynchronize") == 0
    again.free()
    b.runtime.reap_pending()
    assert b.runtime.live_bytes == b.runtime.pending_bytes == 0
    hold.close()


@pytest.mark.simulator
def test_a_free_that_an_export_puts_off_does_not_need_its_stream(four_and_hold, driver):
    b, hold = four_and_hold
    handle = int(check(cuda.cuStreamCreate(1)))
    state = DeviceState(b.runtime)
    buffer = state.empty(512, "uint8", b.T)
    capsule = buffer.__dlpack__(stream=b.T.handle)
    late = b.work(at(handle))
    hold.free(buffer.access().ptr, handle)
    check(cuda.cuStreamDestroy(handle))
    del capsule
    b.alloc(b.U).free()                                 # carries out the free
    assert b.runtime.live_bytes == 0
    assert b.ordered(late, b.runtime.default_stream)
