"""How a history is recorded, kept and written, and what other viewers get of it."""
from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from c_table import ENVIRONMENT
from click.testing import CliRunner
from four_streams import READ, WRITE, FourStreams

import xlogmem
from xlogmem.commands.cli import main
from xlogmem.observe.history import HistoryError, perfetto, read, record_history, torch
from xlogmem.observe.history.reasons import NO_HISTORY

pytestmark = pytest.mark.simulator
HERE = Path(__file__).name


def pipeline(x: FourStreams) -> None:
    """Two streams that wait for each other, and a block that stays."""
    kept = x.runtime.allocate(4096, x.S, tag="kept")
    for _ in range(3):
        block = x.runtime.allocate(512, x.S, tag="step")
        x.use(x.S, (block, WRITE))
        x.use(x.T, (block, READ), (kept, WRITE))
        block.free()
    x.kept = kept


@pytest.fixture
def x(four):
    return four()


# ---------------------------------------------------------------------------------------------- recording
def test_the_oldest_events_are_dropped_and_counted(x):
    with record_history(max_events=10) as recording:
        for number in range(20):
            x.runtime.allocate(512 + number, x.S).free()
        running = [event.number for event in recording.events()]
    history = recording.history()
    assert len(history) == 10
    assert recording.dropped == history.dropped >= 30
    assert [event.number for event in history] == running == list(range(history.dropped, history.dropped + 10))
    assert {event.nbytes for event in history} <= set(range(526, 532))


def test_the_time_rises_and_is_that_of_the_system(x):
    import time
    before = time.time_ns()
    with record_history() as recording:
        pipeline(x)
    after = time.time_ns()
    times = [event.time_ns for event in recording.events()]
    assert times == sorted(times)
    slack = 20_000_000                                  # clocks are set meanwhile
    assert before - slack <= times[0] <= times[-1] <= after + slack
    x.kept.free()


def test_the_file_has_what_was_recorded(x, tmp_path):
    with record_history(tmp_path / "a.xlog", stacks="all") as recording:
        pipeline(x)
    history = read(tmp_path / "a.xlog")
    assert list(history) == list(recording.events())
    assert len(history) > 20
    assert history.dropped == 0
    x.kept.free()


@pytest.mark.parametrize("stacks", ["none", "alloc", "all"])
def test_stacks_are_those_of_the_calls_that_were_wanted(x, stacks):
    with record_history(stacks=stacks) as recording:
        block = x.runtime.allocate(512, x.S)
        line = sys._getframe().f_lineno - 1
        with xlogmem.use(x.T, read=block):
            pass
        block.free(x.S)
    places = {event.kind: event.place for event in recording.events() if event.kind != "wait" or event.stream == x.T.id}
    wanted = {"none": {}, "alloc": {"allocate": 0}, "all": {"allocate": 0, "use": 2, "wait": 2, "free": 4}}[stacks]
    assert {kind: place.line - line for kind, place in places.items() if kind in ("allocate", "use", "wait", "free")
            and place} == wanted
    assert all(place.file == __file__ for place in places.values() if place)


def test_a_stack_is_that_of_its_own_call(four):
    """From a cache, too, where no lock is taken."""
    x = four(resource=xlogmem.PoolMemoryResource(initial_pool_size=64 << 20))
    for _ in range(8):
        x.runtime.allocate(512, x.S).free()
    with record_history(stacks="all") as recording:
        first = x.runtime.allocate(512, x.S)
        line = sys._getframe().f_lineno - 1
        second = x.runtime.allocate(512, x.S)
        first.free()
        second.free()
    assert [(event.kind, event.place.line - line) for event in recording.events()] == [
        ("allocate", 0), ("allocate", 2), ("free", 3), ("free", 4)]


def test_waits_that_the_program_requests_have_their_own_lines(four):
    x = four()
    with record_history(stacks="all") as recording:
        x.alloc(x.S).free()
        x.S.synchronize()
        line = sys._getframe().f_lineno - 1
        x.T.wait(x.S)
        event = x.S.record()
        x.U.wait(event)
        event.synchronize()
    places = [(event.kind, event.place.line - line) for event in recording.events()]
    assert places[2:] == [("fence", 0), ("host wait", 0), ("fence", 2), ("wait", 2), ("fence", 3), ("wait", 4),
                          ("host wait", 5)]


