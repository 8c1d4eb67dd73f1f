"""`LoggingResourceAdaptor`: what it writes down, in which order, and what RMM's tools read of it."""
from __future__ import annotations

import csv
import datetime
import gzip
import io
import itertools
import json
import re
import threading

import pytest
from places import ROOT
from rmm_if_installed import Stream, needs_rmm, rmm
from stress import together
from xlogmem_bench import _loops
from xlogmem_bench.programs import Addresses

from xlogmem import (
    AllocationRecord,
    AsyncMemoryResource,
    DeviceMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    DriverError,
    ForeignMemoryResource,
    LimitingResourceAdaptor,
    LoggingResourceAdaptor,
    OutOfBudgetError,
    PoolMemoryResource,
    StreamPool,
    _driver,
)
from xlogmem._base import labels

COLUMNS = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"]
ROW = re.compile(r"\d+,\d\d:\d\d:\d\d\.\d{6},(allocate,0x[0-9a-f]+|allocate failure,\(nil\)|free,0x[0-9a-f]+),\d+,"
                 r"(0|0x[0-9a-f]+)\n")


class Failing(Addresses):
    """Refuses more than 1,000 bytes, and frees of one byte."""

    def allocate(self, nbytes, stream):
        if nbytes > 1000:
            raise MemoryError("no room, \"at all\"\nhere")
        return super().allocate(nbytes, stream)

    def deallocate(self, ptr, nbytes, stream):
        if nbytes == 1:
            raise ZeroDivisionError("not now")


def calls(resource, streams):
    """The same calls of any resource: pairs, and allocations that fail."""
    for stream in streams:
        ptr = resource.allocate(100, stream)
        with pytest.raises(MemoryError):
            resource.allocate(2000, stream)
        resource.deallocate(ptr, 100, stream)


def rows_of(text: str) -> list[dict[str, object]]:
    """As RMM's log parser (``benchmarks/utilities/log_parser.hpp``) reads a file: columns by name, addresses and
    streams in base 16, times of day."""
    reader = csv.DictReader(io.StringIO(text))
    assert reader.fieldnames == COLUMNS
    assert all(row["Action"] in ("allocate", "allocate failure", "free") for row in reader)
    return [{"Thread": int(row["Thread"]), "Time": datetime.time.fromisoformat(row["Time"]), "Action": row["Action"],
             "Pointer": None if row["Pointer"] == "(nil)" else int(row["Pointer"], 16), "Size": int(row["Size"]),
             "Stream": int(row["Stream"], 16)} for row in csv.DictReader(io.StringIO(text))]


# ---------------------------------------------------------------------------------------------- RMM's columns
@needs_rmm
def test_rows_are_those_of_rmm(tmp_path, monkeypatch):
    """Byte for byte, but for the times."""
    pool = StreamPool(max_streams=2)
    ours, theirs = pool.acquire(), tmp_path / "theirs.dev0.csv"
    rmm.set_logging_level(rmm.level_enum.off)
    monkeypatch.setattr("rmm.pylibrmm.memory_resource._memory_resource.getDevice", lambda: 0)   # no CUDA runtime here
    source = Failing()
    log = rmm.mr.LoggingResourceAdaptor(rmm.mr.CallbackMemoryResource(source.allocate, source.deallocate),
                                        str(tmp_path / "theirs.csv"))
    calls(log, [rmm.pylibrmm.stream.DEFAULT_STREAM, Stream(ours), rmm.pylibrmm.stream.PER_THREAD_DEFAULT_STREAM])
    log.flush()
    with LoggingResourceAdaptor(Failing(), tmp_path / "ours.csv") as log:
        calls(log, [0, ours, 2])
    seen, expected = (re.sub(rb"\d\d:\d\d:\d\d\.\d{6}", b"TIME", file.read_bytes())
                      for file in (tmp_path / "ours.csv", theirs))
    assert seen == expected
    assert seen.count(b"TIME") == 9


