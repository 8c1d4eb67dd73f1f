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
    """Warnings are errors, but the one of an RMM that is newer than what was tested, as it is in the suite."""
    warnings = ["-W", "error", "-W", "ignore:xlogmem.rmm was tested with RMM"]
    return subprocess.run([sys.executable, *warnings, "-c", program], capture_output=True, text=True, timeout=100,
                          env=os.environ | ENVIRONMENT, cwd=ROOT)


@pytest.mark.parametrize("version", ["26.04.00", "27.02.00", "27.02.00a3"])
def test_another_release_of_rmm_is_one_clear_sentence(version):
    run = python(f"""
import sys, types
sys.modules["rmm"] = types.ModuleType("rmm")
sys.modules["rmm"].__version__ = {version!r}
try:
    import xlogmem.rmm
except ImportError as error:
    assert "26.06 to 26.10" in str(error) and {version!r} in str(error), error
else:
    raise SystemExit("imported")
assert "xlogmem.rmm._binding" not in sys.modules
""")
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("module", ["xlogmem.rmm", "xlogmem.allocators.rmm"])
@pytest.mark.parametrize(("version", "warned"), [
    ("26.10.00", False), ("26.12.00", True), ("26.12.00a41", True), ("27.01.00", True)])
def test_a_newer_release_of_rmm_is_one_warning(module, version, warned):
    """Of the program's line, and nothing is refused.  Users can filter it."""
    run = python(f"""
import warnings
import rmm, xlogmem
rmm.__version__ = {version!r}
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import {module}
    import xlogmem.rmm, xlogmem.allocators.rmm
assert len(seen) == {warned:d}, seen
for one in seen:
    assert one.category is xlogmem.UntestedReleaseWarning, one
    assert (one.filename, one.lineno) == ("<string>", 7), one
    for word in ("26.06 to 26.10", {version!r}, 'pip install "rmm-cu12==26.10.*"', "xlogmem.UntestedReleaseWarning"):
        assert word in str(one.message), one
source = rmm.mr.CallbackMemoryResource(lambda nbytes, stream: 1 << 20, lambda ptr, nbytes, stream: None)
rmm.mr.set_per_device_resource(0, source)
xlogmem.rmm.enable()
del source
""")
    assert (run.returncode, run.stderr) == (0, "")


def test_the_warning_of_a_newer_release_can_be_filtered():
    run = python("""
import warnings
import rmm, xlogmem
rmm.__version__ = "26.12.00"
warnings.simplefilter("error")
try:
    import xlogmem.rmm
except xlogmem.UntestedReleaseWarning:
    pass
else:
    raise SystemExit("no warning")
warnings.simplefilter("ignore", xlogmem.UntestedReleaseWarning)
import xlogmem.rmm
""")
    assert (run.returncode, run.stderr) == (0, "")


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
