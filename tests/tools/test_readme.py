"""The README's programs do what it says, and its two commands are those of CI."""
from __future__ import annotations

import re

import pytest
from cuda.bindings import driver as cuda
from places import ROOT
from which_driver import SIMULATED

from xlogmem import sim
from xlogmem._kernels import check

README = (ROOT / "README.md").read_text()
PROGRAM = re.search(r"```python\n(import ctypes.*?)```", README, re.DOTALL)[1]


def run(program: str) -> bool:
    """Run it a few times; whether every copy was right and nothing raced."""
    right = True
    for _ in range(5):
        names: dict[str, object] = {}
        exec(compile(program, "README.md", "exec"), names)
        y = names["y"]
        seen = bytearray(y.nbytes)
        check(cuda.cuMemcpyDtoHAsync(seen, y.ptr, y.nbytes, names["worker"].handle))
        check(cuda.cuStreamSynchronize(names["worker"].handle))
        right = right and seen == b"\1" * y.nbytes
        check(cuda.cuCtxSynchronize())
        check(cuda.cuMemFreeHost(names["host"]))
    if SIMULATED:
        right = right and not sim.simulator().races()
        sim.simulator().clear_races()
    return right


@pytest.fixture(autouse=True)
def _a_runtime_of_its_own(monkeypatch):
    """The process's own runtime would outlive the test."""
    import xlogmem

    monkeypatch.setattr(xlogmem, "get_runtime", xlogmem.DeviceRuntime)


def test_the_program_is_right():
    small = PROGRAM.replace("1 << 26", "1 << 20") if SIMULATED else PROGRAM
    assert run(small)


def test_it_is_wrong_without_its_two_lines():
    without = re.sub(r"with xlogmem\.use\(.*", "if True:", PROGRAM)
    assert without.count("if True:") == 2
    if SIMULATED:
        without = without.replace("1 << 26", "1 << 20")
        sim.simulator().set_policy("min")
    assert not run(without)


def test_the_commands_are_the_ones_that_ci_runs():
    commands = re.findall(r"```\n(pip install .*)\n```", README)
    assert commands == ['pip install ".[cu12]" && xlogmem demo', 'pip install -e ".[cu12,test]" && pytest -n auto']
    script = (ROOT / ".ci" / "run").read_text()
    for command in commands:
        assert command.replace("pip install", "pip install -q") in script


def test_nothing_names_what_is_not_there():
    """Every file and test that README and CONTRIBUTING name exists."""
    for text in (README, (ROOT / "CONTRIBUTING.md").read_text()):
        for name in re.findall(r"`((?:xlogmem|tests|benchmarks)/[\w/.]*)`", text):
            assert (ROOT / name).exists(), name
