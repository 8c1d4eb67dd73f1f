"""Pieces of a benchmark run are put together; the chart and the README's rows."""
from __future__ import annotations

from io import StringIO

import pytest
from bench_runs import all_of, document, of_case, printed, row_of
from places import ROOT
from rich.console import Console
from xlogmem_bench import results, settings
from xlogmem_bench.allocators import FLOOR
from xlogmem_bench.results import chart


def test_pieces_of_a_run_are_put_together():
    """... in the order of the families, with their times, and without "the time was up" where another piece has it."""
    late = {"case": "allocate/1 MiB", "candidate": "all of it", "text": settings.LATE}
    other = {"case": "use/ping-pong", "candidate": "PyTorch", "text": "out of patience"}
    use, allocate = document(floor=[[100.]], ours=[[150.]]), of_case(document(floor=[[10.]], ours=[[20.]]),
                                                                      "allocate/1 MiB")
    use["failures"] = [late, other]
    allocate["failures"] = [other]
    use["machine"] |= {"found": {"RMM": "26.10"}, "missing": {"CuPy": "not installed", "pylibcudf": "not installed"}}
    allocate["machine"] |= {"found": {"RMM": "26.08", "CuPy": "14.2"}, "missing": {"pylibcudf": "not installed"},
                            "commit": "def"}
    seen = results.merged([use, allocate])
    assert [(row["case"], row["candidate"]) for row in seen["rows"]] == [
        ("allocate/1 MiB", "floor"), ("allocate/1 MiB", "ours"), ("use/ping-pong", "floor"), ("use/ping-pong", "ours")]
    assert [row["to_reference"]["median"] for row in seen["rows"]] == [1, 2, 1, 1.5]
    assert seen["failures"] == [other]
    assert seen["seconds"] == 2
    assert seen["spent"] == {"use/ping-pong": .5, "allocate/1 MiB": .5}
    assert seen["machine"]["found"] == {"RMM": "26.10 / 26.08", "CuPy": "14.2"}
    assert seen["machine"]["missing"] == {"pylibcudf": "not installed"}
    assert seen["machine"]["commit"] == "abc / def"
    assert [part["seconds"] for part in results.merged([seen, use])["parts"]] == [1, 1, 1]
    assert "2 processes took 2 s: allocate 0, use 0, to begin and end 1." in printed(seen)


def test_the_same_rows_of_two_runs_count_as_more_processes():
    first = document(floor=[[100.] * 3], ours=[[150.] * 3])
    second = document(floor=[[100.] * 3] * 2, ours=[[300.] * 3] * 2)
    row = row_of(results.merged([first, second]), "ours")
    assert {process: turns[0] for process, turns in row["values"].items()} == {"0": 150, "1": 300, "2": 300}
    assert row["to_reference"] == {"median": 3, "low": 1.5, "high": 3}
    assert row_of(first, "ours")["to_reference"]["high"] == 1.5         # as it was


def test_a_best_peer_may_come_from_another_piece():
    peer = document(floor=[[100.]], peer=[[50.]])
    row = row_of(results.merged([document(floor=[[100.]], ours=[[150.]]), peer]), "ours")
    assert (row["best_peer"], row["to_best_peer"]["median"]) == ("peer", 3)


def test_what_does_not_go_together_is_refused():
    one, other = document(floor=[[100.]]), document(floor=[[100.]])
    other["rows"][0]["parameters"] = {"nbytes": 1}
    with pytest.raises(ValueError, match="use/ping-pong is not the same in both runs"):
        results.merged([one, other])
    other["machine"]["device"] = "another"
    with pytest.raises(ValueError, match="'none' and on 'another'"):
        results.merged([one, other])


def test_the_rows_of_the_summary_may_come_in_pieces():
    """... and say so where there is none."""
    pieces = []
    for _, case, candidate in results.SUMMARY[1:4]:
        piece = of_case(document(floor=[[100.]], ours=[[150.]]), case)
        for row in piece["rows"]:
            row["candidate"] = row["reference"] if row["role"] == FLOOR else candidate
        pieces.append(piece)
    lines = results.markdown(results.merged(pieces)).splitlines()
    assert lines[2] == "| `allocate` + `free`, 1 MiB, tracked | – | – | – | – | – |"
    assert lines[3] == "| the same from `PoolMemoryResource` | 150 | 1.50 | – | – | – |"
    assert lines == results.markdown(results.merged(pieces[::-1])).splitlines()
    assert lines[-1] == "`xlogmem bench`: none, driver None, xlogmem abc"
    pieces[1]["command"] = ["xlogmem", "bench", "--family", "use"]
    assert results.markdown(results.merged(pieces)).endswith(
        "\n\n`xlogmem bench`, `xlogmem bench --family use`: none, driver None, xlogmem abc")


def test_runs_that_have_nothing_in_common_do_not_agree():
    seen = document(floor=[[100.]])
    assert results.print_agreement(seen, seen, Console(file=StringIO())) is False


def test_the_chart_is_drawn_or_says_what_it_needs(tmp_path):
    seen = document(floor=[[100, 101]], ours=[[150, 160]], peer=[[300, 300]], unlike=[[10, 11]])
    row_of(seen, "ours")["candidate"] = "xlogmem"
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        with pytest.raises(RuntimeError, match=r"xlogmem-bench\[chart\]"):
            results.plot(seen, str(tmp_path / "a.png"))
        return
    results.plot(seen, str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    results.plot(seen, str(tmp_path / "a.svg"))
    text = (tmp_path / "a.svg").read_text()
    for said in ("ping-pong, two uses  [100 ns]", "from C++", "from Python", ">peer<", "best peer", "not like for like",
                 "xlogmem, pool; uses", "× the time of the raw driver calls in C", "spread of up to 1 process"):
        assert said in text, said
    other = of_case(seen, "lookup/1,000 live")          # drawn where there is nothing that the chart knows
    results.plot(other, str(tmp_path / "b.svg"))
    assert "lookup/1,000 live  [100 ns]" in (tmp_path / "b.svg").read_text()
    results.plot(results.merged([seen, other]), str(tmp_path / "c.svg"))
    assert "lookup/1,000 live" not in (tmp_path / "c.svg").read_text()
    with pytest.raises(ValueError, match="nothing to draw"):
        results.plot(seen | {"rows": []}, str(tmp_path / "d.png"))


def test_without_a_floor_the_chart_says_what_to():
    assert chart.label(document(peer=[[3e5]], ours=[[150]]), "use/ping-pong") == "ping-pong, two uses  [peer 300 µs]"


def test_the_chart_and_its_marks_are_of_what_there_is():
    assert set(results.CHART) <= {case.id for case in all_of()}


def test_the_rows_of_the_summary_are_cases_that_there_are():
    found = {case.id for case in all_of()}
    assert {case for _, case, _ in results.SUMMARY} <= found
    page = (ROOT / "docs/performance.md").read_text()
    for text, _, _ in results.SUMMARY:
        assert f"| {text} |" in page, text
    assert "xlogmem bench --summary" in page
