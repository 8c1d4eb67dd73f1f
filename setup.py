"""Build of the compiled modules; everything static stands in pyproject.toml.

XLOGMEM_BUILD selects the build: ``release`` (default), ``debug`` (checks of our own invariants, no optimisation to
speak of), ``asan`` (the same checks, AddressSanitizer and UndefinedBehaviorSanitizer) or ``tsan`` (the same checks,
ThreadSanitizer).  The last two need their runtime preloaded: see `.ci/sanitize`.  The name is compiled in and shown by
``xlogmem info``.
"""
from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

CHECKS = {"flags": ["-O1", "-g", "-D_GLIBCXX_ASSERTIONS"], "macros": [("XLOGMEM_CHECKS", "1")]}
BUILDS = {
    "release": {"flags": ["-O3"], "macros": []},
    "debug": CHECKS,
    "asan": {**CHECKS, "sanitizers": ["-fsanitize=address,undefined", "-fno-omit-frame-pointer"]},
    "tsan": {**CHECKS, "sanitizers": ["-fsanitize=thread", "-fno-omit-frame-pointer"]},
}
build = os.environ.get("XLOGMEM_BUILD", "release")
if build not in BUILDS:
    raise SystemExit(f"XLOGMEM_BUILD={build!r} is unknown; choose one of {', '.join(BUILDS)}")

HERE = Path(__file__).parent
SANITIZERS = BUILDS[build].get("sanitizers", [])
CPP = ["-std=c++17", "-Wall", "-Wno-unused-function", "-Wno-invalid-offsetof", *BUILDS[build]["flags"], *SANITIZERS]
MACROS = [("XLOGMEM_BUILD_NAME", f'"{build}"'), *BUILDS[build]["macros"]]


def cuda_include() -> str:
    """The folder of cuda.h.

    It must not be older than the cuda-bindings that we compile against.  The wheels' metadata names the right one under
    pip's build isolation, where searching site-packages finds a header of somebody else; conda and hand-made
    environments have it under their prefix or the toolkit.
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


include = cuda_include()


def module(path: str) -> Extension:
    return Extension(path.removesuffix(".pyx").replace("/", "."), [path], language="c++", include_dirs=[include],
                     define_macros=MACROS, extra_compile_args=CPP, extra_link_args=SANITIZERS)


modules = cythonize(
    [module(str(path.relative_to(HERE))) for path in sorted(HERE.glob("xlogmem/**/*.pyx"))],
    build_dir="build/cython",
    compiler_directives={
        "language_level": 3,
        "embedsignature": True,
        "boundscheck": False,
        "wraparound": False,
        "initializedcheck": False,
        "cdivision": True,
        "warn.undeclared": False,
    },
)

# The simulated driver is a shared library, no Python module: xlogmem.sim loads it with ctypes.  Its soname is what lets
# an unmodified cuda-bindings take it for the driver.
simulator = Extension(
    "xlogmem.sim._simcuda",
    sorted(str(path.relative_to(HERE)) for path in HERE.glob("xlogmem/sim/src/*.cpp")),
    depends=sorted(str(path.relative_to(HERE)) for path in HERE.glob("xlogmem/sim/src/*.[hm]*")),
    language="c++",
    include_dirs=[include],
    extra_compile_args=["-std=c++17", "-O2", "-Wall", "-Wextra", "-Wno-unused-parameter", "-fvisibility=hidden",
                        "-pthread", *SANITIZERS],
    extra_link_args=["-Wl,-soname,libcuda.so.1", "-Wl,--version-script=xlogmem/sim/src/exports.map", "-pthread",
                     *(SANITIZERS or ["-static-libstdc++", "-static-libgcc"])],  # one C++ runtime to watch
)

setup(ext_modules=[*modules, simulator])
