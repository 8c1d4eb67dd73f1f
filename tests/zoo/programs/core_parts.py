"""cuda.core: an array is worked on in parts. Each kernel is handed the whole array, and where its part begins.

Right: the second stage, and the copy of a part, wait for the kernel of that part alone.
whole: the whole array is copied, and no kernel is waited for.
"""
import sys

import numpy
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

KIND, VARIANT = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "right"
COUNT, PARTS = 1 << 18, 8
CODE = r"""
extern "C" __global__ void fill(float* x, int first, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) x[first + i] = first;
}
extern "C" __global__ void halve(float* x, int first, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) x[first + i] *= 0.5f;
}"""

device = Device()
device.set_current()
module = Program(CODE, "c++", ProgramOptions(std="c++17", arch=f"sm_{device.arch}")).compile(KIND)
fill, halve = module.get_kernel("fill"), module.get_kernel("halve")
one, two, three = (device.create_stream() for _ in range(3))
part = COUNT // PARTS
shape, count = LaunchConfig(grid=part // 256, block=256), numpy.int32(part)
x, y = device.allocate(4 * COUNT, stream=one), device.allocate(4 * COUNT, stream=three)
for number in range(PARTS):
    begin = number * part
    launch(one, shape, fill, x, numpy.int32(begin), count)  # first: whole
    two.wait(one)
    launch(two, shape, halve, x, numpy.int32(begin), count)  # first: whole
    if VARIANT != "whole":
        three.wait(two)
        status, = driver.cuMemcpyDtoDAsync(int(y.handle) + 4 * begin, int(x.handle) + 4 * begin, 4 * part,
                                           int(three.handle))
        assert status == driver.CUresult.CUDA_SUCCESS
if VARIANT == "whole":
    status, = driver.cuMemcpyDtoDAsync(int(y.handle), int(x.handle), 4 * COUNT, int(three.handle))  # then: whole
    assert status == driver.CUresult.CUDA_SUCCESS
two.sync()
three.sync()
x.close(one)
y.close(one)
one.sync()
print("parts:", PARTS)
