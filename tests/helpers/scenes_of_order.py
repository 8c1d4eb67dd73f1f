"""Scenes of streams and events."""
from __future__ import annotations

import ctypes
import os
from typing import Any

from fabricated import EVENT, LEGACY, OWN, PINNED, A, B, C, Program, X, Y, out, scene

# -- streams ------------------------------------------------------------------------------------------

OTHER = 0xA000                                          # a stream of another context


@scene("certain write/write")
def two_streams(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    p.fill(X, A if repaired else B)


for entry, field in {"cuStreamCreate": "Flags", "cuStreamCreateWithPriority": "flags",
                     "cuGreenCtxStreamCreate": "flags"}.items():
    def default_waits(p: Program, repaired: bool, entry: str = entry, field: str = field) -> None:
        p.call(entry, phStream=out(C), **{field: 0 if repaired else 1})
        p.fill(X, C)
        p.fill(X, LEGACY)

    scene("certain write/write", name=f"a stream of {entry} waits for the default one unless its flag says otherwise")(
        default_waits)


@scene("certain write/write")
def handles_0_and_1_are_the_default_stream(p: Program, repaired: bool) -> None:
    p.fill(X, 0)
    p.in_thread(lambda: p.fill(X, 1 if repaired else A))


@scene("certain write/write")
def handle_1_is_the_default_stream_in_every_entry_point(p: Program, repaired: bool) -> None:
    for work in (lambda run: run(), p.in_thread):
        work(lambda: p.call("cuMemsetD8Async_ptsz", dstDevice=X, N=1, hStream=1 if repaired else 0))


@scene("certain write/write")
def handle_2_is_the_threads_own(p: Program, repaired: bool) -> None:
    p.fill(X, OWN)
    if repaired:
        p.fill(X, OWN)
    else:
        p.in_thread(lambda: p.fill(X, OWN))


@scene("certain write/write")
def handle_2_is_handle_0_of_the_other_entry_points(p: Program, repaired: bool) -> None:
    def fill() -> None:
        p.call("cuMemsetD8Async_ptsz", dstDevice=X, N=1, hStream=0)

    p.fill(X, OWN)
    if repaired:
        fill()
    else:
        p.in_thread(fill)


@scene("certain write/write")
def a_threads_own_stream_is_in_order_with_the_default_one(p: Program, repaired: bool) -> None:
    p.fill(X, OWN)
    p.fill(X, LEGACY if repaired else A)


@scene("certain write/write")
def each_context_has_a_default_stream(p: Program, repaired: bool) -> None:
    p.fill(X, LEGACY)
    if not repaired:
        p.context = 2
    p.fill(X, LEGACY)


@scene("certain write/write")
def a_stream_belongs_to_the_context_that_made_it(p: Program, repaired: bool) -> None:
    p.context = 2
    p.create(C, flags=0)
    p.fill(X, C)
    p.context = 2 if repaired else 1
    p.fill(X, LEGACY)


@scene("certain write/write")
def own_streams_end_with_their_thread(p: Program, repaired: bool) -> None:
    p.in_thread(lambda: p.fill(X, OWN))
    if repaired:
        p.call("cuCtxSynchronize")
    p.in_thread(lambda: p.fill(X, OWN))


@scene("certain write/write")
def a_wait_for_a_primary_context_is_one_for_its_green_contexts(p: Program, repaired: bool) -> None:
    if repaired:
        p.call("cuGreenCtxCreate", phCtx=out(0x9000))
    p.context = 2                                       # as CUPTI numbers the green one
    p.call("cuStreamCreate", phStream=out(C), Flags=1)
    p.fill(X, C)
    p.context = 1
    p.call("cuCtxSynchronize")
    p.fill(X, A)


@scene("certain dead-stream")
def a_destroyed_stream(p: Program, repaired: bool) -> None:
    if not repaired:
        p.call("cuStreamDestroy_v2", hStream=A)
    p.fill(X, A)


@scene("certain dead-stream")
def a_stream_that_the_driver_does_not_destroy(p: Program, repaired: bool) -> None:
    """As in a context that an illegal address has broken."""
    p.call("cuStreamDestroy_v2", 700 if repaired else 0, hStream=A)
    p.fill(X, A)


@scene("certain dead-event")
def an_event_that_the_driver_does_not_destroy(p: Program, repaired: bool) -> None:
    event = p.record(A)
    p.call("cuEventDestroy_v2", 700 if repaired else 0, hEvent=event)
    p.wait(B, event)


@scene("certain dead-stream")
def a_handle_that_is_given_out_again_at_once(p: Program, repaired: bool) -> None:
    """... before the call that destroys the old stream has returned."""
    p.call("cuStreamDestroy_v2", hStream=A,
           meanwhile=lambda: p.in_thread(lambda: p.create(A if repaired else C)))
    p.fill(X, A)


@scene("certain write/write")
def an_event_that_is_given_out_again_at_once(p: Program, repaired: bool) -> None:
    """It is alive, and was not recorded."""
    p.fill(X, A)
    event = p.record(A)
    p.call("cuEventDestroy_v2", hEvent=event,
           meanwhile=lambda: p.in_thread(lambda: p.call("cuEventCreate", phEvent=out(event))))
    if repaired:
        p.call("cuEventRecord", hEvent=event, hStream=A)
    p.wait(B, event)
    p.fill(X, B)


@scene("possible write/write")
def a_foreign_event_that_the_driver_does_not_destroy(p: Program, repaired: bool) -> None:
    p.call("cuIpcOpenEventHandle", phEvent=out(EVENT))
    p.call("cuEventDestroy_v2", 700, hEvent=EVENT)
    p.fill(X, A)
    if repaired:
        p.order(A, B)
    p.wait(B, EVENT)
    p.fill(X, B)


@scene("certain dead-stream")
def a_stream_that_is_destroyed_twice(p: Program, repaired: bool) -> None:
    p.call("cuStreamDestroy_v2", hStream=A)
    p.call("cuStreamDestroy_v2", hStream=B if repaired else A)


@scene("certain dead-stream")
def the_streams_of_a_context_end_with_it(p: Program, repaired: bool) -> None:
    p.context = 2
    p.create(OTHER)
    p.context = 1
    p.call("cuCtxDestroy_v2", 201 if repaired else 0, ctx=2)
    p.fill(X, OTHER)


def make_primary(p: Program, device: int = 0) -> None:
    """Retain the primary context of the device, which is context 2, with the stream OTHER; context 1 stays current."""
    p.call("cuDevicePrimaryCtxRetain", pctx=out(2), dev=device)
    p.context = 2
    p.create(OTHER)
    p.context = 1


@scene("certain dead-stream")
def a_reset_of_a_device_ends_its_primary_context(p: Program, repaired: bool) -> None:
    make_primary(p)
    p.call("cuDevicePrimaryCtxReset_v2", dev=1 if repaired else 0)
    p.fill(X, OTHER)


NOTHING = ctypes.CFUNCTYPE(None)(lambda: None)


def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)


