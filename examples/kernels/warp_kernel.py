"""Warp: a kernel on one stream reads what a slow one on another stream writes, into the same array each time.

    python examples/kernels/warp_kernel.py                 # right
    python examples/kernels/warp_kernel.py --wrong         # without the `use` that reads

Warp allocates its own memory, so its arrays are adopted.
"""
import contextlib
import sys

import warp as wp

import xlogmem

WRONG = "--wrong" in sys.argv
ROUNDS, COUNT = 1000, 1 << 16


@wp.func_native("for (int k = 0; k < 100; ++k) __nanosleep(1000);")
def pause(): ...


@wp.kernel
def fill(x: wp.array(dtype=wp.int32), value: wp.int32):
    pause()                                             # it is slow
    x[wp.tid()] = value


@wp.kernel
def compare(x: wp.array(dtype=wp.int32), value: wp.int32, unequal: wp.array(dtype=wp.int32)):
    if x[wp.tid()] != value:
        wp.atomic_add(unequal, value, 1)


wp.load_module(device="cuda:0")
producer, consumer = wp.Stream("cuda:0"), wp.Stream("cuda:0")
x = wp.empty(COUNT, dtype=wp.int32, device="cuda:0")
unequal = wp.zeros(ROUNDS, dtype=wp.int32, device="cuda:0")
wp.synchronize()                                        # from here on they are ready on every stream
tracked = xlogmem.get_runtime().adopt([x, unequal])
for number in range(ROUNDS):
    with xlogmem.use(producer, write=x):                # after the `compare` before it
        wp.launch(fill, COUNT, inputs=[x, number], stream=producer)
    protected = contextlib.nullcontext() if WRONG else xlogmem.use(consumer, read=x, read_write=unequal)
    with protected:                                     # after `fill`
        wp.launch(compare, COUNT, inputs=[x, number, unequal], stream=consumer)
wp.synchronize()

wrong = int((unequal.numpy() > 0).sum())
print(f"{ROUNDS - wrong} of {ROUNDS} rounds right, {wrong} wrong")
sys.exit((wrong > 0) != WRONG)
