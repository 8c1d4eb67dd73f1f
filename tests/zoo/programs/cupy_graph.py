"""Work of one stream is captured as a graph, and launched again and again; the input is filled in between.

Right: everything is on one stream.
beside: the input is filled on another stream, which does not wait for the launch before.
"""
import sys

import cupy

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
COUNT = 1 << 18

stream, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
with stream:
    x, y = cupy.zeros(COUNT), cupy.zeros(COUNT)
    cupy.multiply(x, 2, out=y)                          # compiled before the capture
    cupy.add(y, 1, out=y)
    stream.begin_capture()
    cupy.multiply(x, 2, out=y)  # first: beside
    cupy.add(y, 1, out=y)
    graph = stream.end_capture()
stream.synchronize()
sources, results = [cupy.full(COUNT, float(k)) for k in range(6)], []
cupy.cuda.Device().synchronize()
for source in sources:
    filler = other if VARIANT == "beside" else stream
    x.data.copy_from_device_async(source.data, x.nbytes, filler)  # then: beside
    stream.wait_event(filler.record())
    graph.launch(stream)  # first: beside
    with stream:
        results.append(y[:1].copy())
stream.synchronize()
print("results:", [float(result[0]) for result in results])
