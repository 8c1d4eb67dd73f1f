"""A recording's file that is truncated or overwritten: the program goes on, and the recording says what is lost.

Each program is a process of its own.  `CUTS` are what happens to the file behind the first `BEFORE` events.
"""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from c_table import ENVIRONMENT

from xlogmem import _driver
from xlogmem.observe.history import HistoryError, read

pytestmark = pytest.mark.simulator
HEADER, EVENT, ROOM, BEFORE, AFTER = 4096, 64, 1 << 14, 2000, 6000
COUNTED = 1 << 12                                       # events between two looks at the file: ring.hpp

BEGIN = f"""
import ctypes, faulthandler, json, logging, mmap, os, signal, sys, threading
import xlogmem
from xlogmem.observe._history import count
logging.basicConfig()
path = sys.argv[1]
SIZE = {HEADER + ROOM * EVENT}

def record(to=path, **options):
    return xlogmem.record_history(to, max_events={ROOM}, **options)

def work(events, tag="x"):
    runtime = xlogmem.get_runtime()
    for _ in range(events // 2):
        runtime.allocate(512, runtime.default_stream, tag=tag).free()

def written(size, of=path):
    with open(of, "wb") as file:
        file.write(os.urandom(size))

def say(recording, **more):
    recording.stop()
    print(json.dumps({{"count": recording.history().facts["count"], "dropped": recording.dropped,
                      "numbers": [event.number for event in recording.events()], **more}}))
"""


@dataclass
class Run:
    """What a program that calls `say` at its end has said."""

    count: int
    dropped: int
    numbers: list[int]
    errors: str
    more: dict[str, object]

    @property
    def lost(self) -> list[int]:
        return sorted(set(range(self.count)) - set(self.numbers))


def started(path: Path, program: str) -> subprocess.CompletedProcess[str]:
    """A program behind `BEGIN`, whatever its end.  It writes no core."""
    return subprocess.run(["sh", "-c", 'ulimit -c 0; exec "$@"', "sh", sys.executable, "-W", "ignore", "-c",
                           BEGIN + program, path], capture_output=True, text=True, timeout=100,
                          env=os.environ | ENVIRONMENT)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "a.xlog"


@pytest.fixture
def run(path):
    def run(program: str) -> Run:
        done = started(path, program)
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        return Run(said.pop("count"), said.pop("dropped"), said.pop("numbers"), done.stderr, said)
    return run


# ---------------------------------------------------------------------------------------------- what is lost
CUTS = {                                                # and which event is the first of those that are lost
    "to nothing": ("os.truncate(path, 0)", 0),
    "to nothing, twice": ("os.truncate(path, 0); work(200); os.truncate(path, 0)", 0),
    "behind its header": (f"os.truncate(path, {HEADER})", 0),
    "in the middle of a page": (f"os.truncate(path, {HEADER + 1000 * EVENT})", 1000),
    "behind all events so far": (f"os.truncate(path, {HEADER + (BEFORE + 100) * EVENT})", None),
    "with something shorter": ("written(100_000)", 0),
    "with something longer": ("written(2 * SIZE)", 0),
    "with zeros": ("os.truncate(path, 0); os.truncate(path, SIZE)", 0),
    "with a history": ("os.system(f'cp {path}.other {path}')", 0),
    "at its end": ("open(path, 'ab').write(os.urandom(50_000))", None),
    "by another file of that name": ("written(100, path + '.new'); os.replace(path + '.new', path)", None),
}
FRONTS = {"no handler": ("", ""), "faulthandler before": ("faulthandler.enable()", ""),
          "faulthandler after": ("", "faulthandler.enable()"),
          "a handler of Python before": ("signal.signal(signal.SIGBUS, lambda *_: None)", ""),
          "it is ignored": ("signal.signal(signal.SIGBUS, signal.SIG_IGN)", "")}


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("cut", CUTS)
def test_the_program_goes_on_and_the_recording_says_what_is_lost(cut, front, path, run):
    what, first = CUTS[cut]
    before, after = FRONTS[front]
    found = run(f"""
{before}
with record(path + ".other"):
    work(100)
recording = record()
{after}
work({BEFORE})
until = count()
{what}
work({AFTER})
say(recording, until=until)
""")
    assert found.count >= BEFORE + AFTER
    assert bool(found.lost) == (first is not None)
    assert found.dropped == len(found.lost)
    assert found.errors.count("was truncated or overwritten") == bool(found.lost)
    if first is not None:
        end = found.lost[-1] + 1
        if what.startswith("os.truncate") and "SIZE" not in what:
            assert end == found.more["until"]
        else:                                           # what came until the next look as well
            assert found.more["until"] <= end <= COUNTED
        assert found.lost == list(range(first, end))
        assert (f"{end - first} of the newest {found.count} events are lost, from event {first} to event {end - 1}"
                in found.errors)
    history = read(path)                                # which takes the place of what is there by now
    assert [event.number for event in history] == found.numbers
    assert (history.dropped, {event.tag for event in history} - {None}) == (found.dropped, {"x"})


