"""``pytest -p xlogmem.check``: a test has the findings of what it did."""
from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.simulator

TESTS = """
import pytest
import xlogmem.check
from cuda.bindings import driver as cuda

def ok(result):
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) > 1 else None

@pytest.fixture(scope="session")
def streams():
    ok(cuda.cuInit(0))
    ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(0))))
    return ok(cuda.cuStreamCreate(1)), ok(cuda.cuStreamCreate(1))

def work(streams, wait):
    p, q = ok(cuda.cuMemAlloc(1024)), ok(cuda.cuMemAlloc(1024))
    ok(cuda.cuMemsetD8Async(p, 1, 1024, streams[0]))
    if wait:
        ok(cuda.cuStreamSynchronize(streams[0]))
    ok(cuda.cuMemcpyDtoDAsync(q, p, 1024, streams[1]))
    ok(cuda.cuCtxSynchronize())

def test_broken(streams):
    work(streams, False)

def test_repaired(streams):
    work(streams, True)

def test_broken_and_wanted_clean(streams, no_races):
    work(streams, False)

def test_broken_and_ignored(streams, no_races):
    with xlogmem.check.ignore("it is meant"):
        work(streams, False)
    with xlogmem.check.ignore("in vain"):
        work(streams, True)

def test_repaired_and_wanted_clean(streams, no_races):
    work(streams, True)
"""


@pytest.mark.parametrize(("options", "failed"), [
    ([], {"test_broken", "test_broken_and_wanted_clean"}),
    (["--races=report"], {"test_broken_and_wanted_clean"}),
])
def test_tests_with_findings_fail(tmp_path, clean_environment, options, failed):
    (tmp_path / "test_program.py").write_text(TESTS)
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "xlogmem.check", "-p", "no:cacheprovider",
                          *options], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=clean_environment,
                         timeout=120)
    assert run.returncode == 1
    ended = {line.split("::")[1].split(" ")[0] for line in run.stdout.splitlines() if line.startswith("ERROR test_")}
    assert ended == failed, run.stdout
    assert "5 passed" in run.stdout                     # the tests themselves
    assert run.stdout.count("CERTAIN write/read") == len(failed)
    assert "xlogmem check: 2 certain, 0 possible, 1 suppressed" in run.stdout
    assert run.stdout.count("nothing to ignore at") == run.stdout.count("(in vain)") == 1


FAILING = TESTS[:TESTS.index("def test_broken")] + """
@pytest.fixture
def failing():
    raise ValueError

def test_failed(streams):
    assert not streams
    work(streams, False)

def test_without_its_fixture(streams, failing):
    work(streams, False)

@pytest.mark.xfail(strict=True)
def test_right_to_its_end(streams):
    work(streams, True)

def test_left_out(streams):
    pytest.skip("no reason")
"""


@pytest.mark.parametrize(("program", "line"), [
    (FAILING, "xlogmem check: 2 tests failed, and were checked only up to the failure"),
    (FAILING[:FAILING.index("def test_without")],
     "xlogmem check: 1 test failed, and was checked only up to the failure"),
    (TESTS, None)])                                     # failed for its findings, after its end
def test_a_failed_test_was_checked_up_to_its_failure(tmp_path, clean_environment, program, line):
    (tmp_path / "test_program.py").write_text(program)
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "xlogmem.check", "-p", "no:cacheprovider"],
                         stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=clean_environment, timeout=120)
    said = [one for one in run.stdout.splitlines() if "up to the failure" in one]
    assert said == ([line] if line else []), run.stdout


TWICE = TESTS[:TESTS.index("def work")] + """
def test_broken(streams):
    p = ok(cuda.cuMemAlloc(1024))
    q, r = ok(cuda.cuMemAlloc(1024)), ok(cuda.cuMemAlloc(1024))
    big = ok(cuda.cuMemAlloc(4096))
    for memory in p, big, big:
        ok(cuda.cuMemsetD8Async(memory, 1, 1024, streams[0]))
        ok(cuda.cuMemcpyDtoDAsync(q, memory, 1024, streams[1])), ok(cuda.cuMemcpyAsync(r, memory, 8, streams[1]))
        ok(cuda.cuCtxSynchronize())
"""


def test_findings_at_the_same_two_places_are_one_entry(tmp_path, clean_environment):
    (tmp_path / "test_program.py").write_text(TWICE)
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "xlogmem.check", "-p", "no:cacheprovider"],
                         stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=clean_environment, timeout=120)
    assert [line for line in run.stdout.splitlines() if line.startswith("CERTAIN")] == [
        "CERTAIN write/read: the read may see what was there before the write"], run.stdout
    assert "  6 times, in memory of 2 allocations" in run.stdout
    assert "xlogmem check: 4 certain, 0 possible, at 1 place" in run.stdout


ELSEWHERE = """
import xlogmem
from cuda.bindings import driver as cuda

def test_a_launch_on_another_stream():
    runtime = xlogmem.get_runtime()
    a, b = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(1024, a)
    with xlogmem.use(b, read_write=block):
        cuda.cuMemsetD8Async(block.ptr, 1, 1024, a.handle)
"""


def test_launches_that_went_elsewhere_are_in_the_summary(tmp_path, clean_environment):
    (tmp_path / "test_program.py").write_text(ELSEWHERE)
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "xlogmem.check", "-p", "no:cacheprovider"],
                         stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=clean_environment, timeout=120)
    assert run.stdout.count("AUDIT elsewhere: a `use` names stream") == 1, run.stdout
    assert run.stdout.count("AUDIT entries are launches that no `use` declares as they are") == 1
    assert "xlogmem check: 0 certain, 0 possible, 1 AUDIT entry, on the simulated driver" in run.stdout
    assert run.returncode == 0


def test_the_summary_has_what_the_workers_of_xdist_found(tmp_path, clean_environment):
    pytest.importorskip("xdist")
    (tmp_path / "test_program.py").write_text(TESTS)
    (tmp_path / "test_failing.py").write_text(FAILING)
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "xlogmem.check", "-p", "no:cacheprovider",
                          "-n", "2"], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=clean_environment,
                         timeout=120)
    assert "xlogmem check: 2 certain, 0 possible, 1 suppressed" in run.stdout, run.stdout
    assert "xlogmem check: 2 tests failed, and were checked only up to the failure" in run.stdout
    assert run.stdout.count("nothing to ignore at") == 1


DROPPED = """
import pytest
import xlogmem
from cuda.bindings import driver as cuda

@pytest.fixture
def runtime():
    yield xlogmem.get_runtime()
    xlogmem.get_runtime().reap_pending()                # carries the free out

def test_dropped(runtime):
    a, b = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(1024, a)
    b.wait(a)
    cuda.cuMemsetD8Async(block.ptr, 1, 1024, b.handle)
"""


def test_what_is_dropped_at_the_end_of_a_test_is_in_no_line_of_pytest(tmp_path, clean_environment):
    (tmp_path / "test_program.py").write_text(DROPPED)
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "xlogmem.check", "-p", "no:cacheprovider"],
                         capture_output=True, text=True, cwd=tmp_path, env=clean_environment, timeout=120)
    assert "cuMemFreeAsync (free) on stream " in run.stdout, run.stdout + run.stderr
    assert ", where a function ended that pytest had called\n" in run.stdout
    assert "_pytest" not in run.stdout
    assert "pluggy" not in run.stdout
