"""The command, as users have it: both lines of a missing wait, and nothing of its repaired twin."""
from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import textwrap
from contextlib import suppress

import pytest
from children import variables

import xlogmem

pytestmark = pytest.mark.simulator

START = """
import sys
from cuda.bindings import driver as cuda

def ok(result):
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) > 1 else None

def begin():
    ok(cuda.cuInit(0))
    ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(0))))
    return ok(cuda.cuStreamCreate(1)), ok(cuda.cuStreamCreate(1)), ok(cuda.cuEventCreate(0))

fixed = "fixed" in sys.argv

def wait(event, before, after):
    if fixed:
        ok(cuda.cuEventRecord(event, before))
        ok(cuda.cuStreamWaitEvent(after, event, 0))
"""
HANDED_OVER = START + """
def fill(p, stream):
    ok(cuda.cuMemsetD8Async(p, 7, 1 << 20, stream))     # the first line

def copy(q, p, stream):
    ok(cuda.cuMemcpyDtoDAsync(q, p, 1 << 20, stream))   # the second line

a, b, event = begin()
p, q = ok(cuda.cuMemAlloc(1 << 20)), ok(cuda.cuMemAlloc(1 << 20))
for _ in range(3):
    fill(p, a)
    wait(event, a, b)
    copy(q, p, b)
    if fixed or "both" not in sys.argv:
        ok(cuda.cuStreamSynchronize(b))
"""
FREED = START + """
a, b, event = begin()
p, q = ok(cuda.cuMemAllocAsync(1 << 20, a)), ok(cuda.cuMemAlloc(1 << 20))
ok(cuda.cuEventRecord(event, a))
ok(cuda.cuStreamWaitEvent(b, event, 0))
ok(cuda.cuMemcpyDtoDAsync(q, p, 1 << 20, b))            # the first line
wait(event, b, a)
ok(cuda.cuMemFreeAsync(p, a))                           # the second line
"""


@pytest.fixture
def check(tmp_path, clean_environment, xlogmem_check):
    def run(program, *arguments, options=(), command=None):
        file = tmp_path / "program.py"
        file.write_text(textwrap.dedent(program))
        return xlogmem_check("--json", tmp_path / "out.json", *options, "--",
                             *(command or [sys.executable, file, *arguments]))

    run.file = tmp_path / "program.py"
    run.words = lambda *words: subprocess.run([sys.executable, "-m", "xlogmem", "check", *words], capture_output=True,
                                              text=True, cwd=tmp_path, env=clean_environment, timeout=120)
    run.findings = lambda: json.loads((tmp_path / "out.json").read_text())["findings"]
    return run


def line_with(program, text):
    return next(number for number, line in enumerate(program.splitlines(), 1) if text in line)


@pytest.mark.parametrize(("program", "pair"), [(HANDED_OVER, "write/read"), (FREED, "read/free")])
def test_both_lines_and_what_repairs_it(check, program, pair):
    first, second = line_with(program, "# the first line"), line_with(program, "# the second line")
    run = check(program)
    assert run.returncode == 1, run.stderr
    assert f"CERTAIN {pair}" in run.stderr
    assert f"program.py:{first}" in run.stderr
    assert f"repair  before program.py:{second}, make stream" in run.stderr
    finding = check.findings()[0]
    assert (finding["pair"], finding["first"]["stack"][0]["line"], finding["second"]["stack"][0]["line"]) == (
        pair, first, second)
    assert finding["allocated"][0]["line"] == line_with(program, "cuMemAlloc")


@pytest.mark.parametrize("program", [HANDED_OVER, FREED])
def test_the_repaired_twin_is_clean(check, program):
    run = check(program, "fixed")
    assert run.returncode == 0, run.stderr
    assert "0 certain, 0 possible" in run.stderr
    assert check.findings() == []


def test_a_repair_in_one_line_of_a_loop_speaks_of_the_earlier_time(check):
    run = check(START + """
a, b, event = begin()
p = ok(cuda.cuMemAlloc(4096))
for stream in (a, b):
    ok(cuda.cuMemsetD8Async(p, 1, 64, stream))          # the fill
ok(cuda.cuCtxSynchronize())
""")
    assert run.returncode == 1
    assert re.search(r"repair  before (.*program.py:\d+), make stream 3 wait for an event recorded on stream 2 after "
                     r"\1 \(the earlier time\)\n", run.stderr), run.stderr


