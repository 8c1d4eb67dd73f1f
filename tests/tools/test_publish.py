"""What a process publishes of its runtimes: the figures of snapshots, to the same user, for as long as it runs."""
from __future__ import annotations

import logging
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from c_table import ENVIRONMENT
from forking import outcomes
from live_programs import HOLDS, running

import xlogmem
from xlogmem import DeviceRuntime, PoolMemoryResource, StatisticsResourceAdaptor
from xlogmem.observe.live import publishing, reading, sockets
from xlogmem.observe.live.figures import ProcessFigures, Tag, figures_of, figures_of_process
from xlogmem.observe.live.reading import EndedError, LiveError, UnpublishedError, read
from xlogmem.runtime import existing_runtimes


@pytest.fixture
def folder(monkeypatch):
    """Where sockets are; a short path, as they need."""
    with TemporaryDirectory(prefix="xl-") as name:
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        yield Path(name, "xlogmem")


@pytest.fixture
def published(folder):
    """The socket of this process."""
    yield Path(xlogmem.publish())
    publishing._close()
    publishing._publisher = None


def counting_runtime() -> DeviceRuntime:
    return DeviceRuntime(resource=StatisticsResourceAdaptor(PoolMemoryResource()))


def answering(folder: Path, pid: int, answer: bytes) -> threading.Thread:
    """A thread that answers one connection in place of a process."""
    folder.mkdir(mode=0o700, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / f"{pid}.sock"))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with listener, connection:
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


# ---------------------------------------------------------------------------------------------- figures
def test_the_figures_are_those_of_the_snapshot():
    runtime = counting_runtime()
    stream = runtime.acquire_stream()
    kept = [runtime.allocate(1000 * (number + 1), stream, tag=f"tag {number}") for number in range(12)]
    runtime.allocate(5000, stream).free()
    with xlogmem.use(runtime.default_stream, read=kept):
        pass
    snapshot, counters = runtime.snapshot(), runtime.counters()
    figures = figures_of(runtime, 10)
    assert (figures.live_bytes, figures.live_blocks, figures.pending_bytes, figures.peak_bytes, figures.device) == (
        snapshot.live_bytes, snapshot.live_blocks, snapshot.pending_bytes, snapshot.peak_bytes, 0)
    assert figures.peak_bytes == 78_000 + 5000
    assert figures.tags == tuple(Tag(f"tag {number}", 1000 * (number + 1), 1) for number in range(11, 1, -1))
    assert (figures.further_tags, figures.further) == (2, Tag(None, 3000, 2))
    pool, = figures.pools
    assert (pool.size, pool.free, pool.largest_free) == tuple(
        snapshot.pools[0][name] for name in ("pool_size", "free_bytes", "largest_free_bytes"))
    assert figures.counters == {name: counters[name] for name in figures.counters}
    assert (figures.counters["allocations"], figures.counters["uses"], figures.counters["waits"]) == (13, 1, 1)


def test_all_runtimes_are_seen_and_none_is_kept():
    before = existing_runtimes()
    first, second = DeviceRuntime(), DeviceRuntime()
    assert existing_runtimes() == [*before, first, second]
    numbers = [one.number for one in figures_of_process().runtimes]
    assert numbers == sorted(set(numbers))
    del first
    assert existing_runtimes() == [*before, second]


@pytest.mark.simulator
def test_no_driver_call_is_made(driver):
    runtime = DeviceRuntime()
    driver.set_policy("min")                            # the free stays pending, which is where a query would be
    runtime.allocate(64).free()
    before = driver.all_calls()
    assert figures_of_process().runtimes[-1].pending_bytes == 64
    assert driver.all_calls() == before


def test_figures_pass_through_json():
    runtime = counting_runtime()
    kept = runtime.allocate(64, tag='a "tag" \ud800\n'), runtime.allocate(32)
    figures = figures_of_process()
    text = figures.to_json()
    assert "\n" not in text
    assert ProcessFigures.parse(text) == figures
    del kept


# ---------------------------------------------------------------------------------------------- the socket
def test_a_process_reads_itself(published):
    runtime = counting_runtime()
    block = runtime.allocate(64, tag="mine")
    seen = read(os.getpid())
    assert seen.pid == os.getpid()
    assert seen.runtimes == figures_of_process().runtimes
    assert [tag.name for tag in seen.runtimes[-1].tags] == ["mine"]
    assert xlogmem.publish() == str(published)
    block.free()


