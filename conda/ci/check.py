"""Checks the recipe: every variant is rendered, and one is built, tested, solved and installed.

    check.py lint                       each Python and architecture, rendered; needs no channel
    check.py build CHANNEL OUT          for this Python, with the recipe's own tests
    check.py install CHANNEL OUT        solves, and fresh prefixes for CUDA 12 and 13 in which programs run

RAPIDS_PACKAGE_VERSION and the other variables of the recipe are set by .ci/conda.
"""
from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path

import rapids_dependency_file_generator as generator
import yaml
from rattler import BuildString, GenericVirtualPackage, MatchSpec, PackageName, RepoDataRecord, Version, install, solve
from rattler.exceptions import SolverError
from rattler_build import (
    JinjaConfig,
    Package,
    PlatformConfig,
    RenderConfig,
    RenderedVariant,
    Stage0Recipe,
    ToolConfiguration,
    VariantConfig,
)

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "conda/recipes/xlogmem/recipe.yaml"
PYTHONS = [line.rpartition(" ")[2] for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "classifiers"] if line.startswith("Programming Language :: Python :: 3.")]
DEPENDENCIES = generator.load_config_from_file(ROOT / "dependencies.yaml")
CUDA = sorted(DEPENDENCIES.files["all"].matrix["cuda"])
PLATFORMS = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}
HERE = next(name for name, machine in PLATFORMS.items() if machine == platform.machine())
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
checked = 0
failed: list[str] = []


def check(kept: bool, text: str) -> None:
    global checked
    checked += 1
    if not kept:
        failed.append(text)
        print("FAILED:", text, flush=True)


def render(python: str, target: str) -> list[RenderedVariant]:
    os.environ["RAPIDS_PY_VERSION"] = python
    config = PlatformConfig(target_platform=target, build_platform=HERE)
    compilers = RECIPE.with_name("conda_build_config.yaml")
    return Stage0Recipe.from_file(RECIPE).render(
        VariantConfig.from_conda_build_config(compilers, JinjaConfig(platform=config)), RenderConfig(platform=config))


# ---------------------------------------------------------------------------------------------- lint
def plain(specs: Iterable[object]) -> set[str]:
    """In one spelling; pins are left out."""
    return {str(MatchSpec(spec)) for spec in specs if isinstance(spec, str)}


def versions(key: str, machine: str) -> set[str]:
    """A part of the recipe, as dependencies.yaml lists it."""
    names = DEPENDENCIES.files[key].includes
    matrix = {"cuda": CUDA[0], "arch": machine}
    found = set()
    for name in names:
        dependencies = DEPENDENCIES.dependencies[name]
        for common in dependencies.common:
            if generator.Output.CONDA in common.output_types:
                found |= set(common.packages)
        for specific in dependencies.specific:
            if generator.Output.CONDA in specific.output_types:
                found |= set(next(entry.packages for entry in specific.matrices
                                  if not entry.matrix or fits(entry.matrix, matrix)))
    return found


def fits(pattern: dict[str, str], matrix: dict[str, str]) -> bool:
    return all(Path(matrix[name]).match(value) for name, value in pattern.items())


def lint() -> None:
    """The parsers reject unknown keys, bad specs and licences.  These rules are checked in addition."""
    for path in sorted((ROOT / "conda/environments").glob("*.yaml")):
        environment = yaml.safe_load(path.read_text())
        check(len(plain(environment["dependencies"])) > 10 and environment["channels"][-1] == "conda-forge", path.name)
    jobs = yaml.safe_load((ROOT / ".github/workflows/packages.yaml").read_text())["jobs"]
    for name, job in jobs.items():
        check(job["strategy"]["matrix"]["python"] == PYTHONS, f"packages.yaml, {name}: not {PYTHONS}")
    for python in PYTHONS:
        for target, machine in PLATFORMS.items():
            outputs = {variant.recipe.package.name: variant.recipe.to_dict() for variant in render(python, target)}
            check(list(outputs) == ["xlogmem", "xlogmem-bench", "xlogmem-rmm"], f"outputs {list(outputs)}")
            for name, recipe in outputs.items():
                where = f"{name}, Python {python}, {target}:"
                check(recipe["package"]["version"] == os.environ["RAPIDS_PACKAGE_VERSION"], f"{where} version")
                about = recipe["about"]
                check(about["license"] == "Apache-2.0" and about.get("license_file"), f"{where} licence")
                check(recipe["build"]["string"].startswith(f"py{python.replace('.', '')}_"), f"{where} build string")
                check(len(recipe.get("tests", ())) >= 2, f"{where} tests")
            core, bench, rmm = (outputs[name]["requirements"] for name in ("xlogmem", "xlogmem-bench", "xlogmem-rmm"))
            where = f"Python {python}, {target}:"
            for spec in (f"gcc_{target} 14", f"gxx_{target} 14", f"sysroot_{target} 2.28"):
                check(any(str(found).startswith(spec) for found in core["build"]), f"{where} no {spec} in build")
            for output, part, key, extra in ((core, "host", "recipe_host", {"pip", f"python={python}"}),
                                             (core, "run", "recipe_run", {"python"}),
                                             (core, "run_constraints", "recipe_constraints", set()),
                                             (bench, "host", "recipe_bench_host", {"pip", f"python={python}"})):
                expected = plain(versions(key, machine) | extra)
                check(plain(output[part]) == expected, f"{where} {part} is {plain(output[part])}, not {expected}")
            check(plain(rmm["run"]) == plain(versions("recipe_rmm", machine)), f"{where} {rmm['run']}")
            for name in ("xlogmem-bench", "xlogmem-rmm"):
                check({"pin_subpackage": {"name": "xlogmem", "exact": True}} in outputs[name]["requirements"]["run"],
                      f"{where} {name}'s pin")
            for header in ("cuda-cudart-dev", "cuda-cupti-dev", "librmm"):    # whose run exports would be needed
                check(header in core["ignore_run_exports"]["from_package"], f"{where} exports of {header}")


