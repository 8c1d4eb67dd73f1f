"""What an sdist, a wheel and a conda package may contain, and nothing else:  .ci/contents.py FILE...

Run in the checkout of the packages.  The lists are made of the files that git tracks, so that a new file is either in
its package or an error here.
"""
from __future__ import annotations

import base64
import hashlib
import io
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from pathlib import Path

from elftools.elf.elffile import ELFFile

TRACKED = set(subprocess.check_output(["git", "ls-files"], text=True).split())
VERSION = re.search(r'__version__ = "(.+)"', Path("xlogmem/__init__.py").read_text())[1]
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))       # there is no RMM for it
FORGE = r"\.git"                                        # files of git and of the forge
EGG_INFO = {"PKG-INFO", "SOURCES.txt", "dependency_links.txt", "entry_points.txt", "requires.txt", "top_level.txt"}
DIST_INFO = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt", "licenses/LICENSE"}
INSTALLED = {"INSTALLER", "REQUESTED", "direct_url.json"}          # added by pip
COMPILED = r".*\.(pyx|pxd|pxi|cpp|hpp|map)|.*/\.clang-format"       # all else below xlogmem/ is in a wheel,
INCLUDED = r"xlogmem/(include/\w+\.hpp|native\.pxd)"               # and what programs of others include
LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "libgcc_s.so.1", "libstdc++.so.6",
             "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
# cuda-bindings, not the linker, finds the driver; the symbols of each RMM release are in its own namespace.
# The simulated ones: whichever has these names is in the process already when they are loaded.
SONAMES = {"_simcuda": "libcuda.so.1", "_cudart12": "libcudart.so.12", "_cudart13": "libcudart.so.13",
           "_plain12": "libcudart.so", "_plain13": "libcudart.so", "_curand10": "libcurand.so.10",
           "_thrust1": "libxlogmem_thrust.so.1", "_nvml1": "libnvidia-ml.so.1", "_cusparse12": "libcusparse.so.12",
           **{f"_{name}{version}": f"lib{name}.so.{version}" for name in ("cufft", "cusolver") for version in (11, 12)},
           **{f"_{name}{major}": f"lib{name}.so.{major}" for name in ("cublas", "cublasLt") for major in (12, 13)}}
THE_SIMULATED = {"_cudart12": {"libcuda.so.1"}, "_cudart13": {"libcuda.so.1"}, "_plain12": {"libcudart.so.12"},
                 "_plain13": {"libcudart.so.13"},
                 **{name: {"libcuda.so.1"} for name in SONAMES
                    if name.startswith(("_curand", "_cublas", "_cufft", "_cus", "_thrust", "_nvml"))}}
FROM_THOSE = {**{name: r"cu[A-Z]" for name, needed in THE_SIMULATED.items() if "libcuda.so.1" in needed},
              "_cupy_table": r"cuda[A-Z]"}
FOREIGN = r"^(cu[A-Z]|cuda[A-Z]|nv)|3rmm|\d+rapids_logger"


@dataclass(frozen=True)
class Distribution:
    """What pip and conda install under this name."""

    name: str
    folder: str                                         # that has its packages, in the checkout
    libraries: frozenset[str] = frozenset()             # shared libraries that are not made of a .pyx
    command: bool = False

    @property
    def info(self) -> str:
        return f"{self.name.replace('-', '_')}-{VERSION}.dist-info"

    @property
    def dependencies(self) -> list[str]:
        if self.name == "xlogmem":
            return tomllib.loads(Path("pyproject.toml").read_text())["project"]["dependencies"]
        return [f"xlogmem=={VERSION}"]                  # it is compiled for that one

    def tracked(self) -> set[str]:
        """The files of its packages, as they are named where they are installed."""
        return {name.removeprefix(self.folder) for name in TRACKED if name.startswith(f"{self.folder}xlogmem")}


XLOGMEM = Distribution("xlogmem", "", frozenset(f"xlogmem/{name}" for name in (
    "sim/_simcuda", "check/_cupti", "check/_preload",
    *(f"check/cudart/{one}" for one in SONAMES if one != "_simcuda"))), command=True)
BENCH = Distribution("xlogmem-bench", "benchmarks/src/")


def distribution_of(path: Path) -> Distribution:
    return BENCH if re.match("xlogmem[_-]bench-", path.name) else XLOGMEM


