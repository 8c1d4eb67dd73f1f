"""Scenes of the host's own accesses to page-locked and managed memory: see cpp/host/guard.hpp.

The memory is real here, and the accesses are.  Nothing shows system calls, so that whole pages alone are guarded.
"""
from __future__ import annotations

import ctypes
import mmap
import os
import platform
from collections.abc import Callable
from typing import Any

from copy_shapes import words
from fabricated import A, B, Program, X, out, scene

PAGE = mmap.PAGESIZE
IN_ORDER, DURING_CALL = 1, 2                            # CU_MEMCPY_SRC_ACCESS_ORDER_…
REFUSED, GRAPH, EXECUTABLE = 999, 0xA000, 0xB000
IS_HERE = platform.machine() == "x86_64" and not os.environ.get("LD_PRELOAD")      # a sanitizer has the signals
kept: list[mmap.mmap] = []

Memory = Callable[[Program], int]


def new_memory(p: Program) -> int:
    """The address of two pages; the guard begins."""
    place = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p)      # one for all, which a handler can call
    assert p.library.xcheck_guard_host(place)
    kept.append(mmap.mmap(-1, 2 * PAGE))
    return ctypes.addressof(ctypes.c_char.from_buffer(kept[-1]))


def page_locked(p: Program) -> int:
    address = new_memory(p)
    p.call("cuMemHostAlloc", pp=out(address), bytesize=2 * PAGE)
    return address


def registered(p: Program) -> int:
    """Its first and its last bytes are on pages that have others."""
    address = new_memory(p) + 64
    p.call("cuMemHostRegister_v2", p=address, bytesize=2 * PAGE - 128)
    return address


def managed(p: Program) -> int:
    address = new_memory(p)
    p.call("cuMemAllocManaged", dptr=out(address), bytesize=2 * PAGE)
    return address


def upload(p: Program, address: int, stream: int = A, bytes: int = PAGE, **more: Any) -> None:
    p.call("cuMemcpyHtoDAsync_v2", dstDevice=X, srcHost=address, ByteCount=bytes, hStream=stream, **more)


def download(p: Program, address: int, stream: int = A, **more: Any) -> None:
    p.call("cuMemcpyDtoHAsync_v2", dstHost=address, srcDevice=X, ByteCount=PAGE, hStream=stream, **more)


def pageable(p: Program) -> int:
    kernels_reach_it(p, False)
    return new_memory(p)


def unmap() -> None:
    """The memory that was made last."""
    kept.pop().close()


def kernels_reach_it(p: Program, do: bool) -> None:
    """The driver says so."""
    ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD).let_kernels_reach_all(do)


def copy_late(p: Program, address: int, entry: str = "cuMemcpyBatchAsync", order: int = IN_ORDER, **more: Any) -> None:
    attributes = (ctypes.c_uint32 * 6)(order)
    if entry == "cuMemcpyWithAttributesAsync":
        return p.call(entry, dst=X, src=address, size=PAGE, attr=attributes, hStream=A, **more)
    return p.call(entry, dsts=words(X), srcs=words(address), sizes=words(PAGE), count=1, attrs=attributes,
                  attrsIdxs=words(0), numAttrs=1, hStream=A, **more)


def write(address: int) -> None:
    ctypes.memset(address, 7, 1)


def read(address: int) -> None:
    ctypes.string_at(address, 1)


def let_system_write(p: Program, address: int) -> None:
    """It fails where the program's access would fault: then there is another finding."""
    ends = os.pipe()
    os.write(ends[1], b"x")
    try:
        os.readv(ends[0], [(ctypes.c_char * 1).from_address(address)])
    except OSError:
        p.fill(X, A)
        p.fill(X, B)
    for end in ends:
        os.close(end)


