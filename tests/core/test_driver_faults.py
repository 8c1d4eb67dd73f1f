"""Any driver call may fail: no crash, an exception that is documented, and nothing lost."""
from __future__ import annotations

import subprocess

import pytest
from places import HELPERS
from sim_support import python

from xlogmem import _driver

pytestmark = pytest.mark.simulator


def sweep(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return python(str(HELPERS / "driver_faults.py"), *arguments, PYTHONPATH=str(HELPERS), **environment)


def test_every_driver_call_may_fail():
    """Here one in nine of the points, and fewer under a sanitizer; `.ci/run` has all of them."""
    done = sweep("--every", "9" if _driver.BUILD in ("release", "debug") else "53")
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}\nunder way: {done.stderr[-500:]}"
    assert done.stdout.splitlines()[-1].endswith(", 0 violations")


def test_every_first_call_may_fail():
    """Of the process: the next `get_device_state` finds nothing half made."""
    done = python(str(HELPERS / "first_calls.py"))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-500:]}"
    assert int(done.stdout.split()[-4]) > 100


@pytest.mark.skipif(_driver.BUILD != "debug", reason="a debug build has defects")
@pytest.mark.parametrize("defect", ["clock-before-wait", "at-once-stays-open", "failed-free-forgotten",
                                    "free-failure-ignored", "failed-record-filed"])
def test_the_sweep_finds_what_is_wrong(defect):
    done = sweep("out of memory", "--program", "blocks", "--program", "recorders", "--program", "dlpack_exports",
                 XLOGMEM_DEFECT=defect)
    assert done.returncode == 1, f"{done.stdout}\n{done.stderr[-500:]}"
    assert not done.stdout.endswith(" 0 violations\n")
