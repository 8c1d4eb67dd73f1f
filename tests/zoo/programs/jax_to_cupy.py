"""JAX makes arrays, and CuPy works on them on a stream of its own.

Right: by DLPack, which makes CuPy's stream wait for JAX's; the stream is done before the array is dropped.
raw: by address, without any wait.  drop: JAX's array is dropped while CuPy reads its memory by address.
"""
import sys

import cupy
import jax
import jax.numpy as jnp

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
COUNT = 1 << 20


@jax.jit
def make(number):
    return jnp.abs(jnp.sin(jnp.arange(COUNT, dtype=jnp.float32))) * 0 + number


side, largest = cupy.cuda.Stream(non_blocking=True), []
for number in range(5):
    values = make(float(number))
    with side:
        if VARIANT == "right":
            view = cupy.from_dlpack(values)
        else:
            if VARIANT == "drop":
                values.block_until_ready()
            keeper = values if VARIANT == "raw" else None
            memory = cupy.cuda.UnownedMemory(values.unsafe_buffer_pointer(), values.nbytes, keeper)
            view = cupy.ndarray(values.shape, cupy.float32, cupy.cuda.MemoryPointer(memory, 0))
        largest.append((view * 2).max())  # first: drop
        if VARIANT == "right":
            side.synchronize()
    del values, view  # then: drop
cupy.cuda.Device().synchronize()
print("largest:", [float(value) for value in largest])
