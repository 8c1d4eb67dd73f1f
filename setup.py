"""Build of the compiled modules; all static metadata is in pyproject.toml.

XLOGMEM_BUILD selects the build: ``release`` (default), ``debug`` (checks of xlogmem's invariants, no optimisation),
``asan`` (the same checks, AddressSanitizer and UndefinedBehaviorSanitizer) or ``tsan`` (the same checks,
ThreadSanitizer).  The last two need their runtime preloaded: see `.ci/sanitize`.  The name is compiled in and shown by
``xlogmem info``.  Builds with checks compile a copy of the sources, in which the defects of tests/defects.toml are
planted: see tests/helpers/planted.py.

The check on a GPU needs CUPTI's headers, which are a build requirement as well; a build without them prints a line and
leaves it out.

The RMM binding needs librmm and rmm, which are build requirements; a build without them (without build isolation)
prints a line and leaves the binding out, or fails with XLOGMEM_RMM=require.
"""
from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

if sys.platform != "linux":
    sys.exit(f"xlogmem needs Linux, and this is {sys.platform}")

from setuptools import Extension, setup
from setuptools.modified import newer_group

HERE = Path(__file__).parent
os.chdir(HERE)
sys.path.insert(0, str(HERE))
from compiling import (  # noqa: E402
    ENGINE,
    HEADER,
    INCLUDE,
    KEYWORDS,
    NO_ASSERTIONS,
    SANITIZERS,
    SHARED,
    SYMBOLS,
    BuildExtensions,
    build,
    folder_of,
    module,
    sources,
)