# ---------------------------------------------------------------------------------------------- build
# With the run exports of the compilers and Python, and none of CUDA's and RMM's headers.
DEPENDS = {"xlogmem": {"cuda-bindings", "click", "rich", "python", "python_abi", "libgcc", "libstdcxx", "__glibc"},
           "xlogmem-bench": {"xlogmem", "python", "python_abi", "libgcc", "libstdcxx", "__glibc"},
           "xlogmem-rmm": {"xlogmem", "rmm"}}


def build(channel: Path, out: Path) -> None:
    for variant in render(PYTHON, HERE):
        start = time.monotonic()
        try:
            result = variant.run_build(ToolConfiguration(test_strategy="native"), output_dir=out,
                                       channels=[channel.as_uri()], package_format="conda:1")
        finally:
            for log in out.glob("bld/*/work/conda_build.log"):      # is deleted after a successful build
                print(log.read_text()[-5000:])
        package = Package.from_file(result.packages[0])
        depends = {spec.split()[0] for spec in package.depends}
        check(depends == DEPENDS[str(package.name)], f"{package.name} depends on {depends}")
        print(f"built and tested {Path(result.packages[0]).name} in {time.monotonic() - start:.0f} s", flush=True)


# ---------------------------------------------------------------------------------------------- solve, install
def solved(channels: list[str], specs: list[str], cuda: str | None) -> list[RepoDataRecord]:
    machine = {"__unix": "0", "__linux": "5.15", "__glibc": "2.36"} | ({"__cuda": cuda} if cuda else {})
    return asyncio.run(solve(
        sources=channels, specs=[*specs, f"python={PYTHON}"], platforms=[HERE, "noarch"],
        virtual_packages=[GenericVirtualPackage(PackageName(name), Version(version), BuildString("0"))
                          for name, version in machine.items()]))


# The requested specs, the CUDA version of the driver, and how versions or builds have to begin ("": not installed).
# None: the specs are unsolvable.
SOLVES: list[tuple[list[str], str | None, dict[str, str] | None]] = [
    (["xlogmem"], None, {"cuda-bindings": "13.", "rmm": "", "librmm": "", "cuda-cudart": ""}),
    (["xlogmem"], "13.0", {"cuda-bindings": "13.", "rmm": ""}),
    (["xlogmem"], "12.9", {"cuda-bindings": "12.9.", "rmm": ""}),
    (["xlogmem", "cuda-version=12.9"], "13.0", {"cuda-bindings": "12.9.", "rmm": ""}),
    (["xlogmem", "cuda-version=13.3"], "12.9", None),
    (["xlogmem", "rmm=26.10"], None, {"rmm": "cuda13"}),
    (["xlogmem", "rmm=26.4"], None, None),
    (["xlogmem-bench"], None, {"cuda-bindings": "13.", "rmm": ""}),
    (["xlogmem-rmm"], None, {"rmm": "cuda13", "cuda-bindings": "13."}),
    (["xlogmem-rmm"], "12.9", {"rmm": "cuda12", "cuda-bindings": "12.9."}),
    (["xlogmem-rmm", "rmm=26.4"], None, None),
]

