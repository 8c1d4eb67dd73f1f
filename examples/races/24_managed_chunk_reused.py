"""The host writes into managed memory that work of its earlier owner still writes.

Thread:  https://github.com/sonots/cumo/pull/226
Wrong:   An array's memory returns to a pool while its last kernel runs.  The next array takes it, and the host copies
         the bytes in by itself, which waits for no stream; the kernel writes over them.
Repair:  Wait for the device before the host writes.

A fill stands for the kernel here.
"""
import ctypes
import sys

from driver import begin, cuda, ok, stream

FIXED = "--fixed" in sys.argv
SIZE = 1 << 16

begin()
main = stream()
flags = cuda.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value
pool = [int(ok(cuda.cuMemAllocManaged(SIZE, flags)))]

sequence = pool.pop()
ok(cuda.cuMemsetD8Async(sequence, 1, SIZE, main))       # first
pool.append(sequence)

from_binary = pool.pop()
if FIXED:
    ok(cuda.cuCtxSynchronize())
ctypes.memmove(from_binary, bytes(SIZE), SIZE)          # then
ok(cuda.cuCtxSynchronize())