DESTROYED = START + """
a, b, event = begin()
p = ok(cuda.cuMemAlloc(4096))
if not fixed: ok(cuda.cuEventDestroy(event))            # the event's end
wait(event, a, b) if fixed else cuda.cuStreamWaitEvent(b, event, 0)    # the wait
if not fixed: ok(cuda.cuStreamDestroy(a))               # the stream's end
ok(cuda.cuMemsetD8Async(p, 1, 64, a)) if fixed else cuda.cuMemsetD8Async(p, 1, 64, a)      # the fill
ok(cuda.cuCtxSynchronize())
"""


def test_a_destroyed_handle_names_what_destroyed_it(check):
    run = check(DESTROYED)
    assert run.returncode == 1
    for kind, end, call, use in (("event", "cuEventDestroy", "cuStreamWaitEvent", "the wait"),
                                 ("stream", "cuStreamDestroy of stream 2 (made at ", "cuMemsetD8Async", "the fill")):
        text = run.stderr[run.stderr.index(f"CERTAIN dead-{kind}: the {kind} was destroyed before"):]
        text = text[:text.index("\n\n")]
        assert f":{line_with(DESTROYED, f'# the {kind}')}, in <module>: {end}" in text
        place = f"program.py:{line_with(DESTROYED, f'# {use}')}"
        assert f"{place}, in <module>: {call} with its handle" in text
        assert f"repair  destroy the {kind} after " in text
        assert text.endswith(f"{place}, or do not use it any more")
        assert "(read)" not in text
    assert check(DESTROYED, "fixed").returncode == 0


IDLE = START + """
a, b, event = begin()
other = ok(cuda.cuStreamCreate(1))
p, q = ok(cuda.cuMemAlloc(1 << 20)), ok(cuda.cuMemAlloc(1 << 20))
if "before" in sys.argv: ok(cuda.cuEventRecord(event, a))           # too early
ok(cuda.cuMemsetD8Async(p, 7, 1 << 20, a))                          # the fill
if "elsewhere" in sys.argv: ok(cuda.cuEventRecord(event, other))    # on another stream
if fixed: ok(cuda.cuEventRecord(event, a))
ok(cuda.cuStreamWaitEvent(b, event, 0))                             # the wait
ok(cuda.cuMemcpyDtoDAsync(q, p, 1 << 20, b))
"""


@pytest.mark.parametrize(("why", "which"), [
    ("never", "an event that was not recorded yet"),
    ("before", "an event that was recorded at {early}, before the first of the two"),
    ("elsewhere", "an event that was recorded at {there}, on stream 4"),
])
def test_a_wait_that_orders_nothing_is_named(check, why, which):
    run = check(IDLE, why)
    assert run.returncode == 1
    file = run.stderr[run.stderr.index("  first   ") + 10:].split("program.py")[0] + "program.py"
    which = which.format(early=f"{file}:{line_with(IDLE, '# too early')}",
                         there=f"{file}:{line_with(IDLE, '# on another stream')}")
    assert f"  wait    {file}:{line_with(IDLE, '# the wait')}, in <module>: stream 3 waits for {which}\n" in run.stderr
    assert [finding["wait"]["stack"][0]["line"] for finding in check.findings()] == [line_with(IDLE, "# the wait")]
    assert check(IDLE, "fixed").returncode == 0


def test_without_a_wait_none_is_named(check):
    assert "  wait    " not in check(HANDED_OVER).stderr
    assert [finding["wait"] for finding in check.findings()] == [None]


def test_a_library_with_a_runtime_of_its_own_is_named(check):
    """NVIDIA's runtime says that there is no such device."""
    source = "raise RuntimeError('radix_sort: cudaErrorInvalidDevice')"
    for file, name in (("cupy/cuda/cub.pyx", "cub.pyx"), ("/env/lib/cudf/core/series.py", "cudf")):
        run = check(f"{START}\nbegin()\nexec(compile({source!r}, {file!r}, 'exec'))")
        assert f"the program ended in {name}, which has NVIDIA's runtime built in" in run.stderr
    assert "built in" not in check(f"{START}\nbegin()\n{source}").stderr


