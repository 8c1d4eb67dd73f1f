"""Streams that a caller of the C table promises to keep, and those that it does not."""
from __future__ import annotations

import pytest
from c_table import ANY_THREAD, CAPTURING, KEEPS_STREAM, NOT_FOUND, Hold, Refused, functions
from cuda.bindings import driver as cuda
from four_streams import Capture, at
from other_threads import Beside, waiting

from xlogmem import StreamMisuseError, use
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
LEGACY, PER_THREAD = 1, 2


def calls_of(driver, work, *names: str) -> list[int]:
    before = [driver.calls(name) for name in names]
    work()
    return [driver.calls(name) - count for name, count in zip(names, before, strict=True)]


def keep(hold: Hold, how: str, stream: int, block) -> None:
    if how == "hold":
        hold.hold_stream(stream)
    else:
        hold.finish(hold.prepare(stream, read=[block.ptr], flags=KEEPS_STREAM))


@pytest.mark.parametrize("how", ["hold", "flag", "never", "released"])
def test_a_use_of_a_kept_stream_makes_no_call_but_one_query(four_and_hold, driver, foreign, how):
    b, hold = four_and_hold
    block, stream = b.alloc(b.S), foreign()
    b.use(b.T, (block, "read"))                         # not new any more
    if how == "flag":
        keep(hold, how, stream, block)
    elif how != "never":
        hold.hold_stream(stream)
    if how == "released":
        hold.release_stream(stream)
    hold.finish(hold.prepare(stream, read=[block.ptr]))

    def launches() -> None:
        for _ in range(10):
            hold.finish(hold.prepare(stream, read=[block.ptr]))

    kept = how in ("hold", "flag")
    found = calls_of(driver, launches, "cuStreamIsCapturing", "cuStreamGetId", "cuEventRecord", "cuStreamWaitEvent")
    assert found == ([10, 0, 0, 0] if kept else [*found[:1], 10, 10, 0])


def test_a_stream_is_kept_until_the_last_release(four_and_hold, driver, foreign):
    b, hold = four_and_hold
    block, stream = b.alloc(b.S), foreign()

    def launch() -> None:
        hold.finish(hold.prepare(stream, read=[block.ptr]))

    for _ in range(2):
        hold.hold_stream(stream)
    launch()
    hold.release_stream(stream)
    assert calls_of(driver, launch, "cuStreamGetId") == [0]
    hold.release_stream(stream)
    assert calls_of(driver, launch, "cuStreamGetId") == [1]
    for wrong in (stream, foreign(), 0):
        with pytest.raises(Refused, match="is not held: call hold_stream first",
                           check=lambda error: error.kind == NOT_FOUND):
            hold.release_stream(wrong)


def test_holds_of_two_callers_are_counted(four_and_hold, driver, foreign):
    b, hold = four_and_hold
    block, stream, other = b.alloc(b.S), foreign(), Hold(b.runtime)
    hold.hold_stream(stream)
    other.hold_stream(stream)
    hold.release_stream(stream)

    def launch() -> None:
        other.finish(other.prepare(stream, read=[block.ptr]))

    launch()
    assert calls_of(driver, launch, "cuStreamGetId") == [0]
    other.close()                                       # ends its promises
    hold.finish(hold.prepare(stream, read=[block.ptr]))
    assert calls_of(driver, lambda: hold.finish(hold.prepare(stream, read=[block.ptr])), "cuStreamGetId") == [1]


class Owner:
    """Keeps a stream alive, or another one by and by."""

    def __init__(self, stream: int) -> None:
        self.stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.stream


def queries_of_a_use(driver, hold: Hold, stream: int, block) -> list[int]:
    hold.finish(hold.prepare(stream, read=[block.ptr]))
    return calls_of(driver, lambda: hold.finish(hold.prepare(stream, read=[block.ptr])), "cuStreamGetId")


@pytest.mark.parametrize("owned_first", [True, False])
def test_an_owner_in_python_outlives_the_promise(four_and_hold, driver, foreign, owned_first):
    b, hold = four_and_hold
    block, handle = b.alloc(b.S), foreign()
    owner = Owner(handle)
    if owned_first:
        stream = b.runtime.register_stream(owner)
    hold.hold_stream(handle)
    if not owned_first:
        stream = b.runtime.register_stream(owner)
    hold.release_stream(handle)
    assert queries_of_a_use(driver, hold, handle, block) == [0]
    b.runtime.unregister_stream(stream, successor=b.S)


