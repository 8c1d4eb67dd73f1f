"""Texts that programs and files choose (tags, names of files, functions and kernels, lines of source, reasons) command
neither a terminal nor a CI service, wherever they are printed."""
from __future__ import annotations

import ast
import logging
import os
import subprocess
import sys
from dataclasses import asdict

import pytest
from c_table import ENVIRONMENT
from children import variables
from places import ROOT
from rich.console import Console
from xlogmem_bench.replay import console as replays
from xlogmem_bench.replay.measure import Row

import xlogmem
from xlogmem import AsyncMemoryResource, DeviceRuntime, OutOfDeviceMemoryError, resources
from xlogmem._base.texts import printable
from xlogmem.check import audit, report
from xlogmem.check.findings import Access, Finding, Stream
from xlogmem.check.frames import Frame
from xlogmem.errors import OutOfBudgetError, UseAfterFreeError
from xlogmem.observe.history import lines, recording
from xlogmem.observe.live.figures import ProcessFigures, figures_of
from xlogmem.observe.live.pictures import picture
from xlogmem.observe.live.watching import JsonLines
from xlogmem.observe.statistics import ProfilerRecords

HOSTILE = "x\n##[error]forged\r::error::forged\n::warning::forged \x1b]0;owned\x07\x1b[2J\u202e ##vso[task] \x9b2J"
PROGRAM = f"""
import xlogmem, xlogmem.check
from cuda.bindings import driver as cuda
name = {HOSTILE!r}
rt = xlogmem.get_runtime()
a, b = rt.acquire_stream(), rt.acquire_stream()
x = rt.allocate(4096, a, tag=name)
rt.synchronize()
cuda.cuMemsetD8Async(x.ptr, 1, 4096, a.handle)
code = compile("def f():\\n  cuda.cuMemsetD8Async(x.ptr, 2, 4096, b.handle)\\n", name + ".py", "exec")
exec(code, globals())
f.__code__ = f.__code__.replace(co_name="f", co_qualname=name)
f()
with xlogmem.check.ignore(name):
    pass
"""


def commands_in(text: str) -> list[str]:
    """The lines of a text that a terminal or a CI service would obey."""
    return [line for line in text.split("\n")
            if not line.isprintable() or "##[" in line or "##vso[" in line or line.lstrip().startswith("::")]


def is_shown(text: str) -> bool:
    """True if the hostile text is there, and harmless."""
    assert not commands_in(text), commands_in(text)
    return "forged" in text


def test_what_is_changed():
    assert printable("cuMemcpyAsync (read) on stream 3 ## µ… a::b") == "cuMemcpyAsync (read) on stream 3 ## µ… a::b"
    assert printable("a\nb\x1b[2J\ud800") == r"a\nb\x1b[2J\ud800"
    assert printable("a ##[error]b ##vso[c") == r"a #\x23[error]b #\x23vso[c"
    assert printable("  ::error::b") == r"  \x3a:error::b"
    assert commands_in(HOSTILE) == HOSTILE.split("\n")[1:]          # the twin


# ---------------------------------------------------------------------------------------------- the check
@pytest.mark.simulator
def test_a_check(tmp_path, clean_environment):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "known.toml").write_text("[[suppress]]\nreason = " + _toml(HOSTILE) + "\nfile = " + _toml(HOSTILE))
    run = subprocess.run([sys.executable, "-m", "xlogmem", "check", "--no-gpu", "--suppress", "known.toml", "--sarif",
                          "out.sarif", "--", sys.executable, "program.py"], capture_output=True, text=True,
                         cwd=tmp_path, env=clean_environment | {"XLOGMEM_AUDIT": "1"}, timeout=120)
    assert "CERTAIN write/write" in run.stderr
    assert "AUDIT outside" in run.stderr
    assert run.stderr.count("forged") >= 12             # file, function, tag, twice and more; reasons and patterns
    assert is_shown(run.stderr)
    assert not commands_in((tmp_path / "out.sarif").read_text())


def _toml(text: str) -> str:
    return '"' + "".join(f"\\u{ord(letter):04x}" for letter in text) + '"'


def a_finding() -> Finding:
    """A finding, all of whose texts are hostile."""
    frame = Frame(HOSTILE, 1, HOSTILE)
    accesses = [Access(HOSTILE, role, Stream(2, "made", (frame,), HOSTILE), (frame,)) for role in ("write", "read")]
    return Finding("race", "write/read", True, *accesses, 0, 8, 0, 8, 1, HOSTILE, False, (frame,), (frame,))


def test_a_report():
    assert is_shown(report.as_text(a_finding()))
    assert is_shown(report.as_sarif([a_finding()])["runs"][0]["results"][0]["message"]["text"])


