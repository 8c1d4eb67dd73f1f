"""Statistics of allocations by part of a program, as `rmm.statistics` has them.

    runtime = xlogmem.DeviceRuntime(resource=xlogmem.StatisticsResourceAdaptor(xlogmem.PoolMemoryResource()))

    @xlogmem.statistics.profiler(runtime=runtime)
    def step(): ...

    print(xlogmem.statistics.default_profiler_records.report())

A runtime keeps the resource that it was made with.  So all of this works on the `StatisticsResourceAdaptor` that is in
its stack of resources, at the top or below; `enable_statistics` makes the process's own runtime with one.  All threads
count on the same counters: what runs beside a part of a program counts there too.
"""
from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, ParamSpec, SupportsIndex, TypeVar, cast

from xlogmem._base.signatures import refuse_type
from xlogmem._base.texts import printable
from xlogmem._base.units import parse_device_id
from xlogmem._driver import ProcessLock
from xlogmem.resources import Statistics, StatisticsResourceAdaptor
from xlogmem.resources.layers import find_layer
from xlogmem.runtime import (
    MAX_DEVICES,
    DeviceRuntime,
    default_resource,
    existing_runtime,
    get_runtime,
    set_runtime,
)

__all__ = ["ProfilerContext", "ProfilerRecords", "Statistics", "default_profiler_records", "enable_statistics",
           "get_statistics", "pop_statistics", "profiler", "push_statistics", "statistics"]

P = ParamSpec("P")
R = TypeVar("R")


def _find(runtime: DeviceRuntime) -> StatisticsResourceAdaptor | None:
    """The topmost one."""
    if not isinstance(runtime, DeviceRuntime):
        refuse_type("runtime", runtime, DeviceRuntime)
    return find_layer(runtime.resource, StatisticsResourceAdaptor)


def _adaptor(runtime: DeviceRuntime | None) -> StatisticsResourceAdaptor:
    runtime = runtime if runtime is not None else get_runtime()
    found = _find(runtime)
    if found is None:
        raise RuntimeError(f"{runtime!r} counts no statistics: there is no StatisticsResourceAdaptor in its resource, "
                           "which cannot be replaced. Call xlogmem.statistics.enable_statistics() before the process's "
                           "runtime is first used, or make a runtime with one: xlogmem.DeviceRuntime("
                           "resource=xlogmem.StatisticsResourceAdaptor(...))")
    return found


def enable_statistics(device_id: SupportsIndex = 0) -> None:
    """Have the process's runtime for a device count statistics.

    Makes that runtime, with a `StatisticsResourceAdaptor` around the default resource, if there is none yet.  Does
    nothing if it counts already.

    Parameters
    ----------
    device_id : int
        The device.

    Raises
    ------
    TypeError, ValueError
        This is not the number of a device.
    RuntimeError
        The runtime was made before, without statistics: its resource cannot be replaced.

    Notes
    -----
    Thread-safe.

    Examples
    --------
    >>> xlogmem.statistics.enable_statistics()      # before the process's runtime is first used    # doctest: +SKIP
    """
    number = parse_device_id(device_id)
    if 0 <= number < MAX_DEVICES and existing_runtime(number) is None:
        counting = DeviceRuntime(number, resource=StatisticsResourceAdaptor(default_resource(number)))
        with suppress(RuntimeError):                    # another thread was faster
            set_runtime(counting)
    _adaptor(get_runtime(number))


def get_statistics(*, runtime: DeviceRuntime | None = None) -> Statistics:
    """The counters since the last push.

    Parameters
    ----------
    runtime : DeviceRuntime, optional
        The default is the process's own for device 0.

    Raises
    ------
    TypeError
        It is not a `DeviceRuntime`.
    RuntimeError
        It counts no statistics (RMM's function gives None then).

    Examples
    --------
    >>> counted = xlogmem.StatisticsResourceAdaptor(xlogmem.AsyncMemoryResource())
    >>> runtime = xlogmem.DeviceRuntime(resource=counted)
    >>> runtime.allocate(1000).free()
    >>> xlogmem.statistics.get_statistics(runtime=runtime).total_bytes
    1000
    """
    return _adaptor(runtime).allocation_counts


def push_statistics(*, runtime: DeviceRuntime | None = None) -> Statistics:
    """Begin to count from zero; gives the counters before.  See `StatisticsResourceAdaptor.push_counters`, and
    `get_statistics` for the parameter and errors.

    Examples
    --------
    >>> counted = xlogmem.StatisticsResourceAdaptor(xlogmem.AsyncMemoryResource())
    >>> runtime = xlogmem.DeviceRuntime(resource=counted)
    >>> runtime.allocate(1000).free()
    >>> xlogmem.statistics.push_statistics(runtime=runtime).total_count     # before the push
    1
    """
    return _adaptor(runtime).push_counters()


