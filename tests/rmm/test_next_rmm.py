"""The binding is compiled for RMM 26.12, which has no `rmm::cuda_stream_view` (rapidsai/rmm pull request 2552).

A stand-in is made of the RMM that is installed: its headers and .pxd without that class and what speaks of it.  It is
compiled, and not linked or run: its library does not exist.
"""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace

import pytest
from fabricated import folder_of
from native_calls import CCCL, SYSTEM, WARNINGS, compiler
from parts_of_build import SETUP, part
from places import HELPERS, ROOT
from rmm_if_installed import needs_rmm, rmm

import xlogmem

GONE = "cuda_stream_view"
BINDING = ROOT / "xlogmem/rmm/_binding.pyx"
pytestmark = [
    needs_rmm,
    pytest.mark.skipif(rmm is not None and tuple(map(int, rmm.__version__.split(".")[:2])) < (26, 10),
                       reason="the binding is built with RMM 26.10 or later"),
    pytest.mark.skipif(None in CCCL, reason="needs the headers of CUDA, of the extra `test`"),
]


def deprecated_parts(text: str) -> str:
    """What 26.12 removes of a header: the include, and the functions that the header sets apart for their warnings."""
    text = re.sub(rf"#include <rmm/{GONE}.hpp>\n", "", text)
    return re.sub(r"#if defined\(__GNUC__\).*?#pragma GCC diagnostic pop\n#endif\n", "", text, flags=re.DOTALL)


@pytest.fixture(scope="module")
def next_rmm(tmp_path_factory):
    """The folders of its headers and of its .pxd."""
    made = tmp_path_factory.mktemp("next_rmm")
    shutil.copytree(CCCL[0] / "rmm", made / "include/rmm")
    shutil.copytree(Path(rmm.__file__).parent, made / "python/rmm",
                    ignore=lambda folder, names: [name for name in names if Path(name).suffix in (".so", ".pyc")])
    (made / f"include/rmm/{GONE}.hpp").unlink(missing_ok=True)          # 26.12 itself has none
    (made / f"python/rmm/librmm/{GONE}.pxd").write_text("")             # without it the installed one is found
    header = made / "include/rmm/cuda_stream.hpp"
    header.write_text(deprecated_parts(header.read_text()))
    speaks = [path for path in made.rglob("*.*") if path.is_file() and GONE in path.read_text(errors="replace")]
    assert speaks == []
    return SimpleNamespace(include=made / "include", python=made / "python")


def translate(source: Path, target: Path, python: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "cython", "-3", "--cplus", "-I", python, "-I", ROOT, source, "-o",
                           target], capture_output=True, text=True, cwd=ROOT)


def flags(include: Path) -> list[str]:
    """Those of setup.py, with other headers of RMM."""
    def folder(header: str, *wheels: str) -> str:
        return str(include if header == "rmm/resource_ref.hpp" else folder_of(header, *wheels))

    def extension(name: str, sources: list[str], **settings: object) -> SimpleNamespace:
        return SimpleNamespace(**settings)

    found, = part("rmm_binding", SETUP, Extension=extension, PackageNotFoundError=PackageNotFoundError, os=os,
                  suppress=suppress, version=version, folder_of=folder, INCLUDE=str(CCCL[2]), HEADER="", KEYWORDS="",
                  NO_ASSERTIONS=[], SYMBOLS=["-g0"], build="release")["rmm_binding"]()
    return [*found.extra_compile_args, "-O0", "-fPIC", *(f"-D{name}={value}" for name, value in found.define_macros),
            *(f"-I{folder}" for folder in found.include_dirs), f"-I{sysconfig.get_path('include')}"]


def compiled(source: Path, *options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([compiler(), *map(str, options), str(source)], capture_output=True, text=True, cwd=ROOT)


def test_the_binding_is_translated_and_compiled(next_rmm, tmp_path):
    done = translate(BINDING, tmp_path / "_binding.cpp", next_rmm.python)
    assert done.returncode == 0, done.stderr
    target = tmp_path / "_binding.o"
    done = compiled(tmp_path / "_binding.cpp", *flags(next_rmm.include), "-Werror", "-c", "-o", target)
    assert (done.returncode, done.stderr) == (0, "")
    assert b"PyInit__binding" in target.read_bytes()


def test_a_binding_that_needs_what_is_gone_is_not_translated(next_rmm, tmp_path):
    planted = tmp_path / "_binding.pyx"
    planted.write_text(BINDING.read_text() + f"\nfrom rmm.librmm.{GONE} cimport {GONE}\n")
    done = translate(planted, tmp_path / "_binding.cpp", next_rmm.python)
    assert done.returncode != 0
    assert GONE in done.stderr


@pytest.mark.parametrize("planted", ["", f"rmm::{GONE} view{{}};", f"#include <rmm/{GONE}.hpp>"])
def test_the_header_of_the_binding_that_needs_what_is_gone_is_not_compiled(next_rmm, tmp_path, planted):
    source = tmp_path / "planted.cpp"
    source.write_text(f'#include <rmm/cuda_stream_pool.hpp>\n#include "resource.hpp"\n{planted}\n')
    done = compiled(source, *flags(next_rmm.include), "-fsyntax-only")
    assert (done.returncode == 0) == (planted == ""), done.stderr
    assert (GONE in done.stderr) == (planted != "")


def test_the_header_for_cccl_is_compiled_with_its_containers(next_rmm):
    done = compiled(HELPERS / "native_resource.cpp", "-std=c++20", "-DWITH_RMM", f"-I{xlogmem.get_include()}",
                    f"-isystem{next_rmm.include}", *SYSTEM[1:], "-fsyntax-only", *WARNINGS[:2], "-Werror",
                    "-Wno-unknown-pragmas")
    assert (done.returncode, done.stderr) == (0, "")
