"""Many small ufuncs, where the host is the limit: temporaries come from CuPy's pool and go back at once.

Right: one stream.
"""
import os
import time

import cupy

STEPS = int(os.environ.get("ZOO_STEPS", 60))

values = cupy.arange(1000, dtype=cupy.float64)
for step in range(STEPS):
    if step == STEPS // 3:                              # compiled by now
        cupy.cuda.Device().synchronize()
        begin = time.perf_counter()
    result = values
    for number in range(10):
        result = (result + number) * 2 - result
cupy.cuda.Device().synchronize()
print(f"step_ms: {(time.perf_counter() - begin) / (STEPS - STEPS // 3) * 1e3:.3f}")
expected = float(values[3])
for number in range(10):
    expected = (expected + number) * 2 - expected
print("right:", float(result[3]) == expected)
