"""`with xlogmem.check.ignore(…)`: what is found there is left out, and nothing else."""
from __future__ import annotations

import json
import sys

import pytest
from checked_programs import DRIVER

import xlogmem.check
from xlogmem.check.ignored import lines_of_block

pytestmark = pytest.mark.simulator

PROGRAM = DRIVER + """
import xlogmem.check
a, b = ok(cuda.cuStreamCreate(1)), ok(cuda.cuStreamCreate(1))
p, q = ok(cuda.cuMemAlloc(1024)), ok(cuda.cuMemAlloc(1024))

def copy(target, source):
    ok(cuda.cuMemcpyDtoDAsync(target, source, 1024, b))

ok(cuda.cuMemsetD8Async(p, 7, 1024, a))
with xlogmem.check.ignore("it is meant"):
    copy(q, p)
with xlogmem.check.ignore("nothing is wrong there"):
    ok(cuda.cuStreamSynchronize(b))
"""
MORE = PROGRAM + """
copy(q, p)
"""


@pytest.fixture
def check(tmp_path, xlogmem_check):
    def run(program):
        (tmp_path / "program.py").write_text(program)
        done = xlogmem_check("--json", "out.json", "--", sys.executable, "program.py")
        return done, json.loads((tmp_path / "out.json").read_text())["findings"]

    return run


def test_what_is_found_in_the_block_is_left_out(check):
    done, findings = check(PROGRAM)
    assert (done.returncode, findings) == (0, []), done.stderr
    assert "0 certain, 0 possible, 1 suppressed" in done.stderr


def test_a_block_that_an_exit_stack_enters(check):
    stacked = PROGRAM.replace('with xlogmem.check.ignore("it is meant"):\n', """import contextlib
with contextlib.ExitStack() as stack:
    stack.enter_context(xlogmem.check.ignore("it is meant"))
""")
    done, findings = check(stacked)
    assert (done.returncode, findings) == (0, []), done.stderr


def test_a_block_that_left_out_nothing_is_reported(check):
    done, _ = check(PROGRAM)
    line = PROGRAM.splitlines().index('with xlogmem.check.ignore("nothing is wrong there"):') + 1
    assert f"program.py:{line} (nothing is wrong there)" in done.stderr
    assert done.stderr.count("nothing to ignore") == 1


def test_what_is_found_elsewhere_is_not(check):
    done, findings = check(MORE)
    assert done.returncode == 1
    finding, = findings
    assert finding["second"]["stack"][1]["line"] == MORE.splitlines().index("copy(q, p)") + 1


def test_without_the_block_it_is_found(check):
    assert check(PROGRAM.replace('with xlogmem.check.ignore("it is meant"):', "if True:"))[0].returncode == 1


def test_the_lines_of_a_block(tmp_path):
    file = tmp_path / "it.py"
    file.write_text("with a:\n    with (b,\n          c):\n        pass\n    x\ny\n")
    assert [lines_of_block(str(file), line) for line in (1, 2, 3, 5, 6)] == [(1, 5), (2, 4), (2, 4), (1, 5), (6, 6)]
    (tmp_path / "other.py").write_text("with (\n")
    assert lines_of_block(str(tmp_path / "other.py"), 1) == (1, 1)


@pytest.mark.parametrize("reason", ["", "  ", None])
def test_a_reason_is_required(reason):
    with pytest.raises(ValueError, match="a reason is required"):
        xlogmem.check.ignore(reason)