def test_a_parser_like_rmms_reads_it(tmp_path):
    before = datetime.datetime.now().replace(microsecond=0)
    with LoggingResourceAdaptor(Failing(), tmp_path / "log.csv") as log:
        calls(log, [0])
    text = (tmp_path / "log.csv").read_bytes().decode()
    rows = rows_of(text)
    assert [(row["Action"], row["Size"], row["Stream"]) for row in rows] == [
        ("allocate", 100, 0), ("allocate failure", 2000, 0), ("free", 100, 0)]
    assert {row["Thread"] for row in rows} == {threading.get_native_id()}
    assert rows[0]["Pointer"] == rows[2]["Pointer"] >= 1 << 40
    assert rows[1]["Pointer"] is None
    late = datetime.timedelta(seconds=90)
    for row in rows:                                    # the local time of day, whatever the date
        assert (datetime.datetime.combine(before.date(), row["Time"]) - before) % datetime.timedelta(days=1) < late
    assert all(ROW.fullmatch(line) for line in text.splitlines(keepends=True)[1:])


def test_the_header_and_rows_are_those_of_a_file_of_rmm():
    """One that was recorded under cuDF; threads and times were left out of it."""
    with gzip.open(ROOT / "benchmarks/logs/cudf-26.10-h200.csv.gz", "rt", newline="") as file:
        theirs = file.readline()
        pattern = ROW.pattern.replace(r"\d+,\d\d:\d\d:\d\d\.\d{6}", "0,0")
        assert all(re.fullmatch(pattern.replace(r"\n", r"\r?\n"), line) for line in itertools.islice(file, 2000))
    out = io.StringIO()
    LoggingResourceAdaptor(Addresses(), out, format="rmm").close()
    assert out.getvalue() == theirs.replace("\r\n", "\n")


def test_a_failed_free_has_one_row_in_rmms_columns():
    out = io.StringIO()
    with LoggingResourceAdaptor(Failing(), out, format="rmm") as log, pytest.raises(ZeroDivisionError):
        log.deallocate(1 << 40, 1, 0)
    assert [row["Action"] for row in rows_of(out.getvalue())] == ["free"]


@pytest.mark.promise(136, 142, 143)
# ---------------------------------------------------------------------------------------------- records
@pytest.mark.parametrize("make", [AsyncMemoryResource, DirectMemoryResource, PoolMemoryResource])
def test_records_of_a_runtime(make):
    records = []
    log = LoggingResourceAdaptor(make(), records.append)
    runtime = DeviceRuntime(resource=log)
    stream = runtime.acquire_stream()
    a = runtime.allocate(100, stream, tag="a")
    b = runtime.allocate(200, stream)
    expected = [("allocate", a.ptr, 100, "a", a.id.generation), ("allocate", b.ptr, 200, None, b.id.generation)]
    expected += [("free", *row[1:]) for row in expected]
    a.free()
    b.free()
    runtime.reap_pending()
    assert log.flush() == 0
    assert [(row.action, row.ptr, row.bytes, row.tag, row.generation) for row in records] == expected
    assert {(row.device, row.stream, row.handle, row.thread, row.result) for row in records} == {
        (0, stream.id, stream.handle, threading.get_native_id(), "Ok")}
    orders = [row.order for row in records]
    assert orders == sorted(set(orders))
    assert [row.nanoseconds for row in records] == sorted(row.nanoseconds for row in records)
    assert type(records[0]) is AllocationRecord


def test_below_a_pool_it_sees_chunks():
    records = []
    log = LoggingResourceAdaptor(AsyncMemoryResource(), records.append)
    runtime = DeviceRuntime(resource=PoolMemoryResource(log, chunk_size=1 << 20))
    for _ in range(3):
        runtime.allocate(256, tag="mine").free()
    log.flush()
    assert [(row.action, row.bytes, row.generation, row.tag) for row in records] == [
        ("allocate", 1 << 20, None, None)]