def rmm_binding() -> list[Extension]:
    """One file for RMM 26.06 and later, for CUDA 12 and 13 alike.

    That takes the limited API (RMM's classes are heap types: a subclass that is a static type corrupts them), headers
    of 26.10 or later, and no symbol of librmm, because each release has its own namespace.  An rmm .pxd declares some
    functions that are never called; the linker drops them with their sections.
    """
    release = ""
    for name in ("rmm-cu12", "rmm-cu13", "rmm"):
        with suppress(PackageNotFoundError):
            release = release or version(name)
    folders = [folder_of("rmm/resource_ref.hpp", "librmm-cu12", "librmm-cu13"),
               folder_of("cuda/memory_resource", "librmm-cu12", "librmm-cu13"),      # RMM's own CCCL
               folder_of("rapids_logger/logger.hpp", "rapids-logger"),
               folder_of("crt/host_defines.h", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-crt") or INCLUDE]
    if not release or None in folders:
        if os.environ.get("XLOGMEM_RMM") == "require":
            raise SystemExit("XLOGMEM_RMM=require, but rmm, librmm or rapids-logger is not installed")
        print("xlogmem: built WITHOUT the RMM binding: rmm, librmm or rapids-logger is not installed", file=sys.stderr)
        return []
    if tuple(map(int, release.split(".")[:2])) < (26, 10):
        raise SystemExit(f"the RMM binding is built with RMM 26.10 or later, but {release} is installed")
    return [Extension(
        "xlogmem.rmm._binding", ["xlogmem/rmm/_binding.pyx"],
        depends=["xlogmem/rmm/resource.hpp", "xlogmem/rmm/exports.map", HEADER, KEYWORDS],
        language="c++", py_limited_api=True,
        include_dirs=["xlogmem", "xlogmem/include", "xlogmem/rmm", INCLUDE, *folders],
        define_macros=[("Py_LIMITED_API", "0x030B0000"), ("CCCL_IGNORE_DEPRECATED_STREAM_REF_HEADER", "1"),
                       *(NO_ASSERTIONS if build == "release" else [])],
        extra_compile_args=["-std=c++20", "-O2", "-Wall", "-Wno-unused-function", "-fvisibility=hidden",
                            "-ffunction-sections", "-fdata-sections", *SYMBOLS],
        extra_link_args=["-Wl,--gc-sections", "-Wl,--version-script=xlogmem/rmm/exports.map"])]


LIBRARY = ["-std=c++20", "-Wall", "-Wextra", "-Wno-unused-parameter", "-fvisibility=hidden", "-pthread",
           *SYMBOLS, *SANITIZERS]


class BuildWithEngine(BuildExtensions):
    """Compiles the engine once, beside the modules."""

    def compile_extensions(self) -> None:
        self.engine = ThreadPoolExecutor(1).submit(self.compile_engine)
        super().compile_extensions()

    def compile_engine(self) -> list[str]:
        """The object files of the engine, which is older than none of its sources."""
        sources = [*SHARED, *(str(path) for folder in ENGINE for path in Path(folder).glob("*.[ch]pp"))]
        objects = []
        for folder in ENGINE:
            target = Path(self.build_temp, "engine", f"{Path(folder).name}.o")
            if self.force or newer_group(sources, str(target)):
                target.parent.mkdir(parents=True, exist_ok=True)
                made, = self.compiler.compile([as_one_file(folder)], str(target.parent), include_dirs=["cpp"],
                                              extra_postargs=[*LIBRARY, "-O2"])
                Path(made).replace(target)
            objects.append(str(target))
        return objects

    def build_extension(self, extension: Extension) -> None:
        if getattr(extension, "engine", False):
            extension.extra_objects = self.engine_objects()
        super().build_extension(extension)

    def engine_objects(self) -> Iterator[str]:
        """What a library is linked with.  The engine is waited for when the library is linked, not before."""
        yield from self.engine.result()


def as_one_file(folder: str) -> str:
    """A file that includes all C++ files of a folder, whose headers are then read once."""
    path = HERE / f"build/one_file/{Path(folder).name}.cpp"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f'#include "../../{file.relative_to(HERE)}"\n' for file in sorted(HERE.glob(f"{folder}/*.cpp")))
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return str(path.relative_to(HERE))


def library(name: str, folder: str, include_dirs: list[str], link_args: list[str], macros: tuple[str, ...] = (),
            optimised: str = "-O2", engine: bool = True) -> Extension:
    """A shared library of the C++ files of a folder, for ctypes: Python cannot import it."""
    depends = [str(path.relative_to(HERE)) for part in (folder, *(ENGINE if engine else ())) for path in
               sorted(HERE.glob(f"{part}/*.[chm]*"))]
    made = Extension(
        name, [as_one_file(folder)], depends=[*depends, *SHARED], language="c++", include_dirs=["cpp", *include_dirs],
        extra_compile_args=[*LIBRARY, optimised, *macros],
        extra_link_args=["-pthread", *link_args,
                         *(SANITIZERS or ["-static-libstdc++", "-static-libgcc"])])     # one C++ runtime to watch
    made.engine = engine
    return made


def check_on_gpus() -> list[Extension]:
    """What the driver loads into programs that are checked on a GPU; CUPTI itself is theirs."""
    cupti = folder_of("cupti_callbacks.h", "nvidia-cuda-cupti-cu12", "nvidia-cuda-cupti")
    folders = [cupti, folder_of("crt/host_defines.h", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-crt") or INCLUDE]
    if not cupti:
        print("xlogmem: built WITHOUT `xlogmem check --gpu`: CUPTI's headers are not installed "
              "(nvidia-cuda-cupti-cu12, cuda-cupti-dev of conda, or a CUDA toolkit)", file=sys.stderr)
        return []
    return [library("xlogmem.check._cupti", "cpp/cupti", [INCLUDE, *folders],
                    ["-Wl,--version-script=cpp/cupti/exports.map", "-Wl,-z,nodelete", "-ldl"])]


def needed(soname: str) -> str:
    """A library that has nothing but a name: what is linked with it loads the library of that name."""
    path = HERE / "build/needed" / soname
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".c")
    source.write_text("")
    subprocess.run([*shlex.split(os.environ.get("CC", "gcc")), "-shared", f"-Wl,-soname,{soname}", "-o", str(path),
                    str(source)], check=True)
    return str(path)


def simulated_runtime(major: int, driver: str) -> Extension:
    """libcudart for programs of this version of CUDA, loaded as the simulator is."""
    exports = f"cpp/cudart/exports{major}.map"
    return library(f"xlogmem.check.cudart._cudart{major}", "cpp/cudart", [INCLUDE],
                   [f"-Wl,-soname,libcudart.so.{major}", f"-Wl,--version-script={exports}", "-Wl,--no-as-needed",
                    driver], (f"-DCUDART_VERSION={major}000",), "-O1", engine=False)


def plain_runtime(major: int) -> Extension:
    """The same for programs that load libcudart by its name without a version: its functions are those of the library
    that it needs."""
    source = HERE / f"build/needed/plain{major}.c"
    source.write_text("")
    return Extension(f"xlogmem.check.cudart._plain{major}", [str(source.relative_to(HERE))],
                     extra_compile_args=["-g0"],
                     extra_link_args=["-s", "-Wl,-soname,libcudart.so", "-Wl,--no-as-needed",
                                      needed(f"libcudart.so.{major}")])


def preloaded() -> Extension:
    """What is loaded before libc into the programs that are checked."""
    return Extension("xlogmem.check._preload", ["cpp/preload/preload.c"], depends=["cpp/host/hooks.h"],
                     include_dirs=["cpp"], extra_link_args=["-s", "-ldl"],
                     extra_compile_args=["-std=gnu11", "-O2", "-g0", "-Wall", "-Wextra", "-fvisibility=hidden"])


def simulated_library(name: str, soname: str, folder: str, version: int, driver: str,
                      optimised: str = "-O1") -> Extension:
    """A library of NVIDIA's on top of the simulated driver, which it finds as the driver that is loaded."""
    return library(f"xlogmem.check.cudart.{name}{version}", f"cpp/{folder}", [INCLUDE],
                   [f"-Wl,-soname,{soname}.so.{version}", f"-Wl,--version-script=cpp/{folder}/exports{version}.map",
                    "-Wl,--no-as-needed", driver], (f"-DLIBRARY_MAJOR={version}", "-fcx-limited-range"), optimised,
                   engine=False)


# Because of its soname an unmodified cuda-bindings uses the simulated driver as the driver.  The engine of the check
# judges what is done with it.
simulator = library("xlogmem.sim._simcuda", "cpp/driver", [INCLUDE],
                    ["-Wl,-soname,libcuda.so.1", "-Wl,--version-script=cpp/driver/exports.map"], optimised="-O1")

root = sources()
modules = [module(str(path.relative_to(root).with_suffix("")).replace("/", "."), path, [root / "xlogmem"])
           for path in sorted(root.glob("xlogmem/**/*.pyx")) if path.parent.name != "rmm"]
driver = needed("libcuda.so.1")
setup(ext_modules=[*modules, *rmm_binding(), simulator, preloaded(), simulated_runtime(12, driver),
                   simulated_runtime(13, driver), plain_runtime(12), plain_runtime(13),
                   simulated_library("_curand", "libcurand", "curand", 10, driver),
                   simulated_library("_nvml", "libnvidia-ml", "nvml", 1, driver),
                   simulated_library("_thrust", "libxlogmem_thrust", "thrust", 1, driver),
                   simulated_library("_cusparse", "libcusparse", "cusparse", 12, driver, "-O2"),
                   *(simulated_library(f"_{name}", f"lib{name}", name, version, driver, "-O2")
                     for name in ("cufft", "cusolver") for version in (11, 12)),
                   *(made for major in (12, 13) for made in (
                       simulated_library("_cublas", "libcublas", "cublas", major, driver, "-O3"),     # products
                       simulated_library("_cublasLt", "libcublasLt", "cublaslt", major, driver))),
                   *check_on_gpus()],
      cmdclass={"build_ext": BuildWithEngine})