class Report:
    """Counts the rules that hold; broken ones are printed, and make the exit status 1."""

    def __init__(self) -> None:
        self.kept, self.broken = 0, 0

    def rule(self, kept: bool, text: object) -> None:
        self.kept, self.broken = self.kept + bool(kept), self.broken + (not kept)
        if not kept:
            print("BROKEN:", text)

    def same(self, seen: set[str], expected: set[str], what: str) -> None:
        self.rule(not seen - expected, f"{what}: too much: {sorted(seen - expected)}")
        self.rule(not expected - seen, f"{what}: missing: {sorted(expected - seen)}")


report = Report()


def in_order(requirement: str) -> str:
    """setuptools sorts the ends of a range."""
    return " ".join(sorted(re.findall(r"[\w.-]+|[<>=]+[\w.]+", requirement)))


def metadata(distribution: Distribution, text: bytes) -> None:
    """What the registry shows and pip uses."""
    fields: Message = message_from_bytes(text)
    report.rule(fields["Name"] == distribution.name and fields["Version"] == VERSION, f"version {fields['Version']}")
    report.rule(fields["License-Expression"] == "Apache-2.0" and fields["License-File"] == "LICENSE", "licence")
    report.rule(fields["Requires-Python"] == ">=3.11", f"Requires-Python {fields['Requires-Python']}")
    report.rule(fields["Description-Content-Type"] == "text/markdown"
                and distribution.name in str(fields.get_payload()), "the README is not the description")
    needed = [line for line in fields.get_all("Requires-Dist", []) if "extra ==" not in line]
    report.same(set(map(in_order, needed)), set(map(in_order, distribution.dependencies)), "dependencies")


def sdist(path: Path) -> None:
    """All tracked files, with contents and mode; the files of setuptools; no C++ generated by Cython."""
    root = path.name.removesuffix(".tar.gz")
    report.rule(root == f"xlogmem-{VERSION}", f"the name {path.name}")
    with tarfile.open(path) as archive:
        members = {member.name.removeprefix(root + "/"): member for member in archive if not member.isdir()}
        contents = {name: archive.extractfile(member).read() for name, member in members.items() if member.isfile()}
    tracked = {name for name in TRACKED if not re.match(FORGE, name)}
    written = {"PKG-INFO", "setup.cfg", *(f"xlogmem.egg-info/{name}" for name in EGG_INFO)}
    report.same(set(contents), tracked | written, "sdist")
    for name in sorted(tracked & set(contents)):
        here = Path(name)
        report.rule(contents[name] == here.read_bytes(), f"{name} is not what is tracked")
        report.rule(bool(members[name].mode & 0o100) == bool(here.stat().st_mode & 0o100), f"the mode of {name}")
    metadata(XLOGMEM, contents["PKG-INFO"])


