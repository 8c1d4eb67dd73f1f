"""examples/cluster: what leaves the process is a use.  Each program is right, and wrong without its uses.

On the simulated driver UCXX itself sends, where it is installed, and stand-ins for the libraries do everywhere.  Both
read the memory when they get to it, on the host, after nothing that is queued on a stream.
"""
from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import HELPERS, ROOT

import xlogmem
from xlogmem import sim

FOLDER = ROOT / "examples/cluster"
POLICIES = ("eager", "max", "seeded")
# Of an odd number of rounds each receiver that is late has a next launch to wait for, however long that takes.
ROUNDS = ("--rounds", "15", "--mib", "0.0625", "--json")
PROGRAMS = [("ucxx_send", "--api", "blocking"), ("ucxx_send", "--api", "async"), ("rapidsmpf_shuffle",)]
KINDS = [pytest.param("stand-ins", id="stand-ins"),
         pytest.param("ucxx", id="ucxx", marks=pytest.mark.skipif(importlib.util.find_spec("ucxx") is None,
                                                                  reason="needs UCXX"))]
TRIED = [pytest.param(kind.values[0], program, marks=kind.marks, id=f"{kind.id}-{program[-1]}")
         for kind in KINDS for program in PROGRAMS if kind.id != "ucxx" or program[0] == "ucxx_send"]


