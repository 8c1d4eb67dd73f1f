"""cuda.core: a kernel is handed the number of the step, on streams in turn; another stream adds up what it has made.

Right: each step waits for the one before, the sum for its step, and the next step for the sum.
nowait: the sum does not wait for its step.
"""
import sys

import numpy
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

KIND, VARIANT = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "right"
COUNT, STEPS = 1 << 18, 9
CODE = r"""
extern "C" __global__ void step(float* x, int count, int number, float rate) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) x[i] = number * rate;
}
extern "C" __global__ void add(const float* x, float* sum, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) sum[i] += x[i];
}"""

device = Device()
device.set_current()
module = Program(CODE, "c++", ProgramOptions(std="c++17", arch=f"sm_{device.arch}")).compile(KIND)
step, add = module.get_kernel("step"), module.get_kernel("add")
streams, other = [device.create_stream() for _ in range(3)], device.create_stream()
shape, count = LaunchConfig(grid=COUNT // 256, block=256), numpy.int32(COUNT)
x, total = (device.allocate(4 * COUNT, stream=other) for _ in range(2))
for number in range(STEPS):
    stream = streams[number % 3]
    stream.wait(other)
    stream.wait(streams[(number - 1) % 3])
    launch(stream, shape, step, x, count, numpy.int32(number), numpy.float32(1 / (number + 1)))  # first: nowait
    if VARIANT != "nowait":
        other.wait(stream)
    launch(other, shape, add, x, total, count)  # then: nowait
for stream in streams:
    other.wait(stream)
x.close(other)
total.close(other)
other.sync()
print("steps:", STEPS)
