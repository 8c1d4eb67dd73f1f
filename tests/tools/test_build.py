"""A build of one kind after one of another kind, in the same checkout; and the parts that need headers."""
from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "setup.py"
COMPILING = SETUP.with_name("compiling.py")
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
def build(tmp_path, monkeypatch):
    """Builds of a kind: True if everything was compiled."""
    monkeypatch.chdir(tmp_path)
    tree = ast.parse(COMPILING.read_text())
    (command,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "BuildExtensions")
    program = compile(ast.Module([command], []), str(COMPILING), "exec")
    BuildExt.compiled = []

    def build(kind: str, *, fails: bool = False, force: bool = False) -> bool:
        names = {"build_ext": BuildExt, "Path": Path, "build": kind}
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


@pytest.fixture
def check_on_gpus():
    """What is built for the check on a GPU, where these folders have the headers."""
    tree = ast.parse(SETUP.read_text())
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check_on_gpus")
    program = compile(ast.Module([function], []), str(SETUP), "exec")

    def build(folders: dict[str, str]) -> list[list[str]]:
        names = {"folder_of": lambda header, *wheels: folders.get(header), "INCLUDE": "cuda", "ENGINE": ("engine",),
                 "library": lambda name, sources, include_dirs, *arguments: include_dirs, "sys": sys,
                 "Extension": object}
        exec(program, names)
        return names["check_on_gpus"]()

    return build


def test_the_check_on_a_gpu_is_built_where_its_headers_are(check_on_gpus, capsys):
    assert check_on_gpus({"cupti_callbacks.h": "cupti"}) == [["cuda", "cupti", "cuda"]]
    assert check_on_gpus({"cupti_callbacks.h": "cupti", "crt/host_defines.h": "crt"}) == [["cuda", "cupti", "crt"]]
    assert capsys.readouterr().err == ""


def test_without_its_headers_it_is_left_out_and_the_build_says_so(check_on_gpus, capsys):
    assert check_on_gpus({"crt/host_defines.h": "crt"}) == []
    said = capsys.readouterr().err
    for place in ("WITHOUT `xlogmem check --gpu`", "nvidia-cuda-cupti-cu12", "cuda-cupti-dev"):
        assert place in said


def test_it_is_the_command_that_both_builds_run():
    text = SETUP.read_text()
    assert "class BuildWithEngine(BuildExtensions):" in text
    assert '"build_ext": BuildWithEngine' in text
    assert '"build_ext": BuildExtensions' in (SETUP.parent / "benchmarks/setup.py").read_text()
