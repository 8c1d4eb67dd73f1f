"""`xlogmem.statistics`: counters by part of a program."""
from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys

import pytest
from c_table import ENVIRONMENT

from xlogmem import (
    AsyncMemoryResource,
    DeviceRuntime,
    LimitingResourceAdaptor,
    PoolMemoryResource,
    StatisticsResourceAdaptor,
    statistics,
)
from xlogmem._driver import device_count
from xlogmem.resources import Statistics


def counting():
    adaptor = StatisticsResourceAdaptor(AsyncMemoryResource())
    return adaptor, DeviceRuntime(resource=adaptor)


def test_statistics_in_a_context():
    adaptor, runtime = counting()
    outer = runtime.allocate(1000)
    with statistics.statistics(runtime=runtime) as counted:
        runtime.allocate(100).free()
        assert counted is adaptor
        assert statistics.get_statistics(runtime=runtime) == Statistics(0, 0, 100, 1, 100, 1)
    assert statistics.get_statistics(runtime=runtime) == Statistics(1000, 1, 1100, 2, 1100, 2)
    assert statistics.push_statistics(runtime=runtime).current_bytes == 1000
    assert statistics.pop_statistics(runtime=runtime) == Statistics(0, 0, 0, 0, 0, 0)
    outer.free()


def test_statistics_are_found_below_other_resources():
    adaptor = StatisticsResourceAdaptor(AsyncMemoryResource())
    runtime = DeviceRuntime(resource=PoolMemoryResource(LimitingResourceAdaptor(adaptor, "1GiB")))
    with statistics.statistics(runtime=runtime) as counted:
        assert counted is adaptor


def test_a_runtime_without_statistics_is_an_error_that_says_what_to_do():
    runtime = DeviceRuntime()
    for function in (statistics.get_statistics, statistics.push_statistics, statistics.pop_statistics):
        with pytest.raises(RuntimeError, match=r"resource=xlogmem\.StatisticsResourceAdaptor"):
            function(runtime=runtime)
    with pytest.raises(RuntimeError, match="enable_statistics"), statistics.statistics(runtime=runtime):
        pass


def test_profiler():
    _, runtime = counting()
    records = statistics.ProfilerRecords()

    @statistics.profiler(records=records, runtime=runtime)
    def step(nbytes):
        """Says what it does."""
        block = runtime.allocate(nbytes)
        runtime.allocate(50).free()
        block.free()
        return nbytes

    assert [step(100), step(300)] == [100, 300]
    assert step.__doc__ == "Says what it does."
    with statistics.profiler(records=records, name="outer", runtime=runtime):
        step(10)
        runtime.allocate(1000).free()
    (name, of_step), (outer, of_outer) = records.records.items()
    assert name.endswith("step)")
    assert ".py:" in name
    assert (of_step.num_calls, of_step.memory_peak, of_step.memory_total) == (3, 350, 560)
    assert (outer, of_outer.num_calls, of_outer.memory_peak, of_outer.memory_total) == ("outer", 1, 1000, 1060)
    lines = records.report().splitlines()
    assert lines[0] == "Memory Profiling"
    assert [line.split()[0] for line in lines[-2:]] == ["1", "3"]
    assert "1,000" in lines[-2]
    assert lines[-2].endswith("  outer")
    assert records.report("num_calls").splitlines()[-1].endswith("outer")
    assert str(records) == records.report()
    with pytest.raises(ValueError, match="memory_peak"):
        records.report("bytes")


def test_a_profiler_records_what_raises_and_needs_a_name_as_a_context():
    _, runtime = counting()
    records = statistics.ProfilerRecords()
    with pytest.raises(ZeroDivisionError), statistics.profiler(records=records, name="a", runtime=runtime):
        runtime.allocate(10).free()
        raise ZeroDivisionError
    assert records.records["a"].memory_total == 10
    with pytest.raises(ValueError, match="name="), statistics.profiler(records=records, runtime=runtime):
        pass


def test_a_profiler_does_nothing_without_statistics():
    records = statistics.ProfilerRecords()
    with statistics.profiler(records=records, name="a", runtime=DeviceRuntime()):
        pass
    assert records.records == {}
    assert "No data" in records.report()


