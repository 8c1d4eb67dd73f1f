"""Children that a checked program forks: those that use the driver first are checked as their parent is."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from xlogmem._base.private import private_folder
from xlogmem.check import processes, start
from xlogmem.check.front_ends import Report

pytestmark = pytest.mark.simulator

PROGRAM = """
import multiprocessing, os, sys, warnings
from cuda.bindings import driver as cuda

warnings.simplefilter("ignore")                     # forks beside threads, of Python 3.12
how, order = sys.argv[1:]

def ok(result):
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) > 1 else None

def work():
    ok(cuda.cuInit(0))
    ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(0))))
    a, b, event = ok(cuda.cuStreamCreate(1)), ok(cuda.cuStreamCreate(1)), ok(cuda.cuEventCreate(0))
    p = ok(cuda.cuMemAlloc(1 << 20))
    ok(cuda.cuMemsetD8Async(p, 7, 1 << 20, a))
    if order == "repaired":
        ok(cuda.cuEventRecord(event, a))
        ok(cuda.cuStreamWaitEvent(b, event, 0))
    ok(cuda.cuMemsetD8Async(p, 8, 1 << 20, b))

def nothing():
    pass

def child(target):
    if how == "os.fork":
        process = os.fork()
        if process == 0:
            target()
            sys.exit(0)
        assert os.waitpid(process, 0)[1] == 0
    else:
        process = multiprocessing.get_context(how).Process(target=target)
        process.start()
        process.join()
        assert process.exitcode == 0

if __name__ == "__main__":
    if order == "parent":
        work()
        child(nothing)
    else:
        child(work)
"""


@pytest.fixture
def check(tmp_path, clean_environment):
    """The exit status, and of each finding in how many processes it was."""
    file, out = tmp_path / "program.py", tmp_path / "out.json"
    file.write_text(PROGRAM)

    def run(*arguments: str, options: list[str] | tuple[()] = ()) -> tuple[int, list[tuple[str, int]]]:
        done = subprocess.run([sys.executable, "-m", "xlogmem", "check", "--no-gpu", "--json", str(out),
                               *options, "--", sys.executable, str(file), *arguments], capture_output=True, text=True,
                              cwd=tmp_path, env=clean_environment, timeout=100)
        assert "Traceback" not in done.stderr, done.stderr
        findings = json.loads(out.read_text())["findings"]
        return done.returncode, [(one["pair"], len(one["processes"]) * one["count"]) for one in findings]

    return run


@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn", "os.fork"])
def test_a_child_that_initialises_the_driver_is_checked(check, how):
    assert check(how, "broken") == (1, [("write/write", 1)])
    assert check(how, "repaired") == (0, [])


@pytest.mark.parametrize("how", ["fork", "os.fork"])
def test_what_a_parent_did_is_counted_once(check, how):
    """A child has a copy of it, and no driver."""
    assert check(how, "parent") == (1, [("write/write", 1)])


@pytest.mark.parametrize("how", ["fork", "os.fork"])
@pytest.mark.parametrize("order", ["broken", "parent"])
def test_each_process_has_a_recording_of_its_own(check, tmp_path, how, order):
    check(how, order, options=["--record", str(tmp_path / "trace.txt")])
    _, *recordings = (tmp_path / "trace.txt").read_text().split("== process ")
    assert [text.count("\n:work ") for text in recordings if "\n:work " in text] == [2]
    assert all(text.count("\n:name 0 ") == 1 for text in recordings if "\n:" in text)


class FrontEnd:
    """One that has found nothing."""

    def stop(self) -> None: ...
    def report(self) -> Report: return Report([], [], [])
    def record(self, file: int | None) -> None: ...


def test_a_process_that_outlives_the_report_says_nothing(tmp_path):
    """... and leaves no half of a file, nor anything in a folder that took the place of the check's."""
    with private_folder(tmp_path / "gone", make=True) as folder:
        (tmp_path / "gone").rmdir()
        (tmp_path / "gone").mkdir()
        start.write(FrontEnd(), folder, "17")
    assert list((tmp_path / "gone").iterdir()) == []
    with private_folder(tmp_path / "there", make=True) as folder:
        start.write(FrontEnd(), folder, "17")
    [file] = (tmp_path / "there").iterdir()
    assert (file.name, json.loads(file.read_text())["findings"]) == ("17.json", [])


@pytest.mark.parametrize("name", ["17.journal", "17.json", "17.trace"])
def test_what_another_process_laid_in_the_folder_is_not_followed(tmp_path, name):
    (tmp_path / "victim").write_text("precious")
    with private_folder(tmp_path / "folder", make=True) as folder:
        (folder.path / name).symlink_to(tmp_path / "victim")
        processes.new_journal(folder, 17)
        start.write(FrontEnd(), folder, "17")
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_process_that_outlives_the_check_finds_its_folder_gone(tmp_path, clean_environment):
    """... though a folder with the same name, and links in it, took its place."""
    late = (f"import os, pathlib, time\nhere = pathlib.Path({str(tmp_path)!r})\n"
            "(here / 'late').write_text(f'{os.getpid()} {os.environ[\"XLOGMEM_CHECK\"]}')\n"
            "while not (here / 'go').exists(): time.sleep(0.01)\n")
    (tmp_path / "program.py").write_text(
        f"import pathlib, subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {late!r}], "
        f"start_new_session=True)\nwhile not pathlib.Path({str(tmp_path / 'late')!r}).exists(): time.sleep(0.01)\n"
        "time.sleep(0.1)\n")
    done = subprocess.run([sys.executable, "-m", "xlogmem", "check", "--no-gpu", "--allow-none", "--", sys.executable,
                           "program.py"], cwd=tmp_path, env=clean_environment, timeout=60, stderr=subprocess.DEVNULL)
    process, folder = (tmp_path / "late").read_text().split()
    assert (done.returncode, os.path.exists(folder)) == (0, False)
    (tmp_path / "victim").write_text("precious")
    os.mkdir(folder, 0o700)
    try:
        for name in (f"{process}.json", f"{process}.json.{process}.part", f"{process}.part"):
            os.symlink(tmp_path / "victim", os.path.join(folder, name))
        names = sorted(os.listdir(folder))
        (tmp_path / "go").touch()
        until = time.monotonic() + 30
        while processes.is_alive(int(process)) and time.monotonic() < until:
            time.sleep(0.01)
        assert sorted(os.listdir(folder)) == names
        assert (tmp_path / "victim").read_text() == "precious"
    finally:
        shutil.rmtree(folder)
