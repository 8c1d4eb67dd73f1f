"""What errors and snapshots say while a history is recorded: the lines where memory was allocated and freed."""
from __future__ import annotations

import inspect
import pickle
import re
import threading
import time
from pathlib import Path

import pytest
from four_streams import READ, WRITE
from stress import together

from xlogmem import (
    AsyncMemoryResource,
    DriverError,
    OutOfDeviceMemoryError,
    PoolMemoryResource,
    StreamMisuseError,
    UseAfterFreeError,
    use,
)
from xlogmem._base.units import format_duration
from xlogmem.observe.history import record_history

pytestmark = pytest.mark.simulator
TOO_MUCH = 1 << 60
HERE = Path(__file__).name
AGO = r"[0-9.]+ (s|ms|µs|ns) ago"


def line_here() -> int:
    return inspect.currentframe().f_back.f_lineno


def refused(call) -> UseAfterFreeError:
    with pytest.raises(UseAfterFreeError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("resource", [AsyncMemoryResource, PoolMemoryResource])
def test_a_second_free_has_both_lines(four, resource):
    x = four(resource=resource())
    with record_history(stacks="all"):
        block, allocated = x.runtime.allocate(300, x.S, tag="left"), line_here()
        block.free(x.T)
        freed = line_here() - 1
        error = refused(block.free)
    first, *lines = str(error).splitlines()
    assert first.endswith("was freed, and cannot be used any more")
    function = "test_a_second_free_has_both_lines"
    begun, ended = lines
    assert re.fullmatch(rf"  allocated on stream {x.S.id}, 300 B at {block.id.ptr:#x}, tag 'left', {AGO}: "
                        rf"\S*{HERE}:{allocated} in {function}", begun)
    assert re.fullmatch(rf"  freed on stream {x.T.id}, {AGO}: \S*{HERE}:{freed} in {function}", ended)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_free_that_failed_is_no_end(driver, four):
    x = four(resource=AsyncMemoryResource())
    with record_history(stacks="all"):
        block, allocated = x.runtime.allocate(300, x.S), line_here()
        driver.fail("cuMemFreeAsync", 1)
        with pytest.raises(DriverError):
            block.free()
        window = x.prepare(x.S, (block, WRITE))
        with pytest.raises(StreamMisuseError) as caught, use(x.T, read=block, on_conflict="raise"):
            pass
        _, *lines = str(caught.value).splitlines()
        assert [line.split(",")[0] for line in lines] == [f"  allocated on stream {x.S.id}"]
        record, = x.runtime.snapshot().blocks
        assert record.line.endswith(f"{HERE}:{allocated}")
        window.cancel()
        block.free()
        assert [line.split(",")[0] for line in str(refused(block.free)).splitlines()[1:]] == [
            f"  allocated on stream {x.S.id}", f"  freed on stream {x.S.id}"]


def test_what_was_not_recorded_is_not_said(four):
    x = four()
    block = x.alloc(x.S)
    with record_history(stacks="alloc"):
        block.free()
        error = refused(block.free)
    assert re.fullmatch(rf"  freed on stream {x.S.id}, {AGO}", str(error).splitlines()[1])
    assert len(str(error).splitlines()) == 2
    assert "\n" not in str(refused(block.free))         # it has stopped


def test_what_was_overwritten_is_not_said(four):
    x = four()
    with record_history(max_events=4):
        block = x.alloc(x.S)
        block.free()
        for _ in range(3):
            x.alloc(x.S).free()
        assert "\n" not in str(refused(block.free))


def test_a_stale_identity_has_the_lines_of_its_own_block(four):
    """Not those of the next one with this address."""
    x = four(resource=PoolMemoryResource())
    with record_history(stacks="all"):
        block, allocated = x.runtime.allocate(512, x.S), line_here()
        stale = block.id
        block.free()
        again = x.runtime.allocate(512, x.S)
        assert again.ptr == stale.ptr
        error = refused(lambda: x.use(x.S, (stale, READ)))
    assert [line.rsplit(":", 1)[1] for line in str(error).splitlines()[1:]] == [
        f"{allocated} in {test_a_stale_identity_has_the_lines_of_its_own_block.__name__}",
        f"{allocated + 2} in {test_a_stale_identity_has_the_lines_of_its_own_block.__name__}"]
    assert error.generation == stale.generation


def test_a_conflict_has_the_line_of_the_block(four):
    x = four()
    with record_history(stacks="alloc"):
        block, allocated = x.runtime.allocate(512, x.S), line_here()
        window = x.prepare(x.T, (block, WRITE))
        with pytest.raises(StreamMisuseError, match=rf"\n  allocated .*{HERE}:{allocated} in ") as caught:
            x.prepare(x.U, (block, WRITE), on_conflict="raise")
        window.cancel()
    assert len(str(caught.value).splitlines()) == 2


def test_out_of_memory_names_lines_for_what_has_no_tag(four):
    x = four()
    before = x.alloc(x.S, 700)
    with record_history(stacks="alloc"):
        several, line = [x.runtime.allocate(1000 + number, x.S) for number in range(3)], line_here()
        tagged = x.runtime.allocate(2000, x.S, tag="left")
        with pytest.raises(OutOfDeviceMemoryError) as caught:
            x.alloc(x.S, TOO_MUCH)
    found = [re.sub(r"\S*/", "", line) for line in str(caught.value).splitlines()[1:]]
    assert found == [f"  2.9 KiB (3003 bytes) in 3 blocks: without a tag, {HERE}:{line}",
                     "  2.0 KiB (2000 bytes) in 1 block: 'left'", "  700 bytes in 1 block: without a tag"]
    del before, several, tagged


def test_a_snapshot_has_ages_and_lines(four):
    x = four(resource=PoolMemoryResource())
    before = x.alloc(x.S)
    with record_history(stacks="alloc"):
        first, line = x.runtime.allocate(512, x.S), line_here()
        began = time.time_ns()
        second = x.runtime.allocate(512, x.T)
        snapshot = x.runtime.snapshot()
        known = {record.generation: record for record in snapshot.blocks}
        assert known[before.generation][-2:] == (None, None)
        assert known[first.generation].line.endswith(f"{HERE}:{line}")
        assert known[second.generation].line.endswith(f"{HERE}:{line + 2}")
        assert known[first.generation].age_ns > known[second.generation].age_ns >= 0
        assert known[first.generation].age_ns >= time.time_ns() - began - 10**9
    assert {record[-2:] for record in x.runtime.snapshot().blocks} == {(None, None)}


def test_it_ends_beside_errors(four):
    """The ring goes while other threads look into it."""
    x = four()
    block = x.alloc(x.S)
    block.free()
    done = threading.Event()

    def fail() -> None:
        while not done.is_set():
            refused(block.free)
            x.runtime.snapshot()

    def record() -> None:
        try:
            for _ in range(50):
                with record_history(max_events=100):
                    x.alloc(x.T).free()
        finally:
            done.set()

    together(lambda number: (record, fail, fail)[number](), 3)


@pytest.mark.parametrize(("nanoseconds", "text"), [
    (999, "999 ns"), (1000, "1.00 µs"), (12_345_678, "12.3 ms"), (999_000_000, "999 ms"), (61 * 10**9, "61.0 s"),
    (4000 * 10**9, "4000 s")])
def test_how_long_ago(nanoseconds, text):
    assert format_duration(nanoseconds) == text
