"""The turns in which a benchmark runs its candidates."""
from __future__ import annotations

from dataclasses import replace

import pytest
from bench_runs import TINY, all_of
from xlogmem_bench import cases, measure
from xlogmem_bench.allocators import CPP, PEER

pytestmark = pytest.mark.with_gil                       # as the raw driver calls of the benchmarks do


class Clockless:
    """A world in which everything is idle."""

    def synchronize(self) -> None:
        """Nothing is queued."""


def entrant(name: str, figures: list[float], ran: list[str], seconds: float = 0.) -> measure.Entrant:
    """Takes these nanoseconds, one after the other; more calls fail."""
    left = iter(figures)

    def run(calls: int) -> float:
        ran.append(name)
        return 2 * 10 * next(left)

    return measure.Entrant(cases.Candidate(name, CPP, PEER, run), 2, seconds, 10)


@pytest.mark.parametrize(("beside", "order", "floors"), [
    (0., ["f", "a", "f", "b", "f"], [50, 100, 200]), (1e9, ["f", "a", "b", "f"], [50, 100])])
def test_the_reference_is_run_between_the_others(monkeypatch, beside, order, floors):
    """... as soon as the last time is long enough ago, before the first and after the last."""
    monkeypatch.setattr(measure, "BESIDE", beside)
    ran = []
    reference, a, b = (entrant(name, figures, ran) for name, figures in (("f", floors), ("a", [7]), ("b", [8])))
    measure.take_turns([a, b], reference, Clockless(), lambda *_: pytest.fail("dropped"))
    assert ran == order
    assert (a.values, b.values) == ([7], [8])
    assert a.beside == [75]                             # the mean of before and after
    assert b.beside == [150 if beside == 0 else 75]
    assert reference.values == reference.beside == [sum(floors) / len(floors)]


def test_a_slow_reference_is_run_less_often(monkeypatch):
    monkeypatch.setattr(measure, "BESIDE", 0.)
    ran = []
    measure.take_turns([entrant("a", [1], ran), entrant("b", [1], ran)], entrant("f", [1, 1], ran, 1e9), Clockless(),
                       lambda *_: pytest.fail("dropped"))
    assert ran == ["f", "a", "b", "f"]


@pytest.mark.parametrize("broken", ["a", "b"])
def test_a_candidate_that_fails_in_a_turn_is_dropped_and_the_others_go_on(broken):
    ran, dropped = [], []
    good, bad = entrant("good", [7], ran), entrant("bad", [], ran)
    measure.take_turns([bad, good] if broken == "a" else [good, bad], entrant("f", [50, 100], ran), Clockless(),
                       lambda name, error: dropped.append((name, type(error))))
    assert dropped == [(bad, StopIteration)]
    assert (good.values, good.beside, bad.beside) == ([7], [75], [])


@pytest.mark.simulator
@pytest.mark.parametrize(("seconds", "turns"), [(0, 1), (1e9, 3)])
def test_a_case_of_long_turns_has_one_at_least(seconds, turns, world):
    said = []
    case = next(case for case in all_of() if case.id == "use/ping-pong")
    measure.measure(case, world, replace(TINY, turns=3, case_seconds=seconds), [], said.append)
    rows = [event for event in said if event["kind"] == "row"]
    assert rows
    assert {(len(row["values"]), len(row["beside"])) for row in rows} == {(turns, turns)}


@pytest.mark.simulator
def test_each_turn_has_an_order_of_its_own_and_so_has_each_process(monkeypatch, world):
    orders = []
    monkeypatch.setattr(measure, "take_turns", lambda entrants, *_: orders.append(
        [(one.candidate.name, one.candidate.language) for one in entrants]))
    case = next(case for case in all_of() if case.id == "allocate/1 MiB")
    for process in (0, 0, 1):
        measure.measure(case, world, replace(TINY, turns=3), [], lambda event: None, process)
    assert len(orders) == 9
    assert orders[0] != orders[1]
    assert orders[:3] == orders[3:6] != orders[6:]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
