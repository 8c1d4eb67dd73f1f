"""`xlogmem replay`, and the logs that it reads."""
from __future__ import annotations

import contextlib
import csv
import gzip
import importlib
import json
import os
import pickle
import random
import re
import subprocess
import sys
import threading
import zlib

import pytest
from click.testing import CliRunner
from places import ROOT
from rmm_if_installed import needs_rmm
from xlogmem_bench import logs, programs
from xlogmem_bench.logs import Event
from xlogmem_bench.programs import Addresses, Programs, fits_ours, least
from xlogmem_bench.recorded import FailedRow, LogError, Reading, calls_of, recorded
from xlogmem_bench.replay import NotHere, Row, Sample, console, files, replayed

from xlogmem import DeviceRuntime, LoggingResourceAdaptor, PoolMemoryResource, StreamPool
from xlogmem.commands.cli import main

CUDF = ROOT / "benchmarks/logs/cudf-26.10-h200.csv.gz"
HEADER = "Thread,Time,Action,Pointer,Size,Stream\n"
A_ROW = "1,00:00:00.000000,allocate,0x100,256,0\n"
JSON = {"action": "allocate", "device": 0, "stream": 1, "handle": 77, "ptr": 256, "bytes": 100, "tag": None,
        "generation": 1, "thread": 1, "order": 1, "nanoseconds": 1, "result": "Ok"}


def line(**changes: object) -> str:
    return json.dumps(JSON | changes) + "\n"


