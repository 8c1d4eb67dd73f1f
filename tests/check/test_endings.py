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

from xlogmem._base.private import private_folder
from xlogmem.check import processes

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


ENDS = ["os._exit(0)", "ctypes.CDLL(None).exit(0)", "os.execv('/bin/true', ['true'])",
        *(f"os.kill(os.getpid(), {number})" for number in (6, 9, 11, 15))]


@pytest.mark.parametrize("end", ENDS)
def test_no_end_takes_a_finding_along(check, tmp_path, end):
    run = check(f"{BROKEN}\n{end}\n", "--json", "out.json")
    assert (run.returncode, "1 certain" in run.stderr) == (1, True), run.stderr
    [finding] = json.loads((tmp_path / "out.json").read_text())["findings"]
    line = BROKEN.splitlines().index("    ok(cuda.cuMemsetD8Async(p, 7, 4096, stream))") + 1
    innermost = [finding[access]["stack"][0] for access in ("first", "second")]
    assert [(frame["line"], frame["function"]) for frame in innermost] == [(line, "<module>")] * 2
    assert finding["allocated"]
    assert finding["second"]["stream"]["made"]


@pytest.mark.parametrize(("end", "status"), [("os._exit(0)", 0), ("os.kill(os.getpid(), 9)", 3)])
def test_a_clean_program_that_ends_early_is_judged(check, end, status):
    """... up to its end; the report says that it had none of its own."""
    run = check(f"{DRIVER}\np = ok(cuda.cuMemAlloc(4096))\n{end}\n")
    assert (run.returncode, "was ended by a signal, a crash, os._exit or exec" in run.stderr) == (status, True)
    assert "0 certain" in run.stderr


@pytest.mark.parametrize("end", ENDS[:1] + ENDS[-1:])
def test_ignored_findings_of_a_process_that_was_ended_are_left_out(check, end):
    ignoring = "    with xlogmem.check.ignore('both write the same'):\n        ok(cuda.cuMemset"
    body = BROKEN.replace("    ok(cuda.cuMemset", ignoring)
    run = check(f"import xlogmem.check\n{body}\n{end}\n")
    assert "0 certain, 0 possible, 1 suppressed" in run.stderr, run.stderr
    assert "nothing to ignore" not in run.stderr


WORKERS = """
import multiprocessing, os, sys, time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

def work(end):
    exec(BROKEN, names := {})
    exec(end, names)

if __name__ == "__main__":
    how, end = sys.argv[1:]
    context = multiprocessing.get_context(how)
    if end == "terminate":
        with context.Pool(1) as pool:
            pool.map(work, [""])
    elif end == "futures":
        with ProcessPoolExecutor(1, context) as pool:
            try:
                pool.submit(work, "os.abort()").result()
            except BrokenProcessPool:
                pass
    else:
        process = context.Process(target=work, args=(end,))
        process.start()
        process.join()
"""


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("end", ["terminate", "futures", "os._exit(0)", "os.kill(os.getpid(), 11)"])
def test_no_end_of_a_worker_takes_a_finding_along(check, tmp_path, clean_environment, how, end):
    (tmp_path / "program.py").write_text(f"BROKEN = {BROKEN!r}\n{WORKERS}")
    command = [sys.executable, "-m", "xlogmem", "check", "--no-gpu", "--", sys.executable, "program.py", how, end]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=clean_environment, timeout=100)
    assert (run.returncode, "1 certain" in run.stderr) == (1, True), run.stderr


@pytest.mark.parametrize("command", [["/bin/true"], [sys.executable, "-I", "-c", ""], [sys.executable, "-c", ""]])
def test_a_check_of_nothing_is_not_clean(tmp_path, clean_environment, command):
    for options, status in ([], 3), (["--allow-none"], 0):
        run = subprocess.run([sys.executable, "-m", "xlogmem", "check", "--no-gpu", *options, "--", *command],
                             capture_output=True, text=True, cwd=tmp_path, env=clean_environment, timeout=100)
        assert (run.returncode, "nothing was checked" in run.stderr) == (status, True), run.stderr


def test_a_process_that_goes_on_is_named(check):
    run = check("import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.closerange(0, 3)\n"
                + "".join(f"    {line}\n" for line in DRIVER.splitlines()) + "    time.sleep(20)\ntime.sleep(1)\n")
    assert run.returncode == 3, run.stderr
    assert "still runs: the check has its findings so far, and no later ones" in run.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("ignored", [False, True])
