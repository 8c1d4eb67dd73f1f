"""How long waits held up their streams, where a recording wants to know."""
from __future__ import annotations

import pytest
from four_streams import READ, WRITE
from stress import together

import xlogmem
from xlogmem.observe.history import read, record_history

LATE = 30_000_000                                       # nanoseconds
ENOUGH = 4_096 + 500                                    # more than are kept open


def waits(recording) -> list[int | None]:
    return [event.waited_ns for event in recording.events() if event.kind == "wait"]


def play(x, rounds: int = 1) -> None:
    """Two waits in each round: of the use, and of the next allocation or the free."""
    for _ in range(rounds):
        block = x.alloc(x.S)
        x.use(x.S, (block, WRITE))
        x.use(x.T, (block, READ))
        block.free(x.T)


def empty_launches(x, rounds: int) -> None:
    """A wait in each round, and no kernel."""
    block = x.alloc(x.S)
    for number in range(rounds):
        with xlogmem.use(x.T if number % 2 else x.S, write=block):
            pass
    block.free()


def wait_for_late_kernel(x, block) -> None:
    x.kernels.delay(x.S.handle, LATE)
    x.use(x.S, (block, WRITE))
    x.use(x.T, (block, READ))
    x.T.synchronize()


def test_a_wait_has_the_time_that_it_took(four):
    x = four()
    block = x.alloc(x.S)
    with record_history(timing=True) as recording:
        wait_for_late_kernel(x, block)
        x.use(x.U, (block, READ))                       # it is complete already
        x.U.synchronize()
    late, soon = waits(recording)
    assert late >= soon                                 # neither is None
    block.free()


@pytest.mark.gpu
def test_it_is_that_of_the_device(four):
    x = four()
    block = x.alloc(x.S)
    with record_history(timing=True) as recording:
        wait_for_late_kernel(x, block)
    waited, = waits(recording)
    assert LATE / 2 < waited < LATE * 100
    block.free()


@pytest.mark.simulator
def test_without_timing_there_are_no_times_and_no_calls(four, driver):
    x = four()
    play(x, 5)
    before = driver.all_calls()
    play(x, 5)
    between = driver.all_calls()
    with record_history() as recording:
        play(x, 5)
    after = driver.all_calls()
    assert waits(recording) == [None] * 10
    assert {name: after[name] - between[name] for name in after} == {
        name: between[name] - before.get(name, 0) for name in between}


@pytest.mark.simulator
def test_every_wait_has_a_time_and_no_event_is_left(four, driver, tmp_path):
    x = four()
    play(x)
    before = driver.live_events()
    with record_history(tmp_path / "run.xlog", timing=True) as recording:
        play(x, 20)
        assert driver.live_events() > before
        seen = waits(recording)
    assert len(seen) >= 20
    assert None not in seen
    assert driver.live_events() == before
    assert waits(recording) == seen
    assert [event.waited_ns for event in read(tmp_path / "run.xlog") if event.kind == "wait"] == seen
    assert {event.nbytes for event in recording.events() if event.kind == "wait"} == {0}


@pytest.mark.simulator
def test_what_is_not_complete_has_no_time_yet(four, driver):
    x = four()
    driver.set_policy("max")
    with record_history(timing=True) as recording:
        play(x)
        assert waits(recording) == [None, None]
        x.runtime.synchronize()
        assert None not in waits(recording)


@pytest.mark.simulator
def test_events_are_used_again_and_there_are_not_more_than_a_number(four, driver):
    x = four()
    driver.set_policy("max")
    before = driver.live_events()
    with record_history(timing=True) as recording:
        empty_launches(x, ENOUGH)
        events = driver.live_events()
        assert events - before <= 2 * 4_096 + 32
        empty_launches(x, ENOUGH)
        assert driver.live_events() <= events + 32
        x.runtime.synchronize()
        driver.set_policy("eager")
        play(x, 10)
        assert None not in waits(recording)[-10:]


@pytest.mark.simulator
@pytest.mark.parametrize("name", ["cuEventCreate", "cuEventElapsedTime", "cuEventDestroy_v2"])
@pytest.mark.parametrize("nth", [1, 2])
def test_timing_is_no_reason_to_fail(four, driver, name, nth):
    x = four()
    play(x, 3)
    for _ in range(2):
        with record_history(timing=True) as recording:
            driver.fail(name, nth, 999)
            play(x, 4)
            assert len(waits(recording)) == 8
    assert not x.runtime.lost


@pytest.mark.simulator
@pytest.mark.parametrize("which", ["before", "behind"])
def test_an_event_that_is_not_recorded_leaves_no_time(four, driver, which):
    x = four()
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))
    with record_history(timing=True) as recording:
        driver.on_call("cuStreamWaitEvent", lambda: driver.fail("cuEventRecord", 1, 999),
                       when="before" if which == "behind" else "after")
        x.use(x.T, (block, READ))
        x.use(x.U, (block, READ))
    assert waits(recording).count(None) == 1
    block.free()


@pytest.mark.simulator
def test_why_says_it(four):
    x = four()
    block = x.alloc(x.S)
    with record_history(timing=True):
        x.use(x.S, (block, WRITE))
        x.use(x.T, (block, READ))
    said = xlogmem.why(x.T)[0]
    assert said.startswith(f"stream {x.T.id} waited ")
    assert f"s for stream {x.S.id}, to use: " in said
    block.free()


def test_threads_wait_while_it_begins_and_ends(four):
    x = four()
    streams = [(x.S, x.T), (x.U, x.V)]

    def work(number: int) -> None:
        if number == 2:
            for _ in range(20):
                with record_history(timing=True) as recording:
                    waits(recording)
            return
        source, target = streams[number]
        for _ in range(300):
            block = x.alloc(source)
            x.use(source, (block, WRITE))
            x.use(target, (block, READ))
            block.free()

    together(work, 3)
    with record_history(timing=True):                   # what was left over is used, and ends
        pass
