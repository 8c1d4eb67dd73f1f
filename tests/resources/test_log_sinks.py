"""The sinks of a log: those that fail, block or use the runtime, and the end of a log."""
from __future__ import annotations

import gc
import io
import json
import logging
import os
import threading
import time

import pytest
from forking import outcomes
from stress import PATIENCE, in_its_own_process
from which_driver import SIMULATED
from xlogmem_bench.programs import Addresses

from xlogmem import AsyncMemoryResource, DeviceRuntime, LoggingResourceAdaptor, PoolMemoryResource

needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")


def pairs(resource, count):
    for _ in range(count):
        resource.deallocate(resource.allocate(64, 0), 64, 0)


class Gate:
    """A sink that blocks while it is closed."""

    def __init__(self) -> None:
        self.entered, self.opened, self.records = threading.Event(), threading.Event(), []

    def __call__(self, record: object) -> None:
        self.entered.set()
        assert self.opened.wait(PATIENCE)
        self.records.append(record)


def log_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "xlogmem log"}


# ---------------------------------------------------------------------------------------------- bad sinks
def test_a_blocked_sink_delays_no_allocation_and_drops_are_counted():
    gate = Gate()
    log = LoggingResourceAdaptor(PoolMemoryResource(), gate, capacity=8)
    runtime = DeviceRuntime(resource=log)
    block = runtime.allocate(64)
    assert gate.entered.wait(PATIENCE)                  # the sink has the first record, the ring is empty
    for _ in range(50):
        runtime.allocate(64).free()
    assert log.dropped_records == 92
    with pytest.raises(TimeoutError, match="the sink has taken 0 of 9"):
        log.flush(timeout=.01)
    gate.opened.set()
    assert log.flush() == 92
    assert len(gate.records) == 9
    block.free()
    assert log.flush() == 92
    assert len(gate.records) == 10


@pytest.mark.promise(140, 141)
@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, MemoryError])
def test_a_sink_that_raises_is_counted_and_reported_once(caplog, error):
    def sink(record):
        if record.action == "free":
            raise error("not today")
        kept.append(record)

    kept = []
    log = LoggingResourceAdaptor(Addresses(), sink)
    pairs(log, 10)
    assert log.flush() == 10
    said = said_by_xlogmem(caplog)
    assert len(said) == 1
    pairs(log, 10)
    assert log.flush() == log.dropped_records == 20
    assert [row.action for row in kept] == ["allocate"] * 20
    assert said_by_xlogmem(caplog) == said
    assert "not today" in said[0]


def said_by_xlogmem(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "xlogmem"]


def test_a_sink_may_use_the_runtime():
    """Its own calls are not logged: each record would make others."""
    runtime = None

    def sink(record):
        records.append(record)
        runtime.allocate(128, tag="of the sink").free()
        runtime.reap_pending()

    records = []
    log = LoggingResourceAdaptor(AsyncMemoryResource(), sink)
    runtime = DeviceRuntime(resource=log)
    for _ in range(20):
        runtime.allocate(64).free()
    assert log.flush() == 0
    assert [row.bytes for row in records] == [64] * 40
    assert runtime.counters()["allocations"] == 60
    log.close()
    runtime = None                                      # the sink keeps the runtime, and that the log


def test_a_sink_that_waits_for_its_own_log_is_refused(caplog):
    errors = []

    def sink(record):
        try:
            log.flush()
        except RuntimeError as error:
            errors.append(str(error))
            raise

    log = LoggingResourceAdaptor(Addresses(), sink)
    pairs(log, 1)
    assert log.flush() == 2
    assert len(errors) == 2
    log.close()


def test_a_sink_may_close_its_log():
    records = []

    def sink(record):
        records.append(record)
        log.close()

    log = LoggingResourceAdaptor(Addresses(), sink)
    pairs(log, 3)
    log.close()
    assert len(records) + log.dropped_records == 6
    assert records


@needs_full
def test_a_full_disk_is_counted(caplog):
    with pytest.raises(OSError, match="No space left"):
        LoggingResourceAdaptor(Addresses(), "/dev/full", format="rmm")
    with LoggingResourceAdaptor(Addresses(), "/dev/full") as log:
        pairs(log, 5)
        assert log.flush() == 10
    assert "No space left" in caplog.text


