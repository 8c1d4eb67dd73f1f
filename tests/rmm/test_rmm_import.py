"""Importing `xlogmem.rmm` beside any RMM or none, and the end of a process that uses it."""
from __future__ import annotations

import os
import subprocess
import sys

import pytest
from c_table import ENVIRONMENT
from places import ROOT
from rmm_if_installed import needs_rmm

pytestmark = needs_rmm


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=100,
                          env=os.environ | ENVIRONMENT, cwd=ROOT)


@pytest.mark.parametrize(("version", "word"), [("26.04.00", "26.06 to 26.10"), ("26.12.00", "26.06 to 26.10")])
def test_another_release_of_rmm_is_one_clear_sentence(version, word):
    run = python(f"""
import sys, types
sys.modules["rmm"] = types.ModuleType("rmm")
sys.modules["rmm"].__version__ = {version!r}
try:
    import xlogmem.rmm
except ImportError as error:
    assert {word!r} in str(error) and {version!r} in str(error), error
else:
    raise SystemExit("imported")
assert "xlogmem.rmm._binding" not in sys.modules
""")
    assert run.returncode == 0, run.stderr


def test_no_rmm_is_one_clear_sentence():
    run = python("""
import sys
sys.modules["rmm"] = None
try:
    import xlogmem.rmm
except ImportError as error:
    assert "rmm-cu12==26.10.*" in str(error), error
else:
    raise SystemExit("imported")
""")
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("end", ["", "xlogmem.rmm.disable()", "raise SystemExit(0)", "import os; os._exit(0)"])
@pytest.mark.parametrize("first", ["xlogmem.rmm", "rmm"])
def test_a_process_ends_in_peace_with_everything_alive(first, end):
    run = python(f"""
import builtins, importlib
importlib.import_module({first!r})
import rmm, xlogmem, xlogmem.rmm
from rmm.pylibrmm.stream import DEFAULT_STREAM
rmm.mr.set_per_device_resource(0, xlogmem.rmm.RuntimeMemoryResource(xlogmem.DeviceRuntime()))
xlogmem.rmm.enable()
mr = rmm.mr.get_per_device_resource(0)
assert isinstance(mr.upstream_mr, xlogmem.rmm.RuntimeMemoryResource)
kept = [rmm.DeviceBuffer(size=8, mr=mr) for _ in range(10)]
builtins.kept = rmm.DeviceBuffer(size=8, mr=rmm.mr.StatisticsResourceAdaptor(mr))
stream = mr.runtime.acquire_stream()
recorder = xlogmem.use(stream, read=kept)
with recorder: pass
{end}
""")
    assert (run.returncode, run.stderr) == (0, "")