def test_streams_that_were_made_at_one_place_get_different_words(check, tmp_path):
    """In the text, in JSON and in SARIF; streams of two places need no such word."""
    run = check(HANDED_OVER, options=["--sarif", str(tmp_path / "out.sarif")])
    texts = [f"on stream {number} (made {turn} at program.py:{line_with(HANDED_OVER, 'cuStreamCreate')})"
             for number, turn in ((2, "earlier"), (3, "later"))]
    result, = json.loads((tmp_path / "out.sarif").read_text())["runs"][0]["results"]
    finding, = check.findings()
    for text in texts:
        assert text in run.stderr
        assert text in result["message"]["text"]
        assert text in finding["text"]
    assert [finding[which]["stream"]["turn"] for which in ("first", "second")] == ["earlier", "later"]
    backwards = check(HANDED_OVER.replace("a, b, event = begin()", "b, a, event = begin()"))
    assert backwards.stderr.index("stream 3 (made later at") < backwards.stderr.index("stream 2 (made earlier at")
    apart = HANDED_OVER.replace("a, b, event = begin()", "a, b, event = begin()\nb = ok(cuda.cuStreamCreate(1))")
    assert len(re.findall(r"\(made at program.py:\d+\)", check(apart).stderr)) == 2


def test_a_pipe_gets_no_line_before_the_findings(check):
    assert check(HANDED_OVER).stderr.startswith("CERTAIN")


def test_the_same_two_places_are_one_finding(check):
    check(HANDED_OVER)
    assert [finding["count"] for finding in check.findings()] == [3]


PAIRED = START + """
def work(p, q):
    ok(cuda.cuMemsetD8Async(p, 7, 1 << 20, a))          # the first line
    wait(event, a, b)
    for copy in (cuda.cuMemcpyDtoDAsync, cuda.cuMemcpyAsync):
        ok(copy(q, p, 1 << 20, b))                      # the second line
    ok(cuda.cuCtxSynchronize())

a, b, event = begin()
q = ok(cuda.cuMemAlloc(1 << 20))
one = ok(cuda.cuMemAlloc(1 << 20))                      # the first allocation
two = ok(cuda.cuMemAlloc(2 << 20))                      # the second allocation
for p in one, two, two:
    work(p, q)
ok(cuda.cuMemsetD8Async(one, 7, 1 << 20, a))            # the third line
if fixed:
    ok(cuda.cuStreamSynchronize(a))
ok(cuda.cuMemFreeAsync(one, b))                         # the fourth line
"""


def test_findings_at_the_same_two_places_are_one_entry(check, tmp_path):
    """Other calls and other memory are lines of it, counted; JSON has each finding with the number of its entry, SARIF
    has a result for each entry."""
    run = check(PAIRED, options=["--sarif", str(tmp_path / "out.sarif")])
    assert run.returncode == 1
    entries = [entry for entry in run.stderr.split("\n\n") if entry.startswith("CERTAIN")]
    assert [entry.splitlines()[0].split(":")[0] for entry in entries] == ["CERTAIN write/read", "CERTAIN write/free"]
    lines, other = entries[0].splitlines(), "CERTAIN write/read: cuMemsetD8Async, then cuMemcpyAsync"
    first, second = (f"program.py:{line_with(PAIRED, f'# the {which} allocation')}" for which in ("first", "second"))
    assert "1.0 MiB at 0x" in next(line for line in lines if line.startswith("  memory"))
    assert [line.replace(str(tmp_path) + "/", "") for line in lines if line.startswith("  also")] == [
        f"  also    {other}, on 1.0 MiB, allocated at {first}", f"  also    2.0 MiB, allocated at {second}, 2 times",
        f"  also    {other}, on 2.0 MiB, allocated at {second}, 2 times"]
    assert lines[-1] == "  6 times, in memory of 2 allocations"
    assert "xlogmem check: 5 certain, 0 possible, at 2 places, on the simulated driver" in run.stderr
    assert [(finding["entry"], finding["count"]) for finding in check.findings()] == [
        (1, 1), (1, 1), (1, 2), (1, 2), (2, 1)]
    results = json.loads((tmp_path / "out.sarif").read_text())["runs"][0]["results"]
    assert [result["message"]["text"] for result in results] == entries
    assert check(PAIRED, "fixed").returncode == 0