@pytest.mark.parametrize("kind", ["written", "outside", "elsewhere"])
def test_an_audit(kind):
    place = asdict(Frame(HOSTILE, 1, HOSTILE))
    assert is_shown(audit.as_text({"kind": kind, "place": place, "declared": place, "name": HOSTILE, "stream": HOSTILE,
                                   "named": HOSTILE, "tag": HOSTILE, "bytes": 1, "count": 1}))


@pytest.mark.simulator
def test_the_plugin_for_pytest(tmp_path, clean_environment):
    body = PROGRAM.replace("\n", "\n    ").replace("globals())", "globals() | locals(), there := {})").replace(
        "\n    f.__code__", "\n    f = there['f']\n    f.__code__")
    (tmp_path / "test_program.py").write_text(f"def test_it():{body}")
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "xlogmem.check", "-p", "no:cacheprovider",
                          "--tb=short", "-o", "addopts="], capture_output=True, text=True, cwd=tmp_path,
                         env=clean_environment, timeout=120)
    assert "CERTAIN write/write" in run.stdout
    assert "nothing to ignore" in run.stdout
    assert is_shown(run.stdout)


def test_a_python_without_xlogmem(tmp_path):
    code = f"import sys; sys.executable = {HOSTILE!r}; sys.modules['xlogmem'] = None; import sitecustomize"
    run = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=60,
                         env=os.environ | {"XLOGMEM_CHECK": str(tmp_path),
                                           "PYTHONPATH": str(ROOT / "xlogmem/check/inject")})
    assert "is not checked" in run.stderr
    assert is_shown(run.stderr)


@pytest.mark.simulator
def test_a_line_of_the_simulated_driver():
    program = "import ctypes; from xlogmem import sim; ctypes.CDLL(sim.library_path()).cuInit(0)"
    settings = ENVIRONMENT | {"XLOGMEM_SIM": f"{HOSTILE}=1", "XLOGMEM_SIMULATE": "0"}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=variables() | settings,
                         timeout=60)
    assert "[xlogmem.sim]" in run.stderr
    assert not [line for line in commands_in(run.stderr) if "[xlogmem.sim]" in line]
    assert "forged" in next(line for line in run.stderr.split("\n") if "[xlogmem.sim]" in line)


# ---------------------------------------------------------------------------------------------- what shows memory
def test_snapshots_top_and_reasons(four, capsys):
    runtime = four().runtime
    function = compile("def allocate(runtime, tag): return runtime.allocate(4096, tag=tag)", HOSTILE, "exec")
    names: dict = {}
    exec(function, names)
    with xlogmem.record_history(stacks="all") as recorded:
        block = names["allocate"](runtime, HOSTILE)
        assert is_shown(str(runtime.snapshot()))
        assert is_shown("\n".join(xlogmem.observe.history.why(block)))
        assert is_shown(lines.describe(recorded.events(), 0))
        process = ProcessFigures(1, HOSTILE, 0.0, (figures_of(runtime),))
        console = Console(width=4000)
        with console.capture() as captured:
            console.print(picture(process, None))
        assert is_shown(captured.get())
        JsonLines().show([process])
        assert is_shown(capsys.readouterr().out)
        with pytest.raises(OutOfDeviceMemoryError) as shortage:
            runtime.allocate(1 << 60)
        assert is_shown(str(shortage.value))
        block.free()
        with pytest.raises(UseAfterFreeError) as stale:
            block.free()
        assert is_shown(str(stale.value))
    scope = xlogmem.scope(HOSTILE)
    assert is_shown(repr(scope))


def test_adaptors(four):
    tracking = resources.TrackingResourceAdaptor(AsyncMemoryResource(0))
    statistics = resources.StatisticsResourceAdaptor(tracking)
    limiting = resources.LimitingResourceAdaptor(statistics, 1 << 20)
    runtime = DeviceRuntime(0, resource=limiting)
    block = runtime.allocate(4096, tag=HOSTILE)
    for adaptor in (tracking, statistics, limiting):
        assert is_shown(adaptor.memory_summary()), adaptor
    assert is_shown(tracking.outstanding_text())
    with pytest.raises(OutOfBudgetError) as refused:
        runtime.allocate(2 << 20)
    assert is_shown(str(refused.value))
    block.free()


def test_violations_profiles_and_logs(caplog):
    found = resources.GuardViolation("overflow", HOSTILE, 1, 8, 0, 1, 8, 1, None, None, None)
    assert is_shown(str(found))
    records = ProfilerRecords()
    records._records[HOSTILE] = ProfilerRecords.MemoryRecord(1, 1, 1)
    assert is_shown(records.report())
    with caplog.at_level(logging.DEBUG, "xlogmem"):
        recording._warn(HOSTILE)
    assert is_shown(caplog.messages[0])


