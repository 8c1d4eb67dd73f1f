"""`xlogmem.statistics`: counters by part of a program."""
from __future__ import annotations

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
try:
    statistics.enable_statistics(99)
except ValueError as error:
    print(error)
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
    assert "exceeds MAX_DEVICE_ORDINALS" in report
    assert "cannot be replaced" in output(LATE)