def test_a_suppression_of_memory_leaves_other_memory_in(check, tmp_path):
    """... that the same two places work on."""
    (tmp_path / "known.toml").write_text(
        '[[suppress]]\nreason = "known"\nkind = "write/read"\nallocated = "*/other.py"\n')
    (tmp_path / "other.py").write_text("def allocated(cuda, nbytes): return cuda.cuMemAlloc(nbytes)[1]\n")
    program = PAIRED.replace("one = ok(cuda.cuMemAlloc(1 << 20))", "import other; one = other.allocated(cuda, 1 << 20)")
    run = check(program, options=["--suppress", "known.toml"])
    assert "xlogmem check: 3 certain, 0 possible, 2 suppressed, at 2 places" in run.stderr
    assert "other.py" not in run.stderr.split("CERTAIN write/free")[0]


def test_a_program_that_fails_has_a_status_of_its_own(check):
    run = check("import sys; sys.exit(7)")
    assert run.returncode == 3
    assert "status 7" in run.stderr
    assert check(HANDED_OVER + "\nsys.exit(7)").returncode == 1            # findings are the better news


@pytest.mark.parametrize(("end", "how", "status"), [
    ("raise KeyError('x')", "ended early, with KeyError at program.py:{line}", 1),
    ("import json; json.loads('{')", "ended early, with JSONDecodeError at program.py:{line}", 1),
    ("import xlogmem; xlogmem.use(1, reed=2)", "ended early, with TypeError at program.py:{line}", 1),
    ("raise SystemExit(7)", "ended with status 7", 7),
    ("os.kill(os.getpid(), 11)", "was ended by SIGSEGV", -11),
    ("os.kill(os.getpid(), 40)", "was ended by signal 40", -40),
])
def test_the_last_line_says_first_that_the_program_ended_early(check, end, how, status):
    """... so that what was not checked is not taken for right."""
    program = (f"import os\n{START}begin()\ndef step():\n    try:\n        raise OSError\n    except OSError:\n"
               f"        {end}\nstep()\n")
    run = check(program)
    how = how.format(line=line_with(program, end))
    assert run.returncode == 3
    assert run.stderr.splitlines()[-1] == (
        f"xlogmem check: the program {how}: what it left out was not checked.  Found so far: 0 certain, 0 possible, on "
        "the simulated driver")
    document = json.loads((check.file.parent / "out.json").read_text())
    assert (document["status"], document["ended_early"]) == (status, how)


def test_a_child_that_ended_early_is_named(check):
    run = check("import subprocess, sys\nopen('child.py', 'w').write('from cuda.bindings import driver as cuda\\n"
                "cuda.cuInit(0)\\n1 / 0')\nsubprocess.run([sys.executable, 'child.py'])\n")
    assert run.returncode == 0
    assert re.search(r"process \d+ ended early, with ZeroDivisionError at child.py:3: what it left out was not "
                     r"checked\n", run.stderr), run.stderr


def test_the_error_of_a_failed_test_has_not_ended_the_runner(check):
    (check.file.parent / "test_one.py").write_text("def test_one():\n    assert 0\n")
    run = check.words("--no-gpu", "--allow-none", "-m", "pytest", "-q", "test_one.py")
    assert "the program ended with status 1: what it left out was not checked." in run.stderr


def test_what_is_not_a_program(check):
    run = check("", command=["no-such-program-here"])
    assert run.returncode == 2
    assert "no-such-program-here" in run.stderr
    assert "is neither a program nor a Python file" in run.stderr
    run = check("", command=["there-is-none.py"])
    assert run.returncode == 2
    assert "'there-is-none.py': there is no such file in /" in run.stderr
    run = check("", command=["true"])
    assert run.returncode == 3
    assert "nothing was checked: no process made a call of the driver" in run.stderr


@pytest.mark.parametrize("words", [["program.py", "x"], ["-m", "program", "x"], ["-mprogram", "x"]])
def test_a_python_file_or_module_is_run_with_this_python(check, words):
    check.file.write_text(HANDED_OVER + "print(sys.executable, sys.argv[1:])")
    run = check.words(*words)
    assert run.stdout == f"{sys.executable} ['x']\n"
    assert run.returncode == 1, run.stderr


