"""Arrays are made by cupy.empty on the default stream, and filled on another one by set(stream=) from pinned memory.

Right: each array's memory is fresh from the driver and has had no other owner, so there is nothing to wait for.
"""
import cupy
import numpy

COUNT, ROUNDS = 1 << 20, 8

stream = cupy.cuda.Stream(non_blocking=True)
pinned = cupy.cuda.alloc_pinned_memory(4 * COUNT * ROUNDS)
host = numpy.frombuffer(pinned, numpy.float32, COUNT * ROUNDS).reshape(ROUNDS, COUNT)
host[:] = numpy.arange(ROUNDS)[:, None]
arrays = []
for number in range(ROUNDS):
    array = cupy.empty(COUNT, cupy.float32)
    array.set(host[number], stream=stream)
    arrays.append(array)
stream.synchronize()
print("right:", sum(bool((array.get() == k).all()) for k, array in enumerate(arrays)), "of", ROUNDS)
