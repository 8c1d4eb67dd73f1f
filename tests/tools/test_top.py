"""`xlogmem top`, in processes of its own."""
from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from c_table import ENVIRONMENT
from live_programs import HOLDS, WAITS, running
from rich.console import Console

from xlogmem import DeviceRuntime, PoolMemoryResource
from xlogmem.observe.live import watching
from xlogmem.observe.live.figures import ProcessFigures, figures_of
from xlogmem.observe.live.pictures import picture, rates
from xlogmem.observe.live.reading import EndedError, UnpublishedError

TOP = [sys.executable, "-m", "xlogmem", "top"]


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    with TemporaryDirectory(prefix="xl-") as name:
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        monkeypatch.delenv("XLOGMEM_PUBLISH", raising=False)
        yield Path(name, "xlogmem")


def top(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TOP, *arguments], capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL,
                          env=os.environ | ENVIRONMENT | {"COLUMNS": "120"})


def as_text(process: ProcessFigures, before: ProcessFigures | None = None) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(picture(process, before))
    return captured.get()


def rows(text: str) -> dict[str, list[str]]:
    """The words of each line, by what is in its first column."""
    return {line[:24].strip(): line[24:].split() for line in text.splitlines()}


# ---------------------------------------------------------------------------------------------- a process that runs
def test_a_process_as_text():
    with running(HOLDS, XLOGMEM_PUBLISH="1") as process:
        run = top("--pid", str(process.pid), "--once")
    assert run.returncode == 0, run.stderr
    assert f"process {process.pid}" in run.stdout
    assert "live     4.0 MiB in 3 blocks" in run.stdout
    found = rows(run.stdout)
    assert found["'right'"] == ["3.0", "MiB", "1"]
    assert found["without a tag"] == ["100", "B", "1"]
    assert (found["allocations"], found["uses"], found["conflicts"]) == (["3"], ["1"], ["0"])


def test_a_process_as_json():
    with running(HOLDS, XLOGMEM_PUBLISH="1") as process:
        run = top("--pid", str(process.pid), "--once", "--json")
    [seen] = json.loads(run.stdout)["processes"]
    assert (seen["pid"], seen["runtimes"][0]["live_bytes"]) == (process.pid, (4 << 20) + 100)


def test_a_process_without_a_runtime():
    with running("import xlogmem", XLOGMEM_PUBLISH="1") as process:
        assert "no runtime yet" in top("--pid", str(process.pid), "--once").stdout


