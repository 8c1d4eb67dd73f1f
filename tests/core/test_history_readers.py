"""What other viewers read of a history: PyTorch's own reader of snapshots, and the rules of Chrome's traces.

``torch/cuda/_memory_viz.py`` is one file that needs nothing but the standard library.  It is taken from an installed
PyTorch, which is not imported, or from where XLOGMEM_MEMORY_VIZ names it.
"""
from __future__ import annotations

import base64
import importlib.util
import json
import os
import pickle
import re
import sys
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from trace_events import problems

import xlogmem
from xlogmem.commands.cli import main
from xlogmem.observe.history import record_history

HERE = Path(__file__).name
MIB = 1 << 20
LIMIT = 256 * MIB


def program(path: Path) -> SimpleNamespace:
    """Streams that wait for each other, tags, frees now, later and never, and no memory; what there is in the end."""
    budget = xlogmem.LimitingResourceAdaptor(xlogmem.PoolMemoryResource(), LIMIT)
    runtime = xlogmem.DeviceRuntime(resource=budget)
    S, T = (runtime.acquire_stream() for _ in range(2))
    older = runtime.allocate(MIB, S, tag="older")
    with record_history(path, stacks="alloc") as recording:
        weights = runtime.allocate(48 * MIB, S, tag="weights")
        line = sys._getframe().f_lineno - 1
        plain = runtime.allocate(1000, T)
        for _ in range(3):
            step = runtime.allocate(2 * MIB, S, tag="step")
            with xlogmem.use(S, write=step):
                pass
            with xlogmem.use(T, read=step, write=weights):
                pass
            step.free()
        held = runtime.allocate(4 * MIB, T, tag="held")
        first, second = (xlogmem.LaunchRecorder(S).read(block) for block in (weights, held))
        first.preflight()
        second.preflight()                              # the windows of one stream overlap
        held.free()                                     # put off until the second closes
        first.commit()
        second.commit()
        with pytest.raises(xlogmem.OutOfBudgetError):
            runtime.allocate(LIMIT, S, tag="too much")
        older.free()
    return SimpleNamespace(path=path, events=list(recording.events()), runtime=runtime, streams=(S, T), line=line,
                           kept=(weights, plain))


@pytest.fixture
def recorded(tmp_path):
    recorded = program(tmp_path / "a.xlog")
    yield recorded
    recorded.__dict__.clear()                           # pytest keeps it, which must not keep the runtime


def written(recorded: SimpleNamespace, option: str) -> bytes:
    """What the command makes of it."""
    out = recorded.path.with_suffix(".out")
    run = CliRunner().invoke(main, ["trace", str(recorded.path), option, str(out)])
    assert run.exit_code == 0, run.output
    return out.read_bytes()


# ---------------------------------------------------------------------------------------------- PyTorch
def memory_viz_file() -> Path | None:
    if named := os.environ.get("XLOGMEM_MEMORY_VIZ"):
        return Path(named)                              # one that is not there is an error
    torch = importlib.util.find_spec("torch")
    if torch is None or not torch.submodule_search_locations:
        return None
    file = Path(torch.submodule_search_locations[0], "cuda", "_memory_viz.py")
    return file if file.is_file() else None


@pytest.fixture
def viz() -> ModuleType:
    """PyTorch's reader."""
    file = memory_viz_file()
    if file is None:
        pytest.skip("needs PyTorch's reader: torch is not installed, and XLOGMEM_MEMORY_VIZ names no file")
    specification = importlib.util.spec_from_file_location("memory_viz_of_torch", file)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def snapshot(recorded) -> dict[str, Any]:
    return pickle.loads(written(recorded, "--torch"))


def as_it_is(lines: str) -> str:
    """In the place of the program that draws flame graphs, which PyTorch downloads."""
    return lines


def test_pytorch_counts_the_segments_and_their_bytes(viz, snapshot):
    """`segsum` raises where the blocks of a segment do not add up to it."""
    said = viz.segsum(snapshot)
    assert "segments: 2\n" in said
    assert re.search(r"^\[aaa\] 48\.0MiB allocated, 0\.0B free stream_\d+$", said, re.MULTILINE)
    for total, nbytes in (("reserved", "48.0MiB"), ("allocated", "48.0MiB"), ("free", "0.0B")):
        assert f"total_{total}: {nbytes}\n" in said
    snapshot["segments"][-1]["blocks"][0]["size"] += 1
    with pytest.raises(AssertionError, match=r"mismatch|accounting"):
        viz.segsum(snapshot)


