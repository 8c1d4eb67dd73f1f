"""Adaptors that were not made, or not as they were meant: each says so, and nothing ends the process."""
from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy
import pytest

from xlogmem import (
    AsyncMemoryResource,
    DeviceRuntime,
    GuardResourceAdaptor,
    LimitingResourceAdaptor,
    LoggingResourceAdaptor,
    PoolMemoryResource,
    StatisticsResourceAdaptor,
    StreamMisuseError,
    TrackingResourceAdaptor,
)

ADAPTORS: dict[type, tuple[Any, ...]] = {
    GuardResourceAdaptor: (), LimitingResourceAdaptor: (4096,), LoggingResourceAdaptor: ([].append,),
    StatisticsResourceAdaptor: (), TrackingResourceAdaptor: ()}
MEMBERS = {
    GuardResourceAdaptor: ("check()", "trim()", "violations()", "canary", "quarantined_bytes", "quarantined_blocks"),
    LimitingResourceAdaptor: ("limit", "current_bytes", "remaining_bytes", "holders()", "memory_summary()"),
    LoggingResourceAdaptor: ("dropped_records", "flush()", "close()", "__enter__()", "__exit__(None, None, None)"),
    StatisticsResourceAdaptor: ("allocation_counts", "push_counters()", "pop_counters()", "counters(by='tag')",
                                "pending_bytes", "failed_allocations", "memory_summary()"),
    TrackingResourceAdaptor: ("outstanding_bytes", "outstanding_allocations()", "outstanding_text()",
                              "log_outstanding()", "memory_summary()")}


@pytest.mark.parametrize("kind", ADAPTORS)
def test_one_whose_init_did_not_run_says_so(kind):
    adaptor = kind.__new__(kind)
    assert kind.__name__ in repr(adaptor)
    for name in (*MEMBERS[kind], "upstream_mr"):
        with pytest.raises(StreamMisuseError, match="never initialised"):
            eval(f"adaptor.{name}", {"adaptor": adaptor})
    for call in (lambda: DeviceRuntime(resource=adaptor), lambda: StatisticsResourceAdaptor(adaptor)):
        with pytest.raises(StreamMisuseError, match="never initialised"):
            call()
    with pytest.raises(StreamMisuseError):
        adaptor.allocate(64, 1)


@pytest.mark.parametrize(("kind", "arguments"), [
    (LoggingResourceAdaptor, ("/nowhere/at/all.csv",)), (LimitingResourceAdaptor, ("many",)),
    (TrackingResourceAdaptor, (1,)), (GuardResourceAdaptor, (1,))])
def test_one_whose_init_failed_says_so(kind, arguments):
    adaptor = kind.__new__(kind)
    with pytest.raises((OSError, ValueError, TypeError)):
        adaptor.__init__(AsyncMemoryResource(), *arguments)
    for name in MEMBERS[kind]:
        with pytest.raises(StreamMisuseError, match="never initialised"):
            eval(f"adaptor.{name}", {"adaptor": adaptor})
    with pytest.raises(StreamMisuseError, match="never initialised"):
        DeviceRuntime(resource=adaptor)


@pytest.mark.parametrize("kind", ADAPTORS)
def test_a_subclass_with_a_finalizer_may_fail_to_be_made(kind, monkeypatch):
    """What the finalizer raises is printed by the interpreter."""
    raised: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: raised.append(unraisable.exc_type))

    class Mine(kind):
        def __del__(self) -> None:
            eval(f"self.{MEMBERS[kind][1]}", {"self": self})

    with pytest.raises(TypeError, match="upstream must be"):
        Mine(None, *ADAPTORS[kind])
    assert raised == [StreamMisuseError]


@pytest.mark.parametrize("kind", [*ADAPTORS, AsyncMemoryResource, PoolMemoryResource])
def test_an_overridden_method_that_would_not_be_called_is_refused(kind):
    class Mine(kind):
        def allocate(self, nbytes: int, stream: Any) -> int:
            return super().allocate(nbytes, stream)

    made = Mine(*((AsyncMemoryResource(), *ADAPTORS[kind]) if kind in ADAPTORS else ()))
    with pytest.raises(StreamMisuseError, match=r"overrides allocate\(\)"):
        DeviceRuntime(resource=made)
    with pytest.raises(StreamMisuseError, match=r"overrides allocate\(\)"):
        StatisticsResourceAdaptor(made)
    if kind is not PoolMemoryResource:
        made.deallocate(made.allocate(64, 1), 64, 1)    # by itself it is called


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("kind", [*ADAPTORS, AsyncMemoryResource])
def test_a_resource_is_not_copied(kind, copied):
    made = kind(*((AsyncMemoryResource(), *ADAPTORS[kind]) if kind in ADAPTORS else ()))
    with pytest.raises(TypeError, match="not copied or pickled: it owns memory"):
        copied(made)


@pytest.mark.parametrize(("limit", "error", "match"), [
    ("20000000TiB", ValueError, "limit must be a number of bytes, at least 0 and below"),
    ("8388608TiB", ValueError, "limit must"), ("9" * 400 + "B", ValueError, "limit must"),
    ("9" * 4000 + "B", ValueError, "limit must"),
    pytest.param(10 ** 5000, ValueError, "limit must.*far too large", id="digits"),
    (numpy.float32(1.5), ValueError, "limit as a share"), ([], TypeError, "limit must be an int"),
    (float("nan"), ValueError, "limit as a share"), (None, TypeError, "limit is missing")])
def test_limits_that_are_none_are_named(limit, error, match):
    with pytest.raises(error, match=match):
        LimitingResourceAdaptor(AsyncMemoryResource(), limit)


@pytest.mark.parametrize(("limit", "nbytes"), [
    ("9007199254740993B", 9007199254740993), ("8388607TiB", 8388607 << 40), ("0.1 KiB", 102), (numpy.int64(77), 77),
    ("1.5GiB", 3 << 29)])
def test_limits_are_exact(limit, nbytes):
    assert LimitingResourceAdaptor(AsyncMemoryResource(), limit).limit == nbytes


def test_a_share_may_be_any_real_number():
    assert (LimitingResourceAdaptor(AsyncMemoryResource(), numpy.float32(.5)).limit
            == LimitingResourceAdaptor(AsyncMemoryResource(), .5).limit)


async def coroutine(argument: Any) -> None: ...


@pytest.mark.parametrize(("make", "match"), [
    (lambda below: GuardResourceAdaptor(below, canary=1.5), "canary must be an int, not 1.5"),
    (lambda below: GuardResourceAdaptor(below, depth="x"), "depth must be an int, not .x."),
    (lambda below: GuardResourceAdaptor(below, quarantine_age=2 ** 70), "quarantine_age must be a number of frees"),
    (lambda below: GuardResourceAdaptor(below, on_violation=coroutine), "on_violation must be an ordinary function"),
    (lambda below: TrackingResourceAdaptor(below, depth=None), "depth must be an int, not None"),
    (lambda below: LoggingResourceAdaptor(below, [].append, capacity=1.5), "capacity must be an int, not 1.5"),
    (lambda below: LoggingResourceAdaptor(below, coroutine), "sink must be an ordinary function")])
def test_other_arguments_are_named(make, match):
    with pytest.raises((TypeError, ValueError), match=match):
        make(AsyncMemoryResource())