def test_half_a_row_is_taken_out_of_the_file(tmp_path, monkeypatch):
    """A disk that is full for a while leaves rows that can be read."""
    from xlogmem.resources import sinks

    sink = sinks.opened(tmp_path / "log.csv", None)

    class Filling:
        def __init__(self, file):
            self.file, self.room = file, 4

        def write(self, content):
            if not self.room:
                raise OSError(28, "No space left on device")
            written, self.room = self.file.write(content[:self.room]), 0
            return written

        def __getattr__(self, name):
            return getattr(self.file, name)

    file = sink.file
    sink.file = Filling(file)
    refused, error = sink.write(b"1,2,3\n")
    assert (refused, error.errno) == (1, 28)
    sink.file = file
    assert sink.write(b"4,5,6\n") == (0, None)
    sink.file = Filling(file)
    sink.file.room = 15                                 # the rows that were written whole stay, and are not dropped
    refused, error = sink.write(b"7,8,9\n" * 5)
    assert (refused, error.errno) == (3, 28)
    sink.file = file
    sink.close()
    assert (tmp_path / "log.csv").read_bytes() == sinks.HEADER + b"4,5,6\n" + 2 * b"7,8,9\n"


def test_a_text_file_is_charged_for_the_rows_alone_that_it_refuses():
    """Of a batch it takes the others."""
    class Choosy(io.StringIO):
        def write(self, text):
            if "refused" in text:
                raise ValueError(text)
            return super().write(text)

    file = Choosy()
    log = LoggingResourceAdaptor(AsyncMemoryResource(), file)
    runtime = DeviceRuntime(resource=log)
    for tag in ("taken", "refused", "taken", None):
        runtime.allocate(256, tag=tag).free()
    assert log.flush() == 2
    assert len(file.getvalue().splitlines()) == 6


# ---------------------------------------------------------------------------------------------- kinds of sinks
def test_a_logger_gets_each_row(caplog):
    with caplog.at_level(logging.INFO, "mine"), LoggingResourceAdaptor(Addresses(), logging.getLogger("mine")) as log:
        pairs(log, 2)
    rows = [record.getMessage() for record in caplog.records if record.name == "mine"]
    assert [json.loads(row)["action"] for row in rows] == ["allocate", "free"] * 2


def test_callables_get_lines_where_there_is_a_format():
    for form, begin in (("json", "{"), ("rmm", str(threading.get_native_id()))):
        lines = []
        with LoggingResourceAdaptor(Addresses(), lines.append, format=form) as log:
            pairs(log, 2)
        assert len(lines) == 4
        assert all(line.startswith(begin) and "\n" not in line for line in lines)


def test_a_text_file_is_flushed_and_stays_open(tmp_path):
    with open(tmp_path / "log", "w") as file:
        log = LoggingResourceAdaptor(Addresses(), file)
        pairs(log, 2)
        log.flush()
        assert len((tmp_path / "log").read_text().splitlines()) == 4
        log.close()
        file.write("still open\n")


@pytest.mark.parametrize(("arguments", "error", "said"), [
    ((12,), TypeError, "not int"), ((None,), TypeError, "NoneType"), ((io.BytesIO(),), TypeError, "open for bytes"),
    ((b"log",), TypeError, "not bytes"), (("{}/no/log.csv",), FileNotFoundError, "folder of the log does not exist"),
    (("{}",), IsADirectoryError, "director"), (("{}/log", "xml"), ValueError, "'xml' is unknown"),
    (("{}/log", None, 0), ValueError, "capacity must be a number of records from 1 to"),
    (("{}/log", None, 1 << 40), ValueError, "capacity"),
    (("{}/log", None, "many"), TypeError, "capacity must be an int")])
def test_wrong_arguments_are_named_and_nothing_is_opened(tmp_path, arguments, error, said):
    sink, form, capacity = (*arguments, None, None)[:3]
    sink = sink.format(tmp_path) if isinstance(sink, str) else sink
    before = log_threads()
    with pytest.raises(error, match=said):
        LoggingResourceAdaptor(Addresses(), sink, format=form, capacity=65536 if capacity is None else capacity)
    assert not list(tmp_path.iterdir())
    assert log_threads() == before


