"""The command line, in processes of its own."""
from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from which_driver import SIMULATED

LOUD = "SIMULATED CUDA driver"


def xlogmem(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "XLOGMEM_SIM_QUIET"} | environment
    return subprocess.run([sys.executable, "-c", "from xlogmem.commands.cli import main; main()", *arguments],
                          capture_output=True, text=True, env=variables, timeout=100)


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