if IS_HERE:
    @scene("certain read/write")
    def the_host_overwrites_what_is_being_uploaded(p: Program, repaired: bool) -> None:
        address = page_locked(p)
        upload(p, address)
        read(address)
        if repaired:
            p.synchronize(A)
        write(address + 8)

    for entry in ("cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2", "cuMemcpyWithAttributesAsync"):
        def pageable_memory_of_a_batch(p: Program, repaired: bool, entry: str = entry) -> None:
            address = pageable(p)
            copy_late(p, address, entry)
            if repaired:
                p.synchronize(A)
            write(address + 8)
            p.synchronize(A)

        scene("certain read/write", name=f"{entry}, whose pageable source is overwritten")(pageable_memory_of_a_batch)

    @scene("certain read/write")
    def pageable_memory_is_read_in_the_call(p: Program, repaired: bool) -> None:
        address = pageable(p)
        copy_late(p, address, order=DURING_CALL if repaired else IN_ORDER)
        write(address + 8)
        p.synchronize(A)

    @scene("certain read/free")
    def pageable_memory_is_unmapped(p: Program, repaired: bool) -> None:
        address = pageable(p)
        copy_late(p, address)
        if repaired:
            p.synchronize(A)
        unmap()
        p.synchronize(A)

    @scene("certain read/write")
    def the_host_writes_pageable_memory_and_waits_for_another_stream(p: Program, repaired: bool) -> None:
        address = pageable(p)
        copy_late(p, address)
        p.synchronize(A if repaired else B)
        write(address)
        p.synchronize(A)

    @scene("certain read/write")
    def the_driver_writes_pageable_memory_that_is_read_later(p: Program, repaired: bool) -> None:
        address = pageable(p)
        copy_late(p, address)
        if repaired:
            download(p, address, meanwhile=lambda: write(address))
        else:
            write(address)
            p.synchronize(A)

    @scene("certain read/write")
    def the_driver_writes_what_is_page_locked_by_now(p: Program, repaired: bool) -> None:
        """What the host has changed before that is found."""
        address = pageable(p)
        copy_late(p, address)
        if not repaired:
            write(address)
        p.call("cuMemHostRegister_v2", p=address, bytesize=2 * PAGE)
        p.call("cuMemsetD8Async", dstDevice=address, uc=7, N=PAGE, hStream=A, meanwhile=lambda: write(address))
        p.synchronize(A)

    @scene("certain read/write")
    def a_batch_of_pageable_memory_is_refused(p: Program, repaired: bool) -> None:
        address = pageable(p)
        copy_late(p, address, result=REFUSED if repaired else 0)
        write(address)
        p.synchronize(A)

    @scene("possible read/write")
    def kernels_reach_pageable_memory(p: Program, repaired: bool) -> None:
        """One may have written there."""
        address = pageable(p)
        kernels_reach_it(p, True)
        copy_late(p, address)
        if repaired:
            p.synchronize(A)
        write(address)
        p.synchronize(A)

    @scene("certain write/read")
    def the_host_reads_what_is_being_downloaded(p: Program, repaired: bool) -> None:
        address = page_locked(p)
        download(p, address)
        write(address + PAGE)
        if repaired:
            p.call("cuEventSynchronize", hEvent=p.record(A))
        read(address + 8)

    @scene("certain write/write")
    def a_query_says_that_the_download_is_done(p: Program, repaired: bool) -> None:
        address = page_locked(p)
        download(p, address)
        p.call("cuStreamQuery", hStream=A, result=0 if repaired else 600)
        write(address)

    @scene("certain read/write")
    def the_host_waits_for_the_other_stream(p: Program, repaired: bool) -> None:
        address = page_locked(p)
        upload(p, address, A)
        p.synchronize(A if repaired else B)
        write(address)

    @scene("certain read/write")
    def an_access_comes_before_the_next_copy(p: Program, repaired: bool) -> None:
        address = page_locked(p)
        upload(p, address)
        if repaired:
            p.synchronize(A)
        write(address)
        download(p, address)

    @scene("certain read/write")
    def after_a_wait_the_system_has_the_memory(p: Program, repaired: bool) -> None:
        address = page_locked(p)
        upload(p, address)
        if not repaired:
            write(address)
        p.synchronize(A)
        let_system_write(p, address)

    @scene("certain write/read")
    def what_a_thread_does_in_a_call_is_the_drivers(p: Program, repaired: bool) -> None:
        address = page_locked(p)
        download(p, address)
        p.call("cuStreamQuery", hStream=B, meanwhile=lambda: read(address))
        if not repaired:
            read(address)

    @scene("certain read/write")
    def other_threads_are_the_programs_meanwhile(p: Program, repaired: bool) -> None:
        address = page_locked(p)
        upload(p, address)
        if repaired:
            p.synchronize(A)
        p.call("cuStreamQuery", hStream=B, meanwhile=lambda: p.in_thread(lambda: write(address)))

    @scene("certain read/write")
    def refused_work_is_none(p: Program, repaired: bool) -> None:
        address = page_locked(p)
        upload(p, address, result=REFUSED if repaired else 0)
        write(address)

    @scene("certain write/read")
    def managed_memory_is_filled(p: Program, repaired: bool) -> None:
        address = managed(p)
        p.call("cuMemsetD8Async", dstDevice=address, N=PAGE, hStream=A)
        if repaired:
            p.synchronize(A)
        read(address)

    @scene("certain read/write")
    def registered_memory_changes_on_its_last_page(p: Program, repaired: bool) -> None:
        address = registered(p)
        upload(p, address, bytes=2 * PAGE - 128)
        kept[-1][0] = kept[-1][2 * PAGE - 1] = 1        # of others
        if not repaired:
            write(address + 2 * PAGE - 130)
        p.synchronize(A)

    @scene("certain read/write")
    def the_launch_of_a_graph_reads_the_buffer_again(p: Program, repaired: bool) -> None:
        address = page_locked(p)
        p.call("cuStreamBeginCapture_v2", hStream=A)
        upload(p, address)
        p.call("cuStreamEndCapture", hStream=A, phGraph=out(GRAPH))
        write(address)
        p.call("cuGraphInstantiateWithFlags", phGraphExec=out(EXECUTABLE), hGraph=GRAPH)
        p.call("cuGraphLaunch", hGraph=EXECUTABLE, hStream=A)
        if repaired:
            p.synchronize(A)
        write(address)

    @scene("possible read/free")
    def memory_that_is_freed_is_not_guarded(p: Program, repaired: bool) -> None:
        address = page_locked(p)
        upload(p, address)
        if repaired:
            p.synchronize(A)
        p.call("cuMemFreeHost", p=address)
        let_system_write(p, address)                       # for its new owner
