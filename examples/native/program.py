"""Copies by an extension, on a stream of its own, while another stream fills the source again and again.

    python program.py copy_c            or another module that was built in this folder

The copies are wrong where the extension does not declare them, and right where it does.
"""
import sys
from importlib import import_module

from cuda.bindings import driver as cuda

import xlogmem

sys.path.insert(0, "")                                  # the module is in the current folder
module = import_module(sys.argv[1])
NBYTES = (4 << 10) if xlogmem.is_simulated() else (256 << 20)
ROUNDS = 20


def copies(runtime, declared):
    """How many copies had another value than the fill before them."""
    produce, consume = runtime.acquire_stream(), runtime.acquire_stream()
    source = runtime.allocate(NBYTES, produce)
    targets = [runtime.allocate(NBYTES, produce) for _ in range(ROUNDS)]
    with xlogmem.use(produce, write=targets):
        for target in targets:
            cuda.cuMemsetD8Async(target.ptr, 255, NBYTES, produce.handle)
    for value, target in enumerate(targets):
        with xlogmem.use(produce, write=source):        # after the copy before, if that was declared
            cuda.cuMemsetD8Async(source.ptr, value, NBYTES, produce.handle)
        module.copy(runtime, consume.handle, target, source, NBYTES, declared)
    cuda.cuCtxSynchronize()
    wrong = 0
    for value, target in enumerate(targets):
        seen = bytearray(NBYTES)
        cuda.cuMemcpyDtoH(seen, target.ptr, NBYTES)
        wrong += seen != bytes([value]) * NBYTES
        target.free()
    source.free()
    return wrong


def races():
    """Without a GPU the simulated driver has reported them, whatever the values were."""
    if not xlogmem.is_simulated():
        return 0
    from xlogmem.sim import simulator

    found = len(simulator().races())
    simulator().clear_races()
    return found


runtime = xlogmem.get_runtime()
cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
for declared in (False, True):
    wrong = copies(runtime, declared) or races()
    print("declared:" if declared else "not declared:", "wrong" if wrong else "right")