# ---------------------------------------------------------------------------------------------- commands on files
@pytest.mark.parametrize("arguments", [("trace",), ("replay", "--no-least")])
def test_a_file(arguments, tmp_path):
    file = tmp_path / HOSTILE.replace("/", "")
    file.write_text("no such thing")
    run = subprocess.run([sys.executable, "-m", "xlogmem", *arguments, str(file)], capture_output=True, text=True,
                         env=os.environ | ENVIRONMENT, timeout=100)
    assert run.returncode == 1
    assert is_shown(run.stderr[run.stderr.index("Error"):])


def test_replays(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "4000")
    replays.show([Row(HOSTILE, "pool", 1, 1, 1, 1.0, 0, 1, 1)])
    assert is_shown(capsys.readouterr().out)


# ---------------------------------------------------------------------------------------------- no place is left out
PRINTING = {"echo", "print", "write_line", "warning", "error", "debug", "info", "log", "warn", "ClickException",
            "UsageError"}
SHOWS = {"printable", "shown", "json_line", "counted"}
OWN = {                                     # what is printed as it is, because
    "counts of xlogmem's own": {"format_bytes(nbytes)", "events.dropped", "pid", "peer.pid", "peer.uid",
                                "so_far", "len(numbers)", "numbers[0]", "numbers[-1]",
                                "min(int(history.facts['count']), self._max_events)"},
    "sentences of xlogmem's own": {"NEXT", "context.get_help()", "were", "'was' if len(records) == 1 else 'were'"},
    "names of xlogmem's own": {"name", "self.name", "kind", "' and '.join(found)", "rmm.__version__"},
    "categories of warnings": {"RuntimeWarning", "UntestedReleaseWarning", "category"},
    "releases that xlogmem names": {"tested"},
    "warnings of compiled modules, which the next test lists": {"message"},
    "JSON that has figures alone": {"json.dumps(facts)", "json.dumps(figures(pipeline, without, protected))"},
    "lines that pass it one by one": {"leaks_as_text(records)", "'\\n'.join([*lines, ''])",
                                      "'\\n\\n'.join(audit.as_texts(omissions))",
                                      "self._drawn(processes)", "reason"},
    "tables of xlogmem's own figures": {"table", "table_of(events)", "table_of(pipeline, without, protected)"},
    "lines of the program itself": {"Text.from_ansi(line.decode(errors='replace').rstrip('\\r\\n'))"},
    "JSON and CSV of a log, for other programs": {"line"},
    "a Python that cannot import xlogmem": {"text.replace('##', '#\\\\x23')"},
}


def unshown(node: ast.AST) -> list[str]:
    """The values in an argument that are printed as they are."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in SHOWS:
        return []
    if isinstance(node, ast.Constant):
        return []
    if isinstance(node, ast.JoinedStr | ast.BinOp | ast.FormattedValue):
        parts = [value for value in ast.iter_child_nodes(node) if not isinstance(value, ast.operator)]
        return [found for part in parts for found in unshown(part)]
    return [ast.unparse(node)]


def unshown_in(text: str) -> list[str]:
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)
             and getattr(node.func, "attr", getattr(node.func, "id", "")) in PRINTING]
    return [value for call in calls for argument in call.args for value in unshown(argument)]


def test_every_place_that_prints():
    files = [file for file in (ROOT / "xlogmem").rglob("*.py") if "page" not in file.parts]
    found = {value: file for file in files for value in unshown_in(file.read_text())}
    known = set().union(*OWN.values())
    assert not {value: file for value, file in found.items() if value not in known}
    assert not known - found.keys(), "nothing prints these any more"


def test_every_place_that_logs_in_compiled_modules():
    """`ast` does not read these: the messages are listed."""
    found = {line.strip()[:50] for suffix in ("pyx", "pxi") for file in (ROOT / "xlogmem").rglob(f"*.{suffix}")
             for line in file.read_text().splitlines()
             if ("logger()." in line or "warn(str(" in line) and "printable" not in line}
    assert found == {
        'logger().error("the sink of a log of allocations f',           # the exception, by repr
        'logger().log(level, "Outstanding Allocations:\\n%s"',           # lines that passed it one by one
        'logger().error("%s", violation)',
        'warn(str(violation), MemoryGuardWarning)',
        'logger().error("reporting a violation failed:\\n%s"',           # a traceback of Python's
        'logger().error("and %d more", left_out)'}


def test_the_twin():
    assert unshown_in('print(f"{a} {printable(b)}" + c, 1)') == ["a", "c"]