@pytest.mark.promise(135, 136, 137)
def test_lines_of_json_are_the_records(tmp_path):
    records = []
    with (LoggingResourceAdaptor(Failing(), tmp_path / "log") as inner,
          LoggingResourceAdaptor(inner, records.append) as outer):
        calls(outer, [0, 2])
        with pytest.raises(ZeroDivisionError):
            outer.deallocate(1 << 40, 1, 0)
    lines = (tmp_path / "log").read_text().splitlines()
    seen = [AllocationRecord(**json.loads(line)) for line in lines]
    assert [json.dumps(json.loads(line)) for line in lines] == lines
    assert [tuple(json.loads(line)) for line in lines] == [AllocationRecord._fields] * 8
    rows = {row[:9] + row[11:] if isinstance(row.result, str) else (*row[:9], *row.result.values()) for row in records}
    assert rows == {row[:9] + row[11:] if isinstance(row.result, str) else (*row[:9], *row.result.values())
                    for row in seen}
    assert not {row.order for row in records} & {row.order for row in seen}
    # A failed free is undone by a second record; the first was written before the free was made.
    assert [row.action for row in seen[-2:]] == ["free", "free failure"]
    assert seen[-1].result == {"kind": "ZeroDivisionError", "message": "not now"}
    assert seen[1].result == {"kind": "MemoryError", "message": "no room, \"at all\"\nhere"}
    assert seen[1].ptr is seen[1].generation is None


def test_failures_have_the_names_of_their_exceptions():
    records = []
    log = LoggingResourceAdaptor(LimitingResourceAdaptor(AsyncMemoryResource(), 1000), records.append)
    runtime = DeviceRuntime(resource=log)
    with pytest.raises(OutOfBudgetError):
        runtime.allocate(2000, tag="big")
    log.flush()
    ordinary = LoggingResourceAdaptor(AsyncMemoryResource(), records.append)
    with pytest.raises(DriverError):
        ordinary.deallocate(12345, 10, 0)
    ordinary.flush()
    assert {row.action: row.result["kind"] for row in records if row.result != "Ok"} == {
        "allocate failure": "OutOfBudgetError", "free failure": "DriverError"}
    assert "requested 2000 bytes, remaining 1000 bytes" in records[0].result["message"]
    assert (records[0].bytes, records[0].tag) == (2000, "big")
    assert "CUDA_ERROR_INVALID_VALUE" in records[-1].result["message"]


@pytest.mark.promise(139)
@pytest.mark.parametrize("letter", ["x", "é", "€", "\N{GRINNING FACE}", "\ud800"])
@pytest.mark.parametrize("count", [1, 50, 62, 63, 64, 84, 85, 126, 127, 128, 254, 255, 256, 5000])
def test_a_long_message_is_cut_between_characters(letter, count):
    class Talking(Addresses):
        def allocate(self, nbytes, stream):
            raise ValueError(letter * count)

    records = []
    log = LoggingResourceAdaptor(Talking(), records.append)
    with pytest.raises(ValueError):                     # noqa: PT011
        log.allocate(1, 0)
    log.flush()
    message = records[0].result["message"]
    said = (letter * count).encode(errors="replace").decode()
    assert len(message.encode()) <= 255
    assert message == said or (message[-1] == "…" and said.startswith(message[:-1]) and
                               len(message.encode()) > 255 - len("ValueError: ") - 8)
    assert records[0].result["kind"] == "ValueError"


def test_an_error_that_cannot_be_read_does_no_harm():
    class Mute(Exception):
        def __str__(self):
            raise KeyError("no")

    class Raising(Addresses):
        def allocate(self, nbytes, stream):
            raise Mute

    records = []
    log = LoggingResourceAdaptor(Raising(), records.append)
    with pytest.raises(Mute):
        log.allocate(1, 0)
    log.flush()
    assert records[0].result == {"kind": "Mute", "message": ""}


# ---------------------------------------------------------------------------------------------- order
def test_a_free_is_logged_before_it_is_made():
    """Another thread may get the address at once."""
    seen = []

    class Looking(Addresses):
        def deallocate(self, ptr, nbytes, stream):
            log.flush()
            seen.append(records[-1].action)

        def allocate(self, nbytes, stream):
            log.flush()
            seen.append(len(records))
            return super().allocate(nbytes, stream)

    records = []
    log = LoggingResourceAdaptor(Looking(), records.append)
    log.deallocate(log.allocate(1, 0), 1, 0)
    assert seen == [0, "free"]