def test_bad_arguments_are_refused_and_nothing_is_recorded(x, tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for arguments, error, said in (
            ({"max_events": 0}, ValueError, "max_events=0 is not from 1 to"),
            ({"max_events": 1 << 40}, ValueError, "is not from 1 to"), ({"max_events": 1.5}, TypeError, "integer"),
            ({"stacks": "some"}, ValueError, "choose one of none, alloc, all"),
            ({"path": tmp_path / "no" / "file"}, FileNotFoundError, "the folder of the history does not exist"),
            ({"path": descriptor}, TypeError, "path must be the path of a file")):
        with pytest.raises(error, match=said):
            record_history(**arguments)
    os.close(descriptor)                                # is open still
    with record_history() as recording:
        with pytest.raises(RuntimeError, match="a history is recorded already: stop <Recording"):
            record_history()
        x.alloc(x.S).free()
    assert len(recording.history()) == 2
    recording.stop()                                    # a second time
    assert "2 events" in repr(recording)


def test_what_is_no_history_is_refused(x, tmp_path):
    good = tmp_path / "good"
    with record_history(good):
        x.alloc(x.S).free()
    whole = good.read_bytes()
    for number, (content, said) in enumerate((
            (b"", "is not a history"), (b"x" * 100, "is not a history"), (whole[:-1], "cut off"),
            (whole[:-64], "cut off"), (whole[:30], "damaged"), (whole[:8] + b"\x03" + whole[9:], "version 3"))):
        path = tmp_path / str(number)
        path.write_bytes(content)
        with pytest.raises(HistoryError, match=said):
            read(path)


def test_what_is_damaged_is_refused_when_it_is_read(x, tmp_path):
    """... and not by whatever reads the events, with another error."""
    with record_history(tmp_path / "good", stacks="all"):
        pipeline(x)
    x.kept.free()
    good = read(tmp_path / "good")
    wrong = {"count": (None, 0), "kept": (None, [], 63), "clock": (None, [], [[1, 2, 3]], [[1, 2], [3, 4]]),
             "wanted": (None, "some"), "tags": (None, "kept", [1, 2]), "stacks": (None, [], {"x": []}, {"1": [[1]]})}
    damaged = [(good.facts | {name: value}, good.packed) for name, values in wrong.items() for value in values]
    damaged += [({other: good.facts[other] for other in good.facts if other != name}, good.packed) for name in wrong]
    needing = 64 * [event.kind for event in good].index("use needs")
    for at, value in ((20, 3), (23, 1), (needing + 17, 3)):           # a tag or an access without a name
        packed = bytearray(good.packed)
        packed[at] = value
        damaged.append((good.facts, bytes(packed)))
    for facts, packed in damaged:
        type(good)(facts, packed).save(tmp_path / "bad")
        with pytest.raises(HistoryError, match="is damaged"):
            read(tmp_path / "bad")


def test_the_file_is_written_when_the_process_ends(tmp_path):
    path = tmp_path / "a.xlog"
    program = (f"import xlogmem; xlogmem.record_history({str(path)!r}); "
               "xlogmem.get_runtime().allocate(512, tag='last').free()")
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100, env=os.environ | ENVIRONMENT)
    assert [(event.kind, event.tag) for event in read(path) if event.tag] == [("allocate", "last"), ("free", "last")]


def test_the_file_is_where_it_was_when_recording_began(x, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with record_history("a.xlog"):
        x.alloc(x.S).free()
        monkeypatch.chdir("elsewhere")
    assert len(read(tmp_path / "a.xlog")) == 2
    assert os.listdir() == []


def test_a_forked_child_does_not_write_the_file(tmp_path):
    path = tmp_path / "a.xlog"
    program = f"""
import os, sys, xlogmem
recording = xlogmem.record_history({str(path)!r})
runtime = xlogmem.get_runtime()

def file():                                             # times change when the kernel writes mapped pages back
    with open({str(path)!r}, "rb") as opened:
        return os.fstat(opened.fileno()).st_ino, opened.read()

before = file()
if os.fork() == 0:
    recording.stop()
    os._exit(file() != before)
_, status = os.wait()
assert status == 0, status
runtime.allocate(512).free()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=100,
                   env=os.environ | ENVIRONMENT)
    assert [event.kind for event in read(path)][-2:] == ["allocate", "free"]


def test_a_forked_child_may_record_its_own(tmp_path):
    parent, child = tmp_path / "parent", tmp_path / "child"
    program = f"""
import os, xlogmem
from xlogmem import record_history
with record_history({str(parent)!r}):
    if os.fork() == 0:
        xlogmem.get_runtime().allocate(512, tag='not recorded by the child').free()
        with record_history({str(child)!r}):
            xlogmem.get_runtime().allocate(512, tag='child').free()
        os._exit(0)
    _, status = os.wait()
    assert status == 0, status
    xlogmem.get_runtime().allocate(512, tag='parent').free()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=100,
                   env=os.environ | ENVIRONMENT)
    for path in (parent, child):
        assert [(event.kind, event.tag) for event in read(path) if event.tag] == [
            ("allocate", path.name), ("free", path.name)]


