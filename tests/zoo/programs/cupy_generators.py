"""Random numbers are drawn on four streams, twice from the same seeds.

Right: each stream has a generator of its own, so that the same seed gives the same numbers each time.
shared: one generator draws on all streams, as CuPy's examples map_reduce.py and curand.py do.  cuRAND keeps its state
on the device, and two draws that are not in order may give the same numbers.
"""
import sys

import cupy

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
COUNT = 1 << 16

streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
sums = []
for _ in range(2):
    generators, drawn = [cupy.random.RandomState(seed) for seed in range(4)], []
    cupy.cuda.Device().synchronize()
    for number, stream in enumerate(streams):
        generator = generators[0 if VARIANT == "shared" else number]
        with stream:
            for _ in range(3):
                drawn.append(generator.normal(size=COUNT))  # first: shared  # then: shared
    cupy.cuda.Device().synchronize()
    sums.append([float(numbers.sum()) for numbers in drawn])
print("the same:", sums[0] == sums[1], "all different:", len(set(sums[0])) == 12)