@pytest.mark.promise(138, 143)
def test_order_rises_through_threads_and_logs():
    kept = [[], []]
    logs = [LoggingResourceAdaptor(PoolMemoryResource(), rows.append) for rows in kept]
    runtimes = [DeviceRuntime(resource=log) for log in logs]

    def work(number):
        for turn in range(300):
            runtimes[(number + turn) % 2].allocate(256, tag=str(number)).free()

    together(work, 8)
    assert [log.flush() for log in logs] == [0, 0]
    everything = sorted(row.order for rows in kept for row in rows)
    assert len(set(everything)) == len(everything) == 4800
    for rows in kept:
        assert [row.order for row in rows] == sorted(row.order for row in rows)
        live = {}
        for row in rows:                                # an address is allocated and freed in turn
            assert (row.ptr in live) is (row.action == "free")
            if row.action == "free":
                assert live.pop(row.ptr) == row.generation
            else:
                live[row.ptr] = row.generation
        assert not live
    assert {row.tag for row in kept[0]} == set("01234567")
    assert len({row.thread for rows in kept for row in rows}) > 1


# ---------------------------------------------------------------------------------------------- injection
@pytest.mark.parametrize("tag", [
    "=cmd|' /C calc'!A0", "a,b\nfree,0x1,1,0", "\"}\n{\"action\": \"free\"", "\r\n", "\u2028", "+1", "@SUM(A1)",
    "\x00\x1b[2J", "\\", "</script>", "'; DROP", "\N{GRINNING FACE}" * 600])
def test_a_tag_makes_no_row_column_or_formula(tag, tmp_path):
    files = tmp_path / "log.csv", tmp_path / "log.json"
    inner = LoggingResourceAdaptor(AsyncMemoryResource(), files[0])
    log = LoggingResourceAdaptor(inner, files[1])
    runtime = DeviceRuntime(resource=log)
    runtime.allocate(100, tag=tag).free()
    runtime.reap_pending()
    log.close()
    inner.close()
    text = files[0].read_bytes().decode("ascii")
    assert len(rows_of(text)) == 2
    assert all(ROW.fullmatch(line) for line in text.splitlines(keepends=True)[1:])
    lines = files[1].read_bytes().decode("ascii").splitlines()
    assert [json.loads(line)["tag"] for line in lines] == [tag, tag]
    assert all(line.startswith("{") and line.isprintable() for line in lines)


def test_many_tags_need_no_more_memory():
    """Records that were written refer to none."""
    lines, count = [], 3 * labels.label_count() + 10_000
    log = LoggingResourceAdaptor(AsyncMemoryResource(), lines.append, format="json")
    runtime = DeviceRuntime(resource=log)
    for number in range(count):
        runtime.allocate(1, tag=f"tag {number}").free()
        if number % 5000 == 0:
            assert log.flush() == 0
    assert log.flush() == 0
    assert [json.loads(line)["tag"] for line in lines] == [f"tag {number}" for number in range(count) for _ in "af"]
    assert labels.label_count() < count


# ---------------------------------------------------------------------------------------------- size
@pytest.mark.parametrize("name", ["log.csv", "log.json"])
def test_a_million_events(tmp_path, name):
    """From C++, as fast as it goes: with a flush for each ring's worth nothing is dropped, and no memory is needed but
    for the ring."""
    log = LoggingResourceAdaptor(ForeignMemoryResource(_loops.Allocator.nothing().capsule), tmp_path / name)
    runtime = DeviceRuntime(resource=log)
    allocator, stream = _loops.Allocator.table(runtime), runtime.acquire_stream()
    most = []
    for _ in range(20):
        allocator.pairs(256, [stream.handle], 25_000)
        assert log.flush() == 0
        most.append(resident())
    log.close()
    if _driver.BUILD in ("release", "debug"):           # sanitizers keep freed memory for a while
        assert most[-1] - most[0] < 16 << 20
    with open(tmp_path / name) as file:
        rows = sum(1 for _ in file)
    assert rows == 1_000_000 + (name == "log.csv")


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_it_stands_anywhere_in_a_stack():
    records, others = [], []
    top = LoggingResourceAdaptor(LimitingResourceAdaptor(LoggingResourceAdaptor(
        PoolMemoryResource(), others.append), "1GiB"), records.append)
    runtime = DeviceRuntime(resource=top)
    runtime.allocate(100).free()
    assert top.flush() == top.upstream.upstream.flush() == 0
    assert [row[:8] for row in records] == [row[:8] for row in others]
    assert isinstance(top, DeviceMemoryResource)
    assert "LoggingResourceAdaptor" in repr(top)
