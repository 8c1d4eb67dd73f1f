"""The benchmarks' figures are made of what was measured.  None means anything on the simulated driver."""
from __future__ import annotations

import json
from io import StringIO

import pytest
from bench_runs import LOUD, document, printed, raw, row_of
from rich.console import Console
from xlogmem_bench import results
from xlogmem_bench.allocators import PER_USE_EVENTS
from xlogmem_bench.results import documents
from xlogmem_bench.settings import Settings


def test_ratios_are_taken_turn_by_turn():
    """The clock doubles half-way; the ratio does not notice."""
    seen = document(floor=[[100, 100, 200], [200, 200]], ours=[[150, 150, 300], [300, 300]])
    row = row_of(seen, "ours")
    assert row["to_reference"] == {"median": 1.5, "low": 1.5, "high": 1.5}
    assert (row["best"], row["median"], row["low"], row["high"]) == (150, 300, 150, 300)


def test_ratios_are_to_what_the_reference_took_just_then():
    """... not to the mean of its turn."""
    seen = document(beside=[[50, 200]], floor=[[100, 100]], ours=[[75, 300]], peer=[[50, 200]])
    assert row_of(seen, "ours")["to_reference"] == {"median": 1.5, "low": 1.5, "high": 1.5}
    assert row_of(seen, "ours")["to_best_peer"] == {"median": 1.5, "low": 1.5, "high": 1.5}


@pytest.mark.parametrize(("turns", "low", "high"), [
    ([[10, 1, 11, 12, 13, 14, 99]], 10, 14),                            # a disturbed turn is left out on either side
    ([[10, 10, 10, 10, 10, 10, 10], [20, 20, 20, 20, 20, 20, 20]], 10, 20),   # a slow process is not
    ([[10, 10, 10, 10, 10, 10, 10]] * 9 + [[20, 20, 20, 20, 20, 20, 20]], 10, 20),
    ([[10]], 10, 10)])
def test_the_spread_is_that_of_all_processes_without_their_extreme_turns(turns, low, high):
    row = row_of(document(floor=turns), "floor")
    assert (row["low"], row["high"]) == (low, high)


def test_a_process_without_the_reference_has_no_part_in_the_ratio():
    seen = raw(floor=[[100, 100]], ours=[[1, 1], [150, 150]])
    seen["rows"]["ours"]["beside"] = {1: [100, 100]}
    assert row_of(results.assembled(seen, Settings(), []), "ours")["to_reference"]["median"] == 1.5


def test_the_best_peer_is_like_for_like_and_of_the_same_language():
    row = row_of(document(floor=[[100]], ours=[[150]], slow=[[400]], peer=[[300]], unlike=[[10]], snake=[[20]]), "ours")
    assert row["best_peer"] == "peer"
    assert row["to_best_peer"]["median"] == .5


def test_without_a_floor_the_first_is_the_reference():
    seen = document(peer=[[300]], ours=[[150]])
    assert row_of(seen, "ours")["reference"] == "peer"
    assert row_of(seen, "ours")["to_reference"]["median"] == .5


def test_a_command_is_kept_without_folders():
    command = ["xlogmem", "bench", "--case", "pylibcudf/allocate_like", "--json", "/there/a.json", "--compare",
               "/there/c.json.gz", "--plot=/there/b.png"]
    assert documents.without_folders(command) == [
        "xlogmem", "bench", "--case", "pylibcudf/allocate_like", "--json", "a.json", "--compare", "c.json.gz",
        "--plot=b.png"]


def test_a_document_survives_its_file(tmp_path):
    seen = document(floor=[[100, 101]], ours=[[150, 160]])
    for name in ("a.json", "a.json.gz"):
        results.saved(seen, str(tmp_path / name))
        assert results.loaded(str(tmp_path / name)) == json.loads(json.dumps(seen))
    assert (tmp_path / "a.json.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert set(seen) == {"schema", "command", "settings", "seconds", "processes", "spent", "machine", "failures",
                         "rows"}
    (tmp_path / "b.json").write_text('{"schema": 99}')
    with pytest.raises(ValueError, match="schema 99"):
        results.loaded(str(tmp_path / "b.json"))


