"""The examples of extensions: each is built by the commands of its page, and is wrong without its launches alone."""
from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from native_calls import compiler
from pasted import script
from places import ROOT

import xlogmem

EXAMPLES = ROOT / "examples/native"
PARTS = re.search("```bash\n(.*?)```", (EXAMPLES / "README.md").read_text(), re.DOTALL)[1].split("\n\n")
CONFIG = Path(xlogmem.get_cmake_dir())


def tools() -> str:
    """PATH with what pip has installed, which need not be there."""
    folders = [sysconfig.get_path("scripts")]
    if found := importlib.util.find_spec("cmake"):
        folders.append(str(Path(found.origin).parent / "data/bin"))
    return os.pathsep.join([*folders, os.environ["PATH"]])


def has(tool: str) -> bool:
    return bool(importlib.util.find_spec(tool) or shutil.which(tool, path=tools()))


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not has(tool), reason=f"needs a builder: {tool}")


@pytest.fixture(autouse=True)
def _tools(monkeypatch):
    monkeypatch.setenv("PATH", tools())
    if shutil.which("ninja"):
        monkeypatch.setenv("CMAKE_GENERATOR", "Ninja")          # a fresh machine has no make


@pytest.mark.parametrize("module", [pytest.param("copy_c", marks=needs("cmake")),
                                    pytest.param("copy_pybind", marks=needs("pybind11")),
                                    pytest.param("copy_cython", marks=needs("cython"))])
def test_an_example_is_wrong_without_its_launches_and_right_with_them(module, tmp_path):
    includes, *builds = PARTS
    build, = (part for part in builds if re.search(rf"program\.py {module}$", part, re.MULTILINE))
    folder = tmp_path / "native"
    shutil.copytree(EXAMPLES, folder)
    done = script(f"{includes}\n{build}", folder)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("not declared: wrong\ndeclared: right\n")


def test_each_example_is_built_or_needs_a_gpu():
    built = {name for part in PARTS for name in re.findall(r"program\.py (\w+)", part)}
    sources = {file.stem for file in EXAMPLES.iterdir() if file.suffix in (".c", ".cpp", ".pyx")}
    assert sources - built == {"copy_torch", "cudf_operator"}
    assert built <= sources


# ------------------------------------------------------------------------------------------------ find_package
def find(folder: Path, wanted: str, *options: str, language: str = "C") -> subprocess.CompletedProcess[str]:
    name, text = {"C": ("main.c", "#include <xlogmem.h>\nint main(void) { return XLOGMEM_TABLE_VERSION - 1; }\n"),
                  "CXX": ("main.cpp", "#include <xlogmem.hpp>\nint main() { xlogmem::accesses none; }\n")}[language]
    (folder / name).write_text(text)
    (folder / "CMakeLists.txt").write_text(f"""
cmake_minimum_required(VERSION 3.18)
project(finds LANGUAGES {language})
find_package(xlogmem {wanted} REQUIRED)
find_package(xlogmem {wanted} REQUIRED)
add_executable(main {name})
target_link_libraries(main PRIVATE xlogmem::headers)
message(STATUS "version ${{xlogmem_VERSION}}")
""")
    done = subprocess.run(["cmake", "-S", folder, "-B", folder / "build", *options], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode == 0:
        subprocess.run(["cmake", "--build", folder / "build"], check=True, capture_output=True)
        subprocess.run([folder / "build/main"], check=True)
    return done


@needs("cmake")
@pytest.mark.parametrize("language", ["C", "CXX"])
@pytest.mark.parametrize("option", ["xlogmem_DIR", "CMAKE_PREFIX_PATH"])
def test_cmake_finds_the_headers(tmp_path, language, option):
    """By the folder, and by the prefix that the entry point `cmake.prefix` names; in a project of one language."""
    assert compiler()
    place = CONFIG if option == "xlogmem_DIR" else CONFIG.parents[2]
    done = find(tmp_path, "", f"-D{option}={place}", language=language)
    assert done.returncode == 0, done.stdout
    assert f"version {xlogmem.__version__}\n" in done.stdout


@needs("cmake")
@pytest.mark.parametrize(("wanted", "fits"), [("0.1", True), (f"{xlogmem.__version__} EXACT", True), ("0.0.9", False),
                                              ("0.1.99", False), ("1.0", False), ("0.1.99 EXACT", False)])
def test_cmake_compares_versions(tmp_path, wanted, fits):
    done = find(tmp_path, wanted, f"-Dxlogmem_DIR={CONFIG}")
    assert (done.returncode == 0) == fits, done.stdout
    if not fits:
        assert f"{CONFIG}/xlogmemConfig.cmake, version: {xlogmem.__version__}" in done.stdout


@needs("cmake")
def test_a_package_without_headers_says_so(tmp_path):
    folder = tmp_path / "share/cmake/xlogmem"
    shutil.copytree(CONFIG, folder)
    (tmp_path / "__init__.py").write_text('__version__ = "0.1.0"\n')
    project = tmp_path / "project"
    project.mkdir()
    done = find(project, "", f"-Dxlogmem_DIR={folder}")
    assert done.returncode == 1
    assert "has no xlogmem.h: install xlogmem again" in " ".join(done.stdout.split())