# ---------------------------------------------------------------------------------------------- other viewers
def test_perfetto_has_slices_arrows_lives_and_counters(x):
    with record_history(stacks="alloc") as recording:
        pipeline(x)
    entries = json.loads(perfetto.dumped(recording.events()))["traceEvents"]
    by_phase = defaultdict(list)
    for entry in entries:
        assert entry["pid"] == x.runtime.stream_pool.ordering.number
        assert entry["ph"] == "M" or entry["ts"] >= 0
        by_phase[entry["ph"]].append(entry)
    names = {entry["tid"]: entry["args"]["name"] for entry in by_phase["M"] if entry["name"] == "thread_name"}
    assert {names[stream.id + 1] for stream in (x.S, x.T)} == {f"stream {x.S.id}", f"stream {x.T.id}"}
    uses = [entry for entry in by_phase["X"] if not entry["name"].startswith("wait")]
    assert Counter(entry["name"] for entry in uses) == {"step": 3, "step, kept": 3}
    waits = Counter(event.kind for event in recording.events())["wait"]
    slices = [entry for entry in by_phase["X"] if entry["name"].startswith("wait")]
    assert len(slices) == waits > 3
    assert any("was written on stream" in said for entry in slices for said in entry["args"]["because"])
    assert [entry["id"] for entry in by_phase["s"]] == [entry["id"] for entry in by_phase["f"]]
    assert len(by_phase["s"]) > 3
    for arrow in by_phase["s"]:                         # begins in a slice of its track
        assert any(entry["tid"] == arrow["tid"] and entry["ts"] <= arrow["ts"] <= entry["ts"] + entry["dur"]
                   for entry in by_phase["X"])
    assert Counter(entry["id"] for entry in by_phase["b"]) == Counter(entry["id"] for entry in by_phase["e"])
    last = {entry["name"]: entry["args"]["bytes"] for entry in by_phase["C"]}
    assert last == {"bytes: kept": 4096, "bytes: step": 0}
    assert all(HERE in entry["args"]["stack"][0] for entry in by_phase["b"])
    x.kept.free()


def test_perfetto_has_for_each_wait_its_own_reasons(four):
    """A use that waits for two streams needs each for other blocks; a need that no wait follows is forgotten."""
    x = four(sealed="STU")
    left, right = x.runtime.allocate(512, x.S, tag="left"), x.runtime.allocate(512, x.T, tag="right")
    with record_history() as recording:
        x.use(x.U, (left, READ), (right, READ))
        x.V.wait(x.U)
    waits = [(entry["name"], entry["args"]["because"]) for entry in perfetto.trace(recording.events())["traceEvents"]
             if entry["ph"] == "X" and entry["name"].startswith("wait for")]
    assert waits == [
        (f"wait for stream {x.S.id}", [f"left (block {left.generation}) was allocated on stream {x.S.id}"]),
        (f"wait for stream {x.T.id}", [f"right (block {right.generation}) was allocated on stream {x.T.id}"]),
        (f"wait for stream {x.U.id}", [])]
    left.free()
    right.free()