# ---------------------------------------------------------------------------------------------- reading
@pytest.mark.parametrize("form", ["rmm", "json"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_log_of_ours_comes_back_as_the_same_events(tmp_path, form, packed):
    """Both kinds, compressed or not: the same sizes, streams and order."""
    events = list(logs.queries(random.Random(3), 4, 12))
    path = tmp_path / "log"
    with LoggingResourceAdaptor(PoolMemoryResource(Addresses()), path, format=form) as log:
        pool = StreamPool(max_streams=8)
        runtime = DeviceRuntime(resource=log, stream_pool=pool)
        streams = [runtime.acquire_stream() for _ in range(4)]
        blocks = {}
        for event in events:
            if event.nbytes:
                blocks[event.number] = runtime.allocate(event.nbytes, streams[event.stream], tag="a,\n=1")
            else:
                blocks.pop(event.number).free(streams[event.stream])
        live = len(blocks)
    if packed:
        (tmp_path / "log.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = tmp_path / "log.gz"
    seen = list(recorded(str(path)))
    numbers: dict[int, int] = {}                        # streams are numbered as they come
    assert seen == [Event(event.number, event.nbytes, numbers.setdefault(event.stream, len(numbers)))
                    for event in events]
    replay = Programs(seen)
    assert replay.pairs == sum(event.nbytes > 0 for event in events)
    assert (replay.streams, replay.peak) == (len(numbers), logs.peak(events))
    assert live == 2 * replay.pairs - len(events)
    row = replayed(str(path), replay, "pool", bisect=False)
    assert (row.pairs, row.refused, row.streams) == (replay.pairs, 0, len(numbers))


def test_the_log_that_rmm_wrote_under_cudf():
    calls = list(calls_of(str(CUDF)))
    assert [sum(call.action == action for call in calls) for action in ("allocate", "free")] == [5061, 5059]
    assert Programs(recorded(str(CUDF))).pairs == 5061


@pytest.mark.parametrize(("rows", "expected"), [
    ([("allocate", 1, 10), ("allocate failure", 0, 99), ("free", 1, 10)], [(0, 10), (0, 0)]),
    ([("free", 7, 10), ("allocate", 1, 10)], [(0, 10)]),                        # allocated before the log began
    ([("allocate", 1, 10), ("allocate", 1, 20), ("free", 1, 20)], [(0, 10), (0, 0), (1, 20), (1, 0)]),
    ([("allocate", 1, 10), ("free", 1, 10), ("free failure", 1, 10), ("free", 1, 10)],
     [(0, 10), (0, 0), (1, 10), (1, 0)]),
    ([("allocate", 0, 0), ("free", 0, 0)], [])])
def test_what_rows_mean(tmp_path, rows, expected):
    (tmp_path / "log").write_text("".join(line(action=action, ptr=ptr or None, bytes=nbytes)
                                          for action, ptr, nbytes in rows))
    assert [(event.number, event.nbytes) for event in recorded(str(tmp_path / "log"))] == expected


OLDER = ("Event Type,Device ID,Address,Stream,Size (bytes),Free Memory,Total Memory,Current Allocs,Start,End,Elapsed,"
         "Location\n")


@pytest.mark.parametrize(("content", "expected", "notes"), [
    (HEADER + A_ROW + "1,00:0", [(0, 256)], ["line 3, the last, is cut off, and was left out"]),
    (HEADER + A_ROW + "1,00:00:00.1,free,0x1", [(0, 256)], ["line 3, the last, is cut off, and was left out"]),
    (line() + '{"action": "fr', [(0, 100)], ["line 2, the last, is cut off, and was left out"]),
    (A_ROW + "[spark] INFO something\n" + A_ROW.replace("allocate", "free"), [(0, 256), (0, 0)],
     ["there is no line with the names of columns: 2 rows were read as Thread,Time,Action,Pointer,Size,Stream",
      "left out: 1 line that is not a row of a log"]),
    ("WARN begins\n" + A_ROW, [(0, 256)],
     ["there is no line with the names of columns: 1 row was read as Thread,Time,Action,Pointer,Size,Stream",
      "left out: 1 line that is not a row of a log"]),
    (HEADER + A_ROW + A_ROW.replace("allocate", "deallocate"), [(0, 256), (0, 0)], []),
    (OLDER + "Alloc,0,0x100,0,256,1,2,1,0.1,0.2,0.1,a.cpp:1\nFree,0,0x100,0,0,1,2,0,0.3,0.4,0.1,a.cpp:2\n",
     [(0, 256), (0, 0)], []),
    (OLDER + "Alloc,0,0x100,0,256,1,2,1,0.1,0.2,0.1,a.cpp:1\nRealloc,0,0x200,0,512,1,2,1,0.1,0.2,0.1,a.cpp:1\n",
     [(0, 256), (1, 512)], ["counted as allocations: 1 row of reallocations. What these freed is not in the log"]),
    (HEADER + A_ROW.replace("allocate", "free") + A_ROW, [(0, 256)],
     ["left out: 1 free of what was allocated before the log began"]),
])
def test_logs_as_people_have_them(tmp_path, content, expected, notes):
    (tmp_path / "log").write_text(content)
    reading = Reading()
    assert [(event.number, event.nbytes) for event in recorded(str(tmp_path / "log"), reading)] == expected
    assert reading.notes == notes


def test_a_compressed_log_that_ends_early(tmp_path):
    packed = gzip.compress((HEADER + A_ROW * 2000).encode())
    (tmp_path / "log.gz").write_bytes(packed[:-12])
    reading = Reading()
    assert len(list(recorded(str(tmp_path / "log.gz"), reading))) > 100
    assert any("the compressed file ends early" in note or "is cut off" in note for note in reading.notes)


def test_allocations_that_had_failed_are_answered(tmp_path):
    """With their line and what was in use, and with the least pool with which they would have fitted."""
    failed = A_ROW.replace("allocate,0x100,256", "allocate failure,(nil),9437184")
    (tmp_path / "log.csv").write_text(HEADER + A_ROW.replace("256", "1048576") + failed
                                      + A_ROW.replace("allocate", "free"))
    reading = Reading()
    assert [event.nbytes for event in recorded(str(tmp_path / "log.csv"), reading)] == [1 << 20, 0]
    assert reading.failed == [FailedRow(3, 9 << 20, 1 << 20)]
    assert [event.nbytes for event in recorded(str(tmp_path / "log.csv"), failed_too=True)] == [1 << 20, 9 << 20, 0, 0]
    run = CliRunner().invoke(main, ["replay", str(tmp_path / "log.csv"), "--json", str(tmp_path / "out.json")])
    assert run.exit_code == 0, run.output
    assert "log.csv:3: an allocation of 9.0 MiB had failed, with 1.0 MiB in use" in run.output
    row, = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert (row["failed_in_log"], row["refused"], row["least_pool_size"]) == (1, 0, 1 << 20)
    assert 10 << 20 <= row["least_pool_with_failed"] <= 11 << 20


@pytest.mark.parametrize("content", [
    (HEADER + A_ROW + A_ROW.replace("allocate", "allocate failure") + A_ROW.replace("allocate", "free")).encode(),
    pickle.dumps({"device_traces": [[{"action": "alloc", "addr": 256, "size": 256, "stream": 0},
                                     {"action": "oom", "addr": 0, "size": 256, "stream": 0}]]})])
def test_a_log_is_read_once(tmp_path, content):
    """It may be a pipe."""
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    rows, notes, complete = console.run([str(pipe)], ["pool"], least=True)
    writer.join()
    assert [(row.pairs, row.streams, row.failed_in_log) for row in rows] == [(1, 1, 1)]
    assert rows[0].least_pool_with_failed == 512
    assert complete
    assert len(notes) == 1


def test_one_resource_that_is_not_here_leaves_the_others(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "rmm", None)
    (tmp_path / "log.csv").write_text(HEADER + A_ROW)
    arguments = ["replay", str(tmp_path / "log.csv"), "--json", str(tmp_path / "rows.json"), "--resource", "pool"]
    run = CliRunner().invoke(main, [*arguments, "--resource", "rmm-pool"])
    assert run.exit_code == 3, run.output
    assert "not replayed: rmm-pool: this needs RMM" in run.output
    assert "pool" in run.output.split("not replayed")[0]
    assert (tmp_path / "rows.json").exists()
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert CliRunner().invoke(main, [*arguments[:-1], "rmm-pool"]).exit_code == 1       # there is nothing to show


# ---------------------------------------------------------------------------------------------- PyTorch's snapshots
def snapshot(*traces: list[dict[str, object]]) -> dict[str, object]:
    return {"segments": [], "device_traces": list(traces), "allocator_settings": {"max_split_size": -1}}


def event_of(action: str, addr: int = 0x100, size: int = 512, stream: int = 0) -> dict[str, object]:
    return {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": 1, "frames": []}


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("packed", [False, True])
def test_a_snapshot_of_pytorch(tmp_path, protocol, packed):
    content = pickle.dumps(snapshot([event_of("free_completed", 0x900), event_of("segment_alloc", size=1 << 21),
                                     event_of("alloc"), event_of("alloc", 0x300, 1024, stream=7),
                                     event_of("free_requested"), event_of("free_completed"),
                                     event_of("oom", size=4096)], []), protocol)
    path = tmp_path / ("snapshot.pickle" + (".gz" if packed else ""))
    path.write_bytes(gzip.compress(content) if packed else content)
    reading = Reading()
    events = list(recorded(str(path), reading))
    assert [(event.number, event.nbytes) for event in events] == [(0, 512), (1, 1024), (0, 0)]
    assert events[0].stream == events[2].stream != events[1].stream
    assert reading.failed == [FailedRow(7, 4096, 1024)]
    assert reading.notes == ["left out: 1 free of what was allocated before the log began"]


def test_a_snapshot_that_pytorch_wrote():
    """PyTorch 2.11, two streams, `record_stream`, one allocation that failed; without the frames of its stacks."""
    reading = Reading()
    events = list(recorded(str(ROOT / "benchmarks/logs/torch-2.11-h100.pickle.gz"), reading))
    assert sum(event.nbytes > 0 for event in events) == 400
    assert len({event.stream for event in events}) == 2
    assert [one.nbytes for one in reading.failed] == [4 << 40]
    assert reading.notes == []


def test_of_several_devices_one_is_replayed(tmp_path):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot([event_of("alloc")],
                                           [event_of("alloc", size=64), event_of("free_completed")])))
    for device, sizes in ((None, [64, 0]), (0, [512]), (1, [64, 0])):
        reading = Reading(device=device)
        assert [event.nbytes for event in recorded(str(path), reading)] == sizes
        assert reading.notes == [f"device {device or (0 if device == 0 else 1)} is replayed; --device replays "
                                 f"{'1 (2 calls)' if device == 0 else '0 (1 call)'}"]
    run = CliRunner().invoke(main, ["replay", str(path), "--device", "3"])
    assert run.exit_code == 1
    assert "no calls of device 3: it has those of 0, 1" in run.output


class Calls:
    """Its pickle calls `print`."""

    def __reduce__(self):
        return print, ("called",)


@pytest.mark.parametrize(("content", "said"), [
    (pickle.dumps(snapshot([Calls()])), "which calls something: a snapshot has data alone"),
    (pickle.dumps(snapshot([event_of("alloc")]))[:-9], "the pickle is damaged"),
    (b"\x80\x02}r\xff\xff\xff\x7f.", "numbers a value 2147483647"),
    (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "the pickle is damaged"),
    (pickle.dumps([1, 2]), "is not a snapshot of PyTorch"), (pickle.dumps({"device_traces": 3}), "is not a snapshot"),
    (pickle.dumps(snapshot([], [])), "the snapshot has no trace"),
    (pickle.dumps(snapshot([event_of("alloc", size="many")])), "call 1 of the trace is damaged"),
    (pickle.dumps(snapshot([event_of("alloc", size=-3)])), "-3 bytes"),
])
def test_a_pickle_that_is_no_snapshot_is_named_and_calls_nothing(tmp_path, capsys, content, said):
    path = tmp_path / "bad.pickle"
    path.write_bytes(content)
    with pytest.raises(LogError, match=re.escape(said)) as error:
        list(recorded(str(path)))
    assert str(error.value).startswith(f"{path}:")
    assert capsys.readouterr().out == ""


def test_default_streams_are_what_they_are(tmp_path):
    """0 and 1 are the legacy stream; 2 is another one in each thread."""
    text = "".join(f"{thread},00:00:00.0,allocate,{ptr:#x},8,{stream}\n" for ptr, (thread, stream) in enumerate(
        [(1, "0"), (2, "0x1"), (1, "0x2"), (2, "0x2"), (1, "0x2"), (2, "0x7f00")], 1))
    (tmp_path / "log.csv").write_text(HEADER + text)
    assert [event.stream for event in recorded(str(tmp_path / "log.csv"))] == [0, 0, 1, 2, 1, 3]


@pytest.mark.parametrize(("content", "place"), [
    (b"", "1: the file has no first line"), (b"\n", "1: the file has no first line"),
    (b"Time,Size\n1,2\n", "1: there is no column Action"), (b"hello\n", "1: there is no column Action"),
    ((HEADER + A_ROW + "1,2,3\n").encode(), "3: 3 fields in place of 6"),
    ((HEADER + A_ROW + A_ROW.replace("256", "many")).encode(), "3: invalid literal"),
    ((HEADER + A_ROW.replace("0x100", "here")).encode(), "2: invalid literal"),
    ((HEADER + A_ROW.replace("allocate", "reserve")).encode(), "2: the action 'reserve' is none of"),
    ((HEADER + A_ROW.replace("256", "-1")).encode(), "2: -1 bytes"),
    ((HEADER + A_ROW.replace("256", str(1 << 70))).encode(), "2: "),
    ((line() + "{\n").encode(), "2: "), ((line() + "[]\n").encode(), "2: "), ((line() + "7\n").encode(), "2: "),
    ((line() + line(action="reap")).encode(), "2: not a call: 'reap' of"),
    ((line() + line(bytes="8")).encode(), "2: not a call"), ((line() + line(ptr=1.5)).encode(), "2: not a call"),
    ((line() + line(handle=[])).encode(), "2: "), ((line() + line(bytes=-1)).encode(), "2: -1 bytes"),
    (b'{"action": "free"}\n', "1: there is no field 'ptr'"),
    (b"\xff\xfe" * 50, "1: this is not the text of a log"), (HEADER.encode() + b"\xff\n", "1: this is not the text"),
    (("[" * 100_000).encode(), "1: "), (("{" + "[" * 100_000).encode(), "1: ")])
def test_a_bad_log_is_named_with_its_line(tmp_path, content, place):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(LogError) as error:
        list(recorded(str(path)))
    assert str(error.value).startswith(f"{path}:{place}")
    run = CliRunner().invoke(main, ["replay", str(path)])
    assert run.exit_code == 1
    assert f"{path}:" in run.output


def test_what_is_not_compressed_well_is_named(tmp_path):
    path = tmp_path / "bad.csv.gz"
    for content in (b"no gzip", gzip.compress(HEADER.encode() + 10_000 * A_ROW.encode())[:20]):
        path.write_bytes(content)
        with pytest.raises(LogError, match=r"bad\.csv\.gz:\d+: this is not the text of a log"):
            list(recorded(str(path)))


def test_flipped_bytes_of_a_compressed_log_are_named(tmp_path):
    path = tmp_path / "bad.csv.gz"
    whole = gzip.compress(HEADER.encode() + b"".join(b"1,0,allocate,%#x,%d,0\n" % (256 * i, 7 * i)
                                                     for i in range(1, 3000)))
    seen = set()
    for place in range(40, len(whole) - 40, 97):
        content = bytearray(whole)
        content[place] ^= 0x55
        path.write_bytes(content)
        try:
            list(recorded(str(path)))
        except LogError as error:
            assert str(error).startswith(f"{path}:")
            seen.add(type(error.__cause__))
    assert zlib.error in seen


def test_a_log_of_more_than_there_can_be_is_named(tmp_path):
    path = tmp_path / "huge.csv"
    path.write_text(HEADER + "".join(f"1,0,allocate,{ptr:#x},{(1 << 63) - 1},0\n" for ptr in (256, 512)))
    run = CliRunner().invoke(main, ["replay", str(path)])
    assert run.exit_code == 1
    assert isinstance(run.exception, SystemExit)
    assert "in use, more than any device has" in run.output
    path.write_text(HEADER + 30 * (A_ROW.replace(",256,", f",{1 << 49},") + A_ROW.replace("allocate", "free")))
    assert Programs(recorded(str(path))).peak == 1 << 49            # one after the other


@pytest.mark.parametrize("option", ["--csv", "--json"])
def test_where_nothing_can_be_written_is_found_before_the_replay(tmp_path, option, monkeypatch):
    monkeypatch.setattr("xlogmem_bench.replay.console.run", lambda *_: pytest.fail("it was replayed"))
    run = CliRunner().invoke(main, ["replay", str(CUDF), option, str(tmp_path / "missing" / "rows")])
    assert run.exit_code == 1
    assert "No such file or directory" in run.output
    run = CliRunner().invoke(main, ["replay", str(CUDF), option, str(tmp_path)])
    assert run.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_the_table_is_shown_though_a_file_cannot_be_written(tmp_path, monkeypatch):
    def fail(rows, path):
        raise OSError("disk full")

    monkeypatch.setattr("xlogmem_bench.replay.save_csv", fail)
    short = tmp_path / "short.csv"
    short.write_text(HEADER + A_ROW)
    run = CliRunner().invoke(main, ["replay", str(short), "--csv", str(tmp_path / "rows.csv")])
    assert run.exit_code == 1
    assert "most in use" in run.output
    assert "disk full" in run.output
    assert not (tmp_path / "rows.csv").exists()


# ---------------------------------------------------------------------------------------------- least pools
@pytest.mark.simulator                                  # on a GPU it depends on what is complete at each allocation
def test_the_least_pool_suffices_and_one_step_less_does_not():
    for log in (logs.random_sizes(random.Random(1), 4, 2000), logs.queries(random.Random(1), 2, 10)):
        program = Programs(list(log))
        size = least(fits_ours, program)
        assert size >= program.peak
        assert fits_ours(program, size, True)
        step = max(logs.GRAIN, logs.rounded(program.peak // programs.RESOLUTION))
        assert size == logs.rounded(program.peak) or not fits_ours(program, size - step, True)


@pytest.mark.parametrize("needed", [0, 1, 9, 10, 123, 329, 330, 331, 1000, 5000])
def test_bisection_finds_the_size(needed):
    program = Programs([Event(0, 1000 * logs.GRAIN, 0)])
    tried = []

    def fits(_, size, at_once):
        tried.append(size)
        return size >= (1000 + needed) * logs.GRAIN

    assert least(fits, program) == (1000 + needed) * logs.GRAIN
    assert len(tried) < 60


def test_a_pool_that_refuses_is_no_fit():
    program = Programs([Event(0, 1000, 0), Event(1, 1000, 0), Event(0, 0, 0), Event(1, 0, 0)])
    assert fits_ours(program, 2048, True)
    assert not fits_ours(program, 1024, True)
    assert program.peak == 2048
    assert max(program.in_use) == 2048
    assert program.in_use[-1] == 0


# ---------------------------------------------------------------------------------------------- the command
def test_the_command(tmp_path):
    out = {name: tmp_path / f"rows.{name}" for name in ("csv", "json")}
    short = tmp_path / "short.csv"
    short.write_bytes(b"".join(gzip.decompress(CUDF.read_bytes()).splitlines(keepends=True)[:400]))
    run = CliRunner().invoke(main, ["replay", str(CUDF), str(short), "--resource", "pool", "--resource", "direct",
                                    "--csv", str(out["csv"]), "--json", str(out["json"])], catch_exceptions=False)
    assert run.exit_code == 0, run.output
    document = json.loads(out["json"].read_text())
    assert [(row["log"], row["resource"]) for row in document["rows"]] == [
        (str(log), name) for log in (CUDF, short) for name in ("pool", "direct")]
    ours, direct = document["rows"][:2]
    assert (ours["pairs"], ours["refused"], ours["streams"]) == (5061, 0, 26)
    assert ours["ns_per_pair"] > 0
    assert ours["peak_bytes"] <= ours["least_pool_size"] <= 1.165 * ours["peak_bytes"]   # as test_fragmentation has it
    assert direct["least_pool_size"] is direct["most_held"] is None
    assert max(sample["in_use"] for sample in ours["samples"]) <= ours["peak_bytes"] <= ours["most_held"]
    assert all(sample["held"] >= sample["in_use"] for sample in ours["samples"])
    assert any(0 < sample["fragmentation"] < 1 for sample in ours["samples"])
    with open(out["csv"], newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["least_pool_size"] for row in rows[:2]] == [str(ours["least_pool_size"]), ""]
    assert "cudf-26.10-h200.csv.gz" in run.output
    assert "least pool" in run.output


@pytest.mark.with_gil                                   # RMM starts the driver, if no test before has
@needs_rmm
@pytest.mark.simulator
def test_rmms_pool_beside_ours(tmp_path):
    out = tmp_path / "rows.json"
    run = CliRunner().invoke(main, ["replay", str(CUDF), "--resource", "rmm-pool", "--json", str(out)])
    assert run.exit_code == 0, run.output
    [row] = json.loads(out.read_text())["rows"]
    assert row["peak_bytes"] <= row["least_pool_size"] <= 1.2 * row["peak_bytes"]
    assert row["most_held"] >= row["peak_bytes"]


@needs_rmm
@pytest.mark.simulator
@pytest.mark.parametrize("name", ["rmm-arena", "rmm-async"])
def test_what_needs_a_gpu_says_so(name):
    run = CliRunner().invoke(main, ["replay", str(CUDF), "--resource", name])
    assert run.exit_code == 1
    assert f"{name}: this needs a GPU" in run.output


def test_without_rmm_or_matplotlib_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "rmm", None)
    run = CliRunner().invoke(main, ["replay", str(CUDF), "--resource", "rmm-pool"])
    assert run.exit_code == 1
    assert "needs RMM" in run.output
    assert "pip install" in run.output
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run = CliRunner().invoke(main, ["replay", str(CUDF), "--plot", str(tmp_path / "chart.svg")])
    assert run.exit_code == 1
    assert "pip install" in run.output
    assert "xlogmem-bench[chart]" in run.output
    assert not list(tmp_path.iterdir())


def test_a_chart(tmp_path):
    pytest.importorskip("matplotlib", reason="needs another library: matplotlib")
    for name in ("chart.svg", "chart.png"):
        run = CliRunner().invoke(main, ["replay", str(CUDF), "--no-least", "--plot", str(tmp_path / name)])
        assert run.exit_code == 0, run.output
        assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.parametrize(("arguments", "said"), [
    (["replay"], "LOG"), (["replay", "/no/such/log"], "does not exist"),
    (["replay", str(CUDF), "--resource", "magic"], "magic")])
def test_wrong_arguments_are_named(arguments, said):
    run = CliRunner().invoke(main, arguments)
    assert run.exit_code == 2
    assert said in run.output


def test_a_file_with_any_name_makes_no_formula(tmp_path):
    rows = [Row(name, "pool", 1, 1, 1, 1.5, 0, None, None, [Sample(1, 1, None, None)])
            for name in ("=1+1", "@x", "-1", "+1", "plain,\n\"quoted\"")]
    files.save_csv(rows, str(tmp_path / "rows.csv"))
    with open(tmp_path / "rows.csv", newline="") as file:
        names = [row["log"] for row in csv.DictReader(file)]
    assert names == ["'=1+1", "'@x", "'-1", "'+1", "plain,\n\"quoted\""]


def test_refused_allocations_have_no_time_per_pair(monkeypatch):
    from xlogmem_bench.replay import candidates

    small = candidates.Resource(lambda streams, peak: candidates.over_runtime(
        PoolMemoryResource(Addresses(), 1024, 1024), streams))
    monkeypatch.setitem(candidates.RESOURCES, "pool", small)
    row = replayed("log", Programs([Event(0, 1000, 0), Event(1, 1000, 0)]), "pool")
    assert (row.refused, row.ns_per_pair, row.least_pool_size) == (1, None, None)


@pytest.mark.simulator
@pytest.mark.parametrize("name", ["async", "direct", "pool"])
def test_the_simulated_driver_does_not_fill_what_a_replay_allocates(driver, name):
    """Gigabytes that no kernel reads: a million events would take minutes."""
    filled = []
    replayed("log", Programs([Event(0, 1000, 0)]), name,
             progress=lambda what: filled.append((what, driver.set_fills(False))))
    assert ("timed", False) in filled
    assert not any(fills for what, fills in filled if what != "the least pool")
    driver.set_fills(True)
    with contextlib.suppress(NotHere):
        replayed("log", Programs([Event(0, 1000, 0)]), "rmm-arena")
    assert driver.set_fills(True)


def test_an_empty_log(tmp_path):
    (tmp_path / "log.csv").write_text(HEADER)
    run = CliRunner().invoke(main, ["replay", str(tmp_path / "log.csv")])
    assert run.exit_code == 0, run.output


def test_as_a_process():
    run = subprocess.run([sys.executable, "-m", "xlogmem", "replay", str(CUDF), "--no-least"], capture_output=True,
                         text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    assert "5,061" in run.stdout


def test_the_logs_whose_replays_are_timed_are_what_was_drawn(monkeypatch, tmp_path):
    """`benchmarks/replay_times.py`: both kinds of a log have the same events."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    script = importlib.import_module("replay_times")
    events = list(logs.queries(random.Random(1), 8, 4))
    numbers: dict[int, int] = {}
    expected = [event._replace(stream=numbers.setdefault(event.stream, len(numbers))) for event in events]
    for kind in ("csv", "jsonl"):
        script.write(tmp_path / f"log.{kind}", events)
        assert list(recorded(str(tmp_path / f"log.{kind}"))) == expected
    row = script.measure(tmp_path / "log.csv", "pool")
    assert (row["pairs"], row["refused"]) == (sum(event.nbytes > 0 for event in events), 0)
