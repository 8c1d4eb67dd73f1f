"""Runtimes whose numbers are four thousand apart, in one history:  python many_runtimes.py FOLDER

A process of its own, because the simulated driver's waits for the device take a thousand times as long after so many
streams, for all tests that come later.
"""
from __future__ import annotations

import sys
from pathlib import Path

from xlogmem import StreamPool, record_history, sim
from xlogmem.observe.history import read


def main(folder: Path) -> None:
    driver = sim.install()
    from cuda.bindings import driver as cuda
    from four_streams import READ_WRITE, FourStreams

    from xlogmem.sim.kernels import check

    check(cuda.cuInit(0))
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(0))))))
    x = FourStreams(driver)
    pools = [StreamPool(0) for _ in range(1 << 12)]
    y = FourStreams(driver)
    first, second = (one.runtime.stream_pool.ordering.number for one in (x, y))
    assert second - first >= 1 << 16
    with record_history(folder / "a.xlog") as recording:
        for one in (x, y):
            block = one.runtime.allocate(512, one.S)
            one.use(one.S, (block, READ_WRITE))
            one.runtime.record_block_use(block, one.S)
            block.free()
        running = read(folder / "a.xlog")
    kinds = [(number, kind, access) for number in (first, second)
             for kind, access in (("allocate", None), ("use", "read_write"), ("record use", "unknown"), ("free", None))]
    for history in (running, read(folder / "a.xlog"), recording.events()):
        assert [(event.runtime, event.kind, event.access) for event in history] == kinds
    assert len({pool.ordering.number for pool in pools} | {first, second}) == len(pools) + 2
    del block
    for one in (x, y):
        one.close()
    assert not driver.races()


main(Path(sys.argv[1]))
