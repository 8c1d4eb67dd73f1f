"""xlogmem's blocks are worked on by CuPy: `use` says on which stream, and orders the work and the free.

Right: every launch is inside a `use`; xlogmem makes the reader wait, and the free after it.
nouse: the reader's `use` is left out, so that nothing waits.
"""
import contextlib
import sys

import cupy

import xlogmem

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
COUNT, ROUNDS = 1 << 18, 8

runtime = xlogmem.get_runtime()
writer, reader = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
results = cupy.zeros((ROUNDS, COUNT), cupy.float32)
cupy.cuda.Device().synchronize()
for number in range(ROUNDS):
    block = runtime.allocate(4 * COUNT, writer)
    memory = cupy.cuda.UnownedMemory(block.ptr, 4 * COUNT, block)
    values = cupy.ndarray((COUNT,), cupy.float32, cupy.cuda.MemoryPointer(memory, 0))
    with writer, xlogmem.use(writer, write=block):
        cupy.add(cupy.float32(number), cupy.float32(1), out=values)  # first: nouse
    declared = contextlib.nullcontext() if VARIANT == "nouse" else xlogmem.use(reader, read=block)
    with reader, declared:
        cupy.multiply(values, 2, out=results[number])  # then: nouse  # first: nouse
    del values, memory
    block.free()  # then: nouse
cupy.cuda.Device().synchronize()
print("right:", sum(bool((row == 2 * k + 2).all()) for k, row in enumerate(results.get())), "of", ROUNDS)