@pytest.mark.parametrize("promised", [True, False])
def test_a_promise_outlives_an_owner_in_python(four_and_hold, driver, foreign, promised):
    b, hold = four_and_hold
    block, handle = b.alloc(b.S), foreign()
    owner = Owner(handle)
    streams = [b.runtime.register_stream(owner)]
    if promised:
        hold.hold_stream(handle)
    owner.stream = foreign()                            # another one, so it keeps the first no more
    streams.append(b.runtime.register_stream(owner, discipline="ordinary"))
    assert queries_of_a_use(driver, hold, handle, block) == [not promised]
    if promised:
        hold.release_stream(handle)
    assert queries_of_a_use(driver, hold, handle, block) == [1]


def test_a_handle_that_means_another_stream_after_the_release(four_and_hold):
    """The driver hands a destroyed stream's handle out again."""
    b, hold = four_and_hold
    block = b.alloc(b.S)
    stream = check(cuda.cuStreamCreate(1))
    handle = int(stream)
    hold.hold_stream(handle)
    with hold.use(handle, write=[block.ptr]):
        first = b.work(at(handle))
    hold.release_stream(handle)
    with hold.use(handle, read=[block.ptr]):            # records: the stream may be destroyed from here on
        pass
    check(cuda.cuStreamDestroy(stream))
    again = check(cuda.cuStreamCreate(1))
    assert int(again) == handle
    with hold.use(handle, read=[block.ptr]):
        pass
    assert b.ordered(first, at(handle))
    assert b.runtime.register_stream(handle).id != b.S.id
    hold.hold_stream(handle)                            # the promise is for the stream that the handle means now
    hold.finish(hold.prepare(handle, read=[block.ptr]))
    hold.release_stream(handle)
    b.runtime.unregister_stream(handle, successor=b.S)
    check(cuda.cuStreamDestroy(again))


def test_a_promise_that_was_broken_ends(four_and_hold, driver):
    """The stream was destroyed, and found so, inside a use.  Its handle means another stream when the promises end, and
    the end leaves no fence there."""
    b, hold = four_and_hold
    block, other = b.alloc(b.S), Hold(b.runtime)
    stream = check(cuda.cuStreamCreate(1))
    handle = int(stream)
    for one in (hold, hold, other):
        one.hold_stream(handle)
    opened = hold.prepare(handle, read=[block.ptr])
    check(cuda.cuStreamDestroy(stream))
    again = check(cuda.cuStreamCreate(1))
    assert int(again) == handle
    with pytest.raises(StreamMisuseError, match="in use"):
        b.runtime.register_stream(handle)
    with pytest.raises(Refused, match="in use"):
        hold.hold_stream(handle)
    for one in (hold, hold, other):
        assert calls_of(driver, lambda one=one: one.release_stream(handle), "cuEventRecord") == [0]
    with pytest.raises(Refused, match="is not held"):
        hold.release_stream(handle)
    hold.finish(opened)
    other.close()
    assert queries_of_a_use(driver, hold, handle, block) == [1]         # of the new stream, without a promise
    hold.hold_stream(handle)
    assert queries_of_a_use(driver, hold, handle, block) == [0]
    hold.release_stream(handle)
    b.runtime.unregister_stream(handle, successor=b.S)
    check(cuda.cuStreamDestroy(again))


def test_a_stream_that_captures_cannot_be_identified(four_and_hold, foreign):
    _, hold = four_and_hold
    stream = at(foreign())
    with Capture(stream), pytest.raises(Refused, match="captur", check=lambda error: error.kind == CAPTURING):
        hold.hold_stream(stream.handle)
    hold.hold_stream(stream.handle)
    with Capture(stream), pytest.raises(Refused, match="captur", check=lambda error: error.kind == CAPTURING):
        hold.hold_stream(stream.handle)