def test_a_ring_that_has_gone_round_since_lost_nothing(run):
    found = run(f"recording = record()\nwork({BEFORE})\nwritten(2 * SIZE)\nwork({ROOM + BEFORE + COUNTED})\n"
                "say(recording)")
    assert found.dropped == found.count - ROOM
    assert found.lost == list(range(found.dropped))
    assert "truncated" not in found.errors


def test_it_is_said_once_to_readers_and_again_at_the_end(run):
    """... and reads what there is, whatever lies in the file."""
    found = run(f"""
recording = record()
work({BEFORE})
written(2 * SIZE)
work(500)
until = count()
read = recording.history()
dropped = [recording.dropped for _ in range(3)]
block = xlogmem.get_runtime().allocate(512, tag="z")
why = xlogmem.why(block)
block.free()
say(recording, until=until, seen=dropped, tags=[event.tag for event in read], why=why)
""")
    assert found.errors.count("was truncated or overwritten") == 2
    assert found.more["seen"] == [found.more["until"]] * 3
    assert (found.more["tags"], len(found.more["why"])) == ([], 2)
    assert found.lost == list(range(found.more["until"]))       # a reader is a look, too


@pytest.mark.parametrize("written", ["4: os.urandom(60)", "16: b'\\xff'", "16: b'\\x0a\\x03'", "16: b'\\x00'",
                                     "20: b'\\xff' * 4", "20: b'\\xff\\xff\\x00\\x00'", "60: b'\\xff' * 4"])
def test_events_that_were_written_over_in_their_places(written, path, run):
    """... are left out where they cannot be events.  Without a checksum that is all that there is to see of it."""
    found = run(f"""
recording = record(stacks="all")
block = xlogmem.get_runtime().allocate(512, tag="mine")
for number in range(100):
    work(2, f"tag {{number}}")
(at, content), = {{{written}}}.items()
with open(path, "r+b") as file:
    for number in range(100):
        file.seek({HEADER} + {EVENT} * number + at)
        file.write(content)
list(recording.events()), xlogmem.why(block), xlogmem.snapshot()
block.free()
try:
    block.ptr
except xlogmem.UseAfterFreeError as error:
    assert "mine" in str(error)
say(recording)
""")
    assert found.dropped == len(found.lost)
    assert not [number for number in found.lost if number >= 100]
    assert len(found.lost) >= 90 or "60" in written
    assert ("truncated or overwritten" in found.errors) == bool(found.lost)
    assert [event.number for event in read(path)] == found.numbers


def test_nothing_is_appended_to_what_is_there_by_then(path):
    """Tags and stacks of later events would lie where events are, or in another's file."""
    for size in 0, 10_000, 2 * (HEADER + ROOM * EVENT):
        end = started(path, f"""
recording = record(stacks="all")
work(100)
written({size})
whole = open(path, "rb").read()
work(100, "another tag")
assert open(path, "rb").read() == whole
recording.stop()
""")
        assert end.returncode == 0, end.stderr
        assert {event.tag for event in read(path)} - {None} == {"another tag"}


def test_a_recording_in_memory_loses_nothing(run):
    found = run(f"with record():\n    work(100)\n    written(SIZE)\nrecording = record(None)\nwork({BEFORE})\n"
                "recording.history()\nsay(recording)")
    assert (found.dropped, found.lost) == (0, [])
    assert found.errors.count("was truncated or overwritten") == 1


@pytest.mark.parametrize("cut", ["os.truncate(path, 0)", "os.truncate(path, 10_000)", "written(SIZE)"])
def test_a_process_that_is_killed_then_leaves_no_history(cut, path):
    end = started(path, f"recording = record(stacks='all')\nwork({BEFORE})\n{cut}\nwork({AFTER}, 'another')\n"
                        "os.kill(os.getpid(), signal.SIGKILL)")
    assert end.returncode == -signal.SIGKILL, end.stderr
    with pytest.raises(HistoryError):
        read(path)


