"""cuda.core's examples under the check: as they should be they have no finding, and each has a wrong twin."""
from __future__ import annotations

import cuda_core_programs as programs
import pytest
from checked_libraries import line_with, needs

pytestmark = [pytest.mark.simulator, needs("cuda.core.graph", "nvidia.cuda_nvrtc")]
with_cupy = needs("cupy")
PROGRAMS = [
    pytest.param(programs.SAXPY, "write/read", id="saxpy", marks=with_cupy),
    pytest.param(programs.GRAPH, "write/write", id="graph", marks=with_cupy),
    pytest.param(programs.FORKED_GRAPH, "write/read", id="forked-graph"),
    pytest.param(programs.UPDATED_GRAPH, "write/write", id="updated-graph"),
    pytest.param(programs.DEFINED_GRAPH, "write/read", id="defined-graph"),
    pytest.param(programs.MEMORY_OF_A_GRAPH, "write/write", id="memory-of-a-graph"),
    pytest.param(programs.STRIDED_VIEW, "write/write", id="strided-view", marks=with_cupy),
    pytest.param(programs.CLUSTER, "write/write", id="cluster"),
    pytest.param(programs.DEALLOCATION_STREAM, "read/free", id="deallocation-stream"),
]


@pytest.mark.parametrize(("program", "pair"), PROGRAMS)
def test_the_wrong_twin_is_found(checked, program, pair):
    run = checked(program)
    assert run.returncode == 1, run.stderr
    assert set(run.pairs) == {(pair, True)}, run.stderr
    for finding in run.findings:
        for which in ("first", "second"):
            stack = finding[which]["captured"] or finding[which]["stack"]
            lines = [frame["line"] for frame in stack if frame["file"].endswith("program.py")]
            assert lines[0] == line_with(program, f"# the {which}"), run.stderr


@with_cupy
def test_a_kernel_that_writes_page_locked_memory_and_cannot_signal(checked):
    """The wrong twin's kernel is given page-locked memory, but has no access of the system's scope."""
    run = checked(programs.MEMORY_OPS)
    assert set(run.pairs) == {("write/read", True), ("write/write", True)}, run.stderr


@with_cupy
@pytest.mark.parametrize("store", ["*(volatile float*)(pinned + i)", "__threadfence_system(), pinned[i]"])
def test_a_kernel_that_writes_page_locked_memory_may_let_the_host_know(checked, store):
    """... where a program may look for the end of its work."""
    assert programs.MEMORY_OPS.count("data[i] = pinned[i]") == 1
    run = checked(programs.MEMORY_OPS.replace("data[i] = pinned[i] =", f"data[i] = data[i] + 3.0f; {store} ="))
    assert set(run.pairs) == {("write/read", False), ("write/write", False)}, run.stderr


@pytest.mark.parametrize("image", ["ptx", "cubin"])
@pytest.mark.parametrize(("program", "pair"), [
    *PROGRAMS, pytest.param(programs.MEMORY_OPS, "write/read", id="memory-ops", marks=with_cupy)])
def test_as_it_should_be_it_is_silent(checked, program, pair, image):
    run = checked(program, "fixed", image)
    assert run.returncode == 0, run.stderr
    assert (pair, True) not in run.pairs
    assert not [one for one in run.pairs if one[1]], run.stderr


def test_a_branch_that_is_not_joined_is_an_error(checked):
    """As on a GPU: there is no graph."""
    joins = "    builder = GraphBuilder.join(builder, branch)\n"
    assert programs.FORKED_GRAPH.count(joins) == 2
    run = checked(programs.FORKED_GRAPH.replace(joins, "    pass\n"), "fixed")
    assert run.returncode != 0
    assert "CUDA_ERROR_STREAM_CAPTURE_UNJOINED" in run.stderr