@pytest.mark.parametrize(("words", "message"), [
    (["--jsn", "out.json", "program.py"], "No such option '--jsn'. Did you mean '--json'?"),
    (["--pssible", "program.py"], "No such option '--pssible'. Did you mean '--possible'?"),
    (["--output", "out.json", "program.py"], "No such option '--output'. The options are --gpu, --no-gpu, "),
    (["--no-gp", "program.py"], "No such option '--no-gp'. Did you mean '--no-gpu'?"),
    (["--json=a.json", "-x", "program.py"], "No such option '-x'. The options are --gpu, --no-gpu, --pools, --json, "),
])
def test_an_option_that_is_mistyped_is_no_program(check, words, message):
    check.file.write_text(HANDED_OVER)
    run = check.words(*words)
    assert run.returncode == 2
    assert message in run.stderr


@pytest.mark.parametrize(("words", "named"), [
    (["program.py", "--json", "x"], "--json was given to program.py"),
    (["program.py", "--json=x", "--no-gpu", "y"], "--json and --no-gpu were given to program.py"),
    (["-mprogram", "--strict"], "--strict was given to -mprogram"),
    (["program.py", "--jsn", "x", "strict", "-x", "--help"], None),
    (["--", "program.py", "--json", "x"], None),
    (["--allow-none", "--", "program.py", "--", "--strict"], None),
    (["--strict", "program.py"], None),
])
@pytest.mark.parametrize("command", ["check", "top"])
def test_an_option_behind_the_program_is_the_programs_and_named(check, clean_environment, command, words, named):
    """A line says so, unless `--` is there: the program may know such an option itself."""
    check.file.write_text("import sys; print(len(sys.argv))")
    if command == "top":
        words = [word for word in words if word not in ("--strict", "--no-gpu", "--allow-none")]
        named = named and named.replace(" and --no-gpu were", " was")
        named = None if named and "strict" in named else named
    run = subprocess.run([sys.executable, "-m", "xlogmem", command, *words], capture_output=True, text=True,
                         cwd=check.file.parent, env=clean_environment, timeout=120)
    assert run.returncode in (0, 3), run.stderr
    lines = [line for line in run.stderr.splitlines() if "given to" in line]
    assert [line.startswith(f"xlogmem {command}: {named}, not to xlogmem {command}: options of the command stand "
                            "before the program") for line in lines] == ([True] if named else []), run.stderr


def test_output_and_arguments_are_the_programs(check):
    run = check("import sys; print(sys.argv[1:])", "--strict", "-x")
    assert run.stdout == "['--strict', '-x']\n"


def test_children_are_checked_too(check):
    run = check("import subprocess, sys\n"
                f"open('child.py', 'w').write({HANDED_OVER!r})\n"
                "for _ in range(2): subprocess.run([sys.executable, 'child.py'], check=True)\n")
    assert run.returncode == 1, run.stderr
    assert [(finding["count"], len(finding["processes"])) for finding in check.findings()] == [(6, 2)]


def test_the_end_of_the_interpreter_is_no_finding(check):
    run = check(START + """
a, b, event = begin()
p, q = ok(cuda.cuMemAllocAsync(1 << 20, a)), ok(cuda.cuMemAlloc(1 << 20))
ok(cuda.cuEventRecord(event, a))
ok(cuda.cuStreamWaitEvent(b, event, 0))
ok(cuda.cuMemcpyDtoDAsync(q, p, 1 << 20, b))

class Kept:
    def __del__(self, free=cuda.cuMemFreeAsync):
        free(p, a)

kept = Kept()
""")
    assert run.returncode == 0, run.stderr


def test_another_sitecustomize_is_run(check, tmp_path, clean_environment):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/sitecustomize.py").write_text("print('the other one')")
    clean_environment["PYTHONPATH"] = f"{clean_environment.get('PYTHONPATH', '')}:{tmp_path / 'other'}"
    run = check(HANDED_OVER)
    assert run.returncode == 1
    assert run.stdout == "the other one\n" * 2          # of the command itself, and of the program


