"""CuPy: one random generator draws on several streams, and two of them draw the same numbers.

A generator has a state in the memory of the device, which each draw reads and writes. CuPy's own examples do this
(examples/stream/map_reduce.py and curand.py): on an H100, in 30 of 30 runs two draws of a loop had the same numbers,
and in none with the wait.

    xlogmem check --gpu -- python examples/races/gpu/cupy_generator.py [--fixed]
"""
import sys
from itertools import pairwise

import cupy

FIXED = "--fixed" in sys.argv

generator = cupy.random.RandomState(seed=1)
streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
drawn = []
for number, stream in enumerate(streams):
    if FIXED and number:
        stream.wait_event(streams[number - 1].record())
    with stream:
        drawn.append(generator.normal(size=1 << 20))
cupy.cuda.Device().synchronize()
same = sum(bool((one == other).all()) for one, other in pairwise(drawn))
print(f"{same} of {len(drawn) - 1} draws have the numbers of the draw before")
