"""Files and peers that are made up are damaged: one error says so, whatever is in them."""
from __future__ import annotations

import json
from typing import Any

import pytest

from xlogmem.commands.trace import table_of
from xlogmem.observe.history import HistoryError, files, perfetto, read, timeline, torch
from xlogmem.observe.live.figures import COUNTED, ProcessFigures
from xlogmem.observe.live.reading import LiveError, parsed

DEEP = "[" * 200_000
HUGE = 10**400
FACTS = {"xlogmem": "0", "pid": 1, "clock": [[0, 0, 0], [9, 9, 9]], "wanted": "all", "count": 0, "kept": 0, "tags": [],
         "stacks": {}}
EVENT = files.EVENT.pack(1, 0, 5, 1, 0, 0, 1, files.NONE, files.NONE, 1, 4096, 64, 0, 1)


def stopped(text: str, packed: bytes = b"", size: int | None = None) -> bytes:
    """The file of a recording that has stopped."""
    facts = text.encode()
    return files.START.pack(files.MAGIC, files.VERSION, len(facts) if size is None else size) + facts + packed


def ring(*lines: str, room: int = 1, most: int = 1, count: int = 1) -> bytes:
    """The file of a recording that runs, with one event."""
    header = files.RING_START.pack(files.MAGIC, files.RING_VERSION, files.HEADER, room, most).ljust(64, b"\0")
    header += count.to_bytes(8, "little")
    known = json.dumps({name: FACTS[name] for name in ("xlogmem", "pid", "clock", "wanted")})
    return header.ljust(files.HEADER, b"\0") + EVENT + "\n".join([known, *lines, ""]).encode()


@pytest.mark.parametrize("changed", [
    {"clock": [[0, 0, 0], [HUGE, 1, 1]]}, {"clock": [[0, 0, 0], [float("inf"), 1, 1]]}, {"count": HUGE},
    {"count": float("nan")}, {"kept": 0.0}, {"kept": 64 * HUGE, "count": HUGE}, {"kept": -64}, {"tags": [1]},
    {"stacks": None}, {"stacks": {"1": [["f", HUGE, "g"]]}}, {"stacks": {"1": [None]}}, {"clock": None},
])
def test_a_history_with_such_facts_is_damaged(tmp_path, changed):
    (tmp_path / "run.xlog").write_bytes(stopped(json.dumps(FACTS | changed)))
    with pytest.raises(HistoryError, match="damaged"):
        read(tmp_path / "run.xlog")


@pytest.mark.parametrize("content", [
    stopped(DEEP), stopped("1e999"), stopped("Infinity"), stopped("{}", size=files.LARGEST_FACTS),
    ring(room=1 << 30), ring(room=1 << 63), ring(room=3), ring(room=0),
])
def test_such_a_history_is_damaged(tmp_path, content):
    (tmp_path / "run.xlog").write_bytes(content)
    with pytest.raises(HistoryError, match="damaged"):
        read(tmp_path / "run.xlog")


@pytest.mark.parametrize("line", [
    DEEP, json.dumps({"tags": [1]}), json.dumps({"stacks": None}), json.dumps({**FACTS, "tags": [1], "stacks": None}),
    json.dumps({"tag": float("inf"), "text": "x", "clock": [1, 1, 1]}), json.dumps("tag"), "[]", "null",
    json.dumps({"tag": 1, "text": 7, "clock": [1, 1, 1]}), json.dumps({"tag": 1, "text": "\ud800", "clock": [1, 1, 1]}),
    json.dumps({"stack": 1, "frames": [["\ud800", 1, "\ud800"]], "clock": [1, 1, 1]}),
    json.dumps({"stack": 1, "frames": [["a\0b", 1, "f"]], "clock": [1, 1, 1]}),
])
def test_a_ring_with_such_a_line_is_read_or_damaged(tmp_path, line):
    (tmp_path / "run.xlog").write_bytes(ring(line))
    try:
        history = read(tmp_path / "run.xlog")
    except HistoryError:
        return
    assert len(list(history)) == 1
    table_of(history)
    timeline.page(history).encode()
    perfetto.dumped(history)
    torch.dumped(history)


def test_the_ring_itself_is_read(tmp_path):
    """The twin."""
    (tmp_path / "run.xlog").write_bytes(ring(json.dumps({"tag": 1, "text": "left", "clock": [1, 1, 1]})))
    [event] = read(tmp_path / "run.xlog")
    assert (event.kind, event.tag, event.nbytes) == ("allocate", "left", 64)


RUNTIME: dict[str, Any] = dict.fromkeys(
    ("number", "device", "live_bytes", "live_blocks", "pending_bytes", "peak_bytes", "further_tags"), 1) | {
    "resource": "r", "tags": [], "further": {"name": None, "nbytes": 1, "blocks": 1}, "pools": [],
    "counters": dict.fromkeys(COUNTED, 1)}


def answer(**changed: Any) -> str:
    return json.dumps({"format": 1, "pid": 1, "program": "p", "clock": 1.0, "runtimes": [RUNTIME]} | changed)


@pytest.mark.parametrize("text", [
    DEEP, "Infinity", answer(clock=HUGE), answer(clock=float("nan")), answer(pid=HUGE), answer(pid=-1),
    answer(runtimes=[RUNTIME | {"live_bytes": HUGE}]), answer(runtimes=[RUNTIME | {"live_bytes": float("inf")}]),
    answer(runtimes=[RUNTIME | {"pools": [{"size": 1}]}]), answer(runtimes=[RUNTIME | {"tags": [{"name": 1}]}]),
    answer(runtimes=None), answer(runtimes=[None]), "[]", "\ud800",
])
def test_such_an_answer_is_damaged(text):
    with pytest.raises(LiveError, match="damaged"):
        parsed(text.encode(errors="surrogatepass") + b"\n", 1)


def test_the_answer_itself_is_read():
    assert ProcessFigures.parse(answer()).runtimes[0].live_bytes == 1