def environment(*, policy: str = "eager", **more: str) -> dict[str, str]:
    """As people run the examples, with the xlogmem that is under test."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith("XLOGMEM_") and name != "PYTHONSAFEPATH"}
    path = os.pathsep.join(filter(None, [str(Path(xlogmem.__file__).parents[1]), kept.get("PYTHONPATH")]))
    return kept | {"PYTHONPATH": path, "UCX_LOG_LEVEL": "error"} | sim.settings(
        {}, quiet=True, policy=policy, seed=7) | more


def run(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=110,
                          env=environment(**more))


def wrong(kind: str, program: tuple[str, ...], *arguments: str, policy: str, folder: Path = FOLDER) -> dict[str, int]:
    """The wrong rounds."""
    name, *own = program
    done = run(str(HELPERS / "cluster_on_simulator.py"), kind, str(folder / f"{name}.py"), *own, *ROUNDS, *arguments,
               policy=policy, XLOGMEM_SIMULATE="1")
    assert done.returncode in (0, 3), done.stderr
    result = json.loads(done.stdout)
    assert done.returncode == (3 if result["wrong"] else 0)
    assert result["wrong"] == result["too_early"] + result["too_late"]
    return {kind: result[kind] for kind in ("too_early", "too_late")}


@pytest.mark.simulator
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("kind", "program"), TRIED)
def test_right_with_the_uses(kind, program, policy):
    assert wrong(kind, program, policy=policy) == {"too_early": 0, "too_late": 0}


LATE = {"ucxx_send": ("--late", "60"), "rapidsmpf_shuffle": ()}         # the launch that is waited for comes


@pytest.mark.simulator
@pytest.mark.parametrize(("kind", "program"), TRIED)
def test_wrong_without_them(kind, program):
    late = LATE[program[0]]
    assert wrong(kind, program, "--without", *late, policy="max")["too_early"]
    if program[0] == "ucxx_send":                       # at once, so that only what comes later can be wrong
        assert wrong(kind, program, "--without", *late, policy="eager")["too_late"] >= 7


def edited(folder: Path, file: str, *edits: tuple[str, str]) -> Path:
    """A copy of the examples with other text."""
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = (folder / file).read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (folder / file).write_text(text)
    return folder


@pytest.mark.simulator
@pytest.mark.parametrize(("kind", "program"), [it for it in TRIED if it.values[1][0] == "ucxx_send"])
def test_a_window_alone_does_not_wait_for_what_was_queued(kind, program, tmp_path):
    folder = edited(tmp_path / "copy", "on_host.py", ("        stream.synchronize()", "        pass"),
                    ("await asyncio.to_thread(stream.synchronize)", "pass"))
    assert wrong(kind, program, policy="max", folder=folder)["too_early"]


@pytest.mark.simulator
@pytest.mark.parametrize(("kind", "program"), [it for it in TRIED if it.values[1][0] == "ucxx_send"])
def test_a_launch_that_waits_for_no_window_writes_what_is_being_sent(kind, program, tmp_path):
    folder = edited(tmp_path / "copy", "ucxx_send.py", ("self.producer, write=self.source)",
                                                        'self.producer, write=self.source, on_conflict="count")'))
    assert wrong(kind, program, *LATE["ucxx_send"], policy="eager", folder=folder)["too_late"] >= 7


@pytest.mark.simulator
@pytest.mark.parametrize("left_out", ["self.producer, write=self.source", "self.packer, read=self.source, write=packed",
                                      "stream, read_write=packed"])
def test_the_shuffler_needs_each_of_its_uses(left_out, tmp_path):
    folder = edited(tmp_path / "copy", "rapidsmpf_shuffle.py",
                    (f"with self.use({left_out}):", "with contextlib.nullcontext():"))
    assert any(sum(wrong("stand-ins", PROGRAMS[2], policy=policy, folder=folder).values())
               for policy in ("max", "min", "seeded"))


@pytest.mark.parametrize("program", ["ucxx_send", "rapidsmpf_shuffle"])
def test_help_needs_no_library(program):
    done = run(str(FOLDER / f"{program}.py"), "--help")
    assert done.returncode == 0, done.stderr
    assert "--without" in done.stdout


@pytest.mark.parametrize(("program", "library"), [("ucxx_send", "ucxx"), ("rapidsmpf_shuffle", "rapidsmpf"),
                                                  ("rapidsmpf_shuffle", "rmm")])
def test_a_missing_library_is_named(program, library, tmp_path):
    for name in ("rmm", "rmm.mr"):                      # found, if it is not the one that is missing
        (tmp_path / name.replace(".", "/")).mkdir()
        (tmp_path / name.replace(".", "/") / "__init__.py").touch()
    (tmp_path / library).mkdir(exist_ok=True)
    (tmp_path / library / "__init__.py").write_text(f"raise ModuleNotFoundError('missing', name={library!r})\n")
    done = run(str(FOLDER / f"{program}.py"), "--rounds", "1", "--mib", "0.01",
               PYTHONPATH=os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]]))
    assert done.returncode == 1
    said = done.stderr.strip().splitlines()[-1]
    assert said == f"this example needs {library}: pip install {library}-cu13, or {library}-cu12"


# ---------------------------------------------------------------------------------------------- the benchmark
BENCHMARK = ROOT / "benchmarks/cudf_polars_queries.py"


def test_the_benchmark_names_all_that_is_missing(tmp_path):
    """`-I` finds no other folder than the interpreter's, so the libraries are hidden by a finder."""
    hidden = tmp_path / "hidden.py"
    hidden.write_text("import importlib.util, runpy, sys\nfound = importlib.util.find_spec\n"
                      "importlib.util.find_spec = lambda name, *rest: None if name in ('polars', 'cudf_polars', "
                      "'rapidsmpf', 'rmm') else found(name, *rest)\nsys.argv = sys.argv[1:]\n"
                      "runpy.run_path(sys.argv[0], run_name='__main__')\n")
    assert run(str(BENCHMARK), "--help").returncode == 0
    done = run(str(hidden), str(BENCHMARK))
    assert (done.returncode, done.stderr.strip()) == (
        1, "not installed, but needed: polars, cudf-polars-cu13 (or cudf-polars-cu12), rapidsmpf-cu13, rmm-cu13")


@pytest.mark.skipif(importlib.util.find_spec("polars") is None, reason="needs Polars")
def test_the_queries_have_rows():
    done = run(str(BENCHMARK), "--dry-run")
    assert done.returncode == 0, done.stderr
    counts = {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines()}
    assert len(counts) == 6
    assert all(counts.values())