@pytest.mark.parametrize("default", [0, LEGACY, PER_THREAD])
def test_default_streams(four_and_hold, default):
    b, hold = four_and_hold
    block = b.alloc(b.S)
    hold.hold_stream(default)
    for _ in range(3):
        with hold.use(default, write=[block.ptr]):
            operation = b.work(at(default))
        with hold.use(b.T.handle, read=[block.ptr]):
            pass
        assert b.ordered(operation, b.T)
    hold.release_stream(default)
    with hold.use(default, write=[block.ptr]):
        operation = b.work(at(default))
    with hold.use(b.T.handle, read=[block.ptr]):
        pass
    assert b.ordered(operation, b.T)


# ------------------------------------------------------------------------------------------------ discipline
@pytest.mark.parametrize("first", ["prepare", "hold", "allocate"])
def test_a_use_leaves_a_stream_ordinary_and_an_allocation_makes_it_opaque(four_and_hold, foreign, first):
    b, hold = four_and_hold
    block, stream = b.alloc(b.S), foreign()
    if first == "prepare":
        hold.finish(hold.prepare(stream, read=[block.ptr]))
    elif first == "hold":
        hold.hold_stream(stream)
        hold.finish(hold.prepare(stream, read=[block.ptr]))
    else:
        hold.free(hold.allocate(64, stream), stream)
    assert b.runtime.register_stream(stream).discipline == ("opaque" if first == "allocate" else "ordinary")
    for _ in range(3):
        hold.free(hold.allocate(64, stream), stream)
        assert b.runtime.register_stream(stream).discipline == "opaque"
        hold.finish(hold.prepare(stream, read=[block.ptr]))
    b.runtime.reap_pending()


@pytest.mark.parametrize("allocated", [True, False])
def test_unrecorded_work_counts_once_memory_was_allocated_there(four_and_hold, foreign, allocated):
    b, hold = four_and_hold
    block, stream = b.alloc(b.S), foreign()
    hold.hold_stream(stream)
    with hold.use(stream, write=[block.ptr]):
        pass
    if allocated:
        hold.free(hold.allocate(64, stream), stream)
    b.use(b.T, (block, "read"))                         # not new any more
    late = b.work(at(stream))                           # in no use
    with use(b.U, read=block):
        pass
    assert b.ordered(late, b.U) == allocated
    b.runtime.reap_pending()


def test_a_known_handle_is_not_trusted_once_its_registration_is_another_ones(four_and_hold):
    """The stream's place in every clock is used again, by a stream that is known to live."""
    b, hold = four_and_hold
    block = b.alloc(b.S)
    stream = check(cuda.cuStreamCreate(1))
    handle = int(stream)
    hold.hold_stream(handle)
    hold.finish(hold.prepare(handle, read=[block.ptr]))
    b.runtime.unregister_stream(handle, successor=b.S)
    b.use(b.S, (block, "write"))
    check(cuda.cuCtxSynchronize())
    b.runtime.reap_pending(blocking=True)
    taken = [b.runtime.acquire_stream() for _ in range(4)]           # one has the place now
    check(cuda.cuStreamDestroy(stream))
    again = check(cuda.cuStreamCreate(1))
    assert int(again) == handle
    with hold.use(handle, write=[block.ptr]):
        first = b.work(at(handle))
    with use(b.T, read=block):
        pass
    assert b.ordered(first, b.T)
    assert taken
    b.runtime.unregister_stream(handle, successor=b.S)
    check(cuda.cuStreamDestroy(again))


@pytest.mark.parametrize("default", [0, LEGACY, PER_THREAD])
@pytest.mark.parametrize("how", ["prepare", "hold"])
def test_default_streams_are_opaque_whatever_names_them_first(four_and_hold, default, how):
    b, hold = four_and_hold
    block = b.alloc(b.S)
    b.use(b.T, (block, "read"))                         # not new any more
    if how == "hold":
        hold.hold_stream(default)
    with hold.use(default, write=[block.ptr]):
        pass
    late = b.work(at(default))                          # in no use
    with use(b.U, read=block):
        pass
    assert b.ordered(late, b.U)


