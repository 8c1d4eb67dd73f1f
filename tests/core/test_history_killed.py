"""What a file has of a recording that does not stop: its process is killed, or goes on."""
from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from c_table import ENVIRONMENT
from click.testing import CliRunner

import xlogmem
from xlogmem.commands.cli import main
from xlogmem.observe import _history
from xlogmem.observe.history import HistoryError, files, perfetto, read, record_history, timeline, torch

pytestmark = pytest.mark.simulator
HEADER, EVENT, ROOM = 4096, 64, 1024
ENDS = {"SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)", "abort": "os.abort()", "os._exit": "os._exit(3)",
        "a fault": "ctypes.string_at(8)"}

PROGRAM = """
import ctypes, os, signal, sys, threading
import xlogmem
path, stacks, rounds, end = sys.argv[1:]
old = xlogmem.get_runtime().allocate(512, tag="made before")
xlogmem.record_history(path, max_events=1000, stacks=stacks)
runtime = xlogmem.get_runtime()
S, T = runtime.acquire_stream(), runtime.acquire_stream()

def work(number):
    block = runtime.allocate(512 + number, S, tag=f"tag {number % 3}")
    with xlogmem.use(S, write=block):
        pass
    with xlogmem.use(T, read=[block, old]):
        pass
    block.free()

for number in range(int(rounds)):
    work(number)
exec(end)
"""


def run(path: Path, rounds: int, end: str, stacks: str = "all") -> int:
    """How the program ended.  It writes no core."""
    return subprocess.run(["sh", "-c", 'ulimit -c 0; exec "$@"', "sh", sys.executable, "-c", PROGRAM, path, stacks,
                           str(rounds), end], timeout=100, env=os.environ | ENVIRONMENT,
                          stderr=subprocess.DEVNULL).returncode