def test_only_this_user_can_reach_the_socket(published, folder):
    assert published == folder / f"{os.getpid()}.sock"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_another_user_gets_nothing(published, monkeypatch, caplog):
    monkeypatch.setattr(publishing, "peer_of", lambda _: sockets.Peer(4711, os.geteuid() + 1, 0))
    with caplog.at_level(logging.WARNING, "xlogmem"), pytest.raises(LiveError, match="before it began"):
        read(os.getpid())
    assert "process 4711 of user" in caplog.text


def test_what_goes_wrong_is_logged_and_the_next_is_answered(published, monkeypatch, caplog):
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "xlogmem"):
        patched.setattr(publishing, "figures_of_process", lambda: 1 / 0)
        with pytest.raises(LiveError, match="before it began"):
            read(os.getpid())
    assert "ZeroDivisionError" in caplog.text
    assert read(os.getpid()).pid == os.getpid()


def test_the_socket_goes_with_the_process(folder):
    with running(HOLDS, XLOGMEM_PUBLISH="1") as process:
        assert read(process.pid).runtimes[0].live_bytes == (4 << 20) + 100
        assert [name.name for name in folder.iterdir()] == [f"{process.pid}.sock"]
    assert process.returncode == 7
    assert list(folder.iterdir()) == []


def test_one_that_was_left_is_replaced(folder, monkeypatch):
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folder / f"{os.getpid()}.sock"))
    with pytest.raises(UnpublishedError):
        read(os.getpid())
    try:
        xlogmem.publish()
        assert read(os.getpid()).pid == os.getpid()
    finally:
        publishing._close()
        publishing._publisher = None


def test_without_a_runtime_there_are_no_figures(folder):
    with running("import xlogmem", XLOGMEM_PUBLISH="1") as process:
        assert read(process.pid).runtimes == ()


@pytest.mark.parametrize("value", ["", "0"])
def test_nothing_is_published_unless_it_is_wanted(folder, value):
    with running("import xlogmem, sys\n"
                 "assert not [name for name in sys.modules if name.startswith('xlogmem.observe.live.p')]",
                 XLOGMEM_PUBLISH=value) as process:
        if value:
            assert not folder.exists()
        with pytest.raises(UnpublishedError, match=r"XLOGMEM_PUBLISH=1 .* xlogmem.publish\(\)"):
            read(process.pid)


FORKS = """
import os, sys, warnings
warnings.simplefilter("ignore")
import xlogmem
from xlogmem.observe.live import publishing, reading
path = xlogmem.publish()
child = os.fork()
if child == 0:
    try:
        reading.read(os.getpid())
        os._exit(1)
    except reading.UnpublishedError:
        pass
    assert reading.read(os.getppid()).pid == os.getppid()
    assert xlogmem.publish() != path
    assert reading.read(os.getpid()).pid == os.getpid()
    sys.exit(42)                                # with what runs at the exit
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
assert reading.read(os.getpid()).pid == os.getpid()
"""


def test_a_forked_child_publishes_for_itself(folder):
    run = subprocess.run([sys.executable, "-c", FORKS], env=os.environ | ENVIRONMENT, capture_output=True, text=True,
                         timeout=100)
    assert run.returncode == 0, run.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_keeps_no_listener(published):
    """Else connections would wait in vain when the parent is gone."""
    number = publishing._publisher._listener.fileno()
    assert outcomes({"closed": lambda: os.fstat(number)})["closed"].startswith("OSError(9")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_of_a_started_driver_is_refused(published):
    assert outcomes({"publish": xlogmem.publish}) == {"publish": "refused"}


@pytest.mark.parametrize("size", [100, 4 << 20])
def test_readers_that_are_silent_keep_no_other_waiting(published, monkeypatch, size):
    """... whether their answers fit into the buffers of their sockets or not."""
    taken = []

    def figures() -> ProcessFigures:
        taken.append(1)
        return ProcessFigures(os.getpid(), "x" * size, 0.0, ())

    monkeypatch.setattr(publishing, "figures_of_process", figures)
    silent = []
    for _ in range(100):
        silent.append(socket.socket(socket.AF_UNIX))
        silent[-1].connect(str(published))
    monkeypatch.setattr(publishing, "PATIENCE", 3600)
    assert len(read(os.getpid()).program) == size
    for connection in silent:
        connection.close()
    assert len(taken) < 50, "those that have connected by then get the same figures"


