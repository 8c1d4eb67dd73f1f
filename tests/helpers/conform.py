"""Driver semantics, one line of output for each query: run on the simulator and on hardware, compare.

    python tests/helpers/conform.py [POLICY]   on the simulator
    python tests/helpers/conform.py --real     on a GPU; the output on an H200 is kept in
                                               tests/sim/conform.h200.txt

The simulator has to give the H200's answers exactly (test_conform.py).
"""

from __future__ import annotations

import sys


def name(result):
    return result[0].name if hasattr(result[0], "name") else str(result[0])


def queries(d):
    """Query the driver; yields the lines. `d` is cuda.bindings.driver."""
    d.cuInit(0)
    context = d.cuDevicePrimaryCtxRetain(0)[1]
    d.cuCtxSetCurrent(0)
    yield "stream create without context", name(d.cuStreamCreate(1))
    d.cuCtxSetCurrent(context)
    s, t, e = d.cuStreamCreate(1)[1], d.cuStreamCreate(1)[1], d.cuEventCreate(2)[1]

    yield "query of a never recorded event", name(d.cuEventQuery(e))
    yield "wait for a never recorded event", name(d.cuStreamWaitEvent(s, e, 0))
    yield "sync of it", name(d.cuEventSynchronize(e))

    yield "alloc of 0 bytes", name(d.cuMemAllocAsync(0, s))
    yield "free of a bogus pointer", name(d.cuMemFreeAsync(0x1234, s))
    yield "free of null", name(d.cuMemFreeAsync(0, s))
    p = d.cuMemAllocAsync(1000, s)[1]
    yield "alignment", int(p) % 256 == 0
    yield "free on another stream", name(d.cuStreamSynchronize(s)), name(d.cuMemFreeAsync(p, t))
    yield "double free", name(d.cuMemFreeAsync(p, t))
    p = d.cuMemAllocAsync(1000, s)[1]
    d.cuMemFreeAsync(p, s)
    q = d.cuMemAllocAsync(1000, s)[1]
    yield "same-stream reuse before sync", int(p) == int(q)
    yield "cuMemFree of an async allocation", name(d.cuMemFree(q))
    p = d.cuMemAlloc(1000)[1]
    yield "cuMemFreeAsync of a cuMemAlloc allocation", name(d.cuMemFreeAsync(p, s))

    yield "destroyed event", name(d.cuEventDestroy(e))
    e = d.cuEventCreate(2)[1]
    d.cuEventRecord(e, s)
    d.cuStreamWaitEvent(t, e, 0)
    yield "destroy an event that is waited for", name(d.cuEventDestroy(e))
    yield "destroy a busy stream", name(d.cuStreamDestroy(t))
    first, second = d.cuEventCreate(2)[1], d.cuEventCreate(2)[1]
    yield "elapsed with timing disabled", name(d.cuEventElapsedTime(first, second))

    a = d.cuMemAllocAsync(64, s)[1]
    yield "memset past the end", name(d.cuMemsetD8Async(int(a) + (1 << 40), 0, 64, s))
    memory_type = d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    yield "pointer attr of host memory", name(d.cuPointerGetAttribute(memory_type, id(a)))

    pool = d.cuDeviceGetDefaultMemPool(0)[1]
    for key in ("RELEASE_THRESHOLD", "REUSE_FOLLOW_EVENT_DEPENDENCIES", "REUSE_ALLOW_OPPORTUNISTIC",
                "REUSE_ALLOW_INTERNAL_DEPENDENCIES"):
        result = d.cuMemPoolGetAttribute(pool, getattr(d.CUmemPool_attribute, "CU_MEMPOOL_ATTR_" + key))
        yield "default pool", key, name(result), int(result[1])
    yield "priority range", d.cuCtxGetStreamPriorityRange()

    d.cuStreamSynchronize(s)  # leave nothing behind
    d.cuMemFree(a)
    d.cuEventDestroy(first)
    d.cuEventDestroy(second)
    d.cuStreamDestroy(s)
    d.cuDevicePrimaryCtxRelease(0)


def main():
    if "--real" not in sys.argv:
        from xlogmem import sim

        sim.install().reset(*sys.argv[1:] or ["min"])
    from cuda.bindings import driver

    for line in queries(driver):
        print(*line)


if __name__ == "__main__":
    main()
