"""Scenes of pools of libraries: what stands in their place, and their own pieces.  And of what xlogmem declares."""
from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fabricated import BYTES, LEGACY, A, B, Program, X, scene, u32, u64
from scenes_of_launches import launch

D = 0x7300                                          # a stream that waits for the default one
Z = 0x7000_0200_0000                                # memory that is not there yet
WHOLE, PIECE, CACHED = range(3)                     # xlogmem_check_piece of engine/hooks.hpp
IN_ORDER, BY_HOST, LATER, RETURNED = range(4)       # xlogmem_check_end


class Range(ctypes.Structure):
    """xlogmem_check_range."""

    _fields_ = [("begin", u64), ("bytes", u64), ("access", ctypes.c_int)]


class Hooks(ctypes.Structure):
    """What pools of libraries report to, as in engine/hooks.hpp."""

    _fields_ = [("find_site", ctypes.CFUNCTYPE(None)),
                ("piece_allocated", ctypes.CFUNCTYPE(None, u64, u64, u64, u64, ctypes.c_char_p, ctypes.c_int)),
                ("piece_freed", ctypes.CFUNCTYPE(None, u64, u64, u64, ctypes.c_int, ctypes.c_int)),
                ("window_opened", ctypes.CFUNCTYPE(None, u64, u64, u64, ctypes.c_void_p, ctypes.c_size_t)),
                ("window_closed", ctypes.CFUNCTYPE(None, u64, ctypes.c_int)),
                ("piece_recorded", ctypes.CFUNCTYPE(None, u64, u64, u64)),
                ("replaces_pool", ctypes.CFUNCTYPE(None, ctypes.c_int)),
                ("queries_for_itself", ctypes.CFUNCTYPE(None, ctypes.c_int)),
                ("site_of_caller", ctypes.CFUNCTYPE(u32)), ("act_for", ctypes.CFUNCTYPE(None, u32))]


def hooks(p: Program) -> Hooks:
    p.library.xcheck_pretend_to_watch()
    return Hooks.from_address(p.library.xcheck_hooks())


@contextmanager
def in_place_of_a_pool(p: Program) -> Iterator[None]:
    hooks(p).replaces_pool(1)
    yield
    hooks(p).replaces_pool(0)


def hand_out(p: Program, stream: int) -> None:
    hooks(p).find_site()
    hooks(p).piece_allocated(p.context, stream, X, BYTES, None, CACHED)


def get_again(p: Program, stream: int) -> None:
    hooks(p).find_site()
    hooks(p).piece_freed(p.context, stream, X, RETURNED, 0)


@scene("possible alloc/use")
def memory_of_a_replaced_pool_is_used_before_it_is_there(p: Program, repaired: bool) -> None:
    with in_place_of_a_pool(p):
        p.allocate(Z, A)
    if repaired:
        p.order(A, B)
    p.fill(Z, B)


@scene("certain alloc/use")
def memory_of_the_programs_own_is_not_replaced(p: Program, repaired: bool) -> None:
    with in_place_of_a_pool(p):
        pass
    p.allocate(Z, A)
    if repaired:
        p.order(A, B)
    p.fill(Z, B)


@scene("certain alloc/use")
def nor_is_that_of_another_thread(p: Program, repaired: bool) -> None:
    with in_place_of_a_pool(p):
        p.in_thread(lambda: p.allocate(Z, A))
    if repaired:
        p.order(A, B)
    p.fill(Z, B)


@scene("certain read/free")
def memory_of_a_replaced_pool_is_dropped_and_handed_out_again(p: Program, repaired: bool) -> None:
    with in_place_of_a_pool(p):
        p.allocate(Z, A)
        p.order(A, B)
        p.read(Z, B)
        if repaired:
            p.order(B, A)
        p.free(Z, A)
        p.allocate(Z + 2 * BYTES, A)


@scene("certain read/reuse")
def a_piece_is_handed_out_again_while_it_is_read(p: Program, repaired: bool) -> None:
    hand_out(p, A)
    p.order(A, B)
    p.read(X, B)
    get_again(p, A)
    if repaired:
        p.order(B, A)
    hand_out(p, A)
    p.fill(X, A)


@scene("certain use/reuse")
def a_piece_is_handed_out_again_between_two_launches(p: Program, repaired: bool) -> None:
    """Nothing else is called meanwhile: see backlog.hpp."""
    hand_out(p, A)
    launch(p, u64(X), u32(5), stream=A)
    p.order(A, B)
    launch(p, u64(X), u32(5), stream=B)
    if repaired:
        p.order(B, A)
    get_again(p, A)
    hand_out(p, A)
    launch(p, u64(X), u32(5), stream=A)


