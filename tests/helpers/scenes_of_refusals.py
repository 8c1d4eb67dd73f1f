"""Scenes of calls that the driver refuses: in the repaired programs it does, and nothing has happened."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fabricated import BYTES, PINNED, A, B, C, Program, X, Y, out, scene, u32, u64
from scenes_of_copies import WRITERS
from scenes_of_graphs import EXECUTABLE, begin, captured, end, instantiate, launch
from scenes_of_launches import launch as launch_kernel

REFUSED, Z = 1, 0x7000_0200_0000


def look(p: Program) -> None:
    """Another thread makes a call for which the front end has to know everything so far."""
    p.in_thread(lambda: p.synchronize(C))


def fill(p: Program, result: int, stream: int = A, meanwhile: Callable[[], None] | None = None) -> None:
    p.call("cuMemsetD8Async", result, dstDevice=X, N=BYTES, hStream=stream, meanwhile=meanwhile)


@scene("certain write/write")
def a_fill_is_refused(p: Program, repaired: bool) -> None:
    fill(p, REFUSED if repaired else 0)
    p.fill(X, B)


@scene("certain write/write")
def a_fill_is_refused_that_the_engine_has_got(p: Program, repaired: bool) -> None:
    fill(p, REFUSED if repaired else 0, meanwhile=lambda: look(p))
    p.fill(X, B)


@scene("certain write/write")
def the_second_of_two_is_refused(p: Program, repaired: bool) -> None:
    """What it has been found to do was not done."""
    p.fill(X, B)
    fill(p, REFUSED if repaired else 0, meanwhile=lambda: look(p))


@scene("certain write/write")
def one_of_several_times_is_refused(p: Program, repaired: bool) -> None:
    """The same place of the program, which has done it before."""
    for result in (REFUSED, REFUSED if repaired else 0, REFUSED):
        p.site = 50
        p.fill(X, B)
        fill(p, result, meanwhile=lambda: look(p))
        p.synchronize(A)
        p.synchronize(B)


@scene("certain write/write")
def the_times_that_are_not_refused_stay(p: Program, repaired: bool) -> None:
    for result in (0, 0, REFUSED):
        p.site = 50
        p.fill(X, B)
        p.site = 60
        if repaired:
            p.synchronize(B)
        fill(p, result, meanwhile=lambda: look(p))
        p.synchronize(A)
        p.synchronize(B)


@scene("certain write/write")
def what_was_done_before_the_refused_fill_stays(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    fill(p, REFUSED)
    if repaired:
        p.synchronize(A)
    p.fill(X, B)


for entry, fields in WRITERS.items():
    def write(p: Program, repaired: bool, entry: str = entry, fields: Callable[[], dict[str, Any]] = fields) -> None:
        p.call(entry, REFUSED if repaired else 0, hStream=A, **fields())
        p.fill(Y, B)

    scene("certain write/write", name=f"{entry} is refused")(write)


@scene("certain write/write")
def a_record_is_refused(p: Program, repaired: bool) -> None:
    """The event stands for what it did before."""
    p.fill(X, A)
    event = p.record(A if repaired else C)
    p.call("cuEventRecord", REFUSED, hEvent=event, hStream=C if repaired else A)
    p.wait(B, event)
    p.fill(X, B)


@scene("certain write/write")
def a_first_record_is_refused(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    p.call("cuEventCreate", phEvent=out(0x9900))
    p.call("cuEventRecord", 0 if repaired else REFUSED, hEvent=0x9900, hStream=A)
    p.wait(B, 0x9900)
    p.fill(X, B)


@scene("certain write/free")
def a_free_without_a_stream_that_is_refused_waits_for_nothing(p: Program, repaired: bool) -> None:
    p.call("cuMemAlloc_v2", dptr=out(Z), bytesize=BYTES)
    p.fill(X, A)
    p.call("cuMemFree_v2", 0 if repaired else REFUSED, dptr=Z)
    p.allocate(Z, B)
    p.call("cuMemFreeAsync", dptr=X, hStream=B)


@scene("certain write/free")
def a_free_is_refused_that_was_too_early(p: Program, repaired: bool) -> None:
    p.allocate(Z, A)
    p.fill(Z, A)
    p.call("cuMemFreeAsync", REFUSED if repaired else 0, dptr=Z, hStream=B)


@scene("certain use-after-free")
def a_free_in_a_capture_is_refused(p: Program, repaired: bool) -> None:
    begin(p)
    p.allocate(Z, A)
    p.call("cuMemFreeAsync", REFUSED if repaired else 0, dptr=Z, hStream=A)
    p.fill(Z, A)
    end(p)


@scene("certain use-after-free")
def an_unmapping_is_refused(p: Program, repaired: bool) -> None:
    p.call("cuMemMap", ptr=Z, size=BYTES)
    p.call("cuMemUnmap", REFUSED if repaired else 0, ptr=Z, size=BYTES)
    p.fill(Z, A)


@scene("certain read/write", "certain write/write")
def memory_whose_free_was_refused_is_still_page_locked(p: Program, repaired: bool) -> None:
    """A copy to pageable memory would be done at its return."""
    p.fill(X, A)
    p.call("cuMemFreeHost", 0 if repaired else REFUSED, p=PINNED)
    p.call("cuMemcpyDtoHAsync_v2", dstHost=PINNED, srcDevice=X, ByteCount=BYTES, hStream=A)
    p.fill(X, B)


@scene("certain write/write")
def captured_work_is_refused(p: Program, repaired: bool) -> None:
    begin(p)
    fill(p, REFUSED if repaired else 0, meanwhile=lambda: look(p))
    end(p)
    instantiate(p)
    launch(p)
    p.fill(X, B)


@scene("certain write/write")
def the_launch_of_a_graph_is_refused(p: Program, repaired: bool) -> None:
    captured(p, X)
    p.call("cuGraphLaunch", REFUSED if repaired else 0, hGraph=EXECUTABLE, hStream=A)
    p.fill(X, B)


@scene("certain write/write")
def a_refused_launch_of_a_graph_orders_nothing(p: Program, repaired: bool) -> None:
    """Launches of one graph come one after the other."""
    captured(p, X)
    launch(p, A)
    p.call("cuGraphLaunch", 0 if repaired else REFUSED, hGraph=EXECUTABLE, hStream=B)
    p.fill(X, B)


@scene("certain write/write")
def a_refused_launch_of_a_graph_is_not_its_last(p: Program, repaired: bool) -> None:
    captured(p)
    p.fill(X, B)
    p.call("cuGraphLaunch", 0 if repaired else REFUSED, hGraph=EXECUTABLE, hStream=B)
    launch(p, C)
    p.fill(X, C)


@scene("certain use/write")
def a_launch_is_refused(p: Program, repaired: bool) -> None:
    launch_kernel(p, u64(X), u32(5), result=REFUSED if repaired else 0)
    p.fill(X, B)


@scene("certain write/write")
def a_wait_for_a_value_is_refused(p: Program, repaired: bool) -> None:
    """The stream does not wait, and what it does is as certain as before."""
    p.call("cuStreamWaitValue32_v2", REFUSED, stream=A, addr=PINNED, value=1)
    p.fill(X, A)
    if repaired:
        p.synchronize(A)
    p.fill(X, B)


@scene("certain dead-event")
def a_wait_for_a_destroyed_event_is_refused(p: Program, repaired: bool) -> None:
    event = p.record(A)
    if not repaired:
        p.call("cuEventDestroy_v2", hEvent=event)
    p.call("cuStreamWaitEvent", 0 if repaired else 709, hStream=B, hEvent=event)