def test_a_reader_that_is_too_slow_is_dropped(published, monkeypatch):
    monkeypatch.setattr(publishing, "PATIENCE", 0.05)
    monkeypatch.setattr(publishing, "figures_of_process", lambda: ProcessFigures(1, "x" * (4 << 20), 0.0, ()))
    with socket.socket(socket.AF_UNIX) as slow, socket.socket(socket.AF_UNIX) as watch:
        slow.connect(str(published))
        watch.settimeout(60)
        assert slow.recv(1) == b"{"
        while publishing._publisher._thread.is_alive():
            try:
                slow.setblocking(False)
                slow.send(b"x")                         # once it is dropped this fails
            except BrokenPipeError:
                break
            except BlockingIOError:
                continue


# ---------------------------------------------------------------------------------------------- what cannot be read
def test_a_process_that_is_not_there():
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with pytest.raises(EndedError, match=f"there is no process {process.pid}"):
        read(process.pid)


def test_a_process_of_another_user(folder, monkeypatch):
    monkeypatch.setattr(reading.os, "geteuid", lambda: 4711)
    with pytest.raises(LiveError, match=f"of user {os.getuid()}, and this is user 4711"):
        read(os.getpid())


@pytest.mark.parametrize(("answer", "said"), [
    (b"", "before it began"), (b'{"format": 1', "cut off after 12 bytes"), (b"nonsense\n", "damaged: Expecting value"),
    (b"[]\n", "another release"), (b'{"format": 2}\n', "another release"), (b'{"format": 1}\n', "KeyError"),
    (b'{"format": 1, "runtimes": [3]}\n', "TypeError"), (b"\xff\n", "damaged"),
    (b'{"format": 1, "pid": 1, "program": "", "clock": 0, "runtimes": []}\n', "process 1 answers for process")])
def test_an_answer_that_is_damaged(folder, answer, said):
    thread = answering(folder, os.getpid(), answer)
    with pytest.raises(LiveError, match=said):
        read(os.getpid())
    thread.join()


def test_an_answer_that_does_not_come(folder, monkeypatch):
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(reading, "PATIENCE", 0.05)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / f"{os.getpid()}.sock"))
        listener.listen()
        with pytest.raises(LiveError, match=r"did not answer within 0.05 s"):
            read(os.getpid())


def test_an_answer_without_an_end(folder, monkeypatch):
    monkeypatch.setattr(reading, "LARGEST", 1000)
    thread = answering(folder, os.getpid(), b"x" * 2000)
    with pytest.raises(LiveError, match="longer than 1000 bytes"):
        read(os.getpid())
    thread.join()


# ---------------------------------------------------------------------------------------------- folders
def test_a_folder_that_others_may_enter_is_refused(folder):
    folder.mkdir()
    folder.chmod(0o755)
    for call in (xlogmem.publish, lambda: read(os.getpid())):
        with pytest.raises((PermissionError, LiveError), match=r"other users may enter .*chmod 700"):
            call()


def test_a_folder_of_another_user_is_refused(folder, monkeypatch):
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(sockets, "is_own", lambda _: True)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(PermissionError, match=f"belongs to user {own}, not to user {own + 1}"):
        xlogmem.publish()


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("/tmp")])
def test_what_is_not_a_folder_is_refused(folder, make):
    make(folder)
    with pytest.raises(NotADirectoryError, match="is not a folder: remove it"):
        xlogmem.publish()


def test_a_path_that_is_too_long_is_refused(folder, monkeypatch):
    deep = folder.parent / ("x" * 100)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with pytest.raises(OSError, match="longer than the 107 bytes"):
        xlogmem.publish()


def test_a_folder_of_the_environment_that_is_not_there_is_left_out(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/no/such/folder")
    [found] = sockets.folders()
    assert found.name == f"xlogmem-{os.geteuid()}"


def test_a_program_does_not_fail_for_want_of_a_folder(folder):
    folder.touch()
    run = subprocess.run([sys.executable, "-W", "error", "-c", "import xlogmem; print(3)"], text=True,
                         capture_output=True, env=os.environ | ENVIRONMENT | {"XLOGMEM_PUBLISH": "1"}, timeout=100)
    assert (run.returncode, run.stdout) == (0, "3\n")
    assert "XLOGMEM_PUBLISH: xlogmem top cannot see this process" in run.stderr
    assert str(folder) in run.stderr
