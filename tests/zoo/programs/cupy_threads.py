"""Four threads work on streams of their own, allocate from one pool, and hand results to the main thread.

Right: each thread waits for its stream before it hands a result over.
"""
import threading

import cupy

COUNT = 1 << 16
results = [None] * 4


def work(number):
    with cupy.cuda.Stream(non_blocking=True) as stream:
        total = cupy.zeros(COUNT)
        for step in range(20):
            total += cupy.full(COUNT, float(number)) * step
        stream.synchronize()
        results[number] = total


threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("results:", [float(result.max()) for result in results])