for entry in ("cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"):
    def the_last_release(p: Program, repaired: bool, entry: str = entry) -> None:
        """Which it is, the driver says: CUDA's runtime has references that are not seen."""
        make_primary(p)
        driver().set_primary(repaired, NOTHING)
        p.call(entry, dev=0)
        p.fill(X, OTHER)

    scene("certain dead-stream", name=f"{entry}, if it is the last one, ends the context")(the_last_release)


@scene("certain dead-stream")
def a_release_is_of_one_device(p: Program, repaired: bool) -> None:
    make_primary(p)
    driver().set_primary(0, NOTHING)
    p.call("cuDevicePrimaryCtxRelease_v2", dev=1 if repaired else 0)
    p.fill(X, OTHER)


@scene("certain dead-stream")
def a_release_of_which_the_driver_says_nothing(p: Program, repaired: bool) -> None:
    device = 8 if repaired else 0
    make_primary(p, device)
    driver().set_primary(0, NOTHING)
    p.call("cuDevicePrimaryCtxRelease_v2", dev=device)
    p.fill(X, OTHER)


@scene("certain dead-stream")
def another_thread_makes_the_primary_context_anew(p: Program, repaired: bool) -> None:
    """... while the driver says that it has ended."""
    make_primary(p)
    driver().set_primary(0, anew := ctypes.CFUNCTYPE(None)(lambda: p.in_thread(
        lambda: p.call("cuDevicePrimaryCtxRetain", pctx=out(2), dev=0 if repaired else 1))))
    p.call("cuDevicePrimaryCtxRelease_v2", dev=0)
    driver().set_primary(0, NOTHING)
    p.fill(X, OTHER)
    assert anew


