"""cuda.core: a kernel on one stream reads what a slow one on another stream writes.

    python examples/kernels/cuda_core_kernel.py            # right
    python examples/kernels/cuda_core_kernel.py --wrong    # without the `use`

Each round has a buffer of its own, which is closed on the producer's stream while the kernel that reads it is still
queued.
"""
import contextlib
import sys

import numpy
from cuda.core import Device, LaunchConfig, LegacyPinnedMemoryResource, Program, ProgramOptions, launch

import xlogmem

WRONG = "--wrong" in sys.argv
ROUNDS, COUNT, WIDTH = 1000, 1 << 16, 256
CODE = r"""
extern "C" __global__ void fill(int* x, int value, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = 0; k < 100; ++k) __nanosleep(1000);    // it is slow
    if (i < count) x[i] = value;
}
extern "C" __global__ void compare(const int* x, int value, int count, int* unequal) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && x[i] != value) atomicAdd(unequal + value, 1);
}"""

device = Device()
device.set_current()
xlogmem.enable("cuda.core")                             # before anything is allocated
compiled = Program(CODE, "c++", ProgramOptions(arch=f"sm_{device.arch}")).compile("ptx")
fill, compare = compiled.get_kernel("fill"), compiled.get_kernel("compare")
shape = LaunchConfig(grid=COUNT // WIDTH, block=WIDTH)

producer, consumer = device.create_stream(), device.create_stream()
unequal = device.allocate(4 * ROUNDS, stream=consumer)
unequal.fill(b"\0", stream=consumer)
for number in range(ROUNDS):
    x = device.allocate(4 * COUNT, stream=producer)
    arguments = (x, numpy.int32(number), numpy.int32(COUNT))
    launch(producer, shape, fill, *arguments)
    protected = contextlib.nullcontext() if WRONG else xlogmem.use(consumer, read=x, read_write=unequal)
    with protected:                                     # after `fill`; and `x` is freed after `compare`
        launch(consumer, shape, compare, *arguments, unequal)
    x.close(producer)

host = LegacyPinnedMemoryResource().allocate(4 * ROUNDS)
unequal.copy_to(host, stream=consumer)
consumer.sync()
producer.sync()
wrong = int((numpy.from_dlpack(host).view(numpy.int32) > 0).sum())
print(f"{ROUNDS - wrong} of {ROUNDS} rounds right, {wrong} wrong")
sys.exit((wrong > 0) != WRONG)