def test_suppressions(check, tmp_path):
    file = tmp_path / "known.toml"
    file.write_text('[[suppress]]\nreason = "known"\nkind = "write/*"\nfile = "*program.py"\nfunction = "fill"\n'
                    '[[suppress]]\nreason = "never"\noperation = "cuLaunchKernel"\n')
    run = check(HANDED_OVER, options=["--suppress", str(file)])
    assert run.returncode == 0, run.stderr
    assert "0 certain, 0 possible, 1 suppressed" in run.stderr
    assert "nothing fits the suppression" in run.stderr
    assert "never" in run.stderr


@pytest.mark.parametrize(("pattern", "left"), [("*program.py", 0), ("*/elsewhere.py", 1)])
def test_a_suppression_by_where_the_memory_was_allocated(check, tmp_path, pattern, left):
    file = tmp_path / "known.toml"
    file.write_text(f'[[suppress]]\nreason = "known"\nkind = "read/free"\nallocated = "{pattern}"\n')
    run = check(FREED, options=["--suppress", str(file)])
    assert (run.returncode, len(check.findings())) == (left, left), run.stderr


@pytest.mark.parametrize(("text", "message"), [
    ("[[suppress]]\nkind = 'x'\n", "a reason is required"),
    ("[[suppress]]\nreason = 'r'\n", "a pattern for one of"),
    ("[[suppress]]\nreason = 'r'\nkernel = 'x'\n", "unknown keys"),
    ("[[allow]]\nreason = 'r'\n", "expected"),
    ("[[suppress", "known.toml"),
    ("[[suppress]]\nreason = 'r'\nkind = 3\n", "entry 1: kind has to be a text, not 3"),
    ("[[suppress]]\nreason = 'r\udcff'\nkind = 'x'\n", "known.toml: TOML is UTF-8, and byte 24 of it is not"),
])
def test_a_file_that_is_no_list_of_suppressions(check, tmp_path, text, message):
    (tmp_path / "known.toml").write_bytes(text.encode(errors="surrogateescape"))
    run = check(HANDED_OVER, options=["--suppress", str(tmp_path / "known.toml")])
    assert run.returncode == 2
    assert message in run.stderr


def test_a_list_of_suppressions_may_begin_with_a_byte_order_mark(check, tmp_path):
    file = tmp_path / "known.toml"
    file.write_text('\ufeff[[suppress]]\nreason = "known"\nkind = "write/*"\n', encoding="utf-8")
    assert check(HANDED_OVER, options=["--suppress", str(file)]).returncode == 0


@pytest.mark.parametrize("option", ["--sarif", "--record"])
def test_findings_outlive_a_file_that_cannot_be_written(check, option):
    """The disk is full; and a program that is right has a status that says that something is missing."""
    run = check(HANDED_OVER, options=[option, "/dev/full"])
    assert run.returncode == 1
    assert "CERTAIN write/read" in run.stderr
    assert "xlogmem check: /dev/full could not be written: No space left on device" in run.stderr
    run = check(START + "begin()", options=[option, "/dev/full"])
    assert run.returncode == 2
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(("options", "message"), [
    (["--sarif", "out.txt", "--record", "./out.txt"], "--sarif and --record name the same file, ./out.txt"),
    (["--sarif", "program.py"], "--sarif program.py is a part of the command, and would be overwritten"),
    (["--record", "nowhere/out.txt"], "--record nowhere/out.txt cannot be written: there is no such folder"),
])
def test_files_that_are_refused_before_the_program_runs(check, options, message):
    run = check("print('it runs')", options=options)
    assert run.returncode == 2
    assert message in " ".join(run.stderr.split())
    assert "it runs" not in run.stdout


def test_sarif(check, tmp_path):
    check(HANDED_OVER, options=["--sarif", str(tmp_path / "out.sarif")])
    document = json.loads((tmp_path / "out.sarif").read_text())
    result, = document["runs"][0]["results"]
    assert document["version"] == "2.1.0"
    tool = document["runs"][0]["tool"]["driver"]
    assert tool["rules"] == [{"id": "write/read", "shortDescription": {
        "text": "the read may see what was there before the write"}}]
    assert tool["version"] == xlogmem.__version__
    assert (result["ruleId"], result["level"]) == ("write/read", "error")
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == line_with(HANDED_OVER, "# the second")