def test_pytorch_retells_what_happened(viz, snapshot, recorded):
    lines = viz.trace(snapshot).splitlines()
    assert lines[:2] == ["Device 0 ----------------", f"{len(snapshot['device_traces'][0])} entries"]
    kinds = Counter(re.sub(r"^(\w+ = |del |# free completed|raise|TOTAL).*", r"\1", line) for line in lines[2:])
    assert {kind: count for kind, count in kinds.items() if " = " not in kind} == {
        "del ": 5, "# free completed": 5, "raise": 1, "TOTAL": 1}
    sizes = Counter(re.search(r":([\w.]+)\]$", line)[1] for line in lines if " = " in line)
    assert sizes == {"48.0MiB": 1, "1000.0B": 1, "2.0MiB": 3, "4.0MiB": 1}
    assert f"del {min(event.address for event in recorded.events if event.tag == 'older')} # 1.0MiB" in lines
    assert "raise OutOfMemoryError # 256.0MiB requested, 0.0B free in CUDA" in lines


def test_pytorch_says_who_has_the_memory(viz, snapshot, recorded):
    """The stack is read from the outermost frame, so that the tag is the leaf of a flame graph."""
    S, T = recorded.streams
    weights, plain = recorded.kept
    found = sorted(viz.memory(snapshot, as_it_is).splitlines())
    assert len(found) == 2
    said = [re.fullmatch(r"stream_(\d+);active_allocated;(.*) (\d+)", line).groups() for line in found]
    frames = {int(nbytes): (int(stream), stack.split(";")) for stream, stack, nbytes in said}
    assert frames.keys() == {weights.nbytes, plain.nbytes}
    assert (frames[weights.nbytes][0], frames[plain.nbytes][0]) == (S.id, T.id)
    assert frames[weights.nbytes][1][-2:] == [f"{HERE}:{recorded.line}:program", ":0:tag weights"]
    assert frames[plain.nbytes][1][-1] == f"{HERE}:{recorded.line + 2}:program"
    prefixes = {line.split(";")[1] for line in viz.segments(snapshot, as_it_is).splitlines()}
    assert prefixes == {f"seg_{block.ptr}" for block in recorded.kept}


def test_pytorch_compares_two_snapshots(viz, snapshot, recorded, capsys):
    weights, _ = recorded.kept
    before = [segment for segment in snapshot["segments"] if segment["address"] != weights.ptr]
    said = viz.compare(before, snapshot["segments"], as_it_is)
    assert f"only_before = []\nonly_after = [{weights.ptr}]\n" in capsys.readouterr().out
    assert said.startswith(f"only_after;stream_{recorded.streams[0].id};seg_{weights.ptr};active_allocated;")


@pytest.mark.parametrize("options", [{}, {"plot_segments": True}])
def test_pytorchs_pages_have_the_snapshot(viz, snapshot, options):
    for page in (viz.trace_plot(snapshot, **options), viz.segment_plot(snapshot)):
        files, = re.findall(r"local_files = (\[.*\])", page)
        assert pickle.loads(base64.b64decode(json.loads(files)[0]["base64"])) == snapshot


def test_pytorch_pairs_frees_with_allocations(viz, snapshot, recorded, capsys):
    """Without the pairs there are the blocks that stay, and what was there before."""
    left, = viz.filter_alloc_free_pairs(snapshot)["device_traces"]
    kinds = [(entry["action"], entry["user_metadata"]) for entry in left if entry["action"] != "free_completed"]
    assert kinds == [("alloc", "weights"), ("alloc", ""), ("oom", "too much"), ("free_requested", "older")]
    assert capsys.readouterr().out == "", "a free that was not requested"


# ---------------------------------------------------------------------------------------------- Chrome's traces
@pytest.fixture
def trace(recorded) -> dict[str, Any]:
    return json.loads(written(recorded, "--perfetto"))


def test_the_trace_keeps_to_its_format(trace):
    assert problems(trace) == []
    assert {entry["ph"] for entry in trace["traceEvents"]} == set("MXisfbeC")


def test_times_are_exact_and_count_from_the_oldest(trace, recorded):
    began = int(trace["otherData"]["began"].removesuffix(" ns of the epoch"))
    allocated = sorted(event.time_ns for event in recorded.events if event.kind == "allocate")
    shown = sorted(entry["ts"] for entry in trace["traceEvents"] if entry["ph"] == "b")
    assert [began + round(ts * 1000) for ts in shown] == allocated
    assert min(entry["ts"] for entry in trace["traceEvents"] if "ts" in entry) == 0


def test_windows_of_a_stream_that_overlap_have_tracks_of_their_own(trace, recorded):
    S, _ = recorded.streams
    names = {entry["tid"]: entry["args"]["name"] for entry in trace["traceEvents"] if entry["name"] == "thread_name"}
    uses = [(names[entry["tid"]], entry["name"]) for entry in trace["traceEvents"]
            if entry["ph"] == "X" and not entry["name"].startswith("wait") and entry["name"] in ("weights", "held")]
    assert uses == [(f"stream {S.id}", "weights"), (f"stream {S.id} (2)", "held")]


