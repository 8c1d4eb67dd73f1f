"""Scenes of kernels: where the driver says that their parameters are, and what lies there."""
from __future__ import annotations

import ctypes
import os
from typing import Any

from fabricated import BYTES, EVENT, A, B, Program, X, Y, out, scene, u32, u64

# The kernels of kernel_parameters.cpp.
PLAIN, STRUCT, LIBRARY, UNKNOWN, TWO, CHANGING, ODD = range(0xF100, 0xF800, 0x100)
Z = 0x7000_0400_0000                                # memory that is not there yet
END, BUFFER, SIZE = 0, 1, 2                          # CU_LAUNCH_PARAM_…
COMPLETION, PROGRAMMATIC = 12, 7                    # CU_LAUNCH_ATTRIBUTE_…


class Array(ctypes.Structure):
    """A struct as libraries pass their arrays: a pointer between other things."""

    _fields_ = [("dimensions", u32), ("data", u64), ("count", u32)]


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", u32), ("event", u64), ("value", ctypes.c_byte * 56)]


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [("sizes", u32 * 7), ("hStream", u64), ("attrs", u64), ("numAttrs", u32)]


def pointers(*values: Any) -> Any:
    return (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))


def launch(p: Program, *values: Any, stream: int = A, kernel: int = PLAIN, entry: str = "cuLaunchKernel",
           **more: Any) -> None:
    p.call(entry, f=kernel, hStream=stream, kernelParams=pointers(*values), **more)


def launch_packed(p: Program, packed: Any, stream: int = A, kernel: int = PLAIN, size: int | None = None) -> None:
    bytes_there = ctypes.c_size_t(ctypes.sizeof(packed) if size is None else size)
    extra = (ctypes.c_void_p * 5)(BUFFER, ctypes.addressof(packed), SIZE, ctypes.addressof(bytes_there), END)
    p.call("cuLaunchKernel", f=kernel, hStream=stream, extra=extra)


def configured(p: Program, *values: Any, stream: int, entry: str = "cuLaunchKernelEx",
               attribute: Attribute | None = None) -> None:
    config = Config(hStream=stream)
    if attribute:
        config.attrs, config.numAttrs = ctypes.addressof(attribute), 1
    p.call(entry, config=config, f=PLAIN, kernelParams=pointers(*values))


def beside(p: Program, repaired: bool) -> None:
    """What comes after the launch on A."""
    if repaired:
        p.order(A, B)
    p.fill(X, B)


for entry in ("cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz"):
    def handed(p: Program, repaired: bool, entry: str = entry) -> None:
        launch(p, u64(X), u32(5), entry=entry)
        beside(p, repaired)

    scene("certain use/write", name=f"{entry} hands a kernel memory")(handed)

    def in_two_threads(p: Program, repaired: bool, entry: str = entry) -> None:
        chosen = entry.removesuffix("_ptsz") if repaired else entry
        launch(p, u64(X), u32(5), stream=0, entry=chosen)
        p.in_thread(lambda: launch(p, u64(X), u32(5), stream=0, entry=chosen))

    if entry.endswith("_ptsz"):
        scene("possible use/use", name=f"{entry} is on the thread's own stream")(in_two_threads)

@scene("certain use/write")
def many_launches_come_after_the_wrong_one(p: Program, repaired: bool) -> None:
    """More than are noted at once: see backlog.hpp."""
    launch(p, u64(X), u32(5))
    for number in range(600):
        launch(p, u64(Y), u32(number))
    beside(p, repaired)


for entry in ("cuLaunchKernelEx", "cuLaunchKernelEx_ptsz"):
    def with_config(p: Program, repaired: bool, entry: str = entry) -> None:
        configured(p, u64(X), u32(5), stream=A, entry=entry)
        beside(p, repaired)

    scene("certain use/write", name=f"{entry} hands a kernel memory")(with_config)


@scene("possible use/use")
def two_kernels_of_which_nothing_is_known(p: Program, repaired: bool) -> None:
    for stream in (A, A if repaired else B):
        launch(p, u64(X), u32(5), stream=stream)


@scene("certain use/write")
def a_pointer_into_the_middle(p: Program, repaired: bool) -> None:
    launch(p, u64(X + 100), u32(5))
    p.call("cuMemsetD8Async", dstDevice=X + 100, N=1, hStream=A if repaired else B)