def pop_statistics(*, runtime: DeviceRuntime | None = None) -> Statistics:
    """End the scope of the last push, and return its counters.  See `StatisticsResourceAdaptor.pop_counters`, and
    `get_statistics` for the parameter and errors.

    Examples
    --------
    >>> counted = xlogmem.StatisticsResourceAdaptor(xlogmem.AsyncMemoryResource())
    >>> runtime = xlogmem.DeviceRuntime(resource=counted)
    >>> before = xlogmem.statistics.push_statistics(runtime=runtime)
    >>> runtime.allocate(1000).free()
    >>> xlogmem.statistics.pop_statistics(runtime=runtime).total_count
    1
    """
    return _adaptor(runtime).pop_counters()


@contextmanager
def statistics(*, runtime: DeviceRuntime | None = None) -> Iterator[StatisticsResourceAdaptor]:
    """Count from zero inside: a push at the beginning, and a pop at the end.

    Gives the adaptor, whose `allocation_counts` are those since the beginning.  See `get_statistics` for the parameter
    and errors.

    Examples
    --------
    >>> counted = xlogmem.StatisticsResourceAdaptor(xlogmem.AsyncMemoryResource())
    >>> runtime = xlogmem.DeviceRuntime(resource=counted)
    >>> with xlogmem.statistics.statistics(runtime=runtime) as inside:
    ...     runtime.allocate(1000).free()
    ...     print(inside.allocation_counts.total_bytes)
    1000
    """
    adaptor = _adaptor(runtime)
    adaptor.push_counters()
    try:
        yield adaptor
    finally:
        adaptor.pop_counters()


# ---------------------------------------------------------------------------------------------- the profiler
class ProfilerRecords:
    """Records of a profiler, by name.  Thread-safe.

    Examples
    --------
    >>> counted = xlogmem.StatisticsResourceAdaptor(xlogmem.AsyncMemoryResource())
    >>> runtime = xlogmem.DeviceRuntime(resource=counted)
    >>> records = xlogmem.statistics.ProfilerRecords()
    >>> with xlogmem.statistics.profiler(records=records, name="load", runtime=runtime):
    ...     runtime.allocate(1000).free()
    >>> records.records["load"].memory_total
    1000
    """

    @dataclass
    class MemoryRecord:
        """One part of a program.

        Attributes
        ----------
        num_calls : int
            How often it ran.
        memory_total : int
            Bytes that were allocated inside, of all runs.
        memory_peak : int
            The most that was allocated inside at a time, in bytes, of any run.
        """

        num_calls: int = 0
        memory_total: int = 0
        memory_peak: int = 0

        def add(self, memory_total: int, memory_peak: int) -> None:
            """One run more."""
            self.num_calls += 1
            self.memory_total += memory_total
            self.memory_peak = max(self.memory_peak, memory_peak)

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._records: dict[str, ProfilerRecords.MemoryRecord] = {}

    def add(self, name: str, data: Statistics) -> None:
        """Record one run of `name`: its counters."""
        with self._lock:
            self._records.setdefault(name, ProfilerRecords.MemoryRecord()).add(data.total_bytes, data.peak_bytes)

    @property
    def records(self) -> dict[str, MemoryRecord]:
        """A copy, by name."""
        with self._lock:
            return {name: replace(record) for name, record in self._records.items()}

    def report(self, ordered_by: str = "memory_peak") -> str:
        """A table for a person.

        Parameters
        ----------
        ordered_by : {"memory_peak", "memory_total", "num_calls"}
            The largest first.
        """
        if ordered_by not in ("memory_peak", "memory_total", "num_calls"):
            raise ValueError(f"ordered_by={ordered_by!r} is unknown; choose memory_peak, memory_total or num_calls")
        lines = ["Memory Profiling", "================", ""]
        rows = sorted(self.records.items(), key=lambda row: -getattr(row[1], ordered_by))
        if not rows:
            return "\n".join([*lines, "No data: nothing that is profiled has run on a runtime that counts statistics"])
        lines += ["Legends:",
                  "  ncalls       - how often the function or code block was called",
                  "  memory_peak  - the most that was allocated inside at a time, in bytes",
                  "  memory_total - all that was allocated inside, in bytes",
                  "", f"Ordered by: {ordered_by}", "",
                  "ncalls     memory_peak    memory_total  filename:lineno(function)"]
        return "\n".join(lines + [f"{record.num_calls:6,d} {record.memory_peak:15,d} {record.memory_total:15,d}  "
                                  f"{printable(name)}"
                                  for name, record in rows])

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.records})"


default_profiler_records = ProfilerRecords()


