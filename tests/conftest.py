"""What every test has to leave intact, and the fixtures of all of them.

Where a GPU is present the suite runs on it and skips what only the simulated driver can answer; elsewhere it is the
other way round.  XLOGMEM_REQUIRE_CUDA=1 turns the skips for want of a GPU into failures.
"""
from __future__ import annotations

import gc
import importlib.util
import os
import sys
import tempfile

import pytest
from capsules import settle
from cuda.bindings import driver as cuda
from four_streams import FourStreams
from promises import Ledger
from which_driver import REQUIRE_CUDA, SIMULATED

from xlogmem import DeviceRuntime, DeviceState, _driver, sim
from xlogmem import runtime as runtimes
from xlogmem.blocks import unfinished_runtimes
from xlogmem.interop import devices
from xlogmem.sim.kernels import Kernels, check

# docs/ordering.md, no-call-under-lock: what may be called by a thread that has the GIL.
WITH_GIL = {"cuStreamIsCapturing", "cuGetErrorName", "cuGetErrorString"}


def keep_bytecode(config: pytest.Config) -> None:
    """Where no bytecode is to be written beside the sources, a folder of this run has it: each child process would
    compile everything that it imports."""
    folder = tempfile.TemporaryDirectory(prefix="xlogmem-bytecode-", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = folder.name     # workers of pytest-xdist have it from here


def pytest_configure(config: pytest.Config) -> None:
    if sys.dont_write_bytecode:
        keep_bytecode(config)
    if importlib.util.find_spec("xlogmem_bench") is None:
        raise pytest.UsageError("the tests use the package xlogmem-bench: pip install -e ./benchmarks")
    if os.environ.get("XLOGMEM_DEFECT") and _driver.BUILD == "release":
        raise pytest.UsageError("XLOGMEM_DEFECT is set, but a release build has no planted defects: "
                                "XLOGMEM_BUILD=debug pip install -e .")
    config.pluginmanager.register(Ledger(), "promises")


def pytest_report_header(config: pytest.Config) -> str:
    kind = "SIMULATED, no GPU is involved" if SIMULATED else _driver.device_name(0)
    return f"driver: {kind} (CUDA {'.'.join(map(str, _driver.driver_version()))}), build: {_driver.BUILD}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if SIMULATED and item.get_closest_marker("gpu"):
        if REQUIRE_CUDA:
            pytest.fail("needs a GPU, and XLOGMEM_REQUIRE_CUDA is set", pytrace=False)
        pytest.skip("needs a GPU")
    if not SIMULATED and (item.get_closest_marker("simulator") or "driver" in getattr(item, "fixturenames", ())):
        pytest.skip("needs the simulated driver")


def pytest_terminal_summary(terminalreporter, exitstatus, config) -> None:
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    for reason, name in (("needs a GPU", "GPU tests skipped, no GPU here"),
                         ("needs RMM", "RMM tests skipped, no RMM here"),
                         ("needs prometheus_client", "tests of metrics skipped, no prometheus_client here"),
                         ("needs distributed", "tests of Dask's workers skipped, no distributed here"),
                         ("needs Sybil", "code blocks of the pages not run, no Sybil here"),
                         ("needs nvtx", "tests of ranges skipped, no nvtx here"),
                         ("needs pyarrow", "Arrow tests skipped, no pyarrow here"),
                         ("needs another library", "round trips skipped, the other library is not here"),
                         ("needs a checked library", "checks of other libraries skipped, the library is not here"),
                         ("needs a builder", "native examples not built, a tool is not here"),
                         ("needs PyTorch's reader", "snapshots not read by PyTorch, its reader is not here"),
                         ("needs Perfetto", "traces not read by Perfetto, it is not here"),
                         ("needs a browser", "pages not looked at, no browser here"),
                         ("needs cuDF", "cuDF tests skipped, no cuDF here"),
                         ("needs UCXX", "sends of UCXX not tried, no UCXX here"),
                         ("needs Polars", "queries not tried, no Polars here"),
                         ("needs the simulated driver", "simulator tests skipped, a GPU is here")):
        if count := sum(reason in text for text in skipped):
            terminalreporter.write_line(f"{name}: {count}")


@pytest.fixture(scope="session")
def _context():
    """The primary context of device 0, current in the tests' thread."""
    device = check(cuda.cuDeviceGet(0))
    context = check(cuda.cuDevicePrimaryCtxRetain(device))
    check(cuda.cuCtxSetCurrent(context))
    yield context
    check(cuda.cuCtxSetCurrent(cuda.CUcontext(0)))


def events_in_use() -> list[int]:
    """Of each device."""
    return [_driver.live_events(device_id)[0] for device_id in range(_driver.device_count())]


@pytest.fixture(autouse=True)
def _clean_driver(_context, request):
    """Nothing is left behind by a test: no race, no byte, no event, no change of the current context."""
    if SIMULATED:
        sim.simulator().reset("eager")
        sim.simulator().watch_gil()
        bytes_before = sim.simulator().live_bytes()
    events_before = events_in_use()
    yield
    races = []
    if SIMULATED:
        races += sim.simulator().races()
        with_gil = sim.simulator().calls_with_gil().keys() - WITH_GIL
        if request.node.get_closest_marker("with_gil"):
            with_gil = set()
        sim.simulator().reset("eager")                  # releases callbacks, which hold what they use
    gc.collect()
    if unfinished_runtimes():                           # those that ended and may not wait in their finalizer
        DeviceRuntime().reap_pending()
    assert not unfinished_runtimes(), "an ended runtime has something left"
    if not hasattr(sys, "last_traceback"):              # the frames of a failed test hold what it leaves, for a while
        gc.freeze()                                     # what outlives a test need not be walked after every later one
    check(cuda.cuCtxSynchronize())
    assert int(check(cuda.cuCtxGetCurrent())) == int(_context), "the test changed the current context"
    assert events_in_use() == events_before, "events leaked"
    if SIMULATED:
        races += sim.simulator().races()
        sim.simulator().reset("eager")
        assert not races, f"races: {races}"
        assert not with_gil, f"driver calls that keep other threads from the GIL: {with_gil}"
        assert sim.simulator().live_bytes() == bytes_before, "device memory leaked"


@pytest.fixture
def _busy_interpreter():
    """Switch threads and collect garbage all the time."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-5)
    gc.set_threshold(1)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)


@pytest.fixture
def kernels(_context):
    """The small kernels that tests launch, until everything queued is done."""
    kernels = Kernels()
    yield kernels
    check(cuda.cuCtxSynchronize())
    kernels.close()


@pytest.fixture
def state():
    """A device state with a runtime of its own."""
    state = DeviceState(DeviceRuntime())
    yield state
    state.__dict__.clear()                              # pytest keeps the state, which must not keep the runtime


@pytest.fixture
def _own(monkeypatch):
    """As if the process had neither runtimes of its own nor states: what a test leaves there is seen by later tests."""
    monkeypatch.setattr(runtimes, "_runtimes", [None] * runtimes.MAX_DEVICES)
    monkeypatch.setattr(devices, "_own", {})
    yield
    settle()
    for own in filter(None, runtimes._runtimes):
        own.reap_pending()


@pytest.fixture
def memory():
    """4 KiB of untracked memory."""
    ptr = int(check(cuda.cuMemAlloc(4096)))
    yield ptr
    check(cuda.cuCtxSynchronize())
    check(cuda.cuMemFree(ptr))


@pytest.fixture
def driver():
    """The simulated driver, with its switches."""
    return sim.simulator()


@pytest.fixture
def four(driver):
    """Makes runtimes with four streams (`FourStreams`), which are closed at the end."""
    made = []

    def make(**options: str) -> FourStreams:
        made.append(FourStreams(driver, **options))
        return made[-1]

    yield make
    for x in made:
        x.close()
