"""Names of kernels as findings have them, of both front ends."""
from __future__ import annotations

import subprocess

from places import ROOT

NAMES = {
    "add": "add",
    "_Z3addPKfPf": "add",
    "_Z5scaleIfEvPT_S0_": "scale<...>",
    "_ZN2at6native3sumEPf": "at::native::sum",
    "_ZN8__main__6decodeB2v1B38c8tJTIcFKzyF2ILShI4CrgQElQb6HczSBAA_3dE5ArrayIfLi1E1C7mutable7alignedE": "decode",
    "_ZN8__main__4main12_3clocals_3e6decodeB2v2B8c8tJTIcFE5ArrayIfLi1E1C7mutable7alignedE": "decode",
}


def test_the_common_names_of_kernels(tmp_path):
    program = tmp_path / "names"
    subprocess.run(["g++", "-std=c++20", "-I", "cpp", "cpp/kernels/names.cpp", "tests/check/kernel_names.cpp", "-o",
                    str(program)], cwd=ROOT, check=True)
    run = subprocess.run([str(program), *NAMES], capture_output=True, text=True, check=True)
    assert dict(zip(NAMES, run.stdout.splitlines(), strict=True)) == NAMES
