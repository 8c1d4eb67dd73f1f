"""Scenes of allocations and frees."""
from __future__ import annotations

from fabricated import BYTES, OWN, A, B, Program, X, Y, out, scene

Z = 0x7000_0200_0000                                # memory that is not there yet
PAGE = 0x200000


@scene("certain write/free")
def memory_is_freed_on_another_stream(p: Program, repaired: bool) -> None:
    p.allocate(Z, A)
    p.fill(Z, A)
    if repaired:
        p.order(A, B)
    p.free(Z, B)


@scene("certain alloc/use")
def memory_is_used_before_it_is_there(p: Program, repaired: bool) -> None:
    p.allocate(Z, A)
    if repaired:
        p.order(A, B)
    p.fill(Z, B)


@scene("certain alloc/use")
def memory_of_a_pool_is_used_before_it_is_there(p: Program, repaired: bool) -> None:
    p.call("cuMemAllocFromPoolAsync", dptr=out(Z), bytesize=BYTES, pool=1, hStream=A)
    if repaired:
        p.order(A, B)
    p.fill(Z, B)


@scene("certain free/use")
def memory_is_used_after_its_free(p: Program, repaired: bool) -> None:
    p.allocate(Z, A)
    p.order(A, B)
    if repaired:
        p.fill(Z, B)
        p.order(B, A)
    p.free(Z, A)
    if not repaired:
        p.fill(Z, B)


@scene("certain use-after-free")
def memory_is_used_where_its_free_is_known(p: Program, repaired: bool) -> None:
    p.allocate(Z, A)
    if not repaired:
        p.free(Z, A)
    p.fill(Z, A)


for entry in ("cuMemAllocAsync", "cuMemAllocFromPoolAsync"):
    def own_streams(p: Program, repaired: bool, entry: str = entry) -> None:
        """By handle 0 in an entry point for the thread's own default stream."""
        chosen = entry if repaired else entry + "_ptsz"
        p.call(chosen, dptr=out(Z), bytesize=BYTES, hStream=0)
        fill = "cuMemsetD8Async" if repaired else "cuMemsetD8Async_ptsz"
        p.in_thread(lambda: p.call(fill, dstDevice=Z, N=1, hStream=0))

    scene("certain alloc/use", name=f"{entry}_ptsz is on the thread's own stream")(own_streams)


@scene("certain write/free")
def memory_is_freed_on_the_threads_own_stream(p: Program, repaired: bool) -> None:
    def free() -> None:
        p.call("cuMemFreeAsync_ptsz", dptr=Z, hStream=0)

    p.allocate(Z, OWN)
    p.fill(Z, OWN)
    if repaired:
        free()
    else:
        p.in_thread(free)


@scene("certain write/free")
def a_free_without_a_stream_waits_for_ordinary_memory_alone(p: Program, repaired: bool) -> None:
    if repaired:
        p.allocate(Z)
    else:
        p.allocate(Z, A)
    p.fill(Z, A)
    p.free(Z)