def test_json_has_what_the_report_says(check, tmp_path):
    run = check(HANDED_OVER, options=["--json", str(tmp_path / "out.json")])
    document = json.loads((tmp_path / "out.json").read_text())
    finding, = document["findings"]
    assert (document["format"], document["driver"]) == (1, "the simulated driver")
    assert finding["text"] in run.stderr
    assert f"  repair  {finding['repair']}\n" in run.stderr


@pytest.mark.parametrize("plain", ["", "1"])
def test_a_terminal_gets_colours(tmp_path, plain):
    """Unless NO_COLOR is set."""
    (tmp_path / "program.py").write_text(HANDED_OVER)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "xlogmem", "check", "--no-gpu", str(tmp_path / "program.py")]
    with subprocess.Popen(command, stderr=theirs, env=variables(NO_COLOR=plain)) as process:
        os.close(theirs)
        text = b""
        with suppress(OSError):                                 # the end of a terminal
            while part := os.read(ours, 4096):
                text += part
    os.close(ours)
    assert process.returncode == 1
    assert (b"\x1b[31m\x1b[1mCERTAIN" in text) == (not plain)
    assert (b"\x1b[32m\x1b[1m  repair" in text) == (not plain)
    assert (b"\x1b" in text) == (not plain)
    words = b"xlogmem check: " + str(tmp_path / "program.py").encode() + b" runs on the simulated driver; the findings"
    assert b" ".join(text.split()).startswith(words)             # before the program writes anything there


def test_a_program_of_xlogmem(check):
    program = """
import sys
import xlogmem
from cuda.bindings import driver as cuda

runtime = xlogmem.DeviceRuntime()
a, b = runtime.acquire_stream(), runtime.acquire_stream()
block, other = runtime.allocate(1024, a), runtime.allocate(1024, b)

def use(stream, **uses):
    from contextlib import nullcontext
    return xlogmem.use(stream, **uses) if "fixed" in sys.argv else nullcontext()

with use(a, write=block):
    cuda.cuMemsetD8Async(block.ptr, 7, 1024, a.handle)
with use(b, read=block, write=other):
    cuda.cuMemcpyDtoDAsync(other.ptr, block.ptr, 1024, b.handle)
"""
    run = check(program)
    assert run.returncode == 1, run.stderr
    assert "write/read" in run.stderr
    run = check(program, "fixed")
    assert run.returncode == 0, run.stderr


REPLAYED = START + """
a, b, event = begin()
p, q = ok(cuda.cuMemAlloc(64)), ok(cuda.cuMemAlloc(64))
ok(cuda.cuStreamBeginCapture(a, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
ok(cuda.cuMemcpyDtoDAsync(q, p, 64, a))                 # captured
graph = ok(cuda.cuGraphInstantiate(ok(cuda.cuStreamEndCapture(a)), 0))
for _ in range(3):
    ok(cuda.cuMemsetD8Async(p, 7, 64, b))               # the fill
    ok(cuda.cuEventRecord(event, b)); ok(cuda.cuStreamWaitEvent(a, event, 0))
    ok(cuda.cuGraphLaunch(graph, a))                    # launched
    wait(event, a, b)
ok(cuda.cuCtxSynchronize())
"""


def test_work_of_a_graph_is_named_by_its_launch_and_its_capture(check):
    """The repair names the launch: an event that is recorded during the capture does not wait for it."""
    run = check(REPLAYED, options=["--sarif", "out.sarif"])
    launch, capture, fill = (line_with(REPLAYED, f"# {what}") for what in ("launched", "captured", "the fill"))
    first = check.findings()[0]["first"]
    assert (first["stack"][0]["line"], first["captured"][0]["line"]) == (launch, capture), run.stderr
    assert f"program.py:{launch}, in <module>: cuMemcpyDtoDAsync (read) on stream 2" in run.stderr
    assert f"program.py:{capture}, in <module>: captured there" in run.stderr
    assert (f"before program.py:{fill}, make stream 3 wait for an event recorded on stream 2 after program.py:{launch}"
            in run.stderr)
    result, = json.loads((check.file.parent / "out.sarif").read_text())["runs"][0]["results"]
    lines = {place["message"]["text"]: place["physicalLocation"]["region"]["startLine"]
             for place in result["relatedLocations"]}
    assert lines == {"first": launch, "first, captured": capture}
    assert check(REPLAYED, "fixed").returncode == 0     # which follows the advice
