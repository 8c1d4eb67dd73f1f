"""The two front ends of the check find the same in the same calls: see two_front_ends.py."""
from __future__ import annotations

import json
import os
import subprocess
import sys

from children import variables
from cupti_library import NEEDED, library
from places import HELPERS

pytestmark = NEEDED[:]


def play(*arguments: object) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(HELPERS), os.environ.get("PYTHONPATH")]))
    return subprocess.run([sys.executable, HELPERS / "two_front_ends.py", library(), *map(str, arguments)],
                          capture_output=True, text=True, timeout=300, env=variables(quiet=True, PYTHONPATH=path))


def test_both_find_the_same():
    done = play(1, 300)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)
    assert figures["differ"] == 0
    assert figures["certain"] > 1000
    assert figures["possible"] > 10


def test_a_call_that_is_kept_from_one_makes_a_difference():
    """And the program is shown in the few calls that it takes."""
    done = play(1, 40, "cuStreamWaitEvent")
    assert done.returncode == 1, done.stdout + done.stderr
    shown, figures = done.stdout.split("program ")[1], json.loads(done.stdout.splitlines()[-1])
    assert figures["differ"] > 0
    assert "cuStreamWaitEvent" in shown
    assert "the front end on a GPU alone: (" in shown
    assert len(shown.splitlines()) < 20
