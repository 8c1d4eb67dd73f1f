"""Scenes of what the host waits for."""
from __future__ import annotations

from fabricated import BYTES, LEGACY, OWN, PINNED, A, B, C, Program, X, Y, out, scene

WAITS = {
    "cuStreamSynchronize": {"hStream": A}, "cuStreamSynchronize_ptsz": {"hStream": A}, "cuStreamQuery": {"hStream": A},
    "cuStreamQuery_ptsz": {"hStream": A}, "cuEventSynchronize": {"hEvent": 0}, "cuEventQuery": {"hEvent": 0},
    "cuEventElapsedTime": {"hEnd": 0}, "cuEventElapsedTime_v2": {"hEnd": 0}, "cuCtxSynchronize": {},
    "cuCtxSynchronize_v2": {},
}

for entry, fields in WAITS.items():
    def host_waits(p: Program, repaired: bool, entry: str = entry, fields: dict[str, int] = fields) -> None:
        p.fill(X, A)
        event = p.record(A)
        chosen = {name: event if name in ("hEvent", "hEnd") else value for name, value in fields.items()}
        if repaired:
            p.call(entry, **chosen)
        else:
            p.call(entry, 600, **chosen)            # not ready
        p.fill(X, B)

    scene("certain write/write", name=f"after {entry} the host knows, if it has succeeded")(host_waits)

    def meanwhile(p: Program, repaired: bool, entry: str = entry, fields: dict[str, int] = fields) -> None:
        p.fill(X, A)
        event = p.record(A)
        chosen = {name: event if name in ("hEvent", "hEnd") else value for name, value in fields.items()}
        p.call(entry, **chosen, meanwhile=None if repaired else lambda: p.in_thread(lambda: p.fill(X, A)))
        p.fill(X, B)

    scene("certain write/write", name=f"{entry} does not wait for what is queued meanwhile")(meanwhile)


@scene("certain write/write")
def a_time_between_two_events_takes_both(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    first, second = p.record(A), p.record(C)
    p.call("cuEventElapsedTime", hStart=first if repaired else second, hEnd=second)
    p.fill(X, B)


@scene("certain write/write")
def a_wait_for_another_stream(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    p.synchronize(A if repaired else C)
    p.fill(X, B)


@scene("certain write/write")
def a_wait_for_the_default_stream_is_one_for_those_that_wait_for_it(p: Program, repaired: bool) -> None:
    p.create(C, flags=0 if repaired else 1)
    p.fill(X, C)
    p.synchronize(LEGACY)
    p.fill(X, B)


@scene("certain write/write")
def a_wait_for_the_threads_own_stream(p: Program, repaired: bool) -> None:
    p.fill(X, OWN)
    for_own = "cuStreamSynchronize_ptsz" if repaired else "cuStreamSynchronize"
    p.call(for_own, hStream=0 if repaired else A)
    p.fill(X, B)


@scene("certain write/write")
def a_wait_for_a_context_is_for_that_one(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    p.context = 1 if repaired else 2
    p.call("cuCtxSynchronize")
    p.context = 1
    p.fill(X, B)


@scene("certain write/write")
def a_wait_for_another_context_by_its_handle(p: Program, repaired: bool) -> None:
    """Which of them it is, is not known: more is ordered, and no alarm is false."""
    p.fill(X, A)
    p.context = 2
    p.call("cuCtxSynchronize_v2", ctx=1 if repaired else 2)
    p.context = 1
    p.fill(X, B)


@scene("certain write/write")
def a_callback_that_began_before_the_check_waits_for_nothing(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    p.call("cuStreamSynchronize", hStream=A, before=repaired)
    p.fill(X, B)


for entry in ("cuLaunchHostFunc", "cuLaunchHostFunc_ptsz", "cuLaunchHostFunc_v2", "cuStreamAddCallback",
              "cuStreamAddCallback_ptsz"):
    def host_function(p: Program, repaired: bool, entry: str = entry) -> None:
        """It is work of its stream, whose handle has to be one."""
        if not repaired:
            p.call("cuStreamDestroy_v2", hStream=A)
        p.call(entry, hStream=A)

    scene("certain dead-stream", name=f"{entry} is work of its stream")(host_function)


@scene("certain write/write")
def the_order_of_three_streams(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    p.order(A, C)
    if repaired:
        p.order(C, B)
    p.fill(X, B)


@scene("certain read/write")
def both_threads_are_the_host(p: Program, repaired: bool) -> None:
    """How they hand over to each other is not seen."""
    p.read(Y, A)
    if repaired:
        p.in_thread(lambda: p.synchronize(A))
    p.call("cuMemsetD8Async", dstDevice=Y, N=BYTES, hStream=B)


D = 0x7100                                          # a stream that waits for the default one


@scene("possible write/write")
def no_query_of_the_default_stream_speaks_for_others(p: Program, repaired: bool) -> None:
    """The second says as little of them as the first: perhaps their work is done."""
    p.create(D, flags=0)
    p.fill(X, D)
    for _ in range(2):
        p.call("cuStreamSynchronize" if repaired else "cuStreamQuery", hStream=LEGACY)
    p.fill(X, B)


BLOCKING, MANAGED = 0x5800, 0x7000_0200_0000
FILLS: dict[str, dict[str, int]] = {"cuMemsetD8_v2": {"N": 256},
                                    "cuMemsetD2D32_v2": {"dstPitch": 64, "Width": 4, "Height": 2}}

for entry, fields in FILLS.items():
    for memory, there in (("page-locked", PINNED), ("managed", MANAGED)):
        def filled(p: Program, repaired: bool, entry: str = entry, fields: dict[str, int] = fields,
                   there: int = there) -> None:
            p.create(BLOCKING, 0)
            p.call("cuMemAllocManaged", dptr=out(MANAGED), bytesize=BYTES, flags=1)
            p.fill(X, BLOCKING)
            p.call(entry, dstDevice=there if repaired else Y, **fields)
            p.read(X, B)

        scene("certain write/read", name=f"{entry} waits where the memory is {memory}")(filled)


for side in ("dstDevice", "srcDevice"):
    def copied(p: Program, repaired: bool, side: str = side) -> None:
        p.create(BLOCKING, 0)
        p.call("cuMemAllocManaged", dptr=out(MANAGED), bytesize=BYTES, flags=1)
        p.fill(X, BLOCKING)
        there = {"dstDevice": Y, "srcDevice": Y + 512} | ({side: MANAGED} if repaired else {})
        p.call("cuMemcpyDtoD_v2", **there, ByteCount=256)
        p.read(X, B)

    scene("certain write/read", name=f"cuMemcpyDtoD_v2 waits where its {side} is managed")(copied)


@scene("certain write/read")
def a_fill_on_a_stream_waits_for_nothing(p: Program, repaired: bool) -> None:
    p.create(BLOCKING, 0)
    p.fill(X, BLOCKING)
    if repaired:
        p.call("cuMemsetD8_v2", dstDevice=PINNED, N=256)
    else:
        p.call("cuMemsetD8Async", dstDevice=PINNED, N=256, hStream=LEGACY)
    p.read(X, B)