class ProfilerContext:
    """A decorator and a context manager that records a part of a program; `profiler` makes it.

    One object may be entered again inside itself, by one thread.

    Examples
    --------
    >>> counted = xlogmem.StatisticsResourceAdaptor(xlogmem.AsyncMemoryResource())
    >>> runtime = xlogmem.DeviceRuntime(resource=counted)
    >>> records = xlogmem.statistics.ProfilerRecords()
    >>> @xlogmem.statistics.profiler(records=records, name="step", runtime=runtime)
    ... def step():
    ...     runtime.allocate(1000).free()
    >>> step()
    >>> "step" in records.report()
    True
    """

    def __init__(self, records: ProfilerRecords, name: str, runtime: DeviceRuntime | None) -> None:
        self._records = records
        self._name = name
        self._runtime = runtime
        self._entered: list[StatisticsResourceAdaptor | None] = []

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        name = self._name or _described(function)
        if inspect.isasyncgenfunction(function):
            raise TypeError(f"{name} is an asynchronous generator, which the profiler does not support: profile the "
                            "functions that it calls, or use the profiler as a context manager around parts of it")
        wrapper: Callable[..., Any]
        if inspect.iscoroutinefunction(function):
            async def coroutine(*args: Any, **kwargs: Any) -> Any:
                return await _awaited(_stepped(function(*args, **kwargs), self._records, name, self._runtime))
            wrapper = coroutine
        elif inspect.isgeneratorfunction(function):
            def generator(*args: Any, **kwargs: Any) -> Any:
                return (yield from _stepped(function(*args, **kwargs), self._records, name, self._runtime))
            wrapper = generator
        else:
            def plain(*args: Any, **kwargs: Any) -> Any:
                with ProfilerContext(self._records, name, self._runtime):
                    return function(*args, **kwargs)
            wrapper = plain
        return cast("Callable[P, R]", functools.wraps(function)(wrapper))

    def __enter__(self) -> ProfilerContext:
        if not self._name:
            raise ValueError("a profiler that is used as a context manager needs a name: profiler(name=...)")
        adaptor = _counting(self._runtime)
        if adaptor is not None:
            adaptor.push_counters()
        self._entered.append(adaptor)
        return self

    def __exit__(self, kind: type[BaseException] | None, exception: BaseException | None,
                 traceback: TracebackType | None) -> None:
        adaptor = self._entered.pop()
        if adaptor is not None:
            self._records.add(self._name, adaptor.pop_counters())


def _counting(runtime: DeviceRuntime | None) -> StatisticsResourceAdaptor | None:
    """The adaptor whose counters a profiler uses now; None: nothing counts."""
    runtime = runtime if runtime is not None else existing_runtime(0)
    return _find(runtime) if runtime is not None else None


class _Slices:
    """The counters of a part of a program that is suspended at times: what else runs meanwhile is left out."""

    def __init__(self, runtime: DeviceRuntime | None) -> None:
        self._runtime = runtime
        self._adaptor: StatisticsResourceAdaptor | None = None
        self._ran = False
        self._now = self._peak = self._total = 0

    def __enter__(self) -> None:
        self._adaptor = _counting(self._runtime)
        if self._adaptor is not None:
            self._adaptor.push_counters()

    def __exit__(self, *_: object) -> None:
        if self._adaptor is not None:
            counted = self._adaptor.pop_counters()
            self._peak = max(self._peak, self._now + counted.peak_bytes)
            self._now += counted.current_bytes
            self._total += counted.total_bytes
            self._ran = True

    def add_to(self, records: ProfilerRecords, name: str) -> None:
        if self._ran:
            records.add(name, Statistics(self._now, 0, self._peak, 0, self._total, 0))


def _stepped(inner: Any, records: ProfilerRecords, name: str, runtime: DeviceRuntime | None
             ) -> Generator[Any, Any, Any]:
    """Run a generator or a coroutine to its end, step by step, and record what its steps allocate."""
    slices = _Slices(runtime)
    step, argument = inner.send, None
    try:
        while True:
            try:
                with slices:
                    given = step(argument)
            except StopIteration as end:
                return end.value
            try:
                step, argument = inner.send, (yield given)
            except GeneratorExit:
                with slices:
                    inner.close()
                raise
            except BaseException as error:
                step, argument = inner.throw, error
    finally:
        slices.add_to(records, name)


@types.coroutine
def _awaited(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    return (yield from steps)


def _described(function: Callable[..., object]) -> str:
    """File, line and name."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = getattr(function, "__qualname__", repr(function))
    return f"{code.co_filename}:{code.co_firstlineno}({name})" if code is not None else name


def profiler(*, records: ProfilerRecords = default_profiler_records, name: str = "",
             runtime: DeviceRuntime | None = None) -> ProfilerContext:
    """Record the allocations of a function or a part of a program; a decorator or a context manager.

    Does nothing where the runtime counts no statistics, or was not made yet, so that it may stay in a program.

    Parameters
    ----------
    records : ProfilerRecords, optional
        Where to.
    name : str, optional
        Of the record.  A context manager needs one; a function's is its file, line and name.
    runtime : DeviceRuntime, optional
        The default is the process's own for device 0, at the time of each call.

    Notes
    -----
    All threads share the counters.  Parts that run in several threads at a time record each other's allocations, and a
    context manager those made while its generator or coroutine is suspended.  Decorated generators and coroutines
    record their own allocations while they run, all of a run together; asynchronous generators are refused.

    Examples
    --------
    >>> @xlogmem.statistics.profiler()
    ... def step():
    ...     xlogmem.get_runtime().allocate(1000).free()
    >>> step()
    """
    return ProfilerContext(records, name, runtime)