@scene("certain read/free")
def the_pool_waits_for_streams_that_it_knows_of(p: Program, repaired: bool) -> None:
    hand_out(p, A)
    p.order(A, B)
    p.read(X, B)
    if repaired:
        hooks(p).piece_recorded(p.context, B, X)
    get_again(p, A)


@scene("certain alloc/free", "certain write/free")
def memory_whose_piece_is_freed_ends_as_it_began(p: Program, repaired: bool) -> None:
    """cuMemFree waits for ordinary memory, whatever a pool has cut out of it, and not for stream-ordered memory."""
    p.allocate(Z, None if repaired else A)
    hooks(p).piece_allocated(p.context, A, Z, BYTES, None, CACHED)
    p.fill(Z, A)
    hooks(p).piece_freed(p.context, A, Z, RETURNED, 0)
    p.free(Z)


@scene("certain write/free")
def a_piece_is_freed_on_another_stream(p: Program, repaired: bool) -> None:
    hooks(p).piece_allocated(p.context, A, X, BYTES, None, PIECE)
    p.fill(X, A)
    if repaired:
        p.order(A, B)
    hooks(p).piece_freed(p.context, B, X, IN_ORDER, 0)


@scene("certain write/reuse")
def the_next_owner_of_a_piece_does_not_wait(p: Program, repaired: bool) -> None:
    hooks(p).piece_allocated(p.context, A, X, BYTES, None, PIECE)
    p.fill(X, A)
    hooks(p).piece_freed(p.context, A, X, LATER, 0)
    if repaired:
        p.order(A, B)
    hooks(p).piece_allocated(p.context, B, X, BYTES, None, PIECE)


@scene("certain write/reuse")
def the_stream_of_a_piece_was_destroyed(p: Program, repaired: bool) -> None:
    """It is not called by that: what it had queued may still be under way."""
    hand_out(p, A)
    p.fill(X, A)
    if repaired:
        p.call("cuStreamSynchronize", hStream=A)
    p.call("cuStreamDestroy_v2", hStream=A)
    get_again(p, A)
    hand_out(p, B)
    p.fill(X, B)


for entry, whose, what in ((entry, *one) for entry in ("cuEventQuery", "cuStreamQuery", "cuStreamQuery_ptsz")
                           for one in ((1, "certain"), (2, "possible"))):
    def a_query_of_a_librarys_own(p: Program, repaired: bool, entry: str = entry, whose: int = whose) -> None:
        """... orders nothing, or may do so."""
        p.fill(X, A)
        event = p.record(A)
        arguments = {"hEvent": event} if entry == "cuEventQuery" else {"hStream": A}
        hooks(p).queries_for_itself(whose)
        p.call(entry, **arguments)
        hooks(p).queries_for_itself(0)
        if repaired:
            p.call(entry, **arguments)
        p.fill(X, B)

    scene(f"{what} write/write", name=f"{entry} of a library's own, {whose}")(a_query_of_a_librarys_own)

for whose, what in ((1, "certain"), (2, "possible")):
    def a_query_of_a_librarys_own_of_the_default_stream(p: Program, repaired: bool, whose: int = whose) -> None:
        """... says of other streams no more: of buffers not even that their work may be done."""
        p.create(D, flags=0)
        p.fill(X, D)
        hooks(p).queries_for_itself(whose)
        p.call("cuStreamQuery", hStream=LEGACY)
        hooks(p).queries_for_itself(0)
        if repaired:
            p.synchronize(D)
        p.fill(X, B)

    scene(f"{what} write/write", name=f"a library's own query of the default stream, {whose}")(
        a_query_of_a_librarys_own_of_the_default_stream)


@scene(*["certain write/read"] * 3)
def work_for_another_place_has_that_place(p: Program, repaired: bool) -> None:
    """The two findings of that place are one."""
    p.fill(X, A)
    requested = hooks(p).site_of_caller()
    for place in (requested, requested, 0, 0):
        hooks(p).act_for(place)
        p.fill(X, A)
        if repaired:
            p.order(A, B)
        p.read(X, B)
        p.order(B, A)


for work in (Program.fill, lambda p, address, stream: launch(p, u64(address), u32(5), stream=stream)):
    @scene("audit elsewhere", name=f"a launch elsewhere by {'a fill' if work is Program.fill else 'a kernel'}")
    def a_launch_elsewhere(p: Program, repaired: bool, work: Any = work) -> None:
        """What another thread does on the block's own stream is none of the window's."""
        table, named = hooks(p), Range(X, BYTES, 1)
        table.piece_allocated(p.context, B, X, BYTES, b"keys", WHOLE)
        p.in_thread(lambda: work(p, X, B))          # the first call of a kind has the engine name it
        table.window_opened(1, p.context, A, ctypes.byref(named), 1)
        if repaired:
            p.in_thread(lambda: work(p, X, B))
        else:
            work(p, X, B)
        table.window_closed(1, 1)
