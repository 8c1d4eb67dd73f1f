"""However a program ends, what it found is reported, or it is said that it is not."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from checked_programs import DRIVER

pytestmark = pytest.mark.simulator

BROKEN = DRIVER + """
p = ok(cuda.cuMemAlloc(4096))
for stream in [ok(cuda.cuStreamCreate(1)) for _ in range(2)]:
    ok(cuda.cuMemsetD8Async(p, 7, 4096, stream))
"""


@pytest.fixture
def command(tmp_path):
    """Of a check of this program."""
    def made(program, *options):
        (tmp_path / "program.py").write_text(program)
        return [sys.executable, "-m", "xlogmem", "check", "--no-gpu", *options, "--", sys.executable, "program.py"]
    return made


@pytest.fixture
def check(tmp_path, clean_environment, command):
    def run(program, *options, **environment):
        return subprocess.run(command(program, *options), capture_output=True, text=True, cwd=tmp_path, timeout=100,
                              env=clean_environment | environment)
    return run


@pytest.mark.parametrize("end", ["del sys.argv", "from pathlib import Path; sys.argv = [Path('x')]", "sys.exit(0)",
                                 "raise SystemExit(5)", "1 / 0"])
def test_findings_are_reported_whatever_the_end(check, end):
    run = check(f"{BROKEN}\n{end}\n")
    assert (run.returncode, "1 certain" in run.stderr) == (1, True), run.stderr


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_program_that_ends_without_its_findings_is_not_clean(check, end):
    run = check(f"{BROKEN}\n{end}\n")
    assert (run.returncode, "ended without its findings" in run.stderr) == (3, True), run.stderr
    assert "no Python process" not in run.stderr


def test_an_interrupt_is_the_programs(tmp_path, clean_environment, command):
    """... and a program that ends with it has its findings, also where the suite runs with interrupts ignored."""
    program = (f"{BROKEN}\nimport signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
               "print('ready', flush=True)\ntime.sleep(60)\n")
    with subprocess.Popen(command(program), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
                          env=clean_environment, start_new_session=True) as run:
        assert run.stdout.readline() == "ready\n"
        time.sleep(0.2)
        os.killpg(run.pid, signal.SIGINT)
        errors = run.communicate(timeout=60)[1]
    assert (run.returncode, "1 certain" in errors) == (1, True), errors


@pytest.mark.parametrize("option", ["--json", "--sarif", "--record"])
def test_a_file_that_cannot_be_written_is_named_before_the_program_runs(check, option):
    run = check("print('it ran')", option, "nowhere/file")
    assert (run.returncode, run.stdout) == (2, ""), run.stdout
    assert "nowhere/file cannot be written" in run.stderr


def test_options_behind_the_command_are_the_programs(tmp_path, clean_environment):
    (tmp_path / "program.py").write_text("import sys; print(sys.argv[1:])")
    command = [sys.executable, "-m", "xlogmem", "check", "--no-gpu", sys.executable, "program.py", "--json", "x"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=clean_environment, timeout=100)
    assert run.stdout == "['--json', 'x']\n", run.stderr
    assert not (tmp_path / "x").exists()


def test_a_sitecustomize_that_fails_stops_no_check(tmp_path, check):
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text("1 / 0")
    path = os.pathsep.join(filter(None, [str(tmp_path / "site"), os.environ.get("PYTHONPATH")]))
    run = check(BROKEN, PYTHONPATH=path)
    assert (run.returncode, "ZeroDivisionError" in run.stderr) == (1, True), run.stderr


def test_places_need_not_be_ascii(tmp_path, check):
    program = f"# coding: utf-8\n{BROKEN}\ndef größe():\n    for stream in [ok(cuda.cuStreamCreate(1))]:\n" \
              "        ok(cuda.cuMemsetD8Async(p, 7, 4096, stream))\ngröße()\n"
    run = check(program, "--record", "trace.txt", "--json", "out.json", LC_ALL="C", PYTHONUTF8="0")
    assert run.returncode == 1, run.stderr
    findings = json.loads((tmp_path / "out.json").read_text())["findings"]
    functions = {one["second"]["stack"][0]["function"] for one in findings}
    assert "größe" in functions
    assert "größe" in (tmp_path / "trace.txt").read_text(encoding="utf-8")