def test_documents_of_earlier_releases_are_read_under_the_names_of_today(tmp_path):
    """... so that their rows are compared: the per-use-event scheme had another name."""
    former = "an event for each use (the seeds)"
    seen = document(floor=[[100.] * 3], ours=[[150.] * 3], peer=[[300.] * 3])
    seen["failures"].append({"case": "use/ping-pong", "candidate": former, "text": "out of patience"})
    (tmp_path / "old.json").write_text(json.dumps(seen).replace('"peer"', json.dumps(former)).replace(
        f'"role": {json.dumps(former)}', '"role": "peer"'))
    read = results.loaded(str(tmp_path / "old.json"))
    assert [row["candidate"] for row in read["rows"]] == ["floor", "ours", PER_USE_EVENTS]
    assert row_of(read, "ours")["best_peer"] == read["failures"][0]["candidate"] == PER_USE_EVENTS


def test_the_table_names_what_is_missing_failed_and_not_like_for_like():
    seen = document(floor=[[100]], ours=[[150]], peer=[[300]], unlike=[[10]])
    seen["failures"].append({"case": "use/ping-pong", "candidate": "PyTorch", "text": "out of patience"})
    text = printed(seen, everything=True)
    for said in ("unlike [1]", "[1] not like for like: marks only", "without CuPy: not installed", "1.50 (1.50–1.50)",
                 "failed: PyTorch in use/ping-pong: out of patience", "use/ping-pong, ns per round of two uses"):
        assert said in text, said
    assert "unlike" not in printed(seen)                # in short: the floor, ours, and the best peers
    assert "peer" in printed(seen)
    seen["machine"]["simulated"] = True
    assert LOUD in printed(seen)


@pytest.mark.parametrize(("then", "now", "agree"), [
    ([1.5, 1.6, 1.7], [1.7, 1.8, 1.9], True), ([1.5, 1.6, 1.7], [1.71, 1.8, 1.9], False),
    ([1.8, 1.85, 1.9], [1.5, 1.6, 1.79], False), ([1.5, 1.6, 1.7], [1.55, 1.6, 1.65], True)])
def test_two_runs_agree_if_their_spreads_overlap(then, now, agree):
    a = document(floor=[[100.] * 3], ours=[[100 * x for x in then]])
    b = document(floor=[[50.] * 3], ours=[[50 * x for x in now]])
    found = results.agreement(b, a)
    assert [row["agree"] for row in found] == [agree]
    console = Console(file=StringIO(), width=200)
    assert results.print_agreement(b, a, console) is agree
    assert f"of xlogmem's {int(agree)} of 1" in console.file.getvalue()
    assert ("use/ping-pong: ours" in console.file.getvalue()) is not agree


def test_rows_of_other_parameters_are_not_compared():
    a, b = document(floor=[[100.] * 3], ours=[[150.] * 3]), document(floor=[[100.] * 3], ours=[[900.] * 3])
    assert len(results.agreement(b, a)) == 1
    row_of(b, "ours")["parameters"] = {"nbytes": 1}
    assert results.agreement(b, a) == []


def test_rows_of_one_run_only_are_counted():
    console = Console(file=StringIO(), width=200)
    results.print_agreement(document(floor=[[100.] * 3], ours=[[150.] * 3], peer=[[1.] * 3]), document(
        floor=[[100.] * 3], ours=[[150.] * 3]), console)
    assert "of xlogmem's 1 of 1. 1 row is in one of the runs only." in console.file.getvalue()


@pytest.mark.parametrize("turns", [[[1., 1.]], [[1.], [1.]], [[1.], [1.], [1.]]])
def test_less_than_three_turns_give_no_spread(turns):
    """... so they neither agree nor differ; three processes of one turn have one."""
    floor = [[100.] * len(some) for some in turns]
    a, b = (document(floor=floor, ours=[[figure] * len(some) for some in turns]) for figure in (150., 900.))
    console = Console(file=StringIO(), width=200)
    assert results.print_agreement(b, a, console) is False
    enough = len(turns) == 3
    assert [row["agree"] for row in results.agreement(b, a)] == [False if enough else None]
    assert ("Not compared: 1 row of fewer than 3 turns." in console.file.getvalue()) is not enough
