"""What a tool sees through NVTX.  The tool is one of the tests' own: a small library that writes it down."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from c_table import ENVIRONMENT
from places import HELPERS

pytest.importorskip("nvtx", reason="needs nvtx")

import xlogmem
from xlogmem import DeviceRuntime, use
from xlogmem.observe.nvtx import NamedUse, names_of

COMPILER = shutil.which("gcc") or shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a compiler for C")

START = """
import xlogmem
runtime = xlogmem.get_runtime()
S, T = runtime.acquire_stream(), runtime.acquire_stream()
"""


@pytest.fixture(scope="module")
def tool(tmp_path_factory) -> Path:
    library = tmp_path_factory.mktemp("nvtx") / "tool.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", str(library),
                    str(HELPERS / "nvtx_tool.c")], check=True)
    return library


@pytest.fixture
def seen(tool, tmp_path) -> Callable[..., list[str]]:
    """What the tool has seen of a program."""

    def seen(program: str, **environment: str) -> list[str]:
        file = tmp_path / "seen"
        variables = {"NVTX_INJECTION64_PATH": str(tool), "NVTX_SEEN": str(file)} | environment
        run = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True,
                             timeout=100, env=os.environ | ENVIRONMENT | variables)
        assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
        return file.read_text().splitlines() if file.exists() else []

    return seen


PROGRAM = START + """
left = runtime.allocate(1000, S, tag="left")
with xlogmem.scope("join"):
    right = runtime.allocate(nbytes="1KiB", stream=T)
    with xlogmem.use(T, read=[left, {"of": right}], write=right) as recorder:
        assert type(recorder) is xlogmem.LaunchRecorder
"""
RANGES = ["xlogmem: mark allocate left on stream 1 (1000)", "xlogmem: begin join",
          "xlogmem: mark allocate join on stream 2 (1024)", "xlogmem: begin use left, join on stream 2",
          "xlogmem: mark stream 2 waits for stream 1: left was allocated there (1)", "xlogmem: end", "xlogmem: end"]


@needs_compiler
def test_scopes_and_uses_are_ranges_and_allocations_marks(seen):
    assert seen(PROGRAM, XLOGMEM_NVTX="1") == RANGES


@needs_compiler
@pytest.mark.parametrize("environment", [{}, {"XLOGMEM_NVTX": "0"}, {"XLOGMEM_NVTX": ""},
                                         {"XLOGMEM_NVTX": "1", "NVTX_DISABLE": "1"}])
def test_nothing_is_seen_unless_it_is_wanted(seen, environment):
    assert seen(PROGRAM, **environment) == []


@needs_compiler
def test_from_a_call_to_the_stop(seen):
    assert seen(START + """
used, allocated = xlogmem.use, xlogmem.DeviceRuntime.allocate
with xlogmem.record_nvtx() as recording:
    assert recording.seen
    block = runtime.allocate(64, S)
    from xlogmem import use
    with use(S, write=block):
        inside = xlogmem.scope("over the end")
        inside.__enter__()
        recording.stop()
inside.__exit__(None, None, None)
assert xlogmem.use is used and xlogmem.DeviceRuntime.allocate is allocated
assert "allocate" not in vars(xlogmem.DeviceRuntime)
with xlogmem.scope("later"), xlogmem.use(S, read=block):
    pass
xlogmem.record_nvtx().stop()
""") == ["xlogmem: mark allocate DeviceBlock on stream 1 (64)", "xlogmem: begin use DeviceBlock on stream 1",
         "xlogmem: begin over the end", "xlogmem: end", "xlogmem: end"]


WAITS = """
left, right, free = (runtime.allocate(64, S, tag=tag) for tag in ("left", "right", None))
with xlogmem.use(S, write=[left, right]):
    pass
for _ in range(3):                              # twice, because the blocks were fresh, and then no more
    with xlogmem.use(T, read=left, write=[right, free]):
        pass