@scene("certain dead-event")
def the_events_of_a_context_end_with_it(p: Program, repaired: bool) -> None:
    p.context = 2
    p.call("cuEventCreate", phEvent=out(EVENT), Flags=0)
    if repaired:
        p.context = 1
        p.call("cuEventCreate", phEvent=out(EVENT), Flags=0)
    p.context = 1
    p.call("cuCtxDestroy_v2", ctx=2)
    p.call("cuStreamWaitEvent", hStream=A, hEvent=EVENT, Flags=0)


@scene("certain write/write")
def a_handle_that_is_given_out_again_is_another_stream(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    if not repaired:
        p.call("cuStreamDestroy_v2", hStream=A)
        p.create(A)
    p.fill(X, A)


@scene("certain write/write")
def a_stream_that_was_never_seen_may_wait_for_the_default_one(p: Program, repaired: bool) -> None:
    p.fill(X, 0xABC0)
    p.fill(X, LEGACY if repaired else A)


# -- events -------------------------------------------------------------------------------------------

@scene("certain write/write")
def a_wait_for_an_event(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    event = p.record(A)
    if repaired:
        p.wait(B, event)
    p.fill(X, B)


for entry in ("cuEventRecord", "cuEventRecordWithFlags"):
    def recorded_late(p: Program, repaired: bool, entry: str = entry) -> None:
        p.call("cuEventCreate", phEvent=out(EVENT))
        if not repaired:
            p.call(entry, hEvent=EVENT, hStream=A)
        p.fill(X, A)
        if repaired:
            p.call(entry, hEvent=EVENT, hStream=A)
        p.wait(B, EVENT)
        p.fill(X, B)

    scene("certain write/write", name=f"{entry} counts where it is called")(recorded_late)

    def recorded_on_own(p: Program, repaired: bool, entry: str = entry) -> None:
        p.call("cuEventCreate", phEvent=out(EVENT))
        p.fill(X, OWN)
        p.call(entry + "_ptsz" if repaired else entry, hEvent=EVENT, hStream=0 if repaired else C)
        p.call("cuStreamWaitEvent_ptsz", hStream=A, hEvent=EVENT)
        p.fill(X, A)

    scene("certain write/write", name=f"{entry}_ptsz is on the thread's own stream")(recorded_on_own)


@scene("certain write/write")
def the_threads_own_stream_waits(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    p.call("cuStreamWaitEvent_ptsz", hStream=0 if repaired else B, hEvent=p.record(A))
    p.fill(X, OWN)


@scene("certain write/write")
def a_wait_that_the_driver_refused(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    p.call("cuStreamWaitEvent", 0 if repaired else 400, hStream=B, hEvent=p.record(A))
    p.fill(X, B)


@scene("certain write/write")
def a_wait_counts_when_it_has_returned(p: Program, repaired: bool) -> None:
    """What is queued meanwhile by another thread may come before it."""
    p.fill(X, A)
    p.call("cuStreamWaitEvent", hStream=B, hEvent=p.record(A),
           meanwhile=None if repaired else lambda: p.in_thread(lambda: p.fill(X, B)))
    if repaired:
        p.fill(X, B)


@scene("certain write/write")
def a_record_counts_before_the_call_returns(p: Program, repaired: bool) -> None:
    """Another thread may wait for the event at once."""
    def wait() -> None:
        p.in_thread(lambda: p.wait(B, EVENT))

    p.call("cuEventCreate", phEvent=out(EVENT))
    p.fill(X, A)
    p.call("cuEventRecord", hEvent=EVENT, hStream=A, meanwhile=wait if repaired else None)
    p.fill(X, B)


@scene("certain write/write")
def an_event_that_was_never_recorded_holds_nothing_up(p: Program, repaired: bool) -> None:
    p.call("cuEventCreate", phEvent=out(EVENT))
    p.fill(X, A)
    if repaired:
        p.call("cuEventRecord", hEvent=EVENT, hStream=A)
    p.wait(B, EVENT)
    p.fill(X, B)


@scene("certain dead-event", "certain write/write")
def a_destroyed_event(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    event = p.record(A)
    if not repaired:
        p.call("cuEventDestroy_v2", hEvent=event)
    p.wait(B, event)
    p.fill(X, B)


@scene("certain dead-event")
def a_destroyed_event_is_recorded(p: Program, repaired: bool) -> None:
    event = p.record(A)
    p.call("cuEventDestroy_v2", hEvent=event)
    if repaired:
        p.call("cuEventCreate", phEvent=out(event))
    p.call("cuEventRecord", hEvent=event, hStream=A)


@scene("certain dead-event")
def a_destroyed_event_is_waited_for(p: Program, repaired: bool) -> None:
    event = p.record(A)
    if not repaired:
        p.call("cuEventDestroy_v2", hEvent=event)
    p.call("cuEventSynchronize", hEvent=event)


@scene("certain write/write")
def an_event_that_is_made_again_was_not_recorded(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    event = p.record(A)
    if not repaired:
        p.call("cuEventDestroy_v2", hEvent=event)
        p.call("cuEventCreate", phEvent=out(event))
    p.wait(B, event)
    p.fill(X, B)


# -- what cannot be seen ----------------------------------------------------------------------------

@scene("possible write/write")
def an_event_of_another_process(p: Program, repaired: bool) -> None:
    p.call("cuIpcOpenEventHandle", phEvent=out(EVENT))
    p.fill(X, A)
    if repaired:
        p.order(A, B)
    p.wait(B, EVENT)
    p.fill(X, B)


@scene("possible write/write")
def an_event_that_another_process_may_record(p: Program, repaired: bool) -> None:
    p.call("cuEventCreate", phEvent=out(EVENT))
    p.call("cuIpcGetEventHandle", event=EVENT)
    p.fill(X, A)
    if repaired:
        p.call("cuEventRecord", hEvent=EVENT, hStream=A)
    p.wait(B, EVENT)
    p.fill(X, B)


@scene("certain write/write")
def an_event_that_is_made_in_place_of_a_foreign_one(p: Program, repaired: bool) -> None:
    p.call("cuIpcOpenEventHandle", phEvent=out(EVENT))
    p.call("cuEventDestroy_v2", hEvent=EVENT)
    p.call("cuEventCreate", phEvent=out(EVENT))
    p.fill(X, A)
    if repaired:
        p.call("cuEventRecord", hEvent=EVENT, hStream=A)
    p.wait(B, EVENT)
    p.fill(X, B)


def values(*operations: tuple[int, int]) -> dict[str, Any]:
    """A batch of operations on values in memory: the type and the address of each."""
    words = [word for operation, at in operations for word in (operation, at, 7, 0, 0, 0)]
    return {"count": len(operations), "paramArray": (ctypes.c_uint64 * len(words))(*words)}


for entry, fields in {
    "cuStreamWaitValue32": {}, "cuStreamWaitValue32_v2": {}, "cuStreamWaitValue64": {}, "cuStreamWaitValue64_v2": {},
    "cuStreamBatchMemOp": values((1, X)), "cuStreamBatchMemOp_v2": values((2, Y), (4, X)),
    "cuWaitExternalSemaphoresAsync": {"numExtSems": 1},
}.items():
    for suffix in ("", "_ptsz"):
        def unseen_wait(p: Program, repaired: bool, entry: str = entry + suffix,
                        fields: dict[str, Any] = fields) -> None:
            p.fill(X, A)
            if repaired:
                p.order(A, B)
            p.call(entry, stream=B, **fields)
            p.fill(X, B)

        scene("possible write/write", name=f"what comes after {entry}{suffix} is possible")(unseen_wait)

for entry, size in {"cuStreamWriteValue32": 4, "cuStreamWriteValue32_v2": 4, "cuStreamWriteValue64": 8,
                    "cuStreamWriteValue64_v2": 8}.items():
    for suffix in ("", "_ptsz"):
        def write_value(p: Program, repaired: bool, entry: str = entry + suffix, size: int = size) -> None:
            p.call(entry, stream=A, addr=X)
            p.call("cuMemsetD8Async", dstDevice=X + size - (not repaired), N=1, hStream=B)

        scene("certain write/write", name=f"{entry}{suffix} writes {size} bytes")(write_value)

for entry in ("cuStreamBatchMemOp", "cuStreamBatchMemOp_ptsz", "cuStreamBatchMemOp_v2", "cuStreamBatchMemOp_v2_ptsz"):
    for operation, size in {2: 4, 5: 8}.items():
        def write_values(p: Program, repaired: bool, entry: str = entry, operation: int = operation,
                         size: int = size) -> None:
            """A barrier does not wait."""
            p.call(entry, stream=A, **values((6, 0), (operation, Y), (operation, X)))
            p.call("cuMemsetD8Async", dstDevice=X + size - (not repaired), N=1, hStream=B)

        scene("certain write/write", name=f"operation {operation} of {entry} writes {size} bytes")(write_values)

        def values_on_the_host(p: Program, repaired: bool, entry: str = entry, operation: int = operation) -> None:
            """The host may look at them, where the batch waits too."""
            p.fill(X, A)
            p.call(entry, stream=A, **values((operation, PINNED), *[(1, Y)] * (operation == 2)))
            if repaired:
                p.synchronize(A)
            p.fill(X, B)

        scene("possible write/write", name=f"operation {operation} of {entry} to memory of the host")(
            values_on_the_host)

    def values_and_a_wait(p: Program, repaired: bool, entry: str = entry) -> None:
        """A batch that waits is not compared; what its stream did before is."""
        p.fill(X, A)
        p.call(entry, stream=A, **values((1, Y), (2, Y + 64)))
        p.fill(Y if repaired else X, B)

    scene("certain write/write", name=f"what {entry} writes after a wait may be ordered")(values_and_a_wait)


for entry, fields in {"cuMemPrefetchAsync": {"devPtr": X, "count": 64}, "cuStreamAttachMemAsync": {"dptr": X},
                      "cuMemPrefetchAsync_v2": {"devPtr": X, "count": 64}}.items():
    def touch_nothing(p: Program, repaired: bool, entry: str = entry, fields: dict[str, int] = fields) -> None:
        """Between two blocking streams the default stream orders; a call that is refused orders nothing."""
        p.create(0xA000, 0)
        p.create(0xB000, 0)
        p.fill(X, 0xA000)
        p.call(entry, 0 if repaired else 1, hStream=LEGACY, **fields)
        p.fill(X, 0xB000)

    scene("certain write/write", name=f"{entry} is work of the default stream")(touch_nothing)

    def touch_no_byte(p: Program, repaired: bool, entry: str = entry, fields: dict[str, int] = fields) -> None:
        p.fill(X, A)
        p.call(entry, hStream=B, **fields)
        if not repaired:
            p.read(X, B)

    scene("certain write/read", name=f"{entry} touches no byte")(touch_no_byte)