@scene("certain write/read")
def a_free_of_ordinary_memory_waits_for_everything(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    if repaired:
        p.free(Y)
    p.read(X, B)


@scene("certain write/read")
def a_free_of_memory_that_was_never_seen_waits_too(p: Program, repaired: bool) -> None:
    """Else an alarm might be false."""
    p.fill(X, A)
    p.free(0x5000_0000_0000 if repaired else 0)     # a free of 0 does nothing
    p.read(X, B)


@scene("certain write/read")
def a_free_waits_for_its_own_context(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    if not repaired:
        p.context = 2
    p.allocate(Z)
    p.free(Z)
    p.context = 1
    p.read(X, B)


@scene("certain write/read")
def a_free_waits_for_the_context_of_the_memory_too(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    p.context = 2
    p.allocate(Z)
    p.free(Y if repaired else Z)
    p.context = 1
    p.read(X, B)


@scene("certain write/read")
def a_free_of_managed_memory_waits_for_all_contexts(p: Program, repaired: bool) -> None:
    p.fill(X, A)
    p.context = 2
    if repaired:
        p.call("cuMemAllocManaged", dptr=out(Z), bytesize=BYTES, flags=1)
    else:
        p.allocate(Z)
    p.free(Z)
    p.context = 1
    p.read(X, B)


@scene("certain use-after-free")
def a_free_counts_before_the_call_returns(p: Program, repaired: bool) -> None:
    """Another thread may be given the address meanwhile."""
    def again() -> None:
        p.in_thread(lambda: p.allocate(Z, B))

    p.allocate(Z, A)
    p.call("cuMemFreeAsync", dptr=Z, hStream=A, meanwhile=again if repaired else None)
    p.fill(Z, B if repaired else A)


@scene("certain use-after-free")
def an_allocation_that_failed_is_none(p: Program, repaired: bool) -> None:
    p.allocate(Z, A)
    p.free(Z, A)
    p.call("cuMemAllocAsync", 0 if repaired else 2, dptr=out(Z), bytesize=BYTES, hStream=A)
    p.fill(Z, A)


@scene("certain use-after-free")
def an_allocation_counts_when_it_has_returned(p: Program, repaired: bool) -> None:
    """Before, the address may still be another block's."""
    p.allocate(Z, A)
    p.free(Z, A)
    p.call("cuMemAllocAsync", dptr=out(Z), bytesize=BYTES, hStream=A,
           meanwhile=None if repaired else lambda: p.in_thread(lambda: p.fill(Z, A)))
    p.fill(Z, A)


@scene("certain write/read")
def the_host_has_the_address_of_managed_memory(p: Program, repaired: bool) -> None:
    """Its copy waits as one to pageable memory does, and uses nothing that was freed."""
    p.call("cuMemAllocManaged", dptr=out(Z), bytesize=BYTES, flags=1)
    p.free(Z)
    p.fill(X, A)
    if repaired:
        p.call("cuMemcpyDtoHAsync_v2", dstHost=Z, srcDevice=Y, ByteCount=64, hStream=A)
    else:
        p.call("cuMemcpyHtoDAsync_v2", dstDevice=Y, srcHost=Z, ByteCount=64, hStream=A)
    p.read(X, B)


@scene("certain use-after-free")
def managed_memory_is_gone(p: Program, repaired: bool) -> None:
    """A fill names no memory of the host."""
    p.call("cuMemAllocManaged", dptr=out(Z), bytesize=BYTES, flags=1)
    p.free(Z)
    if repaired:
        p.allocate(Z)
    p.fill(Z, A)


@scene("certain use-after-free")
def other_memory_is_gone(p: Program, repaired: bool) -> None:
    """What was at its address before does not count."""
    p.call("cuMemAllocManaged", dptr=out(Z), bytesize=BYTES, flags=1)
    p.free(Z)
    p.allocate(Z)
    p.free(Z)
    if repaired:
        p.call("cuMemAllocManaged", dptr=out(Z), bytesize=BYTES, flags=1)
    p.call("cuMemcpyDtoHAsync_v2", dstHost=0x1000, srcDevice=Z, ByteCount=64, hStream=A)


for title, entry, fields in (
    ("an allocation with a pitch", "cuMemAllocPitch_v2", {"pPitch": 512, "WidthInBytes": 8, "Height": 8}),
    ("managed memory", "cuMemAllocManaged", {"bytesize": BYTES}),
):
    def last_byte(p: Program, repaired: bool, entry: str = entry, fields: dict[str, int] = fields) -> None:
        chosen = {name: out(value) if name == "pPitch" else value for name, value in fields.items()}
        p.call(entry, dptr=out(Z), **chosen)
        last = Z + 4095 + (1 if repaired else 0)
        for stream in (A, B):
            p.call("cuMemsetD8Async", dstDevice=last, N=1, hStream=stream)

    scene("certain write/write", name=f"{title} is watched to its end")(last_byte)


# -- mapped memory --------------------------------------------------------------------------------

def map_pages(p: Program, count: int = 1) -> None:
    for page in range(count):
        p.call("cuMemMap", ptr=Z + page * PAGE, size=PAGE)


@scene("certain write/free")
def unmapping_waits_for_nothing(p: Program, repaired: bool) -> None:
    map_pages(p)
    p.fill(Z, A)
    if repaired:
        p.synchronize(A)
    p.call("cuMemUnmap", ptr=Z, size=PAGE)


@scene("certain write/free")
def all_mappings_of_a_range_end(p: Program, repaired: bool) -> None:
    map_pages(p, 3)
    p.fill(Z + 2 * PAGE, A)
    p.call("cuMemUnmap", ptr=Z, size=(2 if repaired else 3) * PAGE)


@scene("certain write/write")
def a_fill_goes_over_several_mappings(p: Program, repaired: bool) -> None:
    map_pages(p, 2)
    p.fill(Z + PAGE, A)
    if repaired:
        p.synchronize(A)
    p.call("cuMemsetD8Async", dstDevice=Z, N=2 * PAGE, hStream=B)


@scene("certain use-after-free")
def memory_that_is_mapped_again_is_new(p: Program, repaired: bool) -> None:
    map_pages(p)
    p.call("cuMemUnmap", ptr=Z, size=PAGE)
    if repaired:
        map_pages(p)
    p.fill(Z, A)


@scene("certain write/write")
def addresses_that_were_never_allocated_are_not_watched(p: Program, repaired: bool) -> None:
    for stream in (A, B):
        p.fill(0x5000_0000_0000 if repaired else X, stream)


@scene("certain use-after-free")
def a_free_is_refused(p: Program, repaired: bool) -> None:
    """The driver says that it has not freed the memory."""
    p.allocate(Z, A)
    p.call("cuMemFreeAsync", dptr=Z, hStream=A, result=1 if repaired else 0)
    p.fill(Z, A)


@scene("certain use-after-free")
def a_free_without_a_stream_is_refused(p: Program, repaired: bool) -> None:
    p.call("cuMemAlloc_v2", dptr=out(Z), bytesize=BYTES)
    p.call("cuMemFree_v2", dptr=Z, result=1 if repaired else 0)
    p.fill(Z, A)

@scene("certain use-after-free")
def a_second_free_is_refused(p: Program, repaired: bool) -> None:
    p.allocate(Z, A)
    if repaired:
        p.fill(Z, A)
    p.free(Z, A)
    p.call("cuMemFreeAsync", dptr=Z, hStream=A, result=1)
    if not repaired:
        p.fill(Z, A)