with xlogmem.use(S, write=left):                # after its reader
    with xlogmem.use(T, write=free):
        pass
    right.free()                                # after its writer
"""


def marks(lines: list[str]) -> list[str]:
    return [line.removeprefix("xlogmem: mark ") for line in lines if " waits for " in line]


@needs_compiler
def test_waits_are_marks_that_say_because_of_what(seen):
    assert marks(seen(START + WAITS, XLOGMEM_NVTX="1")) == [
        *["stream 2 waits for stream 1: left was written there, right was written there, a block was allocated there "
          "(1)"] * 2,
        "stream 1 waits for stream 2: left was read there (1)"]


@needs_compiler
def test_a_wait_of_an_allocation_and_of_a_free_that_was_put_off(seen):
    found = marks(seen("""
import xlogmem
pool = xlogmem.PoolMemoryResource(initial_pool_size=1 << 20, maximum_pool_size=1 << 20)
runtime = xlogmem.DeviceRuntime(resource=pool)
S, T, U = (runtime.acquire_stream() for _ in range(3))
block = runtime.allocate(1 << 20, S, tag="all")
with xlogmem.use(S, write=block):
    pass
block.free()
again = runtime.allocate(1 << 20, T, tag="all")
other = xlogmem.DeviceRuntime(resource=xlogmem.AsyncMemoryResource())
S, T = (other.acquire_stream() for _ in range(2))
late = other.allocate(64, S, tag="late")
with xlogmem.use(T, write=late):
    late.free(S)
""", XLOGMEM_NVTX="1"))
    assert [text.partition(" (")[0] for text in found] == [
        "stream 2 waits for stream 1: memory that is handed out again was used there",
        "stream 2 waits for stream 1: late was allocated there",
        "stream 1 waits for stream 2: late was written there"]


@needs_compiler
def test_waits_beside_a_history_of_the_program(seen):
    """It takes the place of the one behind the marks, which comes back; and `why` has nothing of that."""
    program = START + """
assert "no history is recorded" in xlogmem.why(S)[0]
for number in range(4):
    if number == 1:
        recording = xlogmem.record_history(max_events=1000)
        first = xlogmem.history.recording.latest()
    if number == 2:
        recording.stop()
        kept = len(recording.history())
    block = runtime.allocate(64, S, tag=str(number))
    with xlogmem.use(T, write=block):
        pass
    block.free()
    assert any("waited" in said for said in xlogmem.why(T)) == (number > 0), xlogmem.why(T)
assert len(recording.history()) == kept and xlogmem.history.recording.latest() is first
"""
    assert marks(seen(program, XLOGMEM_NVTX="1")) == [
        f"stream 2 waits for stream 1: {number} was allocated there ({number + 1})" for number in range(4)]


@needs_compiler
def test_waits_of_other_threads_are_left_out(seen):
    program = START + """
import threading
def beside():
    block = runtime.allocate(64, S, tag="beside")
    for _ in range(50):
        for stream in (S, T):
            recorder = xlogmem.LaunchRecorder(stream).write(block)
            recorder.preflight()
            recorder.commit()
block = runtime.allocate(64, S, tag="own")
with xlogmem.use(T, write=block):
    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
"""
    assert marks(seen(program, XLOGMEM_NVTX="1")) == ["stream 2 waits for stream 1: own was allocated there (1)"]


@needs_compiler
def test_nothing_is_recorded_before_and_after(seen):
    assert seen(START + """
from xlogmem.observe import _history
from xlogmem.observe.history import recording
assert _history.count() == 0
with xlogmem.record_nvtx():
    runtime.allocate(64, S).free()
    assert _history.count() == 2
    kept = xlogmem.use(T, read=[])
assert _history.count() == 0
with kept:
    runtime.allocate(64, S).free()
assert _history.count() == 0 and recording.latest() is None
""")[-2:] == ["xlogmem: begin use nothing on stream 2", "xlogmem: end"]


@needs_compiler
def test_ranges_end_with_errors(seen):
    assert seen(START + """