@scene("possible use/write")
def how_far_a_kernel_reaches_is_not_known(p: Program, repaired: bool) -> None:
    launch(p, u64(X), u32(5))
    if repaired:
        p.order(A, B)
    p.call("cuMemsetD8Async", dstDevice=X + 1000, N=1, hStream=B)


@scene("certain use/write")
def every_pointer_counts(p: Program, repaired: bool) -> None:
    launch(p, u64(Y), u64(X), kernel=TWO)
    beside(p, repaired)


@scene("possible use/write")
def a_pointer_that_is_there_or_not(p: Program, repaired: bool) -> None:
    """What the kernel does with the other pointer may depend on it."""
    launch(p, u64(X), u64(Y), kernel=TWO)
    p.order(A, B)
    launch(p, u64(X), u64(0), kernel=TWO, stream=B)
    if repaired:
        p.order(B, A)
    p.call("cuMemsetD8Async", dstDevice=X, N=1, hStream=A)


@scene("certain use/write")
def one_pointer_or_another(p: Program, repaired: bool) -> None:
    """... is a pointer."""
    launch(p, u64(X), u64(Y), kernel=TWO)
    p.order(A, B)
    launch(p, u64(X), u64(Y + 16), kernel=TWO, stream=B)
    if repaired:
        p.order(B, A)
    p.call("cuMemsetD8Async", dstDevice=X, N=1, hStream=A)


@scene("possible use/write")
def a_pointer_in_a_struct(p: Program, repaired: bool) -> None:
    launch(p, u32(1), Array(dimensions=2, data=X, count=3), kernel=STRUCT)
    beside(p, repaired)


