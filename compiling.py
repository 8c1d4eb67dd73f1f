"""How modules are compiled: the flags of each kind of build, CUDA's headers, Cython's settings.

The two setup.py, of xlogmem and of its benchmarks, say what is compiled.  Needs Cython and setuptools alone.
"""
from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from copy import copy
from importlib.metadata import PackageNotFoundError, distribution, version
from multiprocessing import get_context
from pathlib import Path
from shutil import copy2

from Cython.Build import cythonize
from setuptools import Extension
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer

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
TRANSLATED = Path("build/cython")
KEYWORDS = str(ROOT / "xlogmem/_base/keywords.hpp")     # included by each translated module
SHARED = sorted(map(str, ROOT.glob("cpp/*.hpp")))
# The engine of the check and its reader of kernels are in two libraries, and compiled once.
ENGINE = ("cpp/engine", "cpp/host", "cpp/kernels", "cpp/native")
CORES = len(os.sched_getaffinity(0))
# Optimisation of a release build, by module.  Those on the paths that benchmarks/instructions.py counts have what the
# counts need; the others compile in half the time.  To blocks, of -O3 the inlining alone makes a difference.
HOT = dict.fromkeys(["_core", "_loops", "_order", "_table", "async_", "base", "foreign", "index", "launch", "pool"],
                    "-O3")
INLINED = {"blocks": "-O2 -fno-tree-vectorize --param=max-inline-insns-auto=30 --param=inline-min-speedup=15"}
WARM = dict.fromkeys(["_dlpack", "_driver", "_layout", "_torch_pool", "buffers", "interchange", "named", "objects",
                      "sites", "streams"], "-O2")
OPTIMISED = HOT | INLINED | WARM
SANITIZERS = BUILDS[build].get("sanitizers", [])
# A Python that was built with -g passes it on, and the wheels would be seven times as large.
SYMBOLS = ["-g0"] if build == "release" else []
CPP = ["-std=c++17", "-Wall", "-Wno-unused-function", "-Wno-invalid-offsetof", *BUILDS[build]["flags"], *SYMBOLS,
       *SANITIZERS]
MACROS = [("XLOGMEM_BUILD_NAME", f'"{build}"'), *BUILDS[build]["macros"]]


def cuda_include() -> str:
    """The folder of cuda.h, and of cudaProfiler.h where cuda-bindings includes it, as 12.9.5 and 13.0 do.

    It must not be older than the cuda-bindings of the build.  Under pip's build isolation the wheels' metadata names
    the right one, where a search of site-packages may find the header of another package; conda environments and others
    have it under their prefix or in the toolkit.
    """
    runtime = "nvidia-cuda-runtime-cu12" if version("cuda-bindings").startswith("12.") else "nvidia-cuda-runtime"
    declared = Path(str(distribution("cuda-bindings").locate_file("cuda/bindings/cydriver.pxd")))
    profiler = declared.exists() and "cudaProfiler.h" in declared.read_text()
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
        if header.exists() and (not profiler or header.with_name("cudaProfiler.h").exists()):
            return str(header.resolve().parent)
    what = "cuda.h and cudaProfiler.h were" if profiler else "cuda.h was"
    raise SystemExit(f"{what} not found: install the newest cuda-bindings and {runtime}, or set CUDA_HOME to a CUDA "
                     "toolkit")


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
    optimised = OPTIMISED.get(path.stem, "-O1").split() if build == "release" else []
    pages = path.with_name(path.stem.lstrip("_")).glob("*.[ph]*")
    return Extension(name, [str(path)], language="c++",
                     include_dirs=[INCLUDE, str(ROOT / "cpp"), str(ROOT / "xlogmem/include"), *map(str, folders),
                                   str(path.parent)],
                     depends=[HEADER, KEYWORDS, *SHARED, *map(str, [*pages, *path.parent.glob("*.hpp")])],
                     define_macros=MACROS, extra_compile_args=[*CPP, *optimised], extra_link_args=SANITIZERS)


