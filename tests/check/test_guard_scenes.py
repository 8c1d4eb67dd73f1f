"""The guard of the host's memory (cpp/host) without a driver, and its planted defects."""
from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
from pathlib import Path

import pytest
from engine_traces import HERE, compiler, defects_of, planted_texts
from page_guard import NEEDED
from places import ROOT

GUARD = ROOT / "cpp/host"
SECONDS = 5
LEFT_OUT = {"judge.cpp"}                                # it needs the engine
DEFECTS = {defect.name: defect for defect in defects_of(HERE / "host_defects.toml")}
pytestmark = [pytest.mark.skipif(compiler() is None, reason="no C++ compiler here"), *NEEDED]


def build(folder: Path, guard: Path, *options: str) -> Path:
    sources = [*sorted(path for path in guard.glob("*.cpp") if path.name not in LEFT_OUT), HERE / "guard_scenes.cpp"]
    (folder / "all.cpp").write_text("".join(f'#include "{source}"\n' for source in sources))
    program = folder / "scenes"
    subprocess.run([compiler() or "g++", "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", *options, "-rdynamic",
                    "-I", str(guard.parent), "-I", str(ROOT / "cpp"), str(folder / "all.cpp"), "-o", str(program),
                    "-ldl", "-pthread"], check=True)
    return program


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("scenes"), GUARD)


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Path:
    """The same with all defects, of which the environment selects one."""
    folder = tmp_path_factory.mktemp("planted")
    guard = folder / "cpp/host"
    guard.mkdir(parents=True)
    for path in [*GUARD.glob("*.h")]:
        (guard / path.name).write_text(path.read_text())
    for file, text in planted_texts(GUARD, list(DEFECTS.values())).items():
        (guard / file).write_text(text)
    return build(folder, guard, "-DPLANTED")


def play(program: Path, **environment: str) -> tuple[str, int]:
    """What is wrong, and the status.  A process that hangs has none; one that goes round for ever is ended after
    seconds of its processor's time, of which it needs a fraction of one."""
    with subprocess.Popen([program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          env=os.environ | environment) as process:
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (SECONDS, SECONDS))
        try:
            said, _ = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            return "it hangs", -1
    return said, process.returncode


@pytest.mark.parametrize("environment", [{}, {"CALLS_UNSEEN": "1"}], ids=["calls are seen", "calls are not seen"])
def test_each_scene_is_as_it_says(scenes, environment):
    assert play(scenes, **environment) == ("", 0)


def test_a_crash_ends_the_process(scenes):
    assert play(scenes, CRASHES="1") == ("", -signal.SIGSEGV)


def test_each_defect_breaks_a_rule_of_its_own():
    for defect in DEFECTS.values():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)+", defect.name)
        assert re.fullmatch(r"[A-Z].*\.", defect.rule), defect.name
    assert len({defect.rule for defect in DEFECTS.values()}) == len(DEFECTS) > 29


def test_without_a_defect_nothing_is_wrong(planted):
    """... or every one would be found, whatever it does."""
    assert play(planted) == ("reached 0\n", 0)
    assert play(planted, CALLS_UNSEEN="1") == ("", 0)
    assert play(planted, CRASHES="1") == ("", -signal.SIGSEGV)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_noticed(planted, name):
    seen = play(planted, CHECK_DEFECT=name)
    unseen = play(planted, CHECK_DEFECT=name, CALLS_UNSEEN="1")
    assert seen[1] or unseen[1] or play(planted, CHECK_DEFECT=name, CRASHES="1")[1] != -signal.SIGSEGV
