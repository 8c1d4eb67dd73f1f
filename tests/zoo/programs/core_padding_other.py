"""A kernel takes a struct in whose unused place the address of live memory is left, on which another stream works.

Right: the kernel reads as many places as the count says; the other stream has its memory for itself.
"""
import ctypes
import sys

from cuda.bindings import driver
from cuda.core import Device, Program, ProgramOptions

CODE = r"""
struct List { float* at[4]; int count; };
extern "C" __global__ void fill(List list, float value) {
    for (int i = 0; i < list.count; ++i) list.at[i][threadIdx.x] = value;
}"""


class List(ctypes.Structure):
    _fields_ = (("at", ctypes.c_uint64 * 4), ("count", ctypes.c_int))


device = Device()
device.set_current()
stream, other = device.create_stream(), device.create_stream()
kernel = Program(CODE, "c++", ProgramOptions(arch=f"sm_{device.arch}")).compile(sys.argv[1]).get_kernel("fill")
theirs, ours = device.allocate(4096, stream=other), device.allocate(4096, stream=stream)
for _ in range(3):
    driver.cuMemsetD8Async(int(theirs.handle), 1, 4096, int(other.handle))
    places, value = List((int(ours.handle), 0, 0, int(theirs.handle)), 1), ctypes.c_float(2)
    arguments = (ctypes.c_void_p * 2)(ctypes.addressof(places), ctypes.addressof(value))
    status, = driver.cuLaunchKernel(int(kernel.handle), 1, 1, 1, 32, 1, 1, 0, int(stream.handle),
                                    ctypes.addressof(arguments), 0)
    assert not status, status
stream.sync()
other.sync()
theirs.close(other)
ours.close(stream)
print("done")
