"""Scenes of captures and graphs."""
from __future__ import annotations

from typing import Any

from fabricated import BYTES, A, B, C, Program, X, Y, out, scene

GRAPH, EXECUTABLE, Z = 0xA000, 0xB000, 0x7000_0200_0000
INVALIDATED, UNMATCHED = 901, 903


def begin(p: Program, stream: int = A, entry: str = "cuStreamBeginCapture_v2") -> None:
    p.call(entry, hStream=stream)


def end(p: Program, stream: int = A, entry: str = "cuStreamEndCapture", result: int = 0) -> None:
    p.call(entry, result, hStream=stream, phGraph=out(0 if result else GRAPH))


def instantiate(p: Program, entry: str = "cuGraphInstantiateWithFlags", graph: int = GRAPH) -> None:
    p.call(entry, phGraphExec=out(EXECUTABLE), hGraph=graph)


def captured(p: Program, address: int = Z) -> None:
    """A graph that fills memory, and its executable."""
    begin(p)
    p.fill(address, A)
    end(p)
    instantiate(p)


def launch(p: Program, stream: int = A, entry: str = "cuGraphLaunch") -> None:
    p.call(entry, hGraph=EXECUTABLE, hStream=stream)


@scene("certain write/write")
def a_graph_does_its_work_where_it_is_launched(p: Program, repaired: bool) -> None:
    captured(p, X)
    launch(p)
    if repaired:
        p.order(A, B)
    p.fill(X, B)


@scene("certain write/write")
def the_launch_of_a_graph_of_nothing_is_nothing(p: Program, repaired: bool) -> None:
    """It does not come after the last one, as that of another graph does (and as an H100 has it)."""
    begin(p)
    if repaired:
        p.fill(Y, A)
    end(p)
    instantiate(p)
    p.fill(X, A)
    for stream in (A, B):
        launch(p, stream)
    p.fill(X, B)


@scene("certain write/write")
def what_is_captured_is_not_done_yet(p: Program, repaired: bool) -> None:
    if not repaired:
        p.fill(X, A)
    captured(p, X)
    p.fill(X, B)


@scene("certain write/write")
def the_work_of_a_capture_is_judged(p: Program, repaired: bool) -> None:
    begin(p)
    p.order(A, B)
    p.fill(X, B)
    if repaired:
        p.order(B, A)
    p.fill(X, A)
    if not repaired:
        p.order(B, A)
    end(p)


for entry in ("cuStreamBeginCapture", "cuStreamBeginCapture_v2", "cuStreamBeginCaptureToGraph"):
    for suffix in ("", "_ptsz"):
        def begins(p: Program, repaired: bool, entry: str = entry + suffix) -> None:
            p.call(entry, 0 if repaired else 1, hStream=A)
            p.fill(X, A)
            end(p)
            p.fill(X, B)

        scene("certain write/write", name=f"{entry}{suffix} begins a capture")(begins)


@scene("certain write/write")
def cuStreamEndCapture_ends_it(p: Program, repaired: bool) -> None:
    begin(p)
    if not repaired:
        end(p, entry="cuStreamEndCapture_ptsz")
    p.fill(X, A)
    if repaired:
        end(p, entry="cuStreamEndCapture_ptsz")
    p.fill(X, B)


for entry in ("cuStreamGetCaptureInfo_v2", "cuStreamGetCaptureInfo_v3"):
    for suffix in ("", "_ptsz"):
        def left_in_place(p: Program, repaired: bool, entry: str = entry + suffix) -> None:
            begin(p)
            p.order(A, B)
            p.call(entry, hStream=B, graph_out=out(GRAPH))
            p.fill(X, B)
            p.order(B, A)
            p.call("cuStreamEndCapture", hStream=A, phGraph=0)
            instantiate(p)
            launch(p)
            if repaired:
                p.order(A, C)
            p.fill(X, C)

        scene("certain write/write", name=f"{entry}{suffix} has the graph that no end returns")(left_in_place)