def test_a_wrong_upstream_leaves_the_file_alone(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("precious")
    with pytest.raises(TypeError, match="upstream"):
        LoggingResourceAdaptor(object(), path)
    assert path.read_text() == "precious"


def test_two_logs_cannot_share_a_file(tmp_path):
    path, other = tmp_path / "log.csv", tmp_path / "other.csv"
    with LoggingResourceAdaptor(Addresses(), path) as log:
        os.link(path, other)
        for name in (path, str(path), other, tmp_path / ".." / tmp_path.name / "log.csv"):
            with pytest.raises(ValueError, match="is the log of another adaptor"):
                LoggingResourceAdaptor(Addresses(), name)
        pairs(log, 1)
    assert len(path.read_text().splitlines()) == 3
    LoggingResourceAdaptor(Addresses(), path).close()   # which is free now, and emptied
    assert len(path.read_text().splitlines()) == 1


def test_it_is_initialised_once():
    log = LoggingResourceAdaptor(Addresses(), [].append)
    with pytest.raises(RuntimeError, match="initialised once"):
        log.__init__(Addresses(), [].append)


# ---------------------------------------------------------------------------------------------- the end
def test_after_close_calls_are_made_and_counted(tmp_path):
    log = LoggingResourceAdaptor(Addresses(), tmp_path / "log")
    pairs(log, 3)
    log.close()
    log.close()
    pairs(log, 2)
    assert log.flush() == log.dropped_records == 4
    assert len((tmp_path / "log").read_text().splitlines()) == 6


@pytest.mark.parametrize("cycle", [False, True])
def test_a_dropped_log_writes_what_it_has_and_ends_its_thread(tmp_path, cycle):
    class Log(LoggingResourceAdaptor):
        me = None

    before = log_threads()                              # that other tests left
    log = Log(Addresses(), tmp_path / "log")
    log.me = log if cycle else None
    pairs(log, 100)
    [thread] = log_threads() - before
    del log
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert len((tmp_path / "log").read_text().splitlines()) == 200


def test_flush_can_be_interrupted(tmp_path):
    """By a signal, while the sink blocks."""
    said = in_its_own_process("""
import signal, threading
from xlogmem import LoggingResourceAdaptor
from xlogmem_bench.programs import Addresses
opened = threading.Event()
log = LoggingResourceAdaptor(Addresses(), lambda record: opened.wait(60))
log.allocate(1, 0)
signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(InterruptedError("enough")))
signal.setitimer(signal.ITIMER_REAL, .2)
try:
    log.flush()
except InterruptedError as error:
    print(error)
opened.set()
""")
    assert said == "enough\n"


def test_what_is_there_is_written_at_exit(tmp_path):
    said = in_its_own_process("""
import sys
from xlogmem import LoggingResourceAdaptor
from xlogmem_bench.programs import Addresses
logs = [LoggingResourceAdaptor(Addresses(), f"{sys.argv[1]}/{name}") for name in ("a.csv", "b.json")]
for log in logs:
    for _ in range(20_000):
        log.deallocate(log.allocate(64, 0), 64, 0)
print(sum(log.dropped_records for log in logs))
""", tmp_path)
    assert said == "0\n"
    assert [len((tmp_path / name).read_text().splitlines()) for name in ("a.csv", "b.json")] == [40_001, 40_000]


def test_a_blocked_sink_does_not_keep_the_process(tmp_path):
    before = time.monotonic()
    in_its_own_process("""
import threading
from xlogmem import LoggingResourceAdaptor
from xlogmem_bench.programs import Addresses
import xlogmem.resources.logging as logs
log = LoggingResourceAdaptor(Addresses(), lambda record: threading.Event().wait())
log.allocate(1, 0)
logs.EXIT_WAIT = 0
""")
    assert time.monotonic() - before < PATIENCE


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_logs_nothing_and_does_not_hang(tmp_path):
    path = tmp_path / "log"
    log = LoggingResourceAdaptor(AsyncMemoryResource(), path)
    runtime = DeviceRuntime(resource=log)
    block = runtime.allocate(64)
    operations = {"allocate": lambda: runtime.allocate(64), "free": block.free}
    assert outcomes(operations) == dict.fromkeys(operations, "refused")
    looks = {"dropped": lambda: log.dropped_records, "flush": log.flush, "close": log.close, "repr": lambda: repr(log)}
    assert outcomes(looks) == dict.fromkeys(looks, "answered")
    block.free()
    runtime.reap_pending()
    log.close()
    assert [json.loads(line)["action"] for line in path.read_text().splitlines()] == ["allocate", "free"]


@pytest.mark.skipif(not SIMULATED, reason="needs the simulated driver")
def test_a_child_that_exits_leaves_the_log_of_its_parent_alone(tmp_path):
    """Its interpreter ends as usual, with records of its parent in the ring."""
    in_its_own_process("""
import os, sys, warnings
warnings.simplefilter("ignore")
from xlogmem import LoggingResourceAdaptor
from xlogmem_bench.programs import Addresses
log = LoggingResourceAdaptor(Addresses(), sys.argv[1] + "/log")
for turn in range(10):
    for _ in range(100):
        log.deallocate(log.allocate(64, 0), 64, 0)
    child = os.fork()
    if not child:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
log.close()
""", tmp_path)
    orders = [json.loads(line)["order"] for line in (tmp_path / "log").read_text().splitlines()]
    assert orders == list(range(1, 2001))
