"""cuda.core: buffers of a memory resource, kernels on two streams, as PTX or as a cubin.

Right: the second stream waits for the first, and the first for the second before its buffers are closed.
nowait: the sum does not wait for what it adds.  early: buffers are closed while they are read.
"""
import sys

import numpy
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

KIND, VARIANT = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "right"
COUNT, ROUNDS = 1 << 18, 6
CODE = r"""
extern "C" __global__ void fill(float* x, float value, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) x[i] = value;
}
extern "C" __global__ void add(const float* x, const float* y, float* z, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) z[i] = x[i] + y[i];
}"""

device = Device()
device.set_current()
module = Program(CODE, "c++", ProgramOptions(std="c++17", arch=f"sm_{device.arch}")).compile(KIND)
fill, add = module.get_kernel("fill"), module.get_kernel("add")
first, second = device.create_stream(), device.create_stream()
shape, count = LaunchConfig(grid=COUNT // 256, block=256), numpy.int32(COUNT)
for number in range(ROUNDS):
    x, y, z = (device.allocate(4 * COUNT, stream=stream) for stream in (first, first, second))
    launch(first, shape, fill, x, numpy.float32(number + 1), count)  # first: nowait
    launch(first, shape, fill, y, numpy.float32(1), count)  # first: nowait
    if VARIANT != "nowait":
        second.wait(first)
    launch(second, shape, add, x, y, z, count)  # then: nowait  # first: early
    if VARIANT != "early":
        first.wait(second)
    x.close(first)  # then: early
    y.close(first)  # then: early
    z.close(second)
first.sync()
second.sync()
print("rounds:", ROUNDS)
