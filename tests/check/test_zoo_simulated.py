"""Programs of tests/zoo that the simulated driver can run: right ones are clean, wrong ones found at their marks."""
from __future__ import annotations

import fnmatch
import json
import subprocess
import sys

import pytest
from gallery import CHECK, why_not
from zoo_judge import Outcome, judged
from zoo_manifest import ours

pytestmark = pytest.mark.simulator

# cuBLAS, cuRAND and the like do not start there; of PyTorch's kernels nothing is known.
PATTERNS = ("driver_*", "core_pipeline_ptx", "cupy_graph", "cupy_map_reduce", "cupy_pipeline", "numba_pipeline",
            "xlogmem_use")
CASES = [pytest.param(program, wrong, id=f"{program.name}-{wrong.name if wrong else 'right'}")
         for program in ours() for wrong in (None, *program.wrong)
         if any(fnmatch.fnmatch(program.name, pattern) for pattern in PATTERNS)]


@pytest.mark.parametrize(("program", "wrong"), CASES)
def test_a_program_of_the_zoo(program, wrong, clean_environment, tmp_path):
    for library in {*program.needs} & {"cupy", "numba", "cuda.core"}:
        if reason := why_not(library):
            pytest.skip(reason)
    out = tmp_path / "out.json"
    command = [sys.executable, str(program.file), *program.arguments, *([wrong.name] if wrong else [])]
    done = subprocess.run([*CHECK, "--no-gpu", "--json", str(out), "--", *command], capture_output=True, text=True,
                          env=clean_environment, cwd=tmp_path, timeout=120)
    outcome = Outcome(done.returncode, done.stdout, done.stderr, document=json.loads(out.read_text()))
    assert judged(program, wrong, None, outcome, "driver") == [], done.stderr


def test_most_of_them_have_wrong_variants():
    assert len(CASES) >= 22