@contextmanager
def recording_elsewhere(path: Path, rounds: int = 1) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has recorded so many rounds, and goes on until it is killed."""
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, path, "none", "1",
                                f"for _ in range({rounds - 1}):\n work(1)\nprint(1, flush=True)\n"
                                "while True:\n work(1)"], stdout=subprocess.PIPE, env=os.environ | ENVIRONMENT)
    try:
        program.stdout.readline()
        yield program
    finally:
        program.kill()
        program.wait()
        program.stdout.close()


# ---------------------------------------------------------------------------------------------- killed
@pytest.mark.parametrize("end", ENDS)
def test_a_process_that_ends_at_once_leaves_all_of_its_events(tmp_path, end):
    path = tmp_path / "a.xlog"
    assert run(path, 5, ENDS[end]) not in (0, 1)
    history = read(path)
    assert history.dropped == 0
    mine = [event for event in history if event.tag and event.tag.startswith("tag ")]
    kinds = Counter((event.kind, event.tag) for event in mine if event.kind in ("allocate", "free"))
    assert kinds == {(kind, f"tag {tag}"): 2 - (tag == 2) for tag in range(3) for kind in ("allocate", "free")}
    assert [event.nbytes for event in mine if event.kind == "allocate"] == list(range(512, 517))
    assert {event.tag for event in history if event.kind == "use"} == {"made before", "tag 0", "tag 1", "tag 2"}
    places = {event.kind: event.place for event in mine}
    assert {kind: (place.function, place.file) for kind, place in places.items()} == (
        dict.fromkeys(places, ("work", "<string>")))
    assert len({place.line for place in places.values()}) > 2
    times = [event.time_ns for event in history]
    assert times == sorted(times)
    assert abs(times[0] - os.stat(path).st_mtime_ns) < 100_000_000_000


def test_the_newest_events_are_kept_and_the_others_counted(tmp_path):
    """The ring went round more than once."""
    path = tmp_path / "a.xlog"
    assert run(path, 1000, ENDS["SIGKILL"], "none") == -signal.SIGKILL
    history = read(path)
    assert len(history) == 1000
    assert history.dropped > 5000
    assert [event.number for event in history] == list(range(history.dropped, history.dropped + 1000))
    generations = [event.generation for event in history if event.kind == "allocate"]
    assert generations == sorted(generations)
    assert [event.nbytes for event in history if event.kind == "free"][-1] == 512 + 999


def test_a_process_is_killed_in_the_middle(tmp_path):
    """Wherever that is: what there is are whole events, in their order, and every viewer takes them."""
    for _ in range(3):
        path = tmp_path / "a.xlog"
        with recording_elsewhere(path, rounds=300):         # the ring is full: before, a half-written event is dropped
            pass
        history = read(path)
        assert 990 <= len(history) <= 1000 or history.dropped == 0
        lives: dict[int, list[str]] = {}
        for event in history:
            if event.kind in ("allocate", "use", "free") and event.tag != "made before":
                assert event.tag == f"tag {event.nbytes - 512}"
                lives.setdefault(event.generation, []).append(event.kind)
        life = ["allocate", "use", "use", "free"]
        assert all(any(life[i:k] == kinds for i in range(4) for k in range(i + 1, 5)) for kinds in lives.values())
        run = CliRunner().invoke(main, ["trace", str(path), *(text for option in ("html", "perfetto", "torch")
                                                              for text in (f"--{option}", str(tmp_path / option)))])
        assert run.exit_code == 0, run.output
        assert (tmp_path / "perfetto").read_bytes() == perfetto.dumped(history)
        assert (tmp_path / "torch").read_bytes() == torch.dumped(history)
        assert (tmp_path / "html").read_text() == timeline.page(history, "a.xlog")
    assert "allocate" in CliRunner().invoke(main, ["trace", str(path)]).output


def test_a_recording_that_runs_is_read(tmp_path):
    path = tmp_path / "a.xlog"
    with recording_elsewhere(path):
        lengths = []
        while max(lengths, default=0) <= 10:            # a reader that is held up may find all of it overwritten
            history = read(path)
            assert {event.tag for event in history} <= {None, "made before", "tag 0", "tag 1"}
            lengths.append(len(history))


def test_of_this_process_too_and_a_stop_makes_it_smaller(four, tmp_path):
    path = tmp_path / "a.xlog"
    x = four()
    with record_history(path, max_events=ROOM, stacks="all") as recording:
        block = x.runtime.allocate(512, x.S, tag="\ud800 \"\n")
        running = read(path)
        assert path.stat().st_size > HEADER + ROOM * EVENT
        assert [event[2:] for event in running] == [event[2:] for event in recording.events()]
        block.free()
    assert path.stat().st_size < 10 * HEADER
    assert list(read(path)) == list(recording.events())
    assert len(running) == len(recording.history()) - 1
    assert os.listdir(tmp_path) == ["a.xlog"]


# ---------------------------------------------------------------------------------------------- damaged, cut off
@pytest.fixture
def left(four, tmp_path) -> Path:
    """The file of a recording that ran."""
    x = four()
    with record_history(tmp_path / "running", max_events=ROOM, stacks="alloc"):
        for number in range(4):
            x.runtime.allocate(512, x.S, tag=f"tag {number}").free()
        (tmp_path / "left").write_bytes((tmp_path / "running").read_bytes())
    return tmp_path / "left"


def spoil(left: Path, at: int, content: bytes) -> None:
    whole = left.read_bytes()
    left.write_bytes(whole[:at] + content + whole[at + len(content):])


def test_an_event_that_was_being_written_is_left_out(left):
    before = list(read(left))
    spoil(left, HEADER + 2 * EVENT, bytes(4))           # its number is written last
    after = read(left)
    assert [event[1:] for event in after] == [event[1:] for event in before[:2] + before[3:]]
    spoil(left, HEADER + 3 * EVENT, struct.pack("<I", 4 + ROOM))        # of the next round: the newest
    history = read(left)
    assert history.dropped + len(history) == 4 + ROOM
    assert [event.number for event in history][-1] == 3 + ROOM


def test_an_event_that_changes_between_two_looks_is_left_out():
    slots = b"".join(struct.pack("<I60x", number + 1) for number in range(8))
    again = slots[:EVENT * 3 + 30] + b"x" + slots[EVENT * 3 + 31:]
    assert files._in_order(slots, slots, 8, 8) == slots
    assert files._in_order(slots, again, 8, 8) == slots[:EVENT * 3] + slots[EVENT * 4:]


def test_numbers_go_on_after_four_billion_events():
    count = (1 << 32) + 4
    slots = b"".join(struct.pack("<I60x", number & 0xFFFFFFFF) for number in (*range(count - 3, count + 1),
                                                                             *range(count - 7, count - 3)))
    kept = files._in_order(slots, slots, count, 8)
    assert [number for number, in struct.iter_unpack("<I60x", kept)] == [
        number & 0xFFFFFFFF for number in range(count - 7, count + 1)]


def test_a_record_that_a_full_disk_cut_off_spoils_no_other(left):
    lines = left.read_bytes()[HEADER + ROOM * EVENT:].splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if b'"tag 1"' in line)
    lines[at] = lines[at][:20]
    left.write_bytes(left.read_bytes()[:HEADER + ROOM * EVENT] + b"".join(lines))
    tags = [event.tag for event in read(left) if event.kind == "free"]
    assert (tags[0], *tags[2:]) == ("tag 0", "tag 2", "tag 3")
    assert tags[1] == f"tag {json.loads(lines[at + 2])['tag'] - 1}"     # its number


@pytest.mark.parametrize(("at", "content"), [(12, struct.pack("<I", 64)), (16, struct.pack("<Q", 0)),
                                             (16, struct.pack("<Q", 1000)), (16, struct.pack("<Q", 1 << 60)),
                                             (HEADER + 17, b"\x03"), (HEADER + ROOM * EVENT, b"x" * 2000)])
def test_what_is_damaged_is_refused(left, at, content):
    spoil(left, at, content)
    if at == HEADER + 17:
        spoil(left, HEADER + 16, b"\x0a")               # a need of a kind that there is not
    with pytest.raises(HistoryError, match="is damaged, or was cut off"):
        read(left)


@pytest.mark.parametrize("size", [20, HEADER, HEADER + 100, HEADER + ROOM * EVENT - 1, HEADER + ROOM * EVENT])
def test_what_is_cut_off_is_refused(left, size):
    os.truncate(left, size)
    with pytest.raises(HistoryError, match="is damaged, or was cut off"):
        read(left)


# ---------------------------------------------------------------------------------------------- files
def test_two_processes_with_one_path_do_not_disturb_each_other(four, tmp_path):
    """Each has a file of its own; a file that another one cuts off would end the process that has mapped it."""
    path = tmp_path / "a.xlog"
    x = four()
    with recording_elsewhere(path) as other:
        with record_history(path, max_events=ROOM):
            x.runtime.allocate(512, x.S, tag="mine").free()
            assert other.poll() is None
        assert other.poll() is None
    assert {event.tag for event in read(path)} == {"mine"}


def test_what_is_no_file_is_written_at_the_end(four, tmp_path, caplog):
    x = four()
    path = tmp_path / "pipe"
    os.mkfifo(path)
    found = []
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()))
    keeps_open = os.open(path, os.O_RDWR)
    reader.start()
    with record_history(path):
        x.runtime.allocate(512, x.S, tag="mine").free()
    os.close(keeps_open)
    reader.join()
    (tmp_path / "copy").write_bytes(found[0])
    assert [event.kind for event in read(tmp_path / "copy")] == ["allocate", "free"]
    assert "cannot be mapped" in caplog.text


@pytest.mark.parametrize("said", ["Invalid argument", "No space left on device"])
def test_a_file_that_cannot_be_mapped(four, tmp_path, monkeypatch, caplog, said):
    """Where the system cannot, the file is written at the end; a full one is an error."""
    def refuse(*arguments):
        raise OSError({"Invalid argument": 22, "No space left on device": 28}[said], said)

    x = four()
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    if said == "Invalid argument":
        with record_history(tmp_path / "a"):
            x.runtime.allocate(512, x.S).free()
        assert len(read(tmp_path / "a")) == 2
        assert "cannot be mapped" in caplog.text
    else:
        with pytest.raises(OSError, match=said):
            record_history(tmp_path / "a")
    assert [name for name in os.listdir(tmp_path) if name != "a"] == []


def test_a_ring_that_the_system_does_not_map(four, tmp_path, monkeypatch, caplog):
    begin = _history.begin

    def refuse(events, stacks, function, timed, file=-1, text=None):
        if file >= 0:
            raise OSError(19, "No such device")
        begin(events, stacks, function, timed)

    monkeypatch.setattr(_history, "begin", refuse)
    x = four()
    with record_history(tmp_path / "a"):
        x.runtime.allocate(512, x.S).free()
    assert len(read(tmp_path / "a")) == 2
    assert "cannot be mapped" in caplog.text


def test_a_link_stays_and_its_file_is_written(four, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "a.xlog")
    x = four()
    with record_history(tmp_path / "link"):
        x.runtime.allocate(512, x.S).free()
    assert (tmp_path / "link").is_symlink()
    assert os.listdir(tmp_path / "elsewhere") == ["a.xlog"]
    assert len(read(tmp_path / "link")) == 2


# ---------------------------------------------------------------------------------------------- forks, tags
def test_a_forked_child_writes_nothing_into_its_parents_ring(tmp_path):
    path = tmp_path / "a.xlog"
    program = f"""