def test_counters_end_with_what_is_live(trace, recorded):
    last = {entry["name"]: entry["args"]["bytes"] for entry in trace["traceEvents"] if entry["ph"] == "C"}
    assert last == {"bytes: weights": 48 * MIB, "bytes: no tag": 1000, "bytes: step": 0, "bytes: held": 0}


def first(trace: dict[str, Any], phase: str, name: str = "") -> dict[str, Any]:
    return next(entry for entry in trace["traceEvents"] if entry["ph"] == phase and name in entry["name"])


def drop(trace: dict[str, Any], phase: str, name: str = "") -> None:
    trace["traceEvents"].remove(first(trace, phase, name))


def again(trace: dict[str, Any], phase: str, **changed: object) -> None:
    entry = first(trace, phase)
    trace["traceEvents"].insert(trace["traceEvents"].index(entry) + 1, deepcopy(entry) | changed)


def change(phase: str, **changed: object) -> Callable[[dict[str, Any]], None]:
    return lambda trace: first(trace, phase).update(changed)


def without(phase: str, field: str) -> Callable[[dict[str, Any]], None]:
    return lambda trace: first(trace, phase).pop(field)


def overlap(trace: dict[str, Any]) -> None:
    longest = max((entry for entry in trace["traceEvents"] if entry["ph"] == "X"), key=lambda entry: entry["dur"])
    trace["traceEvents"].append(deepcopy(longest) | {"ts": longest["ts"] + longest["dur"] / 2})


def turn(trace: dict[str, Any]) -> None:
    beginning, end = first(trace, "s"), first(trace, "f")
    beginning["ph"], end["ph"] = "f", "s"
    beginning["bp"] = end.pop("bp")


def back(trace: dict[str, Any]) -> None:
    """The last block ends when the first began."""
    *_, last = (entry for entry in trace["traceEvents"] if entry["ph"] == "e")
    last["ts"] = 0


WRONG: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no list of events": (lambda trace: trace.update(traceEvents={}), "no list of traceEvents"),
    "the unit": (lambda trace: trace.update(displayTimeUnit="us"), "neither ms nor ns"),
    "an unknown phase": (change("i", ph="Q"), "no entry of a known phase"),
    "an entry that is none": (lambda trace: trace["traceEvents"].append("X"), "no entry of a known phase"),
    "a slice without a length": (without("X", "dur"), "fields are missing"),
    "an instant with a length": (change("i", dur=1), "fields are missing, or too many"),
    "a text as the process": (change("X", pid="1"), "numbers of 32 bits"),
    "a track too large": (change("X", tid=1 << 32), "numbers of 32 bits"),
    "no name": (change("X", name=""), "a name is a text"),
    "a negative time": (change("b", ts=-1), "not negative"),
    "a time as a text": (change("i", ts="12"), "not negative"),
    "no time": (change("i", ts=float("nan")), "not negative"),
    "a negative length": (change("X", dur=-.5), "not negative"),
    "arguments in a list": (change("X", args=[1]), "args are an object"),
    "unknown metadata": (change("M", name="stream_name"), "names a process or a thread"),
    "metadata without a name": (change("M", args={"label": "a"}), "names a process or a thread"),
    "a counter of texts": (change("C", args={"bytes": "12"}), "values of a counter are numbers"),
    "a counter of nothing": (change("C", args={}), "values of a counter are numbers"),
    "an instant of no scope": (change("i", s="x"), "an instant has a scope"),
    "an arrow to the next slice": (change("f", bp="s"), "in the slice around its end"),
    "an id of no kind": (change("b", id=None), "an id is a text or a number"),
    "a process without a name": (lambda trace: drop(trace, "M", "process_name"), "the process has no name"),
    "a track without a name": (lambda trace: drop(trace, "M", "thread_name"), "the track has no name"),
    "two names": (lambda trace: again(trace, "M"), "named twice"),
    "slices that overlap": (overlap, "slices of a track overlap"),
    "an arrow without an end": (lambda trace: drop(trace, "f"), "not one beginning and one end"),
    "an arrow without a beginning": (lambda trace: drop(trace, "s"), "not one beginning and one end"),
    "an arrow with two ends": (lambda trace: again(trace, "f"), "not one beginning and one end"),
    "an arrow of no slice": (change("s", ts=0), "lies in no slice"),
    "an arrow back in time": (turn, "ends before it begins"),
    "a block that begins twice": (lambda trace: again(trace, "b"), "began already"),
    "a block that never began": (lambda trace: drop(trace, "b"), "never began"),
    "a block that does not end": (lambda trace: drop(trace, "e"), "does not end"),
    "a block that ends under another name": (change("e", name="other"), "another name at its end"),
    "a block that ends too early": (back, "ends before it begins"),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_format_is_looked_at_closely(trace, case):
    """The twins: each is the good trace with one change, and what is said is about that."""
    spoil, said = WRONG[case]
    spoil(trace)
    found = problems(trace)
    assert found
    assert any(said in text for text in found), found
