"""A build of one kind after one of another kind, in the same checkout; and the parts that need headers."""
from __future__ import annotations

import ast
import os
import sys
from copy import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
from parts_of_build import COMPILING, SETUP, part

pytestmark = pytest.mark.skipif(not SETUP.exists(), reason="no setup.py here")


class BuildExt:
    """What setuptools has: compiles what is older than its sources, and everything if `force` is set."""

    compiled: list[bool]
    fails = False
    build_temp = "objects"

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
    BuildExt.compiled = []

    def build(kind: str, *, fails: bool = False, force: bool = False) -> bool:
        names = part("BuildExtensions", build_ext=BuildExt, Path=Path, build=kind)
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


def test_the_commands_that_need_only_metadata_translate_nothing():
    """pip runs setup.py three times, and two of these compile nothing."""
    for path in (SETUP, SETUP.parent / "benchmarks/setup.py"):
        assert "cythonize" not in path.read_text()
    calls = [node for node in ast.walk(ast.parse(COMPILING.read_text())) if isinstance(node, ast.Call)]
    assert [ast.unparse(call.func) for call in calls].count("cythonize") == 1
    assert sum("translated" in map(ast.unparse, call.args) for call in calls) == 1     # by build_extension


def test_a_module_is_translated_and_a_library_is_not():
    done = []

    class Translators:
        def submit(self, function, extension):
            done.append(extension.name)
            return SimpleNamespace(result=lambda: ["translated.cpp"])

    class Compiler(BuildExt):
        def build_extension(self, extension):
            done.append((extension.sources, self.build_temp))

    names = part("BuildExtensions", build_ext=Compiler, Path=Path, copy=copy, translated=None)
    command = names["BuildExtensions"]()
    command.translators = Translators()
    for name, source in (("module", "module.pyx"), ("library", "library.cpp")):
        command.build_extension(SimpleNamespace(name=name, sources=[source]))
    assert done == ["module", (["translated.cpp"], "objects/module"), (["library.cpp"], "objects/library")]


def test_the_longest_comes_first(tmp_path):
    """The engine has a thread of its own, and counts for no library."""
    names = part("size", os=os, ENGINE=(str(tmp_path / "engine"),))
    (tmp_path / "engine").mkdir()
    paths = [str(tmp_path / name) for name in ("head.pyx", "page.pxi", "part.cpp", "head.hpp", "engine/order.cpp")]
    for power, path in enumerate(paths):
        Path(path).write_text("." * 10**power)
    assert names["size"](SimpleNamespace(sources=paths[:1], depends=paths[1:])) == 111


@pytest.fixture
def check_on_gpus():
    """What is built for the check on a GPU, where these folders have the headers."""
    def build(folders: dict[str, str]) -> list[list[str]]:
        names = part("check_on_gpus", SETUP, folder_of=lambda header, *wheels: folders.get(header), INCLUDE="cuda",
                     library=lambda name, sources, include_dirs, *arguments: include_dirs, sys=sys, Extension=object)
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


@pytest.mark.parametrize(("bindings", "headers", "found"), [
    ("", ["cuda.h"], True), ("", ["cudaProfiler.h"], False),
    ("cudaProfiler.h", ["cuda.h"], False), ("cudaProfiler.h", ["cuda.h", "cudaProfiler.h"], True)])
def test_a_build_needs_the_headers_that_its_cuda_bindings_include(tmp_path, bindings, headers, found):
    """The wheel of the runtime has no cudaProfiler.h, and cuda-bindings 12.9.10 needs none: no toolkit is needed."""
    for name in headers:
        (tmp_path / name).write_text("")
    (tmp_path / "cydriver.pxd").write_text(f"cdef extern from '{bindings or 'cuda.h'}':\n")

    def distribution(name):
        files = [] if name == "cuda-bindings" else [Path(header) for header in headers]
        return SimpleNamespace(files=files, locate_file=lambda file: tmp_path / Path(file).name)

    names = part("cuda_include", os=SimpleNamespace(environ={}), Path=lambda *parts: Path(*parts) if str(
        parts[0]).startswith(str(tmp_path)) else tmp_path / "no toolkit", distribution=distribution,
        version=lambda name: "12.9.10", PackageNotFoundError=KeyError)
    if found:
        assert names["cuda_include"]() == str(tmp_path)
    else:
        with pytest.raises(SystemExit, match=r"cuda\.h .*not found: .* nvidia-cuda-runtime-cu12"):
            names["cuda_include"]()