def test_it_ends_when_the_process_does():
    with (running(HOLDS, XLOGMEM_PUBLISH="1") as process,
          subprocess.Popen([*TOP, "--pid", str(process.pid), "--json", "--interval", "0.05"], text=True,
                           env=os.environ | ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as seen):
        for _ in range(3):
            assert json.loads(seen.stdout.readline())["processes"]
        process.stdin.close()
        errors = seen.communicate(timeout=60)[1]
    assert (seen.returncode, errors) == (0, f"xlogmem top: process {process.pid} has ended\n")


def test_a_process_that_does_not_publish():
    with running("import xlogmem") as process:
        run = top("--pid", str(process.pid))
    assert run.returncode == 1
    assert run.stdout == ""
    assert "start it with XLOGMEM_PUBLISH=1 in its environment" in run.stderr


def test_a_process_that_is_not_there():
    with subprocess.Popen(["true"]) as process:
        process.wait()
    run = top("--pid", str(process.pid))
    assert (run.returncode, run.stderr) == (1, f"Error: there is no process {process.pid}\n")


@pytest.mark.parametrize("arguments", [[], ["--pid", "1", "true"], ["--pid", "0"], ["--interval", "0", "true"]])
def test_wrong_arguments(arguments):
    run = top(*arguments)
    assert run.returncode == 2
    assert "pid" in run.stderr or "--interval" in run.stderr


@pytest.mark.parametrize("end", [EndedError("gone"), UnpublishedError("the socket is")])
def test_either_end_of_a_process_is_its_end(monkeypatch, capsys, end):
    """The socket goes a little earlier than the process."""
    answers = iter([ProcessFigures(4711, "program", 0.0, ()), end])

    def read(_: int) -> ProcessFigures:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(watching, "read", read)
    watching.follow(4711, watching.JsonLines(), 0.0, once=False)
    assert capsys.readouterr().err == "xlogmem top: process 4711 has ended\n"


# ---------------------------------------------------------------------------------------------- a program
def test_a_program_is_shown_until_it_ends():
    """... with its exit status; its output is not among the figures."""
    with subprocess.Popen([*TOP, "--json", "--interval", "0.05", "--", sys.executable, "-c", HOLDS + WAITS], text=True,
                          env=os.environ | ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as run:
        for line in run.stdout:
            processes = json.loads(line)["processes"]
            seen = processes[0]["runtimes"][0] if processes and processes[0]["runtimes"] else None
            if seen and seen["counters"]["uses"] and seen["live_blocks"] == 3:      # a picture may be of two moments
                break
        assert seen["live_blocks"] == 3
        _, errors = run.communicate(timeout=60)
    assert (run.returncode, errors) == (7, "ready\n")


def test_children_are_shown_too():
    """A launcher need not be a Python program, nor have a runtime itself."""
    with subprocess.Popen([*TOP, "--json", "--interval", "0.05", "--", "sh", "-c",
                           f"{sys.executable} -c '{HOLDS + WAITS}'; exit 5"], text=True, env=os.environ | ENVIRONMENT,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
        for line in run.stdout:
            processes = json.loads(line)["processes"]
            if processes and processes[0]["runtimes"]:
                break
        assert processes[0]["pid"] != run.pid
        run.communicate(timeout=60)
    assert run.returncode == 5


def test_other_processes_are_not_shown():
    with (running(HOLDS, XLOGMEM_PUBLISH="1"),
          subprocess.Popen([*TOP, "--json", "--interval", "0.05", "--", sys.executable, "-c", WAITS], text=True,
                           env=os.environ | ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL) as run):
        assert json.loads(run.stdout.readline()) == {"processes": []}
        run.stdin.close()


def test_one_picture_of_a_program():
    with subprocess.Popen([*TOP, "--once", "--interval", "0.05", "--", sys.executable, "-c", HOLDS + WAITS], text=True,
                          env=os.environ | ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as run:
        first = run.stdout.readline()
        run.stdin.close()
        rest = run.stdout.read()
        assert run.stderr.read() == "ready\n"
    assert first.startswith("process ")
    assert (rest.count("process "), rest.count("device 0, runtime 1")) == (0, 1)
    assert run.returncode == 7


def test_a_program_that_ends_before_it_is_seen():
    run = top("--once", "--", sys.executable, "-c", "raise SystemExit(4)")
    assert (run.returncode, run.stdout) == (4, "")
    assert "ended before it had a runtime to show" in run.stderr


def test_a_program_that_a_signal_ends():
    assert top("--json", "--", "sh", "-c", "kill -9 $$").returncode == 128 + 9


def test_what_is_not_a_program():
    run = top("--", "no-such-program-here")
    assert run.returncode == 2
    assert "no-such-program-here" in run.stderr


def test_without_a_terminal_pictures_go_to_standard_error():
    with subprocess.Popen([*TOP, "--interval", "0.05", "--", sys.executable, "-c", WAITS], text=True,
                          env=os.environ | ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as run:
        assert run.stderr.readline() == "no process has imported xlogmem yet\n"
        run.stdin.close()
        assert run.stdout.read() == "ready\n"


# ---------------------------------------------------------------------------------------------- pictures
def test_a_picture_has_rates_since_the_one_before():
    runtime = DeviceRuntime(resource=PoolMemoryResource(initial_pool_size=1 << 20))
    first = ProcessFigures(1, "program", 10.0, (figures_of(runtime),))
    kept = [runtime.allocate(256) for _ in range(6)]
    second = ProcessFigures(1, "program", 12.0, (figures_of(runtime),))
    assert rates(second.runtimes[0], first.runtimes[0], 2.0)["allocations"] == 3.0
    assert rows(as_text(second, first))["allocations"] == ["6", "3.0"]
    assert rows(as_text(second))["allocations"] == ["6"]
    assert rates(second.runtimes[0], first.runtimes[0], 0.0) == {}
    assert "1022.5 KiB of 1.0 MiB free, the largest span 1022.5 KiB" in as_text(second)
    assert "peak     1.5 KiB" in as_text(second)
    del kept


def test_a_runtime_that_is_new_has_no_rates():
    runtime = DeviceRuntime()
    now = ProcessFigures(1, "program", 12.0, (figures_of(runtime),))
    assert "per second" not in as_text(now, ProcessFigures(1, "program", 10.0, ()))


def test_tags_and_arguments_do_not_command_the_terminal():
    runtime = DeviceRuntime()
    kept = [runtime.allocate(64, tag="[red]\x1b[31m"), *(runtime.allocate(32, tag=f"tag {i}") for i in range(11))]
    figures = replace(figures_of(runtime), resource="<\x1b[31m>")
    text = as_text(ProcessFigures(1, "a\x1b[31m\n[b]", 0.0, (figures,)))
    assert "\x1b" not in text
    assert "'[red]\\x1b[31m'" in text
    assert r"process 1  a\x1b[31m\n[b]" in text
    assert rows(text)["2 more tags"] == ["64", "B", "2"]
    del kept


# ---------------------------------------------------------------------------------------------- a terminal
def test_on_a_terminal_lines_of_the_program_are_above_the_picture():
    ours, theirs = pty.openpty()
    program = HOLDS + "print('terminals', sys.stdout.isatty(), sys.stderr.isatty())" + WAITS
    with subprocess.Popen([*TOP, "--interval", "0.05", "--", sys.executable, "-c", program],
                          env=os.environ | ENVIRONMENT | {"TERM": "xterm", "COLUMNS": "120", "LINES": "50"},
                          stdin=subprocess.PIPE, stdout=theirs, stderr=theirs) as run:
        os.close(theirs)
        seen = b""
        while not (b"ready" in seen and b"in 3 blocks" in seen):
            seen += os.read(ours, 1 << 16)
        run.stdin.close()
        with suppress(OSError):                         # the other end is closed
            while piece := os.read(ours, 1 << 16):
                seen += piece
    os.close(ours)
    assert run.returncode == 7
    assert seen.count(b"ready") == 1
    assert b"terminals False False" in seen             # the program's lines come by way of the picture's owner
    assert b"\x1b[2K" in seen                           # a picture was replaced


# ---------------------------------------------------------------------------------------------- every way out waits
def test_a_folder_that_is_no_folder_is_said_once(folder):
    folder.write_text("")
    program = "import time; time.sleep(1); raise SystemExit(7)"
    run = top("--json", "--interval", "0.05", "--", sys.executable, "-c", program)
    assert run.returncode == 7
    assert run.stderr == f"xlogmem top: {folder} is not a folder: remove it\n"


class Broken:
    """Pictures that cannot be shown."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def show(self, processes: list[ProcessFigures]) -> None:
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BrokenPipeError("it has left"), RuntimeError("a defect")])
def test_every_way_out_waits_for_the_program(tmp_path, error):
    ended = tmp_path / "ended"
    program = f"import pathlib, time; time.sleep(0.5); pathlib.Path({str(ended)!r}).touch(); raise SystemExit(7)"
    command = [sys.executable, "-c", program]
    if isinstance(error, RuntimeError):
        with pytest.raises(RuntimeError):
            watching.run(command, Broken(error), 0.05, False, None)
    else:
        assert watching.run(command, Broken(error), 0.05, False, None) == 7
    assert ended.exists()