import os, signal, xlogmem
recording = xlogmem.record_history({str(path)!r}, max_events={ROOM}, stacks="all")
if os.fork() == 0:
    for number in range(2000):
        xlogmem.get_runtime().allocate(512, tag=f"child {{number}}").free()
    mine = [event for event in recording.events() if event.tag]
    os._exit(mine[-1].tag != "child 1999" or len(mine) < {ROOM} // 2)
_, status = os.wait()
assert status == 0, status
for number in range(10):
    xlogmem.get_runtime().allocate(512, tag="parent").free()
os.kill(os.getpid(), signal.SIGKILL)
"""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", program], timeout=100, env=os.environ | ENVIRONMENT)
    assert run.returncode == -signal.SIGKILL
    assert {event.tag for event in read(path)} <= {None, "parent"}
    assert Counter(event.kind for event in read(path))["allocate"] == 10
    assert b"child" not in path.read_bytes()


def test_tags_stay_while_they_are_recorded_and_not_for_longer(four):
    from xlogmem._base.labels import label_count
    x = four()
    with record_history() as recording:
        for number in range(20_000):
            x.runtime.allocate(512, x.S, tag=f"recorded {number}").free()
        assert label_count() >= 20_000
    assert [event.tag for event in recording.events() if event.kind == "allocate"] == [
        f"recorded {number}" for number in range(20_000)]
    for number in range(50_000):
        x.runtime.allocate(512, x.S, tag=f"not recorded {number}").free()
    assert label_count() < 50_000
    assert xlogmem.snapshot().live_bytes == 0
