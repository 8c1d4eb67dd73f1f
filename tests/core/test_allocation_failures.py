"""Host memory that is missing: a MemoryError that loses nothing, or one line and an abort.  Never anything else.

`allocation_failures.py` explains how.  Run as a command it fails each allocation of each program, which takes minutes;
here it fails a few of each, all of those of the exports, which become a MemoryError, and of a recording with stacks.
"""
from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest
from allocation_failures import compiler, start

from xlogmem import _driver

pytestmark = [
    pytest.mark.simulator,
    pytest.mark.skipif(compiler() is None or platform.libc_ver()[0] != "glibc", reason="needs a compiler and glibc"),
    pytest.mark.skipif(_driver.BUILD in ("asan", "tsan"), reason="sanitizers bring their own allocator"),
]


def test_a_few_allocations_of_each_program_fail(tmp_path):
    rows = list(start(tmp_path, "--most", "6"))
    assert not [row for row in rows if row["wrong"]]
    assert len(rows) >= 20
    assert all(row["outcomes"]["aborted"] for row in rows)
    assert sum(row["allocations"] for row in rows) > 3000


@pytest.mark.parametrize(("program", "outcome"), [("dlpack", "MemoryError"), ("arrow", "MemoryError"),
                                                  ("places", "aborted")])
def test_each_allocation_of_exports_and_of_places_fails(program, outcome, tmp_path):
    row, = start(tmp_path, program)
    assert not row["wrong"]
    assert row["outcomes"][outcome] > 5


def test_nothing_is_allocated_by_other_means():
    """`new` raises, and so do the vectors of libcpp."""
    sources = Path(__file__).parents[2] / "xlogmem"
    if not (sources / "_base/cpp.pxd").exists():
        pytest.skip("needs a checkout")
    for path in sorted([*sources.rglob("*.py[x]"), *sources.rglob("*.px[di]")]):
        if path.relative_to(sources).parts[0] == "rmm" or path.name == "_base/cpp.pxd":     # not tables
            continue
        assert not re.search(r"(= |\*)new \w|libcpp", path.read_text()), path