def translated(extension: Extension) -> list[str]:
    """The C++ files of a module: Cython translates those of its sources that changed."""
    made, = cythonize(
        [extension], build_dir=str(TRANSLATED), include_path=getattr(extension, "cython_include_dirs", []),
        compiler_directives={
            "language_level": 3,
            "boundscheck": True,                        # of Python's sequences, which may come from other libraries
            "wraparound": False,
            "initializedcheck": False,
            "cdivision": True,
            "warn.undeclared": False,
        })
    put_own_messages(Path(made.sources[0]))
    return made.sources


# In the functions of Cython's that read the arguments of a call and know the names of all.
UNKNOWN_ARGUMENT = re.compile(r"""
    (static\ \w+\ (?:__Pyx_RejectUnknownKeyword|__Pyx_ParseKeywordsTuple)\([^)]*\)\n\{(?:(?!\n\}\n).)*?)
    PyErr_Format\(PyExc_TypeError,\s+"%s\(\)\ got\ an\ unexpected\ keyword\ argument\ '%U'",\s+
    function_name,\ key\);""", re.DOTALL | re.VERBOSE)


# In the function of Cython's that refuses an argument of another type.
WRONG_TYPE = re.compile(r"""
    (static\ void\ __Pyx_ArgTypeError\(PyObject\ \*obj,\ PyTypeObject\ \*type,
    \ const\ char\ \*name,\ int\ exact\)\n\{\n)(?!\ *xlogmem_refuse_type)""", re.VERBOSE)


def put_own_messages(source: Path) -> None:
    """Let a translated module name the nearest argument where a call misspells one, and the class that users know where
    an argument has another type, which costs a right call nothing.  Cython has no setting for its messages."""
    text = source.read_text()
    found = UNKNOWN_ARGUMENT.sub(r"\1xlogmem_refuse_keyword(function_name, key, argnames);", text)
    found = WRONG_TYPE.sub(r"\1    xlogmem_refuse_type(name, obj, type); return;\n", found)
    if found != text:
        python, own = '#include "Python.h"\n', '#include "_base/keywords.hpp"\n'
        source.write_text(found if own in found else found.replace(python, python + own, 1))


def copy_headers(extensions: list[Extension]) -> None:
    """Copy the headers of modules to where Cython copies them, too, before a compiler reads them there."""
    for header in {path for extension in extensions for path in extension.depends if path.endswith((".h", ".hpp"))}:
        copied = TRANSLATED / header
        if not header.startswith("..") and newer(header, str(copied)):
            copied.parent.mkdir(parents=True, exist_ok=True)
            copy2(header, copied)


class BuildExtensions(build_ext):
    """Translates and compiles on all cores, and everything again where the last build in this folder was of another
    kind."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or CORES

    def build_extensions(self) -> None:
        """Each module is compiled when it is translated, the longest first.

        Cython holds the GIL, so it has processes, which are forked while this process has no other thread.
        """
        self.extensions.sort(key=size, reverse=True)
        copy_headers(self.extensions)
        with ProcessPoolExecutor(self.parallel, get_context("fork")) as self.translators:
            self.translators.submit(int).result()       # all processes start at the first call
            self.compile_extensions()

    def compile_extensions(self) -> None:
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
        if extension.sources[0].endswith(".pyx"):
            extension.sources = self.translators.submit(translated, extension).result()
        builder = copy(self)
        builder.build_temp = str(Path(self.build_temp, extension.name))
        super(BuildExtensions, builder).build_extension(extension)


def size(extension: Extension) -> int:
    """How many bytes of its own are compiled: of a module and its pages, or of a library's folder."""
    own = [path for path in extension.depends if path.endswith((".pxi", ".cpp")) and not path.startswith(ENGINE)]
    return sum(map(os.path.getsize, [*extension.sources, *own]))