def test_a_blocking_capture_survives_a_use_on_the_legacy_stream(four_and_hold):
    """A query of the legacy stream's id would invalidate it, and so would a wait."""
    b, known = four_and_hold
    block = b.alloc(b.S)
    known.finish(known.prepare(LEGACY, read=[block.ptr]))
    b.use(b.T, (block, "write"))
    blocking = check(cuda.cuStreamCreate(0))
    for default in (0, LEGACY):
        hold = Hold(b.runtime)
        with Capture(at(blocking)):
            with pytest.raises(Refused, match=r"captur|CAPTURE_IMPLICIT", check=lambda error: error.kind == CAPTURING):
                hold.prepare(default, read=[block.ptr])
            with pytest.raises(Refused, match=r"captur|CAPTURE_IMPLICIT"):
                hold.allocate(64, default)
            with pytest.raises(Refused, match=r"captur|CAPTURE_IMPLICIT", check=lambda error: error.kind == CAPTURING):
                known.prepare(default, read=[block.ptr])
        hold.finish(hold.prepare(default, read=[block.ptr]))
        hold.close()
    check(cuda.cuStreamDestroy(blocking))


@pytest.mark.parametrize("open_use", [True, False])
def test_a_promise_ends_with_the_close_at_once(four_and_hold, driver, foreign, open_use):
    """The caller may destroy the stream from then on."""
    b, hold = four_and_hold
    block, stream, other = b.alloc(b.S), foreign(), Hold(b.runtime)
    other.hold_stream(stream)
    opened = other.prepare(b.T.handle, read=[block.ptr]) if open_use else 0
    hold.finish(hold.prepare(stream, read=[block.ptr]))

    def launch_after_close() -> None:
        functions.close(other.runtime)                  # and nothing between
        hold.finish(hold.prepare(stream, read=[block.ptr]))

    assert calls_of(driver, launch_after_close, "cuStreamGetId") == [1]
    other.finish(opened)


@pytest.mark.parametrize("end", ["release", "close", "close inside a use"])
@pytest.mark.parametrize("again", [True, False])
def test_work_on_a_kept_stream_is_found_after_its_end(four, end, again):
    """The end of the promise leaves a fence behind all of it, and the stream may be destroyed at once."""
    b = four()
    hold = Hold(b.runtime)
    block, other = b.alloc(b.S), b.alloc(b.S)
    stream = check(cuda.cuStreamCreate(1))
    handle = int(stream)
    hold.hold_stream(handle)
    with hold.use(handle, write=[block.ptr]):
        operation = b.work(at(handle))
    opened = hold.prepare(b.T.handle, read=[other.ptr]) if end == "close inside a use" else 0
    hold.release_stream(handle) if end == "release" else hold.close()
    check(cuda.cuStreamDestroy(stream))
    made = check(cuda.cuStreamCreate(1)) if again else None
    assert made is None or int(made) == handle          # the driver hands the handle out again
    b.use(b.U, (block, "read"))
    assert b.ordered(operation, b.U)
    hold.finish(opened)
    if end == "release":
        hold.close()
    if made is not None:
        check(cuda.cuStreamDestroy(made))


def test_a_stream_is_not_unregistered_while_a_use_waits_to_be_opened_there(four_and_hold, foreign):
    b, hold = four_and_hold
    block, stream = b.alloc(b.S), foreign()
    hold.hold_stream(stream)
    hold.finish(hold.prepare(stream, read=[block.ptr]))
    b.use(b.U, (block, "write"))
    opened = hold.prepare(b.T.handle, write=[block.ptr], flags=ANY_THREAD)
    with waiting(b.runtime) as begun:
        other = Beside(lambda: hold.prepare(stream, read=[block.ptr], flags=ANY_THREAD))
        begun()
    with pytest.raises(StreamMisuseError, match="in use"):
        b.runtime.unregister_stream(stream, successor=b.S)
    hold.finish(opened)
    hold.finish(other.result())
    hold.release_stream(stream)
    b.runtime.unregister_stream(stream, successor=b.S)


def test_kept_default_streams_of_ended_threads_are_not_counted(four_and_hold):
    b, hold = four_and_hold
    block = b.alloc(b.S)
    hold.finish(hold.prepare(PER_THREAD, read=[block.ptr], flags=KEEPS_STREAM))
    with pytest.raises(Refused, match="is not held"):
        hold.release_stream(PER_THREAD)