PROGRAM = """
import xlogmem
from xlogmem import statistics

@statistics.profiler()
def step():
    xlogmem.get_runtime().allocate(1 << 20).free()

statistics.enable_statistics()
statistics.enable_statistics()
step()
assert statistics.get_statistics().total_bytes == 1 << 20
print(statistics.default_profiler_records.report())
for wrong in ({"device_id": 99}, {"device_id": "0"}):
    try:
        statistics.enable_statistics(**wrong)
    except (TypeError, ValueError) as error:
        print(error)
"""
SECOND = """
statistics.enable_statistics(device_id=1)
xlogmem.get_runtime(1).allocate(64).free()
print(statistics.get_statistics(runtime=xlogmem.get_runtime(1)).total_count, "on device 1")
"""
LATE = """
import xlogmem
from xlogmem import statistics
xlogmem.get_runtime()
try:
    statistics.enable_statistics()
except RuntimeError as error:
    print(error)
"""


def test_the_processs_own_runtime_with_statistics():
    def output(program):
        return subprocess.run([sys.executable, "-c", program], env={**os.environ, **ENVIRONMENT}, text=True,
                              capture_output=True, check=True).stdout

    report = output(PROGRAM)
    assert "     1       1,048,576       1,048,576  <string>:5(step)" in report
    for said in ("from 0 to 15, got 99", "device_id must be an int"):
        assert said in report
    if device_count() > 1:
        assert "1 on device 1" in output(PROGRAM + SECOND)
    assert "cannot be replaced" in output(LATE)


def test_coroutines_record_what_they_allocate_themselves():
    """Not what others do while they are suspended, however they take turns."""
    _, runtime = counting()
    records = statistics.ProfilerRecords()
    kept = []

    @statistics.profiler(records=records, name="work", runtime=runtime)
    async def work(nbytes: int, turns: int) -> int:
        """Named."""
        kept.append(runtime.allocate(nbytes))
        for _ in range(turns):
            await asyncio.sleep(0)
            runtime.allocate(1 << 20).free()
        return nbytes

    async def both() -> list[int]:
        return await asyncio.gather(work(1000, 3), work(10, 1))

    assert inspect.iscoroutinefunction(work)
    assert work.__doc__ == "Named."
    with statistics.statistics(runtime=runtime) as counted:
        assert asyncio.run(both()) == [1000, 10]
        assert counted.allocation_counts.total_bytes == 1010 + (4 << 20)
    (record,) = records.records.values()
    assert (record.num_calls, record.memory_total) == (2, 1010 + (4 << 20))
    assert record.memory_peak == 1000 + (1 << 20)
    for block in kept:
        block.free()


def test_generators_record_their_steps():
    _, runtime = counting()
    records = statistics.ProfilerRecords()
    closed = []

    @statistics.profiler(records=records, name="steps", runtime=runtime)
    def steps():
        try:
            runtime.allocate(100).free()
            got = yield 1
            runtime.allocate(got).free()
            try:
                yield 2
            except KeyError:
                runtime.allocate(5000).free()
            yield 3
            return "end"
        finally:
            closed.append(True)
            runtime.allocate(7).free()

    assert inspect.isgeneratorfunction(steps)
    run = steps()
    assert next(run) == 1
    runtime.allocate(1 << 20).free()                    # of the caller
    with statistics.statistics(runtime=runtime) as counted:
        assert counted.allocation_counts.total_bytes == 0
    assert run.send(10) == 2
    assert run.throw(KeyError()) == 3
    with pytest.raises(StopIteration, match="end"):
        next(run)
    record = records.records["steps"]
    assert (record.num_calls, record.memory_total, record.memory_peak) == (1, 5117, 5000)
    run = steps()
    next(run)
    run.close()                                         # and one that is not run to its end
    assert closed == [True, True]
    assert records.records["steps"].num_calls == 2
    with pytest.raises(ZeroDivisionError):
        failing(records, runtime)
    assert records.records["failing"].memory_total == 9


def failing(records, runtime):
    @statistics.profiler(records=records, name="failing", runtime=runtime)
    def steps():
        runtime.allocate(9).free()
        yield 1 // 0

    list(steps())


def test_asynchronous_generators_are_refused():
    with pytest.raises(TypeError, match="asynchronous generator"):
        @statistics.profiler()
        async def steps():
            yield


def test_the_package_has_it_without_an_import_of_its_own():
    done = subprocess.run([sys.executable, "-c", "import xlogmem; print(xlogmem.statistics.profiler.__name__); "
                           "xlogmem.no_such_name"], env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True,
                          check=False)
    assert done.stdout == "profiler\n"
    assert "AttributeError: module 'xlogmem' has no attribute 'no_such_name'" in done.stderr
