"""Ten streams compute a part each, and one stream adds the parts up after the events of all of them.

Right: the reducing stream waits for every part; the program waits for it before it drops the parts.
nojoin: the reducing stream does not wait.
"""
import sys

import cupy

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
COUNT = 1 << 18

streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(10)]
reducer = cupy.cuda.Stream(non_blocking=True)
sums = []
for turn in range(3):
    parts, events = [], []
    for number, stream in enumerate(streams):
        with stream:
            part = cupy.full(COUNT, float(number + turn))
            part *= 2  # first: nojoin
            parts.append(part)
            events.append(stream.record())
    if VARIANT != "nojoin":
        for event in events:
            reducer.wait_event(event)
    with reducer:
        total = parts[0] + parts[1]  # then: nojoin
        for part in parts[2:]:
            total = total + part  # then: nojoin
        sums.append(float(total[-1]))
    reducer.synchronize()
    cupy.cuda.Device().synchronize()
    del part, parts
print("sums:", sums)