TRACKED = """
import rmm, xlogmem, xlogmem.rmm
runtime = xlogmem.get_runtime()
buffer = rmm.DeviceBuffer(size=64, mr=xlogmem.rmm.RuntimeMemoryResource(runtime))
with xlogmem.use(runtime.acquire_stream(), read=buffer):
    pass
assert runtime.bytes_outstanding == 64, runtime.bytes_outstanding
del buffer
runtime.reap_pending()
assert runtime.bytes_outstanding == 0, runtime.bytes_outstanding
"""


def solves(channels: list[str]) -> None:
    for specs, cuda, expected in SOLVES:
        try:
            records = {record.name.normalized: record for record in solved(channels, specs, cuda)}
        except SolverError:
            check(expected is None, f"{specs}, __cuda={cuda}: no solution")
            continue
        check(expected is not None, f"{specs}, __cuda={cuda}: a solution")
        for name, start in (expected or {}).items():
            found = records.get(name)
            seen = (str(found.version), str(found.build)) if found else ("",)
            right = any(text.startswith(start) for text in seen) if start else not found
            check(right, f"{specs}, __cuda={cuda}: {name} {seen}")


def environments(channel: Path) -> None:
    """Those of this machine can be solved, as far as the channel has their packages: it does not have the tools."""
    names = {record["name"] for folder in (HERE, "noarch")
             for part in ("packages", "packages.conda")
             for record in json.loads((channel / folder / "repodata.json").read_text())[part].values()}
    for cuda in CUDA:
        path = ROOT / f"conda/environments/all_cuda-{cuda.replace('.', '')}_arch-{platform.machine()}.yaml"
        specs = [spec for spec in yaml.safe_load(path.read_text())["dependencies"]
                 if MatchSpec(spec).name.normalized in names]
        check({"cuda-bindings", "librmm", "rmm"} <= {MatchSpec(spec).name.normalized for spec in specs}, path.name)
        try:
            records = {record.name.normalized: record for record in solved([channel.as_uri()], specs, cuda)}
            check(str(records["cuda-version"].version) == cuda, f"{path.name}: cuda-version")
        except SolverError as error:
            check(False, f"{path.name}: {error}")


def fresh(channels: list[str], cuda: str, folder: Path) -> None:
    """xlogmem alone, then xlogmem-rmm into the same prefix.  Without variables that point to this machine."""
    def run(*command: str) -> str:
        done = subprocess.run([folder / "bin" / command[0], *command[1:]], cwd="/", capture_output=True, text=True,
                              env={"XLOGMEM_SIMULATE": "1", "XLOGMEM_SIM": "quiet", "COLUMNS": "100"})
        check(done.returncode == 0, f"CUDA {cuda}: {command[:2]}: {done.stdout[-500:]}{done.stderr[-1500:]}")
        return done.stdout

    for specs in (["xlogmem"], ["xlogmem-rmm"]):
        records = solved(channels, [*specs, f"cuda-version={cuda}"], cuda)
        cache = Path(os.environ["RATTLER_CACHE_DIR"], "pkgs")
        asyncio.run(install(records, target_prefix=folder, show_progress=False, cache_dir=cache))
        seen = json.loads(run("xlogmem", "demo", "--rounds", "100", "--json") or "{}")
        check(bool(seen) and seen["corrupted_without_recorder"] > 0 == seen["corrupted_with_recorder"]
              and seen["races_without_recorder"] > 0 == seen["races_with_recorder"], f"CUDA {cuda}: demo: {seen}")
    run("python", "-I", "-W", "error", "-c", TRACKED)
    records = solved(channels, ["xlogmem-bench", f"cuda-version={cuda}"], cuda)
    asyncio.run(install(records, target_prefix=folder, show_progress=False, cache_dir=cache))
    check(json.loads(run("xlogmem", "selftest", "--programs", "5", "--json") or "{}").get("violations") == 0,
          f"CUDA {cuda}: selftest")
    print("installed and run with CUDA", cuda, flush=True)


def main() -> None:
    what, *folders = sys.argv[1:]
    if what == "lint":
        lint()
    else:
        channel, out = (Path(folder).resolve() for folder in folders)
        if what == "build":
            build(channel, out)
        else:
            channels = [out.as_uri(), channel.as_uri()]
            solves(channels)
            environments(channel)
            for cuda in CUDA:
                with tempfile.TemporaryDirectory() as folder:
                    fresh(channels, cuda, Path(folder).resolve() / "env")
    print(f"{what}: {checked} checks, {len(failed)} failed")
    sys.exit(bool(failed) or not checked)


main()
