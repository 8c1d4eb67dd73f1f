"""The command line, in processes of its own."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace

import click
import pytest
from children import variables
from click.testing import CliRunner
from places import ROOT
from which_driver import SIMULATED

from xlogmem.commands import cli

LOUD = "SIMULATED CUDA driver"


def xlogmem(*arguments: str, **environment: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", "from xlogmem.commands.cli import main; main()", *arguments],
                          capture_output=True, text=True, env=variables(quiet=False, **environment), timeout=100)


@pytest.mark.parametrize(("word", "meant"), [("program.py", "xlogmem check program.py"), ("help", "xlogmem --help"),
                                             ("version", "xlogmem --version"), ("other.py", "")])
def test_a_word_that_is_no_command(tmp_path, monkeypatch, word, meant):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").touch()
    run = CliRunner().invoke(cli.main, [word])
    assert run.exit_code == 2
    assert f"No such command '{word}'" in run.output
    assert ("Did you mean `xlogmem" in run.output) == bool(meant)
    assert f"`{meant}`?" in run.output or not meant


@pytest.mark.parametrize(("word", "meant"), [("chekc", "check"), ("benhc", "bench"), ("nothing", "")])
def test_a_command_that_is_mistyped(word, meant):
    """With each release of click, which looks for itself among some of the commands, or not at all."""
    run = CliRunner().invoke(cli.main, [word])
    assert run.exit_code == 2
    assert f"No such command '{word}'." + (f" Did you mean '{meant}'?" if meant else "") in run.output
    assert run.output.count("Did you mean") == bool(meant)


def test_without_a_command_the_help_is_an_error():
    run = xlogmem()
    assert (run.returncode, run.stdout) == (2, "")
    assert "Usage: " in run.stderr
    assert "demo" in run.stderr


@pytest.mark.parametrize("policy", ["adaptive", "precise", "lazy"])
def test_demo_shows_the_failure_and_the_cure(policy):
    run = xlogmem("demo", "--rounds", "20", "--policy", policy, "--json")
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    assert (seen["rounds"], seen["policy"], seen["simulated"]) == (20, policy, SIMULATED)
    assert seen["corrupted_without_recorder"] > 0
    assert seen["corrupted_with_recorder"] == 0
    if SIMULATED:
        assert seen["races_without_recorder"] > 0
        assert seen["races_with_recorder"] == 0
        assert LOUD in run.stderr
    else:
        assert seen["races_without_recorder"] is seen["races_with_recorder"] is None
        assert LOUD not in run.stderr
    assert seen["device"]
    assert seen["uses"] == 60
    assert seen["host_ns_per_use"] > 0


def test_demo_as_text():
    run = xlogmem("demo", "--rounds", "5", COLUMNS="120")
    assert run.returncode == 0, run.stderr
    assert "5 rounds" in run.stdout
    assert "rounds corrupted" in run.stdout
    steps = run.stdout[run.stdout.index("Next:"):]
    assert all(len(line) <= 80 for line in steps.splitlines())
    for step in ("xlogmem check program.py", 'xlogmem.enable("cupy")', "xlogmem.use("):
        assert step in steps
    for page in re.findall(r"docs/\w+\.md", steps):
        assert (ROOT / page).is_file()


def test_a_demo_that_stays_wrong_fails():
    """The twin: the driver is made to drop the first wait, so the recorder cannot keep its promise."""
    if not SIMULATED:
        pytest.skip("needs the simulated driver")
    run = subprocess.run([sys.executable, "-c", (
        "from xlogmem import sim\n"
        "simulator = sim.install()\n"
        "reset = simulator.reset\n"
        "simulator.reset = lambda *a, **k: (reset(*a, **k), simulator.drop('cuStreamWaitEvent', 1))\n"
        "from xlogmem.commands.cli import main\n"
        "main(['demo', '--rounds', '5', '--json'])")], capture_output=True, text=True, timeout=100)
    assert run.returncode == 1
    assert json.loads(run.stdout)["races_with_recorder"] > 0


def test_info():
    run = xlogmem("info", "--json", XLOGMEM_SIMULATE="1" if SIMULATED else "0")
    assert run.returncode == 0, run.stderr
    facts = json.loads(run.stdout)
    assert facts["simulated"] is SIMULATED
    assert facts["devices"]
    assert facts["policy"] == os.environ.get("XLOGMEM_POLICY", "adaptive")
    assert xlogmem("info").returncode == 0


@pytest.mark.parametrize(("arguments", "said"), [
    (["demo", "--rounds", "0"], "--rounds"), (["demo", "--policy", "hasty"], "--policy"), (["nonsense"], "nonsense")])
def test_wrong_arguments_are_named(arguments, said):
    run = xlogmem(*arguments)
    assert run.returncode == 2
    assert said in run.stderr


# ---------------------------------------------------------------------------------------- commands of other packages
BENCH = ("bench", "replay", "selftest")


def of_packages(*entries: EntryPoint):
    """A stand-in for `entry_points`, where these are installed and no others."""
    def found(group: str, name: str | None = None) -> EntryPoints:
        return EntryPoints(entries).select(**({"group": group, "name": name} if name else {"group": group}))
    return found


def command(name: str, place: str) -> EntryPoint:
    return EntryPoint(name, place, "xlogmem.commands")


@pytest.mark.parametrize("name", BENCH)
def test_a_command_without_its_package_says_what_to_install(monkeypatch, name):
    monkeypatch.setattr("importlib.metadata.entry_points", of_packages())
    for arguments in ([], ["--anything", "log.csv", "--json"]):
        run = CliRunner().invoke(cli.main, [name, *arguments])
        assert run.exit_code == 1
        assert "pip install ./benchmarks" in run.output
        assert "conda install xlogmem-bench" in run.output
    overview = CliRunner().invoke(cli.main, ["--help"])
    assert overview.exit_code == 0
    assert f"{name}  " in overview.output
    assert overview.output.count("Not installed: xlogmem-bench.") == len(BENCH)
    assert "xlogmem-bench" in CliRunner().invoke(cli.main, [name, "--help"]).output


def test_its_advice_names_a_folder_that_brings_them():
    folder, = re.findall(r"pip install (\S+)", cli.MISSING)
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    assert tuple(project["entry-points"]["xlogmem.commands"]) == BENCH
    assert f"conda install {project['name']}" in cli.MISSING


def test_packages_add_commands_but_replace_none(monkeypatch):
    both = command("shout", "shouting:shout"), command("info", "shouting:no")
    monkeypatch.setattr("importlib.metadata.entry_points", of_packages(*both))
    shout = click.Command("shout", callback=lambda: click.echo("HELLO"))
    monkeypatch.setitem(sys.modules, "shouting", SimpleNamespace(shout=shout))
    assert CliRunner().invoke(cli.main, ["shout"]).output == "HELLO\n"
    assert "shout" in CliRunner().invoke(cli.main, ["--help"]).output
    assert "cuda_bindings" in CliRunner().invoke(cli.main, ["info", "--json"]).output
    assert CliRunner().invoke(cli.main, ["whisper"]).exit_code == 2


def test_a_command_that_cannot_be_imported_fails_alone(monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", of_packages(command("bench", "no_such_module:bench")))
    run = CliRunner().invoke(cli.main, ["bench", "--quick"])
    assert run.exit_code == 1
    assert "no_such_module:bench cannot be imported: ModuleNotFoundError" in run.output
    assert CliRunner().invoke(cli.main, ["--help"]).exit_code == 0
