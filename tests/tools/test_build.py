"""A build of one kind after one of another kind, in the same checkout."""
from __future__ import annotations

import ast
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "setup.py"
pytestmark = pytest.mark.skipif(not SETUP.exists(), reason="no setup.py here")


class BuildExt:
    """What setuptools has: compiles what is older than its sources, and everything if `force` is set."""

    compiled: list[bool]
    fails = False

    def __init__(self) -> None:
        self.force = False

    def run(self) -> None:
        BuildExt.compiled.append(self.force)
        if BuildExt.fails:
            raise KeyboardInterrupt


@pytest.fixture
def build(tmp_path):
    """Builds of a kind: whether everything was compiled."""
    tree = ast.parse(SETUP.read_text())
    (command,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "BuildExtensions")
    program = compile(ast.Module([command], []), str(SETUP), "exec")
    BuildExt.compiled = []

    def build(kind: str, *, fails: bool = False, force: bool = False) -> bool:
        names = {"build_ext": BuildExt, "HERE": tmp_path, "build": kind}
        exec(program, names)
        BuildExt.fails = fails
        one = names["BuildExtensions"]()
        one.force = force
        if fails:
            with pytest.raises(KeyboardInterrupt):
                one.run()
        else:
            one.run()
        return BuildExt.compiled[-1]

    return build


def test_another_kind_is_compiled_anew(build):
    """Else a debug build after a release would be the release, whose objects are newer than the sources."""
    assert build("release")
    assert not build("release")
    assert build("debug")
    assert not build("debug")
    assert build("release")
    assert build("release", force=True)


def test_a_build_that_stopped_half_way_is_compiled_anew(build):
    """Some of its objects are of another kind than those of the last whole build."""
    build("release")
    assert build("debug", fails=True)
    assert build("release")
    assert not build("release")


def test_it_is_the_command_that_setup_runs():
    assert '"build_ext": BuildExtensions' in SETUP.read_text()