block = runtime.allocate(64, S, tag="\\ud800")
block.free()
for _ in range(2):
    try:
        with xlogmem.use(S, read=block):
            raise SystemExit("a freed block was used")
    except xlogmem.UseAfterFreeError:
        pass
try:
    with xlogmem.scope("broken"), xlogmem.use(S, read=[]):
        raise KeyError
except KeyError:
    pass
try:
    runtime.allocate(-1)
except ValueError:
    pass
runtime.allocate(0, T)
""", XLOGMEM_NVTX="1") == ["xlogmem: mark allocate ? on stream 1 (64)", *["xlogmem: begin use ? on stream 1",
                           "xlogmem: end"] * 2, "xlogmem: begin broken", "xlogmem: begin use nothing on stream 1",
                           "xlogmem: end", "xlogmem: end", "xlogmem: mark allocate DeviceBlock on stream 2 (0)"]


class Domain:
    """Stands in for one of NVTX, and counts what is open."""

    def __init__(self) -> None:
        self.open = 0

    def get_event_attributes(self, message: str) -> str:
        return message

    def push_range(self, attributes: str) -> None:
        self.open += 1

    def pop_range(self) -> None:
        self.open -= 1


def test_a_range_ends_where_filing_fails():
    class Recorder(nullcontext):
        def __exit__(self, *error: object) -> None:
            assert domain.open == 1
            raise OSError("not filed")

    domain = Domain()
    with pytest.raises(OSError, match="not filed"), NamedUse(Recorder(), domain, "use"):
        pass
    assert domain.open == 0


@needs_compiler
def test_recorders_are_as_without(seen):
    """By hand there is no range."""
    assert seen(START + """
block = runtime.allocate(64, S, tag="x")
recorder = xlogmem.use(T, block, handback="all")
recorder.preflight()
assert recorder.preflighted and recorder.stream is T
recorder.commit()
assert runtime.counters()["uses"] == 1
assert xlogmem.use.__doc__ == xlogmem.launch.use.__doc__
xlogmem.use(S).read(block).cancel()
""", XLOGMEM_NVTX="1") == ["xlogmem: mark allocate x on stream 1 (64)"]


def test_without_a_tool_nothing_is_changed():
    assert "NVTX_INJECTION64_PATH" not in os.environ
    with xlogmem.record_nvtx() as recording:
        assert not recording.seen
        assert xlogmem.use is use
        assert "allocate" not in vars(DeviceRuntime)
        with pytest.raises(RuntimeError, match="already"):
            xlogmem.record_nvtx()
    xlogmem.record_nvtx().stop()


def test_names_are_few_and_short():
    runtime = DeviceRuntime()
    blocks = [runtime.allocate(64, tag=f"tag {number % 6}") for number in range(9)]
    assert names_of(blocks) == "tag 0, tag 1, tag 2, tag 3 and 2 more"
    assert names_of([[blocks[0]], {"a": (blocks[1], 3)}, bytearray()]) == "tag 0, tag 1, int, bytearray"
    del blocks


@pytest.mark.parametrize(("call", "status", "said"), [
    ("xlogmem.record_nvtx()", 1, "ImportError: xlogmem.record_nvtx needs nvtx, which is not installed: pip install"),
    ("pass", 0, "XLOGMEM_NVTX: xlogmem.record_nvtx needs nvtx")])
def test_without_the_package(call, status, said):
    run = subprocess.run([sys.executable, "-c", f"import sys; sys.modules['nvtx'] = None\nimport xlogmem; {call}"],
                         capture_output=True, text=True, timeout=100,
                         env=os.environ | ENVIRONMENT | {"XLOGMEM_NVTX": "" if status else "1"})
    assert run.returncode == status
    assert said in run.stderr


def test_an_old_package(monkeypatch):
    monkeypatch.delattr("nvtx.Domain")
    with pytest.raises(ImportError, match=r"needs nvtx 0\.2\.13 or later"):
        xlogmem.record_nvtx()