def wheel(path: Path) -> None:
    """Only the package and its metadata, with the right hashes."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    distribution = distribution_of(path)
    name = distribution.name.replace("-", "_")
    abi = f"{tag}t" if FREE_THREADED else tag
    report.rule(re.fullmatch(rf"{name}-{VERSION}-{tag}-{abi}-manylinux_\w+\.whl", path.name), f"the name {path.name}")
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    installed(distribution, contents, DIST_INFO)
    for line in contents[f"{distribution.info}/RECORD"].decode().splitlines():
        name, digest, _ = line.rsplit(",", 2)
        found = base64.urlsafe_b64encode(hashlib.sha256(contents.get(name, b"")).digest()).rstrip(b"=").decode()
        report.rule(digest == f"sha256={found}" or name.endswith("/RECORD"), f"RECORD of {name}")


def conda(path: Path) -> None:
    """The same files in site-packages, the command and the licence; for xlogmem-rmm no files at all."""
    from rattler.package_streaming import extract

    with tempfile.TemporaryDirectory() as folder:
        extract(path, folder)
        contents = {str(file.relative_to(folder)): file.read_bytes() for file in Path(folder).rglob("*")
                    if file.is_file() and file.suffix != ".pyc"}
    report.rule("info/licenses/LICENSE" in contents, "no licence")
    contents = {name: content for name, content in contents.items() if not name.startswith("info/")}
    if path.name.startswith("xlogmem-rmm-"):
        report.same(set(contents), set(), "xlogmem-rmm")
        return
    distribution = distribution_of(path)
    report.rule(bool(contents.pop("bin/xlogmem", None)) == distribution.command, f"bin/xlogmem in {path.name}")
    report.same({re.sub(r"^lib/python[\d.]+/site-packages/.*", "", name) for name in contents}, {""}, "conda package")
    installed(distribution, {re.sub(r"^lib/python[\d.]+/site-packages/", "", name): content
                             for name, content in contents.items()}, DIST_INFO | INSTALLED)


def installed(distribution: Distribution, contents: dict[str, bytes], info: set[str]) -> None:
    """Python, stubs, headers, a module for each .pyx, the simulated libraries, that of the check on a GPU."""
    tracked = distribution.tracked()
    modules = {name: re.sub(r"\.(cpython-\w+-[\w-]+|abi3)\.so$", "", name) for name in contents if name.endswith(".so")}
    shipped = {name for name in tracked if re.fullmatch(INCLUDED, name) or not re.fullmatch(COMPILED, name)}
    report.same(set(contents) - set(modules), shipped | {f"{distribution.info}/{name}" for name in info}, "files")
    report.same(set(modules.values()), distribution.libraries | {
        name.removesuffix(".pyx") for name in tracked if name.endswith(".pyx")
        and not (FREE_THREADED and name.startswith("xlogmem/rmm/"))}, "modules")
    report.rule(len(set(modules.values())) == len(modules), "a module is there twice")
    if distribution is XLOGMEM and not FREE_THREADED:
        report.rule("xlogmem/rmm/_binding.abi3.so" in modules, "the RMM binding is not of the limited API")
    for name in sorted(tracked):
        if re.fullmatch(r"xlogmem/(?:[a-z]\w*/)*[a-z]\w*\.pyx", name):   # no part of it is private
            report.rule(name.removesuffix("x") + "i" in contents, f"no stub of {name}")
    for name in sorted(modules):
        module(name, contents[name])
    if distribution is XLOGMEM:                             # how builds of others find what CMake has to find
        report.rule(b"[cmake.prefix]\nxlogmem = xlogmem" in contents[f"{distribution.info}/entry_points.txt"],
                    "xlogmem is not a prefix of CMake")
    metadata(distribution, contents[f"{distribution.info}/METADATA"])


def module(name: str, content: bytes) -> None:
    elf, plain = ELFFile(io.BytesIO(content)), Path(name).name.split(".")[0]
    entries = {"DT_NEEDED": set(), "DT_RPATH": set(), "DT_RUNPATH": set(), "DT_SONAME": set()}
    for entry in elf.get_section_by_name(".dynamic").iter_tags():
        if entry.entry.d_tag in entries:
            entries[entry.entry.d_tag].add(getattr(entry, entry.entry.d_tag.removeprefix("DT_").lower()))
    libraries = LIBRARIES | THE_SIMULATED.get(plain, set())
    report.rule(entries["DT_NEEDED"] <= libraries, f"{name} needs {entries['DT_NEEDED'] - libraries}")
    outside = {path for path in entries["DT_RPATH"] | entries["DT_RUNPATH"] if not path.startswith("$ORIGIN/")}
    report.rule(not outside, f"{name} searches {outside}")
    report.rule(entries["DT_SONAME"] == ({SONAMES[plain]} if plain in SONAMES else set()), f"the soname of {name}")
    undefined = [symbol.name for symbol in elf.get_section_by_name(".dynsym").iter_symbols()
                 if symbol.entry.st_shndx == "SHN_UNDEF" and re.search(FOREIGN, symbol.name)
                 and not (plain in FROM_THOSE and re.match(FROM_THOSE[plain], symbol.name))]
    report.rule(not undefined, f"{name} has undefined symbols: {undefined[:5]}")
    report.rule(not elf.get_section_by_name(".debug_info"), f"{name} has debugging information")
    report.rule(not re.search(rb"/(tmp|home|root|build)/\w|_placehold_", content), f"{name} contains its build path")


for argument in sys.argv[1:]:
    {".whl": wheel, ".conda": conda, ".gz": sdist}[Path(argument).suffix](Path(argument))
print(f"{len(sys.argv) - 1} packages: {report.kept} rules kept, {report.broken} broken")
sys.exit(bool(report.broken) or not report.kept)