@scene("possible use/write")
def a_pointer_in_a_parameter_that_is_not_aligned(p: Program, repaired: bool) -> None:
    launch(p, u32(1), (u32 * 3)(7, X % 2**32, X // 2**32), kernel=ODD)
    beside(p, repaired)


@scene("certain use/write")
def numbers_are_no_pointers(p: Program, repaired: bool) -> None:
    launch(p, u64(12345 if repaired else X), u32(X % 2**32))
    p.fill(X, B)


@scene("certain use/write")
def a_number_of_four_bytes_is_no_pointer(p: Program, repaired: bool) -> None:
    """... though the address lies in the memory behind it."""
    values = (u32 * 4)(1, 2, X % 2**32, X // 2**32)
    place = ctypes.c_uint64.from_buffer(values, 0 if repaired else 8)
    launch(p, place, u32(5))
    p.fill(X, B)


@scene("certain use/write")
def packed_arguments(p: Program, repaired: bool) -> None:
    launch_packed(p, (u64 * 2)(X, 5))
    beside(p, repaired)


@scene("possible use/write")
def a_pointer_in_a_packed_struct(p: Program, repaired: bool) -> None:
    launch_packed(p, (u64 * 4)(1, 2, X, 3), kernel=STRUCT)
    beside(p, repaired)


@scene("certain use/write")
def packed_arguments_end_where_they_say(p: Program, repaired: bool) -> None:
    launch_packed(p, (u64 * 2)(Y, X), kernel=TWO, size=15 if repaired else 16)
    p.fill(X, B)


@scene("certain use/write")
def a_kernel_of_a_library(p: Program, repaired: bool) -> None:
    """The driver answers for its handle as a kernel's, and not as a function's."""
    launch(p, u64(X), kernel=LIBRARY)
    beside(p, repaired)


@scene("certain use/write")
def a_kernel_of_which_the_driver_says_nothing(p: Program, repaired: bool) -> None:
    launch(p, u64(X), kernel=UNKNOWN if repaired else LIBRARY)
    p.fill(X, B)


for entry in ("cuModuleUnload", "cuLibraryUnload"):
    def used_again(p: Program, repaired: bool, entry: str = entry) -> None:
        """The driver gives the handle to another kernel."""
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
        driver.change_kernel(0)
        launch(p, u64(Y), u32(5), kernel=CHANGING)
        driver.change_kernel(1)
        if not repaired:
            p.call(entry)
        launch(p, u32(5), u64(X), kernel=CHANGING)
        p.fill(X, B)

    scene("certain use/write", name=f"{entry} forgets its kernels")(used_again)


def where_memory_was(p: Program) -> Any:
    """A module puts its variables where the host has freed memory: no call says so.  Returns the driver."""
    driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    driver.put_variables.argtypes = [u64, u64]
    driver.put_variables(0, 0)
    p.allocate(Z)
    p.free(Z)
    return driver


@scene("certain use-after-free")
def a_modules_variables_are_where_memory_was(p: Program, repaired: bool) -> None:
    driver = where_memory_was(p)
    if repaired:
        driver.put_variables(Z, 2 * BYTES)
    p.fill(Z, A)


@scene("certain use-after-free")
def a_modules_variables_end_with_it(p: Program, repaired: bool) -> None:
    driver = where_memory_was(p)
    driver.put_variables(Z, 2 * BYTES)
    if repaired:
        p.fill(Z, A)
    p.call("cuModuleUnload", meanwhile=lambda: driver.put_variables(0, 0))
    if not repaired:
        p.fill(Z, A)


@scene("certain use-after-free")
def memory_that_was_used_after_its_free_is_allocated_anew(p: Program, repaired: bool) -> None:
    driver = where_memory_was(p)
    if not repaired:
        p.fill(Z, A)
    driver.put_variables(Z, BYTES)
    p.allocate(Z)
    if repaired:
        p.fill(Z, A)


@scene("certain dead-stream")
def a_kernel_on_a_destroyed_stream(p: Program, repaired: bool) -> None:
    if not repaired:
        p.call("cuStreamDestroy_v2", hStream=A)
    launch(p, u64(X), u32(5))


@scene("possible use-after-free")
def a_kernel_is_handed_freed_memory(p: Program, repaired: bool) -> None:
    """It may be an old pointer that the kernel does not use."""
    if not repaired:
        p.free(X)
    launch(p, u64(X), u32(5))


@scene("certain use-after-free")
def a_kernel_reads_freed_memory(p: Program, repaired: bool) -> None:
    if not repaired:
        p.free(X)
    launch(p, u64(X), u32(5), symbol=b"_Z4readPKfi")


@scene("possible use-after-free")
def freed_memory_in_a_struct_is_nothing(p: Program, repaired: bool) -> None:
    """Of a struct it is an address that is left over, of a parameter it may be used."""
    p.free(X)
    if repaired:
        launch(p, u32(1), Array(dimensions=2, data=X, count=3), kernel=STRUCT)
    else:
        launch(p, u64(X), u32(5))


@scene("certain use/free")
def memory_is_freed_while_a_kernel_may_run(p: Program, repaired: bool) -> None:
    memory = 0x7000_0200_0000
    p.allocate(memory, A)
    launch(p, u64(memory), u32(5))
    if repaired:
        p.order(A, B)
    p.free(memory, B)


# -- events that a launch records ---------------------------------------------------------------------

@scene("certain use/write")
def an_event_of_the_launch_that_the_kernel_triggers(p: Program, repaired: bool) -> None:
    p.call("cuEventCreate", phEvent=out(EVENT))
    configured(p, u64(X), u32(5), stream=A, attribute=Attribute(id=PROGRAMMATIC, event=EVENT) if repaired else None)
    p.wait(B, EVENT)
    p.fill(X, B)


@scene("certain use/write")
def an_event_when_the_last_block_begins_says_nothing_of_the_end(p: Program, repaired: bool) -> None:
    p.call("cuEventCreate", phEvent=out(EVENT))
    configured(p, u64(X), u32(5), stream=A, attribute=Attribute(id=COMPLETION, event=EVENT))
    p.wait(B, EVENT)
    if repaired:
        p.order(A, B)
    p.fill(X, B)


@scene("certain write/write")
def an_event_when_the_last_block_begins_comes_after_what_was_before(p: Program, repaired: bool) -> None:
    p.call("cuEventCreate", phEvent=out(EVENT))
    p.fill(Y, A)
    attribute = Attribute(id=COMPLETION, event=EVENT) if repaired else None
    configured(p, u64(X), u32(5), stream=A, attribute=attribute)
    p.wait(B, EVENT)
    p.fill(Y, B)
