"""Recorded calls, fed to the engine alone, give the findings of the run."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter

import pytest
from checked_programs import GONE, REUSED, UNORDERED
from engine_traces import programs, run, written
from gallery import CHECKED, RACES, require

from xlogmem.check.findings import from_json
from xlogmem.check.report import as_text

pytestmark = pytest.mark.simulator

FOUND = re.compile(r"(?P<certain>certain|possible) (?:of-driver )?(?:(?P<kind>[a-z-]+) )?\S+/\S+ "
                   r"(?P<first>\S+)@(?P<at>\d+)\S*/(?P<on>\w+) "
                   r"(?P<second>host [^@]+|\S+)@(?P<later>\d+)(?:<(?P<captured>\d+))?/(?P<there>\w+) "
                   r"\S*\[(?P<bytes>\d+:\d+)\](?: \"(?P<tag>.*)\")?(?: \(wait@.*\))?(?: x(?P<count>\d+))?$")


def test_every_trace_of_the_engine_recorded_and_replayed(replay, tmp_path):
    """Each call of the engine is in some of these."""
    traces = programs()
    found = run(replay, traces)
    subprocess.run([replay, written(replay, traces), tmp_path], check=True, stdout=subprocess.DEVNULL)
    recorded = {name: (tmp_path / str(number)).read_text().splitlines() for number, name in enumerate(traces)}
    assert all(line.startswith(":") for lines in recorded.values() for line in lines)
    for call in (":release", ":silent-work ", ":silent-work-in-rows "):
        assert any(line.startswith(call) for lines in recorded.values() for line in lines)
    again = run(replay, recorded)
    assert {name: plain(lines) for name, lines in again.items()} == {
        name: plain(lines) for name, lines in found.items()}
    assert sum(map(len, found.values())) > 100


def plain(lines):
    """Without the names of streams and blocks, which a recording does not have."""
    return [re.sub(r"(@\d+(?:<\d+)?(?:\([a-z@\d]+\))?)/\S+", r"\1", re.sub(r"\S+\[", "[", line)) for line in lines]

CUT = """
import glob, os
from cuda.bindings import driver as cuda
cuda.cuInit(0)
cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
for _ in range(3000):
    cuda.cuMemFree(cuda.cuMemAlloc(64)[1])
[trace] = glob.glob(os.environ["XLOGMEM_CHECK"] + "/*.trace")
END
"""


@pytest.fixture
def recorded(tmp_path, xlogmem_check):
    """Runs a program, and returns its findings and the recording."""
    def check(*command):
        xlogmem_check("--json", "out.json", "--record", "trace.txt", "--", sys.executable, *command)
        findings = [from_json(one) for one in json.loads((tmp_path / "out.json").read_text())["findings"]]
        return findings, (tmp_path / "trace.txt").read_text().splitlines()

    return check


def placed(access):
    return f"{access.place.file}:{access.place.line}"


def in_short(finding):
    offset = finding.block_begin
    return (finding.certain, finding.kind, finding.first.name, placed(finding.first), finding.first.stream.number,
            finding.second.name, placed(finding.second), finding.second.stream.number,
            f"{finding.begin - offset}:{finding.end - offset}", finding.tag or None)


def replayed(replay, lines):
    """What the engine finds in a recording, in short, with the places that it says."""
    header, *lines = lines
    assert header.startswith("== process ")
    places = dict(line.split()[2:4] for line in lines if line.startswith("# place "))
    found = Counter()
    for text in run(replay, {"it": lines})["it"]:
        one = FOUND.match(text)
        assert one, text
        stream = {"host": 0}
        found[(one["certain"] == "certain", one["kind"] or "race", one["first"], places[one["at"]],
               int(stream.get(one["on"], one["on"])), one["second"], places[one["later"]],
               int(stream.get(one["there"], one["there"])), one["bytes"], one["tag"])] += int(one["count"] or 1)
    return found


def expected(findings):
    found = Counter()
    for finding in findings:
        found[in_short(finding)] += finding.count
    return found


@pytest.mark.parametrize("race", CHECKED)
@pytest.mark.parametrize("form", [[], ["--fixed"]], ids=["wrong", "repaired"])
def test_the_gallery(race, form, recorded, replay):
    require(race, "--no-gpu")
    findings, lines = recorded(str(race.file), *form)
    assert bool(findings) == (not form)
    assert replayed(replay, lines) == expected(findings)


@pytest.mark.parametrize("form", [[], ["fixed"]], ids=["wrong", "repaired"])
@pytest.mark.parametrize("program", [UNORDERED, REUSED, GONE])
def test_programs_of_xlogmem(program, form, recorded, replay, tmp_path):
    (tmp_path / "program.py").write_text(program.replace('join \\"keys\\" ü', "keys"))
    findings, lines = recorded("program.py", "pool", *form)
    assert bool(findings) == (not form), [as_text(one) for one in findings]
    assert any(":piece" in line for line in lines)
    assert replayed(replay, lines) == expected(findings)


def test_a_recording_that_lacks_a_line_is_another_one(replay, recorded):
    """The twin: without its waits the repaired program is the wrong one."""
    race = next(race for race in RACES if race.program == "10_arena_ignores_streams")
    findings, lines = recorded(str(race.file), "--fixed")
    assert findings == []
    assert replayed(replay, [line for line in lines if not line.startswith(":wait")])


def test_what_is_recorded_is_written_in_large_parts(driver, tmp_path):
    driver.record(os.open(tmp_path / "trace", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    for _ in range(10):
        driver.clear_races()
    assert (tmp_path / "trace").read_text() == ""
    driver.record(None)
    assert (tmp_path / "trace").read_text().count(":clear\n") == 10


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)", "os.truncate(trace, 40)",
                                 "os.truncate(trace, os.path.getsize(trace))"])
def test_a_recording_that_was_cut_says_so(tmp_path, clean_environment, end):
    """In the report, in the JSON and in the file, which has its whole lines."""
    (tmp_path / "program.py").write_text(CUT.replace("END", end))
    done = subprocess.run([sys.executable, "-m", "xlogmem", "check", "--no-gpu", "--json", "out.json", "--record",
                           "trace.txt", "program.py"], env=clean_environment, timeout=120, cwd=tmp_path, text=True,
                          capture_output=True)
    is_cut = "getsize" not in end
    recorded = (tmp_path / "trace.txt").read_text()
    notes = json.loads((tmp_path / "out.json").read_text())["notes"]
    assert ("# cut here\n" in recorded) is is_cut
    assert done.stderr.count("lacks its last calls") == sum("lacks its last calls" in note for note in notes) == is_cut
    assert all(line[:1] in ":#=" for line in recorded.splitlines())
