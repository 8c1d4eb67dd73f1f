"""A pytest plugin that runs RMM's own tests through `RuntimeMemoryResource`, on a GPU.

    PYTHONPATH=tests/helpers python -m pytest -p rmm_on_xlogmem -W ignore FOLDER/test_device_buffer.py ...

FOLDER is python/rmm/rmm/tests of rapidsai/rmm, at the release that is installed.  Before a test module is imported, and
for the whole run, RMM's own sources of memory are replaced by runtimes of ours: the resources that take memory from
CUDA, also where fixtures of a class or parameters make them, and `rmm.reinitialize`.  So the pools and adaptors that
the tests make stand on us.  Real managed memory is left to the tests that look at where it is (prefetching).

Each test has to leave nothing live in the runtimes that it made, and the run in any.  A test *reaches* xlogmem if a
runtime allocated between its set-up and its end, or if it was handed a resource that stands on a runtime which had
memory for it: fixtures of a class allocate once.  The end of the run says how many did and names the others; fewer than
``RMM_REACH`` (0.9) of those that ran is a failure.
"""
from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import rmm
import rmm.mr

from xlogmem import DeviceRuntime
from xlogmem.rmm import RuntimeMemoryResource

SOURCES = ("CudaMemoryResource", "CudaAsyncMemoryResource", "ManagedMemoryResource", "SystemMemoryResource",
           "SamHeadroomMemoryResource")
BEFORE, LEFT = pytest.StashKey[int](), pytest.StashKey[list[DeviceRuntime]]()
real_managed = rmm.mr.ManagedMemoryResource
real_reinitialize = rmm.reinitialize


class Ledger:
    """The runtimes that were made, and which tests reached one."""

    def __init__(self) -> None:
        self.runtimes: list[DeviceRuntime] = []
        self.allocations = 0                            # of runtimes that are gone
        self.ran: dict[str, bool] = {}                  # by test: did it reach us?
        self.current: DeviceRuntime | None = None       # of the last `rmm.reinitialize`
        self.looks_at_managed = False                   # the test that is running

    def total(self) -> int:
        return self.allocations + sum(runtime.counters()["allocations"] for runtime in self.runtimes)

    def forget(self, runtimes: list[DeviceRuntime]) -> None:
        for runtime in runtimes:
            self.allocations += runtime.counters()["allocations"]
            self.runtimes.remove(runtime)


ledger = Ledger()


class Source(RuntimeMemoryResource):
    """What RMM's sources of memory are replaced by: a runtime each; their arguments do not matter."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        ledger.runtimes.append(DeviceRuntime())
        return super().__new__(cls, ledger.runtimes[-1])

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class ManagedSource(Source):
    def __new__(cls, *_: Any, **__: Any) -> Any:
        return real_managed() if ledger.looks_at_managed else super().__new__(cls)


def reinitialize(pool_allocator: bool = False, managed_memory: bool = False, initial_pool_size: Any = None,
                 maximum_pool_size: Any = None, devices: Any = 0, **options: Any) -> None:
    """`rmm.reinitialize` makes its resources in C, out of reach of a patch."""
    if (managed_memory and ledger.looks_at_managed) or devices not in (0, [0]) or any(options.values()):
        real_reinitialize(pool_allocator, managed_memory, initial_pool_size, maximum_pool_size, devices, **options)
        return
    for function, arguments, keywords in reversed(sys.modules["rmm.rmm"]._reinitialize_hooks):
        function(*arguments, **keywords)
    source: Any = Source()
    ledger.current = source.runtime
    if pool_allocator:
        source = rmm.mr.PoolMemoryResource(source, initial_pool_size=initial_pool_size,
                                           maximum_pool_size=maximum_pool_size)
    rmm.mr.set_current_device_resource(source)


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module, which may keep what it finds here in parameters."""
    for name in SOURCES:
        if hasattr(rmm.mr, name):
            setattr(rmm.mr, name, ManagedSource if name == "ManagedMemoryResource" else Source)
    rmm.reinitialize = sys.modules["rmm.rmm"].reinitialize = reinitialize
    rmm.reinitialize()


# ---------------------------------------------------------------------------------------------- each test
def stands_on_us(resource: Any) -> bool:
    """Whether a resource that a fixture made has taken memory from a runtime of ours."""
    for _ in range(8):
        if isinstance(resource, RuntimeMemoryResource):
            return resource.runtime.live_bytes > 0
        resource = getattr(resource, "upstream_mr", None)
    return False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    ledger.looks_at_managed = "prefetch" in item.nodeid
    item.stash[BEFORE] = ledger.total()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    try:
        result = yield
    except pytest.skip.Exception:
        raise
    except BaseException:
        note(item)
        raise
    note(item)
    return result


def note(item: pytest.Item) -> None:
    values = getattr(item, "funcargs", {}).values()
    ledger.ran[item.nodeid] = ledger.total() > item.stash[BEFORE] or any(map(stands_on_us, values))


@pytest.fixture(autouse=True)
def _through_xlogmem() -> Iterator[None]:
    before = len(ledger.runtimes)                       # those of fixtures of the class are there already
    first = ledger.current
    yield
    rmm.reinitialize()                                  # drops the resource that the test made current
    gc.collect()
    own = [runtime for runtime in [first, *ledger.runtimes[before:]] if runtime is not ledger.current]
    for runtime in own:
        runtime.reap_pending()
    left = [runtime for runtime in own if runtime.live_bytes]
    ledger.forget([runtime for runtime in own if not runtime.live_bytes])
    assert not left, f"the test left memory behind: {left}"


# ---------------------------------------------------------------------------------------------- the run
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reached = sum(ledger.ran.values())
    least = float(os.environ.get("RMM_REACH", "0.9"))
    rmm.reinitialize()                                  # after the fixtures of the last class
    gc.collect()
    for runtime in ledger.runtimes:
        runtime.reap_pending()
    left = [runtime for runtime in ledger.runtimes if runtime.live_bytes]
    if left or (ledger.ran and reached < least * len(ledger.ran)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    session.config.stash[LEFT] = left


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    reached, missed = sum(ledger.ran.values()), Counter(
        name.split("[")[0] for name, reaches in ledger.ran.items() if not reaches)
    for name, count in missed.items():
        terminalreporter.write_line(f"never allocates through xlogmem: {name} ({count})")
    for runtime in config.stash.get(LEFT, []):
        terminalreporter.write_line(f"memory is left behind in {runtime}")
    terminalreporter.write_line(f"RMM's own tests: {reached} of {len(ledger.ran)} reach xlogmem, "
                                f"{ledger.total()} allocations")