def test_pytorch_has_allocations_and_frees_and_what_is_live(x):
    limited = xlogmem.DeviceRuntime(resource=xlogmem.LimitingResourceAdaptor(xlogmem.AsyncMemoryResource(), 1024))
    with record_history(stacks="alloc") as recording:
        pipeline(x)
        with pytest.raises(xlogmem.OutOfBudgetError):
            limited.allocate(4096)
    snapshot = pickle.loads(torch.dumped(recording.events()))
    trace, = snapshot["device_traces"]
    live = {}
    for entry in trace:                                 # what memory_viz does
        assert entry.keys() >= {"action", "addr", "size", "stream", "time_us", "frames"}
        if entry["action"] == "alloc":
            assert entry["addr"] not in live
            live[entry["addr"]] = entry["size"]
            assert any(frame["filename"] == __file__ for frame in entry["frames"])
        elif entry["action"] == "free_completed":
            assert live.pop(entry["addr"]) == entry["size"]
    assert Counter(entry["action"] for entry in trace) == {"alloc": 4, "free_requested": 3, "free_completed": 3,
                                                           "oom": 1}
    assert {segment["address"]: segment["blocks"][0]["size"] for segment in snapshot["segments"]} == live == {
        x.kept.ptr: 4096}
    x.kept.free()


def test_the_command_writes_both(x, tmp_path):
    history = tmp_path / "a.xlog"
    with record_history(history, max_events=8):
        pipeline(x)
    run = CliRunner().invoke(main, ["trace", str(history), "--perfetto", str(tmp_path / "p"), "--torch",
                                    str(tmp_path / "t")])
    assert run.exit_code == 0, run.output
    assert "oldest events are missing" in run.output
    for file, advice in (("p", "ui.perfetto.dev"), ("t", "pytorch.org/memory_viz")):
        assert re.search(rf"{re.escape(str(tmp_path / file))}, [\d.]+ (B|KiB|MiB): open it in {advice}", run.output)
    assert json.loads((tmp_path / "p").read_text())["traceEvents"]
    assert pickle.loads((tmp_path / "t").read_bytes())["device_traces"]
    assert "fence" in CliRunner().invoke(main, ["trace", str(history)]).output
    (tmp_path / "bad").write_text("no")
    run = CliRunner().invoke(main, ["trace", str(tmp_path / "bad")])
    assert run.exit_code == 1
    assert "is not a history" in run.output
    x.kept.free()


# ---------------------------------------------------------------------------------------------- why
def test_why_says_what_a_stream_waited_for(x):
    left = x.runtime.allocate(512, x.S, tag="left")
    with record_history(stacks="all"):
        with xlogmem.use(x.S, write=left):
            wrote = sys._getframe().f_lineno - 1
        with xlogmem.use(x.T, read=left):
            pass
        with xlogmem.use(x.U, read=left):
            pass
    said, = xlogmem.why(x.T)                            # nothing is pending
    pattern = (rf"stream {x.T.id} waited for stream {x.S.id} \(\S*{HERE}:{wrote + 2}\), to use: "
               rf"left \(block {left.generation}\) was written there \(\S*{HERE}:{wrote}\)")
    assert re.fullmatch(pattern, said)
    assert xlogmem.why(x.V) == [f"the history has nothing of stream {x.V.id}, and nothing is pending"]
    with record_history():
        left.free()
    said, = xlogmem.why(left)                           # it is not there any more
    assert said == (f"the free of left (block {left.generation}) on stream {x.S.id} waits for 2 users: "
                    f"read on stream {x.T.id}, read on stream {x.U.id}")
    freed = f"to free: left (block {left.generation}) was read there"
    assert [freed in line for line in xlogmem.why(x.S)] == [True, True, False]    # and what is pending


def test_why_of_waits_that_no_block_needs(x):
    with record_history():
        x.T.wait(x.S)
    assert xlogmem.why(x.T) == [
        f"stream {x.T.id} waited for stream {x.S.id}, which no use or free needed: the program requested it, the "
        "memory was there before, or a block was handed back"]


def test_why_says_no_reason_where_it_was_dropped(four):
    x = four(sealed="S")
    block = x.alloc(x.S)
    with record_history(max_events=2) as recording:
        x.use(x.T, (block, READ))
    assert [event.kind for event in recording.events()] == ["wait", "use"]
    assert xlogmem.why(x.T) == [f"stream {x.T.id} waited for stream {x.S.id}"]
    block.free()


