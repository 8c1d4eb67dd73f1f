"""Scenes of copies and fills: which bytes they touch, and what the host knows afterwards."""
from __future__ import annotations

from typing import Any

from copy_shapes import ARRAY, HOST, PITCH, planes, rows, words
from fabricated import BYTES, LEGACY, NEWER, PAGEABLE, PINNED, A, B, Program, X, Y, scene, u32, u64


def flat(**places: int) -> dict[str, Any]:
    return {"ByteCount": BYTES, **places}


def batch() -> dict[str, Any]:
    return {"dsts": words(Y + 512, Y), "srcs": words(X + 512, X), "sizes": words(512, 512), "count": 2}


# Calls that write Y on a stream; all but the first two and the fills read X.
WRITERS: dict[str, Any] = {
    "cuMemcpyHtoDAsync_v2": lambda: flat(dstDevice=Y, srcHost=PINNED),
    "cuMemcpyDtoDAsync_v2": lambda: flat(dstDevice=Y, srcDevice=X),
    "cuMemcpyAsync": lambda: flat(dst=Y, src=X),
    "cuMemcpyPeerAsync": lambda: flat(dstDevice=Y, srcDevice=X),
    "cuMemcpy2DAsync_v2": lambda: {"pCopy": rows(Y, X)},
    "cuMemcpy3DAsync_v2": lambda: {"pCopy": planes(Y, X)},
    "cuMemcpy3DPeerAsync": lambda: {"pCopy": planes(Y, X)},
    "cuMemcpyBatchAsync": batch,
    "cuMemcpyBatchAsync_v2": batch,
    "cuMemcpyWithAttributesAsync": lambda: {"dst": Y, "src": X, "size": BYTES},
    "cuMemsetD8Async": lambda: {"dstDevice": Y, "N": 16},
    "cuMemsetD16Async": lambda: {"dstDevice": Y, "N": 16},
    "cuMemsetD32Async": lambda: {"dstDevice": Y, "N": 16},
    "cuMemsetD2D8Async": lambda: {"dstDevice": Y, "dstPitch": PITCH, "Width": PITCH, "Height": 4},
    "cuMemsetD2D16Async": lambda: {"dstDevice": Y, "dstPitch": PITCH, "Width": PITCH // 2, "Height": 4},
    "cuMemsetD2D32Async": lambda: {"dstDevice": Y, "dstPitch": PITCH, "Width": PITCH // 4, "Height": 4},
}
READERS: dict[str, Any] = {
    "cuMemcpyDtoHAsync_v2": lambda: flat(dstHost=PINNED, srcDevice=X),
    **{name: fields for name, fields in WRITERS.items() if "Memcpy" in name and "HtoD" not in name},
}
# The same on the default stream, which the host does not wait for.
DEFAULT_WRITERS: dict[str, Any] = {
    "cuMemcpyHtoD_v2": lambda: flat(dstDevice=Y, srcHost=PAGEABLE),
    "cuMemcpyDtoD_v2": lambda: flat(dstDevice=Y, srcDevice=X),
    "cuMemcpyAtoD_v2": lambda: flat(dstDevice=Y),
    "cuMemcpy": lambda: flat(dst=Y, src=X),
    "cuMemcpyPeer": lambda: flat(dstDevice=Y, srcDevice=X),
    "cuMemcpy2D_v2": lambda: {"pCopy": rows(Y, X)},
    "cuMemcpy2DUnaligned_v2": lambda: {"pCopy": rows(Y, X)},
    "cuMemcpy3D_v2": lambda: {"pCopy": planes(Y, X)},
    "cuMemcpy3DPeer": lambda: {"pCopy": planes(Y, X)},
    **{name.replace("Async", "_v2"): fields for name, fields in WRITERS.items() if "Memset" in name},
}


def own(entry: str) -> str:
    """The entry point that means the thread's own default stream."""
    return entry + ("_ptsz" if "Async" in entry else "_ptds")


for entry, fields in WRITERS.items():
    def write_beside(p: Program, repaired: bool, entry: str = entry, fields: Any = fields) -> None:
        p.call(entry, hStream=A, **fields())
        if repaired:
            p.order(A, B)
        p.fill(Y, B)

    scene("certain write/write", name=f"{entry} writes on its stream")(write_beside)

for entry, fields in READERS.items():
    def read_beside(p: Program, repaired: bool, entry: str = entry, fields: Any = fields) -> None:
        p.call(entry, hStream=A, **fields())
        if repaired:
            p.order(A, B)
        p.fill(X, B)

    scene("certain read/write", name=f"{entry} reads on its stream")(read_beside)

for entry, fields in {**WRITERS, **DEFAULT_WRITERS}.items():
    if entry not in NEWER:                          # the second entry points of those are not in all headers
        def in_two_threads(p: Program, repaired: bool, entry: str = entry, fields: Any = fields) -> None:
            stream = {"hStream": 0} if "Async" in entry else {}
            chosen = entry if repaired else own(entry)          # the legacy stream is the same in both threads
            p.call(chosen, **stream, **fields())
            p.in_thread(lambda: p.call(chosen, **stream, **fields()))

        scene("certain write/write", name=f"{own(entry)} is on the thread's own stream")(in_two_threads)

for entry, fields in DEFAULT_WRITERS.items():
    def on_the_default_stream(p: Program, repaired: bool, entry: str = entry, fields: Any = fields) -> None:
        p.call(entry, **fields())
        if repaired:
            p.order(LEGACY, A)
        p.fill(Y, A)

    scene("certain write/write", name=f"{entry} is on the default stream, and waits for nothing")(on_the_default_stream)


# -- what the host knows --------------------------------------------------------------------------

def read_to(name: str, host: int, stream: int | None) -> tuple[str, dict[str, Any]]:
    return (name, flat(dstHost=host, srcDevice=X) | ({} if stream is None else {"hStream": stream}))


HOST_KNOWS = {
    # A copy after which the host knows that it is done, and one after which it does not.
    "to pageable memory": (read_to("cuMemcpyDtoHAsync_v2", PAGEABLE, A), read_to("cuMemcpyDtoHAsync_v2", PINNED, A)),
    "to pageable memory by address": (("cuMemcpyAsync", flat(dst=PAGEABLE, src=X, hStream=A)),
                                      ("cuMemcpyAsync", flat(dst=PINNED, src=X, hStream=A))),
    "to page-locked memory, without a stream": (read_to("cuMemcpyDtoH_v2", PINNED, None),
                                                ("cuMemcpyDtoD_v2", flat(dstDevice=Y + 8192, srcDevice=X))),
    "rows to pageable memory": (
        ("cuMemcpy2DAsync_v2", {"pCopy": (1, PAGEABLE), "hStream": A}),
        ("cuMemcpy2DAsync_v2", {"pCopy": (1, PINNED), "hStream": A})),
    "planes to pageable memory": (
        ("cuMemcpy3DAsync_v2", {"pCopy": (2, PAGEABLE), "hStream": A}),
        ("cuMemcpy3DAsync_v2", {"pCopy": (2, PINNED), "hStream": A})),
}

for title, (waits, does_not) in HOST_KNOWS.items():
    def then_free(p: Program, repaired: bool, waits: Any = waits, does_not: Any = does_not) -> None:
        entry, fields = waits if repaired else does_not
        fields = dict(fields)
        if isinstance(fields.get("pCopy"), tuple):
            make, host = (rows, planes)[fields["pCopy"][0] - 1], fields["pCopy"][1]
            fields["pCopy"] = make(0, X, dstMemoryType=HOST, dstHost=host)
        p.call(entry, **fields)
        p.fill(X, B)

    scene("certain read/write", name=f"a copy {title} is waited for")(then_free)


@scene("certain write/read")
def an_upload_from_pageable_memory_is_only_staged(p: Program, repaired: bool) -> None:
    p.call("cuMemcpyHtoD_v2", **flat(dstDevice=X, srcHost=PAGEABLE))
    if repaired:
        p.synchronize(LEGACY)
    p.read(X, B)


@scene("certain write/read")
def an_upload_from_page_locked_memory_is_waited_for_without_a_stream(p: Program, repaired: bool) -> None:
    if repaired:
        p.call("cuMemcpyHtoD_v2", **flat(dstDevice=X, srcHost=PINNED))
    else:
        p.call("cuMemcpyHtoDAsync_v2", **flat(dstDevice=X, srcHost=PINNED, hStream=0))
    p.read(X, B)


@scene("certain write/read")
def an_upload_from_pageable_memory_waits_for_what_was_queued_before(p: Program, repaired: bool) -> None:
    """Without a stream."""
    p.fill(X, LEGACY)
    if repaired:
        p.call("cuMemcpyHtoD_v2", **flat(dstDevice=Y, srcHost=PAGEABLE))
    else:
        p.call("cuMemcpyHtoDAsync_v2", **flat(dstDevice=Y, srcHost=PAGEABLE, hStream=LEGACY))
    p.read(X, B)


@scene("certain write/read")
def a_copy_on_the_host_is_waited_for(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    source = PAGEABLE if repaired else Y
    p.call("cuMemcpyAsync", **flat(dst=PINNED, src=source, hStream=A))
    p.read(X, B)


def with_attributes(entry: str, target: int, source: int, order: int) -> dict[str, Any]:
    attributes = (u32 * 6)(order)                       # CUmemcpyAttributes
    if "Batch" in entry:
        return {"dsts": words(target), "srcs": words(source), "sizes": words(64), "count": 1, "attrs": attributes,
                "numAttrs": 1, "attrsIdxs": words(0)}
    return {"dst": target, "src": source, "size": 64, "attr": attributes}


IN_STREAM_ORDER, DURING_THE_CALL = 1, 2                 # CUmemcpySrcAccessOrder


for entry in ("cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2", "cuMemcpyWithAttributesAsync"):
    for host, where, order in ((PAGEABLE, "pageable", IN_STREAM_ORDER), (PINNED, "page-locked", DURING_THE_CALL)):
        def the_host_does_not_wait(p: Program, repaired: bool, entry: str = entry, host: int = host) -> None:
            p.fill(X, A)
            p.call(entry, **with_attributes(entry, host, Y, IN_STREAM_ORDER), hStream=A)
            if repaired:
                p.synchronize(A)
            p.read(X, B)

        scene("certain write/read", name=f"{entry} to {where} memory is not waited for")(the_host_does_not_wait)

        def the_host_may_wait(p: Program, repaired: bool, entry: str = entry, host: int = host,
                              order: int = order) -> None:
            """For what was queued before, and not for the copy."""
            p.fill(X, A)
            p.call(entry, **with_attributes(entry, Y, host, order), hStream=A)
            if repaired:
                p.synchronize(A)
            p.read(X, B)
            p.read(Y, B)

        scene("certain write/read", "possible write/read",
              name=f"{entry} from {where} memory may be waited for")(the_host_may_wait)


for entry in ("cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2", "cuMemcpyWithAttributesAsync"):
    def the_source_is_read_in_the_call(p: Program, repaired: bool, entry: str = entry) -> None:
        order = DURING_THE_CALL if repaired else IN_STREAM_ORDER
        p.call(entry, **with_attributes(entry, PINNED, X, order), hStream=A)
        p.fill(X, B)

    scene("certain read/write", name=f"{entry} reads the source in the call")(the_source_is_read_in_the_call)


@scene("certain read/write")
def each_copy_of_a_batch_has_its_attribute(p: Program, repaired: bool) -> None:
    attributes = ((u32 * 6) * 2)((u32 * 6)(IN_STREAM_ORDER), (u32 * 6)(DURING_THE_CALL))
    p.call("cuMemcpyBatchAsync", dsts=words(PINNED, PINNED + 64, PINNED + 128), srcs=words(Y, Y + 64, X),
           sizes=words(64, 64, 64), count=3, attrs=attributes, numAttrs=2, attrsIdxs=words(0, 2), hStream=A)
    p.fill(X if repaired else Y, B)


@scene("certain write/read")
def a_copy_that_failed_was_not_waited_for(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    p.call("cuMemcpyDtoHAsync_v2", 0 if repaired else 700, **flat(dstHost=PAGEABLE, srcDevice=X, hStream=A))
    p.read(X, B)


@scene("certain write/read")
def memory_that_is_page_locked_later(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    if not repaired:
        p.call("cuMemHostRegister_v2", p=PAGEABLE, bytesize=BYTES)
    p.call("cuMemcpyDtoHAsync_v2", **flat(dstHost=PAGEABLE + BYTES // 2, srcDevice=Y, hStream=A) | {"ByteCount": 64})
    p.read(X, B)


for entry, begin in {"cuMemHostUnregister": "p", "cuMemFreeHost": "p"}.items():
    def not_any_more(p: Program, repaired: bool, entry: str = entry, begin: str = begin) -> None:
        p.fill(X, A)
        if repaired:
            p.call(entry, **{begin: PINNED})
        p.call("cuMemcpyDtoHAsync_v2", **flat(dstHost=PINNED, srcDevice=Y, hStream=A))
        p.read(X, B)

    scene("certain write/read", name=f"memory is pageable after {entry}")(not_any_more)


@scene("certain write/read")
def memory_after_the_end_of_what_is_page_locked_is_pageable(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    p.call("cuMemcpyDtoHAsync_v2", **flat(dstHost=PINNED + (BYTES if repaired else BYTES - 1), srcDevice=Y, hStream=A))
    p.read(X, B)


@scene("certain write/read")
def memory_of_the_other_call_for_page_locked_memory(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    p.call("cuMemAllocHost_v2", 2 if repaired else 0, pp=u64(PAGEABLE), bytesize=BYTES)     # or it has failed
    p.call("cuMemcpyDtoHAsync_v2", **flat(dstHost=PAGEABLE, srcDevice=Y, hStream=A))
    p.read(X, B)


@scene("certain write/read")
def memory_of_the_device_that_was_never_seen_is_not_the_hosts(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    p.call("cuMemcpyDtoDAsync_v2", **flat(dstDevice=0x5000_0000_0000, srcDevice=Y, hStream=A))
    if repaired:
        p.synchronize(A)
    p.read(X, B)


# -- copies in the default stream are ordered with the devices whose memory they touch -----------------

OTHER = 0x8000                                     # a stream of a second device, and memory
Z, W, POOLED = 0x7000_0200_0000, 0x7000_0300_0000, 0x7000_0400_0000
BETWEEN: dict[str, Any] = {
    "cuMemcpyDtoD_v2": lambda: flat(dstDevice=Z, srcDevice=X),
    "cuMemcpyDtoDAsync_v2": lambda: flat(dstDevice=Z, srcDevice=X, hStream=0),
    "cuMemcpy": lambda: flat(dst=Z, src=X),
    "cuMemcpyPeer": lambda: flat(dstDevice=Z, srcDevice=X),
    "cuMemcpyPeerAsync": lambda: flat(dstDevice=Z, srcDevice=X, hStream=LEGACY),
    "cuMemcpyHtoDAsync_v2": lambda: flat(dstDevice=Z, srcHost=PINNED, hStream=0),
}


def second_device(p: Program, blocking: bool) -> None:
    p.context = 2
    p.create(OTHER, flags=0 if blocking else 1)
    p.allocate(Z)
    p.allocate(W)


for entry, fields in BETWEEN.items():
    def after_the_other_device(p: Program, repaired: bool, entry: str = entry, fields: Any = fields) -> None:
        second_device(p, blocking=repaired)
        p.fill(Z, OTHER)
        p.context = 1
        p.call(entry, **fields())

    def before_the_other_device(p: Program, repaired: bool, entry: str = entry, fields: Any = fields) -> None:
        second_device(p, blocking=repaired)
        p.context = 1
        p.call(entry, **fields())
        p.context = 2
        p.fill(Z, OTHER)

    scene("certain write/write", name=f"{entry} in the default stream waits for both devices")(after_the_other_device)
    scene("certain write/write", name=f"both devices wait for {entry} in the default stream")(before_the_other_device)


@scene("certain write/write")
def memory_of_a_pool_may_be_on_any_device(p: Program, repaired: bool) -> None:
    second_device(p, blocking=repaired)
    p.context = 1
    p.call("cuMemAllocFromPoolAsync", dptr=u64(POOLED), bytesize=BYTES, pool=0x77, hStream=A)
    p.synchronize(A)
    p.context = 2
    p.fill(POOLED, OTHER)
    p.context = 1
    p.call("cuMemcpyPeer", **flat(dstDevice=POOLED, srcDevice=X))


@scene("certain write/write")
def a_copy_between_devices_in_another_stream_waits_for_its_stream(p: Program, repaired: bool) -> None:
    second_device(p, blocking=True)
    p.fill(Z, OTHER)
    p.context = 1
    p.call("cuMemcpyPeerAsync", **flat(dstDevice=Z, srcDevice=X, hStream=0 if repaired else A))


@scene("certain write/write")
def a_copy_of_the_own_memory_waits_for_no_other_device(p: Program, repaired: bool) -> None:
    second_device(p, blocking=True)
    p.fill(Z, OTHER)
    p.context = 1
    p.call("cuMemcpyDtoD_v2", **flat(dstDevice=Y, srcDevice=W if repaired else X))
    p.fill(Z, LEGACY)


# -- arrays: they have no addresses -------------------------------------------------------------------

@scene("certain write/read")
def an_array_is_no_memory_of_the_host(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    copy = rows(0, Y, dstMemoryType=ARRAY)
    p.call("cuMemcpy2DAsync_v2", pCopy=copy, hStream=A)
    if repaired:
        p.synchronize(A)
    p.read(X, B)


for entry, fields in {
    "cuMemcpyAtoH_v2": flat(dstHost=PAGEABLE),
    "cuMemcpyAtoHAsync_v2": flat(dstHost=PAGEABLE, hStream=0),
}.items():
    def from_an_array(p: Program, repaired: bool, entry: str = entry, fields: Any = fields) -> None:
        p.fill(X, LEGACY)
        if repaired:
            p.call(entry, **fields)
        p.read(X, B)

    scene("certain write/read", name=f"{entry} is waited for")(from_an_array)

for entry, fields in {
    "cuMemcpyAtoA_v2": {"ByteCount": BYTES},
    "cuMemcpyHtoAAsync_v2": flat(srcHost=PAGEABLE, hStream=0),
    "cuMemcpyAtoHAsync_v2": flat(dstHost=PINNED, hStream=0),
}.items():
    def waits_for_nothing(p: Program, repaired: bool, entry: str = entry, fields: Any = fields) -> None:
        p.fill(X, LEGACY)
        p.call(entry, **fields)
        if repaired:
            p.synchronize(LEGACY)
        p.read(X, B)

    scene("certain write/read", name=f"{entry} is not waited for")(waits_for_nothing)


@scene("certain write/read")
def an_upload_into_an_array_is_staged_as_others_are(p: Program, repaired: bool) -> None:
    p.fill(X, LEGACY)
    if repaired:
        p.call("cuMemcpyHtoA_v2", **flat(srcHost=PAGEABLE))
    p.read(X, B)


for entry, place in {"cuMemcpyDtoA_v2": "srcDevice", "cuMemcpyAtoD_v2": "dstDevice"}.items():
    def array_beside(p: Program, repaired: bool, entry: str = entry, place: str = place) -> None:
        p.call(entry, **flat(**{place: X}))
        if repaired:
            p.order(LEGACY, A)
        p.fill(X, A)

    scene("certain read/write" if "DtoA" in entry else "certain write/write",
          name=f"{entry} touches the device's side")(array_beside)
