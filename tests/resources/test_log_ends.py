"""Logs and reports at the ends of processes, of adaptors and of files."""
from __future__ import annotations

import gc
import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from sim_support import python
from which_driver import SIMULATED
from xlogmem_bench.programs import Addresses

from xlogmem import DeviceRuntime, LoggingResourceAdaptor

WORKER = """
import multiprocessing, os, sys, xlogmem

def work(folder, method):
    log = xlogmem.LoggingResourceAdaptor(xlogmem.AsyncMemoryResource(), f"{folder}/{method}.json")
    tracker = xlogmem.TrackingResourceAdaptor(log, report_at_exit=True)
    global kept
    kept = [xlogmem.DeviceRuntime(resource=tracker)]
    kept += [kept[0].allocate(100) for _ in range(1000)]

if __name__ == "__main__":
    folder, method = sys.argv[1:]
    if method == "os.fork":
        if not os.fork():
            work(folder, method)
            sys.exit(0)
        os.wait()
    else:
        process = multiprocessing.get_context(method).Process(target=work, args=(folder, method))
        process.start()
        process.join()
        sys.exit(process.exitcode)
"""


@pytest.mark.skipif(not SIMULATED, reason="needs the simulated driver")
@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork", "os.fork"])
def test_workers_write_their_logs_and_report_their_leaks(method, tmp_path):
    """`multiprocessing` ends them with os._exit.  Those that are forked were only importing xlogmem before."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    done = python("-W", "ignore", str(script), str(tmp_path), method, XLOGMEM_SIMULATE="1")
    assert done.returncode == 0, done.stderr
    rows = (tmp_path / f"{method}.json").read_text().splitlines()
    assert [json.loads(row)["action"] for row in rows] == ["allocate"] * 1000
    assert done.stderr.count("1,000 allocations of 97.7 KiB were not freed before the process ended") == 1


def test_multiprocessing_is_not_imported_for_that():
    done = python("-c", """
import sys
from xlogmem import LoggingResourceAdaptor
from xlogmem_bench.programs import Addresses
log = LoggingResourceAdaptor(Addresses(), [].append)
print("multiprocessing" in sys.modules)
""", XLOGMEM_SIMULATE="1" if SIMULATED else "0")
    assert done.stdout == "False\n", done.stderr


# ---------------------------------------------------------------------------------------------- files
@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_log_that_was_dropped_can_be_opened_again_at_once(form, tmp_path):
    path = tmp_path / f"again.{form}"
    for _ in range(20):
        runtime = DeviceRuntime(resource=LoggingResourceAdaptor(Addresses(), path))
        for _ in range(500):
            runtime.allocate(10).free()
        del runtime
        gc.collect(0)
    log = LoggingResourceAdaptor(Addresses(), path)
    with pytest.raises(ValueError, match="is the log of another adaptor"):
        LoggingResourceAdaptor(Addresses(), path)       # that is not about to end
    log.close()
    assert len(path.read_text().splitlines()) == (form == "csv")


def test_another_program_may_empty_the_file(tmp_path):
    """Logrotate's copytruncate; what is written next begins at the beginning."""
    path = tmp_path / "log.json"
    with LoggingResourceAdaptor(Addresses(), path) as log:
        for _ in range(100):
            log.deallocate(log.allocate(64, 0), 64, 0)
        log.flush()
        os.truncate(path, 0)
        log.allocate(64, 0)
    assert json.loads(path.read_bytes())["bytes"] == 64


# ---------------------------------------------------------------------------------------------- sinks
async def coroutine(record: Any) -> None: ...


def generator(record: Any) -> Any:
    yield record


class Asynchronous:
    async def __call__(self, record: Any) -> None: ...


class Writer(io.StringIO):
    async def write(self, text: str) -> int:            # type: ignore[override]
        return 0


@pytest.mark.parametrize("sink", [coroutine, generator, Asynchronous(), Writer()])
@pytest.mark.parametrize("form", [None, "json"])
def test_a_sink_that_a_call_does_not_run_is_refused(sink, form):
    with pytest.raises(TypeError, match=r"ordinary function.*nothing would run it"):
        LoggingResourceAdaptor(Addresses(), sink, format=form)


def test_an_error_says_how_far_a_slow_sink_is():
    """Within a batch too."""
    seen: list[Any] = []
    goes_on = threading.Event()

    def sink(record: Any) -> None:
        seen.append(record)
        if len(seen) == 300:
            goes_on.wait(30)

    log = LoggingResourceAdaptor(Addresses(), sink)
    for _ in range(1000):
        log.allocate(64, 0)
    while len(seen) < 300:
        pass
    with pytest.raises(TimeoutError, match="has taken 299 of 1000 records"):
        log.flush(timeout=0)
    goes_on.set()
    log.close()
    assert len(seen) == 1000


def test_a_log_whose_sink_cannot_be_opened_leaves_the_file_alone(tmp_path):
    """Nothing is emptied before all else is known to be right."""
    path: Path = tmp_path / "log.csv"
    path.write_text("precious\n")
    for arguments in ((None, path), (Addresses(), path, "xml"), (Addresses(), path, None, 0)):
        with pytest.raises((TypeError, ValueError)):
            LoggingResourceAdaptor(*arguments[:2], **dict(zip(("format", "capacity"), arguments[2:], strict=False)))
    assert path.read_text() == "precious\n"
