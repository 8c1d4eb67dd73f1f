"""The front end on a GPU, from callbacks to findings: each broken program has its findings, the repaired one none."""
from __future__ import annotations

import pytest
import scenes_of_copies  # noqa: F401
import scenes_of_extents  # noqa: F401
import scenes_of_graphs  # noqa: F401
import scenes_of_host_accesses
import scenes_of_host_memory  # noqa: F401
import scenes_of_launches  # noqa: F401
import scenes_of_libraries  # noqa: F401
import scenes_of_lists  # noqa: F401
import scenes_of_memory  # noqa: F401
import scenes_of_order  # noqa: F401
import scenes_of_pools  # noqa: F401
import scenes_of_refusals  # noqa: F401
import scenes_of_waits  # noqa: F401
from cupti_library import COMPILER, NEEDED, build_driver, library, play
from fabricated import SCENES

MODULES = [f"scenes_of_{what}" for what in (
    "copies", "extents", "graphs", "host_accesses", "host_memory", "launches", "libraries", "lists", "memory", "order",
    "pools", "refusals", "waits")]
pytestmark = [*NEEDED, COMPILER]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """All scenes are played in one process."""
    return play(library(), build_driver(tmp_path_factory.mktemp("driver")), *MODULES)


def test_there_are_scenes_of_everything(found):
    assert len(found) == 2 * len(SCENES) > 500


@pytest.mark.skipif(not scenes_of_host_accesses.IS_HERE, reason="the guard is for x86-64, and not beside a sanitizer")
def test_there_are_scenes_of_the_hosts_accesses(found):
    assert "the_host_overwrites_what_is_being_uploaded, broken" in found


@pytest.mark.parametrize("name", SCENES)
def test_a_scene(found, name):
    _, findings = SCENES[name]
    assert found[f"{name}, broken"] == findings
    assert found[f"{name}, repaired"] == []