# ---------------------------------------------------------------------------------------------- processes, threads
@pytest.mark.parametrize("front", ["", "faulthandler.enable()"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("cut", ["os.truncate(path, 0)", "os.truncate(path, 10_000)", "written(2 * SIZE)"])
def test_a_forked_child_and_its_parent_write_on(cut, when, front, path, run):
    """The child's pages are copies of the file's, or will be when it writes to them; a page that goes takes its copies
    along."""
    before, after = (cut, "") if when == "before" else ("", cut)
    found = run(f"""
recording = record()
{front}
{before}
goes = os.pipe()
child = os.fork()
if child == 0:
    os.read(goes[0], 1)
    work({BEFORE}, "child")
    {before}
    work({AFTER}, "child")
    mine = [event for event in recording.events() if event.tag == "child"]
    os._exit(not {AFTER - COUNTED} <= len(mine) <= {BEFORE + AFTER})
{after}
os.write(goes[1], b"x")
status = os.waitpid(child, 0)[1]
work({AFTER})
say(recording, status=status)
""")
    assert found.more["status"] == 0
    assert found.count < BEFORE + AFTER
    assert {event.tag for event in read(path)} - {None} == {"x"}
    assert found.numbers[-1] == found.count - 1
    assert len(found.lost) <= COUNTED


@pytest.mark.skipif(_driver.BUILD == "tsan", reason="the file changes without any order")
@pytest.mark.parametrize("front", ["", "faulthandler.enable()"])
def test_threads_that_write_all_the_time(front, run):
    found = run(f"""
recording = record()
{front}
work(100)
stop = threading.Event()

def works():
    while not stop.is_set():
        work(100)

threads = [threading.Thread(target=works) for _ in range(4)]
for thread in threads:
    thread.start()
for size in 500_000, 100_000, HEADER, 0, 0:
    os.truncate(path, size)
    work(200)
written(2 * SIZE)
work(200)
os.truncate(path, 0)
stop.set()
for thread in threads:
    thread.join()
seen = recording.history().facts["count"]
work({ROOM - 100})
say(recording, seen=seen)
""".replace("HEADER", str(HEADER)))
    assert found.numbers[-ROOM + 100:] == list(range(found.count - ROOM + 100, found.count))
    assert found.more["seen"] <= found.count - ROOM + 100


@pytest.mark.parametrize("between", ["", "signal.signal(signal.SIGBUS, signal.SIG_DFL)",
                                     "signal.signal(signal.SIGBUS, signal.SIG_IGN)",
                                     "faulthandler.enable(); faulthandler.disable()"])
def test_each_recording_has_a_file_of_its_own(between, tmp_path, run):
    found = run(f"""
with record() as first:
    work({BEFORE})
    until = [count()]
    os.truncate(path, 0)
    work({BEFORE})
{between}
second = record(path + ".2")
work({BEFORE})
until.append(count())
os.truncate(path + ".2", 0)
work({BEFORE})
say(second, until=until, first=first.dropped)
""")
    assert found.more["until"] == [found.more["first"], found.dropped]
    assert found.lost == list(range(found.dropped))
    assert [read(tmp_path / name).dropped for name in ("a.xlog", "a.xlog.2")] == found.more["until"]


# ---------------------------------------------------------------------------------------------- what is not ours
CUT_OFF = f"""
def touch_another():
    written(2 * mmap.PAGESIZE, path + ".mine")
    with open(path + ".mine", "r+b") as file:
        mine = mmap.mmap(file.fileno(), 0)
        file.truncate(0)
    mine[0] = 1

recording = record()
work({BEFORE})
os.truncate(path, 0)
work({BEFORE})
"""


@pytest.mark.parametrize("front", ["", "faulthandler.enable()", "signal.signal(signal.SIGBUS, signal.SIG_IGN)"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_fault_of_the_program_itself_ends_it(when, front, path):
    before, after = (front, "") if when == "before" else ("", front)
    end = started(path, f"{before}\n{CUT_OFF}\n{after}\ntouch_another()\nprint('went on')")
    assert (end.returncode, end.stdout) == (-signal.SIGBUS, ""), end.stderr
    assert ("Bus error" in end.stderr) == ("faulthandler" in front)


def test_the_programs_handler_is_called_for_what_is_not_ours(run):
    """... and not for what is."""
    found = run("called = []\nsignal.signal(signal.SIGBUS, lambda number, frame: called.append(number))\n"
                f"{CUT_OFF}\nseen = len(called)\nos.kill(os.getpid(), signal.SIGBUS)\n"
                "signal.raise_signal(signal.SIGBUS)\nsay(recording, seen=seen, called=len(called))")
    assert found.more == {"seen": 0, "called": 2}


def test_a_signal_that_another_process_sends_ends_the_program(path):
    end = started(path, f"{CUT_OFF}\nos.kill(os.getpid(), signal.SIGBUS)\nprint('went on')")
    assert (end.returncode, end.stdout) == (-signal.SIGBUS, ""), end.stderr