def test_what_ends_the_check_ends_the_program(tmp_path, clean_environment, command, name, ignored):
    """As a job's time limit does; the findings so far are reported.  What the check's parent ignores stays ignored, as
    SIGHUP under nohup."""
    number = signal.Signals[name]
    words = command(f"{BROKEN}\nimport time\nopen('ready', 'w').close()\ntime.sleep({3 if ignored else 100})\n")
    before = signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)  # under nohup, too
    try:
        program = subprocess.Popen(words, cwd=tmp_path, env=clean_environment, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(number, before)
    while not (tmp_path / "ready").exists():
        assert program.poll() is None
        time.sleep(0.05)
    program.send_signal(number)
    _, text = program.communicate(timeout=60)
    assert program.returncode == 1
    assert "1 certain" in text
    assert (f"the program was ended by {name}: what it left out was not checked" in text) == (not ignored)


def journal_of(*counts, lines=b""):
    """A journal of a process that does not run, with this page."""
    return processes.PAGE.pack(*processes.Page(processes.MARK, *counts)).ljust(processes.BEGIN, b"\0") + lines


@pytest.mark.parametrize(("counts", "what"), [
    ((1, 0, 1, 0, 0, 0, 0), "its last findings were"), ((1, 0, 0, 2, 1, 0, 0), "3 findings were"),
    ((1, 0, 0, 0, 0, 700, 512), "188 calls were")])
def test_what_was_not_judged_is_lost(tmp_path, counts, what):
    with private_folder(tmp_path / "own", make=True) as folder:
        (folder.path / "4194305.journal").write_bytes(journal_of(*counts))      # above the largest number of a process
        [account] = processes.accounts(folder)
    assert (account.used, account.lost.startswith("process 4194305 was lost"), what in account.lost) == (True,) * 3


# ---------------------------------------------------------------------------------------------- truncated
LOST = "its file in the check's folder was truncated, overwritten or removed, and findings may be missing"
FOLDER = """
import os
def file(ending):
    return next(f"{os.environ['XLOGMEM_CHECK']}/{name}" for name in os.listdir(os.environ["XLOGMEM_CHECK"])
                if name.endswith(ending))
def written(content):
    with open(file(".journal"), "wb") as opened:
        opened.write(content)
"""
CUTS = ["os.truncate(file('.journal'), 0)", "os.truncate(file('.journal'), 100)", "os.truncate(file('.journal'), 4095)",
        "os.truncate(file('.journal'), 4096)", "os.truncate(file('.journal'), os.stat(file('.journal')).st_size - 10)",
        "os.truncate(file('.journal'), 0); os.truncate(file('.journal'), 8192)", "written(os.urandom(100))",
        "written(os.urandom(20_000))", "written(b'{}' * 10_000)", "os.remove(file('.journal'))"]


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(0)", ""])
@pytest.mark.parametrize("cut", CUTS)
def test_a_process_whose_journal_was_truncated_is_lost(check, cut, end):
    """... but a removed one of a process without an orderly end: then there is no sign of it, nor of anything checked.
    The process itself goes on."""
    run = check(f"{FOLDER}\n{BROKEN}\n{cut}\nok(cuda.cuMemAlloc(4096))\nprint('went on', flush=True)\n{end}\n")
    assert run.stdout == "went on\n", run.stderr
    assert (run.returncode, "1 certain" in run.stderr) == ((3, False) if end else (1, True)), run.stderr
    assert (LOST in run.stderr) == ("remove" not in cut or not end), run.stderr


@pytest.mark.parametrize("cut", CUTS[:3])
def test_nothing_is_written_behind_a_truncation(check, cut):
    """Neither findings, nor blocks that ignore some: these would lie where the page is."""
    again = BROKEN[BROKEN.index("for stream"):]
    run = check(f"import xlogmem.check\n{FOLDER}\n{DRIVER}\np = ok(cuda.cuMemAlloc(4096))\n{cut}\n"
                f"before = os.stat(file('.journal')).st_size\n{again}\nwith xlogmem.check.ignore('x'):\n    {{}}\n"
                f"print(os.stat(file('.journal')).st_size == before, flush=True)\nos._exit(0)\n")
    assert (run.stdout, run.returncode, LOST in run.stderr) == ("True\n", 3, True), run.stderr


@pytest.mark.parametrize("size", [0, 50])
def test_a_truncated_account_of_an_orderly_end_is_none(tmp_path, size):
    """What the journal has is reported."""
    with private_folder(tmp_path / "own", make=True) as folder:
        (folder.path / "4194305.journal").write_bytes(journal_of(1, 1, lines=b'{"cleared": true}\n'))
        (folder.path / "4194305.json").write_text("{" * size)
        [account] = processes.accounts(folder)
    assert (account.used, account.document["findings"], LOST in account.lost) == (True, [], True)


def test_a_journal_that_the_disk_has_no_room_for_is_lost(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    with private_folder(tmp_path / "own", make=True) as folder:
        monkeypatch.setattr(os, "write", refuse)
        name, file = processes.new_journal(folder, 4194305)
        monkeypatch.undo()
        os.close(file)
        [account] = processes.accounts(folder)
    assert (name, LOST in account.lost) == ("4194305", True)


def test_a_process_that_leaves_at_once_has_nothing_to_leave(tmp_path):
    with private_folder(tmp_path / "own", make=True) as folder:
        os.close(processes.new_journal(folder, 4194305)[1])
        assert processes.accounts(folder) == []
        assert (folder.path / "4194305.journal").stat().st_size == processes.BEGIN


def test_the_last_line_of_a_finding_counts(tmp_path):
    """... and one that was cut off does not."""
    end = {"name": "x", "site": 1, "captured": 0, "role": "write", "library": "", "known": "", "window": 0,
           "stream": {"number": 1, "kind": "made", "site": 0}}
    finding = {"kind": "race", "pair": "write/write", "certain": True, "of_driver": False, "first": end, "second": end,
               "begin": 0, "end": 1, "tag": "", "tracked": False, "count": 1,
               "block": {"begin": 0, "end": 1, "generation": 0, "allocated": 0, "freed": 0}, "wait": None}
    said = [{"stack": 1, "frames": [["file.py", 7, "f"]]}, {"number": 1, "finding": finding},
            {"number": 2, "finding": finding}, {"number": 1, "finding": finding | {"certain": False}},
            {"number": 2, "finding": None}]
    lines = b"".join(json.dumps(one).encode() + b"\n" for one in said)
    for more, expected in ((b'{"number": 1, "fin', [False]), (b'{"cleared": true}\n', [])):
        document = processes.document_of(17, processes.said_in(lines + more))
        assert [one["certain"] for one in document["findings"]] == expected
    assert processes.page_of(b"") == (0,) * 9


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
