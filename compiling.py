"""How modules are compiled: the flags of each kind of build, CUDA's headers, Cython's settings.

The two setup.py, of xlogmem and of its benchmarks, say what is compiled.  Needs Cython and setuptools alone.
"""
from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from copy import copy
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension
from setuptools.command.build_ext import build_ext

CHECKS = {"flags": ["-O0", "-g", "-D_GLIBCXX_ASSERTIONS"], "macros": [("XLOGMEM_CHECKS", "1")]}
NO_ASSERTIONS = [("NDEBUG", "1")]               # of Python's headers: Python defines it too, but not if CFLAGS is set
BUILDS = {
    "release": {"flags": [], "macros": NO_ASSERTIONS},
    "debug": CHECKS,
    "asan": {**CHECKS, "sanitizers": ["-fsanitize=address,undefined", "-fno-omit-frame-pointer"]},
    "tsan": {**CHECKS, "sanitizers": ["-fsanitize=thread", "-fno-omit-frame-pointer"]},
}
build = os.environ.get("XLOGMEM_BUILD", "release")
if build not in BUILDS:
    raise SystemExit(f"XLOGMEM_BUILD={build!r} is unknown; choose one of {', '.join(BUILDS)}")

ROOT = Path(os.path.relpath(Path(__file__).parent))     # from the folder of the setup.py
HEADER = str(ROOT / "xlogmem/include/xlogmem.h")
KEYWORDS = str(ROOT / "xlogmem/_base/keywords.hpp")     # included by each translated module
SHARED = sorted(map(str, ROOT.glob("cpp/*.hpp")))
CORES = len(os.sched_getaffinity(0))
# Optimisation of a release build, by module.  Those on the paths that benchmarks/instructions.py counts have what the
# counts need; the others compile in half the time.
HOT = dict.fromkeys(["_core", "_loops", "_order", "_table", "async_", "base", "blocks", "foreign", "index",
                     "launch", "pool"], "-O3")
WARM = dict.fromkeys(["_driver", "_torch_pool", "buffers", "objects", "sites", "streams"], "-O2")
OPTIMISED = HOT | WARM
SANITIZERS = BUILDS[build].get("sanitizers", [])
# A Python that was built with -g passes it on, and the wheels would be seven times as large.
SYMBOLS = ["-g0"] if build == "release" else []
CPP = ["-std=c++17", "-Wall", "-Wno-unused-function", "-Wno-invalid-offsetof", *BUILDS[build]["flags"], *SYMBOLS,
       *SANITIZERS]
MACROS = [("XLOGMEM_BUILD_NAME", f'"{build}"'), *BUILDS[build]["macros"]]


