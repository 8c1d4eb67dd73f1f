"""The few kernels of the demo and the tests, as PTX, and their launches.

The driver compiles the PTX for its GPU; the simulated driver knows the same kernels by their names.  They make timing
visible; they are not meant to be fast.
"""
from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem.errors import DriverError

__all__ = ["Kernels", "check"]

# One thread for each element, 256 a block; every kernel but `delay` takes the element count last.
PTX = """
.version 7.0
.target sm_70
.address_size 64

// Keeps one thread busy for `nanoseconds`, so that later work on the stream is late.
.visible .entry xlogmem_delay(.param .u64 nanoseconds)
{
    .reg .u64 %start, %now, %length;
    .reg .pred %early;
    ld.param.u64 %length, [nanoseconds];
    mov.u64 %start, %globaltimer;
wait:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %early, %now, %length;
    @%early bra wait;
    ret;
}

// target[i] = value
.visible .entry xlogmem_fill_u32(.param .u64 target, .param .u32 value, .param .u32 count)
{
    .reg .u32 %i, %block, %width, %n, %v;
    .reg .u64 %p, %offset;
    .reg .pred %outside;
    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mov.u32 %i, %tid.x;
    mad.lo.u32 %i, %block, %width, %i;
    ld.param.u32 %n, [count];
    setp.ge.u32 %outside, %i, %n;
    @%outside bra done;
    ld.param.u64 %p, [target];
    ld.param.u32 %v, [value];
    mul.wide.u32 %offset, %i, 4;
    add.u64 %p, %p, %offset;
    st.global.u32 [%p], %v;
done:
    ret;
}

// target[i] = source[i]
.visible .entry xlogmem_copy_u32(.param .u64 target, .param .u64 source, .param .u32 count)
{
    .reg .u32 %i, %block, %width, %n, %v;
    .reg .u64 %p, %q, %offset;
    .reg .pred %outside;
    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mov.u32 %i, %tid.x;
    mad.lo.u32 %i, %block, %width, %i;
    ld.param.u32 %n, [count];
    setp.ge.u32 %outside, %i, %n;
    @%outside bra done;
    ld.param.u64 %p, [target];
    ld.param.u64 %q, [source];
    mul.wide.u32 %offset, %i, 4;
    add.u64 %p, %p, %offset;
    add.u64 %q, %q, %offset;
    ld.global.u32 %v, [%q];
    st.global.u32 [%p], %v;
done:
    ret;
}

// target[i] += value
.visible .entry xlogmem_add_u32(.param .u64 target, .param .u32 value, .param .u32 count)
{
    .reg .u32 %i, %block, %width, %n, %v, %old;
    .reg .u64 %p, %offset;
    .reg .pred %outside;
    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mov.u32 %i, %tid.x;
    mad.lo.u32 %i, %block, %width, %i;
    ld.param.u32 %n, [count];
    setp.ge.u32 %outside, %i, %n;
    @%outside bra done;
    ld.param.u64 %p, [target];
    ld.param.u32 %v, [value];
    mul.wide.u32 %offset, %i, 4;
    add.u64 %p, %p, %offset;
    ld.global.u32 %old, [%p];
    add.u32 %old, %old, %v;
    st.global.u32 [%p], %old;
done:
    ret;
}

// result[0] += number of i with source[i] != value
.visible .entry xlogmem_count_unequal_u32(.param .u64 result, .param .u64 source, .param .u32 value, .param .u32 count)
{
    .reg .u32 %i, %block, %width, %n, %v, %seen;
    .reg .u64 %p, %q, %offset;
    .reg .pred %outside, %equal;
    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mov.u32 %i, %tid.x;
    mad.lo.u32 %i, %block, %width, %i;
    ld.param.u32 %n, [count];
    setp.ge.u32 %outside, %i, %n;
    @%outside bra done;
    ld.param.u64 %p, [result];
    ld.param.u64 %q, [source];
    ld.param.u32 %v, [value];
    mul.wide.u32 %offset, %i, 4;
    add.u64 %q, %q, %offset;
    ld.global.u32 %seen, [%q];
    setp.eq.u32 %equal, %seen, %v;
    @%equal bra done;
    red.global.add.u32 [%p], 1;
done:
    ret;
}
"""

THREADS = 256
WORD_VALUE_COUNT: tuple[Any, ...] = (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32)


def check(result: tuple[Any, ...]) -> Any:
    """Return the value of a ``cuda.bindings.driver`` call, or raise its error."""
    if result[0] != cuda.CUresult.CUDA_SUCCESS:
        raise DriverError(f"CUDA driver error: {result[0].name}", code=int(result[0]), name=result[0].name)
    return result[1] if len(result) == 2 else result[1:]


class Kernels:
    """The kernels, loaded into the current context.  Arguments named `stream` are ``CUstream`` handles as ints."""

    def __init__(self) -> None:
        self._module = check(cuda.cuModuleLoadData(PTX.encode() + b"\0"))

    def _launch(self, name: str, stream: int, count: int, values: tuple[int, ...], types: tuple[Any, ...]) -> None:
        function = check(cuda.cuModuleGetFunction(self._module, b"xlogmem_" + name.encode()))
        blocks = (count + THREADS - 1) // THREADS
        check(cuda.cuLaunchKernel(function, blocks, 1, 1, min(count, THREADS), 1, 1, 0, stream, (values, types), 0))

    def delay(self, stream: int, nanoseconds: int) -> None:
        """Keep the stream busy; touches no memory."""
        self._launch("delay", stream, 1, (nanoseconds,), (ctypes.c_uint64,))

    def fill(self, stream: int, target: int, value: int, count: int) -> None:
        """Write `value` to `count` 32-bit words."""
        self._launch("fill_u32", stream, count, (target, value, count), WORD_VALUE_COUNT)

    def copy(self, stream: int, target: int, source: int, count: int) -> None:
        """Copy `count` 32-bit words."""
        self._launch("copy_u32", stream, count, (target, source, count),
                     (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32))

    def add(self, stream: int, target: int, value: int, count: int) -> None:
        """Add `value` to each of `count` 32-bit words."""
        self._launch("add_u32", stream, count, (target, value, count), WORD_VALUE_COUNT)

    def count_unequal(self, stream: int, result: int, source: int, value: int, count: int) -> None:
        """Add to the word at `result` how many of `count` words differ from `value`."""
        self._launch("count_unequal_u32", stream, count, (result, source, value, count),
                     (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32))

    def close(self) -> None:
        """Unload the module."""
        check(cuda.cuModuleUnload(self._module))