@scene("certain write/write")
def a_graph_that_was_never_seen(p: Program, repaired: bool) -> None:
    begin(p)
    p.call("cuStreamGetCaptureInfo_v2", hStream=A, graph_out=0)
    p.fill(X, A)
    p.call("cuStreamEndCapture", hStream=A, phGraph=0)
    p.fill(X, A)
    if repaired:
        p.order(A, B)
    p.fill(X, B)


for suffix in ("", "_ptsz"):
    def wait_of_a_graph(p: Program, repaired: bool, entry: str = "cuStreamWaitEvent" + suffix) -> None:
        p.fill(X, B)
        event = p.record(B)
        begin(p)
        p.call(entry, hStream=A, hEvent=event, Flags=1)
        p.fill(X, A)
        end(p)
        instantiate(p)
        if repaired:
            p.order(B, A)
        launch(p)

    def record_of_a_graph(p: Program, repaired: bool, entry: str = "cuEventRecordWithFlags" + suffix) -> None:
        event = p.record(A)
        begin(p)
        p.fill(X, A)
        p.call(entry, hStream=A, hEvent=event, flags=1)
        end(p)
        instantiate(p)
        launch(p)
        if repaired:
            p.order(A, B)
        p.wait(B, event)
        p.fill(X, B)

    scene("possible write/write", name=f"cuStreamWaitEvent{suffix} in a graph")(wait_of_a_graph)
    scene("possible write/write", name=f"cuEventRecordWithFlags{suffix} in a graph")(record_of_a_graph)


@scene("certain write/write")
def a_joined_branch_ends_before_the_capture(p: Program, repaired: bool) -> None:
    begin(p)
    p.order(A, B)
    p.fill(X, B)
    p.order(B, A)
    p.call("cuStreamDestroy_v2", hStream=B)
    end(p)
    instantiate(p)
    launch(p)
    p.create(B)
    if repaired:
        p.order(A, B)
    p.fill(X, B)


@scene("certain write/write")
def a_capture_that_was_spoilt_ends_too(p: Program, repaired: bool) -> None:
    begin(p)
    end(p, result=INVALIDATED)
    p.fill(X, A)
    if repaired:
        p.order(A, B)
    p.fill(X, B)


@scene("certain write/write")
def the_wrong_stream_does_not_end_a_capture(p: Program, repaired: bool) -> None:
    begin(p)
    p.order(A, B)
    p.fill(X, B)
    end(p, B, result=UNMATCHED)
    p.fill(X, B if repaired else A)