def cuda_include() -> str:
    """The folder of cuda.h.

    It must not be older than the cuda-bindings of the build.  Under pip's build isolation the wheels' metadata names
    the right one, where a search of site-packages may find the header of another package; conda environments and others
    have it under their prefix or in the toolkit.
    """
    runtime = "nvidia-cuda-runtime-cu12" if version("cuda-bindings").startswith("12.") else "nvidia-cuda-runtime"
    try:
        wheel = distribution(runtime)
        found = [Path(wheel.locate_file(file)) for file in wheel.files or () if file.name == "cuda.h"]
    except PackageNotFoundError:
        found = []
    for variable in ("PREFIX", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            found += [Path(root, place, "cuda.h") for place in (
                "targets/x86_64-linux/include", "targets/sbsa-linux/include", "include")]
    found.append(Path("/usr/local/cuda/include/cuda.h"))
    for header in found:
        if header.exists():
            return str(header.resolve().parent)
    raise SystemExit(f"cuda.h was not found: install {runtime}, or set CUDA_HOME to a CUDA toolkit")


INCLUDE = cuda_include()


def folder_of(header: str, *wheels: str) -> str | None:
    """The folder from which `header` is included: of one of these wheels, of conda or of the toolkit."""
    for name in wheels:
        try:
            wheel = distribution(name)
        except PackageNotFoundError:
            continue
        for file in wheel.files or ():
            if str(file).endswith(f"/{header}"):
                return str(Path(wheel.locate_file(file)).resolve()).removesuffix(f"/{header}")
    roots = [os.environ.get(variable) for variable in ("PREFIX", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH")]
    for root in filter(None, [*roots, "/usr/local/cuda"]):
        for place in ("include", "include/rapids", "targets/x86_64-linux/include", "targets/sbsa-linux/include",
                      "extras/CUPTI/include"):
            if Path(root, place, header).exists():
                return str(Path(root, place))
    return None


def sources() -> Path:
    """The folder that has xlogmem's Cython sources: the checkout or, in builds with checks, a copy with the planted
    defects."""
    if build == "release":
        return ROOT
    specification = importlib.util.spec_from_file_location("planted", ROOT / "tests/helpers/planted.py")
    planted = importlib.util.module_from_spec(specification)
    sys.modules["planted"] = planted                    # dataclasses look there
    specification.loader.exec_module(planted)
    planted.write_copy(ROOT / "xlogmem", ROOT / "build/planted/xlogmem")
    return ROOT / "build/planted"


def module(name: str, path: Path, folders: Iterable[Path]) -> Extension:
    """The module `name` of the source `path`, whose pages lie in a folder of its name.  `folders` are searched for
    headers."""
    optimised = [OPTIMISED.get(path.stem, "-O1")] if build == "release" else []
    pages = path.with_name(path.stem.lstrip("_")).glob("*.[ph]*")
    return Extension(name, [str(path)], language="c++",
                     include_dirs=[INCLUDE, str(ROOT / "cpp"), str(ROOT / "xlogmem/include"), *map(str, folders),
                                   str(path.parent)],
                     depends=[HEADER, KEYWORDS, *SHARED, *map(str, [*pages, *path.parent.glob("*.hpp")])],
                     define_macros=MACROS, extra_compile_args=[*CPP, *optimised], extra_link_args=SANITIZERS)


def translated(modules: list[Extension], include_path: Iterable[Path] = ()) -> list[Extension]:
    """The modules, translated to C++ on all cores; `.pxd` files are looked up in `include_path` too."""
    made = cythonize(
        modules, build_dir="build/cython", nthreads=CORES, include_path=[str(folder) for folder in include_path],
        compiler_directives={
            "language_level": 3,
            "boundscheck": True,                        # of Python's sequences, which may come from other libraries
            "wraparound": False,
            "initializedcheck": False,
            "cdivision": True,
            "warn.undeclared": False,
        })
    for extension in made:
        name_nearest_arguments(Path(extension.sources[0]))
    return made


# In the functions of Cython's that read the arguments of a call and know the names of all.
UNKNOWN_ARGUMENT = re.compile(r"""
    (static\ \w+\ (?:__Pyx_RejectUnknownKeyword|__Pyx_ParseKeywordsTuple)\([^)]*\)\n\{(?:(?!\n\}\n).)*?)
    PyErr_Format\(PyExc_TypeError,\s+"%s\(\)\ got\ an\ unexpected\ keyword\ argument\ '%U'",\s+
    function_name,\ key\);""", re.DOTALL | re.VERBOSE)


def name_nearest_arguments(source: Path) -> None:
    """Let a translated module name the nearest argument where a call misspells one, which costs a right call nothing.
    Cython has no setting for its message."""
    text = source.read_text()
    found = UNKNOWN_ARGUMENT.sub(r"\1xlogmem_refuse_keyword(function_name, key, argnames);", text)
    if found != text:
        python = '#include "Python.h"\n'
        source.write_text(found.replace(python, f'{python}#include "_base/keywords.hpp"\n', 1))


class BuildExtensions(build_ext):
    """Compiles on all cores, and everything again where the last build in this folder was of another kind."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or CORES

    def build_extensions(self) -> None:
        self.extensions.sort(key=lambda extension: -sum(map(os.path.getsize, extension.sources)))   # the longest first
        super().build_extensions()

    def run(self) -> None:
        stamp = Path("build/kind")
        self.force = self.force or not stamp.exists() or stamp.read_text() != build
        stamp.unlink(missing_ok=True)                   # a build that stops half way is of no kind
        super().run()
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text(build)

    def build_extension(self, extension: Extension) -> None:
        """With a folder of its own for objects: two libraries are made of the same files, perhaps at the same time."""
        builder = copy(self)
        builder.build_temp = str(Path(self.build_temp, extension.name))
        super(BuildExtensions, builder).build_extension(extension)
