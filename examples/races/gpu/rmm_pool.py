"""RMM 26.06's pool forgets what it has to wait for: https://github.com/rapidsai/rmm/issues/2489.  The program is right.

    xlogmem check --gpu --pools real -- python examples/races/gpu/rmm_pool.py [--fixed]
"""
import sys
from contextlib import suppress

import rmm.mr
from cuda.bindings import runtime
from rmm.pylibrmm.stream import Stream

FIXED = "--fixed" in sys.argv
MEGABYTE = 1 << 20


class Made:
    """A stream that the default stream does not wait for."""

    def __init__(self) -> None:
        self.handle = int(runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking)[1])

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=4 * MEGABYTE,
                                 maximum_pool_size=4 * MEGABYTE)
made = [Made() for _ in range(3)]
a, b, c = map(Stream, made)
first, second = pool.allocate(MEGABYTE, a), pool.allocate(MEGABYTE, a)
runtime.cudaMemsetAsync(first, 1, MEGABYTE, made[0].handle)
pool.deallocate(first, MEGABYTE, a)
pool.deallocate(second, MEGABYTE, a)
with suppress(MemoryError):                             # what cannot be had merges what a has freed into what b has
    pool.allocate(16 * MEGABYTE, b)
if FIXED:
    runtime.cudaStreamSynchronize(made[0].handle)
third = pool.allocate(MEGABYTE, c)                      # from b, and so c waits for b alone
runtime.cudaMemsetAsync(third, 2, MEGABYTE, made[2].handle)
pool.deallocate(third, MEGABYTE, c)
runtime.cudaDeviceSynchronize()