@scene("certain write/read")
def nothing_is_waited_for_in_a_capture(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    if not repaired:
        begin(p)
    p.call("cuMemcpyDtoHAsync_v2", dstHost=0x1000_0000, srcDevice=Y, ByteCount=64, hStream=A)
    if not repaired:
        end(p)
    p.read(X, B)


@scene("certain stale-graph")
def memory_of_a_graph_has_another_owner(p: Program, repaired: bool) -> None:
    p.allocate(Z, A)
    captured(p)
    if not repaired:
        p.free(Z, A)
        p.allocate(Z, A)
    launch(p)


@scene("certain use-after-free")
def memory_of_a_graph_is_gone(p: Program, repaired: bool) -> None:
    p.allocate(Z, A)
    captured(p)
    if not repaired:
        p.free(Z, A)
    launch(p)


for entry in ("cuGraphInstantiate", "cuGraphInstantiate_v2", "cuGraphInstantiateWithFlags",
              "cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz"):
    def instantiated(p: Program, repaired: bool, entry: str = entry) -> None:
        begin(p)
        p.fill(X, A)
        end(p)
        instantiate(p, entry)
        p.call("cuGraphDestroy", hGraph=GRAPH)
        launch(p)
        if repaired:
            p.order(A, B)
        p.fill(X, B)

    scene("certain write/write", name=f"{entry} makes an executable, which outlives the graph")(instantiated)


for entry in ("cuGraphExecUpdate", "cuGraphExecUpdate_v2"):
    def updated(p: Program, repaired: bool, entry: str = entry) -> None:
        captured(p, X)
        begin(p)
        p.fill(Y, A)
        p.call("cuStreamEndCapture", hStream=A, phGraph=out(GRAPH + 1))
        p.call(entry, 0 if repaired else 910, hGraphExec=EXECUTABLE, hGraph=GRAPH + 1)
        launch(p)
        p.fill(X, B)

    scene("certain write/write", name=f"{entry} replaces the work, if it has succeeded")(updated)


@scene("certain write/write")
def a_clone_does_the_same(p: Program, repaired: bool) -> None:
    begin(p)
    p.fill(X, A)
    end(p)
    p.call("cuGraphClone", phGraphClone=out(GRAPH + 1), originalGraph=GRAPH)
    instantiate(p, graph=GRAPH + 1)
    launch(p)
    if repaired:
        p.order(A, B)
    p.fill(X, B)


@scene("certain write/write")
def a_graph_is_launched_on_the_threads_own_stream(p: Program, repaired: bool) -> None:
    captured(p, X)
    launch(p, 0, "cuGraphLaunch" if repaired else "cuGraphLaunch_ptsz")
    p.in_thread(lambda: p.call("cuMemsetD8Async" if repaired else "cuMemsetD8Async_ptsz", dstDevice=X, N=64, hStream=0))


@scene("certain write/write")
def launches_of_one_executable_come_after_each_other(p: Program, repaired: bool) -> None:
    captured(p, X)
    launch(p, A)
    launch(p, B)
    p.fill(X, B if repaired else C)


@scene("certain write/write")
def a_destroyed_executable_is_not_known_any_more(p: Program, repaired: bool) -> None:
    captured(p, X)
    if repaired:
        p.call("cuGraphExecDestroy", hGraphExec=EXECUTABLE)
    launch(p)
    p.fill(X, B)


@scene("certain write/write")
def a_destroyed_graph_is_not_known_any_more(p: Program, repaired: bool) -> None:
    begin(p)
    p.fill(X, A)
    end(p)
    if repaired:
        p.call("cuGraphDestroy", hGraph=GRAPH)
    instantiate(p)
    launch(p)
    p.fill(X, B)


CHANGES: dict[str, dict[str, Any]] = {entry: {"hGraphExec": EXECUTABLE} for entry in (
    "cuGraphExecNodeSetParams", "cuGraphExecKernelNodeSetParams", "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphExecMemcpyNodeSetParams", "cuGraphExecMemsetNodeSetParams", "cuGraphExecChildGraphNodeSetParams",
    "cuGraphExecBatchMemOpNodeSetParams", "cuGraphExecEventRecordNodeSetEvent", "cuGraphExecEventWaitNodeSetEvent",
    "cuGraphNodeSetEnabled")}

for entry, fields in CHANGES.items():
    def changed(p: Program, repaired: bool, entry: str = entry, fields: dict[str, Any] = fields) -> None:
        p.allocate(Z, A)
        captured(p)
        p.free(Z, A)
        p.call(entry, 0 if repaired else 1, **fields)
        launch(p)

    scene("certain use-after-free", name=f"after {entry} the work is not known")(changed)


@scene("certain dead-stream")
def a_graph_is_launched_on_a_stream_that_is_there(p: Program, repaired: bool) -> None:
    captured(p, X)
    if not repaired:
        p.call("cuStreamDestroy_v2", hStream=C)
    launch(p, C)


@scene("certain alloc/use")
def memory_that_a_graph_allocates(p: Program, repaired: bool) -> None:
    begin(p)
    if repaired:
        p.allocate(Z, A)
    p.order(A, B)
    if not repaired:
        p.allocate(Z, A)
    p.call("cuMemsetD8Async", dstDevice=Z, N=BYTES, hStream=A if repaired else B)
    p.order(B, A)
    end(p)