def test_why_of_a_block_from_its_beginning_to_its_end(x):
    with record_history():
        block = x.runtime.allocate(512, x.S, tag="left")
        x.use(x.T, (block, READ))
        block.free(x.S)
    name = f"left (block {block.generation})"
    assert xlogmem.why(block)[-1] == (
        f"the free of {name} on stream {x.S.id} waits for 1 user: read on stream {x.T.id}")
    with record_history():
        block = x.runtime.allocate(512, x.S)
        block.free()
    assert xlogmem.why(block) == [
        f"block {block.generation} was allocated on stream {x.S.id}, 512 bytes at {block.id.ptr:#x}",
        f"block {block.generation} was freed on stream {x.S.id}"]


@pytest.fixture
def no_history(monkeypatch):
    monkeypatch.setattr("xlogmem.observe.history.recording._latest", None)


def test_why_without_a_history_says_what_is_so_now(no_history, x):
    left = x.runtime.allocate(512, x.S, tag="left")
    name = f"left (block {left.generation})"
    place = f"512 B at {left.ptr:#x}, allocated on stream {x.S.id}"
    assert xlogmem.why(left) == [f"{name} is live, {place}", NO_HISTORY]
    x.use(x.T, (left, READ))
    x.use(x.U, (left, READ))
    x.use(x.S, (left, READ))
    after = (f"a free of {name} on stream {x.S.id} would be ordered after 2 users: read on stream {x.T.id}, "
             f"read on stream {x.U.id}")
    assert xlogmem.why(left) == xlogmem.why(left.id) == [f"{name} is live, {place}", after, NO_HISTORY]
    window = x.prepare(x.T, (left, READ))
    open_on = "1 use is still open"
    assert xlogmem.why(left) == [
        f"{name} is live, {place}", f"a free of {name} would be put off: {open_on}", after, NO_HISTORY]
    left.free()
    put_off = f"the free of {name} on stream {x.S.id} is put off: {open_on}"
    assert xlogmem.why(left)[:2] == [f"{name} is freed, {place}", put_off]
    assert xlogmem.why(x.S) == [put_off, NO_HISTORY]
    window.commit()
    assert xlogmem.why(left) == [NO_HISTORY]


def test_why_says_what_is_pending(no_history, x):
    x.runtime.allocate("3MiB", x.S).free()
    assert xlogmem.why(x.S) == [f"3.0 MiB is pending behind stream {x.S.id}: freed there, and not seen complete",
                                 NO_HISTORY]
    assert xlogmem.why(x.T) == [NO_HISTORY]
    x.runtime.reap_pending(blocking=True)
    assert xlogmem.why(x.S) == [NO_HISTORY]


def test_why_of_a_stream_without_a_runtime(no_history):
    assert xlogmem.why(xlogmem.StreamPool().default) == [NO_HISTORY]


def test_why_refuses_what_it_cannot_explain():
    with pytest.raises(TypeError, match=r"not 1$"):
        xlogmem.why(1)


# ---------------------------------------------------------------------------------------------- names that others lay
def test_no_link_is_followed(tmp_path):
    """... at the file's name, and at the name that the file has while it is written, which can be guessed."""
    victim, path = tmp_path / "victim", tmp_path / "run.xlog"
    victim.write_bytes(b"precious")
    recorded = xlogmem.record_history(path)
    (tmp_path / f"run.xlog.{os.getpid()}.part").symlink_to(victim)
    recorded.stop()
    assert victim.read_bytes() == b"precious"
    assert path.is_file()
    assert not path.is_symlink()
    assert len(xlogmem.observe.history.read(path)) == len(recorded.history())
    path.unlink()
    path.symlink_to(victim)                             # one that is there when a recording begins is the program's
    recorded.history().save(path)
    assert victim.read_bytes() == b"precious"
    assert not path.is_symlink()


class Array:
    def __init__(self, block):
        self.__cuda_array_interface__ = {"shape": (block.nbytes,), "typestr": "|u1", "data": (block.ptr, False),
                                         "version": 3}


class OfLibrary:
    def __init__(self, stream):
        self.handle = stream.handle

    def __cuda_stream__(self):
        return 0, self.handle


def test_why_takes_what_use_takes(x):
    block = x.runtime.allocate(64, x.S, tag="mine")
    assert xlogmem.why(Array(block)) == xlogmem.why(block) != []
    assert xlogmem.why(OfLibrary(x.S)) == xlogmem.why(x.S)
    for other in ("text", object(), 1.5):
        with pytest.raises(TypeError, match="what must be a stream or memory that a runtime knows"):
            xlogmem.why(other)
    block.free()
